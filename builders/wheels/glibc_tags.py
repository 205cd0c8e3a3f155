"""manylinux platform tags and the glibc they stand for (PEP 600)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from resolver.versions import sort_key

_LEGACY = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}
_PLATFORM = re.compile(r"(?P<kind>manylinux\d*|linux|musllinux)(?:_(?P<glibc>\d+_\d+))?_(?P<machine>.+)")


def promised_glibc(platform_tag: str) -> str:
    """Return the oldest glibc that a platform tag promises to run on; empty if there is no promise.

    Examples
    --------
    >>> promised_glibc("manylinux_2_28_x86_64"), promised_glibc("manylinux2014_x86_64")
    ('2.28', '2.17')
    >>> promised_glibc("linux_x86_64")
    ''
    """
    match = _PLATFORM.fullmatch(platform_tag)
    if not match or not match["kind"].startswith("manylinux"):
        return ""
    return (match["glibc"] or "").replace("_", ".") or _LEGACY.get(match["kind"], "")


def machine_of_tag(platform_tag: str) -> str:
    """Return the machine of a platform tag for Linux, such as ``x86_64``; empty for other tags."""
    match = _PLATFORM.fullmatch(platform_tag)
    return match["machine"] if match else ""


def required_glibc(filename: str) -> str:
    """Return the oldest glibc with which pip accepts a wheel; empty if any will do, or the name is invalid.

    Examples
    --------
    >>> required_glibc("apex-1.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl")
    '2.17'
    >>> required_glibc("six-1.17.0-py2.py3-none-any.whl")
    ''
    """
    try:
        tags = parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return ""
    required = [promised_glibc(tag.platform) for tag in tags]
    return min(required, key=sort_key) if all(required) else ""


def too_new_glibc(filenames: Iterable[str], glibc: str) -> str:
    """Return the glibc that wheels require if pip accepts none of them; empty if it accepts any.

    `glibc` is that of the system to install to; empty if unknown.
    """
    required = [required_glibc(name) for name in filenames]
    if not glibc or not required or not all(required):
        return ""
    lowest = min(required, key=sort_key)
    return lowest if sort_key(lowest) > sort_key(glibc) else ""
