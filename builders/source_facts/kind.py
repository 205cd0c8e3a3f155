"""What kind of source a source tree is: pure, compiled, against torch, for CUDA only; with evidence.

A source is *for CUDA only* if what it compiles requires CUDA in every build, and the source shows where:

- it compiles nothing, and all shared objects in it need libraries of CUDA;
- its script stops if torch is not for CUDA;
- its first CMake file requires the language or the toolkit of CUDA, and no build file mentions ROCm;
- an extension module that every build compiles alike includes a header of CUDA, or its kernels have code
  that torch does not translate: PTX, CUTLASS, WMMA. torch translates the other CUDA code of its extensions
  (torch.utils.hipify).

A condition around any of these may be false, so it is no evidence; nor is anything in a source that mentions
HIP. The build of such a source shows the rest.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builders.audit.contents import SHARED_OBJECT, matches_any
from builders.audit.elf import read_object
from builders.audit.platform_tags import CUDA_LIBRARIES
from builders.gpu.content import only_raises
from builders.wheels.wheel import DamagedError
from resolver.indexes import SourceClass
from resolver.requirements import required_name
from resolver.versions import grouped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from builders.source_facts.facts import SourceFacts

_PACKAGE = re.compile(r"(?:src/)?\w+/__init__\.py")
_OF_TORCH = re.compile(r"(?:CUDA|Cpp)Extension")
_COMMAND = re.compile(r"^[ \t]*(\w+)[ \t]*\(([^)]*)", re.MULTILINE)
_COMMENT = re.compile(r"#.*")
_BLOCKS = ("if", "foreach", "while", "function", "macro", "block")
"""Commands of CMake whose content may not be executed."""
_FOR_ROCM = re.compile(r"(?<![a-z])hip(?![a-z])|rocm", re.IGNORECASE)
_CMAKE_DOWNLOADS = {"fetchcontent_declare", "externalproject_add"}
_C_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)|//[^\n]*", re.DOTALL)
_DIRECTIVE = re.compile(r"\s*#\s*(if\w*|endif|include)\b\s*(.*)")
_INCLUDED = re.compile(r"[<\"]([^>\"]+)[>\"]")
_TOOLKIT = re.compile(
    r"cuda(?:Profiler|_runtime|_runtime_api|_fp16|Typedefs)?\.h$|nv(?:ml|rtc|ToolsExt)\.h$"
    r"|cu(?:blas|dnn|fft|rand|sparse)\w*\.h$"
)
"""Headers of CUDA's toolkit."""
_NOT_TRANSLATED = re.compile(
    r"(?:cutlass|cute)/|^(?:mma|device_launch_parameters|math_constants|cuda_pipeline\w*)\.h$"
    r"|^cuda/(?:barrier|pipeline|ptx)$"
)
"""Headers that torch leaves as they are, and HIP does not have: its table of replacements lists none of them
(torch/utils/hipify/cuda_to_hip_mappings.py of 2.13.0), nor are they among the headers of ROCm 7.2."""
_PTX = re.compile(r"\basm(?:\s+(?:volatile|__volatile__))?\s*\(")
_MOST_HEADERS = 300
_LARGEST = 2_000_000  # bytes of a C++ file


def classify(top: Path, facts: SourceFacts, own: Sequence[Path], unreadable: str) -> SourceClass:
    """Return the kind of a source; `own` are the files that the project did not copy from others.

    `unreadable` is why a build script could not be read, if there is one.
    """
    if not facts.compiles and unreadable:
        return SourceClass("unread", unreadable)
    for path in own:
        name = path.relative_to(top).as_posix()
        if (name == "setup.py" or _PACKAGE.fullmatch(name)) and only_raises(path.read_bytes()):
            return SourceClass("placeholder", f"{name} only raises an error")
    if where := _for_cuda(top, facts, own):
        return SourceClass("cuda", where)
    if downloads := [*facts.downloads, *_downloads(top, _first_cmake(facts))]:
        return SourceClass("downloads", f"{downloads[0]} downloads files")
    if not facts.compiles:
        named = " and ".join(facts.read) or f"pyproject.toml ({facts.backend})"
        return SourceClass("pure", f"{named} {'define' if len(facts.read) > 1 else 'defines'} no extension")
    return SourceClass("torch" if facts.builds_with_torch else "compiled", "; ".join(_compiled(facts)))


def _compiled(facts: SourceFacts) -> Iterator[str]:
    """Yield what shows that a source is compiled, and against torch."""
    if facts.builds_with_torch:
        declares = any(required_name(text) == "torch" for text in facts.declared)
        where = f"{facts.torch[0]} imports torch" if facts.torch else f"{facts.cmake.files[0]} finds Torch"
        yield where if declares else f"{where}, which the source does not declare"
    if facts.extensions:
        first = max(facts.extensions, key=lambda row: (bool(_OF_TORCH.search(row.kind)), row.certain))
        yield f"{first.where} defines {first.name or 'an extension'} ({first.kind})"
    elif facts.cmake.files:
        yield f"it is built with {facts.cmake.files[0]}"
    else:
        yield f"{facts.read[0]} computes its extensions" if facts.read else f"its backend is {facts.backend}"


def _for_cuda(top: Path, facts: SourceFacts, own: Sequence[Path]) -> str:
    """Return where every build requires CUDA; empty if nothing shows this."""
    if not facts.compiles:
        return _prebuilt(top, own)
    if any(_FOR_ROCM.search(_text(top / name)) for name in (*facts.read, *facts.cmake.files)):
        return ""
    if facts.gates:
        return f"{facts.gates[0]} stops if torch is not for CUDA"
    where = _cmake_requires_cuda(top, _first_cmake(facts))
    return where or ("" if facts.mentions_hip else _compiled_for_cuda(top, facts, own))


def _compiled_for_cuda(top: Path, facts: SourceFacts, own: Sequence[Path]) -> str:
    """Return the extension module that every build compiles, and that needs what HIP lacks; else empty."""
    headers = grouped((path.name, path) for path in own)
    for extension in facts.extensions:
        is_translated = extension.kind in {"CUDAExtension", "CppExtension"}
        names, suffix = (_NOT_TRANSLATED, ".cu") if is_translated else (_TOOLKIT, "")
        files = [top / name for name in extension.sources if name.endswith(suffix) and (top / name).is_file()]
        is_certain = extension.certain and " or " not in extension.kind
        if is_certain and (where := _needs_header(top, files, headers, names)):
            return f"{extension.name or extension.where} is compiled from {where}"
    return ""


def _prebuilt(top: Path, own: Sequence[Path]) -> str:
    """Return the first shared object if all need CUDA; empty if one does not, or there is none."""
    found = []
    for path in own:
        if not SHARED_OBJECT.search(path.name):
            continue
        try:
            needed = read_object(path.name, path.read_bytes()).needed
        except DamagedError:
            return ""
        library = next((name for name in needed if matches_any(name, CUDA_LIBRARIES)), "")
        if not library:
            return ""
        found.append(f"it has {path.relative_to(top)}, which needs {library}")
    return found[0] if found else ""


def _first_cmake(facts: SourceFacts) -> str:
    """Return the CMake file that a build reads first; empty if there is none, or it is not clear which."""
    files = [name for name in facts.cmake.files if name.endswith("CMakeLists.txt")]
    depth = min((name.count("/") for name in files), default=0)
    first = [name for name in files if name.count("/") == depth]
    return first[0] if len(first) == 1 else ""


def _commands(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and arguments of the commands of a CMake file that are always executed."""
    depth, line, end = 0, 1, 0
    text = _COMMENT.sub("", text)
    for match in _COMMAND.finditer(text):
        line, end = line + text.count("\n", end, match.start(1)), match.start(1)
        name = match[1].lower()
        depth += (name in _BLOCKS) - (name.startswith("end") and name[3:] in _BLOCKS)
        if not depth:
            yield line, name, match[2]


def _cmake_requires_cuda(top: Path, file: str) -> str:
    for line, name, arguments in _commands(_text(top / file)) if file else ():
        words = arguments.upper().split()
        if "CUDA" in words and name in {"project", "enable_language"} and "OPTIONAL" not in words:
            return f"{file}:{line} requires the language CUDA"
        if name == "find_package" and words[:1] in (["CUDA"], ["CUDATOOLKIT"]) and "REQUIRED" in words:
            return f"{file}:{line} requires CUDA's toolkit"
    return ""


def _downloads(top: Path, file: str) -> Iterator[str]:
    for line, name, arguments in _commands(_text(top / file)) if file else ():
        if name in _CMAKE_DOWNLOADS or (name == "file" and arguments.upper().split()[:1] == ["DOWNLOAD"]):
            yield f"{file}:{line}"


def _needs_header(
    top: Path, files: Sequence[Path], headers: dict[str, list[Path]], names: re.Pattern[str]
) -> str:
    """Return where C++ files, or own headers that they include, need what HIP lacks; else empty."""
    waiting, seen = [*files], {*files}
    for path in waiting:
        if path.stat().st_size > _LARGEST:
            continue
        for line, name in _unconditional(_text(path)):
            where = f"{path.relative_to(top)}:{line}"
            own = headers.get(name.rpartition("/")[2], ()) if name else ()
            if not name and names is _NOT_TRANSLATED:
                return f"{where}, which has PTX"
            if name and names.search(name) and not own:
                return f"{where}, which includes {name}"
            new = [header for header in own if header not in seen and str(header).endswith(f"/{name}")]
            waiting += new if len(seen) < _MOST_HEADERS else []
            seen.update(new)
    return ""


def _unconditional(text: str) -> Iterator[tuple[int, str]]:
    """Yield the includes of a C++ file outside of conditions, and its PTX as an empty name, by line."""
    text = _C_COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    conditions: list[str] = []  # of each open #if; empty for the guard of a header
    lines = text.split("\n")
    for number, line in enumerate(lines):
        directive = _DIRECTIVE.match(line)
        if directive is None:
            if not any(conditions) and _PTX.search(line):
                yield number + 1, ""
        elif directive[1] == "endif":
            conditions[-1:] = []
        elif directive[1].startswith("if"):
            after = next(filter(str.strip, lines[number + 1 : number + 4]), "").split()
            is_guard = directive[1] == "ifndef" and after[:2] == ["#define", *directive[2].split()[:1]]
            conditions.append("" if is_guard else directive[0])
        elif directive[1] == "include" and not any(conditions) and (found := _INCLUDED.match(directive[2])):
            yield number + 1, found[1]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
