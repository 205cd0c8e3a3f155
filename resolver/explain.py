"""A conflict as a proof that a person can read."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from resolver.compiling.draft import OTHER_TARGETS
from resolver.core import minimal_core
from resolver.model import PLATFORM, Conflict, CoreItem
from resolver.network import propagate
from resolver.problem import ABSENT, Demand, Relation
from resolver.suggest import suggestions_for
from resolver.versions import join_words, sort_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resolver.facts.catalog import Catalog
    from resolver.model import Request
    from resolver.problem import Problem, Row


MOST_ITEMS = 10
"""A core of more things than this is said in fewer sentences."""

_Said = tuple[Demand | Relation, CoreItem]


def explain_conflict(catalog: Catalog, request: Request, problem: Problem) -> Conflict:
    """Say why a problem without a solution has none, and what would help."""
    demands, relations = minimal_core(problem)
    items = _in_words(problem, demands, relations)
    return Conflict(
        request=request,
        target=request.target,
        core=tuple(items),
        suggestions=suggestions_for(catalog, request, problem, demands),
    )


def core_of(problem: Problem) -> list[CoreItem]:
    """Say why a problem without a solution has none."""
    return _in_words(problem, *minimal_core(problem))


def _in_words(problem: Problem, demands: list[Demand], relations: list[Relation]) -> list[CoreItem]:
    """Say a core as a chain: what was asked for, then each fact beside one that leads to it.

    The requirements come first: of the target much is what the site has, and nobody typed it.
    """
    core = problem.restricted(demands, relations)
    asked = sorted((one for one in demands if one.kind == "request"), key=lambda one: one.of_target)
    stated = [one for one in demands if one.kind == "fact"]
    said: list[_Said] = []
    for fact in [*asked, *_chain(asked, stated, relations)]:
        if isinstance(fact, Demand):
            said.append((fact, CoreItem(fact.text, fact.kind, fact.source)))
        else:
            said.append((fact, _describe(core, fact)))
    return _joined(said)


def _joined(said: list[_Said]) -> list[CoreItem]:
    """Put things of a long core into one sentence, those that belong together most first."""
    for belong in (_same_pair, _same_subject, _same_kind):
        while len(said) > MOST_ITEMS:
            pairs = combinations(range(len(said)), 2)
            pair = next((pair for pair in pairs if belong(*(said[one] for one in pair))), None)
            if pair is None:
                break
            first, second = pair
            said[first] = (said[first][0], _both(said[first][1], said[second][1]))
            del said[second]
    return [item for _, item in said]


def _same_pair(one: _Said, other: _Said) -> bool:
    """Tell whether two facts are about the same two components."""
    facts = (one[0], other[0])
    return all(isinstance(fact, Relation) for fact in facts) and {*_names(facts[0])} == {*_names(facts[1])}


def _same_subject(one: _Said, other: _Said) -> bool:
    """Tell whether two things are said of the same component."""
    return _same_kind(one, other) and _names(one[0])[0] == _names(other[0])[0]


def _same_kind(one: _Said, other: _Said) -> bool:
    """Tell whether two things were both asked for, or are both facts."""
    return one[1].kind == other[1].kind


def _both(one: CoreItem, other: CoreItem) -> CoreItem:
    """Say two things in one; neither words nor sources are lost."""
    text = one.text if other.text == one.text else f"{one.text}; {other.text}"
    sources = dict.fromkeys([*one.source.split(" ; "), *other.source.split(" ; ")])
    return CoreItem(text, one.kind, " ; ".join(sources))


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
    if name == "gfx" and allowed == [OTHER_TARGETS]:
        wanted = " and ".join(one.version for one in relation.object.candidates if one.version not in allowed)
        return f"{subject} {verb} other offload targets than {wanted.replace(',', ', ')}"
    if objects & ~ABSENT == relation.object.present:
        return f"{subject} {verb} {f'a {name}' if name in PLATFORM else name}"
    if name == "base-image" and len(allowed) > 1:  # their names are long
        return f"{subject} {verb} one of {len(allowed)} base images"
    return f"{subject} {verb} {name} {join_words(allowed)}"


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
    return f"{name} {join_words(keys, joiner='and')}", len(keys) == 1


def _without_name(relation: Relation, row: Row) -> str:
    """Give what a row says behind the name of its subject; empty if it begins with something else."""
    for one in relation.subject.chosen(row.subjects):
        if row.fact.text.startswith(f"{one} "):
            return row.fact.text.removeprefix(str(one))
    return ""
