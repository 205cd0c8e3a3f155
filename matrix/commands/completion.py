"""``matrix completion``: the script with which a shell completes command lines."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from argcomplete.shell_integration import shellcode

if TYPE_CHECKING:
    from matrix.command_line.context import Context

SUMMARY = "print the script with which bash, zsh or fish completes commands, options and names"
EXAMPLE = "matrix completion bash"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def execute(context: Context) -> int:
    """Print the script."""
    context.console.data(shellcode(["matrix"], shell=context.args.shell).strip("\n"))
    return 0
