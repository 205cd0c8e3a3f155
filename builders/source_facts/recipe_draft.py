"""Draft catalog rows for an extension that the catalog lacks, from its source.

Facts from the source are `observed`. The recipe is `inferred`: a draft for the user to complete.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, get_args

from builders.source_facts.reading import is_requirement
from resolver.facts.catalog_files import row_to_toml
from resolver.facts.schema import PLATFORM, SCHEMA, Backend, Recipe, Requires
from resolver.requirements import required_name, split_marker
from resolver.versions import is_version, specifier_or_none

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from builders.source_facts.build_script import BuildVariable
    from builders.source_facts.facts import SourceFacts
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Row, Status

MARK = "# Drafted by `matrix catalog draft`, which replaces files that begin with this line."
_SEPARATORS = {"HCC_AMDGPU_TARGET": "{gfx:,}"}
"""Variables whose list of GPU architectures is not separated by semicolons."""
_GPU_SWITCH = re.compile(
    r"(\w+_)?(FORCE|BUILD|WITH|USE|ENABLE)_(CUDA|HIP|ROCM|GPU)(_EXT|_EXTENSIONS?|_OPS|_KERNELS)?"
)
_SWITCH = re.compile(r"(?:^|_)(?:FORCE|BUILD|WITH|USE|ENABLE)_|_EXT(?:ENSION)?S?$")
_FOR_ROCM = re.compile("ROCM|HIP|HCC|AMD|OFFLOAD|GFX")
"""Parts of the names of variables with GPU architectures that are for ROCm in any source."""
_CPU_SWITCH = re.compile(r"FORCE_(ONLY_)?CPU")
_ON = {"1", "on", "true", "yes"}
_SPECIFIER = re.compile(r"\s*(?:\[[^\]]*\])?\s*\(?([^)@]*)\)?")


def backends_of(facts: SourceFacts) -> tuple[Backend, ...]:
    """Return the backends that a recipe is drafted for."""
    return ("rocm",) if facts.without_cpu_path else ("rocm", "cpu")


def components_of(catalog: Catalog) -> set[str]:
    """Return the names that a requirement of the catalog may have as its object."""
    return {*PLATFORM, *catalog.package, "torch", "torchvision", "torchaudio"}


def draft_recipes(
    facts: SourceFacts, source: str, backends: Sequence[Backend] = get_args(Backend)
) -> tuple[Recipe, ...]:
    """Return a recipe for each backend; `source` is where the facts were read."""
    return tuple(_recipe(facts, backend, source) for backend in backends)


def draft_text(rows: list[Row], gaps: Collection[str], origin: str) -> str:
    """Return the catalog file of a draft. `gaps` are the facts that could not be determined."""
    lines = [MARK, f"# From {origin}."]
    lines += ["# Could not be determined:", *(f"# - {gap}" for gap in gaps)] if gaps else []
    comments = ("".join(letter if letter.isprintable() else " " for letter in line) for line in lines)
    return "\n".join([*comments, f"schema = {SCHEMA}", "", *map(row_to_toml, rows)])


def gaps_of(facts: SourceFacts) -> list[str]:
    """Return the facts that could not be determined, most important first."""
    gaps = [f"the origin of {file}, which the source lacks" for file in facts.missing]
    empty = [path for path, present in facts.submodules.items() if not present]
    gaps += [f"the content of the submodule {path}, which is empty" for path in empty]
    gaps += facts.undetermined
    gaps += [
        f"the meaning of {text!r}, which is not a valid requirement"
        for text in (*facts.declared, *facts.undeclared)
        if not is_requirement(text)
    ]
    compilers = [name for name in ("CC", "CXX") if name in facts.sets]
    if compilers:
        gaps.append(f"the compiler: the build sets {' and '.join(compilers)} itself")
    if facts.files.keys() & {".cu", ".cuh"} and not facts.mentions_hip:
        gaps.append("whether the kernels compile for ROCm: the source does not mention HIP")
    if len(facts.cxx_standards) > 1:
        gaps.append(f"the C++ standard for torch's headers: {' or '.join(facts.cxx_standards)}")
    if not facts.import_name:
        gaps.append("the name of the import package")
    gaps += [
        f"the source of the GPU architectures in {row.name}, which CMake reads ({row.where})"
        for row in facts.architectures
        if not _is_environment(row) and "CUDA" not in row.name
    ]
    if facts.optional:
        gaps.append(f"the effect of {', '.join(facts.optional)}, which the build imports conditionally")
    return gaps


def unnamed_requirements(facts: SourceFacts, components: Collection[str]) -> list[str]:
    """Return the run requirements that cannot be rows of the catalog."""
    return [
        text
        for text in dict.fromkeys(facts.requires)
        if required_name(text) not in components or _specifier(text) is None
    ]


def draft_requirements(
    facts: SourceFacts, source: str, status: Status, components: Collection[str], *, on_index: bool
) -> Iterator[Requires]:
    """Yield the requirements of a draft; those of a project that is `on_index` are there.

    `status` is `inferred` if building may change them. `components` are everything that a requirement of the
    catalog may name.
    """
    row = partial(Requires, package=facts.name, releases=f"=={facts.version}", source=source)
    if facts.requires_python:
        yield row(on="python", versions=(facts.requires_python,), status="observed")
    texts = [text for text in facts.requires if required_name(text) == "torch" or not on_index]
    for text in dict.fromkeys(texts):
        specifier = _specifier(text)
        name = required_name(text)
        if name in components and specifier is not None:
            yield row(on=name, versions=(specifier or ">=0",), status=status)
    limits = [text for text in facts.declared if required_name(text) == "torch" and _specifier(text)]
    for text in set(limits) - set(texts):
        yield row(on="torch", versions=(_specifier(text) or "",), kind="build", status="observed")


def _specifier(text: str) -> str | None:
    """Return the specifier of a requirement; None if the requirement has a marker or is not valid."""
    head, marker = split_marker(text)
    match = _SPECIFIER.fullmatch(re.sub(r"^[\w.-]*\w", "", head.strip()))
    if marker or match is None:
        return None
    versions = match[1].replace(" ", "")
    return versions if not versions or specifier_or_none(versions) is not None else None


def _recipe(facts: SourceFacts, backend: Backend, source: str) -> Recipe:
    environment = dict(_environment(facts, backend))
    flags = [variable for variable in facts.flags if variable.name in environment]
    script = next((variable.where.partition(":")[0] for variable in flags), "")
    standards = facts.cxx_standards if facts.builds_with_torch else ()
    note = f"Drafted from {', '.join((*facts.read, *facts.cmake.files[:1])) or 'pyproject.toml'}."
    if backend == "rocm" and facts.source.kind == "cuda":
        note += f" It cannot compile for ROCm without changes to the source: {facts.source.evidence}."
    return Recipe(
        package=facts.name,
        releases=f"=={facts.version}",
        backend=backend,
        declared=tuple(
            "torch" if required_name(text) == "torch" else text
            for text in facts.declared
            if is_requirement(text)
        ),
        undeclared=tuple(filter(is_requirement, facts.undeclared)),
        match_runtime=("torch",) if facts.builds_with_torch else (),
        environment=environment,
        must_contain=tuple(_objects(facts, backend)),
        imports=(facts.import_name,) if facts.import_name else (),
        source_contains={script: flags[0].name} if flags else {},
        native_cpu=facts.native_cpu,
        cxx_standard=standards[0] if len(standards) == 1 else "",
        status="inferred",
        source=source,
        note=note,
    )


def _environment(facts: SourceFacts, backend: Backend) -> Iterator[tuple[str, str]]:
    """Yield the variables of a recipe: GPU architectures, and switches that the source reads."""
    if backend == "rocm":
        for variable in facts.architectures:
            is_for_cuda = not facts.mentions_hip and not _FOR_ROCM.search(variable.name)
            if _is_environment(variable) and "CUDA" not in variable.name and not is_for_cuda:
                yield variable.name, _SEPARATORS.get(variable.name, "{gfx}")
        if facts.passes_host_compiler:
            yield "CC", ""
    for variable in facts.flags:
        default = variable.default.strip("'\"").lower() in _ON
        if not _is_environment(variable):
            continue
        if _GPU_SWITCH.fullmatch(variable.name) and default != (backend == "rocm"):
            yield variable.name, "1" if backend == "rocm" else "0"
        elif _CPU_SWITCH.fullmatch(variable.name) and backend == "cpu":
            yield variable.name, "1"


def is_switch(variable: BuildVariable) -> bool:
    """Return whether a variable seems to decide whether a build compiles something."""
    return _is_environment(variable) and _SWITCH.search(variable.name) is not None


def _is_environment(variable: BuildVariable) -> bool:
    """Return whether a variable is read by Python rather than by a CMake file."""
    return ".py:" in variable.where or variable.where == "torch.utils.cpp_extension"


def _objects(facts: SourceFacts, backend: Backend) -> Iterator[str]:
    """Yield the globs of the shared objects that a wheel must contain.

    Of several extensions that the script may leave out (vllm has some for other GPUs), none is required; that
    the wheel has code for the GPU is checked anyway.
    """
    if not facts.compiles:
        return
    extensions = [row for row in facts.extensions if backend == "rocm" or not row.is_for_gpu]
    if facts.extensions and not extensions:
        return
    optional = {extension.name for extension in extensions if not extension.certain}
    required = extensions if len(optional) == 1 else [one for one in extensions if one.certain]
    if not required or not all(extension.name for extension in required):
        yield "*.so"
    names = dict.fromkeys(extension.name for extension in required if extension.name)
    yield from (f"{name.replace('.', '/')}*.so" for name in names)


def version_of_ref(ref: str) -> str:
    """Return the version in the name of a tag, such as ``v1.2``; empty if there is none."""
    text = ref.rpartition("/")[2].removeprefix("v")
    return text if is_version(text) and "." in text else ""
