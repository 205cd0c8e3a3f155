"""The request and the target: what limits a component from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.compiling.draft import ASKED, HERE, PAIRED, allowed_by, target_name, version_in
from resolver.errors import UsageError, did_you_mean
from resolver.versions import bounds_cross, join_words, newest_first, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from resolver.compiling.draft import Draft
    from resolver.facts import schema
    from resolver.model import Candidate, Requirement


def compile_request(draft: Draft) -> None:
    """Add the demands of the target and of the request.

    Raises
    ------
    UsageError
        A requirement names a component or a version that the catalog does not know.
    """
    target = draft.target
    draft.ask("backend", version_in([target.backend]), f"the backend is {target.backend}", of_target=True)
    if target.gfx:
        draft.ask(
            "gfx",
            version_in([target_name(target)]),
            f"the offload target is {', '.join(target.gfx)}",
            of_target=True,
        )
    if target.backend == "rocm":
        _driver(draft)
        _images(draft)
    if target.glibc:
        text = f"{HERE} has glibc {target.glibc}"
        draft.state("glibc", version_in([target.glibc]), text, HERE)
    if target.python:
        draft.state("python", version_in([target.python]), f"{HERE} has Python {target.python}", HERE)
    for requirement in draft.request.requirements:
        _require(draft, requirement)


def _driver(draft: Draft) -> None:
    target, window = draft.target, draft.window
    if target.driver:
        draft.ask(
            "kernel-driver",
            version_in([target.driver]),
            f"the kernel driver is {target.driver}",
            of_target=True,
        )
    elif window:
        span = f"{window.since} to {window.until}" if window.until else f"since {window.since}"
        text = f"{target.site} on {target.date} has kernel driver {window.driver} ({span})"
        draft.state("kernel-driver", version_in([window.driver]), text, window.source)


def _images(draft: Draft) -> None:
    target, catalog = draft.target, draft.catalog
    if target.base_image:
        permits = version_in([target.base_image])
        draft.ask("base-image", permits, f"the base image is {target.base_image}", of_target=True)
        return
    offered: dict[str, schema.Row] = {}
    site = catalog.site.get(target.site)
    if site and site.public_images:
        offered = {name: row for name, row in catalog.image.items() if "://" in row.path}
    for row in catalog.site_image.values():
        begun = row.since is None or row.since <= target.date
        if row.site == target.site and begun and (row.until is None or target.date < row.until):
            offered[row.image] = row
    held = newest_first({catalog.image[name].rocm for name in offered} - {""})[::-1]
    what = (
        f"base images with ROCm {join_words(held, most=8, joiner='and')}"
        if held
        else "no base image that is known"
    )
    text = f"{target.site} on {target.date} offers {what}"
    source = next(iter(offered.values())).source if offered else ASKED
    draft.state("base-image", version_in(offered), text, source, optional=True)


def _require(draft: Draft, wanted: Requirement) -> None:
    variable = draft.variables.get(wanted.name)
    if variable is None:
        raise unknown_component(wanted.name, {*draft.variables, *draft.catalog.package, *PAIRED})
    permits = _permits(wanted, variable.candidates)
    if not any(permits(one) for one in variable.candidates):
        versions = [one.version for one in variable.candidates]
        if wanted.specifier is not None and bounds_cross(wanted.specifier):
            msg = f"No version can match {shorten(wanted.text)!r}: its conditions exclude one another."
            raise UsageError(msg)
        msg = f"No known version of {wanted.name} matches {shorten(wanted.text)!r}."
        raise UsageError(msg, hint=_closest(wanted, versions))
    draft.ask(wanted.name, permits, asked_text(wanted))


def _permits(wanted: Requirement, candidates: Sequence[Candidate]) -> Callable[[Candidate], bool]:
    """Give what a requirement allows: versions, and one variant if it names one.

    Raises
    ------
    UsageError
        No release has that variant.
    """
    versions = allowed_by([str(wanted.specifier)] if wanted.specifier is not None else [])
    if not wanted.variant:
        return versions
    known = sorted({one.variant for one in candidates} - {""})
    if wanted.variant not in known:
        msg = f"{wanted.name} has no variant {shorten(wanted.variant)!r}."
        if known:
            raise UsageError(msg, hint=did_you_mean(wanted.variant, known))
        raise UsageError(
            msg, hint="matrix resolves no extras: leave it out here, add it in the environment file."
        )
    return lambda one: one.variant == wanted.variant and versions(one)


def asked_text(wanted: Requirement) -> str:
    """Say in words that something was asked for; the text of its demand."""
    return f"you asked for {wanted.text}"


def unknown_component(name: str, known: Iterable[str]) -> UsageError:
    """Say that a name is not in the catalog."""
    hint = did_you_mean(name, sorted(known))
    if hint.startswith("Known"):
        hint += " Other packages of PyPI need no help from matrix: add them to the environment file."
    return UsageError(f"The catalog does not know {shorten(name)!r}.", hint=hint)


def _closest(wanted: Requirement, versions: Sequence[str]) -> str:
    named = [one.version for one in wanted.specifier or ()]
    guess = did_you_mean(named[0].removesuffix(".*"), versions) if named else ""
    listed = f"Known versions: {join_words(list(dict.fromkeys(versions)), most=12, joiner='and')}."
    return f"{guess} {listed}" if guess.startswith("Did") else listed
