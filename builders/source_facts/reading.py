"""Read facts about a build from its source tree, without executing any of its code.

The build scripts are read as syntax trees (`builders.source_facts.build_script`), CMake files as text.
"""

from __future__ import annotations

import configparser
import os
import re
import sys
from collections import Counter
from glob import iglob
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from msgspec.structs import replace
from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement

from builders.constants import MODULES, TAKEN_OUT
from builders.pyproject import FILE, PyProject, read_project, static_metadata
from builders.source_facts.build_script import BuildScript, BuildVariable, Extension, read_script
from builders.source_facts.facts import CMake, SourceFacts
from builders.source_facts.kind import classify
from resolver.errors import UsageError
from resolver.indexes import Metadata
from resolver.requirements import normalize_name, required_name
from resolver.versions import is_version, join_words, specifier_or_none

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

_SKIPPED = {".git", ".hg", "build", "dist", "node_modules", "venv", ".venv"}
_NOT_OWN = {"third_party", "thirdparty", "3rdparty", "third-party", "external", "extern", "submodules",
            "deps", "pybind11", "tests", "test", "examples", "docs"}  # fmt: skip
"""Directories whose CMake files and Python files do not belong to the project's own build."""
KERNELS = {".cu", ".cuh", ".hip"}
HOST_CODE = {".c", ".cc", ".cpp", ".cxx", ".pyx", ".rs", ".f90"}
_LARGEST = 2_000_000  # bytes of a text that is searched
_CMAKE_WITHOUT_OLD_POLICIES = (3, 5)
"""CMake 4 rejects a ``cmake_minimum_required`` below this (release notes of CMake 4.0)."""
ARCHITECTURES = re.compile(r"(CUDA|ROCM|HIP|HCC|GPU|OFFLOAD).*(ARCH|TARGET)|GFX")
"""Parts of the names of variables that list GPU architectures."""
_CMAKE_ARCHITECTURES = re.compile(
    r"\b(CMAKE_(?:HIP|CUDA)_ARCHITECTURES|PYTORCH_ROCM_ARCH|TORCH_CUDA_ARCH_LIST|AMDGPU_TARGETS|GPU_TARGETS"
    r"|GPU_ARCHS|HCC_AMDGPU_TARGET|HIP_ARCHITECTURES)\b"
)
_CMAKE_ENV = re.compile(r"\$ENV\{(\w+)\}")
_CMAKE_OPTION = re.compile(r"^\s*option\s*\(\s*(\w+)\s+\"[^\"]*\"\s*(\w*)", re.MULTILINE | re.IGNORECASE)
_CMAKE_MINIMUM = re.compile(r"cmake_minimum_required\s*\(\s*VERSION\s+(\d+)\.(\d+)", re.IGNORECASE)
_CMAKE_PROJECT = re.compile(r"^\s*project\s*\(([^)]*)\)", re.MULTILINE | re.IGNORECASE)
_CMAKE_TORCH = re.compile(r"^\s*find_package\s*\(\s*(?:Py)?Torch\b", re.MULTILINE | re.IGNORECASE)
_CMAKE_DOWNLOAD = re.compile(r"FetchContent_|ExternalProject_Add|file\s*\(\s*DOWNLOAD", re.IGNORECASE)
_COMPUTES_VERSION = {"version", "others", "use_scm_version", "pbr", "setuptools_scm"}
"""Arguments of ``setup()`` and tables of ``pyproject.toml`` that compute the version."""
_CXX_STANDARD = re.compile(r"-std=(?:c|gnu)\+\+([12]\d)|CMAKE_CXX_STANDARD[\s=]+([12]\d)")
_ASKS = {
    "cuda.is_available": "the effect of a GPU: the build calls torch.cuda.is_available()",
    "has_cuda": "the effect of a GPU: the build checks torch.has_cuda",
    "CUDA_HOME": "the effect of CUDA_HOME, which torch sets to None for ROCm",
}
"""Names in a script whose effect depends on the machine, each with the gap to report."""
_HOOKS = (
    "poetry.build",
    "poetry.build.script",
    "hatch.build.hooks.custom.path",
    "hatch.build.targets.wheel.hooks.custom.path",
    "pdm.build.custom-hook",
)
"""Keys of ``[tool]`` in ``pyproject.toml`` that name a script that the build backend executes."""
_COMMENT = re.compile(r"#.*")
_MENTIONS_HIP = re.compile(rb"USE_ROCM|__HIP|version\.hip|IS_HIP_EXTENSION|hip/hip_|hip_runtime|\bhipcc\b")
_SUBMODULE = re.compile(r"^\s*path\s*=\s*(\S+)\s*$", re.MULTILINE)
_STATE_VERSION = (
    "A build would compute it. State it in [project] of its pyproject.toml, name a tag such as v1.2 of its "
    "git repository, or draft a recipe: `matrix catalog draft {shown} --release VERSION`."
)
_VERSION_LINE = re.compile(r"^__version__\s*(?::\s*\w+\s*)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def learn_source(top: Path) -> SourceFacts:
    """Return the facts about the build of a source tree with ``pyproject.toml`` or ``setup.py`` in `top`."""
    document = read_project(top)
    scripts = _read_scripts(top, document)
    cmake, of_cmake = _read_cmake(top, scripts, document)
    build = "\n".join(_COMMENT.sub("", _read(top / name)) for name in (*_paths(scripts), *cmake.files))
    files = Counter(path.suffix for path in _all_files(top) if path.suffix in KERNELS | HOST_CODE)
    extensions = (*_in_packages(scripts), *_in_pyproject(document))
    variables = [variable for script in scripts for variable in script.variables] + of_cmake
    if any(name.endswith("CUDAExtension") for script in scripts for name in script.names):
        variables.append(BuildVariable("PYTORCH_ROCM_ARCH", "", "torch.utils.cpp_extension"))
    declared = document.build_system.requires
    undeclared, optional = _undeclared(top, scripts, cmake, document)
    name, version = _name_and_version(top, document, scripts)
    undetermined = [reason for script in scripts for reason in script.undetermined]
    undetermined += _undetermined(document, scripts, extensions, cmake, files)
    facts = SourceFacts(
        name=name,
        version=version,
        summary=_summary(top, document, scripts),
        import_name=_import_name(top, name, extensions),
        requires_python=_requires_python(top, document, scripts),
        requires=_run_requirements(top, document, scripts),
        backend=document.build_system.build_backend,
        read=_paths(scripts),
        torch=tuple(
            dict.fromkeys(
                entry.where
                for script in scripts
                for entry in script.imports
                if entry.module.split(".")[0] == "torch"
            )
        ),
        declared=declared,
        undeclared=undeclared,
        optional=optional,
        extensions=extensions,
        cmake=cmake,
        architectures=_distinct(row for row in variables if ARCHITECTURES.search(row.name)),
        flags=_distinct(row for row in variables if not ARCHITECTURES.search(row.name)),
        sets=tuple(dict.fromkeys(name for script in scripts for name in script.sets)),
        files=dict(sorted(files.items())),
        missing=_missing(top, extensions),
        submodules=_submodules(top),
        mentions_hip=_mentions_hip(top),
        native_cpu="-march=native" in build,
        passes_host_compiler="-ccbin" in build,
        cxx_standards=tuple(sorted({a or b for a, b in _CXX_STANDARD.findall(build)})),
        compiles=_compiles(document, scripts, cmake),
        downloads=tuple(where for script in scripts for where in script.downloads),
        gates=tuple(where for script in scripts for where in script.gates),
        undetermined=tuple(dict.fromkeys(undetermined)),
    )
    unreadable = next((script.unreadable for script in scripts if script.unreadable), "")
    return replace(facts, source=classify(top, facts, [*_own_files(top, sys.maxsize)], unreadable))


def is_requirement(text: str) -> bool:
    """Return whether a text is a valid requirement (PEP 508)."""
    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True


def learn_release(top: Path, shown: str, version: str = "", tag: str = "") -> SourceFacts:
    """Return the facts in a source whose name and version are known.

    `shown` is the source in messages. `version` is what the user states, and `tag` counts if the source
    computes its version. Raise `UsageError` if the name or the version cannot be read.
    """
    if version and not is_version(version):
        raise UsageError(f"{version!r} is not a valid version (PEP 440).")
    try:
        facts = learn_source(top)
    except UsageError as error:
        raise error.changed(message=error.message.replace(str(top), shown)) from None
    facts = replace(facts, version=version or facts.version or tag)
    if not facts.name or required_name(facts.name) != facts.name:
        msg = f"{shown} does not state a valid name, or computes its name."
        raise UsageError(msg, hint="Make an sdist (`python -m build --sdist`), and name that file.")
    if not facts.version:
        msg = f"{shown} computes its version, so it cannot be read without running its code."
        raise UsageError(msg, hint=_STATE_VERSION.format(shown=shown))
    return facts


def tree_metadata(top: Path, shown: str, tag: str = "") -> Metadata:
    """Return the metadata of a source tree as far as its files state them; see `learn_release`."""
    metadata = static_metadata(top / FILE)
    if metadata is not None:
        return metadata
    facts = learn_release(top, shown, tag=tag)
    metadata = static_metadata(top / FILE, facts.version)
    if metadata is not None:
        return metadata
    python = facts.requires_python if specifier_or_none(facts.requires_python) is not None else ""
    read = join_words(facts.read or (FILE,), joiner="and")
    requires = tuple(filter(is_requirement, facts.requires))
    return Metadata(
        facts.name, facts.version, requires, requires_python=python, source=f"its {read}", dynamic=True
    )


def has_extensions(top: Path) -> bool:
    """Return whether the build of a source tree compiles something, as far as is known.

    Raise `UsageError` if it is not a valid project.
    """
    document = read_project(top)
    scripts = _read_scripts(top, document)
    return _compiles(document, scripts, _read_cmake(top, scripts, document)[0])


def _compiles(document: PyProject, scripts: Sequence[BuildScript], cmake: CMake) -> bool:
    extensions = (*(row for script in scripts for row in script.extensions), *_in_pyproject(document))
    return bool(extensions or cmake.files or _compiling_backend(document)) or any(
        {"ext_modules", "cffi_modules"}.intersection([*script.computed, *script.setup]) for script in scripts
    )


def _paths(scripts: Iterable[BuildScript]) -> tuple[str, ...]:
    return tuple(script.file for script in scripts)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _compiling_backend(document: PyProject) -> bool:
    """Return whether the build backend is made for compiled extensions."""
    backend = document.build_system.build_backend.partition(".")[0].partition(":")[0]
    return backend in {"scikit_build_core", "mesonpy", "maturin", "skbuild"}


def _in_packages(scripts: Sequence[BuildScript]) -> Iterator[Extension]:
    """Yield the extension modules of the scripts, in the package that ``setup(ext_package=...)`` names."""
    package = next(filter(None, (_literal(script, "ext_package") for script in scripts)), "")
    is_computed = any("ext_package" in script.computed for script in scripts)
    for extension in (row for script in scripts for row in script.extensions):
        name = f"{package}.{extension.name}" if package and extension.name else extension.name
        yield replace(extension, name="" if is_computed else name)


def _in_pyproject(document: PyProject) -> Iterator[Extension]:
    """Yield the extension modules that ``[tool.setuptools]`` lists."""
    setuptools = document.tool.get("setuptools", {})
    tables = setuptools.get("ext-modules", []) if isinstance(setuptools, dict) else []
    for table in tables if isinstance(tables, list) else []:
        if isinstance(table, dict):
            sources = table.get("sources", [])
            files = tuple(map(str, sources)) if isinstance(sources, list) else ()
            yield Extension(str(table.get("name", "")), "ext-modules", FILE, files)


# Build scripts


def _entry_scripts(top: Path, document: PyProject) -> list[str]:
    """Return the files that a build executes first: their functions are called, too."""
    module = document.build_system.build_backend.partition(":")[0].replace(".", "/")
    backends = (
        str(PurePosixPath(folder, name))
        for folder in document.build_system.backend_path
        for name in (f"{module}.py", f"{module}/__init__.py")
    )
    hooks = filter(None, (_text_at(document.tool, *keys.split(".")) for keys in _HOOKS))
    names = dict.fromkeys(("setup.py", "hatch_build.py", "pdm_build.py", *hooks, *backends))
    return [name for name in names if (top / name).is_file()]


def _text_at(table: object, *keys: str) -> str:
    """Return the text at a path of keys in nested tables; empty if there is none."""
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table if isinstance(table, str) else ""


def _read_scripts(top: Path, document: PyProject) -> list[BuildScript]:
    """Read the build scripts and, recursively, the modules of the source that they need."""
    entries = _entry_scripts(top, document)
    waiting = [*entries]
    scripts: dict[str, BuildScript] = {}
    while waiting:
        file = waiting.pop(0)
        path = top / file
        is_own = path.resolve().is_relative_to(top.resolve()) and path.stat().st_size <= _LARGEST
        if file in scripts or not is_own:
            continue
        script = read_script(_read(path), file)
        scripts[file] = script
        folders = _search_path(script, scripts.values())
        needed = (
            entry.module
            for entry in script.imports
            if not entry.optional and (file in entries or not entry.in_function)
        )
        waiting = [*waiting, *(name for module in needed for name in _local_files(top, module, folders))]
    return list(scripts.values())


def _search_path(script: BuildScript, scripts: Iterable[BuildScript]) -> set[str]:
    """Return the directories of the source that may contain the modules that a script imports."""
    added = {folder for other in scripts for folder in other.search_path}
    return {"", str(PurePosixPath(script.file).parent), *added}


def _local_files(top: Path, module: str, folders: Iterable[str]) -> Iterator[str]:
    """Yield the files of the source that importing a module executes."""
    parts = module.split(".")
    for folder in folders:
        for length in range(1, len(parts) + 1):
            path = PurePosixPath(folder, *parts[:length])
            for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
                if (top / file).is_file():
                    yield str(file)


def _undeclared(
    top: Path, scripts: list[BuildScript], cmake: CMake, document: PyProject
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the undeclared build requirements, and the optional modules."""
    declared = document.build_system.requires
    known = {required_name(text) for text in declared}
    needed = {} if known else {"setuptools": "setuptools", "wheel": "wheel"}
    needed |= {required_name(text): text for text in _listed(top, scripts, "setup_requires")}
    if any(required_name(text) == "setuptools" and re.search("==|<|~=", text) for text in declared):
        needed["wheel"] = "wheel"  # setuptools before 70.1 cannot build wheels without it
    optional: dict[str, str] = {}
    for module, is_required in _outer_modules(top, scripts, _entry_scripts(top, document)):
        name = MODULES.get(normalize_name(module), normalize_name(module))
        if is_required and module == "pkg_resources":
            needed[name] = TAKEN_OUT[module]
        elif name not in known:
            (needed if is_required or name == "torch" else optional).setdefault(name, name)
    if cmake.uses_torch:
        needed.setdefault("torch", "torch")
    if cmake.files and not known & {"cmake", "scikit-build-core", "scikit-build"}:
        old = cmake.minimum is not None and cmake.minimum < _CMAKE_WITHOUT_OLD_POLICIES
        needed["cmake"] = "cmake<4" if old else "cmake"
    if any(map(_uses_torch_build_extension, scripts)):
        needed.setdefault("ninja", "ninja")  # without it, torch compiles one file at a time
    undeclared = (text for text in needed.values() if "<" in text or required_name(text) not in known)
    return tuple(undeclared), tuple(name for name in optional if name not in needed)


def _outer_modules(
    top: Path, scripts: list[BuildScript], entries: Collection[str]
) -> Iterator[tuple[str, bool]]:
    """Yield the imported modules of other distributions, and whether the build fails without them."""
    standard = sys.stdlib_module_names - {"distutils"}
    for script in scripts:
        folders = _search_path(script, scripts)
        for entry in script.imports:
            module = entry.module.partition(".")[0]
            if module not in standard and not any(_local_files(top, module, folders)):
                is_called = script.file in entries or not entry.in_function
                yield module, is_called and not entry.optional and not entry.conditional


def _uses_torch_build_extension(script: BuildScript) -> bool:
    imported = any(entry.module == "torch.utils.cpp_extension.BuildExtension" for entry in script.imports)
    return imported or any(name.endswith("cpp_extension.BuildExtension") for name in script.names)


def _setup_cfg(top: Path, section: str, key: str) -> str:
    parser = configparser.RawConfigParser()
    try:
        parser.read(top / "setup.cfg", encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return ""
    return parser.get(section, key, fallback="")


# Metadata


def _name_and_version(top: Path, document: PyProject, scripts: list[BuildScript]) -> tuple[str, str]:
    """Return name and version; each is empty if it could not be determined."""
    name = document.project.name if document.project else ""
    version = document.project.version if document.project else ""
    stated = _pkg_info(top)
    setup = next((script for script in scripts if script.setup), BuildScript(""))
    name = name or stated.get("name", "") or _literal(setup, "name") or _setup_cfg(top, "metadata", "name")
    stated_versions = (version, stated.get("version", ""), _literal(setup, "version"),
                       _setup_cfg(top, "metadata", "version"))  # fmt: skip
    computed = _COMPUTES_VERSION.intersection([*setup.computed, *document.tool])
    default = "0.0.0" if setup.setup and document.project is None and not computed else ""  # setuptools'
    candidates = (*stated_versions, default, *_version_files(top, name))
    return normalize_name(name), next((text for text in candidates if text and is_version(text)), "")


def _literal(script: BuildScript, key: str) -> str:
    value = script.setup.get(key, "")
    return value if isinstance(value, str) else ""


def _pkg_info(top: Path) -> dict[str, str]:
    try:
        raw, _ = parse_email((top / "PKG-INFO").read_bytes())
    except OSError:
        return {}
    return {"name": raw.get("name", ""), "version": raw.get("version", ""), "summary": raw.get("summary", "")}


def _summary(top: Path, document: PyProject, scripts: list[BuildScript]) -> str:
    texts = [_pkg_info(top).get("summary", ""), document.project.description if document.project else ""]
    texts += [_literal(script, "description") for script in scripts]
    return " ".join(next(filter(None, texts), "").split())


def _import_name(top: Path, name: str, extensions: Iterable[Extension]) -> str:
    """Return the import package: the directory with the name of the project or of an extension's package."""
    package = name.replace("-", "_")
    packages = [
        path.parent.name
        for folder in (top, top / "src", top / "python")
        for path in sorted(folder.glob("*/__init__.py"))
    ]
    of_extensions = {extension.name.partition(".")[0] for extension in extensions}
    for candidate in packages:
        if candidate.lower() == package or candidate in of_extensions:
            return candidate
    return package if (top / f"{package}.py").is_file() else ""


def _version_files(top: Path, name: str) -> Iterator[str]:
    """Yield the values that files of the package assign to ``__version__``."""
    package = name.replace("-", "_")
    for folder in (top / package, top / "src" / package):
        for file in ("version.py", "_version.py", "__init__.py", "__version__.py"):
            if (folder / file).is_file():
                yield from _VERSION_LINE.findall(_read(folder / file))


def _requires_python(top: Path, document: PyProject, scripts: list[BuildScript]) -> str:
    texts = [document.project.requires_python] if document.project else []
    texts += [_literal(script, "python_requires") for script in scripts]
    texts.append(_setup_cfg(top, "options", "python_requires"))
    return next((text for text in texts if text and specifier_or_none(text) is not None), "")


def _run_requirements(top: Path, document: PyProject, scripts: list[BuildScript]) -> tuple[str, ...]:
    if document.project and document.project.dependencies:
        return document.project.dependencies
    return tuple(_listed(top, scripts, "install_requires"))


def _listed(top: Path, scripts: list[BuildScript], key: str) -> Iterator[str]:
    """Yield the requirements that ``setup()`` or ``setup.cfg`` list under a key."""
    for script in scripts:
        listed = script.setup.get(key, [])
        yield from listed.split("\n") if isinstance(listed, str) else listed
    yield from filter(None, map(str.strip, _setup_cfg(top, "options", key).split("\n")))


# CMake and other files


def _read_cmake(
    top: Path, scripts: list[BuildScript], document: PyProject
) -> tuple[CMake, list[BuildVariable]]:
    """Read the project's own CMake files, if its build uses CMake."""
    calls_cmake = any("cmake" in script.programs for script in scripts)
    backend = document.build_system.build_backend
    imports = {entry.module.partition(".")[0] for script in scripts for entry in script.imports}
    if not calls_cmake and "scikit_build_core" not in backend and "skbuild" not in imports:
        return CMake(), []
    texts = {
        str(path.relative_to(top)): _COMMENT.sub("", _read(path))
        for path in _own_files(top)
        if path.name == "CMakeLists.txt" or path.suffix == ".cmake"
    }
    variables = [
        BuildVariable(name, default, file)
        for file, text in texts.items()
        for name, default in [
            *((name, "") for name in _CMAKE_ENV.findall(text)),
            *((name, "") for name in _CMAKE_ARCHITECTURES.findall(text)),
            *_CMAKE_OPTION.findall(text),
        ]
    ]
    whole = "\n".join(texts.values())
    projects = " ".join(_CMAKE_PROJECT.findall(whole)).upper().split()
    minimum = [(int(major), int(minor)) for major, minor in _CMAKE_MINIMUM.findall(whole)]
    cmake = CMake(
        tuple(texts),
        tuple(language for language in ("C", "CXX", "CUDA", "HIP") if language in projects),
        min(minimum, default=None),
        bool(_CMAKE_TORCH.search(whole)),
        bool(_CMAKE_DOWNLOAD.search(whole)),
    )
    return cmake, variables


def _all_files(top: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        paths = (Path(folder, name) for name in sorted(names))
        yield from (path for path in paths if path.is_file() and not path.is_symlink())


def _own_files(top: Path, largest: int = _LARGEST) -> Iterator[Path]:
    for path in _all_files(top):
        if not _NOT_OWN.intersection(path.relative_to(top).parts) and path.stat().st_size <= largest:
            yield path


def _mentions_hip(top: Path) -> bool:
    suffixes = KERNELS | HOST_CODE | {".h", ".hpp", ".py", ".txt", ".cmake"}
    files = (path for path in _own_files(top) if path.suffix in suffixes)
    return any(path.suffix == ".hip" or _MENTIONS_HIP.search(path.read_bytes()) for path in files)


def _missing(top: Path, extensions: Iterable[Extension]) -> tuple[str, ...]:
    names = dict.fromkeys(file for extension in extensions for file in extension.sources)
    return tuple(name for name in names if not PurePosixPath(name).is_absolute() and not _exists(top, name))


def _exists(top: Path, name: str) -> bool:
    if "*" in name:
        # Path.glob rejects "**.cu", which build scripts use.
        return next(iglob(name, root_dir=top, recursive=True), None) is not None  # noqa: PTH207
    return (top / name).exists() or (name.endswith(".pyx") and (top / name).with_suffix(".cpp").exists())


def _submodules(top: Path) -> dict[str, bool]:
    file = top / ".gitmodules"
    paths = _SUBMODULE.findall(_read(file)) if file.is_file() else []
    return {path: (top / path).is_dir() and any((top / path).iterdir()) for path in paths}


def _distinct(variables: Iterable[BuildVariable]) -> tuple[BuildVariable, ...]:
    by_name: dict[str, BuildVariable] = {}
    for variable in variables:
        known = by_name.setdefault(variable.name, variable)
        if variable.default and not known.default:
            by_name[variable.name] = variable
    return tuple(by_name.values())


def _undetermined(
    document: PyProject,
    scripts: list[BuildScript],
    extensions: Sequence[Extension],
    cmake: CMake,
    files: dict[str, int],
) -> Iterator[str]:
    """Yield the facts about the build that could not be determined."""
    for extension in (extension for extension in extensions if not extension.name):
        yield f"the name of the {extension.kind} at {extension.where}, which is computed"
    if cmake.files:
        yield "the libraries that CMake builds and installs"
    elif not extensions and (gap := _unknown_compilation(document, scripts, files)):
        yield gap
    modules = {entry.module for script in scripts for entry in script.imports}
    if cmake.downloads or modules & {"urllib.request", "requests"}:
        yield "the files that the build downloads: a build has no network"
    names = {name for script in scripts for name in script.names}
    for name, text in _ASKS.items():
        if any(used == name or used.endswith(f".{name}") for used in names):
            yield text
    if any("nvcc" in script.programs for script in scripts):
        yield "the effect of nvcc, which the build looks for"


def _unknown_compilation(document: PyProject, scripts: list[BuildScript], files: dict[str, int]) -> str:
    """Return the gap for code that a build without known extension modules may compile; empty if none."""
    if _compiling_backend(document):
        return f"the files that the build backend {document.build_system.build_backend} compiles"
    if any("ext_modules" in script.computed for script in scripts):
        return "the extension modules of setup(), whose argument ext_modules is computed"
    if any({"cffi_modules", "others"} & {*script.setup, *script.computed} for script in scripts):
        return "the files that setup() compiles: it has arguments that are not read"
    listed = ", ".join(f"{count} {suffix}" for suffix, count in files.items())
    return f"the use of the source files that no build script compiles ({listed})" if files else ""
