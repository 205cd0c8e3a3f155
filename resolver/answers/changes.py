"""Single changes to a request that could make it resolve, smallest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from resolver.compiling.problem_builder import advice_for, is_advised
from resolver.facts.catalog import within
from resolver.model import IMAGE, Preinstalled, Request, Requirement
from resolver.versions import join_words, sort_key

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Site, Window

_MOST_DAYS = 3
"""Suggest at most this many earlier days, and as many later ones, on which the site's base images
changed."""


_MOST_IMAGES = 3
"""Try at most this many public base images."""
_MOST_DRIVERS = 3
"""Try at most this many driver lines newer than the requested line."""


class RequestChange(msgspec.Struct, frozen=True):
    """A change to a request."""

    text: str
    apply: Callable[[Request], Request]
    name: str = ""
    """The component whose requirement changes; empty if the target changes."""
    frees_a_pin: bool = False
    kind: Literal["", "day", "driver", "image", "trust"] = ""
    """Of several changes of the same kind, only the nearest that makes the request resolve is suggested."""
    last: bool = False
    """Whether the change is suggested only if no other change makes the request resolve."""


def changes_of(
    catalog: Catalog, request: Request, *, sited: bool, stated: tuple[Requirement, ...] = ()
) -> list[RequestChange]:
    """Return all single changes to a request, smallest first.

    With `sited`, facts about the site are part of the conflict, so that other days may help. `stated` are the
    requirements before the names of builds for ROCm replaced others in them, which are those for CPUs.
    """
    requirements, target = request.requirements, request.target
    changes = [_free(one) for one in requirements if one.specifier is not None and not one.reason]
    if target.base_image:
        changes.append(RequestChange("any base image of the site", partial(_retarget, base_image=None)))
    elif target.backend == "rocm":
        changes += _public_images(catalog, request)
        changes += _images_with(catalog, request)
    if target.driver and catalog.windows_of(target.site):
        changes.append(RequestChange(f"the driver of {target.site}", partial(_retarget, driver=None)))
    if target.driver:
        changes += _newer_drivers(catalog, target.driver)
    if sited:
        changes += _other_days(catalog, request)
    if request.preinstalled:
        text = "without keeping the installed distributions"
        changes.append(RequestChange(text, partial(replace, preinstalled=None)))
    changes += _more_trust(request)
    changes += _target_of_site(catalog, request)
    if len(target.gfx) > 1:
        changes += [RequestChange(f"without {gfx}", partial(_without_gfx, gfx=gfx)) for gfx in target.gfx]
    if target.backend != "cpu":
        changes += _on_cpu(request, stated or requirements)
        changes += _other_sites(catalog, request, stated or requirements)
    return changes


def _public_images(catalog: Catalog, request: Request) -> Iterator[RequestChange]:
    """Yield changes to public base images if the site offers none: those with the ROCm of the site first."""
    target = request.target
    site = catalog.site.get(target.site)
    offered = (row for row in catalog.site_image.values() if row.site == target.site)
    if (site and site.public_images) or any(within(row, target.date) for row in offered):
        return
    advice = advice_for(catalog, request).get("rocm")
    public = [row for row in catalog.image.values() if "://" in row.path and row.rocm and not row.holds]
    public.sort(key=lambda row: (sort_key(row.rocm), row.name), reverse=True)
    if advice:
        public.sort(key=lambda row: not is_advised(advice, row.rocm))
    for row in public[:_MOST_IMAGES]:
        text = f"with the public base image {row.name}, if you may use it at {target.site}"
        yield RequestChange(text, partial(_retarget, base_image=row.name), kind="image")


def _images_with(catalog: Catalog, request: Request) -> Iterator[RequestChange]:
    """Yield changes to base images that have a requested distribution, and no torch.

    The site's own come first, then those with the ROCm that it advises, then the newest versions.
    """
    if request.preinstalled:
        return
    target, advice = request.target, advice_for(catalog, request).get("rocm")
    offered = {
        row.image
        for row in catalog.site_image.values()
        if row.site == target.site and within(row, target.date)
    }
    held = []
    for row in catalog.image.values():
        has = {one.name: row.holds[one.name] for one in request.requirements if one.name in row.holds}
        if has and "torch" not in row.holds and (row.name in offered or "://" in row.path):
            versions = [sort_key(version) for version in has.values()]
            advised = advice is not None and is_advised(advice, row.rocm)
            held.append((row.name in offered, advised, versions, sort_key(row.rocm), row.name, has))
    for is_offered, _, _, _, name, has in sorted(held, reverse=True)[:_MOST_IMAGES]:
        listed = join_words([f"{one} {version}" for one, version in has.items()], joiner="and")
        where = "" if is_offered else f", if you may use it at {target.site}"
        text = f"with the {listed} in the base image {name}{where}"
        yield RequestChange(text, partial(_in_image, image=name), kind="image")


def _newer_drivers(catalog: Catalog, driver: str) -> Iterator[RequestChange]:
    lines = sorted(catalog.driver, key=sort_key)
    for line in lines[lines.index(driver) + 1 :][:_MOST_DRIVERS]:
        yield RequestChange(f"kernel driver {line}", partial(_retarget, driver=line), kind="driver")


def _more_trust(request: Request) -> Iterator[RequestChange]:
    if request.support == "documented":
        yield RequestChange("also accept observed facts", partial(replace, support="observed"), kind="trust")
    if request.support != "any":
        yield RequestChange("also accept inferred facts", partial(replace, support="any"), kind="trust")


def _target_of_site(catalog: Catalog, request: Request) -> Iterator[RequestChange]:
    """Yield a change to the site's own backend and GPU architectures, if the request names others."""
    target = request.target
    site = catalog.site.get(target.site)
    if site is None or site.name == "local":  # the hardware of the local machine is not in the catalog
        return
    own = site.gfx if site.backend == "rocm" else ()
    if (site.backend, own) != (target.backend, target.gfx):
        text = f"for {', '.join(own)}, which {site.name} has" if own else f"for the CPUs of {site.name}"
        yield RequestChange(text, partial(_retarget, backend=site.backend, gfx=own))


def _on_cpu(request: Request, stated: tuple[Requirement, ...]) -> Iterator[RequestChange]:
    """Yield a change to the CPU of the same site; not with torch, which has other releases for CPUs."""
    if all(requirement.name != "torch" for requirement in stated):
        text = f"on the CPU only, without the GPUs of {request.target.site}"
        yield RequestChange(text, partial(_for_cpu, stated=stated))


def _other_sites(
    catalog: Catalog, request: Request, stated: tuple[Requirement, ...]
) -> Iterator[RequestChange]:
    """Yield a change to each other site: sites with the same hardware first, the local machine last."""
    target = request.target
    others = [site for site in catalog.site.values() if site.name != target.site]
    same = (target.backend, target.gfx)
    others.sort(key=lambda site: ((site.backend, site.gfx) != same, site.name == "local"))
    for site in others:
        moved = partial(_at_site, site=site, stated=stated)
        yield RequestChange(f"for {site.name}, {site.title}", moved, last=True)


def _other_days(catalog: Catalog, request: Request) -> Iterator[RequestChange]:
    """Yield changes to days on which the site had another driver or other base images."""
    target = request.target
    for window in catalog.windows_of(target.site) if not target.driver else []:
        if not window.since <= target.date < (window.until or target.date + timedelta(days=1)):
            day = _last_day(catalog, window)
            text = f"{target.site} on {day} (driver {window.driver})"
            yield RequestChange(text, partial(_retarget, date=day), kind="day")
    rows = [row for row in catalog.site_image.values() if row.site == target.site]
    later = sorted({row.since for row in rows if row.since and row.since > target.date})
    ended = {row.until - timedelta(days=1) for row in rows if row.until and row.until <= target.date}
    for day in [*later[:_MOST_DAYS], *sorted(ended, reverse=True)[:_MOST_DAYS]]:
        yield RequestChange(
            f"{target.site} with its base images of {day}", partial(_retarget, date=day), kind="day"
        )


def _last_day(catalog: Catalog, window: Window) -> date:
    """Return the day in a driver window on which most facts about the site apply."""
    if window.until:
        return window.until - timedelta(days=1)
    images = [row.since for row in catalog.site_image.values() if row.site == window.site and row.since]
    return max([window.since, *images])


def _free(requirement: Requirement) -> RequestChange:
    extras = f"[{','.join(requirement.extras)}]" if requirement.extras else ""
    freed = Requirement(requirement.name, None, f"{requirement.name}{extras}", requirement.extras)

    def apply(request: Request) -> Request:
        others = (freed if other == requirement else other for other in request.requirements)
        return replace(request, requirements=tuple(others))

    text = f"any version of {requirement.name} instead of {requirement.text}"
    return RequestChange(text, apply, requirement.name, frees_a_pin=True)


def _retarget(request: Request, **changes: object) -> Request:
    """Return a request with a changed target; a changed date is like a date that the user named."""
    dated = request.dated or "date" in changes
    return replace(request, target=replace(request.target, **changes), dated=dated)


def _without_gfx(request: Request, *, gfx: str) -> Request:
    return _retarget(request, gfx=tuple(other for other in request.target.gfx if other != gfx))


def _for_cpu(request: Request, *, stated: tuple[Requirement, ...]) -> Request:
    moved = _retarget(request, backend="cpu", gfx=(), driver=None, base_image=None)
    return replace(moved, requirements=stated)


def _in_image(request: Request, *, image: str) -> Request:
    return replace(_retarget(request, base_image=image), preinstalled=Preinstalled(IMAGE))


def _at_site(request: Request, *, site: Site, stated: tuple[Requirement, ...]) -> Request:
    """Return a request for another site on the same day, without the properties of the original machine."""
    if site.backend == "cpu":
        request = replace(request, requirements=stated)
    moved = _retarget(
        request,
        backend=site.backend,
        gfx=site.gfx if site.backend == "rocm" else (),
        site=site.name,
        driver=None,
        base_image=None,
        python=None,
        glibc=None,
    )
    return replace(moved, site_file="")
