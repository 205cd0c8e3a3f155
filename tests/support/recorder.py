"""A reporter that records messages, for tests."""

from __future__ import annotations

from resolver.reporter import Reporter


class Recorder(Reporter):
    """Collect the messages of every kind in order."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def step(self, message: str) -> None:
        self.messages.append(message)

    info = warning = step
