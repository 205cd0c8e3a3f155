"""Locks and picks made or changed as a test needs them, still whole in themselves."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from resolver.model import BaseImage, Distribution, Resolution


def built_pick(name: str, **more: Any) -> Distribution:
    """Give the pick of a distribution 1.0 that is built."""
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
    """Give a lock that was resolved for a base image."""
    pick = Distribution(
        name="base-image",
        version=image.name,
        kind="platform",
        origin="base-image",
        support="observed",
        verdict="supported",
    )
    others = tuple(one for one in lock.picks if one.name != "base-image")
    return replace(
        lock, picks=(*others, pick), image=image, target=replace(lock.target, base_image=image.name)
    )


def with_kept(lock: Resolution, *names: str) -> Resolution:
    """Give a lock that leaves these distributions as the base image has them."""
    picks = tuple(
        replace(one, origin="preinstalled", index="") if one.name in names else one for one in lock.picks
    )
    return replace(lock, picks=picks)


def with_index(lock: Resolution, url: str, *names: str) -> Resolution:
    """Give a lock that takes these distributions from another wheel index."""
    return replace(
        lock, picks=tuple(replace(one, index=url) if one.name in names else one for one in lock.picks)
    )
