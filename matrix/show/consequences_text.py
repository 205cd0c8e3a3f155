"""Consequences of a change as text: a summary, then the changes by effect, with their reasons."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from matrix.show.render import PLAIN, Screen, counted, shortened
from matrix.show.resolution_text import first_source
from resolver.compiling.clauses import REQUEST
from resolver.consequences.questions import ROW
from resolver.facts.schema import PLATFORM
from resolver.versions import grouped, newest_first, sort_key

if TYPE_CHECKING:
    from resolver.consequences.questions import Consequence, RowKey
    from resolver.model import CoreItem

HEADINGS = {
    "breaks": "Breaks",
    "at-own-risk": "At your own risk from now on",
    "possible": "Becomes possible",
    "supported": "Becomes supported",
    "different": "Different",
}
"""By effect, in the order in which they are printed."""
_NOUNS: dict[str, str] = {
    "lock": "lock",
    "default": "default version",
    "base-image": "base image",
    "torch": "torch version",
    "package": "package",
    "proven-set": "proven set",
}
"""By kind, in the order in which they are printed."""
_LABELS = {"breaks": "These conflict now:", "possible": "Before, these conflicted:"}
_MOST_NAMES = 6
_MOST_LINES = 12
_PATCH_RELEASE = re.compile(r"(\d+\.\d+)\.\d+")
"""ROCm 6.2.0 and 6.2.1 break for the same reason."""


def consequences_text(consequences: Sequence[Consequence], *, sources: bool = False) -> str:
    """Return consequences as text, without the `summary`.

    Changes of one kind with one reason share a paragraph. Below its subject are the minimal conflict of the
    first change, and the facts that changed, marked with an asterisk. `sources` adds the source of each fact.
    """
    lines: list[str] = []
    for effect, heading in HEADINGS.items():
        groups = grouped(
            (_alike(change), change)
            for change in sorted(consequences, key=lambda change: [*_NOUNS].index(change.kind))
            if change.effect == effect
        )
        if groups:
            lines += ["", heading] if lines else [heading]
        for group in groups.values():
            lines += [f"  {line}" for line in _subject(group)]
            lines += [f"    {line}" for line in _reason(group[0], sources=sources)]
    return "\n".join(lines)


def differences_text(changes: Sequence[Consequence], sides: tuple[str, str], screen: Screen = PLAIN) -> str:
    """Return the differences of two locks or environments without reasons: the platform first."""
    ordered = sorted(changes, key=lambda change: (change.name not in PLATFORM, change.name))
    both = [change for change in ordered if change.before and change.after]
    only = [
        [change.name for change in ordered if not (change.after, change.before)[number]] for number in (0, 1)
    ]
    counts = [f"{len(names)} only in {side}" for names, side in zip(only, sides, strict=True) if names]
    differ = f"{counted(len(both), 'version')} differ{'s' if len(both) == 1 else ''}"
    lines = [screen.wrapped(f"{' -> '.join(sides)}: {', '.join([differ, *counts])}"), ""]
    rows = [
        [
            change.name,
            f"{change.before} -> {change.after}" if change.before != change.after else "built differently",
        ]
        for change in both
    ]
    lines += [screen.table(rows[:_MOST_LINES])] if rows else []
    lines += [f"  and {len(rows) - _MOST_LINES} more"] if rows[_MOST_LINES:] else []
    lines += [
        screen.wrapped(f"  only in {side}: {_many(names)}")
        for names, side in zip(only, sides, strict=True)
        if names
    ]
    return "\n".join(lines)


def summary(consequences: Sequence[Consequence]) -> str:
    """Return one line that counts the consequences.

    Examples
    --------
    >>> summary([])
    'Nothing changes.'
    """
    if not consequences:
        return "Nothing changes."
    parts = []
    for effect, heading in HEADINGS.items():
        names = {(change.kind, change.name) for change in consequences if change.effect == effect}
        if names:
            counts = Counter[str](kind for kind, _ in names)
            numbers = (counted(counts[kind], noun) for kind, noun in _NOUNS.items() if counts[kind])
            parts.append(f"{heading}: {', '.join(numbers)}.")
    return " ".join(parts)


def _alike(change: Consequence) -> tuple[object, ...]:
    """Return a key that is equal for consequences that share a paragraph: the core without their names."""
    own = {change.name.partition(" ")[0], "torch" if change.where else change.kind}
    texts = [item.text for item in _shown_core(change) if not own & {*item.about}]
    core = [_PATCH_RELEASE.sub(r"\1", text) for text in texts]
    if change.before == change.after:
        return change.kind, *(item.text.replace(change.name, "") for item in change.now)
    if change.kind == "package" and change.effect == "different":
        return change.name, change.was, change.now, tuple(core)
    kind = change.name if change.kind == "package" else change.kind
    return kind, change.before, change.after, change.was, change.now, tuple(core)


def _shown_core(change: Consequence) -> list[CoreItem]:
    """Return the core without items that only repeat the subject."""
    repeated = {(REQUEST, change.name), (REQUEST, "torch")}
    return [item for item in change.core if item.source != ROW and (item.source, *item.about) not in repeated]


def _subject(group: Sequence[Consequence]) -> Iterator[str]:
    """Yield the subject of a paragraph: one line, or several if the names are long."""
    first = group[0]
    row_keys = [row_key for change in group for row_key in change.where]
    names = list(dict.fromkeys(change.name for change in group))
    if first.kind == "torch":
        versions = [name.removeprefix("torch ") for name in names]
        yield f"torch {_many(versions)}{_where(row_keys, torch=False)}{_state(first)}"
    elif first.kind == "default":
        yield f"`matrix resolve torch`: {first.before} -> {first.after}"
    elif first.kind != "package":
        noun = _NOUNS[first.kind]
        if len(names) == 1:
            yield f"{noun} {names[0]}{_state(first)}"
        else:
            yield f"{counted(len(names), noun)}{_state(first)}:"
            yield from (f"  {name}" for name in names[:_MOST_LINES])
            if len(names) > _MOST_LINES:
                yield f"  and {len(names) - _MOST_LINES} more"
    elif first.before == first.after:
        yield f"{_many(names)}, built differently"
    elif first.effect == "different":
        for change in group:
            pair = f"{change.before or 'none'} -> {change.after or 'none'}"
            yield f"{change.name}: {pair}{_where(change.where)}"
    else:
        version = first.before or first.after
        known = f" {version}" if version not in {"supported", "at your own risk"} else ""
        yield f"{first.name}{known}{_where(row_keys)}"


def _state(change: Consequence) -> str:
    """Return the state on both sides, or on the only side where it is possible; empty if supported."""
    if change.effect in {"breaks", "possible"} and change.before and change.after:
        return f": {change.before} -> {change.after}"
    state = change.before or change.after
    return f", {state}" if state != "supported" and not (change.before and change.after) else ""


def _many(names: Iterable[str]) -> str:
    return shortened(dict.fromkeys(names), most=_MOST_NAMES)


def _where(row_keys: Sequence[RowKey], *, torch: bool = True) -> str:
    """Return the rows of the table that a paragraph is about, as the end of a sentence."""
    parts = []
    torches = newest_first({row_key.torch for row_key in row_keys} - {""})
    if torch and torches:
        parts.append(f"with torch {_many(torches)}")
    pythons = sorted({row_key.python for row_key in row_keys} - {""}, key=sort_key)
    if pythons:
        span = pythons[0] if len(pythons) == 1 else f"{pythons[0]} to {pythons[-1]}"
        parts.append(f"Python {span}" if parts else f"with Python {span}")
    images = sorted({row_key.base_image for row_key in row_keys} - {""})
    if images:
        parts.append(f"in {shortened(images, most=1)}")
    return f" {', '.join(parts)}" if parts else ""


def _reason(change: Consequence, *, sources: bool) -> Iterator[str]:
    """Yield the lines of a core, changed ones with an asterisk, then the other facts that changed."""
    was, now = ({fact.text: fact for fact in facts} for facts in (change.was, change.now))
    core = _shown_core(change)
    shown = {item.text for item in core}
    if core and change.effect in _LABELS:
        yield _LABELS[change.effect]
    lines = [("*" if item.text in {*was, *now} else "-", item) for item in core]
    for text, fact in (was | now).items():
        if text not in shown:
            side = "" if text in was and text in now else " before:" if text in was else " now:"
            lines.append((f"*{side}", fact))
    for start, item in lines:
        yield f"{start} {item.text}{first_source(item) if sources else ''}"
