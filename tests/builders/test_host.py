"""Tools of the host, present and missing; parts of the host are faked."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.containers.sandbox import KINDS, OTHER, Kind, command_line, inside, layout
from builders.machine import cluster, host
from builders.machine.process import output_of
from resolver.errors import EnvironmentLacksError

PYTHON = Path(sys.executable)
GIB = 2**30
Put = Callable[[str, str], None]


@pytest.fixture
def no_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set PATH to an empty directory, and return it."""
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    return empty


def program(path: Path, output: str, *, and_runs: bool = False) -> Path:
    run = 'exec "$@"' if and_runs else f"echo {output}"
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{output}"; else {run}; fi\n')
    path.chmod(0o755)
    return path


TOOLS = ("gcc", "x86_64-conda-linux-gnu-cc", "g++-12", "cmake", "ninja", "mpicc")
HIDDEN = ("nvcc", "nvcc.profile", "nvidia-smi", "conda", "mamba", "python3", "python3.12", "pip", "hipcc")


@given(st.lists(st.sets(st.sampled_from([*TOOLS, *HIDDEN, "sed", "my-tool"])), max_size=4), st.booleans())
def test_builds_see_only_compilers_and_tools(
    tmp_path_factory: pytest.TempPathFactory, folders: list[set[str]], is_relative: bool
) -> None:
    """Whatever is on PATH: the first of each stated tool, and from directories of users nothing else."""
    root = tmp_path_factory.mktemp("path")
    for number, names in enumerate(folders):
        (root / str(number)).mkdir()
        for name in names:
            program(root / str(number) / name, "1.0")
    path = [*(str(root / str(number)) for number in range(len(folders))), *(["bin"] if is_relative else [])]
    system = root / "usr"
    system.mkdir()
    for name in ("sed", *HIDDEN):
        program(system / name, "1.0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "_SYSTEM", (str(system),))
        patch.setenv("PATH", os.pathsep.join([*path, str(root / "missing")]))
        seen = {name: Path(path) for name, path in host.tools(tuple(os.get_exec_path())).items()}
    assert not {*HIDDEN} & {*seen}
    assert "my-tool" not in seen
    assert seen["sed"].parent == system
    for name in TOOLS:
        offered = [root / str(number) / name for number, names in enumerate(folders) if name in names]
        assert not offered or seen[name] == offered[0]


def test_compiler_that_is_a_link_to_a_cache_is_not_a_tool(no_programs: Path) -> None:
    """Ccache searches PATH for the compiler, and there would be only itself."""
    cache = program(no_programs / "ccache", "1.0")
    (no_programs / "mpicc").symlink_to(cache)
    tools = host.tools(tuple(os.get_exec_path()))
    assert tools["ccache"] == str(cache)
    assert tools.get("mpicc") != str(no_programs / "mpicc")


@pytest.mark.parametrize(
    ("release", "fix"),
    [
        ({"ID": "debian"}, "apt-get install g++"),
        ({"ID": "ubuntu", "ID_LIKE": "debian"}, "apt-get install g++"),
        ({"ID": "sles", "ID_LIKE": "suse"}, "zypper install gcc-c++"),
        ({"ID": "opensuse-leap", "ID_LIKE": "suse opensuse"}, "zypper install gcc-c++"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "dnf install gcc-c++"),
        ({"ID": "fedora"}, "dnf install gcc-c++"),
        ({"ID": "plan9"}, "install your distribution's package of g++"),
    ],
)
@pytest.mark.usefixtures("no_programs")
def test_missing_compiler_names_package(
    release: dict[str, str], fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    (tool,) = host.missing_tools()
    assert "C++ compiler" in tool.message
    assert tool.fix == fix
    with pytest.raises(EnvironmentLacksError) as caught:
        host.require_for_build()
    assert caught.value.exit_code == 3
    assert "The build was not started" in caught.value.message
    assert fix in caught.value.message


@pytest.mark.usefixtures("no_programs")
def test_fix_without_os_release_is_generic(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> dict[str, str]:
        raise OSError

    monkeypatch.setattr(platform, "freedesktop_os_release", missing)
    (tool,) = host.missing_tools()
    assert "your distribution" in tool.fix


def test_mpi_is_required_only_by_recipes_that_use_it(no_programs: Path) -> None:
    program(no_programs / "g++", "g++ 12")
    assert host.missing_tools() == []
    (tool,) = host.missing_tools(mpi=True)
    assert "mpicc" in tool.message
    assert "module" in tool.fix
    program(no_programs / "mpicc", "gcc -I/opt/mpi/include -lmpi")
    assert host.missing_tools(mpi=True) == []


def test_mpi_is_that_of_mpicc_on_path(no_programs: Path) -> None:
    assert host.mpi_identity() == ""
    program(no_programs / "mpicc", "gcc -I/opt/mpi/include -lmpi")
    assert host.mpi_identity() == f"{no_programs / 'mpicc'}: gcc -I/opt/mpi/include -lmpi"
    program(no_programs / "mpicc", "gcc -I/opt/mpi/include -lmpich")
    assert host.mpi_identity().endswith("-lmpich")


def test_python_without_venv_is_incomplete(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    for python in (bare, tmp_path / "not-there"):
        (venv,) = host.missing_venv(python)
        assert "venv" in venv.message
        assert str(python) in venv.fix
        assert "not the distribution's own" in venv.fix
    assert host.missing_venv(PYTHON) == []


def test_host_of_tests_has_all_tools() -> None:
    assert host.missing_tools() == []


def test_compiler_is_cxx_variable_then_gxx_then_cxx(
    tmp_path: Path, no_programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert host.compiler() is None
    assert host.compiler_identity() == ""
    cxx = program(no_programs / "c++", "c++ 1")
    assert host.compiler() == cxx
    gxx = program(no_programs / "g++", "g++ 12")
    assert host.compiler() == gxx
    assert host.compiler_identity() == "g++ 12"
    monkeypatch.setenv("CXX", str(program(tmp_path / "g++-13", "g++ 13")))
    assert host.compiler() == tmp_path / "g++-13"
    assert host.compiler_identity() == "g++ 13"


def test_compiler_ignores_launcher(no_programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build key must change with g++, not with ccache."""
    program(no_programs / "g++", "g++ 12")
    program(no_programs / "ccache", "ccache 4", and_runs=True)
    monkeypatch.setenv("CXX", "ccache g++")
    assert "g++ 12" in host.compiler_identity()


@given(
    memory_per_job=st.floats(0.1, 64),
    jobs=st.integers(1, 512),
    memory=st.floats(0.01, 4096),
)
def test_compile_jobs_fit_memory(memory_per_job: float, jobs: int, memory: float) -> None:
    fit = cluster.compile_jobs(memory_per_job, jobs=jobs, memory=memory)
    assert 1 <= fit <= jobs
    assert fit == 1 or fit * memory_per_job <= memory * (1 + 1e-9)
    assert fit == jobs or (fit + 1) * memory_per_job > memory * (1 - 1e-9)


def test_compile_jobs_default_to_host_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(cluster, "memory_gib", lambda: 9.0)
    assert cluster.compile_jobs(2.0) == 4
    assert cluster.compile_jobs(1.0) == 6
    assert cluster.compile_jobs(16.0) == 1
    assert cluster.compile_jobs(1.0, jobs=3) == 3
    assert cluster.compile_jobs(2.0, memory=4) == 2


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Write a file of a faked /proc or /sys."""
    root = tmp_path / "root"
    for module in (cluster, host):
        monkeypatch.setattr(module, "Path", lambda text: root / str(text).lstrip("/"))

    def write(path: str, text: str) -> None:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    write("/proc/meminfo", f"MemTotal: 9 kB\nMemAvailable: {32 * 2**20} kB\n")
    return write


def test_memory_is_available_memory(put: Put) -> None:
    assert cluster.memory_gib() == 32
    put("/proc/self/cgroup", "0::/\n")
    put("/sys/fs/cgroup/memory.max", "max\n")
    assert cluster.memory_gib() == 32


def test_memory_respects_control_groups_2(put: Put) -> None:
    put("/proc/self/cgroup", "0::/system.slice/job_7/step:0\n")
    put("/sys/fs/cgroup/system.slice/job_7/step:0/memory.max", "max\n")
    put("/sys/fs/cgroup/system.slice/job_7/memory.max", f"{8 * GIB}\n")
    put("/sys/fs/cgroup/system.slice/memory.max", f"{16 * GIB}\n")
    assert cluster.memory_gib() == 8


def test_memory_respects_control_groups_1(put: Put) -> None:
    put("/proc/self/cgroup", "9:cpu,cpuacct:/cpus\n5:memory:/slurm/job_7\n")
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", f"{2**63 - 4096}\n")
    put("/sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", f"{4 * GIB}\n")
    put("/sys/fs/cgroup/memory/cpus/memory.limit_in_bytes", f"{1 * GIB}\n")
    assert cluster.memory_gib() == 4


def test_missing_python_is_an_error() -> None:
    with pytest.raises(EnvironmentLacksError, match=r"requires python3\.2") as caught:
        host.find_python("3.2")
    assert caught.value.exit_code == 3
    assert host.running_python() in caught.value.hint


def test_find_python_on_path_or_running(no_programs: Path) -> None:
    other = program(no_programs / "python3.2", "Python 3.2.6")
    assert host.find_python("3.2") == other
    own = host.find_python(host.running_python())
    assert own.exists()
    assert Path(sys.base_prefix) in own.parents


def test_cpu_identity_ignores_order_of_flags(put: Put) -> None:
    identities = []
    for flags in ("sse avx2", "avx2 sse", "sse avx2 avx512f"):
        put("/proc/cpuinfo", f"processor : 0\nflags\t\t: {flags}\nbogomips: 1\nflags : other\n")
        identities.append(host.cpu_identity())
    assert identities[0] == identities[1] != identities[2]
    assert identities[0].startswith(platform.machine())


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 8), ("350000 100000", 3), ("50000 100000", 1)])
def test_cores_respect_quota(quota: str, cores: int, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    put("/proc/self/cgroup", "0::/job_7\n")
    put("/sys/fs/cgroup/job_7/cpu.max", f"{quota}\n")
    assert cluster.cores() == cores


def test_cores_respect_quota_of_control_groups_1(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    put("/proc/self/cgroup", "3:cpu,cpuacct:/job_7\n")
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    put("/sys/fs/cgroup/cpu/job_7/cpu.cfs_quota_us", "250000\n")
    put("/sys/fs/cgroup/cpu/job_7/cpu.cfs_period_us", "50000\n")
    assert cluster.cores() == 5


@pytest.mark.usefixtures("put")
def test_slurm_job_limits_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "6")
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "1024")
    assert (cluster.cores(), cluster.memory_gib()) == (8, 32)  # variables of a job that has ended
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert (cluster.cores(), cluster.memory_gib()) == (6, 6)
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "2048")
    assert cluster.memory_gib() == 2


@pytest.mark.parametrize("kind", KINDS)
def test_program_sees_another_user(kind: Kind, tmp_path: Path) -> None:
    """What it writes still belongs to the caller."""
    for identity in (None, OTHER):
        where = layout(tmp_path, hidden=[], binds=[], path="/usr/bin", cwd=None, identity=identity)
        shell = ["/bin/sh", "-c", f"touch {where.identity.home}/made && id -u && uname -n"]
        seen = output_of(command_line(kind, shell, where)).split()
        if not seen:
            pytest.skip(f"{kind} does not work on this machine")
        is_named = identity is not None and kind == "bubblewrap"
        assert seen == [str(where.identity.user), OTHER.host if is_named else platform.node()]
        assert inside(tmp_path, where.identity.home / "made").stat().st_uid == os.getuid()


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_file_cannot_be_executed(kind: Kind, tmp_path: Path) -> None:
    """CMake looks for ``nvcc`` in the directories of the system, too, which a build must see."""
    program = Path("/usr/bin/dirname")
    seen = f"[ -x {program} ] && echo seen; [ -x /usr/bin/basename ] && echo other"
    outputs = []
    for hidden in ([], [program]):
        where = layout(tmp_path, hidden=hidden, binds=[], path="/usr/bin", cwd=None)
        outputs.append(output_of(command_line(kind, ["/bin/sh", "-c", seen], where)).split())
    if outputs[0] == []:
        pytest.skip(f"{kind} does not work on this machine")
    assert outputs == [["seen", "other"], ["other"]]
