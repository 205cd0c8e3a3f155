"""``matrix site``: write a site file for this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builders.learning.machine import learn_machine, site_name
from matrix.json_document import JsonDocument
from matrix.options import add_action, add_catalog, add_format, output_path
from matrix.refresh.update import Draft
from matrix.settings import overlays
from resolver.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from matrix.context import Context

SUMMARY = "write a site file for this machine"
EXAMPLE = "matrix site init -o cirrus.toml"
_HEADER = "# Facts about {name}, read on this machine. Correct and complete them, and check the file:\n"
_HEADER += "# matrix catalog check {path}\n"


class SiteDocument(JsonDocument, kw_only=True):
    """The site file of a machine."""

    status: Literal["ok"] = "ok"
    site: str
    written: str
    """Path of the file."""
    rows: int
    remarks: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    init = add_action(actions, "init", SUMMARY, EXAMPLE)
    init.add_argument("--name", metavar="NAME", help="name of the site (default: the Slurm cluster's name)")
    text = "directory with base images of the site (repeatable)"
    init.add_argument("--images", metavar="DIR", type=Path, action="append", default=[], help=text)
    init.add_argument(
        "-o", "--output", metavar="FILE", type=output_path, help="the file to write (default: NAME.toml)"
    )
    add_catalog(init)
    add_format(init)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    name = args.name or site_name()
    path = args.output or Path(f"{name}.toml")
    if path.exists():
        msg = f"{path} already exists."
        raise UsageError(msg, hint="Remove it, or name another file with -o FILE.")
    draft = Draft(path, overlays(context.settings), header=_HEADER.format(name=name, path=path))
    learned = learn_machine(name, draft.load(), context.today, args.images)
    draft.append(learned.rows)
    draft.write()
    for remark in learned.remarks:
        console.warning(remark)
    if args.format == "json":
        rows, remarks = len(learned.rows), learned.remarks
        console.document(SiteDocument(site=name, written=str(path), rows=rows, remarks=remarks))
        return 0
    console.info(f"Wrote {path}. Rows: {len(learned.rows)}. Use it: --site {path}")
    return 0
