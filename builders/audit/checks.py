"""The checks on a wheel as a package: its members, RECORD, metadata, tags and requirements."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builders.audit.contents import (
    LARGEST_METADATA,
    as_recorded,
    dist_infos,
    is_dist_info_of,
    is_link,
    largest_record,
    record_rows,
    requirements_of,
    some_of,
)
from builders.audit.directory import DamagedError, overlapping
from builders.audit.platforms import MACHINES, machine_of_tag
from builders.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from builders.audit.contents import Contents, Expected

_MOST_SHOWN = 200  # characters of a row that is no row
_PYTHON_OF_SUFFIX = re.compile(r"\.cpython-(\d+)[^/]*\.so$")


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
    for one, other in overlapping(contents.members):
        text = f"{other} begins inside {one}: the same bytes count twice."
        cure = "Do not install this wheel."
        yield Finding("members-overlap", "error", text, cure, {"member": other})


def check_dist_info(contents: Contents, _: Expected) -> Iterator[Finding]:
    """See that one directory tells of the wheel, and is called by the file name, as pip wants it."""
    there = dist_infos(contents.members)
    if len(there) > 1:
        text = f"The wheel has {len(there)} .dist-info directories, {', '.join(there[:2])}; pip refuses it."
        yield Finding("dist-info-other", "error", text, "Build it again.", {"member": there[1]})
    if there and not is_dist_info_of(contents.dist_info, contents.name, contents.version):
        named = f"{contents.name} {contents.version}"
        text = f"{contents.dist_info} is not called by what the file name says, {named}; pip refuses it."
        cure = "Rename it with the wheel library, never by hand."
        yield Finding("dist-info-other", "error", text, cure, {"member": contents.dist_info})


def check_record(contents: Contents, _: Expected) -> Iterator[Finding]:
    """Compare RECORD with what is in the wheel."""
    cure = "Pack it again with the wheel library (wheel unpack, wheel pack)."
    text = contents.texts.get("RECORD")
    member, most = contents.member("RECORD"), largest_record(contents.members)
    if member is not None and member.file_size > most:
        said = f"RECORD has {member.file_size} bytes; for the members of this wheel it cannot need {most}."
        yield Finding("record-damaged", "error", f"{said} It is not read.", cure)
        return
    if text is None:
        yield Finding("record-missing", "error", "The wheel has no RECORD.", cure)
        return
    recorded: set[str] = set()
    held = {info.filename for info in contents.members}
    try:
        for row in record_rows(text):
            recorded.update(held.intersection(row[:1]))
            yield from _recorded(contents, held, row, cure)
    except DamagedError as error:
        yield Finding("record-damaged", "error", f"{error}.", cure)
        return
    for info in contents.members:
        name = info.filename
        signature = name.endswith((".dist-info/RECORD.jws", ".dist-info/RECORD.p7s"))
        if name not in recorded and not info.is_dir() and not signature:
            text_ = f"{name} is not in RECORD."
            yield Finding("record-lacks-file", "error", text_, cure, {"member": name})


def _recorded(contents: Contents, held: Collection[str], row: object, cure: str) -> Iterator[Finding]:
    if not isinstance(row, list) or len(row) < 2:  # noqa: PLR2004  path and hash
        yield Finding("record-damaged", "error", f"RECORD has the row {str(row)[:_MOST_SHOWN]}.", cure)
        return
    name, said = row[0], row[1]
    where = {"member": name}
    if name.endswith(".dist-info/RECORD"):
        return
    if name not in held:
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
        member = contents.member(text)
        if member is not None and member.file_size > LARGEST_METADATA:
            words = f"{text} has {member.file_size} bytes, more than {LARGEST_METADATA}, and is not read."
            where = {"member": member.filename}
            yield Finding("metadata-too-large", "error", words, "Build it again.", where)
        elif text not in contents.texts:
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
        text = f"The tag says any platform, but {some_of([one.path for one in objects])} is compiled code."
        yield Finding("pure-with-objects", "error", text, "Build it as a platform wheel.")
    if not objects and not contents.code and "any" not in platforms:
        text = f"The tag says {', '.join(platforms)}, but no shared object is inside."
        yield Finding(
            "platform-without-objects", "warning", text, "The build may have left its extensions out."
        )
    inside = [one.path for one in objects if not one.path.partition("/")[0].endswith(".data")]
    if inside and any(one.lower() == "true" for one in contents.header("WHEEL", "Root-Is-Purelib")):
        text = f"WHEEL says that it is pure (Root-Is-Purelib), but {some_of(inside)} is compiled code."
        cure = "Build it as a platform wheel; compiled code can belong into a directory of its own."
        yield Finding("purelib-with-objects", "warning", text, cure, {"member": inside[0]})
    machines = {machine for one in platforms if (machine := machine_of_tag(one))}
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


def check_requirements(contents: Contents, _: Expected) -> Iterator[Finding]:
    """Look for CUDA's packages, and whether torch is pinned."""
    for one in requirements_of(contents):
        where = {"member": "METADATA", "requirement": str(one)}
        if one.name.startswith("nvidia-"):
            text = f"It requires {one.name}, which brings CUDA's libraries."
            yield Finding("nvidia-requirement", "error", text, "It was built against a CUDA torch.", where)
        pinned = any(part.operator in {"==", "==="} and "*" not in part.version for part in one.specifier)
        if one.name == "torch" and contents.objects and not pinned:
            text = f"It requires {one}, which does not say the torch it was built against."
            yield Finding("torch-not-pinned", "info", text, "", where)


def _as_version(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        return text


def _tags(contents: Contents) -> str:
    return ", ".join(str(tag) for tag in contents.tags)
