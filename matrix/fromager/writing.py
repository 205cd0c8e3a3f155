"""A build graph as fromager's ``graph.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from matrix.fromager import ROOT
from resolver.errors import LockError
from resolver.graph import PIP

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resolver.graph import BuildGraph, Node
    from resolver.lock import Lock, LockedPick


def fromager_document(graph: BuildGraph, lock: Lock) -> dict[str, Any]:
    """Give a build graph as fromager's.

    Parameters
    ----------
    graph
        What is left to pip is left out with its edges: fromager accepts no distribution without a
        version.
    lock
        Where the sources stand. Only that of a git commit is known as a URL; fromager finds the
        others by itself.

    Returns
    -------
    dict
        What fromager would write, sorted by key. What was asked for, and what none of that needs,
        are at the top.

    Raises
    ------
    LockError
        A name or a version that fromager could not read.
    """
    nodes = {node.name: node for node in graph.nodes if node.origin != PIP}
    keys = {name: _key(node) for name, node in nodes.items()}
    document = {ROOT: _entry("", "0")}
    for name, node in sorted(nodes.items(), key=lambda one: keys[one[0]]):
        pick = lock.find(name)
        document[keys[name]] = _entry(
            canonicalize_name(name),
            str(Version(node.version)),
            url=_url(pick) if pick else "",
            pre_built=node.origin != "build",
        )
    for edge in graph.edges:
        if edge.subject in nodes and edge.object in nodes:
            req_type = "install" if edge.kind == "run" else "build-system"
            requirement = edge.requirement if _names(edge.requirement, edge.object) else edge.object
            document[keys[edge.subject]]["edges"].append(_edge(keys[edge.object], req_type, requirement))
    asked = _asked(graph, keys)
    for name in sorted(asked.keys() | _not_reached(graph, nodes, asked)):
        document[ROOT]["edges"].append(_edge(keys[name], "toplevel", asked.get(name, keys[name])))
    return document


def left_out(graph: BuildGraph) -> tuple[str, ...]:
    """Give what `fromager_document` leaves out."""
    return tuple(node.name for node in graph.nodes if node.origin == PIP)


def _asked(graph: BuildGraph, keys: dict[str, str]) -> dict[str, str]:
    """Give what was asked for, platform components aside, with its requirement."""
    canonical = {canonicalize_name(name): name for name in keys}
    asked: dict[str, str] = {}
    for text in graph.requested:
        try:
            name = canonical.get(canonicalize_name(Requirement(text).name))
        except InvalidRequirement:
            continue
        if name is not None:
            asked.setdefault(name, text)
    return asked


def _not_reached(graph: BuildGraph, names: Iterable[str], asked: Iterable[str]) -> set[str]:
    """Give what must be at the top, too, so that everything is reached: fromager reads no more than that."""
    kept = set(names)
    needs = {name: [other for other in needed if other in kept] for name, needed in graph.needs().items()}
    missing, waiting = set(kept), list(asked)
    while waiting:
        name = waiting.pop()
        if name in missing:
            missing.remove(name)
            waiting += needs[name]
    return missing - {other for name in missing for other in needs[name]}


def _names(text: str, name: str) -> bool:
    """Tell whether a text is a requirement of this distribution; texts of several recipes are not."""
    try:
        return canonicalize_name(Requirement(text).name) == canonicalize_name(name)
    except InvalidRequirement:
        return False


def _key(node: Node) -> str:
    try:
        key = f"{canonicalize_name(node.name, validate=True)}=={Version(node.version)}"
        Requirement(key)
    except (ValueError, InvalidVersion, InvalidRequirement):
        msg = f"fromager could not read {node.name!r} {node.version!r} of the lock: no name and version."
        raise LockError(msg, hint="Write the lock anew with: matrix resolve") from None
    return key


def _url(pick: LockedPick) -> str:
    return f"git+{pick.git.url}@{pick.git.commit}" if pick.git else ""


def _entry(name: str, version: str, *, url: str = "", pre_built: bool = False) -> dict[str, Any]:
    return {
        "download_url": url,
        "pre_built": pre_built,
        "version": version,
        "canonicalized_name": name,
        "constraint": None,
        "edges": [],
    }


def _edge(key: str, req_type: str, requirement: str) -> dict[str, str]:
    return {"key": key, "req_type": req_type, "req": requirement}
