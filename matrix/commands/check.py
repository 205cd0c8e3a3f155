"""``matrix check``: what pip will refuse, silently drop or get wrong in a file, before cotainr hides it."""

from __future__ import annotations

import argparse
from codecs import BOM_UTF8
from pathlib import Path
from typing import TYPE_CHECKING

from builders.constants import INDEX_DIRECTORY
from builders.files import write_atomic
from matrix.checking.check import check, difference, fixed
from matrix.checking.expected import CONSUMERS, expect_lock, expect_request
from matrix.checking.preflight import preflight
from matrix.checking.reading import read_document, read_file
from matrix.checking.words import as_json, as_text, preflight_json, preflight_text, summary
from matrix.options import add_format, add_site_options
from resolver.errors import UsageError
from resolver.versions import shorten

if TYPE_CHECKING:
    from matrix.checking.expected import Consumer, Expected
    from matrix.checking.findings import Finding
    from matrix.checking.preflight import Preflight
    from matrix.console import Console
    from matrix.context import Context

SUMMARY = "check an environment file for what pip or conda will reject, ignore or get wrong"
EXAMPLE = "matrix check env.yml --site lumi-g --fix"
_SECONDS = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="a conda environment file (.yml), or a pip requirements file"
    )
    parser.add_argument(
        "--fix", action="store_true", help="write what has one certain correction into the file; show a diff"
    )
    parser.add_argument(
        "--for",
        dest="consumer",
        choices=CONSUMERS,
        help="who reads it (default: cotainr for an environment file, pip for requirements)",
    )
    parser.add_argument("--lock", metavar="FILE", type=Path, help="the lock whose versions it should have")
    parser.add_argument(
        "--no-preflight", dest="preflight", action="store_false", help="do not ask pip for its answer"
    )
    parser.add_argument(
        "--index",
        metavar="DIR",
        type=Path,
        default=INDEX_DIRECTORY,
        help="what file:///mnt/simple stands for when pip is asked (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=_seconds, default=_SECONDS, help="how long pip may take (120)"
    )
    add_format(parser)
    add_site_options(parser)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if 0 < seconds < float("inf"):
        return seconds
    msg = f"{shorten(text)!r} is no number of seconds"
    raise argparse.ArgumentTypeError(msg)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    text = read_file(args.file, pipes=not args.fix)
    document = read_document(text, str(args.file))
    consumer: Consumer = args.consumer or ("cotainr" if document.kind == "conda" else "pip")
    expected = _expected(context, consumer)
    changed = ""
    if args.fix:
        new = fixed(text, document.name, expected)
        changed = difference(text, new, document.name)
        if new != text:
            _write(args.file, new)
            document = read_document(new, document.name)
    findings = check(document, expected)
    said = preflight(document, expected, index=args.index, seconds=args.timeout) if args.preflight else None
    wrong = any(one.severity == "error" for one in findings) or (
        said is not None and said.outcome == "refused"
    )
    if args.format == "json":
        console.document(
            {
                "schema": 1,
                "status": "errors" if wrong else "ok",
                "file": document.name,
                "kind": document.kind,
                "for": consumer,
                "against": expected.against,
                "findings": [as_json(one) for one in findings],
                "preflight": preflight_json(said),
                "diff": changed,
            }
        )
    else:
        _show(document.name, findings, said, changed, console)
        refused = said is not None and said.outcome == "refused"
        console.info(summary(findings, expected.against, refused=refused))
    return 1 if wrong else 0


def _expected(context: Context, consumer: Consumer) -> Expected:
    args = context.args
    if args.lock is None:
        return expect_request(context.request(), context.catalog, consumer)
    named = [one for one in ("site", "date", "backend", "driver", "base_image", "gfx") if getattr(args, one)]
    if named:
        msg = f"--lock says what the file is for, and so does --{named[0].replace('_', '-')}."
        raise UsageError(msg, hint="Leave out one of the two.")
    return expect_lock(context.lock, str(args.lock), context.catalog_of_lock(), consumer)


def _write(path: Path, text: str) -> None:
    """Put the new text in the place of the old; permissions and a byte order mark stay."""
    mode = path.stat().st_mode & 0o7777
    with path.open("rb") as source:
        mark = source.read(len(BOM_UTF8)) == BOM_UTF8
    write_atomic(path, (BOM_UTF8 if mark else b"") + text.encode())
    path.chmod(mode)


def _show(name: str, findings: list[Finding], said: Preflight | None, changed: str, console: Console) -> None:
    shown = [one for one in findings if console.verbosity >= 0 or one.severity == "error"]
    parts = [changed] if changed else []
    parts += [as_text(one, name) for one in shown]
    if said is not None and said.output:
        parts.append("What pip says:\n" + "\n".join(f"    {line}" for line in said.output.splitlines()))
    if parts:
        console.data("\n\n".join(parts))
    if said is not None and said.outcome != "passed":
        console.warning(preflight_text(said))
    elif said is not None:
        console.info(preflight_text(said))
