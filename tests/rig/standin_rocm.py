"""STAND-INS for AMD's pip packages of ROCm and for a torch that requires them, and an image without ROCm.

The content is Debian's ROCm from the rig's base image, divided as AMD divides it: the runtime with the
compiler, the libraries, and everything else for development, without some of the device libraries
(https://github.com/ROCm/TheRock/issues/5448). What is left is the image without ROCm; it keeps libLLVM, which
AMD's compiler contains.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Iterator
from copy import copy
from fnmatch import fnmatch
from pathlib import Path

from tests.rig.standin_torch import ROCM
from tests.support.therock import write_packages

VERSION = f"2.13.0+rocm{ROCM}"
_SYSTEM = "usr/lib/x86_64-linux-gnu"
_OF_RUNTIME = ("amdhip64", "amd_comgr", "hiprtc", "hiprtc-builtins", "hsa-runtime64", "rocm_smi64")
_PROGRAMS = ("hipcc", "hipconfig", "rocm_agent_enumerator", "rocminfo")
_LIBRARIES = ("amdhip64", "hip", "roc", "rccl", "MIOpen", "hsa-runtime64", "amd_comgr")
_TOOLS = ("clang*", "ld.lld", "lld", "llvm-*", "offload-arch")
_LACKING = ("oclc_correctly_rounded_sqrt_*.bc", "oclc_daz_opt_*.bc")
_PROGRAM = """\
#!/bin/sh
root=$(dirname "$(dirname "$(readlink -f "$0")")")
HIP_CLANG_PATH=$root/lib/llvm/bin exec "$root/bin/${0##*/}.bin" "$@"
"""
_PRELOAD = """

# stand-in: a ROCm torch loads the ROCm of its pip packages, and is linked against its own libraries
import ctypes as _ctypes
from pathlib import Path as _Path

import rocm_sdk as _rocm_sdk

_rocm_sdk.initialize_process(preload_shortnames=["hsa-runtime64", "amdhip64"])
for _name in ("libc10_hip.so", "libtorch_hip.so"):
    _ctypes.CDLL(str(_Path(__file__).with_name("lib") / _name), mode=_ctypes.RTLD_GLOBAL)
"""


def divide(root: Path, content: Path) -> None:
    """Move ROCm out of an unpacked base image, into the content of the packages."""
    core, devel = content / "core", content / "devel"
    rocm, system = root / "opt" / "rocm", root / _SYSTEM
    (llvm,) = root.glob("usr/lib/llvm-*")
    for name in _PROGRAMS:
        _copy(root / "usr" / "bin" / name, core / "bin" / name)
    for name in ("hipcc", "hipconfig"):  # Debian's look for clang in another directory
        own = (core / "bin" / name).rename(core / "bin" / f"{name}.bin")
        own.with_suffix("").write_text(_PROGRAM)
        own.with_suffix("").chmod(0o755)
    _divide_libraries(rocm, system, content)
    _divide_compiler(llvm, core, devel)
    _copy(root / "usr" / "share" / "hip" / "version", core / "share" / "hip" / "version")
    _copy(rocm / ".info" / "version", core / ".info" / "version")
    headers = [root / "usr" / "include" / path.name for path in rocm.glob("include/*")]
    for header in headers:
        part = core if header.name in {"hip", "hsa"} else devel
        for path in _files(header):
            _copy(path, part / "include" / path.relative_to(root / "usr" / "include"))
    for path in system.glob("cmake/*/**/*.cmake"):
        target = devel / "lib" / path.relative_to(system)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_relocated(path.read_text()))
    for path in (*_installed(root, system), *headers, llvm, rocm):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _divide_libraries(rocm: Path, system: Path, content: Path) -> None:
    """Copy each library under the name that programs need, and make the link for the linker.

    AMD's libraries look for one another beside themselves (https://github.com/ROCm/TheRock/issues/1011).
    """
    for link in rocm.glob("lib/lib*.so.[0-9]*"):
        short = link.name.removeprefix("lib").partition(".so")[0]
        if link.name.count(".") == 2:
            part = "core" if short in _OF_RUNTIME else "libraries"
            _copy(system / link.name, content / part / "lib" / link.name)
            target = content / "devel" / "lib" / f"lib{short}.so"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(f"../../{part}/lib/{link.name}")
    runtime = [str(path) for path in (content / "core" / "lib").glob("*.so.*")]
    subprocess.run(["patchelf", "--force-rpath", "--set-rpath", "$ORIGIN", *runtime], check=True)


def _divide_compiler(llvm: Path, core: Path, devel: Path) -> None:
    for path in llvm.glob("bin/*"):
        if any(fnmatch(path.name, tool) for tool in _TOOLS):
            _copy(path, core / "lib" / "llvm" / "bin" / path.name)
    headers = (one for folder in llvm.glob("lib/clang/*/include") for one in _files(folder))
    for path in (*headers, *llvm.glob("lib/clang/*/lib/linux/libclang_rt.builtins-x86_64.a")):
        _copy(path, core / "lib" / "llvm" / path.relative_to(llvm))
    for path in llvm.glob("lib/clang/*/amdgcn/bitcode/*.bc"):
        name = f"lib/llvm/amdgcn/bitcode/{path.name}"
        _copy(path, core / name)
        if any(fnmatch(path.name, lacking) for lacking in _LACKING):
            (devel / name).parent.mkdir(parents=True, exist_ok=True)
            (devel / f"{name}.absent").touch()


def _relocated(text: str) -> str:
    """Return a CMake file of Debian for AMD's layout: the libraries are in ``lib``, under one name each."""
    text = text.replace("/lib/x86_64-linux-gnu", "/lib")
    text = re.sub(r"(\$\{\w+\}/\.\./\.\./\.\.)/\.\.", r"\1", text)
    text = re.sub(r'get_filename_component\((\w+) "\$\{\1\}" PATH\)\n', "", text, count=1)
    return re.sub(r"(/lib\w[\w+-]*\.so\.\d+)[.\d]*", r"\1", text)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _installed(root: Path, system: Path) -> Iterator[Path]:
    yield from (root / "usr" / "bin" / name for name in _PROGRAMS)
    for pattern in _LIBRARIES:
        yield from system.glob(f"lib{pattern}*.so*")
    yield from system.glob("cmake/*")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def unpack(image: Path, root: Path) -> None:
    """Unpack the file system of a SIF."""
    listed = subprocess.run(
        ["apptainer", "sif", "list", str(image)], check=True, capture_output=True, text=True
    ).stdout
    (line,) = (line for line in listed.splitlines() if "Squashfs" in line)
    offset = line.split("|")[3].split("-")[0].strip()
    subprocess.run(["unsquashfs", "-q", "-n", "-o", offset, "-d", str(root), str(image)], check=True)


def make(torch: Path, content: Path, folder: Path) -> None:
    """Write the packages with some content, and a torch that requires them, into a directory."""
    write_packages(folder, ROCM, families=("gfx90a", "gfx942"), default="gfx942", content=content)
    version = torch.name.split("-")[1]
    info = f"torch-{version}.dist-info"
    with (
        zipfile.ZipFile(torch) as old,
        zipfile.ZipFile(folder / torch.name.replace(version, VERSION), "w") as new,
    ):
        for member in old.infolist():
            name = member.filename.replace(info, f"torch-{VERSION}.dist-info")
            if member.filename not in _changed(info):
                _copy_member(old, new, member, name)
                continue
            text = old.read(member).decode().replace(version, VERSION)
            if name.endswith("/METADATA"):
                head, blank, body = text.partition("\n\n")
                text = f"{head}\nRequires-Dist: rocm[libraries]=={ROCM}{blank}{body}"
            elif name == "torch/__init__.py":
                text = text.partition("\n\n# stand-in: a ROCm torch is linked")[0] + _PRELOAD
            new.writestr(name, text)


def _changed(info: str) -> tuple[str, ...]:
    return (f"{info}/METADATA", f"{info}/RECORD", "torch/__init__.py", "torch/version.py")


def _copy_member(old: zipfile.ZipFile, new: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> None:
    """Copy a member as it is compressed; `zipfile` has no function for it."""
    assert old.fp is not None
    assert new.fp is not None
    old.fp.seek(member.header_offset)
    header = old.fp.read(30)
    old.fp.seek(sum(struct.unpack("<HH", header[26:])), 1)
    copied = copy(member)
    copied.filename, copied.header_offset, copied.flag_bits = name, new.fp.tell(), member.flag_bits & ~8
    new.fp.write(copied.FileHeader())
    left = member.compress_size
    while left:
        left -= new.fp.write(old.fp.read(min(left, 1 << 20)))
    new.filelist.append(copied)
    new.NameToInfo[name] = copied
    new.start_dir = new.fp.tell()
