"""The options that several commands share, each added by one function; when builds stop is last."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders.constants import INDEX_DIRECTORY, LOCK_FILE, NO_COMPILER_CACHE
from matrix.input.settings import EVERYTHING, in_project
from matrix.show.render import columns_of
from resolver.errors import UsageError
from resolver.requirements import normalize_name, required_name
from resolver.versions import shorten

if TYPE_CHECKING:
    from types import ModuleType

    from resolver.reporter import Reporter


EXIT_CODES = (
    "exit codes: 0 success, 1 the answer is no, 2 bad usage or input, 3 a tool or the network is missing,\n"
    "4 not everything could be judged, 70 internal error, 130 interrupted"
)
_ARCHITECTURE_FLAG = re.compile(r"--(gfx\d+[0-9a-z-]*)")

_SPARE = 60.0
"""Seconds between the stop and the end of a Slurm job: ending all programs takes up to 30."""
_LARGEST_SHARE = 0.1
"""Maximum fraction of the remaining time to keep free, so that short jobs build something, too."""


def expand_gfx_flags(arguments: Iterable[str]) -> list[str]:
    """Replace flags such as ``--gfx90a`` with ``--gfx gfx90a``, for architectures of any overlay.

    Examples
    --------
    >>> expand_gfx_flags(["resolve", "--gfx90a"])
    ['resolve', '--gfx', 'gfx90a']
    """
    expanded: list[str] = []
    for argument in arguments:
        flag = _ARCHITECTURE_FLAG.fullmatch(argument)
        expanded += ["--gfx", flag[1]] if flag else [argument]
    return expanded


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe the target."""
    group = parser.add_argument_group("target")
    group.add_argument(
        "--site",
        metavar="NAME|FILE",
        type=nonempty,
        help="a site of the catalog, or a TOML file that defines a site (default: lumi-g; local for the CPU "
        "backend and for GPU architectures that lumi-g does not have)",
    )
    group.add_argument(
        "--date",
        "--exclude-newer",
        metavar="YYYY-MM-DD",
        type=date,
        help="the site, the releases and the package indexes as of that day (default: today)",
    )
    group.add_argument("--backend", choices=("rocm", "cpu"), help="default: the site's")
    group.add_argument(
        "--gfx",
        metavar="A,B",
        type=names,
        action="extend",
        help="GPU architectures (default: the site's); each is also a flag: --gfx90a",
    )
    group.add_argument(
        "--driver", metavar="VERSION", type=nonempty, help="AMD kernel driver (default: the site's)"
    )
    add_base_image(group)
    group.add_argument(
        "--no-base-image",
        action="store_true",
        help="no base image (default: one of the site's, if it lists any and ROCm is needed)",
    )
    add_catalog(group)
    group.add_argument("--rocm", metavar="SPEC", type=nonempty, help="ROCm, such as 6.2 or '>=6.2,<6.5'")
    group.add_argument("--python", metavar="SPEC", type=nonempty, help="Python, such as 3.12")
    group.add_argument(
        "--prefer",
        choices=("advised", "newest", "proven", "oldest"),
        help="which of several solutions to choose; advised (default): as the site advises, then newest",
    )
    group.add_argument(
        "--no-prebuilt",
        action="store_true",
        help="build packages that have a recipe, and requested ones that have an sdist, instead of taking "
        "compiled wheels of others",
    )
    group.add_argument(
        "--no-network-plugin",
        action="store_true",
        help="leave out RCCL's network plugin at sites with Slingshot: on several nodes RCCL then uses TCP",
    )


def add_input_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name files with requirements."""
    group = parser.add_argument_group("inputs")
    add = partial(group.add_argument, type=nonempty)
    several = partial(add, action="append")
    text = "a pip requirements file (repeatable)"
    several("-r", "--requirement", dest="requirement_files", metavar="FILE", help=text)
    text = "a pip constraints file (repeatable)"
    several("-c", "--constraint", dest="constraint_files", metavar="FILE", help=text)
    text = "requirements that replace all others of these names"
    several("--override", dest="override_files", metavar="FILE", help=text)
    add("--env", metavar="FILE", help="a conda environment file: its pip section and its Python")
    add("--project", metavar="FILE|DIR", help="the dependencies in a pyproject.toml")
    text = "also the optional dependencies NAME of the project (repeatable)"
    several("--extra", dest="extras", metavar="NAME", help=text)
    text = "also the dependency group NAME of the project (repeatable)"
    several("--group", dest="groups", metavar="NAME", help=text)


def add_index_access(parser: argparse.ArgumentParser) -> None:
    """Add the options for package indexes and for working offline."""
    group = parser.add_argument_group("package indexes")
    group.add_argument(
        "--index-url", metavar="URL", type=nonempty, help="the package index (default: that of pip)"
    )
    group.add_argument(
        "--extra-index-url",
        metavar="URL",
        type=nonempty,
        action="append",
        help="another package index (repeatable)",
    )
    group.add_argument(
        "--index-strategy",
        choices=("first-index", "unsafe-best-match"),
        help="indexes of a project: only the first that has it, extra indexes before the default one "
        "(first-index), or all of them, as pip does (unsafe-best-match); default: first-index, but those of "
        "pip's configuration are equal",
    )
    group.add_argument("--offline", action="store_true", help="use the cache only")


def add_base_image(parser: argparse._ActionsContainer) -> None:
    """Add ``--base-image``."""
    parser.add_argument(
        "--base-image",
        metavar="NAME|PATH",
        type=nonempty,
        help="base image: a name from the catalog, a file, or the SBOM of one",
    )


def add_catalog(parser: argparse._ActionsContainer) -> None:
    """Add ``--catalog``."""
    parser.add_argument(
        "--catalog", metavar="DIR", action="append", help="facts that overlay the shipped ones (repeatable)"
    )


def add_lock(parser: argparse._ActionsContainer) -> None:
    """Add ``--lock``, with ``matrix.lock`` as default."""
    parser.add_argument(
        "--lock",
        metavar="FILE",
        type=Path,
        default=in_project(LOCK_FILE),
        help="the lock (default: %(default)s)",
    )


def add_locks(parser: argparse._ActionsContainer) -> None:
    """Add ``--lock``, which names one lock or several."""
    parser.add_argument(
        "--lock",
        dest="locks",
        metavar="FILE",
        type=Path,
        action="append",
        help="the lock (default: matrix.lock); repeatable",
    )


def add_index(parser: argparse._ActionsContainer) -> None:
    """Add ``--index``, with ``index`` as default."""
    parser.add_argument(
        "--index",
        metavar="DIR",
        type=Path,
        default=in_project(INDEX_DIRECTORY),
        help="the index (default: %(default)s)",
    )


def add_output(
    parser: argparse._ActionsContainer,
    help: str = "where to write (default: stdout)",  # noqa: A002
    *,
    metavar: str = "FILE",
    default: Path | None = None,
) -> None:
    """Add ``-o``."""
    parser.add_argument("-o", "--output", metavar=metavar, type=output_path, default=default, help=help)


def add_format(parser: argparse._ActionsContainer, formats: tuple[str, ...] = ("text", "json")) -> None:
    """Add ``--format``; the first format is the default."""
    parser.add_argument("--format", choices=formats, default=formats[0], help="default: %(default)s")


def add_names(parser: argparse.ArgumentParser, dest: str, *, metavar: str, help: str) -> None:  # noqa: A002
    """Add a list of names, which are accepted before, between and after the options."""
    parser.add_argument(dest, nargs="*", metavar=metavar, help=help)
    parser.set_defaults(names_dest=dest)


GLOBAL_DEFAULTS: dict[str, Any] = {
    "quiet": False,
    "verbose": 0,
    "debug": False,
    "color": "auto",
    "progress": "auto",
}
"""Default values of the global options, which are accepted before and after the command."""

GLOBAL_WITH_VALUE = {"--color", "--progress"}
"""The global options that take a value, which may be a separate word."""


def add_global_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that are accepted before and after the command, with no default."""
    add = partial(parser.add_argument, default=argparse.SUPPRESS)
    add("-q", "--quiet", action="store_true", help="print only results, warnings and errors")
    add("-v", "--verbose", action="count", help="print more; -vv shows tracebacks")
    add("--debug", action="store_true", help="write a log file; its path is printed if the command fails")
    add("--color", choices=("auto", "always", "never"), help="when to use colours (default: auto)")
    add(
        "--progress",
        choices=("auto", "board", "plain", "json", "none"),
        help="how to show progress (default: auto: a board on a terminal, else plain lines)",
    )


def add_action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, example: str
) -> argparse.ArgumentParser:
    """Add one action of a command, such as ``list`` of ``matrix index``, with an example in its help."""
    parser = actions.add_parser(name, **help_texts(summary, example))
    add_global_options(parser)
    parser.set_defaults(parser=parser)
    return parser


def add_command(commands: argparse._SubParsersAction[Any], name: str, command: ModuleType) -> None:
    """Add a command, or an action of one that is a module of its own: `matrix.cli.commands` says what it has.

    A command whose actions are modules has no ``execute``.
    """
    parser = commands.add_parser(name, **help_texts(command.SUMMARY, command.EXAMPLE))
    parser.set_defaults(execute=getattr(command, "execute", None), parser=parser, names_dest=None)
    command.add_arguments(parser)
    add_global_options(parser)
    options = {*getattr(command, "MOST_USED", ())}
    if not options:
        return
    first = parser.add_argument_group("most used")
    groups = parser._action_groups
    for group in groups[:-1]:
        for action in [action for action in group._group_actions if {*action.option_strings} & options]:
            group._group_actions.remove(action)
            first._group_actions.append(action)
    groups.insert(1, groups.pop())


def defaults_of(command: ModuleType, *words: str) -> dict[str, Any]:
    """Return the options of a command for the words of a command line."""
    return vars(parser_of(command).parse_args(words))


def parser_of(command: ModuleType) -> argparse.ArgumentParser:
    """Return a parser with the arguments of a command only."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser


def help_texts(summary: str, example: str) -> dict[str, Any]:
    """Return the keyword arguments of a parser with that summary and example in its help."""
    return {
        "help": summary,
        "description": f"{summary[:1].upper()}{summary[1:]}.",
        "epilog": f"example: {example}\n{EXIT_CODES}",
        "formatter_class": help_formatter(),
        "allow_abbrev": False,
    }


def help_formatter() -> Any:  # noqa: ANN401  a class, for argparse
    """Return the formatter of a parser. Without a width, argparse imports `shutil` with all compressions."""
    width = (columns_of(sys.stdout) or 80) - 2
    return partial(argparse.RawDescriptionHelpFormatter, width=width)


def output_path(text: str) -> Path:
    """Return the value of ``-o``; raise `UsageError` if it is ``-`` or its directory does not exist."""
    path = Path(text)
    if text == "-":
        msg = "-o - is not supported."
        raise UsageError(msg, hint="Use -o /dev/stdout for stdout, or -o ./- for a file of this name.")
    if not path.parent.exists():
        msg = f"The directory {path.parent} does not exist."
        raise UsageError(msg, hint="Create it with `mkdir -p`, or name another path.")
    return path


def nonempty(text: str) -> str:
    """Reject an empty value, e.g. from an unset shell variable."""
    if not text.strip():
        msg = "the value is empty"
        raise argparse.ArgumentTypeError(msg)
    return text


def normalized_name(text: str) -> str:
    """Normalize the name of a distribution."""
    name = normalize_name(text)
    if required_name(name) != name:
        raise argparse.ArgumentTypeError(f"{shorten(text)!r} is not the name of a distribution")
    return name


def positive(text: str) -> int:
    """Convert a text to a whole number above 0."""
    if not (text.isdecimal() and int(text) > 0):
        number = re.match(r"[1-9]\d*", text)
        write = f": write {number[0]}" if number else ""
        raise argparse.ArgumentTypeError(f"{shorten(text)!r} is not a whole number above 0{write}")
    return int(text)


def date(text: str) -> datetime.date:
    """Convert a text in ISO form to a date."""
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{shorten(text)!r} is not a valid date; use the form 2026-02-25"
        ) from None


def names(text: str) -> list[str]:
    """Return the names in a list that is separated by commas."""
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(
            f"{shorten(text)!r} contains an empty name; use the form gfx90a,gfx942"
        )
    return names


def add_build_host_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the build host, its Python and its CPU."""
    parser.add_argument("--in", dest="where", choices=("host", "apptainer", "podman"), help="where to build")
    parser.add_argument(
        "--python-from",
        metavar="DIR",
        type=Path,
        help="prefix of the Python to build for, such as a conda environment, if the image has none",
    )
    parser.add_argument(
        "--cpu",
        metavar="NAME",
        default="",
        help="CPU to compile host code for, like -march of compilers (default: the site's, if known)",
    )


def add_kept(parser: argparse.ArgumentParser) -> None:
    """Add the options that keep what is installed."""
    parser.add_argument(
        "--keep-installed",
        metavar="FILE|image",
        help="keep installed distributions as they are: those listed in FILE (output of pip list or pip "
        "freeze, an SBOM), or those of the chosen base image",
    )
    parser.add_argument(
        "--replace",
        metavar="NAME",
        type=normalized_name,
        action="append",
        help="do not keep the installed NAME, so that another version may be installed over it (repeatable)",
    )


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """Add all options that are a part of a request."""
    add_kept(parser)
    parser.add_argument(
        "--upgrade",
        metavar="NAME",
        type=normalized_name,
        action="append",
        nargs="?",
        const=EVERYTHING,
        help="upgrade NAME in the existing lock, and change as little else as possible (repeatable); without "
        "NAME, upgrade everything",
    )
    add_ops(parser)
    add_input_options(parser)
    add_index_access(parser)
    add_target_options(parser)


def add_ops(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses the ops of a package, which is a part of the request."""
    parser.add_argument(
        "--ops",
        metavar="NAME:A,B",
        action="append",
        type=nonempty,
        help="compile these ops of a package instead of those of its recipe, such as deepspeed:fused_adam "
        "(repeatable)",
    )


def _compiler_cache(text: str) -> str:
    return text if text == NO_COMPILER_CACHE else str(Path(text).absolute())


def add_limits(parser: argparse.ArgumentParser, *, offline: bool = True) -> None:
    """Add the limits of builds: compile jobs, memory and, unless the command has it anyway, network."""
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=positive,
        help="parallel compile jobs (default: as many as cores and memory allow)",
    )
    parser.add_argument("--memory", metavar="GIB", type=positive, help="memory that builds may use")
    if offline:
        parser.add_argument(
            "--offline", action="store_true", help="use sources and wheels from the cache only"
        )
    parser.add_argument(
        "--compiler-cache",
        metavar="PATH|none",
        type=_compiler_cache,
        help="the ccache to compile with, or none (default: ccache, if it is on PATH)",
    )


def stop_time(console: Reporter) -> float | None:
    """Return when to stop in this Slurm job, in seconds since the epoch; None if that is unknown.

    Not every release of Slurm sets ``SLURM_JOB_END_TIME``.
    """
    number = os.environ.get("SLURM_JOB_ID", "")
    if not number:
        return None
    text = os.environ.get("SLURM_JOB_END_TIME", "")
    end = float(text) if text.isdecimal() else _end_of_job(number)
    if end is None:
        return None
    end -= min(_SPARE, max(0.0, end - time.time()) * _LARGEST_SHARE)
    moment = datetime.datetime.fromtimestamp(end, tz=datetime.UTC).astimezone()
    console.info(f"Builds stop at {moment:%H:%M:%S}, before the Slurm job ends.")
    return end


def _end_of_job(number: str) -> float | None:
    from builders.machine.process import output_of

    text = output_of(["squeue", "--noheader", f"--job={number}", "--format=%e"]).strip()
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:  # N/A without a time limit
        return None
