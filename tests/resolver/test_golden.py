"""The shipped catalog resolves each case in ``cases/`` to the expected answer."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import msgspec
import pytest

from resolver.answers.proven import judge
from resolver.answers.resolve import resolve
from resolver.facts.catalog import Catalog
from resolver.model import Conflict, Distribution, Prefer, Request, Resolution
from resolver.versions import allows
from tests.resolver.solve_helpers import ask


class Case(msgspec.Struct, forbid_unknown_fields=True, rename="kebab"):
    """A request and the expected answer."""

    description: str
    requirements: list[str]
    site: str
    date: datetime.date
    expect: str
    source: str = ""
    """Where the set was run."""
    prefer: Prefer = "advised"
    gfx: list[str] | None = None
    driver: str | None = None
    python: str | None = None
    glibc: str | None = None
    base_image: str | None = None
    picks: dict[str, str] = {}
    """Component to version, or to version and variant: the key of the candidate."""
    origins: dict[str, str] = {}
    """Component to its origin."""
    without: list[str] = []
    """Components that must not be in the set."""
    at_own_risk: list[str] = []
    """All components outside of the supported range."""
    warns: list[str] = []
    proven: str = ""
    """Set in the catalog whose every pick must be chosen."""
    named: list[str] = []
    """Texts that must occur in the items of the core."""


_FEWEST = 20  # sets of tier 1; a lower number means that a set was lost

FILES = sorted(Path(__file__).with_name("cases").glob("*.toml"))


def test_cases_expect_resolutions_and_conflicts() -> None:
    assert {_read(path).expect for path in FILES} == {"resolved", "conflict"}


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_catalog_gives_expected_answer(path: Path, catalog: Catalog) -> None:
    case = _read(path)
    request = ask(
        catalog,
        " ".join(case.requirements),
        site=case.site,
        day=case.date.isoformat(),
        backend="rocm" if case.gfx else None,
        gfx=case.gfx,
        driver=case.driver,
        python=case.python,
        glibc=case.glibc,
        base_image=case.base_image,
        prefer=case.prefer,
    )
    answer = resolve(catalog, request)
    if case.expect == "resolved":
        assert isinstance(answer, Resolution), answer
        _is_resolved(case, request, answer, catalog)
    else:
        assert isinstance(answer, Conflict), answer
        text = "\n".join(item.text for item in answer.core)
        assert [part for part in case.named if part not in text] == []
        assert case.named


AT_OWN_RISK: dict[str, str] = {}
"""Sets of tier 1 whose ROCm was outside of the driver's supported range on their day, with the reasons."""


def test_tier_1_sets_resolve(catalog: Catalog) -> None:
    verdicts = {row.id: judge(catalog, row) for row in catalog.proven.values() if row.tier == 1}
    assert len(verdicts) >= _FEWEST
    expected = {name: "at your own risk" if name in AT_OWN_RISK else "resolves" for name in verdicts}
    assert {name: verdict.verdict for name, verdict in verdicts.items()} == expected, verdicts
    assert set(AT_OWN_RISK) <= verdicts.keys()


def test_tier_2_set_without_resolution_has_reason(catalog: Catalog) -> None:
    judged = [judge(catalog, row) for row in catalog.proven.values() if row.tier == 2]
    assert [verdict for verdict in judged if verdict.verdict == "unknown" and not verdict.unknown] == []
    assert [verdict for verdict in judged if verdict.verdict == "does not resolve" and not verdict.core] == []


def test_set_before_first_window_is_unknown(catalog: Catalog) -> None:
    row = catalog.proven["s-2.3.1-rocm6.0.3"]
    judged = judge(catalog, msgspec.structs.replace(row, date=datetime.date(2010, 1, 1)))
    assert (judged.verdict, judged.unknown) == ("unknown", ("the driver of lumi-g on 2010-01-01",))


def _read(path: Path) -> Case:
    return msgspec.toml.decode(path.read_bytes(), type=Case)


def _is_resolved(case: Case, request: Request, answer: Resolution, catalog: Catalog) -> None:
    picks = {pick.name: pick for pick in answer.picks}
    assert {name: picks[name].origin for name in case.origins} == case.origins
    expected = catalog.proven[case.proven].picks if case.proven else case.picks
    assert {name: picks[name].key for name in expected if name in picks} == expected
    assert picks.keys().isdisjoint(case.without)
    assert [name for name, pick in picks.items() if pick.verdict != "supported"] == case.at_own_risk
    assert [part for part in case.warns if part not in "\n".join(answer.warnings)] == []
    assert [
        text for text in (*answer.warnings, *answer.notes) if not re.fullmatch(r"[a-z0-9-]+", text.id)
    ] == []
    for requirement in request.requirements:
        assert allows(
            [requirement.specifier] if requirement.specifier is not None else [],
            picks[requirement.name].version,
        )
    assert [name for name, pick in picks.items() if not _is_cited(pick)] == []
    _is_ordered(answer)


def _is_cited(pick: Distribution) -> bool:
    return len(pick.facts) > 0 and all(fact.text and fact.source for fact in pick.facts)


def _is_ordered(answer: Resolution) -> None:
    """Check that every chosen distribution is installed once, after its requirements."""
    rank = {name: number for number, group in enumerate(answer.order) for name in group}
    assert len(rank) == sum(map(len, answer.order))
    assert {pick.name for pick in answer.picks if pick.kind == "distribution"} <= rank.keys()
    assert [edge for edge in answer.edges if rank[edge.subject] <= rank[edge.object]] == []
