"""``matrix completion``: the script with which a shell completes command lines, and what it calls."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import argcomplete
from argcomplete.shell_integration import shellcode

from builders.constants import LOCK_FILE
from matrix.cli import called_command, make_parser
from matrix.input.settings import in_project, load_catalog, read_settings
from matrix.show.meanings import meanings
from resolver.errors import MatrixError
from resolver.facts.catalog import Catalog
from resolver.facts.schema import KINDS
from resolver.lock import read_lock

if TYPE_CHECKING:
    from matrix.command_line.context import Context

SUMMARY = "print the script with which bash, zsh or fish completes commands, options and names"
EXAMPLE = "matrix completion bash"
_PLATFORM = ("base-image", "glibc", "python", "rocm", "torch")

_NAMES: dict[str, Callable[[Catalog], Iterable[str]]] = {
    "REQ": lambda catalog: [*catalog.package, *_PLATFORM],
    "NAME": lambda catalog: [*catalog.package, "torch"],
    "NAME|ID": lambda catalog: [*_of_lock(catalog), *meanings()],
    "KIND": lambda _: (kind.replace("_", "-") for kind in KINDS),
    "--site": lambda catalog: catalog.site,
    "--base-image": lambda catalog: catalog.image,
    "--from-base-image": lambda catalog: catalog.image,
    "--gfx": lambda catalog: catalog.gfx,
    "--package": lambda catalog: catalog.package,
    "--upgrade": lambda catalog: [*catalog.package, "torch"],
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    line = 'the shell; ~/.bashrc needs: eval "$(matrix completion bash)"'
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help=line)


def execute(context: Context) -> int:
    """Print the script."""
    context.console.data(shellcode(["matrix"], shell=context.args.shell).strip("\n"))
    return 0


def complete() -> None:
    """Print the completions of the command line that the shell's variables contain, and exit."""
    line = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].replace(" help ", " ", 1)
    os.environ |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    words = line.split(" ")[1:-1]
    called, _ = called_command([word for word in words if word])
    parser = make_parser(called)
    _add_completers(parser)
    argcomplete.autocomplete(parser, always_complete_options="long")
    sys.exit(0)


def _add_completers(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                _add_completers(subparser)
            continue
        spellings = action.option_strings or [str(action.metavar)]
        names = next((_NAMES[name] for name in spellings if name in _NAMES), None)
        if names is not None:
            action.completer = partial(_of_catalog, names)  # type: ignore[attr-defined]


def _of_lock(catalog: Catalog) -> Iterable[str]:
    lock = in_project(LOCK_FILE)
    return [pick.name for pick in read_lock(lock).picks] if lock.exists() else _NAMES["REQ"](catalog)


def _of_catalog(names: Callable[[Catalog], Iterable[str]], **_: object) -> list[str]:
    try:
        return sorted(set(names(load_catalog(read_settings()))))
    except MatrixError:  # a file of facts has an error, which the command itself reports
        return []
