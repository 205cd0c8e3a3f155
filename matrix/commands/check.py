"""``matrix check``: report lines of a file that pip or conda rejects, ignores or gets wrong."""

from __future__ import annotations

import argparse
import shlex
from codecs import BOM_UTF8
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from builders.constants import INDEX_DIRECTORY, LOCK_FILE, MOUNTED_INDEX
from builders.findings import Finding
from builders.storage.files import write_atomic
from matrix.checking.check import check, difference, fixed, read_document, summary
from matrix.checking.document import Kind, read_file
from matrix.checking.preflight import SKIPPED, Preflight, preflight
from matrix.checking.target import CONSUMERS, Consumer, expect_lock, expect_request
from matrix.command_line.options import add_format, add_site_options
from matrix.show.json_document import JsonDocument
from matrix.show.render import findings_text
from resolver.errors import UsageError
from resolver.versions import shorten

if TYPE_CHECKING:
    from matrix.checking.target import ExpectedTarget
    from matrix.command_line.context import Context
    from matrix.show.console import Console

SUMMARY = "check an environment file for lines that pip or conda will reject, ignore or get wrong"
EXAMPLE = "matrix check env.yml --site lumi-g --fix"
_SECONDS = 120.0
_FOR_CUDA = {"cuda-torch", "cuda-package", "conda-torch"}
_TARGET_OPTIONS = ("site", "date", "backend", "driver", "base_image", "gfx")


class CheckDocument(JsonDocument, kw_only=True):
    """The findings in a file, and the result of the preflight."""

    status: Literal["ok", "errors"]
    file: str
    kind: Kind
    consumer: Consumer = msgspec.field(name="for")
    against: str
    findings: list[Finding]
    preflight: Preflight
    diff: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="a conda environment file (.yml) or a pip requirements file"
    )
    parser.add_argument(
        "--fix", action="store_true", help="apply all corrections that are certain, and show a diff"
    )
    parser.add_argument(
        "--for",
        dest="consumer",
        choices=CONSUMERS,
        help="the tool that reads FILE (default: cotainr for an environment file, pip for requirements)",
    )
    parser.add_argument(
        "--lock",
        metavar="FILE",
        type=Path,
        help=f"check against this lock (default: {LOCK_FILE} beside FILE, unless an option names a target)",
    )
    parser.add_argument(
        "--no-preflight", dest="preflight", action="store_false", help="do not run pip to resolve the file"
    )
    parser.add_argument(
        "--index",
        metavar="DIR",
        type=Path,
        default=INDEX_DIRECTORY,
        help=f"the index that the file names as {MOUNTED_INDEX} (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=_SECONDS,
        help="time limit for pip (default: 120)",
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
    msg = f"{shorten(text)!r} is not a number of seconds"
    raise argparse.ArgumentTypeError(msg)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    text = read_file(args.file, pipes=not args.fix)
    document = read_document(text, str(args.file))
    consumer: Consumer = args.consumer or ("cotainr" if document.kind == "conda" else "pip")
    expected = _expected(context, consumer)
    diff = ""
    if args.fix:
        new = fixed(text, document.name, expected)
        diff = difference(text, new, document.name)
        if new != text:
            _write(args.file, new)
            document = read_document(new, document.name)
    findings = check(document, expected)
    answer = preflight(document, expected, seconds=args.timeout) if args.preflight else SKIPPED
    rejected = answer.outcome == "refused"
    failed = rejected or any(finding.severity == "error" for finding in findings)
    if args.format == "json":
        _report_preflight(answer, console)
        console.document(
            CheckDocument(
                status="errors" if failed else "ok",
                file=document.name,
                kind=document.kind,
                consumer=consumer,
                against=expected.against,
                findings=findings,
                preflight=answer,
                diff=diff,
            )
        )
    else:
        console.answer(summary(findings, expected.against, rejected=rejected))
        _show(findings, answer, diff, console)
        if any(finding.id in _FOR_CUDA for finding in findings):
            file = shlex.quote(document.name)
            console.info(f"For an environment that fits: `matrix inspect {file} --repair -o DIR`")
    return 1 if failed else 0


def _expected(context: Context, consumer: Consumer) -> ExpectedTarget:
    args = context.args
    target_options = [name for name in _TARGET_OPTIONS if getattr(args, name)]
    if args.lock and target_options:
        msg = f"--lock and --{target_options[0].replace('_', '-')} both define the target of the file."
        raise UsageError(msg, hint="Use one of the two options.")
    sibling = args.file.parent / LOCK_FILE
    if args.lock is None and not target_options and sibling.is_file():
        args.lock = sibling
    if args.lock is None:
        return expect_request(context.request(), context.catalog_with_image, consumer, args.index)
    return expect_lock(context.lock, str(args.lock), context.catalog_of_lock, consumer, args.index)


def _write(path: Path, text: str) -> None:
    """Replace the text of a file; keep its permissions and its byte order mark."""
    mode = path.stat().st_mode & 0o7777
    with path.open("rb") as source:
        mark = source.read(len(BOM_UTF8)) == BOM_UTF8
    write_atomic(path, (BOM_UTF8 if mark else b"") + text.encode())
    path.chmod(mode)


def _show(findings: list[Finding], answer: Preflight, diff: str, console: Console) -> None:
    shown = [finding for finding in findings if console.verbosity >= 0 or finding.severity == "error"]
    output = "\n".join(f"    {line}" for line in answer.output.splitlines())
    parts = [diff, findings_text(shown), f"Output of pip:\n{output}" if output else ""]
    if any(parts):
        console.data("\n" + "\n\n".join(filter(None, parts)))
    _report_preflight(answer, console)


def _report_preflight(answer: Preflight, console: Console) -> None:
    if answer is not SKIPPED:
        report = console.info if answer.outcome == "passed" else console.warning
        report(str(answer))
