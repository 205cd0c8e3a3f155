"""The preflight: pip's answer, and what is said where there is none. `pip_saying` is a stand-in for pip."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
import zipfile
from pathlib import Path

import pytest

from matrix.checking import preflight as asking
from matrix.cli import main

Capture = pytest.CaptureFixture[str]
SAID = "ERROR: Cannot install a and b\n  a 1 depends on b<2\nERROR: Resolution"


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pip_saying(monkeypatch: pytest.MonkeyPatch, said: str, code: int) -> Path:
    """Put a program in the place of pip, and give the file in which it keeps what it was asked."""
    program, kept = Path("pip.sh").absolute(), Path("asked").absolute()
    script = f'#!/bin/sh\necho "$@" > {kept}\nfor last; do :; done\ncat "$last" >> {kept}\n'
    program.write_text(
        f"{script}printf '%s\\n' {shlex.quote(said)}\n{'sleep 60' if code < 0 else f'exit {code}'}\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(asking, "_find_pip", lambda _: (str(program), "26.0", "3.12"))
    return kept


def checked(capsys: Capture, *arguments: str) -> tuple[int, dict[str, object]]:
    code = main(["check", *arguments, "--date", "2026-03-01", "--format", "json"])
    said = json.loads(capsys.readouterr().out)["preflight"]
    assert set(said) == {"outcome", "text", "output", "left_out"}
    return code, said


def test_pip_is_asked_for_the_python_of_the_file_and_only_about_what_it_need_not_build(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    kept = pip_saying(monkeypatch, "Would install numpy-1.26.4", 0)
    Path("index/simple").mkdir(parents=True)
    Path("env.yml").write_text(
        "dependencies:\n- python=3.12\n- pip=26.*\n- pip:\n"
        "  - --extra-index-url file:///mnt/simple\n"
        "  - numpy==1.26.4\n"
        "  - git+https://example.org/a\n"
        "  - -e .\n"
        "  - tiny-1.0.tar.gz\n"
        "  - --no-binary numpy\n"
        '  - "--only-binary :none:"\n'
        '  - "--index-url https://example.org/\\u2028git+https://example.org/b"\n'
        "  - wheels/a [x]\n"
    )
    _, said = checked(capsys, "env.yml")
    assert said["outcome"] == "passed"
    assert said["left_out"] == [7, 8, 9, 10, 11, 12, 13]
    command, *lines = kept.read_text().splitlines()
    assert lines == [f"--extra-index-url {Path('index/simple').absolute().as_uri()}", "numpy==1.26.4"]
    for option in ("--dry-run", "--only-binary :all:", "--python-version 3.12", "manylinux_2_39_x86_64"):
        assert option in command
    assert "manylinux_2_40_x86_64" not in command


def test_a_refusal_is_shown_in_full_with_the_lines_of_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pip_saying(monkeypatch, f"Collecting a\n{SAID}", 1)
    Path("list.txt").write_text("# a comment\nnumpy==1.26.4\n")
    code, said = checked(capsys, "list.txt")
    assert (code, said["outcome"]) == (1, "refused")
    assert said["output"] == SAID
    assert main(["check", "list.txt", "--date", "2026-03-01"]) == 1
    text = capsys.readouterr()
    assert "a 1 depends on b<2" in text.out
    assert "pip rejects it" in text.err


@pytest.mark.parametrize(
    ("name", "code", "outcome"),
    [("omegaconf", 0, "unclear"), ("apex", 1, "refused"), ("torch", 1, "refused")],
)
def test_what_has_no_wheel_may_have_a_source_unless_it_is_known(
    name: str, code: int, outcome: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pip_saying(monkeypatch, f"ERROR: No matching distribution found for {name}==9", 1)
    Path("list.txt").write_text("numpy==1.26.4\n")
    ended, said = checked(capsys, "list.txt")
    assert (ended, said["outcome"]) == (code, outcome)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (
            "  Could not fetch URL https://x.invalid/a/: connection error: no\nERROR: No matching",
            1,
        ),
        ("WARNING: after NewConnectionError(refused)\nERROR: No matching distribution found for torch", 1),
        ("Collecting torch", -1),
    ],
    ids=["no connection", "refused", "too slow"],
)
def test_no_answer_is_neither_passed_nor_refused(
    said: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pip_saying(monkeypatch, said, code)
    Path("list.txt").write_text("numpy==1.26.4\n")
    arguments = ["list.txt", "--timeout", "1"] if code < 0 else ["list.txt"]
    ended, answer = checked(capsys, *arguments)
    assert (ended, answer["outcome"]) == (0, "not-run")
    assert str(answer["text"]).startswith("pip could not check the file")
    main(["check", *arguments, "--date", "2026-03-01", "-q"])
    assert "warning: pip could not check the file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("--extra-index-url file:///mnt/simple\nnumpy==1.26.4", "name the index with --index"),
        ("-e .", "no requirement"),
        ("# nothing", "no requirement"),
    ],
)
def test_what_cannot_be_asked_is_said(
    lines: str, why: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    kept = pip_saying(monkeypatch, "", 0)
    Path("list.txt").write_text(f"{lines}\n")
    code, said = checked(capsys, "list.txt")
    assert (code, said["outcome"]) == (0, "not-run")
    assert why in str(said["text"])
    assert not kept.exists()


def test_without_a_pip_that_is_said(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(asking, "output_of", lambda _: "pip 21.0 from /x (python 3.11)")
    Path("list.txt").write_text("numpy==1.26.4\n")
    _, said = checked(capsys, "list.txt")
    assert said["outcome"] == "not-run"
    assert "22.3" in str(said["text"])


@pytest.mark.integration
def test_real_pip_answers_from_a_local_index(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name, needs in (("tiny", "small<2"), ("small", "")):
        _publish(Path("index"), name, needs)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    head = f"dependencies:\n- python={python}\n- pip=26.*\n- pip:\n  - --index-url file:///mnt/simple\n"

    Path("env.yml").write_text(f"{head}  - tiny==1.0\n")
    code, said = checked(capsys, "env.yml")
    assert (code, said["outcome"]) == (0, "passed"), said

    Path("env.yml").write_text(f"{head}  - tiny==1.0\n  - small==2.0\n")
    code, said = checked(capsys, "env.yml")
    assert (code, said["outcome"]) == (1, "refused"), said
    assert "tiny 1.0 depends on small<2" in str(said["output"])
    assert "env.yml (line 6)" in str(said["output"])
    assert not list(Path().glob("nowhere*"))


def _publish(index: Path, name: str, needs: str) -> None:
    """Write two versions of a pure wheel and their page."""
    folder = index / "simple" / name
    folder.mkdir(parents=True)
    links = ""
    for version in ("1.0", "2.0"):
        wheel = folder / f"{name}-{version}-py3-none-any.whl"
        info = f"{name}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        metadata += f"Requires-Dist: {needs}\n" if needs else ""
        with zipfile.ZipFile(wheel, "w") as sink:
            sink.writestr(f"{info}/METADATA", metadata)
            sink.writestr(
                f"{info}/WHEEL",
                "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            sink.writestr(f"{info}/RECORD", "")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        links += f'<a href="{wheel.name}#sha256={digest}">{wheel.name}</a>\n'
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
