"""Small random universes, and their meaning computed from the rows alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, permutations, product

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from resolver.compiling.problem import ABSENT, Demand, Problem, Relation, RelationRow, Variable
from resolver.model import Candidate, Fact

NAMES = ("rocm", "torch", "apex", "deepspeed", "zlib")
"""Two components that are decided first, and three others."""
MOST_VERSIONS = 3

EXAMPLES = settings(
    max_examples=40,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
"""The same examples in every run, on fast and slow machines."""
FEWER = settings(EXAMPLES, max_examples=25)

Assignment = dict[str, int | None]
"""For each component the position of its candidate, or None if it is not part of the set."""
Subset = frozenset[int]
SUBSETS = {
    size: st.sampled_from(
        [frozenset(subset) for count in range(size + 1) for subset in combinations(range(size), count)]
    )
    for size in range(1, MOST_VERSIONS + 1)
}


@dataclass(frozen=True, slots=True)
class Limit:
    """A demand, in positions of candidates."""

    name: str
    allowed: Subset
    optional: bool


@dataclass(frozen=True, slots=True)
class Link:
    """A relation: rows of (subjects, objects), in positions of candidates."""

    subject: str
    object: str
    rows: tuple[tuple[Subset, Subset], ...]
    when_present: bool


@dataclass(frozen=True, slots=True)
class Universe:
    """A problem before it becomes masks."""

    sizes: Mapping[str, int]
    limits: tuple[Limit, ...]
    links: tuple[Link, ...]

    def problem(self) -> Problem:
        """Return the problem that the resolver reads."""
        variables = {
            name: Variable(name, [candidate(name, str(size - i)) for i in range(size)])
            for name, size in self.sizes.items()
        }
        demands = [
            Demand(
                variable,
                variable.mask(limit.allowed) | (ABSENT if limit.optional else 0),
                str(limit),
                "fact",
                "here",
            )
            for limit in self.limits
            for variable in [variables[limit.name]]
        ]
        relations = []
        for link in self.links:
            subject, target = variables[link.subject], variables[link.object]
            rows = [
                RelationRow(subject.mask(subjects), target.mask(objects), FACT)
                for subjects, objects in link.rows
            ]
            relations.append(Relation(subject, target, "run", rows, when_present=link.when_present))
        return Problem(variables, demands, relations)

    def holds(self, chosen: Assignment) -> bool:
        """Return whether an assignment satisfies all limits and links."""
        return all(_limit_holds(limit, chosen) for limit in self.limits) and all(
            _link_holds(link, chosen) for link in self.links
        )

    def solutions(self) -> Iterator[Assignment]:
        """Yield all solutions by trying every assignment."""
        values = [[None, *range(size)] for size in self.sizes.values()]
        for combination in product(*values):
            chosen = dict(zip(self.sizes, combination, strict=True))
            if self.holds(chosen):
                yield chosen

    def solvable(self) -> bool:
        """Return whether any assignment is a solution."""
        return next(self.solutions(), None) is not None

    def read(self, solution: Mapping[str, int]) -> Assignment:
        """Convert a solution of a session to an assignment."""
        return {name: solution[name] - 1 if name in solution else None for name in self.sizes}


FACT = Fact("a row", "documented", "here")


def candidate(name: str, version: str) -> Candidate:
    """Return a candidate without facts."""
    return Candidate(name, version, "distribution", "published", FACT)


def _limit_holds(limit: Limit, chosen: Assignment) -> bool:
    value = chosen[limit.name]
    return limit.optional if value is None else value in limit.allowed


def _link_holds(link: Link, chosen: Assignment) -> bool:
    subject, target = chosen[link.subject], chosen[link.object]
    speaking = [objects for subjects, objects in link.rows if subject in subjects]
    if not speaking:  # also if the subject is not part of the set
        return True
    if target is None:
        return link.when_present
    return any(target in objects for objects in speaking)


@st.composite
def universes(draw: st.DrawFn, *, cycles: bool = False) -> Universe:
    """Draw a universe of up to five components with up to three candidates each.

    Without cycles no component is related to itself, directly or not, as in the shipped facts.
    """
    names = draw(st.permutations(NAMES))[: draw(st.integers(2, len(NAMES)))]
    sizes = {name: draw(st.integers(1, MOST_VERSIONS)) for name in names}
    pairs = list(permutations(names, 2) if cycles else combinations(names, 2))

    def some(name: str) -> st.SearchStrategy[Subset]:
        return SUBSETS[sizes[name]]

    def limit(name: str) -> st.SearchStrategy[Limit]:
        return st.builds(Limit, st.just(name), some(name), st.booleans())

    def link(pair: tuple[str, str]) -> st.SearchStrategy[Link]:
        row = st.tuples(some(pair[0]), some(pair[1]))
        rows = st.lists(row, min_size=1, max_size=2).map(tuple)
        return st.builds(Link, st.just(pair[0]), st.just(pair[1]), rows, st.booleans())

    limits = draw(st.lists(st.sampled_from(names).flatmap(limit), min_size=1, max_size=4))
    links = draw(st.lists(st.sampled_from(pairs).flatmap(link), max_size=8))
    return Universe(sizes, tuple(limits), tuple(links))


def random_universe(seed: int, *, components: int = 8, candidates: int = 6, cycles: bool = False) -> Universe:
    """Return a universe too large to try every assignment; about half of these have a solution."""
    chance = random.Random(f"{seed} {components} {candidates} {cycles}")
    names = [*NAMES[:2], *(f"package{number}" for number in range(components - 2))]
    sizes = {name: chance.randint(2, candidates) for name in names}

    def some(name: str, share: float) -> Subset:
        return frozenset(number for number in range(sizes[name]) if chance.random() < share)

    limits = [
        Limit(name, some(name, 0.8), chance.random() < 0.2) for name in chance.choices(names, k=components)
    ]
    pairs = list(permutations(names, 2) if cycles else combinations(reversed(names), 2))
    links = []
    for subject, target in chance.sample(pairs, chance.randint(components, 2 * components)):
        rows = [(some(subject, 0.5), some(target, 0.5)) for _ in range(chance.randint(1, 3))]
        links.append(Link(subject, target, tuple(rows), chance.random() < 0.2))
    return Universe(sizes, tuple(limits), tuple(links))
