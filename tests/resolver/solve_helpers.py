"""Build requests from one line of text."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from msgspec.structs import replace

from resolver.facts.catalog import Catalog
from resolver.facts.schema import Backend
from resolver.model import Prefer, Request, Requirement, Target
from resolver.requirements import parse_requirement


def ask(
    catalog: Catalog,
    requirements: str,
    *,
    site: str = "lumi-g",
    day: str = "2026-03-01",
    backend: Backend | None = None,
    gfx: Iterable[str] | None = None,
    driver: str | None = None,
    base_image: str | None = None,
    python: str | None = None,
    glibc: str | None = None,
    prefer: Prefer = "advised",
) -> Request:
    """Return a request for requirements that are separated by spaces."""
    row = catalog.site[site]
    backend = backend or row.backend
    if gfx is None:
        gfx = row.gfx if backend == "rocm" else ()
    target = Target(
        backend=backend,
        gfx=tuple(gfx),
        site=site,
        date=date.fromisoformat(day),
        driver=driver,
        base_image=base_image,
        python=python,
        glibc=glibc,
    )
    return Request(target, tuple(map(requirement, requirements.split())), prefer=prefer)


def without_dates(catalog: Catalog) -> Catalog:
    """Return a catalog whose releases exist on every day."""
    return replace(
        catalog,
        torch={key: replace(row, released=None) for key, row in catalog.torch.items()},
        release={key: replace(row, released=None) for key, row in catalog.release.items()},
        rocm={key: replace(row, released=None) for key, row in catalog.rocm.items()},
        python={key: replace(row, released=None) for key, row in catalog.python.items()},
    )


def requirement(text: str) -> Requirement:
    """Parse one requirement."""
    return parse_requirement(text)
