"""What wheels contain for GPUs: the rules, what is read before a wheel is chosen, and hostile wheels."""

from __future__ import annotations

import io
import os
import random
import tarfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from msgspec.structs import replace

from builders.audit.elf import read_ends
from builders.gpu import may_be_compiled
from builders.gpu.content import read_complete, read_start
from builders.index_client import IndexClient
from builders.index_client.source_content import read_source
from builders.storage.files import sha256_of
from builders.wheels.wheel import DamagedError
from resolver.errors import EnvironmentLacksError, SourceError
from resolver.indexes import Content, File, Metadata
from tests.builders.bundles import HOST, PREFIX, code_object, padded, plain
from tests.support.elf import ALLOC, PROGBITS, Section, elf_file, shared_object
from tests.support.range_server import RangeServer, serving
from tests.support.tiny import wheel_of

TAG = "cp312-cp312-manylinux_2_28_x86_64"
LIBC = "libc.so.6"
CUDA = shared_object(needed=("libcudart.so.12", LIBC))
CPU = shared_object()
NOISE = random.Random(1).randbytes(3_000_000)
PACKED = random.Random(1).randbytes(3_000_000).translate(None, bytes(range(250, 256)))
"""As large when it is compressed; that its end can be unpacked alone is found sooner than the opposite."""
EXTENSION = ".cpython-312-x86_64-linux-gnu.so"
Files = Mapping[str, bytes]


@cache
def code() -> bytes:
    """Return data that compresses like machine code."""
    rng = random.Random(4)
    words = [rng.randbytes(rng.randint(3, 30)) for _ in range(500)]
    return b"".join(rng.choices(words, k=900_000))


def hip(*gfx: str, needed: Sequence[str] = ("libamdhip64.so.6", LIBC)) -> bytes:
    bundle = plain([HOST, *((PREFIX + name, code_object(name)) for name in gfx)])
    return shared_object(needed=needed, fatbin=padded(bundle))


def started(path: Path) -> Content | None:
    with path.open("rb") as content:
        return read_start(path.name, content)


@pytest.fixture
def judge(tmp_path: Path) -> Callable[..., Content | None]:
    """Return a function that reads a wheel at both stages, which must agree on wheels that are small."""

    def read(files: Files, name: str = "gputiny", requires: Sequence[str] = ("torch",)) -> Content | None:
        path = wheel_of(tmp_path, name, "1.0", files, requires=requires, tag=TAG)
        first, complete = started(path), read_complete(path)
        assert (first is None) == (complete is None)
        if first is None or complete is None:
            return None
        assert replace(first, evidence="") == replace(complete, evidence="")
        return complete

    return read


def cuda_of(content: Content | None) -> str:
    assert content is not None
    return content.cuda


TRIES = b"try:\n    import torch\n    torch.ops.load_library('_C.so')\nexcept OSError:\n    pass\n"
LOADS = b"import torch\ntorch.ops.load_library('_C.so')\n"
REQUIRED: dict[str, Files] = {
    "an extension module": {f"tiny/_C{EXTENSION}": CUDA},
    "one extension module of two": {f"tiny/_C{EXTENSION}": CUDA, f"tiny/other{EXTENSION}": CPU},
    "an extension module for several Pythons": {"tiny/_C.abi3.so": CUDA},
    "the CUDA build of torch": {
        "tiny/_C.abi3.so": shared_object(needed=("libtorch_cuda.so", "libc10_cuda.so"))
    },
    "a library of the wheel that the module needs": {
        f"tiny/_C{EXTENSION}": shared_object(needed=("libinner.so", LIBC)),
        "tiny/libinner.so": shared_object(needed=("libouter-0a1b2c3d.so.1",), soname="libinner.so"),
        "tiny.libs/libouter-0a1b2c3d.so.1": CUDA,
    },
    "a module that the package must load": {f"tiny/_C{EXTENSION}": CUDA, "tiny/__init__.py": LOADS},
    "a module, and no valid Python": {f"tiny/_C{EXTENSION}": CUDA, "tiny/__init__.py": b"?" + TRIES},
    "all libraries of a wheel without modules": {"tiny/_C.so": CUDA, "tiny/libops.so": CUDA},
    "all libraries that no other needs": {
        "tiny/libops.so": shared_object(needed=("libbase.so", "libcudart.so.12")), "tiny/libbase.so": CPU,
    },
}  # fmt: skip


SYSTEM = ("libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", LIBC, "ld-linux-x86-64.so.2")
OF_EXTRAS = {
    "mlx": (["mlx-cpu ; extra == 'cpu'"], f"mlx/core{EXTENSION}", ["libmlx.so"], ("libmlx.so",)),
    "dm-reverb": (
        ["tensorflow~=2.15.0 ; extra == 'tensorflow'"],
        "reverb/libpybind.so", ["libtensorflow_framework.so.2"], ("libtensorflow_framework.so.2",),
    ),
    "mlx of a Mac": (["mlx-metal ; platform_system == 'Darwin'"], f"mlx/core{EXTENSION}", ["libmlx.so"], ()),
    "safetensors": (
        ["torch>=2.4 ; extra == 'torch'"],
        "safetensors/_safetensors_rust.abi3.so", ["librt.so.1", "libdl.so.2"], (),
    ),
    "polars": (["polars-cloud ; extra == 'polars-cloud'"], "polars/polars.abi3.so", ["librt.so.1"], ()),
    "grpcio": (["grpcio-tools ; extra == 'protobuf'"], f"grpc/cygrpc{EXTENSION}", ["librt.so.1"], ()),
    "ray": (["ray-cpp ; extra == 'cpp'"], "ray/core/libjemalloc.so", ["libdl.so.2"], ()),
    "scipy": (["scipy-doctest ; extra == 'test'"], f"scipy/_lib/_fpumode{EXTENSION}", [], ()),
    "thinc": (["torch ; extra == 'torch'"], f"thinc/backends/cblas{EXTENSION}", [], ()),
    "optree": (["torch ; extra == 'torch'"], f"optree/_C{EXTENSION}", [], ()),
    "rerun-sdk": (["torch ; extra == 'dataloader'"], "rerun_bindings.abi3.so", ["libdl.so.2"], ()),
}  # fmt: skip
"""Wheels of the index: an extra, an object, some of what it needs, and the libraries an extra may bring."""


@pytest.mark.parametrize("case", OF_EXTRAS)
def test_libraries_that_an_extra_may_bring(judge: Callable[..., Content], case: str) -> None:
    name, (requires, path, needed, expected) = case.partition(" ")[0], OF_EXTRAS[case]
    content = judge({path: shared_object(needed=(*needed, *SYSTEM))}, name, requires)
    assert content.needs == tuple((library, path) for library in expected)


@pytest.mark.parametrize("files", REQUIRED.values(), ids=REQUIRED)
def test_cuda_is_required(judge: Callable[..., Content], files: Files) -> None:
    content = judge(files)
    assert content.cuda == "required"
    assert "needs libcudart.so.12" in content.evidence or "needs libtorch_cuda.so" in content.evidence
    assert content.unread == ""


OPTIONAL: dict[str, Files] = {
    "a plugin beside a module": {f"tiny/_C{EXTENSION}": CPU, "tiny/libprovider.so": CUDA},
    "code in a module that links nothing": {f"tiny/_C{EXTENSION}": shared_object(cuda=b"x" * 100)},
    "variants of a library": {"tiny/libops_cpu.so": CPU, "tiny/libops_cuda12.so": CUDA},
    "variants in directories": {
        f"tiny/cpu/ops{EXTENSION}": CPU, f"tiny/cuda/ops{EXTENSION}": CUDA,
    },
    "one library of two": {"tiny/libruntime.so": CPU, "tiny/libplugin.so": CUDA},
    "a module that the package tries to load": {f"tiny/_C{EXTENSION}": CUDA, "tiny/__init__.py": TRIES},
    "a module beside one for ROCm": {f"tiny/_C{EXTENSION}": CUDA, f"tiny/_H{EXTENSION}": hip("gfx90a")},
}  # fmt: skip


@pytest.mark.parametrize("files", OPTIONAL.values(), ids=OPTIONAL)
def test_cuda_is_optional(judge: Callable[..., Content], files: Files) -> None:
    content = judge(files)
    assert (content.cuda, content.unread) == ("optional", "")


NONE: dict[str, Files] = {
    "nothing of a GPU": {f"tiny/_C{EXTENSION}": CPU},
    "texts, as in LLVM": {
        f"tiny/_C{EXTENSION}": CPU + b"\0libcudart.so.12\0libamdhip64.so.6\0gfx90a\0sm_80\0CCOB"
    },
    "symbols, as in the loader of a CPU build": {
        f"tiny/_C{EXTENSION}": shared_object(symbols=("cuInit", "cudaMalloc"))
    },
    "directories": {f"tiny/cuda/_C{EXTENSION}": CPU, "tiny/hip/rocm.so": CPU},
    "libcurl and others with a similar name": {
        f"tiny/_C{EXTENSION}": shared_object(needed=("libcurl.so.4", "libcups.so.2", "libnvme.so.1", LIBC))
    },
    "CUDA sources beside objects": {f"tiny/_C{EXTENSION}": CPU, "tiny/kernel.cu": b"__global__"},
}


@pytest.mark.parametrize("files", NONE.values(), ids=NONE)
def test_cpu_wheel_has_nothing_for_gpus(judge: Callable[..., Content], files: Files) -> None:
    content = judge(files)
    assert (content.cuda, content.rocm, content.gfx, content.unread) == ("none", "", (), "")


@pytest.mark.parametrize(
    ("name", "requires", "files", "cuda"),
    [
        ("tiny-cu12", (), {f"tiny/_C{EXTENSION}": CPU}, "required"),
        ("cuda-tiny", (), {f"tiny/_C{EXTENSION}": CPU}, "required"),
        ("tiny-non-cuda", (), {f"tiny/_C{EXTENSION}": CPU}, "none"),
        ("tiny", ("cuda-bindings>=12",), {f"tiny/_C{EXTENSION}": CPU}, "required"),
        ("tiny", ('cuda-bindings; sys_platform == "linux"',), {f"tiny/_C{EXTENSION}": CPU}, "required"),
        ("tiny", ('cuda-bindings; sys_platform == "win32"',), {f"tiny/_C{EXTENSION}": CPU}, "none"),
        ("tiny", ('cuda-bindings; extra == "gpu"',), {f"tiny/_C{EXTENSION}": CPU}, "none"),
        ("tiny", ("nvidia-nccl-cu12",), {f"tiny/_C{EXTENSION}": shared_object(cuda=b"x")}, "optional"),
        ("tiny", ("nvidia-ml-py", "torch"), {f"tiny/_C{EXTENSION}": CPU}, "none"),
    ],
)
def test_names_and_requirements_count_without_a_path_beside_cuda(
    judge: Callable[..., Content], name: str, requires: Sequence[str], files: Files, cuda: str
) -> None:
    assert cuda_of(judge(files, name, requires)) == cuda


@pytest.mark.parametrize(
    ("sources", "cuda"),
    [
        ({"tiny/a.cu": b"__global__", "tiny/b.cuh": b""}, "required"),
        ({"tiny/a.cu": b"__global__", "tiny/b.cuh": b"#ifdef USE_ROCM"}, "none"),
        ({"tiny/cuda/a.cu": b"__global__", "tiny/hip/a.cu": b"__global__"}, "none"),
        ({"tiny/chips/a.cu": b"__global__", "tiny/whip.cuh": b"__global__"}, "required"),
        ({"tiny/third_party/a.cu": b"__global__"}, None),
        ({"tiny/Modules/CMakeCUDACompilerABI.cu": b"x", "tiny/Modules/CMakeHIPCompilerABI.hip": b"x"}, None),
        ({"tiny/a.cu": b"__global__", "tiny/a.py": b"#" * 100}, "required"),
        ({"tiny/a.cu": b"__global__", "tiny/a.py": b"#" * 1000}, None),
        ({"tiny/a.cpp": b"cudaMalloc"}, None),
    ],
)
def test_sources_are_compiled_when_the_wheel_is_used(
    judge: Callable[..., Content | None], sources: Files, cuda: str | None
) -> None:
    content = judge(sources)
    assert content.cuda == cuda if content else cuda is None
    if cuda == "none":
        assert content is not None
        assert "mention HIP" in content.unread


@pytest.mark.parametrize(
    ("files", "rocm", "gfx"),
    [
        ({f"tiny/_C{EXTENSION}": hip("gfx90a", "gfx942")}, ">=6,<7", ("gfx90a", "gfx942")),
        ({f"tiny/_C{EXTENSION}": hip("gfx90a", needed=("libamdhip64.so.7",))}, ">=7", ("gfx90a",)),
        ({f"tiny/_C{EXTENSION}": shared_object(needed=("libamdhip64.so.6",))}, ">=6,<7", ()),
        ({f"tiny/_C{EXTENSION}": shared_object(needed=("librccl.so.1",))}, "", ()),
        (
            {
                "tiny/libtiny_rocm64.so": hip("gfx90a"),
                "tiny/libtiny_rocm70.so": hip("gfx942", needed=("libamdhip64.so.7",)),
                "tiny/libtiny_cuda12.so": CUDA,
            },
            ">=6",
            ("gfx90a", "gfx942"),
        ),
        (
            {
                f"tiny/_C{EXTENSION}": shared_object(needed=("libamdhip64.so.6",)),
                "tiny.libs/libamdhip64.so.6": CPU,
            },
            "",
            (),
        ),
    ],
)
def test_rocm_and_architectures(
    judge: Callable[..., Content], files: Files, rocm: str, gfx: tuple[str, ...]
) -> None:
    content = judge(files)
    assert (content.rocm, content.gfx) == (rocm, gfx)


@pytest.mark.parametrize(
    ("name", "file", "is_judged"),
    [
        ("tiny-hip", CPU, False),
        ("rocm-tiny", CPU, False),
        ("tiny-hip", hip("gfx90a"), True),
        ("rocm-tiny", shared_object(needed=("libamdhip64.so.6",)), True),
        ("whip-chips", CPU, True),
    ],
)
def test_name_for_rocm_needs_evidence(
    judge: Callable[..., Content], name: str, file: bytes, is_judged: bool
) -> None:
    """A wheel that opens HIP does not show for which ROCm it is (hip-python)."""
    content = judge({f"tiny/_C{EXTENSION}": file}, name)
    assert (content.unread == "") is is_judged
    assert is_judged or "nothing in it shows for which releases" in content.unread


OF_TORCH = ("_ZN3c106detail14torchCheckFailEv", "malloc")
STABLE = ("aoti_torch_dtype_float32", "torch_call_dispatcher", "_ZN9torchtext4readEv")


@pytest.mark.parametrize(
    ("symbols", "requires", "file", "is_judged"),
    [
        (OF_TORCH, ("torch>=2",), "_C", False),
        (OF_TORCH, (), "_C", False),
        (OF_TORCH, ("torch==2.9.1",), "_C", True),
        (OF_TORCH, ("torch>=2.9,<2.10",), "_C", True),
        (OF_TORCH, ("torch>=2",), "_C_torch29", True),  # the package chooses among several
        (STABLE, ("torch>=2",), "_C", True),
    ],
)
def test_release_of_torch_must_be_known(
    tmp_path: Path, symbols: Sequence[str], requires: Sequence[str], file: str, is_judged: bool
) -> None:
    """The C++ interface of torch is not stable, so an object that uses it was compiled for one release."""
    for rest in (b"", PACKED):
        needed = ("libc10.so", LIBC)
        files = {f"tiny/{file}{EXTENSION}": shared_object(needed=needed, symbols=symbols, fatbin=rest)}
        path = wheel_of(tmp_path, "torch-tiny", "1.0", files, requires=requires, tag=TAG)
        for content in (started(path), read_complete(path)):
            assert content is not None
            assert ("is compiled against torch, and" not in content.unread) is is_judged


@pytest.mark.parametrize(
    ("library", "is_judged"), [("libc10.so", False), ("libtorch_cpu.so", False), (LIBC, True)]
)
def test_large_object_that_needs_torch_is_compiled_against_it(
    tmp_path: Path, library: str, *, is_judged: bool
) -> None:
    """Its names of torch come after the part that is read (torch-projectors)."""
    files = {f"tiny/_C{EXTENSION}": shared_object(needed=(library, LIBC), cuda=PACKED)}
    content = started(wheel_of(tmp_path, "tiny", "1.0", files, requires=("torch>=2.6",), tag=TAG))
    assert content is not None
    assert ("is compiled against torch, and" not in content.unread) is is_judged


def test_names_of_torch_that_the_wheel_has_itself_are_its_own(judge: Callable[..., Content]) -> None:
    """As in paddlepaddle, which has an interface like that of torch."""
    files = {
        f"tiny/_C{EXTENSION}": shared_object(symbols=OF_TORCH),
        "tiny/libtiny.so": shared_object(exports=OF_TORCH),
    }
    assert judge(files, "torch-tiny", ()).unread == ""


def test_real_objects(
    judge: Callable[..., Content], compile_object: Callable[..., Path], tmp_path: Path
) -> None:
    """A compiler writes tables, symbol versions and search paths as in real wheels."""
    stub = compile_object("libcudart.so.12", "int unused;\n", "-Wl,-soname,libcudart.so.12", "-nostdlib")
    source = '#include <stdio.h>\nint answer(void) { return puts("libcuda.so.1"); }\n'
    needing = compile_object("needing.so", source, "-Wl,--no-as-needed", str(stub)).read_bytes()
    alone = compile_object("alone.so", source).read_bytes()
    assert cuda_of(judge({f"tiny/_C{EXTENSION}": needing})) == "required"
    assert cuda_of(judge({f"tiny/_C{EXTENSION}": alone})) == "none"
    large = {f"tiny/_C{EXTENSION}": needing + PACKED}
    path = wheel_of(tmp_path / "large", "gputiny", "1.0", large, requires=["torch"], tag=TAG)
    assert cuda_of(started(path)) == "required"


def test_start_of_a_large_object_shows_what_it_needs(tmp_path: Path) -> None:
    files = {f"tiny/_C{EXTENSION}": shared_object(needed=("libcudart.so.12", LIBC), cuda=PACKED)}
    content = started(wheel_of(tmp_path, "gputiny", "1.0", files, tag=TAG))
    assert content is not None
    assert (content.cuda, content.unread) == ("required", "")


def test_object_whose_start_shows_nothing_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after patchelf, which moves the table of names to the end."""
    monkeypatch.setattr("builders.gpu.content._ENDS", 1 << 15)
    hidden = shared_object(needed=("libcudart.so.12",), versions={}, cuda=NOISE)
    path = wheel_of(tmp_path, "gputiny", "1.0", {f"tiny/_C{EXTENSION}": hidden}, tag=TAG)
    content = started(path)
    assert content is not None
    assert content.cuda == "none"
    assert f"_C{EXTENSION} (3 MB) was not read" in content.unread
    assert cuda_of(read_complete(path)) == "required"


@pytest.mark.parametrize("cuda", [True, False])
def test_end_of_a_large_object_shows_its_code(tmp_path: Path, *, cuda: bool) -> None:
    """Static CUDA, as in xgboost: no needed library shows it."""
    large = shared_object(cuda=code()) if cuda else shared_object() + code()
    path = wheel_of(tmp_path, "gputiny", "1.0", {"tiny/libtiny.so": large}, tag=TAG)
    content = started(path)
    assert content is not None
    if cuda:
        assert (content.cuda, content.unread, content.unseen) == ("optional", "", "")
    else:  # its table of sections is not at the end
        assert (content.cuda, content.unread) == ("none", "")
        assert "its sections were not read" in content.unseen


@pytest.mark.parametrize(
    ("sections", "may_have"),
    [
        ([Section(".eh_frame", PROGBITS, bytes(9000), flags=ALLOC)], False),
        ([Section(".nv_fatbin", PROGBITS, bytes(9000), flags=ALLOC)] * 2, True),
        ([Section(".hip_fatbin", PROGBITS, bytes(9000), flags=ALLOC, alignment=4096)], True),
        ([Section(".rodata", PROGBITS, bytes(9000), flags=ALLOC, alignment=32)] * 3, False),
        ([Section(".data", PROGBITS, bytes(9000), flags=ALLOC + 1)] * 3, False),
    ],
)
def test_section_without_a_known_name_may_be_code(sections: Sequence[Section], *, may_have: bool) -> None:
    data = elf_file(sections)
    names = data.index(b".shstrtab")

    def part(start: int, size: int) -> bytes | None:
        return None if names - 60 < start < names + 10 else data[start : start + size]

    _, has_cuda_code, has_hip_code, unknown = read_ends(data, part)
    assert (has_cuda_code, has_hip_code, bool(unknown)) == (False, False, may_have)
    assert not read_ends(data, lambda start, size: data[start : start + size])[-1]


def test_library_of_the_wheel_itself_is_no_copy(tmp_path: Path) -> None:
    """It is moved to the copies of other libraries, as in ctranslate2."""
    files = {
        f"gputiny/_ext{EXTENSION}": shared_object(needed=("libgputiny-1a2b.so.4", LIBC)),
        "gputiny.libs/libgputiny-1a2b.so.4": shared_object(cuda=code()),
    }
    content = started(wheel_of(tmp_path, "gputiny", "1.0", files, tag=TAG))
    assert content is not None
    assert (content.cuda, "NVIDIA" in content.evidence) == ("optional", True)


def test_build_for_the_cpu_names_its_builds_for_gpus(tmp_path: Path) -> None:
    text = "Install tiny-cu120 (or tiny_cu118) for a GPU, not tiny-gpustat."
    path = wheel_of(tmp_path, "tiny", "1.0", {f"tiny/_C{EXTENSION}": CPU}, description=text, tag=TAG)
    for content in (started(path), read_complete(path)):
        assert content is not None
        assert content.gpu_builds == ("tiny-cu118", "tiny-cu120")


def test_removed_need_of_the_driver_is_no_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removed entry leaves its name in the table, as in tilelang."""
    monkeypatch.setattr("builders.gpu.content._ENDS", 1 << 15)
    large = shared_object(needed=("libcuda.so.1", LIBC), cuda=NOISE)
    content = started(wheel_of(tmp_path, "gputiny", "1.0", {f"tiny/_C{EXTENSION}": large}, tag=TAG))
    assert cuda_of(content) == "none"


def test_unread_variant_for_another_rocm_does_not_limit_rocm(tmp_path: Path) -> None:
    files = {
        "tiny/libtiny_rocm64.so": hip("gfx90a"),
        "tiny/libtiny_rocm70.so": shared_object(needed=("libamdhip64.so.7",), versions={}, fatbin=PACKED),
    }
    content = started(wheel_of(tmp_path, "gputiny", "1.0", files, tag=TAG))
    assert content is not None
    assert (content.rocm, "libtiny_rocm70.so" in content.unread) == ("", True)


def test_code_of_a_large_object_is_not_judged(tmp_path: Path) -> None:
    large = shared_object(needed=("libamdhip64.so.7", LIBC), fatbin=PACKED)
    content = started(wheel_of(tmp_path, "gputiny", "1.0", {f"tiny/_C{EXTENSION}": large}, tag=TAG))
    assert content is not None
    assert (content.rocm, content.gfx) == (">=7", ())
    assert "the GPU code of _C" in content.unread


def test_code_objects_as_files(tmp_path: Path) -> None:
    files = {f"tiny/{number}.co": code_object("gfx942") for number in range(20)}
    path = wheel_of(tmp_path, "gputiny", "1.0", files)
    first, complete = started(path), read_complete(path)
    assert first is not None
    assert complete is not None
    assert (first.gfx, first.unread) == (("gfx942",), "12 of its 20 code objects were not read")
    assert (complete.gfx, complete.unread) == (("gfx942",), "")


# Sources


NVIDIA = b"""urlretrieve('https://pypi.nvidia.com/gputiny')"""


def sdist(name: str, files: Files) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for member, text in files.items():
            info = tarfile.TarInfo(f"{name}-1.0/{member}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    return content.getvalue()


C, SETUP = {"src/tiny.c": b"int x;"}, {"setup.py": b"setup()"}


@pytest.mark.parametrize(
    ("name", "files", "expected"),
    [
        ("tiny", SETUP, ("none", "its source has no code: it may be a placeholder")),
        ("tiny", {**SETUP, "tiny/__init__.py": b"'''Docs.'''"}, ("none", "it may be a placeholder")),
        ("tiny", {**SETUP, "tiny/__init__.py": b"import os"}, ("none", "")),
        ("tiny", {"setup.py": b"setup(install_requires=['a'])"}, ("none", "")),
        ("tiny", {**SETUP, **C}, ("none", "")),
        ("gputiny", {**SETUP, **C}, ("none", "the name of gputiny has the word gpu")),
        ("tiny", {**C, "setup.py": b"CUDA_HOME"}, ("none", "its setup.py has the word CUDA")),
        ("tiny", {"setup.py": NVIDIA}, ("required", "")),
        ("tiny", {**C, "setup.py": NVIDIA}, ("none", "its setup.py has the word nvidia")),
        ("tiny", {**SETUP, "README": NVIDIA, "tests/a.cu": b"", "tiny.py": b"def f(): pass"}, ("none", "")),
        ("tiny", {"tiny.py": b"import os"}, ("none", "it has neither pyproject.toml nor setup.py")),
        ("tiny", {"pyproject.toml": b"= 1", "tiny.py": b"import os"}, ("none", "(at line 1, column 1)")),
        (
            "tiny",
            {**SETUP, "csrc/a.cu": b"x"},
            ("none", "for CUDA or HIP (a.cu); it does not mention HIP"),
        ),
        (
            "tiny",
            {**SETUP, "csrc/a.cu": b"USE_ROCM"},
            ("none", "code for CUDA or HIP (a.cu); it mentions HIP"),
        ),
    ],
)
def test_source_is_refused_only_if_it_gets_a_program_for_cuda(
    serve: RangeServer, tmp_path: Path, name: str, files: Files, expected: tuple[str, str]
) -> None:
    cuda, unread = expected
    path = tmp_path / f"{name}-1.0.tar.gz"
    path.write_bytes(sdist(name, files))
    file = file_of(serve, path)
    content = client(serve, tmp_path / "cache").content(file, None)
    assert content is not None
    assert content.cuda == cuda
    assert content.unread.endswith(unread)
    assert (content.unread != "") == (unread != "")
    assert str(tmp_path) not in content.unread
    assert client(serve, tmp_path / "cache", offline=True).content(file, None) == content


@pytest.mark.parametrize(
    ("source", "is_placeholder"),
    [
        (b"raise ImportError('This is a placeholder')", True),
        (b"'''Docs.'''\nimport os\nraise RuntimeError", True),
        (b"import sys\nif sys.version_info < (3, 8):\n    raise ImportError", False),
        (b"try:\n    import torch\nexcept ImportError:\n    raise", False),
        (b"", False),
        (b"not Python (", False),
    ],
)
def test_package_that_only_raises_an_error_is_a_placeholder(
    tmp_path: Path, source: bytes, *, is_placeholder: bool
) -> None:
    path = wheel_of(tmp_path, "tiny", "1.0", {"tiny/__init__.py": source})
    for content in (started(path), read_complete(path)):
        assert (content is not None and "only raises an error" in content.broken) == is_placeholder
    for name in ("tiny/__init__.py", "src/tiny/__init__.py", "setup.py"):
        found = read_source("tiny-1.0.tar.gz", io.BytesIO(sdist("tiny", {**SETUP, name: source})))
        assert (f"its {name} only raises" in found.broken) == is_placeholder


NO_CODE = {"tiny/__init__.py": b"__version__ = '0.0.1'", "tiny/cli.py": b"# nothing"}


@pytest.mark.parametrize(
    ("files", "requires", "has_code"),
    [
        (NO_CODE, (), False),
        ({}, (), False),
        (NO_CODE, ("numpy",), True),
        ({**NO_CODE, "tiny/data.json": b"{}"}, (), True),
        ({**NO_CODE, "tiny/run.py": b"def run(): pass"}, (), True),
        ({**NO_CODE, "tiny/texts.py": b"notifications = {'tiny': 'a text'}"}, (), True),
        ({**NO_CODE, "tiny/rest.py": b"#" * 40_000}, (), True),
    ],
)
def test_wheel_without_code_is_not_judged(
    tmp_path: Path, files: Files, requires: tuple[str, ...], *, has_code: bool
) -> None:
    path = wheel_of(tmp_path, "hiptiny", "1.0", files, requires=requires)
    for content in (started(path), read_complete(path)):
        assert (content is not None and content.unread.endswith("may be a placeholder")) != has_code


@pytest.mark.parametrize("content", [b"no archive", b""])
def test_broken_source_is_named(serve: RangeServer, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tiny-1.0.tar.gz"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"tiny-1.0.tar.gz cannot be read"):
        client(serve, tmp_path / "cache").content(file_of(serve, path), None)


@pytest.mark.parametrize(("name", "size"), [("tiny-1.0.tar.gz", 30_000_000), ("tiny", 0)])
def test_large_source_and_commit_are_not_read(
    serve: RangeServer, tmp_path: Path, name: str, size: int
) -> None:
    content = client(serve, tmp_path / "cache").content(File(name, f"{serve.url}/{name}", size=size), None)
    assert content is not None
    assert content.unread == "it is built from source, and the source was not read"
    assert content.source is not None
    assert content.source.kind == "unread"


# Which wheels are opened, and what that costs


@pytest.mark.parametrize(
    ("file", "requires", "size", "is_opened"),
    [
        ("tiny-1.0-cp312-cp312-manylinux_2_28_x86_64.whl", (), 0, True),
        ("tiny-1.0-py3-none-any.whl", (), 0, False),
        ("tiny-1.0-py3-none-any.whl", ("torch>=2",), 0, True),
        ("tiny-1.0-py3-none-any.whl", ("nvidia-cutlass-dsl",), 0, True),
        ("tiny-1.0-py3-none-any.whl", ("torchmetrics",), 0, False),
        ("tiny-1.0-py3-none-any.whl", (), 50_000_000, True),
        ("amd_tiny-1.0-py3-none-any.whl", (), 0, True),
        ("tiny-1.0.tar.gz", (), 0, True),
    ],
)
def test_pure_wheels_are_opened_only_with_a_sign(
    file: str, requires: tuple[str, ...], size: int, *, is_opened: bool
) -> None:
    metadata = Metadata(file.partition("-")[0].replace("_", "-"), "1.0", requires)
    assert may_be_compiled(File(file, f"https://index.invalid/{file}", size=size), metadata) == is_opened


@pytest.fixture
def serve(tmp_path: Path) -> Any:
    with serving(tmp_path) as server:
        yield server


def client(server: RangeServer, cache: Path, **more: Any) -> IndexClient:
    return IndexClient([server.url], cache=cache, **more)


def file_of(server: RangeServer, path: Path) -> File:
    return File(path.name, f"{server.url}/{path.name}", sha256_of(path), path.stat().st_size)


@pytest.mark.slow
def test_limits_of_bytes(serve: RangeServer, tmp_path: Path) -> None:
    """A wheel with large and small objects costs at most 4 MB, and one without signs 0.1."""
    noise = random.Random(2)
    files = {
        f"tiny/m{number}{EXTENSION}": shared_object(cuda=noise.randbytes(1_600_000)) for number in range(6)
    }
    files |= {
        f"tiny/s{number}{EXTENSION}": shared_object(cuda=noise.randbytes(50_000)) for number in range(50)
    }
    read = {}
    for name in ("gputiny", "tiny"):
        path = wheel_of(tmp_path, name, "1.0", files, tag=TAG)
        before = serve.sent
        content = client(serve, tmp_path / "cache").content(file_of(serve, path), None)
        assert content is not None
        read[name] = serve.sent - before, content.unread
    assert read["gputiny"][0] < 4_000_000
    assert "not read" in read["gputiny"][1]
    assert read["tiny"][0] < 100_000
    assert read["tiny"][1] == ""


def test_cache_saves_requests_and_changes_no_answer(serve: RangeServer, tmp_path: Path) -> None:
    path = wheel_of(tmp_path, "gputiny", "1.0", {f"tiny/_C{EXTENSION}": CUDA}, tag=TAG)
    file = file_of(serve, path)
    first = client(serve, tmp_path / "cache").content(file, None)
    sent = serve.sent
    assert client(serve, tmp_path / "cache").content(file, None) == first
    assert client(serve, tmp_path / "cache", offline=True).content(file, None) == first
    assert serve.sent == sent
    with pytest.raises(EnvironmentLacksError, match="not in the cache"):
        client(serve, tmp_path / "empty", offline=True).content(file, None)
    for damaged in (tmp_path / "cache").rglob("content/*"):
        damaged.write_bytes(b"damaged")
    assert client(serve, tmp_path / "cache").content(file, None) == first
    assert serve.sent > sent


def test_nothing_compiled_is_cached_too(serve: RangeServer, tmp_path: Path) -> None:
    path = wheel_of(tmp_path, "gputiny", "1.0", {"tiny/__init__.py": b"import os"})
    file = file_of(serve, path)
    assert client(serve, tmp_path / "cache").content(file, None) is None
    sent = serve.sent
    assert client(serve, tmp_path / "cache").content(file, None) is None
    assert serve.sent == sent


def test_local_and_remote_files_give_the_same_answer(serve: RangeServer, tmp_path: Path) -> None:
    """How much is read depends on the file, not on where it is."""
    large = shared_object(needed=("libamdhip64.so.7", LIBC), fatbin=PACKED)
    path = wheel_of(tmp_path, "gputiny", "1.0", {f"tiny/_C{EXTENSION}": large}, tag=TAG)
    remote = client(serve, tmp_path / "one").content(file_of(serve, path), None)
    local = client(serve, tmp_path / "two").content(File(path.name, path.as_uri()), None)
    assert remote == local
    assert remote is not None


def test_large_file_of_a_server_without_ranges_is_not_judged(
    serve: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wheel_of(tmp_path, "gputiny", "1.0", {f"tiny/_C{EXTENSION}": CUDA}, tag=TAG)
    monkeypatch.setattr("builders.network.transport.Transport.remote_file", lambda *_: None)
    content = client(serve, tmp_path / "cache").content(file_of(serve, path), None)
    assert content is not None
    assert (content.cuda, "sends only as a whole" in content.unread) == ("none", True)


# Hostile wheels


def test_damaged_wheel_is_an_error_that_names_the_file(serve: RangeServer, tmp_path: Path) -> None:
    path = wheel_of(tmp_path, "gputiny", "1.0", {f"tiny/_C{EXTENSION}": CUDA}, tag=TAG)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(SourceError, match=r"gputiny-1\.0.*not a valid wheel"):
        client(serve, tmp_path / "cache").content(file_of(serve, path), None)
    with pytest.raises(DamagedError):
        read_complete(path)
    with pytest.raises(SourceError, match="gputiny"):
        client(serve, tmp_path / "cache").content(File(path.name, f"{serve.url}/no/{path.name}"), None)


@pytest.mark.parametrize("data", [b"", b"not an object", b"\x7fELF", CUDA[:200], b"\x7fELF" + b"\0" * 9999])
def test_objects_that_are_none_are_not_judged(tmp_path: Path, data: bytes) -> None:
    path = wheel_of(tmp_path, "gputiny", "1.0", {f"tiny/_C{EXTENSION}": data}, tag=TAG)
    for content in (started(path), read_complete(path)):
        assert content is not None
        assert content.cuda == "none"
        assert content.unread


@pytest.mark.slow
def test_many_objects_that_need_each_other_take_little_time(tmp_path: Path) -> None:
    files = {
        f"tiny/lib{number}.so": shared_object(needed=[f"lib{other}.so" for other in range(0, 200, 3)])
        for number in range(200)
    }
    files["tiny/lib0.so"] = CUDA
    path = wheel_of(tmp_path, "gputiny", "1.0", files, tag=TAG)
    before = time.process_time()
    read_complete(path)
    started(path)
    assert time.process_time() - before < 10


@pytest.mark.slow
def test_member_that_unpacks_to_more_than_it_states(tmp_path: Path) -> None:
    path = wheel_of(tmp_path, "gputiny", "1.0", {f"tiny/_C{EXTENSION}": CPU + bytes(40_000_000)}, tag=TAG)
    before = time.process_time()
    assert started(path) is not None
    assert time.process_time() - before < 10


def test_random_damage_raises_nothing_else(tmp_path: Path) -> None:
    whole = wheel_of(tmp_path, "gputiny", "1.0", {f"tiny/_C{EXTENSION}": CUDA}, tag=TAG).read_bytes()
    choose = random.Random(3)
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(choose.randint(1, 20)):
            damaged[choose.randrange(len(damaged))] = choose.randrange(256)
        content: BinaryIO = io.BytesIO(bytes(damaged))
        try:
            read_start(f"gputiny-1.0-{TAG}.whl", content)
        except DamagedError:
            continue


def test_encrypted_or_unknown_compression(tmp_path: Path) -> None:
    path = tmp_path / f"gputiny-1.0-{TAG}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr(f"tiny/_C{EXTENSION}", CUDA)
        archive.writestr(f"tiny/large{EXTENSION}", os.urandom(3_000_000))
    content = started(path)
    assert content is not None
    assert "compressed by method 12" in content.unread
