"""The wheels and builds of an index, and the build graph, as data of the page."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from builders.building.provenance import SBOM_NAME, read_statement
from builders.wheels.wheel import LARGEST_METADATA, DamagedError, WheelReader
from matrix.show.render import counted, duration
from resolver.answers.graph import PIP, build_graph, edges_of_graph, generations, pick_in
from resolver.errors import ProvenanceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from builders.building.provenance import Statement
    from builders.building.records import TaskState
    from builders.index import Index
    from resolver.model import Distribution, Resolution


_PAUSE = timedelta(minutes=30)
"""Builds that are further apart get separate time axes."""
_HEIGHT = 100.0

_ORIGINS = {"build": "buildable", "published": "published", PIP: "pip"}


def timeline(records: Sequence[TaskState]) -> list[dict[str, Any]]:
    """Return builds in groups without a long pause in between, the last group first.

    Each has its bars in percent of its time, and the cores in use as the path of an SVG drawing of 100 x 100.
    """
    groups: list[list[TaskState]] = []
    end = datetime.min.replace(tzinfo=UTC)
    for record in sorted(records, key=lambda record: (record.started or end, record.name)):
        if not groups or (record.started is not None and record.started > end + _PAUSE):
            groups.append([])
        groups[-1].append(record)
        end = max(end, _end(record) or end)
    return [_group(group) for group in reversed(groups)]


def _end(record: TaskState) -> datetime | None:
    if record.finished is not None:
        return record.finished
    return record.started + timedelta(seconds=record.seconds or 0) if record.started else None


def _group(records: Sequence[TaskState]) -> dict[str, Any]:
    spans = [(record.started, _end(record) or record.started) for record in records if record.started]
    start = min((begin for begin, _ in spans), default=None)
    total = max(((end - start).total_seconds() for _, end in spans if start), default=0) or 1
    bars = []
    for record in records:
        bar = {**msgspec.structs.asdict(record), "time": "", "left": None, "width": None}
        bar["time"] = "" if record.seconds is None else duration(record.seconds)
        if record.started and start:
            bar["left"] = round(100 * (record.started - start).total_seconds() / total, 2)
            seconds = ((_end(record) or record.started) - record.started).total_seconds()
            bar["width"] = round(max(0.5, 100 * seconds / total), 2)
        bars.append(bar)
    return {
        "title": f"{start:%Y-%m-%d %H:%M} UTC, {duration(total)}" if start else "Start not recorded",
        "bars": bars,
        "cores": _cores(records, start, total),
    }


def _cores(records: Sequence[TaskState], start: datetime | None, total: float) -> dict[str, Any] | None:
    """Return the sum of the cores over time as the path of a drawing; None if nothing was recorded."""
    steps: dict[float, int] = {}
    for record in records:
        cores, end = record.cores, _end(record)
        if cores and record.started and end and start:
            for moment, change in ((record.started, cores), (end, -cores)):
                at = round(100 * (moment - start).total_seconds() / total, 2)
                steps[at] = steps.get(at, 0) + change
    level, levels = 0, []
    for at in sorted(steps):
        level = max(0, level + steps[at])
        levels.append((at, level))
    most = max((level for _, level in levels), default=0)
    if not most:
        return None
    path = f"M{levels[0][0]:g} {_HEIGHT:g}"
    for at, level in levels:
        path += f"H{at:g}V{_HEIGHT * (1 - level / most):.4g}"
    return {"most": counted(most, "core"), "path": f"{path}Z"}


def wheels(index: Index) -> Iterator[dict[str, Any]]:
    """Yield the wheels of an index with audit, provenance and bill of materials, if they have them."""
    for project in index.projects():
        for wheel in index.published(project):
            document: dict[str, Any] = {"file": wheel.path.name, "project": project}
            try:
                document |= _provenance(read_statement(wheel.provenance))
            except ProvenanceError:
                document["findings"] = None
            yield document | {"components": _components(wheel.path)}


def _provenance(statement: Statement) -> dict[str, Any]:
    definition, run = statement.predicate.build_definition, statement.predicate.run_details
    results = {item.name: item.annotations.get("result") for item in run.byproducts if item.role == "result"}
    measured = run.metadata.measured
    return {
        "findings": results.get("findings"),
        "facts": [
            (name, str(value))
            for name, value in (
                ("Build key", statement.build_key),
                ("GPU architectures", ", ".join(map(str, definition.external_parameters.get("gfx", ())))),
                ("Builder", run.builder.id),
                ("Versions", ", ".join(f"{name} {version}" for name, version in run.builder.version.items())),
                ("Node", run.metadata.node),
                (
                    "Started",
                    f"{run.metadata.started_on:%Y-%m-%d %H:%M} UTC" if run.metadata.started_on else "",
                ),
                ("Time", duration(measured["seconds"]) if "seconds" in measured else ""),
                ("Memory", f"{measured['memory_gib']:g} GiB" if "memory_gib" in measured else ""),
                ("Network during the build", results.get("network", "")),
            )
            if value
        ],
        "materials": [
            {
                "role": item.role,
                "name": item.name or item.uri,
                "uri": item.uri,
                "digest": " ".join(f"{name}:{value}" for name, value in item.digest.items()),
            }
            for item in definition.resolved_dependencies
        ],
    }


def _components(path: Path) -> list[dict[str, str]] | None:
    """Return the components in the bill of materials of a wheel; None if it is missing or damaged."""
    try:
        with WheelReader(path) as wheel:
            member = wheel.metadata_member(f"sboms/{SBOM_NAME}")
            if member is None or member.file_size > LARGEST_METADATA:
                return None
            document = json.loads(wheel.read(member))
    except (DamagedError, OSError, ValueError, RecursionError):
        return None
    components = [document.get("metadata", {}).get("component", {}), *document.get("components", [])]
    for formula in document.get("formulation", []):
        components += formula.get("components", [])
    return [
        {key: str(component.get(key, "")) for key in ("type", "name", "version", "purl")}
        for component in components
        if component
    ]


def graph_data(lock: Resolution, states: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    """Return the build graph of a lock, with the state of each build by name and version."""
    graph = build_graph(lock)
    numbers = {name: number for number, group in enumerate(generations(graph), start=1) for name in group}
    return {
        "nodes": [
            {
                "name": name,
                "version": pick.pinned if pick else "",
                "state": _state(pick, states),
                "generation": numbers[name],
                "facts": [[fact.text, fact.status, fact.source, fact.note] for fact in pick.facts]
                if pick
                else [],
            }
            for name in sorted(graph)
            for pick in (pick_in(graph, name),)
        ],
        "edges": [
            {"from": edge.subject, "to": edge.object, "kind": edge.kind, "declared": edge.declared}
            for edge in edges_of_graph(graph)
        ],
    }


def _state(pick: Distribution | None, states: Mapping[tuple[str, str], str]) -> str:
    if pick is None:
        return "pip"
    if pick.origin == "build":
        return states.get((pick.name, pick.pinned), "buildable")
    return _ORIGINS.get(pick.origin, "present")
