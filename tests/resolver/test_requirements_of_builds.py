"""A build for ROCm has the requirements that its own source lists for ROCm, not those of PyPI's for CUDA."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from resolver.answers.explain import explain_conflict
from resolver.answers.resolve import Search, resolve
from resolver.facts.catalog import Catalog
from resolver.model import Conflict, Resolution
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

FOR_CUDA = ("numba==0.61.2", "ray[cgraph]>=2.43", "xformers==0.0.1", "flashinfer-python==0.5.3")
"""What PKG-INFO of vLLM's sdists says, with releases that need CUDA or that nobody has."""
FOR_ROCM = ("numba==0.61.2", "ray[cgraph]>=2.43", "peft", "setuptools>=77", "torch", "amdsmi==6.2.4")
LISTED = "requirements?rocm.txt"
LEFT_OUT = "cupy-cuda12x, which ray[cgraph] requires, is left out: ray works without it."
BETWEEN = ("0.6.4", "0.7.0", "0.8.4", "0.9.1", "0.10.1", "0.11.0", "0.13.0", "0.19.0", "0.27.0")
"""Releases that the catalog does not list."""
DAYS = [f"{year}-{month:02}-15" for year in (2025, 2026) for month in range(1, 12)]

OTHERS: dict[str, dict[str, FakeRelease | Sequence[str]]] = {
    "numba": {"0.61.2": []},
    "ray": {"2.60.0": FakeRelease(requires=['cupy-cuda12x; extra == "cgraph"', "peft"], extras=["cgraph"])},
    "flashinfer-python": {"0.5.3": ["nvidia-cutlass-dsl>=4.2.1"]},
    "amdsmi": {"6.2.4": []},
    "peft": {"1": []},
    "setuptools": {"80": []},
}


def indexes(catalog: Catalog, *more: str) -> FakeIndexes:
    """Return an index with every sdist of vLLM that the catalog lists, and some that it does not."""
    listed = {LISTED: (*FOR_ROCM, *more)}
    sdist = FakeRelease(requires=FOR_CUDA, listed=listed, sdist=True, static=False, wheels=())
    rows = [row.version for row in catalog.releases_of("vllm") if row.sdist]
    return FakeIndexes({"vllm": dict.fromkeys((*rows, *BETWEEN), sdist), **OTHERS})


def versions(catalog: Catalog) -> list[str]:
    return [row.version for row in catalog.releases_of("vllm") if row.sdist] + [*BETWEEN]


@pytest.mark.parametrize("site", ["lumi-g", pytest.param("frontier", marks=pytest.mark.slow)])
def test_every_vllm_has_an_answer_or_a_reason_of_the_platform(site: str, catalog: Catalog) -> None:
    """Nothing that only the builds for CUDA require refuses a release on a day on which it is known."""
    known, resolved = indexes(catalog), set[str]()
    for number, version in enumerate(versions(catalog)):
        row = catalog.release.get(("vllm", version, ""))
        for day in [day for day in DAYS if row is None or day >= str(row.released)][number % 9 :: 9]:
            request = ask(catalog, f"vllm=={version}", site=site, day=day)
            answer = Search(catalog, request, known).answer
            if isinstance(answer, Resolution):
                resolved.add(version)
                (vllm,) = (pick for pick in answer.picks if pick.name == "vllm")
                assert vllm.git or vllm.origin == "published" or LEFT_OUT in answer.warnings
                continue
            conflict, _ = explain_conflict(request, answer)
            said = " ".join(item.text for item in conflict.core)
            assert "its sdist" not in said
            assert re.search(r"driver|requires (torch|rocm)", said), said
    assert len(resolved) > len(versions(catalog)) // 2


@pytest.mark.parametrize("day", [*DAYS[:4], *DAYS[5::4]])
@pytest.mark.parametrize("site", ["lumi-g", "frontier"])
def test_vllm_is_possible_on_every_day(site: str, day: str, catalog: Catalog) -> None:
    answer = resolve(catalog, ask(catalog, "vllm", site=site, day=day), indexes(catalog))
    assert isinstance(answer, Resolution)


def test_url_in_the_requirements_of_a_build_is_named_and_not_locked(catalog: Catalog) -> None:
    """Versions 0.12.0 and 0.13.0 of vLLM require a commit of fastsafetensors on ROCm."""
    url = "fastsafetensors @ git+https://example.org/f.git@0123456789012345678901234567890123456789"
    answer = resolve(catalog, ask(catalog, "vllm==0.12.0", day="2026-11-15"), indexes(catalog, url))
    assert isinstance(answer, Resolution)
    (left,) = [text for text in answer.left_open if "fastsafetensors" in text]
    assert url in left
    assert left in answer.warnings
    assert "fastsafetensors" not in {pick.name for pick in answer.picks}


def test_what_is_for_cuda_is_left_out_only_where_it_is_not_needed(catalog: Catalog) -> None:
    """The fact is about ray: of another project with the same requirement nothing is known."""
    projects: dict[str, dict[str, FakeRelease | Sequence[str]]] = {
        "stranger": {"1": ["cupy-cuda12x"]},
        **OTHERS,
    }
    answer = resolve(catalog, ask(catalog, "stranger", day="2026-11-15"), FakeIndexes(projects))
    assert isinstance(answer, Conflict)
    answer = resolve(catalog, ask(catalog, "ray[cgraph]", day="2026-11-15"), FakeIndexes(projects))
    assert isinstance(answer, Resolution)
    assert LEFT_OUT in answer.warnings
