"""The search that learns from contradictions, compared with all combinations of values."""

from __future__ import annotations

import random
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from resolver.compiling.problem import ABSENT, bits
from resolver.solving.search import Incompatibility, Search

Terms = dict[int, int]
TABLE = 2
"""The number of terms of an incompatibility that a table can state."""
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@st.composite
def incompatibilities(draw: st.DrawFn, sizes: list[int]) -> list[Terms]:
    """Draw incompatibilities in which at most one variable may be absent, as in those from requirements."""
    drawn = []
    for _ in range(draw(st.integers(0, 14))):
        variables = draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=3, unique=True))
        terms = {}
        for number, variable in enumerate(variables):
            everything = (1 << (sizes[variable] + 1)) - 1
            terms[variable] = draw(st.integers(1, everything)) & (everything if number == 0 else ~ABSENT)
        if all(terms.values()):
            drawn.append(terms)
    return drawn


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], list[Terms], int, list[list[tuple[int, int]]]]:
    """Draw sizes, incompatibilities, how many of them are known from the start, and assumptions."""
    sizes = draw(SIZES)
    drawn = draw(incompatibilities(sizes))
    variables = st.integers(0, len(sizes) - 1)
    assumptions = [
        [
            (variable, 1 << draw(st.integers(0, sizes[variable])))
            for variable in draw(st.sets(variables, max_size=2))
        ]
        for _ in range(3)
    ]
    return sizes, drawn, draw(st.integers(0, len(drawn))), assumptions


def is_met(values: tuple[int, ...], terms: Terms) -> bool:
    return not all(mask >> values[variable] & 1 for variable, mask in terms.items())


def state(search: Search, terms: Terms) -> None:
    """Add an incompatibility; if its second variable must be present in it, as a table."""
    reason = tuple(terms.items())
    subject, target = list(terms)[1:] + list(terms)[:1] if len(terms) == TABLE else (0, 0)
    if subject == target or terms[subject] & ABSENT:
        search.add(terms, reason)
        return
    subjects, objects = search.everything[subject], search.everything[target]
    allowed = [
        objects & ~(terms[target] if terms[subject] >> bit & 1 else 0) for bit in range(subjects.bit_length())
    ]
    search.add_table(subject, target, allowed, reason)


def solve(search: Search, left: list[Terms], assumptions: list[tuple[int, int]]) -> Incompatibility | None:
    """Search, and state one more incompatibility before each choice."""

    def choose() -> tuple[int, int] | None:
        if left:
            terms = left.pop()
            state(search, terms)
            return 0, search.domains[0]
        open_variables = (
            v for v, domain in enumerate(search.domains) if not domain & ABSENT and domain & (domain - 1)
        )
        variable = next(open_variables, None)
        return None if variable is None else (variable, search.domains[variable] & -search.domains[variable])

    failed = search.solve(assumptions, choose)
    return failed and search.why(failed)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_search_finds_solution_iff_one_exists(
    problem: tuple[list[int], list[Terms], int, list[list[tuple[int, int]]]],
) -> None:
    sizes, stated, known, all_assumptions = problem
    search = Search()
    for size in sizes:
        search.add_variable((1 << (size + 1)) - 1)
    for terms in stated[:known]:
        state(search, terms)
    left = stated[known:]
    combinations = list(product(*(range(size + 1) for size in sizes)))
    solutions = [values for values in combinations if all(is_met(values, terms) for terms in stated)]
    for assumptions in all_assumptions:
        fitting = [
            values
            for values in solutions
            if all(mask >> values[variable] & 1 for variable, mask in assumptions)
        ]
        failed = solve(search, left, assumptions)
        if failed is None:
            values = tuple(0 if domain & ABSENT else domain.bit_length() - 1 for domain in search.domains)
            assert not left
            assert values in fitting
            continue
        assert not fitting
        assert failed.terms.keys() <= dict(assumptions).keys()
        assert not any(not is_met(values, failed.terms) for values in solutions)
        assert all(
            not mask & ~failed.terms[variable] for variable, mask in assumptions if variable in failed.terms
        )
        reasons = [dict(reason) for reason in failed.reasons()]  # type: ignore[call-overload]
        proved = [values for values in combinations if all(is_met(values, terms) for terms in reasons)]
        assert not [
            values for values in proved if all(mask >> values[variable] & 1 for variable, mask in assumptions)
        ]


def test_table_of_a_choice_that_was_taken_back_still_holds() -> None:
    """The object of the table is optional, so nothing else would make the search look at the table again."""
    search = Search()
    for _ in range(3):
        search.add_variable(0b111)
    for variable in (0, 1):
        search.add({variable: ABSENT}, "it is required")
    choices = iter([(0, 0b010), (1, 0b010)])

    def choose() -> tuple[int, int] | None:
        choice = next(choices, None)
        if choice is None and search.domains[1] == 0b010:
            search.add_table(0, 2, [0b111, 0b100, 0b111], "the first value of 0 requires the last of 2")
            search.add({0: 0b010, 1: 0b010}, "both have another value")
        return choice

    assert search.solve([], choose) is None
    assert search.domains == [0b010, 0b100, 0b100]


def late_table(chance: random.Random, sizes: list[int]) -> tuple[int, int, list[int]]:
    """Return a table between two variables, of which each subject may require the object."""
    subject, target = chance.sample(range(len(sizes)), 2)
    everything = (1 << (sizes[target] + 1)) - 1
    rows = [chance.randint(1, everything) & chance.choice([-1, ~ABSENT]) for _ in range(sizes[subject])]
    return subject, target, [everything, *(row or everything for row in rows)]


def solve_with_late_tables(chance: random.Random) -> bool:
    """Check a random problem whose tables are added between the choices; return whether it has a solution."""
    sizes = [chance.randint(1, 3) for _ in range(chance.randint(3, 5))]
    search = Search()
    for size in sizes:
        search.add_variable((1 << (size + 1)) - 1)
    stated = [{variable: ABSENT} for variable in chance.sample(range(len(sizes)), 2)]
    for _ in range(chance.randint(2, 9)):
        variables = chance.sample(range(len(sizes)), chance.randint(1, min(3, len(sizes))))
        terms = {v: chance.randint(1, search.everything[v]) & ~ABSENT for v in variables}
        stated += [terms] if all(terms.values()) else []
    for terms in stated:
        search.add(terms, "stated")
    tables = [late_table(chance, sizes) for _ in range(chance.randint(1, 8))]
    left = list(tables)

    def choose() -> tuple[int, int] | None:
        undecided = [
            v for v, domain in enumerate(search.domains) if not domain & ABSENT and domain & (domain - 1)
        ]
        if left and (not undecided or chance.random() < 0.4):
            search.add_table(*left.pop(), "a table")
            return None
        variable = chance.choice(undecided) if undecided else -1
        return (variable, 1 << chance.choice(list(bits(search.domains[variable])))) if undecided else None

    failed = search.solve([], choose)
    solutions = [
        values
        for values in product(*(range(size + 1) for size in sizes))
        if all(is_met(values, terms) for terms in stated)
        and all(rows[values[subject]] >> values[target] & 1 for subject, target, rows in tables)
    ]
    if failed is None:
        found = tuple(0 if domain & ABSENT else domain.bit_length() - 1 for domain in search.domains)
        assert found in solutions
    else:
        assert left or not solutions
    return failed is None


def test_tables_that_are_added_at_any_choice_hold() -> None:
    """A choice that is taken back keeps no table from being checked: tables are facts, not consequences."""
    assert sum(solve_with_late_tables(random.Random(seed)) for seed in range(600)) > 150


def test_first_variable_gets_its_first_value() -> None:
    search = Search()
    for _ in range(2):
        search.add_variable(0b1111)
    search.add({0: ABSENT}, "the first is required")
    search.add({0: 0b0010, 1: ~0b1000 & 0b1111}, "its first value requires the last of the second")
    assert solve(search, [], []) is None
    assert [list(bits(domain)) for domain in search.domains] == [[1], [3]]


def test_reasons_of_contradiction_leave_out_the_rest() -> None:
    search = Search()
    for _ in range(3):
        search.add_variable(0b111)
    search.add({0: ABSENT}, "0 is required")
    search.add({0: 0b110, 1: ~0b010 & 0b111}, "0 requires 1 in its first value")
    search.add({1: 0b010}, "the first value of 1 is broken")
    search.add({2: ABSENT}, "2 is required")
    failed = solve(search, [], [])
    assert failed is not None
    assert set(failed.reasons()) == {
        "0 is required",
        "0 requires 1 in its first value",
        "the first value of 1 is broken",
    }
