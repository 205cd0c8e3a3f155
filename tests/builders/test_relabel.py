"""The label is in every place that tools read, and nothing else changed."""

from __future__ import annotations

import platform
import subprocess
import sys
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path

import pytest
import wheel.wheelfile
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename
from wheel.wheelfile import WheelFile

from builders.relabel import relabel
from resolver.errors import MatrixError

MakeWheel = Callable[..., Path]

LABELLED = "1.0+cpu.torch2.13.0"
INFO = f"tiny-{LABELLED}.dist-info"
FILES = {
    "tiny/__init__.py": b"ANSWER = 42\n",
    "tiny/data.bin": bytes(range(256)) * 50,
    "tiny-1.0.data/scripts/tiny-run": b"#!python\nimport tiny\nprint(tiny.ANSWER)\n",
    "tiny-1.0.dist-info/licenses/LICENSE": b"Version: 1.0\n",
}
DESCRIPTION = "A tiny one.\n\nVersion: 9.9 is not out yet.\nVersion: 1.0\n"


@pytest.fixture
def source(make_wheel: MakeWheel) -> Path:
    return make_wheel(
        files=FILES,
        description=DESCRIPTION,
        executable=("tiny-1.0.data/scripts/tiny-run",),
        requires_python=">=3.9",
    )


def read_all(path: Path) -> dict[str, bytes]:
    """Read every member through WheelFile, which checks each against the record."""
    with WheelFile(str(path)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_label_is_in_file_name_directories_and_metadata(source: Path, tmp_path: Path) -> None:
    made = relabel(source, LABELLED, "manylinux_2_34_x86_64", tmp_path / "out")
    assert made == tmp_path / "out" / f"tiny-{LABELLED}-py3-none-manylinux_2_34_x86_64.whl"
    name, version, build, _ = parse_wheel_filename(made.name)
    assert (name, str(version), build) == ("tiny", LABELLED, ())
    members = read_all(made)
    assert set(members) == {
        "tiny/__init__.py",
        "tiny/data.bin",
        f"tiny-{LABELLED}.data/scripts/tiny-run",
        f"{INFO}/licenses/LICENSE",
        f"{INFO}/METADATA",
        f"{INFO}/WHEEL",
        f"{INFO}/RECORD",
    }
    metadata = message_from_bytes(members[f"{INFO}/METADATA"])
    assert metadata.get_all("Version") == [LABELLED]
    assert metadata["Requires-Python"] == ">=3.9"
    about = message_from_bytes(members[f"{INFO}/WHEEL"])
    assert about.get_all("Tag") == ["py3-none-manylinux_2_34_x86_64"]
    assert about["Build"] is None
    assert about["Root-Is-Purelib"] == "true"
    assert list(made.parent.iterdir()) == [made]


def test_the_record_lists_every_member_once(source: Path, tmp_path: Path) -> None:
    members = read_all(relabel(source, LABELLED, "any", tmp_path / "out"))
    listed = [line.split(",")[0] for line in members[f"{INFO}/RECORD"].decode().splitlines()]
    assert sorted(listed) == sorted(members)


def test_content_and_permissions_stay(source: Path, tmp_path: Path) -> None:
    made = relabel(source, LABELLED, "any", tmp_path / "out")
    members = read_all(made)
    for path, data in FILES.items():
        assert members[path.replace("tiny-1.0.", f"tiny-{LABELLED}.")] == data
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(made) as after:
        modes = {one.filename: one.external_attr >> 16 for one in after.infolist()}
        assert oct(modes[f"tiny-{LABELLED}.data/scripts/tiny-run"]) == "0o100755"
        assert oct(modes["tiny/__init__.py"]) == "0o100644"
        order = [one.replace("tiny-1.0.", f"tiny-{LABELLED}.") for one in before.namelist()]
        assert after.namelist() == order


def test_the_description_is_left_alone(source: Path, tmp_path: Path) -> None:
    made = relabel(source, LABELLED, "any", tmp_path / "out")
    metadata = message_from_bytes(read_all(made)[f"{INFO}/METADATA"])
    assert metadata.get_payload() == DESCRIPTION


def test_a_rebuild_carries_its_number(source: Path, tmp_path: Path) -> None:
    made = relabel(source, LABELLED, "any", tmp_path / "out", build_number=3)
    assert made.name == f"tiny-{LABELLED}-3-py3-none-any.whl"
    assert message_from_bytes(read_all(made)[f"{INFO}/WHEEL"]).get_all("Build") == ["3"]


def test_compressed_tag_sets_are_spelled_out(make_wheel: MakeWheel, tmp_path: Path) -> None:
    made = relabel(make_wheel(tags="py2.py3-none-any"), LABELLED, "any", tmp_path / "out")
    assert made.name == f"tiny-{LABELLED}-py2.py3-none-any.whl"
    about = message_from_bytes(read_all(made)[f"{INFO}/WHEEL"])
    assert about.get_all("Tag") == ["py2-none-any", "py3-none-any"]


def test_the_directory_may_be_spelled_otherwise_than_the_file(make_wheel: MakeWheel, tmp_path: Path) -> None:
    """Some backends normalise the one and not the other; the result has one such directory."""
    source = make_wheel(name="my_pkg")
    source = source.rename(source.with_name("My_Pkg-1.0-py3-none-any.whl"))
    made = relabel(source, LABELLED, "any", tmp_path / "out")
    members = read_all(made)
    (info,) = {name.split("/")[0] for name in members if ".dist-info/" in name}
    assert {f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD"} <= set(members)


def test_a_wheel_that_turns_out_pure_can_still_be_installed(make_wheel: MakeWheel, tmp_path: Path) -> None:
    """Built as a platform wheel, with nothing compiled in it: no pip takes the tag cp311-cp311-any."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    source = make_wheel(tags=f"{python}-{python}-linux_{platform.machine()}")
    made = relabel(source, LABELLED, "any", tmp_path / "out")
    _, _, _, tags = parse_wheel_filename(made.name)
    assert tags & set(sys_tags())
    about = message_from_bytes(read_all(made)[f"{INFO}/WHEEL"])
    assert about.get_all("Tag") == [str(tag) for tag in tags]


def test_the_same_wheel_gives_the_same_bytes_at_any_time(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    made = []
    for year in (2020, 2030):
        monkeypatch.setattr(wheel.wheelfile.time, "time", lambda year=year: (year - 1970) * 365.25 * 86400)
        made.append(relabel(source, LABELLED, "any", tmp_path / str(year)).read_bytes())
    assert made[0] == made[1]


@pytest.mark.parametrize(
    "metadata",
    [
        "Metadata-Version: 2.1\nName: tiny\n",
        "Metadata-Version: 2.1\nName: tiny\n\nThe history:\nVersion: 0.9 was the first.\n",
    ],
)
def test_a_wheel_without_a_version_is_refused(make_wheel: MakeWheel, tmp_path: Path, metadata: str) -> None:
    with pytest.raises(MatrixError, match="tiny has no Version"):
        relabel(make_wheel(metadata=metadata), LABELLED, "any", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("left_out", ["METADATA", "RECORD"])
def test_a_wheel_without_metadata_or_record_is_refused(source: Path, tmp_path: Path, left_out: str) -> None:
    broken = tmp_path / source.name
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(broken, "w") as after:
        for one in before.infolist():
            if not one.filename.endswith(left_out):
                after.writestr(one, before.read(one))
    with pytest.raises(MatrixError):
        relabel(broken, LABELLED, "any", tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))


def test_a_member_that_is_not_as_recorded_is_refused(source: Path, tmp_path: Path) -> None:
    broken = tmp_path / source.name
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(broken, "w") as after:
        for one in before.infolist():
            data = before.read(one)
            after.writestr(one, b"ANSWER = 43\n" if one.filename == "tiny/__init__.py" else data)
    with pytest.raises(MatrixError, match="tiny/__init__"):
        relabel(broken, LABELLED, "any", tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.integration
def test_pip_installs_it_under_the_labelled_version(source: Path, tmp_path: Path) -> None:
    made = relabel(source, LABELLED, "any", tmp_path / "out")
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    python = str(home / "bin" / "python")
    install = [python, "-m", "pip", "install", "--no-index", "--no-deps", "-q", str(made)]
    subprocess.run(install, check=True)
    show = "import importlib.metadata as m; print(m.version('tiny'))"
    said = subprocess.run([python, "-c", show], check=True, capture_output=True, text=True).stdout
    assert said == f"{LABELLED}\n"
    said = subprocess.run([str(home / "bin" / "tiny-run")], check=True, capture_output=True, text=True).stdout
    assert said == "42\n"
