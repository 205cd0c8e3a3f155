"""A network plugin of RCCL is judged by what it exports, by its names, and by the libraries beside it."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.audit import Expected, Torch, image_provider
from builders.audit.wheel_audit import audit_wheel

MakeWheel = Callable[..., Path]
Compile = Callable[..., Path]

TAGS = f"cp311-cp311-linux_{platform.machine()}"
BOTH = ("torch/lib/librccl-net.so", "torch/lib/libnccl-net.so")


def plugin(compile_object: Compile, *versions: int, flags: tuple[str, ...] = ()) -> bytes:
    """Compile an object that exports what a plugin exports; it stands in for aws-ofi-nccl."""
    source = "".join(f"int ncclNetPlugin_v{version} = 1;\n" for version in versions)
    content: bytes = compile_object("plugin.so", source, *flags).read_bytes()
    return content


def errors(wheel: Path, rocm: str) -> list[str]:
    torch = Torch(version=f"2.9.1+rocm{rocm}", rocm=rocm)
    return [finding.id for finding in audit_wheel(wheel, Expected(torch=torch)).errors]


@pytest.mark.parametrize(
    ("versions", "rocm", "found"),
    [
        (range(6, 13), "6.0", []),  # aws-ofi-nccl 1.20 and newer load in every RCCL
        (range(6, 13), "6.4", []),
        (range(6, 13), "7.0", []),
        (range(6, 13), "7.2", []),
        ([5], "6.4", []),  # AMD's fork
        ([5], "7.0", ["plugin-interface"] * 2),
        ([11, 12], "7.2", ["plugin-interface"] * 2),
        ([7], "6.0", ["plugin-interface"] * 2),
    ],
)
def test_interfaces_must_meet_those_of_rccl(
    versions: list[int], rocm: str, found: list[str], make_wheel: MakeWheel, compile_object: Compile
) -> None:
    library = plugin(compile_object, *versions)
    assert errors(make_wheel(files=dict.fromkeys(BOTH, library), tags=TAGS), rocm) == found


@pytest.mark.parametrize(
    ("name", "rocm", "found"),
    [
        ("librccl-net.so", "7.0", []),
        ("librccl-net.so", "7.2", ["plugin-name"]),
        ("libnccl-net.so", "7.2", []),
        ("libnccl-net.so", "6.4", ["plugin-name"]),
        ("librccl-net-ofi.so", "7.0", ["plugin-name"]),
    ],
)
def test_file_must_have_the_name_that_rccl_opens(
    name: str, rocm: str, found: list[str], make_wheel: MakeWheel, compile_object: Compile
) -> None:
    library = plugin(compile_object, 8)
    assert errors(make_wheel(files={f"torch/lib/{name}": library}, tags=TAGS), rocm) == found


def test_second_libfabric_is_an_error(make_wheel: MakeWheel, compile_object: Compile) -> None:
    files = dict.fromkeys(BOTH, plugin(compile_object, 8))
    files["rccl_net.libs/libfabric-0123abcd.so.1.26.0"] = compile_object("f.so", "int f;").read_bytes()
    assert errors(make_wheel(files=files, tags=TAGS), "7.0") == ["plugin-with-libfabric"]


def test_image_without_libfabric_is_an_error(make_wheel: MakeWheel, compile_object: Compile) -> None:
    fabric = compile_object("libfabric.so.1", "int fi_getinfo;", "-Wl,-soname,libfabric.so.1")
    needing = plugin(compile_object, 8, flags=("-Wl,--no-as-needed", str(fabric)))
    wheel = make_wheel(files=dict.fromkeys(BOTH, needing), tags=TAGS)
    torch = Torch(rocm="7.0", libraries=frozenset())
    for libraries, count in ((["libc.so.6"], 2), (["libc.so.6", "libfabric.so.1"], 0)):
        expected = Expected(torch=torch, providers=(image_provider({"libraries": libraries}),))
        found = [finding.id for finding in audit_wheel(wheel, expected).errors]
        assert found == ["need-not-provided"] * count


def test_other_wheels_are_not_judged_as_plugins(make_wheel: MakeWheel, compile_object: Compile) -> None:
    files = {"tiny/op.so": compile_object("op.so", "int answer;").read_bytes()}
    report = audit_wheel(make_wheel(files=files, tags=TAGS), Expected(torch=Torch(rocm="7.2")))
    assert not [finding for finding in report.findings if finding.id.startswith("plugin")]


def test_label_of_a_plugin_names_the_gpu_of_its_torch_and_the_plugin_has_no_gpu_code(
    make_wheel: MakeWheel, compile_object: Compile
) -> None:
    version = "1.0+rocm7.0.torch2.9.1.gfx90a"
    files = dict.fromkeys(BOTH, plugin(compile_object, 8))
    assert audit_wheel(make_wheel(version=version, files=files, tags=TAGS)).verdict == "sound"
    files = dict.fromkeys(BOTH, compile_object("op.so", "int answer;").read_bytes())
    report = audit_wheel(make_wheel(version=version, files=files, tags=TAGS))
    assert "label-differs" in [finding.id for finding in report.errors]
