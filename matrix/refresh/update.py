"""``matrix catalog update``: what public sources know and the catalog does not, as a diff to review."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builders.cache import cache_root
from builders.files import exclusive_lock
from builders.sources import index_url
from matrix.settings import overlays
from resolver.errors import EnvironmentLacksError, UsageError, did_you_mean
from resolver.facts.loading import load

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from matrix.console import Console
    from matrix.refresh.learned import Learned
    from matrix.settings import Settings
    from resolver.facts.catalog import Catalog

SOURCES = ("pypi", "torch", "rocm")
FILE = Path("catalog") / "updates.toml"
_MOST_NAMED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the action's arguments."""
    parser.add_argument(
        "--source",
        action="append",
        choices=SOURCES,
        help="pypi: releases and hashes; torch: PyTorch's wheel indexes; rocm: AMD's matrix (default: all)",
    )
    parser.add_argument("--package", action="append", metavar="NAME", help="only this one, of pypi")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        default=FILE,
        help="the file of facts to add to (default: %(default)s)",
    )
    parser.add_argument("--apply", action="store_true", help="write what is shown")


def execute(args: argparse.Namespace, settings: Settings, console: Console) -> int:
    """Ask the sources, show the diff, write it if told to."""
    from matrix.refresh import overlay

    path = args.output
    laid_over = overlays(settings)
    own = [] if _is_among(path, laid_over) or not path.exists() else [path]
    catalog = load([*laid_over, *own])
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    learned = _ask(args, settings, catalog, console)
    if learned.unreachable and not learned.rows and not learned.remarks:
        missed = "; ".join(_by_reason(learned.unreachable))
        msg = f"Nothing was learned and nothing was changed: {missed}."
        raise EnvironmentLacksError(msg, hint="Is there network here? Sites with a mirror: see [mirrors].")
    _leave_to_a_person(learned, path)
    after = overlay.with_rows(before, learned.rows)
    if after != before:
        overlay.check(path, after, [*laid_over, *own])
    written = bool(args.apply and after != before)
    if written:
        with exclusive_lock(cache_root() / "refresh" / "writing.lock"):
            if (path.read_text(encoding="utf-8") if path.exists() else "") != before:
                msg = f"{path} was changed by somebody else meanwhile; nothing was written."
                raise UsageError(msg, hint="Run the same command again.")
            overlay.write(path, after)
    _report(args, learned, overlay.difference(path, before, after), console, written=written)
    return EnvironmentLacksError.exit_code if learned.unreachable else 0


def _is_among(path: Path, laid_over: list[Path]) -> bool:
    return any(path == one or one in path.parents for one in laid_over)


def _ask(args: argparse.Namespace, settings: Settings, catalog: Catalog, console: Console) -> Learned:
    from matrix.refresh import pypi, rocm_matrix, torch_index
    from matrix.refresh.learned import Learned
    from matrix.refresh.web import Web

    packages = args.package or list(catalog.package)
    for name in packages:
        if name not in catalog.package:
            raise UsageError(
                f"The catalog has no package {name!r}.", hint=did_you_mean(name, catalog.package)
            )
    wanted = args.source or (["pypi"] if args.package else list(SOURCES))
    web = Web(cache_root() / "refresh", settings.mirrors)
    everything = Learned()
    for source in (one for one in SOURCES if one in wanted):
        console.info(f"Asking {source} ...")
        if source == "pypi":
            found = pypi.learn(catalog, packages, web, index_url())
        elif source == "torch":
            found = torch_index.learn(catalog, web)
        else:
            found = rocm_matrix.learn(catalog, web)
        everything.rows += found.rows
        everything.remarks += found.remarks
        everything.unreachable += found.unreachable
    console.info(f"{web.asked} requests, {web.unchanged} answered that nothing changed.")
    return everything


def _by_reason(unreachable: Iterable[str]) -> list[str]:
    """Say each reason once, with what could not be asked ("WHAT: REASON.") because of it."""
    missed: dict[str, list[str]] = {}
    for one in unreachable:
        what, _, reason = one.removesuffix(".").partition(": ")
        missed.setdefault(reason, []).append(what)
    return [f"{reason} ({_first_of(names)})" for reason, names in missed.items()]


def _first_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


def _leave_to_a_person(learned: Learned, path: Path) -> None:
    """Take out what replaces a row of the very file: text is only added, never changed."""
    for row in [row for row in learned.rows if row.from_file and Path(row.from_file) == path]:
        learned.rows.remove(row)
        said = f"{type(row).__name__.lower()} {row.key()[0]}"
        learned.remarks.append(f"{path}:{row.from_line}: {said} could say more by {row.source}.")


def _report(
    args: argparse.Namespace, learned: Learned, diff: str, console: Console, *, written: bool
) -> None:
    for remark in learned.remarks:
        console.warning(remark)
    for missed in _by_reason(learned.unreachable):
        console.warning(f"Not asked: {missed}.")
    if args.format == "json":
        console.document(
            {
                "schema": 1,
                "rows": len(learned.rows),
                "diff": diff,
                "written": str(args.output) if written else "",
                "remarks": learned.remarks,
                "unreachable": learned.unreachable,
            }
        )
        return
    if diff:
        console.data(diff)
    if written:
        console.info(f"\nWrote {len(learned.rows)} rows to {args.output}. Use them: --catalog {args.output}")
    elif diff:
        console.info(f"\n{len(learned.rows)} new rows. Nothing was written; --apply writes {args.output}.")
    else:
        console.info("The catalog has all that was found.")
