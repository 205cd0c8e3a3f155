"""The configured package indexes over HTTP and from directories, with a cache on disk.

A fresh page is used without a request. A stale page is requested conditionally if the server sent a
validator. Metadata never changes, so it is requested once. Cached files are replaced atomically, and a
damaged file counts as missing, so several processes may share a cache.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from copy import copy
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

import msgspec

from builders.constants import MISSING_CODES
from builders.index_client import pages, stored
from builders.index_client.stored import Page, Release
from builders.network.urls import (
    OFFLINE_HINT,
    RequestError,
    is_flat_listing,
    is_tree,
    local_path,
    mirrored,
    without_password,
)
from builders.storage.files import cache_root, sdist_path
from resolver.errors import EnvironmentLacksError, MatrixError, SourceError
from resolver.facts.schema import Sdist
from resolver.indexes import File, Metadata, Project
from resolver.reporter import SILENT
from resolver.requirements import normalize_name, version_in
from resolver.versions import built_for, grouped, sort_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import requests

    from builders.network.transport import Transport
    from resolver.indexes import Content, IndexStrategy
    from resolver.reporter import Reporter

FRESH_FOR = 600.0  # seconds
_LONGEST_PROJECT = 600.0  # seconds for all pages and metadata of a project
_LARGEST_PROJECT = 1_000_000_000  # bytes
_FORMAT = "v4"
_THREADS = 16
PYTORCH_HOST = "download.pytorch.org"
"""It replies 403 for projects that it does not have. uv makes the same exception."""
_HTML, _JSON = "text/html", "application/json"
_LOCAL_PAGES = {"index.json": _JSON, "index.html": _HTML}
"""Files of a project in a directory, in order of preference."""

_metadata_encoder = msgspec.msgpack.Encoder()
_metadata_decoder: msgspec.msgpack.Decoder[Metadata | tuple[str, ...]] = msgspec.msgpack.Decoder(
    Metadata | tuple[str, ...]
)
"""A cached result: the metadata; nothing if it cannot be read; or message, hint and cause of an error."""

T = TypeVar("T")


class IndexClient:
    """Fetch projects and metadata from package indexes: a `resolver.indexes.PackageIndexes`.

    A project belongs to the first index that has it, as in uv, so that a project of the same name on another
    index does not replace it. Wheels that we built may be on any index: an index that has only those is not
    the project's. With the strategy ``unsafe-best-match``, all indexes that have a project are merged, as in
    pip; if several have a file of the same name, the first is used. So are the last indexes that are `equal`,
    if no index before them has the project, but wheels that we built count only up to the first that has it.

    An index that replies with an error other than "not found" stops the resolution, because the answer could
    otherwise depend on its state. uv also stops; pip ignores such an index. The only exception is status 403
    of PyTorch's index, which means that it does not have the project.

    `indexes` are URLs in order of preference, also of directories; `find_links` are directories and URLs of
    pages with links, as for pip. `bound` has the only index that counts for a project, by its normalized
    name. `mirrors` maps URL prefixes to their replacement; the longest match wins. A page is used without a
    request for `fresh_for` seconds; with `offline`, only the cache, whatever the age of its pages, and
    directories are used. `reporter` receives the number of replies, and a warning when old pages are used.
    """

    def __init__(
        self,
        indexes: Sequence[str],
        *,
        find_links: Sequence[str] = (),
        bound: Mapping[str, str] | None = None,
        strategy: IndexStrategy = "first-index",
        equal: Sequence[str] = (),
        cache: Path | None = None,
        mirrors: Mapping[str, str] | None = None,
        offline: bool = False,
        fresh_for: float = FRESH_FOR,
        reporter: Reporter = SILENT,
    ) -> None:
        self._mirrors = dict(mirrors or {})
        self._login_urls = (*indexes, *find_links)
        self._indexes = _shown(indexes)
        self._links = _shown(find_links)
        self._bound = {name: (without_password(url).rstrip("/"),) for name, url in (bound or {}).items()}
        self._strategy = strategy
        self.equal = _shown(equal)
        self._cache = Path(cache or cache_root() / "indexes") / _FORMAT
        self._offline = offline
        self._fresh_for = fresh_for
        self._reporter = reporter
        self._directories: dict[str, str] = {}
        self._warned = threading.Event()
        self._replies = itertools.count(1)
        self._alone: _Once[IndexClient] = _Once()
        self._projects: _Once[Project | None] = _Once()
        self._references: _Once[Project] = _Once()
        self._link_pages: _Once[dict[str, list[File]]] = _Once()
        self._metadata: _Once[Metadata | None] = _Once()
        self._contents: _Once[Content | None] = _Once()
        self._pages: _Once[Page] = _Once()
        self._transports: _Once[Transport] = _Once()
        self._roots: _Once[None] = _Once()
        self._spent: dict[str, list[float]] = {}
        """By project, seconds and bytes of its requests."""
        self._pool = _Threads(_THREADS)
        self._parsing = threading.Lock()
        """Threads that parse at the same time are slower than a single thread, and need more memory."""

    @property
    def urls(self) -> tuple[str, ...]:
        """The indexes in order of preference, then the find-links locations."""
        return (*self._indexes, *self._links)

    def at(self, url: str) -> IndexClient:
        """Return a client for a single index, which need not be one of `urls`."""
        url = _shown([url])[0]
        return self._alone.get(url, lambda: self._restricted_to(url))

    def _restricted_to(self, url: str) -> IndexClient:
        """Return a copy that shares connections, threads, pages and metadata."""
        other = copy(self)
        is_link = url in self._links or is_flat_listing(url)
        other._indexes, other._links = (() if is_link else (url,)), ((url,) if is_link else ())  # noqa: SLF001
        other._bound, other._projects = {}, _Once()  # noqa: SLF001
        return other

    def project(self, name: str) -> Project | None:
        """Return a project with the releases of the indexes that count for it, or None if no index has it."""
        name = normalize_name(name)
        return self._projects.get(name, lambda: self._load_project(name))

    def metadata(self, files: Sequence[File], listed: str = "") -> Metadata | None:
        """Return the metadata of a release; see `resolver.indexes.PackageIndexes`."""
        for file in _candidates(files):
            key = f"{_source(file)} {listed}".rstrip()
            metadata = self._metadata.get(key, lambda file=file: self._load_metadata(file, listed))  # type: ignore[misc]
            if metadata is not None:
                return metadata
        return None

    def content(self, file: File, metadata: Metadata | None) -> Content | None:
        """Return what a wheel or an sdist contains, as far as it is read; None if nothing is compiled."""
        from builders.gpu import may_be_compiled

        if not may_be_compiled(file, metadata):
            return None
        return self._contents.get(_source(file), lambda: self._load_content(file))

    def _load_content(self, file: File) -> Content | None:
        from builders.gpu import RULES, STORED

        local = self._local(file.url)
        if is_tree(file.url, self._mirrors):
            local = sdist_path(Sdist(file.name, file.sha256))
            if not (self._offline or local.exists()):
                from builders.network.download import Downloads, download

                download(file.url, local, file.sha256, Downloads(self._mirrors))
        path = self._cache / "content" / f"{RULES}-{self._identity(file, local)}.msgpack"
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            return STORED.decode(path.read_bytes())
        if self._offline and (local is None or not local.exists()):
            raise _not_cached(f"content of {file.name}", file.index)
        from builders.index_client.source_content import read

        content = self._read(read, file, local)
        stored.replace(path, msgspec.msgpack.encode(content))
        return content

    def direct(self, name: str, url: str) -> Project:
        """Return a project with one release, which a direct reference (``name @ URL``) names.

        A branch or tag of a git repository becomes its commit, and a remote file is downloaded.
        """
        return self._references.get(f"{name} {url}", lambda: self._load_direct(name, url))

    def _load_direct(self, name: str, url: str) -> Project:
        from builders.index_client.direct import DirectReader

        reader = DirectReader(
            self._cache / "direct",
            self.transport,
            mirrors=self._mirrors,
            offline=self._offline,
            fresh_for=self._fresh_for,
        )
        reference = reader.read(name, url)
        metadata, file = reference.metadata, reference.file
        self._metadata.get(_source(file), lambda: metadata)
        return Project(metadata.name, stored.listed([(metadata.version, [file])]))

    def is_cached(self, name: str) -> bool:
        """Return whether `project` would return without a request over the network, as always if offline."""
        if self._offline:
            return True
        name = normalize_name(name)
        with suppress(MatrixError):  # `project` raises it again
            for index in self._indexes_of(name):
                if self._local(index) is None and not self._is_usable(self._page_path(index, name)):
                    return False
                if index not in self.equal and self._owns(self._page(index, name)):
                    break
        return all(
            self._local(url) is not None or self._is_usable(self._page_path(url, "")) for url in self._links
        )

    def recall(self, key: str) -> bytes:
        """Return what the cache keeps under a key; empty if it keeps nothing."""
        try:
            return self._kept(key).read_bytes()
        except OSError:
            return b""

    def remember(self, key: str, content: bytes) -> None:
        """Keep what may be lost at any time in the cache, in place of what it has under the key."""
        stored.replace(self._kept(key), content)

    def _kept(self, key: str) -> Path:
        return self._cache / "kept" / f"{_digest(key)}.msgpack"

    def submit(self, work: Callable[[], object]) -> None:
        """Run `work` in a thread of a pool, which does not keep the process alive; its errors are ignored.

        With `offline`, there are no replies to wait for, and a thread would only take time.
        """
        if not self._offline:
            self._pool.submit(work)

    def _load_project(self, name: str) -> Project | None:
        indexes = self._indexes_of(name)
        if self._strategy != "first-index" or set(indexes[:1]) & {*self.equal}:
            for index in indexes[1:]:  # at the same time as the first one
                self.submit(partial(self._page, index, name))
        parts: list[list[Release]] = []
        is_owned = False
        for index in indexes:
            page = self._page(index, name)
            if page.exists:
                releases = page.releases()
                parts.append([one for one in releases if not (is_owned and built_for(one.version))])
            if self._owns(page):
                if index not in self.equal:
                    break
                is_owned = True
        for url in self._links:
            listed = self._link_pages.get(url, partial(self._load_links, url))
            linked = pages.by_version(((file.name, file) for file in listed.get(name, ())), name)
            if linked:
                parts.append(stored.listed(linked))
        return Project(name, _merge(parts)) if parts else None

    def _indexes_of(self, name: str) -> tuple[str, ...]:
        return self._bound.get(name, self._indexes)

    def _owns(self, page: Page) -> bool:
        """Return whether a project belongs to the index of a page, so that no later index counts."""
        return (
            self._strategy == "first-index"
            and page.exists
            and not (page.versions and all(map(built_for, page.versions)))
        )

    def _page(self, index: str, name: str) -> Page:
        url = f"{index}/{name}/"
        folder = self._local(url)
        if folder is not None:
            return self._pages.get(url, lambda: self._local_page(folder, index, name))
        return self._pages.get(url, lambda: self._cached_page(url, index, name))

    def _load_links(self, url: str) -> dict[str, list[File]]:
        """Return the files of a find-links location, by the project that they may belong to."""
        local = self._local(url)
        files: Iterable[File]
        if local is not None:
            if not local.exists():
                self._reporter.warning(f"The find-links location {url} does not exist, and is ignored.")
            files = _files_at(local, url)
        else:
            page = self._cached_page(url, url, "")
            files = page.files(0) if page.exists else ()
        return grouped((project, file) for file in files for project in pages.projects_in(file.name))

    def _local_page(self, folder: Path, index: str, name: str) -> Page:
        """Read the page of a project in a directory; it is cached until its file changes."""
        self._roots.get(index, lambda: self._check_root(index))
        for file, kind in _LOCAL_PAGES.items():
            path = folder / file
            with suppress(FileNotFoundError, NotADirectoryError), _broken_page(index, name):
                validator = _validator(path.stat())
                target, url = self._page_path(index, name), path.as_uri()
                page = stored.read(target, url)
                if page is None or page.etag != validator:
                    releases = pages.releases(path.read_bytes(), kind, url, name)
                    page = stored.write(target, Page(url, index, validator, "", True, url), releases)
                return page
        return stored.NOTHING

    def _check_root(self, index: str) -> None:
        """Check that the directory of an index exists: without its mount, it would have no projects."""
        root = self._local(index)
        if root is None or root.is_dir():
            return
        msg = f"The package index {index} is a directory that does not exist, or cannot be read."
        hint = "Mount or create the directory, or remove the index from the command or from pip's settings."
        raise EnvironmentLacksError(msg, hint=hint)

    def _cached_page(self, url: str, index: str, name: str) -> Page:
        """Return a page from the cache if it is usable, else from its server; one with links if no `name`."""
        path = self._page_path(index, name)
        page = stored.read(path, url)
        if page is not None and self._may_use(page.age):
            if page.age >= self._fresh_for:
                self._warn(name or "links", page.age)
            return page
        if self._offline:
            raise _not_cached(f"project {name}" if name else "page", index)
        page = self._requested_page(url, index, name, page)
        self._count_reply()
        return page

    def _requested_page(self, url: str, index: str, name: str, page: Page | None) -> Page:
        """Request a page from its server, conditionally if the cache has an old copy."""
        path = self._page_path(index, name)
        reply, content = self._get(url, index, name, page)
        if reply.status_code == 304 and page is not None:  # noqa: PLR2004  unchanged
            with suppress(OSError):  # the cache may be read-only
                os.utime(path)
            return page
        validators = reply.headers.get("ETag", ""), reply.headers.get("Last-Modified", "")
        location, kind = without_password(reply.url), reply.headers.get("Content-Type", "")
        page = Page(url, index, *validators, reply.ok, location)
        if not reply.ok:
            return stored.write(path, page, ())
        with self._parsing, _broken_page(index, name):
            releases = pages.releases(content, kind, location, name)
        return stored.write(path, page, releases)

    def _get(self, url: str, index: str, name: str, known: Page | None) -> tuple[requests.Response, bytes]:
        """Return a reply: a page, or the status of a missing page, or of one that is as it was known."""
        page = f"the page of {name} from the index {index}" if name else f"the page {index}"
        hint = "Check the network and the URL."
        headers = {"Accept": pages.ACCEPT, **stored.conditions(known)}
        if known is not None:
            hint += " The cache has an older copy of this page: --offline uses it."
        try:
            with self._limited(name):
                reply, content = self.transport.page(url, headers)
        except RequestError as error:
            raise EnvironmentLacksError(f"Cannot fetch {page}: {error}.", hint=hint) from None
        code = reply.status_code
        hidden = code == 403 and urlsplit(url).hostname == PYTORCH_HOST  # noqa: PLR2004
        if reply.ok or code in MISSING_CODES or hidden:
            return reply, content
        if code in {401, 403}:
            hint = "Put user and password into ~/.netrc, keyring or the URL, or do not use this index."
        msg = f"Cannot fetch {page}: the server replied {code} {reply.reason or ''}".rstrip()
        raise EnvironmentLacksError(f"{msg}.", hint=hint)

    @contextmanager
    def _limited(self, project: str) -> Iterator[None]:
        """Count the time and the bytes of a request, and reject further requests of a project without end."""
        from builders.network.transport import received

        spent = self._spent.setdefault(project, [0.0, 0])
        if project and (spent[0] > _LONGEST_PROJECT or spent[1] > _LARGEST_PROJECT):
            msg = (
                f"No more of {project} is read from the package indexes: its pages and metadata took "
                f"{spent[0]:.0f} s and {spent[1] / 1e6:.0f} MB."
            )
            hint = (
                f"The limits are {_LONGEST_PROJECT:.0f} s and {_LARGEST_PROJECT / 1e6:.0f} MB. Request one "
                "version (NAME==VERSION), or check the index."
            )
            raise SourceError(msg, hint=hint)
        started, before = time.monotonic(), received()
        try:
            yield
        finally:
            spent[0] += time.monotonic() - started
            spent[1] += received() - before

    def _load_metadata(self, file: File, listed: str) -> Metadata | None:
        local = self._local(file.url)
        if local is not None and local.is_dir():
            from builders.source_facts.reading import tree_metadata

            return tree_metadata(local, str(local))

        def paths() -> Iterator[str]:
            if local is None and file.metadata_sha256:
                # A metadata file with a stated hash (PEP 714) is the same on every index.
                yield f"{self._cache}/metadata/{_digest(file.name, file.metadata_sha256)}.msgpack"
            identity = self._identity(file, local)
            yield f"{self._cache}/metadata/{_digest(identity, listed) if listed else identity}.msgpack"

        read = (_cached_metadata(path, file) for path in paths())
        cached = next((one for one in read if one is not None), None)
        if isinstance(cached, Metadata):
            return cached
        if local is None and self._offline:
            _raise_cached(cached, file)
            return None
        from builders.index_client import metadata as reader

        first, *others = map(Path, paths())
        path = others[0] if others else first
        try:
            metadata = self._read(partial(reader.read, listed=listed), file, local)
        except SourceError as error:
            if error.__cause__:  # else a limit is reached
                failure = (error.message, error.hint, str(error.__cause__))
                stored.replace(path, _metadata_encoder.encode(failure))
            raise
        if metadata is not None and metadata.source == reader.METADATA_FILE:
            path = first
        stored.replace(path, _metadata_encoder.encode(() if metadata is None else metadata))
        return metadata

    def _read(self, read: Callable[[File, Path | None, Transport], T], file: File, local: Path | None) -> T:
        if local is not None:
            return read(file, local, self.transport)
        with self._limited(pages.projects_in(file.name)[0] if file.index else ""):
            result = read(file, None, self.transport)
        self._count_reply()
        return result

    @property
    def transport(self) -> Transport:
        """The connections to the servers, with their credentials."""

        def connect() -> Transport:
            from builders.network.transport import Transport

            return Transport(self._login_urls, self._mirrors)

        return self._transports.get("", connect)

    def _local(self, url: str) -> Path | None:
        return local_path(mirrored(url, self._mirrors))

    def _identity(self, file: File, local: Path | None) -> str:
        """Return the name of the cached data of a file.

        An index may state any hash, and most files are read only in part. So what was read counts only for
        the index that offered the file.
        """
        if local is not None:
            return _digest(file.name, file.url, _changed(local))
        return _digest(file.name, mirrored(file.index or file.url, self._mirrors), file.sha256 or file.url)

    def _page_path(self, index: str, name: str) -> str:
        if index not in self._directories:
            host = urlsplit(index).hostname or "local"
            key = hashlib.sha256(mirrored(index, self._mirrors).encode()).hexdigest()
            self._directories[index] = f"{self._cache}/pages/{host}-{key[:16]}"
        return f"{self._directories[index]}/{name or 'links'}.jsonl"

    def _is_usable(self, path: str) -> bool:
        age = stored.age(path)
        return age is not None and self._may_use(age)

    def _may_use(self, age: float) -> bool:
        return self._offline or age < self._fresh_for

    def _count_reply(self) -> None:
        self._reporter.progress(done=next(self._replies), unit="replies")

    def _warn(self, name: str, age: float) -> None:
        if self._warned.is_set():
            return
        self._warned.set()
        day = datetime.fromtimestamp(time.time() - age, UTC).strftime("%Y-%m-%d %H:%M UTC")
        self._reporter.warning(
            f"--offline uses cached pages of package indexes. The page of {name} is from {day}. "
            "Newer releases are not considered."
        )


def _cached_metadata(path: str, file: File) -> Metadata | tuple[str, ...] | None:
    try:
        with open(path, "rb", buffering=0) as content:  # noqa: PTH123  a `Path` takes longer than reading
            cached = _metadata_decoder.decode(content.read())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    if isinstance(cached, Metadata) and version_in(file.name, cached.name) is None:
        return None
    return cached


def _raise_cached(cached: tuple[str, ...] | None, file: File) -> None:
    """Repeat the failure of an earlier request; only --offline does so, since the server may be repaired."""
    if cached is None:
        raise _not_cached(f"metadata of {file.name}", file.index)
    if cached:
        message, hint, cause = cached
        raise SourceError(message, hint=hint) from ValueError(cause)


def _not_cached(what: str, index: str) -> EnvironmentLacksError:
    msg = f"The {what} on {index} is not in the cache, and --offline is set."
    return EnvironmentLacksError(msg, hint=OFFLINE_HINT)


class _Threads:
    """Threads that do not keep the process alive; there are only as many as there is unfinished work."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[Callable[[], object]] = deque()
        self._threads = 0
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], object]) -> None:
        with self._lock:
            self._waiting.append(work)
            if self._threads >= self._most:
                return
            self._threads += 1
        threading.Thread(target=self._work, name="package indexes", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                work = self._waiting.popleft()
            with suppress(Exception):  # raised again where the result is needed
                work()
            del work  # which keeps the client alive


class _Once(Generic[T]):
    """Values that are computed only once, even if several threads request them; errors are kept, too."""

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}
        self._answers: dict[str, T | MatrixError] = {}

    def get(self, key: str, compute: Callable[[], T]) -> T:
        if key not in self._answers:
            with self._locks.setdefault(key, threading.Lock()):
                if key not in self._answers:
                    try:
                        self._answers[key] = compute()
                    except MatrixError as error:
                        self._answers[key] = error
        answer = self._answers[key]
        if isinstance(answer, MatrixError):
            raise answer
        return answer


def _merge(parts: Sequence[list[Release]]) -> list[Release]:
    """Return the releases of all parts, newest first; each part is in that order already."""
    if len(parts) == 1:
        return parts[0]
    merged: dict[tuple[Any, ...], Release] = {}
    for part in parts:
        for release in part:
            known = merged.setdefault(sort_key(release.version), release)
            if known is not release:
                known.others = (*known.others, release)
    return [release for _, release in sorted(merged.items(), reverse=True)]


def _candidates(files: Sequence[File]) -> list[File]:
    """Return the files to read metadata from: one of each kind, cheapest first."""
    wheels = [file for file in files if file.name.endswith(".whl")]
    sdists = [file for file in files if not file.name.endswith(".whl")]
    offered = [file for file in files if file.has_metadata]
    return list(dict.fromkeys([*offered[:1], *wheels[:1], *sdists[:1]]))


def _files_at(place: Path, url: str) -> list[File]:
    """Return the files of a directory, or those that an HTML file links to, wheels first."""
    try:
        if place.is_dir():
            found = (
                File(path.name, path.as_uri(), size=path.stat().st_size, index=url)
                for path in place.iterdir()
                if path.is_file()
            )
            return sorted(found, key=pages.wheels_first)
        with _broken_page(url, ""):
            ((_, rows),) = pages.releases(place.read_bytes(), _HTML, place.as_uri(), "")
            return pages.files(rows, place.as_uri(), url)
    except FileNotFoundError:
        return []
    except OSError as error:
        msg = f"{place}, which is configured as a find-links location, cannot be read: {error.strerror}."
        raise EnvironmentLacksError(
            msg, hint="Change its permissions, or pip's find-links setting."
        ) from None


@contextmanager
def _broken_page(index: str, name: str) -> Iterator[None]:
    """Raise `SourceError` if a page cannot be parsed, and `EnvironmentLacksError` for a failing disk.

    That a file does not exist is not an error of the page.
    """
    page = f"The page of {name} on {index}" if name else f"The page {index}"
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (ValueError, RecursionError, PermissionError, IsADirectoryError) as error:
        hint = "Check that this is the URL of a package index (PEP 503); it often ends with /simple."
        raise SourceError(f"{page} cannot be used: {error}.", hint=hint) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise FileNotFoundError from None
        msg = f"{page} cannot be read: {error.strerror}."
        raise EnvironmentLacksError(msg, hint="Check the file system of the index.") from None


def _source(file: File) -> str:
    """Return the key of what is read of a file: another index may offer its URL with another hash."""
    return f"{file.index} {file.url}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _changed(path: Path) -> str:
    """Return a text that changes when a file does; empty if the file cannot be read."""
    try:
        return _validator(path.stat())
    except (OSError, ValueError):
        return ""


def _validator(status: os.stat_result) -> str:
    return f"{status.st_size} {status.st_mtime_ns}"


def _shown(urls: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(without_password(url).rstrip("/") for url in urls))
