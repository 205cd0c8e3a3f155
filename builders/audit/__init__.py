"""Audit wheels by their content: a build can exit with 0 and still have compiled nothing.

DeepSpeed builds without its ops if it finds no torch. Apex without its extensions can still be imported.
Each ``check_*`` function yields findings, which text, JSON and provenance share.
"""

from builders.audit.contents import Expected
from builders.audit.elf import SharedObject
from builders.audit.platform_tags import plain_platform, platform_tag
from builders.audit.runtime_libraries import LibraryProvider, TorchLibraries, image_provider, read_torch
from builders.audit.wheel_audit import WheelAudit, audit_wheel

__all__ = [
    "Expected",
    "LibraryProvider",
    "SharedObject",
    "TorchLibraries",
    "WheelAudit",
    "audit_wheel",
    "image_provider",
    "plain_platform",
    "platform_tag",
    "read_torch",
]
