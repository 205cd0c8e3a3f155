"""Core metadata of distributions, from a metadata file, a wheel or an sdist; no code is run."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import tempfile
import zipfile
import zlib
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, cast

from msgspec.structs import replace
from packaging.markers import InvalidMarker, Marker
from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builders.constants import MISSING_CODES
from builders.index_client.pages import projects_in
from builders.network.urls import NETWORK_HINT, RequestError, TooLargeReplyError, without_password
from builders.wheels.wheel import LARGEST_METADATA, DamagedError, WheelReader
from resolver.errors import EnvironmentLacksError, SourceError
from resolver.indexes import Metadata
from resolver.requirements import version_in
from resolver.versions import shorten, version_or_none

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builders.network.transport import Transport
    from resolver.indexes import File

METADATA_FILE = "its metadata file"
"""The source of metadata that have the hash that the index states for them, if it does."""
_LARGEST_SDIST = 100_000_000  # bytes of an sdist that is downloaded to read its metadata
_WINDOW = 1 << 16  # bytes of a later request to a wheel
_MOST_REQUIREMENTS = 5_000  # and extras; the largest known release has a fifth of this
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_COMMENT = re.compile(r"(^|\s)#.*")
_INCLUDE = re.compile(r"(-r|--requirement)[\s=]*(?P<path>\S+)")
_RELEVANT = {"requires-dist", "provides-extra", "requires-python"}
_STATIC_SINCE = (2, 2)  # PEP 643


def read(file: File, local: Path | None, transport: Transport, *, listed: str = "") -> Metadata | None:
    """Read the metadata of a file (`local` if it is on this machine); None if its code would have to run.

    For `listed`, see `resolver.indexes.PackageIndexes.metadata`. Raise `EnvironmentLacksError` if the server
    cannot be reached; `SourceError` if it does not have the file, or the metadata is broken or contradicts
    the name. Its ``__cause__`` is the reason without the name of the file.
    """
    where = f"{file.name} ({projects_in(file.name)[0]} on {file.index})" if file.index else file.name
    hint = "Exclude this version, or report the problem to the owners of the index."
    try:
        if local is None:
            return _read_remote(file, transport, listed)
        with local.open("rb") as content:
            is_wheel = file.name.endswith(".whl")
            return (
                from_wheel(Path(file.name), content) if is_wheel else from_sdist(file.name, content, listed)
            )
    except (DamagedError, ValueError, LookupError, RecursionError) as error:
        raise SourceError(f"The metadata of {where} cannot be used: {error}.", hint=hint) from error
    except RequestError as error:
        msg = f"The metadata of {where} could not be fetched from {without_password(file.url)}: {error}."
        if error.status in MISSING_CODES:
            raise SourceError(msg, hint=hint) from error
        raise EnvironmentLacksError(msg, hint=NETWORK_HINT) from None
    except FileNotFoundError as error:
        raise SourceError(f"The metadata of {where} cannot be read: {error}.", hint=hint) from None
    except OSError as error:
        msg = f"The metadata of {where} cannot be read: {error}."
        raise EnvironmentLacksError(msg, hint="Check the free space and the permissions.") from None


def _read_remote(file: File, transport: Transport, listed: str) -> Metadata | None:
    if file.has_metadata:
        try:
            content = transport.small_file(f"{file.url}.metadata", LARGEST_METADATA)
            _check_hash(METADATA_FILE, hashlib.sha256(content), file.metadata_sha256)
            return parse(content, file.name, METADATA_FILE)
        except RequestError as error:
            if error.status not in MISSING_CODES:  # some proxies announce files that they do not have
                raise
    if not file.name.endswith(".whl"):
        return _remote_sdist(file, transport, listed)
    remote = transport.remote_file(file.url)
    if remote is None:
        return None
    if not remote.has_ranges:
        _check_hash("the file", hashlib.sha256(remote.tail), file.sha256)
    return from_wheel(Path(file.name), cast("BinaryIO", io.BufferedReader(remote, _WINDOW)))


def _remote_sdist(file: File, transport: Transport, listed: str) -> Metadata | None:
    if file.size > _LARGEST_SDIST:
        return None
    try:
        with downloaded(file, transport, _LARGEST_SDIST) as content:
            return from_sdist(file.name, content, listed)
    except TooLargeReplyError:
        return None


@contextmanager
def downloaded(file: File, transport: Transport, most: int) -> Iterator[BinaryIO]:
    """Download a file whose hash the index may list, for the time of the context.

    Raise `TooLargeReplyError` if it has more than `most` bytes; `DamagedError` if it has another hash.
    """
    digest = hashlib.sha256()
    with tempfile.TemporaryFile(prefix="matrix-") as content:
        for chunk in transport.download(file.url, most):
            digest.update(chunk)
            content.write(chunk)
        _check_hash("the file", digest, file.sha256)
        content.seek(0)
        yield cast("BinaryIO", content)


def _check_hash(what: str, digest: hashlib._Hash, expected: str) -> None:
    if expected and digest.hexdigest() != expected:
        raise DamagedError(f"{what} has the SHA-256 {digest.hexdigest()}, but the index lists {expected}")


def parse(text: bytes, filename: str, source: str) -> Metadata:
    """Parse core metadata; raise `DamagedError` if it is none, or contradicts the name of its file."""
    blank = _BLANK_LINE.search(text)
    raw, _ = parse_email(text[: blank.start() + 1] if blank else text)
    name, version = raw.get("name", ""), raw.get("version", "")
    if not name or not version:
        raise DamagedError(f"{source} has no name or no version")
    parsed = version_or_none(version)
    if parsed is None or parsed != version_or_none(version_in(filename, canonicalize_name(name)) or ""):
        raise DamagedError(f"{source} belongs to {name} {version}")
    count = len(raw.get("requires_dist", ())) + len(raw.get("provides_extra", ()))
    if count > _MOST_REQUIREMENTS:
        msg = f"{source} has {count} requirements and extras, and the limit is {_MOST_REQUIREMENTS}"
        raise DamagedError(msg)
    return Metadata(
        name=canonicalize_name(name),
        version=version,
        requires=tuple(map(_unfolded, raw.get("requires_dist", ()))),
        extras=tuple(dict.fromkeys(canonicalize_name(extra) for extra in raw.get("provides_extra", ()))),
        requires_python=_unfolded(raw.get("requires_python", "")),
        source=source,
        dynamic=not filename.endswith(".whl")
        and not _is_static(raw.get("metadata_version", ""), raw.get("dynamic", [])),
    )


def from_wheel(path: Path, file: BinaryIO | None = None) -> Metadata:
    """Read the metadata inside a wheel, whose content is `file` if it is not a local file."""
    with WheelReader(path, file) as wheel:
        return parse(wheel.text("METADATA"), path.name, "its wheel")


def from_sdist(filename: str, content: BinaryIO, listed: str = "") -> Metadata | None:
    """Read the PKG-INFO of an sdist; return None if the sdist has none.

    If it is not static and lists no requirements, the requirements in setuptools's requires.txt are used. For
    `listed`, see `resolver.indexes.PackageIndexes.metadata`.
    """
    names = projects_in(filename)
    metadata: Metadata | None = None
    requires: bytes | None = None
    files: dict[PurePosixPath, bytes] = {}

    def is_wanted(path: PurePosixPath) -> bool:
        return _is_relevant(path) or (bool(listed) and path.suffix == ".txt")

    for path, text in matching_files(filename, content, is_wanted):
        if not _is_relevant(path):
            files[PurePosixPath(*path.parts[1:])] = text
        elif path.name == "PKG-INFO":
            metadata = parse(text, filename, "its sdist")
        elif requires is None and canonicalize_name(path.parent.stem) in names:
            requires = text
        if listed:  # what follows may be the listed file, or included by it
            continue
        if metadata and (not metadata.dynamic or metadata.requires or requires is not None):
            break
    if metadata is not None and requires is not None and metadata.dynamic and not metadata.requires:
        found, extras = parse_requires_txt(requires.decode("utf-8", "replace"))
        extras = tuple(dict.fromkeys([*metadata.extras, *extras]))
        metadata = replace(metadata, requires=found, extras=extras)
    of_backend = next((path for path in sorted(files) if fnmatchcase(str(path), listed)), None)
    if metadata is None or of_backend is None:
        return metadata
    of_extras = [line for line in metadata.requires if "extra" in str(Requirement(line).marker or "")]
    stated = (*_requirements_in(files, of_backend), *of_extras)
    return replace(metadata, requires=stated, source=f"{of_backend} in its sdist", dynamic=True)


def _requirements_in(files: dict[PurePosixPath, bytes], path: PurePosixPath) -> Iterator[str]:
    """Yield the requirements in a pip requirements file of an archive, with those that it includes.

    Other options, such as indexes, say where the project's own machines find something.
    """
    for line in files.pop(path, b"").decode("utf-8", "replace").replace("\\\n", " ").splitlines():
        text = _COMMENT.sub("", line).strip()
        if included := _INCLUDE.fullmatch(text):
            yield from _requirements_in(files, path.parent / included["path"])
        elif text and not text.startswith("-"):
            try:
                yield str(Requirement(text))
            except InvalidRequirement:
                msg = f"its {path} has an invalid requirement: {shorten(text)!r}"
                raise DamagedError(msg) from None


def matching_files(
    filename: str,
    content: BinaryIO,
    is_wanted: Callable[[PurePosixPath], bool],
    largest: int = LARGEST_METADATA,
) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield the wanted files of an archive that are not too large; raise `DamagedError` if it is none."""
    try:
        if filename.endswith(".zip"):
            with zipfile.ZipFile(content) as files:
                for info in files.infolist():
                    path = PurePosixPath(info.filename)
                    if is_wanted(path) and info.file_size <= largest:
                        yield path, files.read(info)
            return
        with tarfile.open(fileobj=content, mode="r|*") as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                if is_wanted(path) and member.size <= largest:
                    source = archive.extractfile(member)
                    if source is not None:
                        yield path, source.read()
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise DamagedError(f"its archive cannot be read ({error})") from None


def parse_requires_txt(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    r"""Return the requirements and the extras in the requires.txt that setuptools writes.

    A section is named by an extra, a marker, or both: ``[extra]``, ``[:marker]``, ``[extra:marker]``.

    >>> parse_requires_txt("six\n\n[Test:python_version < '3.12']\npytest>=7")
    (('six', 'pytest>=7; python_version < "3.12" and extra == "test"'), ('test',))
    """
    requires: list[str] = []
    extras: dict[str, None] = {}
    extra = marker = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("[") and line.endswith("]"):
            extra, _, marker = line[1:-1].partition(":")
            extra = canonicalize_name(extra.strip())
            extras |= {extra: None} if extra else {}
        elif not line.startswith("#"):
            try:
                requirement = Requirement(line)
                markers = filter(None, (requirement.marker, marker and Marker(marker)))
                conditions = [f"({text})" if " or " in text else text for text in map(str, markers)]
                conditions += [f'extra == "{extra}"'] if extra else []
                requirement.marker = Marker(" and ".join(conditions)) if conditions else None
            except (InvalidRequirement, InvalidMarker, RecursionError):
                msg = f"its requires.txt has an invalid requirement or marker: {shorten(line)!r}"
                raise DamagedError(msg) from None
            requires.append(str(requirement))
    return tuple(requires), tuple(extras)


def _is_relevant(path: PurePosixPath) -> bool:
    """Return whether a member is the PKG-INFO in the top directory, or a requires.txt of setuptools."""
    if path.name == "PKG-INFO":
        return len(path.parts) == 2  # noqa: PLR2004  the top directory and the file
    return path.name == "requires.txt" and path.parent.suffix == ".egg-info"


def _unfolded(text: str) -> str:
    return " ".join(text.split()) if "\n" in text else text


def _is_static(version: str, dynamic: list[str]) -> bool:
    """Return whether the requirements in a PKG-INFO are those of every wheel built from the sdist."""
    try:
        known = tuple(int(part) for part in version.split("."))
    except ValueError:
        return False
    return known >= _STATIC_SINCE and _RELEVANT.isdisjoint(field.lower() for field in dynamic)
