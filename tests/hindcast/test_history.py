"""The catalog's own history: answers change only on days on which a fact begins, ends or is replaced."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resolver.answers import suggest
from resolver.answers.resolve import resolve
from resolver.facts.catalog import Catalog, load
from resolver.model import Resolution
from tests.resolver.solve_helpers import ask
from tests.resolver.universe import EXAMPLES

CATALOG = load()
TWO_YEARS = datetime.timedelta(days=731)
REQUESTS = ("torch", "apex deepspeed flash-attn bitsandbytes", "vllm", "jax", "mpi4py cupy")


def _days(value: object) -> Iterator[datetime.date]:
    """Yield all days in rows of the catalog."""
    if isinstance(value, datetime.date):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _days(getattr(value, name))
    elif isinstance(value, dict):
        yield from _days([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _days(one)


def _gaps(catalog: Catalog) -> list[tuple[datetime.date, datetime.date]]:
    """Return the first and the last day of each time in which no fact changes, in the last two years."""
    days = sorted({*_days(catalog)})
    recent = [day for day in days if days[-1] - TWO_YEARS <= day]
    before = datetime.timedelta(days=1)
    return [(day, following - before) for day, following in pairwise(recent) if following - before > day]


GAPS = _gaps(CATALOG)


def _answer(site: str, request: str, day: datetime.date) -> object:
    """Return the chosen versions, or the reasons why there are none; days in texts do not count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suggest, "SECONDS", 0.0)  # the reasons are compared, not what to change
        answer = resolve(CATALOG, ask(CATALOG, request, site=site, day=day.isoformat()))
    if isinstance(answer, Resolution):
        return {pick.name: (pick.version, pick.variant, pick.origin) for pick in answer.picks}
    return sorted(item.text.replace(day.isoformat(), "that day") for item in answer.core)


@pytest.mark.slow
@settings(EXAMPLES, max_examples=60)
@given(st.sampled_from(sorted(CATALOG.site)), st.sampled_from(REQUESTS), st.sampled_from(GAPS))
def test_answer_changes_only_when_a_fact_does(
    site: str, request: str, gap: tuple[datetime.date, datetime.date]
) -> None:
    first, last = gap
    assert _answer(site, request, first) == _answer(site, request, last)


@pytest.mark.long
@pytest.mark.parametrize("site", sorted(CATALOG.site))
def test_no_answer_of_two_years_changes_without_a_fact(site: str) -> None:
    request = "apex deepspeed flash-attn bitsandbytes torch"
    assert [gap for gap in GAPS if len({str(_answer(site, request, day)) for day in gap}) > 1] == []
