"""The command line as data, read from the parsers, and its man pages and tables of options."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matrix.cli import commands, make_parser

if TYPE_CHECKING:
    from collections.abc import Iterable

_SECTIONS = {
    "exit status": "0 success; 1 the answer is no; 2 bad usage or input; 3 a tool or the network is missing; "
    "70 internal error; 130 interrupted.",
    "files": "matrix.toml, matrix.lock, index/, $XDG_CACHE_HOME/matrix",
}


@dataclass(frozen=True)
class Argument:
    """One option or positional argument."""

    flags: tuple[str, ...]
    value: str
    help: str
    group: str

    @property
    def title(self) -> str:
        """The flags with the value, such as ``-o, --output FILE``."""
        return f"{', '.join(self.flags)} {self.value}".strip()


@dataclass(frozen=True)
class Command:
    """A command, or an action of a command."""

    name: str
    summary: str
    example: str
    arguments: tuple[Argument, ...]
    actions: tuple[Command, ...]

    @property
    def synopsis(self) -> str:
        """The command with its positional arguments."""
        positional = [argument.value for argument in self.arguments if not argument.flags]
        words = [f"matrix {self.name}", "[OPTION...]", *positional, *(["ACTION ..."] if self.actions else [])]
        return " ".join(words)


def read_commands() -> list[Command]:
    """Return all commands in alphabetical order."""
    return [_command(name, _subparsers(make_parser(name))[name]) for name in commands()]


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _command(name: str, parser: argparse.ArgumentParser) -> Command:
    arguments = [
        _argument(parser, action, group.title or "")
        for group in parser._action_groups
        for action in group._group_actions
        if action.help is not argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction)
    ]
    return Command(
        name=name,
        summary=(parser.description or "").rstrip("."),
        example=re.sub(r"\n?exit codes:.*", "", parser.epilog or "", flags=re.DOTALL)
        .removeprefix("example: ")
        .strip(),
        arguments=tuple(arguments),
        actions=tuple(_command(f"{name} {action}", sub) for action, sub in _subparsers(parser).items()),
    )


def _argument(parser: argparse.ArgumentParser, action: argparse.Action, group: str) -> Argument:
    formatter = parser._get_formatter()
    value = ""
    if action.nargs != 0:
        default = action.dest.upper() if action.option_strings else action.dest
        value = formatter._format_args(action, default)
    text = formatter._expand_help(action) if action.help else ""
    return Argument(tuple(action.option_strings), value, text, group)


def man_page(command: Command) -> str:
    """Return the man page of a command as roff."""
    title = f"matrix-{command.name}".upper()
    lines = [
        f'.TH "{_roff(title)}" 1 "" "matrix" "matrix"',
        *_section("name", f"matrix\\-{_roff(command.name)} \\- {_roff(_lower(command.summary))}"),
        *_section("synopsis", _roff(command.synopsis)),
        *_options(command),
    ]
    for action in command.actions:
        own = (argument for argument in action.arguments if argument not in command.arguments)
        lines += [f".SH {_roff(f'matrix {action.name}').upper()}", _roff(f"{action.summary}."), ".PP"]
        lines += [_roff(action.synopsis), *_listed(own)]
    if command.example:
        lines += _section("example", *_verbatim(command.example))
    for name, text in _SECTIONS.items():
        lines += _section(name, _roff(text))
    return "\n".join([*lines, *_section("see also", ".BR matrix (1)")]) + "\n"


def overview_page(listed: list[Command]) -> str:
    """Return the man page of the program itself."""
    description = make_parser().description or ""
    lines = [
        '.TH "MATRIX" 1 "" "matrix" "matrix"',
        *_section("name", f"matrix \\- {_roff(_lower(description.rstrip('.')))}"),
        *_section("synopsis", _roff("matrix COMMAND [OPTION...]")),
        ".SH COMMANDS",
    ]
    for command in listed:
        lines += [".TP", f".BR matrix\\-{_roff(command.name)} (1)", _roff(f"{command.summary}.")]
    for name, text in _SECTIONS.items():
        lines += _section(name, _roff(text))
    return "\n".join(lines) + "\n"


def _options(command: Command) -> list[str]:
    lines: list[str] = []
    for group in dict.fromkeys(argument.group for argument in command.arguments):
        lines.append(f'.SH "{_roff(group.upper())}"')
        lines += _listed(argument for argument in command.arguments if argument.group == group)
    return lines


def _listed(arguments: Iterable[Argument]) -> list[str]:
    return [
        line
        for argument in arguments
        for line in (".TP", f".B {_roff(argument.title)}", _roff(argument.help))
    ]


def _section(name: str, *body: str) -> list[str]:
    return [f".SH {name.upper()}", *body]


def _verbatim(text: str) -> list[str]:
    return [".nf", *map(_roff, text.splitlines()), ".fi"]


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def other_options(command: Command, page: str, skipped: frozenset[str]) -> str:
    """Return a table of the options that a text does not mention, without the groups in `skipped`."""
    rows = [
        argument
        for argument in _all_arguments(command)
        if argument.flags
        and argument.group not in skipped
        and not any(_mentions(page, flag) for flag in argument.flags)
    ]
    unique = {row.title: row for row in rows if "--help" not in row.flags}
    if not unique:
        return ""
    lines = ["| more options | |", "| --- | --- |"]
    lines += [f"| `{_cell(title)}` | {_cell(row.help)} |" for title, row in unique.items()]
    return "\n".join(lines) + "\n"


def _all_arguments(command: Command) -> list[Argument]:
    return [*command.arguments, *(argument for action in command.actions for argument in action.arguments)]


def _mentions(page: str, flag: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", page) is not None


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
