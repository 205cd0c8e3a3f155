"""``matrix table``: what fits together at a site on a day, whole."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from builders.files import atomic_path
from matrix.options import add_names, add_target_options
from matrix.resolution_text import show_conflict
from resolver.errors import UsageError
from resolver.model import Conflict
from resolver.resolve import resolve
from resolver.table import Table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from matrix.console import Console
    from matrix.context import Context
    from resolver.table.cells import Row

SUMMARY = "show every combination that works at a site: images, torch and Python by package"
EXAMPLE = "matrix table apex deepspeed flash-attn 'torch>=2.7' --site lumi-g --python 3.12"
FORMATS = ("table", "csv", "json", "html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(
        parser,
        "requirements",
        metavar="REQ",
        help="the columns, such as apex or 'flash-attn>=2.8' (default: matrix.toml, else every package that "
        "is available for the backend); torch>=2.6, python==3.12 and rocm==6.4.* limit the rows",
    )
    parser.add_argument("--format", choices=FORMATS, default="table", help="default: %(default)s")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="where to write (default: stdout)")
    parser.add_argument("--all-rows", action="store_true", help="also every torch that runs nowhere, and why")
    parser.add_argument(
        "--together", action="store_true", help="one more column: all others resolved together"
    )
    parser.add_argument(
        "--reasons",
        action="store_true",
        help="all facts behind every refusal, in JSON and HTML (takes minutes for a large table)",
    )
    add_target_options(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    if args.reasons and args.format not in {"json", "html"}:
        msg = f"--reasons needs --format json or html; in {args.format} there is no room for them."
        raise UsageError(msg, hint="For one cell, ask matrix resolve for its torch, Python and base image.")
    settings = context.settings
    settings.requirements = settings.requirements or ["torch"]
    if settings.keep_installed:
        console.warning(
            "A table keeps nothing that is installed: each cell is answered as for a bare environment."
        )
        settings.keep_installed = None
    catalog = context.catalog_with_image
    table = Table(catalog, context.request(), together=args.together)
    rows = table.rows(refused_too=args.all_rows)
    first = next(rows, None)
    if first is None:
        answer = resolve(catalog, table.of_rows())
        if isinstance(answer, Conflict):
            show_conflict(answer, console, as_json=args.format == "json")
            return 1
    found = rows if first is None else chain([first], rows)
    pieces = _pieces(table, found, args, console)
    if args.output is None or (args.output.exists() and not args.output.is_file()):
        _print(pieces, args.output, console)
    else:
        with (
            atomic_path(args.output) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as file,
        ):
            file.writelines(pieces)
        console.info(f"Wrote {args.output}")
    if args.format == "table":
        console.info("\n- and a name: no version fits, because of what is known of that component.")
    return 0


def _pieces(table: Table, rows: Iterable[Row], args: argparse.Namespace, console: Console) -> Iterator[str]:
    """Give the table as the format wants it; each format is imported only when it is asked for."""
    if args.format == "table":
        from matrix.tabling.text import text_of

        if args.output is not None:
            return text_of(table, rows, None, lambda _, text: text)
        return text_of(table, rows, console.width(), console.coloured)
    if args.format == "html":
        from matrix.tabling.page import page_of

        return page_of(table, rows, table.core if args.reasons else None)
    from matrix.tabling import data

    if args.format == "csv":
        return data.csv_of(table, rows)
    return data.json_of(table, rows, table.core if args.reasons else None)


def _print(pieces: Iterable[str], device: Path | None, console: Console) -> None:
    """Write piece by piece to stdout, or to a device or pipe that was named."""
    if device is None:
        for piece in pieces:
            console.write(piece)
        return
    with device.open("w", encoding="utf-8", newline="") as file:
        file.writelines(pieces)
