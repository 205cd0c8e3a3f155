"""Compare the wheels of an index with their provenance, with a lock, and with signatures of the provenance.

Provenance is a record: everybody who can write to the index can write it. Only a signature by a key that the
receiver trusts shows who vouches for it. Signatures are those of OpenSSH (PROTOCOL.sshsig), which every
site has, with any of its keys, such as ed25519; the trusted keys are in a file of the form of ssh-keygen(1),
ALLOWED SIGNERS.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from builders.building.provenance import BUILD_TYPE, read_statement
from builders.index.maintenance import damage
from builders.index.repository import record_name
from builders.machine.process import bytes_of
from resolver.errors import EnvironmentLacksError, ProvenanceError, UsageError
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builders.building.provenance import Statement
    from builders.findings import Finding
    from builders.index.repository import Index
    from resolver.model import Distribution, Resolution

_NAMESPACE = "rocm-matrix"
"""A signature for another purpose by the same key does not count (PROTOCOL.sshsig, namespace)."""
_LONGEST = 60.0  # seconds of one call of ssh-keygen; a key may ask for its passphrase


class Verified(NamedTuple):
    """What a comparison found."""

    findings: list[Finding]
    unbuilt: list[str]
    """The wheels that somebody added, so that nobody recorded how they were built."""
    signers: dict[str, str]
    """Who signed the provenance of a wheel."""


def verify(index: Index, lock: Resolution | None = None, trusted: Path | None = None) -> Verified:
    """Compare every wheel that has a record with it, and with `lock` and signatures if they are given.

    Raise `EnvironmentLacksError` if `trusted` is given and ssh-keygen is missing.
    """
    found: list[Finding] = []
    unbuilt: list[str] = []
    signers: dict[str, str] = {}
    statements: dict[str, list[Statement]] = {}
    for project in index.projects():
        entries = index.entries(project)
        for path in index.wheels(project):
            entry = entries.get(path.name)
            if entry is None:  # on no page, so `check` reports it
                continue
            record = index.provenance / record_name(path.name, entry.hashes.sha256)
            text = index.read(record)
            if trusted is not None:
                signers[path.name] = _signer(index, record, text, trusted)
                if not signers[path.name]:
                    message = f"No trusted key has signed the provenance of {path.name}."
                    found.append(damage(index, "signature-missing", record, message))
            try:
                document = msgspec.json.decode(text, type=dict[str, Any])
                if "predicate" not in document:
                    unbuilt.append(path.name)
                    continue
                statement = read_statement(document)
            except (msgspec.MsgspecError, RecursionError, ProvenanceError) as error:
                message = f"The provenance of {path.name} cannot be read: {error}"
                found.append(damage(index, "provenance-wrong", record, message))
                continue
            statements.setdefault(project, []).append(statement)
            found += [
                damage(index, "provenance-wrong", record, f"The provenance of {path.name} {problem}.")
                for problem in _contradictions(statement, path.name, entry.hashes.sha256)
            ]
    for pick in lock.built() if lock else ():
        if problem := _difference(pick, statements.get(pick.name, [])):
            found.append(damage(index, "lock-differs", index.simple / pick.name, problem))
    return Verified(found, unbuilt, signers)


def _contradictions(statement: Statement, wheel: str, sha256: str) -> Iterator[str]:
    subjects = {(subject.name, subject.digest.get("sha256")) for subject in statement.subject}
    if subjects != {(wheel, sha256)}:
        yield "is about another file"
    definition = statement.predicate.build_definition
    inputs = definition.internal_parameters.get("inputs")
    key = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    if definition.build_type == BUILD_TYPE and key != statement.build_key:
        yield "has a build key that is not the digest of its inputs"


def _difference(pick: Distribution, statements: list[Statement]) -> str:
    """Return how the index differs from a distribution that the lock builds; empty if it does not."""
    title = f"{pick.name} {pick.pinned}"
    if pick.alias_of:
        return ""
    definitions = [
        statement.predicate.build_definition
        for statement in statements
        if statement.predicate.build_definition.external_parameters.get("version") == pick.pinned
    ]
    if not definitions:
        return f"The index has no wheel of {title}, which the lock builds."
    pinned = pick.source_digest
    sources = {
        digest
        for definition in definitions
        for part in definition.resolved_dependencies
        if part.role == "source"
        for digest in part.digest.values()
    }
    if pinned and pinned not in sources:
        return f"No wheel of {title} was built from the source that the lock pins: {shorten(pinned, 12)}."
    return ""


def sign(index: Index, key: Path) -> list[str]:
    """Sign the provenance of every wheel, and return the wheels' file names.

    `key` is a private key of OpenSSH, or a public one whose private key ssh-agent has. Raise `UsageError`
    if it cannot be used, and `EnvironmentLacksError` if ssh-keygen is missing.
    """
    signed = []
    for project in index.projects():
        for name, entry in index.entries(project).items():
            record = index.provenance / record_name(name, entry.hashes.sha256)
            made = _ssh_keygen(["-Y", "sign", "-q", "-n", _NAMESPACE, "-f", str(key)], index.read(record))
            if not made:
                msg = f"ssh-keygen cannot sign with {key}."
                hint = "Name a private key of OpenSSH, or the public key of one that ssh-agent has."
                raise UsageError(msg, hint=hint)
            index.write(_signature(index, record), made)
            signed.append(name)
    return signed


def _signer(index: Index, record: Path, text: bytes, trusted: Path) -> str:
    """Return who signed a record with a trusted key; empty if nobody did, or the signature is wrong."""
    signature = index.read(_signature(index, record))
    if not signature:
        return ""
    with TemporaryDirectory() as folder:
        file = Path(folder, "signature")
        file.write_bytes(signature)
        options = ["-f", str(trusted), "-s", str(file)]
        names = _ssh_keygen(["-Y", "find-principals", *options]) or b""
        for name in names.decode(errors="replace").split():
            if _ssh_keygen(["-Y", "verify", "-n", _NAMESPACE, "-I", name, *options], text) is not None:
                return name
    return ""


def _signature(index: Index, record: Path) -> Path:
    return index.signatures / f"{record.name}.sig"


def _ssh_keygen(options: Sequence[str], text: bytes = b"") -> bytes | None:
    """Return the output of ssh-keygen; None if it fails."""
    if not shutil.which("ssh-keygen"):
        msg = "ssh-keygen, which signs and verifies provenance, is not on PATH."
        hint = "Install OpenSSH's client, or use a machine that has it."
        raise EnvironmentLacksError(msg, hint=hint)
    return bytes_of(["ssh-keygen", *options], text, timeout=_LONGEST)
