"""Write ``matrix.toml``: a resolution stores its request in it, ``add`` and ``remove`` change it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from builders.network.urls import without_password
from builders.storage.files import write_atomic
from matrix.input.settings import REQUEST_FILE, Settings, in_project, read_settings, seen_from
from resolver.errors import UsageError, did_you_mean
from resolver.requirements import normalize_name
from resolver.texts import toml_value
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NOT_STORED = ("upgrade", "offline", "mirrors")
"""Settings of one run, and those that no option sets."""


def store_request(settings: Settings) -> bool:
    """Make ``matrix.toml`` the request that settings describe; return whether that changed it.

    Keys that say the same already stay as they are, with their comments. What the files of the user and the
    system say is not repeated. Logins in URLs of indexes are left out: pip's configuration or ``~/.netrc`` is
    the place for them.
    """
    settings, stored = without_logins(settings), read_settings()
    path = in_project(REQUEST_FILE)
    given = {
        name: value
        for name in Settings.__struct_fields__
        if name not in _NOT_STORED and (value := getattr(settings, name)) != getattr(stored, name)
    }
    if not given:
        return False
    names = dict(zip(Settings.__struct_fields__, Settings.__struct_encode_fields__, strict=True))
    changes = {names[name]: value for name, value in seen_from(given, Path(), path.parent).items()}
    if path.exists():
        text = _edited(path, changes)
    else:  # tomlkit, which keeps comments, takes longer to import than most resolutions
        text = "".join(f"{key} = {toml_value(value)}\n" for key, value in changes.items())
    write_atomic(path, text)
    return True


def without_logins(settings: Settings) -> Settings:
    """Return settings without the logins in URLs of indexes and mirrors."""
    return msgspec.structs.replace(
        settings,
        index_url=settings.index_url and without_password(settings.index_url),
        extra_index_url=list(map(without_password, settings.extra_index_url)),
        mirrors={prefix: without_password(url) for prefix, url in settings.mirrors.items()},
    )


def with_requirements(texts: Sequence[str], added: Sequence[str], removed: Sequence[str]) -> list[str]:
    """Return requirements with others added, each of which replaces those on its name, and names removed.

    Raise `UsageError` if a name to remove is not among them, or if a requirement is invalid.
    """
    from matrix.reading.pip_line import parse_line

    old = [(_name(text), text) for text in texts]
    names = {name for name, _ in old}
    gone = {normalize_name(text): text for text in removed}
    for name, text in gone.items():
        if name not in names:
            msg = f"{REQUEST_FILE} has no requirement on {shorten(text)}."
            raise UsageError(msg, hint=did_you_mean(name, filter(None, names)))
    new = {parse_line(text, "").name: text for text in added}
    kept = [new.pop(name, text) if name in new else text for name, text in old if name not in gone]
    return [*kept, *new.values()]


def _edited(path: Path, changes: Mapping[str, Any]) -> str:
    """Return the text of the file with other values; keys with the default of `Settings` are removed."""
    import tomlkit

    document = tomlkit.parse(path.read_text(encoding="utf-8-sig"))
    default = msgspec.to_builtins(Settings())
    for key, value in changes.items():
        if value == default[key]:
            document.pop(key, None)
        elif isinstance(document.get(key), list):
            array = document[key]
            for number in reversed(range(len(array))):  # comments stay beside the items that stay
                if array[number] not in value:
                    del array[number]
            array.extend(text for text in value if text not in array)
        else:
            document[key] = value
    return tomlkit.dumps(document)


def _name(text: str) -> str:
    from matrix.reading.pip_line import parse_line

    with suppress(UsageError):
        return parse_line(text, "").name
    return ""
