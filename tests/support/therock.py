"""Stand-ins for ROCm's own pip packages, which have gigabytes and are on AMD's servers.

Names, versions, requirements, extras and the layout of the installed files are those of AMD's packages
(ROCm/TheRock@89553ce:build_tools/packaging/python/templates, docs/packaging/python_packaging.md). `rocm` is
an sdist whose setup chooses what it requires when it is built; its module ``rocm_sdk`` expands the archive of
``rocm-sdk-devel``, whose files are links to those of the other packages where these have the same file. What
the packages contain is up to the test.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from wheel.wheelfile import WheelFile

TAG = "py3-none-linux_x86_64"
_PYPROJECT = """\
[build-system]
requires = ["setuptools>=70.2.0"]
build-backend = "setuptools.build_meta"
"""
_SETUP = """\
import os
from setuptools import setup

version, known, default = {version!r}, {families!r}, {default!r}
family = os.environ.get("ROCM_SDK_TARGET_FAMILY", default)
if family not in known:
    raise ValueError(
        f"Requested ROCM_SDK_TARGET_FAMILY={{family}} is not available in the distribution "
        f"(available: {{', '.join(known)}})"
    )
extras = {{f"device-{{name}}": [f"rocm-sdk-device-{{name}}=={{version}}"] for name in known}}
extras["device-all"] = [one for name in known for one in extras[f"device-{{name}}"]]
extras["device"] = extras[f"device-{{family}}"]
extras |= {{name: [f"rocm-sdk-{{name}}=={{version}}"] for name in ("libraries", "devel")}}
setup(name="rocm", version=version, packages=["rocm_sdk"], package_dir={{"": "src"}}, extras_require=extras,
      install_requires=[f"rocm-sdk-core=={{version}}"])
"""
_MODULE = """\
import ctypes
import tarfile
from pathlib import Path


def devel_root():
    import rocm_sdk_devel

    folder = Path(rocm_sdk_devel.__file__).parent
    archive = folder / "_devel.tar"
    if archive.exists():
        with tarfile.open(archive) as tar:
            for member in tar:
                target = folder.parent / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                if member.issym() and (target.parent / member.linkname).is_file():
                    target.hardlink_to(target.parent / member.linkname)
                else:
                    tar.extract(member, folder.parent)
        archive.unlink()
    return folder.parent / "_rocm_sdk_devel"


def initialize_process(*, preload_shortnames=()):
    site = Path(__file__).parent.parent
    for name in preload_shortnames:
        (path,) = site.glob(f"_rocm_sdk_[cl]*/lib/lib{name}.so.[0-9]*")
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
"""
_PROGRAM = """\
import sys
from rocm_sdk import devel_root

root = devel_root()
if sys.argv[1] == "init":
    print(f"Devel contents expanded to '{root}'")
elif sys.argv[1] == "path":
    print({"--root": root, "--bin": root / "bin", "--cmake": root / "lib" / "cmake"}[sys.argv[2]])
"""


def write_packages(
    folder: Path,
    version: str,
    *,
    families: Sequence[str],
    default: str,
    content: Path | None = None,
) -> list[Path]:
    """Write the sdist ``rocm`` and the wheels that it requires; return their paths.

    Parameters
    ----------
    folder
        Where to write them.
    version
        The release of ROCm.
    families
        GPU architectures with a device package.
    default
        The one for which ``rocm`` is on a machine without a GPU.
    content
        Directory with the files of the packages: ``core``, ``libraries`` and ``devel``; None for nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = {name: _tree(content / name if content else None) for name in ("core", "libraries")}
    wheels = [
        _wheel(
            folder,
            f"rocm-sdk-{name}",
            version,
            {f"rocm_sdk_{name}/__init__.py": b"", f"_rocm_sdk_{name}/__init__.py": b"", **files},
        )
        for name, files in ((name, _below(f"_rocm_sdk_{name}", tree)) for name, tree in parts.items())
    ]
    devel = {"rocm_sdk_devel/__init__.py": b"", "rocm_sdk_devel/_devel.tar": _archive(content, parts)}
    wheels.append(_wheel(folder, "rocm-sdk-devel", version, devel))
    for family in families:
        code = {f"_rocm_sdk_libraries/.kpack/blas_{family}.kpack": b""}
        needs = [f"rocm-sdk-libraries=={version}"]
        wheels.append(_wheel(folder, f"rocm-sdk-device-{family}", version, code, needs))
    setup = _SETUP.format(version=version, families=[*families], default=default)
    members = {
        "pyproject.toml": _PYPROJECT,
        "setup.py": setup,
        "src/rocm_sdk/__init__.py": _MODULE,
        "src/rocm_sdk/__main__.py": _PROGRAM,
        "PKG-INFO": f"Metadata-Version: 2.1\nName: rocm\nVersion: {version}\n",
    }
    sdist = folder / f"rocm-{version}.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for member, text in members.items():
            entry = tarfile.TarInfo(f"rocm-{version}/{member}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return [*wheels, sdist]


def _tree(root: Path | None) -> dict[str, Path]:
    """Return the files below a directory, by relative path; links count as what they point to."""
    if root is None:
        return {}
    walked = (Path(place, name) for place, _, names in os.walk(root, followlinks=True) for name in names)
    return {path.relative_to(root).as_posix(): path for path in sorted(walked)}


def _below(package: str, files: dict[str, Path]) -> dict[str, Path | bytes]:
    return {f"{package}/{name}": path for name, path in files.items()}


def _archive(content: Path | None, parts: dict[str, dict[str, Path]]) -> bytes:
    """Return the archive of ``rocm-sdk-devel``: its own files, and links to those of the other packages.

    A file with the suffix ``.absent`` says that a file of another package is not in the archive.
    """
    own = _tree(content / "devel" if content else None)
    absent = {name.removesuffix(".absent") for name in own if name.endswith(".absent")}
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        entry = tarfile.TarInfo("_rocm_sdk_devel/__init__.py")
        archive.addfile(entry)
        for part, files in parts.items():
            for name in files.keys() - own.keys() - absent:
                entry = tarfile.TarInfo(f"_rocm_sdk_devel/{name}")
                entry.type = tarfile.SYMTYPE
                entry.linkname = "../" * (name.count("/") + 1) + f"_rocm_sdk_{part}/{name}"
                archive.addfile(entry)
        for name, path in own.items():
            if not name.endswith(".absent"):
                archive.add(path.resolve(), f"_rocm_sdk_devel/{name}")
    return sink.getvalue()


def _wheel(
    folder: Path, name: str, version: str, files: Mapping[str, Path | bytes], needs: Sequence[str] = ()
) -> Path:
    stem = f"{name.replace('-', '_')}-{version}"
    required = "".join(f"Requires-Dist: {text}\n" for text in needs)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}"
    files = {
        **files,
        f"{stem}.dist-info/METADATA": metadata.encode(),
        f"{stem}.dist-info/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode()
        ),
    }
    path = folder / f"{stem}-{TAG}.whl"
    with WheelFile(str(path), "w", compression=0) as sink:
        for member, data in files.items():
            if isinstance(data, Path):
                sink.write(str(data.resolve()), member)
            else:
                sink.writestr(member, data)
    path.chmod(0o644)
    return path
