"""``matrix build-container`` and ``build-layer``: plan, skipped steps, interruptions and failures.

Stand-ins take the place of cotainr, Apptainer, tykky, Slurm's programs and the verification. The real ones
are in ``tests/integration/test_cotainr.py``.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from builders.building.task_state import TaskState
from builders.findings import Finding
from builders.index import Index
from builders.storage.lease import exclusive_lock
from matrix.api import write_lock
from matrix.building import work as work_module
from matrix.building.container import STEPS
from matrix.cli import main
from matrix.commands import build_wheels, env
from matrix.consumers import consumer_names, container_consumers, load_consumer
from matrix.farm import fetch
from matrix.judging.target import Verdict
from matrix.judging.verdict import Judgement
from resolver.lock import read_lock
from resolver.model import BaseImage, Resolution
from tests.support.commands import system_programs
from tests.support.locks import built_pick, local_file, lock_of, locked_pick, with_image, with_kept
from tests.support.progress import SCREENS, terminal_of
from tests.support.records import record_of
from tests.support.tiny import tiny_wheel

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
COTAINR = """#!/bin/sh
# Stand-in for cotainr: writes the container, and counts its calls.
echo call >> "$STANDINS/calls"
case " $* " in *" -v "*) echo "Building" ;; *) printf '\\r- Building\\r| Building' ;; esac
if [ -n "$PIP_FAILS" ]; then
    echo "Collecting torch"
    echo "ERROR: No matching distribution found for torch==2.13.0"
    echo "Traceback (most recent call last):"
    for line in 1 2 3 4 5 6 7 8 9 10; do echo "  File cotainr/pack.py, line $line"; done
    echo "ValueError: Invalid command cmd='conda env create' failed with the FATAL error: "
    echo "subprocess.CalledProcessError: Command '['conda']' returned non-zero exit status 1."
    exit 1
fi
echo "made $(wc -l < "$STANDINS/calls")" > "$2"
"""
SINGULARITY = """#!/bin/sh
# Stand-in for singularity: every test and every check succeeds.
exit 0
"""
CONTAINERIZE = """#!/bin/sh
# Stand-in for tykky: new --prefix DIR ...
mkdir -p "$3/bin" "$3/share"
echo call >> "$STANDINS/calls"
wc -l < "$STANDINS/calls" > "$3/share/conf.yaml"
printf '#!/bin/sh\\n' > "$3/bin/python"
chmod +x "$3/bin/python"
"""
SOUND = Finding("verify-pins", "info", "2 of 2 distributions have the locked version", "")
DEFECT = Finding("verify-pin-missing", "error", "torch is missing", "Build the container again.")


class Verification:
    """A stand-in for the verification, which needs a container."""

    def __init__(self) -> None:
        self.checked: list[str] = []
        self.findings = [SOUND]
        self.interrupt = False
        self.wheels: dict[str, list[str]] = {}

    def __call__(
        self, thing: str, context: Any, wheels: Mapping[str, Sequence[Path]]
    ) -> tuple[Judgement, Any, None, None]:
        self.wheels = {name: [path.name for path in paths] for name, paths in wheels.items()}
        if self.interrupt:
            raise KeyboardInterrupt
        assert context.args.run
        self.checked.append(Path(thing).name)
        bad = any(finding.severity == "error" for finding in self.findings)
        verdict: Verdict = "does-not-fit" if bad else "fits"
        judged = Judgement(thing=thing, kind="image", against="x", verdict=verdict, findings=self.findings)
        return judged, context, None, None


@pytest.fixture
def verification(monkeypatch: Patch) -> Verification:
    stand_in = Verification()
    monkeypatch.setattr(work_module, "judge_thing", stand_in)
    return stand_in


@pytest.fixture
def add_program(tmp_path: Path, monkeypatch: Patch) -> Callable[[str, str], None]:
    """Return a function that puts a program on PATH, which has this machine's programs except runtimes."""
    folder = tmp_path / "standins"
    folder.mkdir()
    system = system_programs("singularity", "apptainer", "sbatch", "sinfo", "squeue", "scontrol", "sacctmgr")
    monkeypatch.setenv("PATH", f"{folder}:{system}")
    monkeypatch.setenv("STANDINS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("SBATCH_ACCOUNT", raising=False)

    def add(name: str, text: str) -> None:
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)

    return add


@pytest.fixture
def work(tmp_path: Path, add_program: Callable[[str, str], None], verification: Verification) -> Path:
    """Write a complete lock with two published distributions and a base image; return the directory."""
    del verification
    add_program("cotainr", COTAINR)
    add_program("singularity", SINGULARITY)
    (tmp_path / "base.sif").write_text("image")
    files = tmp_path / "files"
    torch = tiny_wheel(files, "torch", "2.13.0+cpu", requires=["sympy"])
    sympy = tiny_wheel(files, "sympy", "1.14.0")
    lock = lock_of(
        locked_pick("torch", "2.13.0+cpu", local_file(torch)),
        locked_pick("sympy", "1.14.0", local_file(sympy)),
    )
    store(with_image(lock, BaseImage(name="base", path=str(tmp_path / "base.sif"))))
    return tmp_path


def store(lock: Resolution) -> None:
    write_lock(lock)


def made(*options: str) -> int:
    return main(["build-container", "train.sif", *options])


def calls(work: Path) -> int:
    file = work / "standins" / "calls"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_container_is_made_from_files_of_lock(
    work: Path, capsys: Capture, verification: Verification
) -> None:
    assert made() == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[-1] == "train.sif is ready: 2 distributions, verified."
    assert [line[:4] for line in output.err.splitlines() if line[1:3] == "/6"] == ["4/6 ", "5/6 ", "6/6 "]
    assert Path("train.sif").read_text() == "made 1\n"
    lines = Path("train.sif.files", "env.yml").read_text()
    assert "--no-index" in lines
    log = Path("train.sif.files", "build.log").read_bytes()
    assert b"Building" in log
    assert b"\r" not in log  # cotainr's spinner, with which `tail` shows nothing else
    names = {path.name for path in Path("train.sif.files", "wheels").iterdir()}
    assert names == {"torch-2.13.0+cpu-py3-none-any.whl", "sympy-1.14.0-py3-none-any.whl"}
    assert verification.checked == ["train.sif"]
    assert not Path("train.sif.files", "train.sif").exists()
    assert not (work / "index").exists()


@pytest.mark.parametrize("size", SCREENS)
def test_run_and_plan_fit_a_screen(size: tuple[int, int], work: Path, monkeypatch: Patch) -> None:
    terminal = terminal_of(size, monkeypatch)
    assert made() == 0
    assert not terminal.screen.history.top
    assert terminal.shown[0].startswith("train.sif: torch 2.13.0+cpu")
    assert terminal.shown[-1] == "train.sif is ready: 2 distributions, verified."
    assert sum(line[1:3] == "/6" for line in terminal.shown) == 3
    terminal = terminal_of(size, monkeypatch)
    (work / "matrix.lock").unlink()
    words = ("torch", "apex", "deepspeed", "bitsandbytes", "--site", "lumi-g", "--date", "2026-03-01")
    assert made(*words, "--executor", "slurm", "--dry-run", "--progress", "none") == 3
    first = terminal.shown.index("train.sif cannot be made here yet. Missing:")
    assert terminal.shown[first + 1] == "  - The base image"
    whole = " ".join(" ".join(terminal.shown).split())
    assert re.search(r"2 to build, at least .* with 56 cores: .* in Slurm jobs", whole)
    assert re.fullmatch(r"  without the base image, torch, .*, of unknown size", terminal.shown[-1])


def test_dry_run_prints_plan_and_writes_nothing(work: Path, capsys: Capture) -> None:
    before = {path for path in work.rglob("*") if "standins" not in path.parts and "cache" not in path.parts}
    assert made("--dry-run") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("train.sif: torch 2.13.0+cpu, python 3.")
    assert out.splitlines()[1].startswith("  on ")
    assert [line.split()[0] for line in out.splitlines()[2:8]] == [*STEPS]
    assert "2 files to download" in out
    assert "everything in it is published" in out
    after = {path for path in work.rglob("*") if "standins" not in path.parts and "cache" not in path.parts}
    assert after == before
    assert calls(work) == 0
    assert made("--dry-run", "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["status"], len(document["steps"])) == ("planned", 6)


def test_dry_run_needs_no_lock_and_no_image(work: Path, capsys: Capture) -> None:
    (work / "matrix.lock").unlink()
    words = ("torch", "bitsandbytes", "--site", "lumi-g", "--date", "2026-03-01", "--dry-run")
    assert made(*words) == 0
    assert "write matrix.lock" in capsys.readouterr().out
    assert made("apex", *words) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "train.sif cannot be made here yet. Missing:"
    assert "lumi-multitorch" in lines[1]
    assert any("1 to build" in line for line in lines[2:])
    assert made("torch", "--site", "lumi-g", "--gfx942", "--dry-run") == 2
    assert "lumi-g has gfx90a, not gfx942" in capsys.readouterr().err
    assert not (work / "matrix.lock").exists()
    assert not (work / "train.sif.files").exists()


def test_second_run_does_nothing(work: Path, capsys: Capture, verification: Verification) -> None:
    assert made() == 0
    capsys.readouterr()
    assert made() == 0
    output = capsys.readouterr()
    assert output.out == "Nothing to do: train.sif is up to date, verified.\n"
    assert output.err == ""
    assert (calls(work), len(verification.checked)) == (1, 1)
    assert made("--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.endswith("(up to date)") for line in lines) == len(STEPS)


def change_image(work: Path) -> None:
    (work / "base.sif").write_text("another image")


def change_lock(work: Path) -> None:
    lock = read_lock(Path("matrix.lock"))
    wheel = tiny_wheel(work / "files", "mpmath", "1.3.0")
    store(replace(lock, picks=(*lock.picks, locked_pick("mpmath", "1.3.0", local_file(wheel)))))


def remove_container(_: Path) -> None:
    Path("train.sif").unlink()


def replace_container(_: Path) -> None:
    Path("train.sif").write_text("made by hand, with another size")


@pytest.mark.parametrize("change", [change_image, change_lock, remove_container, replace_container])
def test_changed_input_makes_container_again(work: Path, change: Callable[[Path], None]) -> None:
    assert made() == 0
    change(work)
    assert made() == 0
    assert calls(work) == 2
    assert Path("train.sif").read_text() == "made 2\n"


def test_file_that_left_lock_leaves_wheelhouse(work: Path) -> None:
    assert made() == 0
    lock = read_lock(Path("matrix.lock"))
    store(replace(lock, picks=tuple(pick for pick in lock.picks if pick.name != "sympy")))
    assert made() == 0
    assert [path.name for path in Path("train.sif.files", "wheels").iterdir()] == [
        "torch-2.13.0+cpu-py3-none-any.whl"
    ]
    assert calls(work) == 2


def test_defective_container_replaces_nothing(
    work: Path, capsys: Capture, verification: Verification
) -> None:
    Path("train.sif").write_text("older")
    verification.findings = [DEFECT]
    for _ in range(2):
        assert made() == 1
        output = capsys.readouterr()
        assert "torch is missing" in output.out
        assert output.err.splitlines()[-1].startswith("train.sif was not changed. The new container is ")
        assert Path("train.sif").read_text() == "older"
    assert calls(work) == 1  # the same container is verified again
    verification.findings = [SOUND]
    assert made() == 0
    assert Path("train.sif").read_text() == "made 1\n"


def test_interrupted_verification_continues_without_new_container(
    work: Path, verification: Verification, capsys: Capture
) -> None:
    verification.interrupt = True
    assert made() == 130
    assert not Path("train.sif").exists()
    verification.interrupt = False
    capsys.readouterr()
    assert made() == 0
    lines = capsys.readouterr().out.splitlines()
    unchanged = [line.split()[0] for line in lines if line.endswith("(up to date)")]
    assert unchanged == [name for name in STEPS if name != "verify"]
    assert (calls(work), Path("train.sif").read_text()) == (1, "made 1\n")
    assert "Traceback" not in capsys.readouterr().err


def test_cause_of_failed_container_is_last(work: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PIP_FAILS", "1")
    Path("train.sif").write_text("older")
    assert made() == 1
    error = capsys.readouterr().err.partition("error: ")[2]
    assert error.splitlines()[0] == "Making train.sif with cotainr failed with exit code 1."
    cause, line = error.partition("\n  Log: ")[0].splitlines()[1:]
    assert cause == "    ERROR: No matching distribution found for torch==2.13.0"
    place = re.fullmatch(rf"    ({work}/train\.sif\.files/env\.yml):(\d+): (torch==2\.13\.0\+cpu)", line)
    assert place, line
    assert f"- {place[3]} " in Path(place[1]).read_text().splitlines()[int(place[2]) - 1]
    assert "network" not in error
    assert "File cotainr/pack.py" not in error
    assert Path("train.sif").read_text() == "older"
    monkeypatch.delenv("PIP_FAILS")
    assert made() == 0
    assert Path("train.sif").read_text() == "made 2\n"
    del work


def at_lumi(lock: Resolution) -> Resolution:
    return replace(lock, target=replace(lock.target, site="lumi-g"))


@pytest.mark.parametrize(
    ("site", "hint"), [("lumi-g", "module load LUMI cotainr"), ("local", "pipx install")]
)
def test_missing_cotainr_is_reported_before_anything_is_fetched(
    work: Path, capsys: Capture, site: str, hint: str
) -> None:
    (work / "standins" / "cotainr").unlink()
    lock = read_lock(Path("matrix.lock"))
    store(replace(lock, target=replace(lock.target, site=site)))
    assert made() == 3
    error = capsys.readouterr().err
    assert "cotainr is not on PATH" in error
    assert hint in error
    assert not (work / "cache" / "matrix" / "wheels").exists()
    assert made("--dry-run") == 3
    assert capsys.readouterr().out.splitlines()[1].startswith("  - cotainr is not on PATH")


def test_name_of_package_is_no_container(work: Path, capsys: Capture) -> None:
    assert main(["build-container", "apex", "deepspeed"]) == 2
    assert "'apex' does not end in .sif" in capsys.readouterr().err
    (work / "folder.sif").mkdir()
    assert main(["build-container", "folder.sif"]) == 2
    assert "is a directory" in capsys.readouterr().err


def test_environment_of_tykky_is_replaced(
    work: Path, add_program: Callable[[str, str], None], verification: Verification
) -> None:
    add_program("conda-containerize", CONTAINERIZE)
    words = ["build-container", "env", "--for", "tykky"]
    assert main(words) == 0
    assert Path("env", "share", "conf.yaml").read_text().strip() == "1"
    assert verification.checked == ["python"]
    assert main(words) == 0
    assert calls(work) == 1
    change_lock(work)
    assert main(words) == 0
    assert Path("env", "share", "conf.yaml").read_text().strip() == "2"
    assert {path.name for path in Path("env.files").iterdir()}.isdisjoint({"env", "old"})


def test_files_of_others_stay_in_wheelhouse(work: Path) -> None:
    assert made() == 0
    wheels = Path("train.sif.files", "wheels")
    (wheels / "thesis.tex").write_text("mine")
    own = tiny_wheel(wheels, "sympy", "1.0")
    lock = read_lock(Path("matrix.lock"))
    store(replace(lock, picks=tuple(pick for pick in lock.picks if pick.name != "sympy")))
    assert made() == 0
    names = {path.name for path in wheels.iterdir()}
    assert names == {"thesis.tex", own.name, "torch-2.13.0+cpu-py3-none-any.whl"}
    del work


@pytest.mark.parametrize("name", ["../../precious.tex", "..", "", ".", "/precious", "missing"])
def test_list_of_files_leads_nowhere_else(work: Path, name: str) -> None:
    """Another member of the group has changed the list of the files that may be removed."""
    assert made() == 0
    (work / "precious.tex").write_text("mine")
    state = Path("train.sif.files", "state.json")
    document = json.loads(state.read_bytes())
    state.write_text(json.dumps({**document, "wheels": [*document["wheels"], name]}))
    change_image(work)
    assert made() == 0
    assert (work / "precious.tex").read_text() == "mine"
    assert len([*Path("train.sif.files", "wheels").iterdir()]) == 2


@pytest.mark.parametrize(
    "way",
    ["train.sif.files", "train.sif.files/wheels", "train.sif.files/state.json", "train.sif.files/env.yml"],
)
@pytest.mark.parametrize("kind", ["directory", "file", "nowhere", "pipe"])
def test_link_or_pipe_in_the_way_is_an_error(work: Path, capsys: Capture, way: str, kind: str) -> None:
    precious = work / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("mine")
    path = Path(way)
    path.parent.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"directory": precious, "file": precious / "thesis.tex"}.get(kind, work / "none"))
    assert made() == 2
    assert way in capsys.readouterr().err
    assert [(file.name, file.read_text()) for file in precious.iterdir()] == [("thesis.tex", "mine")]
    assert not (work / "none").exists()
    assert calls(work) == 0


@pytest.mark.parametrize(
    ("module", "step"), [(build_wheels, "planned_wheels"), (fetch, "fetch_lock"), (env, "emit")]
)
def test_lock_of_another_command_is_not_used(
    module: Any, step: str, work: Path, monkeypatch: Patch, verification: Verification
) -> None:
    """Another container is resolved in the same directory while a step of this one runs."""
    other = lock_of(locked_pick("mypkg", "1.0", local_file(tiny_wheel(work / "files", "mypkg", "1.0"))))
    other = with_image(other, BaseImage(name="base", path=str(work / "base.sif")))
    original = getattr(module, step)
    seen = []

    def run(*arguments: Any, **options: Any) -> Any:
        store(other)
        return original(*arguments, **options)

    check = verification.__call__

    def judge(thing: str, context: Any, wheels: Mapping[str, Sequence[Path]]) -> Any:
        seen.append({pick.name for pick in read_lock(context.args.lock).distributions})
        return check(thing, context, wheels)

    monkeypatch.setattr(module, step, run)
    monkeypatch.setattr(work_module, "judge_thing", judge)
    assert made() == 0
    assert seen == [{"torch", "sympy"}]
    wheels = {path.name.partition("-")[0] for path in Path("train.sif.files", "wheels").iterdir()}
    assert wheels == {"torch", "sympy"}
    assert "mypkg" not in Path("train.sif.files", "env.yml").read_text()


@pytest.mark.parametrize("first", ["succeeds", "fails", "is interrupted"])
def test_second_of_two_at_once_does_what_is_left(
    first: str, work: Path, monkeypatch: Patch, capsys: Capture, verification: Verification
) -> None:
    """The second command waits, and then finds what the first has made."""
    taken = exclusive_lock

    @contextmanager
    def wait(path: Path, **options: Any) -> Iterator[None]:
        monkeypatch.setattr(work_module, "exclusive_lock", taken)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(verification, "interrupt", first == "is interrupted")
            if first == "fails":
                patch.setenv("PIP_FAILS", "1")
            assert made() == {"succeeds": 0, "fails": 1, "is interrupted": 130}[first]
        capsys.readouterr()
        with taken(path, **options):
            yield

    monkeypatch.setattr(work_module, "exclusive_lock", wait)
    assert made() == 0
    is_idle = capsys.readouterr().out == "Nothing to do: train.sif is up to date, verified.\n"
    assert is_idle == (first == "succeeds")
    assert calls(work) == (2 if first == "fails" else 1)
    assert Path("train.sif").read_text() == f"made {calls(work)}\n"


@pytest.mark.parametrize(("mode", "readable"), [(0o2770, True), (0o770, False)])
def test_group_of_shared_directory_can_use_the_result(
    work: Path, add_program: Callable[[str, str], None], mode: int, *, readable: bool
) -> None:
    """A umask of 077 does not lock the group out of a directory that is meant for it."""
    add_program("conda-containerize", CONTAINERIZE)
    work.chmod(mode)
    before = os.umask(0o077)
    try:
        assert made() == 0
        assert main(["build-container", "env", "--for", "tykky"]) == 0
    finally:
        os.umask(before)
    expected_modes = {"train.sif": 0o640, "env": 0o750, "train.sif.files/wheels": 0o770}
    for path, expected in {**expected_modes, "env/bin/python": 0o750}.items():
        assert Path(path).stat().st_mode & 0o777 == (expected if readable else expected & 0o700), path


def test_environment_without_image_does_not_depend_on_the_working_directory(
    work: Path, add_program: Callable[[str, str], None]
) -> None:
    add_program("conda-containerize", CONTAINERIZE)
    store(replace(read_lock(Path("matrix.lock")), image=None))
    for _ in range(2):
        assert main(["build-container", "env", "--for", "tykky"]) == 0
        os.utime(work, (0, 0))
    assert calls(work) == 1


def test_other_directory_is_not_replaced(work: Path, capsys: Capture) -> None:
    (work / "mine").mkdir()
    (work / "mine" / "thesis.txt").touch()
    assert main(["build-container", "mine", "--for", "tykky"]) == 2
    assert "is not an environment of this kind" in capsys.readouterr().err
    assert (work / "mine" / "thesis.txt").exists()


def test_consumers_with_one_result_are_offered() -> None:
    offered = {name for name in consumer_names() if load_consumer(name).maker}
    assert offered == {*container_consumers()} == {"apptainer", "cotainr", "tykky", "tykky-pip"}


@pytest.fixture
def to_build(monkeypatch: Patch) -> list[Any]:
    """Let the lock build one wheel; return the executors and contexts that a build gets."""
    wheel = TaskState(key="k", name="apex", version="1.0", state="to build", why="new")
    builds: list[Any] = []
    task = SimpleNamespace(wheel=None, pick=built_pick("apex"))

    def planned(*_: object) -> tuple[list[Any], list[TaskState]]:
        return [task], [wheel]

    def build(_: object, wheels: list[TaskState], executor: Any, context: Any) -> int:
        builds.append(("slurm" if executor else "local", context.settings.account))
        task.wheel, wheels[0].state = Path("apex.whl"), "built"
        return 0

    monkeypatch.setattr(build_wheels, "planned_wheels", planned)
    monkeypatch.setattr(build_wheels, "build_missing", build)
    return builds


SINFO = "#!/bin/sh\necho small-g\n"
CONFIG = "#!/bin/sh\necho 'AccountingStorageEnforce = associations,limits,qos'\n"


@pytest.fixture
def login_node(work: Path, add_program: Callable[[str, str], None]) -> Path:
    """Put Slurm's programs on PATH, and use a lock of LUMI; return the directory."""
    for name in ("sbatch", "squeue", "scancel", "sacctmgr", "srun"):
        add_program(name, '#!/bin/sh\nwhile [ "$1" != bash ] && [ $# -gt 0 ]; do shift; done\nexec "$@"\n')
    add_program("sinfo", SINFO)
    add_program("scontrol", CONFIG)
    store(at_lumi(read_lock(Path("matrix.lock"))))
    return work


def test_wheels_are_built_in_jobs_on_login_node(
    login_node: Path, to_build: list[Any], capsys: Capture, monkeypatch: Patch
) -> None:
    (login_node / "matrix.toml").write_text('account = "project_1"\n')
    assert made("--dry-run") == 0
    out = capsys.readouterr().out
    assert "in Slurm jobs, partition small-g, account project_1" in out
    assert "with cotainr, srun -A project_1 -p debug" in out
    assert made() == 0
    assert to_build == [("slurm", "project_1")]
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert made("--dry-run") == 0
    assert "Slurm" not in capsys.readouterr().out.splitlines()[-1]


def test_wheels_are_built_here_if_asked(login_node: Path, to_build: list[Any], capsys: Capture) -> None:
    assert made("--executor", "local") == 0
    assert to_build == [("local", "")]
    assert "srun" not in capsys.readouterr().out
    del login_node


def test_other_cluster_is_not_the_site(
    login_node: Path, to_build: list[Any], add_program: Callable[[str, str], None]
) -> None:
    add_program("sinfo", "#!/bin/sh\necho other\n")
    assert made() == 0
    assert to_build == [("local", "")]
    del login_node


def test_missing_account_shows_line_to_add(
    login_node: Path, to_build: list[Any], capsys: Capture, monkeypatch: Patch
) -> None:
    assert made() == 2
    assert 'account = "project_465000001"' in capsys.readouterr().err
    assert to_build == []
    assert not (login_node / "cache" / "matrix" / "wheels").exists()
    monkeypatch.setenv("SBATCH_ACCOUNT", "project_2")
    assert made() == 0
    assert [name for name, _ in to_build] == ["slurm"]


def test_silent_slurm_is_reported_before_start(
    login_node: Path, to_build: list[Any], capsys: Capture, add_program: Callable[[str, str], None]
) -> None:
    for name in ("sinfo", "squeue"):
        add_program(name, "#!/bin/sh\nexit 1\n")
    assert made() == 3
    error = capsys.readouterr().err
    assert "Nothing was started" in error
    assert "--executor local" in error
    assert to_build == []
    del login_node


def test_failed_build_ends_before_container(work: Path, to_build: list[Any], monkeypatch: Patch) -> None:
    monkeypatch.setattr(build_wheels, "build_missing", lambda *_: 1)
    assert made() == 1
    assert calls(work) == 0
    assert to_build == []


def test_container_has_the_wheel_of_its_lock_among_several_builds(
    work: Path, monkeypatch: Patch, verification: Verification, capsys: Capture
) -> None:
    """The index has two builds of one version, such as with other ops. pip would install the newer one."""
    index, version = Index("index"), "1.0+cpu.torch2.13.0"
    for key, build in (("older", ""), ("newer", "2-")):
        wheel = tiny_wheel(work / key, "apex", version)
        wheel = wheel.rename(wheel.with_name(f"apex-{version}-{build}py3-none-any.whl"))
        index.publish(wheel, record_of(key))
    lock = read_lock(Path("matrix.lock"))
    pick = built_pick("apex", wheel_version=version)
    store(replace(lock, picks=(*lock.picks, pick), order=(*lock.order, ("apex",))))
    for key, name in (("newer", f"apex-{version}-2-"), ("older", f"apex-{version}-py3")):
        state = TaskState(key=key, name="apex", version=version, state="up to date")
        task = SimpleNamespace(wheel=Path("apex.whl"), pick=pick)
        monkeypatch.setattr(
            build_wheels, "planned_wheels", lambda *_, task=task, state=state: ([task], [state])
        )
        assert made() == 0
        (installed,) = (work / "train.sif.files" / "wheels").glob("apex-*")
        assert installed.name.startswith(name)
        assert verification.wheels == {"apex": [installed.name]}
    other = installed.with_name(f"apex-{version}-3-py3-none-any.whl")
    other.write_text("somebody's own")
    change_image(work)
    assert made() == 2
    assert other.read_text() == "somebody's own"
    assert str(other) in capsys.readouterr().err


APPTAINER = """#!/bin/bash
# Stand-in for Apptainer: the environment has a file with another time each time, or the steps are killed.
for word; do case "$word" in *:/user-software) folder=${word%:/user-software} ;; esac; done
echo call >> "$STANDINS/calls"
[ -n "$folder" ] || exit 0
echo "home = /opt" > "$folder/pyvenv.cfg"
echo /opt/venv/lib/sympy.py > "$folder/hidden.txt"
[ -z "$LARGE" ] || for name in 1 2 3; do head -c 120000 /dev/urandom > "$folder/$name"; done
touch -d "@$(($(date +%s) - 1000 * $(wc -l < "$STANDINS/calls")))" "$folder"/*
[ -z "$KILLED" ] || kill -9 "$PPID"
"""


@pytest.fixture
def on_image(work: Path, add_program: Callable[[str, str], None]) -> Path:
    """Let the lock keep torch of its image, for a layer; return the directory."""
    add_program("apptainer", APPTAINER)
    (work / "standins" / "singularity").unlink()
    write_lock(with_kept(read_lock(Path("matrix.lock")), "torch"), Path("x.lock"))
    Path("matrix.lock").unlink()
    return work


def layer(*options: str) -> int:
    return main(["build-layer", "x.sqsh", *options])


def test_layer_is_packed_with_its_own_lock_and_the_line_to_run_it(on_image: Path, capsys: Capture) -> None:
    assert layer("--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [step["name"] for step in document["steps"]] == [*STEPS[:4], "layer", "verify"]
    assert document["lock"] == "x.lock"
    held = document["layer"]
    assert (held["files"], held["hides"]) == (2, ["/opt/venv/lib/sympy.py"])
    assert held["size"] == Path("x.sqsh").stat().st_size
    assert held["run"].endswith(
        f"-B {on_image}/x.sqsh:/user-software:image-src=/,ro {on_image}/base.sif python"
    )
    module = ["env", "--for", "module", "--lock", "x.lock", "-o", "x.lua", "--environment"]
    assert main([*module, "x.sqsh"]) == 2
    assert "--environment x.sqsh.files/run.sh" in capsys.readouterr().err
    assert main([*module, "x.sqsh.files/run.sh"]) == 0
    ran = subprocess.run(
        ["bash", "-x", "x.sqsh.files/run.sh", "python"], capture_output=True, text=True, check=True
    )
    assert f"{on_image}/x.sqsh:/user-software:image-src=/" in ran.stderr
    capsys.readouterr()
    assert layer() == 0
    output = capsys.readouterr()
    assert output.out == "Nothing to do: x.sqsh is up to date, verified.\n"
    assert not Path("matrix.lock").exists()


def test_layer_packed_twice_is_identical(on_image: Path, capsys: Capture) -> None:
    assert layer() == 0
    out = capsys.readouterr()
    assert "x.sqsh is ready: sympy 1.14.0 (2 files, " in out.out
    assert "sympy 1.14.0" in out.out
    assert "It hides 1 file of the image: /opt/venv/lib/sympy.py" in out.err
    about = subprocess.run(["unsquashfs", "-s", "x.sqsh"], check=True, capture_output=True, text=True)
    assert {"Compression zstd", "Block size 1048576"} <= {*about.stdout.splitlines()}
    first = Path("x.sqsh").read_bytes()
    Path("x.sqsh").unlink()
    assert layer() == 0
    assert Path("x.sqsh").read_bytes() == first
    assert calls(on_image) == 2


def test_layer_continues_after_its_script_was_killed(on_image: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("KILLED", "1")
    assert layer() == 1
    assert not Path("x.sqsh").exists()
    monkeypatch.delenv("KILLED")
    assert [*Path("x.sqsh.files").glob("x.sqsh.unpacked*")]
    assert layer() == 0
    assert not [*Path("x.sqsh.files").glob("x.sqsh.*")]
    del on_image


STOPS = [
    ("matrix.building.work.write_lock", "before"),
    ("matrix.farm.fetch.fetch_lock", "before"),
    ("matrix.building.work.write_files", "after"),
    ("matrix.building.container.run", "before"),
    ("matrix.building.container.run", "after"),
    ("matrix.building.work.judge_thing", "before"),
    ("matrix.building.work.judge_thing", "after"),
    ("matrix.building.container.share_finished", "after"),
]
"""In each step: the copy of the lock, the wheels, the scripts, the tool, the verification, and the end."""


@pytest.mark.slow
def test_layer_continues_after_a_kill_in_each_step(on_image: Path, monkeypatch: Patch) -> None:
    """The process ends at once, as with SIGKILL; the same command then makes the same bytes."""
    assert layer() == 0
    first = Path("x.sqsh").read_bytes()
    for stop, moment in STOPS:
        Path("x.sqsh").unlink()
        shutil.rmtree("x.sqsh.files")
        child = os.fork()
        if not child:
            module = importlib.import_module(stop.rpartition(".")[0])
            monkeypatch.setattr(stop, partial(_killed, getattr(module, stop.rpartition(".")[2]), moment))
            layer()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 137, stop
        assert not Path("x.sqsh").exists(), stop
        assert layer() == 0
        assert Path("x.sqsh").read_bytes() == first, stop
        assert not [*Path("x.sqsh.files").glob("x.sqsh*")], stop
    del on_image


def _killed(real: Callable[..., Any], moment: str, *args: Any, **options: Any) -> None:
    if moment == "after":
        real(*args, **options)
    os._exit(137)


@pytest.mark.usefixtures("no_shortcuts")
def test_full_disk_leaves_the_older_layer(on_image: Path, monkeypatch: Patch, capsys: Capture) -> None:
    """A limit on the size of files takes the place of the disk; each file in the layer is below it."""
    assert layer() == 0
    first = Path("x.sqsh").read_bytes()
    monkeypatch.setenv("LARGE", "1")
    change_image(on_image)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, limits[1]))
    try:
        assert layer() in {1, 3}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "Write failed because File too large" in capsys.readouterr().err.rpartition("error: ")[2]
    assert Path("x.sqsh").read_bytes() == first
    assert layer() == 0
    assert len(Path("x.sqsh").read_bytes()) > 1 << 18
    assert not [*Path("x.sqsh.files").glob("x.sqsh*")]


def test_layer_needs_its_image_and_its_name(on_image: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr("matrix.command_line.context.Context.resolve", None)  # OUT is checked before
    assert main(["build-layer", "x.sif", "einops"]) == 2
    monkeypatch.undo()
    monkeypatch.chdir(on_image)
    assert (
        "The first argument is the layer to build, but 'x.sif' does not end in .sqsh."
        in capsys.readouterr().err
    )
    Path("theirs.sqsh").write_text("not a layer")
    assert main(["build-layer", "theirs.sqsh"]) == 2
    assert "theirs.sqsh exists and is not a layer" in " ".join(capsys.readouterr().err.split())
    assert Path("theirs.sqsh").read_text() == "not a layer"
    assert main(["build-layer", "y.sqsh"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: No requirement is named"), "nothing was resolved, and there is no step"
    assert not [*Path().glob("[ty]*.files")]
    Path("base.json").write_text('{"apt": [], "pip": []}')
    assert layer("--base-image", "base.json") == 3
    assert "base.json is the list of an image's content" in capsys.readouterr().err
    (on_image / "base.sif").unlink()
    assert layer() == 3
    assert "The base image base is not on this machine" in capsys.readouterr().err
    assert not Path("x.sqsh.files").exists()


@pytest.mark.parametrize(
    ("consumer", "output", "mentions"),
    [
        ("easybuild", ".", "/user-software/venv/"),
        ("apptainer", "x.def", "Bootstrap: localimage"),
        ("tykky-wrap", ".", "wrap-container"),
        ("module", "x.lua", "x.sqsh.files/run.sh"),
    ],
)
def test_lock_of_layer_is_written_in_other_forms(
    on_image: Path, consumer: str, output: str, mentions: str
) -> None:
    (on_image / "forms").mkdir()
    words = ["env", "--for", consumer, "--lock", "x.lock", "-o", f"forms/{output}"]
    environment = {"tykky-wrap": "x.sif", "module": "x.sqsh.files/run.sh"}.get(consumer)
    assert main([*words, *(["--environment", environment] if environment else [])]) == 0
    texts = [path.read_text() for path in Path("forms").rglob("*") if path.is_file()]
    assert any(mentions in text for text in texts)


def test_layer_is_not_made_over_a_changed_image(on_image: Path) -> None:
    lock, image = read_lock(Path("x.lock")), on_image / "base.sif"
    digest = f"sha256:{hashlib.sha256(image.read_bytes()).hexdigest()}"
    write_lock(with_image(lock, BaseImage(name="base", path=str(image), digest=digest)), Path("x.lock"))
    assert layer() == 0
    first = Path("x.sqsh").read_bytes()
    change_image(on_image)
    assert layer() == 3
    log = Path("x.sqsh.files", "build.log").read_text()
    assert "the base image has changed" in log
    assert digest.removeprefix("sha256:") in log
    assert Path("x.sqsh").read_bytes() == first


@pytest.mark.parametrize(
    ("image", "message"),
    [("notes.txt", "notes.txt is not an image"), ("empty", "empty is not an unpacked image")],
)
def test_layer_needs_an_image(on_image: Path, capsys: Capture, image: str, message: str) -> None:
    Path("notes.txt").write_text("no squashfs")
    Path("empty").mkdir()
    assert layer("sympy", "--base-image", image) == 2
    assert message in capsys.readouterr().err
    assert not Path("x.sqsh").exists()
    del on_image


def test_layer_is_opened_changed_and_closed(on_image: Path, capsys: Capture) -> None:
    """As the page says; the command does not replace what somebody changed."""
    assert layer() == 0
    opened = {**os.environ, "MATRIX_VENV": str(on_image / "opened")}
    subprocess.run(["unsquashfs", "-q", "-n", "-d", "opened", "x.sqsh"], check=True)
    (on_image / "opened" / "mine.py").write_text("VALUE = 1\n")
    pack = ["bash", "x.sqsh.files/create_squashfs.sh", "x.sqsh"]
    subprocess.run(pack, check=True, env=opened, capture_output=True)
    assert not (on_image / "opened").exists()
    listed = subprocess.run(["unsquashfs", "-l", "x.sqsh"], check=True, capture_output=True, text=True)
    assert "squashfs-root/mine.py" in listed.stdout.splitlines()
    changed = Path("x.sqsh").read_bytes()
    capsys.readouterr()
    assert layer() == 2
    assert "x.sqsh was changed after this command made it." in " ".join(capsys.readouterr().err.split())
    assert Path("x.sqsh").read_bytes() == changed
    Path("x.sqsh").unlink()
    assert layer() == 0


def test_incomplete_lock_says_what_pip_resolves(work: Path, capsys: Capture) -> None:
    lock = read_lock(Path("matrix.lock"))
    store(replace(lock, left_open=("einops>=0.8",)))
    assert made("--offline") == 0
    assert "The lock leaves to pip: einops>=0.8." in capsys.readouterr().err
    assert "--no-index" not in Path("train.sif.files", "env.yml").read_text()
    del work
