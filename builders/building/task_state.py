"""The state of the build of a wheel, as commands print it. The module avoids imports: `explain` loads it."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Literal

import msgspec

from builders.building.expected_time import Resources, TimeSource
from builders.findings import Finding
from resolver.texts import Name, VersionText

_SHOWN_VALUE = 48  # characters
_DIGEST = re.compile(r"(?:[a-z0-9]+:)?[0-9a-f]{32,}")
_SHOWN_DIGITS = 12
State = Literal[
    "up to date", "to build", "running", "interrupted", "built", "failed", "skipped", "identical", "different"
]
"""The last two are those of a wheel that was built again, compared with the published one."""


class InputChange(msgspec.Struct, frozen=True):
    """An input that differs between two builds."""

    input: str
    """Its path in the inputs, such as ``recipe.environment.CFLAGS``."""
    before: Any
    after: Any
    """None if the build has no such input."""

    def __str__(self) -> str:
        """Return the input with both values, of which long ones are shortened."""
        return f"{self.input} {_shown(self.before)} -> {_shown(self.after)}"


class TaskState(msgspec.Struct, kw_only=True):
    """A wheel to build and the state of its build, planned or past. JSON output is this struct, encoded.

    Times, cores and memory are those that the build is expected to need, and after it those that it used.
    None means that a value is not known, or has no meaning in this state.
    """

    key: Name
    """The digest of all its inputs; ``unknown`` in the plan of a machine that lacks some of them."""
    name: Name
    version: VersionText
    state: State
    why: str = ""
    """Why it is built, was built again, or was not built."""
    build_key: str = ""
    """The same as `key`."""
    requires: tuple[Name, ...] = ()
    """Keys of the tasks whose wheels are installed for this task."""
    inputs: dict[str, Any] = {}
    lock: str = ""
    """Path of the lock that it belongs to."""
    command: tuple[str, ...] = ()
    """The words of the command that executes it, on any machine that has the lock and the index."""
    network: bool | None = None
    """Whether it may fetch files that the cache lacks, before anything is compiled."""
    time_limit: int = 0
    """Seconds after which the task has certainly failed."""
    cores: int | None = None
    """Compile jobs that it can run at once."""
    memory_gib: float | None = None
    """Peak memory of all its processes."""
    seconds: float | None = None
    """For a running build, the time since its start."""
    seconds_from: TimeSource | None = None
    """The origin of the time that is expected."""
    node: str | None = None
    started: datetime | None = None
    finished: datetime | None = None
    cache_hits: int | None = None
    """Files that the compiler cache had."""
    cache_misses: int | None = None
    """Files that were compiled and added to the compiler cache."""
    wheel: str | None = None
    """Path in the index."""
    log: str | None = None
    """Path, if the log still exists."""
    error: str | None = None
    """The first line of the error, or why it was stopped."""
    exit_code: int = 0
    """The exit code for a build that failed or was skipped."""
    warnings: tuple[str, ...] = ()
    diagnosis: tuple[Finding, ...] = ()
    """The known causes of the failure."""
    changed: tuple[InputChange, ...] = ()
    """Compared with the previous build."""

    def __post_init__(self) -> None:
        self.build_key = self.key

    @property
    def title(self) -> str:
        """Name and version, for messages."""
        return f"{self.name} {self.version}"

    @property
    def estimate(self) -> Resources:
        """What the build is expected to need."""
        return Resources(
            self.cores or 1,
            self.memory_gib or 0.0,
            self.seconds or 0.0,
            source=self.seconds_from or "guess",
        )

    def expect(self, needs: Resources) -> None:
        """Set the cores and the time that the build is expected to need; a guess is no time."""
        self.cores, self.seconds_from = needs.cores, needs.source
        self.seconds = None if needs.source == "guess" else round(needs.seconds, 1)


def _shown(value: Any) -> str:  # noqa: ANN401  an input is any JSON value
    if isinstance(value, list):
        value = ",".join(map(_shown, value))
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return value.rpartition(":")[2][:_SHOWN_DIGITS]
    text = "none" if value in {None, ""} else str(value)
    return text if len(text) <= _SHOWN_VALUE else f"{text[: _SHOWN_VALUE - 3]}..."
