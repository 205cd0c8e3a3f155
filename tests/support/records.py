"""Readers for the provenance of a wheel."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, get_args

from builders.building.provenance import PredicateType, StatementType
from builders.index import Index


def provenance_of(index: Index, wheel: Path) -> dict[str, Any]:
    """Return the provenance of a wheel of an index."""
    return next(dict(each.provenance) for each in index.published(wheel.parent.name) if each.path == wheel)


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


def record_of(build_key: str, wheel: Path | None = None) -> dict[str, Any]:
    """Return the smallest provenance with a build key; without `wheel` it is about no real file."""
    name = wheel.name if wheel else "wheel"
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest() if wheel else "0" * 64
    (statement_type,), (predicate_type,) = get_args(StatementType), get_args(PredicateType)
    return {
        "_type": statement_type,
        "subject": [{"name": name, "digest": {"sha256": sha256}}],
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
