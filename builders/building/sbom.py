"""The bill of materials in a wheel: CycloneDX 1.6 for ``.dist-info/sboms`` (PEP 770).

``docs/reference/provenance.md`` describes the document.
"""

from __future__ import annotations

import json
import uuid
from operator import itemgetter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from packageurl import PackageURL

from builders.building.provenance import OP_PROPERTY, pypi_purl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builders.building.plan import Task
    from builders.building.provenance import Descriptor

_SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"


def sbom(task: Task, materials: Iterable[Descriptor], *, program: str) -> bytes:
    """Return the bill of materials of a wheel as CycloneDX JSON.

    The wheel is the main component and its source the ancestor in its pedigree. Submodules and torch are
    components. Everything that was only needed to build is in the formulation, so that no scanner mistakes
    the compiler for a part of the wheel. There is no timestamp, and the serial number is derived from the
    rest, because the same inputs must result in the same wheel. `program` is the version of this program.
    """
    by_role: dict[str, list[Descriptor]] = {}
    for material in sorted(materials, key=lambda material: (material.name, material.uri)):
        by_role.setdefault(material.role, []).append(material)
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
    """Return the component of the wheel itself.

    A wheel built from git gets a package URL of type ``generic``, because the project of that name on PyPI
    may be a different project, as for Apex.
    """
    pedigree: dict[str, Any] = {}
    if "gitCommit" in source.digest:
        pedigree["ancestors"] = [_git_component(source, "source")]
        pedigree["commits"] = [{"uid": source.digest["gitCommit"], "url": _repository(source)}]
        purl = PackageURL("generic", None, task.pick.name, task.pick.pinned, {"vcs_url": source.uri})
    else:
        pedigree["ancestors"] = [_sdist_component(task, source)]
        purl = pypi_purl(task.pick.name, task.pick.pinned)
    diffs = [{"url": f"{patch.name}#sha256={patch.digest['sha256']}"} for patch in patches]
    if diffs:
        pedigree["patches"] = [{"type": "unofficial", "diff": diff} for diff in diffs]
    component = _component("library", task.pick.name, task.pick.pinned, reference=purl.to_string())
    return {**component, "purl": purl.to_string(), "pedigree": pedigree}


def _sdist_component(task: Task, source: Descriptor) -> dict[str, Any]:
    version = PackageURL.from_string(source.uri).version or ""
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
    purl = PackageURL("generic", None, name, commit, {"vcs_url": material.uri}).to_string()
    reference = {"type": "vcs", "url": _repository(material), "comment": f"commit {commit}"}
    component = _component("library", name, commit, reference=f"{role}: {purl}")
    component |= {"purl": purl, "externalReferences": [reference]}
    if tree := material.digest.get("gitTree"):
        component["properties"] = [{"name": "rocm-matrix:git-tree", "value": tree}]
    return component


def _wheel_component(material: Descriptor, role: str) -> dict[str, Any]:
    version = PackageURL.from_string(material.uri).version or ""
    component = _component("library", material.name, version, reference=f"{role}: {material.uri}")
    return {**component, "purl": material.uri, "hashes": _hashes(material)}


def _formula(task: Task, by_role: Mapping[str, list[Descriptor]]) -> dict[str, Any]:
    """Return the formulation: the components that were present when the wheel was built."""
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
