"""Compare a downloaded wheel with the metadata file that its index serves (PEP 658).

A resolution reads the metadata file, and pip installs the wheel. If they differ, the lock does not describe
what is installed.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from builders.constants import MISSING_CODES
from builders.index_client.metadata import parse
from builders.network.urls import NETWORK_HINT, local_path, mirrored, without_password
from builders.wheels.wheel import LARGEST_METADATA, DamagedError, WheelReader
from resolver.errors import EnvironmentLacksError, SourceError
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from builders.network.download import Downloads
    from resolver.indexes import File, Metadata


def check_metadata(file: File, wheel: Path, downloads: Downloads) -> None:
    """Check that a wheel has the metadata that its index serves for it, if the index serves any.

    A wheel with other metadata is renamed, so that the cache does not contain it.

    Raises
    ------
    SourceError
        Name, version, requirements or Requires-Python differ, or one of both cannot be read; the message
        names the wheel and its metadata file.
    EnvironmentLacksError
        The server cannot be reached.
    """
    if not (file.has_metadata and file.name.endswith(".whl")):
        return
    url = f"{file.url}.metadata"
    try:
        own = _metadata_in(wheel)
        if hashlib.sha256(own).hexdigest() == file.metadata_sha256:
            return
        served = _served(url, downloads)
        if served is None or served == own:
            return
        differences = list(
            _differences(parse(served, file.name, "its metadata file"), parse(own, file.name, "its wheel"))
        )
    except DamagedError as error:
        differences = [f"{error}"]
    if not differences:
        return
    kept = wheel.with_name(f"{wheel.name}.mismatch")
    with suppress(OSError):
        wheel.replace(kept)
    listed = "".join(f"\n  {difference}" for difference in differences)
    msg = (
        f"{file.name} and {without_password(url)} differ, so the wheel is not used:{listed}\n  kept as {kept}"
    )
    hint = "Exclude this version, or report the problem to the owners of the index."
    raise SourceError(msg, hint=hint)


def _metadata_in(wheel: Path) -> bytes:
    with WheelReader(wheel) as reader:
        member = reader.metadata_member("METADATA")
        if member is None or member.file_size > LARGEST_METADATA:
            msg = "the METADATA file of the wheel is missing or too large"
            raise DamagedError(msg)
        return reader.read(member)


def _served(url: str, downloads: Downloads) -> bytes | None:
    """Return the metadata file that the index serves; None if it does not have the file."""
    from builders.network.transport import RequestError

    path = local_path(mirrored(url, downloads.mirrors))
    if path is not None:
        return path.read_bytes() if path.is_file() else None
    try:
        return b"".join(downloads.transport.download(url, LARGEST_METADATA))
    except RequestError as error:
        if error.status in MISSING_CODES:  # some proxies announce files that they do not have
            return None
        msg = f"{without_password(url)} cannot be downloaded: {error}."
        raise EnvironmentLacksError(msg, hint=NETWORK_HINT) from None


def _differences(served: Metadata, own: Metadata) -> Iterator[str]:
    """Yield each difference between the served metadata and that of the wheel."""
    pairs: dict[str, tuple[set[str], set[str]]] = {
        "Name": ({canonicalize_name(served.name)}, {canonicalize_name(own.name)}),
        "Version": ({served.version}, {own.version}),
        "Requires-Python": ({_specifier(served.requires_python)}, {_specifier(own.requires_python)}),
        "Requires-Dist": (_requirements(served.requires), _requirements(own.requires)),
    }
    for key, (there, here) in pairs.items():
        if there != here:
            texts = [
                shorten(", ".join(sorted(values)) or "nothing") for values in (there - here, here - there)
            ]
            yield f"{key}: {texts[0]} in the metadata file, {texts[1]} in the wheel"


def _requirements(texts: Iterable[str]) -> set[str]:
    return set(map(_requirement, texts))


def _requirement(text: str) -> str:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return text
    requirement.name = canonicalize_name(requirement.name)
    return str(requirement)


def _specifier(text: str) -> str:
    try:
        return str(SpecifierSet(text))
    except InvalidSpecifier:
        return text
