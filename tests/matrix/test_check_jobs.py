"""Job scripts that people wrote, retyped: what the site's rows say about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from matrix.cli import main

HEAD = "#!/bin/bash\n#SBATCH --partition=standard-g\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n"
SCRIPTS: dict[str, tuple[str, set[tuple[int, str]]]] = {
    # Scripts for LUMI in public repositories, before the correction of
    # https://github.com/Lumi-supercomputer/LUMI-AI-Guide/pull/108 (MIOPEN_USER_DB).
    "misspelt": (
        HEAD + "export NCCL_SOCKET_IFNAME=hsn\nexport MIOPEN_USER_DB=/tmp/$USER\nsrun python train.py\n",
        {(6, "job-name")},
    ),
    "no-interface": (HEAD + "srun singularity exec my.sif python train.py\n", {(1, "job-variable")}),
    "one-node-needs-none": (
        "#!/bin/bash\n#SBATCH -N 1\n#SBATCH -p small-g\nsrun singularity exec my.sif python train.py\n",
        set(),
    ),
    # https://github.com/lumi-ai-factory/laifs-container-recipes/issues/30
    "gdr-level": (
        HEAD + "export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3\nexport NCCL_NET_GDR_LEVEL=PHB\n"
        "srun singularity run my-rocm-7.0.sif python train.py\n",
        {(1, "job-variable"), (6, "job-variable")},  # and FI_MR_CACHE_MONITOR is missing
    ),
    # https://github.com/lumi-ai-factory/laifs-container-recipes/issues/13, Parsl/parsl issue 3858
    "two-filters": (
        HEAD
        + "export NCCL_SOCKET_IFNAME=hsn\nexport ROCR_VISIBLE_DEVICES=2,3\nexport HIP_VISIBLE_DEVICES=2,3\n"
        "srun python train.py\n",
        {(7, "job-devices")},
    ),
    # LUMI-training-materials docs/2day-20260422/201-Slurm.md
    "gpus-per-task": (
        HEAD.replace("--gpus-per-node=8", "--gpus-per-task=1")
        + "export NCCL_SOCKET_IFNAME=hsn\nsrun python train.py\n",
        {(4, "job-layout")},
    ),
    # jpata/particleflow: torchrun's processes are one task, which has all GPUs.
    "gpus-per-task-of-one-task": (
        HEAD.replace("--gpus-per-node=8", "--gpus-per-task=8\n#SBATCH --ntasks-per-node=1")
        + "export NCCL_SOCKET_IFNAME=hsn\nsrun torchrun train.py\n",
        set(),
    ),
    # CSC's module of torch, and LUMI's of EasyBuild, set the variables of RCCL.
    "module-of-csc": (
        HEAD + "module use /appl/local/csc/modulefiles\nmodule load pytorch\nsrun torchrun train.py\n",
        set(),
    ),
    "module-of-easybuild": (
        HEAD
        + "module load CrayEnv\nmodule load PyTorch/2.0.1-rocm-5.5.1\nsrun conda-python-distributed a.py\n",
        set(),
    ),
    "activated": (HEAD + "source venv/bin/activate\nsrun python train.py\n", {(1, "job-variable")}),
    "activated-by-conda": (HEAD + "source activate env\nsrun python train.py\n", {(1, "job-variable")}),
    "sourced": (HEAD + "source setup.sh\nsrun python train.py\n", set()),
    # A guide for Frontier has the words of the name in another order.
    "swapped-words": (
        HEAD + "export NCCL_SOCKET_IFNAME=hsn\nexport ROCR_DEVICES_VISIBLE=0,1\nsrun python train.py\n",
        {(6, "job-name")},
    ),
    "masks-on-shared-nodes": (
        "#!/bin/bash\n#SBATCH -p small-g\nsrun --cpu-bind=mask_cpu:0xfe,0xfe00 singularity exec a.sif true\n",
        {(3, "job-layout")},
    ),
    "cpu-bind-without-cores": (
        "#!/bin/bash\n#SBATCH -p standard-g\nsrun --cpu-bind=cores singularity exec a.sif true\n",
        {(3, "job-layout")},
    ),
    "user-site": (
        "#!/bin/bash\n#SBATCH -p dev-g\nsrun singularity exec a.sif bash -c 'pip install --user apex'\n",
        {(3, "job-user-site")},
    ),
}


def findings_of(
    text: str, folder: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> set[tuple[int, str]]:
    script = folder / "job.sh"
    script.write_text(text)
    main(["check", str(script), "--site", "lumi-g", "--date", "2026-11-20", "--format", "json", *options])
    found = json.loads(capsys.readouterr().out)["things"][0]["findings"]
    return {
        (one["evidence"]["line"], one["id"])
        for one in found
        if one["id"].startswith("job-") and one["severity"] != "info"
    }


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_has_exactly_these_findings(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, expected = SCRIPTS[name]
    assert findings_of(text, tmp_path, capsys) == expected


def test_order_of_the_exports_does_not_matter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        "export NCCL_NET_GDR_LEVEL=SYS",
        "export HSA_OVERRIDE_GFX_VERSION=9.0.0",
        "export NCCL_SOCKET_IFNAME=eth0",
    ]
    run = "srun singularity exec lumi-rocm-7.2.sif true\n"
    first = {name for _, name in findings_of(HEAD + "\n".join(lines) + "\n" + run, tmp_path, capsys)}
    second = {
        name for _, name in findings_of(HEAD + "\n".join(reversed(lines)) + "\n" + run, tmp_path, capsys)
    }
    assert first == second == {"job-variable", "job-override"}


def test_scripts_that_the_program_writes_have_no_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    resolve = ["resolve", "torch", "--site", "lumi-g", "--date", "2026-11-20", "-q"]
    assert main(resolve) == 0
    assert main(["env", "--for", "slurm-job", "-o", "job.sh", "-q"]) == 0
    capsys.readouterr()
    scripts = sorted(tmp_path.rglob("*.sh")) + sorted(tmp_path.rglob("*.sbatch"))
    assert scripts
    for script in scripts:
        assert findings_of(script.read_text(), tmp_path, capsys) == set(), script.name


@pytest.mark.parametrize(
    "text",
    [
        "FROM rocm/dev-ubuntu-22.04:6.4.4\nENV A=1 HSA_OVERRIDE_GFX_VERSION=11.0.0\n",
        "FROM rocm/vllm:latest\nENV HSA_OVERRIDE_GFX_VERSION=9.4.2\nRUN pip install einops\n",
    ],
)
def test_override_in_an_image_is_found(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ROCm would load code for another GPU than the site's in every container of the image."""
    file = tmp_path / "Dockerfile"
    file.write_text(text)
    main(["check", str(file), "--site", "lumi-g", "--date", "2026-11-20", "--offline", "--format", "json"])
    found = json.loads(capsys.readouterr().out)["things"][0]["findings"]
    assert [(one["evidence"]["line"], one["id"]) for one in found if one["id"] == "job-override"]
