"""Choosing which ops of a package are compiled: another set of ops is another recipe.

What the wheel must hold and what the build key is made from follow from the recipe, so nothing else
needs to know that ops were chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from resolver.errors import RecipeError, UsageError, did_you_mean
from resolver.versions import satisfies

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resolver.facts.schema import Op, Recipe


def ops_of(recipe: Recipe, version: str) -> tuple[Op, ...]:
    """Give the ops that a release has and can build."""
    return tuple(op for op in recipe.ops if not op.releases or satisfies(version, op.releases))


def chosen_ops(recipe: Recipe, version: str) -> tuple[Op, ...]:
    """Give the ops that a recipe asks for, each by its own variable."""
    return tuple(op for op in ops_of(recipe, version) if recipe.environment.get(op.variable) == "1")


def with_ops(recipe: Recipe, names: Sequence[str], version: str) -> Recipe:
    """Give the recipe that compiles these ops and no others.

    Parameters
    ----------
    recipe
        As the catalog has it.
    names
        What to compile, as the package calls it (``fused_adam``); at least one.
    version
        The release that is built.

    Raises
    ------
    RecipeError
        The package has no ops to choose from.
    UsageError
        An op is unknown, or this release cannot build it; or none of them has code for a GPU, on ROCm.
    """
    if not recipe.ops:
        msg = f"{recipe.package} {version} has no ops to choose from: its recipe compiles one thing."
        raise RecipeError(msg, hint="Leave the choice of ops out.")
    known = {op.name: op for op in recipe.ops}
    there = {op.name: op for op in ops_of(recipe, version)}
    for name in names:
        if name not in known:
            msg = f"{recipe.package} has no op called {name!r}."
            raise UsageError(msg, hint=did_you_mean(name, there))
        if name not in there:
            msg = f"{recipe.package} {version} cannot build {name} for {recipe.backend}."
            raise UsageError(msg, hint=f"{name} can be built in {known[name].releases}.")
    wanted = [there[name] for name in dict.fromkeys(names)]
    if recipe.backend == "rocm" and all(op.host for op in wanted):
        listed = ", ".join(op.name for op in wanted)
        msg = f"Nothing of {listed} is compiled for a GPU, and the label of the wheel would name one."
        gpu = next((op.name for op in there.values() if not op.host), "another")
        raise UsageError(msg, hint=f"Ask for an op with GPU code besides, such as {gpu}.")
    return msgspec.structs.replace(
        recipe,
        environment=_environment(recipe, wanted),
        must_contain=_must_contain(recipe, wanted),
    )


def _environment(recipe: Recipe, wanted: Iterable[Op]) -> dict[str, str]:
    own = {op.variable for op in recipe.ops} | set(recipe.all_ops)
    kept = {name: value for name, value in recipe.environment.items() if name not in own}
    return kept | {op.variable: "1" for op in wanted}


def _must_contain(recipe: Recipe, wanted: Iterable[Op]) -> tuple[str, ...]:
    own = {op.object for op in recipe.ops}
    kept = [glob for glob in recipe.must_contain if glob not in own]
    return (*kept, *(op.object for op in wanted))
