"""What a user asks for, from text to type."""

from __future__ import annotations

import re

from resolver.errors import UsageError
from resolver.model import Requirement
from resolver.names import normalised
from resolver.versions import parse_specifier, shorten

_CLAUSE = r"(?:==|!=|<=|>=|<|>|~=)\s*[A-Za-z0-9.*+_-]+\s*"
_PLAIN = re.compile(
    rf"\s*(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?P<specifier>{_CLAUSE}(?:,\s*{_CLAUSE})*)?"
)


def parse_requirement(text: str) -> Requirement:
    """Read what a user asks for, such as ``torch>=2.4``, ``rocm==6.2.*`` or ``flash-attn[triton]``.

    Where PEP 508 has an extra stands the variant of a release: extras are left to pip.

    Raises
    ------
    UsageError
        It cannot be read, or says what a resolution of the catalog cannot answer.

    Examples
    --------
    >>> parse_requirement("Flash_Attn==2.8.3").name
    'flash-attn'
    """
    plain = _PLAIN.fullmatch(text)
    try:
        if plain:
            specifier = parse_specifier(plain["specifier"]) if plain["specifier"] else None
            return Requirement(normalised(plain["name"]), specifier, text.strip())
    except UsageError:
        pass  # the whole of it is what cannot be read
    return _any_requirement(text)


def _any_requirement(text: str) -> Requirement:
    """Read whatever is a requirement by PEP 508, which takes long to import and is seldom needed."""
    from packaging.requirements import InvalidRequirement
    from packaging.requirements import Requirement as Pep508

    try:
        parsed = Pep508(text)
    except InvalidRequirement:
        msg = f"{shorten(text)!r} cannot be read as a requirement."
        raise UsageError(
            msg, hint="Write a name, or a name and versions: apex, torch>=2.4, rocm==6.2.*"
        ) from None
    if len(parsed.extras) > 1:
        msg = f"{shorten(text)!r} asks for several variants at once."
        raise UsageError(msg, hint="What is in the brackets is one variant of the catalog's releases.")
    for what, said in (
        ("a marker", parsed.marker),
        ("a URL", parsed.url),
    ):
        if said:
            msg = f"{shorten(text)!r} has {what}, which matrix does not resolve."
            raise UsageError(msg, hint="Leave it out here and add it in the environment file.")
    specifier = parse_specifier(str(parsed.specifier)) if str(parsed.specifier) else None
    return Requirement(normalised(parsed.name), specifier, text.strip(), next(iter(parsed.extras), ""))
