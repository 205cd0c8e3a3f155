"""What the drivers of a site mean for a ROCm: those it had, the one it has, and those it may get."""

from __future__ import annotations

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
    from datetime import date

    from resolver.consequences.model import Side


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
    past: list[tuple[str, date | None]]
    if target.driver:
        past = [(target.driver, None)]
    else:
        windows = [row for row in catalog.windows_of(target.site) if row.since <= target.date]
        past = [(row.driver, row.since) for row in windows]
        if not windows or not within(windows[-1], target.date):
            return [], []
    states = [_state(side, rocm, driver, since) for driver, since in past]
    known = [state for state in states if state is not None]
    if len(known) < len(states):
        return [], []
    newer = sorted((row for row in catalog.driver if sort_key(row) > sort_key(past[-1][0])), key=sort_key)
    return known, [state for driver in newer if (state := _state(side, rocm, driver, None))]


def _state(side: Side, rocm: str, driver: str, since: date | None) -> DriverState | None:
    target = side.request.target
    request = Request(replace(target, driver=driver, date=since or target.date, base_image=None))
    if since is not None:
        request = replace(request, target=replace(request.target, driver=None))
    session = Session(compile_problem(side.catalog, request))
    question = Question(session, session.problem.demands, {"rocm": f"=={minor(rocm)}.*"})
    if question.missing:
        return None
    if question.state:
        return DriverState(driver, since, question.state, question.risks)
    core = Reasons().why(question, question).core
    return DriverState(driver, since, "", tuple(item for item in core if item.kind == "fact"))


def changes(states: list[DriverState]) -> Iterator[DriverState]:
    """Yield the first of each run of drivers with the same state."""
    before = None
    for state in states:
        if before is None or state.state != before:
            yield state
        before = state.state
