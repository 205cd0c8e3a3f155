"""The request and the target: demands on single components."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from resolver.compiling.clauses import (
    REQUEST,
    THIS_MACHINE,
    Clause,
    allowed_by,
    any_candidate,
    architectures,
    known_mask,
    no_candidate,
    version_in,
    where,
)
from resolver.compiling.names import INSPECT_HINT, reject_wrong_name
from resolver.compiling.platform import offered_images
from resolver.errors import NoVersionError, UsageError, closest_names, did_you_mean
from resolver.model import Fact, Requirement
from resolver.providers.installed import limits_of
from resolver.requirements import PAIRED_WITH_TORCH, closest_versions
from resolver.versions import allows, bounds_cross, join_words, minor, newest_first, shorten

if TYPE_CHECKING:
    from resolver.compiling.clauses import Test
    from resolver.compiling.problem_builder import ProblemBuilder
    from resolver.model import Candidate


def compile_request(builder: ProblemBuilder) -> None:
    """Add the demands of the target and of the request."""
    target = builder.target
    text = f"the backend is {target.backend}"
    builder.demand("backend", version_in([target.backend]), text, of_target=True)
    if target.gfx:
        noun = "GPU architecture is" if len(target.gfx) == 1 else "GPU architectures are"
        text = f"the {noun} {', '.join(target.gfx)}"
        builder.demand("gfx", version_in([architectures(target)]), text, of_target=True)
    if target.backend == "rocm":
        _demand_driver(builder)
        _demand_images(builder)
    if target.glibc:
        text = f"{THIS_MACHINE} has glibc {target.glibc}"
        builder.demand("glibc", version_in([target.glibc]), text, THIS_MACHINE)
    if target.python:
        _demand_python_of_machine(builder, target.python)
    for requirement in builder.request.requirements:
        # The open world resolves ``triton``, which for ROCm means the triton of any torch.
        is_open = builder.open_world and target.backend == "rocm" and requirement.name == "triton"
        if builder.is_closed(requirement.name) and not is_open:
            _demand_requirement(builder, _without_overridden(builder, requirement))
    _demand_device_code(builder)
    demand_limits(builder)
    if builder.open_world:
        builder.demand("python", any_candidate, "distributions need Python", implied=True)


def _demand_python_of_machine(builder: ProblemBuilder, python: str) -> None:
    """Limit Python to that of this machine; for ROCm, another Python requires a base image."""
    text = f"{THIS_MACHINE} has Python {python}"
    if builder.target.backend == "rocm":
        fact = Fact(f"{text}, and other versions require a base image", "observed", THIS_MACHINE)
        others = Clause(where(lambda candidate: candidate.version != python), any_candidate, fact)
        builder.relate("python", "base-image", [others], forbids=True)
    else:
        builder.demand("python", version_in([python]), text, THIS_MACHINE)


def demand_limits(builder: ProblemBuilder) -> None:
    """Add the demands of constraints and overrides on the distributions that are compiled."""
    limits = limits_of(builder.catalog, builder.request)
    for number, limit in enumerate((*limits, *builder.request.overrides)):
        if builder.open_world and builder.is_closed(limit.name):
            _reject_url(limit)
        is_known = limit.name in builder.variables and limit.specifier is not None
        if is_known and builder.is_new("limit", number):
            text = limit.reason or f"you limited {limit.name} to {limit.specifier}"
            _demand_under_marker(builder, limit, allowed_by([str(limit.specifier)]), text, optional=True)


def _demand_under_marker(
    builder: ProblemBuilder, requirement: Requirement, allowed: Test, text: str, *, optional: bool = False
) -> None:
    if not requirement.marker:
        asked = None if optional else requirement
        builder.demand(requirement.name, allowed, text, optional=optional, requirement=asked)
    elif applying := _applying_pythons(builder, requirement):
        clause = Clause(version_in(applying), allowed, Fact(text, "documented", REQUEST))
        builder.relate("python", requirement.name, [clause], when_present=optional)


def _applying_pythons(builder: ProblemBuilder, requirement: Requirement) -> list[str]:
    pythons = [candidate.version for candidate in builder.variables["python"].candidates]
    return [python for python in pythons if _applies(requirement, python)]


def _without_overridden(builder: ProblemBuilder, requirement: Requirement) -> Requirement:
    name = requirement.name
    if not any(override.name == name and override.specifier for override in builder.request.overrides):
        return requirement
    return Requirement(name, None, requirement.text, requirement.extras, marker=requirement.marker)


def _demand_driver(builder: ProblemBuilder) -> None:
    target, window = builder.target, builder.window
    if target.driver:
        text = f"the kernel driver is {target.driver}"
        builder.demand("kernel-driver", version_in([target.driver]), text, of_target=True)
    elif window:
        span = f"{window.since} to {window.until}" if window.until else f"since {window.since}"
        text = f"{target.site} has kernel driver {window.driver} on {target.date} ({span})"
        builder.demand("kernel-driver", version_in([window.driver]), text, window.source)


def _demand_images(builder: ProblemBuilder) -> None:
    target, catalog = builder.target, builder.catalog
    if target.base_image:
        text = f"the base image is {target.base_image}"
        builder.demand("base-image", version_in([target.base_image]), text, of_target=True)
        return
    if builder.request.use_image == "none":
        text = "you asked for no base image"
        builder.demand("base-image", no_candidate, text, optional=True, of_target=True)
        return
    offered = offered_images(builder)
    releases = newest_first({catalog.image[name].rocm for name in offered} - {""})[::-1]
    what = (
        f"base images with ROCm {join_words(releases, most=8, joiner='and')}"
        if releases
        else "no base image that is in the catalog"
    )
    text = f"{target.site} offers {what} on {target.date}"
    source = next(iter(offered.values())).source if offered else REQUEST
    builder.demand("base-image", version_in(offered), text, source, optional=True)


def _reject_url(requirement: Requirement) -> None:
    if requirement.url:
        msg = f"{shorten(requirement.text)!r} has a URL, but {requirement.name} must be from the catalog."
        raise UsageError(msg, hint=f"Name a version instead: {requirement.name}==VERSION.")


def _demand_requirement(builder: ProblemBuilder, requirement: Requirement) -> None:
    _reject_url(requirement)
    variable = builder.variables.get(requirement.name)
    if variable is None:
        reject_wrong_name(builder.catalog, requirement.name)
        known = {*builder.variables, *builder.catalog.package, *PAIRED_WITH_TORCH}
        raise unknown_component(requirement.name, known)
    package = builder.catalog.package.get(requirement.name)
    default = package.default_variant if package else ""
    allowed = _allowed(requirement, variable.candidates, default, open_world=builder.open_world)
    if not allowed(variable) and _applying_pythons(builder, requirement):
        text = shorten(requirement.text)
        if requirement.specifier is not None and bounds_cross(requirement.specifier):
            msg = f"No version can match {text!r}: its conditions exclude one another."
            raise UsageError(msg)
        msg = f"No known version of {requirement.name} matches {text!r}."
        versions = [candidate.version for candidate in variable.candidates]
        hints = [closest_versions(requirement, versions), INSPECT_HINT if "+cu" in text else ""]
        raise NoVersionError(msg, requirement.name, hint=" ".join(filter(None, hints)))
    if requirement.name == "torch" and any(map(_is_device, requirement.extras)):
        # Only the extras of these install the code for a GPU architecture.
        devices = variable.of_versions(key for key, row in builder.catalog.torch.items() if row.device_extra)
        allowed = known_mask(allowed(variable) & devices)
    if not requirement.extras:  # a build against another framework is meant only beside that
        there = {"torch", *(one.name for one in builder.request.requirements if not builder.apart)}
        needs = {match for one in variable.candidates if one.recipe for match in one.recipe.match_runtime}
        lacking = {match for match in needs - there if not builder.installed(match)}
        fits = where(lambda one: one.recipe is None or lacking.isdisjoint(one.recipe.match_runtime))
        allowed = known_mask(allowed(variable) & fits(variable))
    _demand_under_marker(builder, requirement, allowed, demand_text(requirement))


def _demand_device_code(builder: ProblemBuilder) -> None:
    """Let the code of ``rocm[device-gfx90a]`` suffice if a requested torch allows it, not ``device-all``."""
    requirements = builder.request.requirements
    devices = [one for one in requirements if one.name == "rocm" and any(map(_is_device, one.extras))]
    requested = [one.specifier for one in requirements if one.name == "torch" and one.specifier]
    if not devices or "device-all" in devices[0].extras or builder.installed("torch"):
        return
    torches = [version for version, row in builder.catalog.torch.items() if row.device_extra]
    if any(all(allows([specifier], version) for specifier in requested) for version in torches):
        text = f"you asked for {devices[0].text}, and so for a torch that installs no code for other GPUs"
        builder.demand("torch", version_in(torches), text, optional=True)


def _is_device(extra: str) -> bool:
    return extra.startswith("device-")


def _applies(requirement: Requirement, python: str) -> bool:
    from resolver.environment import Environment

    try:
        return Environment(python).applies(requirement.marker)
    except ValueError as error:
        msg = f"{shorten(requirement.text)!r} has a marker that cannot be evaluated: {error}."
        raise UsageError(msg) from None


def _allowed(
    requirement: Requirement, candidates: Sequence[Candidate], default: str, *, open_world: bool
) -> Test:
    """Return a test for the versions and the variant that a requirement allows.

    The default variant is that of releases without a variant, and of commits. If no name in brackets is a
    variant or similar to one, the names are extras, which only an open world can resolve.
    """
    if requirement.name == "python" and requirement.specifier is not None:
        # Minor versions that the specifier allows, or of which it allows a patch release.
        specifier = requirement.specifier
        named = {clause.version.removesuffix(".*") for clause in specifier}
        minors = {minor(version) for version in named if version.count(".") > 1 and specifier.allows(version)}
        return where(lambda candidate: specifier.allows(candidate.version) or candidate.version in minors)
    versions = allowed_by([str(requirement.specifier)] if requirement.specifier is not None else [])
    known = sorted({candidate.variant for candidate in candidates} - {""}, key=_names_before_commits)
    if default and requirement.extras == (default,):
        commits = where(lambda candidate: _names_before_commits(candidate.variant)[0])
        return lambda variable: commits(variable) & versions(variable)
    if all(map(_is_device, requirement.extras)):
        return versions
    if open_world and not any(closest_names(extra, known) for extra in requirement.extras):
        return versions
    if len(requirement.extras) > 1:
        msg = f"{shorten(requirement.text)!r} names more than one variant."
        raise UsageError(msg, hint="Put only one variant into the brackets.")
    variant = requirement.extras[0]
    if variant not in known:
        msg = f"{requirement.name} has no variant {shorten(variant)!r}."
        if known:
            raise UsageError(msg, hint=did_you_mean(variant, known))
        hint = "Extras are resolved with a package index. Configure an index, or remove the extra."
        raise UsageError(msg, hint=hint)
    of_variant = where(lambda candidate: candidate.variant == variant)
    return lambda variable: of_variant(variable) & versions(variable)


def _names_before_commits(variant: str) -> tuple[bool, str]:
    """Return a sort key that puts names before commits, which users rarely type."""
    return all(character in "0123456789abcdef" for character in variant), variant


def demand_text(requirement: Requirement) -> str:
    """Return the text for the demand of a requirement."""
    return requirement.reason or f"you asked for {requirement.text}"


def unknown_component(name: str, known: Collection[str]) -> UsageError:
    """Return the error for a name that is not in the catalog."""
    hint = did_you_mean(name, sorted(known))
    if hint and not closest_names(name, known):
        hint += " Other distributions are looked up if a package index is configured."
    return NoVersionError(f"{shorten(name)!r} is not in the catalog.", name, hint=hint)
