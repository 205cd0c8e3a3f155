"""What `matrix inspect` finds: the checks of each kind of thing, and the verdict in one sentence."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from builders.audit import Expected, audit_wheel
from builders.constants import LOCK_FILE
from builders.findings import SEVERITIES, Finding
from builders.gpu.content import read_complete
from builders.installed.checks import findings_of
from builders.probe.ask import user_packages
from matrix.checking.check import check
from matrix.checking.target import expect_request
from resolver.consequences import Side
from resolver.content import judged
from resolver.errors import EnvironmentLacksError, UsageError
from resolver.lock import read_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from matrix.checking.target import Consumer
    from matrix.command_line.context import Context
    from matrix.input.environment_file import Environment

_CANNOT_USE = {"verify-torch-cuda", "verify-torch-cpu", "driver-refuses"}
"""Findings because of which the GPUs cannot be used; they come first in a verdict."""

_OPEN = {"verify-contents-not-judged", "bundle-not-read"}
"""Findings about what could not be judged."""


def is_wheel(path: Path) -> bool:
    """Return whether a path is a wheel or a directory of wheels."""
    return path.suffix == ".whl" or (path.is_dir() and any(path.glob("*.whl")))


def findings_about(
    path: Path,
    found: Environment,
    context: Context,
    verified: Callable[[Path, Path, Context], Iterable[Finding]],
) -> list[Finding]:
    """Return the findings about a thing that was read, the most severe first.

    They are those of the command for exactly that: of `audit` for wheels, of `verify` for a container with a
    lock beside it, of `check` for an environment file. The files of an environment are judged in addition.
    `verified` starts a container and compares it with a lock.
    """
    side = Side(context.catalog_with_image, context.request())
    if found.content is not None:
        lock_path = _lock_beside(path)
        lock = read_lock(lock_path) if lock_path else None
        base = Path(os.environ.get("PYTHONUSERBASE") or Path.home() / ".local")
        own = user_packages(base, found.content.python)
        findings = findings_of(found.content, side, lock, own)
        if lock_path and found.content.is_image:
            seen = {(finding.id, finding.message) for finding in findings}
            started = verified(path, lock_path, context)
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
