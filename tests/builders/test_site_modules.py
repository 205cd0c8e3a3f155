"""A site's modules are loaded before a wheel is compiled there; STAND-INS replace those of Cray."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from builders.building.plan import local_build_host
from builders.containers.runtime import View, run_in
from builders.machine import host
from resolver.errors import EnvironmentLacksError
from resolver.facts.catalog import load
from tests.support.cray import MODULES, write_modules


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give this process a home whose login shell has the modules; return the directory of their programs."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("PATH", "CC", "CXX", "FC", "MPICC", "MPI4PY_BUILD_MPICC", "INTEL_MKL_DIR"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # restored afterwards
    host.load_modules.cache_clear()
    yield write_modules(tmp_path, {"cc": "gcc", "CC": "g++", "ftn": "gcc"})
    host.load_modules.cache_clear()


def test_folders_of_the_user_stay_on_path(programs: Path, tmp_path: Path) -> None:
    """Debian's /etc/profile replaces PATH in a login shell, and a Python on the user's PATH was lost."""
    os.environ["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    profile = tmp_path / ".bash_profile"
    profile.write_text(f"PATH=/usr/bin:/bin\n{profile.read_text()}")
    own = os.environ["PATH"]
    local_build_host(host.running_python(), site=load().site["archer2-cpu"])
    assert os.environ["PATH"] == f"{programs}{os.pathsep}{own}"


def test_builds_of_archer2_use_the_compilers_of_its_modules(programs: Path, tmp_path: Path) -> None:
    site = load().site["archer2-cpu"]
    assert site.build_modules == MODULES
    found = local_build_host(host.running_python(), site=site)
    assert {name: found.variables[name] for name in ("CC", "CXX", "FC", "MPICC")} == {
        "CC": "cc",
        "CXX": "CC",
        "FC": "ftn",
        "MPICC": "cc",
    }
    assert (found.variables["PE_ENV"], found.variables["INTEL_MKL_DIR"]) == ("GNU", "/opt/intel/mkl")
    assert host.compiler() == programs / "CC"
    assert found.identity["modules"] == ["PrgEnv-gnu/8.3.3", "cray-mpich/8.1.23"]
    assert found.identity["variables"]["CXX"] == "CC"
    assert {"cc", "CC", "ftn"} <= host.tools(tuple(os.get_exec_path())).keys()
    (tmp_path / "a.c").write_text("int f(void) { return 1; }\n")
    command = ["sh", "-c", "exec $CC -c a.c -o a.o"]
    view = View(env=found.variables, cwd=tmp_path)
    run_in(found.runtime, command, view, what="Compiling", log=tmp_path / "log")
    assert (tmp_path / "a.o").exists()
    assert (tmp_path / "calls").read_text().splitlines()[-1] == "GNU cc -c a.c -o a.o"


@pytest.mark.usefixtures("programs")
def test_other_versions_of_modules_are_another_build() -> None:
    site = load().site["archer2-cpu"]
    first = local_build_host(host.running_python(), site=site).identity
    profile = Path.home() / ".bash_profile"
    profile.write_text(profile.read_text().replace("PrgEnv-gnu/8.3.3", "PrgEnv-gnu/8.4.0"))
    host.load_modules.cache_clear()
    second = local_build_host(host.running_python(), site=site).identity
    assert {name for name in first if first[name] != second[name]} == {"modules"}


@pytest.mark.usefixtures("programs")
def test_machine_without_the_modules_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    site = load().site["archer2-cpu"]
    monkeypatch.setenv("AVAILABLE", "gcc cray-python-but-another")
    assert "modules" not in local_build_host(host.running_python(), site=site).identity
    (Path.home() / ".bash_profile").unlink()
    host.load_modules.cache_clear()
    assert "modules" not in local_build_host(host.running_python(), site=replace(site, cpu="")).identity


@pytest.mark.usefixtures("programs")
def test_missing_and_broken_module_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    site = load().site["archer2-cpu"]
    monkeypatch.setenv("AVAILABLE", "PrgEnv-gnu cray-fftw")
    with pytest.raises(EnvironmentLacksError, match=r"but there is no mkl/2023\.0\.0\.$") as caught:
        local_build_host(host.running_python(), site=site)
    assert "build-modules" in caught.value.hint
    monkeypatch.delenv("AVAILABLE")
    monkeypatch.setenv("BROKEN", "cannot load module")
    host.load_modules.cache_clear()
    with pytest.raises(EnvironmentLacksError, match="following error: cannot load module"):
        local_build_host(host.running_python(), site=site)
