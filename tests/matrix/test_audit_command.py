"""``matrix audit``: JSON output and exit codes."""

from __future__ import annotations

import hashlib
import json
import subprocess
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
    assert main(["audit", str(path), "--gfx90a", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (wheel_,) = document["wheels"]
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
    assert main(["audit", *paths]) == 0
    capsys.readouterr()
    assert main(["audit", *paths, "--gfx", "gfx942"]) == 1
    message = capsys.readouterr().out
    assert "good-1.0-py3-none-linux_x86_64.whl: sound" in message
    assert "bad-1.0-py3-none-linux_x86_64.whl: defective" in message
    assert "contains code for gfx90a, but not for gfx942. [target-missing]" in message
    both = str(wheel("both", first=code_object("gfx90a"), second=code_object("gfx942")))
    assert main(["audit", both, "--gfx", "gfx942"]) == 0


def test_package_option_checks_the_recipe(capsys: Capture) -> None:
    path = wheel("deepspeed", "0.19.8")
    assert main(["audit", str(path)]) == 0
    assert main(["audit", str(path), "--package", "deepspeed"]) == 1
    message = capsys.readouterr().out
    assert "[no-gpu-code]" in message
    assert "[object-missing]" in message


def test_image_options_are_compared(capsys: Capture) -> None:
    library = Path("op.so")
    Path("op.c").write_text('#include <stdio.h>\nint answer(void) { return puts("x"); }')
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), "op.c"], check=True)
    members = {
        "tiny/op.so": library.read_bytes(),
        "deepspeed/git_version_info_installed.py": b"installed_ops={'op': True}\n",
    }
    path = wheel_of(Path(), "tiny", "1.0", members, tag="py3-none-linux_x86_64")
    Path("facts.json").write_text(json.dumps({"schema": 1, "image": {"glibc": "2.0", "libraries": []}}))
    assert main(["audit", str(path), "--base-image-facts", "facts.json", "--format", "json"]) == 1
    (wheel_,) = json.loads(capsys.readouterr().out)["wheels"]
    assert wheel_["ops"] == {"op": True}
    errors = [finding["id"] for finding in wheel_["findings"] if finding["severity"] == "error"]
    assert errors == ["glibc-too-new"]
    rest = ["--base-image-facts", "facts.json", "--glibc", "2.99", "--glibcxx", "3.4"]
    assert main(["audit", str(path), *rest]) == 0
    assert main(["audit", str(path), "--glibc", "2.1"]) == 1


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("gone-1.0-py3-none-any.whl", "gone-1.0"),
        ("strange.whl", "its name is not of the form"),
        ("cut-1.0-py3-none-any.whl", "not a valid wheel"),
        ("{wheel} --gfx90b", "gfx90a"),
        ("{wheel} --glibc new", "'new'"),
        ("{wheel} --glibcxx 3.x", "not a version of glibcxx"),
        ("{wheel} --base-image-facts nowhere.json", "nowhere.json"),
        ("{wheel} --conda nowhere", "nowhere"),
        ("{wheel} --torch-lib nowhere", "nowhere"),
        ("{wheel} --torch-lib .", "contains no torch library"),
        ("{wheel} --package deepsped", "Did you mean deepspeed?"),
        ("{wheel} --package deepspeed", "no recipe for deepspeed 1.0"),
        ("", "WHEEL"),
    ],
)
def test_bad_input(rest: str, message: str, capsys: Capture) -> None:
    path = wheel(kernel=code_object())
    Path("cut-1.0-py3-none-any.whl").write_bytes(path.read_bytes()[:100])
    Path("strange.whl").touch()
    assert main(["audit", *rest.format(wheel=path).split()]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_control_characters_in_names_are_escaped(capsys: Capture) -> None:
    path = wheel(kernel=code_object())
    with zipfile.ZipFile(path, "a") as sink:
        sink.writestr("tiny/\x1b[31m\udcff.py".encode("utf-8", "replace").decode(), "")
    assert main(["audit", str(path), "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["wheels"][0]["verdict"] == "defective"
    assert main(["audit", str(path)]) == 1
    message = capsys.readouterr().out
    assert "\x1b" not in message
    assert r"\x1b[31m" in message
