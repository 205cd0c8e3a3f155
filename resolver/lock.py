"""A resolution as a file: everything that later steps need, and nothing that changes by itself.

The lock is TOML with a schema number. The same catalog and request give the same bytes.
"""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import tomli_w

from resolver.errors import LockError
from resolver.facts.schema import Backend, Git, Sdist, Status  # noqa: TC001
from resolver.label import labelled, wheel_label
from resolver.model import Kind, Origin, Verdict  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from resolver.model import Fact, Pick, Resolution

SCHEMA = 1
_HEAD = "# Written by `matrix resolve`. Change the request and resolve again rather than this file.\n"


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """A table of the lock."""


class LockedFact(_Part, frozen=True, kw_only=True):
    """A reason for a pick."""

    text: str
    status: Status
    source: str
    note: str = ""
    file: str = ""
    """Name of the catalog file, without its directory."""


class LockedTarget(_Part, frozen=True, kw_only=True):
    """What was resolved for."""

    site: str
    date: date
    backend: Backend
    gfx: tuple[str, ...] = ()
    support: str = "any"
    prefer: str = "newest"


class LockedPick(_Part, frozen=True, kw_only=True):
    """One chosen component."""

    name: str
    version: str
    variant: str = ""
    kind: Kind
    origin: Origin
    support: Status
    verdict: Verdict
    wheel_version: str = ""
    """For what is built: its version with the label, as the consumer pins it."""
    index: str = ""
    sdist: Sdist | None = None
    git: Git | None = None
    wheel: Sdist | None = None
    fact: tuple[LockedFact, ...] = ()

    @property
    def pinned(self) -> str:
        """The version that a consumer pins."""
        return self.wheel_version or self.version


class LockedEdge(_Part, frozen=True, kw_only=True):
    """`subject` needs `object`."""

    subject: str
    object: str
    kind: Literal["run", "build"]
    declared: bool
    requirement: str = ""


class Lock(_Part, frozen=True, kw_only=True):
    """A lock file."""

    schema: int
    requirements: tuple[str, ...] = ()
    order: tuple[tuple[str, ...], ...] = ()
    warnings: tuple[str, ...] = ()
    target: LockedTarget
    pick: tuple[LockedPick, ...] = ()
    edge: tuple[LockedEdge, ...] = ()

    def find(self, name: str) -> LockedPick | None:
        """Find a pick by name."""
        return next((pick for pick in self.pick if pick.name == name), None)

    def version_of(self, name: str) -> str:
        """Give the locked version of a component, or an empty text."""
        pick = self.find(name)
        return pick.version if pick else ""

    def built(self) -> list[LockedPick]:
        """Give the picks that are built, in install order."""
        rank = {name: number for number, group in enumerate(self.order) for name in group}
        return sorted(
            (pick for pick in self.pick if pick.origin == "build"),
            key=lambda pick: (rank.get(pick.name, len(rank)), pick.name),
        )


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
        requirements=tuple(one.text for one in request.requirements),
        order=resolution.order,
        warnings=resolution.warnings,
        target=LockedTarget(
            site=target.site,
            date=target.date,
            backend=target.backend,
            gfx=target.gfx,
            support=request.support,
            prefer=request.prefer,
        ),
        pick=tuple(_lock_pick(pick, label) for pick in resolution.picks),
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


def _lock_pick(pick: Pick, label: str) -> LockedPick:
    one, release = pick.candidate, pick.candidate.release
    return LockedPick(
        name=one.name,
        version=one.version,
        variant=one.variant,
        kind=one.kind,
        origin=one.origin,
        support=pick.support,
        verdict=pick.verdict,
        wheel_version=labelled(one.version, label) if one.origin == "build" and label else "",
        index=one.index,
        sdist=release.sdist if release else None,
        git=release.git if release else None,
        wheel=release.wheel if release else None,
        fact=_lock_facts(pick.facts),
    )


def _lock_facts(facts: Iterable[Fact]) -> tuple[LockedFact, ...]:
    return tuple(
        LockedFact(
            text=fact.text,
            status=fact.status,
            source=fact.source,
            note=fact.note,
            file=PurePath(fact.file).name,
        )
        for fact in facts
    )


def dumps(lock: Lock) -> str:
    """Write a lock as TOML text."""
    data = msgspec.to_builtins(lock, builtin_types=(date,))
    return _HEAD + tomli_w.dumps(_drop_empty(data), multiline_strings=False)


def _drop_empty(value: Any) -> Any:  # noqa: ANN401  any TOML value
    """Leave out what is empty or None: TOML has no null, and people read the file."""
    if isinstance(value, dict):
        kept = {key: _drop_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in ("", None, [], {})}
    if isinstance(value, list | tuple):
        return [_drop_empty(item) for item in value]
    return value


def read_lock(path: Path) -> Lock:
    """Read a lock file.

    Raises
    ------
    LockError
        The file is missing, is no lock, or was written by another schema.
    """
    again = "Write it anew with: matrix resolve"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        msg = f"There is no lock file {path}."
        raise LockError(msg, hint="Write it with: matrix resolve") from None
    except (OSError, ValueError, RecursionError) as error:
        msg = f"Cannot read the lock file {path}: {error}."
        raise LockError(msg, hint=again) from None
    if data.get("schema") != SCHEMA:
        msg = f"{path} has schema {data.get('schema')!r}, this program reads schema {SCHEMA}."
        raise LockError(msg, hint=again)
    try:
        return msgspec.convert(data, Lock)
    except msgspec.ValidationError as error:
        msg = f"{path} is no lock of this program: {error}."
        raise LockError(msg, hint=again) from None
