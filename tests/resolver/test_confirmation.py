"""resolvelib accepts the answers of the search, and finds each kind of wrong answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec
import packaging
import pytest
from msgspec.structs import replace

import resolver.answers.confirmation
from resolver.answers.answer import Recorded
from resolver.answers.confirmation import confirm
from resolver.answers.resolve import Search
from resolver.errors import InternalError, UsageError
from resolver.model import Distribution, Resolution
from resolver.requirements import parse_requirement
from tests.resolver.open_universe import OpenUniverse, open_universe, parsed, versions_of
from tests.support.indexes import FakeIndexes

PYTHONS = ("3.12", "3.11", "3.10")
ANSWERS = 30

Records = Mapping[str, Recorded]
Found = tuple[OpenUniverse, Resolution, Records]
CLOSED = frozenset({"python", "rocm", "torch"})


@pytest.fixture(scope="module")
def answers() -> list[Found]:
    """Return random universes, each with its lock and what was recorded."""
    confirmed: list[tuple[Resolution, Records]] = []
    found: list[Found] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            resolver.answers.confirmation,
            "confirm",
            lambda lock, recorded, *_: confirmed.append((lock, recorded)),
        )
        for seed in range(5 * ANSWERS):
            universe = open_universe(random.Random(seed), projects=6, releases=5, pythons=PYTHONS)
            with suppress(UsageError):
                answer = Search(universe.catalog, universe.request, universe.indexes()).answer
                if isinstance(answer, Resolution):
                    found.append((universe, *confirmed[-1]))
                    assert versions_of(confirmed[-1][0]) == versions_of(answer)
            if len(found) == ANSWERS:
                break
    assert len(found) == ANSWERS
    return found


def test_answers_of_random_universes_are_accepted(answers: Sequence[Found]) -> None:
    for _, lock, recorded in answers:
        confirm(lock, recorded, CLOSED)


def test_packaging_is_asked_only_once_and_a_damaged_cache_is_not_used(
    answers: Sequence[Found], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says is kept with its version, and is not mistaken for what it says of other texts."""
    indexes = FakeIndexes({})
    for _, lock, recorded in answers:
        confirm(lock, recorded, CLOSED, indexes)
    (key, kept) = next(iter(indexes.remembered.items()))
    assert packaging.__version__ in key

    with monkeypatch.context() as patch:
        for name in ("requirements.Requirement", "markers.Marker", "specifiers.SpecifierSet"):
            patch.delattr(f"packaging.{name}")
        for _, lock, recorded in answers:
            confirm(lock, recorded, CLOSED, indexes)
        with pytest.raises(ImportError):
            confirm(*answers[0][1:], CLOSED, FakeIndexes({}))

    for damaged in (b"", kept[:-1], b"\xc1", msgspec.msgpack.encode({"requirements": {"a": 1}})):
        indexes.remembered[key] = damaged
        for _, lock, recorded in answers:
            confirm(lock, recorded, CLOSED, indexes)
        assert indexes.remembered == {key: kept}

    for _, lock, recorded in answers:
        for pick in lock.distributions:
            limit = parse_requirement(f"{pick.name}!={pick.version}")
            other = replace(lock.request, constraints=(*lock.request.constraints, limit))
            with pytest.raises(InternalError, match="it violates"):
                confirm(replace(lock, request=other), recorded, CLOSED, indexes)


def _with(lock: Resolution, changed: Sequence[Distribution]) -> Resolution:
    platform = (pick for pick in lock.picks if pick.kind == "platform")
    return replace(lock, picks=(*platform, *changed))


Tampering = Callable[[OpenUniverse, Resolution], Iterator[list[Distribution]]]


def _rejected(
    answers: Sequence[Found], tampering: Tampering
) -> tuple[int, list[tuple[Resolution, list[Distribution]]]]:
    """Return how many wrong answers were tried, and those that were accepted.

    What is recorded is that of the changed versions, so that no version is betrayed by its metadata.
    """
    tried, accepted = 0, []
    for universe, lock, recorded in answers:
        for changed in tampering(universe, lock):
            chosen = {pick.name: pick.version for pick in changed}
            if universe.reached(chosen, lock.target.python or "") == chosen:
                continue  # what may be used is not the question here
            tried += 1
            known = dict(recorded)
            for pick in changed:
                release = universe.projects[pick.name][pick.version]
                known[pick.name] = Recorded("", tuple(release.requires), tuple(release.extras))
            with suppress(InternalError):
                confirm(_with(lock, changed), known, CLOSED)
                accepted.append((lock, changed))
    return tried, accepted


def _with_other_version(universe: OpenUniverse, lock: Resolution) -> Iterator[list[Distribution]]:
    """Replace a version by one that a requirement of the request or a chosen release does not allow."""
    picks = lock.distributions
    stated = [*universe.requirements]
    stated += [text for pick in picks for text in universe.projects[pick.name][pick.version].requires]
    plain = [one for text in stated if (one := parsed(text)).marker is None]
    overridden = {parsed(text).name for text in universe.overrides}
    for position, pick in enumerate(picks):
        for version in universe.projects[pick.name]:
            limits = [one.specifier for one in plain if one.name == pick.name and pick.name not in overridden]
            if not all(limit.contains(version, prereleases=True) for limit in limits):
                yield [*picks[:position], replace(pick, version=version), *picks[position + 1 :]]


def _without_one(universe: OpenUniverse, lock: Resolution) -> Iterator[list[Distribution]]:
    """Leave out one distribution."""
    del universe
    picks = lock.distributions
    for position in range(len(picks)):
        yield [*picks[:position], *picks[position + 1 :]]


@pytest.mark.parametrize(
    ("tampering", "fewest"), [(_with_other_version, ANSWERS // 2), (_without_one, ANSWERS)]
)
def test_wrong_version_and_missing_distribution_are_found(
    answers: Sequence[Found], tampering: Tampering, fewest: int
) -> None:
    tried, accepted = _rejected(answers, tampering)
    assert tried > fewest
    assert accepted == []


def _with_requires(
    recorded: Records, name: str, change: Callable[[tuple[str, ...]], tuple[str, ...]]
) -> dict[str, Recorded]:
    """Change the recorded requirements of a distribution, as if the search had read others."""
    return {**recorded, name: replace(recorded[name], requires=change(recorded[name].requires))}


def test_requirement_that_the_search_missed_is_found(answers: Sequence[Found]) -> None:
    """A chosen release requires another one in versions that were not chosen, or one that is missing.

    The requirement counts, too, if it has a marker that is true on the target.
    """
    tried = 0
    for universe, lock, recorded in answers:
        overridden = {parsed(text).name for text in universe.overrides}
        python = lock.target.python
        for pick in lock.distributions:
            others = [other for other in lock.distributions if other.name not in overridden][tried % 3 :: 3]
            missed = [
                "not-chosen",
                f"not-chosen; python_version == '{python}' and sys_platform != 'win32'",
                *(f"{other.name}!={other.version}" for other in others),
                *(
                    f"{other.name}!={other.version}; python_full_version >= '{python}'"
                    " and implementation_name == 'cpython'"
                    for other in others
                ),
            ]
            for text in missed:
                tried += 1
                known = _with_requires(recorded, pick.name, lambda requires, text=text: (*requires, text))  # type: ignore[misc]
                with pytest.raises(InternalError, match="it violates"):
                    confirm(lock, known, CLOSED)
            known = _with_requires(
                recorded,
                pick.name,
                lambda requires: (*requires, f"not-chosen; python_version != '{python}'"),  # noqa: B023
            )
            confirm(lock, known, CLOSED)
    assert tried > ANSWERS


def test_missing_extra_is_found(answers: Sequence[Found]) -> None:
    """An extra that something requires is not in the lock, or what the extra requires is not."""
    tried = 0
    for _, lock, recorded in answers:
        for position, pick in enumerate(picks := lock.distributions):
            for extra in pick.extras:
                tried += 1
                fewer = replace(pick, extras=tuple(one for one in pick.extras if one != extra))
                with pytest.raises(InternalError, match="it violates"):
                    confirm(_with(lock, [*picks[:position], fewer, *picks[position + 1 :]]), recorded, CLOSED)
                text = f"not-chosen; extra == '{extra}'"
                known = _with_requires(recorded, pick.name, lambda requires, text=text: (*requires, text))  # type: ignore[misc]
                with pytest.raises(InternalError, match="it violates"):
                    confirm(lock, known, CLOSED)
    assert tried > ANSWERS // 5


@pytest.mark.parametrize("wrong", ["<3.10", ">3.12.99", "==2.7.*", "~=3.13"])
def test_other_python_is_found(answers: Sequence[Found], wrong: str) -> None:
    tried = 0
    for _, lock, recorded in answers:
        for position, pick in enumerate(picks := lock.distributions):
            tried += 1
            files = tuple(replace(file, requires_python=wrong) for file in pick.files)
            changed = [*picks[:position], replace(pick, files=files), *picks[position + 1 :]]
            with pytest.raises(InternalError, match=f"{pick.name} .* requires Python"):
                confirm(_with(lock, changed), recorded, CLOSED)
    assert tried > ANSWERS


def test_violated_constraint_is_found(answers: Sequence[Found]) -> None:
    tried = 0
    for _, lock, recorded in answers:
        for pick in lock.distributions:
            tried += 1
            limit = parse_requirement(f"{pick.name}!={pick.version}")
            other = replace(lock.request, constraints=(*lock.request.constraints, limit))
            with pytest.raises(InternalError, match="it violates"):
                confirm(replace(lock, request=other), recorded, CLOSED)
    assert tried > ANSWERS


def test_superfluous_distribution_is_found(answers: Sequence[Found]) -> None:
    """Nothing requires a distribution any more if all requirements on it are left out."""
    tried = 0
    for universe, lock, recorded in answers:
        asked = {parsed(text).name for text in (*universe.requirements, *universe.overrides)}
        for extra in lock.distributions:
            if extra.name in asked:
                continue
            tried += 1
            known: Records = recorded
            for pick in lock.distributions:
                known = _with_requires(
                    known,
                    pick.name,
                    lambda requires, name=extra.name: tuple(  # type: ignore[misc]
                        text for text in requires if parsed(text).name != name
                    ),
                )
            with pytest.raises(InternalError, match=f"nothing requires .*{extra.name}"):
                confirm(lock, known, CLOSED)
    assert tried > ANSWERS // 5


def test_unrelated_distribution_is_found(answers: Sequence[Found]) -> None:
    tried = 0
    for _, lock, recorded in answers:
        picks = lock.distributions
        if not picks:
            continue
        extra = replace(picks[0], name="unrelated", extras=())
        tried += 1
        with pytest.raises(InternalError, match="nothing requires unrelated"):
            confirm(_with(lock, [*picks, extra]), recorded, CLOSED)
    assert tried > ANSWERS // 2
