"""``matrix table``: every combination of versions that works at a site on a day."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from builders.storage.files import atomic_path
from matrix.command_line.conflict import show_conflict
from matrix.command_line.options import add_names, add_output, add_target_options
from matrix.report.page import render_page, table_report
from matrix.show.json_document import brief_document
from matrix.show.render import PLAIN
from matrix.show.table_formats import answer_of, newest_rows, to_csv, to_json, to_summary, to_text
from resolver.answers.table import Table, TableRow
from resolver.compiling.names import wheels_for_rocm
from resolver.model import Conflict
from resolver.versions import join_words

if TYPE_CHECKING:
    import argparse

    from matrix.command_line.context import Context
    from matrix.show.console import Console

SUMMARY = "show which package versions work at a site, for each base image, torch and Python"
EXAMPLE = "matrix table apex deepspeed flash-attn 'torch>=2.7' --site lumi-g --python 3.12"
FORMATS = ("table", "csv", "json", "brief", "html")


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
    add_output(parser)
    parser.add_argument(
        "--all",
        action="store_true",
        help="as text and JSON, every torch and Python (default: the newest torch of each ROCm)",
    )
    add_target_options(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    if context.settings.keep_installed:
        console.warning("A table ignores --keep-installed: each cell is resolved for an empty environment.")
        context = context.with_settings(keep_installed=None)
    table = table_of(context)
    rows = table.rows_or_conflict()
    if isinstance(rows, Conflict):
        show_conflict(rows, context)
        return 1
    pieces = _pieces(table, rows, args, console)
    if args.output is None:
        for piece in pieces:
            console.write(piece)
    elif args.output.exists() and not args.output.is_file():  # a device or a pipe
        with args.output.open("w", encoding="utf-8", newline="") as file:
            file.writelines(pieces)
    else:
        with (
            atomic_path(args.output) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as file,
        ):
            file.writelines(pieces)
        console.info(f"Wrote {args.output}")
    if args.format == "table" and args.all:
        console.info("\nA dash followed by a name: no version works, because of facts about that component.")
    elif args.format == "table":
        console.info("\nThis is the newest torch of each ROCm. Everything: `matrix table --all`")
    names = table.columns.keys()
    for name in sorted(names) if args.format == "table" and table.request.target.backend == "rocm" else ():
        row = wheels_for_rocm(context.catalog, name)
        if row and not names & {*row.by}:
            others = join_words(row.by, joiner="and")
            console.info(f"{name} is compiled. If its wheels fit, `matrix resolve` takes them: {others}.")
    return 0


def table_of(context: Context) -> Table:
    """Return the table that the settings describe; without requirements it has a column for each package."""
    if not context.settings.has_requirements:
        context = context.with_settings(requirements=["torch"])
    return Table(context.catalog_with_image, context.request())


def _pieces(
    table: Table, rows: Iterable[TableRow], args: argparse.Namespace, console: Console
) -> Iterator[str]:
    if args.format == "csv":
        return to_csv(table, rows)
    if args.format == "json":
        rows = rows if args.all else newest_rows(rows).values()
        return to_json(table, rows, warnings=console.warnings)
    if args.format == "html":
        return iter([render_page(table_report(table, rows))])
    rows = list(rows)
    if args.format == "brief":
        text = "".join([f"{answer_of(table, rows)}\n", *to_summary(table, rows, PLAIN)])
        return iter([json.dumps(msgspec.to_builtins(brief_document("ok", text))), "\n"])
    screen = console.out if args.output is None else PLAIN
    answer = screen.styled("bold", screen.wrapped(answer_of(table, rows)))
    write = to_text if args.all else to_summary
    return chain([f"{answer}\n"], write(table, rows, screen))
