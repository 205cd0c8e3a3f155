"""The JSON documents of the commands as types, and their JSON Schemas in docs/reference/schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from builders.audit.wheel_audit import Report
from builders.containers.inspection import ImageFacts
from builders.findings import Finding
from builders.sources.fetch import FetchedItem
from matrix.checking.preflight import Preflight
from matrix.commands.build_one import TaskResult
from matrix.commands.build_wheels import BuildResult, TableBuildResult
from matrix.commands.builds import BuildList
from matrix.commands.recipe import DraftResult
from matrix.planning import Plan
from resolver.consequences.model import Consequence
from resolver.model import Backend, Conflict, CoreItem, Distribution, Edge, Resolution, Target

FOLDER = Path(__file__).parent / "reference" / "schemas"


class Document(msgspec.Struct, kw_only=True):
    """A document of a command; `schema` is the number of its form."""

    schema: Literal[1]


class Ok(Document, kw_only=True):
    """A result that is never negative."""

    status: Literal["ok"]


class Judged(Document, kw_only=True):
    """A result that may list errors."""

    status: Literal["ok", "errors"]


class Error(Document, kw_only=True):
    """Why a command failed."""

    status: Literal["error"]
    id: str
    message: str
    hint: str
    cycle: list[str] = []


class Rejected(msgspec.Struct, kw_only=True):
    """A version that was not chosen, and why."""

    version: str
    core: list[CoreItem]
    instead: dict[str, str] = {}
    preferred: str = ""


class Explanation(Ok, kw_only=True):
    """Why versions were chosen."""

    picks: list[Distribution]
    rejected: list[Rejected]
    rejected_more: int


class Diagnosis(Document, kw_only=True):
    """The known failures in a log."""

    status: Literal["ok", "unrecognized"]
    log: str
    diagnosis: list[Finding]


class TableRow(msgspec.Struct, kw_only=True):
    """What works with a base image, a torch and a Python."""

    base_image: str
    rocm: str
    torch: str
    python: str
    verdict: Literal["supported", "at-own-risk", "refused"]
    cells: dict[str, dict[str, Any]] = {}
    refused: str = ""
    core: list[CoreItem] = []


class Table(Ok, kw_only=True):
    """Everything that works together at a site."""

    target: Target
    limits: list[str]
    columns: list[str]
    rows: list[TableRow]


class Side(msgspec.Struct, kw_only=True):
    """What is compared: a target and the facts."""

    target: Target
    shipped: str
    catalogs: list[str]


class Difference(Document, kw_only=True):
    """What a change makes possible, impossible or different."""

    status: Literal["ok", "breaks"]
    before: Side
    after: Side
    consequences: list[Consequence]


class GraphTarget(msgspec.Struct, kw_only=True):
    """What the graph was resolved for."""

    site: str
    date: str
    backend: Backend
    gfx: list[str]


class Node(msgspec.Struct, kw_only=True):
    """A distribution of the graph."""

    name: str
    version: str
    wheel_version: str
    origin: str
    generation: int


class Graph(Ok, kw_only=True):
    """The build graph."""

    target: GraphTarget
    requirements: list[str]
    nodes: list[Node]
    edges: list[Edge]
    generations: list[list[str]]


class MissingItem(msgspec.Struct, kw_only=True):
    """What could not be fetched."""

    name: str
    version: str
    origin: str
    id: str
    message: str
    hint: str


class Fetched(Document, kw_only=True):
    """What is in the cache, and what could not be fetched."""

    status: Literal["ok", "missing"]
    cache: str
    sources: list[FetchedItem]
    missing: list[MissingItem]
    bytes_fetched: int


class BuildWheels(BuildResult, kw_only=True):
    """The wheels of a lock."""

    status: Literal["ok", "failed"]


class BuildTable(TableBuildResult, frozen=True, kw_only=True):
    """The cells of a selection of the table, and their wheels."""

    status: Literal["ok", "failed"]


class BuildOne(TaskResult, kw_only=True):
    """A task of a plan."""

    status: Literal["ok"]


class BuildSeveral(Ok, kw_only=True):
    """Several tasks of a plan."""

    tasks: list[TaskResult]


class Builds(BuildList, kw_only=True):
    """Past and running builds."""

    status: Literal["ok"]


class Draft(DraftResult, kw_only=True):
    """A draft of a recipe."""

    status: Literal["ok", "failed"]


class Audit(Judged, kw_only=True):
    """What is in wheels."""

    wheels: list[Report]


class IndexedWheel(msgspec.Struct, kw_only=True):
    """A wheel of an index."""

    project: str
    file: str
    version: str
    size: int
    sha256: str
    upload_time: str
    yanked: bool | str
    listed: bool
    recorded: bool
    build_key: str


class IndexList(Ok, kw_only=True):
    """The wheels of an index."""

    index: str
    wheels: list[IndexedWheel]


class IndexAdd(Judged, kw_only=True):
    """Wheels that were added to an index, and those that were rejected."""

    index: str
    added: list[str]
    rejected: dict[str, list[Finding]]


class IndexCheck(Judged, kw_only=True):
    """The damage in an index."""

    index: str
    sound: bool
    findings: list[Finding]


class IndexRefresh(Judged, kw_only=True):
    """The projects whose pages were rebuilt, and wheels that pages cannot list."""

    index: str
    rebuilt: list[str]
    findings: list[Finding]


class IndexRemove(Ok, kw_only=True):
    """The wheels that were removed from an index."""

    index: str
    removed: list[str]
    bytes: int
    dry_run: bool


class Check(Judged, kw_only=True):
    """What pip or conda will reject, ignore or get wrong."""

    file: str
    kind: Literal["conda", "requirements"]
    consumer: str = msgspec.field(name="for")
    against: str
    findings: list[Finding]
    preflight: Preflight
    diff: str


class Verify(Judged, kw_only=True):
    """Whether an environment matches the lock."""

    image: str
    python: dict[str, str]
    distributions: dict[str, str]
    libraries: list[str]
    gpus: list[dict[str, str]]
    findings: list[Finding]
    not_judged: int
    verdict: Literal["sound", "defective"]


class Image(ImageFacts, kw_only=True):
    """The content of a base image."""

    missing: list[str]
    can_build: bool


class Doctor(Judged, kw_only=True):
    """What a machine and a base image have, and what is missing."""

    host: list[Finding]
    image: Image | None = None


class CatalogCounts(Ok, kw_only=True):
    """The number of facts of each kind, by status."""

    kinds: dict[str, dict[str, int]]


class CatalogRow(msgspec.Struct, kw_only=True):
    """A fact."""

    name: str
    status: Literal["documented", "observed", "inferred"]
    source: str
    note: str
    file: str
    line: int
    row: dict[str, Any]


class CatalogRows(Ok, kw_only=True):
    """The facts of one kind."""

    kind: str
    rows: list[CatalogRow]


class CatalogCheck(Judged, kw_only=True):
    """Whether files of facts are valid."""

    findings: list[Finding]
    files: list[str] = []
    rows: int = 0


class CatalogLearn(Ok, kw_only=True):
    """Facts that files state."""

    rows: int
    known: int
    diff: str
    written: str
    remarks: list[str]
    size: int
    read: int


class CatalogUpdate(Ok, kw_only=True):
    """Facts that public sources have and the catalog lacks."""

    rows: int
    diff: str
    written: str
    consequences: list[Consequence]
    remarks: list[str]
    unreachable: list[str] | dict[str, str]


class Site(Ok, kw_only=True):
    """The site file of a machine."""

    site: str
    written: str
    rows: int
    remarks: list[str]


DOCUMENTS: dict[str, Any] = {
    "error": Error,
    "resolve": Resolution,
    "conflict": Conflict,
    "explain": Explanation,
    "explain-log": Diagnosis,
    "table": Table,
    "diff": Difference,
    "graph": Graph,
    "fetch": Fetched,
    "plan": Plan,
    "build-wheels": BuildWheels,
    "build-wheels-table": BuildTable,
    "build-one": BuildOne | BuildSeveral,
    "builds": Builds,
    "recipe-draft": Draft,
    "audit": Audit,
    "index-list": IndexList,
    "index-add": IndexAdd,
    "index-check": IndexCheck,
    "index-refresh": IndexRefresh,
    "index-remove": IndexRemove,
    "check": Check,
    "verify": Verify,
    "doctor": Doctor,
    "catalog-list": CatalogCounts,
    "catalog-list-kind": CatalogRows,
    "catalog-check": CatalogCheck,
    "catalog-learn": CatalogLearn,
    "catalog-update": CatalogUpdate,
    "site-init": Site,
}
"""The type of each document, by the command that prints it."""


def schemas() -> dict[Path, str]:
    """Return the JSON Schema of each document by its path."""
    return {FOLDER / f"{name}.json": _schema(name, kind) for name, kind in DOCUMENTS.items()}


def _schema(name: str, kind: object) -> str:
    types = get_args(kind) or (kind,)
    found, components = msgspec.json.schema_components(
        types, ref_template="#/$defs/{name}", schema_hook=lambda _: {"type": "string"}
    )
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"matrix {name}"}
    body = found[0] if len(found) == 1 else {"anyOf": list(found)}
    return json.dumps({**head, **body, "$defs": components}, indent=1) + "\n"
