"""``matrix plan``: the build tasks of a lock, as text or as data for batch systems and CI.

Tasks whose wheels the index has are left out of scripts, workflows and pipelines.

Sources: sbatch(1) of Slurm 22.05; HyperQueue's job definition file
(It4innovations/hyperqueue@680857bd:docs/jobs/jobfile.md); the schemas of GitHub's workflows and GitLab's
pipelines that SchemaStore publishes, which the tests use.
"""

from __future__ import annotations

import math
import shlex
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders.building.records import command_of
from builders.index import Index
from builders.scheduling.hyperqueue import job_definition
from builders.scheduling.slurm import limits_of, needs_of, pack
from matrix.building.coverage import add_table, check_table_options, cover
from matrix.building.planning import SHORT_KEY, contexts_of_locks, make_plan, tasks_of
from matrix.command_line.options import (
    add_format,
    add_index,
    add_limits,
    add_locks,
    add_names,
    add_ops,
    add_target_options,
    add_wheel_options,
    output_path,
)
from matrix.input.locking import same_target
from matrix.input.request import check_names
from matrix.show.render import PLAIN, Screen, duration
from matrix.show.resolution_text import show_conflict, time_text
from resolver.model import Conflict
from resolver.texts import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from builders.building.plan import Task
    from builders.building.records import TaskState
    from matrix.building.planning import Plan
    from matrix.command_line.context import Context


SUMMARY = "print the build tasks of a lock: key, command, cores, memory, expected time"
EXAMPLE = "matrix plan --jobs 16 --memory 64 --format sbatch -o build.sh"
MOST_USED = ("--lock", "--index", "--jobs", "--format", "--output")

_SUBMIT = """\
#!/bin/bash
# Written by `matrix plan`. It submits Slurm jobs that build the wheels, held until all are submitted.
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
    """Return a script that submits the tasks in Slurm jobs, as ``--executor slurm`` does (sbatch(1))."""
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
    lines += ["", 'if [ ${#jobs[@]} -gt 0 ]; then scontrol release "${jobs[@]}"; fi', 'echo "${jobs[@]}"', ""]
    return "\n".join(lines)


def hyperqueue_jobs(plan: Plan) -> str:
    """Return a job definition file for HyperQueue."""
    commands = {task.key: [*command_of([task]), "--jobs", str(task.cores)] for task in plan.missing}
    logs = Path(plan.index, ".matrix", "logs")
    text = job_definition("matrix", plan.missing, commands, directory=plan.directory, logs=logs)
    return f"# Written by `matrix plan`. To submit it: `hq job submit-file FILE`\n{text}"


def github_workflow(plan: Plan) -> str:
    """Return a GitHub workflow: a job for each task, whose artifact is the index with its wheel."""
    jobs: dict[str, Any] = {}
    names = _job_names(plan)
    index = _relative(plan.index, plan)
    for task in plan.missing:
        needs = [names[key] for key in task.requires if key in names]
        download = [
            {
                "uses": "actions/download-artifact@v4",
                "with": {"name": name, "path": index},
            }
            for name in needs
        ]
        jobs[names[task.key]] = {
            "name": f"{task.name} {task.version}",
            **({"needs": needs} if needs else {}),
            "runs-on": "self-hosted",
            "timeout-minutes": math.ceil(task.time_limit / 60),
            "steps": [
                {"uses": "actions/checkout@v4"},
                *download,
                {"run": _relative_command(task, plan)},
                {
                    "uses": "actions/upload-artifact@v4",
                    "if": "always()",
                    "with": {"name": names[task.key], "path": index, "include-hidden-files": True},
                },
            ],
        }
    return _yaml(_as_data({"name": "wheels", "on": {"workflow_dispatch": {}}, "jobs": jobs}))


def _as_data(value: Any) -> Any:  # noqa: ANN401  any YAML value
    """Return a value in which GitHub evaluates no text: ``${{`` becomes an expression with this text."""
    if isinstance(value, dict):
        return {_as_data(key): _as_data(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_data(item) for item in value]
    return value.replace("${{", "${{ '${{' }}") if isinstance(value, str) else value


def gitlab_pipeline(plan: Plan) -> str:
    """Return a GitLab child pipeline: a job for each task, whose artifact is the index with its wheel."""
    names = _job_names(plan)
    index = _relative(plan.index, plan)
    jobs = {
        names[task.key]: {
            "stage": "build",
            "needs": [names[key] for key in task.requires if key in names],
            "script": [_relative_command(task, plan)],
            "timeout": f"{math.ceil(task.time_limit / 60)} minutes",
            "artifacts": {"when": "always", "paths": [index.replace("$", "$$")]},  # `$NAME` is a variable
        }
        for task in plan.missing
    }
    return _yaml({"stages": ["build"], **jobs})


def _job_names(plan: Plan) -> dict[str, str]:
    return {task.key: f"{task.name}-{task.key[:8]}" for task in plan.missing}


def _relative(word: str, plan: Plan) -> str:
    """Return a path in the plan's directory relative to that directory; return any other word unchanged."""
    return word.removeprefix(f"{plan.directory}/")


def _relative_command(task: TaskState, plan: Plan) -> str:
    return shlex.join(_relative(word, plan) for word in task.command)


def _yaml(document: object) -> str:
    from ruamel.yaml import YAML

    stream = StringIO()
    yaml = YAML()
    yaml.width = 4096  # commands stay on one line
    yaml.dump(document, stream)
    return f"# Written by `matrix plan`.\n{stream.getvalue()}"


FORMATS: dict[str, Callable[[Plan], str]] = {
    "sbatch": sbatch_script,
    "hq": hyperqueue_jobs,
    "github": github_workflow,
    "gitlab": gitlab_pipeline,
}
"""The function that writes each format."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(parser, "names", metavar="NAME", help="plan only these, and their build requirements")
    add_locks(parser)
    add_index(parser)
    add_wheel_options(parser)
    add_ops(parser)
    add_table(parser)
    add_limits(parser)
    add_format(parser, ("text", "json", *FORMATS))
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=output_path, help="where to write (default: stdout)"
    )
    add_target_options(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    check_table_options(args)
    index = Index(args.index)
    if args.table is not None:
        coverage = cover(context, index)
        if isinstance(coverage, Conflict):
            show_conflict(coverage, console, as_json=args.format == "json")
            return 1
        if coverage.obstacle:
            raise coverage.obstacle
        tasks = [(context, []), *coverage.tasks_of_locks()]
    else:
        tasks = _tasks_of_locks(context, index)
    plan = make_plan(tasks, index)
    if args.format == "json":
        console.document(plan, args.output)
        return 0
    if args.format == "text":
        text = _text(plan, PLAIN if args.output else console.out)
    else:
        text = FORMATS[args.format](plan).rstrip("\n")
    console.result(text, args.output)
    return 0


def _tasks_of_locks(context: Context, index: Index) -> list[tuple[Context, list[Task]]]:
    names = check_names(context.args.names)
    tasks = []
    for lock in contexts_of_locks(context):
        catalog = lock.catalog_of_lock
        same_target(lock.lock, lock.args, catalog)
        tasks.append((lock, tasks_of(lock.lock, catalog, index, lock.args, names)))
    return tasks


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
