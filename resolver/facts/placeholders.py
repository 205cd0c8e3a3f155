"""Placeholders in the texts of recipes, which are filled in at build time.

``{name}`` or ``{name:form}``, in the values of `environment`, in `options` and in `prepare`:

=================  ====================================================================
``{gfx}``          the GPU architectures joined by ``;``, as PYTORCH_ROCM_ARCH expects
``{gfx:,}``        joined by ``,`` (HCC_AMDGPU_TARGET)
``{gfx: }``        joined by a space (HIP_ARCHITECTURES of xformers)
``{gfx:one}``      a single architecture, for a variable that does not accept a list
``{jobs}``         the number of parallel compile jobs
``{rocm}``         the ROCm line that torch is built for, such as ``7.2``
``{rocm:digits}``  this line without the dot, such as ``72``
``{rocm-path}``    the ROCm directory of the base image
=================  ====================================================================
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
"""Every placeholder with its forms."""

_PLACEHOLDER = re.compile(r"\{(?P<name>[a-z-]+)(?::(?P<form>[^{}]*))?\}")


def placeholders(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the form of each placeholder in a text.

    Examples
    --------
    >>> list(placeholders("-DARCH={gfx:,} -j{jobs}"))
    [('gfx', ','), ('jobs', '')]
    """
    for match in _PLACEHOLDER.finditer(text):
        yield match["name"], match["form"] or ""


def placeholder_error(text: str) -> str:
    """Return the problem with the placeholders of a text; empty if they are valid.

    Examples
    --------
    >>> placeholder_error("{gfx}"), placeholder_error("{jfx}")
    ('', 'unknown placeholder {jfx}; known: gfx, jobs, rocm, rocm-path')
    """
    for name, form in placeholders(text):
        if name not in FORMS:
            return f"unknown placeholder {{{name}}}; known: {', '.join(FORMS)}"
        if form not in FORMS[name]:
            forms = ", ".join(f"{{{name}:{form}}}" if form else f"{{{name}}}" for form in FORMS[name])
            return f"unknown placeholder {{{name}:{form}}}; the forms of {name} are {forms}"
    if set(_PLACEHOLDER.sub("", text)) & set("{}"):
        return f"{text!r} contains a brace that is not part of a placeholder such as {{gfx}} or {{gfx:,}}"
    return ""


def fill(text: str, value: Callable[[str, str], str]) -> str:
    """Replace the placeholders of a text.

    `value` returns the replacement for a name and a form.

    Examples
    --------
    >>> fill("-j{jobs}", lambda name, form: "8")
    '-j8'
    """
    return _PLACEHOLDER.sub(lambda match: value(match["name"], match["form"] or ""), text)
