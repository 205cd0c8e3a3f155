"""``matrix fetch``: all that the lock is built from into the cache; after it builds need no network."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from builders.cache import cache_root
from builders.sources import Item, Missing, fetch_all
from matrix.locking import same_image
from matrix.options import add_build_host_options, add_format, add_lock, add_names
from matrix.request import check_names
from resolver.errors import MatrixError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from builders.sources import Haul
    from matrix.console import Console
    from matrix.context import Context
    from resolver.facts.catalog import Catalog
    from resolver.model import Distribution, Resolution

SUMMARY = "download everything the builds need into the cache, hash-checked"
EXAMPLE = "matrix fetch --lock matrix.lock && matrix build-wheels --offline"
_STEP = 1024
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(parser, "names", metavar="NAME", help="only these (default: all that the lock builds)")
    add_lock(parser)
    parser.add_argument(
        "--only-sources", action="store_true", help="leave torch and the build requirements to the build"
    )
    add_build_host_options(parser)
    parser.add_argument(
        "--base-image",
        metavar="NAME|PATH",
        help="where the lock's base image is, if not where the lock says",
    )
    parser.add_argument(
        "--offline", action="store_true", help="fetch nothing, only say whether the cache has everything"
    )
    parser.add_argument(
        "--catalog",
        metavar="DIR",
        action="append",
        help="facts to lay over the shipped ones (repeatable); patches lie beside them",
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
    wheels = partial(_wheels, catalog=catalog, mirrors=settings.mirrors, args=args, console=console)
    haul = fetch_all(
        lock,
        catalog,
        names,
        mirrors=settings.mirrors,
        offline=args.offline,
        wheels=None if args.only_sources else wheels,
        reporter=console,
    )
    for remark in haul.remarks:
        console.warning(remark)
    for missing in haul.missing:
        console.error(f"{missing.name} {missing.version}: {missing.error.message}", missing.error.hint)
    if args.format == "json":
        _document(haul, console)
    else:
        _text(haul, console)
    return max((missing.error.exit_code for missing in haul.missing), default=0)


def _wheels(
    lock: Resolution,
    picks: Sequence[Distribution],
    *,
    catalog: Catalog,
    mirrors: Mapping[str, str],
    args: argparse.Namespace,
    console: Console,
) -> Iterator[Item | Missing]:
    """Fetch torch and the build requirements of each pick, with the Python and in the image of the lock."""
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
        tasks = plan(lock, catalog, Index(cache_root() / "no-index"), build_host, [one.name for one in picks])
    except MatrixError as error:
        yield Missing("torch", lock.version_of("torch"), "wheels of torch and the build requirements", error)
        return
    seen: set[str] = set()
    for task in tasks:
        try:
            before, wheels = wheels_of(task, Limits(offline=args.offline, mirrors=mirrors), log, console)
        except MatrixError as error:
            yield Missing(task.pick.name, task.pick.pinned, "torch and the build requirements", error)
            continue
        for wheel in wheels:
            if wheel.sha256 not in seen:
                seen.add(wheel.sha256)
                state: Literal["cached", "fetched"] = "cached" if wheel.sha256 in before else "fetched"
                yield Item(
                    wheel.name, wheel.version, "wheel", wheel.file, state,
                    wheel.size, wheel.path, f"sha256:{wheel.sha256}",
                )  # fmt: skip


def _document(haul: Haul, console: Console) -> None:
    sources = [
        {
            "name": one.name,
            "version": one.version,
            "kind": one.kind,
            "origin": one.origin,
            "state": one.state,
            "bytes": one.size,
            "identity": one.identity,
            "path": str(one.path),
        }
        for one in haul.items
    ]
    missing = [
        {
            "name": one.name,
            "version": one.version,
            "origin": one.origin,
            "id": one.error.id,
            "message": one.error.message,
            "hint": one.error.hint,
        }
        for one in haul.missing
    ]
    console.document(
        {
            "schema": 1,
            "cache": str(cache_root()),
            "sources": sources,
            "missing": missing,
            "bytes_fetched": _fetched(haul),
        }
    )


def _text(haul: Haul, console: Console) -> None:
    for one in haul.items:
        console.data(_line(one))
    for missing in haul.missing:
        console.data(f"{missing.name} {missing.version}  missing: {missing.origin}")
    if not haul.items and not haul.missing:
        console.data("The lock builds nothing: there is nothing to fetch.")
        return
    count = sum(one.state == "fetched" for one in haul.items)
    console.data(
        f"{count} fetched ({size_in_words(_fetched(haul))}), {len(haul.items) - count} from the cache, "
        f"{len(haul.missing)} missing. Cache: {cache_root()}"
    )


def _line(one: Item) -> str:
    return f"{one.name} {one.version}  {one.state}  {size_in_words(one.size)}  {one.origin}"


def _fetched(haul: Haul) -> int:
    return sum(one.size for one in haul.items if one.state == "fetched")


def size_in_words(size: int) -> str:
    """Give a number of bytes as a person reads it.

    Examples
    --------
    >>> size_in_words(512), size_in_words(1536), size_in_words(3 * 2**30)
    ('512 B', '1.5 KiB', '3.0 GiB')
    """
    amount, number = float(size), 0
    while amount >= _STEP and number < len(_UNITS) - 1:
        amount, number = amount / _STEP, number + 1
    return f"{amount:.1f} {_UNITS[number]}" if number else f"{size} B"
