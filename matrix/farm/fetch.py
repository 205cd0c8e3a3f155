"""``matrix farm fetch``: download everything that a lock installs and that its builds need."""

from __future__ import annotations

import shutil
import tomllib
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from builders.building.inputs import Limits, unmet_requirements, wheels_of
from builders.building.plan import plan
from builders.containers.image import copy_path, find_image, locked_image
from builders.environments.wheelhouse import check_of
from builders.index import Index
from builders.index_client.metadata import matching_files
from builders.pyproject import FILE, PyProject
from builders.sources.fetch import FetchedItem, FetchResult, MissingItem, fetch_all, fetch_published
from builders.storage.files import cache_root, link_or_copy, make_directories, sha256_of, share_finished
from builders.storage.io_errors import explain_io_errors
from builders.storage.lease import exclusive_lock
from builders.wheels.wheel import DamagedError
from matrix.api import package_indexes, write_lock
from matrix.building.completing import complete_lock
from matrix.building.locked import build_host_of, check_sources, wheels_of_lock
from matrix.building.planning import tasks_of
from matrix.command_line.options import (
    add_base_image,
    add_build_host_options,
    add_catalog,
    add_format,
    add_index,
    add_lock,
    add_names,
)
from matrix.input.locking import exclude_pick, same_image
from matrix.input.request import check_names
from matrix.show.json_document import JsonDocument
from matrix.show.render import format_size, shortened
from resolver.answers.resolve import resolve
from resolver.errors import EnvironmentLacksError, MatrixError, SourceError, UsageError
from resolver.model import Request, Resolution
from resolver.requirements import parse_requirement

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from matrix.command_line.context import Context
    from matrix.show.console import Console
    from resolver.model import BaseImage, Distribution, Requirement

SUMMARY = "download everything the lock installs and its builds need, and check all hashes"
EXAMPLE = "matrix farm fetch && matrix build-wheels --offline && matrix farm fetch --wheelhouse wheels"
_MOST_ERRORS = 10
_COPIED = 1 << 24  # bytes at a time
_BUILD_WHEELS = "wheels of torch and the build requirements"


class FetchDocument(JsonDocument, kw_only=True):
    """The items in the cache, and those that could not be fetched."""

    status: Literal["ok", "missing"]
    cache: str
    sources: list[FetchedItem]
    missing: list[MissingItem]
    bytes_fetched: int


_LEGACY = ("setuptools>=40.8.0", "wheel")
"""The build requirements of a project without ``[build-system]``; older pips also need wheel."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(parser, "names", metavar="NAME", help="fetch only these (default: everything)")
    add_lock(parser)
    parser.add_argument(
        "--only-sources", action="store_true", help="fetch only the sources of distributions that are built"
    )
    parser.add_argument(
        "--wheelhouse",
        metavar="DIR",
        type=Path,
        help="fetch only the files that pip installs, and put them into DIR together with our wheels from "
        "the index, for `matrix env --wheelhouse DIR`",
    )
    add_index(parser)
    add_build_host_options(parser)
    add_base_image(parser)
    parser.add_argument(
        "--copy-image",
        action="store_true",
        help="also copy the base image beside the lock, which then names the copy",
    )
    parser.add_argument(
        "--offline", action="store_true", help="download nothing; check whether the cache is complete"
    )
    add_catalog(parser)
    add_format(parser)


def execute(context: Context) -> int:
    """Run the command."""
    if context.args.copy_image:
        context = _with_copied_image(context)
    result = fetch_lock(context)
    args = context.args
    asked = {*context.lock.incomplete} & {*(check_names(args.names) or context.lock.incomplete)}
    if asked and not (result.missing or args.only_sources or args.wheelhouse):
        completed = _completed(context, sorted(asked))
        if completed is None:
            return 1
        if completed is not context:
            result = fetch_lock(completed)
    console = context.console
    report_problems(result, console)
    if args.format == "json":
        console.document(
            FetchDocument(
                status="missing" if result.missing else "ok",
                cache=str(cache_root()),
                sources=result.sources,
                missing=result.missing,
                bytes_fetched=result.bytes_fetched,
            )
        )
    else:
        console.text(_text(result, every=console.verbosity > 0))
        if args.wheelhouse is not None:
            command = f"matrix env --wheelhouse {quote(str(args.wheelhouse))}"
            console.info(f"Use the files in {args.wheelhouse} with `{command}`.")
    return exit_code_of(result)


def _with_copied_image(context: Context) -> Context:
    lock = context.lock
    if lock.image is None:
        msg = "The lock has no base image to copy."
        raise UsageError(msg, hint="Leave out --copy-image.")
    folder = context.lock_path.absolute().parent
    with explain_io_errors(folder, hint="Free some space; the copy then continues."):
        image = copy_image(lock.image, context.lock_path)
    if image != lock.image:
        lock = replace(lock, image=image)
        write_lock(lock, context.lock_path)
        context.console.info(f"{context.lock_path} names {image.path}, a copy of the base image.")
    return context.with_lock(lock)


def _completed(context: Context, names: Sequence[str]) -> Context | None:
    """Return the context with the completed lock, if this machine can ask build backends."""
    index = Index(context.args.index)
    try:
        return complete_lock(context, index, tasks_of(context, index, names), names)
    except EnvironmentLacksError as error:
        context.console.warning(f"The lock stays incomplete: {error.message}")
        return context


def exit_code_of(result: FetchResult) -> int:
    """Return the highest exit code of the items that could not be fetched; 0 if there are none."""
    return max((item.exit_code for item in result.missing), default=0)


def fetch_lock(context: Context, our_wheels: Mapping[str, Sequence[Path]] | None = None) -> FetchResult:
    """Fetch what the options name, and return all items; those that cannot be fetched are in the result.

    `our_wheels` are the wheels in the index that the lock means, by name; by default they are looked up.
    """
    args, console = context.args, context.console
    settings = context.settings
    names = check_names(args.names)
    lock = context.lock
    catalog = context.catalog_of_lock
    same_image(lock, args, catalog)
    check_sources(lock, settings, context.catalog, console)
    if args.wheelhouse is not None:
        if args.only_sources:
            msg = "--wheelhouse and --only-sources cannot be combined: pip does not install the sources."
            raise UsageError(msg)
        if not lock.is_complete:
            msg = "The lock leaves requirements to pip, so a wheelhouse would be incomplete."
            raise UsageError(msg, hint="Run `matrix resolve` with network access, which locks everything.")
    published = lock.published()
    locked = [] if args.only_sources else [pick for pick in published if not names or pick.name in names]
    fetch_files = partial(
        fetch_published,
        mirrors=settings.mirrors,
        offline=args.offline,
        check=check_of(lock, catalog, partial(exclude_pick, context.lock_path)),
        reporter=console,
    )
    with console.task("fetch"):
        result = fetch_files(locked)
        others = [name for name in names if name not in {pick.name for pick in published}]
        if args.wheelhouse is None and (others or not names):
            seen = {item.identity for item in result.sources}
            result += fetch_all(
                lock,
                catalog,
                others,
                mirrors=settings.mirrors,
                offline=args.offline,
                fetch_wheels=None if args.only_sources else partial(_fetch_wheels, context, seen),
                reporter=console,
            )
        if args.wheelhouse is not None:
            sdists = [item for item in result.sources if item.kind == "sdist"]
            if sdists:
                result += _fetch_build_requirements(context, sdists, fetch_files)
            built = lock.built(others) if others or not names else []
            index = Index(args.index)
            meant = our_wheels or wheels_of_lock(context, index)
            ours = {pick.name: meant[pick.name] for pick in built}
            _fill_wheelhouse(args.wheelhouse, result, lock, ours, index)
    return result


def report_problems(result: FetchResult, console: Console) -> None:
    """Print the warnings that are new, and an error for each item that could not be fetched."""
    for warning in result.warnings:
        if warning not in console.warnings:
            console.warning(warning)
    for item in result.missing[:_MOST_ERRORS]:
        console.error(f"{item.name} {item.version}: {item.message}", item.hint)
    if len(result.missing) > _MOST_ERRORS:
        console.error(f"Not shown: {len(result.missing) - _MOST_ERRORS} more. `--format json` lists all.")


def _fill_wheelhouse(
    folder: Path, result: FetchResult, lock: Resolution, ours: Mapping[str, Sequence[Path]], index: Index
) -> None:
    """Copy the fetched files of the lock and our wheels to a directory; warn about missing files.

    Other builds of our wheels are removed there, because pip would prefer the newest.
    """
    paths = [Path(item.path) for item in result.sources]
    paths += [path for wheels in ours.values() for path in wheels]
    with explain_io_errors(folder, hint="Free some space, or choose another directory."):
        make_directories(folder)
        for path in paths:
            link_or_copy(path, folder / path.name)
        for wheel in (path for wheels in ours.values() for path in wheels):
            for other in other_builds(folder, wheel.name):
                if other.name not in {path.name for path in paths}:
                    other.unlink()
    result.warnings += _wheelhouse_warnings(lock, ours, index)


def other_builds(folder: Path, wheel: str) -> list[Path]:
    """Return the wheels of the same labelled version in a directory."""
    project, version, *_ = wheel.split("-")
    return [path for path in folder.glob(f"{project}-{version}-*.whl") if path.name != wheel]


def _wheelhouse_warnings(
    lock: Resolution, wheels: Mapping[str, Sequence[Path]], index: Index
) -> Iterator[str]:
    missing = [name for name, built in wheels.items() if not built]
    if missing:
        message = f"{index.root} has no wheel of {shortened(missing)} yet, so the wheelhouse is incomplete."
        yield f"{message} Build with `matrix build-wheels`, then run the same command again."
    unmet = unmet_requirements(lock, wheels)
    if unmet:
        yield f"The wheelhouse lacks {shortened(unmet)}. Add these to the request, and resolve again."


def _fetch_wheels(
    context: Context, seen: set[str], lock: Resolution, picks: Sequence[Distribution]
) -> Iterator[FetchedItem | MissingItem]:
    """Fetch torch and the build requirements, with the Python and in the base image of the lock.

    `seen` are the identities of files that have been fetched.
    """
    args, settings = context.args, context.settings
    strategy = settings.index_strategy or "unsafe-best-match"
    limits = Limits(offline=args.offline, mirrors=settings.mirrors, strategy=strategy)
    log = cache_root() / "logs" / "fetch.log"
    log.unlink(missing_ok=True)
    if not picks:
        return
    try:
        names = [pick.name for pick in picks]
        empty_index = Index(cache_root() / "no-index")
        catalog = context.catalog_of_lock
        tasks = plan(lock, catalog, empty_index, build_host_of(context, names), names)
    except MatrixError as error:
        yield MissingItem.from_error("torch", lock.version_of("torch"), _BUILD_WHEELS, error)
        return
    for task in tasks:
        try:
            before, wheels = wheels_of(task, limits, log, context.console)
        except MatrixError as error:
            yield MissingItem.from_error(task.pick.name, task.pick.pinned, _BUILD_WHEELS, error)
            continue
        for wheel in wheels:
            identity = f"sha256:{wheel.sha256}"
            if identity in seen:
                continue
            seen.add(identity)
            yield FetchedItem(
                name=wheel.name,
                version=wheel.version,
                kind="wheel",
                origin=wheel.file,
                state="cached" if wheel.sha256 in before else "fetched",
                bytes=wheel.size,
                identity=identity,
                path=str(wheel.path),
            )


def _text(result: FetchResult, *, every: bool) -> str:
    """Return one line for each item; the files that pip installs share one line unless `every`."""
    if not result.sources and not result.missing:
        return "The lock builds nothing, and has no files: there is nothing to fetch."
    installed = [item for item in result.sources if item.purpose == "install"]
    lines = [
        f"{item.name} {item.version}  {item.state}  {format_size(item.bytes)}  {item.origin}"
        for item in result.sources
        if every or item.purpose == "build"
    ]
    if installed and not every:
        size = format_size(sum(item.bytes for item in installed))
        what = "distributions" if len(installed) > 1 else "distribution"
        lines.append(f"{len(installed)} {what} from package indexes  {size}  (-v lists them)")
    missing = result.missing
    lines += [f"{item.name} {item.version}  missing  {item.origin}" for item in missing[:_MOST_ERRORS]]
    fetched = sum(item.state == "fetched" for item in result.sources)
    answer = (
        f"{fetched} fetched ({format_size(result.bytes_fetched)}), {len(result.sources) - fetched} cached, "
        f"{len(missing)} missing. Cache: {cache_root()}"
    )
    return "\n".join([answer, *lines])


def _fetch_build_requirements(
    context: Context, sdists: Sequence[FetchedItem], fetch: Callable[[Sequence[Distribution]], FetchResult]
) -> FetchResult:
    """Fetch the declared build requirements of sdists and their dependencies, for the Python of the lock.

    Every sdist is built in a separate environment, so its requirements are resolved separately. Distributions
    of the lock are not fetched again. Those that a build backend requests only when it runs are unknown.
    """
    lock, result, left, seen = context.lock, FetchResult(), [*sdists], set[str]()
    locked = {pick.name: pick.version for pick in lock.picks}
    target = replace(lock.target, backend="cpu", gfx=(), driver=None, rocm=None, base_image=None)
    indexes = package_indexes(context.settings, context.inputs, context.console)
    while left:
        sdist = left.pop()
        try:
            needed = [
                one
                for one in _requires(sdist)
                if one.name not in locked
                or (one.specifier is not None and not one.specifier.allows(locked[one.name]))
            ]
            answer = resolve(context.catalog_of_lock, Request(target, tuple(needed)), indexes)
            if not isinstance(answer, Resolution):
                raise UsageError("; ".join(row.text for row in answer.core))
            if answer.left_open:
                msg = "No package index is configured or can be reached."
                raise EnvironmentLacksError(msg, hint="Check the network and pip's index.")
        except MatrixError as error:
            result.warnings.append(
                f"The build requirements of {sdist.name} {sdist.version} are missing: "
                f"{error.message.rstrip('.')}. Add them with `pip download`."
            )
            continue
        picks = [pick for pick in answer.distributions if pick.files and str(pick) not in seen]
        seen |= set(map(str, picks))
        fetched = fetch(picks)
        left += [item for item in fetched.sources if not item.path.endswith(".whl")]
        result += fetched
    return result


def _requires(sdist: FetchedItem) -> list[Requirement]:
    """Return the build requirements that an sdist declares, or the default ones if it declares none."""
    try:
        with Path(sdist.path).open("rb") as content:
            found = matching_files(Path(sdist.path).name, content, lambda path: path.parts[1:] == (FILE,))
            text = next((text for _, text in found), None)
        table = tomllib.loads(text.decode()) if text else {}
        project = msgspec.convert(table, PyProject)
    except (DamagedError, tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise SourceError(f"{sdist.origin} cannot be read: {error}") from None
    return list(map(parse_requirement, project.build_system.requires if "build-system" in table else _LEGACY))


def copy_image(locked: BaseImage, lock: Path) -> BaseImage:
    """Copy the base image of a lock to the lock's directory, unless it is there, and return that of the copy.

    A copy that was interrupted continues. Raise `OSError` if it cannot be written.
    """
    image = locked_image(locked)
    if image.path.is_dir():
        msg = f"The base image {image.path} is a directory. Only files are copied."
        raise UsageError(msg, hint="Make an image of it with `apptainer build image.sif DIRECTORY`.")
    copy = copy_path(image, lock)
    part = copy.with_name(f".{copy.name}.part")
    with exclusive_lock(part):
        if not copy.is_file() or find_image(copy).sha256 != image.sha256:
            with image.path.open("rb") as source, part.open("ab") as target:
                source.seek(target.tell())
                shutil.copyfileobj(source, target, _COPIED)
            if sha256_of(part) != image.sha256:
                part.unlink()
                msg = f"The copy of {image.path} differs from the image, which may have changed meanwhile."
                raise EnvironmentLacksError(msg, hint="Run the command again: it copies the whole image.")
            part.replace(copy)
            share_finished(copy)
    return replace(locked, path=str(copy), digest=image.digest)
