"""Judging a wheel by what is in it: an exit code proves nothing.

DeepSpeed's build ends well with no ops at all when torch is not found, and Apex's with shims that
import. Each ``check_*`` function gives typed findings; the same list feeds the terminal, the JSON
and the provenance.
"""

from builders.audit.contents import Expected
from builders.audit.elf import SharedObject
from builders.audit.platforms import plain_platform, platform_tag
from builders.audit.surroundings import Provider, Torch, image_provider, read_torch
from builders.audit.wheels import WheelAudit, audit_wheel

__all__ = [
    "Expected",
    "Provider",
    "SharedObject",
    "Torch",
    "WheelAudit",
    "audit_wheel",
    "image_provider",
    "plain_platform",
    "platform_tag",
    "read_torch",
]
