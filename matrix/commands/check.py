"""``matrix check``: what a thing is, whether it works at the site, why not, and what to do."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from builders.constants import LOCK_FILE
from builders.network.urls import without_password
from builders.storage.files import make_directories, write_atomic
from matrix.api import write_lock
from matrix.command_line.options import (
    add_format,
    add_index,
    add_index_access,
    add_output,
    add_target_options,
    defaults_of,
    positive,
)
from matrix.commands import env
from matrix.consumers import add_consumer
from matrix.consumers.shared.installation import write_files
from matrix.input.request_file import without_logins
from matrix.input.settings import REQUEST_FILE
from matrix.judging.judge import judge_thing, unreadable
from matrix.judging.nearest import conda_lines
from matrix.judging.repair import Change
from matrix.judging.running import ALL_REDUCE_SECONDS, SCRIPT, TIME, submit_job
from matrix.judging.target import Verdict
from matrix.judging.verdict import VERDICTS, Judgement, conclude
from matrix.reading.pip_line import counts_on_linux
from matrix.show.check_text import answers
from matrix.show.json_document import JsonDocument
from resolver.errors import EnvironmentLacksError, MatrixError, UsageError
from resolver.requirements import normalize_name, required_name
from resolver.versions import join_words

if TYPE_CHECKING:
    from matrix.command_line.context import Context
    from matrix.reading.items import Reading
    from resolver.model import Resolution

SUMMARY = "say what a thing is, whether it works at the site, why not, and what to do"
EXAMPLE = "matrix check freeze.txt --site lumi-g --repair -o lumi"
MOST_USED = ("--site", "--lock", "--fix", "--repair", "--output", "--run", "--gpu")


class CheckDocument(JsonDocument, kw_only=True):
    """What things are, whether they work at the site, and why not."""

    status: Verdict
    """The worst verdict."""
    things: list[Judgement]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "things",
        metavar="THING",
        nargs="*",
        default=[],
        help="a file of pip, conda, uv, pixi or poetry, the output of pip or conda, a Dockerfile or "
        "definition file, an EasyConfig, a job script, a log (- is a pipe), wheels, an environment or an "
        "image; with --run also a Python or a command that starts one (default: this machine)",
    )
    parser.add_argument(
        "--lock",
        metavar="FILE",
        type=Path,
        help=f"compare with this lock (default: {LOCK_FILE} beside THING, or in THING.files)",
    )
    parser.add_argument(
        "--fix", action="store_true", help="correct a file in place where the correction is certain"
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help=f"write the nearest environment that works: {REQUEST_FILE}, {LOCK_FILE} and the files of env",
    )
    add_output(
        parser,
        f"the directory for --repair, new or empty; the script of --gpu (default: {SCRIPT})",
        metavar="PATH",
    )
    parser.add_argument(
        "--drop",
        metavar="NAME",
        type=_name_or_source,
        action="append",
        default=[],
        help="leave out NAME (repeatable)",
    )
    add_consumer(
        parser,
        "the tool that reads the file, or the written files: %(choices)s (default: cotainr for a conda "
        "environment file, else pip)",
    )
    add_index(parser)
    _add_read(parser)
    _add_run(parser)
    add_format(parser)
    add_index_access(parser)
    add_target_options(parser)


def _add_read(parser: argparse.ArgumentParser) -> None:
    for option, text in (
        ("extra", "optional dependencies or pixi environment"),
        ("group", "dependency group"),
    ):
        parser.add_argument(
            f"--{option}",
            dest=f"chosen_{option}s",
            metavar="NAME",
            action="append",
            default=[],
            help=f"also the {text} NAME of a project (repeatable)",
        )


def _add_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("start it")
    add = group.add_argument
    add(
        "--run", action="store_true", help="start the container or environment: imports, ops, libraries, GPUs"
    )
    add("--need-gpu", action="store_true", help="with --run: fail if torch or JAX finds no GPU")
    add(
        "--gpu", action="store_true", help="write a Slurm job that does the same on a GPU node, and submit it"
    )
    add(
        "--nodes",
        metavar="N",
        type=positive,
        default=1,
        help="also run an all-reduce with one rank on each of N nodes",
    )
    add(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=ALL_REDUCE_SECONDS,
        help="when an all-reduce that has not ended counts as hanging (default: %(default)g)",
    )
    add("--dry-run", action="store_true", help="write the script of the job, but do not submit it")
    add("--partition", metavar="NAME", default="", help="partition of the job (default: the site's for GPUs)")
    add("--account", metavar="NAME", default="", help="account of the job (default: that of matrix.toml)")
    add(
        "--wait",
        metavar="MINUTES",
        type=float,
        help="wait for the end of the job, print its output, and exit with its code; an error if it has not "
        "started after so many minutes",
    )
    add("--time", metavar="TIME", default=TIME, help="time limit of the job (default: %(default)s)")


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    _check_options(args)
    things = args.things or [""]
    if args.gpu:
        from matrix.judging.judge import with_lock

        return submit_job(things[0], with_lock(things[0], context.with_options(run=True))[0])
    judgements: list[Judgement] = []
    for thing in things:
        try:
            judgements.append(_judged(thing, context))
        except MatrixError as error:
            if len(things) == 1:
                raise
            failed = Judgement(thing=thing, kind="not read", against="", findings=[*unreadable(thing, error)])
            conclude(failed, context.settings.site or "")
            judgements.append(failed)
    worst: Verdict = min((judged.verdict for judged in judgements), key=VERDICTS.index)
    if args.format == "json":
        console.document(CheckDocument(status=worst, things=judgements))
    else:
        answers(judgements, console)
    if judgements[0].image and not judgements[0].image.can_build:
        return EnvironmentLacksError.exit_code
    by_code = {judged.exit_code for judged in judgements if not judged.written}
    return 1 if 1 in by_code else max(by_code, default=0)


def _judged(thing: str, context: Context) -> Judgement:
    args = context.args
    judged, context, answer, reading = judge_thing(thing, context)
    if not args.repair:
        return judged
    needed = [change for change in judged.changes if change.needed]
    drop = set(args.drop)
    needed += [
        Change(str(item), "", f"it comes from {item.url}", needed=True)
        for item in (reading.items if reading else ())
        if item.url and item.known_as not in drop
    ]
    needed += _lost(judged, reading, answer) if reading and answer else []
    if needed:
        names = join_words([change.before for change in needed], joiner="and")
        drops = " ".join(f"--drop {change.name}" for change in needed)
        msg = f"Nothing was written, because nothing takes the place of {names}."
        raise MatrixError(msg, hint=f"To leave them out: {drops}")
    if answer is not None:
        stays = conda_lines(reading, judged.changes) if reading else []
        judged.written = [str(path) for path in _write(context, answer, stays)]
    return judged


def _lost(judged: Judgement, reading: Reading, answer: Resolution) -> list[Change]:
    """Return what is neither in the answer nor changed, such as what no index has."""
    there = {pick.name for pick in answer.picks}
    changed = {change.before for change in judged.changes}
    why = {item.name: item.evidence for item in judged.distributions}
    return [
        Change(str(item), "", why.get(item.name, ""), needed=True)
        for item in reading.items
        if item.installer in {"pip", "unknown"} and item.name not in there and not item.url
        if str(item) not in changed and item.name != "python" and counts_on_linux(item.marker)
    ]


def _name_or_source(text: str) -> str:
    """Normalize the name of a distribution; URLs and paths, which may have no name, stay as they are."""
    name = normalize_name(text)
    return name if required_name(name) == name else without_password(text)


def _check_options(args: argparse.Namespace) -> None:
    output: Path | None = args.output
    if (args.repair and output is None) or (output is not None and not (args.repair or args.gpu)):
        msg = "--repair needs -o DIR, and -o PATH needs --repair or --gpu."
        raise UsageError(msg)
    if (
        args.repair
        and output is not None
        and output.exists()
        and (not output.is_dir() or any(output.iterdir()))
    ):
        msg = f"{output} exists and is not an empty directory."
        raise UsageError(msg, hint="Name a new directory.")
    if len(args.things) > 1 and (args.repair or args.gpu):
        msg = "--repair and --gpu are for one THING."
        raise UsageError(msg)
    given = {
        "--dry-run": args.dry_run,
        "--partition": args.partition,
        "--account": args.account,
        "--time": args.time != TIME,
        "--wait": args.wait is not None,
    }
    for option, is_given in given.items():
        if is_given and not args.gpu:
            msg = f"{option} requires --gpu: without --gpu, no job is written."
            raise UsageError(msg)


def _write(context: Context, answer: Resolution, stays: list[str]) -> list[Path]:
    """Write the settings, the lock and the files of the consumer into the new directory.

    `stays` are the lines of conda's part that stay as they are.
    """
    import tomli_w

    folder: Path = context.args.output
    consumer = context.args.consumer or ("cotainr" if answer.image or stays else "pip")
    if stays and consumer not in {"cotainr", "tykky"}:
        msg = f"Nothing was written: {consumer} does not install what conda has, {join_words(stays, most=5)}."
        raise UsageError(msg, hint="Use --for cotainr or --for tykky, or leave it out with --drop NAME.")
    make_directories(folder)
    known = without_logins(context.settings)
    if known != context.settings:
        context.console.warning(
            f"The logins of the indexes are not in {folder / REQUEST_FILE}. Put them into ~/.netrc, or into "
            "pip's configuration (PIP_EXTRA_INDEX_URL)."
        )
    settings = {
        field.encode_name: getattr(known, field.name)
        for field in msgspec.structs.fields(type(known))
        if field.name not in _NOT_WRITTEN and getattr(known, field.name) not in (None, [], "", False, {}, ())
    }
    settings["requirements"] = [requirement.text for requirement in answer.request.requirements]
    request, lock = folder / REQUEST_FILE, folder / LOCK_FILE
    write_lock(answer, lock)
    write_atomic(request, tomli_w.dumps(settings))
    options = defaults_of(env, "--for", consumer, "-o", str(folder))
    files, _, _ = env.emit(context.with_options(**options).with_lock(answer), by_conda=stays)
    return [request, lock, *write_files(files, folder, named=False)]


_NOT_WRITTEN = {
    "requirements", "requirement_files", "env", "project", "extras", "groups", "offline", "upgrade",
    "python", "rocm",
}  # fmt: skip
"""Settings that are sources of requirements, or belong to one call."""
