"""``matrix catalog site``: write a site file for this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builders.learning.machine import learn_machine, site_name
from matrix.command_line.options import add_catalog, add_format, add_output, names, nonempty
from matrix.input.facts_file import Draft
from matrix.input.request import driver_line
from matrix.input.settings import overlays
from matrix.show.json_document import JsonDocument
from resolver.errors import UsageError, did_you_mean
from resolver.model import Target

if TYPE_CHECKING:
    import argparse

    from matrix.command_line.context import Context
    from resolver.facts.schema import Backend

SUMMARY = "write a site file for this machine"
EXAMPLE = "matrix catalog site -o cirrus.toml"
_HEADER = "# Facts about {name}, read on this machine. Correct and complete them, and check the file:\n"
_HEADER += "# matrix catalog check {path}\n"
_MISSING = "#\n# Missing or not measured:\n"


class SiteDocument(JsonDocument, kw_only=True):
    """The site file of a machine."""

    status: Literal["ok"] = "ok"
    site: str
    written: str
    rows: int
    remarks: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--name", metavar="NAME", help="name of the site (default: the Slurm cluster's name)")
    text = "directory with base images of the site (repeatable)"
    parser.add_argument("--images", metavar="DIR", type=Path, action="append", default=[], help=text)
    add_output(parser, "the file to write (default: NAME.toml)")
    group = parser.add_argument_group("facts that cannot be measured on this machine, such as a login node")
    group.add_argument("--backend", choices=("rocm", "cpu"), help="cpu for a site without AMD GPUs")
    group.add_argument(
        "--gfx", metavar="A,B", type=names, action="extend", help="GPU architectures (default: measured)"
    )
    group.add_argument(
        "--driver", metavar="VERSION", type=nonempty, help="AMD kernel driver (default: measured)"
    )
    add_catalog(parser)
    add_format(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    name = args.name or site_name()
    path = args.output or Path(f"{name}.toml")
    if path.exists():
        msg = f"{path} already exists."
        raise UsageError(msg, hint="Remove it, or name another file with -o FILE.")
    if args.backend == "cpu" and (args.gfx or args.driver):
        msg = "A site for CPUs has no GPU architecture and no kernel driver."
        raise UsageError(msg, hint="Remove --gfx and --driver, or --backend cpu.")
    layers = overlays(context.settings)
    catalog = Draft(path, layers).load()
    driver = driver_line(args.driver, catalog) or ""
    if driver and driver not in catalog.driver:
        msg = f"The catalog has no kernel driver {driver!r}."
        raise UsageError(msg, hint=did_you_mean(driver, catalog.driver))
    # Whether a site has GPUs cannot be seen on a login node. Without a GPU architecture, every request asks
    # for one; a site for CPUs would give wrong answers.
    backend: Backend = args.backend or "rocm"
    gfx = tuple(args.gfx or ())
    stated = Target(site=name, date=context.today, backend=backend, gfx=gfx, driver=driver or None)
    learned = learn_machine(stated, catalog, args.images)
    header = _HEADER.format(name=name, path=path)
    if learned.remarks:
        header += _MISSING + "".join(f"# - {' '.join(text.split())}\n" for text in learned.remarks)
    draft = Draft(path, layers, header=header)
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
