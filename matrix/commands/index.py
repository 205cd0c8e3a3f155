"""``matrix index``: what is in the local index, whether it is whole, and who may read it."""

from __future__ import annotations

import argparse
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders.index import Index
from builders.provenance import build_key_of
from matrix.console import table
from matrix.options import add_action, add_format, add_index, add_names
from resolver.errors import UsageError
from resolver.lock import read_lock

if TYPE_CHECKING:
    from matrix.console import Console
    from matrix.context import Context

SUMMARY = "list, check, maintain and serve the local index"
EXAMPLE = "matrix index check --repair"
EXAMPLES = {
    "list": "matrix index list apex --format json",
    "check": EXAMPLE,
    "refresh": "matrix index refresh --index /project/project_1/index",
    "remove": "matrix index remove apex==1.9.0+rocm6.4.torch2.9.1.gfx90a --dry-run",
    "prune": "matrix index prune --lock matrix.lock --older-than 90 --dry-run",
    "yank": "matrix index yank apex==1.9.0+rocm6.4.torch2.9.1.gfx90a --reason 'built for the wrong GPU'",
    "status": "matrix index status apex deprecated --reason 'use torch.optim'",
    "serve": "matrix index serve --port 8080",
    "pack": "matrix index pack -o index.squashfs",
}
_MIB = 2**20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    made = {name: add_action(actions, name, summary, EXAMPLES[name]) for name, summary in _SUMMARIES.items()}
    add_names(made["list"], "projects", metavar="NAME", help="only these projects")
    made["check"].add_argument("--repair", action="store_true", help="mend what can be mended")
    made["remove"].add_argument("what", nargs="+", metavar="WHEEL", help=_WHAT)
    made["prune"].add_argument(
        "--lock", metavar="FILE", type=Path, action="append", help="keep what this lock pins (repeatable)"
    )
    made["prune"].add_argument(
        "--older-than", metavar="DAYS", type=_days, help="remove only what came longer ago"
    )
    made["yank"].add_argument("what", nargs="+", metavar="WHEEL", help=_WHAT)
    made["yank"].add_argument("--reason", default="", help="why, in one sentence")
    made["yank"].add_argument("--undo", action="store_true", help="take it back")
    made["status"].add_argument("project", metavar="NAME")
    made["status"].add_argument("state", choices=("active", "archived", "deprecated"))
    made["status"].add_argument("--reason", default="", help="why, in one sentence")
    made["serve"].add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    made["serve"].add_argument(
        "--port", type=_port, default=8080, help="port, 0 for any that is free (default: %(default)s)"
    )
    made["pack"].add_argument("-o", "--output", metavar="FILE", type=Path, default=Path("index.squashfs"))
    for name in ("remove", "prune"):
        made[name].add_argument("--dry-run", action="store_true", help="say what would be removed")
    for name, one in made.items():
        add_index(one)
        if name in {"list", "check", "remove", "prune"}:
            add_format(one)


_WHAT = "a wheel's file name, NAME==VERSION with its label, or NAME for all of a project"
_SUMMARIES = {
    "list": "show the wheels",
    "check": "compare every wheel and page with what is said of it",
    "refresh": "make the pages say what lies in the directories, after wheels were copied by hand",
    "remove": "take wheels out",
    "prune": "take out what no lock pins, or what is old",
    "yank": "say that wheels should not be chosen any more; an exact pin still installs them",
    "status": "say that a project is deprecated or archived",
    "serve": "serve the index over HTTP until interrupted",
    "pack": "write the index into one squashfs file",
}


def _days(text: str) -> timedelta:
    try:
        days = float(text)
        if days < 0:
            raise ValueError  # noqa: TRY301
        return timedelta(days=days)
    except (ValueError, OverflowError):
        msg = f"{text!r} is no number of days"
        raise argparse.ArgumentTypeError(msg) from None


def _port(text: str) -> int:
    if text.isdecimal() and int(text) < 2**16:
        return int(text)
    msg = f"{text!r} is no port"
    raise argparse.ArgumentTypeError(msg)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    index = Index(args.index)
    if not index.simple.is_dir():
        msg = f"There is no index at {index.root}: it has no directory simple/."
        raise UsageError(msg, hint="matrix build-wheels makes one; another place is named with --index.")
    run = {
        "list": _list,
        "check": _check,
        "refresh": _refresh,
        "remove": _remove,
        "prune": _prune,
        "yank": _yank,
        "status": _status,
        "serve": _serve,
        "pack": _pack,
    }[args.action]
    return run(index, args, console)


def _list(index: Index, args: argparse.Namespace, console: Console) -> int:
    from builders.index.tending import existing

    wanted = {existing(index, project) for project in args.projects} or index.projects()
    rows = [row for project in sorted(wanted) for row in _rows(index, project)]
    if args.format == "json":
        console.document({"schema": 1, "index": str(index.root), "wheels": rows})
        return 0
    shown = [[row["file"], f"{row['size'] / _MIB:.1f} MiB", row["upload_time"], _remark(row)] for row in rows]
    console.data(table(shown, indent="") if shown else "The index has no wheels.")
    return 0


def _rows(index: Index, project: str) -> list[dict[str, Any]]:
    remembered = index.remembered(project)
    rows = []
    for path in index.wheels(project):
        entry, record = remembered.get(path.name), index.provenance_of(path)
        rows.append(
            {
                "project": project,
                "file": path.name,
                "version": entry.version if entry else "",
                "size": path.lstat().st_size,
                "sha256": entry.hashes.sha256 if entry else "",
                "upload_time": entry.upload_time if entry else "",
                "yanked": entry.yanked if entry else False,
                "listed": entry is not None,
                "build_key": build_key_of(record),
            }
        )
    return rows


def _remark(row: dict[str, Any]) -> str:
    if not row["listed"]:
        return "on no page: matrix index refresh"
    if row["yanked"] is False:
        return ""
    return f"yanked: {row['yanked']}" if isinstance(row["yanked"], str) else "yanked"


def _check(index: Index, args: argparse.Namespace, console: Console) -> int:
    from builders.index.checking import check

    found = check(index, repair=args.repair)
    left = [one for one in found if not one.repaired]
    if args.format == "json":
        damage = [
            {"id": one.id, "path": one.path, "text": one.text, "repaired": one.repaired or None}
            for one in found
        ]
        console.document({"schema": 1, "index": str(index.root), "sound": not left, "damage": damage})
        return 1 if left else 0
    for one in found:
        console.data(f"{one.text}{f' It was {one.repaired}.' if one.repaired else ''}")
    if not found:
        wheels = sum(len(index.wheels(project)) for project in index.projects())
        console.data(f"{wheels} wheels of {len(index.projects())} projects: all sound.")
    elif left:
        console.info("Mend it with: matrix index check --repair")
    return 1 if left else 0


def _refresh(index: Index, _: argparse.Namespace, console: Console) -> int:
    from builders.index.checking import replaced
    from builders.index.misplaced import misplaced

    wrong = [*misplaced(index), *replaced(index)]
    for one in wrong:
        console.data(one.text)
    if wrong:
        console.info("A wheel is never replaced or linked. Mend it with: matrix index check --repair")
    changed = index.refresh_all()
    if changed:
        console.data(f"Made anew: the pages of {', '.join(changed)}.")
    elif not wrong:
        console.data("The pages say what is there.")
    return int(bool(wrong))


def _remove(index: Index, args: argparse.Namespace, console: Console) -> int:
    from builders.index.tending import select

    return _take_out(index, [path for what in args.what for path in select(index, what)], args, console)


def _prune(index: Index, args: argparse.Namespace, console: Console) -> int:
    from builders.index.tending import prunable

    if args.lock is None and args.older_than is None:
        msg = "What may go? Say what is still needed, or from when on."
        raise UsageError(
            msg, hint="--lock matrix.lock keeps what that lock pins; --older-than 90 counts days."
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


def _take_out(index: Index, paths: list[Path], args: argparse.Namespace, console: Console) -> int:
    from builders.index.tending import remove

    size = sum(path.lstat().st_size for path in set(paths))
    if not args.dry_run:
        remove(index, paths)
    if args.format == "json":
        names = sorted({path.name for path in paths})
        console.document(
            {"schema": 1, "index": str(index.root), "removed": names, "bytes": size, "dry_run": args.dry_run}
        )
        return 0
    for name in sorted({path.name for path in paths}):
        console.data(f"{'would remove' if args.dry_run else 'removed'} {name}")
    console.data(f"{size / _MIB:.1f} MiB." if paths else "Nothing to remove.")
    return 0


def _yank(index: Index, args: argparse.Namespace, console: Console) -> int:
    from builders.index.tending import select, unyank, yank

    paths = [path for what in args.what for path in select(index, what)]
    if args.undo:
        unyank(index, paths)
    else:
        yank(index, paths, args.reason)
    for path in paths:
        console.data(f"{path.name}: {'offered again' if args.undo else 'yanked'}")
    return 0


def _status(index: Index, args: argparse.Namespace, console: Console) -> int:
    from builders.index.tending import set_status

    name = set_status(index, args.project, args.state, args.reason)
    console.data(f"{name}: {args.state}")
    return 0


def _serve(index: Index, args: argparse.Namespace, console: Console) -> int:
    from builders.index.serving import serving

    with serving(index, host=args.host, port=args.port) as address:
        console.write(f"{address}\n")
        console.info(f"Serving {index.root}; end with Ctrl-C.")
        signal.pause()
    return 0


def _pack(index: Index, args: argparse.Namespace, console: Console) -> int:
    from builders.index.packing import pack

    log = index.state / "logs" / "pack.log"
    log.unlink(missing_ok=True)
    pack(index, args.output, log=log)
    console.data(f"{args.output}: {args.output.stat().st_size / _MIB:.1f} MiB")
    return 0
