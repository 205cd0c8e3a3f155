"""The bill of materials in a wheel: CycloneDX 1.6 for ``.dist-info/sboms`` (PEP 770).

``docs/reference/provenance.md`` describes the document. Importing cyclonedx takes 0.1 s, so this module is
imported where a wheel is built.
"""

from __future__ import annotations

import json
import uuid
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import (
    Commit,
    Component,
    ComponentScope,
    ComponentType,
    Diff,
    Patch,
    PatchClassification,
    Pedigree,
)
from cyclonedx.model.lifecycle import LifecyclePhase, PredefinedLifecycle
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from builders.provenance import OP_PROPERTY, pypi_purl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builders.plan import Task
    from builders.provenance import Descriptor


def sbom(task: Task, materials: Iterable[Descriptor], *, program: str) -> bytes:
    """Return the bill of materials of a wheel as CycloneDX JSON.

    The wheel is the main component and its source the ancestor in its pedigree. Submodules and torch are
    components. Everything that was only needed to build is in the formulation, so that no scanner mistakes
    the compiler for a part of the wheel. There is no timestamp, and the serial number is derived from the
    rest, because the same inputs must result in the same wheel.

    Parameters
    ----------
    task
        The wheel to build.
    materials
        The inputs of its build.
    program
        Version of this program.
    """
    by_role: dict[str, list[Descriptor]] = {}
    for material in materials:
        by_role.setdefault(material.role, []).append(material)
    (source,) = by_role["source"]
    main = _main_component(task, source, by_role.get("patch", []))
    components = [
        _git_component(module, f"submodule {module.name}") for module in by_role.get("submodule", [])
    ]
    for torch in by_role.get("torch", []):
        component = _wheel_component(torch, "runtime")
        component.scope = ComponentScope.REQUIRED
        components.append(component)
    tool = Component(name="rocm-matrix", version=program, type=ComponentType.APPLICATION)
    bom = Bom(
        components=components,
        serial_number=uuid.UUID(int=0),
        metadata=BomMetaData(
            component=main,
            lifecycles=[PredefinedLifecycle(LifecyclePhase.BUILD)],
            tools=ToolRepository(components=[tool]),
        ),
    )
    bom.register_dependency(main, components)
    document = _as_json(bom)
    document["metadata"].pop("timestamp")
    document["formulation"] = [_formula(task, by_role)]
    name = f"urn:rocm-matrix:sbom:{json.dumps(document, sort_keys=True)}"
    document["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, name).urn
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _main_component(task: Task, source: Descriptor, patches: Iterable[Descriptor]) -> Component:
    """Return the component of the wheel itself.

    A wheel built from git gets a package URL of type ``generic``, because the project of that name on PyPI
    may be a different project, as for Apex.
    """
    commits = []
    if "gitCommit" in source.digest:
        ancestor = _git_component(source, "source")
        purl = PackageURL("generic", None, task.pick.name, task.pick.pinned, {"vcs_url": source.uri})
        commits = [Commit(uid=source.digest["gitCommit"], url=XsUri(_repository(source)))]
    else:
        ancestor = _sdist_component(task, source)
        purl = pypi_purl(task.pick.name, task.pick.pinned)
    diffs = [Diff(url=XsUri(f"{patch.name}#sha256={patch.digest['sha256']}")) for patch in patches]
    return Component(
        name=task.pick.name,
        version=task.pick.pinned,
        bom_ref=purl.to_string(),
        purl=purl,
        pedigree=Pedigree(
            ancestors=[ancestor],
            commits=commits,
            patches=[Patch(type=PatchClassification.UNOFFICIAL, diff=diff) for diff in diffs],
        ),
    )


def _sdist_component(task: Task, source: Descriptor) -> Component:
    purl = PackageURL.from_string(source.uri)
    reference = ExternalReference(
        type=ExternalReferenceType.SOURCE_DISTRIBUTION,
        url=XsUri(source.name),
        hashes=_hashes(source),
        comment=source.name,
    )
    return Component(
        name=task.pick.name,
        version=purl.version,
        bom_ref=f"source: {source.uri}",
        purl=purl,
        external_references=[reference],
    )


def _git_component(material: Descriptor, role: str) -> Component:
    name, commit = PurePosixPath(material.name).name, material.digest["gitCommit"]
    purl = PackageURL("generic", None, name, commit, {"vcs_url": material.uri})
    url = XsUri(_repository(material))
    tree = material.digest.get("gitTree")
    return Component(
        name=name,
        version=commit,
        bom_ref=f"{role}: {purl.to_string()}",
        purl=purl,
        external_references=[
            ExternalReference(type=ExternalReferenceType.VCS, url=url, comment=f"commit {commit}")
        ],
        properties=[Property(name="rocm-matrix:git-tree", value=tree)] if tree else [],
    )


def _wheel_component(material: Descriptor, role: str) -> Component:
    purl = PackageURL.from_string(material.uri)
    return Component(
        name=material.name,
        version=purl.version,
        bom_ref=f"{role}: {material.uri}",
        purl=purl,
        hashes=_hashes(material),
    )


def _formula(task: Task, by_role: Mapping[str, list[Descriptor]]) -> dict[str, Any]:
    """Return the formulation: the components that were present when the wheel was built.

    cyclonedx-python-lib has no class for formulations, so the components are encoded as another document.
    """
    host = task.build_host
    components = [_wheel_component(wheel, "build") for wheel in by_role.get("build-requirement", [])]
    for image in by_role.get("base-image", []):
        component = _component(ComponentType.CONTAINER, image.name, f"sha256:{image.digest['sha256']}")
        component.hashes = _hashes(image)
        components.append(component)
    for name, version in (("rocm", host.rocm), ("cpython", host.python.version)):
        if version:
            components.append(_component(ComponentType.PLATFORM, name, version))
    components += [
        _component(ComponentType.APPLICATION, compiler.name, compiler.version) for compiler in host.compilers
    ]
    formula = {"bom-ref": "build", "components": _as_json(Bom(components=components)).get("components", [])}
    recipe = task.recipe
    ops = [op.name for op in recipe.ops if recipe.environment.get(op.variable) == "1"]
    properties = [
        *({"name": "rocm-matrix:gpu-architecture", "value": gfx} for gfx in task.gfx),
        *({"name": OP_PROPERTY, "value": op} for op in ops),
    ]
    if properties:
        formula["properties"] = properties
    return formula


def _component(type_: ComponentType, name: str, version: str) -> Component:

    # A component without a reference of its own gets a random one.
    return Component(name=name, version=version, type=type_, bom_ref=f"build: {type_.value} {name}")


def _as_json(bom: Bom) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    return document


def _repository(material: Descriptor) -> str:
    return material.uri.removeprefix("git+").rpartition("@")[0]


def _hashes(material: Descriptor) -> list[HashType]:
    return [HashType(alg=HashAlgorithm.SHA_256, content=material.digest["sha256"])]
