"""``matrix diff``: the consequences of a new driver, day, base image or catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from builders.constants import LOCK_FILE
from builders.containers.inspection import with_inspected_image
from matrix.command_line.options import add_format, add_names, add_target_options, date, nonempty
from matrix.input.inputs import Inputs
from matrix.input.locking import catalog_with_image_of, read_lock
from matrix.input.request import make_request
from matrix.input.settings import in_project, load_catalog, read_settings
from matrix.judging.locks import holding_of_lock
from matrix.judging.repair import replaced
from matrix.reading.installed import is_environment
from matrix.reading.items import Item
from matrix.reading.recognise import read
from matrix.show.consequences_text import consequences_text, differences_text, summary
from matrix.show.json_document import JsonDocument
from matrix.show.resolution_text import title_of
from resolver.answers.table import ROW_COMPONENTS
from resolver.compiling.problem_builder import window_of
from resolver.consequences import consequences
from resolver.consequences.holdings import Holding, Judge, between_locks
from resolver.consequences.questions import Consequence, Side
from resolver.errors import UsageError
from resolver.model import CoreItem, Target
from resolver.requirements import PAIRED_WITH_TORCH
from resolver.versions import join_words, minor

if TYPE_CHECKING:
    import argparse

    from matrix.command_line.context import Context
    from matrix.input.settings import Settings
    from resolver.facts.catalog import Catalog
    from resolver.model import Resolution

SUMMARY = "show the consequences of a new driver, day, base image or catalog, and the reasons"
EXAMPLE = "matrix diff --site lumi-g --driver 30.10"


_PAIR = 2
_PLATFORM = ("rocm", "glibc", "libstdc++", "os", "mpi")


class SideDocument(msgspec.Struct, kw_only=True):
    """One side of a comparison: a target and the facts."""

    target: Target
    catalogs: tuple[str, ...]


class DiffDocument(JsonDocument, kw_only=True):
    """The consequences of a change."""

    status: Literal["ok", "breaks"]
    before: SideDocument
    after: SideDocument
    consequences: list[Consequence]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(
        parser,
        "locks",
        metavar="LOCK",
        help="locks to check (default: matrix.lock, if there is one); two locks without another change are "
        "compared with each other, and so are two containers, environments, lists of what is installed, base "
        "images of the catalog, or one of them and a lock",
    )
    add_format(parser)
    add_target_options(parser)
    group = parser.add_argument_group("before", "by default the site itself, on the same day")
    group.add_argument("--from-date", metavar="YYYY-MM-DD", type=date, help="compare with that day")
    group.add_argument("--from-driver", metavar="VERSION", type=nonempty, help="compare with that driver")
    group.add_argument(
        "--from-base-image", metavar="NAME|PATH", type=nonempty, help="compare with that base image"
    )
    group.add_argument(
        "--from-catalog",
        metavar="DIR",
        action="append",
        default=[],
        help="compare with these facts instead of the shipped ones alone (repeatable)",
    )


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    settings_before, settings_after = _settings(context)
    before, after = (_side(context, settings) for settings in (settings_before, settings_after))
    ours = in_project(LOCK_FILE)
    paths = list(map(Path, args.locks)) or ([ours] if ours.exists() else [])
    compared = len(paths) > 1 and any(_is_content(path, context.catalog) for path in paths)
    locks = {} if compared else {path: read_lock(path) for path in paths}
    title = _title(before, after)
    remark = ""
    is_pair = compared or (len(locks) == _PAIR and before == after and bool(args.locks))
    match list(locks.items()):
        case [] if compared:
            title = " -> ".join(map(str, paths))
            changes = _between_environments(context, paths)
        case [(path, lock), (other_path, other_lock)] if is_pair:
            title = f"{path} -> {other_path}"
            changes = between_locks(
                (_side_of_lock(lock, path, settings_before), lock),
                (_side_of_lock(other_lock, other_path, settings_after), other_lock),
            )
        case _:
            holdings = list(_locks(context, locks, (before, settings_before), (after, settings_after)))
            changes = consequences(before, after, holdings)
            changed, judge = {change.name for change in changes if change.kind == "lock"}, Judge()
            for holding in holdings:
                if holding.name not in changed and (core := judge.broken_before(holding)):
                    why = "; ".join(item.text for item in core)
                    console.warning(f"{holding.name} is impossible on both sides: {why}.")
            remark = f"Locks checked: {len(holdings)}."
            if before == after:
                remark = "Both sides are the same. Name a change, such as --driver, --catalog or --from-date."
    breaks = any(change.effect == "breaks" for change in changes)
    if args.format == "json":
        console.document(
            DiffDocument(
                status="breaks" if breaks else "ok",
                before=_side_document(before),
                after=_side_document(after),
                consequences=changes,
            )
        )
    elif is_pair and changes and console.verbosity <= 0:
        first, second = map(str, paths)
        console.data(differences_text(changes, (first, second), console.out))
        console.info("\nReasons: `matrix diff -v`. All as data: --format json")
    else:
        console.text(f"{console.out.styled('bold', summary(changes))}\n{title}")
        if changes:
            console.text(f"\n{consequences_text(changes, sources=console.verbosity > 0)}")
        console.info(f"\n{remark}".rstrip())
        if changes:
            console.info("*: a fact that changed. Sources: -v. Every row of the table: --format json")
    return int(breaks)


def _side_document(side: Side) -> SideDocument:
    return SideDocument(target=side.request.target, catalogs=side.request.catalogs)


def _between_environments(context: Context, paths: Sequence[Path]) -> list[Consequence]:
    """Return the distributions and parts of the platform that two environments or locks have differently."""
    if len(paths) != _PAIR:
        msg = "Environments are compared in pairs."
        raise UsageError(msg, hint="Name two of them.")
    sides: list[dict[str, str]] = []
    for path in paths:
        with context.console.task(f"read {path}"):
            sides.append(_content_of(path, context.catalog))
    before, after = sides
    of_catalog = any(str(path) in context.catalog.image and not path.exists() for path in paths)
    if of_catalog:
        context.console.warning(
            "The catalog has only a part of an image, so only what both have is compared."
        )
    changes = []
    for name in sorted({*before, *after}):
        was, now = before.get(name, ""), after.get(name, "")
        is_partial = of_catalog or name in {*_PLATFORM, "python"}  # a lock does not state all of it
        if was == now:
            continue
        # One of two versions of the platform may be known less exactly: 6.4 and 6.4.4.
        shorter, longer = sorted((f"{was}.", f"{now}."), key=len)
        if name in _PLATFORM and longer.startswith(shorter):
            continue
        if not (is_partial and "" in {was, now}):
            reasons = [
                tuple(CoreItem(f"{change.before}: {change.reason}", "fact", change.source) for change in side)
                for side in (
                    replaced(context.catalog, [Item(name=name, version=version)])[1] for version in (was, now)
                )
            ]
            changes.append(
                Consequence(
                    effect="different",
                    kind="package",
                    name=name,
                    before=was,
                    after=now,
                    was=reasons[0] if was else (),
                    now=reasons[1] if now else (),
                )
            )
    return changes


def _is_content(path: Path, catalog: Catalog) -> bool:
    """Return whether an argument is an image, an environment or a list of its content, and not a lock."""
    is_list = path.suffix in {".json", ".txt"}
    return is_environment(path) or is_list or (str(path) in catalog.image and not path.exists())


def _content_of(path: Path, catalog: Catalog) -> dict[str, str]:
    if not _is_content(path, catalog):
        lock = read_lock(path)
        content = {name: lock.version_of(name) for name in _PLATFORM} | {"python": lock.version_of("python")}
        return content | {pick.name: pick.pinned for pick in lock.distributions}
    if not path.exists() and (row := catalog.image.get(str(path))):
        platform = (row.rocm, row.glibc, row.libstdcxx, row.os, row.mpi)
        return {"python": join_words(row.python), **dict(zip(_PLATFORM, platform, strict=True)), **row.holds}
    found = read(path)
    content = {item.name: item.version for item in found.items if item.installer != "conda"} | found.platform
    return content | {"python": minor(found.python) if found.python else ""}


def _settings(context: Context) -> tuple[Settings, Settings]:
    """Return the settings of both sides: those of ``matrix.toml`` with the options of each."""
    args, after, base = context.args, context.settings, read_settings()
    after = replace(after, catalog=[*base.catalog, *(args.catalog or [])])
    before = replace(
        after,
        date=args.from_date or after.date,
        driver=args.from_driver or base.driver,
        base_image=args.from_base_image or base.base_image,
        catalog=[*base.catalog, *args.from_catalog],
    )
    return before, after


def _side(context: Context, settings: Settings) -> Side:
    """Return the facts and the table of a side; only distributions in the catalog are compared."""
    catalog = with_inspected_image(load_catalog(settings), settings.base_image)
    known = {*catalog.package, *ROW_COMPONENTS, *PAIRED_WITH_TORCH}
    requirements = [requirement for requirement in context.inputs.requirements if requirement.name in known]
    settings = replace(settings, requirements=["torch"], keep_installed=None)
    inputs = Inputs(requirements=requirements)
    return Side(catalog, make_request(settings, catalog, context.today, inputs))


def _side_of_lock(lock: Resolution, path: Path, settings: Settings) -> Side:
    return Side(catalog_with_image_of(lock, path, settings), lock.request)


def _locks(
    context: Context,
    locks: Mapping[Path, Resolution],
    before: tuple[Side, Settings],
    after: tuple[Side, Settings],
) -> Iterator[Holding]:
    """Yield the locks of the site, each with its own request on the targets of both sides."""
    target, other = before[0].request.target, after[0].request.target
    for path, lock in locks.items():
        if lock.target.site != other.site:
            text = f"{path} was not checked, because it was resolved for {lock.target.site}."
            context.console.warning(f"{text} Name its site with --site.")
            continue
        changed = {name for name in ("driver", "base_image") if getattr(target, name) or getattr(other, name)}
        sides = tuple((side.request.target, settings) for side, settings in (before, after))
        yield holding_of_lock(lock, path, sides, changed)


def _title(before: Side, after: Side) -> str:
    pairs: dict[str, list[object]] = {
        "date": [side.request.target.date for side in (before, after)],
        "kernel driver": [_driver(side) for side in (before, after)],
        "base image": [side.request.target.base_image or "any" for side in (before, after)],
        "facts": [" + ".join(("shipped", *side.request.catalogs)) for side in (before, after)],
    }
    changed = [f"{what} {one} -> {other}" for what, (one, other) in pairs.items() if one != other]
    return "; ".join([title_of(after.request.target), *changed])


def _driver(side: Side) -> str:
    window = window_of(side.catalog, side.request)
    return side.request.target.driver or (window.driver if window else "unknown")
