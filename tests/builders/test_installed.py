"""What is installed in an image or environment: 60 broken ones are named, 20 sound ones cause no alarm."""

from __future__ import annotations

import re
import shutil
import struct
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from builders.findings import Finding
from builders.installed import checks
from builders.installed.checks import findings_of
from builders.installed.reading import read_installed
from matrix.reading.requirements import RULES
from resolver.answers.resolve import resolve
from resolver.consequences.questions import Side
from resolver.errors import UsageError
from resolver.facts.catalog import load
from resolver.model import Request, Resolution, Target
from resolver.requirements import parse_requirement
from tests.support.elf import shared_object
from tests.support.installed import Tree, gpu_code, network_plugin

Make = Callable[[Path], Tree]
CUDART = ("libcudart.so.12", "libc10.so")
C_3_10 = "_C.cpython-310-x86_64-linux-gnu.so"
OP_TABLE = """
installed_ops={{'cpu_adam': True}}
accelerator_name='cuda'
torch_info={{'version': {torch!r}, 'hip_version': {hip!r}}}
"""


def image(path: Path, torch: str = "2.9.1+rocm6.4", **options: object) -> Tree:
    return Tree(path, "image", **options).torch(torch)  # type: ignore[arg-type]


def venv(path: Path, torch: str = "2.9.1+rocm6.4") -> Tree:
    return Tree(path).torch(torch)


def conda(path: Path, torch: str = "2.9.1+rocm6.4", **options: object) -> Tree:
    return Tree(path, "conda", **options).torch(torch)  # type: ignore[arg-type]


def deepspeed(tree: Tree, torch: str, hip: str, *, compiled: bool = True) -> Tree:
    table = OP_TABLE.format(torch=torch, hip=hip).encode()
    files = {"deepspeed/git_version_info_installed.py": table}
    if compiled:
        files["deepspeed/ops/adam/cpu_adam_op.so"] = shared_object(needed=["libc10.so"])
    return tree.dist("deepspeed", "0.19.8", files, requires=["torch"])


def second_site(tree: Tree) -> Tree:
    """Let a virtual environment see the packages of the system, which has another torch."""
    tree.file("opt/venv/pyvenv.cfg", b"home = /usr/bin\ninclude-system-site-packages = true\n")
    return tree.dist("numpy", "1.26.4", site="usr/lib/python3/dist-packages").dist("numpy", "2.2.0")


def mpi4py(tree: Tree) -> Tree:
    tree.file("usr/lib/libmpi.so.12", shared_object())
    return tree.dist("mpi4py", "4.0.1", {"mpi4py/MPI.abi3.so": shared_object(needed=["libmpi.so.12"])})


def without(tree: Tree, path: str) -> Tree:
    (tree.root / path).unlink()
    return tree


def rccl_net(tree: Tree, *versions: int, version: str = "1.21.1") -> Tree:
    library = network_plugin(*versions)
    names = ("torch/lib/librccl-net.so", "torch/lib/libnccl-net.so")
    return tree.dist("rccl-net", version, dict.fromkeys(names, library), requires=["torch"])


def linked_rocm(tree: Tree, version: str) -> Tree:
    tree.rocm(version)
    (tree.root / "opt/rocm").symlink_to(f"rocm-{version}")
    return tree


def altered(tree: Tree) -> Tree:
    """Change a file after its installation."""
    tree.dist("tqdm", "4.66.5", {"tqdm/_version.py": b"v = 1"})
    info = f"{tree.site}/tqdm-4.66.5.dist-info/RECORD"
    tree.file(info, b"tqdm/__init__.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n")
    tree.file(f"{tree.site}/tqdm/__init__.py", b"print('patched')")
    return tree


def beside(tree: Tree, name: str, text: bytes) -> Tree:
    tree.file(f"{tree.site}/{name}", text)
    return tree


BROKEN: dict[str, tuple[Make, str, str]] = {
    # torch for CUDA
    "cuda-label": (lambda p: Tree(p).torch("2.5.1+cu124", cuda="12.4"), "verify-torch-cuda", "CUDA 12.4"),
    "cuda-118": (lambda p: Tree(p).torch("2.1.0+cu118", cuda="11.8"), "verify-torch-cuda", "CUDA 11.8"),
    "cuda-no-label": (lambda p: Tree(p).torch("2.6.0", cuda="12.4"), "verify-torch-cuda", "torch 2.6.0"),
    "cuda-image": (lambda p: Tree(p, "image").torch("2.5.1", cuda="12.4"), "verify-torch-cuda", "12.4"),
    "cuda-conda": (lambda p: Tree(p, "conda").torch("2.5.1", cuda="12.1"), "verify-torch-cuda", "12.1"),
    # torch for CPUs
    "cpu-label": (lambda p: Tree(p).torch("2.9.1+cpu"), "verify-torch-cpu", "not built for ROCm"),
    "cpu-no-label": (lambda p: Tree(p).torch("2.9.1"), "verify-torch-cpu", "not built for ROCm"),
    # distributions for CUDA
    "nvidia": (lambda p: venv(p).dist("nvidia-nccl-cu12", "2.21.5"), "verify-nvidia", "nvidia-nccl-cu12"),
    "cupy-cuda": (lambda p: image(p).dist("cupy-cuda12x", "13.3.0"), "verify-nvidia", "cupy-cuda12x"),
    "jax-cuda": (lambda p: conda(p).dist("jax-cuda12-plugin", "0.4.30"), "verify-nvidia", "jax-cuda12"),
    # content for CUDA only
    "cuda-extension": (
        lambda p: venv(p).extension("xformers", needed=CUDART, gfx=()),
        "verify-does-not-fit",
        "CUDA",
    ),
    "cuda-in-image": (
        lambda p: image(p).extension("vllm", needed=["libcuda.so.1"], gfx=()),
        "verify-does-not-fit",
        "libcuda",
    ),
    "torch-cuda": (
        lambda p: venv(p).extension("torchvision", needed=["libtorch_cuda.so"], gfx=()),
        "verify-does-not-fit",
        "libtorch_cuda",
    ),
    "library-only": (
        lambda p: venv(p).dist(
            "bitsandbytes",
            "0.45.0",
            {"bitsandbytes/libbitsandbytes_cuda124.so": shared_object(needed=["libcublas.so.12"])},
        ),
        "verify-does-not-fit",
        "libcublas",
    ),
    # ROCm and the driver of the site
    "rocm-5.6": (lambda p: image(p, "2.2.0+rocm5.6"), "driver-risk", "ROCm 5.6 is older than driver 6.3"),
    "rocm-6.0": (lambda p: venv(p, "2.3.1+rocm6.0"), "driver-risk", "ROCm 6.0 is older than driver 6.3"),
    "rocm-7.2": (
        lambda p: image(p, "2.11.0+rocm7.2"),
        "driver-risk",
        "which AMD does not list for driver 6.3",
    ),
    "rocm-7.1": (
        lambda p: image(p, "2.10.0+rocm7.1"),
        "driver-refuses",
        "ROCm 7.1 does not run on kernel driver 6.3",
    ),
    "rocm-10": (lambda p: venv(p, "2.13.0+rocm10.0"), "driver-refuses", "ROCm 10.0 does not run"),
    "rocm-of-image": (lambda p: Tree(p, "image").rocm("7.1.1"), "driver-refuses", "ROCm 7.1.1"),
    "rocm-unknown": (lambda p: venv(p, "2.0.0+rocm4.1"), "driver-not-judged", "ROCm 4.1"),
    # ROCm of another major version
    "hip-5": (
        lambda p: venv(p).extension("apex", needed=["libc10.so", "libamdhip64.so.5"]),
        "verify-does-not-fit",
        "rocm>=5,<6",
    ),
    "hip-7": (
        lambda p: image(p).extension("apex", needed=["libc10.so", "libamdhip64.so.7"]),
        "verify-does-not-fit",
        "rocm>=7",
    ),
    "hip-nowhere": (
        lambda p: image(p).extension("apex", needed=["libc10.so", "libamdhip64.so.5"]),
        "need-not-provided",
        "libamdhip64.so.5",
    ),
    # two ROCms
    "two-rocms": (
        lambda p: (
            image(p)
            .rocm("5.7.3")
            .extension("apex", needed=["libamdhip64.so.5"], runpath="/opt/rocm-5.7.3/lib")
        ),
        "rocm-twice",
        "ROCm 5.7.3 in /opt/rocm-5.7.3/lib",
    ),
    "rocm-of-pip": (
        lambda p: image(p).rocm("7.2.4").dist("rocm-sdk-core", "7.14.1"),
        "verify-two-rocms",
        "7.14.1 of pip (rocm-sdk-core), and that in /opt/rocm-7.2.4",
    ),
    "device-missing": (
        lambda p: venv(p).dist("tiny", "1.0", requires=["amd-tiny-device-gfx90a; extra == 'device-gfx90a'"]),
        "verify-device-missing",
        "amd-tiny-device-gfx90a",
    ),
    "stray-kpack": (
        lambda p: venv(p).dist(
            "amd-torch-device-gfx90a",
            "1.0",
            {"torch/.kpack/torch_gfx90a.kpack": b"", "torch/.kpack/torch_gfx90a:xnack-.kpack": b""},
        ),
        "verify-stray-kpack",
        "xnack-",
    ),
    "empty-kpack": (
        lambda p: venv(p).dist("amd-torch-device-gfx90a", "1.0", {"torch/.kpack/torch_gfx90a.kpack": b""}),
        "kpack-damaged",
        "is empty",
    ),
    "two-rocms-same-name": (
        lambda p: (
            image(p)
            .rocm("6.0.3")
            .extension("apex", needed=["libhipblas.so.2"], runpath="/opt/rocm-6.0.3/lib")
        ),
        "rpath-rocm",
        "of ROCm 6.0.3, but torch is for ROCm 6.4",
    ),
    "rpath-linked": (
        lambda p: linked_rocm(image(p), "6.0.3").extension("apex", runpath="/opt/rocm/lib"),
        "rpath-rocm",
        "6.0.3",
    ),
    "rpath-nowhere": (
        lambda p: venv(p).extension("apex", runpath="/opt/rocm-5.7.1/lib"),
        "rpath-rocm",
        "does not exist here",
    ),
    # two tritons
    "tritons": (
        lambda p: venv(p).dist("triton", "3.5.1").dist("pytorch-triton-rocm", "3.5.1"),
        "tritons",
        "triton 3.5.1 and",
    ),
    "tritons-new": (
        lambda p: image(p).dist("triton", "3.1.0").dist("triton-rocm", "3.6.0"),
        "tritons",
        "triton-rocm 3.6.0",
    ),
    "three-tritons": (
        lambda p: conda(p).dist("triton", "3.1.0").dist("triton-rocm", "3.6.0").dist("pytorch-triton", "3"),
        "tritons",
        "overwrite",
    ),
    # GPU architectures
    "gfx942-only": (
        lambda p: venv(p).extension("apex", gfx=["gfx942"]),
        "verify-does-not-fit",
        "gfx942, but not for gfx90a",
    ),
    "gfx1030-image": (
        lambda p: image(p).extension("flash-attn", gfx=["gfx1030"]),
        "verify-does-not-fit",
        "gfx1030",
    ),
    "xnack": (
        lambda p: venv(p).extension("apex", gfx=["gfx90a:xnack+"]),
        "verify-does-not-fit",
        "gfx90a:xnack+",
    ),
    "torch-gfx": (
        lambda p: Tree(p).torch(gfx=["gfx1030"]),
        "verify-does-not-fit",
        "torch 2.9.1+rocm6.4 contains code for gfx1030",
    ),
    # the compiler's libraries
    "libstdcxx": (
        lambda p: image(p, glibcxx="3.4.26").extension(
            "apex", versions={"libstdc++.so.6": ["GLIBCXX_3.4.32"]}
        ),
        "libstdcxx-too-new",
        "GLIBCXX_3.4.32, but the image has at most GLIBCXX_3.4.26",
    ),
    "libstdcxx-conda": (
        lambda p: conda(p, glibcxx="3.4.28").extension(
            "apex", versions={"libstdc++.so.6": ["GLIBCXX_3.4.30"]}
        ),
        "libstdcxx-too-new",
        "the conda environment has at most GLIBCXX_3.4.28",
    ),
    "cxxabi": (
        lambda p: image(p).extension("apex", versions={"libstdc++.so.6": ["CXXABI_1.3.15"]}),
        "libstdcxx-too-new",
        "CXXABI_1.3.15",
    ),
    "glibc": (
        lambda p: image(p, glibc="2.31").extension("apex", versions={"libc.so.6": ["GLIBC_2.34"]}),
        "glibc-too-new",
        "GLIBC_2.34",
    ),
    "glibc-torch": (lambda p: image(p, glibc="2.12"), "glibc-too-new", "torch 2.9.1+rocm6.4"),
    # another torch
    "abi": (
        lambda p: venv(p).extension("apex", symbols=["_ZN2at4_ops3add4callERKNS_6TensorES4_"]),
        "torch-symbol-missing",
        "torch 2.9.1",
    ),
    "abi-image": (
        lambda p: image(p).extension("torch-scatter", symbols=["_ZN3c1011SymInt3fooEv"]),
        "torch-symbol-missing",
        "c10",
    ),
    "ops-of-other-torch": (
        lambda p: deepspeed(venv(p), "2.8", "6.4"),
        "built-for-other-torch",
        "built against torch 2.8",
    ),
    "ops-of-other-rocm": (lambda p: deepspeed(image(p), "2.9", "6.2"), "built-for-other-torch", "ROCm 6.2"),
    "op-without-object": (
        lambda p: deepspeed(venv(p), "2.9", "6.4", compiled=False),
        "op-without-object",
        "cpu_adam",
    ),
    "bundled": (
        lambda p: venv(p).extension("apex", more={"apex.libs/libamdhip64-1a2b3c4d.so.6": shared_object()}),
        "bundled-twice",
        "second copy",
    ),
    # another Python or machine
    "python-3.10": (
        lambda p: venv(p).extension("apex", module=C_3_10),
        "other-python",
        "compiled for Python 3.10, and this Python is 3.12",
    ),
    "python-3.10-image": (
        lambda p: image(p).dist("lxml", "5.3", {f"lxml/{C_3_10}": shared_object()}),
        "other-python",
        "Python 3.10",
    ),
    "aarch64": (
        lambda p: venv(p).dist(
            "lxml", "5.3", {"lxml/a.so": shared_object()[:18] + b"\xb7\0" + shared_object()[20:]}
        ),
        "other-machine",
        "lxml",
    ),
    # files
    "gone": (
        lambda p: venv(p).dist("scipy", "1.14.1", gone=["scipy/_lib/a.so"]),
        "object-gone",
        "scipy/_lib/a.so",
    ),
    "cut-short": (
        lambda p: venv(p).dist("scipy", "1.14.1", {"scipy/a.so": shared_object()[:200]}),
        "not-elf",
        "scipy/a.so",
    ),
    "empty": (lambda p: image(p).dist("scipy", "1.14.1", {"scipy/a.so": b""}), "not-elf", "is empty"),
    "no-library": (
        lambda p: image(p).dist(
            "mpi4py", "4.0.1", {"mpi4py/MPI.abi3.so": shared_object(needed=["libmpi.so.12"])}
        ),
        "need-not-provided",
        "libmpi.so.12",
    ),
    "no-fabric": (
        lambda p: image(p).dist("nixl", "1.0", {"nixl/a.so": shared_object(needed=["libucp.so.0"])}),
        "need-not-provided",
        "libucp",
    ),
    "two-versions": (
        lambda p: venv(p).dist("numpy", "1.26.4").dist("numpy", "2.2.0"),
        "installed-twice",
        "numpy 1.26.4 and 2.2.0",
    ),
    "two-places": (lambda p: second_site(image(p)), "verify-twice", "numpy is installed more than once"),
    # requirements
    "not-installed": (
        lambda p: venv(p).dist("timm", "1.0", requires=["huggingface-hub"]),
        "verify-pip-check-others",
        "huggingface-hub, which is not",
    ),
    "other-version": (
        lambda p: image(p).dist("numpy", "2.2.0").dist("numba", "0.60.0", requires=["numpy<2.1"]),
        "verify-pip-check-others",
        "you have numpy 2.2.0",
    ),
    "torch-too-old": (
        lambda p: venv(p, "2.5.1+rocm6.2").dist("torchao", "0.9", requires=["torch>=2.6"]),
        "verify-pip-check-others",
        "torch>=2.6",
    ),
    "marker": (
        lambda p: conda(p).dist("rich", "13", requires=["typing-extensions; python_version < '3.13'"]),
        "verify-pip-check-others",
        "typing-extensions",
    ),
    # variables
    "library-path": (
        lambda p: image(p).rocm("6.0.3").sets(LD_LIBRARY_PATH="/opt/rocm-6.0.3/lib:$LD_LIBRARY_PATH"),
        "library-path",
        "of ROCm 6.0.3 can come before",
    ),
    "library-path-linked": (
        lambda p: linked_rocm(image(p), "6.0.3").sets(LD_LIBRARY_PATH="/opt/rocm/lib"),
        "library-path",
        "ROCm 6.0.3",
    ),
    # network
    "no-plugin": (lambda p: image(p, plugin=False), "rccl-plugin-missing", "no network plugin"),
    "plugin-of-fork": (
        lambda p: rccl_net(image(p, "2.9.1+rocm7.0"), 5),
        "verify-plugin-interface",
        "RCCL of ROCm 7.0 needs one of v6 to v10",
    ),
    "plugin-name": (
        lambda p: without(image(p, "2.11.0+rocm7.2"), "usr/lib/libnccl-net.so"),
        "verify-plugin-name",
        "opens libnccl-net.so, which was not found; /usr/lib/librccl-net.so was",
    ),
    "plugin-variable": (
        lambda p: image(p, "2.9.1+rocm7.0").sets(NCCL_NET_PLUGIN="/opt/other.so"),
        "verify-plugin-name",
        "opens /opt/other.so",
    ),
    "plugin-without-fabric": (
        lambda p: rccl_net(image(p, plugin=False), *range(6, 13)),
        "verify-plugin-libfabric",
        "needs libfabric.so.1",
    ),
    # facts
    "plugin-dma-buf": (
        lambda p: rccl_net(image(p, "2.9.1+rocm7.0"), *range(6, 12), version="1.19.2"),
        "known-bad",
        "OFI_NCCL_DISABLE_DMABUF=1",
    ),
    "plugin-hang": (
        lambda p: rccl_net(image(p), *range(6, 12), version="1.19.2"),
        "known-bad",
        "manual progress",
    ),
    "image-7.14": (lambda p: venv(p, "2.12.0+rocm7.14.0"), "known-bad", "hipErrorInvalidImage"),
    "pth-runs": (
        lambda p: beside(venv(p), "zz-proxy.pth", b"import os; os.environ['A'] = 'b'\n"),
        "runs-at-start",
        "zz-proxy.pth",
    ),
    "sitecustomize": (
        lambda p: beside(conda(p), "sitecustomize.py", b"import sys\n"),
        "runs-at-start",
        "sitecustomize.py",
    ),
    "altered": (lambda p: altered(image(p)), "differs-from-record", "tqdm/__init__.py"),
    "nan": (lambda p: venv(p, "2.6.0+rocm6.2.4"), "known-bad", "NaN"),
    "bitsandbytes": (
        lambda p: image(p).dist(
            "bitsandbytes",
            "0.49.2",
            {
                "bitsandbytes/libbitsandbytes_rocm63.so": shared_object(
                    needed=["libamdhip64.so.6"], fatbin=gpu_code("gfx90a")
                )
            },
        ),
        "computed-name-missing",
        "libbitsandbytes_rocm64.so",
    ),
    "half-of-the-results": (
        lambda p: image(p).dist(
            "bitsandbytes",
            "0.49.2",
            {
                "bitsandbytes/libbitsandbytes_rocm64.so": shared_object(
                    needed=["libamdhip64.so.6"], fatbin=gpu_code("gfx90a")
                )
            },
        ),
        "known-bad",
        "leaves half of each result unwritten",
    ),
}


def fat_bitsandbytes(tree: Tree) -> Tree:
    """Add bitsandbytes 0.50: of its libraries for each device and ROCm release, one is loaded."""
    libraries = {
        "cuda118": ("libcudart.so.11.0",), "xpu2026": ("libsycl.so.9", "libimf.so"), "cpu": ("libgomp.so.1",),
        "rocm64": ("libamdhip64.so.6",), "rocm70": ("libamdhip64.so.7",), "rocm72": ("libamdhip64.so.7",),
    }  # fmt: skip
    files = {
        f"bitsandbytes/libbitsandbytes_{name}.so": shared_object(
            needed=needed, fatbin=gpu_code("gfx90a") if name.startswith("rocm") else b""
        )
        for name, needed in libraries.items()
    }
    return tree.dist("bitsandbytes", "0.50.2", files)


SOUND: dict[str, Make] = {
    "venv": venv,
    "pth-of-distribution": lambda p: venv(p).dist(
        "setuptools", "75.1", {"distutils-precedence.pth": b"import os; x = 1\n"}
    ),
    "pth-with-path": lambda p: beside(venv(p), "extra.pth", b"/opt/site-packages\n"),
    "fat-bitsandbytes": lambda p: fat_bitsandbytes(image(p)),
    "fat-bitsandbytes-conda": lambda p: fat_bitsandbytes(conda(p)),
    "image": lambda p: image(p).rocm("6.4.4"),
    "conda": conda,
    "rccl-net": lambda p: rccl_net(image(p), *range(6, 13)),
    "python-3.11": lambda p: Tree(p, python="3.11").torch().dist("numpy", "2.2.0"),
    "extension": lambda p: venv(p).extension("apex", "1.9.0"),
    "many-gfx": lambda p: image(p).extension("flash-attn", gfx=["gfx90a", "gfx942", "gfx1100"]),
    "xnack-off": lambda p: image(p).extension("apex", gfx=["gfx90a:xnack-", "gfx90a:xnack+"]),
    "rpath-of-same-rocm": lambda p: linked_rocm(image(p), "6.4.4").extension("apex", runpath="/opt/rocm/lib"),
    "library-path-of-same-rocm": lambda p: image(p).rocm("6.4.4").sets(LD_LIBRARY_PATH="/opt/rocm-6.4.4/lib"),
    "deepspeed": lambda p: deepspeed(image(p), "2.9", "6.4"),
    "alias-of-triton": lambda p: (
        venv(p)
        .dist("pytorch-triton-rocm", "3.5.1")
        .dist("triton", "3.5.1", {"triton/__init__.py": b""}, requires=["pytorch-triton-rocm"])
    ),
    "variants": lambda p: venv(p).dist(
        "fast",
        "1.0",
        {
            "fast/ops_cpu.cpython-312-x86_64-linux-gnu.so": shared_object(),
            "fast/ops_cuda.cpython-312-x86_64-linux-gnu.so": shared_object(needed=["libcudart.so.12"]),
        },
    ),
    "cuda-plugin": lambda p: venv(p).dist(
        "xgboost", "2.1", {"xgboost/lib/libxgboost.so": shared_object(cuda=b"x" * 64)}
    ),
    "abi3": lambda p: venv(p).dist("tokenizers", "0.20", {"tokenizers/tokenizers.abi3.so": shared_object()}),
    "many-pythons": lambda p: venv(p).dist(
        "grpcio",
        "1.0",
        {f"grpc/{C_3_10}": shared_object(), "grpc/_C.cpython-312-x86_64-linux-gnu.so": shared_object()},
    ),
    "bundled-libraries": lambda p: venv(p).dist(
        "numpy",
        "2.2.0",
        {
            "numpy/a.cpython-312-x86_64-linux-gnu.so": shared_object(
                needed=["libopenblas-1a2b3c4d.so"], runpath="$ORIGIN/../numpy.libs"
            ),
            "numpy.libs/libopenblas-1a2b3c4d.so": shared_object(soname="libopenblas-1a2b3c4d.so"),
        },
    ),
    "extras-and-markers": lambda p: venv(p).dist(
        "rich", "13", requires=["jupyter; extra == 'jupyter'", "colorama; sys_platform == 'win32'"]
    ),
    "mpi": lambda p: mpi4py(image(p)),
    "no-torch": lambda p: Tree(p).dist("numpy", "2.2.0"),
    "metadata-only": lambda p: Tree(p).dist("torch", "2.9.1+rocm6.4").dist("numpy", "2.2.0"),
    "libstdcxx-of-image": lambda p: image(p, glibcxx="3.4.33").extension(
        "apex", versions={"libstdc++.so.6": ["GLIBCXX_3.4.32"]}
    ),
    "rccl-replaced": lambda p: (
        image(p).rocm("6.4.4").sets(PYTHONNOUSERSITE="1", LD_LIBRARY_PATH="/opt/rocm-6.4.4/lib")
    ),
}


@pytest.fixture(scope="module")
def side() -> Side:
    return Side(
        load(), Request(Target(site="lumi-g", date=date(2026, 11, 20), backend="rocm", gfx=("gfx90a",)))
    )


def test_documentation_lists_every_finding() -> None:
    source = Path(checks.__file__)
    others = ("matrix/judging/judge.py", "matrix/judging/nearest.py")
    texts = [source.read_text(), *((source.parents[2] / name).read_text() for name in others)]
    given = set(re.findall(r'Finding\(\s*"([a-z-]+)"', "".join(texts)))
    pages = source.parents[2] / "docs/reference"
    known = set(re.findall(r"(?m)^\| `([a-z-]+)` \|", (pages / "inspecting.md").read_text()))
    of_verify = set(re.findall(r"(?m)^\| `(verify-[a-z-]+)` \|", (pages / "verifying.md").read_text()))
    assert given - of_verify - ({*RULES} - known) == known  # a rule of files is in checking.md


def test_environment_over_another_has_the_packages_of_both(tmp_path: Path) -> None:
    """A virtual environment with a .pth file, as `matrix env --for apptainer` makes it."""
    tree = image(tmp_path / "env").dist("numpy", "2.2.0")
    site = "opt/matrix/lib/python3.12/site-packages"
    tree.file(f"{site}/base_image.pth", f"import site; site.addsitedir('/{tree.site}')".encode())
    tree.dist("apex", "1.9.0", site=site).dist("numpy", "2.1.0", site=site)
    found = read_installed(tree.root)
    assert found.sites == [f"/{site}", f"/{tree.site}"]
    assert found.versions == {"torch": "2.9.1+rocm6.4", "apex": "1.9.0", "numpy": "2.1.0"}
    tree.dist("setuptools", "70.0", site="usr/lib/python3/dist-packages")
    (tree.root / site / "base_image.pth").unlink()
    found = read_installed(tree.root)
    assert found.sites == [f"/{tree.site}"]


def test_copies_inside_a_distribution_are_not_installed(tmp_path: Path) -> None:
    """Setuptools has distributions of others in a directory of its own."""
    tree = image(tmp_path / "env").dist("setuptools", "80.0")
    tree.dist("zipp", "3.23.0", site=f"{tree.site}/setuptools/_vendor")
    found = read_installed(tree.root)
    assert {"setuptools"} <= {*found.versions}
    assert "zipp" not in found.versions


def test_rocm_of_an_image_is_the_one_that_it_states(tmp_path: Path) -> None:
    """Debian's library has another number, and that of torch's wheel has only two parts."""
    tree = image(tmp_path / "env")
    tree.file("opt/rocm-7.2.4/.info/version", b"7.2.4-93\n")
    assert read_installed(tree.root).platform["rocm"] == "7.2.4"


VERDEF = 0x6FFFFFFD
Changes = Callable[[int, int], dict[int, bytes]]


@pytest.mark.parametrize(
    "change",
    [
        lambda header, _: {header + 44: b"\xff" * 4},  # sh_info
        lambda header, start: {header + 44: b"\xff" * 4, start + 16: bytes(4)},  # and vd_next
        lambda _, start: {start + 6: b"\xff" * 2, start + 12: b"\xff" * 4},  # vd_cnt, vd_aux
        lambda header, _: {header + 24: b"\xff" * 8},  # sh_offset
        lambda header, _: {header + 40: b"\xff" * 4},  # sh_link
        lambda *_: {0: b"no library"},
    ],
)
def test_damaged_libc_is_a_finding(change: Changes, tmp_path: Path, side: Side) -> None:
    """The table of the versions that it defines; the arguments are where its header and its content are."""
    tree = image(tmp_path / "env")
    path = tree.root / "usr/lib/x86_64-linux-gnu/libc.so.6"
    data = bytearray(path.read_bytes())
    table, size, count = struct.unpack_from("<Q10xHH", data, 40)
    headers = range(table, table + size * count, size)
    (header,) = (at for at in headers if struct.unpack_from("<I", data, at + 4)[0] == VERDEF)
    for at, new in change(header, struct.unpack_from("<Q", data, header + 24)[0]).items():
        data[at : at + len(new)] = new
    for content in (data, data[:100], b""):
        path.write_bytes(content)
        start = time.process_time()
        found = [finding.id for finding in judged(tree, side) if "libc.so.6" in finding.message]
        assert found == ["not-elf"]
        assert time.process_time() - start < 10


def test_image_without_packages_is_compared_with_a_lock(tmp_path: Path, side: Side) -> None:
    """No Python of it can have another version than the lock's."""
    tree = image(tmp_path / "env")
    shutil.rmtree(tree.root / tree.site)
    lock = resolve(side.catalog, Request(side.request.target, (parse_requirement("torch"),)))
    assert isinstance(lock, Resolution)
    found = findings_of(read_installed(tree.root), side, lock, {})
    ids = {finding.id for finding in found}
    assert "verify-pin-missing" in ids
    assert "verify-python" not in ids


@pytest.mark.parametrize(("files", "rows"), [(1, 600_000), (5, 490_000)])
def test_more_rows_of_record_than_in_real_environments_are_rejected(
    files: int, rows: int, tmp_path: Path
) -> None:
    tree = image(tmp_path / "env")
    for number in range(files):
        tree.file(f"{tree.site}/a{number}-1.0.dist-info/RECORD", b"a,,\n" * rows)
    with pytest.raises(UsageError, match="more metadata than any real environment"):
        read_installed(tree.root)


@pytest.mark.parametrize("chain", ["each", "loop", "same"])
def test_many_links_to_hip_take_little_time(chain: str, tmp_path: Path) -> None:
    """Each is a link to the next, or all are one loop or lead to one file."""
    tree = image(tmp_path / "env")
    folder = tree.root / "opt/hip"
    folder.mkdir(parents=True)
    count = 2_000
    for number in range(count):
        to = {"each": number + 1, "loop": (number + 1) % 30, "same": count}[chain]
        (folder / f"libamdhip64.so.{number}").symlink_to(f"libamdhip64.so.{to}")
    tree.file(f"opt/hip/libamdhip64.so.{count}", shared_object())
    found = read_installed(tree.root)
    start = time.process_time()
    copies = [copy.folder for copy in found.rocm if copy.folder == "/opt/hip"]
    assert copies == (["/opt/hip"] if chain != "loop" else copies)
    assert time.process_time() - start < 0.12


@pytest.mark.parametrize("line", ["/" * 1_000_000, "A=" + " " * 1_000_000 + '"x', "\n" * 1_000_000])
def test_texts_of_an_image_are_searched_in_linear_time(line: str, tmp_path: Path) -> None:
    tree = image(tmp_path / "env")
    tree.file(f"{tree.site}/long.pth", line.encode())
    tree.file(".singularity.d/env/10.sh", line.encode())
    found = read_installed(tree.root)
    start = time.process_time()
    assert found.sites == [f"/{tree.site}"]
    assert not found.variables
    assert time.process_time() - start < 5


def judged(tree: Tree, side: Side, user: dict[str, str] | None = None) -> list[Finding]:
    return findings_of(read_installed(tree.root), side, None, user or {})


def test_network_plugin_that_rccl_opens_is_named(tmp_path: Path, side: Side) -> None:
    """Beside torch's librccl comes before the system; a directory that nothing searches is not claimed."""
    tree = image(tmp_path / "env")
    lib = f"/{tree.site}/torch/lib"

    def named() -> dict[str, str]:
        return {finding.id: finding.message for finding in judged(tree, side)}

    assert named()["verify-library"] == f"librccl loads from {lib}/librccl.so"
    interfaces = "v6, v7, v8, v9, v10, v11, v12"
    loads = f"({interfaces}), which loads /usr/lib/libfabric.so.1"
    assert named()["verify-plugin"] == f"RCCL opens the network plugin /usr/lib/librccl-net.so {loads}"
    rccl_net(tree, *range(6, 13))
    assert named()["verify-plugin"] == f"RCCL opens the network plugin {lib}/librccl-net.so {loads}"
    (tree.root / lib[1:] / "librccl-net.so").unlink()
    (tree.root / "usr/lib/librccl-net.so").unlink()
    tree.file("opt/plugin/librccl-net.so", network_plugin(6))
    path = "/opt/plugin/librccl-net.so"
    unsure = f"RCCL opens the network plugin {path} (v6), which loads /usr/lib/libfabric.so.1, if it searches"
    assert named()["verify-plugin"] == f"{unsure} that directory"
    tree.sets(LD_LIBRARY_PATH="/opt/plugin")
    assert (
        named()["verify-plugin"]
        == f"RCCL opens the network plugin {path} (v6), which loads /usr/lib/libfabric.so.1"
    )


@pytest.mark.parametrize("newest", ["1.6", "1.8"])
def test_symbol_versions_of_the_libfabric_that_the_plugin_gets(
    newest: str, tmp_path: Path, side: Side, compile_object: Callable[..., Path]
) -> None:
    def fabric(version: str) -> Path:
        script = tmp_path / version
        script.write_text(f"FABRIC_{version} {{ fi_getinfo; }};\n")
        flags = ("-Wl,-soname,libfabric.so.1", f"-Wl,--version-script={script}")
        return compile_object("libfabric.so.1", "int fi_getinfo;", *flags)

    tree = image(tmp_path / "env")
    source = "extern int fi_getinfo; int *used = &fi_getinfo; int ncclNetPlugin_v8 = 1;"
    plugin = compile_object("plugin.so", source, str(fabric("1.8"))).read_bytes()
    for name in ("librccl-net.so", "libnccl-net.so"):
        tree.file(f"usr/lib/{name}", plugin)
    tree.file("usr/lib/libfabric.so.1", fabric(newest).read_bytes())
    found = [finding.message for finding in judged(tree, side) if finding.id == "verify-plugin-libfabric"]
    refused = "needs FABRIC_1.8; /usr/lib/libfabric.so.1 has at most FABRIC_1.6."
    assert [message.endswith(refused) for message in found] == [True] * (newest == "1.6")


@pytest.mark.parametrize(
    ("needed", "says"),
    [
        (("libmpi.so.12",), ["libmpi.so.12, the ABI of MPICH: Cray MPICH has the same"]),
        (("libmpich.so.12",), ["libmpich.so.12, the ABI of MPICH under Debian's file name"]),
        (("libmpi.so.40", "libc.so.6"), ["libmpi.so.40, the ABI of Open MPI: Cray MPICH cannot"]),
        (("libc.so.6",), []),
    ],
)
def test_mpi_of_mpi4py_is_named_with_what_can_replace_it(
    needed: tuple[str, ...], says: list[str], tmp_path: Path, side: Side
) -> None:
    tree = image(tmp_path / "env").dist(
        "mpi4py", "4.0.1", {"mpi4py/MPI.abi3.so": shared_object(needed=[*needed])}
    )
    found = [finding.message for finding in judged(tree, side) if finding.id == "mpi-linked"]
    assert [text in message for text, message in zip(says, found, strict=True)] == [True] * len(says)


def test_there_are_enough() -> None:
    assert len(BROKEN) >= 60
    assert len({name for _, name, _ in BROKEN.values()}) >= 15
    assert len(SOUND) >= 20


@pytest.mark.parametrize("name", BROKEN)
def test_broken_environment_is_named(name: str, tmp_path: Path, side: Side) -> None:
    make, kind, words = BROKEN[name]
    findings = judged(make(tmp_path / "env"), side)
    named = [finding for finding in findings if finding.id == kind and finding.severity != "info"]
    assert any(words in finding.message for finding in named), findings


def test_problem_of_nearly_every_torch_is_no_alarm(tmp_path: Path, side: Side) -> None:
    found = [each for each in judged(venv(tmp_path / "env"), side) if each.id == "known-bad"]
    assert [(each.severity, "fp16" in each.message) for each in found] == [("info", True)]


@pytest.mark.parametrize("name", SOUND)
def test_sound_environment_causes_no_alarm(name: str, tmp_path: Path, side: Side) -> None:
    findings = judged(SOUND[name](tmp_path / "env"), side)
    assert [finding for finding in findings if finding.severity != "info"] == []
