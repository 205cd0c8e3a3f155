"""``matrix verify``: whether a built container, or an environment of this machine, is what the lock says."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from builders.cache import cache_root
from builders.constants import LOCK_FILE
from builders.containers.engines import choose_runtime
from builders.containers.image import find_image
from builders.files import write_atomic
from builders.probes import judge_probe
from builders.verifying.asking import Asking, in_user_site
from builders.verifying.judging import NOT_JUDGED, judge
from matrix.locking import catalog_of
from matrix.options import add_catalog, add_format
from matrix.settings import load_catalog
from resolver.errors import UsageError
from resolver.facts.catalog import recipe_for
from resolver.facts.schema import Recipe
from resolver.lock import read_lock
from resolver.requirements import normalize_name

if TYPE_CHECKING:
    import argparse

    from builders.findings import Finding
    from builders.verifying.asking import Answer
    from matrix.console import Console
    from matrix.context import Context
    from resolver.facts.catalog import Catalog
    from resolver.model import Resolution

SUMMARY = "check that a built container or environment matches the lock"
EXAMPLE = "matrix verify --image container.sif"
SCRIPT = Path("matrix-verify.sbatch")
_TIME = "00:15:00"
_OUTPUT = "matrix-verify-%j.out"
_OF_HOST = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "ROCM_PATH")
_OF_GPUS = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_IMPORTED = {"pytorch-triton-rocm": "triton", "torch": "torch", "torchaudio": "torchaudio",
             "torchvision": "torchvision", "triton-rocm": "triton"}  # fmt: skip
"""Distributions besides the catalog's packages to the module that each is imported as."""
_COLOURS = {"error": "31", "warning": "33"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--image", metavar="PATH", type=Path, help="the container (default: the Python of this machine)"
    )
    parser.add_argument("--python", metavar="PATH", default="", help="its Python (default: first on PATH)")
    parser.add_argument(
        "--lock",
        metavar="FILE",
        type=Path,
        help=f"what it should hold (default: {LOCK_FILE}, if it is there)",
    )
    parser.add_argument(
        "--in", dest="where", choices=("apptainer", "podman"), help="what runs the image (default: what can)"
    )
    add_catalog(parser)
    parser.add_argument("--need-gpu", action="store_true", help="that no GPU is seen here is an error")
    add_format(parser)
    job = parser.add_argument_group("on a GPU node")
    job.add_argument("--gpu", action="store_true", help="write a Slurm job that verifies it there, submit it")
    job.add_argument("--dry-run", action="store_true", help="only write the job's script")
    job.add_argument("--partition", metavar="NAME", default="", help="default: the site's, by the time limit")
    job.add_argument("--account", metavar="NAME", default="", help="default: what Slurm knows")
    job.add_argument("--time", metavar="TIME", default=_TIME, help="time limit (default: %(default)s)")
    job.add_argument(
        "-o", "--output", metavar="FILE", type=Path, default=SCRIPT, help="its script (default: %(default)s)"
    )


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    settings = context.settings
    lock = _lock(args.lock)
    catalog = catalog_of(lock, args.lock or LOCK_FILE, settings) if lock else load_catalog(settings)
    if args.gpu:
        return _submit(args, lock, catalog, console)
    _refuse_options_of_jobs(args)
    answer, findings = _look(args, lock, catalog)
    verdict = "defective" if any(one.severity == "error" for one in findings) else "sound"
    if args.format == "json":
        console.document(_document(args.image, answer, findings, verdict))
    else:
        _show(args.image, answer, findings, console)
    return int(verdict == "defective")


def _refuse_options_of_jobs(args: argparse.Namespace) -> None:
    given = {
        "--dry-run": args.dry_run,
        "--partition": args.partition,
        "--account": args.account,
        "--time": args.time != _TIME,
        "--output": args.output != SCRIPT,
    }
    for option, said in given.items():
        if said:
            msg = f"{option} goes with --gpu: without it no job is written."
            raise UsageError(msg)


def _lock(given: Path | None) -> Resolution | None:
    if given is None and not LOCK_FILE.exists():
        return None
    return read_lock(given or LOCK_FILE)


def _look(
    args: argparse.Namespace, lock: Resolution | None, catalog: Catalog
) -> tuple[Answer, list[Finding]]:
    """Ask the environment, and say what its answers mean."""
    if args.where and not args.image:
        msg = f"--in {args.where} is for an image, and none is named."
        raise UsageError(
            msg, hint="Name it with --image PATH; without --in the Python of this machine is asked."
        )
    image = find_image(args.image) if args.image else None
    runtime = choose_runtime(args.where, image)
    log = cache_root() / "logs" / "verify.log"
    log.unlink(missing_ok=True)
    passed = _OF_GPUS if image else (*_OF_GPUS, *_OF_HOST)
    env = {name: os.environ[name] for name in passed if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="matrix-verify-") as folder:
        asking = Asking(runtime, args.python, folder=Path(folder), log=log, env=env)
        built = _promised(lock, catalog)
        modules = [name for recipe in built for name in recipe.imports]
        others = _modules(lock, catalog)
        answer = asking.environment(list(dict.fromkeys(["torch", *others.values(), *modules])))
        base = Path(os.environ.get("PYTHONUSERBASE") or Path.home() / ".local")
        own = in_user_site(base, answer.user_site.minor)
        findings = judge(answer, lock, own, need_gpu=args.need_gpu)
        held = {normalize_name(one.name) for one in answer.distributions}
        for recipe in [*built, *(_imported(name, module) for name, module in others.items())]:
            if normalize_name(recipe.package) in held:  # that a pin is missing has been said
                findings += judge_probe(asking.distribution(recipe), recipe, complete=True)
    return answer, findings


def _promised(lock: Resolution | None, catalog: Catalog) -> list[Recipe]:
    """Give the recipes of what the lock builds; what they promise is asked for."""
    found = []
    for pick in lock.built() if lock else ():
        release = catalog.release.get((pick.name, pick.version, pick.variant))
        recipe = recipe_for(catalog, release, lock.target.backend) if lock and release else None
        if recipe is not None:
            found.append(recipe)
    return found


def _modules(lock: Resolution | None, catalog: Catalog) -> dict[str, str]:
    """Give what the lock takes as it is published: distribution to module."""
    if lock is None:
        return {}
    known = {**{name: row.import_name for name, row in catalog.package.items()}, **_IMPORTED}
    picks = [pick for pick in lock.picks if pick.kind == "distribution" and pick.origin != "build"]
    return {pick.name: known[pick.name] for pick in picks if known.get(pick.name)}


def _imported(name: str, module: str) -> Recipe:
    """Give a recipe that promises one import and nothing else."""
    return Recipe(package=name, backend="rocm", imports=(module,), status="inferred", source="its name")


def _submit(args: argparse.Namespace, lock: Resolution | None, catalog: Catalog, console: Console) -> int:
    from builders.verifying.job import Job, hours_of, partition_for, script_of, submit

    hours = hours_of(args.time)
    site = lock.target.site if lock else ""
    partition = args.partition
    if not partition and not site:
        msg = "Without a lock the site is not known, and with it no GPU partition."
        raise UsageError(msg, hint="Name one with --partition, or the lock with --lock.")
    job = Job(
        partition=partition or partition_for(catalog, site, hours),
        account=args.account,
        time=args.time,
        command=_command(args),
        output=str(args.output.absolute().parent / _OUTPUT),
    )
    write_atomic(args.output, script_of(job))
    console.info(f"Wrote {args.output}, for partition {job.partition}, {job.time}")
    if args.dry_run:
        return 0
    number = submit(args.output.absolute(), cache_root() / "logs" / "sbatch.log")
    console.data(number)
    console.info(f"Submitted job {number}; what it says will be in {job.output.replace('%j', number)}")
    return 0


def _command(args: argparse.Namespace) -> list[str]:
    """Give this command as the job runs it, with whole paths: it starts in another place."""
    words = [sys.executable, "-m", "matrix", "verify", "--need-gpu"]
    lock = args.lock or (LOCK_FILE if LOCK_FILE.exists() else None)
    paths = {"--image": args.image, "--lock": lock}
    for option, path in paths.items():
        if path is not None:
            words += [option, str(path.resolve())]
    for option, text in {"--python": args.python, "--in": args.where}.items():
        if text:
            words += [option, text]
    for overlay in args.catalog or ():
        words += ["--catalog", str(Path(overlay).resolve())]
    return words


def _document(image: Path | None, answer: Answer, findings: list[Finding], verdict: str) -> dict[str, Any]:
    return {
        "schema": 1,
        "image": str(image.resolve()) if image else "",
        "python": {"version": answer.python, "path": answer.executable},
        "distributions": {one.name: one.version for one in reversed(answer.distributions)},
        "libraries": answer.loaded.objects,
        "gpus": [{"name": one.name, "target": one.arch} for one in answer.gpu.gpus],
        "findings": msgspec.to_builtins(findings),
        "not_judged": sum(NOT_JUDGED in one.id for one in findings),
        "verdict": verdict,
    }


def _show(image: Path | None, answer: Answer, findings: list[Finding], console: Console) -> None:
    errors = sum(one.severity == "error" for one in findings)
    unknown = sum(NOT_JUDGED in one.id for one in findings)
    console.data(f"{image or 'This machine'}: Python {answer.python}, {answer.executable}")
    for one in findings:
        if console.verbosity < 0 and one.severity == "info":
            continue
        mark = console.coloured(_COLOURS.get(one.severity, "0"), f"{one.severity:<8}")
        console.data(f"  {mark}  {one.message} [{one.id}]")
        if one.fix:
            console.data(f"            {one.fix}")
    end = f"{errors} errors." if errors != 1 else "1 error."
    if not errors:
        end = "Nothing wrong was found." if not unknown else "Nothing wrong was found in what was judged."
    console.data(end + (f" Not judged: {unknown}, see above." if unknown else ""))
