"""Clauses: facts before they become masks, and the tests that select their candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from resolver.compiling.problem import LazyText, Variable
from resolver.versions import minor, satisfies

if TYPE_CHECKING:
    from resolver.model import Candidate, Fact, Target

    Test = Callable[[Candidate], bool]

REQUEST = "the request"
THIS_MACHINE = "this machine"
PAIRED_WITH_TORCH = ("torchvision", "torchaudio")
"""Distributions that require an exact version of torch, which does not require them."""
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

    def __call__(self, candidate: Candidate) -> bool:
        """Return whether a candidate passes."""
        raise NotImplementedError

    def mask(self, variable: Variable) -> int:
        """Return the mask of the candidates that pass."""
        raise NotImplementedError


class KnownMask(IndexedTest, frozen=True):
    """Allow the candidates in a mask of the same variable."""

    known: int

    def mask(self, variable: Variable) -> int:  # noqa: ARG002
        """Return the mask."""
        return self.known


class VersionIn(IndexedTest, frozen=True):
    """Allow certain versions."""

    versions: frozenset[str]

    def __call__(self, candidate: Candidate) -> bool:
        """Return whether the candidate has one of the versions."""
        return candidate.version in self.versions

    def mask(self, variable: Variable) -> int:
        """Return the mask of the candidates that have one of the versions."""
        return variable.of_versions(self.versions)


class AllowedBy(IndexedTest, frozen=True):
    """Allow the versions that at least one of several specifiers allows."""

    specifiers: tuple[str, ...]

    def __call__(self, candidate: Candidate) -> bool:
        """Return whether a specifier allows the candidate."""
        return any(satisfies(candidate.version, specifier) for specifier in self.specifiers)

    def mask(self, variable: Variable) -> int:
        """Return the mask of the candidates that a specifier allows."""
        mask = 0
        for specifier in self.specifiers:
            mask |= variable.allowed_by(specifier)
        return mask


def version_in(versions: Iterable[str]) -> Test:
    """Return a test that allows these versions."""
    return VersionIn(frozenset(versions))


class LineIs(IndexedTest, frozen=True):
    """Allow the versions of one major.minor line."""

    line: str

    def __call__(self, candidate: Candidate) -> bool:
        """Return whether the candidate belongs to the line."""
        return minor(candidate.version) == self.line

    def mask(self, variable: Variable) -> int:
        """Return the mask of the candidates in the line."""
        return variable.of_line(self.line)


def allowed_by(specifiers: Sequence[str]) -> Test:
    """Return a test that allows the versions of any specifier, or every version without specifiers."""
    if not specifiers:
        return any_candidate
    return AllowedBy(tuple(specifiers))


def covers(offered: Iterable[str], requested: Sequence[str]) -> Test:
    """Return a test that allows other architectures, and the requested ones if all of them are offered."""
    covered = set(requested) <= set(offered)
    return lambda candidate: covered or candidate.version == OTHER_ARCHITECTURES


def architectures(target: Target) -> str:
    """Return the GPU architectures of a target as the single version of the component ``gfx``."""
    return ",".join(target.gfx)
