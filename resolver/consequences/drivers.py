"""What the drivers of a site mean for a ROCm: those it had, the one it has, and those it may get."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from resolver.compiling import compile_problem
from resolver.consequences.questions import Question, Reasons
from resolver.facts.catalog import within
from resolver.model import CoreItem, Request
from resolver.solving.session import Session
from resolver.versions import minor, sort_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resolver.consequences.model import Side
    from resolver.facts.schema import Window
    from resolver.model import Target


class DriverState(msgspec.Struct, frozen=True):
    """Whether a ROCm runs on a driver."""

    driver: str
    since: date | None
    """When the site got it; None if it has not been announced, or if the driver was named."""
    state: str
    """``supported`` or ``at your own risk``; empty if it does not run."""
    reasons: tuple[CoreItem, ...] = ()
    """The facts for which it is not supported."""


def driver_states(side: Side, rocm: str) -> tuple[list[DriverState], list[DriverState]]:
    """Return whether a ROCm runs on the drivers of a site until its day, and on the drivers that are newer.

    The last of the first is the driver of that day. Both are empty if the catalog has no such ROCm, or if the
    driver is not known.
    """
    catalog, target = side.catalog, side.request.target
    windows = [row for row in catalog.windows_of(target.site) if row.since <= target.date]
    if target.driver:
        windows, driver = [], target.driver
    elif windows and within(windows[-1], target.date):
        driver = windows[-1].driver
    else:
        return [], []
    states = [_in_window(side, rocm, row) for row in windows] or [_on_driver(side, rocm, driver)]
    known = [state for state in states if state is not None]
    if len(known) < len(states):
        return [], []
    newer = sorted((row for row in catalog.driver if sort_key(row) > sort_key(driver)), key=sort_key)
    return known, [state for name in newer if (state := _on_driver(side, rocm, name))]


def _in_window(side: Side, rocm: str, row: Window) -> DriverState | None:
    """Return the state on the last day of a window, when everything that was run in it is known."""
    day = side.request.target.date
    if row.until and row.until <= day:
        day = row.until - timedelta(days=1)
    return _state(side, rocm, replace(side.request.target, date=day), DriverState(row.driver, row.since, ""))


def _on_driver(side: Side, rocm: str, driver: str) -> DriverState | None:
    return _state(side, rocm, replace(side.request.target, driver=driver), DriverState(driver, None, ""))


def _state(side: Side, rocm: str, target: Target, known: DriverState) -> DriverState | None:
    session = Session(compile_problem(side.catalog, Request(replace(target, base_image=None))))
    question = Question(session, session.problem.demands, {"rocm": f"=={minor(rocm)}.*"})
    if question.missing:
        return None
    if question.state:
        return replace(known, state=question.state, reasons=question.risks)
    core = Reasons().why(question, question).core
    return replace(known, reasons=tuple(item for item in core if item.kind == "fact"))


def changes(states: list[DriverState]) -> Iterator[DriverState]:
    """Yield the first of each run of drivers with the same state."""
    before = None
    for state in states:
        if before is None or state.state != before:
            yield state
        before = state.state
