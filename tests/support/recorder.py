"""A reporter that records messages, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.reporter import Reporter

if TYPE_CHECKING:
    from typing import Unpack

    from resolver.reporter import Progress


class Recorder(Reporter):
    """Collect the messages of every kind in order."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.changes: list[tuple[str, Progress]] = []

    def info(self, message: str) -> None:
        self.messages.append(message)

    def step(self, message: str, task: str = "") -> None:  # noqa: ARG002
        self.messages.append(message)

    warning = info

    def progress(self, task: str = "", **change: Unpack[Progress]) -> None:
        self.changes.append((task, change))
