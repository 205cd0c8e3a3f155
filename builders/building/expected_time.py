"""The expected needs of a build. The module avoids imports, because every `matrix resolve` loads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resolver.facts.schema import Recipe

_COMPILING = 120.0
_PACKING = 10.0
"""Assumed seconds of a build without any record, with and without compiled code."""
TimeSource = Literal["record", "recipe", "packing", "guess"]
"""An earlier build, the minimum time in the recipe, that nothing is compiled (an alias), or nothing."""
_EPSILON = 1e-9


class Resources(msgspec.Struct, frozen=True):
    """What a build is expected to need while it runs, or what a machine has.

    A build that shares compile jobs needs only the core of its first job.
    """

    cores: int
    memory: float
    """GiB."""
    seconds: float = 0.0
    """The expected time; it affects the order, but not the result."""
    work: float = 0.0
    """The expected core seconds of a build that runs with any number of cores from 1 to `cores`; else 0."""
    source: TimeSource = "guess"
    memory_per_job: float = 0.0
    """GiB."""
    joins: bool = False
    """Whether it shares the compile jobs with the builds that run at the same time."""

    @property
    def least(self) -> Resources:
        """The needs with the fewest cores."""
        return self.with_cores(1) if self.work else self

    def with_cores(self, cores: int) -> Resources:
        """Return the needs with fewer cores: proportionally less memory and more time."""
        ratio = cores / self.cores
        return replace(self, cores=cores, memory=self.memory * ratio, seconds=self.seconds / ratio)

    def fits(self, free: Resources) -> bool:
        """Return whether the free resources are sufficient."""
        return self.cores <= free.cores and self.memory <= free.memory + _EPSILON

    def without(self, other: Resources) -> Resources:
        """Return the resources without those that another build needs."""
        return replace(self, cores=self.cores - other.cores, memory=self.memory - other.memory)

    def plus(self, other: Resources) -> Resources:
        """Return the resources plus those that another build needs."""
        return replace(self, cores=self.cores + other.cores, memory=self.memory + other.memory)


def expected_time(
    recipe: Recipe | None, measured: Mapping[str, float], cores: int
) -> tuple[float, TimeSource]:
    """Return the expected seconds and their origin, given the result of `scheduler.recorded`."""
    if measured.get("seconds"):
        return measured["seconds"], "record"
    if recipe and recipe.core_hours:
        return recipe.core_hours * 3600 / cores, "recipe"
    return (_COMPILING, "guess") if recipe else (_PACKING, "packing")
