"""Run changed inputs of a kind through the program, each with limits of time and memory."""

from __future__ import annotations

import re
import resource
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

from tests.fuzz.kinds import Kind

SECONDS = 2.0  # of CPU time for each case
MEMORY = 1 << 30  # bytes of address space in addition to those in use before


class TooSlow(BaseException):
    """A case exceeded its time; `except Exception` in the program does not catch this error."""


class FaultError(AssertionError):
    """A case ended with an error that is not meant for users."""


@dataclass
class Result:
    """Counts of one kind."""

    name: str
    cases: int = 0
    parsed: int = 0
    """Cases that got past the first parser."""
    seconds: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    """The places where the program failed, each with the number of the first such case."""


@contextmanager
def limits() -> Iterator[None]:
    """Limit the memory of this process, and start a timer that ends a case that takes too long."""

    def end(_: int, __: FrameType | None) -> None:
        raise TooSlow

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGPROF, end)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def run_case(kind: Kind, random: Random, work: Path) -> bool:
    """Run one case; return whether it got past the first parser.

    Raises
    ------
    FaultError
        The program failed, or took too much time or memory.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        content = kind.mutate(random, random.choice(list(CORPUS.of(kind))))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            return enter(kind, content, work)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def enter(kind: Kind, content: bytes, work: Path) -> bool:
    """Pass one input to the first parser and to the program."""
    parsed = False
    try:
        with suppress(Exception):  # any error that the parser raises for an invalid input
            kind.parse(content)
            parsed = True
        with suppress(*kind.allowed):
            kind.enter(content, work)
    except (Exception, TooSlow) as error:
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if "/tests/" not in frame.filename
        ]
        places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-3:]]
        reason = re.sub(r"\d+|'.*'", "*", str(error))[:80]
        msg = f"{type(error).__name__}: {reason} ({' '.join(places)})"
        raise FaultError(msg) from error
    return parsed


class _Corpus:
    """The valid inputs of each kind, created once."""

    def __init__(self) -> None:
        self._made: dict[str, list[object]] = {}

    def of(self, kind: Kind) -> list[object]:
        if kind.name not in self._made:
            self._made[kind.name] = list(kind.corpus())
        return self._made[kind.name]


CORPUS = _Corpus()


def run(kind: Kind, least: int, *, first: int = 0, seconds: float = float("inf")) -> Result:
    """Run cases until enough of them got past the first parser, or until the time is up."""
    result = Result(kind.name)
    CORPUS.of(kind)
    start = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="matrix-fuzz-"))
    try:
        with limits():
            while result.parsed < least and time.monotonic() - start < seconds:
                number = first + result.cases
                result.cases += 1
                try:
                    result.parsed += run_case(kind, Random(f"{kind.name} {number}"), work)
                except FaultError as fault:
                    result.parsed += 1
                    result.faults.setdefault(str(fault), number)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    result.seconds = time.monotonic() - start
    return result
