"""``matrix index``: list, check and maintain the local index."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from builders.building.directory import prune
from builders.building.verifying import sign, verify
from builders.findings import Finding
from builders.index import Index
from builders.index.maintenance import (
    adopt,
    check,
    project_named,
    prunable,
    remove,
    select,
    unyank,
    yank,
)
from builders.index.repository import build_key_of
from builders.storage.io_errors import not_an_index
from matrix.command_line.options import add_action, add_format, add_index, add_names
from matrix.show.json_document import JsonDocument
from matrix.show.render import counted, findings_text
from resolver.errors import EnvironmentLacksError, MatrixError, UsageError
from resolver.lock import read_lock
from resolver.versions import join_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builders.index.pages import WheelEntry
    from matrix.command_line.context import Context
    from matrix.show.console import Console

SUMMARY = "list, check and maintain the local index"
EXAMPLE = "matrix index check --repair"
EXAMPLES = {
    "list": "matrix index list apex --format json",
    "add": "matrix index add wheels/apex-1.9.0-cp312-cp312-manylinux_2_28_x86_64.whl",
    "check": EXAMPLE,
    "remove": "matrix index remove apex==1.9.0+rocm6.4.torch2.9.1.gfx90a --dry-run",
    "prune": "matrix index prune --lock matrix.lock --older-than 90 --dry-run",
    "sign": "matrix index sign --key ~/.ssh/id_ed25519",
    "yank": "matrix index yank apex==1.9.0+rocm6.4.torch2.9.1.gfx90a --reason 'built for the wrong GPU'",
}
_MIB = 2**20


class IndexedWheel(msgspec.Struct, kw_only=True):
    """A wheel of an index. Values that its page lacks are empty."""

    project: str
    file: str
    version: str
    size: int
    sha256: str
    upload_time: str
    yanked: bool | str
    """Whether it is yanked, or the reason."""
    listed: bool
    recorded: bool
    """Whether it has a provenance."""
    build_key: str


class ListDocument(JsonDocument, kw_only=True):
    """The wheels of an index."""

    status: Literal["ok"] = "ok"
    index: str
    wheels: list[IndexedWheel]


class AddDocument(JsonDocument, kw_only=True):
    """Wheels that were added to an index, and those that were rejected."""

    status: Literal["ok", "errors"]
    index: str
    added: list[str]
    rejected: dict[str, list[Finding]]


class IndexCheckDocument(JsonDocument, kw_only=True):
    """The damage in an index."""

    status: Literal["ok", "errors"]
    index: str
    sound: bool
    findings: list[Finding]
    without_provenance: list[str]
    """The wheels that were added, so that nobody recorded how they were built."""
    signers: dict[str, str]
    """Who signed the provenance of each wheel, with ``--signers``; empty for nobody who is trusted."""


class RemoveDocument(JsonDocument, kw_only=True):
    """The files that were removed from an index."""

    status: Literal["ok"] = "ok"
    index: str
    removed: list[str]
    bytes: int
    dry_run: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    made = {name: add_action(actions, name, summary, EXAMPLES[name]) for name, summary in _SUMMARIES.items()}
    add_names(made["list"], "projects", metavar="NAME", help="only these projects")
    made["add"].add_argument("wheels", nargs="+", metavar="FILE", type=Path, help="wheel files")
    made["check"].add_argument("--repair", action="store_true", help="repair damage where possible")
    made["check"].add_argument(
        "--lock", metavar="FILE", type=Path, help="also compare the wheels that this lock builds"
    )
    made["check"].add_argument(
        "--signers",
        metavar="FILE",
        type=Path,
        help="also require that a key of this file (ALLOWED SIGNERS of ssh-keygen) signed each provenance",
    )
    made["sign"].add_argument(
        "--key", metavar="FILE", type=Path, required=True, help="OpenSSH key, or its public key for ssh-agent"
    )
    made["remove"].add_argument("what", nargs="+", metavar="WHEEL", help=_WHAT)
    made["prune"].add_argument(
        "--lock",
        metavar="FILE",
        type=Path,
        action="append",
        help="keep the wheels that this lock pins (repeatable)",
    )
    made["prune"].add_argument(
        "--older-than",
        metavar="DAYS",
        type=_days,
        help="remove only wheels published more than DAYS days ago",
    )
    made["prune"].add_argument(
        "--builds",
        action="store_true",
        help="remove the directories of unfinished builds, instead of wheels; --older-than counts from the "
        "last attempt",
    )
    made["yank"].add_argument("what", nargs="+", metavar="WHEEL", help=_WHAT)
    made["yank"].add_argument("--reason", default="", help="the reason, in one sentence")
    made["yank"].add_argument("--undo", action="store_true", help="undo a yank")
    for name in ("remove", "prune"):
        made[name].add_argument("--dry-run", action="store_true", help="print the list, but remove nothing")
    for name, subparser in made.items():
        add_index(subparser)
        if name in {"list", "add", "check", "remove", "prune"}:
            add_format(subparser)


_WHAT = "the file name of a wheel, NAME==VERSION with the local version, or NAME for a whole project"
_SUMMARIES = {
    "list": "list the wheels",
    "add": "audit wheels from elsewhere, and publish those without errors",
    "check": "check all wheels and pages against their records, a lock and signatures",
    "remove": "remove wheels",
    "prune": "remove wheels by lock and age, or directories of unfinished builds",
    "sign": "sign the provenance of all wheels with a key of OpenSSH",
    "yank": "yank wheels: installers then use them only for an exact pin",
}


def _days(text: str) -> timedelta:
    with suppress(ValueError, OverflowError):
        if (days := float(text)) >= 0:
            return timedelta(days=days)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of days")


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    index = Index(args.index, console)
    can_be_empty = args.action == "add" or (args.action == "prune" and args.builds and index.state.is_dir())
    if not index.simple.is_dir() and not can_be_empty:
        raise not_an_index(index.root)
    run = {
        "list": _list,
        "add": _add,
        "check": _check,
        "remove": _remove,
        "prune": _prune,
        "sign": _sign,
        "yank": _yank,
    }[args.action]
    return run(index, args, console)


def _list(index: Index, args: argparse.Namespace, console: Console) -> int:
    projects = {project_named(index, name) for name in args.projects} or index.projects()
    rows = list(_rows(index, sorted(projects)))
    if args.format == "json":
        console.document(ListDocument(index=str(index.root), wheels=rows))
        return 0
    shown = [[row.file, f"{row.size / _MIB:.1f} MiB", row.upload_time, _state(row)] for row in rows]
    if not shown:
        console.data("The index has no wheels.")
        return 0
    size = sum(row.size for row in rows) / _MIB
    what = f"{counted(len(rows), 'wheel')} of {counted(len({row.project for row in rows}), 'project')}"
    console.answer(f"{what}, {size:.1f} MiB")
    console.data(f"\n{console.out.table(shown, indent='')}")
    return 0


def _rows(index: Index, projects: Sequence[str]) -> Iterator[IndexedWheel]:
    entries: Mapping[str, WheelEntry] = {}
    project = ""
    for wheel in index.published(*projects):
        path = wheel.path
        if path.parent.name != project:
            project = path.parent.name
            entries = index.entries(project)
        entry = entries.get(path.name)
        yield IndexedWheel(
            project=project,
            file=path.name,
            version=entry.version if entry else "",
            size=path.lstat().st_size,
            sha256=entry.hashes.sha256 if entry else "",
            upload_time=entry.upload_time if entry else "",
            yanked=entry.yanked if entry else False,
            listed=entry is not None,
            recorded=bool(wheel.provenance),
            build_key=build_key_of(wheel.provenance),
        )


def _state(row: IndexedWheel) -> str:
    if not row.listed:
        return f"not on its page: run `matrix index {'check --repair' if row.recorded else 'add'}`"
    if row.yanked is False:
        return ""
    return f"yanked: {row.yanked}" if isinstance(row.yanked, str) else "yanked"


def _add(index: Index, args: argparse.Namespace, console: Console) -> int:
    from builders.audit.wheel_audit import audit_wheel

    added: dict[str, Sequence[Finding]] = {}
    rejected: dict[str, list[Finding]] = {}
    for path in args.wheels:
        try:
            with console.task(f"add {path.name}"):
                audit = audit_wheel(path)
                if audit.errors:
                    rejected[str(path)] = audit.errors
                    continue
                added[adopt(index, path, audit).name] = audit.findings
        except EnvironmentLacksError:
            _print_added(added, rejected, args, console)
            raise
        except MatrixError as error:
            rejected[str(path)] = [Finding(error.id, "error", error.message, error.hint)]
    _print_added(added, rejected, args, console)
    if args.format == "json":
        console.document(
            AddDocument(
                status="errors" if rejected else "ok",
                index=str(index.root),
                added=list(added),
                rejected=rejected,
            )
        )
    return int(bool(rejected))


def _print_added(
    added: Mapping[str, Sequence[Finding]],
    rejected: Mapping[str, Sequence[Finding]],
    args: argparse.Namespace,
    console: Console,
) -> None:
    if args.format == "json" or not (added or rejected):
        return
    console.answer(", ".join([f"{len(added)} added", *([f"{len(rejected)} rejected"] if rejected else [])]))
    for name, errors in rejected.items():
        console.data(f"not added: {name}")
        console.data(findings_text(errors, indent="  ", screen=console.out))
    for name, findings in added.items():
        console.data(f"added {name}")
        if text := findings_text(findings, quiet=True, indent="  ", screen=console.out):
            console.data(text)


def _check(index: Index, args: argparse.Namespace, console: Console) -> int:
    lock = read_lock(args.lock) if args.lock else None
    if args.signers and not args.signers.is_file():
        raise UsageError(f"The file of --signers does not exist: {args.signers}")
    with console.task("check the index"):
        findings = check(index, repair=args.repair)
        verified = verify(index, lock, args.signers)
        findings += verified.findings
    damaged = any(not finding.evidence["repaired"] for finding in findings)
    if args.format == "json":
        console.document(
            IndexCheckDocument(
                status="errors" if damaged else "ok",
                index=str(index.root),
                sound=not damaged,
                findings=findings,
                without_provenance=verified.unbuilt,
                signers=verified.signers,
            )
        )
        return int(damaged)
    projects = index.projects()
    wheels = sum(len(index.wheels(project)) for project in projects)
    what = f"{counted(wheels, 'wheel')} of {counted(len(projects), 'project')}"
    repaired = sum(bool(finding.evidence["repaired"]) for finding in findings)
    answer = f"{counted(len(findings), 'finding')} in {what}, {repaired} repaired."
    console.answer(answer if findings else f"No damage in {what}.")
    for finding in findings:
        action = finding.evidence["repaired"]
        text = findings_text([finding], screen=console.out)
        console.data(f"{text} Repaired: {action}." if action else text)
    if verified.unbuilt:
        console.data(
            f"Added, not built here, so without provenance: {join_words(verified.unbuilt, joiner='and')}"
        )
    for signer, count in sorted(Counter(filter(None, verified.signers.values())).items()):
        console.data(f"Signed by {signer}: {counted(count, 'wheel')}")
    if any(finding not in verified.findings and not finding.evidence["repaired"] for finding in findings):
        console.info("Repair the index with `matrix index check --repair`.")
    return int(damaged)


def _remove(index: Index, args: argparse.Namespace, console: Console) -> int:
    return _take_out(index, [path for what in args.what for path in select(index, what)], args, console)


def _prune(index: Index, args: argparse.Namespace, console: Console) -> int:
    if args.builds:
        return _prune_builds(index, args, console)
    if args.lock is None and args.older_than is None:
        msg = "prune requires --lock, --older-than or both, so that wheels still in use are kept."
        raise UsageError(
            msg,
            hint="--lock FILE keeps the wheels it pins; --older-than 90 keeps wheels of the last 90 days.",
        )
    pinned: dict[str, set[str]] | None = None
    if args.lock is not None:
        pinned = {}
        for path in args.lock:
            for pick in read_lock(path).built():
                pinned.setdefault(pick.name, set()).add(pick.pinned)
    now = datetime.now(tz=UTC)
    return _take_out(
        index, prunable(index, pinned=pinned, older_than=args.older_than, now=now), args, console
    )


def _prune_builds(index: Index, args: argparse.Namespace, console: Console) -> int:
    if args.lock is not None:
        msg = "--builds and --lock cannot be combined: a lock pins wheels."
        raise UsageError(msg)
    longest = args.older_than.total_seconds() if args.older_than is not None else 0.0
    rows = prune(index, longest=longest, largest=math.inf, dry_run=args.dry_run)
    names = [str(row.path.relative_to(index.root)) for row in rows]
    return _show_removed(index, names, sum(row.size for row in rows), args, console)


def _take_out(index: Index, paths: list[Path], args: argparse.Namespace, console: Console) -> int:
    size = sum(path.lstat().st_size for path in set(paths))
    if not args.dry_run:
        remove(index, paths)
    return _show_removed(index, sorted({path.name for path in paths}), size, args, console)


def _show_removed(
    index: Index, names: list[str], size: int, args: argparse.Namespace, console: Console
) -> int:
    if args.format == "json":
        root = str(index.root)
        console.document(RemoveDocument(index=root, removed=names, bytes=size, dry_run=args.dry_run))
        return 0
    if not names:
        console.data("Nothing to remove.")
        return 0
    done = "Would remove" if args.dry_run else "Removed"
    console.answer(f"{done} {len(names)}, {size / _MIB:.1f} MiB:")
    for name in names:
        console.data(f"  {name}")
    return 0


def _sign(index: Index, args: argparse.Namespace, console: Console) -> int:
    signed = sign(index, args.key)
    console.answer(f"Signed the provenance of {counted(len(signed), 'wheel')}.")
    return 0


def _yank(index: Index, args: argparse.Namespace, console: Console) -> int:
    paths = [path for what in args.what for path in select(index, what)]
    if args.undo:
        unyank(index, paths)
    else:
        yank(index, paths, args.reason)
    for path in paths:
        console.data(f"{path.name}: {'no longer yanked' if args.undo else 'yanked'}")
    return 0
