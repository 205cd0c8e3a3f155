"""Locks and picks made or changed as a test needs them, still whole in themselves."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from resolver.lock import Lock, LockedImage, LockedPick


def built_pick(name: str, **more: Any) -> LockedPick:
    """Give the pick of a distribution 1.0 that is built."""
    return LockedPick(
        name=name,
        version="1.0",
        kind="distribution",
        origin="build",
        support="observed",
        verdict="supported",
        **more,
    )


def with_image(lock: Lock, image: LockedImage) -> Lock:
    """Give a lock that was resolved for a base image."""
    pick = LockedPick(
        name="base-image",
        version=image.name,
        kind="platform",
        origin="base-image",
        support="observed",
        verdict="supported",
    )
    others = tuple(one for one in lock.pick if one.name != "base-image")
    return replace(lock, pick=(*others, pick), target=replace(lock.target, base_image=image))


def with_kept(lock: Lock, *names: str) -> Lock:
    """Give a lock that leaves these distributions as the base image has them."""
    picks = tuple(
        replace(one, origin="base-image", index="") if one.name in names else one for one in lock.pick
    )
    return replace(lock, pick=picks)


def with_index(lock: Lock, url: str, *names: str) -> Lock:
    """Give a lock that takes these distributions from another wheel index."""
    return replace(
        lock, pick=tuple(replace(one, index=url) if one.name in names else one for one in lock.pick)
    )
