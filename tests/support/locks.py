"""Locks and picks for tests."""

from __future__ import annotations

import datetime
import hashlib
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from builders.machine.host import running_python
from resolver.indexes import File
from resolver.model import BaseImage, Distribution, Request, Resolution, Target
from resolver.requirements import parse_requirement


def built_pick(name: str, **more: Any) -> Distribution:
    """Return a pick of version 1.0 that is built."""
    return Distribution(
        name=name,
        version="1.0",
        kind="distribution",
        origin="build",
        support="observed",
        verdict="supported",
        **more,
    )


def with_image(lock: Resolution, image: BaseImage) -> Resolution:
    """Return a lock with a base image."""
    pick = Distribution(
        name="base-image",
        version=image.name,
        kind="platform",
        origin="base-image",
        support="observed",
        verdict="supported",
    )
    others = tuple(pick for pick in lock.picks if pick.name != "base-image")
    return replace(
        lock, picks=(*others, pick), image=image, target=replace(lock.target, base_image=image.name)
    )


def with_kept(lock: Resolution, *names: str) -> Resolution:
    """Return a lock in which these distributions are preinstalled."""
    picks = tuple(
        replace(pick, origin="preinstalled", index="") if pick.name in names else pick for pick in lock.picks
    )
    return replace(lock, picks=picks)


def with_index(lock: Resolution, url: str, *names: str) -> Resolution:
    """Return a lock in which these distributions come from another index."""
    return replace(
        lock, picks=tuple(replace(pick, index=url) if pick.name in names else pick for pick in lock.picks)
    )


def locked_pick(name: str, version: str, *files: File, **more: Any) -> Distribution:
    """Return a published distribution with its files."""
    return Distribution(
        name=name,
        version=version,
        kind="distribution",
        origin="published",
        support="inferred",
        verdict="supported",
        files=files,
        **more,
    )


def local_file(path: Path, *, index: str = "https://index.example/simple", **more: Any) -> File:
    """Return a file of an index, with the URL of a local file."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    known = {"url": path.as_uri(), "sha256": digest, "size": path.stat().st_size, "index": index}
    return File(path.name, **{**known, **more})


def lock_of(*picks: Distribution, requested: tuple[str, ...] = (), **more: Any) -> Resolution:
    """Return a lock for the CPU backend and the Python of this process."""
    python = running_python()
    target = Target(site="local", date=datetime.date(2026, 3, 1), backend="cpu", python=python, glibc="2.35")
    interpreter = Distribution(
        name="python",
        version=python,
        kind="platform",
        origin="default",
        support="documented",
        verdict="supported",
    )
    request = Request(target, tuple(map(parse_requirement, requested or [pick.name for pick in picks])))
    return Resolution(request=request, target=target, picks=(interpreter, *picks), **more)
