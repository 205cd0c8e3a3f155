"""Rejected versions: the facts that exclude them, or the component that would change."""

from __future__ import annotations

import pytest

from resolver.explain import rejected_versions
from resolver.facts.catalog import Catalog
from resolver.model import Conflict, Request, Resolution
from resolver.resolve import resolve
from tests.resolver.asking import ask, requirement


def _picked(catalog: Catalog, request: Request) -> dict[str, str]:
    answer = resolve(catalog, request)
    assert isinstance(answer, Resolution)
    return {pick.name: pick.key for pick in answer.picks}


@pytest.mark.parametrize(
    ("wanted", "name"), [("apex", "torch"), ("flash-attn", "torch"), ("torch", "rocm"), ("apex", "python")]
)
def test_rejected_version_conflicts_when_requested(wanted: str, name: str, catalog: Catalog) -> None:
    request = ask(catalog, wanted)
    picked = _picked(catalog, request)
    found, _ = rejected_versions(catalog, request, picked, name)
    assert found
    for one in found:
        version, _, variant = one.key.partition(" ")
        pinned = Request(request.target, (*request.requirements, requirement(f"{name}=={version}")))
        if one.core and not variant:
            assert isinstance(resolve(catalog, pinned), Conflict), one.key
            assert all(item.text and item.source for item in one.core)
        elif one.instead:
            other, now, then = one.instead
            assert picked[other] == now != then


def test_rejected_torch_names_excluding_request(catalog: Catalog) -> None:
    request = ask(catalog, "torch rocm==6.4.*", day="2026-06-01")
    before, more = rejected_versions(catalog, request, _picked(catalog, request), "torch", limit=99)
    assert more == 0
    found = {one.key: one for one in before}
    newest = found["2.10.0+rocm7.0"]
    assert any("2.10.0+rocm7.0 is built for ROCm 7.0" in item.text for item in newest.core)
    assert any("rocm==6.4.*" in item.text for item in newest.core)


def test_rejected_version_names_changed_component(catalog: Catalog) -> None:
    request = ask(catalog, "apex", day="2025-06-01")
    picked = _picked(catalog, request)
    found = {one.key: one for one in rejected_versions(catalog, request, picked, "apex")[0]}
    assert found["1.9.0a0 (4b03581)"].instead == ("python", picked["python"], "3.12")
    assert found["1.9.0a0 (4b03581)"].core == ()


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
    asked = requirement(f"torch=={last.key.partition(' ')[0]}").specifier
    found, _ = rejected_versions(catalog, request, picked, "torch", specifier=asked)
    assert last in found
    assert len(found) < len(everything)
