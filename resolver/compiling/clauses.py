"""Clauses: facts before they become masks, and the tests that select their candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import msgspec

from resolver.compiling.problem import LazyText, Variable
from resolver.versions import minor, satisfies

if TYPE_CHECKING:
    from resolver.model import Candidate, Fact, Target

    Test = Callable[[Candidate], bool]

REQUEST = "the request"
THIS_MACHINE = "this machine"
LIMITS = ("glibc", "libstdcxx", "kernel-driver")
"""Components that a requirement of a distribution only limits, without adding them to the solution."""
OTHER_ARCHITECTURES = "others"
"""The alternative to the requested GPU architectures, so that they can be part of a conflict."""


class Clause(msgspec.Struct, frozen=True):
    """One fact before it becomes masks: its subjects, and the objects that it allows."""

    subjects: Test
    objects: Test
    text: Fact | LazyText
    risk: bool = False
    build_only: bool = False
    """Whether the fact applies only to builds, and so not to installed versions."""


def mask_of(variable: Variable, test: Test) -> int:
    """Return the mask of the candidates that pass a test."""
    if test is any_candidate:
        return variable.present
    if isinstance(test, IndexedTest):
        return test.mask(variable)
    return variable.mask([i for i, candidate in enumerate(variable.candidates) if test(candidate)])


def any_candidate(_: Candidate) -> bool:
    """Allow every candidate."""
    return True


def no_candidate(_: Candidate) -> bool:
    """Reject every candidate."""
    return False


class IndexedTest(msgspec.Struct, frozen=True):
    """A test whose mask comes from an index of the variable, without testing each candidate."""

    allows: Test
    mask: Callable[[Variable], int]
    """Returns the mask of the candidates that pass."""

    def __call__(self, candidate: Candidate) -> bool:
        """Return whether a candidate passes."""
        return self.allows(candidate)


def known_mask(mask: int) -> Test:
    """Return a test that allows the candidates in a mask; it can only be used as a mask of that variable."""

    def allows(_: Candidate) -> bool:
        raise NotImplementedError

    return IndexedTest(allows, lambda _: mask)


def version_in(versions: Iterable[str]) -> Test:
    """Return a test that allows these versions."""
    allowed = frozenset(versions)
    return IndexedTest(
        lambda candidate: candidate.version in allowed, lambda variable: variable.of_versions(allowed)
    )


def line_is(line: str) -> Test:
    """Return a test that allows the versions of one major.minor line."""
    return IndexedTest(
        lambda candidate: minor(candidate.version) == line, lambda variable: variable.of_line(line)
    )


def allowed_by(specifiers: Sequence[str]) -> Test:
    """Return a test that allows the versions of any specifier, or every version without specifiers."""
    if not specifiers:
        return any_candidate
    return IndexedTest(
        lambda candidate: any(satisfies(candidate.version, specifier) for specifier in specifiers),
        lambda variable: reduce(or_, map(variable.allowed_by, specifiers)),
    )


def libstdcxx_by(specifiers: Sequence[str]) -> Test:
    """Return a test that allows the releases of libstdc++ of any specifier.

    An image's row may have only the major version, which means its last release.
    """
    return lambda candidate: any(
        satisfies(version, text)
        for version in (candidate.version, f"{candidate.version}.9")
        for text in specifiers
    )


def covers(offered: Iterable[str], requested: Sequence[str]) -> Test:
    """Return a test that allows other architectures, and the requested ones if all of them are offered."""
    covered = set(requested) <= set(offered)
    return lambda candidate: covered or candidate.version == OTHER_ARCHITECTURES


def architectures(target: Target) -> str:
    """Return the GPU architectures of a target as the single version of the component ``gfx``."""
    return ",".join(target.gfx)
