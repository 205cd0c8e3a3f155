"""What pip makes of one name on two lines: it looks for a version that fits both.

Seen with pip 22.3.1 and 26.3. Only pip's old resolver, which 20.3 replaced, refused every second line
with "Double requirement given".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from matrix.checking.findings import Finding
from resolver.versions import bounds_cross, parse_specifier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.specifiers import SpecifierSet

    from matrix.checking.document import Document, Entry


def check_twice(document: Document) -> Iterator[Finding]:
    """Find names that stand on two lines."""
    seen: dict[str, list[tuple[Entry, Requirement]]] = {}
    for entry in document.entries:
        line = entry.pip
        if not line.requirement or line.requirement.marker:
            continue
        formers = seen.setdefault(line.name, [])
        if formers:
            yield _twice(document, line.name, entry, line.requirement, formers)
        formers.append((entry, line.requirement))


def _twice(
    document: Document, name: str, entry: Entry, one: Requirement, formers: list[tuple[Entry, Requirement]]
) -> Finding:
    for former, other in formers:
        if told := _refusal(one, other):
            return Finding(
                id="contradicting-requirement",
                line=entry.first,
                text=entry.text,
                consequence=f"{name} is on line {former.first}, too, and {told}",
                remedy="Keep one of the two.",
            )
    former, other = formers[0]
    told, remedy, edit = ", too; pip looks for a version that fits both lines.", "Keep one of the two.", None
    if any(former.text == entry.text for former, _ in formers):
        told, remedy = " in the same words; one of the two is enough.", ""
        edit = document.commented(entry)
    elif not (one.url or other.url or entry.pip.options or former.pip.options):
        remedy = f"Write one line: {_joined(one, other)}."
    return Finding(
        id="duplicate-requirement",
        line=entry.first,
        text=entry.text,
        consequence=f"{name} is on line {former.first}{told}",
        remedy=remedy,
        edit=edit,
    )


def _refusal(one: Requirement, other: Requirement) -> str:
    """Give what pip says where nothing can fit both; empty where something may."""
    if one.url and other.url:
        if one.url.partition("#")[0] == other.url.partition("#")[0]:
            return ""
        return "from another address: pip ends with: ResolutionImpossible."
    if one.url or other.url or not _exclude(one.specifier, other.specifier):
        return ""
    both = " and ".join(sorted(f"{each.name}{_spelt(each.specifier)}" for each in (one, other)))
    return (
        f"pip ends with: Cannot install {both} because these package versions have conflicting dependencies."
    )


def _spelt(specifiers: SpecifierSet) -> str:
    parts = str(specifiers).split(",")
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _exclude(one: SpecifierSet, other: SpecifierSet) -> bool:
    """Tell whether surely no version fits both.

    Examples
    --------
    >>> from packaging.specifiers import SpecifierSet as S
    >>> _exclude(S("==1.0"), S("==2.0")), _exclude(S("==1.0"), S("==1.0+label")), _exclude(S("<2"), S(">=2"))
    (True, False, True)
    """
    pins, others = _pins(one), _pins(other)
    if pins and others:
        return not (
            any(other.contains(pin, prereleases=True) for pin in pins)
            or any(one.contains(pin, prereleases=True) for pin in others)
        )
    if pins or others:
        allowing = other if pins else one
        return not any(allowing.contains(pin, prereleases=True) for pin in pins or others)
    return bounds_cross(parse_specifier(str(one & other)))


def _pins(specifiers: SpecifierSet) -> list[str]:
    return [
        each.version
        for each in specifiers
        if each.operator in {"==", "==="} and not each.version.endswith(".*") and _version(each.version)
    ]


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _joined(one: Requirement, other: Requirement) -> Requirement:
    extras = ",".join(sorted(one.extras | other.extras))
    return Requirement(f"{other.name}{extras and f'[{extras}]'}{one.specifier & other.specifier}")
