"""``matrix build-wheels``: build what the lock needs and the index lacks, prove it, publish it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from builders.build_host import BuildHost, find_build_host
from builders.containers.image import with_cached_digest
from builders.files import write_atomic
from builders.index import Index
from builders.plan import plan
from builders.task import Limits
from matrix.locking import same_target
from matrix.options import (
    add_build_host_options,
    add_format,
    add_index,
    add_lock,
    add_names,
    add_target_options,
)
from matrix.request import check_names
from matrix.resolution_text import show_conflict
from resolver.errors import EnvironmentLacksError, MatrixError
from resolver.lock import dumps
from resolver.model import Conflict
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builders.plan import Task
    from matrix.console import Console
    from matrix.context import Context
    from resolver.facts.catalog import Catalog
    from resolver.model import Resolution

SUMMARY = "build what the lock needs and the index lacks, check it, publish it"
EXAMPLE = "matrix build-wheels --backend cpu --index index"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(parser, "names", metavar="NAME", help="only these (default: all that the lock builds)")
    add_lock(parser)
    add_index(parser)
    add_build_host_options(parser)
    parser.add_argument(
        "--ops",
        metavar="NAME:A,B",
        action="append",
        type=_ops,
        default=[],
        help="compile these ops of a package instead of the recipe's, such as deepspeed:fused_adam",
    )
    parser.add_argument(
        "--torch-pin",
        choices=("exact", "release", "none"),
        default="exact",
        help="what the wheels require: the very torch they are built against (default), any build of that "
        "release, or what their source says",
    )
    parser.add_argument("--executor", choices=("local", "slurm"), default="local")
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=_positive,
        help="compile jobs at once (default: what cores and memory allow)",
    )
    parser.add_argument("--memory", metavar="GIB", type=_positive, help="memory that the builds may use")
    parser.add_argument("--offline", action="store_true", help="take sources from the cache only")
    parser.add_argument("--keep-going", action="store_true", help="go on with the others when one fails")
    parser.add_argument(
        "--dry-run", action="store_true", help="say for each wheel why it will be built or not"
    )
    add_format(parser)
    add_target_options(parser)


def _ops(text: str) -> tuple[str, list[str]]:
    name, _, listed = text.partition(":")
    ops = [one.strip() for one in listed.split(",") if one.strip()]
    if name.strip() and ops:
        return name.strip(), ops
    msg = f"{shorten(text)!r} names no ops; write it as deepspeed:fused_adam,cpu_adam"
    raise argparse.ArgumentTypeError(msg)


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        msg = f"{shorten(text)!r} is not a whole number above 0"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    names = check_names(args.names)
    lock, catalog = _lock(context, names)
    if lock is None:
        return 1
    _refuse_what_is_not_there(args)
    index = Index(args.index)
    tasks = []
    if lock.built(names):
        build_host = _workshop(lock, names, args)
        tasks = plan(lock, catalog, index, build_host, names, ops=dict(args.ops), pinning=args.torch_pin)
    results = [_report(task, index) for task in tasks]
    for task in tasks:
        if task.wheel is not None:
            index.refresh(task.pick.name)  # a crash may have left a page behind its wheels
    waiting = [task for task in tasks if task.wheel is None]
    failed: dict[str, MatrixError] = {}
    if waiting and not args.dry_run:
        limits = Limits(args.jobs, args.memory, args.offline, context.settings.mirrors)
        failed = _build(waiting, index, limits, args, console)
        done = {task.pick.name: index.find(task.pick.name, task.build_key) for task in waiting}
        for result in results:
            wheel = done.get(result["name"])
            if result["state"] == "to build":
                result["state"] = "built" if wheel else "failed"
                result["wheel"] = str(wheel.path) if wheel else None
            if result["name"] in failed:
                result.update(failed[result["name"]].details)
    _print(results, index, args, console)
    return max((error.exit_code for error in failed.values()), default=0)


def _lock(context: Context, names: Sequence[str]) -> tuple[Resolution | None, Catalog]:
    """Read the lock, or resolve first when there is none; a lock for another target is refused."""
    args, console = context.args, context.console
    if context.has_lock:
        catalog = context.catalog_of_lock()
        same_target(context.lock, args, catalog)
        return context.lock, catalog
    catalog = context.catalog_with_image
    if names and not context.settings.requirements:
        context.settings.requirements = list(names)
    answer = context.resolve()
    if isinstance(answer, Conflict):
        show_conflict(answer, console, as_json=args.format == "json")
        return None, catalog
    lock = with_cached_digest(answer)
    if not args.dry_run:
        write_atomic(args.lock, dumps(lock))
        console.info(f"There was no lock; resolved and wrote {args.lock}.")
    return lock, catalog


def _refuse_what_is_not_there(args: argparse.Namespace) -> None:
    if args.executor == "slurm":
        msg = "Builds by Slurm jobs are not there yet in this version. Nothing was built."
        raise EnvironmentLacksError(msg, hint="--executor local builds here.")


def _workshop(lock: Resolution, names: Sequence[str], args: argparse.Namespace) -> BuildHost:
    """Find the workshop; say what cannot be built where there is none."""
    try:
        return find_build_host(
            lock, kind=args.where, image=args.base_image, python=args.python_from, cpu=args.cpu
        )
    except EnvironmentLacksError as error:
        waiting = "".join(f"\n  - {pick.name} {pick.pinned}" for pick in lock.built(names))
        target = ", ".join(lock.target.gfx) or "this machine's CPU"
        image = lock.version_of("base-image")
        where = f"\nBase image: {image}" if image else ""
        message = f"{error.message}\nNothing was built for {target}.{where}\nWaiting to be built:{waiting}"
        raise EnvironmentLacksError(message, hint=error.hint) from None


def _build(
    tasks: Sequence[Task], index: Index, limits: Limits, args: argparse.Namespace, console: Console
) -> dict[str, MatrixError]:
    """Build; give what failed, by name."""
    from builders.host import require_for_build
    from builders.task import build_wheel

    for build_host in {id(task.build_host): task.build_host for task in tasks}.values():
        if build_host.runtime.image is None:
            require_for_build(build_host.python.path)
    failed: dict[str, MatrixError] = {}
    for task in tasks:
        console.info(f"{task.title}")
        try:
            wheel = build_wheel(task, index, limits, console)
        except MatrixError as error:
            if not args.keep_going:
                raise
            console.error(error.message, error.hint)
            failed[task.pick.name] = error
        else:
            console.step(f"published {wheel.name}")
    return failed


def _report(task: Task, index: Index) -> dict[str, Any]:
    if task.wheel is not None:
        why = "the index has a wheel built from the same inputs"
        state = "up to date"
    else:
        state = "to build"
        others = [path.name for path in index.wheels(task.pick.name)]
        why = f"what it is built from changed since {others[-1]}" if others else "the index has none"
    return {
        "name": task.pick.name,
        "version": task.pick.pinned,
        "state": state,
        "why": why,
        "build_key": task.build_key,
        "wheel": str(task.wheel) if task.wheel else None,
    }


def _print(results: list[dict[str, Any]], index: Index, args: argparse.Namespace, console: Console) -> None:
    if args.format == "json":
        console.document({"schema": 1, "index": str(index.root), "wheels": results})
        return
    for result in results:
        why = f": {result['why']}" if result["state"] in {"up to date", "to build"} else ""
        console.data(f"{result['name']} {result['version']}  {result['state']}{why}")
    if not results:
        console.data("The lock builds nothing: everything in it is published.")
    elif all(result["state"] == "up to date" for result in results):
        console.data("Nothing to build.")
    console.data(f"Index: {index.simple.as_uri()}")
