"""Installed versions as candidates, and in the catalog's relations.

An installed version that is not in the catalog, such as torch 2.9.1+rocm6.4.lumi, has the requirements of a
version in the catalog (2.9.1+rocm6.4). The public versions are the same, and the local label in the catalog
is a prefix of the installed label.
If no label matches (a torch 2.10.0 that was compiled for the image), only the public version is matched:
other distributions accept it as that torch, and its own requirements are not known. Both cases cause a
warning if the version is chosen.

Two distributions that are installed together are compatible, even if the catalog excludes the combination.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace
from packaging.version import Version

from resolver.errors import UsageError
from resolver.facts.schema import PLATFORM
from resolver.model import IMAGE, Candidate, Fact, Requirement
from resolver.requirements import TRITON_NAMES, parse_requirement, required_name
from resolver.versions import join_words, version_or_none

if TYPE_CHECKING:
    from resolver.facts import schema
    from resolver.facts.catalog import Catalog
    from resolver.model import Preinstalled, Request


class InstalledVersion(msgspec.Struct, frozen=True):
    """One installed version among the candidates of a variable, all as masks."""

    bit: int
    requires_as: int
    """The candidates whose requirements it shares."""
    accepted_as: int
    """The candidates that it replaces in the requirements of other distributions."""


def installed_names(catalog: Catalog, request: Request) -> set[str]:
    """Return the names of all distributions that are installed, or that the chosen base image may contain."""
    if request.preinstalled is None:
        return set()
    if request.preinstalled.source != IMAGE:
        return set(request.preinstalled.installed)
    return {name for image in inspected_images(catalog, request) for name in image.holds}


def installed_versions(catalog: Catalog, request: Request) -> Mapping[str, str]:
    """Return the installed versions by name: those of a list, or those of the named base image."""
    preinstalled = request.preinstalled
    if preinstalled is None:
        return {}
    image = catalog.image.get(request.target.base_image or "")
    if preinstalled.source == IMAGE and not preinstalled.installed and image:
        return preinstalled.kept(image.holds)
    return preinstalled.installed


def merged(
    catalog: Catalog, request: Request, name: str, known: Sequence[Candidate]
) -> tuple[list[Candidate], list[InstalledVersion]]:
    """Return the candidates of a component in the order of preference, then its installed versions."""
    candidates, masks = list(known), []
    for version, fact in _facts(catalog, request, name).items():
        requires_as, accepted_as = _matches(version, known)
        same = [known[i] for i in requires_as if known[i].version == version]
        similar = [known[i].version for i in requires_as]
        index = same[0].index if same else ""
        remark = "" if same else _remark(name, version, similar, accepted_as)
        installed = Candidate(name, version, "distribution", "preinstalled", fact, index=index, remark=remark)
        candidates.append(installed)
        bits = (sum(1 << (i + 1) for i in positions) for positions in (requires_as, accepted_as))
        masks.append(InstalledVersion(1 << len(candidates), *bits))
    return candidates, masks


def _facts(catalog: Catalog, request: Request, name: str) -> dict[str, Fact]:
    """Return the installed versions of a component, each with its source."""
    preinstalled = request.preinstalled
    if preinstalled is None or name in PLATFORM:
        return {}
    if preinstalled.source != IMAGE:
        version = preinstalled.installed.get(name)
        text = f"the base image contains {name} {version}"
        return {version: Fact(text, "observed", source_of(preinstalled))} if version else {}
    facts: dict[str, Fact] = {}
    for image in inspected_images(catalog, request):
        version = image.holds.get(name)
        if version:
            facts.setdefault(version, Fact.of(image, f"a base image contains {name} {version}", note=""))
    return facts


def inspected_images(catalog: Catalog, request: Request) -> list[schema.Image]:
    """Return the base images that may be chosen and whose content is known, with what is kept of it."""
    named, preinstalled = request.target.base_image, request.preinstalled
    rows = [row for row in catalog.image.values() if row.holds and named in {None, row.name}]
    if preinstalled is None or not preinstalled.replaced:
        return rows
    return [replace(row, holds=preinstalled.kept(row.holds)) for row in rows]


def limits_of(catalog: Catalog, request: Request) -> list[Requirement]:
    """Return the constraints of a request, and what kept distributions of its image require of all others.

    Without the latter, a distribution that replaces another of the image could break those that use it.
    """
    limits = [*request.constraints]
    image, kept = catalog.image.get(request.target.base_image or ""), request.preinstalled
    if image is None or kept is None or kept.source != IMAGE:
        return limits
    for name, version in kept.installed.items():
        for text in image.requires.get(name, ()):
            if required_name(text) in {*kept.installed, *TRITON_NAMES}:  # triton is in it by another name
                continue
            with suppress(UsageError):  # metadata of strangers
                one = parse_requirement(text)
                if one.specifier:
                    reason = f"{name} {version} of the base image requires {one.name}{one.specifier}"
                    limits.append(
                        Requirement(one.name, one.specifier, text, marker=one.marker, reason=reason)
                    )
    return limits


def source_of(preinstalled: Preinstalled) -> str:
    """Return the source of facts about listed distributions."""
    return f"installed: {preinstalled.source}"


def _matches(version: str, known: Sequence[Candidate]) -> tuple[list[int], list[int]]:
    """Return the positions of the candidates with the same requirements, and of those that it can replace."""
    exact = [i for i, candidate in enumerate(known) if candidate.version == version]
    if exact:
        return exact, exact
    public, label = _split(version)
    parts = [(i, _split(candidate.version)) for i, candidate in enumerate(known)]
    labels = {i: other for i, (other_public, other) in parts if other_public == public}
    prefixes = {i: len(other) for i, other in labels.items() if other and label[: len(other)] == other}
    longest = [i for i, length in prefixes.items() if length == max(prefixes.values())]
    return longest, longest or list(labels)


def _split(version: str) -> tuple[str, list[str]]:
    parsed = version_or_none(version)
    if parsed is None:
        return version, []
    return parsed.public, parsed.local.split(".") if parsed.local else []


def _remark(name: str, version: str, similar: Sequence[str], accepted_as: Sequence[int]) -> str:
    text = f"{name} {version} of the base image is not in the catalog"
    if similar:
        return f"{text}; the facts about {name} {join_words(sorted(set(similar)), joiner='and')} were used."
    if accepted_as:
        public = Version(version).public
        return f"{text}; it was treated as {name} {public}, and its own requirements were not checked."
    return f"{text}, so its requirements were not checked."
