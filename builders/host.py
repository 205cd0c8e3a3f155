"""What the machine has: Pythons, compilers, cores, memory, and what to install where it lacks."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from builders.process import output_of
from resolver.errors import EnvironmentLacksError
from resolver.versions import minor

_GIB = 2**30
_LAUNCHERS = {"ccache", "sccache", "distcc"}

_PROBE = (
    "import importlib.util as u, pathlib, sysconfig;"
    "print(pathlib.Path(sysconfig.get_path('include'), 'Python.h').exists(),"
    "u.find_spec('venv') is not None and u.find_spec('ensurepip') is not None)"
)

# For each lack the package that cures it, by the distribution's own name for its family.
_PACKAGES = {
    "compiler": {"debian": "g++", "suse": "gcc-c++", "fedora": "gcc-c++", "rhel": "gcc-c++"},
    "headers": {
        "debian": "python3-dev",
        "suse": "python3-devel",
        "fedora": "python3-devel",
        "rhel": "python3-devel",
    },
    "venv": {
        "debian": "python3-venv",
        "suse": "python3-base",
        "fedora": "python3",
        "rhel": "python3",
    },
}
_INSTALLERS = {
    "debian": "apt-get install",
    "suse": "zypper install",
    "fedora": "dnf install",
    "rhel": "dnf install",
}


@dataclass(frozen=True, slots=True)
class MissingTool:
    """Something that a build on this machine needs and that is not there."""

    what: str
    cure: str

    def __str__(self) -> str:
        """One line for a person."""
        return f"{self.what}: {self.cure}"


def running_python() -> str:
    """Give the minor version of the Python that runs this program, such as ``3.11``."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def glibc_version() -> str:
    """Give this machine's glibc version, or an empty text where it has another C library."""
    name, version = platform.libc_ver()
    return version if name == "glibc" else ""


def driver_says(module: Path = Path("/sys/module/amdgpu/version")) -> str:
    """Give what this machine says of its AMD kernel driver, or an empty text.

    The dkms package, where it is installed, names the release; the kernel module only its own
    version, and one that comes with the kernel none at all.
    """
    for command in (["dpkg-query", "-W", "-f", "${Version}", "amdgpu-dkms"], ["rpm", "-q", "amdgpu-dkms"]):
        said = output_of(command).strip()
        if said:
            return said
    return module.read_text().strip() if module.exists() else ""


def find_python(version: str) -> Path:
    """Find an interpreter of a minor version on this machine.

    Raises
    ------
    EnvironmentLacksError
        There is none on PATH.
    """
    if version == running_python():
        # Inside a virtual environment: the interpreter that it was made from.
        return Path(getattr(sys, "_base_executable", sys.executable))
    found = shutil.which(f"python{version}")
    if found:
        return Path(found)
    msg = f"Python {version} is needed to build for it, and no python{version} is on PATH."
    raise EnvironmentLacksError(msg, hint=f"Load or install it, or resolve for --python {running_python()}.")


def compiler() -> Path | None:
    """Find the host C++ compiler: what ``$CXX`` names if it is set, else ``g++`` or ``c++`` on PATH."""
    named = os.environ.get("CXX", "").strip()
    if named:
        words = [word for word in named.split() if Path(word).name not in _LAUNCHERS]
        found = shutil.which(words[0]) if words else None
        return Path(found) if found else None
    found = shutil.which("g++") or shutil.which("c++")
    return Path(found) if found else None


def compiler_identity() -> str:
    """Give the first line of the compiler's ``--version``."""
    found = compiler()
    return output_of([str(found), "--version"]).partition("\n")[0] if found else ""


def missing_tools(python: Path, *, compile_cxx: bool = True) -> list[MissingTool]:
    """Name all that a build with this interpreter needs and the machine does not have."""
    found = []
    said = output_of([str(python), "-c", _PROBE]).split()[-2:]
    headers, venv = said[:1] == ["True"], said[1:] == ["True"]
    if compile_cxx and compiler() is None:
        named = f" of that name ($CXX is {os.environ['CXX']!r})" if os.environ.get("CXX") else " (g++)"
        found.append(MissingTool(f"no C++ compiler{named} is on PATH", cure("compiler")))
    if compile_cxx and not headers:
        found.append(
            MissingTool(f"the headers (Python.h) of {python} are not installed", cure("headers", python))
        )
    if not venv:
        found.append(MissingTool(f"{python} has no venv module with pip", cure("venv", python)))
    return found


def require_for_build(python: Path, *, compile_cxx: bool = True) -> None:
    """Stop before anything starts if the machine lacks something.

    Raises
    ------
    EnvironmentLacksError
        With every lack and the package that cures it.
    """
    missing = missing_tools(python, compile_cxx=compile_cxx)
    if missing:
        listed = "".join(f"\n  - {lack}" for lack in missing)
        msg = f"This machine lacks what the build needs; nothing was started.{listed}"
        raise EnvironmentLacksError(msg)


def cure(lack: str, python: Path | None = None) -> str:
    """Say how to get what is missing: ``compiler``, ``headers`` or ``venv``, the latter of a Python."""
    family = _family()
    if python is not None and not str(python.resolve()).startswith("/usr/bin/"):
        return f"install it for {python}, which is not the distribution's own Python"
    if family in _INSTALLERS:
        return f"{_INSTALLERS[family]} {_PACKAGES[lack][family]}"
    return f"install what your distribution calls {_PACKAGES[lack]['debian']}"


def _family() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ""
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    names = ["suse" if name.startswith(("sles", "opensuse")) else name for name in names]
    return next((name for name in names if name in _INSTALLERS), "debian" if "ubuntu" in names else "")


def cores() -> int:
    """Give the number of cores this process may use (Slurm and taskset limit it)."""
    return len(os.sched_getaffinity(0))


def memory_gib() -> float:
    """Give the memory that this process may still use, in GiB.

    The smaller of what the kernel calls available and what the control group allows.
    """
    limits = [_meminfo_available()]
    for path in _cgroup_limits():
        text = path.read_text().strip() if path.exists() else "max"
        if text.isdigit():
            limits.append(int(text))
    return min(limits) / _GIB


def _meminfo_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 4 * _GIB


def _cgroup_limits() -> list[Path]:
    """Give the files that hold this process's memory limit (control groups 2, then 1)."""
    root = Path("/sys/fs/cgroup")
    own = Path("/proc/self/cgroup")
    paths = [root / "memory" / "memory.limit_in_bytes"]
    for line in own.read_text().splitlines() if own.exists() else []:
        _, controllers, group = line.split(":", 2)
        base = root if not controllers else root / "memory"
        name = "memory.max" if not controllers else "memory.limit_in_bytes"
        if not controllers or "memory" in controllers.split(","):
            here = base / group.lstrip("/")
            paths += [one / name for one in (here, *here.parents) if one.is_relative_to(base)]
    return paths


def compile_jobs(memory_per_job: float, *, jobs: int | None = None, memory: float | None = None) -> int:
    """Say how many compile jobs fit.

    Parameters
    ----------
    memory_per_job
        Peak memory of one job in GiB.
    jobs, memory
        Limits in jobs and GiB that the user gave, else this machine's.
    """
    by_memory = int((memory or memory_gib()) // memory_per_job)
    return max(1, min(jobs or cores(), by_memory))


def cpu_identity() -> str:
    """Give a digest of the CPU's instruction set flags, for code compiled for this very CPU."""
    flags = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            flags = " ".join(sorted(line.partition(":")[2].split()))
            break
    return f"{platform.machine()}-{hashlib.sha256(flags.encode()).hexdigest()[:12]}"


def python_abi(version: str) -> str:
    """Give the CPython ABI tag of a minor version.

    Examples
    --------
    >>> python_abi("3.11")
    'cp311'
    """
    return f"cp{minor(version).replace('.', '')}"
