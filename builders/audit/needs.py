"""The checks on what shared objects need: libraries, symbol versions, torch's symbols, search paths."""

from __future__ import annotations

import fnmatch
import re
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from builders.audit.contents import requirements_of
from builders.audit.elf import version_key
from builders.audit.platforms import policies, promised_glibc, promised_versions
from builders.audit.promises import ROCM_LIBRARIES, TORCH_PROVIDES
from builders.findings import Finding
from builders.process import output_of
from resolver.label import names_torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builders.audit.contents import Contents, Expected
    from builders.audit.elf import SharedObject
    from builders.findings import Severity

OTHER_BACKENDS = (
    "libcu*.so*", "libnv*.so*", "libnccl.so*", "libsycl.so*", "libze_loader.so*", "libmkl_sycl*.so*",
)  # fmt: skip
"""Libraries of CUDA and of Intel's GPUs."""
_SYSTEM = (
    "ld-linux*", "ld64*", "libc.so.*", "libm.so.*", "libdl.so.*", "librt.so.*", "libpthread.so.*",
    "libutil.so.*", "libgcc_s.so.*", "libstdc++.so.*", "libpython3*",
)  # fmt: skip
"""What is there wherever a Python with compiled extensions runs; an image need not list it."""
_RUNTIME = {"GLIBCXX": "libstdc++", "CXXABI": "libstdc++", "GCC": "libgcc"}
_ROCM_ROOTS = ("/opt/rocm/", "/opt/rocm-")
_MOST_NAMED = 5
_WIDEST = 500  # characters of a symbol that are shown


def check_versions(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Compare the symbol versions that are needed with the platform tag and with what will be there."""
    for family in ("GLIBC", "GLIBCXX", "CXXABI", "GCC"):
        needs = [(version_key(v), v, one.path) for one in contents.objects if (v := one.versions.get(family))]
        if not needs:
            continue
        _, floor, path = max(needs)
        where = {"member": path, "symbol version": f"{family}_{floor}"}
        if family == "GLIBC":
            yield from _against_tag(contents, floor, path, where)
        else:
            yield from _runtime_against_tag(contents, family, floor, where)
        for provider in expected.providers:
            held = provider.floors.get(family)
            if held and version_key(floor) > version_key(held):
                text = f"{path} needs {family}_{floor}; {provider.name} has {family}_{held} at most."
                yield _too_new(family, text, where)


def _against_tag(contents: Contents, floor: str, path: str, where: dict[str, str]) -> Iterator[Finding]:
    for platform in sorted({tag.platform for tag in contents.tags}):
        promised = promised_glibc(platform)
        if promised and version_key(floor) > version_key(promised):
            text = f"{path} needs glibc {floor}, but the tag {platform} promises to run on {promised}."
            cure = "Tag it by what it needs, or build on older."
            yield Finding("glibc-above-tag", "error", text, cure, where)
    if all(tag.platform.startswith("linux_") for tag in contents.tags):
        text = f"The platform tag promises no glibc; {floor} is needed."
        yield Finding("plain-platform-tag", "info", text, "", where)


def _runtime_against_tag(
    contents: Contents, family: str, floor: str, where: dict[str, str]
) -> Iterator[Finding]:
    """Compare what is needed of the compiler's libraries with what systems of the tag have."""
    library = _RUNTIME[family]
    if any(PurePosixPath(info.filename).name.startswith(library) for info in contents.members):
        return
    for platform in sorted({tag.platform for tag in contents.tags}):
        promised = promised_versions(platform).get(family)
        if promised and version_key(floor) > version_key(promised):
            text = (
                f"{where['member']} needs {family}_{floor}, but systems that the tag {platform} promises to"
                f" run on have {family}_{promised} at most."
            )
            cure = "Tag it by what it needs, or build with an older compiler."
            yield Finding("libstdcxx-above-tag", "error", text, cure, where)


def _too_new(family: str, text: str, where: dict[str, str]) -> Finding:
    if family == "GLIBC":
        return Finding("glibc-too-new", "error", text, "Build in the image that it will run in.", where)
    library = _RUNTIME[family]
    cure = f"Compile with that place's own compiler, or run with a newer {library} (conda: {library}-ng)."
    return Finding("libstdcxx-too-new", "error", text, cure.replace("libstdc++-ng", "libstdcxx-ng"), where)


def check_needs(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """See who provides each library that is needed."""
    own = {PurePosixPath(info.filename).name for info in contents.members}
    own |= {one.soname for one in contents.objects if one.soname}
    given = own.union(*(one.libraries or () for one in expected.providers))
    if expected.torch is not None:
        given |= expected.torch.libraries or frozenset()
    for one in contents.objects:
        lacking = [name for name in one.needed if name not in given and not _matches(name, _SYSTEM)]
        others = [name for name in lacking if _matches(name, OTHER_BACKENDS)]
        if others:
            text = f"{one.path} needs {', '.join(others)}, of another maker's GPUs."
            where = {"member": one.path, "library": " ".join(others)}
            yield Finding("need-of-other-backend", "info", text, "", where)
        rest = [name for name in lacking if name not in others]
        for kind in (TORCH_PROVIDES, ROCM_LIBRARIES, ()):
            of_kind = [name for name in rest if _matches(name, kind)] if kind else rest
            rest = [name for name in rest if name not in of_kind]
            if of_kind:
                yield from _lacking(one, of_kind, kind, expected)


def _lacking(
    one: SharedObject, libraries: list[str], kind: Sequence[str], expected: Expected
) -> Iterator[Finding]:
    """Say who should provide some libraries; where nobody looked there, it is a guess or nothing."""
    torch = expected.torch is not None and expected.torch.libraries is not None
    image = any(one.image and one.libraries is not None for one in expected.providers)
    listed = ", ".join(libraries)
    where = {"member": one.path, "library": " ".join(libraries)}
    if kind is TORCH_PROVIDES:
        if torch:
            text = f"{one.path} needs {listed}, which should come with torch, and with this torch does not."
            cure = "Build it against the torch that it will run with."
            yield Finding("need-not-provided", "error", text, cure, where)
    elif kind is ROCM_LIBRARIES:
        if torch and image:
            text = f"{one.path} needs {listed}, of ROCm, which neither torch nor the base image brings."
            cure = "Build in the base image of the ROCm that torch was built for."
            yield Finding("need-not-provided", "error", text, cure, where)
        elif torch or image:
            text = (
                f"{one.path} needs {listed}, which {'torch' if torch else 'the base image'} does not bring."
            )
            cure = f"See that {'the base image' if torch else 'torch'} has it."
            yield Finding("need-elsewhere", "warning", text, cure, where)
    elif image:
        text = f"{one.path} needs {listed}, which nobody provides: not the wheel, torch or the base image."
        cure = "Install it in the base image, or build without what needs it."
        yield Finding("need-not-provided", "error", text, cure, where)
    elif unusual := [name for name in libraries if name not in _base_libraries()]:
        text = f"{one.path} needs {', '.join(unusual)}, which neither the wheel nor every system has."
        yield Finding("need-elsewhere", "warning", text, "See that the base image has it.", where)


def check_bundled(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """See that an extension does not bring a second copy of what torch brings."""
    if not _is_for_torch(contents, expected):
        return
    for info in contents.members:
        file = PurePosixPath(info.filename).name
        # auditwheel writes a hash into the names of the libraries that it copies in
        name = re.sub(r"-[0-9a-f]{8}(?=\.so)", "", file)
        if _matches(name, (*TORCH_PROVIDES, *ROCM_LIBRARIES)):
            text = f"{info.filename} is a second copy of a library that torch brings."
            cure = "Leave it out (auditwheel repair --exclude)."
            yield Finding("bundled-twice", "error", text, cure, {"member": info.filename, "library": name})


def _is_for_torch(contents: Contents, expected: Expected) -> bool:
    """Tell whether a wheel will run beside torch, by what it says, needs, or is compared with."""
    return contents.name != "torch" and (
        expected.recipe is not None
        or expected.torch is not None
        or names_torch(contents.version)
        or any(one.name == "torch" for one in requirements_of(contents))
        or any(_matches(name, TORCH_PROVIDES) for one in contents.objects for name in one.needed)
    )


def check_search_paths(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """See that libraries are looked for beside the object only.

    In a wheel of one's own (a recipe is given) that is a defect, in another a warning: it does harm
    only where the directory exists and the library was not loaded before.
    """
    severity: Severity = "warning" if expected.recipe is None else "error"
    python = f"{expected.python.rstrip('/')}/lib" if expected.python else None
    cure = "Remove it with patchelf --remove-rpath."
    for one in contents.objects:
        absolute = [path for path in one.search if not path.startswith(("$ORIGIN", "${ORIGIN}"))]
        rocm = [path for path in absolute if path == "/opt/rocm" or path.startswith(_ROCM_ROOTS)]
        of_python = [path for path in absolute if path.rstrip("/") == python]
        build = [path or "the working directory" for path in absolute if path not in rocm + of_python]
        kinds: list[tuple[str, Severity, list[str], str]] = [
            ("rpath-rocm", severity, rocm, "past the ROCm that torch brings"),
            ("rpath-build", severity, build, "which is of the machine it was built on"),
            ("rpath-python", "warning", of_python, "as the flags of the Python it was built with say"),
        ]
        for name, how, paths, what in kinds:
            if paths:
                listed = ", ".join(dict.fromkeys(paths))
                text = f"{one.path} looks for libraries in {listed}, {what}."
                yield Finding(name, how, text, cure, {"member": one.path, "path": listed})


def check_symbols(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """See that torch has every symbol of its own that the shared objects ask for."""
    torch = expected.torch
    if torch is None or torch.exports is None:
        return
    own = frozenset[str]().union(*(one.gives for one in contents.symbols.values()))
    for path, symbols in sorted(contents.symbols.items()):
        lacking = [name[:_WIDEST] for name in sorted(symbols.needs - own - torch.exports)]
        if not lacking:
            continue
        readable = demangled(lacking[:_MOST_NAMED])
        more = f", and {len(lacking) - _MOST_NAMED} more" if len(lacking) > _MOST_NAMED else ""
        named = f"torch {torch.version}" if torch.version else "this torch"
        text = f"{path} asks for symbols that {named} does not have: {'; '.join(readable)}{more}."
        cure = "Build it against the torch that it will run with; it does not load with this one."
        where = {"member": path, "symbol": " ".join(lacking[:_MOST_NAMED]), "count": str(len(lacking))}
        yield Finding("torch-symbol-missing", "error", text, cure, where)


def demangled(names: Sequence[str]) -> list[str]:
    """Give C++ names as they stand in a source, where binutils' ``c++filt`` is there to say it."""
    lines = output_of(["c++filt", *names]).splitlines()
    return lines if len(lines) == len(names) else list(names)


@cache
def _base_libraries() -> frozenset[str]:
    """Give what every system with glibc has, as auditwheel's policies say."""
    return frozenset(library for policy in policies("x86_64") for library in policy.whitelist)


def _matches(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, one) for one in globs)
