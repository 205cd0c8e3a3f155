"""The observer through which every layer reports what it does."""

from __future__ import annotations


class Reporter:
    """Receive the progress of resolving, fetching, building, auditing and publishing.

    Every method does nothing by default, so an observer implements only what it shows. The command line,
    the log file and the tests are observers.
    """

    def step(self, message: str) -> None:
        """Receive the start of a step, such as ``fetch apex-1.4.0.tar.gz``."""

    def info(self, message: str) -> None:
        """Receive something that is worth knowing but needs no action."""

    def warning(self, message: str) -> None:
        """Receive something the user should know, even in quiet mode."""


SILENT = Reporter()
"""Ignores everything."""
