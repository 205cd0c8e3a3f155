"""A network plugin of RCCL is judged by what it exports, by its names, and by the libraries beside it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.audit.contents import Expected
from builders.audit.elf import read_object
from builders.audit.promises import interfaces
from builders.audit.runtime_libraries import TorchLibraries, image_provider
from builders.audit.wheel_audit import audit_wheel
from resolver.facts.catalog import load

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
    torch = TorchLibraries(version=f"2.9.1+rocm{rocm}", rocm=rocm)
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
    torch = TorchLibraries(rocm="7.0", libraries=frozenset())
    for libraries, count in ((["libc.so.6"], 2), (["libc.so.6", "libfabric.so.1"], 0)):
        expected = Expected(torch=torch, providers=(image_provider({"libraries": libraries}),))
        found = [finding.id for finding in audit_wheel(wheel, expected).errors]
        assert found == ["need-not-provided"] * count


@pytest.mark.parametrize(
    ("present", "found"), [("1.6", ["plugin-libfabric"] * 2), ("1.8", []), ("1.10", []), ("", [])]
)
def test_symbol_versions_of_libfabric_must_be_those_of_the_image(
    present: str, found: list[str], make_wheel: MakeWheel, compile_object: Compile, tmp_path: Path
) -> None:
    versions = tmp_path / "versions"
    versions.write_text("FABRIC_1.0 { fi_getinfo; };\nFABRIC_1.8 { fi_new; } FABRIC_1.0;\n")
    flags = ("-Wl,-soname,libfabric.so.1", f"-Wl,--version-script={versions}")
    fabric = compile_object("libfabric.so.1", "int fi_getinfo, fi_new;", *flags)
    assert read_object("libfabric.so.1", fabric.read_bytes()).defines == {"FABRIC": "1.8"}
    source = "extern int fi_getinfo, fi_new; int *used[] = {&fi_getinfo, &fi_new}; int ncclNetPlugin_v8 = 1;"
    library = compile_object("plugin.so", source, str(fabric)).read_bytes()
    facts = {"libraries": ["libfabric.so.1", "libc.so.6"]} | ({"fabric": present} if present else {})
    torch = TorchLibraries(version="2.9.1+rocm7.0", rocm="7.0")
    expected = Expected(torch=torch, providers=(image_provider(facts),))
    wheel = make_wheel(files=dict.fromkeys(BOTH, library), tags=TAGS)
    report = audit_wheel(wheel, expected)
    assert [finding.id for finding in report.errors] == found
    assert all("needs FABRIC_1.8" in finding.message for finding in report.errors)


def test_other_wheels_are_not_judged_as_plugins(make_wheel: MakeWheel, compile_object: Compile) -> None:
    files = {"tiny/op.so": compile_object("op.so", "int answer;").read_bytes()}
    report = audit_wheel(make_wheel(files=files, tags=TAGS), Expected(torch=TorchLibraries(rocm="7.2")))
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


@pytest.mark.slow
def test_build_of_the_catalog_compiles_both_names_from_a_source_of_this_shape(tmp_path: Path) -> None:
    """The patch of rccl-net builds a small source with the files that it reads, and audits as sound.

    The source, libfabric, hwloc and HIP are stand-ins: the real ones cannot be fetched by every machine.
    """
    tree, root = tmp_path / "source", tmp_path / "rocm"
    files = {
        "configure.ac": "AX_CXX_COMPILE_STDCXX([17], [noext], [mandatory])\n",
        "RELEASENOTES.md": "# Notes\n\n# v9.8.7 (2026-11)\n\n# v9.8.6 (2026-10)\n",
        "include/nccl_ofi_config_bottom.h": '#define EXPORT __attribute__((visibility("default")))\n',
        "include/nccl_ofi_rocm.h": "",
        "src/nccl_ofi_rocm.cpp": '#include "config.h"\n#include <rdma/fabric.h>\n'
        'extern "C" { EXPORT int ncclNetPlugin_v8 = FI_MR_DMABUF; }\nint use() { return fi_getinfo(); }\n',
        "src/nccl_ofi_cuda.cpp": "#error only for CUDA\n",
        "src/tuner/model.cpp": "#error only for AWS\n",
    }
    headers = {
        "rdma/fabric.h": '#pragma once\nextern "C" int fi_getinfo();\nenum { FI_MR_DMABUF = 7 };\n',
        "rdma/fi_endpoint.h": "#include <rdma/fabric.h>\n",
        "rdma/fi_domain.h": "",
        "hwloc.h": "",
        "hip/hip_runtime_api.h": "",
    }
    for folder, content in ((tree, files), (root / "include", headers)):
        for name, text in content.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    (root / "lib").mkdir()
    for name, text in {"fabric": "int fi_getinfo(void) { return 0; }", "hwloc": "", "amdhip64": ""}.items():
        library = root / "lib" / f"lib{name}.so"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-xc", "-", f"-Wl,-soname,lib{name}.so.1", "-o", str(library)],
            input=text, text=True, check=True,
        )  # fmt: skip
    (release,) = (row for row in load().releases_of("rccl-net") if row.version == "1.21.1")
    patch = Path(release.from_file).parent / release.patches[0].file
    subprocess.run(["git", "apply", str(patch)], cwd=tree, check=True)
    backend = "import setuptools.build_meta as backend, sys; backend.build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", backend, str(tmp_path)],
        cwd=tree, capture_output=True, text=True, check=False, env={**os.environ, "ROCM_PATH": str(root)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("rccl_net-9.8.7-*.whl")
    report = audit_wheel(wheel, Expected(torch=TorchLibraries(rocm="7.2")))
    assert report.errors == []
    assert sorted(item.path for item in report.objects) == sorted(BOTH)
    for item in report.objects:
        assert interfaces(item) == {8}
        assert "libfabric.so.1" in item.needed
        assert item.search_paths == ()
    config = (tree / "include" / "config.h").read_text()
    assert "#define HAVE_DECL_FI_MR_DMABUF 1\n" in config
    assert "#define HAVE_DECL_FI_OPT_MAX_MSG_SIZE 0\n" in config
    assert "HAVE_HSA_RUNTIME" not in config
    (root / "include" / "hip" / "hip_runtime_api.h").unlink()
    done = subprocess.run(
        [sys.executable, "-c", backend, str(tmp_path)],
        cwd=tree, capture_output=True, text=True, check=False, env={**os.environ, "ROCM_PATH": str(root)},
    )  # fmt: skip
    assert done.returncode != 0
    assert "the base image has no hip/hip_runtime_api.h, a header of HIP" in done.stderr
