"""What a recipe promises: the shared objects that must be in the wheel."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

from builders.findings import Finding
from resolver.facts.placeholders import placeholders

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resolver.facts.schema import Recipe

SHARED_OBJECT = re.compile(r"\.so(\.\d+)*$")

TORCH_PROVIDES = ("libc10*.so*", "libtorch*.so*")
"""Libraries that come with the pinned torch and are loaded before the extension."""
ROCM_LIBRARIES = (
    "libamdhip64.so*", "libamd_comgr.so*", "libhip*.so*", "libhsa-runtime64.so*", "libMIOpen*.so*",
    "libroc*.so*", "librccl.so*",
)  # fmt: skip
"""Libraries of ROCm, which torch's ROCm wheel brings, or else the base image."""


def check_contents(objects: Sequence[str], recipe: Recipe) -> Iterator[Finding]:
    """See that every shared object that the recipe promises is there.

    Yields
    ------
    Finding
        ``object-found`` for each promise kept, ``object-missing`` for each broken one.
    """
    for promised in recipe.must_contain:
        found = [name for name in objects if fnmatch.fnmatchcase(name, promised)]
        if found:
            yield Finding("object-found", "info", f"holds {', '.join(found)}")
        else:
            held = f"it holds {', '.join(objects)}" if objects else "it holds no shared object at all"
            yield Finding(
                "object-missing",
                "error",
                f"{promised} is not in the wheel; {held}.",
                "The build chose not to compile it; its log says why.",
            )


def promises_gpu_code(recipe: Recipe) -> bool:
    """Tell whether a recipe promises GPU code: it names the targets to the build, and shared objects.

    flash-attn's Triton variant names no shared object, since its kernels are compiled when they run;
    mpi4py on ROCm names no target.
    """
    texts = [
        *recipe.environment.values(),
        *recipe.options,
        *(word for words in recipe.prepare for word in words),
    ]
    named = any(name == "gfx" for text in texts for name, _ in placeholders(text))
    return recipe.backend == "rocm" and bool(recipe.must_contain) and named
