"""Environments as users write them, resolved against the real registry by us and by uv.

PyTorch's index is a stand-in (`tests.support.torch_index`). uv gets the versions that only the catalog
decides as constraints. It must choose the same versions of everything else.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import uv
from _pytest.mark import ParameterSet
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from builders.index_client import IndexClient
from builders.sources.source import index_url
from resolver.facts.catalog import closed_names, load
from resolver.lock import read_lock
from resolver.model import Distribution, Resolution
from tests.support.tiny import wheel_of
from tests.support.torch_index import write_torch_index

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
ENVIRONMENTS = sorted((Path(__file__).parents[1] / "environments").glob("*.in"))
TARGETS = {"rocm": ("--site", "lumi-g"), "cpu": ("--site", "local", "--backend", "cpu")}
PYTHON = "3.12"
NEWEST_GLIBC = "2.40"
"""The newest glibc that uv supports; for a target without a base image any wheel for Linux counts."""


class Places(NamedTuple):
    """Directories that all tests share."""

    torch: Path
    """The stand-in for PyTorch's host."""
    cache: Path


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    root = tmp_path_factory.mktemp("environments")
    indexes = IndexClient([index_url()], cache=root / "cache" / "matrix" / "indexes")
    write_torch_index(root / "torch", load(), indexes, oldest="2.6")
    return Places(root / "torch", root / "cache")


def variables(places: Places) -> dict[str, str]:
    """Return environment variables with which pip's configuration has one index and no other setting."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    index = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index_url()}
    return {**kept, **index, "XDG_CACHE_HOME": str(places.cache), "UV_CACHE_DIR": str(places.cache / "uv")}


def resolve(file: Path, backend: str, work: Path, places: Places) -> Resolution:
    """Return our lock of an environment."""
    mirrors = f'"https://download.pytorch.org/" = "{places.torch.as_uri()}/"'
    (work / "matrix.toml").write_text(f"[mirrors]\n{mirrors}\n")
    command = [sys.executable, "-m", "matrix", "resolve", "-r", str(file), "--python", PYTHON]
    done = subprocess.run(
        [*command, *TARGETS[backend]],
        cwd=work,
        env=variables(places),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return read_lock(work / "matrix.lock")


def versions_of_uv(file: Path, lock: Resolution, work: Path, places: Places) -> dict[str, str]:
    """Return the versions that uv chooses, with the versions that only the catalog decides as constraints.

    uv's choice among equally good answers depends on the order of the requirements. Ours does not, so uv gets
    them by name.
    """
    ordered = work / "ordered.in"
    ordered.write_text("\n".join(sorted(file.read_text().splitlines())) + "\n")
    closed = closed_names(load(), lock.target.backend)
    pinned = [pick for pick in lock.distributions if pick.name in closed]
    (work / "constraints.txt").write_text("".join(f"{pick.name}=={pick.version}\n" for pick in pinned))
    links = work / "links"
    links.mkdir()
    for pick in pinned:
        wheel_of(links, pick.name, pick.version, {}, requires=requirements_of(pick, places))
    glibc = next((pick.version for pick in lock.picks if pick.name == "glibc"), NEWEST_GLIBC)
    platform = f"x86_64-manylinux_{glibc.replace('.', '_')}"
    command = [uv.find_uv_bin(), "pip", "compile", "-q", "--no-header", "--no-annotate", str(ordered)]
    command += ["--python-version", PYTHON, "--python-platform", platform, "--index-url", index_url()]
    command += ["-c", "constraints.txt", "--find-links", str(links)]
    done = subprocess.run(
        command, cwd=work, env=variables(places), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    pins = [Requirement(line) for line in done.stdout.splitlines()]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


def requirements_of(pick: Distribution, places: Places) -> tuple[str, ...]:
    """Return the requirements of a distribution, as we read them: uv would build some of these."""
    mirrors = {"https://download.pytorch.org/": f"{places.torch.as_uri()}/"}
    cache = places.cache / "matrix" / "indexes"
    metadata = IndexClient([index_url()], cache=cache, mirrors=mirrors).metadata(pick.files)
    return metadata.requires if metadata else ()


def cases() -> list[ParameterSet]:
    """Return each environment for one backend, and in long runs for the other backend as well."""
    return [
        pytest.param(
            file,
            backend,
            id=f"{file.stem}-{backend}",
            marks=[pytest.mark.long] if (number + other) % 2 else [],
        )
        for number, file in enumerate(ENVIRONMENTS)
        for other, backend in enumerate(TARGETS)
    ]


@pytest.mark.parametrize(("file", "backend"), cases())
def test_same_versions_as_uv(file: Path, backend: str, tmp_path: Path, places: Places) -> None:
    lock = resolve(file, backend, tmp_path, places)
    ours = {pick.name: pick.version for pick in lock.distributions}
    theirs = versions_of_uv(file, lock, tmp_path, places)
    differences = {
        name: (ours.get(name), theirs.get(name))
        for name in sorted(ours.keys() | theirs.keys())
        if name not in ours or name not in theirs or Version(ours[name]) != Version(theirs[name])
    }
    assert not differences
    assert not lock.left_open
