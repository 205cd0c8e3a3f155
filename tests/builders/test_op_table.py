"""Op tables of DeepSpeed and Apex, and the library name of bitsandbytes."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from builders.audit.contents import Expected
from builders.audit.promises import bitsandbytes_library, read_op_table
from builders.audit.runtime_libraries import TorchLibraries
from builders.audit.wheel_audit import audit_wheel
from resolver.facts.catalog import load
from resolver.facts.schema import Op, Recipe

MakeWheel = Callable[..., Path]
Compile = Callable[..., Path]

TAGS = f"cp311-cp311-linux_{platform.machine()}"
TABLE = "deepspeed/git_version_info_installed.py"
INFO = "{'version': '2.13', 'bf16_support': False, 'cuda_version': '0.0', 'hip_version': '7.2'}"
ROCM = TorchLibraries("2.13.0+rocm7.2", "7.2")


def table(ops: dict[str, object], accelerator: str = "cuda", info: str = INFO) -> bytes:
    lines = [
        "version='0.19.8'",
        "git_hash='unknown'",
        f"installed_ops={ops}",
        f"accelerator_name='{accelerator}'",
        f"torch_info={info}",
    ]
    return "\n".join(lines).encode()


def recipe(**environment: str) -> Recipe:
    return Recipe(
        package="deepspeed", backend="rocm", environment=environment, status="observed", source="test"
    )


@pytest.fixture
def wheel_with(make_wheel: MakeWheel, compile_object: Compile) -> Callable[..., Path]:
    """Return a function that makes a wheel of DeepSpeed with an op table and shared objects."""
    library = compile_object("op.so", "int answer(void) { return 42; }").read_bytes()

    def make(message: bytes, *objects: str) -> Path:
        files = {TABLE: message, **dict.fromkeys(objects, library)}
        return make_wheel(name="deepspeed", version="0.19.8", files=files, tags=TAGS)

    return make


@pytest.fixture
def bitsandbytes(make_wheel: MakeWheel, compile_object: Compile) -> Callable[..., Path]:
    """Return a function that makes a wheel of bitsandbytes with its libraries for some backends."""
    library = compile_object("op.so", "int answer(void) { return 42; }").read_bytes()

    def make(version: str, present: list[str]) -> Path:
        files = {f"bitsandbytes/libbitsandbytes_{name}.so": library for name in present}
        return make_wheel(name="bitsandbytes", version=version, files=files, tags=TAGS)

    return make


ADAM = "deepspeed/ops/adam/fused_adam_op.cpython-311-x86_64-linux-gnu.so"


def errors(wheel: Path, expected: Expected) -> list[str]:
    return [finding.id for finding in audit_wheel(wheel, expected).errors]


def test_op_table_that_agrees_has_no_findings(wheel_with: Callable[..., Path]) -> None:
    wheel = wheel_with(table({"fused_adam": 1, "async_io": False}), ADAM)
    chosen = recipe(DS_BUILD_FUSED_ADAM="1", DS_BUILD_AIO="0", DS_BUILD_STRING="x", DS_ACCELERATOR="cuda")
    report = audit_wheel(wheel, Expected(recipe=chosen, torch=ROCM))
    assert report.errors == []
    assert not {finding.id for finding in report.findings} & {"op-not-asked", "op-without-object"}
    message = read_op_table(report.contents)
    assert message is not None
    assert (message.compiled, message.accelerator, message.torch, message.rocm) == (
        ["fused_adam"],
        "cuda",
        "2.13",
        "7.2",
    )


def test_requested_op_that_is_missing_is_an_error(wheel_with: Callable[..., Path]) -> None:
    """DeepSpeed's build succeeds without its ops if it finds no torch or no GPU."""
    wheel = wheel_with(table({"fused_adam": False, "async_io": False}))
    for variable in ("DS_BUILD_FUSED_ADAM", "DS_BUILD_AIO", "DS_BUILD_OPS", "DS_BUILD_CPU_ADAM"):
        assert errors(wheel, Expected(recipe=recipe(**{variable: "1"}))) == ["op-not-installed"]
    assert errors(wheel, Expected(recipe=recipe(DS_BUILD_FUSED_ADAM="0"))) == []
    assert errors(wheel, Expected()) == []


def test_op_name_of_the_recipe_is_used(wheel_with: Callable[..., Path]) -> None:
    op = Op(name="fused_adam", variable="DS_BUILD_STRANGE", object="*.so")
    chosen = msgspec.structs.replace(recipe(DS_BUILD_STRANGE="1"), ops=(op,))
    assert errors(wheel_with(table({"fused_adam": 1}), ADAM), Expected(recipe=chosen)) == []
    assert errors(wheel_with(table({"fused_adam": 0})), Expected(recipe=chosen)) == ["op-not-installed"]


OPS = {(row.package, op.name, op.variable) for row in load().recipe for op in row.ops}


@pytest.mark.parametrize(("package", "name", "variable"), sorted(OPS))
def test_catalog_op_is_found_by_its_variable(
    wheel_with: Callable[..., Path], package: str, name: str, variable: str
) -> None:
    """Apex writes the names of some ops in capitals."""
    op = Op(name=name, variable=variable, object="*.so")
    chosen = msgspec.structs.replace(recipe(**{variable: "1"}), package=package, ops=(op,))
    present = wheel_with(table({name: True}), f"deepspeed/{name}.cpython-311-x86_64-linux-gnu.so")
    assert errors(present, Expected(recipe=chosen)) == []
    assert errors(wheel_with(table({name: False})), Expected(recipe=chosen)) == ["op-not-installed"]


def test_op_that_was_switched_off_is_a_warning(wheel_with: Callable[..., Path]) -> None:
    wheel = wheel_with(table({"fused_adam": True}), ADAM)
    report = audit_wheel(wheel, Expected(recipe=recipe(DS_BUILD_FUSED_ADAM="0")))
    assert report.errors == []
    assert "op-not-asked" in [finding.id for finding in report.findings]


def test_recorded_op_without_object_is_an_error(wheel_with: Callable[..., Path]) -> None:
    message = table({"fused_adam": True, "inference_core_ops": True, "utils": True})
    report = audit_wheel(
        wheel_with(message, ADAM, "deepspeed/inference/v2/kernelsinference_core_ops.cpython-311.so")
    )
    assert [(finding.id, finding.evidence["op"]) for finding in report.errors] == [
        ("op-without-object", "utils")
    ]


def test_other_accelerator_is_an_error(wheel_with: Callable[..., Path]) -> None:
    wheel = wheel_with(table({"fused_adam": True}, accelerator="cpu"), ADAM)
    chosen = recipe(DS_ACCELERATOR="cuda", DS_BUILD_FUSED_ADAM="1")
    assert errors(wheel, Expected(recipe=chosen)) == ["accelerator-differs"]


@pytest.mark.parametrize(
    ("torch", "count"),
    [
        (ROCM, 0),
        (TorchLibraries("2.12.1+rocm7.2", "7.2"), 1),
        (TorchLibraries("2.13.0+rocm7.1", "7.1"), 1),
        (TorchLibraries("2.12.1+rocm7.1", "7.1"), 2),
        (TorchLibraries(), 0),
    ],
)
def test_other_torch_than_in_op_table_is_an_error(
    torch: TorchLibraries, count: int, wheel_with: Callable[..., Path]
) -> None:
    wheel = wheel_with(table({}))
    assert errors(wheel, Expected(torch=torch)) == ["built-for-other-torch"] * count


def test_op_table_of_cpu_torch_has_no_rocm(wheel_with: Callable[..., Path]) -> None:
    wheel = wheel_with(table({}, info=INFO.replace("7.2", "0.0")))
    assert errors(wheel, Expected(torch=TorchLibraries("2.13.0+cpu"))) == []


@pytest.mark.parametrize(
    "message", [b"", b"installed_ops = 3", b"installed_ops = load()", b"\xff", b"(" * 9999]
)
def test_invalid_op_table_is_ignored(message: bytes, wheel_with: Callable[..., Path]) -> None:
    report = audit_wheel(wheel_with(message), Expected(recipe=recipe(DS_BUILD_FUSED_ADAM="1"), torch=ROCM))
    assert read_op_table(report.contents) is None
    assert report.errors == []


def test_jit_only_apex_has_errors(make_wheel: MakeWheel) -> None:
    """The build of Apex succeeds with a Python module in place of every extension."""
    files = {
        "apex/__init__.py": b"",
        "apex/git_version_info_installed.py": b"installed_ops={'amp_C': False, 'mlp_cuda': False}\n",
        "amp_C.py": b"from apex.op_builder import load\n",
    }
    wheel = make_wheel(name="apex", version="1.10.0", files=files)
    chosen = Recipe(
        package="apex",
        backend="rocm",
        environment={"APEX_BUILD_AMP_C": "1", "APEX_BUILD_MLP": "1", "PYTORCH_ROCM_ARCH": "{gfx}"},
        must_contain=("amp_C*.so",),
        status="observed",
        source="test",
    )
    ids = errors(wheel, Expected(("gfx90a",), chosen))
    assert sorted(ids) == ["no-gpu-code", "object-missing", "op-not-installed", "op-not-installed"]


@pytest.mark.parametrize(
    ("version", "rocm", "library"),
    [
        ("0.48.2", "6.4", "rocm64"),
        ("0.49.2", "7.2", "rocm72"),
        ("0.49.2", "7.14", "rocm84"),
        ("0.50.0", "7.14", "rocm714"),
        ("0.50.2", "7.2", "rocm72"),
    ],
)
def test_bitsandbytes_library_name(version: str, rocm: str, library: str) -> None:
    assert bitsandbytes_library(version, rocm) == f"libbitsandbytes_{library}.so"


@pytest.mark.parametrize(
    ("version", "torch", "present", "severity"),
    [
        ("0.49.2", ROCM, ["rocm72"], None),
        ("0.49.2", ROCM, ["rocm71"], "error"),
        ("0.49.2", ROCM, ["cpu"], "error"),
        ("0.50.2", ROCM, ["rocm71"], "warning"),
        ("0.50.2", ROCM, ["rocm64"], "error"),
        ("0.49.2", TorchLibraries("2.13.0+cpu"), ["cpu"], None),
        ("0.44.1", ROCM, ["hip"], None),
    ],
)
def test_missing_bitsandbytes_library_is_reported(
    version: str,
    torch: TorchLibraries,
    present: list[str],
    severity: str | None,
    bitsandbytes: Callable[..., Path],
) -> None:
    report = audit_wheel(bitsandbytes(version, present), Expected(torch=torch))
    findings = [finding for finding in report.findings if finding.id == "computed-name-missing"]
    assert [finding.severity for finding in findings] == [severity] * (severity is not None)
    assert all(finding.evidence["library"] == "libbitsandbytes_rocm72.so" for finding in findings)
