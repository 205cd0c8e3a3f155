"""Names of distributions as text, without the import of a parser.

Every command reads names, and `packaging` imports half of the standard library before it parses one.
"""

from __future__ import annotations

import re
from functools import cache

_SEPARATORS = re.compile(r"[-_.]+")
_NAME = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)")
_EXACT = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*==\s*([^\s;,()*=]+)\s*")


@cache
def normalised(name: str) -> str:
    """Give the one spelling of a distribution's name (PEP 503).

    Examples
    --------
    >>> normalised("Flash_Attn")
    'flash-attn'
    """
    return _SEPARATORS.sub("-", name).lower()


def required_name(requirement: str) -> str:
    """Give the normalised name in a requirement (PEP 508) that is known to be one.

    Examples
    --------
    >>> required_name("Hjson>=3; python_version < '4'")
    'hjson'
    """
    found = _NAME.match(requirement)
    return normalised(found[1]) if found else ""


def exact_requirement(requirement: str) -> tuple[str, str] | None:
    """Give name and version of a requirement (PEP 508) for one version, wherever it is installed.

    Examples
    --------
    >>> exact_requirement("pytorch-triton-rocm==3.1.0")
    ('pytorch-triton-rocm', '3.1.0')
    >>> exact_requirement("triton==2.2.0; python_version < '3.12'")
    """
    found = _EXACT.fullmatch(requirement)
    return (normalised(found[1]), found[2]) if found else None
