"""A conflict as a proof that a person can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.core import minimal_core
from resolver.model import PLATFORM, Conflict, CoreItem
from resolver.network import propagate
from resolver.problem import ABSENT, Demand, Relation
from resolver.suggest import suggestions_for
from resolver.versions import sort_key, spell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resolver.facts.catalog import Catalog
    from resolver.model import Request
    from resolver.problem import Problem, Row


def explain_conflict(catalog: Catalog, request: Request, problem: Problem) -> Conflict:
    """Say why a problem without a solution has none, and what would help."""
    demands, relations = minimal_core(problem)
    items = _in_words(problem, demands, relations)
    return Conflict(request, tuple(items), suggestions_for(catalog, request, problem, demands))


def core_of(problem: Problem) -> list[CoreItem]:
    """Say why a problem without a solution has none."""
    return _in_words(problem, *minimal_core(problem))


def _in_words(problem: Problem, demands: list[Demand], relations: list[Relation]) -> list[CoreItem]:
    """Say a core as a chain: what was asked for, then each fact beside one that leads to it."""
    core = problem.restricted(demands, relations)
    asked = [one for one in demands if one.kind == "request"]
    items = [CoreItem(one.text, one.kind, one.source) for one in asked]
    stated = [one for one in demands if one.kind == "fact"]
    for fact in _chain(asked, stated, relations):
        if isinstance(fact, Demand):
            items.append(CoreItem(fact.text, fact.kind, fact.source))
        else:
            items.append(_describe(core, fact))
    return items


def _chain(
    asked: Iterable[Demand], stated: Iterable[Demand], relations: Iterable[Relation]
) -> list[Demand | Relation]:
    """Put facts in an order in which each speaks of something that was named before, where it can."""
    reached = {one.variable.name for one in asked}
    left: list[Demand | Relation] = [*relations, *stated]
    ordered: list[Demand | Relation] = []
    while left:
        following = next((one for one in left if _names(one)[0] in reached), None)
        following = following or next((one for one in left if reached & {*_names(one)}), left[0])
        left.remove(following)
        ordered.append(following)
        reached.update(_names(following))
    return ordered


def _names(one: Demand | Relation) -> tuple[str, ...]:
    if isinstance(one, Demand):
        return (one.variable.name,)
    return one.subject.name, one.object.name


def _describe(core: Problem, relation: Relation) -> CoreItem:
    """Say what a relation does to the candidates that everything else in the core leaves."""
    others = core.restricted(core.demands, [one for one in core.relations if one is not relation])
    domains = propagate(others) or {name: one.everything for name, one in core.variables.items()}
    subjects = domains[relation.subject.name] & ~ABSENT
    rows = [row for row in relation.rows if row.subjects & subjects]
    if len({row.fact.text for row in rows}) == 1:
        return CoreItem(rows[0].fact.text, "fact", rows[0].fact.source)
    return CoreItem(
        _summary(relation, subjects, rows), "fact", rows[0].fact.source if rows else "the catalog"
    )


def _summary(relation: Relation, subjects: int, rows: Sequence[Row]) -> str:
    """Say what a relation comes to for several candidates, whose rows say different things."""
    objects = 0
    for row in rows:
        objects |= row.objects
    allowed = sorted({one.version for one in relation.object.chosen(objects)}, key=sort_key)
    if not allowed:
        return f"{rows[0].fact.text}; and so it is for {len(rows) - 1} more"
    subject, each = _several(relation, subjects)
    alike = {_without_name(relation, row) for row in rows}
    if len(alike) == 1 and "" not in alike:
        return f"{subject}{'' if each else ': each'}{alike.pop()}"
    if relation.subject.name == "base-image":
        verb = "holds" if each else "hold"
    elif relation.when_present:
        verb = "goes with" if each else "go with"
    else:
        verb = "needs" if each else "need"
    name = relation.object.name
    if objects & ~ABSENT == relation.object.present:
        return f"{subject} {verb} {f'a {name}' if name in PLATFORM else name}"
    return f"{subject} {verb} {name} {spell(allowed)}"


def _several(relation: Relation, subjects: int) -> tuple[str, bool]:
    """Name the candidates that are left of a subject, and tell whether one verb form fits each.

    Base images, whose names are long, are named by their number.
    """
    name = relation.subject.name
    left = sorted(relation.subject.chosen(subjects), key=lambda one: (sort_key(one.version), one.variant))
    keys = list(dict.fromkeys(one.key for one in left))
    if len(keys) > 1 and len(left) == len(relation.subject.candidates):
        return f"every {name}", True
    if name == "base-image" and len(keys) > 1:
        return f"these {len(keys)} base images", False
    return f"{name} {spell(keys, joiner='and')}", len(keys) == 1


def _without_name(relation: Relation, row: Row) -> str:
    """Give what a row says behind the name of its subject; empty if it begins with something else."""
    for one in relation.subject.chosen(row.subjects):
        if row.fact.text.startswith(f"{one} "):
            return row.fact.text.removeprefix(str(one))
    return ""
