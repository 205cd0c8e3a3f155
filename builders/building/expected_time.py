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
"""Origin of the expected time of a build: an earlier build, the minimum time in the recipe, that nothing is
compiled (an alias only has metadata), or nothing."""
_EPSILON = 1e-9


class Resources(msgspec.Struct, frozen=True):
    """The resources that a build needs while it runs, or that a machine has."""

    cores: int
    memory: float
    """GiB."""
    seconds: float = 0.0
    """The expected time; it affects the order, but not the result."""
    work: float = 0.0
    """The expected core seconds of a build that runs with any number of cores from 1 to `cores`; else 0."""

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


class Estimate(Resources, frozen=True):
    """The expected needs of one build. One that shares compile jobs needs only the core of its first job."""

    source: TimeSource = "guess"
    """The origin of the time."""
    memory_per_job: float = 0.0
    """GiB."""
    joins: bool = False
    """Whether it shares the compile jobs with the builds that run at the same time."""


def expected_time(
    recipe: Recipe | None, measured: Mapping[str, float], cores: int
) -> tuple[float, TimeSource]:
    """Return the seconds that a build is expected to take, and their origin.

    `recipe` is None if nothing is compiled; `measured` is the result of
    `builders.scheduling.scheduler.recorded`.
    """
    if measured.get("seconds"):
        return measured["seconds"], "record"
    if recipe and recipe.core_hours:
        return recipe.core_hours * 3600 / cores, "recipe"
    return (_COMPILING, "guess") if recipe else (_PACKING, "packing")
