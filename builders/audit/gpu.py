"""The checks on GPU code: its targets, and what the label says of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.version import Version

from builders.audit.contents import BARE_OBJECT, some_of
from builders.audit.promises import promises_gpu_code
from builders.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builders.audit.contents import Contents, Expected

_TARGET = re.compile(r"gfx[0-9a-f]+")


def check_targets(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Compare the GPU code with the offload targets that were asked for."""
    recipe, wanted = expected.recipe, expected.targets
    promised = recipe is not None and promises_gpu_code(recipe)
    if not contents.targets and (wanted or promised):
        if recipe is not None and not promised:
            text = "No GPU code is in the wheel, and its recipe promises none."
            yield Finding("no-gpu-code-promised", "info", text)
            return
        what = f" for {', '.join(wanted)}" if wanted else ""
        text = f"No GPU code object{what} is in the wheel."
        cure = "The build took the CPU, or compiles when it runs; its log says why."
        yield Finding("no-gpu-code", "error", text, cure)
        return
    for path, code in sorted(contents.code.items()):
        yield from _targets_of(path, {one.name: one.target for one in code}, wanted)
    cuda = [one.path for one in contents.objects if one.cuda]
    if cuda:
        text = f"There is code for NVIDIA's GPUs in {some_of(cuda)}."
        yield Finding("cuda-code", "info", text, "", {"member": cuda[0], "section": ".nv_fatbin"})


def _targets_of(path: str, held: dict[str, str], wanted: tuple[str, ...]) -> Iterator[Finding]:
    """Compare one member's code, as names with features to bare targets."""
    cure = "Set the arch variables of the build."
    for name, target in sorted(held.items()):
        where = {"member": path, "target": name}
        if wanted and name not in wanted and target not in wanted:
            text = f"{path} holds code for {name}, which was not asked for."
            yield Finding("target-not-asked", "error", text, cure, where)
        elif name != target and name not in wanted:
            text = f"{path} holds code for {name}, which runs only on GPUs that are set so."
            yield Finding("target-features", "warning", text, f"Build for {target} alone.", where)
    lacking = [one for one in wanted if one not in held and one not in held.values()]
    if lacking and not path.endswith(BARE_OBJECT):
        text = f"{path} holds {', '.join(sorted(held)) or 'no code object'}, but not {', '.join(lacking)}."
        yield Finding("target-missing", "error", text, cure, {"member": path, "target": " ".join(lacking)})


def check_label(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Compare the local version label with the GPU code."""
    label = Version(contents.version).local
    held = sorted({one.target for code in contents.code.values() for one in code})
    if label is None:
        if held:
            text = "The version has no local label that says which ROCm, torch and GPU it is for."
            yield Finding("no-label", "info", text)
        return
    named = sorted(set(_TARGET.findall(label)))
    if named and not held and not contents.objects:
        text = f"The label names {', '.join(named)}, and nothing compiled is in the wheel."
        cure = "Right where kernels are compiled when they run, as Triton's; else the build left them out."
        promised = expected.recipe is not None and not expected.recipe.must_contain
        yield Finding("label-of-pure-wheel", "info" if promised else "warning", text, cure)
    elif named and named != held:
        text = f"The label names {', '.join(named)}; the wheel holds code for {', '.join(held) or 'no GPU'}."
        yield Finding("label-differs", "error", text, "Build it again for what the label says.")
    elif held and not named:
        text = f"The label {label} does not name the targets in it: {', '.join(held)}."
        yield Finding("label-odd", "info", text)
