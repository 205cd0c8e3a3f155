"""The two sides of a change: whether something is possible on them, and the facts that make it impossible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from resolver.answers.explain import describe, sentences, subjects_left
from resolver.answers.proven import risks
from resolver.compiling import compile_problem
from resolver.compiling.problem import Demand, Problem, Relation, Variable, bits
from resolver.facts.catalog import Catalog, within
from resolver.model import CoreItem, Request
from resolver.solving.session import Session
from resolver.versions import minor, sort_key

if TYPE_CHECKING:
    from resolver.model import Candidate, Target
    from resolver.solving.session import Solution

_MOST_ROWS = 3
ANY = "*"
"""A pin that allows every version, but not absence."""
ROW = "the comparison"
"""The source of a demand for the row or version that is compared, which is not reported."""

Effect = Literal["breaks", "at-own-risk", "possible", "supported", "different"]
Kind = Literal["default", "base-image", "torch", "package", "lock", "proven-set"]


class Side(msgspec.Struct, frozen=True):
    """One side of a comparison: the facts, and the request with the limits of the table, as for `Table`."""

    catalog: Catalog
    request: Request


class RowKey(msgspec.Struct, frozen=True):
    """A row of the table."""

    base_image: str
    """Empty if no base image works with this torch and Python, or if the sides name different images."""
    torch: str
    python: str


class Consequence(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a change on one thing, with its version or state before and after; empty if impossible.

    ``breaks``: the thing was possible and no longer is; ``possible``: the reverse. ``at-own-risk``: the thing
    was supported and is now only possible at your own risk; ``supported``: the reverse. `was` and `now` have
    the facts that changed and are related to it; one that only one side has is in only one of these. `core`
    is the minimal conflict on the side on which the thing, or its version, is impossible.
    """

    effect: Effect
    kind: Kind
    name: str
    before: str = ""
    after: str = ""
    where: tuple[RowKey, ...] = ()
    """The rows of the table that are affected."""
    was: tuple[CoreItem, ...] = ()
    now: tuple[CoreItem, ...] = ()
    core: tuple[CoreItem, ...] = ()


class Question:
    """Demands on a problem, and whether all of them can be met.

    `pins` are more demands, by component: version and variant (`Candidate.key`), a version, a specifier, or
    `ANY`. `holder` is the thing with these versions, as the beginning of a sentence.
    """

    def __init__(
        self,
        session: Session,
        demands: Iterable[Demand],
        pins: Mapping[str, str],
        *,
        holder: str = "",
        source: str = ROW,
    ) -> None:
        self.session = session
        self.pins = pins
        self.missing: dict[str, str] = {}
        """Pins that the catalog does not have."""
        self._pinning: dict[str, Demand] = {}
        for name, key in pins.items():
            variable = self.problem.variables.get(name)
            mask = _mask(variable, key) if variable else 0
            if variable is None or not mask:
                self.missing[name] = key
            else:
                text = f"{holder} {name} {key.removeprefix('==')}".lstrip()
                self._pinning[name] = Demand(variable, mask, text, "request", source)
        self.demands = [*demands, *self._pinning.values()]

    def pins_among(self, demands: Iterable[Demand]) -> dict[str, str]:
        """Return the pins whose demands are among these."""
        numbers = {id(demand) for demand in demands}
        return {name: self.pins[name] for name, demand in self._pinning.items() if id(demand) in numbers}

    @property
    def problem(self) -> Problem:
        """That of the session."""
        return self.session.problem

    @cached_property
    def solution(self) -> Solution | None:
        """The preferred solution; None if there is none."""
        return None if self.missing else self.session.solve_within(self.session.narrow(self.demands))

    @cached_property
    def risks(self) -> tuple[CoreItem, ...]:
        """The facts that put the solution at the user's own risk."""
        rows = risks(self.problem, self.solution) if self.solution else []
        return tuple(dict.fromkeys(CoreItem.of(row.fact) for row in rows))

    @property
    def state(self) -> str:
        """``supported`` or ``at your own risk``; empty if there is no solution."""
        if self.solution is None:
            return ""
        return "at your own risk" if self.risks else "supported"


def _mask(variable: Variable, key: str) -> int:
    """Return the mask of a version and variant, else of all variants of a version, or of a specifier."""
    if key == ANY:
        return variable.present
    if key[:1] in "=<>":
        return variable.allowed_by(key)
    exact = [position for position, candidate in enumerate(variable.candidates) if candidate.key == key]
    return variable.mask(exact) or variable.of_versions([key])


class Reason(NamedTuple):
    """The reason why something is impossible on one side."""

    refusing: tuple[CoreItem, ...] = ()
    """The facts of the core that the other side does not have."""
    allowing: tuple[CoreItem, ...] = ()
    """The facts of the other side in their place."""
    core: tuple[CoreItem, ...] = ()

    def consequence(
        self, effect: Effect, kind: Kind, name: str, before: str, after: str, *, possible_before: bool
    ) -> Consequence:
        """Return the consequence for something, or for a version, that is possible on one side only."""
        sides = (self.allowing, self.refusing)
        was, now = sides if possible_before else sides[::-1]
        return Consequence(
            effect=effect,
            kind=kind,
            name=name,
            before=before,
            after=after,
            was=was,
            now=now,
            core=self.core,
        )


KnownReasons = dict[Session, list[tuple[dict[str, str], Reason]]]
"""The reasons that were found for the questions of a problem, each with the pins that it depends on."""


def why_refused(refused: Question, possible: Question, known: KnownReasons | None = None) -> Reason:
    """Return the core of a refused question, and the facts in it that the other side lacks."""
    if refused.missing:
        core = tuple(not_in_catalog(f"{name} {key}") for name, key in refused.missing.items())
        return Reason((), tuple(_new_candidates(refused, possible)), core)
    reasons = (known if known is not None else {}).setdefault(refused.session, [])
    for pins, reason in reasons:
        if pins.items() <= refused.pins.items():
            return reason
    demands, relations = refused.session.explain(refused.demands)
    core = tuple(sentences(refused.session, [*demands, *relations]))
    changed = [
        *_changed_demands(demands, possible.problem),
        *_changed_relations(refused.session, demands, relations, possible),
    ]
    refusing = tuple(item for item, _ in changed)
    allowing = dict.fromkeys(item for item, other in changed for item in other)
    if not changed:
        allowing = dict.fromkeys(_new_candidates(refused, possible))
    reason = Reason(refusing, tuple(allowing), core)
    reasons.append((refused.pins_among(demands), reason))
    return reason


def not_in_catalog(what: str) -> CoreItem:
    """Return the core of something that a catalog does not have."""
    return CoreItem(f"the catalog has no {what}", "fact", "the catalog")


def _new_candidates(refused: Question, possible: Question) -> Iterator[CoreItem]:
    """Yield the facts behind those versions in a solution that the other side does not have."""
    for name, bit in (possible.solution or {}).items():
        candidate = possible.problem.variables[name].candidate(bit)
        other = refused.problem.variables.get(name)
        if other is None or candidate.key not in _keys(other.candidates):
            yield CoreItem.of(candidate.fact)


def _changed_demands(demands: Iterable[Demand], other: Problem) -> Iterator[tuple[CoreItem, list[CoreItem]]]:
    """Yield the facts about the target in a core that the other side lacks, each with that side's facts."""
    for demand in demands:
        if demand.kind == "request" and not demand.of_target:
            continue
        others = [
            counterpart
            for counterpart in other.demands
            if counterpart.variable.name == demand.variable.name
            and (counterpart.kind == "fact" or counterpart.of_target)
        ]
        if not any(_is_same_demand(demand, counterpart) for counterpart in others):
            yield _item(demand), [_item(counterpart) for counterpart in others]


def _item(demand: Demand) -> CoreItem:
    return CoreItem(demand.text, demand.kind, demand.source, about=(demand.about,))


def _changed_relations(
    session: Session, demands: list[Demand], relations: list[Relation], possible: Question
) -> Iterator[tuple[CoreItem, list[CoreItem]]]:
    """Yield the relations in a core that the other side lacks, each with that side's relations."""
    for relation in relations:
        subjects = subjects_left(session, demands, relations, relation)
        others = [
            counterpart for counterpart in possible.problem.relations if _ends(counterpart) == _ends(relation)
        ]
        if not any(_is_same_relation(relation, counterpart, subjects) for counterpart in others):
            same_ends = [other for other in session.problem.relations if _ends(other) == _ends(relation)]
            yield describe(session, demands, relations, relation), _facts_beyond(same_ends, others, possible)


def _facts_beyond(
    refusing: Sequence[Relation], others: Sequence[Relation], possible: Question
) -> list[CoreItem]:
    """Return the facts that allow the solution of the other side and that the refusing side does not have."""
    known = {row.fact for relation in refusing for row in relation.rows}
    solution = possible.solution or {}
    items: dict[CoreItem, None] = {}
    for other in others:
        subject, target = solution.get(other.subject.name), solution.get(other.object.name)
        for row in other.rows_between(subject, target) if subject and target else ():
            if row.fact not in known:
                items[CoreItem.of(row.fact)] = None
    return list(items)[:_MOST_ROWS]


def _ends(relation: Relation) -> tuple[str, str, bool, bool]:
    return relation.subject.name, relation.object.name, relation.when_present, relation.forbids


def _is_same_demand(demand: Demand, other: Demand) -> bool:
    """Return whether both demands allow the same of the candidates that both sides have."""
    shared = _keys(demand.variable.candidates) & _keys(other.variable.candidates)
    ours, theirs = demand.variable.chosen(demand.mask), other.variable.chosen(other.mask)
    return _keys(ours) & shared == _keys(theirs) & shared


def _is_same_relation(relation: Relation, other: Relation, subjects: int) -> bool:
    """Return whether a relation of the other side allows the same objects for the given subjects."""
    bit_of = {candidate.key: bit for bit, candidate in enumerate(other.subject.candidates, start=1)}
    shared = _keys(relation.object.candidates) & _keys(other.object.candidates)
    for bit in bits(subjects):
        other_bit = bit_of.get(relation.subject.candidate(bit).key)
        if other_bit is not None:
            allowed = _keys(relation.object.chosen(relation.table[bit]))
            if (allowed ^ _keys(other.object.chosen(other.table[other_bit]))) & shared:
                return False
    return True


def _keys(candidates: Iterable[Candidate]) -> set[str]:
    return {candidate.key for candidate in candidates}


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
    """Return whether a ROCm runs on the drivers of a site until its day, and on newer ones, if known."""
    catalog, target = side.catalog, side.request.target
    windows = [row for row in catalog.windows_of(target.site) if row.since <= target.date]
    if target.driver:
        windows, driver = [], target.driver
    elif windows and within(windows[-1], target.date):
        driver = windows[-1].driver
    else:
        return [], []
    states = []
    for row in windows:  # on the last day of each, when all that was run in it is known
        last = row.until - timedelta(days=1) if row.until else target.date
        day = min(last, target.date)
        states.append(_state(side, rocm, replace(target, date=day), row.driver, row.since))
    states = states or [_state(side, rocm, replace(target, driver=driver), driver)]
    known = [state for state in states if state is not None]
    if len(known) < len(states):
        return [], []
    newer = sorted((row for row in catalog.driver if sort_key(row) > sort_key(driver)), key=sort_key)
    others = (_state(side, rocm, replace(target, driver=name), name) for name in newer)
    return known, [state for state in others if state is not None]


def _state(
    side: Side, rocm: str, target: Target, driver: str, since: date | None = None
) -> DriverState | None:
    session = Session(compile_problem(side.catalog, Request(replace(target, base_image=None))))
    question = Question(session, session.problem.demands, {"rocm": f"=={minor(rocm)}.*"})
    if question.missing:
        return None
    if question.state:
        return DriverState(driver, since, question.state, question.risks)
    core = why_refused(question, question).core
    return DriverState(driver, since, "", tuple(item for item in core if item.kind == "fact"))


def changes(states: list[DriverState]) -> Iterator[DriverState]:
    """Yield the first of each run of drivers with the same state."""
    before = None
    for state in states:
        if before is None or state.state != before:
            yield state
        before = state.state
