"""Readers for the provenance of a wheel."""

from __future__ import annotations

from typing import Any


def inputs_of(record: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of the build key."""
    found = record["predicate"]["buildDefinition"]["internalParameters"]["inputs"]
    assert isinstance(found, dict)
    return found


def materials_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the wheel was built from: source, torch, base image, build requirements."""
    found = record["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert isinstance(found, list)
    return found


def results_of(record: dict[str, Any]) -> dict[str, Any]:
    """Return the findings on the wheel."""
    products = record["predicate"]["runDetails"]["byproducts"]
    said = {one["name"]: one["annotations"] for one in products}
    return {name: one["result"] for name, one in said.items() if one["role"] == "result"}


def record_of(build_key: str) -> dict[str, Any]:
    """Return the least provenance that has a build key."""
    return {"predicate": {"buildDefinition": {"internalParameters": {"buildKey": build_key}}}}
