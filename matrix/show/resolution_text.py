"""Resolutions, with the expected times of their builds, and conflicts as text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from builders.building.expected_time import Resources, expected_time
from matrix.show.render import PLAIN, SOURCE_KINDS, Cell, Screen, counted, duration, shortened
from resolver.facts.schema import PLATFORM
from resolver.model import STATUS_RANK, SUGGESTIONS_STOPPED
from resolver.versions import grouped

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sized

    from matrix.show.json_document import ConflictDocument
    from resolver.facts.catalog import Catalog
    from resolver.model import Conflict, CoreItem, Distribution, Fact, Resolution, Target


def build_times(
    resolution: Resolution, catalog: Catalog, index: Path, node_cores: int = 0
) -> dict[str, Resources]:
    """Return the expected time of each build with `node_cores` cores, by default all of this machine.

    The index need not exist.
    """
    built = resolution.built()
    if not built:
        return {}
    from builders.machine.cluster import cores as all_cores
    from resolver.providers.inferred import with_releases_of

    catalog = with_releases_of(catalog, resolution)
    times = {}
    for pick in built:
        release = catalog.release.get((pick.name, pick.version, pick.variant))
        recipe = catalog.recipe_for(release, resolution.target.backend) if release else None
        if recipe and recipe.ops and (ops := resolution.request.ops_of(pick.name)):
            from builders.recipes import with_ops

            recipe = with_ops(recipe, ops, pick.version)
        cores = (node_cores or all_cores()) if recipe and recipe.core_hours else 1
        seconds, source = expected_time(recipe, _recorded(pick, index), cores)
        times[pick.name] = Resources(cores, 0, seconds, source=source)
    return times


def in_index(resolution: Resolution, index: Path) -> frozenset[str]:
    """Return the distributions to build whose version, label and Python the index has, from any inputs."""
    built, python = resolution.built(), resolution.pick("python")
    if not built or python is None or not index.is_dir():
        return frozenset()
    from packaging.utils import parse_wheel_filename

    from builders.index import Index

    published = Index(index)
    pythons = {f"cp{python.version.replace('.', '')}", "py3"}
    return frozenset(
        pick.name
        for pick in built
        for path in published.wheels_of(pick.name, pick.pinned)
        for tag in parse_wheel_filename(path.name)[3]
        if tag.interpreter in pythons or tag.abi == "abi3"
    )


def _recorded(pick: Distribution, index: Path) -> Mapping[str, float]:
    if not index.is_dir():
        return {}
    from builders.index import Index
    from builders.scheduling.scheduler import recorded

    return recorded(pick, Index(index))


def time_text(times: Iterable[Resources], *, cores: bool = False) -> str:
    """Return the sum of expected times as text; recipes only state a minimum time.

    With `cores`, name the number of cores for which a recipe's time was computed.

    Examples
    --------
    >>> measured = Resources(16, 0, 2700, source="record")
    >>> unknown = Resources(16, 0, 120)
    >>> time_text([measured]), time_text([measured, unknown]), time_text([unknown])
    ('about 45 min', 'at least 45 min', 'time unknown')
    >>> time_text([Resources(1, 0, 10, source="packing")])
    'some seconds'
    >>> time_text([Resources(1, 0, 120), Resources(2, 0, 10800, source="recipe")], cores=True)
    'at least 3.0 h with 2 cores'
    """
    rows = list(times)
    known = sum(row.seconds for row in rows if row.source != "guess")
    if not known:
        return "time unknown"
    sources = {row.source for row in rows}
    if sources == {"packing"}:
        return "some seconds"
    text = f"{'about' if sources <= {'record', 'packing'} else 'at least'} {duration(known)}"
    number = next((row.cores for row in rows if row.source == "recipe"), 0)
    return f"{text} with {counted(number, 'core')}" if cores and number else text


def resolution_text(
    resolution: Resolution,
    times: Mapping[str, Resources],
    present: Collection[str] = (),
    *,
    screen: Screen = PLAIN,
    every: bool = False,
) -> str:
    """Return a resolution as text: the answer in one line, then the versions by what is done with them.

    `times` is from `build_times`, `present` from `in_index`. With `every`, each version has a reason; else
    `names_of_others` are counted.
    """
    answer = screen.wrapped(screen.styled("bold", answer_of(resolution, times, present)))
    if not every:
        return f"{answer}\n\n{screen.table(_groups(resolution, times, present))}"
    lines = [answer]
    for kind in ("distribution", "platform"):
        rows = [_row(pick, resolution, times, present) for pick in resolution.picks if pick.kind == kind]
        lines += ["", screen.table(rows)] if rows else []
    return "\n".join(lines)


def _groups(
    resolution: Resolution, times: Mapping[str, Resources], present: Collection[str]
) -> list[list[Cell]]:
    """Return the versions in a row for each thing that is done with them."""
    others = names_of_others(resolution)
    named = {*_TITLES, *(requirement.name for requirement in resolution.request.requirements)}
    groups: dict[str, list[str]] = {"on": [], "image": []}
    for pick in resolution.picks:
        text = f"{_TITLES.get(pick.name, pick.name)} {pick.key}"
        if pick.alias_of:
            text += f" (alias of {pick.alias_of})"
        elif pick.name in present:
            text += " (in the index)"
        elif pick.name in times and times[pick.name].source != "guess":
            text += f" ({time_text([times[pick.name]])})"
        if pick.name == "base-image":
            groups["image"] = [pick.key]
        elif pick.kind == "platform":
            groups["on"] += [text] if pick.name in named else []
        elif pick.name not in others:
            groups.setdefault(_kind(pick), []).append(text)
    if others:
        groups.setdefault("download", []).append(f"{counted(len(others), 'other package')} (-v lists them)")
    return [[("bold", name), ", ".join(texts)] for name, texts in groups.items() if texts]


def answer_of(resolution: Resolution, times: Mapping[str, Resources], present: Collection[str]) -> str:
    """Return a resolution in one line: the number of packages, their origins, and the time of the builds."""
    target, picks = resolution.target, resolution.distributions
    kinds = ["index" if pick.name in present else _kind(pick) for pick in picks]
    parts = []
    if number := kinds.count("build"):
        expected = [time for name, time in times.items() if name not in present]
        parts.append(f"{number} to build, {time_text(expected, cores=True)}")
        if untried := [pick.name for pick in picks if pick.is_untried and pick.name not in present]:
            parts[-1] += f", untried: {shortened(untried)}"
        if unread := [pick.name for pick in picks if pick.lacks_recipe]:
            parts[-1] += f", without a recipe: {shortened(unread)}"
    others = {"index": "in the index", "download": "to download", "preinstalled": "preinstalled"}
    parts += [f"{number} {what}" for kind, what in others.items() if (number := kinds.count(kind))]
    unasked = f"incomplete: {counted(len(resolution.incomplete), 'source')}" if resolution.incomplete else ""
    incomplete = "incomplete: not everything is locked" if resolution.left_open else unasked
    shown = f" ({incomplete})" if incomplete else ""
    answer = f"Resolved {counted(len(picks), 'package')}{shown} for {_site(target)} ({target.date})"
    return f"{answer}: {'; '.join(parts)}" if parts else answer


def _site(target: Target) -> str:
    return "this machine" if target.site == "local" else target.site


def _kind(pick: Distribution) -> str:
    return pick.origin if pick.origin in {"build", "preinstalled"} else "download"


_TITLES = {"rocm": "ROCm", "python": "Python", "kernel-driver": "driver"}
_ORIGIN_STYLES = {"build": "yellow"}


def _row(
    pick: Distribution, resolution: Resolution, times: Mapping[str, Resources], present: Collection[str]
) -> list[Cell]:
    origin = f"alias of {pick.alias_of}" if pick.alias_of else pick.origin
    known = pick.name in times and times[pick.name].source != "guess"
    reason = _reason_text(pick, resolution)
    if pick.name in present:
        reason += "; the index has this wheel"
    elif known:
        reason += f"; {time_text([times[pick.name]])}"
    is_risky = pick.verdict != "supported"
    return [
        ("bold", pick.name),
        pick.key,
        (_ORIGIN_STYLES.get(origin, ""), origin),
        ("yellow" if is_risky else "", reason),
    ]


_ORIGINS = {"base-image": "in the base image", "request": "you asked for it", "site": "of {site}"}
_PUBLISHED = " is published at "
_TELLING = (
    " is published with ",
    " is built for ",
    " requires torch ",
    " requires rocm ",
    " can be compiled for ",
    " is in AMD's driver table",
    " contains ",
    _PUBLISHED,
    " requires ",
    " is ",
)
"""Parts of facts about a component itself, the most decisive first."""
_ADVICE = r" advises | is recorded to have | needs a network plugin"
_DETAILS = r", with | \(\d+ in all\)"


def reason_of(pick: Distribution, resolution: Resolution) -> str:
    """Return the most important reason for a version, as part of a sentence."""
    return weighed_reason(pick, resolution)[0]


def weighed_reason(pick: Distribution, resolution: Resolution) -> tuple[str, bool]:
    """Return `reason_of`, and whether it says more than who asked for it or where it is from."""
    for requirement in resolution.request.requirements:
        if requirement.name == pick.name and requirement.text != pick.name:
            return f"you asked for {requirement.text}", True
    window = resolution.driver_window
    if pick.name == "kernel-driver" and window and pick.origin == "site":
        return f"in use at {resolution.target.site} since {window.since}", True
    advice = next((fact.text for fact in pick.facts if re.search(_ADVICE, fact.text)), "")
    if advice:
        return advice, True
    if pick.name != "base-image" and pick.kind == "platform" and pick.origin in _ORIGINS:
        return _ORIGINS[pick.origin].format(site=_site(resolution.target)), pick.origin != "request"
    facts = (
        sorted(pick.facts, key=lambda fact: STATUS_RANK[fact.status])
        if pick.support == "inferred"
        else pick.facts
    )
    users = [fact.text for fact in facts if f" requires {pick.name}" in fact.text]
    is_used = bool(users)
    users += ["you asked for it" for each in resolution.request.requirements if each.name == pick.name]
    own = [fact.text for fact in facts if fact.text.startswith(f"{pick.name} ")]
    if users:  # where it is from is no reason
        own = [text for text in own if _PUBLISHED not in text]
    for part in _TELLING:
        for text in own:
            if part in text:
                clause = re.split(_DETAILS, text[text.index(part) + 1 :].removeprefix("is "))[0]
                torch = resolution.version_of("torch") if part == " requires torch " else ""
                return f"for torch {torch} ({clause})" if torch else clause, part != _PUBLISHED
    return next(iter([*users, *(fact.text for fact in pick.facts)]), ""), is_used or not users


def _reason_text(pick: Distribution, resolution: Resolution) -> str:
    remarks = ["inferred"] if pick.support == "inferred" else []
    if pick.verdict == "at-own-risk":
        remarks.append("at your own risk")
    text = f"({', '.join(remarks)})" if remarks else ""
    return f"{reason_of(pick, resolution)} {text}".strip()


_STATES = {
    "fits": "its content fits",
    "does-not-fit": "its content does not fit",
    "not-judged": "its content was not judged",
}


def facts_text(
    pick: Distribution, resolution: Resolution, screen: Screen = PLAIN, printed: set[str] | None = None
) -> str:
    """Return the reasons for a version as text: one reason, then all facts by source.

    Notes in `printed` are left out, and the others are added to it.
    """
    printed = set() if printed is None else printed
    lines: list[str] = []
    groups = grouped(((fact.source, fact.file), fact) for fact in pick.facts)
    for (source, file), facts in groups.items():
        lines += [f"  - {fact.text} [{fact.status}]" for fact in facts]
        notes = [note for note in dict.fromkeys(fact.note for fact in facts) if note and note not in printed]
        printed.update(notes)
        lines += [f"    note: {note}" for note in notes]
        lines.append(f"    source: {screen.styled('dim', f'{source} (in {file})' if file else source)}")
    for text in _read_texts(pick):
        lines += [text, f"    source: {screen.styled('dim', pick.files[0].url)}"]
    return "\n".join([_heading(pick, resolution, screen), *map(screen.wrapped, lines)])


def _read_texts(pick: Distribution) -> list[str]:
    """Return what was read in the file that is installed."""
    texts = [f"  - {_STATES[pick.content.state]}: {pick.content.evidence}"] if pick.content else []
    if pick.source:
        texts.append(f"  - its source: {SOURCE_KINDS[pick.source.kind]}: {pick.source.evidence}")
    return texts


def _heading(pick: Distribution, resolution: Resolution, screen: Screen) -> str:
    title = f"{screen.styled('bold', f'{pick.name} {pick.key}')}: {_reason_text(pick, resolution)}"
    return screen.wrapped(title.removesuffix(": "), hanging=4)


def ranked_facts(pick: Distribution, resolution: Resolution, screen: Screen) -> tuple[str, list[str]]:
    """Return the reason for a version, and its facts, the most decisive first, each source once."""

    def rank(fact: Fact) -> int:
        if " contains " in fact.text:  # the image does
            return -3
        if re.search(_ADVICE, fact.text) or f" requires {pick.name}" in fact.text:
            return -1 if " requires " in fact.text else -2
        return next((place for place, part in enumerate(_TELLING) if part in fact.text), len(_TELLING))

    lines, printed = _read_texts(pick), set()
    for fact in sorted(pick.facts, key=rank):
        source = "" if fact.source in printed else f": {fact.source.split(' ; ')[0]}"
        printed.add(fact.source)
        lines.append(f"  - {fact.text} [{fact.status}{source}]")
    return _heading(pick, resolution, screen), lines


def names_of_others(resolution: Resolution) -> frozenset[str]:
    """Return the distributions that come only from package indexes, and that the request does not name."""
    requested = {*PLATFORM, *(requirement.name for requirement in resolution.request.requirements)}
    return frozenset(
        pick.name
        for pick in resolution.published()
        if pick.name not in requested
        if not any(fact.file for fact in pick.facts)
    )


def others_text(others: Sized) -> str:
    """Return a phrase with the number of distributions that are not listed."""
    return f"and {counted(len(others), 'other package')} from package indexes (-v lists them)"


def conflict_text(conflict: Conflict | ConflictDocument, *, every: bool = False) -> str:
    """Return the constraints of a conflict, each with its first source, or with `every` source."""
    lines = [f"There is no resolution. {title_of(conflict.target)}", ""]
    lines += [
        f"  - {item.text}{f' [{item.source}]' if every and item.kind == 'fact' else first_source(item)}"
        for item in conflict.core
    ]
    return "\n".join(lines)


def suggestions_text(conflict: ConflictDocument) -> str:
    """Return the requests that resolve, as commands."""
    if not conflict.suggestions:
        is_stopped = any(warning.id == SUGGESTIONS_STOPPED for warning in conflict.warnings)
        return "" if is_stopped else "\nNo change of this request was found that resolves the conflict."
    import shlex

    lines = ["", "These requests resolve:"]
    lines += [
        f"  - {suggestion.change}: matrix resolve {shlex.join(suggestion.request)}"
        for suggestion in conflict.suggestions
    ]
    return "\n".join(lines)


def first_source(item: CoreItem) -> str:
    """Return the first source of a fact in brackets. JSON and ``matrix explain`` have all of them."""
    return f" [{item.source.split(' ; ')[0]}]" if item.kind == "fact" else ""


def title_of(target: Target) -> str:
    """Return the heading that names a target."""
    gfx = f", {', '.join(target.gfx)}" if target.gfx else ""
    return f"For {target.site} on {target.date}: {target.backend}{gfx}"
