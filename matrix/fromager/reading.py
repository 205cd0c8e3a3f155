"""Reading fromager's ``graph.json``: a file that another program wrote, and so one to be checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from matrix.fromager import ROOT
from resolver.errors import UsageError
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MOST_BYTES = 64 * 2**20
"""A graph of a thousand distributions has about one megabyte."""
_HINT = "fromager writes it to graph.json in its work directory."


class GraphFileError(UsageError):
    """A file is no graph that fromager could build from."""

    id = "bad-graph"


class _Edge(msgspec.Struct, frozen=True):
    key: str
    req_type: Literal["toplevel", "install", "build-system", "build-backend", "build-sdist"]
    req: str


class _Entry(msgspec.Struct, frozen=True):
    canonicalized_name: str
    version: str
    edges: tuple[_Edge, ...]
    pre_built: bool = False


@dataclass(frozen=True, slots=True)
class Needed:
    """What fromager found a distribution to need."""

    name: str
    kind: Literal["run", "build"]
    requirement: str


@dataclass(frozen=True, slots=True)
class Found:
    """A version of a distribution that fromager knows."""

    name: str
    version: Version
    pre_built: bool
    """Used as it is published; how it is built is not known then."""
    needs: tuple[Needed, ...]


def read_graph(path: Path) -> tuple[Found, ...]:
    """Read a graph of fromager.

    Returns
    -------
    tuple of Found
        Sorted by name and version, without the root.

    Raises
    ------
    GraphFileError
        The file is missing, too large, no such graph, or what is in it cannot be built because it
        needs itself to be built. Distributions that need each other only to run are no fault: pip
        and fromager install them together.
    """
    entries = _decode(path)
    if ROOT not in entries:
        msg = f"{path} is no graph of fromager: it has no root, the entry with an empty name."
        raise GraphFileError(msg, hint=_HINT)
    for key, entry in entries.items():
        for edge in entry.edges:
            if edge.key not in entries:
                msg = f"{path}: {shorten(key)!r} needs {shorten(edge.key)!r}, which is not in the file."
                raise GraphFileError(msg, hint=_HINT)
    _refuse_circles(entries, path)
    found = [_found(key, entry, entries, path) for key, entry in entries.items() if key != ROOT]
    return tuple(sorted(found, key=lambda one: (one.name, one.version, one.needs == ())))


def _decode(path: Path) -> dict[str, _Entry]:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        msg = f"There is no file {path}, which --edges-from names."
        raise GraphFileError(msg, hint=_HINT) from None
    except OSError as error:
        msg = f"Cannot read {path}: {error.strerror}."
        raise GraphFileError(msg) from None
    if len(data) > MOST_BYTES:
        msg = f"{path} is larger than {MOST_BYTES // 2**20} MiB, which no graph of fromager is."
        raise GraphFileError(msg, hint=_HINT)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        msg = f"{path} is no graph of fromager: it is not UTF-8 (byte {error.start})."
        raise GraphFileError(msg, hint=_HINT) from None
    try:
        return msgspec.json.decode(text, type=dict[str, _Entry])
    except (msgspec.DecodeError, RecursionError) as error:
        msg = f"{path} is no graph of fromager: {error}."
        raise GraphFileError(msg, hint=_HINT) from None


def _found(key: str, entry: _Entry, entries: Mapping[str, _Entry], path: Path) -> Found:
    try:
        version = Version(entry.version)
    except InvalidVersion:
        msg = f"{path}: {shorten(key)!r} has the version {shorten(entry.version)!r}, which is none."
        raise GraphFileError(msg, hint=_HINT) from None
    needs = (
        Needed(
            canonicalize_name(entries[edge.key].canonicalized_name),
            "build" if edge.req_type.startswith("build") else "run",
            edge.req,
        )
        for edge in entry.edges
    )
    return Found(canonicalize_name(entry.canonicalized_name), version, entry.pre_built, tuple(needs))


def _refuse_circles(entries: Mapping[str, _Entry], path: Path) -> None:
    """See that nothing needs itself to be built, not even by way of others.

    A circle that has a build edge lies in one strongly connected component, as that edge does.
    """
    import networkx as nx

    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_edges_from((key, edge.key) for key, entry in entries.items() for edge in entry.edges)
    component = {
        key: number for number, keys in enumerate(nx.strongly_connected_components(graph)) for key in keys
    }
    for key, entry in entries.items():
        for edge in entry.edges:
            if edge.req_type.startswith("build") and component[key] == component[edge.key]:
                circle = [key, *nx.shortest_path(graph, edge.key, key)]
                msg = f"{path}: what is built there needs itself to be built: {' -> '.join(circle)}."
                raise GraphFileError(msg, hint="Have fromager write the graph anew.")
