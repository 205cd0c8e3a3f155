"""``matrix report``: compatible versions, the build graph, the builds and the wheels on one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from builders.building.provenance import read_statement
from builders.building.records import build_records
from builders.index import Index
from builders.storage.files import write_atomic
from matrix.command_line.arguments import request_arguments
from matrix.command_line.conflict import last_conflict
from matrix.command_line.options import add_index, add_lock, add_output
from matrix.report.page import ReportPage, TableData, render_page, subtitle_of, wheels_of
from matrix.show.json_document import conflict_document
from matrix.show.render import duration
from matrix.show.resolution_text import build_times, in_index, resolution_text
from resolver.answers.graph import PIP, build_graph, edges_of_graph, generations, pick_in
from resolver.answers.table import ROW_COMPONENTS, Table
from resolver.errors import ProvenanceError
from resolver.model import Conflict

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from builders.building.provenance import Statement
    from builders.building.task_state import TaskState
    from matrix.command_line.context import Context
    from resolver.facts.catalog import Catalog
    from resolver.model import Distribution, Request, Resolution


SUMMARY = "write one HTML page with compatible versions, the build graph, builds, wheels and conflicts"
EXAMPLE = "matrix report -o report.html"

_ORIGINS = {"build": "buildable", "published": "published", PIP: "pip"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_output(parser, "default: %(default)s", default=Path("report.html"))
    add_lock(parser)
    add_index(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    catalog, request = _request(context)
    index = Index(args.index)
    has_index = index.simple.is_dir()
    table = Table(catalog, request)
    rows = table.rows_or_conflict()
    data, conflict = None, last_conflict()
    if isinstance(rows, Conflict):
        conflict = conflict_document(rows, lambda one: request_arguments(one.request))
    else:
        published = wheels_of(index) if has_index else {}
        locked = {pick.name: pick.key for pick in context.lock.picks} if context.has_lock else {}
        data = TableData(table, published, locked).collect(rows)
    builds = build_records(index) if has_index or index.state.is_dir() else []
    states = {(build.name, build.version): build.state for build in builds}
    report = ReportPage(
        title=f"Compatible versions at {request.target.site} on {request.target.date}",
        subtitle=subtitle_of(table),
        lock=_lock_text(context, index) if context.has_lock else "",
        table=data,
        graph=graph_data(context.lock, states) if context.has_lock else None,
        builds=[_build_row(build) for build in builds],
        wheels=list(wheels(index)) if has_index else [],
        conflict=conflict,
        absent=[
            *([] if context.has_lock else [("The build graph", "matrix resolve")]),
            *([] if has_index else [("Builds and wheels", "matrix build-wheels")]),
        ],
    )
    write_atomic(args.output, render_page(report))
    console.info(f"Wrote {args.output}")
    return 0


def _lock_text(context: Context, index: Index) -> str:
    lock = context.lock
    times = build_times(lock, context.catalog_of_lock, index.root)
    warnings = [f"warning: {warning.short or warning} [{warning.id}]" for warning in lock.warnings]
    return "\n".join([resolution_text(lock, times, in_index(lock, index.root)), "", *warnings]).rstrip()


def _request(context: Context) -> tuple[Catalog, Request]:
    """Return the lock's catalog and request; without a lock, those of the settings."""
    if context.has_lock:
        catalog, request = context.catalog_of_lock, context.lock.request
        known = {*catalog.package, *ROW_COMPONENTS}
        requirements = tuple(item for item in request.requirements if item.name in known)
        return catalog, replace(request, requirements=requirements, preinstalled=None)
    if not context.settings.has_requirements:
        context = context.with_settings(requirements=["torch"])
    context = context.with_settings(keep_installed=None)
    return context.catalog_with_image, context.request()


def _build_row(record: TaskState) -> dict[str, Any]:
    """Return a build with its times as text."""
    return {
        **msgspec.structs.asdict(record),
        "time": "" if record.seconds is None else duration(record.seconds),
        "started": f"{record.started:%Y-%m-%d %H:%M} UTC" if record.started else "",
    }


def wheels(index: Index) -> Iterator[dict[str, Any]]:
    """Yield the wheels of an index with their audit and provenance, if they have them."""
    for wheel in index.published(*index.projects()):
        document: dict[str, Any] = {"file": wheel.path.name, "project": wheel.path.parent.name}
        try:
            document |= _provenance(read_statement(wheel.provenance))
        except ProvenanceError:
            document["findings"] = None
        yield document


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
    }


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
                "facts": [[fact.text, fact.status, fact.source, fact.note] for fact in facts],
            }
            for name in sorted(graph)
            for pick in (pick_in(graph, name),)
            for facts in (pick.facts if pick else (),)
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
