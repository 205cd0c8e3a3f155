"""The JSON documents of the commands: their keys, and the JSON Schemas in docs/reference/schemas.

A document is an envelope (`status`, `warnings`) with structs of the product. The envelopes are declared here,
because the schemas are their only use; ``tests/docs/test_schemas.py`` validates what the commands print.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from builders.audit.wheel_audit import Report
from builders.building.task_state import TaskState
from builders.containers.inspection import ImageFacts
from builders.findings import Finding
from builders.sources import FetchedItem, MissingItem
from matrix.building.container_plan import Space, StepResult
from matrix.building.coverage import CoverageResult
from matrix.building.planning import Plan
from matrix.checking.document import Kind
from matrix.checking.preflight import Preflight
from matrix.checking.target import Consumer
from matrix.commands.build_one import TaskResult
from matrix.commands.index import IndexedWheel
from matrix.commands.inspect import InspectDocument
from matrix.commands.recipe import DraftResult
from matrix.commands.verify import Verdict
from matrix.show.consequences_json import DiffDocument
from matrix.show.json_document import ErrorDocument, JsonDocument
from matrix.show.resolution_json import LockChange
from resolver.consequences.model import Consequence
from resolver.facts.schema import Status
from resolver.model import (
    Conflict,
    CoreItem,
    Distribution,
    Edge,
    Origin,
    Preinstalled,
    Resolution,
    Target,
)

FOLDER = Path(__file__).parent / "reference" / "schemas"


class CellDocument(msgspec.Struct, kw_only=True):
    """A cell: a version, or the versions of a combination, or the reason why no version works."""

    version: str | UnsetType = UNSET
    variant: str | UnsetType = UNSET
    origin: Origin | UnsetType = UNSET
    support: Status | UnsetType = UNSET
    picks: dict[str, CellDocument] | UnsetType = UNSET
    refused: str | UnsetType = UNSET
    core: list[CoreItem] | UnsetType = UNSET


class RowDocument(msgspec.Struct, kw_only=True):
    """The versions that work with a base image, a torch and a Python."""

    base_image: str
    rocm: str
    torch: str
    python: str
    verdict: Literal["supported", "at-own-risk", "refused"]
    cells: dict[str, CellDocument] | UnsetType = UNSET
    refused: str | UnsetType = UNSET
    core: list[CoreItem] | UnsetType = UNSET


class FactDocument(msgspec.Struct, kw_only=True):
    """A fact."""

    name: str
    status: Status
    source: str
    note: str
    file: str
    line: int
    row: dict[str, Any]
    """All keys of the row."""


class ImageDocument(ImageFacts, frozen=True, kw_only=True):
    """The content of a base image, and the tools that it lacks to build wheels."""

    missing: list[str]
    can_build: bool


class InsteadDocument(msgspec.Struct):
    """The component that another version would change."""

    component: str
    now: str
    then: str


class RejectedDocument(msgspec.Struct, kw_only=True):
    """A version that was not chosen, and why."""

    version: str
    core: tuple[CoreItem, ...]
    instead: InsteadDocument | UnsetType = UNSET
    preferred: str | UnsetType = UNSET


class GraphNode(msgspec.Struct, kw_only=True):
    """A distribution of the graph."""

    name: str
    version: str
    """Empty if pip chooses it."""
    wheel_version: str
    origin: str
    generation: int


class GraphEdge(Edge, frozen=True, omit_defaults=False):
    """An edge of the graph; its JSON has all keys, even those with an empty value."""


class PreinstalledDocument(Preinstalled, frozen=True):
    """The distributions that ``--keep-installed`` keeps."""

    picks: dict[str, str] | UnsetType = UNSET
    """The kept distributions that the resolution contains."""
    ignored: list[str] | UnsetType = UNSET
    """Kept distributions that are not in the catalog, or that no distribution requires."""


class TargetDocument(Target, frozen=True, kw_only=True):
    """The target of a request, and the distributions to keep."""

    kept: PreinstalledDocument | UnsetType = UNSET


class ResolutionDocument(Resolution, frozen=True, kw_only=True):
    """A resolution."""

    target: TargetDocument
    changes: tuple[LockChange, ...] = ()
    """What differs from the lock that it replaces."""


class ConflictDocument(Conflict, frozen=True, kw_only=True):
    """A conflict: the reason why there is no resolution."""

    target: TargetDocument


def _envelope(
    name: str, meaning: str, /, status: object = Literal["ok"], **keys: object
) -> type[JsonDocument]:
    """Return the type of a document; a key whose type includes `UnsetType` may be absent."""
    fields: list[Any] = [("status", status, "ok") if status == Literal["ok"] else ("status", status)]
    for key, kind in keys.items():
        fields.append((key, kind, UNSET) if UnsetType in get_args(kind) else (key, kind))
    return msgspec.defstruct(
        name, fields, bases=(JsonDocument,), kw_only=True, namespace={"__doc__": meaning}
    )


_PRINTED = "The JSON output of the command."
DOCUMENTS: dict[str, Any] = {
    "error": ErrorDocument,
    "resolve": ResolutionDocument,
    "conflict": ConflictDocument,
    "explain": _envelope(
        "ExplainDocument",
        "Why versions were chosen.",
        picks=list[Distribution],
        rejected=list[RejectedDocument],
        rejected_more=int,
    ),
    "explain-log": _envelope(
        "DiagnosisDocument",
        "The known failures in a log.",
        Literal["ok", "unrecognized"],
        log=str,
        diagnosis=list[Finding],
    ),
    "table": _envelope(
        "TableDocument",
        "The versions that work together at a site.",
        target=Target,
        limits=list[str],
        columns=list[str],
        rows=list[RowDocument],
    ),
    "diff": DiffDocument,
    "graph": _envelope(
        "GraphDocument",
        "The build graph.",
        target=Target,
        requirements=list[str],
        nodes=list[GraphNode],
        edges=list[GraphEdge],
        generations=list[list[str]],
    ),
    "fetch": _envelope(
        "FetchDocument",
        "The items in the cache, and those that could not be fetched.",
        Literal["ok", "missing"],
        cache=str,
        sources=list[FetchedItem],
        missing=list[MissingItem],
        bytes_fetched=int,
    ),
    "plan": Plan,
    "build-container": _envelope(
        "ContainerDocument",
        _PRINTED,
        Literal["ok", "planned", "failed"],
        container=str,
        consumer=str,
        files=str,  # the directory with the files that the container was made from
        lock=str,
        steps=list[StepResult],
        wheels=list[TaskState],
        space=list[Space],
        findings=tuple[Finding, ...],  # of the verification, if it was run
    ),
    "build-wheels": _envelope(
        "BuildResult", _PRINTED, Literal["ok", "failed"], index=str, wheels=list[TaskState]
    ),
    "build-wheels-table": CoverageResult,
    "build-one": TaskResult
    | _envelope("TaskResults", "The JSON output of the command for several keys.", tasks=list[TaskResult]),
    "builds": _envelope("BuildList", _PRINTED, index=str, builds=list[TaskState]),  # in the order of start
    "recipe-draft": DraftResult,
    "audit": _envelope(
        "AuditDocument",
        "The contents of wheels, and the findings.",
        Literal["ok", "errors"],
        wheels=list[Report],
    ),
    "index-list": _envelope("ListDocument", "The wheels of an index.", index=str, wheels=list[IndexedWheel]),
    "index-add": _envelope(
        "AddDocument",
        "Wheels that were added to an index, and those that were rejected.",
        Literal["ok", "errors"],
        index=str,
        added=list[str],
        rejected=dict[str, list[Finding]],
    ),
    "index-check": _envelope(
        "IndexCheckDocument",
        "The damage in an index.",
        Literal["ok", "errors"],
        index=str,
        sound=bool,
        findings=list[Finding],
    ),
    "index-refresh": _envelope(
        "RefreshDocument",
        "The projects whose pages were rebuilt, and wheels that pages cannot list.",
        Literal["ok", "errors"],
        index=str,
        rebuilt=list[str],
        findings=list[Finding],
    ),
    "index-remove": _envelope(
        "RemoveDocument",
        "The files that were removed from an index.",
        index=str,
        removed=list[str],
        bytes=int,
        dry_run=bool,
    ),
    "check": _envelope(
        "CheckDocument",
        "The findings in a file, and the result of the preflight.",
        Literal["ok", "errors"],
        file=str,
        kind=Kind,
        **{"for": Consumer},
        against=str,
        findings=list[Finding],
        preflight=Preflight,
        diff=str,
    ),
    "inspect": InspectDocument,
    "verify": _envelope(
        "VerifyDocument",
        "Whether an environment matches the lock.",
        Literal["ok", "errors"],
        image=str,  # empty for the Python of this machine
        python=dict[str, str],
        distributions=dict[str, str],
        libraries=list[str],
        gpus=list[dict[str, str]],
        findings=list[Finding],
        not_judged=int,
        verdict=Verdict,
    ),
    "doctor": _envelope(
        "DoctorDocument",
        "Findings about a machine, and optionally about a base image.",
        Literal["ok", "errors"],
        host=list[Finding],
        image=ImageDocument | UnsetType,
    ),
    "catalog-list": _envelope(
        "CountsDocument", "The number of facts of each kind, by status.", kinds=dict[str, dict[str, int]]
    ),
    "catalog-list-kind": _envelope(
        "RowsDocument", "The facts of one kind.", kind=str, rows=list[FactDocument]
    ),
    "catalog-check": _envelope(
        "CatalogCheckDocument",
        "Whether files of facts are valid.",
        Literal["ok", "errors"],
        files=list[str] | UnsetType,
        rows=int | UnsetType,
        findings=list[Finding],
    ),
    "catalog-learn": _envelope(
        "LearnDocument",
        "The facts that were learned from files.",
        rows=int,
        known=int,
        diff=str,
        written=str,  # path of the file, empty without --apply
        remarks=list[str],
        size=int,  # of the inputs in bytes
        read=int,  # number of these bytes that were read
    ),
    "catalog-update": _envelope(
        "UpdateDocument",
        "Facts that public sources have and the catalog lacks.",
        rows=int,
        diff=str,
        written=str,
        consequences=list[Consequence],
        remarks=list[str],
        unreachable=list[str],
    ),
    "site-init": _envelope(
        "SiteDocument", "The site file of a machine.", site=str, written=str, rows=int, remarks=list[str]
    ),
}
"""The type of each document, by the command that prints it."""


def schemas() -> dict[Path, str]:
    """Return the JSON Schema of each document by its path."""
    return {FOLDER / f"{name}.json": _schema(name, kind) for name, kind in DOCUMENTS.items()}


def _schema(name: str, kind: object) -> str:
    types = get_args(kind) or (kind,)
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/$defs/{name}", schema_hook=lambda _: {"type": "string"}
    )
    for document in types:
        component = components[document.__name__]
        component["required"] = list(dict.fromkeys(["schema", "status", *component["required"]]))
    if task := components.get(TaskState.__name__):  # it has many defaults, but all keys are always written
        task["required"] = list(task["properties"])
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"matrix {name}"}
    body = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return json.dumps({**head, **body, "$defs": components}, indent=1) + "\n"
