"""What a wheel was made from: written as two documents, checked by others' readers, read back."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from hypothesis import given, settings
from hypothesis import strategies as st
from packageurl import PackageURL

from builders.provenance import (
    Distribution,
    GitSource,
    Image,
    Materials,
    Patch,
    Program,
    Run,
    SdistSource,
    Submodule,
    build_key_of,
    read_statement,
    sbom,
    statement,
)
from builders.provenance.materials import purl
from resolver.errors import ProvenanceError

A, B, C, D = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
COMMIT, TREE, CK = ("1" * 40, "2" * 40, "3" * 40)
TORCH = Distribution(
    name="torch",
    version="2.9.1+rocm6.4",
    sha256=B,
    url="https://somebody:secret@mirror.example.org/whl/torch-2.9.1%2Brocm6.4-cp312-linux_x86_64.whl",
)
FROM_SDIST = Materials(
    name="deepspeed",
    version="0.19.8+rocm6.4.torch2.9.1.gfx90a",
    source=SdistSource(file="deepspeed-0.19.8.tar.gz", sha256=A, version="0.19.8"),
    torch=TORCH,
    requirements=(
        Distribution(name="setuptools", version="80.9.0", sha256=C),
        Distribution(name="ninja", version="1.13.0"),
    ),
    image=Image(name="rocm-6.4.4", digest=f"sha256:{D}"),
    programs=(Program(name="hipcc", version="6.4.43484"), Program(name="g++", version="13.3.0")),
    rocm="6.4.4",
    gfx=("gfx90a", "gfx942"),
    python="3.12.3",
)
FROM_GIT = replace(
    FROM_SDIST,
    name="apex",
    version="1.9.0+rocm6.4.torch2.9.1.gfx90a",
    source=GitSource(
        url="https://somebody:secret@git.example.org/ROCm/apex",
        commit=COMMIT,
        tree=TREE,
        submodules=(
            Submodule(path="third_party/composable_kernel", url="https://git.example.org/ck", commit=CK),
        ),
    ),
    patches=(Patch(name="hip-guard.patch", sha256=C),),
)
BARE = Materials(
    name="tiny", version="1.0+cpu", source=SdistSource(file="tiny-1.0.tar.gz", sha256=A, version="1.0")
)
ALL = pytest.mark.parametrize("materials", [FROM_SDIST, FROM_GIT, BARE], ids=lambda one: str(one.name))

# The bill of materials


@ALL
def test_the_bill_agrees_with_the_official_schema(materials: Materials) -> None:
    errors = JsonStrictValidator(SchemaVersion.V1_6).validate_str(
        sbom(materials, program="0.1.0").decode(), all_errors=True
    )
    assert errors is None


def test_the_official_schema_would_see_a_fault() -> None:
    document = json.loads(sbom(BARE, program="0.1.0"))
    document["metadata"]["component"]["type"] = "wheel"
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is not None


@ALL
def test_references_in_the_bill_are_there_once_and_all_parts_are_reached(materials: Materials) -> None:
    document = json.loads(sbom(materials, program="0.1.0"))
    main = document["metadata"]["component"]
    refs = [main["bom-ref"], *(one["bom-ref"] for one in document["components"])]
    assert sorted({one["ref"] for one in document["dependencies"]}) == sorted(refs)
    assert len(set(refs)) == len(refs)
    (needs,) = (one["dependsOn"] for one in document["dependencies"] if one["ref"] == main["bom-ref"])
    assert sorted(needs) == sorted(refs[1:])


def test_the_bill_names_source_torch_and_what_was_there_at_build_time() -> None:
    document = json.loads(sbom(FROM_SDIST, program="0.1.0"))
    main = document["metadata"]["component"]
    assert (main["name"], main["version"]) == ("deepspeed", FROM_SDIST.version)
    (ancestor,) = main["pedigree"]["ancestors"]
    assert ancestor["purl"] == "pkg:pypi/deepspeed@0.19.8"
    assert ancestor["externalReferences"][0]["hashes"] == [{"alg": "SHA-256", "content": A}]
    (torch,) = document["components"]
    assert (torch["version"], torch["hashes"][0]["content"]) == ("2.9.1+rocm6.4", B)
    built = {one["name"]: one for one in document["formulation"][0]["components"]}
    assert list(built) == ["rocm-6.4.4", "rocm", "cpython", "g++", "hipcc", "ninja", "setuptools"]
    assert built["rocm-6.4.4"]["hashes"] == [{"alg": "SHA-256", "content": D}]
    assert "hashes" not in built["ninja"]
    targets = [one["value"] for one in document["formulation"][0]["properties"]]
    assert targets == ["gfx90a", "gfx942"]


def test_the_bill_of_a_source_from_git_has_commit_tree_submodules_and_patches() -> None:
    document = json.loads(sbom(FROM_GIT, program="0.1.0"))
    main = document["metadata"]["component"]
    assert main["purl"].startswith("pkg:generic/apex@")  # PyPI's apex is another project
    assert main["pedigree"]["commits"] == [{"uid": COMMIT, "url": "https://git.example.org/ROCm/apex"}]
    assert main["pedigree"]["patches"][0]["diff"]["url"] == f"hip-guard.patch#sha256={C}"
    (ancestor,) = main["pedigree"]["ancestors"]
    assert ancestor["properties"] == [{"name": "rocm-matrix:git-tree", "value": TREE}]
    kernel, torch = document["components"]
    assert (kernel["name"], kernel["version"], torch["name"]) == ("composable_kernel", CK, "torch")


def test_the_bill_is_the_same_for_the_same_materials_and_its_number_is_not_for_others() -> None:
    first = sbom(FROM_SDIST, program="0.1.0")
    turned = replace(
        FROM_SDIST, requirements=FROM_SDIST.requirements[::-1], programs=FROM_SDIST.programs[::-1]
    )
    assert sbom(turned, program="0.1.0") == first
    other = json.loads(sbom(replace(FROM_SDIST, rocm="6.4.3"), program="0.1.0"))
    assert other["serialNumber"] != json.loads(first)["serialNumber"]
    assert "timestamp" not in json.dumps(json.loads(first)["metadata"])


@pytest.mark.parametrize(
    ("kind", "name", "version", "qualifiers"),
    [
        ("pypi", "Flash_Attn", "2.8.3+rocm6.4.torch2.9.1.gfx90a", {}),
        ("generic", "apex", "1.9.0+rocm6.4", {"vcs_url": f"git+https://git.example.org/a?b=c&d@{COMMIT}"}),
        ("generic", "größe", "1", {"vcs_url": "git+file:///with space/repo@1"}),
    ],
)
def test_package_urls_are_those_of_the_reference_library(
    kind: str, name: str, version: str, qualifiers: dict[str, str]
) -> None:
    assert purl(kind, name, version, qualifiers) == PackageURL(
        kind, None, name, version, qualifiers
    ).to_string().replace("flash_attn", "flash-attn")


# Provenance

WHEEL = "deepspeed-0.19.8+rocm6.4.torch2.9.1.gfx90a-cp312-cp312-manylinux_2_39_x86_64.whl"
RUN = Run(
    runtime="apptainer",
    invocation="deepspeed-aaaaaaaaaaaa-20261121T140245Z-4711",
    started=datetime(2026, 11, 21, 16, 2, 45, 999, tzinfo=timezone(timedelta(hours=2))),
    finished=datetime(2026, 11, 21, 14, 9, 1, tzinfo=UTC),
    versions={"rocm-matrix": "0.1.0", "apptainer": "1.4.1"},
    measured={"seconds": 376.1, "peakMemory": 9_663_676_416, "jobs": 4},
    log="deepspeed-aaaaaaaaaaaa.log",
    log_sha256=C,
    results={"audit": {"verdict": "sound", "findings": []}, "labels": {"droppedLocal": "git.e37ed12"}},
)
ASKED = {"request": {"requirements": ["deepspeed"]}, "target": {"gfx": ["gfx90a"]}, "recipe": "deepspeed"}


def written(materials: Materials = FROM_SDIST, run: Run = RUN) -> dict[str, Any]:
    return statement(
        wheel=WHEEL,
        sha256=D,
        materials=materials,
        asked=ASKED,
        build_key=A,
        inputs={"name": "deepspeed", "torch": "2.9.1+rocm6.4"},
        run=run,
    )


def test_the_statement_has_the_fields_of_the_specification() -> None:
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
    assert definition["externalParameters"] == ASKED
    assert definition["internalParameters"]["buildKey"] == A
    assert run["builder"] == {
        "id": "urn:rocm-matrix:builder:apptainer",
        "version": {"rocm-matrix": "0.1.0", "apptainer": "1.4.1"},
    }
    assert run["metadata"] == {
        "invocationId": RUN.invocation,
        "startedOn": "2026-11-21T14:02:45Z",
        "finishedOn": "2026-11-21T14:09:01Z",
        "matrix_measured": {"seconds": 376.1, "peakMemory": 9_663_676_416, "jobs": 4},
    }
    log, audit, labels = run["byproducts"]
    assert log == {
        "name": RUN.log,
        "digest": {"sha256": C},
        "mediaType": "text/plain",
        "annotations": {"role": "log"},
    }
    assert audit["annotations"]["result"] == RUN.results["audit"]
    assert labels["name"] == "labels"


def test_everything_that_was_fetched_is_a_dependency_with_its_digest() -> None:
    found = written()["predicate"]["buildDefinition"]["resolvedDependencies"]
    said = [(one["annotations"]["role"], one["name"], one.get("digest")) for one in found]
    assert said == [
        ("source", "deepspeed-0.19.8.tar.gz", {"sha256": A}),
        ("torch", "torch", {"sha256": B}),
        ("build-requirement", "ninja", None),
        ("build-requirement", "setuptools", {"sha256": C}),
        ("base-image", "rocm-6.4.4", {"sha256": D}),
    ]
    found = written(FROM_GIT)["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert found[0]["uri"] == f"git+https://git.example.org/ROCm/apex@{COMMIT}"
    assert found[0]["digest"] == {"gitCommit": COMMIT, "gitTree": TREE}
    assert found[1]["digest"] == {"gitCommit": CK}
    assert found[2]["name"] == "hip-guard.patch"


@ALL
def test_what_is_written_can_be_read_back(materials: Materials) -> None:
    document = written(materials)
    read = read_statement(json.dumps(document).encode())
    assert read == read_statement(document)
    assert read.build_key == A
    assert read.is_about(WHEEL, D)
    assert not read.is_about(WHEEL, A)
    assert not read.is_about("other.whl", D)


@ALL
def test_no_password_is_published(materials: Materials) -> None:
    for text in (json.dumps(written(materials)), sbom(materials, program="0.1.0").decode()):
        assert "secret" not in text
        assert "somebody" not in text


def test_fields_that_are_not_known_are_passed_over() -> None:
    document = written() | {"sha256": D, "size": 12}
    document["predicate"]["runDetails"]["somebody_said"] = [1]
    assert read_statement(document).build_key == A


def without(path: str) -> dict[str, Any]:
    document = written()
    *folders, name = path.split(".")
    runtime: Any = document
    for folder in folders:
        runtime = runtime[int(folder) if folder.isdigit() else folder]
    del runtime[int(name) if name.isdigit() else name]
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
def test_a_document_that_lacks_something_is_refused(path: str) -> None:
    with pytest.raises(ProvenanceError, match="This is no provenance of a wheel: "):
        read_statement(without(path))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("in-toto.io/Statement/v1", "in-toto.io/Statement/v0.1", "Statement/v0.1"),
        ("slsa.dev/provenance/v1", "slsa.dev/provenance/v0.2", "provenance/v0.2"),
        (D, "d" * 63, "is no sha256"),
        (A, "A" * 64, "is no sha256"),
        ("2026-11-21T14:02:45Z", "2026-11-22T14:02:45Z", "finished before it was started"),
        ("2026-11-21T14:02:45Z", "yesterday", "RFC3339"),
    ],
)
def test_a_document_that_contradicts_itself_is_refused(old: str, new: str, said: str) -> None:
    text = json.dumps(written())
    assert old in text
    with pytest.raises(ProvenanceError, match=said):
        read_statement(text.replace(old, new).encode())


def test_an_artifact_without_any_identity_is_refused() -> None:
    document = written()
    document["predicate"]["runDetails"]["byproducts"].append({"name": "core"})
    with pytest.raises(ProvenanceError, match="core has neither URI nor digest"):
        read_statement(document)


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=60) | st.integers(0, 2000).map(lambda end: json.dumps(written()).encode()[:end]))
def test_what_is_cut_short_or_something_else_is_refused(data: bytes) -> None:
    with pytest.raises(ProvenanceError):
        read_statement(data)


def test_deeply_nested_text_is_refused() -> None:
    with pytest.raises(ProvenanceError):
        read_statement(b'{"_type":' + b"[" * 100_000)


@pytest.mark.parametrize(
    ("document", "key"),
    [
        (written(), A),
        ({"schema": 1, "build_key": B, "inputs": {}}, B),
        ({}, ""),
        ({"predicate": []}, ""),
        ({"predicate": {"buildDefinition": {"internalParameters": {"buildKey": 1}}}}, ""),
        ({"build_key": 7}, ""),
    ],
)
def test_the_build_key_is_found_in_both_shapes(document: dict[str, Any], key: str) -> None:
    assert build_key_of(document) == key
