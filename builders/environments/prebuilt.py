"""Wheels that others compiled: their content is judged completely when they are fetched.

Those that PyPI does not have are also audited. Wheels of the catalog that its facts describe are not read.
"""

from __future__ import annotations

from contextlib import suppress
from shlex import quote
from threading import Lock
from typing import TYPE_CHECKING

import msgspec

from builders.findings import Finding
from builders.gpu.content import read_complete
from builders.gpu.signs import RULES, Stored
from builders.index_client.stored import replace
from builders.storage.cache import cache_root
from builders.wheels.wheel import DamagedError
from resolver.content import judged
from resolver.errors import BuildError
from resolver.facts.catalog import is_elsewhere
from resolver.label import built_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from resolver.content import Content
    from resolver.facts.catalog import Catalog
    from resolver.model import Distribution, Resolution

DOES_NOT_FIT = "does-not-fit"
"""Id of the finding that a wheel cannot run on the target of its lock."""


def prebuilt(lock: Resolution, catalog: Catalog) -> list[Distribution]:
    """Return the distributions of a lock whose wheels were compiled by others."""

    def is_prebuilt(pick: Distribution) -> bool:
        row = catalog.release.get((pick.name, pick.version, pick.variant))
        compiled = is_elsewhere(row) if row else built_for(pick.version) is not None
        return compiled and pick.origin == "published" and bool(pick.files)

    return [pick for pick in lock.distributions if is_prebuilt(pick)]


def check_of(
    lock: Resolution, catalog: Catalog, exclude: Callable[[Distribution, str], None]
) -> Callable[[Distribution, Path], None]:
    """Return a function that checks a fetched file if others compiled it, and otherwise does nothing.

    `exclude` is called with a distribution whose wheel does not fit the target of the lock, and with the
    evidence. It is never called by two threads at the same time.
    """
    names = {pick.name for pick in prebuilt(lock, catalog)}
    excluding = Lock()

    def check(pick: Distribution, path: Path) -> None:
        if pick.name in names:
            check_prebuilt(pick, path, lock.target.gfx)
        is_of_catalog = (pick.name, pick.version, pick.variant) in catalog.release
        if pick.name not in names and is_of_catalog:
            return
        finding = judge_fetched(pick, path, lock)
        if finding is not None:
            with excluding:
                exclude(pick, finding.evidence["content"])
            failure = BuildError(finding.message, hint=finding.fix, id="audit")
            failure.findings = (finding,)
            raise failure

    return check


def judge_fetched(pick: Distribution, path: Path, lock: Resolution) -> Finding | None:
    """Read a fetched wheel completely; return a finding if it does not fit the target of its lock."""
    if lock.target.backend != "rocm" or lock.request.no_content_check or path.suffix != ".whl":
        return None
    content = _content_of(path, pick.files[0].sha256)
    judgement = judged(content, lock.target.gfx, lock.target.rocm or "") if content else None
    if judgement is None or judgement.state != "does-not-fit":
        return None
    text = f"{path.name} does not fit: it {judgement.evidence}."
    fix = (
        "The lock now excludes this file. Run `matrix resolve` again, which chooses another release, or "
        f"request another with {quote(f'{pick.name}!={pick.version}')}."
    )
    return Finding(DOES_NOT_FIT, "error", text, fix, {"file": path.name, "content": judgement.evidence})


def _content_of(path: Path, sha256: str) -> Content | None:
    """Return the complete content of a wheel; it is kept by its hash, because reading takes seconds."""
    stored = cache_root() / "contents" / f"{RULES}-{sha256}.msgpack"
    if sha256:
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.msgpack.decode(stored.read_bytes(), type=Stored).content
    try:
        content = read_complete(path)
    except DamagedError as error:
        msg = f"{path.name} is not a valid wheel: {error}."
        raise BuildError(msg, hint="Fetch it again, or request another release.", id="audit") from None
    if sha256:
        replace(stored, msgspec.msgpack.encode(Stored(content)))
    return content


def check_prebuilt(pick: Distribution, path: Path, gfx: Sequence[str]) -> None:
    """Raise `BuildError` if the audit of a fetched wheel finds errors or a missing GPU architecture."""
    from builders.audit import audit_wheel

    audit = audit_wheel(path)
    problems = [str(finding) for finding in audit.errors]
    code = {item.architecture for objects in audit.contents.code.values() for item in objects}
    missing = [target for target in gfx if target not in code]
    if missing and not path.name.endswith("-any.whl"):
        problems.append(f"{path.name} contains no code for {', '.join(missing)}.")
    if not problems:
        return
    listed = "".join(f"\n  - {problem}" for problem in problems)
    failure = BuildError(
        f"{path.name}, which others compiled, is not used:{listed}\n  File: {path}",
        hint=f"To build {pick.name}, resolve again with --no-prebuilt.",
        id="audit",
    )
    failure.findings = tuple(audit.errors)
    raise failure
