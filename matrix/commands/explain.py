"""``matrix explain``: why a version was chosen, or why none could be; or what failed in a log."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from builders.constants import LOCK_FILE
from matrix.explain_log import explain_log
from matrix.options import add_format, add_lock
from matrix.resolution_text import first_source, last_conflict
from resolver.errors import MatrixError, UsageError, did_you_mean
from resolver.requirements import parse_requirement
from resolver.versions import shorten

if TYPE_CHECKING:
    import argparse

    from matrix.console import Console
    from matrix.context import Context
    from resolver.model import Distribution, Requirement, Resolution
    from resolver.rejected import Rejected

SUMMARY = "show why a version was chosen, by which facts, from which sources"
EXAMPLE = "matrix explain torch"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="a component of the lock, or versions of it that were not taken, such as torch==2.13.0"
        " (default: all; or the conflict, if the last resolve here had one)",
    )
    add_lock(parser)
    parser.add_argument(
        "--log",
        dest="logfile",
        metavar="FILE",
        help="say what failed in a log instead: of a build, pip, conda or cotainr; - reads it from a pipe."
        " NAME is then the package that was built",
    )
    parser.add_argument(
        "--backend", choices=("rocm", "cpu"), help="with --log: what was built or installed for"
    )
    add_format(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    if args.logfile:
        return explain_log(args, console)
    conflict = None if args.name or args.lock != LOCK_FILE else last_conflict()
    if conflict:
        if args.format == "json":
            console.document(conflict)
        else:
            console.data(_conflict_text(conflict))
        return 0
    lock = context.lock
    wanted = parse_requirement(args.name) if args.name else None
    picks = [pick for pick in lock.picks if wanted is None or pick.name == wanted.name]
    if wanted and not picks:
        msg = f"The lock {args.lock} has no {shorten(wanted.name)!r}."
        raise UsageError(msg, hint=did_you_mean(wanted.name, [pick.name for pick in lock.picks]))
    passed_over, more = _passed_over(lock, args.lock, wanted, console) if wanted else ([], 0)
    if args.format == "json":
        document = {"schema": 1, "picks": [msgspec.to_builtins(pick) for pick in picks]}
        document |= {"rejected": [_rejected_document(one) for one in passed_over], "rejected_more": more}
        console.document(document)
    else:
        console.data("\n\n".join(map(_text, picks)))
        if passed_over:
            console.data("\n".join(["", "Not taken", *map(_rejected_text, passed_over)]))
        if more:
            example = f"matrix explain '{picks[0].name}==VERSION'"
            console.data(f"  and {more} more that come before it; ask for some: {example}")
    return 0


def _passed_over(
    lock: Resolution, path: Path, wanted: Requirement, console: Console
) -> tuple[list[Rejected], int]:
    """Ask again for what comes before the chosen version; the lock alone answers if that cannot be done.

    Raises
    ------
    UsageError
        Versions were named, and neither the chosen one nor any before it is among them.
    """
    from builders.containers.inspection import with_inspected_image
    from matrix.locking import catalog_of
    from matrix.settings import Settings
    from resolver.rejected import rejected

    try:
        request = lock.request
        picked = {pick.name: pick.key for pick in lock.picks}
        catalog, image = catalog_of(lock, path, Settings()), lock.image
        if image and request.target.base_image and image.path.startswith("/"):
            catalog = with_inspected_image(catalog, image.path, image.name)
        found, more = rejected(catalog, request, picked, wanted.name, asked=wanted.specifier)
    except MatrixError as error:
        console.warning(f"What was not taken cannot be explained: {error.message}")
        return [], 0
    version = lock.version_of(wanted.name)
    if wanted.specifier is not None and not found and not wanted.specifier.allows(version):
        text = shorten(wanted.text)
        msg = f"{text!r} is no version that comes before {wanted.name} {version}, which was taken."
        raise UsageError(
            msg, hint="Of what fits, the version that comes first is taken; what comes behind is not."
        )
    return found, more


def _rejected_text(one: Rejected) -> str:
    if one.instead:
        other, now, then = one.instead
        return f"  {one.key}: {other} would be {then} instead of {now}, and {other} is decided first"
    if one.preferred:
        return f"  {one.key}: {one.preferred}"
    return "\n".join([f"  {one.key}", *(f"    - {item.text}{first_source(item)}" for item in one.core)])


def _rejected_document(one: Rejected) -> dict[str, Any]:
    document: dict[str, Any] = {"version": one.key, "core": msgspec.to_builtins(one.core)}
    if one.instead:
        document["instead"] = dict(zip(("component", "now", "then"), one.instead, strict=True))
    if one.preferred:
        document["preferred"] = one.preferred
    return document


def _conflict_text(conflict: dict[str, Any]) -> str:
    """Give a conflict with every source of every fact, one on each line."""
    target = conflict["target"]
    lines = [f"The last request of this directory has no solution ({target['site']}, {target['date']}).", ""]
    for item in conflict["core"]:
        lines.append(f"  - {item['text']}")
        if item["kind"] == "fact":
            lines += [f"      {source}" for source in item["source"].split(" ; ")]
    lines += ["", "These do not fit together; without any one of them the others would."]
    for one in conflict["suggestions"]:
        lines += ["", f"{one['change']}:", f"  matrix resolve {shlex.join(one['request'])}"]
    return "\n".join(lines)


def _text(pick: Distribution) -> str:
    lines = [f"{pick.name} {pick.key}: {pick.support}, {pick.verdict.replace('-', ' ')}"]
    for fact in pick.facts:
        lines += [f"  - {fact.text} [{fact.status}]", f"      {fact.source}"]
        lines += [f"      note: {fact.note}"] if fact.note else []
        lines += [f"      in {fact.file}"] if fact.file else []
    return "\n".join(lines)
