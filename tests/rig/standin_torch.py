"""A STAND-IN for a ROCm torch, made from the CPU wheel; extensions compile against it.

The wheel has the metadata and version of a ROCm wheel, headers that torch's own hipify converted to HIP, and
HIP libraries with the right names. These libraries define the functions of torch's HIP part that the
extensions of the tests import; each function aborts when it is called. So the extensions link and load as
with the real torch. No code of the wheel runs on a GPU.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

HIP = "7.2.53211"
ROCM = "7.2.4"
_SOURCES = {"ATen": "aten/src/ATen", "c10": "c10", "torch": "torch"}
_CONFIG = """\
#pragma once
#define AT_CUDNN_ENABLED() 0
#define AT_ROCM_ENABLED() 1
#define AT_MAGMA_ENABLED() 0
#define NVCC_FLAGS_EXTRA ""
"""
_NO_GPU = """\
if not hasattr(torch._C, "_cuda_getDeviceCount"):  # stand-in: a machine without a GPU
    torch._C._cuda_getDeviceCount = lambda: 0
    torch._C._nccl_version = lambda: (2 << 32) | (27 << 16) | 7
    torch._C._nccl_version_suffix = lambda: b""


"""
_TRAPS = (
    "_ZN3c104cuda12device_countEv",
    "_ZN3c104cuda14ExchangeDeviceEa",
    "_ZN3c104cuda14current_deviceEv",
    "_ZN3c104cuda14MaybeSetDeviceEa",
    "_ZN3c104cuda18device_synchronizeEv",
    "_ZN3c104cuda17getStreamFromPoolEba",
    "_ZN3c104cuda17getStreamFromPoolEia",
    "_ZN3c104cuda20getCurrentCUDAStreamEa",
    "_ZN3c104cuda20getDefaultCUDAStreamEa",
    "_ZN3c104cuda20setCurrentCUDAStreamENS0_10CUDAStreamE",
    "_ZN3c104cuda21warn_or_error_on_syncEv",
    "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb",
    "_ZN3c104cuda9GetDeviceEPa",
    "_ZN3c104cuda9SetDeviceEab",
    "_ZNK3c104cuda10CUDAStream11synchronizeEv",
    "_ZNK3c104cuda10CUDAStream5queryEv",
    "_ZNK3c104cuda10CUDAStream6streamEv",
)
_DATA = ["_ZN3c104cuda20CUDACachingAllocator9allocatorE"]
"""Symbols of libc10_hip that DeepSpeed's fused_adam and dc import, functions and data."""
_MATHS = (
    "_ZN2at4cuda26getCurrentDevicePropertiesEv",
    "_ZN2at4cuda9warp_sizeEv",
    "_ZN2at6native17resize_bytes_cudaEPN3c1011StorageImplEm",
    "hipblasCreate",
    "hipblasDestroy",
    "hipblasGemmEx",
    "hipblasGemmStridedBatchedEx",
    "hipblasSetStream",
    "hiprandCreateGenerator",
    "hiprandSetPseudoRandomGeneratorSeed",
    "hipblasLtMatmul",
    "hipblasLtMatmulAlgoGetHeuristic",
    "hipblasLtMatmulDescCreate",
    "hipblasLtMatmulDescDestroy",
    "hipblasLtMatmulDescSetAttribute",
    "hipblasLtMatmulPreferenceCreate",
    "hipblasLtMatmulPreferenceSetAttribute",
    "hipblasLtMatrixLayoutCreate",
    "hipblasLtMatrixLayoutDestroy",
    "hipsparseCreate",
    "hipsparseCreateCoo",
    "hipsparseCreateDnMat",
    "hipsparseDestroyDnMat",
    "hipsparseDestroySpMat",
    "hipsparseGetErrorString",
    "hipsparseSpMM",
    "hipsparseSpMM_bufferSize",
    "rocblas_create_handle",
)
"""Symbols that Apex, DeepSpeed and bitsandbytes import from libtorch_hip and ROCm's maths libraries."""
_PRELOAD = """

# stand-in: a ROCm torch is linked against these, so that they are loaded when it is imported
import ctypes as _ctypes
from pathlib import Path as _Path

try:
    _ctypes.CDLL("libamdhip64.so.7", mode=_ctypes.RTLD_GLOBAL)  # torch contains its own; this is the image's
except OSError:
    pass
for _name in ("libc10_hip.so", "libtorch_hip.so"):
    _ctypes.CDLL(str(_Path(__file__).with_name("lib") / _name), mode=_ctypes.RTLD_GLOBAL)
"""
_HIPIFY = """\
import json, sys
sys.path.insert(0, sys.argv[1])
from hipify import hipify_python
hipify_python.hipify(project_directory=sys.argv[2], output_directory=sys.argv[2], show_progress=False,
    hip_clang_launch=True, includes=json.loads(sys.argv[3]), ignores=json.loads(sys.argv[4]))
"""


def make(cpu_wheel: Path, folder: Path) -> Path:
    """Write the stand-in wheel into a directory; return its path."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        tree = Path(name)
        with zipfile.ZipFile(cpu_wheel) as archive:
            archive.extractall(tree)
        _drop_tests(tree / "torch")
        version = _rename(tree)
        _hipify(tree)
        for library, source in (("c10_hip", _traps(_TRAPS, _DATA)), ("torch_hip", _traps(_MATHS))):
            file = tree / "torch" / "lib" / f"lib{library}.so"
            command = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{file.name}", "-o", str(file), "-x", "c"]
            subprocess.run([*command, "-"], check=True, input=source, text=True)
        with (tree / "torch" / "__init__.py").open("a") as module:
            module.write(_PRELOAD)
        wheel = folder / cpu_wheel.name.replace("+cpu", version[version.index("+") :])
        _pack(tree, tree / f"torch-{version}.dist-info", wheel)
    return wheel


def _traps(functions: Sequence[str], data: Sequence[str] = ()) -> str:
    """Return C source that defines the data, and functions that abort."""
    lines = [f'void *data{number} __asm__("{name}") = 0;' for number, name in enumerate(data)]
    for number, name in enumerate(functions):
        lines.append(f'void trap{number}(void) __asm__("{name}");')
        lines.append(f"void trap{number}(void) {{ __builtin_trap(); }}")
    return "\n".join(lines)


def _drop_tests(torch: Path) -> None:
    shutil.rmtree(torch / "test", ignore_errors=True)
    for program in (torch / "bin").glob("*test*"):
        if program.is_file():
            program.unlink()


def _rename(tree: Path) -> str:
    """Set the version of a ROCm wheel, and change torch to a HIP build on a machine without GPU."""
    module = tree / "torch" / "version.py"
    text = module.read_text()
    match = re.search(r"__version__ = '([^+]+)\+cpu'", text)
    assert match is not None, text
    version = f"{match[1]}+rocm{'.'.join(ROCM.split('.')[:2])}"
    text = text.replace(f"{match[1]}+cpu", version)
    text = text.replace("hip: Optional[str] = None", f"hip: Optional[str] = '{HIP}'")
    module.write_text(text.replace("rocm: Optional[str] = None", f"rocm: Optional[str] = '{ROCM}'"))
    info = (tree / f"torch-{match[1]}+cpu.dist-info").rename(tree / f"torch-{version}.dist-info")
    metadata = info / "METADATA"
    lines = metadata.read_text()
    metadata.write_text(lines.replace(f"Version: {match[1]}+cpu", f"Version: {version}", 1))
    cuda = tree / "torch" / "cuda" / "__init__.py"
    cuda.write_text(cuda.read_text().replace("def _is_compiled()", f"{_NO_GPU}def _is_compiled()", 1))
    return version


def _hipify(tree: Path) -> None:
    """Arrange the headers as in torch's sources, and hipify them like tools/amd_build."""
    include, source = tree / "torch" / "include", tree / "_source"
    for name, place in _SOURCES.items():
        shutil.copytree(include / name, source / place)
    aten = "aten/src/ATen"
    below = ["cuda", "native/cuda", "native/cudnn", "native/nested/cuda", "native/sparse/cuda"]
    below += ["native/quantized/cuda", "native/transformers/cuda"]
    includes = [f"{source}/{one}/*" for one in ("c10/cuda", *(f"{aten}/{one}" for one in below), "torch")]
    ignores = ["*/hip/*", f"{source}/{aten}/core/*"]
    command = [sys.executable, "-c", _HIPIFY, str(tree / "torch" / "utils"), str(source)]
    subprocess.run(
        [*command, json.dumps(includes), json.dumps(ignores)], check=True, stdout=subprocess.DEVNULL
    )
    for name, place in _SOURCES.items():
        shutil.copytree(source / place, include / name, dirs_exist_ok=True)
    shutil.rmtree(source)
    macros = include / "c10" / "hip" / "impl" / "hip_cmake_macros.h"
    macros.parent.mkdir(parents=True, exist_ok=True)
    macros.write_text("#pragma once\n#define C10_HIP_BUILD_SHARED_LIBS\n")
    (include / "ATen" / "hip" / "HIPConfig.h").write_text(_CONFIG)
    (include / "ATen" / "cuda" / "CUDAConfig.h").write_text(_CONFIG)


def _pack(tree: Path, info: Path, wheel: Path) -> None:
    """Pack the wheel with a new RECORD, quickly rather than small."""
    record, rows = info / "RECORD", []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for file in sorted(tree.rglob("*")):
            if not file.is_file() or file == record or "__pycache__" in file.parts:
                continue
            name, data = file.relative_to(tree).as_posix(), file.read_bytes()
            archive.write(file, name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}")
        archive.writestr(f"{info.name}/RECORD", "\n".join([*rows, f"{info.name}/RECORD,,", ""]))
