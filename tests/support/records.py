"""Reading the provenance of a wheel, as an in-toto statement says it."""

from __future__ import annotations

from typing import Any


def inputs_of(record: dict[str, Any]) -> dict[str, Any]:
    """Give what the build key was taken from."""
    found = record["predicate"]["buildDefinition"]["internalParameters"]["inputs"]
    assert isinstance(found, dict)
    return found


def materials_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Give what the wheel was made from: its source, torch, the base image, the build requirements."""
    found = record["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert isinstance(found, list)
    return found


def results_of(record: dict[str, Any]) -> dict[str, Any]:
    """Give what was found of the wheel afterwards."""
    products = record["predicate"]["runDetails"]["byproducts"]
    said = {one["name"]: one["annotations"] for one in products}
    return {name: one["result"] for name, one in said.items() if one["role"] == "result"}
