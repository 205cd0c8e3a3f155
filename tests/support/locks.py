"""Locks and picks for tests."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from resolver.model import BaseImage, Distribution, Resolution


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
