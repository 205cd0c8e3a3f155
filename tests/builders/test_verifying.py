"""Verifying an environment: what its answers mean, what it really answers, and the job for a GPU node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from builders.containers.runtime import HostRuntime
from builders.findings import Finding
from builders.probes import Answer as Probe
from builders.probes import judge_probe
from builders.probes.asking import Distribution as Probed
from builders.probes.asking import Said, Torch
from builders.verifying import judging
from builders.verifying.asking import (
    Answer,
    Asking,
    Gpu,
    Gpus,
    Held,
    Loaded,
    PipCheck,
    Symbols,
    UserSite,
    in_user_site,
    read_answer,
)
from builders.verifying.job import Job, hours_of, partition_for, script_of, submit
from builders.verifying.judging import judge
from builders.verifying.payload import MARK, newest_symbols
from resolver.errors import CommandError, EnvironmentLacksError, MatrixError, UsageError, VerifyError
from resolver.facts.loading import load
from resolver.facts.schema import Recipe
from resolver.model import Distribution, Request, Resolution, Target

SITE = "/opt/env/lib/python3.11/site-packages"
TORCH = "2.9.1+rocm6.4"
HIP = Gpus(torch=TORCH, hip="6.4.43482")


def pick(name: str, version: str, kind: Any = "distribution", origin: Any = "published") -> Distribution:
    return Distribution(
        name=name, version=version, kind=kind, origin=origin, support="observed", verdict="supported"
    )


def lock(backend: Any = "rocm") -> Resolution:
    target = Target(site="lumi-g", date=date(2026, 3, 1), backend=backend, gfx=("gfx90a",))
    return Resolution(
        request=Request(target),
        target=target,
        picks=(pick("python", "3.11", "platform", "request"), pick("torch", TORCH), pick("My_Ext", "1.0+x")),
    )


def answer(**said: Any) -> Answer:
    given: dict[str, Any] = {
        "schema": 1,
        "python": "3.11.7",
        "executable": "/opt/env/bin/python",
        "prefix": "/opt/env",
        "distributions": [Held("torch", TORCH, SITE), Held("my-ext", "1.0+x", SITE)],
        "pip_check": PipCheck(0, ["No broken requirements found."]),
        "user_site": UserSite("3.11"),
        "system_libstdcxx": Symbols("/usr/lib64/libstdc++.so.6", "3.4.33"),
        "loaded": Loaded(),
        "gpu": HIP,
    }
    return Answer(**(given | said))


def judged(
    said: Answer,
    *,
    against: Resolution | None = None,
    own: dict[str, str] | None = None,
    need_gpu: bool = False,
) -> dict[str, Finding]:
    found = judge(said, against or lock(), own or {}, need_gpu=need_gpu)
    return {one.id: one for one in found}


def errors(found: dict[str, Finding]) -> set[str]:
    return {name for name, one in found.items() if one.severity == "error"}


# --- what the answers mean ----------------------------------------------------------------------------


def test_an_environment_as_it_should_be_has_no_errors_and_says_what_was_not_judged() -> None:
    found = judged(answer())
    assert not errors(found)
    assert found["verify-pins"].message.startswith("2 of 2 ")
    assert found["verify-gpu-not-judged"].severity == "warning"
    assert {one for one in found if "not-judged" in one} == {"verify-gpu-not-judged"}


@pytest.mark.parametrize(
    ("said", "expected", "words"),
    [
        ({"distributions": [Held("torch", TORCH, SITE)]}, "verify-pin-missing", "My_Ext 1.0+x"),
        (
            {"distributions": [Held("torch", "2.9.1+cu128", SITE), Held("my-ext", "1.0+x", SITE)]},
            "verify-pin-differs",
            "torch is 2.9.1+cu128, and the lock pins 2.9.1+rocm6.4",
        ),
        ({"python": "3.12.1"}, "verify-python", "3.12.1"),
        (
            {"distributions": [*answer().distributions, Held("nvidia_cublas_cu12", "12.8", SITE)]},
            "verify-nvidia",
            "nvidia-cublas-cu12 12.8",
        ),
        ({"gpu": Gpus(torch="2.9.1", cuda="12.8")}, "verify-torch-cuda", "CUDA 12.8"),
        ({"gpu": Gpus(torch="2.9.1+cpu")}, "verify-torch-cpu", "not built for ROCm"),
        ({"gpu": Gpus(failed="signal 11")}, "verify-torch-failed", "signal 11"),
        (
            {"pip_check": PipCheck(1, ["my-ext 1.0+x requires six, which is not installed."])},
            "verify-pip-check-broken",
            "requires six",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("verify") else "",
)
def test_what_is_wrong_is_an_error(said: dict[str, Any], expected: str, words: str) -> None:
    found = judged(answer(**said))
    assert errors(found) == {expected}
    assert words in found[expected].message


def test_what_concerns_others_is_a_warning() -> None:
    found = judged(answer(pip_check=PipCheck(1, ["jupyter 1 requires six, which is not installed."])))
    assert not errors(found)
    assert found["verify-pip-check-others"].severity == "warning"
    assert "verify-pip-check" not in found


def test_without_pip_nothing_is_said_of_requirements() -> None:
    found = judged(answer(pip_check=PipCheck(None, [])))
    assert found["verify-pip-check-not-judged"].severity == "warning"
    assert "verify-pip-check" not in found


def test_without_a_lock_versions_are_not_judged() -> None:
    found = {one.id: one for one in judge(answer(), None, {}, need_gpu=False)}
    assert found["verify-pins-not-judged"].severity == "warning"
    assert not errors(found)
    cuda = {one.id for one in judge(answer(gpu=Gpus(torch="2", cuda="12")), None, {}, need_gpu=False)}
    assert "verify-torch-cuda" in cuda


def test_for_the_cpu_no_gpu_is_missed() -> None:
    found = judged(answer(gpu=Gpus(torch="2.9.1+cpu")), against=lock("cpu"))
    assert not errors(found)
    assert not [one for one in found if "gpu" in one]


def test_a_distribution_that_is_there_twice() -> None:
    twice = Held("Torch", "2.8.0", "/usr/lib/python3/dist-packages")
    found = judged(answer(distributions=[*answer().distributions, twice]))
    assert not errors(found)  # the first on the path counts, and that one is right
    assert "2.8.0 in /usr/lib/python3/dist-packages" in found["verify-twice"].message


def test_what_lies_in_the_home_directory() -> None:
    found = judged(answer(), own={"torch": "1.0", "six": "1.16"})
    assert errors(found) == {"verify-user-site"}
    assert "torch 1.0" in found["verify-user-site"].message
    assert "PYTHONNOUSERSITE=1" in found["verify-user-site"].fix
    adds = judged(answer(), own={"six": "1.16"})
    assert (errors(adds), adds["verify-user-site-adds"].severity) == (set(), "warning")
    shut = judged(answer(user_site=UserSite("3.11", "it is a virtual environment")), own={"torch": "1.0"})
    assert (errors(shut), shut["verify-user-site-shut"].severity) == (set(), "info")


def test_where_libraries_load_from() -> None:
    objects = [
        "/opt/env/lib/libstdc++.so.6.0.30",
        "/opt/env/lib/python3.11/site-packages/torch/lib/librccl.so",
        "/opt/rocm/lib/librccl.so.1.0",
        "/opt/env/lib/librccl-net.so",
        "/opt/env/lib/libMIOpen-3f1a2b3c.so.1",
    ]
    older = [Symbols("/opt/env/lib/libstdc++.so.6.0.30", "3.4.30")]
    found = judge(answer(loaded=Loaded(objects, {}, older)), lock(), {}, need_gpu=False)
    loads = {one.evidence["library"]: one.evidence["member"] for one in found if one.id == "verify-library"}
    assert loads == {"libstdc++": objects[0], "libMIOpen": objects[4]}
    (twice,) = [one for one in found if one.id == "verify-library-twice"]
    assert (twice.severity, "librccl is loaded more than once" in twice.message) == ("warning", True)
    assert "librccl-net" not in twice.message
    (shadowed,) = [one for one in found if one.id == "verify-libstdcxx-older"]
    assert "GLIBCXX_3.4.30" in shadowed.message
    assert "GLIBCXX_3.4.33" in shadowed.message


def test_a_newer_libstdcxx_is_fine() -> None:
    newer = Loaded([], {}, [Symbols("/opt/env/lib/libstdc++.so.6", "3.4.34")])
    assert "verify-libstdcxx-older" not in judged(answer(loaded=newer))


def test_libraries_that_could_not_be_seen() -> None:
    found = judged(answer(loaded=Loaded(failed="signal 6")))
    assert found["verify-libraries-not-judged"].severity == "warning"


def test_gpus() -> None:
    good = Gpus(TORCH, "6.4", "", [Gpu("AMD Instinct MI250X", "gfx90a:sramecc+:xnack-", "")])
    assert judged(answer(gpu=good), need_gpu=True)["verify-gpu"].severity == "info"
    assert "verify-gpu-not-judged" not in judged(answer(gpu=good))
    other = Gpus(TORCH, "6.4", "", [Gpu("AMD Instinct MI300X", "gfx942:sramecc+", "")])
    assert errors(judged(answer(gpu=other))) == {"verify-gpu-target"}
    broken = Gpus(TORCH, "6.4", "", [Gpu("", "gfx90a", "the product of two matrices is wrong")])
    assert errors(judged(answer(gpu=broken))) == {"verify-gpu-failed"}
    assert errors(judged(answer(), need_gpu=True)) == {"verify-no-gpu"}


@pytest.mark.parametrize(
    ("said", "severity"),
    [
        (Said("tiny", error="ModuleNotFoundError", text="No module named 'hjson'", missing="hjson"), "error"),
        (Said("tiny", error="OSError", text="libamdhip64.so.6: cannot open shared object file"), "error"),
        (Said("tiny", error="RuntimeError", text="No HIP GPUs are available"), "warning"),
    ],
    ids=lambda value: getattr(value, "text", ""),
)
def test_a_finished_environment_has_no_excuse_but_the_gpu(said: Said, severity: str) -> None:
    recipe = Recipe(package="tiny", backend="rocm", imports=("tiny",), status="observed", source="a test")
    probe = Probe(1, "3.11", Probed("tiny", "1.0", ["tiny"]), Torch(TORCH, "6.4"), [said], [], None)
    (found,) = judge_probe(probe, recipe, complete=True)
    assert found.severity == severity


# --- what a real environment answers ------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Make an environment with a stand-in for torch and an extension that loads the C++ runtime."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    (packages,) = (tmp_path / "env").glob("lib/python3*/site-packages")
    # Stands in for torch: no GPU, no libraries.
    torch = "class version:\n    hip, cuda = '6.4', None\n__version__ = '2.9.1+rocm6.4'\nprint('noise')\n"
    torch += "class cuda:\n    device_count = staticmethod(lambda: 0)\n"
    extension = "import ctypes; ctypes.CDLL('libstdc++.so.6')\n"
    for name, version, code in (("torch", TORCH, torch), ("my_ext", "1.0+x", extension)):
        (packages / f"{name}.py").write_text(code)
        info = packages / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return tmp_path / "env" / "bin" / "python"


def asking(tmp_path: Path, python: Path, **env: str) -> Asking:
    (tmp_path / "scripts").mkdir(exist_ok=True)
    return Asking(HostRuntime(), str(python), folder=tmp_path / "scripts", log=tmp_path / "log", env=env)


def test_a_real_environment_answers(tmp_path: Path, environment: Path) -> None:
    said = asking(tmp_path, environment).environment(["torch", "my_ext", "no_such"])
    assert {one.name: one.version for one in said.distributions} == {"torch": TORCH, "my_ext": "1.0+x"}
    assert said.gpu == Gpus(TORCH, "6.4", "", [])
    assert said.pip_check == PipCheck(None, [])
    assert said.user_site.shut == "it is a virtual environment"
    assert said.loaded.errors == {"no_such": "ModuleNotFoundError: No module named 'no_such'"}
    assert any(Path(path).name.startswith("libstdc++.so") for path in said.loaded.objects)
    (loaded,) = said.loaded.libstdcxx
    assert loaded.glibcxx.startswith("3.4.")
    assert errors(judged(said)) <= {"verify-python"}  # this Python may be another than 3.11


def test_a_module_that_crashes_silences_nothing_else(tmp_path: Path, environment: Path) -> None:
    (packages,) = environment.parent.parent.glob("lib/python3*/site-packages")
    (packages / "torch.py").write_text("import os; os.abort()\n")
    said = asking(tmp_path, environment).environment(["torch"])
    assert said.loaded.failed.startswith("signal 6")
    assert said.gpu.failed.startswith("signal 6")
    assert len(said.distributions) == 2


def test_no_python_and_no_answer(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no Python that runs") as caught:
        asking(tmp_path, tmp_path / "none").environment([])
    assert "--python" in caught.value.hint
    with pytest.raises(VerifyError, match="the last it said was: hello"):
        read_answer("hello\n\n")
    with pytest.raises(VerifyError, match="cannot be read"):
        read_answer(f"{MARK}{{}}")


def test_what_a_user_installed(tmp_path: Path) -> None:
    info = tmp_path / "lib" / "python3.12" / "site-packages" / "Six_.x-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: Six_.x\nVersion: 1.0\n")
    assert in_user_site(tmp_path, "3.12") == {"six-x": "1.0"}
    assert in_user_site(tmp_path, "3.11") == {}


def test_symbol_versions_are_compared_as_numbers(tmp_path: Path) -> None:
    (tmp_path / "lib").write_bytes(b"\0GLIBCXX_3.4.9\0GLIBCXX_3.4.30\0GLIBCXX_3.4\0GLIBCXX_DEBUG\0")
    assert newest_symbols(str(tmp_path / "lib"))["glibcxx"] == "3.4.30"
    assert newest_symbols("") == {"path": "", "glibcxx": ""}


# --- the job ------------------------------------------------------------------------------------------

JOB = Job("dev-g", "project_1", "00:15:00", ["/a b/python", "-m", "matrix"], "/w/matrix-verify-%j.out")


def test_the_job_s_script(tmp_path: Path) -> None:
    text = script_of(JOB)
    assert text.startswith("#!/bin/bash\n")
    options = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert options == [
        "#SBATCH --job-name=matrix-verify", "#SBATCH --partition=dev-g", "#SBATCH --account=project_1",
        "#SBATCH --time=00:15:00", "#SBATCH --nodes=1", "#SBATCH --ntasks=1", "#SBATCH --gpus-per-node=1",
        '#SBATCH --output="/w/matrix-verify-%j.out"',
    ]  # fmt: skip
    assert text.splitlines()[-1] == "exec '/a b/python' -m matrix"
    (tmp_path / "script").write_text(text)
    subprocess.run(["bash", "-n", str(tmp_path / "script")], check=True)
    assert "--account" not in script_of(Job("p", "", "5", ["x"], "o"))


@pytest.mark.parametrize("value", ["a b", "x\n#SBATCH --uid=0", "$(id)", '"'])
def test_nothing_else_gets_into_the_script(value: str) -> None:
    with pytest.raises(UsageError):
        script_of(Job(value, "", "5", ["x"], "o"))


@pytest.mark.parametrize(
    ("site", "time", "partition"), [("lumi-g", "00:15:00", "dev-g"), ("lumi-g", "1-12:00:00", "standard-g")]
)
def test_the_partition_with_the_shortest_limit(site: str, time: str, partition: str) -> None:
    assert partition_for(load(), site, hours_of(time)) == partition


def test_a_site_without_gpus_and_a_time_that_is_none() -> None:
    with pytest.raises(UsageError, match="no GPU partition of lumi-c"):
        partition_for(load(), "lumi-c", 0.25)
    with pytest.raises(UsageError, match="for 1000 hours") as caught:
        partition_for(load(), "lumi-g", 1000)
    assert "dev-g up to 3 h" in caught.value.hint
    with pytest.raises(UsageError, match="'soon' is no time"):
        hours_of("soon")


def standin_sbatch(folder: Path, code: str) -> None:
    """Write a stand-in for sbatch."""
    folder.mkdir(exist_ok=True)
    (folder / "sbatch").write_text(f"#!/bin/sh\n{code}\n")
    (folder / "sbatch").chmod(0o755)


def test_submitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, log = tmp_path / "job", tmp_path / "log"
    script.write_text(script_of(JOB))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(EnvironmentLacksError, match="sbatch is not on PATH"):
        submit(script, log)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin:/bin")
    standin_sbatch(tmp_path / "bin", '[ "$1" = --parsable ] && [ -s "$2" ] && echo "4711;lumi"')
    assert submit(script, log) == "4711"
    standin_sbatch(tmp_path / "bin", 'echo "sbatch: error: invalid account" >&2; exit 1')
    with pytest.raises(CommandError, match="invalid account"):
        submit(script, log)
    standin_sbatch(tmp_path / "bin", "echo done")
    with pytest.raises(MatrixError, match="named no job"):
        submit(script, log)


# --- the docs -----------------------------------------------------------------------------------------


def test_every_finding_is_explained() -> None:
    source = Path(judging.__file__)
    given = re.findall(r'Finding\(\s*"([a-z-]+)",\s*"([a-z]+)"', source.read_text())
    rows = re.findall(
        r"(?m)^\| `(verify-[a-z-]+)` \| ([a-z]+) \|",
        (source.parents[2] / "docs" / "verifying.md").read_text(),
    )
    assert sorted(set(given)) == sorted(rows)
    assert len(rows) == source.read_text().count('"verify-')
