"""Clauses: facts before they become masks, and the tests that select their candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import msgspec

from resolver.compiling.problem import Statement, Variable
from resolver.versions import satisfies

if TYPE_CHECKING:
    from resolver.model import Candidate, Fact, Target

Test = Callable[[Variable], int]
"""Returns the mask of the candidates that pass."""
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
    text: Fact | Statement
    risk: bool = False
    build_only: bool = False
    """Whether the fact applies only to builds, and so not to installed versions."""


def where(passes: Callable[[Candidate], object]) -> Test:
    """Return a test that allows the candidates for which a function returns something true."""
    return lambda variable: variable.mask(i for i, one in enumerate(variable.candidates) if passes(one))


def any_candidate(variable: Variable) -> int:
    """Allow every candidate."""
    return variable.present


def no_candidate(_: Variable) -> int:
    """Reject every candidate."""
    return 0


def known_mask(mask: int) -> Test:
    """Return a test that allows the candidates in a mask; it can only be used for that variable."""
    return lambda _: mask


def version_in(versions: Iterable[str]) -> Test:
    """Return a test that allows these versions."""
    allowed = tuple(versions)
    return lambda variable: variable.of_versions(allowed)


def line_is(line: str) -> Test:
    """Return a test that allows the versions of one major.minor line."""
    return lambda variable: variable.of_line(line)


def allowed_by(specifiers: Sequence[str]) -> Test:
    """Return a test that allows the versions of any specifier, or every version without specifiers."""
    if not specifiers:
        return any_candidate
    return lambda variable: reduce(or_, map(variable.allowed_by, specifiers))


def libstdcxx_by(specifiers: Sequence[str]) -> Test:
    """Return a test for the libstdc++ of any specifier; an image's bare major version is its last release."""
    return where(
        lambda candidate: any(
            satisfies(version, text)
            for version in (candidate.version, f"{candidate.version}.9")
            for text in specifiers
        )
    )


def covers(offered: Iterable[str], requested: Sequence[str]) -> Test:
    """Return a test that allows other architectures, and the requested ones if all of them are offered."""
    return any_candidate if {*requested} <= {*offered} else version_in([OTHER_ARCHITECTURES])


def architectures(target: Target) -> str:
    """Return the GPU architectures of a target as the single version of the component ``gfx``."""
    return ",".join(target.gfx)
