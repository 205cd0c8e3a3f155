"""Older schemas of the lock to the one that is written now: pure functions on data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resolver.versions import abi_tag

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOP_1 = {"schema", "requirements", "order", "warnings", "target", "pick", "edge"}
_TARGET_1 = {"site", "date", "backend", "gfx", "support", "prefer"}


class UnknownKeyError(ValueError):
    """An older lock has a key that its schema did not know."""


def from_schema_1(data: Mapping[str, Any]) -> dict[str, Any]:
    """Give a lock of schema 1 as one of schema 2.

    Schema 2 has the request in a table of its own and the platform in the target. What schema 1 did
    not keep stays out: the driver's window, the place and digest of the base image, what of the
    target the request had named, and a digest of the whole.

    Raises
    ------
    UnknownKeyError
        It has keys that schema 1 did not know, so it is no such lock.
    """
    target = data.get("target")
    if not isinstance(target, dict):
        msg = "it has no target"
        raise UnknownKeyError(msg)
    unknown = sorted((data.keys() - _TOP_1) | (target.keys() - _TARGET_1))
    if unknown:
        msg = f"schema 1 has no key {unknown[0]!r}"
        raise UnknownKeyError(msg)
    versions = _versions(data.get("pick"))
    request = {
        "requirements": data.get("requirements", []),
        **{key: target[key] for key in ("support", "prefer") if key in target},
    }
    platform: dict[str, Any] = {key: versions[key] for key in ("rocm", "glibc", "python") if key in versions}
    if "python" in platform:
        platform["python-abi"] = abi_tag(platform["python"])
    if "kernel-driver" in versions:
        platform["driver"] = {"version": versions["kernel-driver"]}
    if "base-image" in versions:
        platform["base-image"] = {"name": versions["base-image"]}
    kept = {key: value for key, value in target.items() if key not in {"support", "prefer"}}
    others = {key: value for key, value in data.items() if key not in {"schema", "requirements", "target"}}
    return {"schema": 2, **others, "request": request, "target": kept | platform}


def _versions(picks: object) -> dict[str, Any]:
    rows = [row for row in picks if isinstance(row, dict)] if isinstance(picks, list) else []
    named = {str(row.get("name")): row.get("version") for row in rows}
    return {name: version for name, version in named.items() if isinstance(version, str)}
