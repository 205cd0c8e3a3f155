"""``matrix farm plan``: the build tasks of a lock, as text, as JSON, or as a script for Slurm."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

from builders.building.records import command_of
from builders.index import Index
from builders.scheduling.batch import limits_of, needs_of, pack
from matrix.building.planning import SHORT_KEY, contexts_of_locks, make_plan, tasks_of
from matrix.command_line.options import (
    add_base_image,
    add_build_host_options,
    add_catalog,
    add_format,
    add_index,
    add_limits,
    add_locks,
    add_names,
    add_output,
)
from matrix.input.locking import same_image
from matrix.input.request import check_names
from matrix.show.render import PLAIN, Screen, duration
from matrix.show.resolution_text import time_text
from resolver.texts import printable

if TYPE_CHECKING:
    import argparse

    from matrix.building.planning import Plan
    from matrix.command_line.context import Context


SUMMARY = "print the build tasks of a lock: key, command, cores, memory, expected time"
EXAMPLE = "matrix farm plan --jobs 16 --memory 64 --format sbatch -o build.sh"
MOST_USED = ("--lock", "--index", "--jobs", "--format", "--output")

_SUBMIT = """\
#!/bin/bash
# Written by `matrix farm plan`. It submits Slurm jobs that build the wheels, held until all are submitted.
# Its arguments are passed to sbatch: `bash build.sh --partition=small --account=project_1`
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
    """Return a script that submits the missing wheels in Slurm jobs, as ``--executor slurm`` does."""
    logs = shlex.quote(f"{plan.index}/.matrix/logs")
    lines = [_SUBMIT.format(directory=shlex.quote(plan.directory), logs=logs)]
    numbers: dict[str, int] = {}
    groups = pack(plan.missing, plan.max_jobs or len(plan.missing)) if plan.missing else []
    for number, group in enumerate(groups, start=1):
        needs, mebibytes = needs_of(group)
        required = sorted({numbers[key] for task in group for key in task.requires if key in numbers})
        numbers |= {task.key: number for task in group}
        more = f"+{len(group) - 1}" if len(group) > 1 else ""
        words = [f"matrix-{group[0].name}{more}", str(needs.cores), str(mebibytes)]
        words.append(str(math.ceil(needs.seconds / 60)))
        after = [f"${{job_{other}}}" for other in required]
        dependency = f'"afterok:{":".join(after)}"' if after else "''"
        command = shlex.quote(shlex.join([*command_of(group), *limits_of(needs)]))
        lines += [
            *(f"# {printable(task.name)} {printable(task.version)}" for task in group),
            f"submit {shlex.join(words)} {dependency} \\\n  {command}",
            f"job_{number}=$job",
        ]
    lines += ["", 'if [ ${#jobs[@]} -gt 0 ]; then scontrol release "${jobs[@]}"; fi', 'echo "${jobs[@]}"']
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(parser, "names", metavar="NAME", help="plan only these, and their build requirements")
    add_locks(parser)
    add_index(parser)
    add_build_host_options(parser)
    add_base_image(parser)
    add_catalog(parser)
    add_limits(parser)
    add_format(parser, ("text", "json", "sbatch"))
    add_output(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    index = Index(args.index)
    names = check_names(args.names)
    tasks = []
    for lock in contexts_of_locks(context):
        same_image(lock.lock, lock.args, lock.catalog_of_lock)
        tasks.append((lock, tasks_of(lock, index, names)))
    plan = make_plan(tasks, index)
    if args.format == "json":
        console.document(plan, args.output)
        return 0
    if args.format == "sbatch":
        text = sbatch_script(plan)
    else:
        text = _text(plan, PLAIN if args.output else console.out)
    console.result(text, args.output)
    return 0


def _text(plan: Plan, screen: Screen) -> str:
    if not plan.tasks:
        return "The plan has no tasks: everything in the lock is published."
    names = {task.key: task.name for task in plan.tasks}
    head = ["KEY", "WHEEL", "STATE", "CORES", "GIB", "TIME", "FROM", "AFTER", "WHY"]
    rows = [
        [
            task.key[:SHORT_KEY],
            f"{task.name} {task.version}",
            task.state,
            str(task.cores),
            f"{task.memory_gib:g}",
            "unknown" if task.estimate.source == "guess" else duration(task.estimate.seconds),
            "-" if task.estimate.source == "guess" else task.estimate.source,
            ", ".join(names[key] for key in task.requires) or "-",
            task.why,
        ]
        for task in plan.tasks
    ]
    times = {task.key: task.estimate for task in plan.missing}
    answer = "Nothing to build."
    lines = ["", screen.table(rows, head, indent=""), ""]
    if times:
        done = len(plan.tasks) - len(times)
        answer = f"{len(times)} to build, {time_text(times.values())}" + (
            f"; {done} up to date" if done else ""
        )
        path = " -> ".join(names[key] for key in plan.critical_path)
        critical = time_text(times[key] for key in plan.critical_path)
        lines.append(screen.wrapped(f"Critical path: {critical} ({path})"))
    return "\n".join([screen.styled("bold", answer), *lines, f"Index: {plan.index}"])
