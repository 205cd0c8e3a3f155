"""Plans as files for batch systems and CI. Tasks whose wheels the index has are left out."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from matrix.planning import Plan, PlannedTask

_SUBMIT = """\
#!/bin/bash
# Written by `matrix plan`. It submits one Slurm job for each wheel, held until all are submitted.
# Its arguments are passed to sbatch: bash build.sh --partition=small --account=project_1
set -Eeuo pipefail
cd {directory}
mkdir -p {logs}
options=("$@")
jobs=()
trap '[ ${{#jobs[@]}} -eq 0 ] || scancel "${{jobs[@]}}"' ERR

# submit NAME CORES MIB MINUTES DEPENDENCY COMMAND: sets $job
submit() {{
  job=$(sbatch --parsable --hold --kill-on-invalid-dep=yes --nodes=1 --ntasks=1 \\
    --job-name="$1" --cpus-per-task="$2" --mem="$3M" --time="$4" ${{5:+"--dependency=$5"}} \\
    --output={logs}/"slurm-%j-$1.log" "${{options[@]}}" --wrap="$6")
  job=${{job%%;*}}
  jobs+=("$job")
}}
"""


def sbatch_script(plan: Plan) -> str:
    """Return a script that submits a Slurm job for each task, after those that it requires (sbatch(1))."""
    logs = shlex.quote(f"{plan.index}/.matrix/logs")
    lines = [_SUBMIT.format(directory=shlex.quote(plan.directory), logs=logs)]
    numbers = {task.key: number for number, task in enumerate(plan.missing, start=1)}
    for task in plan.missing:
        after = [f"${{job_{numbers[key]}}}" for key in task.requires if key in numbers]
        words = [
            f"matrix-{task.name}",
            str(task.cores),
            str(_mebibytes(task)),
            str(math.ceil(task.time_limit / 60)),
        ]
        dependency = f'"afterok:{":".join(after)}"' if after else "''"
        command = shlex.quote(shlex.join(_limited(task)))
        lines += [
            f"# {task.name} {task.version}",
            f"submit {shlex.join(words)} {dependency} \\\n  {command}",
            f"job_{numbers[task.key]}=$job",
        ]
    lines += ["", 'if [ ${#jobs[@]} -gt 0 ]; then scontrol release "${jobs[@]}"; fi', 'echo "${jobs[@]}"', ""]
    return "\n".join(lines)


def _limited(task: PlannedTask) -> list[str]:
    """Return the command with the limits that the batch system enforces."""
    return [*task.command, "--jobs", str(task.cores)]


def _mebibytes(task: PlannedTask) -> int:
    """Return the memory to request: for the compile jobs, and one GiB for everything else."""
    return math.ceil(task.memory_gib * 1024) + 1024


FORMATS: dict[str, Callable[[Plan], str]] = {"sbatch": sbatch_script}
"""Format to the function that writes it."""
