"""A recipe of the catalog applied to one build: environment, flags, commands, stand-ins; nothing is run."""

from builders.recipes.apply import apply_recipe
from builders.recipes.build import Application, Build, Compiler
from builders.recipes.compilers import HostCompilers, choose_compilers
from builders.recipes.ops import with_ops
from builders.recipes.source import check_source
from resolver.errors import RecipeError

__all__ = [
    "Application",
    "Build",
    "Compiler",
    "HostCompilers",
    "RecipeError",
    "apply_recipe",
    "check_source",
    "choose_compilers",
    "with_ops",
]
