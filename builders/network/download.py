"""Download files into the cache: each once, checked by hash, continued where an earlier attempt stopped.

A download is written to ``downloads/`` in the cache and gets its final name when it is complete and its
hash matches. So a file with its final name is complete, and needs no lock to be read.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from threading import Event, Lock
from typing import IO, TYPE_CHECKING

from builders.constants import MISSING_CODES
from builders.network.source_tree import pack_directory, source_tree
from builders.network.urls import (
    NETWORK_HINT,
    RequestError,
    TooLargeReplyError,
    is_tree,
    local_path,
    mirrored,
    package_sources,
    without_password,
)
from builders.storage.files import (
    cache_root,
    create_file,
    flush,
    make_directories,
    make_read_only,
    sdist_path,
    sha256_of,
)
from builders.storage.io_errors import explain_cache_errors
from builders.storage.lease import TemporaryDirectory, exclusive_lock
from resolver.errors import EnvironmentLacksError, MatrixError, SourceError
from resolver.facts.schema import Sdist
from resolver.reporter import SILENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builders.network.transport import Transport
    from resolver.reporter import Reporter

MIRROR_HINT = "The file may have been removed. Another mirror may still have it."
_ATTEMPTS = 4
_CHUNK = 2**18
_PARTIAL_CONTENT = 206


class Downloads:
    """The state that the downloads of a command share: connections, logins, mirrors, and hosts that are down.

    `mirrors` maps URL prefixes to their replacement; `reporter` receives how many bytes were downloaded.
    """

    def __init__(self, mirrors: Mapping[str, str], reporter: Reporter = SILENT) -> None:
        self.mirrors = mirrors
        self.expected = 0
        """Bytes of all downloads; 0 if unknown."""
        self._received = 0
        self._reporter = reporter
        self._lock = Lock()
        self.stop = Event()
        """Set it to interrupt all downloads, so that threads end with the program."""

    def count(self, size: int) -> None:
        """Report bytes that were received now or in an earlier attempt."""
        with self._lock:
            self._received += size
            self._reporter.progress(done=self._received, total=self.expected, unit="bytes")

    @cached_property
    def transport(self) -> Transport:
        """The connections, with the logins of the configured indexes."""
        from builders.network.transport import Transport

        sources = package_sources()
        return Transport([*sources.indexes, *sources.find_links], self.mirrors)


def download(url: str, target: Path, sha256: str, downloads: Downloads) -> None:
    """Download a file to its final path in the cache unless it is there; a ``file`` URL is copied.

    A commit (``git+URL@COMMIT``) and a directory become the sdist whose hash is pinned.

    Without a hash, a partial download is not continued. Raise `MatrixError` if the file has another hash, and
    keep nothing of it; `SourceError` if it does not exist; `EnvironmentLacksError` if the network is missing,
    or the cache is not writable.
    """
    with explain_cache_errors(), _part_of(target) as part:
        if part is None:
            return
        path = Path(part.name)
        resumed = bool(sha256) and path.stat().st_size > 0
        if resumed:
            downloads.count(path.stat().st_size)
        else:
            part.truncate(0)
        _fetch(url, part, downloads, target.name)
        if resumed and sha256_of(path) != sha256:  # the server may have replaced the file in between
            part.truncate(0)
            _fetch(url, part, downloads, target.name)
        if sha256:
            check_hash(path, sha256, name=target.name, origin=mirrored(url, downloads.mirrors))
        make_directories(target.parent)
        flush(path)  # after a power failure, a file with its final name must have its content
        make_read_only(path)
        path.replace(target)


def keep_sdist(archive: Path) -> Sdist:
    """Store an sdist in the cache, from which builds read it, and return its pin."""
    pin = Sdist(archive.name, sha256_of(archive))
    download(archive.resolve().as_uri(), sdist_path(pin), pin.sha256, Downloads({}))
    return pin


def keep_tree(top: Path, name: str, version: str) -> Sdist:
    """Store a source tree in the cache as the sdist of a release, and return its pin."""
    release = f"{name.replace('-', '_')}-{version}"
    with TemporaryDirectory() as folder:
        packed = folder.root / f"{release}.tar.gz"
        with packed.open("wb") as file:
            pack_directory(top, file, release)
        return keep_sdist(packed)


@contextmanager
def _part_of(target: Path) -> Iterator[IO[bytes] | None]:
    """Open the partial download of a file and lock it; yield None if another process completed it."""
    key = hashlib.sha256(str(target).encode()).hexdigest()[:16]
    path = cache_root() / "downloads" / f"{key}-{target.name}"[:200]  # with .lock.N, a name of 255 bytes
    with exclusive_lock(path.with_name(f"{path.name}.lock")):
        if target.exists():
            path.unlink(missing_ok=True)
            yield None
            return
        with suppress(FileExistsError):
            os.close(create_file(path))
        with path.open("ab") as part:
            try:
                yield part
            except BaseException:
                if not os.fstat(part.fileno()).st_size:
                    path.unlink(missing_ok=True)
                raise


def _fetch(url: str, part: IO[bytes], downloads: Downloads, name: str) -> None:
    """Append the missing part of a file; continue after interrupted connections."""
    if is_tree(url, downloads.mirrors):
        part.truncate(0)
        with source_tree(url, downloads.mirrors) as tree:
            pack_directory(tree, part, name.removesuffix(".tar.gz"))
        part.flush()
        return
    address = mirrored(url, downloads.mirrors)
    shown = without_password(address)
    path = local_path(address)
    if path is not None:
        part.truncate(0)
        if not path.is_file():  # a pipe would block
            problem = "is not a file" if path.exists() else "does not exist"
            msg = f"The index or a mirror points to {path}, which {problem}."
            hint = "The mirror may be incomplete. Add the file, or configure another mirror."
            raise SourceError(msg, hint=hint)
        with path.open("rb") as source:
            shutil.copyfileobj(source, part)
        part.flush()
        return
    for attempt in range(1, _ATTEMPTS + 1):
        before = part.seek(0, os.SEEK_END)
        try:
            _append(url, part, downloads)
        except RequestError as error:
            if isinstance(error, TooLargeReplyError):
                part.truncate(0)
            part.flush()
            if error.status in MISSING_CODES:
                raise SourceError(f"{shown} cannot be downloaded: {error}.", hint=MIRROR_HINT) from None
            # What a server has refused it refuses again. A connection that brought nothing is not an
            # interruption: the transport has tried that several times.
            if error.status or attempt == _ATTEMPTS or part.seek(0, os.SEEK_END) <= before:
                msg = f"{shown} cannot be downloaded: {error}."
                raise EnvironmentLacksError(msg, hint=NETWORK_HINT) from None
        else:
            part.flush()
            return


def _append(url: str, part: IO[bytes], downloads: Downloads) -> None:
    from builders.network.transport import check_status, chunks

    start = part.seek(0, os.SEEK_END)
    # Some servers declare .tar.gz as an encoding; requests would decompress the file.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with downloads.transport.get(url, headers, stream=True) as response:
        if start and response.status_code != _PARTIAL_CONTENT:
            part.truncate(0)
            # Without a part, no range is requested, so this happens once.
            if not response.ok:  # such as 416, if the file ends where the partial download ends
                _append(url, part, downloads)
                return
        check_status(response)
        for chunk in chunks(response):
            if downloads.stop.is_set():
                raise CancelledError
            part.write(chunk)
            downloads.count(len(chunk))


def check_hash(path: Path, sha256: str, *, name: str, origin: str) -> None:
    """Remove a file of the cache that has another hash, and raise `MatrixError`.

    The hash of a file of this machine is not printed: a lock or an index of others may have named the file.
    """
    actual = sha256_of(path)
    if actual == sha256:
        return
    with suppress(OSError):  # a read-only cache
        path.unlink()
    msg = (
        f"{name} from {without_password(origin)} does not have the pinned hash, so it is not used.\n"
        f"  expected SHA-256 {sha256}"
    )
    if local_path(origin) is None:
        msg += f"\n  actual   SHA-256 {actual}"
    raise MatrixError(
        msg, hint="Find out why the file differs, then run the same command again.", id="hash-mismatch"
    )
