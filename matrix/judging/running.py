"""Start a container or an environment, and judge what it answers: versions, imports, ops, libraries, GPUs.

On a GPU node, a Slurm job does the same.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from builders.building.inputs import environment_of
from builders.containers.engines import choose_runtime
from builders.containers.image import find_image
from builders.diagnosis import DiagnosisContext
from builders.findings import Finding
from builders.index import Index
from builders.machine.host import own_program
from builders.probe.all_reduce import all_reduce, require_nodes
from builders.probe.ask import EnvironmentReply, Probe, user_packages
from builders.probe.environment import judge_contents, judge_environment, judge_variables
from builders.probe.wheel import judge_wheel
from builders.recipes import recipe_as_built
from builders.scheduling.slurm import BatchJob, hours_of, job_script, partition_for, submit, wait_for
from builders.storage.files import cache_root, write_atomic
from builders.storage.lease import TemporaryDirectory
from builders.wheels.wheel import DamagedError, WheelReader, record_rows
from matrix.building.locked import wheels_of_lock
from matrix.command_line.arguments import arguments_of
from matrix.command_line.context import built_recipes
from matrix.consumers.shared.container_variables import site_values
from matrix.consumers.shared.installation import Installation
from matrix.consumers.slurm_job import all_reduce_for_check, job_of, script_for_check
from matrix.input.locking import exclude_pick
from resolver.compiling.known_bad import problems_of
from resolver.environment import tags_of
from resolver.errors import UsageError
from resolver.facts.schema import Recipe
from resolver.requirements import normalize_name

if TYPE_CHECKING:
    import argparse

    from matrix.command_line.context import Context
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Job, SiteVariable
    from resolver.model import Distribution, Resolution

SCRIPT = Path("matrix-check.sbatch")
TIME = "00:15:00"
ALL_REDUCE_SECONDS = 300.0
_OUTPUT = "matrix-check-%j.out"
_EXIT = "matrix-check-%j.exit"
_RUN_WORDS = 3
"""The words of ``bash run.sh python``."""
IMAGES = {".sif", ".sqsh", ".squashfs", ".tar"}
_GPU_VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_NEW_CONTAINER = "Build the container again from the files that `matrix env` writes."
_NEW_ENVIRONMENT = "Create the environment again from the files that `matrix env` writes."
_MODULES = {
    "pytorch-triton-rocm": "triton", "torch": "torch", "torchaudio": "torchaudio",
    "torchvision": "torchvision", "triton-rocm": "triton",
}  # fmt: skip
"""Module of each distribution that is not a package of the catalog."""


def place_of(thing: str) -> Path | str:
    """Return what a thing starts: an image, or the command that starts a Python; empty for that on PATH.

    An environment, a script like ``run.sh`` and a Python have such a command.
    """
    path = Path(thing)
    if (path / "bin" / "python").exists() and not (path / "usr").exists():
        return shlex.quote(str(path / "bin" / "python"))
    if path.suffix == ".sh" and path.is_file():
        return shlex.join(["bash", thing, "python"])
    is_program = path.is_file() and os.access(path, os.X_OK)
    # An address has no space; a command may have arguments such as ``--bind a:/b``.
    is_image = path.suffix in IMAGES or ":/" in thing.partition(" ")[0] or (path.exists() and not is_program)
    return path if thing and is_image else thing


def start(
    thing: str, context: Context, wheels: Mapping[str, Sequence[Path]] | None = None
) -> tuple[EnvironmentReply, list[Finding]]:
    """Probe what a thing starts, and judge its replies; compare it with the lock that ``--lock`` names.

    `wheels` are those that we built, by name; by default those of the index with the versions of the lock.
    Raise `EnvironmentLacksError` or `CommandError` if it does not start.
    """
    place = place_of(thing)
    lock, catalog = _lock(context)
    variables = context.run_variables() if lock else []
    if wheels is None:
        index = Index(context.args.index)
        wheels = wheels_of_lock(context, index) if lock else {}
    files = _recorded_files(lock, wheels) if lock else {}
    exclude = partial(exclude_pick, context.lock_path)
    if context.args.nodes > 1:
        require_nodes(context.args.nodes)
    with context.console.task("start it"):
        reply, findings = _probed(
            place, lock, catalog, variables, files, need_gpu=context.args.need_gpu, exclude=exclude
        )
    if context.args.nodes > 1:
        with context.console.task("all-reduce"):
            findings += _all_reduce(place, context)
    return reply, findings


def _all_reduce(place: Path | str, context: Context) -> list[Finding]:
    """Run an all-reduce on the nodes of this allocation, with the job script that users run."""
    args, installation = context.args, _installation(context)
    environment, python = _environment(place)
    folder = TemporaryDirectory()
    script = folder.root / "job.sh"
    script.write_text(script_for_check(installation, environment), encoding="utf-8")
    lock = installation.lock
    known = DiagnosisContext(kind="run", torch=lock.version_of("torch"), backend=lock.target.backend)
    return all_reduce(
        script,
        [python, "-c", all_reduce_for_check(job_of(installation))],
        environment=environment,
        ranks=args.nodes,
        seconds=args.timeout,
        log=Path(f"matrix-all-reduce-{os.environ.get('SLURM_JOB_ID', '')}.log").absolute(),
        context=known,
    )


def _installation(context: Context) -> Installation:
    if context.args.lock is None:
        msg = "Without a lock, it is not known how the site starts a job on several nodes."
        raise UsageError(msg, hint="Name the lock with --lock FILE.")
    job = context.catalog_of_lock.job.get(context.lock.target.site)
    return Installation(context.lock, variables=context.run_variables(), job=job)


def _environment(place: Path | str) -> tuple[Path, str]:
    """Return the environment as job scripts name it, and its Python: a path in an image, or a name."""
    if isinstance(place, Path):
        return place.resolve(), "python"
    words = shlex.split(place)
    if len(words) == _RUN_WORDS and words[0] == "bash" and words[1].endswith(".sh"):
        return Path(words[1]).resolve(), words[2]
    path = Path(words[0]).absolute() if words else Path()
    if len(words) != 1 or path.parent.name != "bin":
        msg = "A job on several nodes needs the container or the directory of the environment."
        hint = "Name a container, the directory of an environment, or run.sh."
        raise UsageError(msg, hint=hint)
    return path.parents[1], path.name


def _lock(context: Context) -> tuple[Resolution | None, Catalog]:
    lock = context.lock if context.args.lock else None
    return lock, context.catalog_of_lock if lock else context.catalog


def _probed(
    place: Path | str,
    lock: Resolution | None,
    catalog: Catalog,
    variables: Sequence[SiteVariable],
    files: Mapping[str, Mapping[str, str]],
    *,
    need_gpu: bool,
    exclude: Callable[[Distribution, str], None],
) -> tuple[EnvironmentReply, list[Finding]]:
    if isinstance(place, Path) and ":/" not in str(place) and not place.exists():
        msg = f"The file {place} does not exist."
        raise UsageError(msg, hint="Name the container that was built, such as container.sif.")
    image = find_image(place) if isinstance(place, Path) else None
    runtime = choose_runtime(None, image)
    # Several verifications may run at once, also on other nodes with the same cache.
    log = cache_root() / "logs" / f"check-{os.uname().nodename}-{os.getpid()}.log"
    log.unlink(missing_ok=True)
    if image:
        env = {name: os.environ[name] for name in _GPU_VARIABLES if name in os.environ}
    else:
        env = {"PYTHONNOUSERSITE": "", **os.environ}
    needed = {row.name: os.environ[row.name] for row in variables if row.value and row.name in os.environ}
    env |= needed
    needed |= site_values(os.environ, variables)
    built, published = built_recipes(lock, catalog) if lock else [], _published_recipes(lock, catalog)
    modules = [name for recipe in (*published, *built) for name in recipe.imports]
    if lock is None or lock.pick("torch"):
        modules.insert(0, "torch")
    folder = TemporaryDirectory()
    probe = Probe(
        runtime,
        "" if isinstance(place, Path) else place,
        folder=folder.root,
        log=log,
        env=env,
        variables=needed,
    )
    reply = probe.ask_environment(list(dict.fromkeys(modules)), files)
    own = user_packages(reply.user_site.minor)
    rebuild = _NEW_CONTAINER if image else _NEW_ENVIRONMENT
    in_index = [name for name, rows in files.items() if rows]
    findings = judge_environment(reply, lock, own, need_gpu=need_gpu, rebuild=rebuild, in_index=in_index)
    required = {name for recipe in built for name in recipe.run_environment}
    findings += judge_variables({**os.environ, **reply.variables}, variables, required)
    installed = reply.installed
    for recipe in (*built, *published):
        dist = installed.get(normalize_name(recipe.package))
        if dist is not None:  # a missing pin is a finding already
            requested = lock.request.ops_of(recipe.package) if lock else []
            promised = recipe_as_built(recipe, requested or dist.ops)
            findings += judge_wheel(probe.ask_wheel(promised), promised, rebuild)
    findings += judge_contents(probe, folder.root, reply, lock, catalog, exclude=exclude)
    problems = problems_of(catalog, lock, copied=reply.libraries.copied) if lock else []
    findings += [Finding("known-bad", "warning", str(problem)) for problem in problems]
    if (seconds := probe.seconds_to_start()) is not None:
        text = f"Python starts in {seconds:.2f} s, with its files in memory"
        findings.append(Finding("verify-start", "info", text, "", {"seconds": round(seconds, 3)}))
    log.unlink()
    return reply, findings


def _recorded_files(lock: Resolution, wheels: Mapping[str, Sequence[Path]]) -> dict[str, dict[str, str]]:
    """Return files and hashes of each distribution on top of the image; none unless we built its wheel."""
    files: dict[str, dict[str, str]] = {}
    rank = environment_of(lock).rank
    for pick in lock.distributions:
        if pick.origin == "preinstalled":
            continue
        paths = wheels.get(pick.name, ())
        ranked = [path for path in paths if rank(tags_of(path.name)) is not None]
        name = normalize_name(pick.name)
        files[name] = {}
        if len(ranked) == 1:  # if it is not known which of several builds is meant, none is compared
            with suppress(DamagedError, OSError):
                files[name] = _record_of(ranked[0])
    return files


def _record_of(path: Path) -> dict[str, str]:
    """Return the hashes of a wheel's files that keep their path when they are installed."""
    with WheelReader(path) as wheel:
        rows = record_rows(wheel.text("RECORD"))
        return {row[0]: row[1] for row in rows if len(row) > 1 and row[1] and ".data/" not in row[0]}


def _published_recipes(lock: Resolution | None, catalog: Catalog) -> list[Recipe]:
    """Return for each published distribution a recipe that promises its import, and what else must load.

    Without a lock, they are those of the catalog with objects that an import does not load.
    """
    modules = {**{name: row.import_name for name, row in catalog.package.items()}, **_MODULES}
    objects = {name: row.must_load for name, row in catalog.package.items() if row.must_load}
    names = (
        [pick.name for pick in lock.picks if pick.kind == "distribution" and pick.origin != "build"]
        if lock
        else list(objects)
    )
    return [
        Recipe(
            package=name,
            backend=lock.target.backend if lock else "rocm",
            imports=(modules[name],),
            must_contain=objects.get(name, ()),
            status="inferred",
            source="its name",
        )
        for name in names
        if modules.get(name)
    ]


def submit_job(thing: str, context: Context) -> int:
    """Write the job that checks what a thing starts on GPU nodes, and submit it unless ``--dry-run`` is set.

    Return 0, or with ``--wait`` the exit code of the job. Raise `UsageError` if the lock is for CPUs, the
    partition is not known, or a value is not valid for sbatch; `EnvironmentLacksError` or `CommandError` if
    sbatch is not installed, or rejected the job; `MatrixError` if it did not start within the time of
    ``--wait``, or ended without a result.
    """
    args, console, place = context.args, context.console, place_of(thing)
    lock, catalog = _lock(context)
    backend = lock.target.backend if lock else "rocm"
    if backend == "cpu" and args.nodes == 1:
        msg = "The lock is for CPUs, so a job on a GPU node would not test more."
        raise UsageError(msg, hint="Use --run instead of --gpu.")
    hours = hours_of(args.time)
    site = lock.target.site if lock else ""
    partition = args.partition
    if not partition and not site:
        msg = "There is no lock, so the site and its GPU partition are unknown."
        raise UsageError(msg, hint="Name the partition with --partition, or the lock with --lock.")
    script = args.output or SCRIPT
    folder = script.absolute().parent
    options = {"gpus-per-node": "1"} if backend == "rocm" else {}
    if args.nodes > 1:
        _environment(place)  # an error now is better than one in the job
        options |= _options_for_nodes(job_of(_installation(context)), args.nodes)
    job = BatchJob(
        partition=partition or partition_for(catalog, site, hours, backend),
        account=context.settings.account,
        time=args.time,
        command=_command(place, args, need_gpu=backend == "rocm"),
        output=str(folder / _OUTPUT),
        options=options,
        exit_file=str(folder / _EXIT) if args.wait is not None else "",
    )
    write_atomic(script, job_script(job))
    console.info(f"Wrote {script}, for partition {job.partition}, {job.time}")
    if args.dry_run:
        return 0
    number = submit(script.absolute(), cache_root() / "logs" / "sbatch.log")
    output = Path(job.output.replace("%j", number))
    if args.wait is None:
        console.data(number)
    console.info(f"Submitted job {number}. Its output goes to {output}")
    if args.wait is None:
        return 0
    exit_file = Path(job.exit_file.replace("%j", number))
    with console.task(f"wait for job {number}"):
        code = wait_for(number, minutes=args.wait, exit_file=exit_file, output=output)
    exit_file.unlink()
    console.data(output.read_text(encoding="utf-8", errors="replace").rstrip())
    return code


def _options_for_nodes(job: Job, nodes: int) -> dict[str, str]:
    """Return the options of sbatch for one rank on each node."""
    network = (option.removeprefix("--").partition("=") for option in job.network)
    return {
        "nodes": str(nodes),
        "ntasks": str(nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(job.cpus),
        **{name: value for name, _, value in network},
    }


def _command(place: Path | str, args: argparse.Namespace, *, need_gpu: bool) -> list[str]:
    """Return the command of the job, with absolute paths."""
    thing = str(place.resolve()) if isinstance(place, Path) else place
    values = {
        "need_gpu": need_gpu,
        "lock": args.lock and args.lock.resolve(),
        "index": args.index.resolve(),
        "site": args.site,
        "backend": args.backend,
        "nodes": args.nodes,
        "timeout": args.timeout if args.nodes > 1 else None,
        "catalog": [Path(overlay).resolve() for overlay in args.catalog or ()],
    }
    words = ["check", *([thing] if thing else []), "--run", *arguments_of(args.parser, values)]
    return [*own_program(), *words]
