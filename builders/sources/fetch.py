"""Fetch everything that the builds of a lock need into the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from builders.sources.source import obtain, patches_of
from builders.urls import without_password
from resolver.errors import MatrixError
from resolver.reporter import SILENT, Reporter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from resolver.facts.catalog import Catalog
    from resolver.model import Distribution, Resolution


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
    """The items in the cache, and those that are missing."""

    sources: list[FetchedItem] = []
    missing: list[MissingItem] = []
    warnings: list[str] = []

    @property
    def bytes_fetched(self) -> int:
        """Size of everything that was not in the cache before."""
        return sum(item.bytes for item in self.sources if item.state == "fetched")


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
    """Fetch all sources that a lock builds, and the wheels that their builds need.

    A source that cannot be fetched does not stop the others.

    Parameters
    ----------
    catalog
        Has the patches.
    names
        Fetch only these; all when empty.
    mirrors
        Maps URL prefixes to their replacement.
    offline
        Only check whether everything is in the cache.
    fetch_wheels
        Called with the lock and the distributions to build, after the sources. Fetches torch and the
        build requirements, and yields an item for each.

    Raises
    ------
    UsageError
        The lock does not build one of the names.
    """
    picks = lock.built(names)
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
        if isinstance(item, MissingItem):
            result.missing.append(item)
        else:
            result.sources.append(item)
    return result
