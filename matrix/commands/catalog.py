"""``matrix catalog``: list the facts, check files of facts, learn and find new facts."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from builders.findings import Finding
from builders.learning import new_rows
from matrix.command_line.options import (
    add_action,
    add_catalog,
    add_command,
    add_format,
    add_names,
    add_output,
)
from matrix.input.facts_file import Draft
from matrix.input.settings import load_catalog, overlays
from matrix.maintaining import drafting, learning, site_file
from matrix.maintaining import update as updating
from matrix.show.json_document import JsonDocument
from matrix.show.render import counted
from resolver.errors import CatalogError, EnvironmentLacksError, UsageError, did_you_mean
from resolver.facts.catalog import load, overlay_files
from resolver.facts.catalog_files import row_to_dict
from resolver.facts.incomplete import incomplete_rows
from resolver.facts.schema import KINDS, Status, displayed

if TYPE_CHECKING:
    import argparse

    from matrix.command_line.context import Context
    from matrix.input.settings import Settings
    from matrix.show.console import Console
    from resolver.facts.schema import Row

SUMMARY = "list, check, learn and update the facts; draft a recipe; write a site file"
EXAMPLE = "matrix catalog check my-facts/"
EXAMPLES = {
    "list": "matrix catalog list torch",
    "check": EXAMPLE,
    "learn": "matrix catalog learn bitsandbytes==0.50.2 wheels/*.whl image.sif",
    "update": "matrix catalog update --format json",
}
STATUSES: tuple[Status, ...] = ("documented", "observed", "inferred")
_WIDTH = 90  # characters of a row in a list


class CountsDocument(JsonDocument, kw_only=True):
    """The number of facts of each kind, by status."""

    status: Literal["ok"] = "ok"
    kinds: dict[str, dict[str, int]]


class FactDocument(msgspec.Struct, kw_only=True):
    """A fact."""

    name: str
    status: Status
    source: str
    note: str
    file: str
    line: int
    row: dict[str, Any]
    """All keys of the row."""


class RowsDocument(JsonDocument, kw_only=True):
    """The facts of one kind."""

    status: Literal["ok"] = "ok"
    kind: str
    rows: list[FactDocument]


class CatalogCheckDocument(JsonDocument, kw_only=True):
    """Whether files of facts are valid."""

    status: Literal["ok", "errors"]
    files: list[str] | UnsetType = UNSET
    rows: int | UnsetType = UNSET
    findings: list[Finding]


class NewRowsDocument(JsonDocument, kw_only=True):
    """New rows for a file of facts: those that were learned from files, or that public sources have."""

    status: Literal["ok"] = "ok"
    rows: int
    diff: str = ""
    written: str = ""
    """Path of the file, empty without ``--apply``."""
    remarks: list[str]
    known: int | UnsetType = UNSET
    """Learned rows that the catalog has."""
    size: int | UnsetType = UNSET
    """Size of the files in bytes."""
    read: int | UnsetType = UNSET
    """Number of these bytes that were read."""
    unreachable: list[str] | UnsetType = UNSET
    """Public sources that could not be read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    summary = "count the rows of each kind, or show the rows of one kind"
    listing = add_action(actions, "list", summary, EXAMPLES["list"])
    listing.add_argument("kind", nargs="?", metavar="KIND", help="such as rocm, torch, release")
    check = add_action(actions, "check", "check whether files of facts are valid", EXAMPLES["check"])
    add_names(check, "files", metavar="FILE", help="files or directories of facts to check")
    summary = "read wheels, sources and base images, and show the facts in them"
    learn = add_action(actions, "learn", summary, EXAMPLES["learn"])
    text = (
        "a wheel, an sdist, a source tree, a git URL, a base image, a directory with wheels, the URL of a "
        "wheel, or NAME[==VERSION] on an index"
    )
    add_names(learn, "files", metavar="FILE", help=text)
    summary = "show facts that public sources have and the catalog lacks"
    update = add_action(actions, "update", summary, EXAMPLES["update"])
    update.add_argument(
        "--source",
        action="append",
        choices=updating.SOURCES,
        help="pypi: releases and hashes; torch: PyTorch's wheel indexes; rocm: AMD's tables of ROCm, "
        "drivers and GPUs; amd, vllm: their wheel indexes; github: flash-attention wheels; git: tags; "
        "sites: their documents (repeatable; default: all)",
    )
    text = "only this package, on PyPI or with --source git (repeatable)"
    update.add_argument("--package", action="append", metavar="NAME", help=text)
    for action, default in ((learn, learning.OUTPUT), (update, updating.OUTPUT)):
        add_output(
            action, "file of facts to which new rows are appended (default: %(default)s)", default=default
        )
        text = "write the file; without it, only show the diff"
        action.add_argument("--apply", action="store_true", help=text)
    for action in (listing, check, learn, update):
        add_catalog(action)
        add_format(action)
    add_command(actions, "draft", drafting)
    add_command(actions, "site", site_file)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    settings = context.settings
    if args.action == "check":
        files = [*settings.catalog, *map(str, args.files)]
        return _check(args, overlays(msgspec.structs.replace(settings, catalog=files)), console)
    if args.action == "learn":
        return _learn(context)
    if args.action == "update":
        return _update(context)
    return _list(args, settings, console)


def _list(args: argparse.Namespace, settings: Settings, console: Console) -> int:
    catalog = load_catalog(settings)
    kinds = {name.replace("_", "-"): catalog.of_kind(name) for name in KINDS}
    if args.kind is None:
        _count(kinds, args, console)
        return 0
    if args.kind not in kinds:
        raise UsageError(f"Unknown kind of row {args.kind!r}.", hint=did_you_mean(args.kind, kinds))
    rows = [_row_document(row) for row in kinds[args.kind]]
    if args.format == "json":
        console.document(RowsDocument(kind=args.kind, rows=rows))
    else:
        lines = [[row.name, row.status, _summary(row)] for row in rows]
        console.data(console.out.table(lines, indent=""))
        console.info("\nAll keys, sources and notes: --format json")
    return 0


def _count(kinds: dict[str, list[Row]], args: argparse.Namespace, console: Console) -> None:
    counts = {kind: Counter(row.status for row in rows) for kind, rows in kinds.items()}
    if args.format == "json":
        numbers = {
            kind: {"rows": count.total()} | {status: count[status] for status in STATUSES}
            for kind, count in counts.items()
        }
        console.document(CountsDocument(kinds=numbers))
        return
    lines = []
    for kind, count in counts.items():
        lines.append([kind, str(count.total()), *(str(count[status]) for status in STATUSES)])
    console.data(console.out.table(lines, ["kind", "rows", *STATUSES], indent=""))


def _row_document(row: Row) -> FactDocument:
    values = row_to_dict(row)
    encoded = dict(zip(row.__struct_fields__, row.__struct_encode_fields__, strict=True))
    keys = [encoded[name] for name in row.identity if name != "kind"]
    return FactDocument(
        name=" ".join(_text(values[key]) for key in keys if key in values),
        status=row.status,
        source=row.source,
        note=row.note,
        file=row.file,
        line=row.from_line,
        row=msgspec.to_builtins(values),
    )


def _summary(row: FactDocument) -> str:
    """Return the values of a row that are not in its name, on one line."""
    in_name = row.name.split()
    parts = [
        f"{key}: {_text(value)}"
        for key, value in row.row.items()
        if key not in {"status", "source", "note", "combination"} and _text(value) not in in_name
    ]
    return textwrap.shorten("; ".join(parts), _WIDTH, placeholder=" ...")


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}".strip() for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _check(args: argparse.Namespace, paths: list[Path], console: Console) -> int:
    """Load the catalog without its compiled form; an invalid file is a result, not an error."""
    try:
        catalog = load(paths)
        files = [file for path in paths for file in overlay_files(path)]
    except CatalogError as error:
        files, rows = [], 0
        findings = [Finding(error.id, "error", error.message, error.hint)]
    else:
        rows = sum(row.from_file in files for row in catalog.rows())
        findings = [
            Finding("incomplete-row", "error", f"{row.location}: {text}.", hint)
            for row, text, hint in (() if files else incomplete_rows(catalog))
        ]
    if args.format == "json":
        document = CatalogCheckDocument(status="errors" if findings else "ok", findings=findings)
        if not findings:
            document.files, document.rows = sorted(map(displayed, {*files})), rows
        console.document(document)
    elif findings:
        for finding in findings:
            console.error(finding.message, finding.fix)
    elif files:
        console.data(f"Valid. Rows: {rows}, files: {len({*files})}.")
    else:
        console.data(f"Valid. Rows of the shipped catalog: {sum(1 for _ in catalog.rows())}.")
    return int(bool(findings))


def _learn(context: Context) -> int:
    args, console = context.args, context.console
    draft = Draft(args.output, overlays(context.settings))
    catalog = draft.load()
    learned = learning.learn(args.files, catalog, context)
    rows, remarks = new_rows(learned.rows, catalog)
    draft.replace(rows, catalog)
    document = NewRowsDocument(
        rows=len(rows),
        known=len(learned.rows) - len(rows),
        remarks=[*learned.remarks, *remarks],
        size=learned.size,
        read=learned.read,
    )
    _finish(draft, document, document.remarks, context)
    if args.format == "text":
        console.info(f"Read {learned.read / 1e6:,.1f} of {learned.size / 1e6:,.1f} MB.")
        if not rows:
            console.info("The catalog already has all of these facts.")
    return 0


def _finish(draft: Draft, document: NewRowsDocument, remarks: list[str], context: Context) -> None:
    """Write new rows with ``--apply``, and print them."""
    args, console = context.args, context.console
    document.diff = draft.diff()
    document.written = str(args.output) if args.apply and draft.write() else ""
    for remark in remarks:
        console.warning(remark)
    if args.format == "json":
        console.document(document)
        return
    if document.diff:
        console.data(document.diff)
    if document.written:
        console.info(f"\nWrote {args.output}. Rows: {document.rows}. Use them: --catalog {args.output}")
    elif document.rows:
        new = counted(document.rows, "new row")
        console.info(f"\n{new}. Nothing was written; --apply writes {args.output}.")


def _update(context: Context) -> int:
    args, settings, console = context.args, context.settings, context.console
    draft = Draft(args.output, overlays(settings))
    catalog = draft.load()
    sources = args.source or (["pypi"] if args.package else updating.SOURCES)
    update = updating.fetch_update(catalog, sources, args.package or list(catalog.package), context)
    updating.leave_own_rows(update, args.output)
    draft.append(update.rows)
    unreachable = [f"{page}: {reason}" for page, reason in update.unreachable]
    document = NewRowsDocument(rows=len(update.rows), remarks=update.remarks, unreachable=unreachable)
    skipped = [f"Skipped: {missed}." for missed in updating.by_reason(update.unreachable)]
    _finish(draft, document, [*update.remarks, *skipped], context)
    if args.format == "text" and not update.rows:
        reached = "The sources that were read have no new facts."
        console.info(reached if unreachable else "The catalog is up to date.")
    return EnvironmentLacksError.exit_code if unreachable else 0
