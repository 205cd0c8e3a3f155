"""The rules: why a release of an index may not be used.

Each rule is a function with one reason, and yields an `Exclusion`, for all Pythons or for some. The search
turns these into incompatibilities, so `matrix explain` can print the reason. What a release requires is
judged where its metadata is read (`resolver.solving.reading`): a CUDA distribution cannot be required.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from resolver.compiling.problem import is_prerelease
from resolver.indexes import evidence_against, uploaded_by

if TYPE_CHECKING:
    from datetime import date

    from resolver.indexes import ExcludedFile, File, ProjectRelease
    from resolver.solving.targets import Fit, Targets

EVERYWHERE = -1
"""The mask of all Pythons, or of all versions of glibc."""


class Exclusion(msgspec.Struct, frozen=True, gc=False):
    """Why a release may not be used, and for which Pythons and versions of glibc, as masks."""

    text: str
    python: int = EVERYWHERE
    glibc: int = EVERYWHERE


class RuleContext(msgspec.Struct, frozen=True):
    """What the rules know about a request and a project."""

    day: date
    """The last day whose uploads count."""
    targets: Targets
    is_pinned: Callable[[str], bool]
    allows_prereleases: bool
    """Whether the request names a pre-release of the project, or the project has no other releases."""
    name: str
    """Of the project."""
    excluded: Sequence[ExcludedFile]
    """What the lock excludes, of any project."""
    problem_of: Callable[[str], str]
    """Returns why the catalog excludes a version; empty if it does not."""
    any_patch: bool = False
    """Whether a release is accepted that only some patch releases of a Python may install."""


class Judged(msgspec.Struct, frozen=True):
    """A release with what the rules have found about it."""

    release: ProjectRelease
    files: Sequence[File]
    """Those that count, wheels first: uploaded by the day, and not yanked if others are not."""
    fit: Fit
    """Where these files can be installed."""
    source_only: int
    """The Pythons that have no wheel and must build its sdist."""
    exclusions: tuple[Exclusion, ...] = ()

    @property
    def is_excluded(self) -> bool:
        """Whether it may not be used at all."""
        return any(one.python == EVERYWHERE and one.glibc == EVERYWHERE for one in self.exclusions)


def has_no_linux_file(judged: Judged, _: RuleContext) -> Iterator[Exclusion]:
    """Exclude a release that has files for other systems only."""
    if not judged.release.files:
        yield Exclusion("has no file for Linux")


def is_uploaded_later(judged: Judged, context: RuleContext) -> Iterator[Exclusion]:
    """Exclude a release whose files were uploaded after the day of the request."""
    if judged.release.files and not judged.files:
        yield Exclusion(f"was uploaded after {context.day}")


def is_yanked(judged: Judged, context: RuleContext) -> Iterator[Exclusion]:
    """Exclude a yanked release, unless a requirement pins its version (PEP 592)."""
    are_yanked = bool(judged.files) and all(file.yanked is not None for file in judged.files)
    if are_yanked and not context.is_pinned(judged.release.version):
        yield Exclusion("is yanked")


def is_unrequested_prerelease(judged: Judged, context: RuleContext) -> Iterator[Exclusion]:
    """Exclude a pre-release, unless the request names one or the project has no other releases."""
    if not context.allows_prereleases and is_prerelease(judged.release.version):
        yield Exclusion("is a pre-release, and the request does not name one")


def was_found_unfit(judged: Judged, context: RuleContext) -> Iterator[Exclusion]:
    """Exclude a release with a file that did not fit when it was read completely."""
    hashes = {file.sha256 for file in judged.files} if context.excluded else ()
    evidence = evidence_against(context.excluded, context.name, judged.release.version, hashes)
    if evidence:
        yield Exclusion(f"is excluded in the lock: {evidence}")


def is_known_bad(judged: Judged, context: RuleContext) -> Iterator[Exclusion]:
    """Exclude a release that does not work according to the catalog."""
    problem = context.problem_of(judged.release.version)
    if problem:
        yield Exclusion(problem)


def fits_no_target(judged: Judged, context: RuleContext) -> Iterator[Exclusion]:
    """Exclude the Pythons and versions of glibc for which a release has no file."""
    yield from without_file(judged.files, judged.fit, context.targets)


def without_file(files: Sequence[File], fit: Fit, targets: Targets) -> Iterator[Exclusion]:
    """Yield the Pythons and versions of glibc for which there is no file among those of a release."""
    missing = targets.allowed & ~fit.pythons
    if missing:
        yield Exclusion(_why_missing(files, missing, targets), missing)
    for glibc, pythons in sorted(fit.wheels.items()):
        only = pythons & ~fit.sdist
        if only and (older := targets.older_glibc(glibc)):
            yield Exclusion(f"requires glibc 2.{glibc} or newer", only & targets.allowed, older)


def _why_missing(files: Sequence[File], missing: int, targets: Targets) -> str:
    """Return why Pythons have no file: Requires-Python if that is the reason for all of them."""
    required = {file.requires_python for file in files}
    if len(required) == 1 and (text := required.pop()) and not targets.allowing(text) & missing:
        return f"requires Python {text}"
    if missing == targets.allowed and len(targets.environments) > 1:
        return "has no file for any of the possible Pythons"
    return f"has no file for {targets.names(missing)} on x86_64"


RULES = (
    has_no_linux_file,
    is_uploaded_later,
    is_yanked,
    is_unrequested_prerelease,
    was_found_unfit,
    is_known_bad,
    fits_no_target,
)


def judge(release: ProjectRelease, context: RuleContext) -> Judged:
    """Return what the rules find about a release; the first reason that excludes it everywhere is enough."""
    uploaded = uploaded_by(release.files, context.day)
    files = [file for file in uploaded if file.yanked is None] or uploaded
    fit = context.targets.fit(files, any_patch=context.any_patch)
    judged = Judged(release, files, fit, fit.sdist & ~fit.with_wheel)
    for rule in RULES:
        found = tuple(rule(judged, context))
        if found:
            return replace(judged, exclusions=found)
    return judged
