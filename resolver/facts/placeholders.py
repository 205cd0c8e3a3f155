"""What a recipe may leave open in its texts, to be filled in when something is built.

``{name}`` or ``{name:form}``, in values of `environment`, in `options` and in the words of `prepare`:

=================  ==========================================================================
``{gfx}``          the offload targets joined by ``;``, as PYTORCH_ROCM_ARCH wants them
``{gfx:,}``        joined by ``,`` (HCC_AMDGPU_TARGET)
``{gfx: }``        joined by a blank (HIP_ARCHITECTURES of xformers)
``{gfx:one}``      the only one: the variable takes no list, so several targets are refused
``{jobs}``         how many compile jobs may run at once
``{rocm}``         the ROCm line that torch is built for, such as ``7.2``
``{rocm:digits}``  the same without the dot, such as ``72``
``{rocm-path}``    where ROCm is in the base image
=================  ==========================================================================
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FORMS = {
    "gfx": ("", ";", ",", " ", "one"),
    "jobs": ("",),
    "rocm": ("", "digits"),
    "rocm-path": ("",),
}
"""Every placeholder, and the forms it can be written in."""

_PLACEHOLDER = re.compile(r"\{(?P<name>[a-z-]+)(?::(?P<form>[^{}]*))?\}")


def placeholders(text: str) -> Iterator[tuple[str, str]]:
    """Give name and form of each placeholder in a text.

    Examples
    --------
    >>> list(placeholders("-DARCH={gfx:,} -j{jobs}"))
    [('gfx', ','), ('jobs', '')]
    """
    for match in _PLACEHOLDER.finditer(text):
        yield match["name"], match["form"] or ""


def complaint(text: str) -> str:
    """Say what is wrong with the placeholders of a text; empty if nothing is.

    Examples
    --------
    >>> complaint("{gfx}"), complaint("{jfx}")
    ('', 'has the placeholder {jfx}; known: gfx, jobs, rocm, rocm-path')
    """
    for name, form in placeholders(text):
        if name not in FORMS:
            return f"has the placeholder {{{name}}}; known: {', '.join(FORMS)}"
        if form not in FORMS[name]:
            forms = ", ".join(f"{{{name}:{one}}}" if one else f"{{{name}}}" for one in FORMS[name])
            return f"has the placeholder {{{name}:{form}}}; it can be written {forms}"
    if set(_PLACEHOLDER.sub("", text)) & set("{}"):
        return f"has a brace in {text!r} that is no placeholder; they look like {{gfx}} or {{gfx:,}}"
    return ""


def fill(text: str, value: Callable[[str, str], str]) -> str:
    """Fill in the placeholders of a text.

    Parameters
    ----------
    text
        A text whose placeholders are known ones.
    value
        Gives the text for a name and a form.

    Examples
    --------
    >>> fill("-j{jobs}", lambda name, form: "8")
    '-j8'
    """
    return _PLACEHOLDER.sub(lambda match: value(match["name"], match["form"] or ""), text)
