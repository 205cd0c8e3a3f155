"""``matrix add``: add requirements to ``matrix.toml``, and resolve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builders.constants import LOCK_FILE
from matrix.command_line.options import add_format, add_index_access, add_names
from matrix.commands import resolve
from matrix.input.request_file import with_requirements
from matrix.input.settings import in_project
from resolver.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from matrix.command_line.context import Context

SUMMARY = "add requirements to matrix.toml, and resolve"
EXAMPLE = "matrix add transformers 'peft>=0.17'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(parser, "added", metavar="REQ", help="requirements; each replaces those on the same name")
    add_lock_options(parser)


def add_lock_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that change the request, and write the lock that it gives."""
    add_format(parser)
    add_index_access(parser)
    parser.set_defaults(output=in_project(LOCK_FILE), no_lock=False)


def execute(context: Context) -> int:
    """Run the command."""
    return change_request(context, EXAMPLE, added=context.args.added)


def change_request(
    context: Context, example: str, *, added: Sequence[str] = (), removed: Sequence[str] = ()
) -> int:
    """Resolve with other requirements; `resolve` stores them, if there is a resolution."""
    if not added and not removed:
        msg = "No requirement is named."
        raise UsageError(msg, hint=f"Such as: {example}")
    texts = with_requirements(context.settings.requirements, added, removed)
    return resolve.execute(context.with_settings(requirements=texts))
