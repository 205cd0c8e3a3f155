"""Check the promises of recipes and projects: shared objects, ops, and library names that are computed.

DeepSpeed and Apex record the ops that they compiled in ``git_version_info_installed.py``; DeepSpeed also
records its accelerator and torch. ``ds_report`` and the loading of ops rely on this file. Its literals are
read; it is never run. Sources of the names of ops and of the variables that request them:
``op_builder/*.py`` of deepspeedai/DeepSpeed 0.19.8 and of ROCm/apex, setup.py of both.

bitsandbytes chooses ``libbitsandbytes_rocmXY.so`` by the ROCm version of the running torch, so no NEEDED
entry names it. Rules from ``bitsandbytes/cextension.py`` and ``cuda_specs.py`` of the wheels 0.49.2 and
0.50.2 on PyPI: up to 0.49, XY is ten times major plus minor (82 for both 8.2 and 7.12). From 0.50 on, XY is
major followed by minor. If that library is missing, another of the same major is loaded with a warning.

RCCL opens its network plugin by name and takes the newest ``ncclNetPlugin_vN`` that both know. If there is
none, or no file of the name, it uses TCP with no more than a line in its log. Sources:
ROCm/rccl@2f6d59e2e651:src/net.cc (ROCm 6.0.2), @d380693772a8:src/net.cc (6.2.2),
@0123763ff393:src/plugin/net.cc (RCCL 2.27.7 of ROCm 7.2); https://github.com/ROCm/rccl/pull/1768 and
https://github.com/ROCm/rocm-systems/pull/4201 (names).
"""

from __future__ import annotations

import fnmatch
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeVar

import msgspec
from packaging.version import Version

from builders.audit.contents import OP_TABLE
from builders.audit.elf import version_key
from builders.audit.runtime_libraries import literals
from builders.findings import Finding
from resolver.facts.placeholders import placeholders
from resolver.versions import satisfies

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builders.audit.contents import Contents, Expected
    from builders.audit.elf import SharedObject
    from resolver.facts.schema import Recipe


_VARIABLE = re.compile(r"(?:DS|APEX)_BUILD_([A-Z0-9_]+)")
_GROUPS = {"ops", "cpp_ops", "cuda_ops"}
"""Names that request many ops at once."""
_NOT_OPS = {"string"}
_OTHER_NAMES = {
    "aio": "async_io",
    "deep_compile": "dc",
    "ccl_comm": "deepspeed_ccl_comm",
    "shm_comm": "deepspeed_shm_comm",
    "fused_rope": "fused_rotary_positional_embedding",
    "nccl_allocator": "_apex_nccl_allocator",
}
"""Ops whose name differs from that of their variable."""
_YES = {"1", "true", "on", "yes"}
_FIRST_WITH_RULE = Version("0.47")
_FIRST_WITH_FALLBACK = Version("0.50")
_BITSANDBYTES = re.compile(r"libbitsandbytes_rocm(\d)(\d+)\.so")

_Value = TypeVar("_Value")
_INTERFACE = re.compile(r"ncclNetPlugin_v(\d+)")
_INTERFACES = {">=7": range(6, 11), ">=6.2,<7": range(5, 9), ">=6,<6.2": range(4, 7)}
"""Versions of the interface that RCCL looks for, by its ROCm. Newer RCCL knows newer ones, too."""
_NAMES = {">=7.1,<7.3": "libnccl-net.so", "<7.1": "librccl-net.so", ">=7.3": "librccl-net.so"}
"""The file that RCCL opens if NCCL_NET_PLUGIN is not set. For ROCm 7.1, inferred from its RCCL, 2.27.7."""


def check_promised_objects(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Report each shared object that the recipe promises as found or missing."""
    paths = [item.path for item in contents.objects]
    for pattern in expected.recipe.must_contain if expected.recipe else ():
        matching = fnmatch.filter(paths, pattern)
        if matching:
            yield Finding("object-found", "info", f"The wheel contains {', '.join(matching)}.")
        else:
            present = f"it contains {', '.join(paths)}" if paths else "it contains no shared object at all"
            text = f"{pattern} is not in the wheel; {present}."
            yield Finding("object-missing", "error", text, "The build skipped it; see the build's log.")


def promises_gpu_code(recipe: Recipe) -> bool:
    """Return whether a recipe promises GPU code: its build compiles something and gets the GPU architectures.

    The Triton variant of flash-attn compiles nothing before it runs. mpi4py gets no architecture.
    """
    texts = [
        *recipe.environment.values(),
        *recipe.options,
        *(word for words in recipe.prepare for word in words),
    ]
    passed = any(name == "gfx" for text in texts for name, _ in placeholders(text))
    return recipe.backend == "rocm" and recipe.compiles is not False and passed


class WheelOpTable(msgspec.Struct, frozen=True):
    """The op table that a build recorded."""

    member: str
    ops: Mapping[str, bool] = {}
    """Whether each op was compiled."""
    accelerator: str = ""
    torch: str = ""
    """Major and minor of the torch that the ops were compiled against."""
    rocm: str = ""
    """Major and minor of the ROCm of that torch; empty for a torch without ROCm."""

    @property
    def compiled(self) -> list[str]:
        """The ops that were compiled."""
        return sorted(name for name, compiled in self.ops.items() if compiled)


def read_op_table(contents: Contents) -> WheelOpTable | None:
    """Return the op table of a wheel; None if the wheel has no op table, or if it cannot be read."""
    for member, source in sorted(contents.texts.items()):
        if member.rpartition("/")[2] != OP_TABLE:
            continue
        values = literals(source)
        ops, torch_info = values.get("installed_ops"), values.get("torch_info")
        if not isinstance(ops, dict):
            continue
        torch_info = torch_info if isinstance(torch_info, dict) else {}
        rocm = str(torch_info.get("hip_version") or "")
        return WheelOpTable(
            member,
            {str(name): bool(compiled) for name, compiled in ops.items()},
            str(values.get("accelerator_name") or ""),
            str(torch_info.get("version") or ""),
            "" if rocm.startswith("0.") else rocm,
        )
    return None


def check_op_table(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Compare the op table with the shared objects, the recipe and the torch."""
    table = read_op_table(contents)
    if table is None:
        return
    evidence = {"member": table.member}
    stems = [PurePosixPath(item.path).name.partition(".")[0] for item in contents.objects]
    for op in table.compiled:
        if not any(stem.endswith((op, f"{op}_op")) for stem in stems):
            text = f"The op table lists {op} as compiled, but no shared object has this name."
            fix = "Build the wheel again, and search the log for this op."
            yield Finding("op-without-object", "error", text, fix, {**evidence, "op": op})
    if expected.recipe is not None:
        yield from _compare_with_recipe(table, expected.recipe, evidence)
    yield from _compare_with_torch(table, expected, evidence)


def _compare_with_recipe(table: WheelOpTable, recipe: Recipe, evidence: dict[str, str]) -> Iterator[Finding]:
    environment, known = recipe.environment, {op.variable: op.name for op in recipe.ops}
    for variable, value in sorted(environment.items()):
        match = _VARIABLE.fullmatch(variable)
        if not match or (name := match[1].lower()) in _NOT_OPS:
            continue
        requested = value.lower() in _YES
        ops = table.compiled if name in _GROUPS else _ops_called(table, known.get(variable, name))
        compiled = [op for op in ops if table.ops[op]]
        if requested and not compiled:
            present = ", ".join(table.compiled) or "none"
            text = f"{variable}={value} requested an op that was not compiled. Compiled ops: {present}."
            fix = "The build found the op incompatible, or chose another accelerator; see the build's log."
            yield Finding("op-not-installed", "error", text, fix, {**evidence, "variable": variable})
        elif not requested and compiled and name not in _GROUPS:
            text = f"{variable}={value}, but {', '.join(compiled)} was compiled anyway."
            yield Finding("op-not-asked", "warning", text, "", {**evidence, "variable": variable})
    accelerator = environment.get("DS_ACCELERATOR", "")
    if accelerator and table.accelerator and accelerator != table.accelerator:
        text = f"The wheel was built for accelerator {table.accelerator}, but {accelerator} was requested."
        fix = "Set DS_ACCELERATOR in the build. Without it, the choice depends on the build machine."
        yield Finding("accelerator-differs", "error", text, fix, evidence)


def _ops_called(table: WheelOpTable, name: str) -> list[str]:
    names = {each.lower() for each in (name, f"{name}_cuda", _OTHER_NAMES.get(name, name))}
    return sorted(op for op in table.ops if op.lower() in names)


def _compare_with_torch(
    table: WheelOpTable, expected: Expected, evidence: dict[str, str]
) -> Iterator[Finding]:
    torch = expected.torch
    if torch is None:
        return
    line = ".".join(torch.version.split("+")[0].split(".")[:2])
    for name, recorded, actual in (("torch", table.torch, line), ("ROCm", table.rocm, torch.rocm)):
        if recorded and actual and ".".join(recorded.split(".")[:2]) != actual:
            text = f"The wheel was built against {name} {recorded}, but its torch has {name} {actual}."
            fix = "Build the wheel against the torch that it will run with."
            yield Finding("built-for-other-torch", "error", text, fix, evidence)


def bitsandbytes_library(version: str, rocm: str) -> str:
    """Return the library that a release of bitsandbytes (0.47 or newer) loads with a torch for this ROCm.

    >>> bitsandbytes_library("0.49.2", "7.2"), bitsandbytes_library("0.49.2", "7.14")
    ('libbitsandbytes_rocm72.so', 'libbitsandbytes_rocm84.so')
    >>> bitsandbytes_library("0.50.0", "7.14")
    'libbitsandbytes_rocm714.so'
    """
    major, minor = (int(part) for part in rocm.split(".")[:2])
    fallback = Version(version) >= _FIRST_WITH_FALLBACK
    return f"libbitsandbytes_rocm{f'{major}{minor}' if fallback else major * 10 + minor}.so"


def bitsandbytes_hip(version: str, library: str) -> str:
    """Return the HIP version for which a release of bitsandbytes loads a library; empty for any other.

    >>> bitsandbytes_hip("0.49.2", "libbitsandbytes_rocm72.so")
    '7.2'
    >>> bitsandbytes_hip("0.50.2", "libbitsandbytes_rocm715.so")
    '7.15'
    >>> bitsandbytes_hip("0.50.2", "libbitsandbytes_cuda126.so")
    ''
    """
    match = _BITSANDBYTES.fullmatch(library)
    if not match:
        return ""
    line = f"{match[1]}.{match[2]}"
    return line if bitsandbytes_library(version, line) == library else ""


def check_computed_names(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Check that the wheel contains the library that bitsandbytes loads with this torch."""
    rocm = expected.torch.rocm if expected.torch else ""
    version = Version(contents.version)
    if contents.name != "bitsandbytes" or not rocm or version < _FIRST_WITH_RULE:
        return
    present = {PurePosixPath(item.path).name for item in contents.objects}
    library = bitsandbytes_library(contents.version, rocm)
    if library in present:
        return
    for_rocm = {name: match[1] for name in sorted(present) if (match := _BITSANDBYTES.fullmatch(name))}
    listed = ", ".join(for_rocm) or "none for ROCm"
    text = f"With ROCm {rocm} in torch, bitsandbytes loads {library}, which is missing; present: {listed}."
    evidence = {"library": library}
    if version >= _FIRST_WITH_FALLBACK and rocm.partition(".")[0] in for_rocm.values():
        fix = (
            "bitsandbytes falls back to a library for the same major version of ROCm. To be sure, build the "
            f"wheel for ROCm {rocm}."
        )
        yield Finding("computed-name-missing", "warning", text, fix, evidence)
    else:
        fix = "Build the wheel with the ROCm of this torch, or pass that ROCm version to the build."
        yield Finding("computed-name-missing", "error", text, fix, evidence)


def interfaces(item: SharedObject) -> set[int]:
    """Return the versions of RCCL's network interface that a shared object exports; empty for no plugin."""
    return {int(match[1]) for name in item.exports if (match := _INTERFACE.fullmatch(name))}


def wanted_interfaces(rocm: str) -> range | None:
    """Return the versions of the interface that RCCL of a ROCm looks for; None if the ROCm is not known."""
    return _for_rocm(_INTERFACES, rocm)


def wanted_name(rocm: str) -> str | None:
    """Return the file that RCCL of a ROCm opens by default; None if the ROCm is not known."""
    return _for_rocm(_NAMES, rocm)


def lacks_symbols(needed: str, present: str) -> bool:
    """Return whether a plugin needs a newer libfabric than there is, so that the loader refuses it."""
    return bool(needed and present) and version_key(needed) > version_key(present)


def check_network_plugin(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Check the plugins in a wheel against the RCCL of the torch that the wheel is for."""
    plugins = {item.path: found for item in contents.objects if (found := interfaces(item))}
    if not plugins:
        return
    for info in contents.members:
        if PurePosixPath(info.filename).name.startswith("libfabric"):
            text = f"{info.filename} is a second libfabric, which may not know the network of the machine."
            fix = "Leave it out: the plugin must use the libfabric of the base image."
            yield Finding("plugin-with-libfabric", "error", text, fix, {"member": info.filename})
    for item in contents.objects:
        needed = item.versions.get("FABRIC", "")
        for provider in expected.providers:
            present = provider.versions.get("FABRIC", "")
            if item.path in plugins and lacks_symbols(needed, present):
                text = f"{item.path} needs FABRIC_{needed} of libfabric, but {provider.name} has at most"
                fix = "Build the plugin in the image that it will run in, else RCCL uses TCP."
                evidence = {"member": item.path, "symbol version": f"FABRIC_{needed}"}
                yield Finding("plugin-libfabric", "error", f"{text} FABRIC_{present}.", fix, evidence)
    rocm = expected.torch.rocm if expected.torch else ""
    wanted = wanted_interfaces(rocm)
    for path, found in plugins.items():
        exported = ", ".join(f"v{number}" for number in sorted(found))
        text = f"{path} exports RCCL's network interfaces {exported}"
        if wanted is not None and not found & {*wanted}:
            text += f"; RCCL of ROCm {rocm} needs one of v{wanted[0]} to v{wanted[-1]}, else it uses TCP."
            fix = "Use a release of aws-ofi-nccl with this interface (1.18.0 or newer), not AMD's old fork."
            yield Finding("plugin-interface", "error", text, fix, {"member": path})
        else:
            yield Finding("plugin-found", "info", f"{text}.", evidence={"member": path})
    name = wanted_name(rocm)
    if name is not None and not any(PurePosixPath(path).name == name for path in plugins):
        present = ", ".join(plugins)
        text = f"RCCL of ROCm {rocm} looks for {name}, which is not in the wheel; it has {present}."
        fix = "Install the library under this name, too, or set NCCL_NET_PLUGIN to its path."
        yield Finding("plugin-name", "error", text, fix)


def _for_rocm(table: Mapping[str, _Value], rocm: str) -> _Value | None:
    return next((each for specifier, each in table.items() if rocm and satisfies(rocm, specifier)), None)
