"""Explain in sentences why a request has no solution, and why a version was not chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from resolver.compiling.clauses import OTHER_ARCHITECTURES
from resolver.compiling.problem import ABSENT, ALWAYS, Demand, Link, Problem, Relation, RelationRow, Statement
from resolver.model import Conflict, CoreItem
from resolver.solving.search import Search
from resolver.solving.session import Session, conflicting, minimal, state
from resolver.versions import join_words, newest_first, sort_key

if TYPE_CHECKING:
    from resolver.model import Request
    from resolver.solving.session import Refuted

MAX_CORE_ITEMS = 10
"""A larger core is written in fewer sentences."""
_LONGEST = 500
"""Characters of a sentence that was joined from others, after which no more are joined."""
_MOST_VERSIONS = 4
"""Releases with the same requirement to list."""
_MOST_PREDICATES = 3
"""Different requirements of the releases of one distribution to list."""

_PLURALS = {
    "requires": "require",
    "lacks": "lack",
    "has": "have",
    "is": "are",
    "was": "were",
    "contains": "contain",
}


class LinkGroup(msgspec.Struct, frozen=True, eq=False):
    """The statements of one distribution's releases about another, or one requirement of the request."""

    links: tuple[Link, ...]
    size: int
    """Number of releases of the distribution."""
    allowed: int = 0
    """Candidates of the other distribution that any statement allows, if it is a component of the problem."""

    @property
    def subject(self) -> str:
        """The distribution; empty for the request."""
        return self.links[0].subject

    @property
    def object(self) -> str:
        """The other distribution; empty if the statements are about the subject alone."""
        return self.links[0].object

    def item(self) -> CoreItem:
        """Return the statements as one sentence."""
        first = self.links[0]
        if not first.subject:
            about = first.requirement or first.object
            return CoreItem(first.predicate, "request", first.source, about=(about,))
        versions = dict[str, list[str]]()
        for link in self.links:
            versions.setdefault(link.predicate, []).extend((link.version, *link.others))
        parts, statements = [], []
        for predicate, stating in versions.items():
            ordered = newest_first(dict.fromkeys(stating))
            states_all = ordered == [""] or (len(versions) == 1 and len(ordered) == self.size)
            if states_all and self.size > 1:
                parts.append(f"every {first.subject} {predicate}")
                statements.append(parts[-1])
            else:
                verb, _, rest_ = predicate.partition(" ")
                plural = predicate if len(ordered) == 1 else f"{_PLURALS.get(verb, verb)} {rest_}"
                for texts, most in ((parts, _MOST_VERSIONS), (statements, len(ordered))):
                    which = join_words(ordered, most=most, joiner="and")
                    texts.append(" ".join(filter(None, (first.subject, which, plural))))
        rest = sum(map(len, list(versions.values())[_MOST_PREDICATES:]))
        if rest:
            releases = "other release has" if rest == 1 else "other releases have"
            parts[_MOST_PREDICATES:] = [
                f"{rest} {releases} similar {'requirements' if first.object else 'problems'}"
            ]
        stated = () if parts == statements else tuple(statements)
        return CoreItem("; ".join(parts), "fact", first.source, stated, _names(self))


Constraint = Demand | Relation | LinkGroup
_Terms = list[dict[int, int]]
_Sentence = tuple[Constraint, CoreItem]
_Row = tuple[Constraint, list[CoreItem]]


def explain_conflict(request: Request, refuted: Refuted) -> tuple[Conflict, list[Constraint]]:
    """Return the conflict of a request, without suggestions, and its minimal core."""
    core = _core(refuted)
    items = tuple(sentences(refuted.session, core))
    return Conflict(request=request, target=request.target, core=items, suggestions=()), core


def _core(refuted: Refuted) -> list[Constraint]:
    """Return a core: facts about the platform are left out first, then metadata, the request last."""
    session = refuted.session
    if not refuted.links:
        demands, relations = session.explain()
        return [*demands, *relations]
    links = _grouped(refuted)
    always = [stated.terms for stated in session.search.stated if stated.reason is ALWAYS]

    def used(items: Sequence[Constraint]) -> list[Constraint] | None:
        # A new search for each trial: one that has learned from a statement would use it although it is left
        # out. What always holds is no part of an explanation, so it is in every trial.
        search = Search(lazily=True)
        for everything in session.search.everything:
            search.add_variable(everything)
        for terms in always:
            search.add(terms, ALWAYS)
        for item in items:
            if isinstance(item, LinkGroup):
                for terms in links[id(item)][1]:
                    search.add(terms, item)
            else:
                state(search, session.number, item)
        return conflicting(search, items)

    items: list[Constraint] = [
        *session.problem.relations,
        *sorted((group for group, _ in links.values()), key=lambda group: not group.subject),
        *sorted(session.problem.demands, key=lambda demand: demand.kind == "request"),
    ]
    core = minimal(items, used)
    return [item for item in core if not (isinstance(item, Demand) and item.implied)]


def blamed(core: Iterable[Constraint]) -> set[str]:
    """Return the names whose requirements in the request are part of a conflict."""
    names = {item.variable.name for item in core if isinstance(item, Demand) and item.kind == "request"}
    return names | {item.object.partition("[")[0] for item in core if isinstance(item, LinkGroup)}


def _grouped(refuted: Refuted) -> dict[int, tuple[LinkGroup, _Terms]]:
    """Return the statements of the proof about projects in groups, with their incompatibilities."""
    session = refuted.session
    used = {id(link) for link in refuted.links}
    alone = {(link.subject, link.predicate) for link in refuted.links if link.subject and not link.object}
    reasons = Counter(subject for subject, _ in alone)
    grouped: dict[tuple[str, str, str], tuple[list[Link], _Terms]] = {}
    for stated in session.search.stated:
        link = stated.reason
        if isinstance(link, Link) and id(link) in used:
            is_one = bool(link.subject and link.object) or reasons[link.subject] > MAX_CORE_ITEMS
            key = (link.subject, link.object, "" if is_one else link.predicate)
            links, terms = grouped.setdefault(key, ([], []))
            links.append(link)
            terms.append(stated.terms)
    groups = {}
    for links, terms in grouped.values():
        size = refuted.releases.get(links[0].subject, 0)
        group = LinkGroup(tuple(links), size, _allowed(session, links[0].object, terms))
        groups[id(group)] = group, terms
    return groups


def _allowed(session: Session, name: str, terms: _Terms) -> int:
    """Return the values of a component that at least one of the incompatibilities allows."""
    if name not in session.number:
        return 0
    everything = session.problem.variables[name].everything
    allowed = 0
    for stated in terms:  # without the component, all its values are excluded
        allowed |= everything & ~stated.get(session.number[name], everything)
    return allowed


def core_items(session: Session, demands: Sequence[Demand]) -> list[CoreItem]:
    """Return the sentences of a minimal conflict of demands."""
    core, relations = session.explain(demands)
    return sentences(session, [*core, *relations])


def sentences(session: Session, core: Sequence[Constraint]) -> list[CoreItem]:
    """Return a core as a chain of sentences: the request, then each fact after a fact that leads to it."""
    demands = [item for item in core if isinstance(item, Demand)]
    relations = [item for item in core if isinstance(item, Relation)]
    groups = [item for item in core if isinstance(item, LinkGroup)]
    requested = sorted(
        (demand for demand in demands if demand.kind == "request"),
        key=lambda demand: demand.of_target,  # most of the target comes from the site, not from the user
    )
    stated = [demand for demand in demands if demand.kind == "fact"]
    typed = [group for group in groups if not group.subject]
    metadata = [group for group in groups if group.subject]
    first: list[Constraint] = [*typed, *requested]
    facts: list[Constraint] = [*metadata, *relations, *stated]
    variables = session.problem.variables
    left = [
        Demand(variables[group.object], group.allowed, "", "fact", "")
        for group in metadata
        if group.object in variables
    ]
    written: list[_Sentence] = []
    for constraint in [*first, *_chain(first, facts)]:
        if isinstance(constraint, Demand):
            item = CoreItem(constraint.text, constraint.kind, constraint.source, about=(constraint.about,))
        elif isinstance(constraint, LinkGroup):
            item = constraint.item()
        else:
            item = describe(session, [*demands, *left], relations, constraint)
        written.append((constraint, item))
    return _joined(written)


def _chain(first: Iterable[Constraint], facts: Iterable[Constraint]) -> list[Constraint]:
    """Order facts so that each, where possible, starts with a component that was named before."""
    reached = {name for constraint in first for name in _names(constraint)}
    left = list(facts)
    ordered: list[Constraint] = []
    while left:
        following = next((fact for fact in left if _names(fact)[0] in reached), None)
        following = following or next((fact for fact in left if reached & {*_names(fact)}), left[0])
        left.remove(following)
        ordered.append(following)
        reached.update(_names(following))
    return ordered


def _names(constraint: Constraint) -> tuple[str, ...]:
    if isinstance(constraint, Demand):
        return (constraint.variable.name,)
    if isinstance(constraint, LinkGroup):
        return tuple(filter(None, (constraint.subject, constraint.object)))
    return constraint.subject.name, constraint.object.name


def _joined(sentences: Sequence[_Sentence]) -> list[CoreItem]:
    rows = [(constraint, [item]) for constraint, item in sentences]
    keys: tuple[Callable[[Constraint, CoreItem], Hashable], ...] = (
        lambda fact, _: fact if isinstance(fact, Demand) else frozenset(_names(fact)),
        lambda fact, item: (item.kind, _names(fact)[0]),
        lambda _, item: item.kind,
    )
    for key in keys:
        excess, joined = len(rows) - MAX_CORE_ITEMS, dict[Hashable, _Row]()
        for row in rows:
            same = key(row[0], row[1][0])
            if same in joined and excess > 0:
                joined[same][1].extend(row[1])
                excess -= 1
            else:
                joined[id(row) if same in joined else same] = row
        rows = [*joined.values()]
    return [_all_of(items) for _, items in rows]


def _all_of(items: Sequence[CoreItem]) -> CoreItem:
    """Join items without losing statements or sources; of many texts, the first ones remain."""
    if len(items) == 1:
        return items[0]
    texts = list(dict.fromkeys(item.text for item in items))
    statements = tuple(dict.fromkeys(one for item in items for one in item.statements or (item.text,)))
    ends = accumulate(len(text) for text in texts)
    shown = 1 + sum(end < _LONGEST for end in ends)
    rest = len(texts) - shown
    if rest > 1:
        texts[shown:] = [f"and {rest} similar statements"]
    sources = dict.fromkeys(source for item in items for source in item.source.split(" ; "))
    is_shorter = (*texts,) != statements
    about = tuple(dict.fromkeys(name for item in items for name in item.about))
    stated = statements if is_shorter else ()
    return CoreItem("; ".join(texts), items[0].kind, " ; ".join(sources), stated, about)


def subjects_left(
    session: Session, demands: Sequence[Demand], relations: Sequence[Relation], relation: Relation
) -> int:
    """Return the mask of the subjects of a relation that the rest of the core leaves."""
    others = [other for other in relations if other is not relation]
    rest = Session(Problem(session.problem.variables, [*demands], others))
    left = rest.narrow(demands)
    name = relation.subject.name
    return relation.subject.present & (left.domains[rest.number[name]] if left else -1)


def describe(
    session: Session, demands: Sequence[Demand], relations: Sequence[Relation], relation: Relation
) -> CoreItem:
    """Describe how a relation limits the candidates that the rest of the core leaves."""
    subjects = subjects_left(session, demands, relations, relation)
    rows = [row for row in relation.rows if row.subjects & subjects]
    source = rows[0].fact.source if rows else "the catalog"
    if len({row.fact.text for row in rows}) == 1:
        return CoreItem(rows[0].fact.text, "fact", source, about=_names(relation))
    return CoreItem(_summary(relation, subjects, rows), "fact", source, about=_names(relation))


def _summary(relation: Relation, subjects: int, rows: Sequence[RelationRow]) -> str:
    objects = 0
    for row in rows:
        objects |= row.objects
    name = relation.object.name
    allowed = sorted({candidate.version for candidate in relation.object.chosen(objects)}, key=sort_key)
    if not allowed:
        number = len(rows) - 1
        others = "1 other version" if number == 1 else f"{number} other versions"
        return f"{rows[0].fact.text}; the same applies to {others}"
    subject, singular = _subject(relation, subjects)
    predicates = {
        row.text.stated
        if isinstance(row.text, Statement)
        and row.text.subject in map(str, relation.subject.chosen(row.subjects))
        else ""
        for row in rows
    }
    if len(predicates) == 1 and "" not in predicates:
        return f"{subject}{'' if singular else ': each'} {predicates.pop()}"
    if relation.subject.name == "base-image":
        verb = "contains" if singular else "contain"
    elif relation.when_present:
        verb = "works with" if singular else "work with"
    else:
        verb = "requires" if singular else "require"
    if name == "gfx" and allowed == [OTHER_ARCHITECTURES]:
        requested = [
            candidate.version for candidate in relation.object.candidates if candidate.version not in allowed
        ]
        return f"{subject} {verb} GPU architectures other than {' and '.join(requested).replace(',', ', ')}"
    if objects & ~ABSENT == relation.object.present:
        return f"{subject} {verb} {name}"
    if name == "base-image" and len(allowed) > 1:  # their names are long
        return f"{subject} {verb} one of {len(allowed)} base images"
    return f"{subject} {verb} {name} {join_words(allowed)}"


def _subject(relation: Relation, subjects: int) -> tuple[str, bool]:
    """Return the remaining candidates of a subject as text, and whether the verb is singular."""
    name = relation.subject.name
    left = sorted(relation.subject.chosen(subjects), key=lambda pick: (sort_key(pick.version), pick.variant))
    keys = list(dict.fromkeys(candidate.key for candidate in left))
    if len(keys) > 1 and len(left) == len(relation.subject.candidates):
        return f"every {name}", True
    if name == "base-image" and len(keys) > 1:  # their names are long
        return f"these {len(keys)} base images", False
    return f"{name} {join_words(keys, joiner='and')}", len(keys) == 1
