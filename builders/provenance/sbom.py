"""The bill of materials inside a wheel: CycloneDX 1.6 as JSON, in ``.dist-info/sboms`` (PEP 770).

The wheel is the component; its source is its ancestor in the pedigree; what its source brought along
(submodules) and the torch it needs are components; what was only there when it was built stands in the
formulation, so that no scanner takes the compiler for a part of the wheel. PEP 770 wishes for a time
of creation: there is none, because the same inputs have to give the same wheel. The provenance has it.
"""

from __future__ import annotations

import json
import uuid
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from builders.provenance.materials import SdistSource, purl, vcs_url, without_password

if TYPE_CHECKING:
    from builders.provenance.materials import Distribution, Image, Materials, Patch

SBOM_NAME = "rocm-matrix.cdx.json"
"""File name in ``.dist-info/sboms``: by the tool, as others do there, so that no two clash."""
_SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"


def sbom(materials: Materials, *, program: str) -> bytes:
    """Write the bill of materials of a wheel.

    Parameters
    ----------
    materials
        What it was made from.
    program
        Version of this program.

    Returns
    -------
    bytes
        The same for the same arguments, the serial number included, which is made from the rest.
    """
    main = _main(materials)
    parts = _parts(materials)
    document = {
        "$schema": _SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "build"}],
            "tools": {
                "components": [{"type": "application", "name": "rocm-matrix", "version": program}],
            },
            "component": main,
        },
        "components": parts,
        "dependencies": [
            {"ref": main["bom-ref"], "dependsOn": [one["bom-ref"] for one in parts]},
            *({"ref": one["bom-ref"]} for one in parts),
        ],
        "formulation": [_formula(materials)],
    }
    name = f"urn:rocm-matrix:sbom:{json.dumps(document, sort_keys=True)}"
    document["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, name).urn
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _main(materials: Materials) -> dict[str, Any]:
    """Describe the wheel itself.

    Of a source from git it is not said that it is the project of its name on PyPI: Apex is not.
    """
    source = materials.source
    pedigree: dict[str, Any] = {"ancestors": [_ancestor(materials)]}
    if isinstance(source, SdistSource):
        own = purl("pypi", materials.name, materials.version)
    else:
        where = {"vcs_url": vcs_url(source.url, source.commit)}
        own = purl("generic", materials.name, materials.version, where)
        pedigree["commits"] = [{"uid": source.commit, "url": without_password(source.url)}]
    if materials.patches:
        pedigree["patches"] = [_patch(one) for one in materials.patches]
    return {
        "type": "library",
        "bom-ref": own,
        "name": materials.name,
        "version": materials.version,
        "purl": own,
        "pedigree": pedigree,
    }


def _ancestor(materials: Materials) -> dict[str, Any]:
    source = materials.source
    if isinstance(source, SdistSource):
        own = purl("pypi", materials.name, source.version)
        reference = {
            "type": "source-distribution",
            "url": without_password(source.url) or source.file,
            "hashes": _hashes(source.sha256),
            "comment": source.file,
        }
        return _library(materials.name, source.version, own, "source") | {"externalReferences": [reference]}
    tree = [{"name": "rocm-matrix:git-tree", "value": source.tree}] if source.tree else []
    found = _from_git(materials.name, source.url, source.commit, "source")
    return found | ({"properties": tree} if tree else {})


def _parts(materials: Materials) -> list[dict[str, Any]]:
    found = []
    if not isinstance(materials.source, SdistSource):
        found = [
            _from_git(PurePosixPath(one.path).name, one.url, one.commit, f"submodule {one.path}")
            for one in materials.source.submodules
        ]
    if materials.torch is not None:
        found.append(_distribution(materials.torch, "runtime") | {"scope": "required"})
    return found


def _from_git(name: str, url: str, commit: str, role: str) -> dict[str, Any]:
    own = purl("generic", name, commit, {"vcs_url": vcs_url(url, commit)})
    reference = {"type": "vcs", "url": without_password(url), "comment": f"commit {commit}"}
    return _library(name, commit, own, role) | {"externalReferences": [reference]}


def _library(name: str, version: str, own: str, role: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": f"{role}: {own}", "name": name, "version": version, "purl": own}


def _distribution(one: Distribution, role: str) -> dict[str, Any]:
    found = _library(one.name, one.version, purl("pypi", one.name, one.version), role)
    if one.sha256:
        found["hashes"] = _hashes(one.sha256)
    if one.url:
        found["externalReferences"] = [{"type": "distribution", "url": without_password(one.url)}]
    return found


def _formula(materials: Materials) -> dict[str, Any]:
    """Describe what was there when it was built."""
    components: list[dict[str, Any]] = []
    if materials.image is not None:
        components.append(_image(materials.image))
    if materials.rocm:
        components.append({"type": "platform", "name": "rocm", "version": materials.rocm})
    if materials.python:
        components.append({"type": "platform", "name": "cpython", "version": materials.python})
    programs = sorted(materials.programs, key=lambda one: one.name)
    components += [{"type": "application", "name": one.name, "version": one.version} for one in programs]
    requirements = sorted(materials.requirements, key=lambda one: one.name)
    components += [_distribution(one, "build") for one in requirements]
    properties = [{"name": "rocm-matrix:offload-target", "value": target} for target in materials.gfx]
    return {
        "bom-ref": "build",
        "components": components,
        **({"properties": properties} if properties else {}),
    }


def _image(image: Image) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "container", "name": image.name}
    algorithm, _, digest = image.digest.partition(":")
    if algorithm == "sha256":
        found |= {"version": image.digest, "hashes": _hashes(digest)}
    return found


def _patch(patch: Patch) -> dict[str, Any]:
    return {"type": "unofficial", "diff": {"url": f"{patch.name}#sha256={patch.sha256}"}}


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]
