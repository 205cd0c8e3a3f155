"""The kinds of text in files that may come from others, such as locks, and their checks.

`check_texts` rejects every text that is not one printable line, in any file. The types limit the values that
become part of commands, paths or requirements; msgspec checks them when it reads a file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resolver.errors import MatrixError

_NAME = "^[a-z0-9]+(-[a-z0-9]+)*$"
_SITE = "^[A-Za-z0-9][A-Za-z0-9._-]*$"
_VERSION = "^([A-Za-z0-9][A-Za-z0-9.!+_-]*)?$"
_URL = (
    r"^([A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9._~:/?#\[\]@!&()*+,;=%-]+"
    r"|[A-Za-z0-9._]+@[A-Za-z0-9.][A-Za-z0-9.-]*:[A-Za-z0-9._~/][A-Za-z0-9._~/+%-]*)?$"  # git's me@host:path
)
_FILE = r"^[^-/\\.][^/\\]*$"
_RELATIVE = r"^(?!-|/|\.\.(/|$))((?!/\.\.(/|$)).)*$"
_DIGEST = "^(sha256:)?[0-9a-f]*$"
_OPS = "^[a-z0-9]+(-[a-z0-9]+)*:[A-Za-z0-9_]+(,[A-Za-z0-9_]+)*$"
_GFX = r"^gfx[0-9a-z-]+(:[a-z-]+[+-])*$"

_MEANINGS = {
    _NAME: "a normalized name of a distribution, such as flash-attn",
    _SITE: "a name (letters, digits, dots, - and _)",
    _VERSION: "a version",
    _URL: "a URL of plain characters",
    _FILE: "the name of a file, without directories",
    _RELATIVE: "a path below a directory",
    _DIGEST: "hexadecimal digits",
    _OPS: "a name with ops, such as deepspeed:fused_adam,cpu_adam",
    _GFX: "a GPU architecture, such as gfx90a",
}

Name = Annotated[str, Meta(pattern=_NAME)]
SiteName = Annotated[str, Meta(pattern=_SITE)]
VersionText = Annotated[str, Meta(pattern=_VERSION)]
Url = Annotated[str, Meta(pattern=_URL)]
FileName = Annotated[str, Meta(pattern=_FILE)]
RelativePath = Annotated[str, Meta(pattern=_RELATIVE)]
Digest = Annotated[str, Meta(pattern=_DIGEST)]
OpsText = Annotated[str, Meta(pattern=_OPS)]
Gfx = Annotated[str, Meta(pattern=_GFX)]

_LINES = {ord("\n"): " ", ord("\t"): " "}
_LARGEST_SHOWN = 80  # characters of a value
_PATTERN = (
    r"^Expected `str` matching regex (?P<pattern>'.*'|\".*\") - at (?P<is_key>`key` in )?`\$\.?(?P<key>.*)`$"
)
_STEP = r"\[(\d+)\]|\.?([^.\[\]]+)"


def printable(text: str) -> str:
    r"""Replace control characters, line separators and other invisible characters with escapes.

    Examples
    --------
    >>> printable("to\x1brch")
    'to\\x1brch'
    """
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def escaped(value: Any) -> Any:  # noqa: ANN401  any data
    r"""Return data in which every text is `printable`, except line breaks and tabs.

    Examples
    --------
    >>> escaped({"message": ["red: \x1b[31m\nend"]})
    {'message': ['red: \\x1b[31m\nend']}
    """
    if isinstance(value, str):
        return value if value.isprintable() else "".join(c if c in "\n\t" else printable(c) for c in value)
    if isinstance(value, dict):
        return {escaped(key): escaped(item) for key, item in value.items()}
    return [escaped(item) for item in value] if isinstance(value, list) else value


def is_url(text: str) -> bool:
    """Return whether a text is empty or a URL that may be in a lock."""
    return re.search(_URL, text) is not None and "\n" not in text


def quoted_url(url: str) -> str:
    """Return a URL with all characters that a lock does not accept as percent escapes.

    Examples
    --------
    >>> quoted_url("https://host/a b${C}")
    'https://host/a%20b%24%7BC%7D'
    """
    if is_url(url):
        return url
    from urllib.parse import quote

    return quote(url, safe=":/?#[]@!&()*+,;=%~")


def check_texts(
    data: object, path: object, error: type[MatrixError], hint: str = "", *, lines: bool = False
) -> None:
    """Check that every text in the data of a file, keys included, is one line of printable characters.

    With `lines`, texts may have several lines, and tabs. The message of `error` has the key and the value.
    """
    for key, text in _texts(data):
        if not (text.translate(_LINES) if lines else text).isprintable():
            bad = next(char for char in text if not (char.isprintable() or (lines and char in "\n\t")))
            msg = f"{path}: {printable(key)} has the character U+{ord(bad):04X}: {_shown(text)}."
            raise error(msg, hint=hint)


def _texts(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text of nested data with its key, such as ``picks[0].name``."""
    waiting = [(key, value)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, str):
            yield key, value
        elif isinstance(value, dict):
            for name, item in value.items():
                inner = f"{key}.{name}".lstrip(".")
                if isinstance(name, str):
                    yield f"a key in {key or 'the file'}", name
                waiting.append((inner, item))
        elif isinstance(value, list | tuple):
            waiting += [(f"{key}[{number}]", item) for number, item in enumerate(value)]


def explained(error: str, data: object) -> str:
    """Return an error of msgspec about the data of a file as the end of a sentence, with key and value."""
    match = re.match(_PATTERN, error)
    if match is None:
        return error
    meaning = _MEANINGS.get(_unquoted(match["pattern"]), "a valid value")
    if match["is_key"]:
        return f"a key in {printable(match['key'])} is not {meaning}"
    value = _at(data, match["key"])
    shown = f" is {_shown(value)}, which" if isinstance(value, str) else " has a value that"
    return f"{printable(match['key'])}{shown} is not {meaning}"


def _unquoted(text: str) -> str:
    import ast

    return str(ast.literal_eval(text))


def _at(data: Any, key: str) -> object:  # noqa: ANN401  any data
    """Return the value with a key of msgspec; None if msgspec does not name all of its parts."""
    for number, name in re.findall(_STEP, key):
        try:
            data = data[int(number) if number else name]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _shown(text: str) -> str:
    short = text if len(text) <= _LARGEST_SHOWN else f"{text[:_LARGEST_SHOWN]}..."
    return f"'{printable(short)}'"
