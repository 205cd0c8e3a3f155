"""``matrix check``: invalid files, locks, output and the corrections of ``--fix``."""

from __future__ import annotations

import json
import os
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import pytest

from builders.machine.host import glibc_version
from matrix.cli import main

Capture = pytest.CaptureFixture[str]
LOOK = ["--date", "2026-03-01"]
TORCH = "--extra-index-url https://download.pytorch.org/whl/rocm6.4\ntorch==2.9.1+rocm6.4\n"


BAD = [
    ("env.yml", b"a: [1\n", "env.yml:2", "invalid YAML"),
    ("env.yml", b"dependencies:\n\t- a\n", "env.yml:2", "YAML does not accept tabs"),
    ("env.yml", b"dependencies:\n- a\x01b\n", "env.yml:2", "is not allowed"),
    ("env.yml", b"dependencies: [" * 5000, "env.yml", "nested too deeply"),
    ("env.yml", b"- a\n", "env.yml:1", "a list"),
    ("env.yml", b"text\n", "env.yml:1", "a string"),
    ("env.yml", b"# only a comment\n", "env.yml:1", "nothing"),
    ("env.yml", b"name: x\n", "env.yml:1", "no dependencies"),
    ("env.yml", b"name: x\ndependencies: 3\n", "env.yml:2", "not a list"),
    ("env.yml", b"name: x\n<<: 3\n", "env.yml:2", "for merging"),
    ("env.yml", b"name: x\n<<: [&a [*a]]\n", "env.yml:2", "for merging"),
    ("env.yml", b"&a\nname: x\n<<: *a\n", "env.yml:1", "no dependencies"),
    ("env.yml", b"a: 1\n---\nb: 2\n", "env.yml:2", "invalid YAML"),
    ("env.yml", b" \n", "env.yml", "nothing"),
    ("list.txt", b"\x7fELF\0\0", "list.txt", "binary"),
    ("list.txt", b"# \xff\n", "list.txt:1", "Save it as UTF-8."),
    ("Pipfile", b'[packages]\ntransformers = "*"\n', "Pipfile", "`pip freeze`"),
    ("plain.py", b"import torch\n", "plain.py", "`pip freeze`"),
    (
        "guide.md",
        b"# Install\nFirst load the modules:\n* cotainr\nThen, run the job.\nWait for it.\nBe patient.\n",
        "guide.md:2",
        "4 other lines",
    ),
    (
        "rocminfo.txt",
        b"ROCk module is loaded\n=====\nHSA Agents\n=====\n  Name:  gfx90a\n",
        "rocminfo.txt:1",
        "4 other lines",
    ),
    ("setup.py", b"from setuptools import setup\nsetup()\n", "setup.py", "`pip freeze`"),
]


@pytest.mark.parametrize(("name", "data", "where", "what"), BAD, ids=[f"{what}" for *_, what in BAD])
def test_invalid_file_is_reported_with_line(
    name: str, data: bytes, where: str, what: str, capsys: Capture
) -> None:
    Path(name).write_bytes(data)
    assert main(["check", name, "--fix", *LOOK]) == 3
    output = capsys.readouterr()
    assert where in output.err
    assert what in output.err
    assert "Traceback" not in output.err
    assert Path(name).read_bytes() == data


def test_missing_file_and_conflicting_options_are_errors(capsys: Capture) -> None:
    assert main(["check", "none.yml"]) == 2
    assert "The file none.yml does not exist" in capsys.readouterr().err
    Path("list.txt").write_text(TORCH)
    assert main(["check", "list.txt", "--lock", "matrix.lock"]) == 2
    assert "matrix.lock" in capsys.readouterr().err
    assert main(["check", "list.txt", "--base-image", "lumi-rocm-rocm-6.2.5.sif", *LOOK]) == 2


def test_clean_file_reports_no_problems(capsys: Capture) -> None:
    Path("list.txt").write_text(TORCH)
    assert main(["check", "list.txt", *LOOK]) == 0
    output = capsys.readouterr()
    assert output.out == "list.txt fits lumi-g on 2026-03-01.\n"


def test_text_shows_line_message_and_correction(capsys: Capture) -> None:
    Path("list.txt").write_text("--extra-index-url https://example.org/simple numpy==1.26.4\n")
    assert main(["check", "list.txt", *LOOK]) == 1
    output = capsys.readouterr()
    assert output.out.splitlines() == [
        (
            "list.txt does not work at lumi-g on 2026-03-01: --extra-index-url https://example.org/simple "
            "numpy==1.26.4: pip reads only the options of this line and does not install numpy==1.26.4. It "
            "prints no message."
        ),
        "",
        (
            "  list.txt:1: error: pip reads only the options of this line and does not install "
            "numpy==1.26.4. It prints no message. [requirement-beside-option]"
        ),
        "      --extra-index-url https://example.org/simple numpy==1.26.4",
        "    Use:",
        "      --extra-index-url https://example.org/simple",
        "      numpy==1.26.4",
    ]


def test_control_characters_are_escaped(capsys: Capture) -> None:
    Path("list.txt").write_text("\x1b[31m\x07 x\n")
    assert main(["check", "list.txt", *LOOK]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_pipe_can_be_checked_but_not_fixed(capsys: Capture) -> None:
    for fix, code in (([], 1), (["--fix"], 3)):
        reading, writing = os.pipe()
        os.write(writing, b"--pre numpy\n")
        os.close(writing)
        assert main(["check", f"/dev/fd/{reading}", *fix, *LOOK]) == code
        os.close(reading)
    assert "is not a regular file" in capsys.readouterr().err


def test_fix_keeps_mode_byte_order_mark_and_line_ends() -> None:
    path = Path("real.txt")
    path.write_bytes(BOM_UTF8 + b"# \xc3\xa4\r\n  numpy=1.26.4   # why\r\n\r\n--pre tqdm==4.67.1\r\nscipy")
    path.chmod(0o600)
    Path("list.txt").symlink_to(path)
    assert main(["check", "list.txt", "--fix", *LOOK]) == 4  # no index has tqdm
    expected = BOM_UTF8 + b"# \xc3\xa4\r\n  numpy==1.26.4   # why\r\n\r\n--pre\r\ntqdm==4.67.1\r\nscipy"
    assert path.read_bytes() == expected
    assert path.stat().st_mode & 0o777 == 0o600
    assert Path("list.txt").is_symlink()
    assert sorted(path.name for path in Path().iterdir()) == ["list.txt", "real.txt"]


def test_fix_without_findings_writes_nothing() -> None:
    path = Path("list.txt")
    path.write_text(TORCH)
    before = path.stat()
    assert main(["check", "list.txt", "--fix", *LOOK]) == 0
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_file_for_cotainr_is_judged_as_its_lock(capsys: Capture) -> None:
    assert main(["resolve", "torch", "apex", "--python", "3.12", "--date", "2026-03-01"]) == 0
    assert main(["env", "--for", "cotainr", "-o", "given.yml"]) == 0
    capsys.readouterr()
    found = []
    for thing, code in (("given.yml", 0), ("matrix.lock", 4)):  # no index was asked, so the lock lacks files
        assert main(["check", thing, "--lock", "matrix.lock", "--format", "json"]) == code
        (judged,) = json.loads(capsys.readouterr().out)["things"]
        found.append({row["message"] for row in judged["findings"] if row["severity"] != "info"})
    assert found[1] - found[0] == {"The lock lacks all files, because no index was asked."}


def test_fix_writes_versions_of_lock(capsys: Capture) -> None:
    assert main(["resolve", "torch", "apex", "--python", "3.12", "--date", "2026-03-01"]) == 0
    assert main(["env", "--for", "cotainr", "-o", "given.yml"]) == 0
    capsys.readouterr()
    pins = {
        line.strip("- ").partition("==")[0]: line.strip("- \n")
        for line in Path("given.yml").read_text().splitlines()
        if "==" in line
    }
    Path("env.yml").write_text(
        "channels: [conda-forge]\n"
        "dependencies:\n"
        "  - python=3.9 # old\n"
        "  - pip\n"
        "  - pip:\n"
        "      - --extra-index-url file:///mnt/simple\n"
        "      - torch==1.0 # here\n"
        "      - apex ; python_version > '3'\n"
        "      - numpy\n"
    )
    assert main(["check", "env.yml", "--lock", "matrix.lock", "--fix", "--format", "json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["things"]
    assert {item["verdict"] for item in document["distributions"]} == {"fits"}
    lines = Path("env.yml").read_text().splitlines()
    assert lines[2] == "  - python=3.12 # old"
    assert lines[6] == f"      - {pins['torch']} # here"
    assert lines[7] == "      - --only-binary apex"
    assert lines[8] == f'      - {pins["apex"]} ; python_version > "3"'
    assert {finding["id"] for finding in document["findings"]} == {"pip-unpinned"}


def test_version_that_differs_from_lock_is_error(capsys: Capture) -> None:
    assert main(["resolve", "torch", "--python", "3.12", "--date", "2026-03-01"]) == 0
    Path("env.yml").write_text("dependencies:\n  - python=3.9\n  - pip=26.*\n  - pip:\n    - torch==2.1.0\n")
    capsys.readouterr()
    code = main(["check", "env.yml", "--lock", "matrix.lock", "--format", "json"])
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    findings = [row for row in thing["findings"] if "line" in row["evidence"]]
    assert code == 1
    assert [
        (finding["evidence"]["line"], finding["id"], finding["evidence"]["fixable"]) for finding in findings
    ] == [
        (2, "other-python", True),
        (5, "not-the-lock", True),
    ]
    assert findings[0]["evidence"]["corrected"] == ["python=3.12"]


def findings_of(capsys: Capture, text: str) -> dict[int, dict[str, Any]]:
    Path("some.txt").write_text(text)
    main(["check", "some.txt", "--format", "json"])
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    return {row["evidence"]["line"]: row for row in thing["findings"] if "line" in row["evidence"]}


@pytest.mark.parametrize(
    ("first", "second", "remedy"),
    [
        ("numpy>=1.26", "numpy<3", "Write one line: numpy<3,>=1.26."),
        ("requests[socks]", "requests[security]", "Write one line: requests[security,socks]."),
        ("torchaudio>=2", "torchaudio!=2.1", "Write one line: torchaudio!=2.1,>=2."),
    ],
)
def test_compatible_duplicates_are_info(capsys: Capture, first: str, second: str, remedy: str) -> None:
    finding = findings_of(capsys, f"{first}\n{second}\n")[2]
    assert (finding["id"], finding["severity"]) == ("duplicate-requirement", "info")
    assert "satisfies both lines" in finding["message"]
    assert finding["fix"] == remedy


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ("six==1.16.0", "six==1.15.0", "six==1.15.0 and six==1.16.0"),
        ("six>=1.16", "six==1.15.0", "six==1.15.0 and six>=1.16"),
        ("six[a]>=1.16,<2", "six==1.15.0", "six<2 and >=1.16 and six==1.15.0"),
        ("numpy<2", "numpy>=2", "numpy<2 and numpy>=2"),
    ],
)
def test_contradicting_lines_show_error_of_pip(capsys: Capture, first: str, second: str, both: str) -> None:
    """The error is that of pip 22.3.1 and 26.3; 22.3.1 also prints extras."""
    finding = findings_of(capsys, f"{first}\n{second}\n")[2]
    assert (finding["id"], finding["severity"]) == ("contradicting-requirement", "error")
    output = (
        f"pip stops with: Cannot install {both} because these package versions have conflicting dependencies."
    )
    assert finding["message"].endswith(output)


@pytest.mark.parametrize("line", ["PIP_NO_BUILD_ISOLATION=1", "export PIP_NO_BUILD_ISOLATION=1"])
def test_inverted_isolation_variable_is_explained(capsys: Capture, line: str) -> None:
    finding = findings_of(capsys, f"{line}\n")[1]
    assert "the value 1 keeps build isolation" in finding["message"]
    assert finding["fix"].startswith("Set PIP_NO_BUILD_ISOLATION=0 in the environment")


def test_merge_keys_are_resolved(capsys: Capture) -> None:
    """As in conda, keys of the mapping itself take precedence over merged ones."""
    Path("env.yml").write_text(
        """\
x-one: &one
  channels: [conda-forge]
  dependencies: [python=3.12, pip=26.*, pip: [six=1.16.0]]
x-two: &two
  <<: *one
  channels: [defaults]
<<: [*two, *one]
name: x
"""
    )
    main(["check", "env.yml", "--format", "json", *LOOK])
    findings = [
        (finding["evidence"]["line"], finding["id"])
        for finding in json.loads(capsys.readouterr().out)["things"][0]["findings"]
        if "line" in finding["evidence"]
    ]
    assert findings == [
        (1, "unknown-key"),
        (3, "not-a-requirement"),
        (4, "unknown-key"),
        (6, "defaults-channel"),
    ]


def test_lock_beside_file_is_used(capsys: Capture) -> None:
    Path("work").mkdir()
    requested = ["torch", "--python", "3.12", "--date", "2025-01-15", "-o", "work/matrix.lock"]
    assert main(["resolve", *requested]) == 0
    assert main(["env", "--for", "cotainr", "--lock", "work/matrix.lock", "-o", "work/env.yml"]) == 0
    capsys.readouterr()
    assert main(["check", "work/env.yml", "--format", "json"]) == 0
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    assert {item["verdict"] for item in thing["distributions"]} == {"fits"}
    drivers = "work/matrix.lock was resolved for kernel driver 6.0, and lumi-g on"
    assert any(row["message"].startswith(drivers) for row in thing["findings"]), thing["findings"]
    main(["check", "work/env.yml", "--driver", "6.0", "--format", "json"])
    assert drivers not in capsys.readouterr().out
    main(["check", "work/env.yml", "--site", "frontier", "--format", "json"])
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    assert "other-lock" in [finding["id"] for finding in thing["findings"]]


def test_wheel_for_newer_glibc_is_reported(capsys: Capture) -> None:
    page = Path("index/simple/apex")
    page.mkdir(parents=True)
    label = "rocm6.4.torch2.9.1.gfx90a"
    (page / f"apex-1.9.0+{label}-cp312-cp312-manylinux_2_99_x86_64.whl").touch()
    (page / "apex-1.8.0-cp312-cp312-manylinux_2_17_x86_64.whl").touch()
    Path("list.txt").write_text(
        "--extra-index-url file:///mnt/simple\n--only-binary apex\n"
        f"apex==1.9.0+{label}\n./apex-1.9.0-cp312-cp312-manylinux_2_98_x86_64.whl\n"
    )
    main(["check", "list.txt", *LOOK, "--format", "json"])
    findings = json.loads(capsys.readouterr().out)["things"][0]["findings"]
    wheels = [finding for finding in findings if finding["id"] == "newer-glibc"]
    assert [finding["evidence"]["line"] for finding in wheels] == [3, 4]
    assert {finding["severity"] for finding in wheels} == {"warning"}
    assert "requires glibc 2.99" in wheels[0]["message"]
    assert f"this machine has glibc {glibc_version()}" in wheels[0]["message"]


def test_wheel_for_missing_python_is_reported(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builders.machine.host.running_python", lambda: "3.6")
    monkeypatch.setenv("PATH", "")
    names = (
        "apex-1.9.0-cp312-cp312-linux_x86_64",
        "fast-1.0-cp39-abi3-linux_x86_64",
        "pure-1.0-py3-none-any",
    )
    Path("list.txt").write_text("".join(f"./{name}.whl\n" for name in names))
    main(["check", "list.txt", *LOOK, "--format", "json"])
    findings = json.loads(capsys.readouterr().out)["things"][0]["findings"]
    missing = [finding for finding in findings if finding["id"] == "missing-python"]
    assert [finding["evidence"]["line"] for finding in missing] == [1]
    assert "requires Python 3.12, and no python3.12 is on PATH" in missing[0]["message"]


def test_fix_of_last_line_without_line_break(capsys: Capture) -> None:
    Path("list.txt").write_text("numpy==1.26.4 --pre")
    main(["check", "list.txt", "--fix", *LOOK])
    capsys.readouterr()
    assert Path("list.txt").read_text() == "--pre\nnumpy==1.26.4"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("--extra-index-url file:///mnt/simple\nmylab-ext\n", [2]),
        ("mylab-ext>=1\n", [1]),
        ("mylab-ext==1.0\n", [1]),
        ("Mylab_Ext\nnumpy\n", [1]),
        ("--extra-index-url file:///mnt/simple\nmylab-ext==1.0+cpu\n", []),
        ("--index-url file:///mnt/simple\nmylab-ext\n", []),
        ("--no-index\n--find-links /mnt\nmylab-ext\n", []),
        ("--index-url file:///mnt/simple\n--extra-index-url https://x.example/simple\nmylab-ext\n", [3]),
        (f"mylab-ext==1.0 --hash=sha256:{'0' * 64}\n", []),
        ("mylab-ext @ file:///mnt/mylab_ext-1.0+cpu-py3-none-any.whl\n", []),
    ],
)
def test_name_that_any_index_may_serve_is_reported(capsys: Capture, text: str, reported: list[int]) -> None:
    """The index has the name, and the catalog does not."""
    page = Path("index/simple/mylab-ext")
    page.mkdir(parents=True)
    for version in ("0.9+cpu", "1.0+cpu"):
        (page / f"mylab_ext-{version}-py3-none-any.whl").touch()
    Path("requirements.txt").write_text(text)
    main(["check", "requirements.txt", "--backend", "cpu", "--format", "json"])
    findings = [
        row
        for row in json.loads(capsys.readouterr().out)["things"][0]["findings"]
        if row["id"] == "any-index"
    ]
    assert [row["evidence"]["line"] for row in findings] == reported
    corrected = [line.lower().replace("_", "-") for row in findings for line in row["evidence"]["corrected"]]
    assert corrected == ["mylab-ext==1.0+cpu"] * len(reported)
