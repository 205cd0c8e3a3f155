"""Check this machine. A missing tool is a warning that names the consequence; no finding is an error."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from builders.containers.runtime import can_mount, without_network
from builders.environments.python import is_reachable
from builders.findings import Finding
from builders.machine import cluster, host
from builders.machine.process import output_of
from builders.network.urls import without_password
from builders.storage.files import cache_root
from resolver.errors import UsageError
from resolver.facts.catalog import Catalog
from resolver.facts.driver import identify_driver
from resolver.versions import join_words, newest_first

_GIB = 2**30
_SPACE = 20
"""GiB that the cache needs for two unpacked ROCm wheels of torch, and a source tree with its objects."""
_MEMORY = 4
"""GiB that one compile job of a heavy package takes."""
_ENGINES = ("apptainer", "singularity", "podman")
_VERSION = re.compile(r"\d+(\.\d+)+\S*")
_TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
"""One directory for each CPU and GPU node of the kernel's driver; reading it does not require ROCm.
Source: the kernel's ``drivers/gpu/drm/amd/amdkfd/kfd_topology.c``."""


def check_machine(catalog: Catalog, index: Path, servers: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings about everything that builds and jobs need; `servers` has URLs by kind of files."""
    yield check_driver(host.driver_version(), catalog)
    yield check_gpus()
    yield check_cores_and_memory()
    yield check_engines()
    yield check_namespaces()
    yield check_slurm()
    yield check_disk("disk-cache", cache_root())
    yield check_disk("disk-index", index.absolute())
    yield check_pythons(catalog)
    yield check_compiler()
    for what, url in servers.items():
        yield check_network(what, url)


def check_driver(reported: str, catalog: Catalog) -> Finding:
    """Check which ROCm releases a kernel driver supports. `reported` is empty if there is no driver."""
    if not reported:
        message = "No AMD kernel driver reports its version. Wheels can be built, but nothing runs on a GPU."
        fix = "On a login node, ignore this: the catalog has the site's driver. Elsewhere, use --driver."
        return Finding("kernel-driver", "warning", message, fix)
    try:
        line = identify_driver(reported, catalog)
    except UsageError as error:
        message = f"Driver {reported}: {error.message} The ROCm releases that it supports are unknown."
        fix = f"Name the driver with --driver. {error.hint}".strip()
        return Finding("kernel-driver", "warning", message, fix, {"reported": reported})
    supported = newest_first(catalog.driver[line].supports)
    message = f"driver {line}, which supports ROCm {join_words(supported, most=12, joiner='and')}"
    evidence = {"reported": reported, "line": line, "supports": supported}
    return Finding("kernel-driver", "info", message, evidence=evidence)


def check_gpus() -> Finding:
    """Check which AMD GPUs this machine has."""
    gpus = count_gpus()
    if not gpus:
        message = (
            "No AMD GPU was found. Wheels can be built; checks that need a GPU are reported as not judged."
        )
        return Finding("gpus", "warning", message)
    listed = ", ".join(f"{number} x {architecture}" for architecture, number in sorted(gpus.items()))
    return Finding("gpus", "info", listed, evidence=dict(gpus))


def count_gpus() -> Counter[str]:
    """Return the number of AMD GPUs of each architecture."""
    gpus: Counter[str] = Counter()
    for path in sorted(_TOPOLOGY.glob("*/properties")):
        try:
            words = [line.split() for line in path.read_text().splitlines()]
        except OSError:
            continue  # a node that this user may not use
        values = {pair[0]: pair[1] for pair in words if len(pair) == 2}  # noqa: PLR2004
        number = values.get("gfx_target_version", "")
        if number.isdecimal() and int(number):  # 0 for a CPU
            gpus[architecture_of(int(number))] += 1
    return gpus


def architecture_of(number: int) -> str:
    """Return the GPU architecture of the kernel's ``gfx_target_version``: major * 10000 + minor * 100 + step.

    Examples
    --------
    >>> architecture_of(90010), architecture_of(90402), architecture_of(110000)
    ('gfx90a', 'gfx942', 'gfx1100')
    """
    major, rest = divmod(number, 10000)
    minor, step = divmod(rest, 100)
    return f"gfx{major}{minor:x}{step:x}"


def check_cores_and_memory() -> Finding:
    """Check how many cores and how much memory builds may use."""
    cores, memory = cluster.cores(), cluster.memory_gib()
    evidence = {"cores": cores, "memory-gib": round(memory, 1)}
    message = f"{cores} cores and {memory:.0f} GiB of memory"
    if memory < _MEMORY:
        message += f". One compile job of the heavier packages takes {_MEMORY} GiB and may be killed."
        fix = "Build on a machine with more memory, or request more for the job."
        return Finding("cores-memory", "warning", message, fix, evidence)
    return Finding("cores-memory", "info", message, evidence=evidence)


def check_engines() -> Finding:
    """Check which container engines are on PATH."""
    versions = {}
    for name in _ENGINES:
        path = shutil.which(name)
        if path:
            match = _VERSION.search(output_of([path, "--version"]))
            versions[name] = match[0] if match else ""
    if not versions:
        message = (
            "Neither apptainer, singularity nor podman is on PATH. Wheels for ROCm cannot be built: "
            "their compiler is in the base image."
        )
        fix = "Load the site's module (`module avail apptainer`), or install apptainer."
        return Finding("container-runtimes", "warning", message, fix)
    listed = ", ".join(f"{name} {version}".strip() for name, version in versions.items())
    return Finding("container-runtimes", "info", listed, evidence=versions)


def check_namespaces() -> Finding:
    """Check whether builds can be cut off from the network."""
    network, mounts = bool(without_network()), can_mount()
    evidence = {"network": network, "mounts": mounts}
    if network and mounts:
        message = "user namespaces work: builds are cut off from the network"
        return Finding("user-namespaces", "info", message, evidence=evidence)
    message = (
        "User namespaces do not work. A build on the host can use the network and may download a finished "
        "wheel instead of building it. Apptainer runs images only if it is installed setuid."
    )
    fix = (
        "Ask the site to set the sysctl user.max_user_namespaces above 0 (Ubuntu 24.04: also "
        "kernel.apparmor_restrict_unprivileged_userns=0), or build in a container."
    )
    return Finding("user-namespaces", "warning", message, fix, evidence)


def check_slurm() -> Finding:
    """Check whether jobs can be submitted."""
    match = _VERSION.search(output_of(["sbatch", "--version"]))
    if match is None:
        reason = "`sbatch --version` fails" if shutil.which("sbatch") else "sbatch is not on PATH"
        return Finding("slurm", "warning", f"{reason}. Builds run on this machine, not as Slurm jobs.")
    names = output_of(["sinfo", "--noheader", "--format", "%R"]).split()
    evidence = {"version": match[0], "partitions": names}
    if not names:
        return Finding(
            "slurm", "warning", f"Slurm {match[0]}. Its controller does not respond.", "", evidence
        )
    message = f"Slurm {match[0]}, partitions {join_words(names, most=8, joiner='and')}"
    return Finding("slurm", "info", message, evidence=evidence)


def check_disk(id_: str, path: Path) -> Finding:
    """Check how much space a directory has; it need not exist yet."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    usage, counts = shutil.disk_usage(existing), os.statvfs(existing)
    free = usage.free / _GIB
    evidence = {"path": str(path), "free-gib": round(free, 1), "free-files": counts.f_favail}
    message = f"{free:.0f} GiB free for {path}"
    fix = (
        "Use another directory: --index DIR."
        if id_ == "disk-index"
        else "Set XDG_CACHE_HOME to a directory with more space, such as the project's."
    )
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(id_, "warning", f"{existing} is not writable. No wheel can be built.", fix, evidence)
    if free < _SPACE:
        message += f". torch for ROCm and one build take up to {_SPACE} GiB."
        return Finding(id_, "warning", message, fix, evidence)
    if cluster.cluster_name() and path.is_relative_to(Path.home()):
        message += (
            ", which is in your home. On clusters it has a small quota, such as 20 GB and 100,000 files."
        )
        return Finding(id_, "warning", message, fix, evidence)
    return Finding(id_, "info", message, evidence=evidence)


def check_pythons(catalog: Catalog) -> Finding:
    """Check which Python versions of the catalog are on PATH, and whether they can build."""
    paths: dict[str, str] = {}
    missing = []
    for version in newest_first(catalog.python):
        path = shutil.which(f"python{version}")
        if path and output_of([path, "-c", "print(1)"]):  # a shim of pyenv may not run any Python
            paths[version] = path
            missing += host.missing_venv(Path(path))
    if not paths:
        message = (
            "PATH has no Python of the catalog under its versioned name, such as python3.12. Wheels are "
            "built for the Python of the base image, or for the Python that runs `matrix`."
        )
        return Finding("pythons", "warning", message)
    message = "; ".join(
        [f"Python {join_words(list(paths), most=8, joiner='and')}", *(tool.message for tool in missing)]
    )
    fix = "; ".join(dict.fromkeys(tool.fix for tool in missing))
    return Finding("pythons", "warning" if missing else "info", message, fix, dict(paths))


def check_compiler() -> Finding:
    """Check whether there is a C++ compiler."""
    identity = host.compiler_identity()
    if identity:
        return Finding("compiler", "info", identity)
    message = (
        "There is no C++ compiler on PATH. Wheels for the CPU backend can be built only in a base image, "
        "not on the host."
    )
    return Finding("compiler", "warning", message, host.fix_for("compiler"))


def check_network(what: str, url: str) -> Finding:
    """Check whether a server answers."""
    reachable, url = is_reachable(url), without_password(url)
    if reachable:
        return Finding(f"network-{what}", "info", f"{url} responds", evidence={"url": url})
    message = f"{url} does not respond. Files that are not in the cache cannot be downloaded from here."
    fix = (
        "Run `matrix farm fetch` with network access and the same XDG_CACHE_HOME, then build with "
        "--offline; or set a mirror in matrix.toml."
    )
    return Finding(f"network-{what}", "warning", message, fix, {"url": url})
