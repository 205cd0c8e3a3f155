"""What a probe's answers mean.

A node that builds has no GPU, and what fails for that reason alone says nothing about the wheel: it is
*not judged*, never passed. The same holds for a module that the wheel needs and that was not installed
beside it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builders.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builders.probes.asking import Answer, OpTable, Said, Torch
    from resolver.facts.schema import Recipe

_NO_RUNTIME = re.compile(
    r"lib(amdhip64|hsa-runtime64|hiprtc|amd_comgr|roc\w*|hip\w*|rccl|MIOpen|drm(_amdgpu)?|numa)\.so[.\d]*: "
    r"cannot open shared object file"
)
_NO_GPU = re.compile(
    r"No HIP GPUs are available|[Nn]o ROCm-capable device|hipErrorNoDevice|Found no NVIDIA driver"
    r"|\b0 active drivers"
)
"""What torch, HIP and triton say where there is no GPU."""


def judge_probe(answer: Answer, recipe: Recipe, *, complete: bool = False) -> list[Finding]:
    """Say what a probe shows of a wheel.

    Parameters
    ----------
    answer
        What the script said.
    recipe
        What was promised.
    complete
        Whether everything is there that will be there when it runs; then only the GPU may be missing.

    Returns
    -------
    list of Finding
        ``error`` for a promise that is broken, ``warning`` for what could not be judged, ``info`` for
        what was seen to be right.
    """
    if answer.distribution is None:
        text = f"{recipe.package} is not installed in the environment that was probed."
        return [Finding("probe-not-installed", "error", text, "Look at the log of its installation.")]
    findings = [
        *(
            _judge(said, answer, "import", f"import {said.name}", complete=complete)
            for said in answer.imports
        ),
        *_borrowed(answer),
        *_objects(answer, complete=complete),
        *_attributes(answer, recipe),
        *_ops(answer, recipe),
    ]
    return findings or [Finding("probe-nothing", "warning", f"Nothing is known to ask of {recipe.package}.")]


def _judge(said: Said, answer: Answer, kind: str, what: str, *, complete: bool) -> Finding:
    """Judge one thing that was loaded; the finding's id is made of the kind and the outcome."""
    evidence = {"member": said.file} if said.file else {}
    if not said.error:
        return Finding(f"probe-{kind}", "info", f"{what}: loads", evidence=evidence)
    reason = _not_judged(said, answer, complete=complete)
    if reason:
        text = f"{what}: not judged, {reason}"
        return Finding("probe-not-judged", "warning", text, "matrix verify on a GPU node tells.", evidence)
    text = f"{what}: fails with {said.error}: {said.text}".rstrip(": ")
    return Finding(f"probe-{kind}-failed", "error", text, "Look at the build's log.", evidence)


def _not_judged(said: Said | OpTable, answer: Answer, *, complete: bool) -> str:
    """Say why a failure tells nothing about the wheel; empty if it does tell."""
    if answer.torch.error and said.text == answer.torch.text:
        return f"since torch itself does not load here ({answer.torch.error}: {answer.torch.text})"
    if _NO_GPU.search(said.text):
        return f"since there is no GPU here ({said.text})"
    if complete:
        return ""
    own = answer.distribution.top if answer.distribution else []
    if said.missing and said.missing.partition(".")[0] not in own:
        return f"since {said.missing} is not installed beside it"
    library = _NO_RUNTIME.search(said.text)
    if library:
        return f"since {library[0].partition(':')[0]} is not there: this place has no ROCm runtime"
    return ""


def _borrowed(answer: Answer) -> Iterator[Finding]:
    """Say what the imports took of the build requirements: whoever installs the wheel may not have those."""
    own = answer.torch.borrowed
    used = {name for said in answer.imports for name in said.borrowed if name not in own}
    if not used or answer.distribution is None:
        return
    required = set(_required(answer.distribution.requires))
    undeclared = sorted(name for name in used if canonicalize_name(name) not in required)
    if undeclared:
        listed = ", ".join(undeclared)
        text = f"It imports {listed}, which the build brought along and the wheel does not require."
        cure = f"Install {listed} beside it."
        yield Finding("probe-undeclared", "warning", text, cure, {"distributions": listed})
    else:
        listed = ", ".join(sorted(used))
        text = f"It was imported beside build requirements that it needs to run as well: {listed}"
        yield Finding("probe-beside", "info", text)


def _required(requires: Sequence[str]) -> Iterator[str]:
    """Give the names of what a distribution always requires; what belongs to an extra does not count."""
    for text in requires:
        try:
            one = Requirement(text)
        except InvalidRequirement:
            continue
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            yield canonicalize_name(one.name)


def _objects(answer: Answer, *, complete: bool) -> Iterator[Finding]:
    for said in answer.objects:
        if said.error == "missing":
            text = f"{said.name} is not among the installed files, whatever imports."
            yield Finding(
                "probe-object-missing", "error", text, "The build compiled nothing; its log says why."
            )
        else:
            yield _judge(said, answer, "object", said.name, complete=complete)


def _attributes(answer: Answer, recipe: Recipe) -> Iterator[Finding]:
    for name, wanted in recipe.attributes.items():
        module, _, attribute = name.partition(":")
        for said in answer.imports:
            if said.name != module or said.error:
                continue  # that it does not import has been said
            found = said.values.get(attribute, "")
            if found == wanted:
                yield Finding("probe-attribute", "info", f"{name} is {found}")
            else:
                text = f"{name} is {found or 'empty'}, not {wanted}."
                yield Finding("probe-attribute-wrong", "error", text, _set(recipe))


def _set(recipe: Recipe) -> str:
    listed = ", ".join(f"{name}={value}" for name, value in recipe.run_environment.items())
    return f"Was it run with {listed}?" if listed else "The build made something else than was asked."


def _ops(answer: Answer, recipe: Recipe) -> Iterator[Finding]:
    table = answer.op_table
    if table is None:
        return
    if table.error:
        text = (
            f"{recipe.op_table}, in which the build names its ops, cannot be read: {table.error} {table.text}"
        )
        yield Finding("probe-op-table", "error", text.rstrip(), "Look at the build's log.")
        return
    asked = [op.name for op in recipe.ops if recipe.environment.get(op.variable) == "1"]
    for name in asked:
        if not table.installed.get(name, False):
            text = f"The op {name} was asked for, and the build says that it did not compile it."
            yield Finding(
                "probe-op-missing", "error", text, "The log says why it was taken for incompatible."
            )
    accelerator = recipe.environment.get("DS_ACCELERATOR", "")
    if accelerator and table.accelerator and table.accelerator != accelerator:
        text = f"The build chose its ops for the accelerator {table.accelerator}, not {accelerator}."
        yield Finding("probe-accelerator", "error", text, f"DS_ACCELERATOR={accelerator} did not reach it.")
    yield from _torch(table, answer.torch)
    there = sorted(name for name, installed in table.installed.items() if installed)
    yield Finding("probe-ops", "info", f"ops compiled: {', '.join(there) or 'none'}")


def _torch(table: OpTable, torch: Torch) -> Iterator[Finding]:
    running = ".".join(torch.version.split(".")[:2])
    if table.torch and running and table.torch != running:
        text = f"The ops were compiled for torch {table.torch} and will not load beside {torch.version}."
        yield Finding("probe-torch", "error", text, "Build it for this torch.")
