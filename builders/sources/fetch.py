"""Fetch everything that a lock installs, and everything that its builds need, into the cache.

A downloaded wheel is compared with the metadata file that its index serves (PEP 658), which a resolution
reads. If they differ, the lock does not describe what is installed.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from builders.constants import CONNECTIONS, MISSING_CODES
from builders.network.download import Downloads, check_hash, download
from builders.network.urls import (
    NETWORK_HINT,
    OFFLINE_HINT,
    RequestError,
    local_path,
    mirrored,
    without_password,
)
from builders.recipes import patches_of
from builders.sources.source import obtain
from builders.storage.files import cached_file
from builders.wheels.wheel import LARGEST_METADATA, DamagedError, WheelReader
from resolver.errors import EnvironmentLacksError, MatrixError, SourceError
from resolver.reporter import SILENT, Reporter
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from builders.network.download import Downloads
    from resolver.facts.catalog import Catalog
    from resolver.indexes import File, Metadata
    from resolver.model import Distribution, Resolution


_LARGE = 50 * 2**20  # bytes of a file whose download is reported


def check_metadata(file: File, wheel: Path, downloads: Downloads) -> None:
    """Check that a wheel has the metadata that its index serves for it, if the index serves any.

    A wheel with other metadata is removed from the cache. Raise `SourceError` if
    name, version, requirements or Requires-Python differ, or one of both cannot be read.
    """
    if not (file.has_metadata and file.name.endswith(".whl")):
        return
    from builders.index_client.metadata import parse

    url = f"{file.url}.metadata"
    try:
        with WheelReader(wheel) as reader:
            own = reader.text("METADATA")
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
    with suppress(OSError):
        wheel.unlink()
    listed = "".join(f"\n  {difference}" for difference in differences)
    msg = f"{file.name} and {without_password(url)} differ, so the wheel is not used:{listed}"
    raise SourceError(msg, hint="Exclude this version, or report the problem to the owners of the index.")


def _served(url: str, downloads: Downloads) -> bytes | None:
    """Return the metadata file that the index serves; None if it does not have the file."""
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


class FetchedItem(msgspec.Struct, frozen=True):
    """A source or a wheel in the cache."""

    name: str
    version: str
    kind: Literal["sdist", "git", "wheel"]
    origin: str
    """File name, or URL and commit."""
    state: Literal["cached", "fetched"]
    bytes: int
    """Size in the cache."""
    identity: str
    path: str
    purpose: Literal["build", "install"] = "build"


class MissingItem(msgspec.Struct, frozen=True):
    """A source or a set of wheels that could not be fetched."""

    name: str
    version: str
    origin: str
    id: str
    message: str
    hint: str
    exit_code: int

    @classmethod
    def from_error(cls, name: str, version: str, origin: str, error: MatrixError) -> MissingItem:
        """Return the item for an error."""
        return cls(name, version, origin, error.id, error.message, error.hint, error.exit_code)


class FetchResult(msgspec.Struct):
    """The items in the cache, and the missing ones."""

    sources: list[FetchedItem] = []
    missing: list[MissingItem] = []
    warnings: list[str] = []

    def add(self, item: FetchedItem | MissingItem) -> None:
        """Add an item that is in the cache or missing."""
        if isinstance(item, MissingItem):
            self.missing.append(item)
        else:
            self.sources.append(item)

    def __iadd__(self, other: FetchResult) -> Self:
        """Add all items of another result."""
        self.sources += other.sources
        self.missing += other.missing
        self.warnings += other.warnings
        return self

    @property
    def bytes_fetched(self) -> int:
        """Size of everything that was not in the cache before."""
        return sum(item.bytes for item in self.sources if item.state == "fetched")


def fetch_file(file: File, downloads: Downloads, *, offline: bool = False) -> bool:
    """Put a file of a lock into the cache unless it is there; return whether it was written.

    The hash of a cached file is checked again. A file of this machine without a hash must have the metadata
    of a distribution.
    Errors are those of `download`, `check_hash` and `check_metadata`.
    """
    target = cached_file(file)
    if target.exists():
        if file.sha256:
            check_hash(target, file.sha256, name=file.name, origin=f"the cache ({target.parent})")
        return False
    if offline:
        msg = f"{file.name} is not in the cache, and --offline is set."
        raise EnvironmentLacksError(msg, hint=OFFLINE_HINT)
    path = local_path(mirrored(file.url, downloads.mirrors))
    if path is not None and path.is_file() and not file.sha256:
        # A directory of others may have a link to a private file under the name of a wheel.
        from builders.index_client.metadata import read

        read(file, path, downloads.transport)
    download(file.url, target, file.sha256, downloads)
    check_metadata(file, target, downloads)
    return True


def fetch_published(
    picks: Sequence[Distribution],
    *,
    mirrors: Mapping[str, str],
    offline: bool = False,
    check: Callable[[Distribution, Path], None] | None = None,
    reporter: Reporter = SILENT,
) -> FetchResult:
    """Fetch the file from which pip installs each published distribution, several at a time.

    A file that cannot be fetched does not stop the others. With `offline`, only check that everything is in
    the cache. `check` is called with each distribution and its file; it raises a `MatrixError` if the file
    must not be used.
    """
    downloads = Downloads(mirrors, reporter)
    missing = [pick.files[0].size for pick in picks if not cached_file(pick.files[0]).exists()]
    downloads.expected = sum(missing) if all(missing) else 0

    def fetch(pick: Distribution) -> FetchedItem | MissingItem:
        file = pick.files[0]
        if file.size >= _LARGE and not cached_file(file).exists():
            reporter.step(f"{pick}: {file.name}, {file.size / 2**20:.0f} MiB")
        try:
            fetched = fetch_file(file, downloads, offline=offline)
            if check is not None:
                check(pick, cached_file(file))
        except MatrixError as error:
            return MissingItem.from_error(pick.name, pick.version, file.name, error)
        path = cached_file(file)
        return FetchedItem(
            name=pick.name,
            version=pick.version,
            kind="sdist" if pick.is_sdist else "wheel",
            origin=file.name,
            state="fetched" if fetched else "cached",
            bytes=path.stat().st_size,
            identity=f"sha256:{file.sha256}" if file.sha256 else f"url:{without_password(file.url)}",
            path=str(path),
            purpose="install",
        )

    result = FetchResult()
    pool = ThreadPoolExecutor(CONNECTIONS)
    futures = [pool.submit(fetch, pick) for pick in picks]
    try:
        for future in futures:
            result.add(future.result())
    finally:  # without waiting: after an interruption, a thread may still wait for a silent server
        downloads.stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
    files = [pick.files[0] for pick in picks]
    unhashed = [file.name for file in files if file.index and not file.sha256]
    if unhashed:
        result.warnings.append(
            f"No index publishes a SHA-256 of {', '.join(unhashed)}, so no hash was compared. "
            "Use an index that publishes hashes."
        )
    return result


def fetch_all(
    lock: Resolution,
    catalog: Catalog,
    names: Sequence[str] = (),
    *,
    mirrors: Mapping[str, str],
    offline: bool = False,
    fetch_wheels: Callable[[Resolution, Sequence[Distribution]], Iterable[FetchedItem | MissingItem]]
    | None = None,
    reporter: Reporter = SILENT,
) -> FetchResult:
    """Fetch the sources that a lock builds (those of `names`, if any), and the wheels that their builds need.

    A source that cannot be fetched does not stop the others. With `offline`, only check that everything is in
    the cache. `catalog` has the patches. `fetch_wheels` fetches torch and the build requirements, after the
    sources, and yields an item for each; it is called with the lock and the distributions to build.

    Raise `UsageError` if the lock does not build one of the names.
    """
    picks = [pick for pick in lock.built(names) if not pick.alias_of]
    result = FetchResult()
    for pick in picks:
        git = f"{without_password(pick.git.url)}@{pick.git.commit}" if pick.git else ""
        origin = pick.sdist.file if pick.sdist else git
        reporter.step(f"{pick.name} {pick.version}: {origin}")
        try:
            source = obtain(pick, offline=offline, mirrors=mirrors, patches=patches_of(pick, catalog))
        except MatrixError as error:
            result.missing.append(MissingItem.from_error(pick.name, pick.version, origin, error))
            continue
        result.warnings += source.warnings
        result.sources.append(
            FetchedItem(
                name=source.name,
                version=source.version,
                kind="git" if source.kind == "git" else "sdist",
                origin=source.origin,
                state="fetched" if source.fetched else "cached",
                bytes=source.size,
                identity=source.identity,
                path=str(source.path),
            )
        )
    for item in fetch_wheels(lock, picks) if fetch_wheels else ():
        result.add(item)
    return result
