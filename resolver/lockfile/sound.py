"""What the parts of a lock must mean: versions that can be read, and names that stand for something."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Pep508
from packaging.utils import canonicalize_name

from resolver.errors import UsageError
from resolver.requirements import parse_requirement
from resolver.versions import abi_tag, is_version, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resolver.lockfile.parts import Lock, LockedPick

_NAMED = {"base-image"}
"""Components whose versions are names."""
_UNSHOWN = {"backend", "gfx"}
"""Components that can be asked for and are no picks of a lock."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


def complaints(lock: Lock) -> Iterator[str]:
    """Yield what is wrong with a lock whose types are right, in words that follow "FILE: "."""
    names = Counter(pick.name for pick in lock.pick)
    yield from (f"{name} was picked {count} times" for name, count in names.items() if count > 1)
    for pick in lock.pick:
        yield from _pick(pick)
    yield from _request(lock)
    yield from _target(lock)
    yield from _graph(lock)


def _request(lock: Lock) -> Iterator[str]:
    names = {pick.name for pick in lock.pick} | _UNSHOWN
    for text in lock.requirements:
        try:
            wanted = parse_requirement(text)
        except UsageError as error:
            yield f"the request: {error.message.rstrip('.')}"
            continue
        if wanted.name not in names:
            yield f"{shorten(text)!r} was requested, and there is no pick {wanted.name!r}"


def _pick(pick: LockedPick) -> Iterator[str]:
    if pick.name != canonicalize_name(pick.name):
        yield f"the name {shorten(pick.name)!r} is not normalised"
    for version in (pick.version, pick.wheel_version):
        if version and pick.name not in _NAMED and not is_version(version):
            yield f"the version {shorten(version)!r} of {pick.name} cannot be read (PEP 440)"
    if not pick.version:
        yield f"{pick.name} has no version"
    if pick.origin == "build" and not (pick.sdist or pick.git):
        yield f"{pick.name} is to be built and names no source"
    for file in (pick.sdist, pick.wheel, *pick.patches):
        if file is not None and not _SHA256.fullmatch(file.sha256):
            yield f"the sha256 of {shorten(file.file)} is none: {shorten(file.sha256)!r}"


def _target(lock: Lock) -> Iterator[str]:
    target = lock.target
    said = {
        "rocm": target.rocm,
        "glibc": target.glibc,
        "python": target.python,
        "kernel-driver": target.driver.version if target.driver else "",
        "base-image": target.base_image.name if target.base_image else "",
    }
    for name, version in said.items():
        picked = lock.version_of(name)
        if version != picked:
            yield f"the target has {name} {version or 'none'}, and the pick is {picked or 'none'}"
    if target.python_abi != abi_tag(target.python):
        yield f"the ABI of Python {target.python} is not {shorten(target.python_abi)!r}"


def _graph(lock: Lock) -> Iterator[str]:
    picks = {pick.name for pick in lock.pick if pick.kind == "distribution"}
    left_to_pip = {edge.object for edge in lock.edge if edge.requirement}
    for edge in lock.edge:
        if edge.subject not in picks:
            yield f"an edge begins at {shorten(edge.subject)!r}, which is no pick"
        if edge.requirement and not _is_requirement(edge.requirement, edge.object):
            yield f"{shorten(edge.requirement)!r} is not a requirement for {edge.object}"
        if not edge.requirement and edge.object not in picks:
            yield f"{edge.subject} needs {shorten(edge.object)!r}, which is no pick"
    ordered = Counter(name for group in lock.order for name in group)
    for name, count in ordered.items():
        if name not in picks | left_to_pip:
            yield f"the order names {shorten(name)!r}, which is no pick"
        if count > 1:
            yield f"the order names {name} {count} times"
    yield from (f"the order lacks {name}" for name in sorted(picks - ordered.keys()))


def _is_requirement(text: str, name: str) -> bool:
    try:
        return canonicalize_name(Pep508(text).name) == name
    except InvalidRequirement:
        return False
