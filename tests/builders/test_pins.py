"""A built wheel requires the exact torch that it was compiled against."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builders.wheels.labelling import Pin, pin_requirements, runtime_pins

TORCH = "2.9.1+rocm6.4"
PINS = runtime_pins(TORCH, {"pytorch-triton-rocm": "3.5.1"})


def after(*requirements: str) -> list[str]:
    made = pin_requirements(requirements, PINS)
    return list(made[0])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("torch", f"torch=={TORCH}"),
        ("torch (>=1.0)", f"torch=={TORCH}"),
        ("Torch >= 2.0", f"Torch=={TORCH}"),
        ("torch[opt-einsum,dynamo]>=2", f"torch[dynamo,opt-einsum]=={TORCH}"),
        ("torch==2.9.1", f"torch=={TORCH}"),
        (f"torch=={TORCH}", f"torch=={TORCH}"),
    ],
)
def test_torch_is_pinned(given: str, expected: str) -> None:
    assert after(given) == [expected]


@pytest.mark.parametrize(
    "marker", ['extra == "all"', 'python_version >= "3.8"', 'sys_platform != "darwin" and extra == "x"']
)
def test_marker_stays_and_pin_is_unconditional(marker: str) -> None:
    made = after(f"torch>=2; {marker}")
    assert made == [f"torch=={TORCH}; {marker}", f"torch=={TORCH}"]
    assert str(Requirement(made[0]).marker) == marker


def test_url_requirement_becomes_pin() -> None:
    made = pin_requirements(["torch @ https://example.org/torch-2.9.1+cu128.whl ; extra == 'x'"], PINS)
    assert made[0] == (f'torch=={TORCH}; extra == "x"', f"torch=={TORCH}")
    assert made[1][0].why == "built against it, although the source requires another version"


@pytest.mark.parametrize(
    ("given", "contradicts"),
    [("torch<2.5", True), ("torch==2.9.1+cu128", True), ("torch>=2", False), ("torch==2.9.*", False)],
)
def test_pin_reports_contradiction_with_source(given: str, *, contradicts: bool) -> None:
    (change,) = pin_requirements([given], PINS)[1]
    assert (change.before, change.after) == (given, f"torch=={TORCH}")
    assert ("although" in change.why) == contradicts


def test_torch_is_added_if_the_source_lacks_it() -> None:
    made = pin_requirements(["numpy"], PINS)
    assert made[0] == ("numpy", f"torch=={TORCH}")
    assert [(change.before, change.after) for change in made[1]] == [("", f"torch=={TORCH}")]


@pytest.mark.parametrize("name", ["triton", "pytorch-triton", "pytorch_triton_rocm", "triton-rocm"])
def test_triton_name_becomes_that_of_torch(name: str) -> None:
    """Two distributions with the module triton would overwrite each other."""
    made = after(f"{name}>=2; python_version < '3.15'")
    assert made[1:] == [f"torch=={TORCH}"]
    requirement = Requirement(made[0])
    assert canonicalize_name(requirement.name) == "pytorch-triton-rocm"
    assert (str(requirement.specifier), str(requirement.marker)) == ("==3.5.1", 'python_version < "3.15"')


def test_torch_requirement_of_bitsandbytes_becomes_exact() -> None:
    """The recipe does not pin torch at run time, but the metadata of the wheel requires torch."""
    pins = runtime_pins(TORCH, add_torch=False)
    pinned_ = pin_requirements(["torch<3,>=2.3", "numpy>=1.17"], pins)
    assert pinned_[0] == (f"torch=={TORCH}", "numpy>=1.17")
    assert pin_requirements(["numpy"], pins)[0] == ("numpy",)


def test_triton_is_not_added() -> None:
    assert after("einops") == ["einops", f"torch=={TORCH}"]


@pytest.mark.parametrize("name", ["nvidia-ml-py", "nvidia_cublas_cu12==12.8.4.1", "NVIDIA-NCCL-cu12"])
def test_cuda_requirements_are_dropped(name: str) -> None:
    for pins, torch in ((PINS, (f"torch=={TORCH}",)), ((), ())):
        made = pin_requirements([name, "pynvml"], pins)
        assert made[0] == ("pynvml", *torch)
        assert made[1][0].before == name


def test_equal_pins_are_written_once() -> None:
    assert after("torch>=2", "torch!=2.4.0", "numpy", "numpy") == [f"torch=={TORCH}", "numpy", "numpy"]


def test_invalid_requirement_stays() -> None:
    made = pin_requirements(["torch >= twothree", "torch\udcff"], PINS)
    assert made[0] == ("torch >= twothree", "torch\udcff", f"torch=={TORCH}")


def test_pins_without_torch_are_empty() -> None:
    assert runtime_pins("") == ()
    assert runtime_pins("", {"numpy": "2.1.0"}) == (Pin("numpy", "2.1.0"),)
    assert pin_requirements(["torch"], ())[0] == ("torch",)
