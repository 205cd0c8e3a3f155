"""The JSON Schemas in docs/reference/schemas, generated from the documents of commands and from files."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, get_args

import msgspec

from builders.building.task_state import TaskState
from matrix.building import work
from matrix.building.planning import Plan
from matrix.commands import (
    build_wheels,
    catalog,
    check,
    diff,
    explain,
    index,
)
from matrix.farm import build_one, builds, fetch
from matrix.input.settings import Settings
from matrix.maintaining import drafting, site_file
from matrix.show import graph_text
from matrix.show.json_document import BriefDocument, ConflictDocument, ErrorDocument, ResolutionDocument
from matrix.show.table_formats import TableDocument
from resolver.facts.schema import CatalogFile

FOLDER = Path(__file__).parent / "reference" / "schemas"
DOCUMENTS: dict[str, Any] = {
    "brief": BriefDocument,
    "error": ErrorDocument,
    "resolve": ResolutionDocument,
    "conflict": ConflictDocument,
    "explain": explain.ExplainDocument,
    "table": TableDocument,
    "diff": diff.DiffDocument,
    "explain-graph": graph_text.GraphDocument,
    "farm-fetch": fetch.FetchDocument,
    "farm-plan": Plan,
    "build-container": work.ContainerDocument,
    "build-layer": work.ContainerDocument,
    "build-wheels": build_wheels.BuildResult,
    "farm-build-one": build_one.TaskResult | build_one.TaskResults,
    "farm-builds": builds.BuildList,
    "index-list": index.ListDocument,
    "index-add": index.AddDocument,
    "index-check": index.IndexCheckDocument,
    "index-remove": index.RemoveDocument,
    "check": check.CheckDocument,
    "catalog-list": catalog.CountsDocument,
    "catalog-list-kind": catalog.RowsDocument,
    "catalog-check": catalog.CatalogCheckDocument,
    "catalog-learn": catalog.NewRowsDocument,
    "catalog-update": catalog.NewRowsDocument,
    "catalog-draft": drafting.DraftResult,
    "catalog-site": site_file.SiteDocument,
}
"""The type of each document, by the command that prints it."""
FILES: dict[str, Any] = {"matrix.toml": Settings, "facts.toml": CatalogFile}
"""The type of each file that users write: editors complete and check its keys."""


def schemas() -> dict[Path, str]:
    """Return the JSON Schema of each document by its path."""
    return {FOLDER / f"{name}.json": _schema(name, kind) for name, kind in (DOCUMENTS | FILES).items()}


def _schema(name: str, kind: object) -> str:
    types = get_args(kind) or (kind,)
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/$defs/{name}", schema_hook=lambda _: {"type": "string"}
    )
    for document in types if name in DOCUMENTS else ():
        component = components[document.__name__]
        component["required"] = list(dict.fromkeys(["schema", "status", *component["required"]]))
    for row in components.values() if name in FILES else ():  # a file of one package need not name it
        row["required"] = [key for key in row["required"] if key != "package"]
    for row in components.values():  # msgspec before 0.23 leaves the indentation of docstrings in
        if "description" in row:
            row["description"] = inspect.cleandoc(row["description"])
    if task := components.get(TaskState.__name__):  # it has many defaults, but all keys are always written
        task["required"] = list(task["properties"])
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"matrix {name}"}
    body = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return json.dumps({**head, **body, "$defs": components}, indent=1) + "\n"
