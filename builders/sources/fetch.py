"""All that a lock needs to be built, brought into the cache: after it no network is needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from builders.sources.obtain import obtain
from builders.sources.patches import patches_of
from resolver.errors import MatrixError
from resolver.reporter import SILENT, Reporter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from resolver.facts.catalog import Catalog
    from resolver.model import Distribution, Resolution


@dataclass(frozen=True, slots=True)
class Item:
    """One file that a build needs."""

    name: str
    version: str
    kind: Literal["sdist", "git", "wheel"]
    origin: str
    """File name, or URL and commit."""
    state: Literal["cached", "fetched"]
    size: int
    """Bytes in the cache."""
    path: Path
    identity: str


@dataclass(frozen=True, slots=True)
class Missing:
    """What could not be had."""

    name: str
    version: str
    origin: str
    error: MatrixError


@dataclass(slots=True)
class Haul:
    """What is in the cache now, and what is not."""

    items: list[Item] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def fetch_all(
    lock: Resolution,
    catalog: Catalog,
    names: Sequence[str] = (),
    *,
    mirrors: Mapping[str, str],
    offline: bool = False,
    wheels: Callable[[Resolution, Sequence[Distribution]], Iterable[Item | Missing]] | None = None,
    reporter: Reporter = SILENT,
) -> Haul:
    """Bring all sources that a lock builds into the cache, and what else their builds need.

    One that cannot be had does not keep the others from being fetched.

    Parameters
    ----------
    lock
        What is to be built.
    catalog
        Where the patches are.
    names
        Only these; all when empty.
    mirrors
        URL prefix to what is asked instead.
    offline
        Only look whether the cache has everything.
    wheels
        Called with the lock and the chosen picks after the sources: fetches torch and the build
        requirements, and gives one item for each.
    reporter
        Told what is being fetched.

    Raises
    ------
    UsageError
        A name that the lock does not build.
    """
    picks = lock.built(names)
    haul = Haul()
    for pick in picks:
        origin = pick.sdist.file if pick.sdist else f"{pick.git.url}@{pick.git.commit}" if pick.git else ""
        reporter.step(f"{pick.name} {pick.version}: {origin}")
        try:
            source = obtain(pick, offline=offline, mirrors=mirrors, patches=patches_of(pick, catalog))
        except MatrixError as error:
            haul.missing.append(Missing(pick.name, pick.version, origin, error))
            continue
        haul.remarks += source.remarks
        haul.items.append(
            Item(
                source.name,
                source.version,
                "git" if source.kind == "git" else "sdist",
                source.origin,
                "fetched" if source.fetched else "cached",
                source.archive.stat().st_size,
                source.archive,
                source.identity,
            )
        )
    for found in wheels(lock, picks) if wheels else ():
        if isinstance(found, Missing):
            haul.missing.append(found)
        else:
            haul.items.append(found)
    return haul
