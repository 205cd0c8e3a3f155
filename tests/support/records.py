"""Readers for the provenance of a wheel."""

from __future__ import annotations

from typing import Any, get_args

from builders.building.provenance import PredicateType, StatementType


def inputs_of(record: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of the build key."""
    inputs = record["predicate"]["buildDefinition"]["internalParameters"]["inputs"]
    assert isinstance(inputs, dict)
    return inputs


def materials_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the materials of the wheel: source, torch, base image, build requirements."""
    materials = record["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert isinstance(materials, list)
    return materials


def results_of(record: dict[str, Any]) -> dict[str, Any]:
    """Return the results in a record, such as ``findings`` and ``objects``, by name."""
    products = record["predicate"]["runDetails"]["byproducts"]
    annotations = {product["name"]: product["annotations"] for product in products}
    return {name: product["result"] for name, product in annotations.items() if product["role"] == "result"}


def record_of(build_key: str) -> dict[str, Any]:
    """Return the smallest provenance with a build key."""
    (statement_type,), (predicate_type,) = get_args(StatementType), get_args(PredicateType)
    return {
        "_type": statement_type,
        "subject": [{"name": "wheel", "digest": {"sha256": "0" * 64}}],
        "predicateType": predicate_type,
        "predicate": {
            "buildDefinition": {
                "buildType": "",
                "externalParameters": {},
                "internalParameters": {"buildKey": build_key},
            },
            "runDetails": {"builder": {"id": ""}},
        },
    }
