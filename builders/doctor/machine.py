"""Looking at this machine: hardware, container runtimes, Slurm, disk, network, Pythons, compiler."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from builders import host
from builders.cache import cache_root
from builders.containers.runtime import can_mount, without_network
from builders.doctor.gpus import gpus
from builders.doctor.points import Point
from builders.environments.pip import is_reachable
from builders.process import output_of
from resolver.driver import identify_driver
from resolver.errors import UsageError
from resolver.versions import join_words, newest_first

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resolver.facts.catalog import Catalog

_GIB = 2**30
_SPACE = 20
"""GiB that the cache should have: torch's ROCm wheel unpacked, twice, and a source tree that is built."""
_MEMORY = 4
"""GiB that one compile job of the heavier packages takes."""
_RUNTIMES = ("apptainer", "singularity", "podman")
_VERSION = re.compile(r"\d+(\.\d+)+\S*")


def look(catalog: Catalog, index: Path, servers: Mapping[str, str]) -> Iterator[Point]:
    """Look at everything, the quick things first.

    Parameters
    ----------
    index
        The wheel index that builds would publish to.
    servers
        What is fetched, such as ``sdists``, and the URL it is asked from, mirrors applied.
    """
    yield driver(host.driver_says(), catalog)
    yield _gpus()
    yield _power()
    yield runtimes()
    yield _namespaces()
    yield slurm()
    for topic, path in (("disk-cache", cache_root()), ("disk-index", index.absolute())):
        yield disk(topic, path)
    yield pythons(catalog)
    yield _compiler()
    for what, url in servers.items():
        yield network(what, url)


def driver(said: str, catalog: Catalog) -> Point:
    """Say which ROCm releases a kernel driver supports.

    Parameters
    ----------
    said
        What the machine says of its driver; empty without one.
    """
    if not said:
        return Point(
            topic="kernel-driver",
            state="lack",
            found="no AMD kernel driver says its version",
            means="Wheels can be built here, but nothing runs on a GPU. A site's driver is in the catalog.",
            cure="Nothing to do on a login node. Elsewhere name the driver with --driver.",
        )
    try:
        line = identify_driver(said, catalog)
    except UsageError as error:
        return Point(
            topic="kernel-driver",
            state="note",
            found=f"the driver says {said}: {error.message}",
            means="Which ROCm it supports is not known.",
            cure="Name the driver with --driver. " + error.hint,
            data={"said": said},
        )
    supported = newest_first(catalog.driver[line].supports)
    return Point(
        topic="kernel-driver",
        state="ok",
        found=f"driver {line}, which supports ROCm {join_words(supported, most=12, joiner='and')}",
        data={"said": said, "line": line, "supports": supported},
    )


def _gpus() -> Point:
    found = gpus()
    if not found:
        return Point(
            topic="gpus",
            state="lack",
            found="no AMD GPU",
            means="Wheels can be built; what needs a GPU to be tried is reported as not judged.",
        )
    listed = ", ".join(f"{number} x {target}" for target, number in sorted(found.items()))
    return Point(topic="gpus", state="ok", found=listed, data=dict(found))


def _power() -> Point:
    cores, memory = host.cores(), host.memory_gib()
    data = {"cores": cores, "memory-gib": round(memory, 1)}
    found = f"{cores} cores and {memory:.0f} GiB of memory for this process"
    if memory < _MEMORY:
        means = f"One compile job of the heavier packages takes some {_MEMORY} GiB; the kernel may kill it."
        return Point(topic="cores-memory", state="lack", found=found, means=means, data=data)
    return Point(topic="cores-memory", state="ok", found=found, data=data)


def runtimes() -> Point:
    """Say which container runtimes are on PATH."""
    found = {}
    for name in _RUNTIMES:
        path = shutil.which(name)
        if path:
            said = _VERSION.search(output_of([path, "--version"]))
            found[name] = said[0] if said else ""
    if not found:
        return Point(
            topic="container-runtimes",
            state="lack",
            found="neither apptainer, singularity nor podman is on PATH",
            means="Wheels for ROCm cannot be built: their compiler is in the base image.",
            cure="Load the site's module (module avail apptainer), or install apptainer.",
        )
    listed = ", ".join(f"{name} {version}".strip() for name, version in found.items())
    return Point(topic="container-runtimes", state="ok", found=listed, data=found)


def _namespaces() -> Point:
    network, mounts = bool(without_network()), can_mount()
    data = {"network": network, "mounts": mounts}
    if network and mounts:
        found = "user namespaces can be made: builds are cut off from the network"
        return Point(topic="user-namespaces", state="ok", found=found, data=data)
    return Point(
        topic="user-namespaces",
        state="lack",
        found="user namespaces cannot be made",
        means="A build on this machine itself cannot be cut off from the network, and may download what it "
        "should build. Apptainer runs images only where it is installed setuid.",
        cure="Ask the site for sysctl user.max_user_namespaces above 0 (Ubuntu 24.04: also "
        "kernel.apparmor_restrict_unprivileged_userns=0), or build in a container.",
        data=data,
    )


def slurm() -> Point:
    """Say whether jobs can be submitted."""
    said = _VERSION.search(output_of(["sbatch", "--version"]))
    if said is None:
        return Point(
            topic="slurm",
            state="lack",
            found="no sbatch on PATH",
            means="Builds run here, not as jobs.",
        )
    names = output_of(["sinfo", "--noheader", "--format", "%R"]).split()
    listed = (
        f", partitions {join_words(names, most=8, joiner='and')}"
        if names
        else ", whose controller does not answer"
    )
    return Point(
        topic="slurm",
        state="ok" if names else "note",
        found=f"Slurm {said[0]}{listed}",
        data={"version": said[0], "partitions": names},
    )


def disk(topic: str, path: Path) -> Point:
    """Say how much space there is for a directory, which need not exist yet."""
    here = next(one for one in (path, *path.parents) if one.exists())
    usage, counts = shutil.disk_usage(here), os.statvfs(here)
    free = usage.free / _GIB
    data = {"path": str(path), "free-gib": round(free, 1), "free-files": counts.f_favail}
    found = f"{free:.0f} GiB free for {path}"
    if not os.access(here, os.W_OK | os.X_OK):
        return Point(
            topic=topic,
            state="lack",
            found=f"{here} cannot be written to",
            means="Nothing can be built.",
            cure=_elsewhere(topic),
            data=data,
        )
    if free < _SPACE:
        means = f"torch for ROCm and a source tree that is built take up to {_SPACE} GiB."
        return Point(topic=topic, state="lack", found=found, means=means, cure=_elsewhere(topic), data=data)
    return Point(topic=topic, state="ok", found=found, data=data)


def _elsewhere(topic: str) -> str:
    if topic == "disk-index":
        return "Name another directory: --index DIR."
    return (
        "Set XDG_CACHE_HOME to a directory with more space, such as the project's on the site's file system."
    )


def pythons(catalog: Catalog) -> Point:
    """Say which Pythons of the catalog are on PATH, and whether they can build."""
    found: dict[str, str] = {}
    remarks = []
    for version in newest_first(catalog.python):
        path = shutil.which(f"python{version}")
        if path and output_of([path, "-c", "print(1)"]):  # a shim of pyenv may stand for no Python
            found[version] = path
            remarks += [str(lack) for lack in host.missing_tools(Path(path), compile_cxx=False)]
    if not found:
        return Point(
            topic="pythons",
            state="lack",
            found="no Python of the catalog is on PATH under its version (python3.12)",
            means="Wheels are built with the Python of the base image, or for that which runs matrix.",
        )
    return Point(
        topic="pythons",
        state="note" if remarks else "ok",
        found="; ".join([f"Python {join_words(list(found), most=8, joiner='and')}", *remarks]),
        data=found,
    )


def _compiler() -> Point:
    identity = host.compiler_identity()
    if not identity:
        return Point(
            topic="compiler",
            state="lack",
            found="no C++ compiler on PATH",
            means="Wheels for the CPU backend cannot be built on this machine itself, only in a base image.",
            cure=host.cure("compiler"),
        )
    return Point(topic="compiler", state="ok", found=identity)


def network(what: str, url: str) -> Point:
    """Say whether the server of something that is fetched answers."""
    if is_reachable(url):
        return Point(topic=f"network-{what}", state="ok", found=f"{url} answers", data={"url": url})
    return Point(
        topic=f"network-{what}",
        state="lack",
        found=f"{url} does not answer",
        means="What is not in the cache yet cannot be fetched from here.",
        cure="Run matrix fetch where there is a network, with the same XDG_CACHE_HOME, then build "
        "--offline; or name a mirror in matrix.toml.",
        data={"url": url},
    )
