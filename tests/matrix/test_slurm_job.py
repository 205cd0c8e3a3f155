"""``matrix env --for slurm-job``: the scripts of LUMI and Frontier, compared with their sources."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import date
from importlib.resources import files
from pathlib import Path

import pytest

from matrix.cli import main
from matrix.consumers.shared.shell import fill
from resolver.facts.catalog import load

Capture = pytest.CaptureFixture[str]
SCRIPTS = ("job-nodes.sh", "job-node.sh", "job-gpu.sh")
CCD_OF_GCD = {4: 0, 5: 1, 2: 2, 3: 3, 6: 4, 7: 5, 0: 6, 1: 7}
"""The cores next to each GCD of LUMI-G.

Source: Lumi-supercomputer/LUMI-training-materials@d64bc58c8378:docs/2day-20260422/202-Binding.md."""

MPI_IMAGES = """schema = 1
""" + "".join(
    f"""
[[image]]
name = "{name}"
rocm = "6.2.4"
python = ["3.12"]
glibc = "2.35"
mpi = "{mpi}"
status = "observed"
source = "tests"
[[site-image]]
site = "lumi-g"
image = "{name}"
status = "observed"
source = "tests"
"""
    for name, mpi in (("mpich", "MPICH 4.1.2"), ("openmpi", "Open MPI 4.1.4"))
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the scripts of three sites, each into its directory."""
    made = {}
    for site in ("lumi-g", "frontier"):
        folder = tmp_path_factory.mktemp(site)
        lock = str(folder / "matrix.lock")
        assert main(["resolve", "torch", "--site", site, "--date", "2026-11-20", "-o", lock, "-q"]) == 0
        assert main(["env", "--for", "slurm-job", "--lock", lock, "-o", str(folder), "-q"]) == 0
        made[site] = folder
    return made


def directives(script: Path) -> dict[str, str]:
    """Return the options of sbatch in a script, by name."""
    options = re.findall(r"(?m)^#SBATCH --([\w-]+)=?(.*)$", script.read_text())
    return dict(options)


MODULE = """
module() {{ echo "module $*" >&2; case "$1" in is-avail) [ "$2" = "$INSTALLED" ] ;; esac }}
environment={environment}
{lines}
"""
"""The lines of a job that load modules, with a stand-in for Lmod."""


def test_mpi_of_the_site_replaces_that_of_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Source: lumi-userguide@0ff8fc9229a2, container-jobs.md. Users install the module."""
    monkeypatch.chdir(tmp_path)
    Path("facts.toml").write_text(MPI_IMAGES)
    options = ["--site", "lumi-g", "--date", "2026-11-20", "--catalog", "facts.toml", "-q"]
    texts = {}
    for image, name in (("mpich", "mpi4py"), ("openmpi", "mpi4py"), ("mpich", "numpy")):
        assert main(["resolve", "torch", name, "--base-image", image, *options]) == 0
        assert main(["env", "--for", "slurm-job", "-o", ".", "-q"]) == 0
        texts[image, name] = Path("job-nodes.sh").read_text()
    assert [key for key, text in texts.items() if "bindings" in text.partition("#SBATCH")[2]] == [
        ("mpich", "mpi4py")
    ]
    lines = re.findall(r"(?ms)^if \[ ! -d .*?^fi$", texts["mpich", "mpi4py"])
    outputs = {}
    for environment, installed in (("a.sif", "singularity-bindings"), ("a.sif", ""), (".", "")):
        script = MODULE.format(environment=environment, lines="\n".join(lines))
        run = subprocess.run(
            ["bash", "-eu", "-c", script],
            env={"INSTALLED": installed},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs[environment, installed] = run.stderr
    assert outputs["a.sif", "singularity-bindings"].endswith("module load singularity-bindings\n")
    missing = "mpi4py uses the image's MPI, as there is no module singularity-bindings: module load LUMI"
    assert missing in outputs["a.sif", ""]
    assert outputs[".", ""] == ""


def test_shellcheck_finds_nothing(folders: dict[str, Path], tmp_path: Path) -> None:
    files = [folder / name for folder in folders.values() for name in SCRIPTS]
    for number, path in enumerate(files[:]):  # the part that each task runs is a text in the script
        step = tmp_path / f"step{number}.sh"
        step.write_text("#!/usr/bin/env bash\n" + re.split(r"<<'STEP'\n|\nSTEP\n", path.read_text())[1])
        files.append(step)
    program = str(Path(sys.executable).parent / "shellcheck")
    done = subprocess.run([program, *map(str, files)], capture_output=True, text=True, check=False)
    complaints = [
        line for line in re.findall(r"SC\d+.*", done.stdout) if "SC2154" not in line
    ]  # $launcher is exported
    assert complaints == []


def test_masks_of_lumi_are_the_cores_next_to_each_gcd() -> None:
    """Each rank has seven of the eight cores of the CCD next to its GCD; the first core is the system's."""
    for gcd, mask in enumerate(load().job["lumi-g"].masks):
        ccd = CCD_OF_GCD[gcd]
        assert int(mask, 16) == sum(1 << core for core in range(ccd * 8 + 1, ccd * 8 + 8))


def test_masks_are_used_on_whole_nodes_only(folders: dict[str, Path]) -> None:
    lumi = folders["lumi-g"]
    for name in SCRIPTS:
        is_whole = "exclusive" in directives(lumi / name)
        assert ("mask_cpu" in (lumi / name).read_text()) is is_whole
    assert "exclusive" not in directives(lumi / "job-gpu.sh")


def test_requests_are_those_of_the_sites(folders: dict[str, Path]) -> None:
    """Sources: LUMI-AI-Guide@a7e33871ec29, olcf-user-docs@274590317797 (the rows `[[job]]`)."""
    nodes = directives(folders["lumi-g"] / "job-nodes.sh")
    assert (nodes["partition"], nodes["ntasks-per-node"], nodes["gpus-per-node"]) == ("standard-g", "8", "8")
    assert (nodes["nodes"], nodes["cpus-per-task"]) == ("2", "7")
    gpu = directives(folders["lumi-g"] / "job-gpu.sh")
    assert (gpu["partition"], gpu["gpus-per-node"], gpu["mem"]) == ("small-g", "1", "60G")
    assert "--gpus-per-task" not in (folders["lumi-g"] / "job-nodes.sh").read_text()
    frontier = folders["frontier"] / "job-nodes.sh"
    assert directives(frontier)["network"] == "disable_rdzv_get"
    started = "srun --kill-on-bad-exit=1 --gpus-per-task=1 --gpu-bind=closest --cpus-per-task=7 "
    assert started in frontier.read_text()
    assert "LOCAL_RANK=0 " in frontier.read_text()
    assert "frontier advises against torchrun" in frontier.read_text()


def test_variables_have_reason_status_and_source(folders: dict[str, Path]) -> None:
    for site, folder in folders.items():
        text = (folder / "job-nodes.sh").read_text()
        versions = {"rocm": "6.4.4" if site == "lumi-g" else "7.1.1", "torch": ""}
        rows = load().variables_of(site, date(2026, 11, 20), versions)
        assert rows
        for row in rows:
            if row.value is not None:
                assert f'export {row.name}="' in text
            else:
                assert f"unset {row.name}" in text
            assert f"# {row.reason}.\n#   ({row.status}" in text
            assert row.source in text


def test_advice_that_changed_stays_as_dated_rows() -> None:
    rows = [
        row
        for row in load().site_variable.values()
        if row.name == "NCCL_NET_GDR_LEVEL" and row.site == "lumi-g"
    ]
    assert {row.value for row in rows} == {"3", None}


def test_site_without_facts_is_named(tmp_path: Path, capsys: Capture) -> None:
    lock = str(tmp_path / "matrix.lock")
    arguments = ["resolve", "torch", "--site", "setonix", "--driver", "6.3", "-o", lock, "-q"]
    assert main(arguments) == 0
    assert main(["env", "--for", "slurm-job", "--lock", lock]) == 2
    assert "does not say how jobs start at setonix" in capsys.readouterr().err


@pytest.mark.parametrize("case", ["", "fails", "stranger's"])
def test_caches_leave_the_node_with_the_job(folders: dict[str, Path], tmp_path: Path, case: str) -> None:
    """Each task has the cache; at the end, also of a job that fails, it is removed, but never another's."""
    (tmp_path / "srun").write_text(
        '#!/bin/sh\nwhile [ "$1" != "${1#-}" ]; do shift; done\nSLURM_PROCID=0 exec "$@"\n'
    )
    (tmp_path / "srun").chmod(0o755)
    cache = Path(f"/tmp/tester-{os.getpid()}{len(case)}")
    if case == "stranger's":
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / "kernel").write_text("theirs")
        cache.symlink_to(tmp_path / "cache")
    sizes = {"SLURM_NTASKS": "1", "SLURM_NTASKS_PER_NODE": "1", "SLURM_JOB_NUM_NODES": "1"}
    own = {"USER": "tester", "SLURM_JOB_ID": cache.name.rpartition("-")[2], "SLURM_LOCALID": "0"}
    used = 'touch "$TRITON_CACHE_DIR-used" "$MIOPEN_CUSTOM_CACHE_DIR/db"'
    command = f"{used}; find {cache}; exit {7 if case == 'fails' else 0}"
    done = subprocess.run(
        ["bash", folders["lumi-g"] / "job-nodes.sh", "bash", "-c", command],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "MATRIX_ENVIRONMENT": str(tmp_path), **sizes, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    if case == "stranger's":
        assert done.returncode == 3
        assert "belongs to somebody else" in done.stderr
        assert (tmp_path / "cache" / "kernel").read_text() == "theirs"
    else:
        assert f"{cache}/triton-used" in done.stdout, done.stderr
        assert f"{cache}/miopen_user_db_path/db" in done.stdout
        assert done.returncode == (7 if case == "fails" else 0)
    assert not os.path.lexists(cache)


@pytest.mark.parametrize(
    ("image", "module"),
    [
        ("lumi-multitorch-torch-u24r64f21m43t29-20260319_153422.sif", "lumi-aif-singularity-bindings"),
        ("lumi-rocm-rocm-6.2.4.sif", "singularity-AI-bindings"),
        ("", ""),
    ],
)
def test_every_image_gets_the_file_systems_once(tmp_path: Path, image: str, module: str) -> None:
    """The older images need /opt/cray; those of the AI Factory have their own libfabric."""
    lock = str(tmp_path / "matrix.lock")
    request = ["resolve", "torch", "--site", "lumi-g", "--date", "2026-11-20", "-o", lock, "-q"]
    assert main([*request, *(["--base-image", image] if image else ["--no-base-image"])]) == 0
    assert main(["env", "--for", "slurm-job", "--lock", lock, "-o", str(tmp_path), "-q"]) == 0
    text = (tmp_path / "job-nodes.sh").read_text()
    assert re.findall(r"module load (\S+)", text) == ([module] if module else [])
    (tmp_path / "flash").mkdir()
    script = text.replace("/flash", str(tmp_path / "flash"))
    (tmp_path / "job.sh").write_text(
        script.replace('case "$environment"', 'printf "%s" "$binds"; exit; case x')
    )
    (tmp_path / "container.sif").touch()
    done = subprocess.run(
        ["bash", "-c", "module() { echo $*; }; export -f module; bash job.sh"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    *loaded, binds = done.stdout.splitlines()
    assert bool(loaded) == bool(module)
    assert binds == f"{tmp_path}" + ("" if module else f",{tmp_path}/flash")


def test_problems_that_give_wrong_results_are_in_the_header(folders: dict[str, Path]) -> None:
    for folder in folders.values():
        for name in SCRIPTS:
            header = (folder / name).read_text().partition("#SBATCH")[0]
            assert re.search(r"(?m)^# Known problem: torch .* training may silently diverge", header)


def test_every_way_to_run_is_isolated_by_the_same_lines(folders: dict[str, Path], tmp_path: Path) -> None:
    """Modules set PYTHONPATH and homes have ~/.local, so these lines come after the modules of a job."""
    isolated = fill("isolated.sh")
    for folder in folders.values():
        lock = str(folder / "matrix.lock")
        for consumer in ("cotainr", "tykky"):
            target = tmp_path / folder.name / consumer
            target.mkdir(parents=True)
            assert main(["env", "--for", consumer, "--lock", lock, "-o", str(target), "-q"]) == 0
            assert isolated in (target / "environment.sh").read_text()
        for name in SCRIPTS:
            _, found, after = (folder / name).read_text().partition(isolated)
            assert found
            assert "module load" not in after
            assert " exec " in after
    scripts = files("matrix.consumers.shared") / "scripts"
    runs = [path for path in scripts.iterdir() if re.search(r'(?m)^exec "\$runtime"', path.read_text())]
    assert len(runs) == 2
    assert all("\n@ISOLATED@\n" in path.read_text() for path in runs)


@pytest.mark.parametrize("name", ["sj", "jobs.d/", "one.sh"])
def test_new_name_without_suffix_is_a_directory(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    if name.endswith("/"):
        (tmp_path / name).mkdir()
    command = ["env", "--for", "slurm-job", "--lock", str(folders["lumi-g"] / "matrix.lock")]
    assert main([*command, "-o", str(tmp_path / name), "-q"]) == 0
    is_file = name.endswith(".sh")
    files = {"one.sh" if path == SCRIPTS[0] and is_file else path for path in SCRIPTS}
    assert {path.name for path in (tmp_path if is_file else tmp_path / name).iterdir()} == files
