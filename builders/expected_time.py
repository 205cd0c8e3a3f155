"""The expected time of a build. The module avoids imports, because every `matrix resolve` loads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resolver.facts.schema import Recipe

_COMPILING = 120.0
_PACKING = 10.0
"""Assumed seconds of a build without any record, with and without compiled code."""
TimeSource = Literal["record", "recipe", "guess"]
"""Origin of the expected time of a build: an earlier build, the minimum time in the recipe, or neither."""


def expected_time(
    recipe: Recipe | None, measured: Mapping[str, float], cores: int
) -> tuple[float, TimeSource]:
    """Return the seconds that a build is expected to take, and their origin.

    Parameters
    ----------
    recipe
        The recipe of the build; None if nothing is compiled.
    measured
        The result of `builders.scheduling.estimates.recorded`.
    cores
        Number of cores that the build will have.
    """
    if measured.get("seconds"):
        return measured["seconds"], "record"
    if recipe and recipe.core_hours:
        return recipe.core_hours * 3600 / cores, "recipe"
    return _COMPILING if recipe else _PACKING, "guess"
