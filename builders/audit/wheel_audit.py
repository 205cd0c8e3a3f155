"""Audit a wheel: read it once, then run every check on its contents."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import msgspec

from builders.audit import gpu, libraries, metadata, promises
from builders.audit.contents import Expected, first_of, loaded_variants, read_contents
from builders.audit.platform_tags import platform_tag
from builders.findings import SEVERITIES, Finding, limited
from builders.storage.files import sha256_of
from builders.wheels.wheel import DamagedError, WheelReader
from resolver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builders.audit.contents import Contents
    from builders.audit.elf import SharedObject

CHECKS: tuple[Callable[[Contents, Expected], Iterator[Finding]], ...] = (
    metadata.check_members,
    metadata.check_dist_info,
    metadata.check_record,
    metadata.check_metadata,
    metadata.check_tags,
    libraries.check_versions,
    libraries.check_cpu,
    libraries.check_libraries,
    libraries.check_symbols,
    libraries.check_bundled,
    libraries.check_search_paths,
    gpu.check_architectures,
    gpu.check_label,
    promises.check_op_table,
    promises.check_computed_names,
    promises.check_network_plugin,
    metadata.check_requirements,
    promises.check_promised_objects,
)
"""Every check, in the order in which findings of one severity are listed."""
_NOTHING = Expected()


class Needs(msgspec.Struct):
    """The libraries and symbol versions that a shared object needs."""

    libraries: tuple[str, ...]
    versions: dict[str, str]


class Report(msgspec.Struct):
    """The audit of one wheel as ``matrix check --format json`` prints it."""

    file: str
    sha256: str
    name: str
    version: str
    tags: list[str]
    code_objects: dict[str, list[str]]
    """The GPU architectures, with their features, that each member has code for."""
    needs: dict[str, Needs]
    """The libraries and symbol versions that each shared object needs."""
    ops: dict[str, bool] | None
    """Whether each op was compiled, from the wheel's op table."""
    findings: tuple[Finding, ...]
    verdict: Literal["sound", "defective"]


class WheelAudit(msgspec.Struct, frozen=True, dict=True):
    """A wheel, its contents, and the findings."""

    contents: Contents
    sha256: str
    findings: tuple[Finding, ...]
    path: Path
    damage: tuple[Finding, ...] = ()
    """What of the wheel cannot be read."""

    @property
    def verdict(self) -> Literal["sound", "defective"]:
        """``defective`` if any finding is an error."""
        return "defective" if self.errors else "sound"

    @property
    def errors(self) -> list[Finding]:
        """The findings that prevent the wheel from being published."""
        return [finding for finding in self.findings if finding.severity == "error"]

    @property
    def objects(self) -> tuple[SharedObject, ...]:
        """The shared objects in the wheel."""
        return self.contents.objects

    @cached_property
    def platform_tag(self) -> str:
        """The platform tag that the wheel qualifies for; auditwheel unpacks the wheel to find it."""
        return platform_tag(self.path)

    def __repr__(self) -> str:
        counts = Counter(finding.severity for finding in self.findings)
        numbers = [f"{counts[severity]} {severity}" for severity in SEVERITIES if counts[severity]]
        return f"<WheelAudit of {self.contents.file}: {', '.join([self.verdict, *numbers])}>"

    def report(self) -> Report:
        """Return the report that ``matrix check`` prints."""
        contents = self.contents
        table = promises.read_op_table(contents)
        return Report(
            contents.file,
            self.sha256,
            contents.name,
            contents.version,
            [str(tag) for tag in contents.tags],
            {path: sorted({item.name for item in code}) for path, code in sorted(contents.code.items())},
            {item.path: Needs(item.needed, dict(item.versions)) for item in contents.objects},
            dict(sorted(table.ops.items())) if table else None,
            self.findings,
            self.verdict,
        )


def audit_wheel(path: Path, expected: Expected = _NOTHING) -> WheelAudit:
    """Read a wheel and check it; only shared objects are unpacked, to temporary files one by one."""
    if not path.exists():
        raise UsageError(f"The file {path} does not exist.")
    try:
        with WheelReader(path) as wheel, ThreadPoolExecutor(1) as helper:
            hashing = helper.submit(sha256_of, path)
            contents, damage = read_contents(path.name, wheel)
            digest = hashing.result()
    except DamagedError as error:
        msg = f"{path} is not a valid wheel: {error}."
        hint = "Its download or build may be incomplete. Download or build the wheel again."
        raise UsageError(msg, hint=hint) from None
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror or error}.") from None
    findings = limited(damage)
    counted = loaded_variants(contents, expected)
    if others := len(contents.objects) - len(counted.objects):
        first = next(item.path for item in contents.objects if item not in counted.objects)
        text = f"{first_of([first] * others)} is for another device or ROCm, and was not judged."
        findings.append(
            Finding("variant-not-judged", "info", text, "", {"member": first, "count": str(others)})
        )
    for check in CHECKS:
        findings += limited(check(counted, expected))
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return WheelAudit(contents, digest, tuple(findings), path, tuple(damage))
