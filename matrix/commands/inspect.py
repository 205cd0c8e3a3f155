"""``matrix inspect``: say whether an environment fits a site, and repair it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from builders.audit import Expected, audit_wheel
from builders.constants import LOCK_FILE
from builders.containers.image import is_local
from builders.findings import SEVERITIES, Finding, limited
from builders.gpu.content import read_complete
from builders.installed.checks import findings_of
from builders.probe.ask import user_packages
from builders.storage.files import make_directories, write_atomic
from matrix.api import package_indexes, resolve_settings, write_lock
from matrix.command_line.options import (
    add_format,
    add_index_access,
    add_target_options,
    defaults_of,
    normalized_name,
    output_path,
)
from matrix.commands import env, verify
from matrix.consumers import consumer_names
from matrix.consumers.shared.installation import write_files
from matrix.input.environment_file import read_environment
from matrix.input.request import make_request
from matrix.input.settings import REQUEST_FILE
from matrix.judging.corrections import check
from matrix.judging.packages import TORCH_FAMILY
from matrix.judging.target import expect_request
from matrix.show.included_json import InspectDocument
from matrix.show.render import counted, findings_text
from matrix.show.resolution_text import conflict_text
from resolver.answers.repair import Change, changed_versions, nearest, replaced
from resolver.consequences import Side
from resolver.errors import EnvironmentLacksError, MatrixError, UsageError
from resolver.indexes import judged
from resolver.lock import read_lock
from resolver.model import Conflict, Resolution
from resolver.requirements import TRITON_NAMES
from resolver.versions import join_words

if TYPE_CHECKING:
    import argparse

    from matrix.command_line.context import Context
    from matrix.input.environment_file import DescribedEnvironment
    from matrix.judging.target import Consumer
    from matrix.show.console import Console
    from resolver.answers.repair import Wanted

SUMMARY = "say whether an environment for CUDA or another machine fits, and repair it"
EXAMPLE = "matrix inspect freeze.txt --site lumi-g --repair -o lumi"
MOST_USED = ("--repair", "--output", "--drop", "--site", "--python")
_MOST_SHOWN = 20
_MOST_OF_ONE_KIND = 10
_UNLABELLED = "PyPI's build, which is for CUDA"
_CANNOT_USE = {"verify-torch-cuda", "verify-torch-cpu", "driver-refuses"}
"""Findings because of which the GPUs cannot be used; they come first in a verdict."""

_OPEN = {"verify-contents-not-judged", "bundle-not-read"}
"""Findings about what could not be judged."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "file",
        metavar="THING",
        type=Path,
        help="a container image, an environment (venv, conda, tykky), a wheel or a directory of wheels, a "
        "requirements file, a conda environment file, uv.lock, pylock.toml, the output of pip list, a "
        "Dockerfile or a definition file",
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help=f"write the nearest environment that fits: {REQUEST_FILE}, {LOCK_FILE} and the files of env",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=output_path,
        help="the directory for --repair; it must be new or empty",
    )
    parser.add_argument(
        "--drop",
        metavar="NAME",
        type=normalized_name,
        action="append",
        default=[],
        help="leave out NAME (repeatable)",
    )
    parser.add_argument(
        "--for",
        dest="consumer",
        choices=consumer_names(),
        metavar="CONSUMER",
        help="the tool that reads the written files, as for matrix env: %(choices)s (default: cotainr, or "
        "pip without a base image)",
    )
    add_format(parser)
    add_index_access(parser)
    add_target_options(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    _check_output(args)
    with console.task(f"read {args.file}"):
        found = _read(args.file)
    kept, changes = replaced(context.catalog_with_image, found.wanted, args.drop)
    needed = [change for change in changes if change.needed]
    # Of a matrix.toml in this directory, only the target counts.
    urls = [*(args.extra_index_url or []), *found.index_urls]
    context = context.with_options(requirements=["torch"], extra_index_url=urls)
    with console.task("judge"):
        findings = findings_about(args.file, found, context)
    answer: Resolution | Conflict | None = None
    if args.repair or not (found.content or is_wheel(args.file)):
        answer, versions = _resolved(context, kept)
        changes = _in_order([*changes, *versions, *_unlabelled(answer, kept, found)])
    written: list[Path] = []
    if args.repair and not needed and isinstance(answer, Resolution):
        written = _write(context, answer)
    document = _document(context, found, findings, (changes, answer), written)
    if args.format == "text":
        _print(document, answer, found, console)
    for warning in answer.warnings if answer else ():
        console.warning(warning)
    if args.format == "json":
        console.document(document)
    drops = " ".join(f"--drop {change.before.split()[0]}" for change in needed)
    if needed and args.repair:
        names = join_words([change.before for change in needed], joiner="and")
        msg = f"Nothing was written, because nothing takes the place of {names}."
        raise MatrixError(msg, hint=f"To leave them out: {drops}")
    if needed:
        console.info(f"To leave out what nothing replaces: {drops}")
    return 0 if document.status == "ok" or written else 1


def _read(file: Path) -> DescribedEnvironment:
    """Read an environment; what cannot be read is an error of its own, and not a negative answer."""
    try:
        return read_environment(file)
    except UsageError as error:
        if not is_local(file):
            raise
        raise EnvironmentLacksError(error.message, hint=error.hint) from None


def _verified(path: Path, lock: Path, context: Context) -> Iterator[Finding]:
    """Yield the findings of `verify` about a container, which starts it."""
    options = defaults_of(verify, "--image", str(path), "--lock", str(lock))
    try:
        _, findings = verify.verify(context.with_options(**options))
    except MatrixError as error:
        text = f"The container was not started to compare it with {lock}: {error.message}"
        yield Finding("verify-not-run", "warning", text, error.hint)
        return
    yield Finding(
        "verify-started", "info", f"The container was started in isolation, to compare it with {lock}"
    )
    yield from findings


def _document(
    context: Context,
    found: DescribedEnvironment,
    findings: Sequence[Finding],
    nearest: tuple[Sequence[Change], Resolution | Conflict | None],
    written: Sequence[Path],
) -> InspectDocument:
    changes, answer = nearest
    file, is_conflict = context.args.file, isinstance(answer, Conflict)
    target = answer.target if answer else context.request().target
    where = f"{target.site} on {target.date}"
    is_broken = any(finding.severity == "error" for finding in findings)
    if answer is None or (is_broken and not changes and not is_conflict):
        status: Literal["ok", "changed", "conflict", "errors"] = "errors" if is_broken else "ok"
        verdict = verdict_of(findings, target.site)
    else:
        verdict = _verdict(file, answer, changes, found)
        status = "changed" if changes else "ok"
        if is_conflict or any(change.needed for change in changes):
            status = "conflict"
    return InspectDocument(
        status=status,
        verdict=verdict,
        file=str(file),
        against=where,
        distributions=len(found.wanted),
        changes=changes,
        unread=found.unread,
        how=found.how,
        platform=_platform(found),
        requirements=[item.text for item in answer.request.requirements]
        if isinstance(answer, Resolution)
        else (),
        core=answer.core if isinstance(answer, Conflict) else (),
        written=[str(path) for path in written],
        findings=findings,
    )


def _check_output(args: argparse.Namespace) -> None:
    output: Path | None = args.output
    if args.repair != (output is not None):
        msg = "--repair needs -o DIR, and -o DIR needs --repair."
        raise UsageError(msg)
    if output is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        msg = f"{output} exists and is not an empty directory."
        raise UsageError(msg, hint="Name a new directory.")


def _resolved(context: Context, kept: Sequence[Wanted]) -> tuple[Resolution | Conflict, list[Change]]:
    """Return the resolution of the nearest request and the versions that it changes, or the conflict."""
    settings, catalog = context.settings, context.catalog_with_image
    inputs = replace(context.inputs, requirements=())
    target = make_request(settings, catalog, context.today, inputs)
    indexes = package_indexes(settings, inputs, context.console)
    try:
        with context.console.task("find the nearest versions"):
            found = nearest(catalog, target, kept, indexes)
    except UsageError as error:
        hint = f"{error.hint} To leave a distribution out: --drop NAME"
        raise error.changed(hint=hint.strip()) from None
    if isinstance(found, Conflict):
        return found, []
    requirements, reasons = found
    inputs = replace(inputs, requirements=requirements)
    answer = resolve_settings(settings, catalog, context.today, inputs, reporter=context.console)
    if isinstance(answer, Conflict):
        return answer, []
    return answer, list(changed_versions(answer, kept, reasons))


def _unlabelled(
    answer: Resolution | Conflict, kept: Sequence[Wanted], found: DescribedEnvironment
) -> Iterator[Change]:
    """Yield torch and its companions that have no label, so that pip takes PyPI's build."""
    if isinstance(answer, Conflict) or answer.target.backend != "rocm":
        return
    if found.has_rocm_index or found.installed:
        return
    chosen = {pick.name: pick for pick in answer.distributions}
    for item in kept:
        pick = chosen.get(item.name)
        if item.name in TORCH_FAMILY and pick and "+" in pick.pinned and "+" not in item.version:
            reason = f"without a label pip takes {_UNLABELLED}"
            if not item.version or pick.version.partition("+")[0] == item.version:
                yield Change(str(item), pick.pinned, reason, for_cuda=True)


def _platform(found: DescribedEnvironment) -> dict[str, str]:
    """Return what decides about everything else in an installed environment."""
    if not found.installed:
        return {}
    names = ("python", "torch", *TRITON_NAMES)
    versions = {item.name: item.version for item in found.wanted if item.name in names}
    return {name: versions[name] for name in names if name in versions} | found.platform


def _in_order(changes: Sequence[Change]) -> list[Change]:
    """Return the changes: torch first, then what is for CUDA."""
    return sorted(changes, key=lambda change: (change.before.split()[0] != "torch", not change.for_cuda))


def _verdict(
    file: Path, answer: Resolution | Conflict, changes: Sequence[Change], found: DescribedEnvironment
) -> str:
    where = f"{answer.target.site} on {answer.target.date}"
    if not changes and isinstance(answer, Resolution):
        return f"{file} fits {where}: {counted(len(found.wanted), 'distribution')} resolve together."
    verdict = f"{file} does not fit {where}"
    if changes and changes[0].for_cuda:
        name, _, version = changes[0].before.partition(" ")
        if name == "torch":
            verdict = f"{file} cannot use the GPUs of {where}"
        unlabelled = name in TORCH_FAMILY and "+" not in version
        verdict += f": {changes[0].before} is {_UNLABELLED if unlabelled else 'for CUDA'}"
    if isinstance(answer, Conflict):
        return f"{verdict}, and no other versions that fit were found."
    count = len({change.before for change in changes} & {str(item) for item in found.wanted})
    return f"{verdict}. {count} of {counted(len(found.wanted), 'distribution')} must change."


def _print(
    document: InspectDocument,
    answer: Resolution | Conflict | None,
    found: DescribedEnvironment,
    console: Console,
) -> None:
    console.answer(document.verdict)
    findings = document.findings
    if console.verbosity <= 0:
        # The changes say the same about the lines of a file.
        findings = [] if found.document else limited(findings, _MOST_OF_ONE_KIND)
    text = findings_text(findings, quiet=console.verbosity < 0, indent="  ", screen=console.out)
    if text:
        console.text(f"\n{text}")
    groups: dict[tuple[str, str], list[str]] = {}
    for change in document.changes:
        after = change.after or ("nothing" if change.needed else "left out")
        groups.setdefault((after, change.reason), []).append(change.before)
    shown = list(groups.items()) if console.verbosity > 0 else list(groups.items())[:_MOST_SHOWN]
    lines = [f"  {', '.join(before)} -> {after}\n      {reason}" for (after, reason), before in shown]
    if len(groups) > len(shown):
        lines.append(f"  and {len(groups) - len(shown)} more (-v lists them)")
    if lines:
        console.text("\n" + "\n".join(lines))
    if isinstance(answer, Conflict):
        console.text("\n" + conflict_text(answer))
        console.info("\nTo leave a distribution out: --drop NAME")
    _print_rest(document, found, console)
    for path in document.written:
        console.info(f"Wrote {path}")
    if document.written:
        is_built = isinstance(answer, Resolution) and answer.built()
        command = "matrix build-wheels" if is_built else "matrix verify"
        console.info(f"Next: `cd {shlex.quote(str(Path(document.written[0]).parent))}`, then `{command}`")
    elif document.status == "changed":
        console.info("To write the environment that fits: --repair -o DIR")


def _print_rest(document: InspectDocument, found: DescribedEnvironment, console: Console) -> None:
    """Print how the environment was read, and what was not judged."""
    changed = {change.before for change in document.changes}
    conda = [item.name for item in found.wanted if item.conda and str(item) not in changed]
    if conda:
        console.info(f"\nNot judged, because conda installs it: {join_words(conda, most=10, joiner='and')}.")
    if document.platform:
        console.info("\nIt has " + ", ".join(" ".join(item) for item in document.platform.items()) + ".")
    if found.how:
        console.info(f"\n{found.how}.")
    if found.document and document.findings and console.verbosity == 0:
        console.info(f"\nFindings about single lines, as of `matrix check`: {len(document.findings)} (-v).")
    if found.unread:
        console.info("\nNot read:\n" + "\n".join(f"  {line}" for line in found.unread))


def _write(context: Context, answer: Resolution) -> list[Path]:
    """Write the settings, the lock and the files of the consumer into the new directory."""
    import tomli_w

    folder: Path = context.args.output
    consumer = context.args.consumer or ("cotainr" if answer.image else "pip")
    make_directories(folder)
    settings = {
        field.encode_name: getattr(context.settings, field.name)
        for field in msgspec.structs.fields(type(context.settings))
        if field.name not in _NOT_WRITTEN
        and getattr(context.settings, field.name) not in (None, [], "", False, {}, ())
    }
    settings["requirements"] = [requirement.text for requirement in answer.request.requirements]
    request, lock = folder / REQUEST_FILE, folder / LOCK_FILE
    write_lock(answer, lock)
    write_atomic(request, tomli_w.dumps(settings))
    options = defaults_of(env, "--for", consumer, "-o", str(folder))
    files, _, _ = env.emit(context.with_options(**options).with_lock(answer))
    return [request, lock, *write_files(files, folder, named=False)]


_NOT_WRITTEN = {
    "requirements", "requirement_files", "env", "project", "extras", "groups", "offline", "upgrade",
    "python", "rocm",
}  # fmt: skip
"""Settings that are sources of requirements, or belong to one call."""


def is_wheel(path: Path) -> bool:
    """Return whether a path is a wheel or a directory of wheels."""
    return path.suffix == ".whl" or (path.is_dir() and any(path.glob("*.whl")))


def findings_about(path: Path, found: DescribedEnvironment, context: Context) -> list[Finding]:
    """Return the findings about a thing that was read, the most severe first.

    They are those of the command for exactly that: of `audit` for wheels, of `verify` for a container with a
    lock beside it, of `check` for an environment file. The files of an environment are judged in addition.
    """
    side = Side(context.catalog_with_image, context.request())
    if found.content is not None:
        lock_path = _lock_beside(path)
        lock = read_lock(lock_path) if lock_path else None
        own = user_packages(found.content.python)
        findings = findings_of(found.content, side, lock, own)
        if lock_path and found.content.is_image:
            seen = {(finding.id, finding.message) for finding in findings}
            started = _verified(path, lock_path, context)
            findings += [finding for finding in started if (finding.id, finding.message) not in seen]
    elif is_wheel(path):
        wheels = [path] if path.is_file() else sorted(path.glob("*.whl"))
        findings = [finding for wheel in wheels for finding in _audited(wheel, side)]
    elif found.document is not None:
        consumer: Consumer = "cotainr" if found.document.kind == "conda" else "pip"
        findings = check(found.document, expect_request(side.request, side.catalog, consumer))
    else:
        findings = []
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def _lock_beside(path: Path) -> Path | None:
    """Return the lock that an environment was made from, if it is beside it."""
    beside = (Path(f"{path}.files") / LOCK_FILE, path.absolute().parent / LOCK_FILE)
    return next((lock for lock in beside if lock.is_file()), None)


def _audited(wheel: Path, side: Side) -> Iterator[Finding]:
    """Yield the findings of `audit` about a wheel, and whether its content fits the site."""
    evidence = {"file": wheel.name}
    try:
        audit = audit_wheel(wheel, Expected())
    except UsageError as error:
        raise EnvironmentLacksError(error.message, hint=error.hint) from None
    for finding in audit.findings:
        yield Finding(
            finding.id, finding.severity, finding.message, finding.fix, {**evidence, **finding.evidence}
        )
    target = side.request.target
    content = read_complete(wheel) if target.backend == "rocm" else None
    judgement = judged(content, target.gfx) if content else None
    if judgement and judgement.state == "does-not-fit":
        text = f"{wheel.name} {judgement.evidence}."
        yield Finding("verify-does-not-fit", "error", text, "", {"content": judgement.evidence})
    elif judgement and judgement.state == "not-judged":
        text = f"The GPU code of {wheel.name} could not be judged: {judgement.evidence}."
        yield Finding("verify-contents-not-judged", "warning", text)


def verdict_of(findings: Sequence[Finding], site: str) -> str:
    """Return what the findings mean for a site, in one sentence."""
    errors = [finding for finding in findings if finding.severity == "error"]
    errors.sort(key=lambda finding: finding.id not in _CANNOT_USE)
    if errors:
        first = errors[0]
        cannot = "Cannot use the GPUs of" if first.id in _CANNOT_USE else "Does not work at"
        more = f" {len(errors) - 1} more errors are below." if len(errors) > 1 else ""
        return f"{cannot} {site}: {first.message.rstrip('.')}.{more}"
    risk = next((finding for finding in findings if finding.id == "driver-risk"), None)
    if risk:
        since = re.sub(r"-\d\d$", "", risk.evidence["since"])
        when = f" since {since}" if since else ""
        return f"Works at your own risk{when} at {site}: {risk.evidence['reason']}."
    warnings = [finding for finding in findings if finding.severity == "warning"]
    open_ = [finding.evidence for finding in warnings if finding.id == "verify-contents-not-judged"]
    others = sum(finding.id not in _OPEN for finding in warnings)
    counts = next((evidence for evidence in open_ if "compiled" in evidence), None)
    texts = ["some GPU code could not be judged"] if open_ else []
    if counts:
        texts = [f"{counts['count']} of {counts['compiled']} compiled packages could not be judged"]
    texts += [f"{others} warning{'s are' if others > 1 else ' is'} below"] if others else []
    return f"Nothing found against it at {site}{'; ' if texts else ''}{', '.join(texts)}."
