"""The preflight: pip's result, or the reason why there is none. `fake_pip` replaces pip."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from matrix.cli import main
from matrix.commands import check as asking
from tests.support.tiny import tiny_index

Capture = pytest.CaptureFixture[str]
SAID = "ERROR: Cannot install a and b\n  a 1 depends on b<2\nERROR: Resolution"


def fake_pip(monkeypatch: pytest.MonkeyPatch, output: str, code: int) -> Path:
    """Replace pip with a program, and return the file in which it records its arguments."""
    program, record = Path("pip.sh").absolute(), Path("asked").absolute()
    script = f'#!/bin/sh\necho "$@" > {record}\nfor last; do :; done\ncat "$last" >> {record}\n'
    program.write_text(
        f"{script}printf '%s\\n' {shlex.quote(output)}\n{'sleep 60' if code < 0 else f'exit {code}'}\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(asking, "_find_pip", lambda _: (str(program), "26.0", "3.12"))
    return record


def checked(capsys: Capture, *arguments: str) -> tuple[int, dict[str, object]]:
    code = main(["check", *arguments, "--date", "2026-03-01", "--format", "json"])
    output = json.loads(capsys.readouterr().out)["preflight"]
    assert set(output) == {"outcome", "text", "output", "left_out"}
    return code, output


def test_pip_gets_python_of_file_and_no_source_builds(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    record = fake_pip(monkeypatch, "Would install numpy-1.26.4", 0)
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
    _, output = checked(capsys, "env.yml")
    assert output["outcome"] == "passed"
    assert output["left_out"] == [7, 8, 9, 10, 11, 12, 13]
    command, *lines = record.read_text().splitlines()
    assert lines == [f"--extra-index-url {Path('index/simple').absolute().as_uri()}", "numpy==1.26.4"]
    for option in ("--dry-run", "--only-binary :all:", "--python-version 3.12.99", "manylinux_2_39_x86_64"):
        assert option in command
    assert "manylinux_2_40_x86_64" not in command


def test_error_of_pip_is_shown_with_lines_of_file(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    fake_pip(monkeypatch, f"Collecting a\n{SAID}", 1)
    Path("list.txt").write_text("# a comment\nnumpy==1.26.4\n")
    code, output = checked(capsys, "list.txt")
    assert (code, output["outcome"]) == (1, "refused")
    assert output["output"] == SAID
    assert main(["check", "list.txt", "--date", "2026-03-01"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("pip rejects it")
    assert "a 1 depends on b<2" in text


@pytest.mark.parametrize(
    ("name", "code", "outcome"),
    [("omegaconf", 0, "unclear"), ("apex", 1, "refused"), ("torch", 1, "refused")],
)
def test_missing_wheel_is_unclear_unless_package_is_known(
    name: str, code: int, outcome: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    fake_pip(monkeypatch, f"ERROR: No matching distribution found for {name}==9", 1)
    Path("list.txt").write_text("numpy==1.26.4\n")
    ended, output = checked(capsys, "list.txt")
    assert (ended, output["outcome"]) == (code, outcome)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "code"),
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
def test_preflight_without_pip_report_is_not_run(
    output: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    fake_pip(monkeypatch, output, code)
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
        ("-e .", "pip would build every requirement"),
        ("# nothing", "no requirement"),
    ],
)
def test_unanswerable_file_names_reason(
    lines: str, why: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    record = fake_pip(monkeypatch, "", 0)
    Path("list.txt").write_text(f"{lines}\n")
    code, output = checked(capsys, "list.txt")
    assert (code, output["outcome"]) == (0, "not-run")
    assert why in str(output["text"])
    assert not record.exists()


def test_missing_pip_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(asking, "output_of", lambda _: "pip 21.0 from /x (python 3.11)")
    Path("list.txt").write_text("numpy==1.26.4\n")
    _, output = checked(capsys, "list.txt")
    assert output["outcome"] == "not-run"
    assert "22.3" in str(output["text"])


@pytest.mark.integration
def test_real_pip_resolves_from_local_index(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    needs = {"tiny": ["small<2"], "small": []}
    tiny_index(Path("index"), {name: [("1.0", needs[name]), ("2.0", needs[name])] for name in needs})
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    head = f"dependencies:\n- python={python}\n- pip=26.*\n- pip:\n  - --index-url file:///mnt/simple\n"

    Path("env.yml").write_text(f"{head}  - tiny==1.0\n")
    code, output = checked(capsys, "env.yml")
    assert (code, output["outcome"]) == (0, "passed"), output

    Path("env.yml").write_text(f"{head}  - tiny==1.0\n  - small==2.0\n")
    code, output = checked(capsys, "env.yml")
    assert (code, output["outcome"]) == (1, "refused"), output
    assert "tiny 1.0 depends on small<2" in str(output["output"])
    assert "env.yml (line 6)" in str(output["output"])
    assert not list(Path().glob("nowhere*"))


def test_pip_that_is_stopped_leaves_no_files(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    fake_pip(monkeypatch, "waiting", -1)
    program = Path("pip.sh")
    program.write_text(program.read_text().replace("#!/bin/sh", "#!/bin/sh\nmktemp -d > made", 1))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    Path("list.txt").write_text("numpy==1.26.4\n")
    _, output = checked(capsys, "list.txt", "--timeout", "1")
    assert output["outcome"] == "not-run"
    assert not Path(Path("made").read_text().strip()).exists()
    assert list(temporary.iterdir()) == []
