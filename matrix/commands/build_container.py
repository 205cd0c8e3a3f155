"""``matrix build-container``: from a request to a verified container, by the steps of six other commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.building import work
from matrix.command_line.options import add_lock
from matrix.consumers import container_consumers, load_consumer

if TYPE_CHECKING:
    import argparse

    from matrix.command_line.context import Context

SUMMARY = "from a request to a verified container: resolve, fetch, build, and make it, in one command"
EXAMPLE = "matrix build-container train.sif apex deepspeed flash-attn bitsandbytes"
MOST_USED = ("--site", "--dry-run", "--account", "--base-image", "--executor", "--for")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    work.add_arguments(parser, "the container, such as train.sif, or the directory")
    parser.add_argument(
        "--for",
        dest="consumer",
        choices=container_consumers(),
        default="cotainr",
        help="the tool that makes it (default: %(default)s)",
    )
    add_lock(parser)


def execute(context: Context) -> int:
    """Run the command."""
    maker = load_consumer(context.args.consumer).maker
    assert maker is not None  # noqa: S101  for mypy: the parser offers no others
    return work.make(context, maker)
