"""Judge the reply about an installed wheel.

A build node has no GPU. A failure for that reason is not evidence against the wheel, so the promise is *not
judged*, which is a warning and never a pass. A required module that was not installed is not judged either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from msgspec.structs import replace
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builders.constants import TAKEN_OUT
from builders.findings import Finding
from builders.probe.ask import LoadReply, Outcome, WheelReply
from builders.probe.payload import UNSEEN
from resolver.facts.schema import Recipe

_NO_RUNTIME = re.compile(
    r"lib(amdhip64|hsa-runtime64|hiprtc|amd_comgr|roc\w*|hip\w*|rccl|MIOpen|drm(_amdgpu)?|numa)\.so[.\d]*: "
    r"cannot open shared object file"
)
_NO_LIBRARY = re.compile(r"\S+: cannot open shared object file")
_OTHER_SYMBOLS = re.compile(r"undefined symbol|version `[^']+' not found")
_NO_GPU = re.compile(
    r"No HIP GPUs are available|[Nn]o ROCm-capable device|hipErrorNoDevice|Found no NVIDIA driver"
    r"|\b0 active drivers"
)
"""Errors of torch, HIP and triton without a GPU."""
_LATER_THAN_ALL = "99999"
MODULE_REMOVED = "probe-module-removed"
_READ_LOG = "Read the build's log."


def judge_wheel(reply: WheelReply, recipe: Recipe, rebuild: str = "") -> list[Finding]:
    """Compare the reply about a wheel with the promises of its recipe.

    `rebuild` is how to recreate the environment, if the wheel will run in this environment and only the GPU
    may be missing. It is empty for the environment of a build, where a fix starts with the build's log. A
    broken promise is an ``error``, one that could not be judged a ``warning``, one that was kept an ``info``.
    """
    if reply.distribution is None:
        message = f"{recipe.package} is not installed in the environment that was probed."
        return [Finding("probe-not-installed", "error", message, rebuild or _READ_LOG)]
    findings = [
        *(_load(load, reply, recipe, "import", rebuild) for load in reply.imports),
        *_borrowed(reply),
        *_objects(reply, recipe, rebuild),
        *_attributes(reply, recipe, rebuild or _READ_LOG),
    ]
    nothing = Finding(
        "probe-nothing", "warning", f"The recipe of {recipe.package} promises nothing to probe."
    )
    if rebuild and (fix := _other_variables(reply, recipe)):
        findings = [
            replace(finding, fix=fix) if finding.severity == "error" else finding for finding in findings
        ]
    return findings or [nothing]


def _load(load: LoadReply, reply: WheelReply, recipe: Recipe, kind: str, rebuild: str) -> Finding:
    what = f"import {load.name}" if kind == "import" else load.name
    evidence = {"member": load.file} if load.file else {}
    if not load.error:
        return Finding(f"probe-{kind}", "info", f"{what}: loads", evidence=evidence)
    reason = _excuse(load, reply, complete=bool(rebuild))
    if reason:
        message = f"{what}: not judged, because {reason}"
        node = "a GPU node" if recipe.backend == "rocm" else "the machine that will run it"
        later = "" if load.error == UNSEEN else f"Run `matrix check --run` on {node}."
        if fix := _taken_out(load, reply):
            return Finding(MODULE_REMOVED, "warning", f"{message}.", fix, evidence)
        return Finding("probe-not-judged", "warning", message, later, evidence)
    repair = _repair(load, reply, rebuild) if rebuild else _READ_LOG
    return Finding(f"probe-{kind}-failed", "error", f"{what}: fails with {load.failure}", repair, evidence)


def _other_variables(reply: WheelReply, recipe: Recipe) -> str:
    """Return the fix for variables whose values differ from those that the recipe requires."""
    others = ", ".join(
        f"{name}={reply.variables[name]}"
        for name, value in recipe.run_environment.items()
        if reply.variables.get(name, value) != value
    )
    return f"{_run_environment(recipe)} The environment has {others}." if others else ""


def _repair(outcome: Outcome, reply: WheelReply, rebuild: str) -> str:
    name = outcome.missing.partition(".")[0]
    if fix := _taken_out(outcome, reply):
        return fix
    if name and reply.distribution and name not in reply.distribution.top:
        return f"Install the distribution that has {name}; if it is not in the lock, add it to the request."
    if _NO_LIBRARY.search(outcome.text):
        return "Use the lock's base image, or load the module that has this library."
    if _OTHER_SYMBOLS.search(outcome.text):
        return f"The loaded torch or library differs from that of the build. {rebuild}"
    return rebuild


def _taken_out(outcome: Outcome, reply: WheelReply) -> str:
    """Return the fix for a module that Python or setuptools no longer has.

    It is empty for another module, and if the wheel requires a distribution with this module itself.
    """
    name = outcome.missing.partition(".")[0]
    if name not in TAKEN_OUT or reply.distribution is None or name in reply.distribution.top:
        return ""
    needed = Requirement(TAKEN_OUT[name])
    for stated in _required(reply.distribution.requires):
        is_old = not stated.specifier.contains(_LATER_THAN_ALL)
        if canonicalize_name(stated.name) == needed.name and (is_old or not needed.specifier):
            return ""
    return f"Add `{needed}` to the request: newer Pythons or setuptools lack {name}."


def _excuse(outcome: Outcome, reply: WheelReply, *, complete: bool) -> str:
    """Return the reason why a failure is not evidence against the wheel; empty if it is evidence."""
    if outcome.error == UNSEEN:
        return "the kernel does not show which objects its process has loaded"
    own = reply.distribution.top if reply.distribution else []
    if reply.torch.error and outcome.text == reply.torch.text and "torch" not in own:
        return f"torch itself does not load here ({reply.torch.failure})"
    if _NO_GPU.search(outcome.text):
        return f"there is no GPU here ({outcome.text})"
    if complete:
        return ""
    if outcome.missing and outcome.missing.partition(".")[0] not in own:
        return f"{outcome.missing} is not installed here"
    library = _NO_RUNTIME.search(outcome.text)
    return f"{library[0].partition(':')[0]} is missing: there is no ROCm runtime here" if library else ""


def _borrowed(reply: WheelReply) -> Iterator[Finding]:
    """Report build requirements that the imports used: they may be missing where the wheel is installed."""
    used = {name for load in reply.imports for name in load.borrowed if name not in reply.torch.borrowed}
    if not used or reply.distribution is None:
        return
    required = {canonicalize_name(one.name) for one in _required(reply.distribution.requires)}
    undeclared = sorted(name for name in used if canonicalize_name(name) not in required)
    if undeclared:
        listed = ", ".join(undeclared)
        message = f"The wheel imports {listed}, which the build installed and the metadata does not require."
        fix = f"Install {listed} as well."
        yield Finding("probe-undeclared", "warning", message, fix, {"distributions": listed})
    else:
        message = f"The imports of the wheel used build requirements: {', '.join(sorted(used))}"
        yield Finding("probe-beside", "info", message)


def _required(requires: Sequence[str]) -> Iterator[Requirement]:
    """Yield what a distribution requires without any extra."""
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def _objects(reply: WheelReply, recipe: Recipe, rebuild: str) -> Iterator[Finding]:
    for load in reply.objects:
        if load.error == "missing":
            # An import alone proves nothing: ROCm's apex has Python shims named like its extensions.
            message = f"{load.name} matches no installed file."
            repair = rebuild or "The build did not compile it. Read its log."
            yield Finding("probe-object-missing", "error", message, repair)
        else:
            if sum(one.name == load.name for one in reply.objects) > 1:
                load = replace(load, name=str(PurePath(load.name).with_name(PurePath(load.file).name)))  # noqa: PLW2901
            yield _load(load, reply, recipe, "object", rebuild)


def _attributes(reply: WheelReply, recipe: Recipe, fix: str) -> Iterator[Finding]:
    for name, expected in recipe.attributes.items():
        module, _, attribute = name.partition(":")
        for load in reply.imports:
            if load.name != module or load.error:
                continue  # the failed import is a finding already
            value = load.values.get(attribute, "")
            if value == expected:
                yield Finding("probe-attribute", "info", f"{name} is {value}")
            else:
                message = f"{name} is {value or 'empty'}, not {expected}."
                yield Finding("probe-attribute-wrong", "error", message, _run_environment(recipe) or fix)


def _run_environment(recipe: Recipe) -> str:
    listed = ", ".join(f"{name}={value}" for name, value in recipe.run_environment.items())
    return f"Set {listed} when {recipe.package} runs." if listed else ""
