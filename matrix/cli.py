"""The command line: parse, run one command, turn every failure into an exit code and a sentence."""

from __future__ import annotations

import argparse
import errno
import gc
import re
import signal
import sys
from importlib import import_module
from itertools import pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from builders.cache import cache_root
from matrix.console import Console
from matrix.options import expand_target_flags
from resolver.errors import EnvironmentLacksError, MatrixError, UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "resolve": "choose versions that fit, say why, write matrix.lock",
    "table": "what fits together at a site, whole: images, torch and Python by packages",
    "explain": "why a version was chosen, by which facts, from which sources",
    "graph": "show what needs what, to run and to be built, and in which order",
    "fetch": "bring the sources that the lock builds from into the cache, checked",
    "build-wheels": "build what the lock needs and the index lacks, prove it, publish it",
    "audit": "say what is in a wheel and what is wrong with it",
    "index": "list, check, tend and serve the local index",
    "env": "write the file that a consumer of the index reads",
    "check": "say what pip will refuse, drop or get wrong in an environment file",
    "run": "run a command that sees the index, such as cotainr",
    "verify": "say whether a built container or environment is what the lock says",
    "doctor": "say what this machine and a base image have, and what each lack means",
    "catalog": "list the facts, check a file of them, or look for new ones",
}
"""Every command with what it does. Its module is imported only when it is called: most of the time
of a short command would go into importing the others."""
INTERRUPTED = 130
_GARBAGE = 50_000
"""After how many new objects cycles are looked for. Nearly all that a command makes lives until its end,
so looking as often as Python does by itself costs a tenth of the time and finds nothing."""

_NO_FILE = {
    errno.EISDIR: "is a directory, and a file is wanted",
    errno.ENAMETOOLONG: "is longer than the name of a file may be",
}
"""What is wrong with a name that somebody gave, wherever it was given."""
_EXIT_CODES = (
    "exit codes: 0 done, 1 the answer is no, 2 bad input, 3 the machine lacks something, 130 interrupted"
)


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of printing, and knows what was probably meant."""

    def error(self, message: str) -> NoReturn:
        hint = ""
        unknown = re.search(r"unrecognized arguments: (\S+)", message)
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if unknown:
            known = [text for action in self._actions for text in action.option_strings]
            typed = unknown[1].partition("=")[0]
            guess = did_you_mean(typed, known)
            hint = guess if guess.startswith("Did") else f"See {self.prog} --help."
            if typed in known:
                hint = f"Put it behind {self.prog}."
        elif wrong:
            hint = did_you_mean(wrong[1], re.findall(r"[\w-]+", wrong[2]))
        raise UsageError(message[:1].upper() + message[1:] + ".", hint=hint)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and give its exit code; no failure escapes as a traceback without ``-vv``."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    console = Console()
    gc.set_threshold(_GARBAGE)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        code = main_inner(arguments, console)
        console.write("")  # what is not written yet fails here, not when the interpreter ends
    except MatrixError as error:
        return _fail(error, arguments, console)
    except KeyboardInterrupt:
        console.error("Interrupted.", "What was finished is kept; the same command goes on from there.")
        return INTERRUPTED
    except BrokenPipeError:
        console.drop()
        sys.stderr.close()
        return 0
    except OSError as error:
        if console.verbosity > 1:
            raise
        return _fail(_refusal(error), arguments, console)
    except Exception as error:
        if console.verbosity > 1:
            raise
        text = f"This is a fault of the program: {type(error).__name__}: {error}"
        return _fail(
            MatrixError(text, hint="Run again with -vv and report what it prints."),
            arguments,
            console,
        )
    return code


def _refusal(error: OSError) -> MatrixError:
    """Say what the system refused: what no file can be called is bad input, all else the machine's."""
    from resolver.versions import shorten

    name = str(error.filename or "")
    where = f" {shorten(name)}" if name else ""
    if name and Path(name).is_relative_to(cache_root()):
        hint = "That is the cache: let XDG_CACHE_HOME name a directory that can be written."
    elif name and error.errno in _NO_FILE:
        return UsageError(f"{shorten(name)} {_NO_FILE[error.errno]}.", hint="Name a file that can be there.")
    else:
        hint = ""
    return EnvironmentLacksError(f"The system refused: {error.strerror or error}{where}.", hint=hint)


def _interrupt(number: int, frame: object) -> NoReturn:  # noqa: ARG001  what signal.signal calls
    """Treat a polite kill, such as Slurm's at the time limit or a lost connection, as an interrupt."""
    raise KeyboardInterrupt


def main_inner(arguments: Sequence[str], console: Console) -> int:
    """Run the program; failures are raised."""
    parser = make_parser(called=next((one for one in arguments if one in COMMANDS), ""))
    args, rest = parser.parse_known_args(expand_target_flags(arguments))
    if rest and not _taken(args, rest):
        args.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    console.verbosity = -1 if args.quiet else args.verbose
    return int(args.execute(args, console))


def _taken(args: argparse.Namespace, rest: Sequence[str]) -> bool:
    """Give names that stand behind an option to the command's list of names, which argparse ends there."""
    lists = [action.dest for action in args.parser._actions if action.nargs == "*"]  # noqa: SLF001
    if not lists or any(one.startswith("-") for one in rest):
        return False
    setattr(args, lists[0], [*getattr(args, lists[0]), *rest])
    return True


def make_parser(called: str) -> argparse.ArgumentParser:
    """Make the parser of the command line, with the arguments of the command that is called."""
    parser = _Parser(
        prog="matrix",
        description="Resolve and build PyTorch extension wheels for AMD ROCm.",
        epilog=_EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for name, summary in COMMANDS.items():
        if name == called:
            _add_command(commands, name, summary)
        else:
            commands.add_parser(name, help=summary)
    return parser


def _add_command(commands: argparse._SubParsersAction[_Parser], name: str, summary: str) -> None:
    command = import_module(f"matrix.commands.{name.replace('-', '_')}")
    one = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[:1].upper()}{summary[1:]}.",
        epilog=f"example: {command.EXAMPLE}\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(one)
    _add_verbosity(one)
    one.set_defaults(execute=command.execute, parser=one, quiet=False, verbose=0)
    for word, action in _actions_of(one).items():
        _add_verbosity(action)
        action.set_defaults(parser=action)
        action.epilog = f"example: {command.EXAMPLES[word]}\n{_EXIT_CODES}"
        action.formatter_class = argparse.RawDescriptionHelpFormatter


def _actions_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Give the parsers of a command that does one of several things."""
    found = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))  # noqa: SLF001
    return {name: action for one in found for name, action in one.choices.items()}


def _add_verbosity(parser: argparse.ArgumentParser) -> None:
    """Add the options that stand behind a command or behind what it does; one says nothing of the other."""
    parser.add_argument(
        "-q", "--quiet", action="store_true", default=argparse.SUPPRESS, help="say only results and errors"
    )
    parser.add_argument(
        "-v", "--verbose", action="count", default=argparse.SUPPRESS, help="say more; -vv shows tracebacks"
    )


class _Version(argparse.Action):
    """Print the version; looking it up takes longer than most commands, so it is not done before."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:  # noqa: ANN401
        from importlib.metadata import version

        parser.exit(message=f"matrix {version('rocm-matrix')}\n")


def _fail(error: MatrixError, arguments: Sequence[str], console: Console) -> int:
    if _wants_json(arguments):
        document = {
            "schema": 1,
            "status": "error",
            "id": error.id,
            "message": error.message,
            "hint": error.hint,
        }
        console.document(document | dict(error.details))
    else:
        console.error(error.message, error.hint)
    return error.exit_code


def _wants_json(arguments: Sequence[str]) -> bool:
    own = list(takewhile(lambda one: one != "--", arguments))
    return "--format=json" in own or ("--format", "json") in pairwise(own)
