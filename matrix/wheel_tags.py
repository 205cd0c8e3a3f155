"""The glibc that a wheel requires, from the tags in its file name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from resolver.versions import sort_key

if TYPE_CHECKING:
    from collections.abc import Iterable

_LEGACY = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}
_TAG = re.compile(r"(manylinux\d*)(?:_(\d+)_(\d+))?_")


def required_glibc(filename: str) -> str:
    """Return the oldest glibc with which pip accepts a wheel; empty if any glibc will do.

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
    required = [_glibc_of(tag.platform) for tag in tags]
    return min(required, key=sort_key) if all(required) else ""


def too_new_glibc(filenames: Iterable[str], glibc: str) -> str:
    """Return the glibc required by wheels of which pip accepts none; empty if it accepts one.

    Parameters
    ----------
    glibc
        Where the wheels are to be installed; empty if it is unknown.
    """
    required = [required_glibc(name) for name in filenames]
    if not glibc or not required or not all(required):
        return ""
    lowest = min(required, key=sort_key)
    return lowest if sort_key(lowest) > sort_key(glibc) else ""


def _glibc_of(platform: str) -> str:
    tag = _TAG.match(platform)
    if tag is None:
        return ""
    return f"{tag[2]}.{tag[3]}" if tag[2] else _LEGACY.get(tag[1], "")
