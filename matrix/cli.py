"""The command line: parse it, run one command, turn every failure into a message and an exit code."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import NoReturn, TypeVar

import matrix.commands
from builders.storage.files import cache_root
from matrix import __version__
from matrix.command_line.context import Context
from matrix.command_line.options import (
    EXIT_CODES,
    GLOBAL_DEFAULTS,
    GLOBAL_WITH_VALUE,
    add_command,
    add_global_options,
    expand_gfx_flags,
    help_formatter,
)
from matrix.input.settings import use_cache
from matrix.show.console import Console, OutputError, ReaderGoneError
from resolver.errors import (
    EXIT_INTERRUPTED,
    InternalError,
    MatrixError,
    UsageError,
    closest_names,
    did_you_mean,
)

T = TypeVar("T", bound=str)
_REQUIRED = "the following arguments are required: "
_TYPOS = 2
"""Typos in a short command or value for which a correction is suggested."""
_GROUPS = {
    "from requirements to an environment": (
        "build-layer", "build-container", "resolve", "add", "remove", "check", "explain", "env",
    ),
    "more": ("build-wheels", "table", "diff", "report"),
    "maintain": ("farm", "index", "catalog", "completion", "help"),
}  # fmt: skip


_INSTEAD = {
    "inspect": "check THING", "verify": "check THING --run", "audit": "check WHEEL", "doctor": "check",
    "--log": "check LOG", "fetch": "farm fetch", "plan": "farm plan", "graph": "explain --graph",
    "lock": "resolve", "sync": "build-container", "install": "build-container",
}  # fmt: skip
"""What does the work of commands and options that other releases or other tools have."""


def commands() -> dict[str, Path]:
    """Return the files of all commands by name: a command is a module in ``matrix/commands``.

    It has ``SUMMARY``, ``EXAMPLE``, ``add_arguments(parser)`` and ``execute(context)``, which returns the
    exit code. Its help begins with the options in ``MOST_USED``, if it has many.
    """
    files = (file for folder in matrix.commands.__path__ for file in Path(folder).glob("*.py"))
    return {file.stem.replace("_", "-"): file for file in sorted(files) if file.stem != "__init__"}


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError` and suggests the likely correction."""

    def error(self, message: str) -> NoReturn:
        hint = ""
        unknown = re.search(r"unrecognized arguments: (\S+)", message)
        invalid = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if unknown:
            options = re.findall(r"(?<![\w-])--?[\w-]+", self.format_usage())
            argument = unknown[1].partition("=")[0]
            is_near = closest_names(argument, options)
            hint = did_you_mean(argument, options) if is_near else f"See {self.prog} --help."
            if argument in options:
                hint = f"Put it after `{self.prog}`."
            elif argument in _INSTEAD:
                hint = f"Use `matrix {_INSTEAD[argument]}`."
        elif invalid:
            message = message.partition(" (choose from")[0]
            if "COMMAND" in message:
                message = f"unknown command {invalid[1]!r}"
            names = re.findall(r"[\w-]+", invalid[2])
            begun = [name for name in names if name.startswith(f"{invalid[1]}-")]
            hint = did_you_mean(invalid[1], names, typos=_TYPOS)
            if begun:
                hint = f"Did you mean {' or '.join(begun)}?"
            elif invalid[1].startswith("gfx") and len(names) == 1:
                hint = f"Put it after the command: matrix {names[0]} --{invalid[1]}"
            if invalid[1] in _INSTEAD:
                hint = f"Use `matrix {_INSTEAD[invalid[1]]}`."
        elif message.startswith(_REQUIRED):
            hint = self._choices_of(message.removeprefix(_REQUIRED).split(", "))
        raise UsageError(message[:1].upper() + message[1:] + ".", hint=hint)

    def _choices_of(self, missing: Sequence[str]) -> str:
        for action in self._actions:
            names = {"/".join(action.option_strings), str(action.metavar), action.dest}
            if action.choices and names & {*missing}:
                return f"{missing[0]} is one of: {', '.join(map(str, action.choices))}."
        return f"See {self.prog} --help."

    def _print_message(self, message: str, file: object = None) -> None:  # noqa: ARG002
        """Print help or the version; argparse would ignore a failure."""
        Console().write(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code; a traceback is shown only with ``-vv``."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    console = Console(
        color=_value_of("--color", ("always", "never"), arguments) or "auto",
        progress=_value_of("--progress", ("json",), arguments) or "auto",
    )
    for number in (signal.SIGTERM, signal.SIGHUP):  # SIGTERM is what Slurm sends at the time limit
        signal.signal(number, signal.default_int_handler)
    try:
        try:
            return main_inner(arguments, console)
        finally:
            console.end_progress()
            console.flush()  # a full disk must fail here, not when the interpreter exits
    except MatrixError as error:
        return _fail(error, arguments, console)
    except KeyboardInterrupt:
        console.error("Interrupted.", "Finished work is kept; run the same command again to continue.")
        return EXIT_INTERRUPTED
    except ReaderGoneError:
        return 0
    except Exception as error:  # noqa: BLE001
        console.log_traceback()
        return _fail(_explain(error), arguments, console)


def _explain(error: Exception) -> MatrixError:
    from builders.storage.io_errors import explain_any_lack

    lack = explain_any_lack(error)
    if lack is not None:
        return lack
    message = f"Internal error: {type(error).__name__}: {error}"
    return InternalError(
        message, hint="This is a bug. Run the command again with -vv and report the traceback."
    )


def main_inner(arguments: Sequence[str], console: Console) -> int:
    """Run the program and return its exit code; raise failures."""
    called, arguments = called_command(arguments)
    os.getcwd()  # noqa: PTH109  fails early if the directory was deleted; pip and others would not explain it
    parser = make_parser(called)
    if not arguments:
        parser.print_help()
        return 0
    args, rest = parser.parse_known_args(expand_gfx_flags(arguments))
    if rest:  # names behind an option, where argparse ends the list
        if args.names_dest is None or any(argument.startswith("-") for argument in rest):
            args.parser.error(f"unrecognized arguments: {' '.join(rest)}")
        setattr(args, args.names_dest, [*getattr(args, args.names_dest), *rest])
    console.verbosity = -1 if args.quiet else args.verbose
    console.color = args.color
    console.progress_mode = args.progress
    use_cache()
    if args.debug:
        console.log_to(cache_root() / "logs")
    return int(args.execute(Context(args, console)))


def called_command(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command that is called, and the arguments; ``help COMMAND`` becomes ``COMMAND --help``."""
    for number, word in enumerate(arguments):
        if word in {"-h", "--help"}:
            break
        if word.startswith("-") or (number and arguments[number - 1] in GLOBAL_WITH_VALUE):
            continue
        if word == "version":
            return "", ["--version"]
        if word != "help":
            return word, list(arguments)
        asked = [*arguments[:number], *arguments[number + 1 :], "--help"]
        return called_command(asked)
    return "", list(arguments)


def make_parser(called: str = "") -> argparse.ArgumentParser:
    """Return the parser with the arguments of one command, whose module is imported, or all summaries."""
    parser = _Parser(
        prog="matrix",
        description="Resolve, build, check and publish PyTorch extension wheels for AMD ROCm.",
        epilog=EXIT_CODES,
        formatter_class=help_formatter(),
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="version", version=f"matrix {__version__}")
    add_global_options(parser)
    parser.set_defaults(**GLOBAL_DEFAULTS)
    subparsers = parser.add_subparsers(
        metavar="COMMAND",
        required=True,
        parser_class=_Parser,
        prog=parser.prog,  # to find the name, argparse would format the usage, which imports many modules
    )
    files = commands()
    if called in files:
        command = import_module(f"matrix.commands.{called.replace('-', '_')}")
        add_command(subparsers, called, command)
        return parser
    summaries = {name: _summary(file) for name, file in files.items()}
    summaries["help"] = "show the help of a command"
    for name in summaries:
        subparsers.add_parser(name)
    for title, names in _GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names:
            if name in summaries:  # these actions are only for the help
                group._group_actions.append(argparse.Action([], name, metavar=name, help=summaries[name]))  # noqa: SLF001
    options, *listed = parser._action_groups[1:]  # noqa: SLF001
    parser._action_groups[1:] = [*listed, options]  # noqa: SLF001
    return parser


def _summary(file: Path) -> str:
    """Return the ``SUMMARY`` of a command without importing its module, which may import many others."""
    import ast

    line = re.search(r'^SUMMARY = (["\'].*["\'])$', file.read_text(encoding="utf-8"), re.MULTILINE)
    return str(ast.literal_eval(line[1])) if line else ""


def _fail(error: MatrixError, arguments: Sequence[str], console: Console) -> int:
    if isinstance(error, OutputError) or not _value_of("--format", ("json", "brief"), arguments):
        console.error(error.message, error.hint)
        console.show_log()
        return error.exit_code
    from matrix.show.json_document import ErrorDocument

    document = ErrorDocument(id=error.id, message=error.message, hint=error.hint, **error.details)
    try:
        console.document(document)
        console.flush()
    except OutputError as failure:
        console.error(error.message, error.hint)
        console.error(failure.message)
    except ReaderGoneError:
        pass
    console.show_log()
    return error.exit_code


def _value_of(option: str, values: Sequence[T], arguments: Sequence[str]) -> T | None:
    """Return the value of an option before the command line is parsed, because parsing may fail."""
    pairs = {*pairwise(arguments), *(tuple(word.split("=", 1)) for word in arguments)}
    return next((value for value in values if (option, value) in pairs), None)
