"""The requirements of a built wheel: torch in the very version it was compiled against."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builders.labelling import PinStyle, runtime_pins
from builders.labelling.pins import Pin, pinned

TORCH = "2.9.1+rocm6.4"
PINS = runtime_pins(TORCH, {"pytorch-triton-rocm": "3.5.1"})


def after(*requirements: str, loosening: PinStyle = "exact") -> list[str]:
    made = pinned(requirements, PINS, loosening)
    return [*(one for one in made.kept if one is not None), *made.added]


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
def test_a_condition_stays_and_does_not_make_the_pin_conditional(marker: str) -> None:
    made = after(f"torch>=2; {marker}")
    assert made == [f"torch=={TORCH}; {marker}", f"torch=={TORCH}"]
    assert str(Requirement(made[0]).marker) == marker


def test_a_url_gives_way_and_the_reason_is_told() -> None:
    made = pinned(["torch @ https://example.org/torch-2.9.1+cu128.whl ; extra == 'x'"], PINS)
    assert made.kept == (f'torch=={TORCH}; extra == "x"',)
    assert made.changes[0].why == "it was built against it, although the source asks for another"


@pytest.mark.parametrize(
    ("given", "contradicts"),
    [("torch<2.5", True), ("torch==2.9.1+cu128", True), ("torch>=2", False), ("torch==2.9.*", False)],
)
def test_a_pin_against_what_the_source_asks_is_told(given: str, *, contradicts: bool) -> None:
    (change,) = pinned([given], PINS).changes
    assert (change.before, change.after) == (given, f"torch=={TORCH}")
    assert ("although" in change.why) == contradicts


def test_torch_is_added_where_the_source_does_not_say_it() -> None:
    made = pinned(["numpy"], PINS)
    assert (made.kept, made.added) == (("numpy",), (f"torch=={TORCH}",))
    assert [(one.before, one.after) for one in made.changes] == [("", f"torch=={TORCH}")]


@pytest.mark.parametrize("name", ["triton", "pytorch-triton", "pytorch_triton_rocm", "triton-rocm"])
def test_every_name_of_triton_becomes_that_of_the_torch(name: str) -> None:
    """Two distributions with the module triton would overwrite each other."""
    made = after(f"{name}>=2; python_version < '3.15'")
    assert made[1:] == [f"torch=={TORCH}"]
    one = Requirement(made[0])
    assert canonicalize_name(one.name) == "pytorch-triton-rocm"
    assert (str(one.specifier), str(one.marker)) == ("==3.5.1", 'python_version < "3.15"')


def test_torch_requirement_of_bitsandbytes_becomes_exact() -> None:
    """Its recipe does not tie it to the torch that runs, but its own metadata requires torch."""
    pins = runtime_pins(TORCH, add_torch=False)
    pinned_ = pinned(["torch<3,>=2.3", "numpy>=1.17"], pins)
    assert pinned_.kept == (f"torch=={TORCH}", "numpy>=1.17")
    assert pinned_.added == ()
    assert pinned(["numpy"], pins).added == ()


def test_triton_is_not_added() -> None:
    assert after("einops") == ["einops", f"torch=={TORCH}"]


@pytest.mark.parametrize("name", ["nvidia-ml-py", "nvidia_cublas_cu12==12.8.4.1", "NVIDIA-NCCL-cu12"])
def test_nothing_of_nvidia_is_required(name: str) -> None:
    for loosening in ("exact", "none"):
        made = pinned([name, "pynvml"], PINS if loosening == "exact" else (), loosening)
        assert made.kept == (None, "pynvml")
        assert made.changes[0].before == name


def test_what_becomes_the_same_is_written_once() -> None:
    assert after("torch>=2", "torch!=2.4.0", "numpy", "numpy") == [f"torch=={TORCH}", "numpy", "numpy"]


def test_pins_can_be_loosened() -> None:
    assert after("torch>=2", "triton", loosening="release") == ["torch==2.9.1", "pytorch-triton-rocm==3.5.1"]
    assert Requirement("torch==2.9.1").specifier.contains(TORCH)
    assert after("torch>=2", "triton", loosening="none") == ["torch>=2", "triton"]
    assert after(loosening="none") == []


def test_what_cannot_be_read_is_left_alone() -> None:
    made = pinned(["torch >= twothree", "torch\udcff"], PINS)
    assert made.kept == ("torch >= twothree", "torch\udcff")
    assert made.added == (f"torch=={TORCH}",)


def test_without_torch_nothing_is_pinned_or_added() -> None:
    assert runtime_pins("") == ()
    assert runtime_pins("", {"numpy": "2.1.0"}) == (Pin("numpy", "2.1.0"),)
    assert pinned(["torch"], ()).kept == ("torch",)
