"""What could be asked for instead: every single change of a request, the cheapest first."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from resolver.model import PLATFORM, Requirement

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from datetime import date

    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Backend, Window
    from resolver.model import Request, Support

_MOST_DAYS = 3
"""How many days on which a site's base images changed are tried on each side of the day asked for."""

_MOST_GFX = 4
"""How many other offload targets are tried."""


class Change(msgspec.Struct, frozen=True):
    """Something that could be asked for instead."""

    text: str
    apply: Callable[[Request], Request]
    name: str = ""
    """The component whose requirement it changes; empty when it changes the target."""
    frees_a_pin: bool = False
    kind: Literal["", "day", "trust"] = ""
    """Of several of one kind that resolve only the nearest is worth naming."""
    last: bool = False
    """Too far from what was asked to be offered while anything nearer resolves."""


def changes_of(
    catalog: Catalog, request: Request, *, sited: bool, blamed: Collection[str] = ()
) -> list[Change]:
    """Give every single change there is, the cheapest first.

    Parameters
    ----------
    catalog, request
        What was asked, and of which facts.
    sited
        Whether what the site has is part of the conflict: then other days may help.
    blamed
        The components of which the request asks what clashes. Other offload targets are worth a
        trial only if those that were asked for are among them.
    """
    asked, target = request.requirements, request.target
    changes = [_free(one) for one in asked if one.specifier is not None]
    if target.base_image:
        changes.append(Change("any base image of the site", partial(_retarget, base_image="")))
    if target.driver and catalog.windows_of(target.site):
        changes.append(Change(f"the driver that {target.site} has", partial(_retarget, driver="")))
    if sited:
        changes += _other_days(catalog, request)
    if request.preinstalled:
        text = "without keeping what is installed"
        changes.append(Change(text, lambda one: replace(one, preinstalled=None)))
    changes += _trust(request)
    changes += _own_target(catalog, request)
    if len(target.gfx) > 1:
        changes += [Change(f"without {gfx}", partial(_without_target, gfx=gfx)) for gfx in target.gfx]
    changes += [_leave_out(one) for one in asked if one.name not in PLATFORM and len(asked) > 1]
    changes += _other_sites(catalog, request)
    if "gfx" in blamed:
        changes += _other_gfx(catalog, request, blamed)
    return changes


def _trust(request: Request) -> Iterator[Change]:
    """Trust more, a step at a time."""
    if request.support == "documented":
        apply = partial(_trusting, support="observed")
        yield Change("trust also what was observed", apply, kind="trust")
    if request.support != "any":
        yield Change("trust also what is inferred", partial(_trusting, support="any"), kind="trust")


def _own_target(catalog: Catalog, request: Request) -> Iterator[Change]:
    """Give the site's own backend and offload targets, if others were asked for."""
    target = request.target
    site = catalog.site.get(target.site)
    if site is None or site.name == "local":  # what the machine itself has is known only when it is asked
        return
    own = site.gfx if site.backend == "rocm" else ()
    if (site.backend, own) != (target.backend, target.gfx):
        what = ", ".join(own) or "the CPU"
        yield Change(
            f"for {what}, which {site.name} has", partial(_for_target, backend=site.backend, gfx=own)
        )


def _other_sites(catalog: Catalog, request: Request) -> Iterator[Change]:
    """Give the other sites; those with the same hardware first, this machine last."""
    target = request.target
    others = [site for site in catalog.site.values() if site.name != target.site]
    same = (target.backend, target.gfx)
    others.sort(key=lambda site: ((site.backend, site.gfx) != same, site.name == "local"))
    for site in others:
        apply = partial(_elsewhere, to=site.name, catalog=catalog)
        yield Change(f"for {site.name}, {site.title}", apply, last=True)


def _other_gfx(catalog: Catalog, request: Request, blamed: Collection[str]) -> Iterator[Change]:
    """Give the offload targets that facts name for what clashes, the one that most of them name first."""
    target = request.target
    named = Counter(
        gfx
        for row in catalog.requires
        if row.on == "gfx" and row.package in blamed
        for gfx in row.versions
        if gfx in catalog.gfx and gfx not in target.gfx
    )
    for gfx, _ in named.most_common(_MOST_GFX):
        apply = partial(_for_target, backend="rocm", gfx=(gfx,))
        yield Change(f"for {gfx} instead of {', '.join(target.gfx)}", apply, last=True)


def _other_days(catalog: Catalog, request: Request) -> Iterator[Change]:
    """Give days on which the site had another driver or other base images, the nearest first."""
    target = request.target
    for window in catalog.windows_of(target.site) if not target.driver else []:
        if not window.since <= target.date < (window.until or target.date + timedelta(days=1)):
            day = _last_day(catalog, window)
            text = f"{target.site} as it was on {day} (driver {window.driver})"
            yield Change(text, partial(_retarget, day=day), kind="day")
    rows = [row for row in catalog.site_image.values() if row.site == target.site]
    later = sorted({row.since for row in rows if row.since and row.since > target.date})
    ended = {row.until - timedelta(days=1) for row in rows if row.until and row.until <= target.date}
    for day in [*later[:_MOST_DAYS], *sorted(ended, reverse=True)[:_MOST_DAYS]]:
        yield Change(f"{target.site} with its base images of {day}", partial(_retarget, day=day), kind="day")


def _free(wanted: Requirement) -> Change:
    freed = Requirement(wanted.name, None, wanted.name, wanted.variant)

    def apply(request: Request) -> Request:
        kept = (freed if one == wanted else one for one in request.requirements)
        return replace(request, requirements=tuple(kept))

    return Change(
        f"any version of {wanted.name} instead of {wanted.text}", apply, wanted.name, frees_a_pin=True
    )


def _leave_out(wanted: Requirement) -> Change:
    def apply(request: Request) -> Request:
        kept = (one for one in request.requirements if one.name != wanted.name)
        return replace(request, requirements=tuple(kept))

    return Change(f"without {wanted.text}", apply, wanted.name)


def _retarget(
    request: Request, *, day: date | None = None, base_image: str | None = None, driver: str | None = None
) -> Request:
    """Change a part of the target; an empty text takes the part out."""
    target = request.target
    changed = replace(
        target,
        date=day or target.date,
        base_image=target.base_image if base_image is None else base_image or None,
        driver=target.driver if driver is None else driver or None,
    )
    return replace(request, target=changed)


def _trusting(request: Request, *, support: Support) -> Request:
    return replace(request, support=support)


def _for_target(request: Request, *, backend: Backend, gfx: tuple[str, ...]) -> Request:
    return replace(request, target=replace(request.target, backend=backend, gfx=gfx))


def _without_target(request: Request, *, gfx: str) -> Request:
    kept = tuple(one for one in request.target.gfx if one != gfx)
    return replace(request, target=replace(request.target, gfx=kept))


def _elsewhere(request: Request, *, to: str, catalog: Catalog) -> Request:
    """Ask for another site, as it is on that day; what was said of the machine does not hold there."""
    row = catalog.site[to]
    target = replace(
        request.target,
        backend=row.backend,
        gfx=row.gfx if row.backend == "rocm" else (),
        site=to,
        driver=None,
        base_image=None,
        python=None,
        glibc=None,
    )
    return replace(request, target=target, site_file="")


def _last_day(catalog: Catalog, window: Window) -> date:
    """Give the day in a driver window on which most of what is known of the site holds."""
    if window.until:
        return window.until - timedelta(days=1)
    images = [row.since for row in catalog.site_image.values() if row.site == window.site and row.since]
    return max([window.since, *images])
