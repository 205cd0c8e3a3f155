"""Whether a source is what its recipe takes it for, seen before anything is compiled.

Flags belong to a commit, not to a package: ROCm/apex swapped ``--cpp_ext --cuda_ext`` for
``APEX_BUILD_*`` and then throws the old flags away without a word, so that a wheel without any kernel
comes out (https://github.com/ROCm/apex/pull/291). And an sdist may lack what it compiles: those of
flash-attn up to 2.7.3 have no composable_kernel
(https://github.com/Dao-AILab/flash-attention/issues/1105).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from resolver.facts.schema import Recipe


def check_source(recipe: Recipe, source: Path, title: str, others: Iterable[Recipe] = ()) -> None:
    """See that a source understands the recipe's flags and holds what it compiles.

    Parameters
    ----------
    recipe
        How it is to be built.
    source
        The unpacked source tree.
    title
        Name and version, for messages.
    others
        Other recipes of the package, of which one may be for this source.

    Raises
    ------
    RecipeError
        The flags would mean nothing to this source, or files are missing.
    """
    problems = list(problems_of(recipe, source))
    if not problems:
        return
    listed = "".join(f"\n  - {problem}" for problem in problems)
    msg = f"This source of {title} is not what its recipe is for; nothing was compiled.{listed}"
    fitting = [one for one in others if one != recipe and speaks_to(one, source)]
    hint = "The commit or file that the lock names is another than the recipe was written for."
    if fitting:
        named = " or ".join(sorted({_named(one) for one in fitting}))
        hint = f"The source understands the flags of the recipe for {named}."
    raise RecipeError(msg, hint=hint)


def problems_of(recipe: Recipe, source: Path) -> Iterator[str]:
    """Say what keeps a source from being built by a recipe, one sentence each."""
    for glob in recipe.source_has:
        if next(source.glob(glob), None) is None:
            yield f"{glob} is missing: the kernels' sources did not come with it (a git submodule, perhaps)."
    for name, text in recipe.source_contains.items():
        if text not in _read(source, name):
            yield f"{name} does not mention {text}: it would ignore the recipe's flags and compile nothing."
    for name, text in recipe.source_lacks.items():
        if text in _read(source, name):
            yield f"{name} mentions {text}: it wants other flags and would throw the recipe's away unread."


def speaks_to(recipe: Recipe, source: Path) -> bool:
    """Tell whether a recipe says something of its source, and all of it is true of this one."""
    said = recipe.source_contains or recipe.source_lacks
    return bool(said) and next(problems_of(recipe, source), None) is None


def _read(source: Path, name: str) -> str:
    try:
        return (source / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _named(recipe: Recipe) -> str:
    variant = f" ({recipe.variant})" if recipe.variant else ""
    return f"{recipe.package} {recipe.releases}{variant}".rstrip()
