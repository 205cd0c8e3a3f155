"""The provenance beside a wheel: an in-toto statement with SLSA's provenance predicate.

Statement v1 (in-toto/attestation spec/v1/statement.md, resource_descriptor.md, digest_set.md), predicate
``https://slsa.dev/provenance/v1``. What the parameters mean for this build type stands in
``docs/provenance.md``. It is not signed: it says what was done, not who vouches for it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from builders.provenance.materials import SdistSource, purl, vcs_url, without_password
from resolver.errors import ProvenanceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builders.provenance.materials import Distribution, Materials

StatementType = Literal["https://in-toto.io/Statement/v1"]
PredicateType = Literal["https://slsa.dev/provenance/v1"]
BUILD_TYPE = "urn:rocm-matrix:build:wheel:v1"
_BUILDER = "urn:rocm-matrix:builder"
_LENGTHS = {"sha256": (64,), "gitCommit": (40, 64), "gitTree": (40, 64)}
"""Hexadecimal digits of the digests that are written here."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Unknown fields are passed over, as the parsing rules of in-toto want it."""


class Descriptor(_Part, frozen=True, kw_only=True):
    """An artifact: in-toto's ResourceDescriptor."""

    name: str = ""
    uri: str = ""
    digest: dict[str, str] = {}
    """Algorithm to hexadecimal digest."""
    content: str = ""
    """In base 64."""
    download_location: str = ""
    media_type: str = ""
    annotations: dict[str, Any] = {}


class BuildDefinition(_Part, frozen=True, kw_only=True):
    """All inputs of a build."""

    build_type: str
    external_parameters: dict[str, Any]
    """What was asked for."""
    internal_parameters: dict[str, Any] = {}
    """What followed from it: ``buildKey`` and ``inputs``, the text that it is the digest of."""
    resolved_dependencies: tuple[Descriptor, ...] = ()


class Builder(_Part, frozen=True, kw_only=True):
    """What built it."""

    id: str
    version: dict[str, str] = {}


class Metadata(_Part, frozen=True, kw_only=True):
    """When it ran, and what it took."""

    invocation_id: str = ""
    started_on: datetime | None = None
    finished_on: datetime | None = None
    measured: dict[str, float | int] = msgspec.field(name="matrix_measured", default={})
    """``seconds``, ``peakMemory`` in bytes, ``jobs``."""


class RunDetails(_Part, frozen=True, kw_only=True):
    """One run of a build."""

    builder: Builder
    metadata: Metadata = Metadata()
    byproducts: tuple[Descriptor, ...] = ()


class Predicate(_Part, frozen=True, kw_only=True):
    """SLSA's provenance."""

    build_definition: BuildDefinition
    run_details: RunDetails


class Statement(_Part, frozen=True, kw_only=True):
    """An in-toto statement."""

    type: StatementType = msgspec.field(name="_type")
    subject: tuple[Descriptor, ...]
    predicate_type: PredicateType
    predicate: Predicate

    @property
    def build_key(self) -> str:
        """The digest of all that determines the wheel's content."""
        said = self.predicate.build_definition.internal_parameters.get("buildKey")
        return said if isinstance(said, str) else ""

    def is_about(self, file: str, sha256: str) -> bool:
        """Tell whether a wheel is what this was written for."""
        return any(one.name == file and one.digest.get("sha256") == sha256 for one in self.subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a build, as far as it is not determined by its inputs."""

    runtime: str
    """What ran it: ``host``, ``apptainer``, ``podman``."""
    invocation: str
    """A name for this run that no other has."""
    started: datetime
    finished: datetime
    """Both with their time zone."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """This program, the container runtime and other tools, with their versions."""
    measured: Mapping[str, float | int] = field(default_factory=dict)
    """``seconds``, ``peakMemory`` in bytes, ``jobs``."""
    log: str = ""
    """File name of the log."""
    log_sha256: str = ""
    results: Mapping[str, Any] = field(default_factory=dict)
    """What was found afterwards, as JSON knows it: ``audit``, ``probe``, ``labels``."""


def statement(
    *,
    wheel: str,
    sha256: str,
    materials: Materials,
    asked: Mapping[str, Any],
    build_key: str,
    inputs: Mapping[str, Any],
    run: Run,
) -> dict[str, Any]:
    """Write the provenance of a wheel.

    Parameters
    ----------
    wheel, sha256
        Its file name, and the digest of the file.
    materials
        What it was made from.
    asked
        What the user asked for: the lock's request and target, and which recipe.
    build_key, inputs
        The build key, and what it was taken from.
    run
        The run that made it.

    Returns
    -------
    dict
        The statement, ready for JSON.
    """
    made = Statement(
        type="https://in-toto.io/Statement/v1",
        subject=(Descriptor(name=wheel, digest={"sha256": sha256}),),
        predicate_type="https://slsa.dev/provenance/v1",
        predicate=Predicate(
            build_definition=BuildDefinition(
                build_type=BUILD_TYPE,
                external_parameters=dict(asked),
                internal_parameters={"buildKey": build_key, "inputs": dict(inputs)},
                resolved_dependencies=tuple(_dependencies(materials)),
            ),
            run_details=RunDetails(
                builder=Builder(id=f"{_BUILDER}:{run.runtime}", version=dict(run.versions)),
                metadata=Metadata(
                    invocation_id=run.invocation,
                    started_on=_moment(run.started),
                    finished_on=_moment(run.finished),
                    measured=dict(run.measured),
                ),
                byproducts=tuple(_byproducts(run)),
            ),
        ),
    )
    as_json: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(made))
    return as_json


def read_statement(document: bytes | Mapping[str, Any]) -> Statement:
    """Read a provenance document.

    Raises
    ------
    ProvenanceError
        It is no such document, or contradicts itself; the message says where.
    """
    try:
        if isinstance(document, bytes):
            read = msgspec.json.decode(document, type=Statement)
        else:
            read = msgspec.convert(document, Statement)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(str(error)) from None
    for problem in _problems(read):
        raise _bad(problem)
    return read


def build_key_of(document: Mapping[str, Any]) -> str:
    """Give the build key of a provenance document, also of the plain ones of earlier versions.

    Returns
    -------
    str
        Empty where the document names none.
    """
    found: object = document.get("build_key")
    if found is None:
        found = document
        for key in ("predicate", "buildDefinition", "internalParameters", "buildKey"):
            found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else ""


def _dependencies(materials: Materials) -> Iterator[Descriptor]:
    """Give all that was fetched for the build, each with the part it had in it."""
    source = materials.source
    if isinstance(source, SdistSource):
        yield Descriptor(
            name=source.file,
            uri=purl("pypi", materials.name, source.version),
            digest={"sha256": source.sha256},
            download_location=without_password(source.url),
            annotations={"role": "source"},
        )
    else:
        yield Descriptor(
            name=materials.name,
            uri=vcs_url(source.url, source.commit),
            digest={"gitCommit": source.commit, **({"gitTree": source.tree} if source.tree else {})},
            annotations={"role": "source"},
        )
        for one in source.submodules:
            yield Descriptor(
                name=one.path,
                uri=vcs_url(one.url, one.commit),
                digest={"gitCommit": one.commit},
                annotations={"role": "submodule"},
            )
    for patch in materials.patches:
        yield Descriptor(name=patch.name, digest={"sha256": patch.sha256}, annotations={"role": "patch"})
    if materials.torch is not None:
        yield _installed(materials.torch, "torch")
    for requirement in sorted(materials.requirements, key=lambda one: one.name):
        yield _installed(requirement, "build-requirement")
    if materials.image is not None:
        algorithm, _, digest = materials.image.digest.partition(":")
        yield Descriptor(
            name=materials.image.name,
            digest={algorithm: digest},
            annotations={"role": "base-image", **({"rocm": materials.rocm} if materials.rocm else {})},
        )


def _installed(one: Distribution, role: str) -> Descriptor:
    return Descriptor(
        name=one.name,
        uri=purl("pypi", one.name, one.version),
        digest={"sha256": one.sha256} if one.sha256 else {},
        download_location=without_password(one.url),
        annotations={"role": role},
    )


def _byproducts(run: Run) -> Iterator[Descriptor]:
    if run.log:
        yield Descriptor(
            name=run.log,
            digest={"sha256": run.log_sha256},
            media_type="text/plain",
            annotations={"role": "log"},
        )
    for name, result in sorted(run.results.items()):
        # The digest is over the one canonical form that the result has as JSON.
        text = json.dumps(result, sort_keys=True, separators=(",", ":"))
        yield Descriptor(
            name=name,
            digest={"sha256": hashlib.sha256(text.encode()).hexdigest()},
            media_type="application/json",
            annotations={"role": "result", "result": result},
        )


def _moment(moment: datetime) -> datetime:
    """Give a time as provenance has it: UTC, in seconds."""
    return moment.astimezone(UTC).replace(microsecond=0)


def _problems(read: Statement) -> Iterator[str]:
    definition, run = read.predicate.build_definition, read.predicate.run_details
    if not read.subject:
        yield "it is about no file"
    for one in read.subject:
        if not one.digest:
            yield f"its subject {one.name} has no digest"
    for one in (*read.subject, *definition.resolved_dependencies, *run.byproducts):
        if not (one.uri or one.digest or one.content):
            yield f"{one.name or 'something in it'} has neither URI nor digest"
        for algorithm, digest in one.digest.items():
            if algorithm in _LENGTHS and not _is_hex(digest, _LENGTHS[algorithm]):
                yield f"{digest!r} is no {algorithm} (of {one.name or one.uri})"
    if definition.build_type == BUILD_TYPE and not _is_hex(read.build_key, (64,)):
        yield "it has no build key"
    started, finished = run.metadata.started_on, run.metadata.finished_on
    if started and finished and finished < started:
        yield "it was finished before it was started"


def _is_hex(text: str, lengths: tuple[int, ...]) -> bool:
    return len(text) in lengths and set(text) <= set("0123456789abcdef")


def _bad(why: str) -> ProvenanceError:
    msg = f"This is no provenance of a wheel: {why.rstrip('.')}."
    return ProvenanceError(msg, hint="It may be of another program, or damaged; a rebuild writes it anew.")
