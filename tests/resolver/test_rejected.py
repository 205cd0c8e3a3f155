"""Rejected versions: the facts that exclude them, or the component that would change."""

from __future__ import annotations

import pytest
from msgspec.structs import astuple

from resolver.answers.rejected import Instead, rejected_versions
from resolver.answers.resolve import resolve
from resolver.facts.catalog import Catalog
from resolver.model import Conflict, Request, Resolution
from tests.resolver.solve_helpers import ask, requirement


def _picked(catalog: Catalog, request: Request) -> dict[str, str]:
    answer = resolve(catalog, request)
    assert isinstance(answer, Resolution)
    return {pick.name: pick.key for pick in answer.picks}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("requirements", "name"),
    [("apex", "torch"), ("flash-attn", "torch"), ("torch", "rocm")],
)
def test_rejected_version_conflicts_when_requested(requirements: str, name: str, catalog: Catalog) -> None:
    request = ask(catalog, requirements, prefer="newest")
    picked = _picked(catalog, request)
    rejected, _ = rejected_versions(catalog, request, picked, name)
    assert rejected
    for row in rejected:
        version, _, variant = row.version.partition(" ")
        pinned = Request(request.target, (*request.requirements, requirement(f"{name}=={version}")))
        if row.core and not variant:
            assert isinstance(resolve(catalog, pinned), Conflict), row.version
            assert all(item.text and item.source for item in row.core)
        elif row.instead:
            other, now, then = astuple(row.instead)
            assert picked[other] == now != then


def test_rejected_torch_names_excluding_request(catalog: Catalog) -> None:
    request = ask(catalog, "torch rocm==6.4.*", day="2026-06-01")
    before, more = rejected_versions(catalog, request, _picked(catalog, request), "torch", limit=99)
    assert more == 0
    rejected = {row.version: row for row in before}
    newest = rejected["2.10.0+rocm7.0"]
    assert any("2.10.0+rocm7.0 is built for ROCm 7.0" in item.text for item in newest.core)
    assert any("rocm==6.4.*" in item.text for item in newest.core)


def test_rejected_version_names_changed_component(catalog: Catalog) -> None:
    request = ask(catalog, "vllm", day="2026-06-01")
    picked = _picked(catalog, request)
    rejected = {row.version: row for row in rejected_versions(catalog, request, picked, "vllm")[0]}
    assert rejected["0.18.1"].instead == Instead("rocm", picked["rocm"], "7.0.2")
    assert rejected["0.18.1"].core == ()


def test_absent_component_has_no_rejected_versions(catalog: Catalog) -> None:
    request = ask(catalog, "torch")
    picked = _picked(catalog, request)
    assert rejected_versions(catalog, request, picked, "apex") == ([], 0)
    assert rejected_versions(catalog, request, picked, "gfx") == ([], 0)


def test_rejected_versions_beyond_limit_are_counted(catalog: Catalog) -> None:
    request = ask(catalog, "apex", day="2026-06-01")
    picked = _picked(catalog, request)
    everything, none = rejected_versions(catalog, request, picked, "torch", limit=999)
    first, more = rejected_versions(catalog, request, picked, "torch", limit=2)
    assert (none, first, more) == (0, everything[:2], len(everything) - 2)
    assert more > 0
    last = everything[-1]
    specifier = requirement(f"torch=={last.version.partition(' ')[0]}").specifier
    rejected, _ = rejected_versions(catalog, request, picked, "torch", specifier=specifier)
    assert last in rejected
    assert len(rejected) < len(everything)
