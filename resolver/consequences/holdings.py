"""Check whether locks and proven sets are still possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from resolver.answers.proven import request_of_set
from resolver.answers.table import ROW_COMPONENTS
from resolver.compiling import compile_problem
from resolver.consequences.questions import Effect, Kind, KnownReasons, Question, Reason, Side, why_refused
from resolver.errors import UsageError
from resolver.model import CoreItem, Resolution
from resolver.solving.session import Session

if TYPE_CHECKING:
    from resolver.consequences.questions import Consequence
    from resolver.model import Distribution, Request


_HOLDERS = {"lock": "the lock has", "proven-set": "the set has"}
"""The beginning of a sentence about the pins of a holding, by kind."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that users rely on, as a question for each side."""

    kind: Kind
    name: str
    before: Side
    after: Side
    pins: Mapping[str, str]
    """The versions that must not change; see `Question`."""
    also: tuple[str, ...] = ()
    """Distributions that may be part of it although no row of the catalog requires them."""
    open_world: bool = False
    """Whether the request may contain distributions that are only in package indexes."""


class Judge:
    """Judge holdings; compile each problem once."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[int, tuple[str, ...], bool], tuple[Side, Session | CoreItem]] = {}
        self._reasons: KnownReasons = {}

    def consequences(self, holding: Holding) -> Iterator[Consequence]:
        """Yield the consequence of a change for a holding, if there is one."""
        questions = self._questions(holding)
        before, after = ("" if isinstance(question, CoreItem) else question.state for question in questions)
        effect: Effect
        reason, possible_before = Reason(), bool(before)
        if bool(before) != bool(after):
            effect = "breaks" if before else "possible"
            possible, refused = questions if before else questions[::-1]
            if isinstance(refused, CoreItem):
                reason = Reason((refused,), core=(refused,))
            elif isinstance(possible, Question):
                reason = why_refused(refused, possible, self._reasons)
        elif before != after:
            possible_before = before == "supported"
            effect = "at-own-risk" if possible_before else "supported"
            risky = questions[1 if possible_before else 0]
            reason = Reason(risky.risks if isinstance(risky, Question) else ())
        else:
            return
        yield reason.consequence(
            effect, holding.kind, holding.name, before, after, possible_before=possible_before
        )

    def broken_before(self, holding: Holding) -> tuple[CoreItem, ...]:
        """Return why a holding is impossible even before the change; empty if it is possible."""
        question, _ = self._questions(holding)
        if isinstance(question, CoreItem):
            return (question,)
        return () if question.state else why_refused(question, question).core

    def _questions(self, holding: Holding) -> list[Question | CoreItem]:
        sessions = [self._session(side, holding) for side in (holding.before, holding.after)]
        pins = holding.pins
        if holding.open_world:
            known = {name for one in sessions if isinstance(one, Session) for name in one.problem.variables}
            pins = {name: key for name, key in pins.items() if name in known}
        questions: list[Question | CoreItem] = []
        for session in sessions:
            if isinstance(session, CoreItem):
                questions.append(session)
                continue
            demands = session.problem.demands
            if holding.kind == "proven-set" and "base-image" in pins:  # the site need not offer it
                demands = [one for one in demands if one.variable.name != "base-image" or one.of_target]
            holder = _HOLDERS[holding.kind]
            question = Question(session, demands, pins, holder=holder, source=holding.name)
            questions.append(question)
        return questions

    def _session(self, side: Side, holding: Holding) -> Session | CoreItem:
        """Return the problem of a side, or the reason why it cannot be compiled."""
        key = (id(side), holding.also, holding.open_world)
        if key not in self._sessions:
            session: Session | CoreItem
            try:
                session = Session(
                    compile_problem(
                        side.catalog, side.request, also=holding.also, open_world=holding.open_world
                    )
                )
            except UsageError as error:
                session = CoreItem(error.message.rstrip("."), "fact", "the catalog")
            self._sessions[key] = side, session  # keep the side, so that its id is not reused
        return self._sessions[key][1]


def proven_sets(before: Side, after: Side) -> Iterator[Holding]:
    """Yield the proven sets of both catalogs: each for its site and day, or the site's for both targets."""
    both = [row for name, row in before.catalog.proven.items() if name in after.catalog.proven]
    target = after.request.target
    if before.request.target != target:
        sets = [row for row in both if row.site in {"", target.site} and row.backend == target.backend]
        ours, theirs = (Side(side.catalog, _with_limits_only(side.request)) for side in (before, after))
        also = tuple(sorted({name for row in sets for name in row.picks}))
        has_image = before.request.target.base_image or target.base_image
        for row in sets:
            pins = {name: key for name, key in row.picks.items() if not (has_image and name == "base-image")}
            yield Holding(kind="proven-set", name=row.id, before=ours, after=theirs, pins=pins, also=also)
        return
    for row in both:
        ours, theirs = (Side(side.catalog, request_of_set(side.catalog, row)) for side in (before, after))
        yield Holding(kind="proven-set", name=row.id, before=ours, after=theirs, pins=row.picks)


def _with_limits_only(request: Request) -> Request:
    """Return a request without packages; the limits of the table's rows also apply to holdings."""
    limits = (requirement for requirement in request.requirements if requirement.name in ROW_COMPONENTS)
    return replace(request, requirements=tuple(limits))


def between_locks(before: tuple[Side, Resolution], after: tuple[Side, Resolution]) -> list[Consequence]:
    """Return the differences between the picks of two locks, with the facts that are the reason."""
    sides, locks = [before[0], after[0]], [before[1], after[1]]
    names = {pick.name: None for lock in reversed(locks) for pick in lock.picks}
    sessions = [
        Session(compile_problem(side.catalog, side.request, also=tuple(names), open_world=True))
        for side in sides
    ]
    reasons: KnownReasons = {}
    differences = []
    for name in names:
        picks = [lock.pick(name) for lock in locks]
        keys = [pick.key if pick else "" for pick in picks]
        if keys[0] == keys[1]:
            continue
        reason, possible_before = Reason(_facts_beyond(*picks), _facts_beyond(*picks[::-1])), False
        for position, key in enumerate(keys):
            if key and any(name in session.problem.variables for session in sessions):
                questions = [
                    Question(session, session.problem.demands, {name: key}, holder=_HOLDERS["lock"])
                    for session in sessions
                ]
                refused, possible = questions[1 - position], questions[position]
                if refused.solution is None and possible.solution is not None:
                    reason, possible_before = why_refused(refused, possible, reasons), position == 0
                    break
        differences.append(
            reason.consequence("different", "package", name, *keys, possible_before=possible_before)
        )
    return differences


def _facts_beyond(pick: Distribution | None, other: Distribution | None) -> tuple[CoreItem, ...]:
    """Return the first fact of a pick that the pick of the other lock does not have."""
    known = other.facts if other else ()
    facts = (fact for fact in pick.facts if fact not in known) if pick else iter(())
    return tuple(CoreItem.of(fact) for fact in islice(facts, 1))
