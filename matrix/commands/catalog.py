"""``matrix catalog``: the facts, whether a file of them is sound, and what is new."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from matrix.console import table
from matrix.options import add_action, add_catalog, add_format, add_names
from matrix.refresh import update as catalog_update
from matrix.settings import load_catalog, overlays
from resolver.errors import CatalogError, UsageError, did_you_mean
from resolver.facts.catalog_files import row_to_dict
from resolver.facts.loading import load, overlay_files
from resolver.facts.schema import KINDS

if TYPE_CHECKING:
    import argparse

    from matrix.console import Console
    from matrix.context import Context
    from resolver.facts.schema import Row, Status

SUMMARY = "list the facts, check files of facts, or look for new facts"
EXAMPLE = "matrix catalog check my-facts/"
EXAMPLES = {
    "list": "matrix catalog list torch",
    "check": EXAMPLE,
    "update": "matrix catalog update --format json",
}
_WIDTH = 90  # characters of what a row says on its line
STATUSES: tuple[Status, ...] = ("documented", "observed", "inferred")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    summary = "count the rows of each kind, or show the rows of one kind"
    listing = add_action(actions, "list", summary, EXAMPLES["list"])
    listing.add_argument("kind", nargs="?", metavar="KIND", help="such as rocm, torch, release")
    check = add_action(actions, "check", "check whether files of facts are valid", EXAMPLES["check"])
    add_names(check, "files", metavar="FILE", help="files or directories to lay over")
    summary = "show what public sources have that the catalog does not"
    update = add_action(actions, "update", summary, EXAMPLES["update"])
    catalog_update.add_arguments(update)
    for one in (listing, check, update):
        add_catalog(one)
        add_format(one)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    settings = context.settings
    if args.action == "check":
        settings.catalog = [*settings.catalog, *map(str, args.files)]
        return _check(args, overlays(settings), console)
    if args.action == "update":
        return catalog_update.execute(args, settings, console)
    catalog = load_catalog(settings)
    kinds = {name.replace("_", "-"): catalog.of_kind(name) for name in KINDS}
    if args.kind is None:
        _count(kinds, args, console)
        return 0
    if args.kind not in kinds:
        msg = f"The catalog has no rows of kind {args.kind!r}."
        raise UsageError(msg, hint=did_you_mean(args.kind, kinds))
    rows = [_row(row) for row in kinds[args.kind]]
    if args.format == "json":
        console.document({"schema": 1, "kind": args.kind, "rows": rows})
    else:
        console.data(table([[row["name"], row["status"], _says(row)] for row in rows], indent=""))
        console.info("\nAll keys, sources and notes: --format json")
    return 0


def _check(args: argparse.Namespace, paths: list[Path], console: Console) -> int:
    """Read everything afresh; what cannot be read is the answer, not a failure of the command."""
    try:
        catalog = load(paths)
    except CatalogError as error:
        if args.format == "json":
            finding = {"message": error.message, "hint": error.hint}
            console.document({"schema": 1, "status": "damaged", "findings": [finding]})
        else:
            console.error(error.message, error.hint)
        return 1
    own = {file for path in paths for file in overlay_files(path)}
    rows = sum(row.from_file in own for row in catalog.rows())
    if args.format == "json":
        console.document({"schema": 1, "status": "sound", "files": sorted(own), "rows": rows})
    else:
        what = (
            f"{rows} rows of {len(own)} files laid over" if own else f"{sum(1 for _ in catalog.rows())} rows"
        )
        console.data(f"Sound: {what}.")
    return 0


def _count(kinds: dict[str, list[Row]], args: argparse.Namespace, console: Console) -> None:
    counts = {kind: Counter(row.status for row in rows) for kind, rows in kinds.items()}
    if args.format == "json":
        document = {
            kind: {"rows": found.total()} | {status: found[status] for status in STATUSES}
            for kind, found in counts.items()
        }
        console.document({"schema": 1, "kinds": document})
        return
    lines = [["kind", "rows", *STATUSES]]
    for kind, found in counts.items():
        lines.append([kind, str(found.total()), *(str(found[status]) for status in STATUSES)])
    console.data(table(lines, indent=""))


def _row(row: Row) -> dict[str, Any]:
    """Give what identifies a row, all that it says, and how far to trust it."""
    said = row_to_dict(row)
    name = _spell(said.get("combination")) or " ".join(
        _spell(said[key]) for key in _keys(row) if key in said and key != "kind"
    )
    return {
        "name": name,
        "status": row.status,
        "source": row.source,
        "note": row.note,
        "file": row.file,
        "line": row.from_line,
        "row": msgspec.to_builtins(said),
    }


def _keys(row: Row) -> list[str]:
    """Give the keys that identify a row, as they are written."""
    written = dict(zip(row.__struct_fields__, row.__struct_encode_fields__, strict=True))
    return [written[name] for name in row.identity]


def _says(row: dict[str, Any]) -> str:
    """Say on one line what a row says besides its name."""
    in_name = row["name"].split()
    parts = [
        f"{key}: {_spell(value)}"
        for key, value in row["row"].items()
        if key not in {"status", "source", "note", "combination"} and _spell(value) not in in_name
    ]
    return textwrap.shorten("; ".join(parts), _WIDTH, placeholder=" ...")


def _spell(value: object) -> str:
    """Write a value for people."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}".strip() for name, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
