"""``matrix verify``: check that a built container, or an environment on this machine, matches the lock."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builders.building.inputs import environment_of
from builders.constants import LOCK_FILE
from builders.containers.engines import choose_runtime
from builders.containers.image import find_image
from builders.diagnosis import DiagnosisContext
from builders.findings import Finding, limited
from builders.index import Index
from builders.probe.all_reduce import all_reduce, require_nodes
from builders.probe.ask import EnvironmentReply, Probe, user_packages
from builders.probe.contents import judge_contents
from builders.probe.environment import NOT_JUDGED, judge_environment, judge_variables
from builders.probe.wheel import judge_wheel
from builders.recipes import recipe_as_built
from builders.scheduling.slurm import BatchJob, hours_of, job_script, partition_for, submit, wait_for
from builders.storage.files import cache_root, write_atomic
from builders.storage.lease import TemporaryDirectory
from builders.wheels.wheel import DamagedError, WheelReader, record_rows
from matrix.building.locked import wheels_of_lock
from matrix.command_line.context import built_recipes
from matrix.command_line.options import add_catalog, add_format, add_index, output_path
from matrix.consumers.shared.container_variables import site_values
from matrix.consumers.shared.installation import Installation
from matrix.consumers.slurm_job import all_reduce_for_check, job_of, script_for_check
from matrix.input.locking import exclude_pick
from matrix.show.json_document import JsonDocument
from matrix.show.render import counted, findings_text
from resolver.errors import UsageError
from resolver.facts.schema import Recipe
from resolver.requirements import normalize_name

if TYPE_CHECKING:
    from matrix.command_line.context import Context
    from matrix.show.console import Console
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Job, SiteVariable
    from resolver.model import Distribution, Resolution

SUMMARY = "check that a built container or environment matches the lock"
EXAMPLE = "matrix verify --image container.sif"
SCRIPT = Path("matrix-verify.sbatch")
_MOST_OF_ONE_KIND = 10
"""Maximum number of findings of a kind in the text; a container built from another lock has hundreds."""
_TIME = "00:15:00"
_OUTPUT = "matrix-verify-%j.out"
_EXIT = "matrix-verify-%j.exit"
_ALL_REDUCE_SECONDS = 300.0
_RUN_WORDS = 3
"""The words of ``bash run.sh python``."""
_GPU_VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_NEW_CONTAINER = "Build the container again from the files that `matrix env` writes."
_NEW_ENVIRONMENT = "Create the environment again from the files that `matrix env` writes."
_MODULES = {
    "pytorch-triton-rocm": "triton", "torch": "torch", "torchaudio": "torchaudio",
    "torchvision": "torchvision", "triton-rocm": "triton",
}  # fmt: skip
"""Module of each distribution that is not a package of the catalog."""


Verdict = Literal["sound", "defective"]


class VerifyDocument(JsonDocument, kw_only=True):
    """Whether an environment matches the lock."""

    status: Literal["ok", "errors"]
    image: str
    """Empty for the Python of this machine."""
    python: dict[str, str]
    distributions: dict[str, str]
    libraries: list[str]
    gpus: list[dict[str, str]]
    findings: list[Finding]
    not_judged: int
    verdict: Verdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--image", metavar="PATH", type=Path, help="the container (default: the Python of this machine)"
    )
    parser.add_argument(
        "--python",
        metavar="COMMAND",
        default="",
        help="the Python to check: a path, or a command that starts it, such as 'bash run.sh python' "
        "(default: first on PATH)",
    )
    parser.add_argument(
        "--lock",
        metavar="FILE",
        type=Path,
        help=f"the lock to compare with (default: {LOCK_FILE}, if it exists)",
    )
    parser.add_argument(
        "--in",
        dest="where",
        choices=("apptainer", "podman"),
        help="the runtime for the image (default: the installed runtime)",
    )
    add_index(parser)
    add_catalog(parser)
    parser.add_argument("--need-gpu", action="store_true", help="fail if torch or JAX finds no GPU")
    parser.add_argument(
        "--nodes",
        metavar="N",
        type=int,
        default=1,
        help="also run an all-reduce with one rank on each of N nodes, in a Slurm allocation or with --gpu",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=_ALL_REDUCE_SECONDS,
        help="when an all-reduce that has not ended counts as hanging (default: %(default)g)",
    )
    add_format(parser)
    job = parser.add_argument_group("on a GPU node")
    job.add_argument(
        "--gpu", action="store_true", help="write a Slurm job that verifies the environment, and submit it"
    )
    job.add_argument(
        "--dry-run", action="store_true", help="write the script of the job, but do not submit it"
    )
    job.add_argument(
        "--partition",
        metavar="NAME",
        default="",
        help="partition of the job (default: the site's GPU partition with the shortest sufficient limit)",
    )
    job.add_argument(
        "--account", metavar="NAME", default="", help="default: that of matrix.toml, else Slurm's default"
    )
    job.add_argument(
        "--wait",
        metavar="MINUTES",
        type=float,
        help="wait for the end of the job, print its output, and exit with its code; an error if it has not "
        "started after so many minutes",
    )
    job.add_argument("--time", metavar="TIME", default=_TIME, help="time limit (default: %(default)s)")
    job.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=output_path,
        default=SCRIPT,
        help="script of the job (default: %(default)s)",
    )


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    if args.nodes < 1:
        msg = f"--nodes {args.nodes}: there must be at least one node."
        raise UsageError(msg)
    if args.gpu:
        return submit_job(context)
    _reject_job_options(args)
    if args.nodes > 1:
        require_nodes(args.nodes)
    reply, findings = verify(context)
    verdict: Verdict = "defective" if is_defective(findings) else "sound"
    if args.format == "json":
        console.document(_document(args.image, reply, findings, verdict))
    else:
        show(args.image, reply, findings, console)
    return int(verdict == "defective")


def is_defective(findings: Sequence[Finding]) -> bool:
    """Return whether an environment with these findings is defective."""
    return any(finding.severity == "error" for finding in findings)


def verify(
    context: Context, wheels: Mapping[str, Sequence[Path]] | None = None
) -> tuple[EnvironmentReply, list[Finding]]:
    """Probe the environment that the options name, and judge its replies.

    `wheels` are those that we built, by name; by default those of the index with the versions of the lock.
    """
    lock, catalog = _lock(context)
    variables = context.run_variables() if lock else []
    if wheels is None:
        index = Index(context.args.index)
        wheels = wheels_of_lock(lock, catalog, index, context.console) if lock else {}
    files = _recorded_files(lock, wheels) if lock else {}
    exclude = partial(exclude_pick, context.lock_path)
    with context.console.task("verify"):
        reply, findings = _verify(context.args, lock, catalog, variables, files, exclude=exclude)
    if context.args.nodes > 1:
        with context.console.task("all-reduce"):
            findings += _all_reduce(context)
    return reply, findings


def _all_reduce(context: Context) -> list[Finding]:
    """Run an all-reduce on the nodes of this allocation, with the job script that users run."""
    args, installation = context.args, _installation(context)
    environment, python = _environment(args)
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
    if not context.has_lock:
        msg = "Without a lock, it is not known how the site starts a job on several nodes."
        raise UsageError(msg, hint="Name the lock with --lock FILE.")
    job = context.catalog_of_lock.job.get(context.lock.target.site)
    return Installation(context.lock, variables=context.run_variables(), job=job)


def _environment(args: argparse.Namespace) -> tuple[Path, str]:
    """Return the environment as job scripts name it, and its Python: a path in an image, or a name."""
    if args.image:
        return args.image.resolve(), args.python or "python"
    words = shlex.split(args.python)
    if len(words) == _RUN_WORDS and words[0] == "bash" and words[1].endswith(".sh"):
        return Path(words[1]).resolve(), words[2]
    path = Path(words[0]).absolute() if words else Path()
    if len(words) != 1 or path.parent.name != "bin":
        msg = "A job on several nodes needs the container or the directory of the environment."
        hint = "Use --image container.sif, --python DIR/bin/python, or --python 'bash run.sh python'."
        raise UsageError(msg, hint=hint)
    return path.parents[1], path.name


def _lock(context: Context) -> tuple[Resolution | None, Catalog]:
    lock = context.lock if context.has_lock else None
    return lock, context.catalog_of_lock if lock else context.catalog


def _reject_job_options(args: argparse.Namespace) -> None:
    given = {
        "--dry-run": args.dry_run,
        "--partition": args.partition,
        "--account": args.account,
        "--time": args.time != _TIME,
        "--output": args.output != SCRIPT,
        "--wait": args.wait is not None,
    }
    for option, is_given in given.items():
        if is_given:
            msg = f"{option} requires --gpu: without --gpu, no job is written."
            raise UsageError(msg)


def _verify(
    args: argparse.Namespace,
    lock: Resolution | None,
    catalog: Catalog,
    variables: Sequence[SiteVariable],
    files: Mapping[str, Mapping[str, str]],
    *,
    exclude: Callable[[Distribution, str], None],
) -> tuple[EnvironmentReply, list[Finding]]:
    if args.where and not args.image:
        msg = f"--in {args.where} requires an image."
        hint = "Name it with --image PATH. Without --in, the Python of this machine is verified."
        raise UsageError(msg, hint=hint)
    if args.image and ":/" not in str(args.image) and not args.image.exists():
        msg = f"The file {args.image} does not exist."
        raise UsageError(msg, hint="Name the container that was built, such as container.sif.")
    image = find_image(args.image) if args.image else None
    runtime = choose_runtime(args.where, image)
    # Several verifications may run at once, also on other nodes with the same cache.
    log = cache_root() / "logs" / f"verify-{os.uname().nodename}-{os.getpid()}.log"
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
    probe = Probe(runtime, args.python, folder=folder.root, log=log, env=env, variables=needed)
    reply = probe.ask_environment(list(dict.fromkeys(modules)), files)
    own = user_packages(reply.user_site.minor)
    rebuild = _NEW_CONTAINER if image else _NEW_ENVIRONMENT
    in_index = [name for name, rows in files.items() if rows]
    findings = judge_environment(reply, lock, own, need_gpu=args.need_gpu, rebuild=rebuild, in_index=in_index)
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
        ranked = [path for path in paths if rank(path.name) is not None]
        name = normalize_name(pick.name)
        files[name] = {}
        if len(ranked) == 1:  # if it is not known which of several builds is meant, none is compared
            with suppress(DamagedError, OSError):
                files[name] = _record_of(ranked[0])
    return files


def _record_of(path: Path) -> dict[str, str]:
    """Return the hashes of a wheel's files that keep their path when they are installed."""
    with WheelReader(path) as wheel:
        member = wheel.metadata_member("RECORD")
        rows = record_rows(wheel.read(member)) if member else ()
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


def submit_job(context: Context) -> int:
    """Write the job that verifies the environment on GPU nodes, and submit it unless ``--dry-run`` is set.

    Return 0, or with ``--wait`` the exit code of the job. Raise `UsageError` if the lock is for CPUs, the
    partition is not known, or a value is not valid for sbatch; `EnvironmentLacksError` or `CommandError` if
    sbatch is not installed, or rejected the job; `MatrixError` if it did not start within the time of
    ``--wait``, or ended without a result.
    """
    args, console = context.args, context.console
    lock, catalog = _lock(context)
    backend = lock.target.backend if lock else "rocm"
    if backend == "cpu" and args.nodes == 1:
        msg = "The lock is for CPUs, so a job on a GPU node would not test more."
        raise UsageError(msg, hint="Run `matrix verify` without --gpu.")
    hours = hours_of(args.time)
    site = lock.target.site if lock else ""
    partition = args.partition
    if not partition and not site:
        msg = "There is no lock, so the site and its GPU partition are unknown."
        raise UsageError(msg, hint="Name the partition with --partition, or the lock with --lock.")
    folder = args.output.absolute().parent
    options = {"gpus-per-node": "1"} if backend == "rocm" else {}
    if args.nodes > 1:
        _environment(args)  # an error now is better than one in the job
        options |= _options_for_nodes(job_of(_installation(context)), args.nodes)
    job = BatchJob(
        partition=partition or partition_for(catalog, site, hours, backend),
        account=context.settings.account,
        time=args.time,
        command=_command(args, need_gpu=backend == "rocm"),
        output=str(folder / _OUTPUT),
        options=options,
        exit_file=str(folder / _EXIT) if args.wait is not None else "",
    )
    write_atomic(args.output, job_script(job))
    console.info(f"Wrote {args.output}, for partition {job.partition}, {job.time}")
    if args.dry_run:
        return 0
    number = submit(args.output.absolute(), cache_root() / "logs" / "sbatch.log")
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


def _command(args: argparse.Namespace, *, need_gpu: bool) -> list[str]:
    """Return this command as the job runs it, with absolute paths."""
    words = [sys.executable, "-m", "matrix", "verify", *(["--need-gpu"] if need_gpu else [])]
    lock = args.lock or (LOCK_FILE if LOCK_FILE.exists() else None)
    for option, path in {"--image": args.image, "--lock": lock, "--index": args.index}.items():
        if path is not None:
            words += [option, str(path.resolve())]
    for option, text in {"--python": args.python, "--in": args.where}.items():
        if text:
            words += [option, text]
    if args.nodes > 1:
        words += ["--nodes", str(args.nodes), "--timeout", f"{args.timeout:g}"]
    for overlay in args.catalog or ():
        words += ["--catalog", str(Path(overlay).resolve())]
    return words


def _document(
    image: Path | None, reply: EnvironmentReply, findings: list[Finding], verdict: Verdict
) -> VerifyDocument:
    return VerifyDocument(
        status="errors" if verdict == "defective" else "ok",
        image=str(image.resolve()) if image else "",
        python={"version": reply.python, "path": reply.executable},
        distributions={dist.name: dist.version for dist in reversed(reply.distributions)},
        libraries=reply.libraries.objects,
        gpus=[
            {"name": gpu.name, "target": gpu.arch}
            for gpu in reply.torch.gpus or (reply.jax.gpus if reply.jax else ())
        ],
        findings=findings,
        not_judged=_count_not_judged(findings),
        verdict=verdict,
    )


def show(image: Path | None, reply: EnvironmentReply, findings: Sequence[Finding], console: Console) -> None:
    """Print the findings on an environment."""
    errors = sum(finding.severity == "error" for finding in findings)
    not_judged = _count_not_judged(findings)
    summary = f"{counted(errors, 'error')}." if errors else "No errors."
    console.text(summary + (f" Not judged: {not_judged} (see below)." if not_judged else ""))
    console.text(f"{image or 'This machine'}: Python {reply.python}, {reply.executable}")
    shown = findings if console.verbosity > 0 else limited(findings, _MOST_OF_ONE_KIND)
    text = findings_text(shown, quiet=console.verbosity < 0, indent="  ", screen=console.out)
    if text:
        console.data(text)


def _count_not_judged(findings: Sequence[Finding]) -> int:
    return sum(NOT_JUDGED in finding.id for finding in findings)
