"""Distributions outside torch on AMD GPUs: jax with its plugin, and builds that have another name."""

from __future__ import annotations

import pytest

from resolver.answers.resolve import resolve
from resolver.facts.catalog import Catalog
from resolver.model import Conflict, Resolution
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

DAY = "2026-11-21"
LUMI, FRONTIER, TUOLUMNE = ("lumi-g", "frontier", "tuolumne")


def plugin(series: str, version: str, pythons: str) -> dict[str, FakeRelease]:
    tags = [f"cp{python}-cp{python}-manylinux_2_28_x86_64" for python in pythons.split()]
    pjrt = f"jax-{series}-pjrt=={version}"
    return {version: FakeRelease(wheels=tags, requires=[pjrt])}


@pytest.fixture
def indexes() -> FakeIndexes:
    """Return an index with some of the releases that PyPI has; the plugins have PyPI's tags and metadata."""
    versions = ("0.4.35", "0.5.0", "0.5.3", "0.6.0", "0.7.1", "0.8.3", "0.10.0", "0.10.2", "0.12.0")
    seven = {
        **plugin("rocm7", "0.6.0", "310 311 312 313"),
        **plugin("rocm7", "0.7.1", "311 312 313"),
        **plugin("rocm7", "0.10.0", "311 312 313 314"),
        **plugin("rocm7", "0.12.0", "312 313 314 315"),
    }
    sixty = {
        **plugin("rocm60", "0.4.35", "310 311 312"),
        **plugin("rocm60", "0.5.0", "310 311 312"),
    }
    pure = FakeRelease(wheels=["py3-none-manylinux_2_28_x86_64"])
    return FakeIndexes(
        {
            "jax": {
                version: FakeRelease(requires=[f"jaxlib=={version}"], extras=["cpu"]) for version in versions
            },
            "jaxlib": {version: FakeRelease() for version in versions},
            "flax": {"0.9": ["jax>=0.4"]},
            "jax-rocm60-plugin": sixty,
            "jax-rocm60-pjrt": dict.fromkeys(sixty, pure),
            "jax-rocm7-plugin": seven,
            "jax-rocm7-pjrt": dict.fromkeys(seven, pure),
            "tensorflow": {"2.14.0": FakeRelease(), "2.21.0": FakeRelease()},
            "tensorflow-rocm": {
                version: FakeRelease(wheels=["cp310-cp310-manylinux2014_x86_64"])
                for version in ("2.9.4", "2.13.1.600", "2.14.0.600")
            },
            "tensorflow-cpu": {"2.21.0": FakeRelease()},
            "onnxruntime-gpu": {"1.27.1": FakeRelease()},
            "onnxruntime-migraphx": {"1.27.1": FakeRelease()},
            "needs-tensorflow": {"1.0": ["tensorflow>=2.10"]},
            "hip-python": {
                version: FakeRelease()
                for version in ("0.0.2", "6.4.3.555.40", "7.0.2.555.40", "10.0.0.0.1.2")
            },
            "amd-aiter": {"0.1.7.post2.dev18": FakeRelease()},
        }
    )


def answer(
    catalog: Catalog, indexes: FakeIndexes, text: str, site: str, **options: str
) -> Resolution | Conflict:
    day = options.pop("day", DAY)
    return resolve(catalog, ask(catalog, text, site=site, day=day, **options), indexes)  # type: ignore[arg-type]


def resolved(catalog: Catalog, indexes: FakeIndexes, text: str, site: str, **options: str) -> Resolution:
    found = answer(catalog, indexes, text, site, **options)
    assert isinstance(found, Resolution), found
    return found


def refused(catalog: Catalog, indexes: FakeIndexes, text: str, site: str, **options: str) -> str:
    found = answer(catalog, indexes, text, site, **options)
    assert isinstance(found, Conflict), found
    return "\n".join(item.text for item in found.core)


@pytest.mark.parametrize(
    ("text", "site", "expected"),
    [
        ("jax", LUMI, "0.4.35 rocm60 6.4.4"),
        ("flax", LUMI, "0.4.35 rocm60 6.4.4"),
        ("jax==0.5.0", LUMI, "0.5.0 rocm60 6.2.4"),
        ("jax rocm==7.0.*", LUMI, "0.6.0 rocm7 7.0.2"),
        ("jax", FRONTIER, "0.7.1 rocm7 7.1.1"),
        ("jax rocm==7.2.*", FRONTIER, "0.10.0 rocm7 7.2.4"),
        ("jax", TUOLUMNE, "0.4.35 rocm60 6.4.4"),
    ],
)
def test_jax_means_jax_with_its_plugin(
    catalog: Catalog, indexes: FakeIndexes, text: str, site: str, expected: str
) -> None:
    jax, series, rocm = expected.split()
    lock = resolved(catalog, indexes, text, site)
    names = ("jax", "jaxlib", f"jax-{series}-plugin", f"jax-{series}-pjrt")
    assert {name: lock.version_of(name) for name in names} == dict.fromkeys(names, jax)
    assert lock.target.rocm == rocm
    assert bool(lock.target.base_image) == (site != TUOLUMNE)  # the catalog has no image for it


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("jax==0.8.3", "no JAX plugin for ROCm"),
        ("jax==0.12.0", "rocm 7.14"),
        ("jax==0.7.1 rocm==7.0.*", "rocm >=7.1,<7.3"),
        ("jax jax-rocm7-plugin==0.6.0 jax-rocm7-pjrt==0.7.1", "jax-rocm7-pjrt"),
    ],
)
def test_jax_without_a_fitting_plugin_is_a_conflict(
    catalog: Catalog, indexes: FakeIndexes, text: str, reason: str
) -> None:
    assert reason in refused(catalog, indexes, text, LUMI)


def test_jax_on_the_cpu_is_asked_for(catalog: Catalog, indexes: FakeIndexes) -> None:
    for options in ({"backend": "cpu"}, {}):
        text = "jax" if options else "jax[cpu]"
        lock = resolved(catalog, indexes, text, LUMI, **options)
        assert {pick.name for pick in lock.distributions} == {"jax", "jaxlib"}
        assert lock.version_of("jax") == "0.12.0"


def test_another_gpu_than_the_plugin_has_code_for_is_refused(catalog: Catalog, indexes: FakeIndexes) -> None:
    request = ask(catalog, "jax==0.5.0", site="local", backend="rocm", gfx=["gfx950"], driver="6.3", day=DAY)
    found = resolve(catalog, request, indexes)
    assert isinstance(found, Conflict)
    assert any("contains code for" in item.text for item in found.core)


def test_tensorflow_means_its_build_for_rocm(catalog: Catalog, indexes: FakeIndexes) -> None:
    lock = resolved(catalog, indexes, "tensorflow==2.14.0", FRONTIER, day="2024-06-01")
    assert lock.version_of("tensorflow-rocm") == "2.14.0.600"
    assert not lock.version_of("tensorflow")
    assert lock.target.rocm == "6.0.0"
    assert lock.target.base_image == "rocm/dev-ubuntu-22.04:6.0-complete"
    assert any(note.startswith("tensorflow means tensorflow-rocm on AMD GPUs.") for note in lock.notes)


def test_tensorflow_without_a_fitting_rocm_is_a_conflict(catalog: Catalog, indexes: FakeIndexes) -> None:
    reasons = refused(catalog, indexes, "tensorflow", LUMI)
    assert "requires rocm 6.0.*" in reasons or "require rocm 6.0.*" in reasons
    assert "base image" in reasons
    assert resolved(catalog, indexes, "tensorflow-cpu", LUMI).version_of("tensorflow-cpu") == "2.21.0"
    assert resolved(catalog, indexes, "tensorflow", LUMI, backend="cpu").version_of("tensorflow") == "2.21.0"


def test_a_requirement_on_a_cpu_build_is_refused(catalog: Catalog, indexes: FakeIndexes) -> None:
    assert "whose build for AMD GPUs has another name" in refused(
        catalog, indexes, "needs-tensorflow", FRONTIER
    )
    lock = resolved(catalog, indexes, "needs-tensorflow", LUMI, backend="cpu")
    assert lock.version_of("tensorflow") == "2.21.0"


def test_onnxruntime_for_cuda_means_migraphx(catalog: Catalog, indexes: FakeIndexes) -> None:
    lock = resolved(catalog, indexes, "onnxruntime-gpu==1.27.1", FRONTIER)
    assert lock.version_of("onnxruntime-migraphx") == "1.27.1"
    assert lock.target.base_image


def test_hip_python_is_of_the_chosen_rocm(catalog: Catalog, indexes: FakeIndexes) -> None:
    lock = resolved(catalog, indexes, "hip-python", LUMI)
    assert (lock.version_of("hip-python"), lock.target.rocm) == ("6.4.3.555.40", "6.4.4")
    assert (
        resolved(catalog, indexes, "hip-python rocm==7.0.*", LUMI).version_of("hip-python") == "7.0.2.555.40"
    )
    assert "placeholder" in refused(catalog, indexes, "hip-python==0.0.2", LUMI)


def test_aiter_has_no_code_for_mi250x(catalog: Catalog, indexes: FakeIndexes) -> None:
    assert "contains code for gfx942 or gfx950" in refused(catalog, indexes, "amd-aiter", LUMI)
    assert resolved(catalog, indexes, "amd-aiter", TUOLUMNE).version_of("amd-aiter") == "0.1.7.post2.dev18"
