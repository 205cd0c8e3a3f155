"""Locks, plans, sites and other files of strangers: they are refused, or their texts stay data."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w
from msgspec.structs import replace

from builders.index import Index
from builders.scheduling.batch import Run
from builders.scheduling.slurm import Slurm
from matrix.cli import main
from matrix.consumers.shared.installation import Installation
from matrix.consumers.shared.shell import site_environment
from matrix.farm.plan import sbatch_script
from matrix.reading.recognise import read_described
from resolver.errors import CatalogError, LockError, MatrixError, UsageError
from resolver.facts.catalog_files import read_file
from resolver.facts.schema import Recipe
from resolver.lock import _DRAFTED, read_lock
from resolver.model import (
    Resolution,
)
from resolver.reporter import SILENT
from resolver.requirements import parse_requirement
from tests.support.hostile import (
    CANARY,
    INVISIBLE,
    VISIBLE,
    Place,
    fields_with_text,
    places,
    text_fields,
    with_text,
)
from tests.support.plans import plan_of
from tests.support.strangers import (
    CONSUMERS,
    IMAGE,
    PLAIN_PATHS,
    PYLOCK,
    RUN,
    SITE,
    data_of,
    emitted,
    everything,
    read_back,
    shell,
    written,
)


def test_lock_of_the_tests_has_text_in_every_field() -> None:
    """A new field of a lock is missing here until `everything` has it, so the other tests write into it."""
    drafted = {f"Recipe.{name}" for name in _DRAFTED}
    literals = {"Resolution.schema", *(text_fields(Recipe) - drafted)}
    assert text_fields(Resolution) - literals <= fields_with_text(everything(keeps_torch=False))


def refusal(data: dict[str, Any], path: Path) -> str:
    """Return the error for a lock; empty if it is read."""
    try:
        read_lock(written(data, path))
    except LockError as error:
        return error.message
    return ""


def spelled(place: Place) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).lstrip(".")


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return data_of(everything(keeps_torch=False))


@pytest.mark.parametrize("tried", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_invisible_character_in_any_text_of_a_lock_is_refused(
    data: dict[str, Any], tried: int, tmp_path: Path
) -> None:
    for position, place in enumerate(places(data)):
        for text in (INVISIBLE * 2)[position % len(INVISIBLE) :][:tried]:
            message = refusal(with_text(data, place, text), tmp_path / "matrix.lock")
            assert spelled(place) in message, (place, text)
            assert message.isprintable()
            assert "touch" in message or "status" in place  # the value is shown
    for text in INVISIBLE:
        changed = {**data, "request": {**data["request"], "preinstalled": {"installed": {text: "1"}}}}
        assert "installed" in refusal(changed, tmp_path / "matrix.lock")


PATHS_AND_REMARKS = {
    "text", "source", "note", "file", "notes", "warnings", "left_open", "variant", "path", "name", "package",
    "catalogs", "site_file", "base_image", "version", "yanked", "requires_python", "uploaded", "requirement",
    "alias_of", "submodules", "requires", "requirements", "constraints", "overrides", "installed", "evidence",
}  # fmt: skip
"""The keys of a lock that may have texts of any visible characters; the rest are names, versions and URLs."""


@pytest.fixture(scope="module")
def accepted(request: pytest.FixtureRequest) -> dict[Place, list[str]]:
    return accepted_texts(request.param)


@cache  # pytest forgets a fixture when its parameter changes, which it does with every consumer
def accepted_texts(tried: int) -> dict[Place, list[str]]:
    """Return the visible texts that a lock may have, by place; each place has other texts, to save time."""
    data = data_of(everything(keeps_torch=False))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "matrix.lock")
        return {
            place: [
                text
                for text in (VISIBLE * 2)[position % len(VISIBLE) :][:tried]
                if not refusal(with_text(data, place, text), path)
            ]
            for position, place in enumerate(places(data))
        }


@pytest.mark.parametrize("accepted", [1, pytest.param(9, marks=pytest.mark.slow)], indirect=True)
def test_names_versions_and_urls_of_a_lock_have_only_their_characters(
    data: dict[str, Any], accepted: dict[Place, list[str]]
) -> None:
    for place, found in accepted.items():
        is_free = {*place} & {*PATHS_AND_REMARKS, "recipe"}  # how a source is built, which is isolated
        if place[0] == "picks" and len(place) == 3 and place[-1] in {"name", "version"}:
            is_free &= {"version"} if data["picks"][place[1]]["kind"] == "platform" else set()
        assert is_free or not found, place


# The files that are written from a lock.

ROUNDS = [
    pytest.param(1, range(1), id="first"),
    pytest.param(9, range(1, 3), id="others", marks=pytest.mark.slow),
]
"""How many texts are tried for each place, which gets another one in each round."""
DECISIVE = {"requirements", "constraints", "overrides", "installed"}
"""Keys whose values are what is installed."""


@pytest.mark.parametrize(("accepted", "rounds"), ROUNDS, indirect=["accepted"])
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_texts_of_a_lock_stay_data_in_the_files_of_consumers(
    accepted: dict[Place, list[str]], consumer: str, rounds: Iterable[int], tmp_path: Path
) -> None:
    """Write texts into all fields that accept them: no program runs them, and the files mean the same."""
    (tmp_path / "plain").mkdir()
    lock = everything(keeps_torch=consumer in {"easybuild", "venv"})
    files = emitted(lock, consumer, tmp_path / "plain")
    expected = [read_back(file, tmp_path / "plain") for file in files]
    data = data_of(lock)
    known = {*places(data)}
    for number in rounds:
        folder = tmp_path / str(number)
        folder.mkdir()
        changed = data
        for position, (place, choices) in enumerate(accepted.items()):
            if choices and not {*place} & DECISIVE and place in known:
                text = choices[(number + position) % len(choices)]
                is_file = place[-3:-2] == ("files",) and place[-1] == "name"
                changed = with_text(changed, place, f"{text}.whl" if is_file else text)
        if consumer in PLAIN_PATHS:
            changed = with_text(changed, ("image", "path"), IMAGE)
        hostile = read_lock(written(changed, folder / "matrix.lock"))
        found = [read_back(file, folder) for file in emitted(hostile, consumer, folder)]
        assert repr(found).replace(str(folder), "") == repr(expected).replace(str(tmp_path / "plain"), "")
        assert not list(folder.rglob(CANARY))
        assert not Path(CANARY).exists()


@pytest.mark.parametrize("text", VISIBLE)
def test_path_that_a_definition_file_cannot_contain_is_refused(text: str, tmp_path: Path) -> None:
    lock = everything(keeps_torch=False)
    assert lock.image is not None
    lock = replace(lock, image=replace(lock.image, path=f"/images/{text}"))
    if {*" *?[]{}\"'\\"} & {*text}:
        with pytest.raises(UsageError, match="definition file"):
            emitted(lock, "apptainer", tmp_path)
    else:
        (file,) = emitted(lock, "apptainer", tmp_path)
        assert file.text.count(f"From: /images/{text}\n") == 1


def test_texts_of_a_plan_stay_data_in_its_script(tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    for name, body in (
        ("sbatch", 'printf "%s\\n" "$@" >> called; echo 1'),
        ("scontrol", ":"),
        ("scancel", ":"),
    ):
        (tmp_path / "programs" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "programs" / name).chmod(0o755)
    for number, text in enumerate((*VISIBLE, *(text for text in INVISIBLE if "\0" not in text))):
        directory = tmp_path / f"{number} {text.replace('/', '_')}"
        directory.mkdir()
        made = plan_of(directory, {"base": (text, ()), "top": ("true", ("base",))})
        words = [*made.tasks[0].command]
        env = {"PATH": f"{tmp_path / 'programs'}:/usr/bin:/bin"}
        script = tmp_path / "submit.sh"
        script.write_text(sbatch_script(made))
        done = subprocess.run(
            ["bash", str(script)],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert shlex.join(words) in (directory / "called").read_bytes().decode()
        assert not list(tmp_path.rglob(CANARY)), text


def test_hostile_state_of_a_run_is_refused(tmp_path: Path) -> None:
    """The file is in the index, which others may be able to write."""
    index = Index(tmp_path / "index")
    executor = Slurm(index, SILENT)
    executor.state_file.parent.mkdir(parents=True)
    executor.state_file.write_bytes(msgspec.json.encode(RUN))
    assert isinstance(executor.current_run(), Run)
    identifiers = {"id", "key", "name", "requires", "version", "number", "keys", "after", "state"}
    for place in places(RUN):
        is_identifier = {*place} & identifiers
        for text in (*INVISIBLE, *VISIBLE) if is_identifier else INVISIBLE:
            if not is_identifier and {*"\n\t"} & {*text}:
                continue  # messages may have several lines
            executor.state_file.write_bytes(msgspec.json.encode(with_text(RUN, place, text)))
            with pytest.raises(MatrixError) as caught:
                executor.current_run()
            assert spelled(place) in caught.value.message or place[-1] == "state"


def test_texts_of_a_pylock_are_refused_or_stay_data(tmp_path: Path) -> None:
    path = str(tmp_path / "pylock.toml")
    names = [item.name for item in read_described(tomli_w.dumps(PYLOCK), path).items]
    for place in places(PYLOCK):
        for text in INVISIBLE:
            with pytest.raises(UsageError) as caught:
                read_described(tomli_w.dumps(with_text(PYLOCK, place, text)), path)
            assert path in caught.value.message
        for text in VISIBLE:
            changed = tomli_w.dumps(with_text(PYLOCK, place, text))
            try:
                parsed = [parse_requirement(item.text) for item in read_described(changed, path).items]
            except UsageError:
                continue
            assert [requirement.name for requirement in parsed] == names
            assert all(requirement.text.isprintable() for requirement in parsed)


def test_texts_of_a_site_file_are_refused_or_stay_data(tmp_path: Path) -> None:
    path, data = tmp_path / "site.toml", tomllib.loads(SITE)
    read_file(path, SITE)
    for place in places(data):
        for text in INVISIBLE:
            with pytest.raises(CatalogError) as caught:
                read_file(path, tomli_w.dumps(with_text(data, place, text)))
            assert path.name in caught.value.message
            assert str(place[-1]) in caught.value.message or isinstance(place[-1], int)
    name = ("site-variable", 0, "value")
    for text in VISIBLE:
        try:
            file = read_file(path, tomli_w.dumps(with_text(data, name, text)))
        except CatalogError:
            continue
        row = file.site_variable[0]
        installation = Installation(everything(keeps_torch=False), variables=[row])
        done = shell(f'{site_environment(installation)}\nprintf %s "$A"\n', tmp_path)
        assert done.stdout == text.replace("${HOME}", str(tmp_path))
        assert not list(tmp_path.rglob(CANARY))


class _Elements(HTMLParser):
    """Collect the elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [tag, *(name for name, _ in attrs)]


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(("accepted", "rounds"), ROUNDS, indirect=["accepted"])
def test_texts_of_a_lock_are_texts_in_a_report(
    accepted: dict[Place, list[str]], rounds: Iterable[int], tmp_path: Path
) -> None:
    lock = everything(keeps_torch=False)
    target = replace(lock.target, base_image=None)
    request = replace(lock.request, target=target, site_file="", catalogs=(), preinstalled=None)
    data = data_of(replace(lock, request=request, target=target, image=None, picks=lock.picks[1:]))

    def elements(data: dict[str, Any]) -> list[str]:
        written(data, tmp_path / "matrix.lock")
        assert main(["report", "--lock", str(tmp_path / "matrix.lock"), "-o", "report.html"]) == 0
        parser = _Elements()
        parser.feed(Path("report.html").read_text())
        return parser.found

    usual = elements(data)
    for number in rounds:
        changed = data
        for position, (place, choices) in enumerate(accepted.items()):
            if "recipe" in place:  # a report does not have it
                continue
            if choices and {*place} & {"notes", "warnings", "left_open", "variant", "package"}:
                changed = with_text(changed, place, choices[(number + position) % len(choices)])
        assert elements(changed) == usual


def test_texts_of_records_and_states_of_others_are_printable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Members of a group write to a shared index, and another member prints what they wrote."""
    index = Index(tmp_path / "index")
    logs = index.state_directory("logs")
    for number, text in enumerate(INVISIBLE):
        record = {
            "name": "apex", "version": "1.0", "build_key": f"{number:064x}", "node": f"node {text}",
            "failed_on": "2026-01-01T00:00:00Z", "message": f"failed {text}", "inputs": {text: text},
        }  # fmt: skip
        (logs / f"apex-{number}.failed.json").write_bytes(msgspec.json.encode(record))
    assert main(["farm", "builds", "--index", str(index.root)]) == 0
    output = capsys.readouterr()
    assert all(line.isprintable() for line in (output.out + output.err).split("\n"))
    assert output.out.count("failed x") >= len(INVISIBLE)
