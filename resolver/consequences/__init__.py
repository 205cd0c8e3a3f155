"""Report the consequences of a change, and the facts that are the reason.

A change is a pair of sides: two catalogs, or two targets of one request, or both. The feasible tables of
both are compared; locks and proven sets are judged on both. If something is possible on
one side only, a minimal conflict of the other side explains it: the facts that changed are the parts of it
that the first side does not have. So exchanging the sides exchanges the effects.
"""

from __future__ import annotations

from collections.abc import Iterable

from resolver.consequences.holdings import Holding, Judge, proven_sets
from resolver.consequences.questions import Consequence, Side
from resolver.consequences.tables import Rows, TableDiff, changed_packages, recipe_changes, with_columns


def consequences(before: Side, after: Side, holdings: Iterable[Holding] = ()) -> list[Consequence]:
    """Return the consequences of a change for the table, the proven sets and the holdings.

    Both requests have the same requirements and the same backend. Proven sets are always judged.
    """
    if before == after:
        return []
    names = changed_packages(before, after)
    sides = (before, after) if names is None else with_columns(before, after, names)
    changes = TableDiff(*map(Rows, sides)).consequences() if names is None or names else []
    changes += recipe_changes(before, after)
    judge = Judge()
    sets = (row for row in proven_sets(before, after) if names is None or names & row.pins.keys())
    for holding in [*sets, *holdings]:
        changes += judge.consequences(holding)
    return changes
