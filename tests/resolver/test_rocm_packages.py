"""AMD's torch, which installs ROCm and the code for each GPU architecture as pip packages."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from resolver.answers.resolve import resolve
from resolver.errors import EnvironmentLacksError, UsageError
from resolver.facts.catalog import Catalog
from resolver.model import Conflict, Resolution
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

ARCH = "https://repo.amd.com/rocm/whl-multi-arch"
NEXT = "https://stable.repo.amd.com/rocm/whl-next"
TAGS = ("cp312-cp312-linux_x86_64",)
DAY = "2026-11-21"
JAX = "0.12.0"


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
            f'rocm-sdk-devel=={version}; extra == "devel"',
            *(f'rocm-sdk-device-{gfx}=={version}; extra == "device-{gfx}"' for gfx in ("gfx90a", "gfx942")),
        ],
        extras=["libraries", "devel", "device-gfx90a", "device-gfx942"],
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
    parts = ("core", "libraries", "devel", "device-gfx90a", "device-gfx942")
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
            "jax": {JAX: [f"jaxlib=={JAX}"]},
            "jaxlib": {JAX: FakeRelease()},
            "jax-rocm7-plugin": {JAX: FakeRelease(wheels=TAGS, requires=[f"jax-rocm7-pjrt=={JAX}"])},
            "jax-rocm7-pjrt": {JAX: FakeRelease()},
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


def test_rocm_alone_is_resolved_as_pip_packages(catalog: Catalog, indexes: FakeIndexes) -> None:
    lock = resolved(catalog, indexes, "rocm[devel,device-gfx942]", driver="31.50")
    assert lock.target.rocm == "10.1.0"
    names = {"rocm", "rocm-sdk-core", "rocm-sdk-devel", "rocm-sdk-device-gfx942"}
    assert {pick.name for pick in lock.distributions} == names
    assert {(pick.version, pick.index) for pick in lock.distributions} == {("10.1.0", NEXT)}


@pytest.mark.parametrize(("driver", "rocm"), [("31.50", "10.1.0"), ("31.40", "7.14.1")])
def test_driver_limits_rocm_alone(catalog: Catalog, indexes: FakeIndexes, driver: str, rocm: str) -> None:
    lock = resolved(catalog, indexes, "rocm[devel]", driver=driver)
    assert (lock.target.rocm, lock.version_of("rocm-sdk-devel")) == (rocm, rocm)


def test_rocm_alone_conflicts_with_an_older_driver(catalog: Catalog, indexes: FakeIndexes) -> None:
    request = ask(catalog, "rocm[devel]", site="local", backend="rocm", gfx=["gfx942"], driver="6.3", day=DAY)
    answer = resolve(catalog, request, indexes)
    assert isinstance(answer, Conflict)
    assert any("6.3" in item.text for item in answer.core)


def test_torch_and_rocm_are_one_rocm(catalog: Catalog, indexes: FakeIndexes) -> None:
    lock = resolved(catalog, indexes, "rocm[devel] torch[device-gfx942]<2.13")
    assert {pick.version for pick in lock.distributions if pick.name.startswith("rocm")} == {"7.14.1"}


WITH_ROCM = "rocm/dev-ubuntu-24.04:7.2.4-complete"


@pytest.mark.parametrize(
    "text",
    [
        "jax rocm[libraries,device-gfx942]",
        "jax torch[device-gfx942]",
        "jax torch rocm[libraries,device-gfx942]",
        "jax needs-old-torch rocm[libraries,device-gfx942]",
    ],
)
def test_jax_uses_the_rocm_of_pip(catalog: Catalog, indexes: FakeIndexes, text: str) -> None:
    """There is one ROCm, with the code for the target only."""
    lock = resolved(catalog, indexes, text)
    versions = {pick.name: pick.version for pick in lock.distributions}
    assert versions["jax-rocm7-plugin"] == versions["jax"] == JAX
    sdk = {name: version for name, version in versions.items() if name.startswith("rocm")}
    assert sdk == dict.fromkeys(
        ("rocm", "rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-device-gfx942"), "7.14.1"
    )
    assert (lock.target.rocm, lock.image) == ("7.14.1", None)


@pytest.mark.parametrize(
    ("text", "only_target"),
    [
        ("torch rocm[device-gfx942]", True),
        ("torch<2.13 rocm[device-gfx942]", True),
        ("torch==2.12.0+rocm7.14.1", True),
        ("torch==2.14.1+rocm7.14 rocm[device-gfx942]", False),
        ("torch==2.14.1+rocm7.14", False),
    ],
)
def test_torch_that_brings_code_for_every_gpu_is_the_last_choice_and_said(
    catalog: Catalog, indexes: FakeIndexes, text: str, only_target: bool
) -> None:
    lock = resolved(catalog, indexes, text)
    assert bool(catalog.torch[lock.version_of("torch")].device_extra) == only_target
    notes = [note for note in lock.notes if "torch[device-gfx942]" in note]
    assert bool(notes) != only_target


def test_jax_with_the_rocm_of_pip_is_limited_by_the_driver(catalog: Catalog, indexes: FakeIndexes) -> None:
    request = ask(
        catalog, "jax rocm[libraries]", site="local", backend="rocm", gfx=["gfx942"], driver="6.4", day=DAY
    )
    answer = resolve(catalog, request, indexes)
    assert isinstance(answer, Conflict)
    assert any("6.4" in item.text for item in answer.core)


def test_image_with_another_rocm_conflicts_with_the_rocm_of_pip(
    catalog: Catalog, indexes: FakeIndexes
) -> None:
    request = ask(
        catalog,
        "jax rocm[libraries]",
        site="local",
        backend="rocm",
        gfx=["gfx942"],
        base_image=WITH_ROCM,
        day=DAY,
    )
    answer = resolve(catalog, request, indexes)
    assert isinstance(answer, Conflict)
    assert any("contains ROCm 7.2.4" in item.text for item in answer.core)


def bare(catalog: Catalog) -> Catalog:
    """Add a base image with compilers for host code, and without ROCm."""
    row = replace(catalog.image["ubuntu:24.04"], name="bare.sif", rocm="", python=("3.12",))
    return catalog.with_image(row)


def test_extension_is_compiled_with_the_rocm_of_pip(catalog: Catalog, indexes: FakeIndexes) -> None:
    lock = resolved(bare(catalog), indexes, "apex torch==2.12.0+rocm7.14.1", base_image="bare.sif")
    assert (lock.target.base_image, lock.target.rocm) == ("bare.sif", "7.14.1")
    apex = lock.pick("apex")
    assert apex is not None
    assert apex.origin == "build"
    assert lock.version_of("rocm-sdk-core") == "7.14.1"


def test_extension_is_not_compiled_without_any_rocm(catalog: Catalog) -> None:
    request = ask(
        bare(catalog), "apex torch==2.13.0+rocm7.2", site="local", backend="rocm", gfx=["gfx942"],
        base_image="bare.sif", day=DAY,
    )  # fmt: skip
    answer = resolve(bare(catalog), request, None)
    assert isinstance(answer, Conflict)
    assert any("and so with that of torch's pip packages" in item.text for item in answer.core)


def test_bare_image_is_not_chosen_by_default(catalog: Catalog, indexes: FakeIndexes) -> None:
    lock = resolved(bare(catalog), indexes, "apex", driver="31.50")
    assert lock.image is not None
    assert catalog.image[lock.image.name].rocm


@pytest.mark.parametrize("targets", [("gfx90a",), ("gfx942",), ("gfx90a", "gfx942")])
def test_code_is_for_exactly_the_targets(
    catalog: Catalog, indexes: FakeIndexes, targets: tuple[str, ...]
) -> None:
    request = ask(
        catalog,
        "torch==2.12.0+rocm7.14.1",
        site="local",
        backend="rocm",
        gfx=targets,
        python="3.12",
        day=DAY,
    )
    for known in (indexes, None):
        lock = resolve(catalog, request, known)
        assert isinstance(lock, Resolution)
        torch = lock.pick("torch")
        assert torch is not None
        assert torch.extras == tuple(f"device-{gfx}" for gfx in targets)
        code = {pick.name for pick in lock.distributions if "device" in pick.name}
        kinds = ("amd-torch-device", "rocm-sdk-device") if known else ()
        assert code == {f"{kind}-{gfx}" for kind in kinds for gfx in targets}


@pytest.mark.parametrize("name", ["rocm-sdk-core", "rocm-sdk-devel", "rocm-sdk-device-gfx942"])
def test_driver_limits_each_part_of_rocm(catalog: Catalog, indexes: FakeIndexes, name: str) -> None:
    """Its version is the release of ROCm, whether or not the request names `rocm`."""
    lock = resolved(catalog, indexes, name, driver="31.40")
    assert (lock.version_of(name), lock.target.rocm) == ("7.14.1", "7.14.1")
    request = ask(catalog, name, site="local", backend="rocm", gfx=["gfx942"], driver="6.3", day=DAY)
    assert isinstance(resolve(catalog, request, indexes), Conflict)


@pytest.mark.parametrize(
    "name",
    [
        "rocm-sdk", "rocm-sdk-core", "rocm-sdk-device", "rocm-sdk-device-all", "rocm-kpack", "rocm-profiler",
        "rocm-sdk-libraries-gfx94x-dcgpu", "amd-torch-device", "amd-torch-device-all",
        "amd-torchvision-device-gfx90a",
    ],
)  # fmt: skip
def test_placeholders_are_never_chosen(catalog: Catalog, name: str) -> None:
    """PyPI has such projects, which contain nothing."""
    known = FakeIndexes({name: {"0.0.1.dev0": FakeRelease(), "0.1.0": FakeRelease()}})
    request = ask(catalog, name, site="local", backend="rocm", gfx=["gfx942"], day=DAY)
    with pytest.raises(UsageError, match="No index has the project"):
        resolve(catalog, request, known)


def test_torch_is_resolved_if_the_index_of_its_rocm_cannot_be_reached(catalog: Catalog) -> None:
    """Its wheel may be in a directory of the user."""
    unreachable = FakeIndexes(
        {"torch": {"2.12.0+rocm7.14.1": torch("2.12.0+rocm7.14.1", "3.8.0+git4cff872c.rocm7.14.1", ARCH)}},
        unreachable=["rocm"],
    )
    lock = resolved(catalog, unreachable, "torch==2.12.0+rocm7.14.1")
    assert lock.target.rocm == "7.14.1"
    assert any("rocm" in reason for reason in lock.left_open)


@pytest.mark.parametrize("name", ["rocm[devel]", "rocm[libraries,device-gfx942]", "rocm-sdk-core"])
def test_rocm_alone_says_why_no_index_has_it(catalog: Catalog, name: str) -> None:
    known = FakeIndexes({}, unreachable=["rocm", "rocm-sdk-core"])
    request = ask(catalog, name, site="local", backend="rocm", gfx=["gfx942"], day=DAY)
    with pytest.raises(EnvironmentLacksError) as error:
        resolve(catalog, request, known)
    assert "Only AMD's indexes have ROCm as pip packages" in error.value.hint


def test_rocm_without_an_extra_says_how_to_name_its_pip_packages(
    catalog: Catalog, indexes: FakeIndexes
) -> None:
    for known in (indexes, None):
        for text in ("rocm", "rocm==7.14.*"):
            lock = resolved(catalog, known, text)
            assert not lock.distributions
            assert any("require rocm[libraries], or rocm[devel]" in note for note in lock.notes)
    for text in ("rocm[devel]", "torch==2.12.0+rocm7.14.1 rocm"):
        assert not any("nothing to install" in note for note in resolved(catalog, indexes, text).notes)
