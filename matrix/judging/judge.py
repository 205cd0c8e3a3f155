"""The judge: what a thing is, whether it works at the site, and why not. Only ``--run`` starts anything."""

from __future__ import annotations

import re
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import filter as filter_names
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile, ZipFile

from msgspec.structs import replace
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builders.audit.contents import Expected
from builders.audit.runtime_libraries import image_provider
from builders.audit.wheel_audit import audit_wheel
from builders.constants import LOCK_FILE, MOUNTED_INDEX
from builders.containers.image import is_local
from builders.diagnosis import DiagnosisContext, looks_like_log, read_log
from builders.diagnosis import read as read_pipe
from builders.findings import SEVERITIES, Finding
from builders.gpu.content import content_of
from builders.installed.checks import findings_of
from builders.probe.ask import user_packages
from builders.recipes import recipe_as_built
from builders.storage.files import write_atomic
from builders.wheels.wheel import WheelReader
from matrix.input.locking import read_lock
from matrix.input.settings import in_project
from matrix.judging.corrections import check, difference, fixed
from matrix.judging.distributions import CONDA_RUNTIME, installed_findings
from matrix.judging.jobs import check_images, check_job
from matrix.judging.locks import judge_lock
from matrix.judging.machine import judge_base_image, judge_machine
from matrix.judging.nearest import judge_list, predict
from matrix.judging.packages import check_sources
from matrix.judging.repair import replaced
from matrix.judging.running import IMAGES, place_of, start
from matrix.judging.target import CONSUMERS, expect_lock, expect_request
from matrix.judging.verdict import JudgedItem, Judgement, Ran, conclude, is_open, of_pick
from matrix.reading.items import CONDA
from matrix.reading.locks import is_lock
from matrix.reading.pip_line import url_path
from matrix.reading.recognise import read
from matrix.reading.requirements import in_order, is_index_of_torch
from resolver.compiling.problem_builder import check_target, window_of
from resolver.consequences.questions import Side
from resolver.errors import EnvironmentLacksError, MatrixError, UsageError
from resolver.indexes import judged
from resolver.requirements import TRITON_NAMES
from resolver.versions import grouped

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from builders.audit.wheel_audit import Report
    from builders.installed.reading import Installed
    from builders.probe.ask import EnvironmentReply
    from matrix.command_line.context import Context
    from matrix.judging.target import Consumer, ExpectedTarget, Verdict
    from matrix.reading.items import Reading
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Recipe
    from resolver.model import Resolution

_OWN_OPTIONS = ("backend", "driver", "base_image")
_URL = re.compile(r"(https?|file)://[^\s$]+")
_NO_LOGS = {".yml", ".yaml", ".toml", ".lock", ".json", ".in", ".def", ".eb", ".cfg"}
_HEAD = 1 << 16
"""Bytes in which the kind of a file shows."""
_HINT_NAME = "Name an environment, an image, a wheel, a log, or a file that describes an environment."


def judge_thing(
    thing: str, context: Context, wheels: Mapping[str, Sequence[Path]] | None = None
) -> tuple[Judgement, Context, Resolution | None, Reading | None]:
    """Judge a thing; an empty one is this machine, or with ``--run`` its Python.

    `wheels` are those that we built, by name, as for `start`. Return also the context with the target that
    was judged for, the nearest environment that works, if it was asked for or needed to judge, and what was
    read. Raise `MatrixError` if the thing cannot be read.
    """
    args = context.args
    if not thing and not args.run:
        return _machine(context), context, None, None
    context, lock, notes = with_lock(thing, context)
    # Of a matrix.toml in this directory, only the target counts.
    context = context.with_options(requirements=["torch"])
    target = context.request().target
    check_target(context.catalog_with_image, target)
    judged_ = Judgement(thing=thing, kind="", against=f"{target.site} on {target.date}", findings=notes)
    path, answer, reading = Path(thing), None, None
    if is_wheel(path):
        judged_.kind = "wheel" if path.is_file() else "directory of wheels"
        _judge_wheels(judged_, path, context)
    elif _is_log(path, thing):
        judged_.kind = "log"
        _judge_log(judged_, thing, context)
    elif not args.run or (thing and path.exists() and (path.is_dir() or path.suffix in IMAGES)):
        with context.console.task(f"read {thing}"):
            reading = _read(path, args)
        judged_.kind, judged_.how, judged_.unread = reading.kind, reading.how, reading.unread
        judged_.platform = _platform(reading)
        urls = [*(args.extra_index_url or []), *_indexes(reading, args.index)]
        context = context.with_options(extra_index_url=urls)
        if (
            reading.kind in {"requirements", CONDA}
            and reading.index_urls
            and not context.settings.index_strategy
        ):
            context = context.with_options(index_strategy="unsafe-best-match")  # all are equal for pip
        if args.fix and reading.text:
            reading = _fix(judged_, reading, expected_of(reading, context, lock))
        with context.console.task("judge"):
            if lock is not None and context.args.lock == path and not args.repair:
                judge_lock(judged_, lock, path, context)
            else:
                answer = _judge_reading(judged_, reading, context, lock)
    if args.run:
        judged_.kind = judged_.kind or ("image" if isinstance(place_of(thing), Path) else "Python")
        reply, findings = start(thing, context, wheels)
        seen = {(finding.id, finding.message) for finding in judged_.findings}
        judged_.findings += [finding for finding in findings if (finding.id, finding.message) not in seen]
        judged_.ran = _ran(reply)
    if not any("line" in finding.evidence for finding in judged_.findings):
        judged_.findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    conclude(judged_, judged_.against)
    return judged_, context, answer, reading


def _indexes(reading: Reading, ours: Path) -> Iterator[str]:
    """Yield the indexes of a file that exist here, other than torch's, which the catalog binds."""
    for url in reading.index_urls:
        here = url.replace(MOUNTED_INDEX, (ours / "simple").absolute().as_uri())
        exists = not here.startswith("file:") or Path(url_path(here)).is_dir()
        if _URL.fullmatch(here) and exists and not is_index_of_torch(here):
            yield here


def is_wheel(path: Path) -> bool:
    """Return whether a path is a wheel or a directory of wheels."""
    return path.suffix == ".whl" or (path.is_dir() and any(path.glob("*.whl")))


def _is_log(path: Path, thing: str) -> bool:
    if thing == "-" or not path.is_file() or path.suffix in IMAGES or path.suffix in _NO_LOGS:
        return thing == "-"
    with path.open("rb") as source:
        return looks_like_log(path.name, source.read(_HEAD).decode(errors="replace"))


def _read(path: Path, args: argparse.Namespace) -> Reading:
    """Read a thing; one that cannot be read is an error of its own, and not a negative answer."""
    try:
        return read(path, args.chosen_extras, args.chosen_groups)
    except UsageError as error:
        raise _not_readable(error, path) from None


def _not_readable(error: UsageError, path: Path) -> MatrixError:
    if not is_local(path):
        return error.changed(hint=error.hint or _HINT_NAME)
    return EnvironmentLacksError(error.message, hint=error.hint)


def with_lock(thing: str, context: Context) -> tuple[Context, Resolution | None, list[Finding]]:
    """Return the lock to compare with, and a context with it, and with its target if the user named none."""
    args = context.args
    path = args.lock or _lock_beside(thing, is_started=args.run)
    if path is None:
        return context, None, []
    lock = read_lock(path)
    # What its request names counts for it, and for a thing beside it unless the user names a site. The driver
    # is that of the site.
    target, is_own = lock.request.target, path == Path(thing)
    is_same = args.site in {None, target.site} and args.backend in {None, target.backend}
    options = {"site": args.site or lock.request.site_file or target.site}
    if is_same and (is_own or not args.site):
        options |= {name: getattr(args, name) or getattr(target, name) for name in _OWN_OPTIONS}
        options["gfx"] = args.gfx or list(target.gfx)
    if is_same and not is_own and not args.site:
        # The lock has the versions of an image of the user's own. A file here is not opened:
        # inspecting it would start it.
        image = lock.target.base_image or ""
        is_known = bool(target.gfx) and image in context.catalog.image and not is_local(Path(image))
        options["base_image"] = args.base_image or (image if is_known else None)
        if lock.request.catalogs and not args.catalog:
            options["catalog"] = list(lock.request.catalogs)
    if is_same or is_own:
        context = context.with_options(lock=path, **options)
        return context, lock, [] if is_own else [*_of_other_driver(lock, context)]
    asked = context.with_options(requirements=["torch"]).request().target
    if (asked.site, asked.backend) == (target.site, target.backend):
        return context.with_options(lock=path), lock, []
    text = (
        f"{path} is for {target.site} and {target.backend}, and this is judged for {asked.site} and "
        f"{asked.backend}"
    )
    if args.lock:
        return context, lock, [Finding("other-lock", "warning", f"{text}.")]
    text += ": it was not compared with the lock."
    return context.with_options(lock=None), None, [Finding("other-lock", "warning", text)]


def _of_other_driver(lock: Resolution, context: Context) -> Iterator[Finding]:
    """Say that the site had another driver when a lock was resolved."""
    request = context.with_options(requirements=["torch"]).request()
    window, target = window_of(context.catalog, request), request.target
    if lock.driver_window and window and window.driver != lock.target.driver:
        text = f"{context.args.lock} was resolved for kernel driver {lock.target.driver}"
        text += f", and {target.site} on {target.date} has {window.driver}."
        yield Finding("other-lock", "info", text)


def _lock_beside(thing: str, *, is_started: bool) -> Path | None:
    """Return a thing that is a lock, else the lock that it was made from, if it is beside it."""
    path = Path(thing)
    if is_lock(path):
        return path
    beside = [Path(f"{thing}.files") / LOCK_FILE, path.parent / LOCK_FILE] if thing else []
    beside += [in_project(LOCK_FILE)] if is_started else []
    return next((lock for lock in beside if lock.is_file() and lock.absolute() != path.absolute()), None)


def _machine(context: Context) -> Judgement:
    machine = Judgement(thing="", kind="machine", against="", findings=judge_machine(context))
    if context.args.base_image:
        machine.image = judge_base_image(context.args.base_image, context.catalog)
    return machine


def _platform(reading: Reading) -> dict[str, str]:
    """Return what decides about everything else in an installed environment."""
    if not reading.installed:
        return {}
    names = ("torch", *TRITON_NAMES)
    versions = {item.name: item.version for item in reading.items if item.name in names}
    python = {"python": reading.python} if reading.python else {}
    return python | {name: versions[name] for name in names if versions.get(name)} | reading.platform


def _judge_reading(
    judged_: Judgement, reading: Reading, context: Context, lock: Resolution | None
) -> Resolution | None:
    request, catalog = context.request(), context.catalog_with_image
    if reading.content is not None:
        own = user_packages(reading.content.python)
        judged_.findings += findings_of(reading.content, Side(catalog, request), lock, own)
        if context.args.repair:
            return predict(judged_, reading, context)
        judged_.changes = replaced(catalog, reading.items, context.args.drop, request.target.backend)[1]
        judged_.distributions = list(_installed_verdicts(reading.content, judged_.findings))
        return None
    expected = expected_of(reading, context, lock)
    if reading.installed:
        judged_.findings += installed_findings(reading, Side(catalog, request))
        return judge_list(judged_, reading, expected, context)
    judged_.findings += check(reading, expected)
    rules = (check_sources, check_images, check_job)
    found = (each for rule in rules for each in rule(reading, expected))
    judged_.findings += in_order(found, reading.name)
    if all(item.name == "python" for item in reading.items) and not context.args.repair:
        starts = reading.directives or reading.launches
        text = "What it starts was not read." if starts else "It names no package."
        hint = reading.how and f"{reading.how}."
        says_why = any(line.matters for line in reading.unread)
        if not says_why and not any(finding.severity == "error" for finding in judged_.findings):
            judged_.findings.append(Finding("not-judged", "warning", text, hint))
        return None
    if lock is not None and not context.args.repair and _is_of_lock(reading, lock):
        of_lock, names = replace(judged_, findings=[]), {item.name for item in reading.items}
        judge_lock(of_lock, lock, Path(context.args.lock), context)
        # What no index answered for, `resolve` has said; the file without its lock has no finding about it.
        said = [one for one in of_lock.findings if one.severity != "info" and one.id != "not-judged"]
        judged_.findings += said
        judged_.distributions = [item for item in of_lock.distributions if item.name in names]
        return None
    answer = predict(judged_, reading, context)
    if lock is not None:
        picks = {(pick.name, pick.pinned): pick for pick in lock.distributions}
        for number, item in enumerate(judged_.distributions):
            pick = picks.get((item.name, item.version))
            if pick is not None and item.verdict == "not-judged":
                verdict, evidence = of_pick(pick, lock)
                judged_.distributions[number] = replace(item, verdict=verdict, evidence=evidence)
    return answer


def _installed_verdicts(content: Installed, findings: Sequence[Finding]) -> Iterator[JudgedItem]:
    """Yield the verdict about each installed distribution: that of the worst finding about it."""
    about = grouped((str(finding.evidence.get("distribution", "")), finding) for finding in findings)
    for name, version in sorted(content.versions.items()):
        found = about.get(f"{name} {version}", [])
        error = next((finding for finding in found if finding.severity == "error"), None)
        open_ = next((finding for finding in found if is_open(finding)), None)
        verdict: Verdict = "does-not-fit" if error else "not-judged" if open_ else "fits"
        evidence = (error or open_ or Finding("", "info", "nothing in its files is against it")).message
        yield JudgedItem(name=name, version=version, verdict=verdict, evidence=evidence)


def _is_of_lock(reading: Reading, lock: Resolution) -> bool:
    """Return whether everything in a file is in a lock, in the same version."""
    pins = {pick.name: pick.pinned for pick in lock.distributions}
    return all(
        (item.version and pins.get(item.name) == item.version)
        or (item.installer == "conda" and item.name in CONDA_RUNTIME)
        for item in reading.items
    )


def expected_of(reading: Reading, context: Context, lock: Resolution | None) -> ExpectedTarget:
    """Return what the rules for lines compare a file with."""
    args, catalog = context.args, context.catalog_with_image
    default: Consumer = "cotainr" if reading.kind == CONDA else "pip"
    consumer: Consumer = args.consumer if args.consumer in CONSUMERS else default
    if lock is None:
        return expect_request(context.request(), catalog, consumer, args.index)
    return expect_lock(lock, str(args.lock), context.catalog_of_lock, consumer, args.index)


def _members(wheel: Path) -> list[str]:
    """Return the names of the members of a wheel; none if it cannot be read."""
    with suppress(BadZipFile, OSError, NotImplementedError), ZipFile(wheel) as archive:
        return archive.namelist()
    return []


def _fix(judged_: Judgement, reading: Reading, expected: ExpectedTarget) -> Reading:
    path = Path(reading.name)
    if not path.is_file():
        raise EnvironmentLacksError(f"{path} is not a regular file.")
    new = fixed(reading, expected)
    judged_.diff, judged_.unread = difference(reading.text, new.text, reading.name), new.unread
    if new.text != reading.text:
        _overwrite(path, new.text)
    return new


def _overwrite(path: Path, text: str) -> None:
    """Replace the text of a file; keep its permissions and its byte order mark."""
    mode = path.stat().st_mode & 0o7777
    with path.open("rb") as source:
        mark = source.read(len(BOM_UTF8)) == BOM_UTF8
    write_atomic(path, (BOM_UTF8 if mark else b"") + text.encode())
    path.chmod(mode)


def _judge_log(judged_: Judgement, thing: str, context: Context) -> None:
    known = DiagnosisContext(backend=context.args.backend or "")
    log = read_pipe(sys.stdin.buffer, known) if thing == "-" else read_log(Path(thing), known)
    judged_.kind = f"log of a {log.kind}" if log.kind else "log"
    judged_.findings += log.findings or log.unknown
    if not judged_.findings:
        text = "No known failure was recognized in this log."
        judged_.findings.append(Finding("log-not-judged", "warning", text))


def _judge_wheels(judged_: Judgement, path: Path, context: Context) -> None:
    target = context.request().target
    side = Side(context.catalog_with_image, context.request())
    image = side.catalog.image.get(target.base_image or "")
    providers = (image_provider({"glibc": image.glibc}),) if image and image.glibc else ()
    for wheel in sorted(path.glob("*.whl")) if path.is_dir() else [path]:
        with context.console.task(f"read {wheel.name}"):
            recipe = _recipe(wheel, side.catalog)
            cpu = side.catalog.site[target.site].cpu
            expected = Expected(tuple(context.args.gfx or ()), recipe, None, providers, cpu=cpu)
            report, findings = _audited(wheel, side, expected)
        judged_.wheels.append(report)
        judged_.findings += findings


def _audited(wheel: Path, side: Side, expected: Expected) -> tuple[Report, list[Finding]]:
    """Return the audit of a wheel, and whether its content fits the site."""
    try:
        audit = audit_wheel(wheel, expected)
    except UsageError as error:
        raise _not_readable(error, wheel) from None
    evidence = {"file": wheel.name}
    findings = [replace(finding, evidence={**evidence, **finding.evidence}) for finding in audit.findings]
    target = side.request.target
    judgement = None
    if target.backend == "rocm":
        with WheelReader(wheel) as reader:
            content = content_of(audit.contents, reader, audit.damage)
        judgement = judged(content, target.gfx) if content else None
    if judgement and judgement.state == "does-not-fit":
        text = f"{wheel.name} {judgement.evidence}."
        findings.append(
            Finding("verify-does-not-fit", "error", text, "", {**evidence, "content": judgement.evidence})
        )
    elif judgement and judgement.state == "not-judged":
        text = f"The GPU code of {wheel.name} could not be judged: {judgement.evidence}."
        findings.append(Finding("verify-contents-not-judged", "warning", text, "", evidence))
    return audit.report(), findings


def _recipe(wheel: Path, catalog: Catalog) -> Recipe | None:
    """Return the recipe by which a wheel of ours was built: its label names the torch it was built for.

    Who built it may have chosen ops: if it has any op that the recipe knows, no other op is missing.
    """
    with suppress(InvalidWheelFilename):
        name, version, _, _ = parse_wheel_filename(wheel.name)
        if "torch" in (version.local or ""):
            backend = "cpu" if (version.local or "").startswith("cpu") else "rocm"
            for release in catalog.releases_of(name):
                if release.version == version.public and (recipe := catalog.recipe_for(release, backend)):
                    members = _members(wheel)
                    chosen = [op.name for op in recipe.ops if filter_names(members, op.object)]
                    return recipe_as_built(recipe, chosen)
    return None


def _ran(reply: EnvironmentReply) -> Ran:
    gpus = reply.torch.gpus or (reply.jax.gpus if reply.jax else ())
    return Ran(
        python=reply.python,
        executable=reply.executable,
        distributions={dist.name: dist.version for dist in reversed(reply.distributions)},
        libraries=reply.libraries.objects,
        gpus=[{"name": gpu.name, "target": gpu.arch} for gpu in gpus],
    )


def unreadable(thing: str, error: MatrixError) -> Iterator[Finding]:
    """Yield the finding that one of several things cannot be read."""
    yield Finding("not-judged", "warning", f"{thing} cannot be read: {error.message}", error.hint)
