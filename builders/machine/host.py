"""The host's Python versions, compilers, cores and memory, and how to install missing tools."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builders.constants import NO_COMPILER_CACHE
from builders.findings import Finding
from builders.machine.cluster import text_of
from builders.machine.process import output_of, run
from resolver.errors import CommandError, EnvironmentLacksError, UsageError
from resolver.versions import join_words, sort_key

_LAUNCHERS = {"ccache", "sccache", "distcc"}

_SYSTEM = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")
_TOOL = (
    r"(?:\w+-)*(?:cc|CC|ftn|c\+\+|gcc|g\+\+|clang|clang\+\+|gfortran|flang|cpp|ld|lld)(?:[-.].*)?|ar|as|nm|ranlib|strip|objcopy"
    r"|g?make|cmake|ctest|ninja|meson|pkg-config|git|patch|patchelf|m4|bison|flex|swig|[ny]asm|rustc|cargo"
    r"|ccache|sccache|mpi(?:cc|c\+\+|cxx|CC|fort|f77|f90|run|exec)"
)
"""The programs on the caller's PATH that a build may use, besides those of the system."""
_NOT_FOR_BUILDS = (
    r"nvcc.*|nvidia-.*|cuda.*|nsys|ncu|hipcc.*|hipconfig.*|rocm.*|amdgpu-arch|offload-arch"
    r"|conda|(?:micro)?mamba|python[\d.]*|pip[\d.]*|pipx|uv"
)
"""Programs that make a build depend on the machine: GPU toolkits, and installations of Python."""

# The package of each missing tool, by family of Linux distributions.
_PACKAGES = {
    "compiler": {"debian": "g++", "suse": "gcc-c++", "fedora": "gcc-c++", "rhel": "gcc-c++"},
    "venv": {
        "debian": "python3-venv",
        "suse": "python3-base",
        "fedora": "python3",
        "rhel": "python3",
    },
}
_MPI_FIX = "load your site's MPI module, or install an MPI (Debian: `apt-get install libmpich-dev`)"
_INSTALLERS = {
    "debian": "apt-get install",
    "suse": "zypper install",
    "fedora": "dnf install",
    "rhel": "dnf install",
}


def running_python() -> str:
    """Return the minor version of the Python that runs this program, such as ``3.11``."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def own_program() -> list[str]:
    """Return the words that start this program again, also for jobs without the user's PATH."""
    started = Path(sys.argv[0])
    program = [str(started.resolve())] if started.suffix == ".pyz" else ["-m", "matrix"]
    return [sys.executable, *program]


def glibc_version() -> str:
    """Return the host's glibc version; empty if it has another C library."""
    name, version = platform.libc_ver()
    return version if name == "glibc" else ""


def driver_version() -> str:
    """Return the version that the AMD kernel driver reports, or an empty string.

    That of the dkms package, if it is installed, contains the driver's release. The module in mainline
    kernels has no version.
    """
    for command in (["dpkg-query", "-W", "-f", "${Version}", "amdgpu-dkms"], ["rpm", "-q", "amdgpu-dkms"]):
        version = output_of(command).strip()
        if version:
            return version
    return text_of(Path("/sys/module/amdgpu/version"))


def rocm_version() -> tuple[str, Path]:
    """Return the version of the ROCm of ``ROCM_PATH`` or ``/opt/rocm``, empty if none, and its file."""
    path = Path(os.environ.get("ROCM_PATH") or "/opt/rocm") / ".info/version"
    return text_of(path).partition("-")[0], path


def find_python(version: str) -> Path:
    """Return an interpreter of a minor version on this host."""
    if version == running_python():
        # In a virtual environment: the interpreter that it was created from.
        return Path(getattr(sys, "_base_executable", sys.executable))
    path = shutil.which(f"python{version}")
    if path:
        return Path(path)
    msg = f"Building for Python {version} requires python{version}, which is not on PATH."
    raise EnvironmentLacksError(msg, hint=f"Load or install it, or resolve for --python {running_python()}.")


def missing_python(filenames: Iterable[str]) -> str:
    """Return the Python that wheels need and this machine lacks; empty if one of the wheels is usable."""
    pythons = set()
    for name in filenames:
        try:
            tags = parse_wheel_filename(name)[3]
        except InvalidWheelFilename:
            return ""
        for tag in tags:
            match = re.fullmatch(r"cp(\d)(\d+)", tag.interpreter)
            if not match or tag.abi in {"abi3", "none"}:
                return ""
            pythons.add(f"{match[1]}.{match[2]}")
    usable = (python == running_python() or shutil.which(f"python{python}") for python in pythons)
    return "" if not pythons or any(usable) else min(pythons, key=sort_key)


def cuda_toolkits() -> list[Path]:
    """Return the usual directories and compilers of CUDA on this machine, where torch and CMake look."""
    places = ("/usr/local", "cuda*"), ("/opt", "cuda*"), ("/opt", "nvidia")
    return [
        path
        for parent, name in (*places, ("/usr/local/bin", "nvcc"), ("/usr/bin", "nvcc"))
        for path in sorted(Path(parent).glob(name))
    ]


@cache
def tools(path: tuple[str, ...]) -> dict[str, str]:
    """Return the paths of the programs that a build on this machine may use, by name.

    `path` has the directories of PATH. From those of the system, all programs count; from others, compilers
    and build tools. What shows the build another GPU toolkit or another Python is left out: torch
    and many build scripts compile for CUDA if they find ``nvcc``.
    """
    found: dict[str, str] = {}
    is_tool, is_not_wanted = re.compile(_TOOL).fullmatch, re.compile(_NOT_FOR_BUILDS).fullmatch
    folders = (folder.rstrip("/") for folder in [*filter(os.path.isabs, path), *_SYSTEM])
    for folder in dict.fromkeys(folders):
        is_system = folder in _SYSTEM
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                is_wanted = entry.name not in found and (is_system or is_tool(entry.name))
                if is_wanted and not is_not_wanted(entry.name) and not _is_launcher(entry):
                    found[entry.name] = entry.path
    return found


def _is_launcher(entry: os.DirEntry[str]) -> bool:
    """Return whether a program is a link to a compiler cache, which looks for the compiler on PATH."""
    real = Path(os.path.realpath(entry.path)).name if entry.is_symlink() else entry.name
    return real in _LAUNCHERS and entry.name not in _LAUNCHERS


def compiler() -> Path | None:
    """Return the C++ compiler: ``$CXX`` if it is set, else ``g++`` or ``c++`` on PATH."""
    cxx = os.environ.get("CXX", "").strip()
    if cxx:
        words = [word for word in cxx.split() if Path(word).name not in _LAUNCHERS]
        path = shutil.which(words[0]) if words else None
    else:
        path = shutil.which("g++") or shutil.which("c++")
    return Path(path) if path else None


_LOAD = """
type module >/dev/null 2>&1 || exit 0
missing=
for name; do module is-avail "$name" >/dev/null 2>&1 || missing="$missing $name"; done
exec 3>"$0"
printf '%s\\0\\0' "$missing" >&3
env -0 >&3
printf '\\0' >&3
[ -z "$missing" ] || exit 0
module load "$@" >&2 && env -0 >&3
"""
"""Loads modules; a login shell defines the command."""
_MODULES_HINT = "If the site has newer ones, write a [[site]] row with its build-modules (--catalog FILE)."
_REFERENCE = re.compile(r"\$\{(\w+)\}")


@cache
def load_modules(modules: tuple[str, ...], variables: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Load a site's modules into this process, and return the variables that builds need besides PATH.

    Empty on a machine that has none of the modules, which is not one of the site. Raise
    `EnvironmentLacksError` if a module is missing or cannot be loaded.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder, "environments")
        try:
            line = ["bash", "-lc", _LOAD, str(file), *modules]
            run(line, what="Loading the site's modules", log=Path(folder, "log"), env=dict(os.environ))
        except CommandError as error:
            reason = "; ".join(error.lines)
            msg = f"The modules that wheels are compiled with here cannot be loaded: {reason}"
            raise EnvironmentLacksError(msg, hint=_MODULES_HINT) from None
        text = file.read_text(errors="replace") if file.exists() else ""
    missing, *environments = text.split("\0\0")
    lacking = missing.split()
    if not environments or lacking == [*modules]:
        return {}
    if lacking:
        msg = f"Wheels are compiled with modules here, but there is no {join_words(lacking, joiner='and')}."
        raise EnvironmentLacksError(msg, hint=_MODULES_HINT)
    before, after = ({*text.split("\0")} for text in environments)
    lines = sorted(line for line in after - before if not line.startswith("BASH_"))
    changed = {name: value for name, _, value in (line.partition("=") for line in lines)}
    # A login shell often replaces PATH: only what the modules add is taken.
    usual = {folder for line in before if line.startswith("PATH=") for folder in line[5:].split(os.pathsep)}
    folders = [folder for folder in changed.pop("PATH", "").split(os.pathsep) if folder not in {*usual, ""}]
    os.environ["PATH"] = os.pathsep.join([*folders, os.environ["PATH"]])
    known = {**os.environ, **changed}
    named = {name: _REFERENCE.sub(lambda match: known.get(match[1], ""), value) for name, value in variables}
    if "CXX" in named and not os.environ.get("CXX"):  # the user's own comes first
        os.environ["CXX"] = named["CXX"]
    return changed | named


def find_compiler_cache(setting: str | None) -> Path | None:
    """Return the ccache of this machine; None if `setting` is ``none``, or it is not on PATH."""
    if setting == NO_COMPILER_CACHE:
        return None
    program = shutil.which(setting or "ccache")
    if program is None and setting:
        msg = f"The compiler cache {setting} is not an executable program."
        raise UsageError(msg, hint=f"Name the path of ccache, or use --compiler-cache {NO_COMPILER_CACHE}.")
    return Path(program).absolute() if program else None


def compiler_identity() -> str:
    """Return the first line of the compiler's ``--version``."""
    path = compiler()
    return output_of([str(path), "--version"]).partition("\n")[0] if path else ""


def mpi_identity() -> str:
    """Return the path and the compile command of ``mpicc``, or an empty string if it is not on PATH."""
    path = shutil.which("mpicc")
    return f"{Path(path).resolve()}: {output_of([path, '-show']).strip()}" if path else ""


def missing_tools(*, mpi: bool = False) -> list[Finding]:
    """Return the missing tools that a build needs on the host, besides its Python."""
    missing = []
    if compiler() is None:
        which = f" ($CXX is {os.environ['CXX']!r})" if os.environ.get("CXX") else " (g++)"
        missing.append(_missing(f"no C++ compiler{which} is on PATH", fix_for("compiler")))
    if mpi and not shutil.which("mpicc"):
        missing.append(_missing("no MPI compiler (mpicc) is on PATH", _MPI_FIX))
    return missing


def missing_venv(python: Path) -> list[Finding]:
    """Return the finding that a Python lacks the venv module with pip, if it does."""
    if output_of([str(python), "-c", "import venv, ensurepip; print(True)"]):
        return []
    return [_missing(f"{python} has no venv module with pip", fix_for("venv", python))]


def _missing(what: str, fix: str) -> Finding:
    return Finding("missing-tool", "error", what, fix)


def require_for_build(*, mpi: bool = False) -> None:
    """Check that the host has the tools that a build needs."""
    missing = missing_tools(mpi=mpi)
    if missing:
        listed = "".join(f"\n  - {tool.message}: {tool.fix}" for tool in missing)
        msg = f"Tools that the build needs are missing on this host. The build was not started.{listed}"
        raise EnvironmentLacksError(msg)


def fix_for(tool: str, python: Path | None = None) -> str:
    """Return the way to install a tool: ``compiler``, or ``venv`` of a Python."""
    family = _family()
    if python is not None and not str(python.resolve()).startswith("/usr/bin/"):
        return f"install it for {python}, which is not the distribution's own Python"
    if family in _INSTALLERS:
        return f"{_INSTALLERS[family]} {_PACKAGES[tool][family]}"
    return f"install your distribution's package of {_PACKAGES[tool]['debian']}"


def _family() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ""
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    names = ["suse" if name.startswith(("sles", "opensuse")) else name for name in names]
    return next((name for name in names if name in _INSTALLERS), "debian" if "ubuntu" in names else "")


def cpu_identity() -> str:
    """Return the machine type and a digest of the CPU's flags, for code compiled for exactly this CPU."""
    flags = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            flags = " ".join(sorted(line.partition(":")[2].split()))
            break
    return f"{platform.machine()}-{hashlib.sha256(flags.encode()).hexdigest()[:12]}"
