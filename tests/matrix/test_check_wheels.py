"""``matrix check``: JSON output and exit codes."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from matrix.cli import main
from tests.builders.bundles import code_object
from tests.support.tiny import wheel_of

Capture = pytest.CaptureFixture[str]


pytestmark = pytest.mark.usefixtures("own_cache")


def wheel(name: str = "tiny", version: str = "1.0", **files: bytes) -> Path:
    members = {f"{name}/{member}.hsaco": data for member, data in files.items()}
    return wheel_of(Path(), name, version, members, tag="py3-none-linux_x86_64")


def test_json_of_a_sound_wheel(capsys: Capture) -> None:
    path = wheel(kernel=code_object("gfx90a"))
    assert main(["check", str(path), "--gfx90a", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (wheel_,) = document["things"][0]["wheels"]
    assert document["schema"] == 1
    assert wheel_["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (wheel_["file"], wheel_["name"], wheel_["version"]) == (path.name, "tiny", "1.0")
    assert wheel_["tags"] == ["py3-none-linux_x86_64"]
    assert wheel_["code_objects"] == {"tiny/kernel.hsaco": ["gfx90a"]}
    assert wheel_["verdict"] == "sound"
    assert {finding["id"] for finding in wheel_["findings"]} == {"no-label"}
    assert set(wheel_["findings"][0]) == {"id", "severity", "message", "fix", "evidence"}


def test_exit_code_with_one_defective_wheel(capsys: Capture) -> None:
    paths = [
        str(wheel("good", kernel=code_object("gfx942"))),
        str(wheel("bad", kernel=code_object("gfx90a"))),
    ]
    assert main(["check", *paths]) == 1
    capsys.readouterr()
    assert main(["check", *paths, "--gfx", "gfx942"]) == 1
    message = capsys.readouterr().out
    assert message.startswith("2 things: 1 does not fit, 1 fits\n")
    assert "contains code for gfx90a, but not for gfx942. [target-missing]" in message
    both = str(wheel("both", first=code_object("gfx90a"), second=code_object("gfx942")))
    assert main(["check", both, "--gfx", "gfx942"]) == 0


def test_wheel_of_ours_is_compared_with_its_recipe(capsys: Capture) -> None:
    assert main(["check", str(wheel("deepspeed", "0.19.8"))]) == 4
    path = wheel("deepspeed", "0.19.8+rocm6.4.torch2.9.1.gfx90a")
    assert main(["check", str(path)]) == 1
    message = capsys.readouterr().out
    assert "[no-gpu-code]" in message
    assert "[object-missing]" in message


@pytest.mark.parametrize(("member", "missing"), [("ops/adam/fused_adam_op.so", 1), ("ops/other.so", 5)])
def test_ops_that_were_not_chosen_are_not_missing(member: str, missing: int, capsys: Capture) -> None:
    version = "0.19.8+rocm6.4.torch2.9.1.gfx90a"
    path = wheel_of(Path(), "deepspeed", version, {f"deepspeed/{member}": b""}, tag="py3-none-linux_x86_64")
    main(["check", str(path)])
    assert capsys.readouterr().out.count("[object-missing]") == missing  # the member is not a shared object


@pytest.mark.parametrize(
    ("rest", "code", "message"),
    [
        ("gone-1.0-py3-none-any.whl", 2, "gone-1.0"),
        ("strange.whl", 3, "its name is not of the form"),
        ("cut-1.0-py3-none-any.whl", 3, "not a valid wheel"),
        ("{wheel} --gfx90b", 2, "gfx90a"),
    ],
)
def test_bad_input(rest: str, code: int, message: str, capsys: Capture) -> None:
    path = wheel(kernel=code_object())
    Path("cut-1.0-py3-none-any.whl").write_bytes(path.read_bytes()[:100])
    Path("strange.whl").touch()
    assert main(["check", *rest.format(wheel=path).split()]) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_control_characters_in_names_are_escaped(capsys: Capture) -> None:
    path = wheel(kernel=code_object())
    with zipfile.ZipFile(path, "a") as sink:
        sink.writestr("tiny/\x1b[31m\udcff.py".encode("utf-8", "replace").decode(), "")
    assert main(["check", str(path), "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["things"][0]["wheels"][0]["verdict"] == "defective"
    assert main(["check", str(path)]) == 1
    message = capsys.readouterr().out
    assert "\x1b" not in message
    assert r"\x1b[31m" in message
