"""Check a wheel as a package: its members, RECORD, metadata, tags and requirements."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builders.audit.contents import first_of
from builders.audit.platform_tags import MACHINES, machine_of_tag
from builders.findings import Finding
from builders.wheels.wheel import (
    DamagedError,
    is_dist_info_of,
    is_special,
    is_unsafe,
    overlapping,
    record_rows,
    recorded_hash,
)
from resolver.requirements import is_for_cuda
from resolver.versions import version_or_none

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from builders.audit.contents import Contents, Expected

_MOST_SHOWN = 200  # characters of an invalid row
_PYTHON_OF_SUFFIX = re.compile(r"\.cpython-(\d+)[^/]*\.so$")
_REPACK = "Pack the wheel again with the wheel library (`wheel unpack`, `wheel pack`)."
_REBUILD = "Build the wheel again."
_DO_NOT_INSTALL = "Do not install this wheel."
_RENAME = "Rename the wheel with the wheel library, not manually."


def check_members(contents: Contents, _: Expected) -> Iterator[Finding]:
    """Check that no member would be unpacked outside the environment, as a link, or over another member."""
    seen: set[str] = set()
    for info in contents.members:
        name, evidence = info.filename, {"member": info.filename}
        if is_unsafe(name):
            text = f"{name} would be unpacked outside the environment."
            yield Finding("unsafe-path", "error", text, _DO_NOT_INSTALL, evidence)
        if is_special(info):
            text = f"{name} is a symbolic link or a device, which wheels must not contain."
            yield Finding("link", "error", text, "Put the file itself into the wheel.", evidence)
        if name in seen:
            yield Finding("member-twice", "error", f"{name} is in the wheel twice.", _REBUILD, evidence)
        seen.add(name)
    for first, second in overlapping(contents.members):
        text = f"{second} begins inside {first}: both use the same bytes."
        yield Finding("members-overlap", "error", text, _DO_NOT_INSTALL, {"member": second})


def check_dist_info(contents: Contents, _: Expected) -> Iterator[Finding]:
    """Check that there is one ``.dist-info`` directory with the name that pip expects."""
    directories = contents.dist_infos
    if len(directories) > 1:
        listed = ", ".join(directories[:2])
        text = f"The wheel has {len(directories)} .dist-info directories, {listed}; pip rejects it."
        yield Finding("dist-info-other", "error", text, _REBUILD, {"member": directories[1]})
    if directories and not is_dist_info_of(contents.dist_info, contents.name, contents.version):
        release = f"{contents.name} {contents.version}"
        text = f"{contents.dist_info} does not match the file name, {release}; pip rejects it."
        yield Finding("dist-info-other", "error", text, _RENAME, {"member": contents.dist_info})


def check_record(contents: Contents, _: Expected) -> Iterator[Finding]:
    """Compare RECORD with the members."""
    text = contents.texts.get("RECORD")
    if "RECORD" in contents.too_large:
        size = contents.too_large["RECORD"]
        message = f"RECORD has {size} bytes, too many for these members, so it was not read."
        yield Finding("record-damaged", "error", message, _REPACK)
        return
    if text is None:
        yield Finding("record-missing", "error", "The wheel has no RECORD.", _REPACK)
        return
    recorded: set[str] = set()
    members = {info.filename for info in contents.members}
    try:
        for row in record_rows(text):
            recorded.update(members.intersection(row[:1]))
            yield from _check_row(contents, members, row)
    except DamagedError as error:
        yield Finding("record-damaged", "error", f"{error}.", _REPACK)
        return
    for info in contents.members:
        name = info.filename
        is_signature = name.endswith((".dist-info/RECORD.jws", ".dist-info/RECORD.p7s"))
        if name not in recorded and not info.is_dir() and not is_signature:
            message = f"{name} is not in RECORD."
            yield Finding("record-lacks-file", "error", message, _REPACK, {"member": name})


def _check_row(contents: Contents, members: Collection[str], row: list[str]) -> Iterator[Finding]:
    if len(row) < 2:  # noqa: PLR2004  path and hash
        message = f"RECORD has the invalid row {str(row)[:_MOST_SHOWN]}."
        yield Finding("record-damaged", "error", message, _REPACK)
        return
    name, recorded, evidence = row[0], row[1], {"member": row[0]}
    if name.endswith(".dist-info/RECORD"):
        return
    if name not in members:
        message = f"RECORD lists {name}, which is not in the wheel."
        yield Finding("record-names-absent", "error", message, _REPACK, evidence)
        return
    digest = contents.digests.get(name)
    if not recorded.startswith("sha256="):
        yield Finding("record-hash-other", "warning", f"RECORD has no SHA-256 for {name}.", _REPACK, evidence)
    elif digest is not None and recorded.rstrip("=") != recorded_hash(digest):
        message = f"The SHA-256 of {name} differs from RECORD."
        yield Finding("record-hash-differs", "error", message, _REPACK, evidence)


def check_metadata(contents: Contents, _: Expected) -> Iterator[Finding]:
    """Compare METADATA and WHEEL with the file name."""
    for text in ("METADATA", "WHEEL"):
        if text in contents.too_large:
            message = f"{text} has {contents.too_large[text]} bytes, too many to be read."
            evidence = {"member": f"{contents.dist_info}/{text}"}
            yield Finding("metadata-too-large", "error", message, _REBUILD, evidence)
        elif text not in contents.texts:
            yield Finding("metadata-missing", "error", f"The wheel has no {text}.", _REBUILD)
    if "METADATA" in contents.texts:
        names = [canonicalize_name(name) for name in contents.header("METADATA", "Name")]
        versions = [str(version_or_none(text) or text) for text in contents.header("METADATA", "Version")]
        for field, values, expected in (
            ("Name", names, contents.name),
            ("Version", versions, contents.version),
        ):
            if values != [expected]:
                listed = ", ".join(values) or "(missing)"
                message = f"METADATA has {field}: {listed}; the file name has {expected}."
                yield Finding("name-differs", "error", message, _RENAME, {"member": "METADATA"})
    if "WHEEL" in contents.texts:
        tags, in_wheel = [str(tag) for tag in contents.tags], sorted(contents.header("WHEEL", "Tag"))
        if in_wheel != tags:
            message = f"WHEEL has {', '.join(in_wheel) or 'no tag'}; the file name has {', '.join(tags)}."
            fix = "Set the tags with `wheel tags`, which writes both."
            yield Finding("tags-differ", "error", message, fix, {"member": "WHEEL"})


def check_tags(contents: Contents, _: Expected) -> Iterator[Finding]:
    """Compare the tags with the shared objects."""
    platforms = sorted({tag.platform for tag in contents.tags})
    objects = contents.objects
    if objects and "any" in platforms:
        first = first_of([item.path for item in objects])
        text = f"The tag has the platform any, but {first} is compiled code."
        yield Finding("pure-with-objects", "error", text, "Build a platform wheel.")
    if not objects and not contents.code and "any" not in platforms:
        text = f"The tag has the platform {', '.join(platforms)}, but the wheel has no shared object."
        fix = "Check the build's log: the build may have left its extensions out."
        yield Finding("platform-without-objects", "warning", text, fix)
    inside = [item.path for item in objects if not item.path.partition("/")[0].endswith(".data")]
    if inside and any(value.lower() == "true" for value in contents.header("WHEEL", "Root-Is-Purelib")):
        text = f"WHEEL has Root-Is-Purelib: true, but {first_of(inside)} is compiled code."
        fix = "Build a platform wheel: compiled code may be installed in another directory."
        yield Finding("purelib-with-objects", "warning", text, fix, {"member": inside[0]})
    machines = {machine for platform in platforms if (machine := machine_of_tag(platform))}
    elf_machines = {MACHINES[machine] for machine in machines if machine in MACHINES}
    pythons = {tag.interpreter for tag in contents.tags}
    for item in objects:
        evidence = {"member": item.path}
        if elf_machines and item.machine not in elf_machines:
            text = f"{item.path} is for {item.machine}, but the tag is for {', '.join(sorted(machines))}."
            fix = "Build the wheel on a machine with the architecture of the tag."
            yield Finding("other-machine", "error", text, fix, evidence)
        suffix = _PYTHON_OF_SUFFIX.search(item.path)
        if suffix and f"cp{suffix[1]}" not in pythons:
            text = f"{item.path} is for CPython {suffix[1]}, but the tag is for {', '.join(sorted(pythons))}."
            fix = "Build the wheel with the Python of the tag."
            yield Finding("other-python", "error", text, fix, evidence)


def check_requirements(contents: Contents, _: Expected) -> Iterator[Finding]:
    """Report CUDA packages, and a torch that is not pinned."""
    for requirement in contents.requirements():
        evidence = {"member": "METADATA", "requirement": str(requirement)}
        if is_for_cuda(requirement.name):
            text = f"The wheel requires {requirement.name}, a CUDA package."
            fix = "The wheel was built against a CUDA torch. Build it against torch for ROCm."
            yield Finding("nvidia-requirement", "error", text, fix, evidence)
        pinned = any(
            part.operator in {"==", "==="} and "*" not in part.version for part in requirement.specifier
        )
        if requirement.name == "torch" and contents.objects and not pinned:
            text = f"The wheel requires {requirement}, which does not pin the torch of its build."
            yield Finding("torch-not-pinned", "info", text, "", evidence)
