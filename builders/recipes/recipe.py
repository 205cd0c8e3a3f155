"""Choose the ops that a recipe compiles, and check that a recipe fits a source.

Ops are parts of a package that can be compiled or left out. Another choice of ops is another recipe, so the
build key and the contents of the wheel follow from the recipe alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from resolver.errors import MatrixError, UsageError, did_you_mean
from resolver.facts.schema import Op, Recipe
from resolver.versions import satisfies


def with_ops(recipe: Recipe, names: Sequence[str], version: str) -> Recipe:
    """Return the recipe that compiles these ops and no others.

    `names` are the ops, as the package names them (``fused_adam``); at least one.
    """
    if not recipe.ops:
        msg = f"{recipe.package} {version} has no ops to choose from."
        raise MatrixError(msg, hint="Build it without --ops.", id="recipe")
    known = {op.name: op for op in recipe.ops}
    buildable = {op.name: op for op in recipe.ops if not op.releases or satisfies(version, op.releases)}
    for name in names:
        if name not in known:
            msg = f"{recipe.package} has no op named {name!r}."
            raise UsageError(msg, hint=did_you_mean(name, buildable))
        if name not in buildable:
            msg = f"{recipe.package} {version} cannot build {name} for {recipe.backend}."
            raise UsageError(msg, hint=f"{recipe.package} {known[name].releases} can build {name}.")
    chosen = [buildable[name] for name in dict.fromkeys(names)]
    if recipe.backend == "rocm" and all(op.host for op in chosen):
        listed = ", ".join(op.name for op in chosen)
        msg = f"None of these ops has GPU code, which a wheel for ROCm must contain: {listed}."
        gpu_op = next((op.name for op in buildable.values() if not op.host), "")
        raise UsageError(msg, hint=gpu_op and f"Add an op with GPU code, such as {gpu_op}.")
    return _compiling(recipe, chosen)


def recipe_as_built(recipe: Recipe, ops: Sequence[str]) -> Recipe:
    """Return the recipe that a wheel was built with, from the ops that the wheel records.

    This is the recipe of the catalog if the wheel records no ops.
    """
    chosen = [op for op in recipe.ops if op.name in ops]
    return _compiling(recipe, chosen) if chosen else recipe


def _compiling(recipe: Recipe, chosen: Sequence[Op]) -> Recipe:
    """Return the recipe that compiles these ops and no others."""
    return msgspec.structs.replace(
        recipe,
        environment=_ops_environment(recipe, chosen),
        must_contain=(
            *(glob for glob in recipe.must_contain if glob not in {op.object for op in recipe.ops}),
            *(op.object for op in chosen),
        ),
    )


def _ops_environment(recipe: Recipe, chosen: Iterable[Op]) -> dict[str, str]:
    op_variables = {op.variable for op in recipe.ops} | set(recipe.all_ops)
    others = {name: value for name, value in recipe.environment.items() if name not in op_variables}
    return others | {op.variable: "1" for op in chosen}


# Flags belong to a commit, not to a package. ROCm/apex replaced ``--cpp_ext --cuda_ext`` with
# ``APEX_BUILD_*`` and now ignores the old flags silently, so the wheel has no kernels (https://github.com/ROCm/apex/pull/291).
# An sdist may also lack files that it compiles: flash-attn up to 2.7.3 has no composable_kernel
# (https://github.com/Dao-AILab/flash-attention/issues/1105).


def check_source(recipe: Recipe, source: Path, title: str, others: Iterable[Recipe] = ()) -> None:
    """Check that a source supports the flags of its recipe and contains the files that the recipe compiles.

    `others` are other recipes of the package, to name a recipe that fits.
    """
    problems = list(_mismatches(recipe, source))
    if not problems:
        return
    listed = "".join(f"\n  - {problem}" for problem in problems)
    msg = f"The recipe does not fit this source of {title}; nothing was compiled.{listed}"
    fitting = [other for other in others if other != recipe and _recognizes(other, source)]
    hint = (
        "The recipe was not written for this commit or file. Choose another version, or correct the recipe."
    )
    if fitting:
        titles = sorted({_recipe_title(other) for other in fitting})
        hint = (
            f"The source fits the recipe for {' or '.join(titles)}. Check its commit or file in the catalog."
        )
    raise MatrixError(msg, hint=hint, id="recipe")


def _mismatches(recipe: Recipe, source: Path) -> Iterator[str]:
    for glob in recipe.source_has:
        if next(source.glob(glob), None) is None:
            yield f"{glob} is missing. It may belong to a git submodule."
    for name, text in recipe.source_contains.items():
        if text not in _read(source / name):
            yield f"{name} does not mention {text}: it would ignore the recipe's flags and compile nothing."
    for name, text in recipe.source_lacks.items():
        if text in _read(source / name):
            yield f"{name} mentions {text}: it needs other flags and would ignore the recipe's."


def _recognizes(recipe: Recipe, source: Path) -> bool:
    """Return whether a recipe states facts about its source, and all of them are true of this source."""
    stated = recipe.source_contains or recipe.source_lacks
    return bool(stated) and next(_mismatches(recipe, source), None) is None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _recipe_title(recipe: Recipe) -> str:
    variant = f" ({recipe.variant})" if recipe.variant else ""
    return f"{recipe.package} {recipe.releases}{variant}".rstrip()
