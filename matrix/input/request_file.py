"""Write ``matrix.toml``: a resolution stores its request in it, ``add`` and ``remove`` change it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import tomlkit

from builders.network.urls import without_password
from builders.storage.files import write_atomic
from matrix.input.settings import REQUEST_FILE, Settings, read_settings
from matrix.reading.pip_line import parse_line
from resolver.errors import UsageError, did_you_mean
from resolver.requirements import normalize_name
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

_NOT_STORED = ("upgrade", "offline", "mirrors")
"""Settings of one run, and those that no option sets."""


def store_request(settings: Settings) -> bool:
    """Make ``matrix.toml`` the request that settings describe; return whether that changed it.

    Keys that say the same already stay as they are, with their comments. Logins in URLs of indexes are left
    out: pip's configuration or ``~/.netrc`` is the place for them.
    """
    document, stored, default = _document(), read_settings(), Settings()
    settings = without_logins(settings)
    changed = False
    for field in msgspec.structs.fields(Settings):
        value, key = getattr(settings, field.name), field.encode_name
        if field.name in _NOT_STORED or value == getattr(stored, field.name):
            continue
        changed = True
        if value == getattr(default, field.name):
            del document[key]
        else:
            document[key] = value
    if changed:
        write_request(document)
    return changed


def without_logins(settings: Settings) -> Settings:
    """Return settings without the logins in URLs of indexes and mirrors."""
    return msgspec.structs.replace(
        settings,
        index_url=settings.index_url and without_password(settings.index_url),
        extra_index_url=list(map(without_password, settings.extra_index_url)),
        mirrors={prefix: without_password(url) for prefix, url in settings.mirrors.items()},
    )


def write_request(document: tomlkit.TOMLDocument) -> None:
    """Write ``matrix.toml``, atomically."""
    write_atomic(REQUEST_FILE, tomlkit.dumps(document))


def with_requirements(added: Sequence[str], removed: Sequence[str]) -> tomlkit.TOMLDocument:
    """Return ``matrix.toml`` with other requirements, and with its comments.

    A requirement replaces those on the same name. Raise `UsageError` if a name to remove is not required
    there, or if a requirement is invalid.
    """
    document = _document()
    texts = document.setdefault("requirements", tomlkit.array())
    names = [_name(text) for text in texts]
    for text in removed:
        name = normalize_name(text)
        if name not in names:
            msg = f"{REQUEST_FILE} has no requirement on {shorten(text)}."
            raise UsageError(msg, hint=did_you_mean(name, filter(None, names)))
    new = {parse_line(text, "").name: text for text in added}
    for number in reversed(range(len(names))):
        name = names[number]
        if name in {normalize_name(text) for text in removed}:
            del texts[number]
        elif name in new:
            texts[number] = new.pop(name)
    texts.extend(new.values())
    return document


def _document() -> tomlkit.TOMLDocument:
    with suppress(FileNotFoundError):
        return tomlkit.parse(REQUEST_FILE.read_text(encoding="utf-8"))
    return tomlkit.document()


def _name(text: str) -> str:
    with suppress(UsageError):
        return parse_line(text, "").name
    return ""
