"""``matrix fetch``: download everything the builds of a lock need, so that they need no network."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from builders.cache import cache_root
from builders.sources import FetchedItem, FetchResult, MissingItem, fetch_all
from matrix.locking import same_image
from matrix.options import add_build_host_options, add_format, add_lock, add_names
from matrix.request import check_names
from resolver.errors import MatrixError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from matrix.console import Console
    from matrix.context import Context
    from resolver.facts.catalog import Catalog
    from resolver.model import Distribution, Resolution

SUMMARY = "download everything the builds need into the cache and check its hashes"
EXAMPLE = "matrix fetch --lock matrix.lock && matrix build-wheels --offline"
_STEP = 1024
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_BUILD_WHEELS = "wheels of torch and the build requirements"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(parser, "names", metavar="NAME", help="fetch only these (default: everything the lock builds)")
    add_lock(parser)
    parser.add_argument(
        "--only-sources", action="store_true", help="do not fetch torch and the build requirements"
    )
    add_build_host_options(parser)
    parser.add_argument(
        "--base-image", metavar="NAME|PATH", help="use this base image instead of the path in the lock"
    )
    parser.add_argument(
        "--offline", action="store_true", help="download nothing; check whether the cache is complete"
    )
    parser.add_argument(
        "--catalog",
        metavar="DIR",
        action="append",
        help="additional facts, with patches next to them (repeatable)",
    )
    add_format(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    settings = context.settings
    names = check_names(args.names)
    lock = context.lock
    catalog = context.catalog_of_lock()
    same_image(lock, args, catalog)
    wheels = partial(_fetch_wheels, catalog=catalog, mirrors=settings.mirrors, args=args, console=console)
    result = fetch_all(
        lock,
        catalog,
        names,
        mirrors=settings.mirrors,
        offline=args.offline,
        fetch_wheels=None if args.only_sources else wheels,
        reporter=console,
    )
    for warning in result.warnings:
        console.warning(warning)
    for item in result.missing:
        console.error(f"{item.name} {item.version}: {item.message}", item.hint)
    if args.format == "json":
        console.document(_document(result))
    else:
        console.data(_text(result))
    return max((item.exit_code for item in result.missing), default=0)


def _fetch_wheels(
    lock: Resolution,
    picks: Sequence[Distribution],
    *,
    catalog: Catalog,
    mirrors: Mapping[str, str],
    args: argparse.Namespace,
    console: Console,
) -> Iterator[FetchedItem | MissingItem]:
    """Fetch torch and the build requirements, with the Python and in the base image of the lock."""
    from builders.build_host import find_build_host
    from builders.index import Index
    from builders.plan import plan
    from builders.task import Limits, wheels_of

    log = cache_root() / "logs" / "fetch.log"
    log.unlink(missing_ok=True)
    if not picks:
        return
    try:
        build_host = find_build_host(
            lock, kind=args.where, image=args.base_image, python=args.python_from, cpu=args.cpu
        )
        empty_index = Index(cache_root() / "no-index")
        tasks = plan(lock, catalog, empty_index, build_host, [pick.name for pick in picks])
    except MatrixError as error:
        yield MissingItem.from_error("torch", lock.version_of("torch"), _BUILD_WHEELS, error)
        return
    seen: set[str] = set()
    for task in tasks:
        try:
            before, wheels = wheels_of(task, Limits(offline=args.offline, mirrors=mirrors), log, console)
        except MatrixError as error:
            yield MissingItem.from_error(task.pick.name, task.pick.pinned, _BUILD_WHEELS, error)
            continue
        for wheel in wheels:
            if wheel.sha256 in seen:
                continue
            seen.add(wheel.sha256)
            yield FetchedItem(
                name=wheel.name,
                version=wheel.version,
                kind="wheel",
                origin=wheel.file,
                state="cached" if wheel.sha256 in before else "fetched",
                bytes=wheel.size,
                identity=f"sha256:{wheel.sha256}",
                path=str(wheel.path),
            )


def _document(result: FetchResult) -> dict[str, object]:
    missing = [msgspec.to_builtins(item) for item in result.missing]
    for item in missing:
        del item["exit_code"]
    return {
        "schema": 1,
        "cache": str(cache_root()),
        "sources": msgspec.to_builtins(result.sources),
        "missing": missing,
        "bytes_fetched": result.bytes_fetched,
    }


def _text(result: FetchResult) -> str:
    if not result.sources and not result.missing:
        return "The lock builds nothing: there is nothing to fetch."
    lines = [
        f"{item.name} {item.version}  {item.state}  {format_size(item.bytes)}  {item.origin}"
        for item in result.sources
    ]
    lines += [f"{item.name} {item.version}  missing  {item.origin}" for item in result.missing]
    fetched = sum(item.state == "fetched" for item in result.sources)
    lines.append(
        f"{fetched} fetched ({format_size(result.bytes_fetched)}), {len(result.sources) - fetched} cached, "
        f"{len(result.missing)} missing. Cache: {cache_root()}"
    )
    return "\n".join(lines)


def format_size(size: int) -> str:
    """Format a number of bytes.

    Examples
    --------
    >>> format_size(512), format_size(1536), format_size(3 * 2**30)
    ('512 B', '1.5 KiB', '3.0 GiB')
    """
    amount, number = float(size), 0
    while amount >= _STEP and number < len(_UNITS) - 1:
        amount, number = amount / _STEP, number + 1
    return f"{amount:.1f} {_UNITS[number]}" if number else f"{size} B"
