"""Read text files from the user, and check the texts in files that may come from others, such as locks.

`check_texts` rejects every text that is not one printable line, in any file. The types limit the values that
become part of commands, paths or requirements; msgspec checks them when it reads a file.
"""

from __future__ import annotations

import re
import stat
from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from resolver.errors import MatrixError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

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

_MASK = "***"
_SIGN = re.compile(
    r"((?<!-)--[\w-]{0,100}?)?(?i:key|pass|pwd|token|secret|cookie|authorization|credential)"
    r"(?(1)|[\w.-]{0,100}['\"]?\s?[=:])"  # of an option, or of a variable or header
    r"|://[^/\s]*@|(?:^|\s)-u|--(?:proxy-)?user|sshpass|wandb login|login \S{1,100} password|PRIVATE KEY"
    r"|AIza|AKIA|gh[opusr]_|glpat|github_pat|hf_|pypi-A|sk-|xox|hooks\.slack"
)
"""Finds texts that may have a secret; all others, most of a document, are left as they are."""
# Most commands print no such text, so the other patterns are compiled by `re` when one is found.
_LOGIN = r"(?<!ssh://)(?<=://)[^/\s@'\"]+@|(?<=ssh://)[^/\s@'\":]*:[^/\s@'\"]*@"
"""The user of a URL for ssh is no secret: it says where the repository is."""
_PRIVATE_KEY = (
    r"(?s)-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)"
)
_HEADER = r"(?i)\b((?:proxy-)?authorization\s?:\s?|(?:set-)?cookie\s?:\s?)[^'\"\n]+"
_BASIC = (
    r"((?:^|\s)(?:-u|--user|--proxy-user)[ =]['\"]?)(?!\d+:\d+\b)[^\s'\":]*:[^\s'\"]+"
    r"|(\b(?:wandb login|sshpass -p|login \S{1,100} password) )[^\s-]\S*"
)
"""``curl -u USER:PASSWORD``, not ``docker run -u 1000:1000``; ``wandb login KEY``, and lines of netrc."""
_PREFIXED = (
    r"\b(?:gh[opusr]_\w{30,}|github_pat_\w{22,}|glpat-[\w-]{20,}|hf_[A-Za-z0-9]{30,}|pypi-AgE[\w-]{40,}"
    r"|sk-(?:proj-|ant-)?[A-Za-z0-9]{20,}|xox[abprs]-[\w-]{10,}|AIza[\w-]{35}|AKIA[A-Z0-9]{16})\b|(?<=hooks\.slack\.com/services/)[\w/]+"
)
_NAMED = (
    r"(?:(?<!\w)(?<!\w[.-])(?P<name>\w[\w.-]{0,100})['\"]?\s?[=:]\s?|(?<![\w-])--(?P<option>[\w-]{1,100})\s)"
)
_VALUE = r"\\{0,4}'[^'\n]+'?|\\{0,4}\"[^\"\n]+\"?|[^\s'\"$,;)}\]\\]{3,}"
"""A value, perhaps quoted again, or cut off; not a variable, which is no secret."""
_SECRET_WORDS = {"password", "passwd", "passphrase", "token", "secret", "apikey", "credentials", "cookie"}
_SECRET_ENDINGS = {"key", "pass", "pwd"}

_LINES = {ord("\n"): " ", ord("\t"): " "}
_LARGEST_SHOWN = 80  # characters of a value
_PATTERN = (
    r"^Expected `str` matching regex (?P<pattern>'.*'|\".*\") - at (?P<is_key>`key` in )?`\$\.?(?P<key>.*)`$"
)
_STEP = r"\[(\d+)\]|\.?([^.\[\]]+)"
LARGEST = 16 * 2**20  # bytes; far above any lock or list of packages, so anything larger is a mistake


def printable(text: str) -> str:
    r"""Replace control characters, line separators and other invisible characters with escapes.

    Examples
    --------
    >>> printable("to\x1brch")
    'to\\x1brch'
    """
    if text.isprintable():  # nearly all are, and a lock has tens of thousands of characters
        return text
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


def masked(value: Any) -> Any:  # noqa: ANN401  any data
    """Return data without the secrets in its texts: lines of files and of programs are repeated as evidence.

    Logins in URLs are left out, except users of ssh without a password. Values of options, variables, keys
    and headers whose name says that they are secret, tokens with a known prefix, and private keys become
    ``***``. 40 hexadecimal digits are masked only there, because commits look the same.

    Sources of the prefixes: "Behind GitHub's new authentication token formats" (github.blog), and the secret
    scanning patterns on docs.github.com.

    Examples
    --------
    >>> masked("git+ssh://git@host/x ssh://me:word@host/x pip -i https://me:word@host/simple a@b")
    'git+ssh://git@host/x ssh://host/x pip -i https://host/simple a@b'
    >>> masked("curl -u me:word -H 'Authorization: Bearer abc' --token abc --key abc")
    "curl -u *** -H 'Authorization: ***' --token *** --key abc"
    >>> masked({"env": ["MYSQL_PWD=word", "PWD=/home/me"], "HF_TOKEN": "word", "key": "a"})
    {'env': ['MYSQL_PWD=***', 'PWD=/home/me'], 'HF_TOKEN': '***', 'key': 'a'}
    """
    if isinstance(value, dict):
        return {
            masked(name): _MASK if isinstance(item, str) and item and _is_secret(str(name)) else masked(item)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    if not isinstance(value, str) or not _SIGN.search(value):
        return value
    text = re.sub(_PRIVATE_KEY, _MASK, re.sub(_LOGIN, "", value))
    text = re.sub(_BASIC, rf"\1\2{_MASK}", re.sub(_HEADER, rf"\1{_MASK}", text))
    text = re.sub(_PREFIXED, _MASK, text)
    parts, at, value_at = [], 0, re.compile(_VALUE).match
    for match in re.finditer(_NAMED, text):
        name = match["name"] or f"--{match['option']}"
        if match.start() >= at and _is_secret(name) and (found := value_at(text, match.end())):
            parts += [text[at : match.end()], _MASK]
            at = found.end()
    return "".join([*parts, text[at:]])


def _is_secret(name: str) -> bool:
    """Return whether the value with a name is a secret: ``WANDB_API_KEY``, ``--token`` or ``passwd``."""
    words = set(re.split(r"[_.-]+", name.lower()))
    if words & _SECRET_WORDS:
        return True
    return (
        len(words) > 1
        and bool(words & _SECRET_ENDINGS)
        and (name.isupper() or bool(words & {"api", "access"}))
    )


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

    With `lines`, texts may have several lines, and tabs.
    """
    for key, text in _texts(data):
        if not (text.translate(_LINES) if lines else text).isprintable():
            bad = next(char for char in text if not (char.isprintable() or (lines and char in "\n\t")))
            msg = f"{path}: {printable(key)} has the character U+{ord(bad):04X}: {_shown(text)}."
            raise error(msg, hint=hint)


def _texts(value: object, key: str = "") -> Iterator[tuple[str, str]]:
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
    import ast

    meaning = _MEANINGS.get(ast.literal_eval(match["pattern"]), "a valid value")
    if match["is_key"]:
        return f"a key in {printable(match['key'])} is not {meaning}"
    value = _at(data, match["key"])
    shown = f" is {_shown(value)}, which" if isinstance(value, str) else " has a value that"
    return f"{printable(match['key'])}{shown} is not {meaning}"


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


def read_text(
    path: Path,
    *,
    error: type[UsageError] = UsageError,
    hint: str = "",
    largest: int = LARGEST,
    pipes: bool = False,
    mark: bool = True,
) -> str:
    """Read a file as UTF-8 text.

    `error` is the exception to raise, `largest` the maximum size in bytes. `pipes` allows a pipe, such as
    ``<(pip list)`` of a shell; `mark` allows a byte order mark, which is removed.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            msg = f"{path} is a directory, not a file."
            raise error(msg, hint=hint)
        if not (stat.S_ISREG(mode) or (pipes and stat.S_ISFIFO(mode))):
            msg = f"{path} is not a regular file."
            raise error(msg, hint=hint)
        with path.open("rb") as source:
            raw = source.read(largest + 1)
    except FileNotFoundError:
        msg = f"The file {path} does not exist."
        raise error(msg, hint=hint) from None
    except (OSError, ValueError) as failure:
        reason = getattr(failure, "strerror", None) or failure
        msg = f"Cannot read {path}: {reason}."
        raise error(msg, hint=hint) from None
    if len(raw) > largest:
        msg = f"{path} is larger than {largest // 2**20} MiB."
        raise error(msg, hint=hint)
    if not mark and raw.startswith(BOM_UTF8):
        msg = f"{path} begins with a byte order mark."
        raise error(msg, hint="Save it as UTF-8 without a byte order mark.")
    return _decoded(raw, path, error, hint)


def _decoded(raw: bytes, path: Path, error: type[UsageError], hint: str) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        msg = f"{path} is UTF-16 text, not UTF-8."
        raise error(msg, hint="Save it as UTF-8.")
    if b"\0" in raw:
        msg = f"{path} is a binary file, not text: byte {raw.index(0)} is zero."
        raise error(msg, hint=hint)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as failure:
        line = raw[: failure.start].count(b"\n") + 1
        msg = f"{path}:{line}: not UTF-8 text (byte {failure.start})."
        raise error(msg, hint="Save it as UTF-8.") from None


def toml_value(value: object) -> str:
    """Return a value as TOML on one line; tomli-w writes tables and arrays on several lines."""
    import tomli_w

    if isinstance(value, dict):
        keys = {name: tomli_w.dumps({name: 0}).strip().removesuffix("0") for name in value}
        return "{ " + ", ".join(f"{keys[name]}{toml_value(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return tomli_w.dumps({"x": value}).strip().removeprefix("x = ")


def html_table(title: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a title and rows as HTML, for notebooks."""
    from html import escape

    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<p>{escape(title)}</p><table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
