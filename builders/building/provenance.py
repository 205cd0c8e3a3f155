"""The inputs of a wheel: a bill of materials inside the wheel, and a provenance statement next to it.

`materials_of` lists everything that was fetched for the build. `sbom` writes it as CycloneDX 1.6 for
``.dist-info/sboms`` (PEP 770); `statement` writes it as an in-toto statement v1 with SLSA's predicate
``https://slsa.dev/provenance/v1``. It is a record, not proof: `builders.building.verifying` checks it.
``docs/reference/provenance.md`` describes both documents.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace
from packaging.utils import canonicalize_name

from builders.network.urls import without_password
from resolver.errors import ProvenanceError
from resolver.texts import escaped
from resolver.versions import grouped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from builders.building.plan import Task
    from builders.environments.layers import Layers
    from builders.sources.source import Source


SBOM_NAME = "rocm-matrix.cdx.json"
"""File name in ``.dist-info/sboms``; the name of this tool in it avoids conflicts with other files there."""
OP_PROPERTY = "rocm-matrix:op"
"""Name of the property of the formulation that lists a compiled op; ``--ops`` may have chosen the op."""
BUILD_TYPE = "urn:rocm-matrix:build:wheel:v1"
_BUILDER = "urn:rocm-matrix:builder"
_DIGEST_LENGTHS = {"sha256": (64,), "gitCommit": (40, 64), "gitTree": (40, 64)}

StatementType = Literal["https://in-toto.io/Statement/v1"]
PredicateType = Literal["https://slsa.dev/provenance/v1"]

_SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"


class Descriptor(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An artifact: in-toto's ResourceDescriptor. Readers ignore unknown fields, as in-toto requires."""

    name: str = ""
    uri: str = ""
    digest: dict[str, str] = {}
    """Hexadecimal digests by algorithm."""
    content: str = ""
    media_type: str = ""
    annotations: dict[str, Any] = {}

    @property
    def role(self) -> str:
        """The role in the build: source, submodule, patch, torch, build-requirement or base-image."""
        return str(self.annotations.get("role", ""))


class BuildDefinition(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """All inputs of a build."""

    build_type: str
    external_parameters: dict[str, Any]
    internal_parameters: dict[str, Any] = {}
    """``buildKey``, the ``inputs`` whose digest it is, and the ``variables`` of the build."""
    resolved_dependencies: tuple[Descriptor, ...] = ()


class Builder(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The program that built the wheel."""

    id: str
    version: dict[str, str] = {}


class RunMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The time, the machine and the resources of a build."""

    invocation_id: str = ""
    started_on: datetime | None = None
    finished_on: datetime | None = None
    node: str = msgspec.field(name="matrix_node", default="")
    measured: dict[str, float | int] = msgspec.field(name="matrix_measured", default={})
    """``seconds``, ``jobs``, ``memory_gib`` (all processes) and ``process_gib`` (the largest process)."""


class RunDetails(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One run of a build."""

    builder: Builder
    metadata: RunMetadata = RunMetadata()
    byproducts: tuple[Descriptor, ...] = ()


class Predicate(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """SLSA's provenance."""

    build_definition: BuildDefinition
    run_details: RunDetails


class Statement(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An in-toto statement."""

    type: StatementType = msgspec.field(name="_type")
    subject: tuple[Descriptor, ...]
    predicate_type: PredicateType
    predicate: Predicate

    @property
    def build_key(self) -> str:
        """The digest of everything that determines the content of the wheel."""
        key = self.predicate.build_definition.internal_parameters.get("buildKey")
        return key if isinstance(key, str) else ""


def materials_of(task: Task, source: Source, layers: Layers) -> list[Descriptor]:
    """Return everything that was fetched to build a wheel, each with its role."""
    image = task.build_host.runtime.image
    materials = [
        *_source_materials(task, source),
        *(
            Descriptor(name=path.name, digest={"sha256": sha256}, annotations={"role": "patch"})
            for path, sha256 in zip(source.patches, source.inputs.get("patches", []), strict=True)
        ),
        *_installed_wheels(layers),
    ]
    if image is not None:
        rocm = {"rocm": task.build_host.rocm} if task.build_host.rocm else {}
        materials.append(
            Descriptor(
                name=image.name,
                digest={"sha256": image.sha256},
                annotations={"role": "base-image", **rocm},
            )
        )
    return materials


def _source_materials(task: Task, source: Source) -> Iterator[Descriptor]:
    pins = source.inputs
    if source.kind == "sdist":
        yield Descriptor(
            name=pins["file"],
            uri=_pypi_purl(task.pick.name, source.version),
            digest={"sha256": pins["sha256"]},
            annotations={"role": "source"},
        )
        return
    tree = {"gitTree": pins["tree"]} if pins["tree"] else {}
    yield _git_material(task.pick.name, pins["url"], {"gitCommit": pins["commit"], **tree}, "source")
    for path, (url, commit) in sorted(pins["submodules"].items()):
        yield _git_material(path, url, {"gitCommit": commit}, "submodule")


def _git_material(name: str, url: str, digest: dict[str, str], role: str) -> Descriptor:
    uri = f"git+{without_password(url)}@{digest['gitCommit']}"
    return Descriptor(name=name, uri=uri, digest=digest, annotations={"role": role})


def _installed_wheels(layers: Layers) -> list[Descriptor]:
    wheels = {wheel.name: wheel for layer in reversed(layers.all) for wheel in layer.wheels}
    return [
        Descriptor(
            name=wheel.name,
            uri=_pypi_purl(wheel.name, wheel.version),
            digest={"sha256": wheel.sha256},
            annotations={"role": "torch" if wheel.name == "torch" else "build-requirement"},
        )
        for wheel in sorted(wheels.values(), key=lambda wheel: (wheel.name != "torch", wheel.name))
    ]


def _purl(kind: str, name: str, version: str, **qualifiers: str) -> str:
    from packageurl import PackageURL

    return str(PackageURL(kind, None, name, version, qualifiers).to_string())


def _pypi_purl(name: str, version: str) -> str:
    return _purl("pypi", canonicalize_name(name), version)


def _version_in(purl: str) -> str:
    from packageurl import PackageURL

    return PackageURL.from_string(purl).version or ""


def statement(
    task: Task,
    materials: Iterable[Descriptor],
    run: RunMetadata,
    *,
    wheel: str,
    sha256: str,
    versions: Mapping[str, str] = {},
    variables: Mapping[str, str] = {},
    log: str = "",
    log_sha256: str = "",
    results: Mapping[str, Any] = {},
) -> dict[str, Any]:
    """Return the provenance of a wheel, ready for JSON.

    `versions` are those of this program and other tools, `variables` the environment of the build, and
    `results` those of checks, as JSON.
    """
    document = Statement(
        type="https://in-toto.io/Statement/v1",
        subject=(Descriptor(name=wheel, digest={"sha256": sha256}),),
        predicate_type="https://slsa.dev/provenance/v1",
        predicate=Predicate(
            build_definition=BuildDefinition(
                build_type=BUILD_TYPE,
                external_parameters={
                    "name": task.pick.name,
                    "version": task.pick.pinned,
                    "gfx": list(task.gfx),
                },
                internal_parameters={
                    "buildKey": task.build_key,
                    "inputs": task.inputs,
                    "variables": dict(variables),
                },
                resolved_dependencies=tuple(materials),
            ),
            run_details=RunDetails(
                builder=Builder(id=f"{_BUILDER}:{task.build_host.runtime.kind}", version=dict(versions)),
                metadata=replace(
                    run, started_on=_in_seconds(run.started_on), finished_on=_in_seconds(run.finished_on)
                ),
                byproducts=tuple(_byproducts(log, log_sha256, results)),
            ),
        ),
    )
    as_json: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    return as_json


def _in_seconds(time: datetime | None) -> datetime | None:
    return time and time.astimezone(UTC).replace(microsecond=0)


def _byproducts(log: str, log_sha256: str, results: Mapping[str, Any]) -> Iterator[Descriptor]:
    if log:
        yield Descriptor(
            name=log,
            digest={"sha256": log_sha256},
            media_type="text/plain",
            annotations={"role": "log"},
        )
    for name, result in sorted(results.items()):
        canonical = json.dumps(result, sort_keys=True, separators=(",", ":"))
        yield Descriptor(
            name=name,
            digest={"sha256": hashlib.sha256(canonical.encode()).hexdigest()},
            media_type="application/json",
            annotations={"role": "result", "result": result},
        )


def read_statement(document: Mapping[str, Any]) -> Statement:
    """Return a parsed document; raise `ProvenanceError` if it is no statement, or contradicts itself."""
    try:
        read = msgspec.convert(escaped(document), Statement)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _invalid(str(error)) from None
    for problem in _problems(read):
        raise _invalid(problem)
    return read


def _problems(read: Statement) -> Iterator[str]:
    definition, run = read.predicate.build_definition, read.predicate.run_details
    if not read.subject:
        yield "it has no subject"
    for subject in read.subject:
        if not subject.digest:
            yield f"its subject {subject.name} has no digest"
    for artifact in (*read.subject, *definition.resolved_dependencies, *run.byproducts):
        if not (artifact.uri or artifact.digest or artifact.content):
            yield f"{artifact.name or 'an artifact'} has neither URI nor digest"
        for algorithm, digest in artifact.digest.items():
            if algorithm in _DIGEST_LENGTHS and not _is_hex(digest, _DIGEST_LENGTHS[algorithm]):
                yield f"{digest!r} is not a {algorithm} digest (of {artifact.name or artifact.uri})"
    if definition.build_type == BUILD_TYPE and not _is_hex(read.build_key, (64,)):
        yield "it has no build key"
    started, finished = run.metadata.started_on, run.metadata.finished_on
    if started and finished and finished < started:
        yield "the build finished before it started"


def _is_hex(text: str, lengths: tuple[int, ...]) -> bool:
    return len(text) in lengths and set(text) <= set("0123456789abcdef")


def _invalid(reason: str) -> ProvenanceError:
    msg = f"This is not a valid provenance document: {reason.rstrip('.')}."
    return ProvenanceError(
        msg,
        hint="Remove the wheel with `matrix index remove WHEEL`, then build the wheel again, or add a copy.",
    )


def sbom(task: Task, materials: Iterable[Descriptor], *, program: str) -> bytes:
    """Return the bill of materials of a wheel as CycloneDX JSON; `program` is the version of this program.

    The wheel is the main component and its source the ancestor in its pedigree. What was only needed to build
    is in the formulation, so that no scanner mistakes the compiler for a part of the wheel. There is no
    timestamp, and the serial number is derived from the rest: the same inputs must result in the same wheel.
    """
    by_role = grouped(
        (material.role, material)
        for material in sorted(materials, key=lambda material: (material.name, material.uri))
    )
    (source,) = by_role["source"]
    main = _main_component(task, source, by_role.get("patch", []))
    components = [
        _git_component(module, f"submodule {module.name}") for module in by_role.get("submodule", [])
    ]
    components += [
        {**_wheel_component(torch, "runtime"), "scope": "required"} for torch in by_role.get("torch", [])
    ]
    references = sorted(component["bom-ref"] for component in components)
    document: dict[str, Any] = {
        "$schema": _SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "serialNumber": uuid.UUID(int=0).urn,
        "metadata": {
            "component": main,
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{"type": "application", "name": "rocm-matrix", "version": program}]},
        },
        "dependencies": sorted(
            [
                {"ref": main["bom-ref"], **({"dependsOn": references} if references else {})},
                *({"ref": reference} for reference in references),
            ],
            key=itemgetter("ref"),
        ),
        "formulation": [_formula(task, by_role)],
    }
    if components:
        document["components"] = components
    name = f"urn:rocm-matrix:sbom:{json.dumps(document, sort_keys=True)}"
    document["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, name).urn
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _main_component(task: Task, source: Descriptor, patches: Iterable[Descriptor]) -> dict[str, Any]:
    """Return the component of the wheel itself, for git of type ``generic``.

    The project of that name on PyPI may be a different project, as for Apex.
    """
    pedigree: dict[str, Any] = {}
    if "gitCommit" in source.digest:
        pedigree["ancestors"] = [_git_component(source, "source")]
        pedigree["commits"] = [{"uid": source.digest["gitCommit"], "url": _repository(source)}]
        purl = _purl("generic", task.pick.name, task.pick.pinned, vcs_url=source.uri)
    else:
        pedigree["ancestors"] = [_sdist_component(task, source)]
        purl = _pypi_purl(task.pick.name, task.pick.pinned)
    diffs = [{"url": f"{patch.name}#sha256={patch.digest['sha256']}"} for patch in patches]
    if diffs:
        pedigree["patches"] = [{"type": "unofficial", "diff": diff} for diff in diffs]
    component = _component("library", task.pick.name, task.pick.pinned, reference=purl)
    return {**component, "purl": purl, "pedigree": pedigree}


def _sdist_component(task: Task, source: Descriptor) -> dict[str, Any]:
    version = _version_in(source.uri)
    reference = {
        "type": "source-distribution",
        "url": source.name,
        "hashes": _hashes(source),
        "comment": source.name,
    }
    component = _component("library", task.pick.name, version, reference=f"source: {source.uri}")
    return {**component, "purl": source.uri, "externalReferences": [reference]}


def _git_component(material: Descriptor, role: str) -> dict[str, Any]:
    name, commit = PurePosixPath(material.name).name, material.digest["gitCommit"]
    purl = _purl("generic", name, commit, vcs_url=material.uri)
    reference = {"type": "vcs", "url": _repository(material), "comment": f"commit {commit}"}
    component = _component("library", name, commit, reference=f"{role}: {purl}")
    component |= {"purl": purl, "externalReferences": [reference]}
    if tree := material.digest.get("gitTree"):
        component["properties"] = [{"name": "rocm-matrix:git-tree", "value": tree}]
    return component


def _wheel_component(material: Descriptor, role: str) -> dict[str, Any]:
    version = _version_in(material.uri)
    component = _component("library", material.name, version, reference=f"{role}: {material.uri}")
    return {**component, "purl": material.uri, "hashes": _hashes(material)}


def _formula(task: Task, by_role: Mapping[str, list[Descriptor]]) -> dict[str, Any]:
    host = task.build_host
    components = [_wheel_component(wheel, "build") for wheel in by_role.get("build-requirement", [])]
    components += [
        {
            **_component("container", image.name, f"sha256:{image.digest['sha256']}"),
            "hashes": _hashes(image),
        }
        for image in by_role.get("base-image", [])
    ]
    components += [
        _component("platform", name, version)
        for name, version in (("rocm", task.rocm), ("cpython", host.python.version))
        if version
    ]
    components += [_component("application", compiler.name, compiler.version) for compiler in host.compilers]
    formula: dict[str, Any] = {
        "bom-ref": "build",
        "components": sorted(components, key=itemgetter("type", "name", "version")),
    }
    recipe = task.recipe
    ops = [op.name for op in recipe.ops if recipe.environment.get(op.variable) == "1"]
    properties = [
        *({"name": "rocm-matrix:gpu-architecture", "value": gfx} for gfx in task.gfx),
        *({"name": OP_PROPERTY, "value": op} for op in ops),
    ]
    if properties:
        formula["properties"] = properties
    return formula


def _component(kind: str, name: str, version: str, *, reference: str = "") -> dict[str, Any]:
    return {"type": kind, "name": name, "version": version, "bom-ref": reference or f"build: {kind} {name}"}


def _repository(material: Descriptor) -> str:
    return material.uri.removeprefix("git+").rpartition("@")[0]


def _hashes(material: Descriptor) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": material.digest["sha256"]}]
