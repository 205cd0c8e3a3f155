"""The op table that DeepSpeed's and Apex's builds record, compared with what was asked and what is there.

Both write ``git_version_info_installed.py`` beside their package: which ops were compiled, and with
DeepSpeed for which accelerator and torch. It is what ``ds_report`` and the loading of ops go by. The
file is read as literals; nothing of it is run. Names of ops and of the variables that ask for them:
``op_builder/*.py`` of deepspeedai/DeepSpeed 0.19.8 and of ROCm/apex, setup.py of both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from builders.audit.contents import OP_TABLE
from builders.audit.surroundings import literals
from builders.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builders.audit.contents import Contents, Expected
    from resolver.facts.schema import Recipe

_VARIABLE = re.compile(r"(?:DS|APEX)_BUILD_([A-Z0-9_]+)")
_WHOLE_GROUPS = {"ops", "cpp_ops", "cuda_ops"}
"""What asks for many ops at once."""
_NO_OPS = {"string"}
_OTHER_NAMES = {
    "aio": "async_io",
    "deep_compile": "dc",
    "ccl_comm": "deepspeed_ccl_comm",
    "shm_comm": "deepspeed_shm_comm",
    "fused_rope": "fused_rotary_positional_embedding",
    "nccl_allocator": "_apex_nccl_allocator",
}
"""Ops that are not called as the variable that asks for them."""
_YES = {"1", "true", "on", "yes"}


@dataclass(frozen=True, slots=True)
class OpTable:
    """What a build recorded of itself."""

    member: str
    ops: Mapping[str, bool] = field(default_factory=dict)
    """Name of an op to whether it was compiled."""
    accelerator: str = ""
    torch: str = ""
    """Version of the torch it was built against, as far as recorded: major and minor."""
    rocm: str = ""
    """Major and minor of that torch's ROCm; empty when it had none."""

    @property
    def installed(self) -> list[str]:
        """The ops that were compiled, as the table says."""
        return sorted(name for name, there in self.ops.items() if there)


def read_op_table(contents: Contents) -> OpTable | None:
    """Read the op table of a wheel; None when it has none that can be read."""
    for member, source in sorted(contents.texts.items()):
        if member.rpartition("/")[2] != OP_TABLE:
            continue
        said = literals(source)
        ops, info = said.get("installed_ops"), said.get("torch_info")
        if not isinstance(ops, dict):
            continue
        about = info if isinstance(info, dict) else {}
        rocm = str(about.get("hip_version") or "")
        return OpTable(
            member,
            {str(name): bool(there) for name, there in ops.items()},
            str(said.get("accelerator_name") or ""),
            str(about.get("version") or ""),
            "" if rocm.startswith("0.") else rocm,
        )
    return None


def check_op_table(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Compare the recorded op table with the shared objects, the recipe and the torch."""
    table = read_op_table(contents)
    if table is None:
        return
    where = {"member": table.member}
    stems = [PurePosixPath(one.path).name.partition(".")[0] for one in contents.objects]
    for op in table.installed:
        if not any(stem in {op, f"{op}_op"} or stem.endswith((op, f"{op}_op")) for stem in stems):
            text = f"The op table says that {op} was compiled, but no shared object is called so."
            cure = "Build it again; the log says what became of it."
            yield Finding("op-without-object", "error", text, cure, {**where, "op": op})
    if expected.recipe is not None:
        yield from _against_recipe(table, expected.recipe, where)
    yield from _against_torch(table, expected, where)


def _against_recipe(table: OpTable, recipe: Recipe, where: dict[str, str]) -> Iterator[Finding]:
    environment, known = recipe.environment, {op.variable: op.name for op in recipe.ops}
    for variable, value in sorted(environment.items()):
        asked = _VARIABLE.fullmatch(variable)
        if not asked or (name := asked[1].lower()) in _NO_OPS:
            continue
        wanted = value.lower() in _YES
        ops = table.installed if name in _WHOLE_GROUPS else _called(table, known.get(variable, name))
        installed = [op for op in ops if table.ops[op]]
        if wanted and not installed:
            held = ", ".join(table.installed) or "none at all"
            text = f"{variable}={value} asked for an op that the op table does not name as compiled: {held}."
            cure = "The build found it not compatible, or took another accelerator; its log says why."
            yield Finding("op-not-installed", "error", text, cure, {**where, "variable": variable})
        elif not wanted and installed and name not in _WHOLE_GROUPS:
            text = f"{variable}={value}, but {', '.join(installed)} was compiled all the same."
            yield Finding("op-not-asked", "warning", text, "", {**where, "variable": variable})
    accelerator = environment.get("DS_ACCELERATOR", "")
    if accelerator and table.accelerator and accelerator != table.accelerator:
        text = f"It was built for the accelerator {table.accelerator}; {accelerator} was asked for."
        cure = "Set DS_ACCELERATOR in the build, or it takes what the build machine has."
        yield Finding("accelerator-differs", "error", text, cure, where)


def _called(table: OpTable, name: str) -> list[str]:
    names = {one.lower() for one in (name, f"{name}_cuda", _OTHER_NAMES.get(name, name))}
    return sorted(op for op in table.ops if op.lower() in names)


def _against_torch(table: OpTable, expected: Expected, where: dict[str, str]) -> Iterator[Finding]:
    torch = expected.torch
    if torch is None:
        return
    line = ".".join(torch.version.split("+")[0].split(".")[:2])
    for what, recorded, real in (("torch", table.torch, line), ("ROCm", table.rocm, torch.rocm)):
        if recorded and real and ".".join(recorded.split(".")[:2]) != real:
            text = f"It was built against {what} {recorded}; the torch it is for has {what} {real}."
            cure = "Build it against the torch that it will run with."
            yield Finding("built-for-other-torch", "error", text, cure, where)
