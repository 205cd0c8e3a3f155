"""Compare the wheels of an index with their provenance, and with a lock."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from builders.building.provenance import BUILD_TYPE, read_statement
from builders.index.maintenance import damage
from builders.index.repository import record_name
from resolver.errors import ProvenanceError
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builders.building.provenance import Statement
    from builders.findings import Finding
    from builders.index.repository import Index
    from resolver.model import Distribution, Resolution


class Verified(NamedTuple):
    """What a comparison found."""

    findings: list[Finding]
    unbuilt: list[str]
    """The wheels that somebody added, so that nobody recorded how they were built."""


def verify(index: Index, lock: Resolution | None = None) -> Verified:
    """Compare every wheel that has a record with it, and with `lock` if it is given."""
    found: list[Finding] = []
    unbuilt: list[str] = []
    statements: dict[str, list[Statement]] = {}
    for project in index.projects():
        entries = index.entries(project)
        for path in index.wheels(project):
            entry = entries.get(path.name)
            if entry is None:  # on no page, so `check` reports it
                continue
            record = index.provenance / record_name(path.name, entry.hashes.sha256)
            text = index.read(record)
            try:
                document = msgspec.json.decode(text, type=dict[str, Any])
                if "predicate" not in document:
                    unbuilt.append(path.name)
                    continue
                statement = read_statement(document)
            except (msgspec.MsgspecError, RecursionError, ProvenanceError) as error:
                message = f"The provenance of {path.name} cannot be read: {error}"
                found.append(damage(index, "provenance-wrong", record, message))
                continue
            statements.setdefault(project, []).append(statement)
            found += [
                damage(index, "provenance-wrong", record, f"The provenance of {path.name} {problem}.")
                for problem in _contradictions(statement, path.name, entry.hashes.sha256)
            ]
    for pick in lock.built() if lock else ():
        if problem := _difference(pick, statements.get(pick.name, [])):
            found.append(damage(index, "lock-differs", index.simple / pick.name, problem))
    return Verified(found, unbuilt)


def _contradictions(statement: Statement, wheel: str, sha256: str) -> Iterator[str]:
    subjects = {(subject.name, subject.digest.get("sha256")) for subject in statement.subject}
    if subjects != {(wheel, sha256)}:
        yield "is about another file"
    definition = statement.predicate.build_definition
    inputs = definition.internal_parameters.get("inputs")
    key = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    if definition.build_type == BUILD_TYPE and key != statement.build_key:
        yield "has a build key that is not the digest of its inputs"


def _difference(pick: Distribution, statements: list[Statement]) -> str:
    """Return how the index differs from a distribution that the lock builds; empty if it does not."""
    title = f"{pick.name} {pick.pinned}"
    if pick.alias_of:
        return ""
    definitions = [
        statement.predicate.build_definition
        for statement in statements
        if statement.predicate.build_definition.external_parameters.get("version") == pick.pinned
    ]
    if not definitions:
        return f"The index has no wheel of {title}, which the lock builds."
    pinned = pick.source_digest
    sources = {
        digest
        for definition in definitions
        for part in definition.resolved_dependencies
        if part.role == "source"
        for digest in part.digest.values()
    }
    if pinned and pinned not in sources:
        return f"No wheel of {title} was built from the source that the lock pins: {shorten(pinned, 12)}."
    return ""
