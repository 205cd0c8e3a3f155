"""Suggest the nearest requests that resolve: changes to the request, smallest first. Each was solved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from resolver.answers.explain import LinkGroup, blamed, explain_conflict
from resolver.compiling.problem import Demand, Link
from resolver.compiling.problem_builder import advice_for, is_advised
from resolver.facts.schema import PLATFORM
from resolver.model import IMAGE, Preinstalled, Request, Requirement, Resolution, Suggestion
from resolver.requirements import parse_requirement
from resolver.versions import join_words, sort_key

if TYPE_CHECKING:
    from resolver.answers.explain import Constraint
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Site, Window
    from resolver.solving.session import Refuted

MAX_SUGGESTIONS = 3
MOST_TRIES = 60
"""Changed requests to solve; a number and no time, so that the same request has the same suggestions."""
SECONDS = 60.0
"""No further change is tried after this time, on a slow network or for a huge request."""
_MAX_PAIRS = 30
"""Maximum number of pairs of changes to try before all pins are removed."""
_MOST_GIVEN = 2
_FILES = (".whl", ".tar.gz", ".zip")
_SET_BY_SITE = {"kernel-driver", "base-image"}
_MOST_DAYS = 3
"""Earlier days, and as many later ones, on which the base images of the site changed."""
_MOST_IMAGES = 3
_MOST_DRIVERS = 3


class RequestChange(msgspec.Struct, frozen=True):
    """A change to a request."""

    text: str
    apply: Callable[[Request], Request]
    name: str = ""
    """The component whose pin is removed; empty if the target changes."""
    kind: Literal["", "day", "driver", "image", "site"] = ""
    """Of several changes of the same kind, only the nearest that makes the request resolve is suggested;
    other sites only if no other change does."""


def changes_of(
    catalog: Catalog, request: Request, *, sited: bool, stated: tuple[Requirement, ...]
) -> list[RequestChange]:
    """Return all single changes to a request, smallest first; other days only for a conflict that is `sited`.

    `stated` are the requirements for CPUs, before names of builds for ROCm took the place of others in them.
    """
    requirements, target = request.requirements, request.target
    changes = [_free(one) for one in requirements if one.specifier is not None and not one.reason]
    changes += _same_module(catalog, requirements)
    if target.base_image:
        changes.append(RequestChange("any base image of the site", partial(_retarget, base_image=None)))
    elif target.backend == "rocm" and request.use_image == "none":
        changes.append(RequestChange("with a base image", partial(replace, use_image="of-site")))
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
    changes += _target_of_site(catalog, request)
    if len(target.gfx) > 1:
        changes += [RequestChange(f"without {gfx}", partial(_without_gfx, gfx=gfx)) for gfx in target.gfx]
    if target.backend != "cpu":
        changes += _on_cpu(request, stated or requirements)
        changes += _other_sites(catalog, request, stated or requirements)
    return changes


def _replacing(request: Request, names: Collection[str]) -> Iterator[RequestChange]:
    """Yield changes that install another version over each of these distributions that is kept."""
    kept = request.preinstalled
    if kept is None:
        return
    for name in sorted({*names} & kept.installed.keys()):
        others = {other: version for other, version in kept.installed.items() if other != name}
        replaced = replace(kept, installed=others, replaced=tuple(sorted({*kept.replaced, name})))
        text = f"with another {name} over that of the base image"
        yield RequestChange(text, partial(replace, preinstalled=replaced))


def _named(request: Request, links: Iterable[Link]) -> Iterator[RequestChange]:
    """Yield changes to what links name: an extra that brings a needed library, or an older release."""
    named = (one.object for one in links if one.object.startswith(f"{one.subject}[") or "==" in one.object)
    for text in dict.fromkeys(named):
        new = parse_requirement(text)
        stated = next((one for one in request.requirements if one.name == new.name), new)
        extras = ",".join(dict.fromkeys((*stated.extras, *new.extras)))
        wanted = f"{new.name}{extras and f'[{extras}]'}{new.specifier or stated.specifier or ''}"
        others = (one for one in request.requirements if one.name != new.name)
        what = "an older release" if new.specifier else "its extra"
        change = partial(replace, requirements=(*others, parse_requirement(wanted)))
        yield RequestChange(f"with {what}, {text}", change)


def _same_module(catalog: Catalog, requirements: Sequence[Requirement]) -> Iterator[RequestChange]:
    """Yield changes to other distributions of the catalog that install the module of a requested one."""
    for one in requirements:
        own = catalog.package.get(one.name)
        others = [row.name for row in catalog.package.values() if own and row.import_name == own.import_name]
        for name in sorted({*others} - {one.name}) if own and own.import_name else ():
            text = f"with {name}, which installs the same module, instead of {one.name}"
            yield RequestChange(text, partial(_renamed, one=one, name=name))


def _renamed(request: Request, *, one: Requirement, name: str) -> Request:
    others = (other for other in request.requirements if other != one)
    return replace(request, requirements=(*others, parse_requirement(name)))


def _public_images(catalog: Catalog, request: Request) -> Iterator[RequestChange]:
    """Yield changes to public base images if the site offers none, those with its ROCm first."""
    target = request.target
    site = catalog.site.get(target.site)
    if (site and site.public_images) or catalog.images_at(target.site, target.date):
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
    """Yield changes to base images that have a requested distribution and no torch, the site's own first."""
    if request.preinstalled:
        return
    target, advice = request.target, advice_for(catalog, request).get("rocm")
    offered = {row.image for row in catalog.images_at(target.site, target.date, base=False)}
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
        yield RequestChange(f"for {site.name}, {site.title}", moved, kind="site")


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
    return RequestChange(text, apply, requirement.name)


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


def suggest(
    catalog: Catalog,
    request: Request,
    core: Sequence[Constraint],
    solve: Callable[[Request], Resolution | Refuted | None],
    *,
    stated: tuple[Requirement, ...],
) -> tuple[tuple[Suggestion, ...], bool]:
    """Return changes with which a request resolves, smallest first, and whether the search for them stopped.

    Single changes to the conflict are tried first. If none is enough, the first of these that resolves is
    returned: two changes together, all pins removed, the conflicts relaxed one after another, another site.
    The search stops after `MOST_TRIES`. `solve` solves a request as a command would; None if that failed.
    `stated`: see `changes_of`.
    """
    demands = [item for item in core if isinstance(item, Demand)]
    groups = [item for item in core if isinstance(item, LinkGroup)]
    links = [link for group in groups for link in group.links]
    names = blamed(core)
    sited = any(demand.kind == "fact" and demand.variable.name in _SET_BY_SITE for demand in demands)
    changes = [
        *_named(request, links),
        *_replacing(request, names),
        *changes_of(catalog, request, sited=sited, stated=stated),
    ]
    backend = request.target.backend
    if any(link.object in {"", "rocm"} and link.source.endswith(_FILES) for link in links):
        # Without GPUs, files are not read, so the CPU would seem to help against what a file contains.
        changes = [change for change in changes if change.apply(request).target.backend == backend]
    here = [change for change in changes if change.kind != "site"]
    near = [change for change in here if change.name in names or not change.name]
    trials = _Trials(request, solve)
    suggestions: list[Suggestion] = []
    kinds: set[str] = set()
    for change in near:
        if len(suggestions) < MAX_SUGGESTIONS and change.kind not in kinds:
            resolving = list(trials.resolving([[change]]))
            kinds |= {change.kind} - {""} if resolving else set()
            suggestions += resolving
    far = [
        change
        for change in changes
        if change.kind == "site" and (not groups or change.apply(request).target.backend == backend)
    ]
    pins = [change for change in changes if change.name]
    stages: list[tuple[Iterable[Sequence[RequestChange]], int]] = [
        (_combinations(here, near, pins), 1),
        (trials.relax_core_by_core(changes, names), 1),
        (([change] for change in far), MAX_SUGGESTIONS),
        (([*pins, change] for change in far), 1),
    ]
    for combinations, limit in stages:
        suggestions = suggestions or list(islice(trials.resolving(combinations), limit))
    return tuple(dict.fromkeys(suggestions)), trials.is_stopped


def _combinations(
    others: Sequence[RequestChange], near: Sequence[RequestChange], pins: Sequence[RequestChange]
) -> Iterator[Sequence[RequestChange]]:
    """Yield pairs of changes, then the removal of all pins, alone and with a change of the target."""
    pairs = ([change, other] for change in near for other in others if change is not other)
    yield from islice(pairs, _MAX_PAIRS)
    yield pins
    yield from ([*pins, change] for change in others if not change.name)


class _Trials:
    """Changed requests, each solved as a command would solve it."""

    def __init__(self, request: Request, solve: Callable[[Request], Resolution | Refuted | None]) -> None:
        self._request = request
        self._solve = solve
        self._end = monotonic() + SECONDS
        self._tries = 0
        self.is_stopped = False

    def resolving(self, combinations: Iterable[Sequence[RequestChange]]) -> Iterator[Suggestion]:
        for changes in combinations:
            if self.is_stopped:
                return
            relaxed = self._changed(changes)
            if not self._is_useful(relaxed) or relaxed == self._request:
                continue
            found = self._outcome(relaxed)
            if isinstance(found, Resolution):
                text = ", and ".join(change.text for change in changes)
                picks = {pick.name: pick.key for pick in found.picks}
                given = gives(picks, [change.name for change in changes])
                yield Suggestion(text + given, relaxed)

    def relax_core_by_core(
        self, changes: Sequence[RequestChange], names: Collection[str]
    ) -> Iterator[list[RequestChange]]:
        """Relax conflicts, first that of `names`, until the rest resolves; then yield the changes needed."""
        made: list[RequestChange] = []
        found: Resolution | Refuted | None = None
        while not isinstance(found, Resolution):
            if found:  # there is another conflict
                names = blamed(explain_conflict(self._changed(made), found)[1])
            change = next((one for one in changes if one.name in names and one not in made), None)
            if change is None or not self._is_useful(self._changed([*made, change])):
                return
            made.append(change)
            found = self._outcome(self._changed(made))
            if found is None:
                return
        for change in tuple(made):
            fewer = [other for other in made if other is not change]
            if fewer and isinstance(self._outcome(self._changed(fewer)), Resolution):
                made = fewer
        yield made

    def _is_useful(self, relaxed: Request) -> bool:
        """Return whether a relaxed request still contains a distribution, if the original did."""
        names = {requirement.name for requirement in relaxed.requirements}
        requested = {requirement.name for requirement in self._request.requirements}
        return bool(names - {*PLATFORM} or names == requested)

    def _changed(self, changes: Iterable[RequestChange]) -> Request:
        request = self._request
        for change in changes:
            request = change.apply(request)
        return request

    def _outcome(self, relaxed: Request) -> Resolution | Refuted | None:
        """Return what a relaxed request gives; None if that is not known, or there were too many."""
        self.is_stopped = self._tries == MOST_TRIES or monotonic() > self._end
        if self.is_stopped:
            return None
        self._tries += 1
        return self._solve(relaxed)


def gives(picks: Mapping[str, str], changed: Sequence[str]) -> str:
    """Return the versions of what a change concerns, in parentheses: its components, then torch and ROCm."""
    names = [name for name in dict.fromkeys((*changed, "torch", "rocm")) if name in picks]
    shown = sorted(names[:_MOST_GIVEN], key=lambda name: (name != "torch", name == "rocm"))
    return f" (gives {' and '.join(f'{name} {picks[name]}' for name in shown)})" if shown else ""
