"""A resolution as a file: everything that later steps need, and nothing that changes by itself.

The lock is TOML with a schema number, and at its end a digest of all that it says. The same catalog
and request give the same bytes. It is read strictly: what was edited by hand is refused.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import msgspec

from resolver.errors import LockError
from resolver.label import labelled, wheel_label
from resolver.lockfile.parts import (
    Lock,
    LockedDriver,
    LockedEdge,
    LockedFact,
    LockedImage,
    LockedPick,
    LockedPreinstalled,
    LockedRequest,
    LockedTarget,
)
from resolver.model import Preinstalled, Request, Target
from resolver.requirements import parse_requirement
from resolver.versions import abi_tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from resolver.model import Fact, Pick, Resolution

__all__ = [
    "SCHEMA",
    "Lock",
    "LockedDriver",
    "LockedEdge",
    "LockedFact",
    "LockedImage",
    "LockedPick",
    "LockedPreinstalled",
    "LockedRequest",
    "LockedTarget",
    "dumps",
    "make_lock",
    "read_lock",
    "request_of",
]

SCHEMA = 2
_AGAIN = "Write it anew with: matrix resolve"
_HEAD = "# Written by `matrix resolve`. Change the request and resolve again rather than this file.\n"


def make_lock(resolution: Resolution) -> Lock:
    """Turn a resolution into a lock."""
    request, target = resolution.request, resolution.request.target
    torch, rocm = resolution.pick("torch"), resolution.pick("rocm")
    label = ""
    if torch is not None:
        version = rocm.version if rocm else ""
        label = wheel_label(backend=target.backend, torch=torch.version, rocm=version, gfx=target.gfx)
    return Lock(
        schema=SCHEMA,
        order=resolution.order,
        warnings=resolution.warnings,
        request=_lock_request(request),
        target=_lock_target(resolution),
        pick=tuple(_lock_pick(pick, label, torch) for pick in resolution.picks),
        edge=tuple(
            LockedEdge(
                subject=edge.subject,
                object=edge.object,
                kind=edge.kind,
                declared=edge.declared,
                requirement=edge.requirement,
            )
            for edge in resolution.edges
        ),
    )


def _lock_request(request: Request) -> LockedRequest:
    target, kept = request.target, request.keep
    return LockedRequest(
        requirements=tuple(one.text for one in request.requirements),
        support=request.support,
        prefer=request.prefer,
        driver=target.driver or "",
        base_image=target.base_image or "",
        python=target.python or "",
        glibc=target.glibc or "",
        site_file=request.site_file,
        catalogs=request.catalogs,
        keep=LockedPreinstalled(source=kept.source, installed=dict(kept.installed)) if kept else None,
    )


def _lock_target(resolution: Resolution) -> LockedTarget:
    target, window, image = resolution.request.target, resolution.window, resolution.image
    versions = {pick.name: pick.version for pick in resolution.picks if pick.candidate.kind == "platform"}
    driver = None
    if "kernel-driver" in versions:
        driver = LockedDriver(
            version=versions["kernel-driver"],
            since=window.since if window else None,
            until=window.until if window else None,
            package=window.package if window else "",
            source=window.source if window else "",
        )
    return LockedTarget(
        site=target.site,
        date=target.date,
        backend=target.backend,
        gfx=target.gfx,
        rocm=versions.get("rocm", ""),
        glibc=versions.get("glibc", ""),
        python=versions.get("python", ""),
        python_abi=abi_tag(versions.get("python", "")),
        driver=driver,
        base_image=LockedImage(
            name=image.name,
            path=image.path,
            digest=image.digest,
            dockerhash=image.dockerhash,
            libstdcxx=image.libstdcxx,
        )
        if image
        else None,
    )


def request_of(lock: Lock) -> Request:
    """Give the request that a lock answers, so that it can be resolved again.

    The lock of an older schema does not say all of it.
    """
    target, asked = lock.target, lock.request
    return Request(
        Target(
            backend=target.backend,
            gfx=target.gfx,
            site=target.site,
            date=target.date,
            driver=asked.driver or None,
            base_image=asked.base_image or None,
            python=asked.python or None,
            glibc=asked.glibc or None,
        ),
        tuple(map(parse_requirement, asked.requirements)),
        asked.support,
        asked.prefer,
        site_file=asked.site_file,
        catalogs=asked.catalogs,
        keep=Preinstalled(asked.keep.source, tuple(asked.keep.installed.items())) if asked.keep else None,
    )


def _lock_pick(pick: Pick, label: str, torch: Pick | None) -> LockedPick:
    one, release = pick.candidate, pick.candidate.release
    # A distribution that is published and has no release of its own is published beside torch.
    beside_torch = (
        one.kind == "distribution" and one.origin == "published" and release is None and torch is not None
    )
    return LockedPick(
        name=one.name,
        version=one.version,
        variant=one.variant,
        kind=one.kind,
        origin=one.origin,
        support=pick.support,
        verdict=pick.verdict,
        wheel_version=labelled(one.version, label) if one.origin == "build" and label else "",
        index=one.index or (torch.candidate.index if torch and beside_torch else ""),
        sdist=release.sdist if release else None,
        git=release.git if release else None,
        wheel=release.wheel if release else None,
        patches=release.patches if release else (),
        fact=_lock_facts(pick.facts),
    )


def _lock_facts(facts: Iterable[Fact]) -> tuple[LockedFact, ...]:
    return tuple(
        LockedFact(
            text=fact.text,
            status=fact.status,
            source=fact.source,
            note=fact.note,
            file=fact.file,
        )
        for fact in facts
    )


def dumps(lock: Lock) -> str:
    """Write a lock as TOML text, with the digest of what it says at the end."""
    import tomli_w

    from resolver.lockfile.integrity import TABLE, digest_of

    data = _drop_empty(msgspec.to_builtins(lock, builtin_types=(date,)))
    data[TABLE] = {"sha256": digest_of(data)}
    return _HEAD + tomli_w.dumps(data, multiline_strings=False)


def _drop_empty(value: Any) -> Any:  # noqa: ANN401  any TOML value
    """Leave out what is empty or None: TOML has no null, and people read the file."""
    if isinstance(value, dict):
        kept = {key: _drop_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in ("", None, [], {})}
    if isinstance(value, list | tuple):
        return [_drop_empty(item) for item in value]
    return value


def read_lock(path: Path, *, tell: Callable[[str], None] | None = None) -> Lock:
    """Read a lock file, strictly.

    Parameters
    ----------
    path
        The file.
    tell
        Told when the lock has an older schema, which is read all the same.

    Raises
    ------
    LockError
        The file is missing, is something else, was edited by hand or cut short, or its parts do not
        fit together. The message names the file and what is wrong with it.
    """
    from resolver.lockfile.integrity import TABLE
    from resolver.lockfile.migration import UnknownKeyError, from_schema_1
    from resolver.lockfile.sound import complaints
    from resolver.lockfile.text import read_data

    data = read_data(path)
    schema = data.get("schema")
    if type(schema) is not int or schema not in range(1, SCHEMA + 1):
        raise _other_schema(path, schema)
    if schema == 1:
        try:
            data = from_schema_1(data)
        except UnknownKeyError as error:
            msg = f"{path} is no lock of schema 1: {error}."
            raise LockError(msg, hint=_AGAIN) from None
    said = data.pop(TABLE, None)
    try:
        lock = msgspec.convert(data, Lock)
    except msgspec.ValidationError as error:
        msg = f"{path} is no lock of this program: {error}."
        raise LockError(msg, hint=_AGAIN) from None
    if schema == SCHEMA:
        _check_digest(path, data, said)
    for complaint in complaints(lock):
        msg = f"{path} does not hold together: {complaint}."
        raise LockError(msg, hint=_AGAIN)
    if tell is not None and schema < SCHEMA:
        tell(
            f"{path} was written with schema {schema} and was read as schema {SCHEMA}. It does not say all "
            f"that a lock says now, and has no digest; matrix resolve writes it anew."
        )
    return lock


def _other_schema(path: Path, schema: object) -> LockError:
    if schema is None:
        msg = f"{path} has no schema, so it is no lock of matrix."
        return LockError(msg, hint=_AGAIN)
    if type(schema) is int and schema > SCHEMA:
        msg = f"{path} was written by a newer matrix: schema {schema}, and this one reads up to {SCHEMA}."
        return LockError(msg, hint="Use that matrix, or write the lock anew with: matrix resolve")
    return LockError(f"{path} has schema {schema!r}, which never was one.", hint=_AGAIN)


def _check_digest(path: Path, data: dict[str, Any], said: object) -> None:
    from resolver.lockfile.integrity import TABLE, digest_of

    if said is None:
        msg = f"{path} ends without its digest ([{TABLE}]): it was cut short or edited."
        raise LockError(msg, hint=_AGAIN)
    if said != {"sha256": digest_of(data)}:
        msg = f"{path} does not match its own digest: what it says was changed after matrix resolve wrote it."
        raise LockError(msg, hint=f"Change the request instead. {_AGAIN}")
