"""Rejected versions: the facts that exclude them, or the component that would change."""

from __future__ import annotations

import pytest
from msgspec.structs import astuple

from resolver.answers.rejected import Instead, rejected_versions, search_naming
from resolver.answers.resolve import resolve
from resolver.facts.catalog import Catalog
from resolver.model import Conflict, Request, Resolution
from tests.resolver.solve_helpers import ask, requirement


def _chosen(catalog: Catalog, request: Request) -> Resolution:
    answer = resolve(catalog, request)
    assert isinstance(answer, Resolution)
    return answer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("requirements", "name"),
    [("apex", "torch"), ("flash-attn", "torch"), ("torch", "rocm")],
)
def test_rejected_version_conflicts_when_requested(requirements: str, name: str, catalog: Catalog) -> None:
    request = ask(catalog, requirements, prefer="newest")
    chosen = _chosen(catalog, request)
    rejected, _ = rejected_versions(search_naming(catalog, request, None, name), chosen, name)
    assert rejected
    for row in rejected:
        version, _, variant = row.version.partition(" ")
        pinned = Request(request.target, (*request.requirements, requirement(f"{name}=={version}")))
        if row.core and not variant:
            assert isinstance(resolve(catalog, pinned), Conflict), row.version
            assert all(item.text and item.source for item in row.core)
        elif row.instead:
            other, now, then = astuple(row.instead)
            assert chosen.pick(other).key == now != then  # type: ignore[union-attr]


def test_rejected_torch_names_excluding_request(catalog: Catalog) -> None:
    request = ask(catalog, "torch rocm==6.4.*", day="2026-06-01")
    asked = requirement("torch==2.10.0+rocm7.0").specifier
    (newest,), more = rejected_versions(
        search_naming(catalog, request, None, "torch"), _chosen(catalog, request), "torch", specifier=asked
    )
    assert (newest.version, more) == ("2.10.0+rocm7.0", 0)
    assert any("2.10.0+rocm7.0 is built for ROCm 7.0" in item.text for item in newest.core)
    assert any("rocm==6.4.*" in item.text for item in newest.core)


def test_older_version_that_does_not_work_is_explained(catalog: Catalog) -> None:
    request = ask(catalog, "torch rocm==6.4.*", day="2026-06-01")
    asked = requirement("torch==2.5.1").specifier
    older, _ = rejected_versions(
        search_naming(catalog, request, None, "torch"),
        _chosen(catalog, request),
        "torch",
        specifier=asked,
        passed=False,
    )
    wheels = {row.version: row.core for row in older if "+" in row.version}
    assert list(wheels) == ["2.5.1+rocm6.2", "2.5.1+rocm6.1"]
    assert all(any("rocm==6.4.*" in item.text for item in core) for core in wheels.values())


def test_rejected_version_names_changed_component(catalog: Catalog) -> None:
    request = ask(catalog, "vllm", day="2026-06-01")
    chosen = _chosen(catalog, request)
    rejected = {
        row.version: row
        for row in rejected_versions(search_naming(catalog, request, None, "vllm"), chosen, "vllm")[0]
    }
    assert rejected["0.18.1"].instead == Instead("rocm", chosen.version_of("rocm"), "7.0.2")
    assert rejected["0.18.1"].core == ()


def test_absent_component_has_no_rejected_versions(catalog: Catalog) -> None:
    request = ask(catalog, "torch")
    chosen = _chosen(catalog, request)
    assert rejected_versions(search_naming(catalog, request, None, "apex"), chosen, "apex") == ([], 0)
    assert rejected_versions(search_naming(catalog, request, None, "gfx"), chosen, "gfx") == ([], 0)


def test_versions_beyond_the_limit_are_counted(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    request = ask(catalog, "apex", day="2026-06-01")
    chosen = _chosen(catalog, request)
    usual, rest = rejected_versions(search_naming(catalog, request, None, "torch"), chosen, "torch")
    monkeypatch.setattr("resolver.answers.rejected.MAX_REJECTED", 2)
    first, more = rejected_versions(search_naming(catalog, request, None, "torch"), chosen, "torch")
    assert (first, more) == (usual[:2], rest + len(usual) - 2)
    assert more > 0
    third = requirement(f"torch=={usual[2].version.partition(' ')[0]}").specifier
    asked, _ = rejected_versions(
        search_naming(catalog, request, None, "torch"), chosen, "torch", specifier=third
    )
    assert usual[2] in asked
