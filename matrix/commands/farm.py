"""``matrix farm``: build a lock's wheels with a farm's own jobs: fetch, plan, build one, list builds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.command_line.options import add_command
from matrix.farm import build_one, builds, fetch, plan

if TYPE_CHECKING:
    import argparse

SUMMARY = "the parts of a build for jobs of your own: fetch, plan, build one wheel, list builds"
EXAMPLE = "matrix farm plan --jobs 16 --memory 64 --format sbatch -o build.sh"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name, action in (("fetch", fetch), ("plan", plan), ("build-one", build_one), ("builds", builds)):
        add_command(actions, name, action)
