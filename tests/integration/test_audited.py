"""The audit against the real torch, with the real op of DeepSpeed that was built for it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from wheel.wheelfile import WheelFile

from builders.audit.contents import Expected
from builders.audit.runtime_libraries import TorchLibraries, read_torch
from builders.audit.wheel_audit import audit_wheel
from builders.storage.files import cache_root
from tests.support.built import Built

pytestmark = pytest.mark.integration


@pytest.fixture(scope="session")
def torch(built: Built) -> TorchLibraries:
    """Read the torch that the op was built against, where its build left it."""
    assert built.wheel.exists()
    for directory in cache_root().glob("layers/*/**/torch/lib"):
        version = read_torch(directory)
        if version.version == "2.13.0+cpu":
            return version
    pytest.fail(f"no torch 2.13.0+cpu under {cache_root()}")


def test_real_torch_exports_symbols(torch: TorchLibraries) -> None:
    assert torch.rocm == ""
    assert torch.exports is not None
    assert len(torch.exports) > 20_000
    assert {"aoti_torch_delete_tensor_object", "THPVariableClass"} <= torch.exports
    assert torch.libraries is not None
    assert {"libc10.so", "libtorch_cpu.so", "libtorch_python.so"} <= torch.libraries


def test_real_op_finds_all_symbols(built: Built, torch: TorchLibraries) -> None:
    report = audit_wheel(built.wheel, Expected(torch=torch))
    imports = {name for item in report.objects for name in item.imports}
    assert any(name.startswith("_ZN3c10") for name in imports)
    assert [error.id for error in report.errors] == []


def test_real_op_with_missing_symbol_is_an_error(built: Built, torch: TorchLibraries, tmp_path: Path) -> None:
    """One name in the string table of the op is changed, as if another torch exported it."""
    changed = tmp_path / built.wheel.name
    with zipfile.ZipFile(built.wheel) as source:
        (op,) = (name for name in source.namelist() if "cpu_adam_op" in name and ".so" in name)
        source.extractall(tmp_path / "content")
    (item,) = (item for item in audit_wheel(built.wheel).objects if item.path == op)
    name = min(symbol for symbol in item.imports if symbol.startswith("_ZN3c10"))
    path = tmp_path / "content" / op
    data = path.read_bytes()
    assert b"\0" + name.encode() + b"\0" in data
    path.write_bytes(data.replace(b"\0" + name.encode() + b"\0", b"\0" + name[:-1].encode() + b"z\0"))
    with WheelFile(str(changed), "w") as sink:
        sink.write_files(str(tmp_path / "content"))
    (error,) = audit_wheel(changed, Expected(torch=torch)).errors
    assert error.id == "torch-symbol-missing"
    assert error.evidence == {"member": op, "symbol": name[:-1] + "z", "count": "1"}
