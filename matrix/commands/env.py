"""``matrix env``: write the files that a consumer of the index reads."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from msgspec.structs import replace

from builders.building.inputs import unmet_requirements
from builders.constants import MOUNTED_INDEX
from builders.index import Index
from builders.machine.host import glibc_version
from matrix.building.locked import candidate_wheels, check_sources, wheels_of_lock
from matrix.command_line.options import add_catalog, add_index, add_lock, add_output
from matrix.consumers import Consumer, add_consumer, load_consumer
from matrix.consumers.shared.installation import (
    Installation,
    Layout,
    files_in_wheelhouse,
    index_of,
    mpi_modules_of,
    pin,
    write_files,
)
from matrix.input.request import host_glibc
from matrix.show.render import shortened
from resolver.compiling.known_bad import problems_of, replacements_of
from resolver.errors import MatrixError, UsageError
from resolver.versions import join_words

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from builders.findings import Finding
    from matrix.command_line.context import Context
    from matrix.consumers.shared.installation import WrittenFile
    from matrix.show.console import Console
    from resolver.model import Resolution

_URL = re.compile(r"""(?:[a-z+]+://|(?=\$))(?:[^\s'"\\`$]|\$\{[A-Z0-9_]+\})+""")
"""Matches a URL as the files may contain it: pip expands ``${VARIABLE}`` itself."""
_BINDING = {"uv", "pylock"}
"""Consumers whose files bind each distribution to its index or file."""
_DOWNLOAD = "pip download -r requirements.txt -d DIR"
SUMMARY = "write the file that a consumer of the index reads"
EXAMPLE = "matrix env --for cotainr -o env.yml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_consumer(parser, "the tool that reads the files: %(choices)s", required=True)
    add_lock(parser)
    add_index(parser)
    parser.add_argument(
        "--index-url",
        metavar="URL",
        help=f"URL of the index for the consumer (default: {MOUNTED_INDEX} for cotainr and venv, paths "
        "relative to the file for pylock, the real path for all others)",
    )
    parser.add_argument(
        "--wheelhouse",
        metavar="DIR",
        type=Path,
        help="a directory with all files (`matrix farm fetch --wheelhouse DIR`), used instead of any index",
    )
    parser.add_argument(
        "--environment",
        metavar="PATH",
        type=Path,
        help="the finished container (*.sif), run.sh of venv, or directory of an environment, for the "
        "consumers module, slurm-job and tykky-wrap (default: container.sif)",
    )
    add_output(
        parser,
        "the main file, or a directory for all files; a new name without a suffix is a directory "
        "(default: print the main file)",
        metavar="FILE|DIR",
    )
    add_catalog(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    folder = folder_of(args.output)
    files, installation, findings = emit(context)
    installs = not load_consumer(args.consumer).uses_environment
    if installs and installation.incomplete:
        console.info(installation.incomplete)
    check_sources(context.lock, context.settings, context.catalog, context.console)
    _write(files, args.output, folder, console)
    if not installs:
        return 0
    for pick in installation.unbuilt:
        console.warning(
            f"{pick.name} {pick.pinned} is not in {Index(args.index).root} yet. "
            "Build it with `matrix build-wheels`, and run this command again: it writes hashes only if all "
            "wheels are built."
        )
    for finding in findings:
        console.warning(str(finding))
    if warning := _confusable(installation, context):
        console.warning(warning)
    return 0


def folder_of(output: Path | None) -> Path:
    """Return the directory of the files for the value of ``--output``."""
    path = output or Path()
    return path if _is_folder(path) else path.parent


def _is_folder(path: Path) -> bool:
    return path.is_dir() or not (path.suffix or path.exists())


def emit(
    context: Context, our_wheels: Mapping[str, Sequence[Path]] | None = None, by_conda: Sequence[str] = ()
) -> tuple[Sequence[WrittenFile], Installation, Sequence[Finding]]:
    """Return a consumer's files for a lock, the installation, and notes; `our_wheels` as for `fetch_lock`.

    `by_conda` is what conda installs besides Python.
    """
    args = context.args
    consumer = load_consumer(args.consumer)
    _check_options(args, consumer)
    lock = context.lock
    folder = folder_of(args.output)
    main = consumer.file if args.output is None or _is_folder(args.output) else args.output.name
    index = Index(args.index)
    wheelhouse = args.wheelhouse.resolve() if args.wheelhouse else None
    environment = args.environment.absolute() if args.environment else None
    url = (args.index_url or "").rstrip("/")
    layout = Layout(main, index.root.resolve(), url, folder, wheelhouse, environment)
    row = context.catalog_of_lock.image.get(lock.image.name) if lock.image else None
    installation = Installation(
        lock,
        variables=context.run_variables(),
        has_compiler=bool(row and row.compiler),
        job=context.catalog_of_lock.job.get(lock.target.site),
        replacements=replacements_of(context.catalog_of_lock, lock),
        mpi_modules=mpi_modules_of(context.catalog_of_lock, lock),
        problems=problems_of(context.catalog_of_lock, lock),
        by_conda=by_conda,
        host_glibc=_host_glibc(context) if consumer.runs_on_host else ("", ""),
    )
    if args.wheelhouse:
        wheels: Mapping[str, Sequence[Path]] = _in_wheelhouse(args.wheelhouse, installation)
        named = {}
    else:
        found = candidate_wheels(lock, index)
        wheels = our_wheels or wheels_of_lock(context, index, found)
        several = {name for name, paths in found.items() if len(paths) > 1}
        named = {name: paths[0].name for name, paths in wheels.items() if name in several and len(paths) == 1}
    installation = replace(installation, wheels=wheels, named=named, left_open=_left_open(lock, wheels))
    files = consumer.emit(installation, layout)
    return files, installation, consumer.check(installation, layout)


def _host_glibc(context: Context) -> tuple[str, str]:
    """Return the glibc of the lock's site today, else that of this machine, with the name of either."""
    target = context.lock.target
    if target.site != "local" and (known := host_glibc(target, context.catalog_of_lock, context.today)):
        return known, target.site
    return glibc_version(), "this machine"


def _write(files: Sequence[WrittenFile], output: Path | None, folder: Path, console: Console) -> None:
    # A device or pipe, such as /dev/stdout, has no directory for other files.
    if output is None or (output.exists() and not (output.is_file() or output.is_dir())):
        console.data(files[0].text.rstrip())
        if files[1:]:
            names = ", ".join(file.name for file in files[1:])
            console.info(f"Required in the same directory: {names}. To write all files: -o DIR")
        return
    for path in write_files(files, folder, named=folder != output):
        console.info(f"Wrote {path}")


def _check_options(args: argparse.Namespace, consumer: Consumer) -> None:
    if args.index_url is not None and not (_URL.fullmatch(args.index_url) and args.index_url.isprintable()):
        msg = f"--index-url {args.index_url!r} is not a URL."
        raise UsageError(msg, hint="Example: https://wheels.example/simple, or file:///scratch/index/simple.")
    if args.wheelhouse is not None and args.index_url is not None:
        msg = "--wheelhouse and --index-url cannot be combined: with a wheelhouse no index is used."
        raise UsageError(msg)
    if args.environment is not None and args.environment.suffix == ".sqsh":
        msg = f"{args.environment} is a layer, which runs only over its image."
        raise UsageError(msg, hint=f"Name its script: --environment {args.environment}.files/run.sh")
    if args.environment is not None and not consumer.uses_environment:
        msg = f"--environment does not work with --for {args.consumer}, which makes an environment."
        raise UsageError(msg, hint="Use it with --for module, slurm-job or tykky-wrap.")


def _left_open(lock: Resolution, wheels: Mapping[str, Sequence[Path]]) -> list[str]:
    known = {one.name for one in lock.request.stated}
    unbuilt = [
        pick.name
        for pick in lock.built()
        if not (pick.files or pick.alias_of or wheels[pick.name] or pick.name in known)
    ]
    reasons = [f"the requirements of {name}, which is not built yet" for name in unbuilt]
    return [*lock.left_open, *unmet_requirements(lock, wheels), *reasons]


def _confusable(installation: Installation, context: Context) -> str:
    """Return a warning about distributions that pip may take from another index than the lock; else empty.

    Versions with a local label are not on PyPI. uv and pylock.toml bind each distribution to its index.
    """
    args = context.args
    if args.consumer in _BINDING or args.wheelhouse:
        return ""
    known = {row.index.rstrip("/") for row in context.catalog_of_lock.torch.values()}
    picks = [
        pick
        for pick in installation.on_top
        if pick.origin == "published" and index_of(pick) and pick.index.rstrip("/") not in known
        if "+" not in pick.pinned and not pick.direct_url and pick.name not in installation.hashes
    ]
    if picks:
        return (
            f"pip follows its own rule: it may take {shortened(map(pin, picks))} from PyPI instead of "
            f"{picks[0].index}, if PyPI has the same version. It cannot do so with --for uv."
        )
    if installation.searched:
        names = join_words(installation.searched, joiner="and")
        return f"For what the lock leaves open, pip takes the highest version on PyPI and on {names}."
    return ""


def _in_wheelhouse(wheelhouse: Path, installation: Installation) -> dict[str, list[Path]]:
    """Return our wheels in the wheelhouse; check that a complete lock has all of its files there."""
    complete = installation.is_complete
    command = f"matrix farm fetch --wheelhouse {quote(str(wheelhouse))}" if complete else _DOWNLOAD
    if not wheelhouse.is_dir() or not any(wheelhouse.glob("*.whl")):
        msg = f"There are no wheels in {wheelhouse}."
        raise MatrixError(msg, hint=f"Fill it with `{command}`.")
    files = files_in_wheelhouse(wheelhouse, installation.on_top)
    missing = [pick for pick in installation.on_top if pick.name not in files]
    if missing and complete:
        msg = f"The wheelhouse {wheelhouse} has no file for {shortened(map(pin, missing))}."
        built = any(pick.origin == "build" for pick in missing)
        first = "Build the wheels with `matrix build-wheels`, then fill it" if built else "Fill it"
        raise MatrixError(msg, hint=f"{first} with `{command}`.")
    names = {pick.name: files.get(pick.name) for pick in installation.built}
    wheels = {project: [wheelhouse / name] if name else [] for project, name in names.items()}
    if lacks := unmet_requirements(installation.lock, wheels, (path.name for path in wheelhouse.iterdir())):
        msg = f"The wheelhouse {wheelhouse} lacks {shortened(lacks)}. No index is used with it."
        raise MatrixError(
            msg, hint=f"Add these to the request, resolve again, then fill it with `{command}`."
        )
    return wheels
