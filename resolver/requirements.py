"""What a user asks for, from text to type."""

from __future__ import annotations

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Pep508
from packaging.utils import canonicalize_name

from resolver.errors import UsageError
from resolver.model import Requirement
from resolver.versions import parse_specifier, shorten


def parse_requirement(text: str) -> Requirement:
    """Read what a user asks for, such as ``torch>=2.4`` or ``rocm==6.2.*``.

    Raises
    ------
    UsageError
        It cannot be read, or says what a resolution of the catalog cannot answer.

    Examples
    --------
    >>> parse_requirement("Flash_Attn==2.8.3").name
    'flash-attn'
    """
    try:
        parsed = Pep508(text)
    except InvalidRequirement:
        msg = f"{shorten(text)!r} cannot be read as a requirement."
        raise UsageError(
            msg, hint="Write a name, or a name and versions: apex, torch>=2.4, rocm==6.2.*"
        ) from None
    for what, said in (
        ("extras", parsed.extras),
        ("a marker", parsed.marker),
        ("a URL", parsed.url),
    ):
        if said:
            msg = f"{shorten(text)!r} has {what}, which matrix does not resolve."
            raise UsageError(msg, hint="Leave it out here and add it in the environment file.")
    specifier = parse_specifier(str(parsed.specifier)) if str(parsed.specifier) else None
    return Requirement(canonicalize_name(parsed.name), specifier, text.strip())
