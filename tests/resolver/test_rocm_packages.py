"""AMD's torch, which installs ROCm and the code for each GPU architecture as pip packages."""

from __future__ import annotations

import pytest

from resolver.answers.resolve import resolve
from resolver.facts.catalog import Catalog
from resolver.model import Conflict, Resolution
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

ARCH = "https://repo.amd.com/rocm/whl-multi-arch"
NEXT = "https://stable.repo.amd.com/rocm/whl-next"
TAGS = ("cp312-cp312-linux_x86_64",)
DAY = "2026-11-21"


def torch(version: str, triton: str, index: str) -> FakeRelease:
    rocm = version.partition("+rocm")[2]
    targets = ("gfx90a", "gfx942")
    devices = [f'amd-torch-device-{gfx}=={version}; extra == "device-{gfx}"' for gfx in targets]
    return FakeRelease(
        wheels=TAGS,
        requires=[f"rocm[libraries]=={rocm}", f"triton=={triton}", *devices],
        extras=[f"device-{gfx}" for gfx in targets],
        index=index,
    )


def rocm(version: str, index: str) -> FakeRelease:
    """Return the sdist `rocm`, whose metadata depends on the machine that builds it."""
    return FakeRelease(
        wheels=(),
        sdist=True,
        static=False,
        requires=[
            f"rocm-sdk-core=={version}",
            f'rocm-sdk-libraries=={version}; extra == "libraries"',
        ],
        extras=["libraries"],
        index=index,
    )


def of_index(index: str, *requires: str) -> FakeRelease:
    return FakeRelease(index=index, requires=requires)


@pytest.fixture
def indexes() -> FakeIndexes:
    """Return PyPI, which has unrelated projects of these names, and AMD's two indexes."""
    old, new = "3.8.0+git4cff872c.rocm7.14.1", "3.8.0+git669b31ac.rocm10.1.0"
    devices = {
        f"amd-torch-device-{gfx}": {
            "2.12.0+rocm7.14.1": of_index(ARCH, f"rocm-sdk-device-{gfx}==7.14.1"),
            "2.14.0+rocm10.1.0": of_index(NEXT, f"rocm-sdk-device-{gfx}==10.1.0"),
            "99.0": FakeRelease(),
        }
        for gfx in ("gfx90a", "gfx942")
    }
    parts = ("core", "libraries", "device-gfx90a", "device-gfx942")
    sdk = {f"rocm-sdk-{part}": {"7.14.1": of_index(ARCH), "10.1.0": of_index(NEXT)} for part in parts}
    return FakeIndexes(
        {
            "torch": {
                "2.12.0+rocm7.14.1": torch("2.12.0+rocm7.14.1", old, ARCH),
                "2.14.0+rocm10.1.0": torch("2.14.0+rocm10.1.0", new, NEXT),
            },
            "triton": {
                old: FakeRelease(wheels=TAGS, index=ARCH),
                new: FakeRelease(wheels=TAGS, index=NEXT),
                "9.0": FakeRelease(),
            },
            "rocm": {"7.14.1": rocm("7.14.1", ARCH), "10.1.0": rocm("10.1.0", NEXT), "99.0": FakeRelease()},
            "needs-old-torch": {"1.0": ["torch<2.13"]},
            **devices,
            **sdk,
        }
    )


def resolved(catalog: Catalog, indexes: FakeIndexes | None, text: str, **options: str) -> Resolution:
    gfx = options.pop("gfx", "gfx942")
    request = ask(catalog, text, site="local", backend="rocm", gfx=[gfx], python="3.12", day=DAY, **options)  # type: ignore[arg-type]
    answer = resolve(catalog, request, indexes)
    assert isinstance(answer, Resolution), answer
    return answer


def test_torch_brings_rocm_and_the_code_for_the_target(catalog: Catalog, indexes: FakeIndexes) -> None:
    lock = resolved(catalog, indexes, "torch==2.12.0+rocm7.14.1")
    assert lock.target.rocm == "7.14.1"
    versions = {pick.name: (pick.version, pick.index) for pick in lock.distributions}
    assert versions == {
        "torch": ("2.12.0+rocm7.14.1", ARCH),
        "triton": ("3.8.0+git4cff872c.rocm7.14.1", ARCH),
        "amd-torch-device-gfx942": ("2.12.0+rocm7.14.1", ARCH),
        "rocm": ("7.14.1", ARCH),
        "rocm-sdk-core": ("7.14.1", ARCH),
        "rocm-sdk-libraries": ("7.14.1", ARCH),
        "rocm-sdk-device-gfx942": ("7.14.1", ARCH),
    }
    pick = lock.pick("torch")
    assert pick is not None
    assert pick.extras == ("device-gfx942",)
    assert not lock.left_open


def test_extra_of_a_device_means_torch_of_amd(catalog: Catalog, indexes: FakeIndexes) -> None:
    lock = resolved(catalog, indexes, "torch[device-gfx90a]<2.13", gfx="gfx90a")
    assert lock.version_of("torch") == "2.12.0+rocm7.14.1"
    assert lock.version_of("amd-torch-device-gfx90a") == "2.12.0+rocm7.14.1"


def test_driver_excludes_the_rocm_of_torch(catalog: Catalog, indexes: FakeIndexes) -> None:
    request = ask(
        catalog,
        "torch==2.12.0+rocm7.14.1",
        site="local",
        backend="rocm",
        gfx=["gfx942"],
        driver="6.4",
        day=DAY,
    )
    answer = resolve(catalog, request, indexes)
    assert isinstance(answer, Conflict)
    assert any("ROCm 7.14" in item.text and "30.10" in item.text for item in answer.core)
    assert resolved(catalog, indexes, "torch==2.12.0+rocm7.14.1", driver="31.40").target.rocm == "7.14.1"
    assert resolved(catalog, indexes, "torch[device-gfx942]", driver="31.50").target.rocm == "10.1.0"
    assert resolved(catalog, indexes, "torch[device-gfx942]", driver="31.40").target.rocm == "10.0.0"


def test_another_torch_brings_another_rocm(catalog: Catalog, indexes: FakeIndexes) -> None:
    lock = resolved(catalog, indexes, "torch[device-gfx942]")
    assert (lock.version_of("torch"), lock.version_of("rocm-sdk-core")) == ("2.14.0+rocm10.1.0", "10.1.0")
    older = resolved(catalog, indexes, "torch[device-gfx942] needs-old-torch")
    assert (older.version_of("torch"), older.version_of("rocm-sdk-core")) == ("2.12.0+rocm7.14.1", "7.14.1")


def test_torch_is_resolved_without_its_packages_if_no_index_answers(catalog: Catalog) -> None:
    assert resolved(catalog, None, "torch==2.13.0+rocm10.0.0").target.rocm == "10.0.0"


def test_missing_rocm_packages_are_left_open(catalog: Catalog) -> None:
    release = torch("2.12.0+rocm7.14.1", "3.8.0+git4cff872c.rocm7.14.1", ARCH)
    lock = resolved(
        catalog, FakeIndexes({"torch": {"2.12.0+rocm7.14.1": release}}), "torch==2.12.0+rocm7.14.1"
    )
    assert any("does not list" in reason for reason in lock.left_open)


def test_torch_that_fails_on_a_gpu_is_refused(catalog: Catalog, indexes: FakeIndexes) -> None:
    request = ask(catalog, "torch==2.12.0+rocm7.14.0", site="local", backend="rocm", gfx=["gfx90a"], day=DAY)
    answer = resolve(catalog, request, indexes)
    assert isinstance(answer, Conflict)
    assert any("hipErrorInvalidImage" in item.text for item in answer.core)
