"""resolvelib accepts the answers of the search, and finds each kind of wrong answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import pytest
from msgspec.structs import replace

import resolver.answers.confirmation
from resolver.answers.answer import Answer
from resolver.answers.confirmation import confirm
from resolver.answers.resolve import resolve
from resolver.compiling.choices import Pick
from resolver.errors import InternalError, UsageError
from resolver.model import Resolution
from tests.resolver.open_universe import OpenUniverse, open_universe, parsed, versions_of

PYTHONS = ("3.12", "3.11", "3.10")
ANSWERS = 200

Found = tuple[OpenUniverse, Answer]


@pytest.fixture(scope="module")
def answers() -> list[Found]:
    """Return random universes, each with the solver that has its answer."""
    solvers: list[Answer] = []
    found: list[Found] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolver.answers.confirmation, "confirm", solvers.append)
        for seed in range(5 * ANSWERS):
            universe = open_universe(random.Random(seed), projects=6, releases=5, pythons=PYTHONS)
            with suppress(UsageError):
                answer = resolve(universe.catalog, universe.request, universe.indexes())
                if isinstance(answer, Resolution):
                    found.append((universe, solvers[-1]))
                    assert {pick.name: pick.version for pick in solvers[-1].picks} == versions_of(answer)
            if len(found) == ANSWERS:
                break
    assert len(found) == ANSWERS
    return found


def test_answers_of_random_universes_are_accepted(answers: Sequence[Found]) -> None:
    for _, solver in answers:
        confirm(solver)


Tampering = Callable[[OpenUniverse, Sequence[Pick]], Iterator[list[Pick]]]


def _rejected(
    answers: Sequence[Found], tampering: Tampering, patch: pytest.MonkeyPatch
) -> tuple[int, list[tuple[list[Pick], list[Pick]]]]:
    """Return how many wrong answers were tried, and those that were accepted."""
    tried, accepted = 0, []
    for universe, solver in answers:
        picks = list(solver.picks)
        for changed in tampering(universe, picks):
            chosen = {pick.name: pick.version for pick in changed}
            if universe.is_solution(chosen, solver.problem.version(solver.solution, "python")):
                continue
            tried += 1
            with patch.context() as here:
                here.setattr(solver, "picks", changed)
                with suppress(InternalError):
                    confirm(solver)
                    accepted.append((picks, changed))
    return tried, accepted


def _with_other_version(universe: OpenUniverse, picks: Sequence[Pick]) -> Iterator[list[Pick]]:
    """Replace a version by one that a requirement of the request or a chosen release does not allow."""
    stated = [*universe.requirements]
    stated += [text for pick in picks for text in universe.projects[pick.name][pick.version].requires]
    plain = [one for text in stated if (one := parsed(text)).marker is None]
    overridden = {parsed(text).name for text in universe.overrides}
    for position, pick in enumerate(picks):
        for version in universe.projects[pick.name]:
            limits = [one.specifier for one in plain if one.name == pick.name and pick.name not in overridden]
            if not all(limit.contains(version, prereleases=True) for limit in limits):
                yield [*picks[:position], replace(pick, version=version), *picks[position + 1 :]]


def _without_one(universe: OpenUniverse, picks: Sequence[Pick]) -> Iterator[list[Pick]]:
    """Leave out one distribution."""
    del universe
    for position in range(len(picks)):
        yield [*picks[:position], *picks[position + 1 :]]


def test_wrong_version_is_found(answers: Sequence[Found], monkeypatch: pytest.MonkeyPatch) -> None:
    tried, accepted = _rejected(answers, _with_other_version, monkeypatch)
    assert tried > ANSWERS // 2
    assert accepted == []


def test_missing_distribution_is_found(answers: Sequence[Found], monkeypatch: pytest.MonkeyPatch) -> None:
    tried, accepted = _rejected(answers, _without_one, monkeypatch)
    assert tried > ANSWERS
    assert accepted == []


def _with_metadata(
    solver: Answer, name: str, change: Callable[[tuple[str, ...]], tuple[str, ...]], patch: pytest.MonkeyPatch
) -> None:
    """Change the requirements of a pick, as if the search had read others."""
    old = solver.index.requirements
    changed = {file.url for file in solver.files_read(name)}

    def requirements(files: Sequence[object], **options: bool) -> object:
        metadata = old(files, **options)  # type: ignore[arg-type]
        if metadata is None or not any(file.url in changed for file in files):  # type: ignore[attr-defined]
            return metadata
        return replace(metadata, requires=change(metadata.requires))

    patch.setattr(solver.index, "requirements", requirements)


def test_requirement_that_the_search_missed_is_found(
    answers: Sequence[Found], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chosen release requires another one in versions that were not chosen, or one that is missing."""
    tried = 0
    for universe, solver in answers:
        overridden = {parsed(text).name for text in universe.overrides}
        for pick in solver.picks:
            others = [other for other in solver.picks if other.name not in overridden]
            missed = ["not-chosen", *(f"{other.name}!={other.version}" for other in others)]
            for text in missed:
                tried += 1

                def with_missed(requires: tuple[str, ...], text: str = text) -> tuple[str, ...]:
                    return (*requires, text)

                with monkeypatch.context() as here:
                    _with_metadata(solver, pick.name, with_missed, here)
                    with pytest.raises(InternalError, match="it violates"):
                        confirm(solver)
    assert tried > ANSWERS


def test_superfluous_distribution_is_found(answers: Sequence[Found], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing requires a distribution any more if all requirements on it are left out."""
    tried = 0
    for universe, solver in answers:
        asked = {parsed(text).name for text in (*universe.requirements, *universe.overrides)}
        picks = list(solver.picks)
        for extra in picks:
            if extra.name in asked:
                continue
            tried += 1

            def without(requires: tuple[str, ...], name: str = extra.name) -> tuple[str, ...]:
                return tuple(text for text in requires if parsed(text).name != name)

            with monkeypatch.context() as here:
                for pick in picks:
                    _with_metadata(solver, pick.name, without, here)
                with pytest.raises(InternalError, match=f"nothing requires .*{extra.name}"):
                    confirm(solver)
    assert tried > ANSWERS // 5


def test_unrelated_distribution_is_found(answers: Sequence[Found], monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0
    for _, solver in answers:
        picks = list(solver.picks)
        if not picks:
            continue
        with monkeypatch.context() as here:
            extra = replace(picks[0], name="unrelated", extras=())
            here.setattr(solver, "picks", [*picks, extra])
            tried += 1
            with pytest.raises(InternalError, match="nothing requires unrelated"):
                confirm(solver)
    assert tried > ANSWERS // 2
