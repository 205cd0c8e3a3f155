"""Check GPU code: its architectures, and whether the version's label matches them."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from packaging.version import Version

from builders.audit.contents import SEPARATE_CODE, first_of
from builders.audit.gpu_code import ARCHIVE, STRAY_FIX, stray_archives
from builders.audit.promises import interfaces, promises_gpu_code
from builders.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builders.audit.contents import Contents, Expected

_ARCHITECTURE = re.compile(r"gfx[0-9a-f]+")


def check_architectures(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Compare the GPU code with the requested architectures."""
    recipe, requested = expected.recipe, expected.architectures
    promised = recipe is not None and promises_gpu_code(recipe)
    for path, both in stray_archives({member.filename for member in contents.members}):
        beside = PurePosixPath(both).name
        text = f"{path} is beside {beside}. The HIP runtime may read it instead, and no kernel runs."
        yield Finding("stray-kpack", "error", text, STRAY_FIX, {"member": path})
    elsewhere = [item.path for item in contents.objects if item.code_in_archives]
    if elsewhere and not any(path.endswith(ARCHIVE) for path in contents.code):
        yield from _code_elsewhere(contents, elsewhere, requested)
        return
    if not contents.architectures and (requested or promised):
        if recipe is not None and not promised:
            text = "The wheel contains no GPU code, and its recipe promises none."
            yield Finding("no-gpu-code-promised", "info", text)
            return
        if not contents.objects and recipe is None:
            text = f"The wheel contains nothing compiled, and so no GPU code for {', '.join(requested)}."
            fix = "This is expected if kernels are compiled at run time (Triton)."
            yield Finding("no-gpu-code", "warning", text, fix)
            return
        for_them = f" for {', '.join(requested)}" if requested else ""
        text = f"The wheel contains no GPU code{for_them}."
        fix = "The build fell back to the CPU, or the package compiles at run time; see the build's log."
        yield Finding("no-gpu-code", "error", text, fix)
        return
    for path, code in sorted(contents.code.items()):
        names = {item.name: item.architecture for item in code}
        yield from _compare_member(path, names, requested, no_others=expected.no_others)
    yield from _missing_everywhere(contents, requested)
    cuda = [item.path for item in contents.objects if item.has_cuda_code]
    if cuda:
        text = f"{first_of(cuda)} contains code for NVIDIA GPUs."
        yield Finding("cuda-code", "info", text, "", {"member": cuda[0], "section": ".nv_fatbin"})


def _code_elsewhere(
    contents: Contents, paths: Sequence[str], requested: tuple[str, ...]
) -> Iterator[Finding]:
    """Report where the code is if no archive in the wheel has it: in the device packages of its extras."""
    extras = contents.header("METADATA", "Provides-Extra")
    missing = [f"device-{target}" for target in requested if f"device-{target}" not in extras]
    text = f"The GPU code of {first_of(paths)} is in .kpack archives of other distributions"
    evidence = {"member": paths[0], "section": ".rocm_kpack_ref"}
    if missing and any(extra.startswith("device-") for extra in extras):
        text = f"{text}, and the wheel has no extra {', '.join(missing)}."
        yield Finding("device-package-missing", "error", text, "Choose a release for this GPU.", evidence)
        return
    wanted = ",".join(f"device-{target}" for target in requested) or "device-..."
    fix = f"Install {contents.name}[{wanted}]. Without this code, no kernel runs."
    yield Finding("device-package-needed", "info", f"{text}.", fix, evidence)


def _missing_everywhere(contents: Contents, requested: tuple[str, ...]) -> Iterator[Finding]:
    """Report architectures for which a wheel has no code, if its code is in a file for each architecture."""
    if not contents.code or not all(path.endswith(SEPARATE_CODE) for path in contents.code):
        return  # reported for each member
    present = {
        name for code in contents.code.values() for item in code for name in (item.name, item.architecture)
    }
    if missing := [name for name in requested if name not in present]:
        yield Finding(
            "target-missing",
            "error",
            f"The wheel contains code for {', '.join(sorted(present))}, but not for {', '.join(missing)}.",
            "Set the architecture variables of the build.",
            {"target": " ".join(missing)},
        )


def _compare_member(
    path: str, code: Mapping[str, str], requested: tuple[str, ...], *, no_others: bool
) -> Iterator[Finding]:
    fix = "Set the architecture variables of the build."
    for name, architecture in sorted(code.items()):
        evidence = {"member": path, "target": name}
        if requested and name not in requested and architecture not in requested:
            text = f"{path} contains code for {name}, which was not requested."
            if no_others:
                yield Finding("target-not-asked", "error", text, fix, evidence)
            else:
                yield Finding("target-not-asked", "info", text, "", evidence)
        elif name != architecture and name not in requested:
            text = f"{path} contains code for {name}, which runs only on GPUs with these features."
            yield Finding(
                "target-features", "warning", text, f"Build for {architecture} without features.", evidence
            )
    missing = [name for name in requested if name not in code and name not in code.values()]
    if missing and not path.endswith(SEPARATE_CODE):
        present = f"code for {', '.join(sorted(code))}, but not" if code else "no code"
        text = f"{path} contains {present} for {', '.join(missing)}."
        yield Finding("target-missing", "error", text, fix, {"member": path, "target": " ".join(missing)})


def _has_none(contents: Contents, expected: Expected) -> bool:
    """Return whether a wheel has no GPU code by design, like mpi4py or a network plugin."""
    if expected.recipe is not None:
        return not promises_gpu_code(expected.recipe)
    return any(map(interfaces, contents.objects))


def check_label(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Compare the local version label with the GPU code."""
    label = Version(contents.version).local
    present = sorted({item.architecture for code in contents.code.values() for item in code})
    if label is None:
        if present:
            text = "The version has no local label that names its ROCm, torch and GPU architectures."
            yield Finding("no-label", "info", text)
        return
    labelled = sorted(set(_ARCHITECTURE.findall(label)))
    if labelled and not present and not contents.objects:
        text = f"The label names {', '.join(labelled)}, but the wheel contains nothing compiled."
        fix = (
            "This is expected if kernels are compiled at run time (Triton). Otherwise, build the wheel again."
        )
        promised = expected.recipe is not None and expected.recipe.compiles is False
        yield Finding("label-of-pure-wheel", "info" if promised else "warning", text, fix)
    elif labelled and labelled != present and (present or not _has_none(contents, expected)):
        contained = f"contains code for {', '.join(present)}" if present else "contains no GPU code"
        text = f"The label names {', '.join(labelled)}, but the wheel {contained}."
        yield Finding("label-differs", "error", text, "Build the wheel again for the labelled architectures.")
    elif present and not labelled:
        text = f"The label {label} does not name the GPU architectures in the wheel: {', '.join(present)}."
        yield Finding("label-odd", "info", text)
