"""Learned facts in the resolver: libraries for several ROCm lines, each for other GPU architectures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from resolver.answers.resolve import resolve
from resolver.facts.catalog import Catalog, load
from resolver.model import Conflict, Resolution
from resolver.versions import minor
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

KNOWN = 'status = "observed"\nsource = "somewhere"\n'
HEAD = f'[[package]]\nname = "newext"\ntitle = "x"\npypi = "same"\n{KNOWN}'
ROW = '[[requires]]\npackage = "newext"\nreleases = "==1.0"\non = "rocm"\n'
ROWS = (
    f'{ROW}versions = ["==6.2.*"]\ngfx = ["gfx90a"]\n{KNOWN}'
    f'{ROW}versions = ["==6.4.*"]\ngfx = ["gfx90a", "gfx942"]\n{KNOWN}'
)
WHEEL = 'wheel = { file = "newext-1.0-py3-none-any.whl", sha256 = "00" }'
PINNED = f'[[release]]\npackage = "newext"\nversion = "1.0"\n{WHEEL}\n{KNOWN}'


def _resolved(catalog: Catalog, *gfx: str, is_open: bool) -> Resolution | Conflict:
    request = ask(catalog, "newext rocm<6.5", site="local", backend="rocm", gfx=gfx, prefer="oldest")
    indexes = FakeIndexes({"newext": {"1.0": FakeRelease()}}) if is_open else None
    return resolve(catalog, request, indexes)


@pytest.mark.parametrize("is_open", [False, True])
def test_gpu_architectures_decide_the_rocm_line(overlay: Callable[[str], Path], *, is_open: bool) -> None:
    catalog = load([overlay(HEAD + ("" if is_open else PINNED) + ROWS)])
    for gfx, line in ((("gfx90a",), "6.2"), (("gfx942",), "6.4"), (("gfx90a", "gfx942"), "6.4")):
        answer = _resolved(catalog, *gfx, is_open=is_open)
        assert isinstance(answer, Resolution), answer
        assert minor(answer.version_of("rocm") or "") == line
    refused = _resolved(catalog, "gfx1100", is_open=is_open)
    assert isinstance(refused, Conflict)
    assert any("newext" in item.text for item in refused.core)


def test_project_whose_facts_alone_require_rocm_is_confirmed(catalog: Catalog) -> None:
    indexes = FakeIndexes({"cupy-rocm-7-0": {"14.2.0": []}})
    answer = resolve(catalog, ask(catalog, "cupy-rocm-7-0", day="2026-11-21"), indexes)
    assert isinstance(answer, Resolution)
    assert minor(answer.version_of("rocm") or "") == "7.0"
