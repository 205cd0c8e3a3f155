"""Check the requirements of shared objects: libraries, symbol versions, torch's symbols, search paths."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from builders.audit.contents import OTHER_BACKENDS, matches_any
from builders.audit.elf import version_key
from builders.audit.platform_tags import (
    ROCM_LIBRARIES,
    TORCH_LIBRARIES,
    libraries_of_system,
    promised_glibc,
    promised_versions,
)
from builders.findings import Finding
from builders.machine.process import output_of
from builders.recipes import WITH_AVX512
from resolver.versions import names_torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builders.audit.contents import Contents, Expected
    from builders.audit.elf import SharedObject
    from builders.findings import Severity

_SYSTEM = (
    "ld-linux*", "ld64*", "libc.so.*", "libm.so.*", "libdl.so.*", "librt.so.*", "libpthread.so.*",
    "libutil.so.*", "libgcc_s.so.*", "libstdc++.so.*", "libpython3*",
)  # fmt: skip
"""Libraries that are present wherever a Python with compiled extensions runs."""
_COMPILER_LIBRARIES = {"GLIBCXX": "libstdc++", "CXXABI": "libstdc++", "GCC": "libgcc"}
_CONDA_NAMES = {"libstdc++": "libstdcxx-ng", "libgcc": "libgcc-ng"}
_ROCM_ROOTS = ("/opt/rocm/", "/opt/rocm-")
_MOST_SYMBOLS = 5
_LONGEST_SYMBOL = 500  # characters that are shown
_FOR_THIS_TORCH = "Build the wheel against the torch that it will run with."


def check_versions(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Compare the needed symbol versions with the platform tag and with the image or environment."""
    for family in ("GLIBC", "GLIBCXX", "CXXABI", "GCC"):
        needed = [
            (version_key(version), version, item.path)
            for item in contents.objects
            if (version := item.versions.get(family))
        ]
        if not needed:
            continue
        _, version, path = max(needed)
        evidence = {"member": path, "symbol version": f"{family}_{version}"}
        if family == "GLIBC":
            yield from _compare_glibc_with_tag(contents, version, path, evidence)
        else:
            yield from _compare_runtime_with_tag(contents, family, version, evidence)
        for provider in expected.providers:
            present = provider.versions.get(family)
            if present and version_key(version) > version_key(present):
                text = f"{path} needs {family}_{version}, but {provider.name} has at most {family}_{present}."
                yield _too_new(family, text, evidence)


def check_cpu(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Compare what compilers and linkers recorded of AVX-512 with the CPU; most record nothing."""
    if not expected.cpu or expected.cpu in WITH_AVX512:
        return
    fix = f"Build it for this CPU: `matrix build-wheels --cpu {expected.cpu}`."
    for item in contents.objects:
        evidence = {"member": item.path}
        options = [
            option
            for option in item.cpu_options
            if option.startswith("-mavx512") or option.removeprefix("-march=") in WITH_AVX512
        ]
        if item.needs_avx512:
            text = f"{item.path} needs x86-64-v4 (AVX-512), and {expected.cpu} lacks it: it does not load."
            yield Finding("cpu-too-old", "error", text, fix, evidence)
        elif options:
            text = (
                f"Parts of {item.path} were compiled with {', '.join(options[:3])}, and {expected.cpu} lacks "
                "AVX-512: they end with Illegal instruction unless the program chooses them by the CPU."
            )
            yield Finding("cpu-options", "warning", text, fix, evidence)


def _compare_glibc_with_tag(
    contents: Contents, version: str, path: str, evidence: dict[str, str]
) -> Iterator[Finding]:
    for platform in sorted({tag.platform for tag in contents.tags}):
        promised = promised_glibc(platform)
        if promised and version_key(version) > version_key(promised):
            text = f"{path} needs glibc {version}, but the tag {platform} promises glibc {promised}."
            fix = "Tag the wheel for the glibc that it needs, or build it on an older system."
            yield Finding("glibc-above-tag", "error", text, fix, evidence)
    if all(tag.platform.startswith("linux_") for tag in contents.tags):
        text = f"The platform tag promises no glibc version, and the wheel needs glibc {version}."
        yield Finding("plain-platform-tag", "info", text, "", evidence)


def _compare_runtime_with_tag(
    contents: Contents, family: str, version: str, evidence: dict[str, str]
) -> Iterator[Finding]:
    library = _COMPILER_LIBRARIES[family]
    if any(PurePosixPath(info.filename).name.startswith(library) for info in contents.members):
        return
    for platform in sorted({tag.platform for tag in contents.tags}):
        promised = promised_versions(platform).get(family)
        if promised and version_key(version) > version_key(promised):
            text = (
                f"{evidence['member']} needs {family}_{version}, but the systems that the tag {platform}"
                f" promises have at most {family}_{promised}."
            )
            fix = "Tag the wheel for the system that it needs, or build it with an older compiler."
            yield Finding("libstdcxx-above-tag", "error", text, fix, evidence)


def _too_new(family: str, text: str, evidence: dict[str, str]) -> Finding:
    if family == "GLIBC":
        fix = "Build the wheel in the image that it will run in."
        return Finding("glibc-too-new", "error", text, fix, evidence)
    library = _COMPILER_LIBRARIES[family]
    conda = _CONDA_NAMES[library]
    fix = f"Build the wheel with its image's compiler, or run it with a newer {library} (conda: {conda})."
    return Finding("libstdcxx-too-new", "error", text, fix, evidence)


def check_libraries(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Check that every needed library is provided."""
    provided = {PurePosixPath(info.filename).name for info in contents.members}
    provided |= {item.soname for item in contents.objects if item.soname}
    provided.update(*(provider.libraries or () for provider in expected.providers))
    if expected.torch is not None:
        provided |= expected.torch.libraries or frozenset()
    for item in contents.objects:
        missing = [name for name in item.needed if name not in provided and not matches_any(name, _SYSTEM)]
        others = [name for name in missing if matches_any(name, OTHER_BACKENDS)]
        if others:
            text = f"{item.path} needs {', '.join(others)}, for GPUs of other vendors."
            evidence = {"member": item.path, "library": " ".join(others)}
            yield Finding("need-of-other-backend", "info", text, "", evidence)
        missing = [name for name in missing if name not in others]
        of_torch = [name for name in missing if matches_any(name, TORCH_LIBRARIES)]
        of_rocm = [name for name in missing if matches_any(name, ROCM_LIBRARIES)]
        rest = [name for name in missing if name not in of_torch and name not in of_rocm]
        yield from _missing_of_torch(item, of_torch, expected)
        yield from _missing_of_rocm(item, of_rocm, expected)
        yield from _missing_others(item, rest, expected)


def _knows_torch(expected: Expected) -> bool:
    return expected.torch is not None and expected.torch.libraries is not None


def _knows_image(expected: Expected) -> bool:
    return any(provider.is_image and provider.libraries is not None for provider in expected.providers)


def _missing_of_torch(item: SharedObject, libraries: list[str], expected: Expected) -> Iterator[Finding]:
    if libraries and _knows_torch(expected):
        text = f"{item.path} needs {', '.join(libraries)}, which torch should contain but does not."
        evidence = {"member": item.path, "library": " ".join(libraries)}
        yield Finding("need-not-provided", "error", text, _FOR_THIS_TORCH, evidence)


def _missing_of_rocm(item: SharedObject, libraries: list[str], expected: Expected) -> Iterator[Finding]:
    torch, image = _knows_torch(expected), _knows_image(expected)
    listed, evidence = ", ".join(libraries), {"member": item.path, "library": " ".join(libraries)}
    if libraries and torch and image:
        text = f"{item.path} needs {listed} of ROCm, which neither torch nor the base image provides."
        fix = "Build the wheel in a base image with the ROCm that torch was built for."
        yield Finding("need-not-provided", "error", text, fix, evidence)
    elif libraries and (torch or image):
        known, other = ("torch", "the base image") if torch else ("the base image", "torch")
        text = f"{item.path} needs {listed}, which {known} does not provide."
        yield Finding("need-elsewhere", "warning", text, f"Check that {other} provides {listed}.", evidence)


def _missing_others(item: SharedObject, libraries: list[str], expected: Expected) -> Iterator[Finding]:
    evidence = {"member": item.path, "library": " ".join(libraries)}
    if libraries and _knows_image(expected):
        listed = ", ".join(libraries)
        text = f"{item.path} needs {listed}, which neither the wheel, torch nor the base image provides."
        fix = "Install the missing libraries in the base image, or build without the part that needs them."
        yield Finding("need-not-provided", "error", text, fix, evidence)
    elif unusual := [name for name in libraries if name not in libraries_of_system()]:
        listed = ", ".join(unusual)
        text = f"{item.path} needs {listed}, which the wheel does not contain and not every system provides."
        fix = f"Check that the base image provides {listed}."
        yield Finding("need-elsewhere", "warning", text, fix, evidence)


def check_bundled(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Check that an extension does not contain a second copy of torch's libraries."""
    if not _is_for_torch(contents, expected):
        return
    for info in contents.members:
        file = PurePosixPath(info.filename).name
        # auditwheel adds a hash to the names of the libraries that it copies into a wheel
        name = re.sub(r"-[0-9a-f]{8}(?=\.so)", "", file)
        if matches_any(name, (*TORCH_LIBRARIES, *ROCM_LIBRARIES)):
            text = f"{info.filename} is a second copy of a library that torch provides."
            fix = "Leave the copy out (`auditwheel repair --exclude`)."
            yield Finding("bundled-twice", "error", text, fix, {"member": info.filename, "library": name})


def _is_for_torch(contents: Contents, expected: Expected) -> bool:
    """Return whether a wheel will run with torch, according to its metadata, objects or expected values."""
    return contents.name != "torch" and (
        expected.recipe is not None
        or expected.torch is not None
        or names_torch(contents.version)
        or any(requirement.name == "torch" for requirement in contents.requirements())
        or any(matches_any(name, TORCH_LIBRARIES) for item in contents.objects for name in item.needed)
    )


def check_search_paths(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Check that the search paths of each object are relative to the object.

    An absolute path does harm only if the directory exists and the library was not loaded before. So it is an
    error only in a wheel with a recipe.
    """
    severity: Severity = "warning" if expected.recipe is None else "error"
    python = f"{expected.python.rstrip('/')}/lib" if expected.python else None
    fix = "Remove the search path with `patchelf --remove-rpath`. CMake omits it with -DCMAKE_SKIP_RPATH=ON."
    for item in contents.objects:
        absolute = [path for path in item.search_paths if not path.startswith(("$ORIGIN", "${ORIGIN}"))]
        rocm = [path for path in absolute if path == "/opt/rocm" or path.startswith(_ROCM_ROOTS)]
        of_python = [path for path in absolute if path.rstrip("/") == python]
        build = [path or "the working directory" for path in absolute if path not in rocm + of_python]
        kinds: list[tuple[str, Severity, list[str], str]] = [
            ("rpath-rocm", severity, rocm, "which bypasses the ROCm that torch provides"),
            ("rpath-build", severity, build, "which its build added"),
            ("rpath-python", "warning", of_python, "which the Python that built it adds"),
        ]
        for name, how, paths, why in kinds:
            if paths:
                listed = ", ".join(dict.fromkeys(paths))
                text = f"{item.path} searches for libraries in {listed}, {why}."
                yield Finding(name, how, text, fix, {"member": item.path, "path": listed})


def check_symbols(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Check that torch exports every symbol of torch that the shared objects import."""
    torch = expected.torch
    if torch is None or torch.exports is None:
        return
    own = frozenset[str]().union(*(item.exports for item in contents.objects))
    for item in sorted(contents.objects, key=lambda each: each.path):
        missing = sorted(item.imports - own - torch.exports)
        if not missing:
            continue
        shown = [name[:_LONGEST_SYMBOL] for name in missing[:_MOST_SYMBOLS]]
        more = f", and {len(missing) - _MOST_SYMBOLS} more" if len(missing) > _MOST_SYMBOLS else ""
        title = f"torch {torch.version}" if torch.version else "this torch"
        listed = "; ".join(demangled(shown))
        text = f"{item.path} imports symbols that {title} does not export: {listed}{more}."
        fix = f"{_FOR_THIS_TORCH} The object does not load with this torch."
        evidence = {"member": item.path, "symbol": " ".join(shown), "count": str(len(missing))}
        yield Finding("torch-symbol-missing", "error", text, fix, evidence)


def demangled(names: Sequence[str]) -> list[str]:
    """Return C++ names as in the source if ``c++filt`` of binutils is installed, else unchanged."""
    lines = output_of(["c++filt", *names]).splitlines()
    return lines if len(lines) == len(names) else list(names)
