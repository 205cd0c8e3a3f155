"""Judging a wheel by what is in it: an exit code proves nothing.

DeepSpeed's build ends well with no ops at all when torch is not found, and Apex's with shims that
import. Each ``check_*`` function gives typed findings; the same list feeds the terminal, the JSON
and the provenance.
"""

from builders.audit.elf import SharedObject
from builders.audit.findings import AuditError, Finding, Severity
from builders.audit.promises import (
    TORCH_PROVIDES,
    Audit,
    audit,
    check_contents,
    plain_platform,
    platform_tag,
)

__all__ = [
    "TORCH_PROVIDES",
    "Audit",
    "AuditError",
    "Finding",
    "Severity",
    "SharedObject",
    "audit",
    "check_contents",
    "plain_platform",
    "platform_tag",
]
