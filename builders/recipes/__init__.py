"""Recipes of the catalog, applied to one build: environment, flags, commands and shims. Nothing is run."""

from builders.recipes.application import AppliedRecipe, apply_recipe, check_source, with_ops
from builders.recipes.compilers import Compiler, HostCompilers, choose_compilers

__all__ = [
    "AppliedRecipe",
    "Compiler",
    "HostCompilers",
    "apply_recipe",
    "check_source",
    "choose_compilers",
    "with_ops",
]
