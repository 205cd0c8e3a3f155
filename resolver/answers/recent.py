"""A requested release that is far behind what the site can run gives way to a newer one.

Platform and advice are decided first, and releases that were judged come before others. So a project whose
newer releases require another ROCm would be chosen from years ago. The bound is an assumption of the one
search: while a requested project has releases that are more than a year or a major version newer than the
chosen one, one of these is assumed, and if there is a solution, it is the answer. So are releases without a
known fault for which the chosen one gives wrong results. If only what newer releases require for CUDA stands
against them, the older ones are excluded, and there is no answer: the user decides.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING

from resolver.compiling.known_bad import concerning
from resolver.compiling.problem import ABSENT, Demand, Link, is_prerelease
from resolver.errors import TooLargeError
from resolver.facts.schema import PLATFORM
from resolver.indexes import InstalledFiles
from resolver.model import Notice
from resolver.requirements import TORCH_FAMILY
from resolver.solving.search import is_required
from resolver.versions import is_version, join_words, satisfies, version_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from resolver.indexes import ProjectRelease
    from resolver.solving.search import Assumption
    from resolver.solving.session import Solution
    from resolver.solving.solver import Solver

_BOUND = timedelta(days=365)
_YEAR = 1000
"""From here on, the first number of a version is a year."""
_FAR = "more than a year or a major version"
_OF_PLATFORM = {*PLATFORM, *TORCH_FAMILY}
"""What site and advice decide."""


def recent(
    solver: Solver, keep: Collection[str], solve: Callable[[Sequence[Assumption]], Solution | None]
) -> tuple[list[Assumption], list[Notice]] | None:
    """Return the assumptions under which no requested release is from years ago if possible, with notices.

    Return None if releases were excluded and there is no solution any more. `solve` returns the preferred
    solution under assumptions, which the solver then has: it has the preferred one of all, and at the end
    that under the result. `keep` has the names whose releases stay.
    """
    names = {requirement.name for requirement in solver.request.requirements} - _OF_PLATFORM - {*keep}
    kept: list[Assumption] = []
    notices: list[Notice] = []
    for name in sorted(names):
        newer = _much_newer(solver, name)
        if newer is None:
            continue
        before, platform, yielded = _version(solver, name), _platform(solver), len(kept)
        while newer is not None:
            current = _version(solver, name)
            try:
                found = solve([*kept, newer])
            except TooLargeError:
                found = None
            if found is None:
                held = list(_held_back(solver, (name, current), newer, names))
                # `_held_back` has asked the search something else: the solution is made again.
                solve(kept)
                if held or not _exclude_for_cuda(solver, name):
                    notices += held
                    break
                # What was assumed so far may need a release that is excluded now.
                kept.clear()
                if solve(kept) is None:
                    return None
                break
            kept.append(newer)
            newer = _much_newer(solver, name)
        if len(kept) > yielded:
            notices.append(_yielded(solver, name, before, platform))
    return kept, notices


def _much_newer(solver: Solver, name: str) -> Assumption | None:
    """Return the releases that are much newer than the chosen one, as an assumption.

    These are a year or a major version newer, or lack a fault by which the chosen one gives wrong results.
    """
    number = _variable(solver, name)
    if number < 0 or not is_required(solver.search.domains[number]):  # not on the chosen Python
        return None
    bit = solver.search.domains[number].bit_length() - 1
    days = dict(_days(solver, name, bit))
    known = days.get(bit)
    if known is None:
        return None
    (chosen, first), mask = known, 0
    is_wrong = _gives_wrong_results(solver, name, chosen)
    for bit, (version, day) in days.items():
        is_far = first + _BOUND < day or _major(chosen) < _major(version) < _YEAR
        is_far |= is_wrong and not _gives_wrong_results(solver, name, version)
        is_newer = version_key(version) > version_key(chosen) and is_far
        is_allowed = is_prerelease(chosen) or not is_prerelease(version)
        if is_newer and is_allowed and day <= solver.request.target.date:
            mask |= 1 << bit
    return (number, mask) if mask else None


def _gives_wrong_results(solver: Solver, name: str, version: str) -> bool:
    """Return whether a release alone is known for wrong results on the target."""
    return any(
        row.rank == "wrong results" and row.effect == "warn" and satisfies(version, row.combination[name])
        for row in concerning(solver.world.catalog, solver.request.target)
        if row.combination.keys() == {name}
    )


def _variable(solver: Solver, name: str) -> int:
    """Return the number of the variable of a distribution; -1 if it has none."""
    choices = solver.projects.node(name)
    return solver.session.number.get(name, -1) if choices is None else choices.number


def _days(solver: Solver, name: str, chosen: int) -> Iterator[tuple[int, tuple[str, date]]]:
    """Yield the releases that the request allows and whose day is known, by bit, with version and day.

    Of a project, whose releases are sorted, these are the chosen one and newer ones.
    """
    choices = solver.projects.node(name)
    if choices is None:
        allowed = solver.world.demanded(name)
        for bit, candidate in enumerate(solver.problem.variables[name].candidates, start=1):
            if allowed >> bit & 1 and candidate.release and candidate.release.released:
                yield bit, (candidate.version, candidate.release.released)
        return
    stated = [one.specifier for one in solver.world.stated(name)]
    for bit, release in enumerate(choices.releases[:chosen], start=1):
        if all(one is None or one.allows(release.version) for one in stated) and (day := _day(release)):
            yield bit, (release.version, day)


def _major(version: str) -> int:
    return next(iter(version_key(version)[1]), 0)


def _day(release: ProjectRelease) -> date | None:
    files = () if isinstance(release, InstalledFiles) else release.files
    times = [file.uploaded[:10] for file in files if file.uploaded and file.yanked is None]
    return date.fromisoformat(min(times)) if times else None


def _version(solver: Solver, name: str) -> str:
    choices = solver.projects.node(name)
    if choices is None:
        return solver.problem.version(solver.world.solution, name)
    return choices.release(solver.search.domains[choices.number].bit_length() - 1).version


def _platform(solver: Solver) -> dict[str, str]:
    solution = solver.world.solution
    shown = {"rocm": "ROCm", "torch": "torch", "python": "Python"}
    return {text: solver.problem.version(solution, name) for name, text in shown.items() if name in solution}


def _yielded(solver: Solver, name: str, before: str, platform: dict[str, str]) -> Notice:
    """Return what the preferred platform, or a release that was judged, would have brought."""
    chosen, now = _version(solver, name), _platform(solver)
    why = f"is {_FAR} older"
    if _gives_wrong_results(solver, name, before):
        why = "is known for wrong results"
    changed = [text for text in now if platform.get(text, now[text]) != now[text]]
    if changed:
        there = join_words([f"{text} {platform[text]}" for text in changed], joiner="and")
        here = join_words([f"{text} {now[text]}" for text in changed], joiner="and")
        text = (
            f"{name} {chosen} was chosen, on {here}. With {there}, which would come first, the newest is "
            f"{name} {before}, which {why}."
        )
    else:
        text = (
            f"{name} {chosen} was chosen. {name} {before} would come first, because more is known about it, "
            f"but it {why}."
        )
    return Notice("years-back", name, text)


def _held_back(
    solver: Solver, chosen: tuple[str, str], newer: Assumption, names: Collection[str]
) -> Iterator[Notice]:
    """Yield what a proof names as the reason that nothing much newer than a chosen release is possible.

    It is other requirements of the request, an extra that newer releases do not have, or what a newer release
    requires, if that is not only for CUDA.
    """
    name, version = chosen
    reasons = solver.session.refuting([newer])
    links = [reason for reason in reasons if isinstance(reason, Link)]
    others = {reason.variable.name for reason in reasons if isinstance(reason, Demand)}
    others |= {link.object for link in links if not link.subject}
    blamed = others & {*names, "torch", "rocm", "python"} - {name}
    stated = [one.text for one in solver.request.requirements if one.name in blamed]
    own = [link for link in links if link.subject.partition("[")[0] == name and is_version(link.version)]
    why = ""
    if extras := sorted({link.lacks for link in links if link.lacks and link.subject.startswith(f"{name}[")}):
        why = f"which lack the extra {join_words(extras)}"
    elif stated:
        why = f"which do not fit {join_words(stated, joiner='and')}"
    elif own and name not in solver.requirements.needing_cuda:
        newest = max(own, key=lambda link: version_key(link.version))
        why = f"none of which resolves: {newest.subject} {newest.version} {newest.predicate}"
    if why:
        what = (
            "not known for wrong results" if _gives_wrong_results(solver, name, version) else f"{_FAR} newer"
        )
        yield Notice("years-back", name, f"{name} has releases that are {what}, {why}.")


def _exclude_for_cuda(solver: Solver, name: str) -> bool:
    """Exclude the chosen and older releases of a project if newer ones require CUDA; return if they do."""
    choices = solver.projects.node(name)
    newer, required, _ = solver.requirements.needing_cuda.get(name, ("", "", ""))
    chosen = _version(solver, name)
    if choices is None or not newer or version_key(newer) <= version_key(chosen):
        return False
    # `-x` has all bits from the lowest bit of x on: here, the chosen release and all older ones.
    older = choices.everything & -(solver.search.domains[choices.number] & ~ABSENT)
    text = f"are {_FAR} older than {newer}, which requires {required}, which is for CUDA"
    subject = f"the releases of {name} up to {chosen}"
    source = "its wheel, and the days of the releases"
    link = Link(subject, f"{name}=={chosen}", "", text, source, for_cuda=required)
    solver.search.add({choices.number: older}, link)
    return True
