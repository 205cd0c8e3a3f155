"""Direct references (``name @ URL``): a wheel, an sdist, a project on this machine, or a commit."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from packaging.utils import canonicalize_name

from builders.constants import MISSING_CODES
from builders.index_client import stored
from builders.index_client.stored import Reference
from builders.network.download import keep_tree
from builders.network.git import Repository, is_commit, split_reference
from builders.network.source_tree import source_tree
from builders.network.urls import (
    NETWORK_HINT,
    OFFLINE_HINT,
    RequestError,
    local_path,
    mirrored,
    without_password,
)
from builders.source_facts.reading import tree_metadata
from builders.source_facts.recipe_draft import version_of_ref
from builders.storage.files import (
    cache_root,
    cached_file,
    make_directories,
    make_read_only,
    sha256_of,
    temporary_sibling,
)
from builders.storage.io_errors import explain_cache_errors
from builders.storage.lease import TemporaryDirectory
from builders.wheels.wheel import DamagedError
from resolver.errors import EnvironmentLacksError, SourceError, UsageError
from resolver.indexes import File
from resolver.requirements import version_in
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builders.network.transport import Transport
    from resolver.indexes import Metadata

GIT = "git+"
_LONGEST_URL = 300  # characters in messages

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Reference)


class DirectReader:
    """Read the distributions that direct references name.

    A remote file is downloaded to the path where ``matrix farm fetch`` keeps it, so that the lock has its
    hash. A URL without a hash, a branch or a tag is used without a request for `fresh_for` seconds.
    """

    def __init__(
        self,
        cache: Path,
        transport: Transport,
        *,
        mirrors: Mapping[str, str],
        offline: bool,
        fresh_for: float,
    ) -> None:
        self._cache = cache
        self._transport = transport
        self._mirrors = mirrors
        self._offline = offline
        self._fresh_for = fresh_for

    def read(self, name: str, url: str) -> Reference:
        """Return the file and the metadata of a direct reference."""
        name = canonicalize_name(name)
        location, _, fragment = url.partition("#")
        options = dict(parse_qsl(fragment))
        path = local_path(mirrored(location, self._mirrors))
        if location.startswith(GIT):
            reference = self._of_git(name, url, location.removeprefix(GIT), options.get("subdirectory", ""))
        elif path is not None and path.is_dir():
            path = path / options.get("subdirectory", "")
            reference = self._of_tree(name, url, path.as_uri())
        elif path is not None:
            reference = self._of_file(name, url, path, options)
        else:
            reference = self._of_server(name, url, options)
        if reference.metadata.name != name:
            msg = f"{_shown(url)!r} is {reference.metadata.name}, not {name}."
            raise UsageError(msg, hint="Correct the name.")
        return reference

    def _of_server(self, name: str, url: str, options: dict[str, str]) -> Reference:
        """Read a file from the cache if its URL has a hash or it has not changed; otherwise download it."""
        from builders.network.transport import check_status, chunks

        record = self._record(url)
        known = _read_record(record, url)
        if known and (self._offline or "sha256" in options or self._is_fresh(record)):
            return known
        self._refuse_offline(url)
        headers = {"Accept-Encoding": "identity", **stored.conditions(known)}
        location = url.partition("#")[0]
        target = cache_root() / "wheels" / "direct" / Path(unquote(urlsplit(location).path)).name
        try:
            with (
                explain_cache_errors(),
                self._transport.get(location, headers, stream=True) as reply,
                temporary_sibling(target) as temporary,
            ):
                if known and reply.status_code == 304:  # noqa: PLR2004  unchanged
                    record.touch()
                    return known
                check_status(reply)
                with temporary.open("wb") as part:
                    for chunk in chunks(reply):
                        part.write(chunk)
                reference = self._of_file(name, url, temporary, options, filename=target.name)
                kept = cached_file(reference.file)  # where `matrix farm fetch` looks for it
                make_directories(kept.parent)
                make_read_only(temporary)
                temporary.replace(kept)
                validators = reply.headers.get("ETag", ""), reply.headers.get("Last-Modified", "")
        except RequestError as error:
            msg = f"{_shown(url)!r} cannot be downloaded: {error}."
            if error.status in MISSING_CODES:
                raise SourceError(msg, hint="Check the URL.") from None
            raise EnvironmentLacksError(msg, hint=NETWORK_HINT) from None
        reference = Reference(url, reference.file, reference.metadata, *validators)
        stored.replace(record, _encoder.encode(reference))
        return reference

    def _of_file(
        self, name: str, url: str, path: Path, options: dict[str, str], *, filename: str = ""
    ) -> Reference:
        from builders.index_client.metadata import from_sdist, from_wheel
        from builders.index_client.source_content import unpack_scripts

        filename = filename or path.name
        subdirectory = options.get("subdirectory", "")
        shown = _shown(url.partition("#")[0])
        metadata: Metadata | None = None
        try:
            digest = sha256_of(path)
            with path.open("rb") as content:
                if filename.endswith(".whl"):
                    metadata = from_wheel(Path(filename), content)
                elif not subdirectory and version_in(filename, name) is not None:
                    metadata = from_sdist(filename, content)
                if metadata is None:
                    content.seek(0)
                    with TemporaryDirectory() as folder:
                        unpack_scripts(filename, content, folder.root / "source")
                        stem = filename.removesuffix(".zip").removesuffix(".tar.gz")
                        tag = version_in(filename, name) or version_of_ref(stem)
                        metadata = tree_metadata(folder.root / "source" / subdirectory, shown, tag)
        except DamagedError as error:
            msg = f"{shown!r} cannot be used: {error}."
            raise SourceError(msg, hint="Check the file, or name another file.") from None
        except OSError as error:
            msg = f"{shown!r} cannot be read: {error.strerror}."
            raise SourceError(msg, hint="Check the path.") from None
        expected = options.get("sha256", "").lower()
        if expected and digest != expected:
            msg = f"{shown!r} has the SHA-256 {digest}, but its URL has {expected}."
            raise SourceError(msg, hint="Check why the file differs before you use it.")
        location = url.partition("#")[0] + (f"#subdirectory={subdirectory}" if subdirectory else "")
        size = path.stat().st_size
        return _reference(name, url, location, metadata, filename, digest=digest, size=size)

    def _of_git(self, name: str, url: str, location: str, subdirectory: str) -> Reference:
        """Fetch a commit, which a branch or tag may name, with its submodules."""
        address, ref = split_reference(location)
        record = self._record(url)
        known = _read_record(record, url)
        if known and (self._offline or is_commit(ref) or self._is_fresh(record)):
            return known
        self._refuse_offline(url)
        repository = Repository(address)
        pinned = f"{GIT}{repository.url}@{repository.commit_of(ref, self._mirrors)}"
        pinned += f"#subdirectory={subdirectory.strip('/')}" if subdirectory else ""
        reference = self._of_tree(name, url, pinned, version_of_ref(ref))
        stored.replace(record, _encoder.encode(reference))
        return reference

    def _of_tree(self, name: str, url: str, pinned: str, tag: str = "") -> Reference:
        """Store the sdist of a commit or a directory in the cache, where builds look for it."""
        with source_tree(pinned, self._mirrors) as top:
            metadata = tree_metadata(top, _shown(url), tag)
            pin = keep_tree(top, name, metadata.version)
            return _reference(name, url, pinned, metadata, pin.file, digest=pin.sha256)

    def _record(self, url: str) -> Path:
        key = hashlib.sha256(url.encode()).hexdigest()
        return self._cache / key[:2] / f"{key}.msgpack"

    def _is_fresh(self, record: Path) -> bool:
        age = stored.age(record)
        return age is not None and age < self._fresh_for

    def _refuse_offline(self, url: str) -> None:
        if self._offline:
            msg = f"{_shown(url)!r} is not in the cache, and --offline is set."
            raise EnvironmentLacksError(msg, hint=OFFLINE_HINT)


def _shown(url: str) -> str:
    return shorten(without_password(url), _LONGEST_URL)


def _reference(
    name: str,
    url: str,
    location: str,
    metadata: Metadata,
    filename: str = "",
    *,
    digest: str = "",
    size: int = 0,
) -> Reference:
    """Return a reference with a file name from which pip can read name and version."""
    if not filename.endswith(".whl") and version_in(filename, name) is None:
        ending = ".zip" if filename.endswith(".zip") else ".tar.gz"
        filename = f"{name.replace('-', '_')}-{metadata.version}{ending}"
    file = File(filename, location, digest, size, requires_python=metadata.requires_python)
    return Reference(url, file, metadata)


def _read_record(path: Path, url: str) -> Reference | None:
    try:
        known = _decoder.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return known if known.url == url else None
