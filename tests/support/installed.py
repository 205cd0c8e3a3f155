"""Write environments and unpacked images: real metadata and RECORD, and small real ELF objects.

torch for ROCm and the packages with GPU code stand in for those that cannot be installed without gigabytes:
they have their names, metadata, libraries and code objects, and nothing that runs.
"""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.builders.bundles import HOST, PREFIX, code_object, padded, plain
from tests.support.elf import shared_object

LABEL = "2.9.1+rocm6.4"
HIP = {
    "6.4": "6.4.43482-0f2d60242",
    "6.0": "6.0.32830",
    "5.6": "5.6.31061",
    "7.2": "7.2.26015",
    "6.2": "6.2.41133",
}
SYMBOL = "_ZN3c106detail14torchCheckFailEPKcS2_jS2_"
"""A function that extensions of torch import."""


def gpu_code(*targets: str) -> bytes:
    """Return the content of a section with HIP code: an offload bundle for each of these architectures."""
    names = [target.split(":") for target in targets]
    objects = [
        (f"{PREFIX}{target}", code_object(name, xnack="".join(rest)))
        for target, (name, *rest) in zip(targets, names, strict=True)
    ]
    return padded(plain([HOST, *objects]))


@functools.cache
def library(name: str, versions: Sequence[str]) -> bytes:
    """Compile a library that defines symbol versions, as libc and libstdc++ do."""
    with tempfile.TemporaryDirectory() as folder:
        source, script, out = (Path(folder, each) for each in ("a.c", "a.map", name))
        source.write_text("".join(f"void f{number}(void) {{}}\n" for number in range(len(versions))))
        nodes = [f"{version} {{ global: f{number}; }};\n" for number, version in enumerate(versions)]
        script.write_text("".join(nodes))
        line: list[str | Path] = [
            "gcc",
            "-shared",
            "-nostdlib",
            f"-Wl,--version-script={script},-soname,{name}",
            "-o",
            out,
            source,
        ]
        subprocess.run(line, check=True)
        return out.read_bytes()


def network_plugin(*versions: int) -> bytes:
    """Return an object that exports what a network plugin of RCCL does; it stands in for aws-ofi-nccl."""
    exports = [f"ncclNetPlugin_v{version}" for version in versions]
    return shared_object(needed=["libfabric.so.1"], exports=exports)


class Tree:
    """An environment or unpacked image.

    Parameters
    ----------
    root
        A new directory.
    kind
        ``venv``, ``conda`` or ``image`` (with a virtual environment in /opt/venv).
    """

    def __init__(
        self,
        root: Path,
        kind: str = "venv",
        *,
        python: str = "3.12",
        glibc: str = "2.39",
        glibcxx: str = "3.4.33",
        plugin: bool = True,
    ) -> None:
        self.root, self.kind, self.python = root, kind, python
        self.prefix = "opt/venv" if kind == "image" else ""
        self.site = str(Path(self.prefix, "lib", f"python{python}", "site-packages"))
        (root / self.site).mkdir(parents=True)
        if kind == "conda":
            self.file("conda-meta/python-3.12.1-0.json", b"{}")
            self.runtime("lib/libstdc++.so.6", f"GLIBCXX_{glibcxx}")
        else:
            settings = b"home = /usr/bin\ninclude-system-site-packages = false\n"
            self.file(str(Path(self.prefix, "pyvenv.cfg")), settings)
        if kind == "image":
            self.file("etc/os-release", b"ID=ubuntu\n")
            self.runtime("usr/lib/x86_64-linux-gnu/libc.so.6", f"GLIBC_{glibc}")
            self.runtime("usr/lib/x86_64-linux-gnu/libstdc++.so.6", f"GLIBCXX_{glibcxx}", "CXXABI_1.3.13")
            if plugin:
                for name in ("librccl-net.so", "libnccl-net.so"):  # RCCL of ROCm 7.2 opens the second
                    self.file(f"usr/lib/{name}", network_plugin(*range(6, 13)))
                self.file("usr/lib/libfabric.so.1", shared_object())

    def file(self, path: str, data: bytes) -> None:
        """Write a file."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def runtime(self, path: str, *versions: str) -> None:
        """Write a library of the compiler or the C library that defines symbol versions."""
        self.file(path, library(Path(path).name, versions))

    def dist(
        self,
        name: str,
        version: str,
        files: Mapping[str, bytes] | None = None,
        *,
        requires: Sequence[str] = (),
        gone: Sequence[str] = (),
        site: str = "",
    ) -> Tree:
        """Write a distribution; the files in `gone` are only in its RECORD."""
        site = site or self.site
        module = name.replace("-", "_")
        files = {f"{module}/__init__.py": b"", **(files or {})}
        for path, data in files.items():
            self.file(f"{site}/{path}", data)
        info = f"{module}-{version}.dist-info"
        lines = [
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            *(f"Requires-Dist: {text}\n" for text in requires),
        ]
        self.file(f"{site}/{info}/METADATA", "".join(lines).encode())
        listed = [*files, *gone, f"{info}/METADATA", f"{info}/RECORD"]
        self.file(f"{site}/{info}/RECORD", "".join(f"{path},,\n" for path in listed).encode())
        return self

    def extension(
        self,
        name: str,
        version: str = "1.0",
        *,
        needed: Sequence[str] = ("libc10.so", "libamdhip64.so.6", "libc.so.6"),
        gfx: Sequence[str] = ("gfx90a",),
        module: str = "_C.cpython-312-x86_64-linux-gnu.so",
        runpath: str = "",
        versions: Mapping[str, Sequence[str]] | None = None,
        symbols: Sequence[str] = (SYMBOL,),
        requires: Sequence[str] = ("torch",),
        more: Mapping[str, bytes] | None = None,
    ) -> Tree:
        """Write a distribution with an extension module of torch."""
        code = gpu_code(*gfx) if gfx else b""
        data = shared_object(needed=needed, runpath=runpath, versions=versions, symbols=symbols, fatbin=code)
        path = f"{name.replace('-', '_')}/{module}"
        return self.dist(name, version, {path: data, **(more or {})}, requires=requires)

    def torch(
        self, version: str = LABEL, *, hip: str | None = None, cuda: str | None = None,
        gfx: Sequence[str] = ("gfx90a", "gfx942"), requires: Sequence[str] = (),
        exports: Sequence[str] = (SYMBOL,),
    ) -> Tree:  # fmt: skip
        """Write torch: for ROCm by default, as its label says."""
        label = version.partition("+")[2]
        if hip is None and label.startswith("rocm"):
            hip = HIP.get(label.removeprefix("rocm"), f"{label.removeprefix('rocm')}.1")
        values = f"__version__ = {version!r}\ncuda = {cuda!r}\nhip = {hip!r}\n"
        files = {
            "torch/version.py": values.encode(),
            "torch/lib/libc10.so": shared_object(soname="libc10.so", exports=exports),
            "torch/lib/libtorch_cpu.so": shared_object(needed=["libc10.so"], soname="libtorch_cpu.so"),
            f"torch/_C.cpython-{self.python.replace('.', '')}-x86_64-linux-gnu.so": shared_object(
                needed=["libtorch_cpu.so"], runpath="$ORIGIN/lib"
            ),
        }
        if hip:
            major = hip.partition(".")[0]
            files["torch/lib/libamdhip64.so"] = shared_object(soname=f"libamdhip64.so.{major}")
            files["torch/lib/librccl.so"] = shared_object(
                soname="librccl.so.1", needed=[f"libamdhip64.so.{major}"], runpath="$ORIGIN"
            )
            files["torch/lib/libtorch_hip.so"] = shared_object(
                needed=["libc10.so", f"libamdhip64.so.{major}", "librccl.so.1"], runpath="$ORIGIN",
                soname="libtorch_hip.so", fatbin=gpu_code(*gfx),
            )  # fmt: skip
        elif cuda:
            files["torch/lib/libtorch_cuda.so"] = shared_object(
                needed=["libc10.so", "libcudart.so.12"], cuda=b"x" * 64
            )
        return self.dist("torch", version, files, requires=requires)

    def rocm(self, version: str, *, folder: str = "") -> Tree:
        """Write a ROCm of an image."""
        folder = folder or f"opt/rocm-{version}"
        major = version.partition(".")[0]
        first, second, third = (*version.split("."), "0")[:3]
        full = f"libamdhip64.so.{major}.{second}.{first}{second:0>2}{third:0>2}"
        self.file(f"{folder}/.info/version", f"{version}-63\n".encode())
        self.file(f"{folder}/lib/{full}", shared_object(soname=f"libamdhip64.so.{major}"))
        for name in (f"libamdhip64.so.{major}", "libamdhip64.so"):
            (self.root / folder / "lib" / name).symlink_to(full)
        self.file(f"{folder}/lib/librccl.so.1", shared_object(soname="librccl.so.1"))
        return self

    def sets(self, **variables: str) -> Tree:
        """Let the image or conda environment set variables."""
        path = ".singularity.d/env/90-environment.sh" if self.kind == "image" else "etc/conda/activate.d/x.sh"
        self.file(path, "".join(f'export {name}="{value}"\n' for name, value in variables.items()).encode())
        return self
