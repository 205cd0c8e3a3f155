"""The checks on a wheel that was read: functions from its contents to findings."""

from __future__ import annotations

import fnmatch
import re
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builders.audit.contents import BARE_OBJECT, as_recorded, is_link, record_rows
from builders.audit.elf import version_key
from builders.audit.findings import Finding
from builders.audit.members import DamagedError
from builders.audit.promises import MACHINES, TORCH_PROVIDES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builders.audit.contents import Contents, Expected
    from builders.audit.findings import Severity

    Check = Callable[[Contents, Expected], Iterator[Finding]]

ROCM_LIBRARIES = (
    "libamdhip64.so*", "libamd_comgr.so*", "libhip*.so*", "libhsa-runtime64.so*", "libMIOpen*.so*",
    "libroc*.so*", "librccl.so*", "libroctracer64.so*", "libroctx64.so*",
)  # fmt: skip
"""Libraries of ROCm, which torch's ROCm wheel brings, or else the base image."""
OTHER_BACKENDS = (
    "libcu*.so*", "libnv*.so*", "libnccl.so*", "libsycl.so*", "libze_loader.so*", "libmkl_sycl*.so*",
)  # fmt: skip
"""Libraries of CUDA and of Intel's GPUs."""
_LEGACY = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}
_PLATFORM = re.compile(r"(?P<kind>manylinux\d*|linux|musllinux)(?:_(?P<glibc>\d+_\d+))?_(?P<machine>.+)")
_PYTHON_OF_SUFFIX = re.compile(r"\.cpython-(\d+)[^/]*\.so$")
_ROCM_ROOTS = ("/opt/rocm/", "/opt/rocm-")
_TARGET = re.compile(r"gfx[0-9a-f]+")


def check_members(contents: Contents, _: Expected) -> Iterator[Finding]:
    """See that no member would be unpacked elsewhere, as a link, or over another."""
    seen: set[str] = set()
    for info in contents.members:
        name = info.filename
        where = {"member": name}
        if name.startswith("/") or "\\" in name or ".." in PurePosixPath(name).parts:
            text = f"{name} would be unpacked outside the environment."
            yield Finding("unsafe-path", "error", text, "Do not install this wheel.", where)
        if is_link(info):
            text = f"{name} is a symbolic link, which wheels cannot hold."
            yield Finding("link", "error", text, "Put the file itself into the wheel.", where)
        if name in seen:
            yield Finding("member-twice", "error", f"{name} is in the wheel twice.", "Build it again.", where)
        seen.add(name)


def check_record(contents: Contents, _: Expected) -> Iterator[Finding]:
    """Compare RECORD with what is in the wheel."""
    cure = "Pack it again with the wheel library (wheel unpack, wheel pack)."
    text = contents.texts.get("RECORD")
    if text is None:
        yield Finding("record-missing", "error", "The wheel has no RECORD.", cure)
        return
    recorded: set[str] = set()
    try:
        for row in record_rows(text):
            recorded.add(row[0] if row else "")
            yield from _recorded(contents, row, cure)
    except DamagedError as error:
        yield Finding("record-damaged", "error", f"{error}.", cure)
        return
    for info in contents.members:
        name = info.filename
        signature = name.endswith((".dist-info/RECORD.jws", ".dist-info/RECORD.p7s"))
        if name not in recorded and not info.is_dir() and not signature:
            text_ = f"{name} is not in RECORD."
            yield Finding("record-lacks-file", "error", text_, cure, {"member": name})


def _recorded(contents: Contents, row: object, cure: str) -> Iterator[Finding]:
    if not isinstance(row, list) or len(row) < 2:  # noqa: PLR2004  path and hash
        yield Finding("record-damaged", "error", f"RECORD has the row {row!r}.", cure)
        return
    name, said = row[0], row[1]
    where = {"member": name}
    if name.endswith(".dist-info/RECORD"):
        return
    if name not in {info.filename for info in contents.members}:
        yield Finding(
            "record-names-absent", "error", f"RECORD names {name}, which is not there.", cure, where
        )
        return
    digest = contents.digests.get(name)
    if not said.startswith("sha256="):
        text = f"RECORD has no SHA-256 of {name}."
        yield Finding("record-hash-other", "warning", text, cure, where)
    elif digest is not None and said.rstrip("=") != as_recorded(digest):
        text = f"{name} is not what RECORD says: its SHA-256 differs."
        yield Finding("record-hash-differs", "error", text, cure, where)


def check_metadata(contents: Contents, _: Expected) -> Iterator[Finding]:
    """Compare METADATA and WHEEL with the file name."""
    for text in ("METADATA", "WHEEL"):
        if text not in contents.texts:
            yield Finding("metadata-missing", "error", f"The wheel has no {text}.", "Build it again.")
    if "METADATA" in contents.texts:
        names = [canonicalize_name(one) for one in contents.header("METADATA", "Name")]
        versions = [_as_version(one) for one in contents.header("METADATA", "Version")]
        for what, said, named in (("Name", names, contents.name), ("Version", versions, contents.version)):
            if said != [named]:
                text = f"METADATA says {what}: {', '.join(said) or 'nothing'}; the file name says {named}."
                cure = "Rename it with the wheel library, never by hand."
                yield Finding("name-differs", "error", text, cure, {"member": "METADATA"})
    if "WHEEL" in contents.texts:
        said_tags = sorted(contents.header("WHEEL", "Tag"))
        if said_tags != [str(tag) for tag in contents.tags]:
            text = f"WHEEL says {', '.join(said_tags) or 'no tag'}; the file name says {_tags(contents)}."
            cure = "Set the tags with wheel tags, which writes both."
            yield Finding("tags-differ", "error", text, cure, {"member": "WHEEL"})


def check_tags(contents: Contents, _: Expected) -> Iterator[Finding]:
    """Compare the tags with the shared objects."""
    platforms = sorted({tag.platform for tag in contents.tags})
    objects = contents.objects
    if objects and "any" in platforms:
        text = f"The tag says any platform, but {_some([one.path for one in objects])} is compiled code."
        yield Finding("pure-with-objects", "error", text, "Build it as a platform wheel.")
    if not objects and not contents.code and "any" not in platforms:
        text = f"The tag says {', '.join(platforms)}, but no shared object is inside."
        yield Finding(
            "platform-without-objects", "warning", text, "The build may have left its extensions out."
        )
    machines = {said["machine"] for one in platforms if (said := _PLATFORM.fullmatch(one))}
    wanted = {MACHINES[one] for one in machines if one in MACHINES}
    pythons = {tag.interpreter for tag in contents.tags}
    for one in objects:
        where = {"member": one.path}
        if wanted and one.machine not in wanted:
            text = f"{one.path} is for {one.machine}, the tag for {', '.join(sorted(machines))}."
            yield Finding("other-machine", "error", text, "Build on the target's CPU.", where)
        suffix = _PYTHON_OF_SUFFIX.search(one.path)
        if suffix and f"cp{suffix[1]}" not in pythons:
            text = f"{one.path} is for CPython {suffix[1]}, the tag says {', '.join(sorted(pythons))}."
            yield Finding("other-python", "error", text, "Build it with the Python it is for.", where)


def check_versions(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Compare the symbol versions that are needed with the platform tag and the target's glibc."""
    floors = [(version_key(v), v, one.path) for one in contents.objects if (v := one.versions.get("GLIBC"))]
    if not floors:
        return
    _, floor, path = max(floors)
    where = {"member": path, "symbol version": f"GLIBC_{floor}"}
    for platform in sorted({tag.platform for tag in contents.tags}):
        promised = promised_glibc(platform)
        if promised and version_key(floor) > version_key(promised):
            text = f"{path} needs glibc {floor}, but the tag {platform} promises to run on {promised}."
            yield Finding(
                "glibc-above-tag", "error", text, "Tag it by what it needs, or build on older.", where
            )
    if all(tag.platform.startswith("linux_") for tag in contents.tags):
        text = f"The platform tag promises no glibc; {floor} is needed."
        yield Finding("plain-platform-tag", "info", text, "", where)
    if expected.glibc and version_key(floor) > version_key(expected.glibc):
        text = f"{path} needs glibc {floor}; {expected.glibc} is what it would run on."
        yield Finding("glibc-too-new", "error", text, "Build in the image that it will run in.", where)


def check_needs(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """See who provides each library that is needed."""
    own = {PurePosixPath(info.filename).name for info in contents.members}
    own |= {one.soname for one in contents.objects if one.soname}
    known = expected.libraries
    others: dict[str, list[str]] = {}
    for one in contents.objects:
        open_needs = [name for name in one.needed if name not in own and not _is_base(name)]
        for library in open_needs:
            if _matches(library, OTHER_BACKENDS):
                others.setdefault(one.path, []).append(library)
        given = (*OTHER_BACKENDS, *(() if known is not None else (*TORCH_PROVIDES, *ROCM_LIBRARIES)))
        lacking = [name for name in open_needs if not _matches(name, given) and name not in (known or ())]
        if lacking:
            yield _lacking(one.path, lacking, certain=known is not None)
    for path, libraries in others.items():
        text = f"{path} needs {', '.join(libraries)}, of another maker's GPUs."
        where = {"member": path, "library": " ".join(libraries)}
        yield Finding("need-of-other-backend", "info", text, "", where)


def _lacking(path: str, libraries: list[str], *, certain: bool) -> Finding:
    """Say that nobody provides some libraries; without torch's own to look at, that is a guess."""
    where = {"member": path, "library": " ".join(libraries)}
    text = f"{path} needs {', '.join(libraries)}, which neither the wheel nor every system has"
    cure = "Build it against the torch and the image it will run with."
    if certain:
        return Finding("need-not-provided", "error", f"{text}, nor torch.", cure, where)
    return Finding("need-elsewhere", "warning", f"{text}.", "See that the image has it.", where)


def check_bundled(contents: Contents, _: Expected) -> Iterator[Finding]:
    """See that an extension does not bring a second copy of what torch brings."""
    if not any(one.name == "torch" for one in _requirements(contents)):
        return
    for info in contents.members:
        file = PurePosixPath(info.filename).name
        # auditwheel writes a hash into the names of the libraries that it copies in
        name = re.sub(r"-[0-9a-f]{8}(?=\.so)", "", file)
        if _matches(name, (*TORCH_PROVIDES, *ROCM_LIBRARIES)):
            text = f"{info.filename} is a second copy of a library that torch brings."
            cure = "Leave it out (auditwheel repair --exclude)."
            yield Finding("bundled-twice", "error", text, cure, {"member": info.filename, "library": name})


def check_search_paths(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """See that libraries are looked for beside the object only.

    In a wheel of one's own (a recipe is given) that is a defect, in another a warning: it does harm
    only where the directory exists and the library was not loaded before.
    """
    severity: Severity = "warning" if expected.recipe is None else "error"
    for one in contents.objects:
        absolute = [path for path in one.search if not path.startswith(("$ORIGIN", "${ORIGIN}"))]
        rocm = [path for path in absolute if path == "/opt/rocm" or path.startswith(_ROCM_ROOTS)]
        build = [path or "the working directory" for path in absolute if path not in rocm]
        cure = "Remove it with patchelf --remove-rpath."
        for name, paths, what in (
            ("rpath-rocm", rocm, "past the ROCm that torch brings"),
            ("rpath-build", build, "which is of the machine it was built on"),
        ):
            if paths:
                listed = ", ".join(dict.fromkeys(paths))
                text = f"{one.path} looks for libraries in {listed}, {what}."
                yield Finding(name, severity, text, cure, {"member": one.path, "path": listed})


def check_targets(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """Compare the GPU code with the offload targets that were asked for."""
    recipe, wanted = expected.recipe, expected.targets
    promised = recipe is not None and recipe.backend == "rocm" and bool(recipe.must_contain)
    if not contents.targets and (wanted or promised):
        what = f" for {', '.join(wanted)}" if wanted else ""
        text = f"No GPU code object{what} is in the wheel."
        cure = "The build took the CPU, or compiles when it runs; its log says why."
        yield Finding("no-gpu-code", "error", text, cure)
        return
    for path, code in sorted(contents.code.items()):
        yield from _targets_of(path, {one.name: one.target for one in code}, wanted)
    cuda = [one.path for one in contents.objects if one.cuda]
    if cuda:
        text = f"There is code for NVIDIA's GPUs in {_some(cuda)}."
        yield Finding("cuda-code", "info", text, "", {"member": cuda[0], "section": ".nv_fatbin"})


def _targets_of(path: str, held: dict[str, str], wanted: tuple[str, ...]) -> Iterator[Finding]:
    """Compare one member's code, as names with features to bare targets."""
    cure = "Set the arch variables of the build."
    for name, target in sorted(held.items()):
        where = {"member": path, "target": name}
        if wanted and name not in wanted and target not in wanted:
            text = f"{path} holds code for {name}, which was not asked for."
            yield Finding("target-not-asked", "error", text, cure, where)
        elif name != target and name not in wanted:
            text = f"{path} holds code for {name}, which runs only on GPUs that are set so."
            yield Finding("target-features", "warning", text, f"Build for {target} alone.", where)
    lacking = [one for one in wanted if one not in held and one not in held.values()]
    if lacking and not path.endswith(BARE_OBJECT):
        text = f"{path} holds {', '.join(sorted(held)) or 'no code object'}, but not {', '.join(lacking)}."
        yield Finding("target-missing", "error", text, cure, {"member": path, "target": " ".join(lacking)})


def check_label(contents: Contents, _: Expected) -> Iterator[Finding]:
    """Compare the local version label with the GPU code."""
    label = Version(contents.version).local
    held = sorted({one.target for code in contents.code.values() for one in code})
    if label is None:
        if held:
            text = "The version has no local label that says which ROCm, torch and GPU it is for."
            yield Finding("no-label", "info", text)
        return
    named = sorted(set(_TARGET.findall(label)))
    if named and named != held:
        text = f"The label names {', '.join(named)}; the wheel holds code for {', '.join(held) or 'no GPU'}."
        yield Finding("label-differs", "error", text, "Build it again for what the label says.")
    elif held and not named:
        text = f"The label {label} does not name the targets in it: {', '.join(held)}."
        yield Finding("label-odd", "info", text)


def check_requirements(contents: Contents, _: Expected) -> Iterator[Finding]:
    """Look for CUDA's packages, and whether torch is pinned."""
    for one in _requirements(contents):
        where = {"member": "METADATA", "requirement": str(one)}
        if one.name.startswith("nvidia-"):
            text = f"It requires {one.name}, which brings CUDA's libraries."
            yield Finding("nvidia-requirement", "error", text, "It was built against a CUDA torch.", where)
        pinned = any(part.operator in {"==", "==="} and "*" not in part.version for part in one.specifier)
        if one.name == "torch" and contents.objects and not pinned:
            text = f"It requires {one}, which does not say the torch it was built against."
            yield Finding("torch-not-pinned", "info", text, "", where)


ALL: tuple[Check, ...] = (
    check_members,
    check_record,
    check_metadata,
    check_tags,
    check_versions,
    check_needs,
    check_bundled,
    check_search_paths,
    check_targets,
    check_label,
    check_requirements,
)
"""Every check, in the order in which findings of one severity are told."""


def promised_glibc(platform: str) -> str:
    """Give the glibc that a platform tag promises to run on; empty when it promises none.

    Examples
    --------
    >>> promised_glibc("manylinux_2_28_x86_64"), promised_glibc("manylinux2014_x86_64")
    ('2.28', '2.17')
    >>> promised_glibc("linux_x86_64")
    ''
    """
    said = _PLATFORM.fullmatch(platform)
    if not said or not said["kind"].startswith("manylinux"):
        return ""
    return (said["glibc"] or "").replace("_", ".") or _LEGACY.get(said["kind"], "")


def _requirements(contents: Contents) -> list[Requirement]:
    """Give what it requires without an extra; what cannot be read is left to pip."""
    found = []
    for text in contents.header("METADATA", "Requires-Dist"):
        try:
            one = Requirement(text)
        except InvalidRequirement:
            continue
        if "extra" not in str(one.marker or ""):
            one.name = canonicalize_name(one.name)
            found.append(one)
    return found


@cache
def _base_libraries() -> frozenset[str]:
    """Give what every system with glibc has, as auditwheel's policies say."""
    from auditwheel.architecture import Architecture  # noqa: PLC0415  imports slowly
    from auditwheel.libc import Libc  # noqa: PLC0415
    from auditwheel.policy import WheelPolicies  # noqa: PLC0415

    policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture.x86_64)
    return frozenset(library for policy in policies for library in policy.whitelist)


def _is_base(library: str) -> bool:
    return library in _base_libraries() or library.startswith(("ld-linux", "ld64", "libpython3"))


def _matches(name: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, one) for one in globs)


def _as_version(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        return text


def _tags(contents: Contents) -> str:
    return ", ".join(str(tag) for tag in contents.tags)


def _some(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} (and {len(paths) - 1} more)"
