"""``matrix report``: compatible versions, the build graph, the builds and the wheels on one HTML page."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from builders.building.provenance import SBOM_NAME, read_statement
from builders.building.records import build_records
from builders.index import Index
from builders.storage.files import write_atomic
from builders.wheels.wheel import LARGEST_METADATA, DamagedError, WheelReader
from matrix.command_line.arguments import request_arguments
from matrix.command_line.options import add_index, add_lock, add_names, add_target_options, output_path
from matrix.input.locking import names_target
from matrix.report.page import ReportPage, TableData, render_page, subtitle_of, wheels_of
from matrix.show.consequences_text import HEADINGS, summary
from matrix.show.included_json import CheckDocument, DiffDocument
from matrix.show.json_document import ConflictDocument, conflict_document
from matrix.show.render import counted, duration
from matrix.show.resolution_text import last_conflict
from resolver.answers.graph import PIP, build_graph, edges_of_graph, generations, pick_in
from resolver.answers.table import ROW_COMPONENTS, Table
from resolver.errors import ProvenanceError, UsageError
from resolver.lock import decode
from resolver.model import Conflict

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from builders.building.provenance import Statement
    from builders.building.records import TaskState
    from matrix.command_line.context import Context
    from matrix.judging.verdict import Judgement
    from resolver.facts.catalog import Catalog
    from resolver.model import Distribution, Request, Resolution


SUMMARY = "write one HTML page with compatible versions, the build graph, builds, wheels and conflicts"
EXAMPLE = "matrix report -o report.html"

_PAUSE = timedelta(minutes=30)
"""Builds that are further apart get separate time axes."""
_HEIGHT = 100.0

_ORIGINS = {"build": "buildable", "published": "published", PIP: "pip"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(
        parser,
        "requirements",
        metavar="REQ",
        help="the columns of the table and the limits of its rows, as for `matrix table` (default: the "
        "request of the lock)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=output_path,
        default=Path("report.html"),
        help="default: %(default)s",
    )
    parser.add_argument(
        "--include",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="JSON output of `matrix diff` or `matrix check`, or of a `matrix resolve` without a "
        "resolution (repeatable)",
    )
    add_lock(parser)
    add_index(parser)
    add_target_options(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    conflicts, changes, checks = _included(args.include)
    catalog, request = _request(context)
    index = Index(args.index)
    has_index = index.simple.is_dir()
    table = Table(catalog, request)
    rows = table.rows_or_conflict()
    data = None
    if isinstance(rows, Conflict):
        conflicts.append(conflict_document(rows, lambda one: request_arguments(one.request)))
    else:
        published = wheels_of(index) if has_index else {}
        data = TableData(table, published, _locked(context, request)).collect(rows)
    last = last_conflict()
    conflicts += [last] if last and last not in conflicts else []
    builds = build_records(index) if has_index or index.state.is_dir() else []
    states = {(build.name, build.version): build.state for build in builds}
    report = ReportPage(
        title=f"Compatible versions at {request.target.site} on {request.target.date}",
        subtitle=subtitle_of(table),
        table=data,
        graph=graph_data(context.lock, states) if context.has_lock else None,
        timeline=timeline(builds),
        wheels=list(wheels(index)) if has_index else [],
        conflicts=conflicts,
        changes=changes,
        checks=checks,
        absent=_absent(has_lock=context.has_lock, has_index=has_index, has_changes=bool(changes)),
    )
    write_atomic(args.output, render_page(report))
    console.info(f"Wrote {args.output}")
    return 0


def _request(context: Context) -> tuple[Catalog, Request]:
    """Return the lock's catalog and request, unless the command line names requirements or a target."""
    args = context.args
    if context.has_lock and not args.requirements and not names_target(args):
        catalog, request = context.catalog_of_lock, context.lock.request
        known = {*catalog.package, *ROW_COMPONENTS}
        requirements = tuple(item for item in request.requirements if item.name in known)
        return catalog, replace(request, requirements=requirements, preinstalled=None)
    if not context.settings.has_requirements:
        context = context.with_settings(requirements=["torch"])
    context = context.with_settings(keep_installed=None)
    return context.catalog_with_image, context.request()


def _locked(context: Context, request: Request) -> dict[str, str]:
    """Return the versions in the lock by name, if it is for the target of the table."""
    lock = context.lock if context.has_lock else None
    if lock is None or _platform_of(lock.request) != _platform_of(request):
        return {}
    return {pick.name: pick.key for pick in lock.picks}


def _platform_of(request: Request) -> tuple[object, ...]:
    target = request.target
    return target.site, target.backend, target.gfx


def _absent(*, has_lock: bool, has_index: bool, has_changes: bool) -> list[tuple[str, str]]:
    absent = []
    if not has_lock:
        absent.append(("The build graph", "matrix resolve"))
    if not has_index:
        absent.append(("Builds and wheels", "matrix build-wheels"))
    if not has_changes:
        commands = "matrix diff --format json >diff.json; matrix report --include diff.json"
        absent.append(("The consequences of a change", commands))
    return absent


def _included(
    paths: Sequence[Path],
) -> tuple[list[ConflictDocument], list[dict[str, Any]], list[Judgement]]:
    """Return the conflicts, the changes and the judgements in files."""
    conflicts: list[ConflictDocument] = []
    changes = []
    checks: list[Judgement] = []
    for path in paths:
        try:
            document = json.loads(path.read_bytes())
            if "consequences" in document:
                changes.append(_change(msgspec.convert(document, DiffDocument)))
            elif "things" in document:
                checks += msgspec.convert(document, CheckDocument).things
            else:
                conflicts.append(msgspec.convert(document, ConflictDocument, dec_hook=decode))
        except OSError as error:
            raise UsageError(f"Cannot read {path}: {error.strerror}.") from None
        except (ValueError, TypeError, RecursionError):
            what = "`matrix diff`, `matrix check`, or `matrix resolve` with a conflict"
            msg = f"{path} is not JSON output of {what}."
            raise UsageError(
                msg, hint="Write the file with one of these commands and `--format json`."
            ) from None
    return conflicts, changes, checks


def _change(diff: DiffDocument) -> dict[str, Any]:
    sides = diff.before.target, diff.after.target
    pairs = [
        ("date", *(side.date for side in sides)),
        ("kernel driver", *(side.driver or "the site's" for side in sides)),
        ("base image", *(side.base_image or "any" for side in sides)),
        ("facts", *(" + ".join(["shipped", *side.catalogs]) for side in (diff.before, diff.after))),
    ]
    changed = [f"{what} {before} → {after}" for what, before, after in pairs if before != after]
    return {
        "title": "; ".join([sides[1].site, *changed]),
        "summary": summary(diff.consequences),
        "effects": [
            (effect, heading, changes)
            for effect, heading in HEADINGS.items()
            if (changes := [change for change in diff.consequences if change.effect == effect])
        ],
    }


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
