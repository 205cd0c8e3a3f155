"""``matrix remove``: remove requirements from ``matrix.toml``, and resolve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.command_line.options import add_names
from matrix.commands.add import add_lock_options, change_request

if TYPE_CHECKING:
    import argparse

    from matrix.command_line.context import Context

SUMMARY = "remove requirements from matrix.toml, and resolve"
EXAMPLE = "matrix remove peft"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(parser, "removed", metavar="NAME", help="distributions that are no longer requested")
    add_lock_options(parser)


def execute(context: Context) -> int:
    """Run the command."""
    return change_request(context, EXAMPLE, removed=context.args.removed)
