"""Build a published wheel again, elsewhere and as another user, and explain how it differs.

If its bytes are the same, they do not depend on the directory, the time and the user of the build. The build
does not use the compiler cache, which may have the objects of the first build.
"""

from __future__ import annotations

import filecmp
import os
import re
from itertools import zip_longest
from typing import TYPE_CHECKING

from msgspec.structs import replace

from builders.audit.elf import sections_in
from builders.building.directory import BuildDirectory, lock_of, path_of
from builders.building.records import log_path
from builders.building.task import build_again
from builders.constants import NO_COMPILER_CACHE
from builders.containers.runtime import HostRuntime
from builders.containers.sandbox import OTHER, sandbox
from builders.findings import Finding, limited
from builders.storage.files import remove_tree
from builders.storage.io_errors import explain_index_errors
from builders.storage.lease import digest, exclusive_lock
from builders.wheels.wheel import WheelReader
from resolver.texts import printable
from resolver.versions import join_words, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builders.building.inputs import Limits
    from builders.building.plan import Task
    from builders.index import Index
    from resolver.reporter import Reporter

_TEXT = re.compile(rb"[\x20-\x7e]{6,}")
_TIME = re.compile(
    r"\d\d?:\d\d:\d\d|\b(?:19|20)\d\d-\d\d-\d\d|[A-Z][a-z]{2} [ \d]\d (?:19|20)\d\d|(?<!\d)1\d{9}(?!\d)"
)
"""A clock time, a date as in ISO 8601 or ``__DATE__``, or seconds since 1970."""
_NO_BYTES = 8  # SHT_NOBITS
_WITHOUT_CAUSE = {".note.gnu.build-id"}
"""Sections that differ because others do."""


def rebuild_wheel(
    task: Task, published: Path, index: Index, limits: Limits, reporter: Reporter
) -> list[Finding]:
    """Build the wheel of a task again, and return the differences from the published one; publish nothing.

    The directory of the build is kept if there is a difference, so that both wheels can be compared by other
    programs. Raise `MatrixError` as `build_wheel` does.
    """
    key = digest(task.build_key, "rebuild")
    log, work = log_path(index, task.pick.name, key), path_of(index, key)
    with (
        explain_index_errors(index.root, work),
        exclusive_lock(index.state_directory("locks") / lock_of(index, key).name),
    ):
        index.state_directory(log.parent.name)
        index.state_directory(work.parent.name)
        remove_tree(work)
        limits = replace(limits, compiler_cache=NO_COMPILER_CACHE)
        own = {str(work): "the path of its build directory"}
        if task.build_host.runtime.image is None and sandbox():
            reporter.step("as another user, with another HOME and host name, as far as its isolation permits")
            own |= {
                OTHER.name: "the name of its user",
                str(OTHER.home): "the path of its HOME",
                OTHER.host: "the name of its machine",
            }
            runtime = HostRuntime(identity=OTHER)
            task = replace(task, build_host=replace(task.build_host, runtime=runtime))
        rebuilt = build_again(task, published, index, limits, reporter, directory=BuildDirectory(work, log))
        found = limited(differences(published, rebuilt, own))
        if not found:
            remove_tree(work)
            log.unlink(missing_ok=True)
        return found


def differences(published: Path, rebuilt: Path, own: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what differs between two wheels; `own` are texts that only the second build saw."""
    if filecmp.cmp(published, rebuilt, shallow=False):
        return
    fix = f"Compare the published wheel with {rebuilt}, such as with diffoscope."
    with WheelReader(published) as first, WheelReader(rebuilt) as second:
        members = [{info.filename: info for info in wheel.members} for wheel in (first, second)]
        found = False
        for name in sorted(members[0].keys() | members[1].keys()):
            if name.endswith(".dist-info/RECORD"):
                continue  # the hashes of the other members
            infos = [each.get(name) for each in members]
            if infos[0] is None or infos[1] is None:
                which = "rebuilt" if infos[0] is None else "published"
                message, evidence = f"only the {which} wheel has this member", dict[str, str]()
            else:
                contents = first.read(infos[0]), second.read(infos[1])
                if contents[0] == contents[1]:
                    continue
                message, evidence = _explain(*contents, own)
            found = True
            evidence = {"member": name, **evidence}
            yield Finding(
                "rebuild-differs", "error", printable(f"{shorten(name)}: {message}."), fix, evidence
            )
    if not found:
        message = (
            "All files but RECORD are the same. RECORD, or the order, times, modes or compression differ."
        )
        yield Finding("rebuild-differs", "error", message, fix)


def _explain(before: bytes, after: bytes, own: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return where two contents differ, and the reason if it can be seen; and both as evidence."""
    where, parts = _place(before, after)
    texts = [_TEXT.findall(part) for part in parts]
    known = [set(each) for each in texts]
    pairs = [
        next((text.decode() for text in each if text not in other), "")
        for each, other in zip(texts, reversed(known), strict=True)
    ]
    evidence = {"where": where, "published": shorten(pairs[0], 300), "rebuilt": shorten(pairs[1], 300)}
    shown = " and ".join(
        f"the {which} one has {shorten(text)!r}"
        for which, text in zip(("published", "rebuilt"), pairs, strict=True)
        if text
    )
    seen = [
        f"{what}, {text}"
        for text, what in own.items()
        if os.fsencode(text) in parts[1] and os.fsencode(text) not in parts[0]
    ]
    if seen:
        why = f"The rebuilt one contains {join_words(seen, joiner='and')}"
    elif all(map(_TIME.search, pairs)):
        why = "Both look like a time"
    else:
        why = ""
    return ". ".join(filter(None, [f"{where} differs" + (f": {shown}" if shown else ""), why])), evidence


def _place(before: bytes, after: bytes) -> tuple[str, tuple[bytes, bytes]]:
    """Return the name of the first place where two contents differ, and that part of each."""
    sections = _sections(before), _sections(after)
    if sections[0] and sections[1]:
        names = [
            name
            for name in {**sections[0], **sections[1]}
            if sections[0].get(name) != sections[1].get(name) and name not in _WITHOUT_CAUSE
        ]
        if names:
            noun = "section" if len(names) == 1 else "each of the sections"
            old, new = (b"\0".join(each.get(name, b"") for name in names) for each in sections)
            return f"{noun} {', '.join(names)}", (old, new)
        return "the build ID or a header of the shared object", (b"", b"")
    lines = before.splitlines(), after.splitlines()
    if b"\0" not in before + after:
        for number, (old, new) in enumerate(zip_longest(*lines, fillvalue=b""), 1):
            if old != new:
                return f"line {number}", (old, new)
        return "the end of a line", (b"", b"")
    at = next((at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), None)
    return f"byte {min(len(before), len(after)) if at is None else at}", (before, after)


def _sections(data: bytes) -> dict[str, bytes]:
    """Return the content of each section of a shared object; empty if it is none."""
    headers = sections_in(data, lambda start, size: data[start : start + size] or None) or ()
    return {
        one.name: data[one.start : one.start + one.size]
        for one in headers
        if one.name and one.kind != _NO_BYTES
    }
