"""``matrix index``: reports about an index, and errors that leave it unchanged."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from builders.index import Index
from matrix.cli import main, make_parser
from tests.support.records import record_of

Capture = pytest.CaptureFixture[str]
MakeWheel = Callable[..., Path]


@pytest.fixture
def index(tmp_path: Path, make_wheel: MakeWheel) -> Index:
    filled = Index(tmp_path / "index")
    for version in ("1.0", "2.0"):
        wheel = make_wheel("tiny", version)
        filled.publish(wheel, record_of(f"key of {version}", wheel))
    return filled


def answer(capture: Capture, *arguments: str, code: int = 0) -> dict[str, object]:
    assert main(["index", *arguments, "--format", "json"]) == code
    document = json.loads(capture.readouterr().out)
    assert isinstance(document, dict)
    return document


@pytest.mark.usefixtures("index")
def test_index_list_json_and_text(capsys: Capture) -> None:
    document = answer(capsys, "list")
    wheels = document["wheels"]
    assert isinstance(wheels, list)
    assert [(row["file"], row["version"], row["build_key"], row["yanked"]) for row in wheels] == [
        ("tiny-1.0-py3-none-any.whl", "1.0", "key of 1.0", False),
        ("tiny-2.0-py3-none-any.whl", "2.0", "key of 2.0", False),
    ]
    main(["index", "yank", "tiny==1.0", "--reason", "too old"])
    capsys.readouterr()
    assert main(["index", "list", "tiny"]) == 0
    answer_line, _, first, second = capsys.readouterr().out.splitlines()
    assert answer_line.startswith("2 wheels of 1 project, ")
    assert "tiny-1.0" in first
    assert "yanked: too old" in first
    assert "yanked" not in second


def test_index_check_reports_and_repairs(index: Index, capsys: Capture) -> None:
    sound = {"schema": 1, "status": "ok", "index": str(index.root), "sound": True, "findings": []}
    sound |= {"warnings": [], "without_provenance": [], "signers": {}}
    assert answer(capsys, "check") == sound
    (index.simple / "tiny" / "index.html").write_text("<html>")
    document = answer(capsys, "check", code=1)
    assert document["sound"] is False
    assert main(["index", "check"]) == 1
    output = capsys.readouterr().out
    assert output.startswith("1 finding in 2 wheels of 1 project, 0 repaired.\n")
    assert "simple/tiny/index.html does not match the files." in output
    assert main(["index", "check", "--repair"]) == 0
    assert capsys.readouterr().out.startswith("1 finding in 2 wheels of 1 project, 1 repaired.\n")
    assert main(["index", "check"]) == 0
    assert "No damage in 2 wheels of 1 project." in capsys.readouterr().out


@pytest.mark.parametrize("words", [("index", "list"), ("farm", "builds")])
def test_records_are_listed_as_often_for_many_projects_as_for_one(
    words: tuple[str, ...],
    index: Index,
    make_wheel: MakeWheel,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    """Each listing reads all names of the directory, so one for each wheel takes quadratic time."""
    listings = []
    names = Index.names

    def counted(self: Index, path: Path, *, regular: bool = False) -> list[str]:
        listings.append(path.name)
        return names(self, path, regular=regular)

    monkeypatch.setattr(Index, "names", counted)
    assert main([*words]) == 0
    before = listings.count("provenance")
    for number in range(5):
        wheel = make_wheel(f"more{number}", "1.0")
        index.publish(wheel, record_of(f"key {number}", wheel))
    listings.clear()
    capsys.readouterr()
    assert main([*words]) == 0
    assert "more4" in capsys.readouterr().out
    assert listings.count("provenance") == before > 0


def test_index_remove_dry_run_then_remove(index: Index, capsys: Capture) -> None:
    document = answer(capsys, "remove", "tiny==1.0", "--dry-run")
    assert document["removed"] == ["tiny-1.0-py3-none-any.whl"]
    assert len(index.wheels("tiny")) == 2
    assert main(["index", "remove", "tiny==1.0"]) == 0
    assert [path.name for path in index.wheels("tiny")] == ["tiny-2.0-py3-none-any.whl"]


def test_index_prune_removes_directories_of_unfinished_builds(index: Index, capsys: Capture) -> None:
    for number, name in enumerate(("old", "new")):
        directory = index.state_directory("builds") / name
        (directory / "build").mkdir(parents=True)
        (directory / "build" / "object.o").write_bytes(bytes(2**20))
        os.utime(directory, (time.time() - 86400 * (10 - 9 * number),) * 2)
    document = answer(capsys, "prune", "--builds", "--older-than", "5", "--dry-run")
    assert document["removed"] == [".matrix/builds/old"]
    assert document["bytes"] == 2**20
    assert main(["index", "prune", "--builds", "--older-than", "5"]) == 0
    assert capsys.readouterr().out == "Removed 1, 1.0 MiB:\n  .matrix/builds/old\n"
    assert main(["index", "prune", "--builds"]) == 0
    assert ".matrix/builds/new" in capsys.readouterr().out
    assert len(index.wheels("tiny")) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["remove", "tny"], "Did you mean tiny?"),
        (["list", "other"], "no project 'other'"),
        (["list", "tny"], "Did you mean tiny?"),
        (["list", "tiny==1.0"], "no project 'tiny==1.0'"),
        (["list", "tiny-1.0-py3-none-any.whl"], "no project"),
        (["list", "../tiny"], "no project"),
        (["prune"], "prune requires --lock, --older-than or both"),
        (["prune", "--older-than", "soon"], "not a number of days"),
        (["prune", "--older-than", "-1"], "not a number of days"),
        (["prune", "--lock", "none.lock"], "none.lock"),
        (["prune", "--builds", "--lock", "none.lock"], "cannot be combined"),
        (["list", "--index", "elsewhere"], "is not an index"),
        (["tend"], "nvalid choice"),
    ],
)
def test_index_bad_input_changes_nothing(
    index: Index, capsys: Capture, arguments: list[str], message: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in index.root.rglob("*")}
    assert main(["index", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in index.root.rglob("*")} == before


def test_index_lists_copied_wheel_when_it_is_added(
    index: Index, make_wheel: MakeWheel, capsys: Capture
) -> None:
    copied = Path(shutil.copy(make_wheel("tiny", "3.0"), index.simple / "tiny"))
    assert main(["index", "list"]) == 0
    assert "not on its page: run `matrix index add`" in capsys.readouterr().out
    assert main(["index", "check", "--repair"]) == 1
    assert "no record of where it comes from" in capsys.readouterr().out
    assert "3.0" not in (index.simple / "tiny" / "index.json").read_text()
    capsys.readouterr()
    assert answer(capsys, "add", str(copied))["added"] == [copied.name]
    assert "3.0" in (index.simple / "tiny" / "index.json").read_text()
    assert main(["index", "check"]) == 0


def test_index_check_rebuilds_pages(index: Index, capsys: Capture) -> None:
    (index.simple / "tiny" / "index.json").unlink()
    assert main(["index", "list"]) == 0
    assert "not on its page: run `matrix index check --repair`" in capsys.readouterr().out
    assert main(["index", "check", "--repair"]) == 0
    assert "index.json is missing. [page-wrong] Repaired: rebuilt" in capsys.readouterr().out


def test_index_add_publishes_wheels_without_errors(
    tmp_path: Path, make_wheel: MakeWheel, capsys: Capture
) -> None:
    good, other = make_wheel("good", "1.0"), make_wheel("good", "2.0")
    bad = make_wheel("bad", "1.0", metadata="Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    broken = tmp_path / "broken-1.0-py3-none-any.whl"
    broken.write_bytes(b"no zip file")
    document = answer(capsys, "add", *map(str, (broken, good, bad, other)), code=1)
    assert document["added"] == [good.name, other.name]
    rejected = document["rejected"]
    assert isinstance(rejected, dict)
    assert set(rejected) == {str(broken), str(bad)}
    index = Index(tmp_path / "index")
    assert index.projects() == ["good"]
    assert set(index.entries("good")) == {good.name, other.name}
    assert main(["index", "add", str(broken), str(good)]) == 1
    output = capsys.readouterr().out
    assert output.startswith("1 added, 1 rejected\n")
    assert f"added {good.name}" in output
    assert f"not added: {broken}" in output


@pytest.mark.parametrize("words", [["check", "-q"], ["-q", "check"], ["check", "-v"], ["-vv", "check"]])
def test_index_verbosity_before_or_after_action(index: Index, capsys: Capture, words: list[str]) -> None:
    (index.simple / "index.html").unlink()
    assert main(["index", *words]) == 1
    assert ("--repair" in capsys.readouterr().err) == ("-q" not in words)


@pytest.mark.parametrize("command", ["index", "catalog"])
def test_index_action_examples_parse(command: str, capsys: Capture) -> None:
    examples = import_module(f"matrix.commands.{command}").EXAMPLES
    for action, example in examples.items():
        with pytest.raises(SystemExit):
            main([command, action, "--help"])
        assert f"example: {example}\n" in capsys.readouterr().out
        args = make_parser(command).parse_args(shlex.split(example)[1:])
        assert args.action == action


def test_index_command_normalizes_names(index: Index, make_wheel: MakeWheel, capsys: Capture) -> None:
    index.publish(make_wheel("tiny_ext", "1.0"), {})
    assert len(answer(capsys, "list", "Tiny_Ext", "tiny-ext")["wheels"]) == 1  # type: ignore[arg-type]
    assert answer(capsys, "remove", "Tiny.Ext")["removed"] == ["tiny_ext-1.0-py3-none-any.whl"]


def test_index_check_reports_replaced_wheel(index: Index, capsys: Capture) -> None:
    """Pages would still have the old hash of a replaced wheel, and pip would reject the wheel."""
    older, newer = index.wheels("tiny")
    before = (index.simple / "tiny" / "index.html").read_bytes()
    newer.write_bytes(older.read_bytes() + b"more")
    (index.simple / "Tiny").mkdir()
    assert main(["index", "check"]) == 1
    output = capsys.readouterr()
    assert f"The metadata of {newer.name} has the version 1.0." in output.out
    assert "The name of simple/Tiny is not normalized" in output.out
    assert "matrix index check --repair" in output.err
    assert (index.simple / "tiny" / "index.html").read_bytes() == before
    assert not list((index.simple / "Tiny").iterdir())


def test_index_commands_survive_broken_link(index: Index, capsys: Capture) -> None:
    (index.simple / "tiny" / "tiny-3.0-py3-none-any.whl").symlink_to("/nowhere")
    (index.simple / "tiny" / "index.json").unlink()
    assert len(answer(capsys, "list")["wheels"]) == 3  # type: ignore[arg-type]
    assert len(answer(capsys, "prune", "--older-than", "0", "--dry-run")["removed"]) == 3  # type: ignore[arg-type]
    assert main(["index", "check"]) == 1
    assert "is a symbolic link, which is not followed" in capsys.readouterr().out
