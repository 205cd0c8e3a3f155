"""``matrix verify``: check that a built container, or an environment on this machine, matches the lock."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builders.building.wheel_requirements import environment_of
from builders.constants import LOCK_FILE
from builders.containers.engines import choose_runtime
from builders.containers.image import find_image
from builders.findings import Finding, limited
from builders.index import Index
from builders.probe.ask import EnvironmentReply, Probe, user_packages
from builders.probe.contents import judge_contents
from builders.probe.environment import NOT_JUDGED, judge_environment, judge_variables
from builders.probe.slurm import BatchJob, hours_of, job_script, partition_for, submit
from builders.probe.wheel import judge_wheel
from builders.recipes.recipe import recipe_as_built
from builders.storage.cache import cache_root
from builders.storage.files import write_atomic
from builders.storage.temporary import TemporaryDirectory
from builders.wheels.wheel import DamagedError, WheelReader, record_rows
from matrix.building.built_wheels import wheels_of_lock
from matrix.command_line.context import built_recipes
from matrix.command_line.options import add_catalog, add_format, add_index, output_path
from matrix.consumers.shared.container_variables import site_changes
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
    from resolver.facts.schema import SiteVariable
    from resolver.model import Distribution, Resolution

SUMMARY = "check that a built container or environment matches the lock"
EXAMPLE = "matrix verify --image container.sif"
SCRIPT = Path("matrix-verify.sbatch")
_MOST_OF_ONE_KIND = 10
"""Maximum number of findings of a kind in the text; a container built from another lock has hundreds."""
_TIME = "00:15:00"
_OUTPUT = "matrix-verify-%j.out"
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
    parser.add_argument("--need-gpu", action="store_true", help="fail if torch finds no GPU")
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
    if args.gpu:
        submit_job(context)
        return 0
    _reject_job_options(args)
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
        return _verify(context.args, lock, catalog, variables, files, exclude=exclude)


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
    """Probe the environment and judge its replies."""
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
    changes = site_changes(os.environ, variables)
    needed |= {change.name: change.value for change in changes if change.value is not None}
    built, published = built_recipes(lock, catalog) if lock else [], _published_modules(lock, catalog)
    modules = ["torch", *published.values(), *(name for recipe in built for name in recipe.imports)]
    folder = TemporaryDirectory()
    probe = Probe(runtime, args.python, folder=folder.root, log=log, env=env, variables=needed)
    reply = probe.ask_environment(list(dict.fromkeys(modules)), files)
    base = Path(os.environ.get("PYTHONUSERBASE") or Path.home() / ".local")
    own = user_packages(base, reply.user_site.minor)
    rebuild = _NEW_CONTAINER if image else _NEW_ENVIRONMENT
    in_index = [name for name, rows in files.items() if rows]
    findings = judge_environment(reply, lock, own, need_gpu=args.need_gpu, rebuild=rebuild, in_index=in_index)
    required = {name for recipe in built for name in recipe.run_environment}
    findings += judge_variables({**os.environ, **reply.variables}, variables, required)
    installed = {normalize_name(dist.name): dist for dist in reversed(reply.distributions)}
    for recipe in [*built, *(_import_recipe(name, module, lock) for name, module in published.items())]:
        dist = installed.get(normalize_name(recipe.package))
        if dist is not None:  # a missing pin is a finding already
            requested = lock.request.ops_of(recipe.package) if lock else []
            promised = recipe_as_built(recipe, requested or dist.ops)
            findings += judge_wheel(probe.ask_wheel(promised), promised, rebuild)
    findings += judge_contents(probe, folder.root, reply, lock, catalog, exclude=exclude)
    log.unlink()
    return reply, findings


def _recorded_files(lock: Resolution, wheels: Mapping[str, Sequence[Path]]) -> dict[str, dict[str, str]]:
    """Return files and hashes of each distribution that was installed on top of the image.

    Only the files of wheels that we built are known.
    """
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


def _published_modules(lock: Resolution | None, catalog: Catalog) -> dict[str, str]:
    """Return the module of each published distribution in the lock."""
    if lock is None:
        return {}
    modules = {**{name: row.import_name for name, row in catalog.package.items()}, **_MODULES}
    picks = [pick for pick in lock.picks if pick.kind == "distribution" and pick.origin != "build"]
    return {pick.name: modules[pick.name] for pick in picks if modules.get(pick.name)}


def _import_recipe(name: str, module: str, lock: Resolution | None) -> Recipe:
    """Return a recipe that promises only one import."""
    backend = lock.target.backend if lock else "rocm"
    return Recipe(package=name, backend=backend, imports=(module,), status="inferred", source="its name")


def submit_job(context: Context) -> None:
    """Write the job that verifies the environment on a GPU node, and submit it unless ``--dry-run`` is set.

    Raises
    ------
    UsageError
        The lock is for CPUs, the partition is not known, or a value is not valid for sbatch.
    EnvironmentLacksError, CommandError
        sbatch is not installed, or rejected the job.
    """
    args, console = context.args, context.console
    lock, catalog = _lock(context)
    if lock and lock.target.backend == "cpu":
        msg = "The lock is for CPUs, so a job on a GPU node would not test more."
        raise UsageError(msg, hint="Run `matrix verify` without --gpu.")
    hours = hours_of(args.time)
    site = lock.target.site if lock else ""
    partition = args.partition
    if not partition and not site:
        msg = "There is no lock, so the site and its GPU partition are unknown."
        raise UsageError(msg, hint="Name the partition with --partition, or the lock with --lock.")
    job = BatchJob(
        partition=partition or partition_for(catalog, site, hours),
        account=context.settings.account,
        time=args.time,
        command=_command(args),
        output=str(args.output.absolute().parent / _OUTPUT),
    )
    write_atomic(args.output, job_script(job))
    console.info(f"Wrote {args.output}, for partition {job.partition}, {job.time}")
    if args.dry_run:
        return
    number = submit(args.output.absolute(), cache_root() / "logs" / "sbatch.log")
    console.data(number)
    console.info(f"Submitted job {number}. Its output goes to {job.output.replace('%j', number)}")


def _command(args: argparse.Namespace) -> list[str]:
    """Return this command as the job runs it, with absolute paths."""
    words = [sys.executable, "-m", "matrix", "verify", "--need-gpu"]
    lock = args.lock or (LOCK_FILE if LOCK_FILE.exists() else None)
    for option, path in {"--image": args.image, "--lock": lock, "--index": args.index}.items():
        if path is not None:
            words += [option, str(path.resolve())]
    for option, text in {"--python": args.python, "--in": args.where}.items():
        if text:
            words += [option, text]
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
        gpus=[{"name": gpu.name, "target": gpu.arch} for gpu in reply.torch.gpus],
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
