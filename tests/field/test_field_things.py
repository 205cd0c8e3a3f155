"""Things that people showed in public, retyped short: `matrix check` gives the right answer about each.

``expected.toml`` of a case names its files with the options, and what the answer must and must not have: the
exit code, the kind, ids of findings, distributions that fit or are open, words, and versions after a repair.
``class`` is what was once wrong with things like this one; each class has at least three things.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from matrix.cli import main
from tests.support.tiny import tiny_index, tiny_wheel

CASES = sorted(path.parent for path in Path(__file__).parent.glob("cases/*/expected.toml"))
CASES = [case for case in CASES if not (case / "log.txt").exists()]
RESOLVED = [case for case in CASES if "resolve-exit" in (case / "expected.toml").read_text()]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return an index of a few projects, and a page of AMD's."""
    root = tmp_path_factory.mktemp("pages")
    tiny_wheel(root / "amd", "tensorflow-rocm", "2.16.1", tags="cp310-cp310-manylinux_2_28_x86_64")
    projects: dict[str, list[tuple[str, list[str]]]] = {
        "numpy": [("1.23.2", []), ("1.26.2", []), ("1.26.3", []), ("1.26.4", []), ("2.2.6", [])],
        "mpi4py": [("3.1.1", [])],
        "mpmath": [("1.3.0", [])],
        "scipy": [("1.12.0", [])],
        "accelerate": [("0.34.2", [])],
        "onnxruntime-migraphx": [("1.23.0", [])],
        "pyg-lib-rocm": [("0.4.0", [])],
        # What the metadata on PyPI says is for CUDA.
        "vllm": [("0.12.0", ["flashinfer-python==0.5.3"]), ("0.6.6.post1", ["xformers==0.0.28.post3"])],
    }
    return (tiny_index(root / "own", projects) / "simple").as_uri(), (root / "amd").as_uri()


@pytest.fixture(autouse=True)
def index(pages: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Work in an empty directory with the index; that of torch does not answer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own, page = pages
    Path("matrix.toml").write_text(
        '[mirrors]\n"https://download.pytorch.org/" = "http://127.0.0.1:9/"\n'
        f'"https://repo.radeon.com/rocm/manylinux/rocm-rel-6.2" = "{page}"\n'
    )
    return own


def checked(file: str, options: list[str], index: str, capsys: Capture) -> tuple[int, dict[str, Any], str]:
    code = main(["check", file, *options, "--index-url", index, "--format", "json"])
    output = capsys.readouterr().out
    assert "things" in json.loads(output), output
    return code, json.loads(output)["things"][0], output


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_thing_gets_the_right_answer(case: Path, index: str, capsys: Capture) -> None:
    expected = tomllib.loads((case / "expected.toml").read_text(encoding="utf-8"))
    for file in expected["files"]:
        for name in (file, *expected.get("beside", ())):
            shutil.copy(case / name, name)
        code, thing, output = checked(file, expected["options"], index, capsys)
        assert code == expected.get("exit", code), thing["text"]
        assert code != expected.get("not-exit", -1), thing["text"]
        assert expected.get("kind", thing["kind"]) == thing["kind"]
        assert {*expected.get("ids", ())} <= {finding["id"] for finding in thing["findings"]}
        verdicts = {item["name"]: item["verdict"] for item in thing["distributions"]}
        assert {verdicts[name] for name in expected.get("fits", ())} <= {"fits"}
        assert {verdicts[name] for name in expected.get("open", ())} <= {"not-judged"}
        assert [words for words in expected.get("says", ()) if words not in output] == []
        assert [words for words in expected.get("never", ()) if words in output] == []
        after = {change["before"]: change["after"] for change in thing["changes"]}
        assert expected.get("after", {}).items() <= after.items()
        if "repair-exit" in expected:
            repair = ["check", file, *expected["options"], "--index-url", index, "--repair", "-o", "out"]
            code = main(repair)
            assert code == expected["repair-exit"], capsys.readouterr()
            if options := expected.get("repair-options"):
                assert not Path("out").exists()
                assert main([*repair, *options]) == 0, capsys.readouterr()
            output = capsys.readouterr().out
            assert [words for words in expected.get("repair-says", ()) if words not in output] == []
            text = "".join(path.read_text() for path in Path("out").glob("*.yml"))
            assert [line for line in expected.get("keeps", ()) if line not in text] == []
            assert [line for line in expected.get("loses", ()) if line in text] == []


@pytest.mark.parametrize("case", RESOLVED, ids=lambda path: path.name)
def test_request_gets_an_answer(case: Path, index: str, capsys: Capture) -> None:
    expected = tomllib.loads((case / "expected.toml").read_text(encoding="utf-8"))
    for file in expected["files"]:
        options = [*expected["options"], "--index-url", index, "--no-lock"]
        code = main(["resolve", "-r", str(case / file), *options])
        output = capsys.readouterr().out
        assert code == expected["resolve-exit"], output
        assert [words for words in expected.get("resolve-says", ()) if words not in output] == []
        assert [words for words in expected.get("resolve-never", ()) if words in output] == []


def test_pair_of_builds_does_not_contradict_itself(index: str, capsys: Capture) -> None:
    """The same build is not right in one file and for another target in the other."""
    case = next(case for case in CASES if case.name.startswith("003-"))
    for name in ("a.txt", "b.txt"):
        _, thing, output = checked(str(case / name), ["--site", "lumi-g"], index, capsys)
        assert next(item["verdict"] for item in thing["distributions"] if item["name"] == "torch") == "fits"
        assert "another target" not in output


def test_each_class_has_things_of_several_people() -> None:
    counts = Counter(tomllib.loads((case / "expected.toml").read_text())["class"] for case in CASES)
    assert len(counts) == 12
    assert {name: count for name, count in counts.items() if count < 3} == {}
