"""Real releases of the network plugin, compiled in the rig's image and used by two ranks as RCCL does.

The sources are on GitHub, or in the clone that MATRIX_AWS_OFI_NCCL names. libfabric is that of Debian 12
(1.17) and of Debian sid. `standin_hip.c` stands in for HIP's runtime, and `plugin_ranks.py` for RCCL. The
ranks use libfabric's provider tcp with host memory. Not shown: the provider cxi, a GPU, and RCCL itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from builders.audit.contents import Expected
from builders.audit.elf import read_object
from builders.audit.runtime_libraries import TorchLibraries, image_provider
from builders.audit.wheel_audit import audit_wheel
from builders.probe.payload import plugin as as_probed
from resolver.facts.catalog import load
from tests.rig.rig import HERE, Rig

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]

SOURCE = os.environ.get("MATRIX_AWS_OFI_NCCL", "https://github.com/aws/aws-ofi-nccl")
RELEASES, FABRICS = ("1.20.0", "1.21.1"), ("1.17", "sid")
EXPORTS = {f"ncclNetPlugin_v{number}" for number in range(6, 13)}
COMMON = (
    "ibverbs-providers", "libhsa-runtime-dev", "libhwloc-dev", "libhwloc15", "libibverbs1", "libltdl7",
    "libnl-3-200", "libnl-route-3-200", "libnuma1", "libpsm-infinipath1", "libpsm2-2", "librdmacm1t64",
    "libudev1",
)  # fmt: skip
LIB = "usr/lib/x86_64-linux-gnu"
PATH = "/opt/python3.11/bin:/opt/rocm/bin:/usr/bin:/bin"
BACKEND = "import setuptools.build_meta as backend, sys; backend.build_wheel(sys.argv[1])"


def run(*command: str, cwd: Path | None = None) -> str:
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


@dataclass(frozen=True)
class Bench:
    """A directory with the libraries of Debian, in which plugins are compiled and run in the rig's image."""

    rig: Rig
    root: Path

    def unpack(self, suite: str, folder: str, *packages: str) -> Path:
        """Download packages of a suite of Debian with apt, and unpack them."""
        debs, target = self.root / f"{folder}-debs", self.root / folder
        for name in ("lists/partial", "cache/archives/partial"):
            (debs / name).mkdir(parents=True, exist_ok=True)
        mirror = run("bash", str(HERE / "mirror.sh")).strip()
        (debs / "sources.list").write_text(f"deb [trusted=yes] {mirror} {suite} main\n")
        (debs / "status").touch()
        settings = {
            "Dir::Etc::sourcelist": debs / "sources.list", "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::lists": debs / "lists", "Dir::State::status": debs / "status",
            "Dir::Cache": debs / "cache", "Acquire::Check-Valid-Until": "false", "APT::Sandbox::User": "root",
        }  # fmt: skip
        options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        run("apt-get", *options, "update", "-qq")
        run("apt-get", *options, "download", "-qq", *packages, cwd=debs)
        for deb in debs.glob("*.deb"):
            run("dpkg", "-x", str(deb), str(target))
        for path in target.glob("usr/lib/libpsm1/*.so.*"):  # its package only registers an alternative
            shutil.copy(path, target / LIB)
        run("ldconfig", "-n", str(target / LIB))
        return target

    @cached_property
    def common(self) -> Path:
        return self.unpack("sid", "common", *COMMON)

    @cached_property
    def fabrics(self) -> dict[str, Path]:
        suites = {"1.17": "bookworm", "sid": "sid"}
        return {name: self.unpack(suites[name], name, "libfabric1", "libfabric-dev") for name in FABRICS}

    @cached_property
    def hip(self) -> Path:
        folder = self.root / "hip"
        folder.mkdir()
        soname = "libamdhip64.so.7"
        flags = ["-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", str(folder / soname)]
        run("gcc", str(HERE / "standin_hip.c"), *flags)
        return folder

    @cached_property
    def setuptools(self) -> Path:
        folder = self.root / "setuptools"
        run(sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), "setuptools>=77")
        return folder

    def in_image(self, *command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a program in the rig's image, as the ordinary user."""
        run("chmod", "-R", "a+rwX", str(self.root))
        passed = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
        image = ["apptainer", "exec", "-B", str(self.root), "--pwd", str(cwd), *passed, str(self.rig.image)]
        return self.rig.run_as_user([*image, *command])

    def wheel(self, release: str, fabric: str) -> Path:
        """Compile a release with the catalog's patch against a libfabric."""
        out, tree = (self.root / f"{kind}-{release}-{fabric}" for kind in ("wheel", "source"))
        if not out.is_dir():
            (row,) = (row for row in load().releases_of("rccl-net") if row.version == release)
            assert row.git is not None
            run("git", "clone", "-q", "--no-checkout", SOURCE, str(tree))
            run("git", "checkout", "-q", row.git.commit, cwd=tree)
            run("git", "apply", str(Path(row.from_file).parent / row.patches[0].file), cwd=tree)
            out.mkdir()
            folders = [self.fabrics[fabric], self.common]
            headers = [
                f"{folder}/usr/include{rest}" for folder in folders for rest in ("", "/x86_64-linux-gnu")
            ]
            done = self.in_image(
                "python", "-c", BACKEND, str(out), cwd=tree, PATH=PATH, ROCM_PATH="/opt/rocm", MAX_JOBS="2",
                PYTHONPATH=str(self.setuptools), CPLUS_INCLUDE_PATH=":".join(headers),
                LIBRARY_PATH=":".join(f"{folder}/{LIB}" for folder in folders),
                LD_LIBRARY_PATH=f"{self.common}/{LIB}",
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-3000:]
        (wheel,) = out.glob("*.whl")
        return wheel

    def library(self, release: str, fabric: str) -> Path:
        """Return the plugin of a wheel as a file."""
        folder = self.root / f"plugin-{release}-{fabric}"
        with zipfile.ZipFile(self.wheel(release, fabric)) as archive:
            archive.extractall(folder)
        return folder / "torch" / "lib" / "librccl-net.so"

    def ranks(self, plugin: Path, fabric: Path | None, **env: str) -> list[subprocess.CompletedProcess[str]]:
        """Start two ranks with a plugin and a libfabric; each waits at most a minute for the other."""
        shared = Path(tempfile.mkdtemp(dir=self.root))
        folders = [self.hip, *([fabric / LIB] if fabric else []), self.common / LIB]
        paths = ":".join(map(str, folders))

        def start(rank: int) -> subprocess.CompletedProcess[str]:
            return self.in_image(
                "python", str(self.program), str(plugin), str(shared), str(rank), cwd=shared, PATH=PATH,
                LD_LIBRARY_PATH=paths, FI_PROVIDER="tcp", OFI_NCCL_EXCLUDE_TCP_IF="docker0", **env,
            )  # fmt: skip

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(start, (0, 1)))

    @cached_property
    def program(self) -> Path:
        return Path(shutil.copy(HERE / "plugin_ranks.py", self.root))


@pytest.fixture(scope="module")
def bench(rig: Rig) -> Bench:
    return Bench(rig, rig.work())


def exported(library: Path) -> set[str]:
    """Return the symbols that a library exports, as binutils shows them."""
    return {line.split()[-1] for line in run("nm", "-D", "--defined-only", str(library)).splitlines()}


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("release", RELEASES)
def test_two_ranks_send_and_receive(release: str, fabric: str, bench: Bench) -> None:
    library = bench.library(release, fabric)
    assert exported(library) & EXPORTS == EXPORTS
    assert exported(library.with_name("libnccl-net.so")) & EXPORTS == EXPORTS
    assert read_object("plugin", library.read_bytes()).search_paths == ()
    sender, receiver = bench.ranks(library, bench.fabrics[fabric])
    assert (sender.returncode, receiver.returncode) == (0, 0), sender.stderr + receiver.stderr
    assert re.match(r"Libfabric: [1-9]\d* devices, the first is ", sender.stdout)
    assert sender.stdout.splitlines()[-1] == "sent 1048576 bytes"
    assert receiver.stdout.splitlines()[-1] == "received 1048576 bytes, all as sent"


def test_libfabric_may_be_newer_than_that_of_the_build_but_not_older(bench: Bench) -> None:
    """The audit, the probe and the loader agree."""
    old, new = (bench.library("1.20.0", fabric) for fabric in FABRICS)
    fabric = {name: bench.fabrics[name] / LIB / "libfabric.so.1" for name in FABRICS}
    sender, receiver = bench.ranks(old, bench.fabrics["sid"])
    assert (sender.returncode, receiver.returncode) == (0, 0)
    failed, _ = bench.ranks(new, bench.fabrics["1.17"])
    assert failed.returncode != 0
    assert "version `FABRIC_1.8' not found" in failed.stderr
    has = {name: read_object(name, path.read_bytes()).defines["FABRIC"] for name, path in fabric.items()}
    assert (has["1.17"], as_probed(str(new))["needs"]) == ("1.6", "1.8")
    torch = TorchLibraries(version="2.13.0+rocm7.2", rocm="7.2")
    for name, errors in (("1.17", {"plugin-libfabric"}), ("sid", set())):
        expected = Expected(torch=torch, providers=(image_provider({"fabric": has[name]}),))
        report = audit_wheel(bench.wheel("1.20.0", "sid"), expected)
        assert {finding.id for finding in report.errors} == errors


def test_missing_libfabric_is_an_error_of_the_loader(bench: Bench) -> None:
    failed, _ = bench.ranks(bench.library("1.20.0", "sid"), None)
    assert failed.returncode != 0
    assert "libfabric.so.1: cannot open shared object file" in failed.stderr


def test_libfabric_that_is_loaded_first_is_the_one_that_the_plugin_gets(bench: Bench) -> None:
    """Another distribution may have loaded it; the plugin's own is found, and not used."""
    other = bench.fabrics["1.17"] / LIB
    failed, _ = bench.ranks(
        bench.library("1.20.0", "sid"), bench.fabrics["sid"], LD_PRELOAD=str(other / "libfabric.so.1")
    )
    assert failed.returncode != 0
    assert f"{other}/libfabric.so.1: version `FABRIC_1.8' not found" in failed.stderr
