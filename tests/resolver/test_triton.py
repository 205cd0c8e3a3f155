"""The triton of torch, under all its names, and distributions that are for CUDA, judging by their names."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from resolver.answers.resolve import resolve
from resolver.facts.catalog import Catalog
from resolver.lock import dumps, read_lock
from resolver.model import Conflict, Distribution, Preinstalled, Request, Resolution
from resolver.requirements import TRITON_NAMES, parse_requirement
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

TORCH = "torch==2.9.1+rocm6.4"
OWN = "pytorch-triton-rocm"
PYPI: dict[str, dict[str, list[str]]] = {"triton": {"3.6.0": [], "3.5.1": [], "2.0.0": []}}
"""triton on PyPI, which is never a candidate for ROCm."""


def rocm(catalog: Catalog, text: str, **more: object) -> Request:
    driver = "30.20" if "2.10" in text else "5.7" if "rocm5" in text else "6.4"
    return replace(ask(catalog, text, driver=driver), **more)


def answer_of(catalog: Catalog, requires: list[str], text: str = f"liger {TORCH}") -> Resolution | Conflict:
    indexes = FakeIndexes({**PYPI, "liger": {"0.6": requires}})
    return resolve(catalog, rocm(catalog, text), indexes)


def locked(answer: Resolution | Conflict) -> Resolution:
    assert isinstance(answer, Resolution), answer
    return answer


def tritons(lock: Resolution) -> dict[str, str]:
    return {pick.name: pick.pinned for pick in lock.distributions if pick.name in TRITON_NAMES}


def alias(lock: Resolution, name: str = "triton") -> Distribution:
    pick = lock.pick(name)
    assert pick is not None
    return pick


def test_triton_of_torch_gets_an_alias(catalog: Catalog) -> None:
    lock = locked(answer_of(catalog, ["triton>=2.3.1"]))
    assert tritons(lock) == {OWN: "3.5.1", "triton": "3.5.1+rocm6.4.torch2.9.1.gfx90a"}
    pick = alias(lock)
    assert (pick.version, pick.origin, pick.alias_of, pick.files) == ("3.5.1", "build", OWN, ())
    assert pick.facts[0].text == "liger 0.6 requires triton>=2.3.1"
    edges = {(edge.subject, edge.object, edge.kind) for edge in lock.edges}
    assert {("liger", "triton", "run"), ("triton", OWN, "run")} <= edges


def test_lock_keeps_the_alias(catalog: Catalog, tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "matrix.lock"
    lock = locked(answer_of(catalog, ["triton"]))
    path.write_text(dumps(lock), encoding="utf-8")
    assert read_lock(path) == lock


@pytest.mark.parametrize("name", ["triton-rocm", "pytorch-triton"])
def test_other_names_of_triton_get_an_alias(catalog: Catalog, name: str) -> None:
    assert alias(locked(answer_of(catalog, [f"{name}>=3"])), name).alias_of == OWN


def test_own_name_of_triton_needs_no_alias(catalog: Catalog) -> None:
    assert tritons(locked(answer_of(catalog, [f"{OWN}>=3"]))) == {OWN: "3.5.1"}


def test_requested_triton_is_that_of_torch(catalog: Catalog) -> None:
    lock = locked(answer_of(catalog, [], f"triton>=3.5 {TORCH}"))
    assert alias(lock).alias_of == OWN
    assert alias(lock).facts[0].text == "you asked for triton>=3.5"


def test_triton_brings_torch(catalog: Catalog) -> None:
    lock = locked(answer_of(catalog, ["triton==3.4.*"], "liger"))
    assert lock.version_of("torch").startswith("2.8.")
    assert tritons(lock)[OWN] == "3.4.0"


def test_triton_renamed_by_torch(catalog: Catalog) -> None:
    lock = locked(answer_of(catalog, ["triton==3.6.*"], "liger torch"))
    assert lock.version_of("torch").startswith("2.10.")
    assert alias(lock).alias_of == "triton-rocm"
    assert OWN not in tritons(lock)


def test_too_new_triton_is_refused_with_both_reasons(catalog: Catalog) -> None:
    conflict = answer_of(catalog, ["triton>=3.6"])
    assert isinstance(conflict, Conflict)
    texts = [item.text for item in conflict.core]
    assert "liger 0.6 requires triton>=3.6" in texts
    assert any("torch 2.9.1+rocm6.4 requires pytorch-triton-rocm==3.5.1" in text for text in texts), texts


def test_compiled_torch_brings_no_triton(catalog: Catalog) -> None:
    text = "liger torch==2.9.1a0+gitd38164a"
    request = ask(catalog, text, day="2026-03-01")
    assert isinstance(resolve(catalog, request, FakeIndexes({"liger": {"0.6": []}})), Resolution)
    assert isinstance(resolve(catalog, request, FakeIndexes({"liger": {"0.6": ["triton"]}})), Conflict)


def test_constraint_on_triton_limits_torch(catalog: Catalog) -> None:
    request = rocm(catalog, "liger torch", constraints=(parse_requirement("triton<3.5"),))
    lock = locked(resolve(catalog, request, FakeIndexes({**PYPI, "liger": {"0.6": ["triton"]}})))
    assert tritons(lock)[OWN] == "3.4.0"


def test_installed_triton_is_kept(catalog: Catalog) -> None:
    kept = Preinstalled("list.txt", {"torch": "2.9.1+rocm6.4", "triton": "3.5.1"})
    request = rocm(catalog, "liger torch", preinstalled=kept)
    lock = locked(resolve(catalog, request, FakeIndexes({**PYPI, "liger": {"0.6": ["triton>=3"]}})))
    assert (alias(lock).origin, alias(lock).alias_of) == ("preinstalled", "")


def test_cpu_has_triton_from_the_index(catalog: Catalog) -> None:
    request = ask(catalog, "liger torch", site="local", backend="cpu", python="3.12")
    lock = locked(resolve(catalog, request, FakeIndexes({**PYPI, "liger": {"0.6": ["triton>=3"]}})))
    assert (tritons(lock), alias(lock).origin) == ({"triton": "3.6.0"}, "published")


def test_cpu_has_one_triton(catalog: Catalog) -> None:
    projects: dict[str, dict[str, list[str]]] = {
        **PYPI,
        "pytorch-triton": {"3.0": []},
        "liger": {"0.6": ["triton"], "0.5": []},
    }
    projects["other"] = {"1.0": ["pytorch-triton"]}
    request = ask(catalog, "liger other", site="local", backend="cpu", python="3.12")
    lock = locked(resolve(catalog, request, FakeIndexes(projects)))
    assert (lock.version_of("liger"), tritons(lock)) == ("0.5", {"pytorch-triton": "3.0"})


# Triton in torch's own metadata.


def of_torch(
    catalog: Catalog, torch: str, requires: list[str], **tritons: dict[str, FakeRelease]
) -> FakeIndexes:
    index = catalog.torch[torch].index
    release = FakeRelease(requires=requires, index=index)
    projects = {name.replace("_", "-"): releases for name, releases in tritons.items()}
    return FakeIndexes({**PYPI, "torch": {torch: release}, "liger": {"0.6": ["triton"]}, **projects})


@pytest.mark.parametrize(("python", "triton"), [("3.11", "2.2.0"), ("3.12", "")])
def test_triton_of_some_pythons(catalog: Catalog, python: str, triton: str) -> None:
    torch = "2.2.2+rocm5.7"
    indexes = of_torch(catalog, torch, [f'{OWN}==2.2.0; python_version < "3.12"'])
    request = rocm(catalog, f"torch=={torch} python=={python}")
    assert tritons(locked(resolve(catalog, request, indexes))) == ({OWN: triton} if triton else {})


def test_no_triton_for_this_python_is_refused(catalog: Catalog) -> None:
    torch = "2.2.2+rocm5.7"
    indexes = of_torch(catalog, torch, [f'{OWN}==2.2.0; python_version < "3.12"'])
    request = rocm(catalog, f"torch=={torch} liger python==3.12")
    assert isinstance(resolve(catalog, request, indexes), Conflict)


def test_range_is_pinned_by_the_index_of_torch(catalog: Catalog) -> None:
    torch = "2.0.1+rocm5.4.2"
    index = catalog.torch[torch].index
    releases = {
        "2.1.0": FakeRelease(index=index),
        "2.0.2": FakeRelease(index=index),
        "2.0.1": FakeRelease(index=index),
    }
    indexes = of_torch(catalog, torch, [f"{OWN}>=2.0.0,<2.1"], pytorch_triton_rocm=releases)
    lock = locked(resolve(catalog, rocm(catalog, f"torch=={torch} liger"), indexes))
    assert tritons(lock)[OWN] == "2.0.2"
    assert alias(lock).version == "2.0.2"


def test_range_without_release_is_left_open(catalog: Catalog) -> None:
    torch = "2.0.1+rocm5.4.2"
    indexes = of_torch(catalog, torch, [f"{OWN}>=2.0.0,<2.1"])
    lock = locked(resolve(catalog, rocm(catalog, f"torch=={torch}"), indexes))
    assert any(OWN in text for text in lock.left_open)


# CUDA by its name.


@pytest.mark.parametrize("backend", ["rocm", "cpu"])
@pytest.mark.parametrize("name", ["nvidia-nccl-cu12", "cupy-cuda12x", "tensorrt-cu13", "cuda-python"])
def test_names_of_cuda_are_refused_with_the_chain(catalog: Catalog, backend: str, name: str) -> None:
    indexes = FakeIndexes(
        {"top": {"1.0": ["boosted"]}, "boosted": {"3.0": [f"{name}>=1"]}, name: {"1.0": []}}
    )
    site = "lumi-g" if backend == "rocm" else "local"
    request = ask(catalog, "top", site=site, python="3.12")
    conflict = resolve(catalog, request, indexes)
    assert isinstance(conflict, Conflict)
    texts = [item.text for item in conflict.core]
    assert texts == [
        "you asked for top",
        "top 1.0 requires boosted",
        f"boosted 3.0 requires {name}, which is for CUDA",
    ]


@pytest.mark.parametrize("name", ["nvidia-ml-py", "faiss-gpu", "onnxruntime-gpu", "tensorrt"])
def test_other_names_are_allowed(catalog: Catalog, name: str) -> None:
    indexes = FakeIndexes({"top": {"1.0": [name]}, name: {"1.0": []}})
    lock = locked(resolve(catalog, ask(catalog, "top", site="local", python="3.12"), indexes))
    assert lock.version_of(name) == "1.0"


def test_override_drops_a_requirement(catalog: Catalog) -> None:
    indexes = FakeIndexes({"xgboost": {"3.0": ["nvidia-nccl-cu12", "numpy"]}, "numpy": {"2.0": []}})
    override = parse_requirement("nvidia-nccl-cu12; sys_platform == 'never'")
    request = replace(ask(catalog, "xgboost", site="local", python="3.12"), overrides=(override,))
    lock = locked(resolve(catalog, request, indexes))
    assert [pick.name for pick in lock.distributions] == ["numpy", "xgboost"]
