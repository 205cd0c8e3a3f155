"""Bill of materials and provenance are valid for parsers of other projects, and are read back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from builders.building.plan import Task
from builders.building.provenance import (
    Descriptor,
    RunMetadata,
    materials_of,
    read_statement,
    sbom,
    statement,
)
from builders.containers.image import LocalImage
from builders.containers.runtime import HostRuntime
from builders.environments.layers import Layer, Layers
from builders.environments.wheelhouse import FetchedWheel
from builders.index.repository import build_key_of
from builders.recipes import Program
from builders.sources.source import Source
from resolver.errors import ProvenanceError
from resolver.facts.schema import Git
from tests.support.tasks import make_distribution, make_recipe, make_task

A, B, C, D = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
COMMIT, TREE, CK = ("1" * 40, "2" * 40, "3" * 40)


def make_source(kind: str, version: str, inputs: dict[str, Any], patches: Sequence[Path] = ()) -> Source:
    return Source(
        "tiny", version, kind, "", "", Path("archive"), 0, inputs, fetched=False, patches=tuple(patches)
    )


def make_layer(*wheels: tuple[str, str, str]) -> Layer:
    files = (
        FetchedWheel(name, version, f"{name}-{version}-py3-none-any.whl", sha256, 1)
        for name, version, sha256 in wheels
    )
    return Layer(Path("layer"), Path("layer/packages"), tuple(files))


def make_image_task(name: str, version: str, **pick: Any) -> Task:
    """Return a task for two GPU architectures in a base image."""
    return make_task(
        make_recipe(package=name),
        "gfx90a",
        "gfx942",
        pick=make_distribution(name, wheel_version=version, **pick),
        runtime=HostRuntime(LocalImage("rocm-6.4.4", Path("image.sif"), D)),
        rocm="6.4.4",
        compilers=(Program("hipcc", "6.4.43484", "/hipcc"), Program("g++", "13.3.0", "/g++")),
    )


@dataclass
class Case:
    """A task with its source and layers."""

    task: Task
    source: Source
    layers: Layers

    @property
    def materials(self) -> list[Descriptor]:
        return materials_of(self.task, self.source, self.layers)

    def sbom(self) -> Any:
        return json.loads(sbom(self.task, self.materials, program="0.1.0"))


LAYERS = Layers(
    torch=make_layer(("torch", "2.9.1+rocm6.4", B), ("setuptools", "70.0", A)),
    requirements=make_layer(("setuptools", "80.9.0", C), ("ninja", "1.13.0", A)),
)
FROM_SDIST = Case(
    make_image_task("deepspeed", "0.19.8+rocm6.4.torch2.9.1.gfx90a"),
    make_source("sdist", "0.19.8", {"file": "deepspeed-0.19.8.tar.gz", "sha256": A}),
    LAYERS,
)
FROM_GIT = Case(
    make_image_task(
        "apex",
        "1.9.0+rocm6.4.torch2.9.1.gfx90a",
        git=Git("https://somebody:secret@git.example.org/ROCm/apex", COMMIT),
    ),
    make_source(
        "git",
        "1.9.0",
        {
            "url": "https://somebody:secret@git.example.org/ROCm/apex",
            "commit": COMMIT,
            "tree": TREE,
            "submodules": {"third_party/composable_kernel": ["https://git.example.org/ck", CK]},
            "patches": [C],
        },
        [Path("patches/hip-guard.patch")],
    ),
    LAYERS,
)
BARE = Case(
    make_task(make_recipe("cpu"), pick=make_distribution("tiny", wheel_version="1.0+cpu")),
    make_source("sdist", "1.0", {"file": "tiny-1.0.tar.gz", "sha256": A}),
    Layers(torch=None, requirements=None),
)
ALL = pytest.mark.parametrize("case", [FROM_SDIST, FROM_GIT, BARE], ids=["sdist", "git", "bare"])

# Materials


def test_materials_list_everything_fetched_with_digest() -> None:
    listed = [(material.role, material.name, material.digest) for material in FROM_SDIST.materials]
    assert listed == [
        ("source", "deepspeed-0.19.8.tar.gz", {"sha256": A}),
        ("torch", "torch", {"sha256": B}),
        ("build-requirement", "ninja", {"sha256": A}),
        ("build-requirement", "setuptools", {"sha256": C}),
        ("base-image", "rocm-6.4.4", {"sha256": D}),
    ]
    assert FROM_SDIST.materials[1].uri == "pkg:pypi/torch@2.9.1%2Brocm6.4"
    assert FROM_SDIST.materials[3].uri == "pkg:pypi/setuptools@80.9.0"


def test_materials_of_git_source_have_commits_and_patches() -> None:
    source, submodule, patch, *_ = FROM_GIT.materials
    assert source.uri == f"git+https://git.example.org/ROCm/apex@{COMMIT}"
    assert (source.name, source.digest) == ("apex", {"gitCommit": COMMIT, "gitTree": TREE})
    assert (submodule.name, submodule.digest) == ("third_party/composable_kernel", {"gitCommit": CK})
    assert submodule.uri == f"git+https://git.example.org/ck@{CK}"
    assert (patch.role, patch.name, patch.digest) == ("patch", "hip-guard.patch", {"sha256": C})


def test_materials_of_sdist_without_torch_are_the_sdist() -> None:
    (source,) = BARE.materials
    assert (source.name, source.uri, source.digest) == ("tiny-1.0.tar.gz", "pkg:pypi/tiny@1.0", {"sha256": A})


def test_patch_without_hash_is_a_fault() -> None:
    source = replace(FROM_SDIST.source, patches=(Path("a.patch"),))
    with pytest.raises(ValueError, match="zip"):
        materials_of(FROM_SDIST.task, source, LAYERS)


# The bill of materials


@pytest.fixture(scope="module")
def error_of() -> Callable[[str], object]:
    """Return the validator of the official schema; its import takes seconds."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    validate: Callable[[str], object] = JsonStrictValidator(SchemaVersion.V1_6).validate_str
    return validate


@ALL
def test_sbom_agrees_with_official_schema(error_of: Callable[[str], object], case: Case) -> None:
    assert error_of(sbom(case.task, case.materials, program="0.1.0").decode()) is None


def test_official_schema_rejects_unknown_type(error_of: Callable[[str], object]) -> None:
    document = BARE.sbom()
    document["metadata"]["component"]["type"] = "wheel"
    assert error_of(json.dumps(document)) is not None


@ALL
def test_sbom_references_are_unique_and_complete(case: Case) -> None:
    document = case.sbom()
    main = document["metadata"]["component"]
    components = document.get("components", [])
    refs = [main["bom-ref"], *(component["bom-ref"] for component in components)]
    assert sorted({row["ref"] for row in document["dependencies"]}) == sorted(refs)
    assert len(set(refs)) == len(refs)
    (needs,) = (row.get("dependsOn", []) for row in document["dependencies"] if row["ref"] == main["bom-ref"])
    assert sorted(needs) == sorted(refs[1:])


def test_sbom_names_source_torch_and_build_environment() -> None:
    document = FROM_SDIST.sbom()
    main = document["metadata"]["component"]
    assert (main["name"], main["version"]) == ("deepspeed", "0.19.8+rocm6.4.torch2.9.1.gfx90a")
    assert main["purl"] == "pkg:pypi/deepspeed@0.19.8%2Brocm6.4.torch2.9.1.gfx90a"
    (ancestor,) = main["pedigree"]["ancestors"]
    assert ancestor["purl"] == "pkg:pypi/deepspeed@0.19.8"
    assert ancestor["externalReferences"][0]["hashes"] == [{"alg": "SHA-256", "content": A}]
    (torch,) = document["components"]
    assert (torch["version"], torch["hashes"][0]["content"]) == ("2.9.1+rocm6.4", B)
    built = {component["name"]: component for component in document["formulation"][0]["components"]}
    assert sorted(built) == ["cpython", "g++", "hipcc", "ninja", "rocm", "rocm-6.4.4", "setuptools"]
    assert built["rocm-6.4.4"]["hashes"] == [{"alg": "SHA-256", "content": D}]
    assert built["setuptools"]["hashes"] == [{"alg": "SHA-256", "content": C}]
    assert "hashes" not in built["g++"]
    properties = document["formulation"][0]["properties"]
    assert [row["value"] for row in properties if row["name"].endswith("architecture")] == [
        "gfx90a",
        "gfx942",
    ]


def test_sbom_of_git_source_has_commit_tree_and_patches() -> None:
    document = FROM_GIT.sbom()
    main = document["metadata"]["component"]
    assert main["purl"].startswith("pkg:generic/apex@")  # PyPI's apex is another project
    assert main["pedigree"]["commits"] == [{"uid": COMMIT, "url": "https://git.example.org/ROCm/apex"}]
    assert main["pedigree"]["patches"][0]["diff"]["url"] == f"hip-guard.patch#sha256={C}"
    (ancestor,) = main["pedigree"]["ancestors"]
    assert ancestor["properties"] == [{"name": "rocm-matrix:git-tree", "value": TREE}]
    names = {(component["name"], component["version"]) for component in document["components"]}
    assert names == {("composable_kernel", CK), ("torch", "2.9.1+rocm6.4")}


def test_sbom_depends_on_materials_only() -> None:
    first = sbom(FROM_SDIST.task, FROM_SDIST.materials, program="0.1.0")
    host = FROM_SDIST.task.build_host
    turned = replace(FROM_SDIST.task, build_host=replace(host, compilers=host.compilers[::-1]))
    assert sbom(turned, FROM_SDIST.materials[::-1], program="0.1.0") == first
    other = replace(FROM_SDIST.task, build_host=replace(host, rocm="6.4.3"))
    document = json.loads(sbom(other, FROM_SDIST.materials, program="0.1.0"))
    assert document["serialNumber"] != json.loads(first)["serialNumber"]
    assert "timestamp" not in json.dumps(json.loads(first)["metadata"])


# Provenance

WHEEL = "deepspeed-0.19.8+rocm6.4.torch2.9.1.gfx90a-cp312-cp312-manylinux_2_39_x86_64.whl"
RUN = RunMetadata(
    invocation_id="deepspeed-aaaaaaaaaaaa-20261121T140245Z-4711",
    started_on=datetime(2026, 11, 21, 16, 2, 45, 999, tzinfo=timezone(timedelta(hours=2))),
    finished_on=datetime(2026, 11, 21, 14, 9, 1, tzinfo=UTC),
    measured={"seconds": 376.1, "jobs": 4},
)
LOG = "deepspeed-aaaaaaaaaaaa.log"
RESULTS: dict[str, Any] = {
    "audit": {"verdict": "sound", "findings": []},
    "labels": {"droppedLocal": "git.e37ed12"},
}
KEY = FROM_SDIST.task.build_key


def written(case: Case = FROM_SDIST) -> dict[str, Any]:
    return statement(
        case.task,
        case.materials,
        RUN,
        wheel=WHEEL,
        sha256=D,
        versions={"rocm-matrix": "0.1.0", "apptainer": "1.4.1"},
        variables={"MAX_JOBS": "4"},
        log=LOG,
        log_sha256=C,
        results=RESULTS,
    )


def test_statement_has_fields_of_specification() -> None:
    document = json.loads(json.dumps(written()))
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert document["predicateType"] == "https://slsa.dev/provenance/v1"
    assert document["subject"] == [{"name": WHEEL, "digest": {"sha256": D}}]
    definition, run = document["predicate"]["buildDefinition"], document["predicate"]["runDetails"]
    assert set(definition) == {
        "buildType",
        "externalParameters",
        "internalParameters",
        "resolvedDependencies",
    }
    assert definition["externalParameters"] == {
        "name": "deepspeed",
        "version": "0.19.8+rocm6.4.torch2.9.1.gfx90a",
        "gfx": ["gfx90a", "gfx942"],
    }
    inputs = FROM_SDIST.task.inputs
    assert definition["internalParameters"] == {
        "buildKey": KEY,
        "inputs": json.loads(json.dumps(inputs)),
        "variables": {"MAX_JOBS": "4"},
    }
    assert hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest() == KEY
    assert run["builder"] == {
        "id": "urn:rocm-matrix:builder:host",
        "version": {"rocm-matrix": "0.1.0", "apptainer": "1.4.1"},
    }
    assert run["metadata"] == {
        "invocationId": RUN.invocation_id,
        "startedOn": "2026-11-21T14:02:45Z",
        "finishedOn": "2026-11-21T14:09:01Z",
        "matrix_measured": {"seconds": 376.1, "jobs": 4},
    }
    log, audit, labels = run["byproducts"]
    assert log == {
        "name": LOG,
        "digest": {"sha256": C},
        "mediaType": "text/plain",
        "annotations": {"role": "log"},
    }
    assert audit["annotations"]["result"] == RESULTS["audit"]
    assert labels["name"] == "labels"


@ALL
def test_statement_lists_materials_as_dependencies(case: Case) -> None:
    listed = written(case)["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert listed == msgspec.to_builtins(case.materials)


@ALL
def test_written_statement_reads_back(case: Case) -> None:
    read = read_statement(json.loads(json.dumps(written(case))))
    assert read.build_key == case.task.build_key
    (subject,) = read.subject
    assert (subject.name, subject.digest) == (WHEEL, {"sha256": D})


@ALL
def test_passwords_are_not_published(case: Case) -> None:
    document = written(case)
    for text in (json.dumps(document), json.dumps(case.sbom())):
        assert "secret" not in text
        assert "somebody" not in text


def test_unknown_fields_are_ignored() -> None:
    document = written() | {"sha256": D, "size": 12}
    document["predicate"]["runDetails"]["somebody_message"] = [1]
    assert read_statement(document).build_key == KEY


def without(path: str) -> dict[str, Any]:
    document = written()
    *folders, name = path.split(".")
    part: Any = document
    for folder in folders:
        part = part[int(folder) if folder.isdigit() else folder]
    del part[int(name) if name.isdigit() else name]
    return document


@pytest.mark.parametrize(
    "path",
    [
        "_type",
        "subject",
        "subject.0",
        "subject.0.digest",
        "predicateType",
        "predicate.buildDefinition",
        "predicate.buildDefinition.externalParameters",
        "predicate.buildDefinition.internalParameters.buildKey",
        "predicate.runDetails.builder.id",
    ],
)
def test_document_without_required_field_is_rejected(path: str) -> None:
    with pytest.raises(ProvenanceError, match="This is not a valid provenance document: "):
        read_statement(without(path))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("in-toto.io/Statement/v1", "in-toto.io/Statement/v0.1", "Statement/v0.1"),
        ("slsa.dev/provenance/v1", "slsa.dev/provenance/v0.2", "provenance/v0.2"),
        (D, "d" * 63, "is not a sha256 digest"),
        (KEY, "A" * 64, "it has no build key"),
        ("2026-11-21T14:02:45Z", "2026-11-22T14:02:45Z", "finished before it started"),
        ("2026-11-21T14:02:45Z", "yesterday", "RFC3339"),
    ],
)
def test_contradictory_document_is_rejected(old: str, new: str, message: str) -> None:
    text = json.dumps(written())
    assert old in text
    with pytest.raises(ProvenanceError, match=message):
        read_statement(json.loads(text.replace(old, new)))


def test_artifact_without_uri_and_digest_is_rejected() -> None:
    document = written()
    document["predicate"]["runDetails"]["byproducts"].append({"name": "core"})
    with pytest.raises(ProvenanceError, match="core has neither URI nor digest"):
        read_statement(document)


@settings(max_examples=10)
@given(
    st.recursive(st.none() | st.text(), lambda values: st.lists(values) | st.dictionaries(st.text(), values))
)
def test_foreign_document_is_rejected(value: Any) -> None:
    for document in ({"_type": value}, written() | {"predicate": value}, written() | {"subject": value}):
        with pytest.raises(ProvenanceError):
            read_statement(document)


@pytest.mark.parametrize(
    ("document", "key"),
    [
        (written(), KEY),
        ({}, ""),
        ({"predicate": []}, ""),
        ({"predicate": {"buildDefinition": {"internalParameters": {"buildKey": 1}}}}, ""),
        ({"build_key": B}, ""),
    ],
)
def test_build_key_of_document(document: dict[str, Any], key: str) -> None:
    assert build_key_of(document) == key
