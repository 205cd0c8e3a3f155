"""`matrix.lock`: a resolution as TOML, with a digest of its content at the end.

The same resolution is always written as the same bytes. A lock that was edited or cut short is rejected: its
facts, versions and hashes belong together, and only the resolver may change them. The digest covers
the data rather than the bytes, so that line endings and comments may change in editors and version control.
"""

from __future__ import annotations

import hashlib
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from resolver import indexes, model, requirements, texts, versions
from resolver.errors import LockError, UsageError
from resolver.facts import schema
from resolver.model import SCHEMA, Notice, Requirement, Resolution
from resolver.requirements import parse_requirement, version_in
from resolver.texts import check_texts, explained, is_url, printable, quoted_url, read_text
from resolver.versions import is_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resolver.facts.schema import Recipe
    from resolver.model import Distribution

_NOT_OURS = (
    "Resolve again, or get the lock again from where it came. Do not use a lock that somebody has changed."
)
_HEAD = "# Written by `matrix resolve`. To change it, change the request and resolve again.\n"
_INTEGRITY = "integrity"
"""The table with the digest of all other data."""
_URL_KEYS = {"url", "index"}
_AGAIN = "Write it again with `matrix resolve`."
_DRAFTED = {
    "package", "releases", "variant", "backend", "status", "source", "note", "declared", "undeclared",
    "match_runtime", "environment", "must_contain", "imports", "source_contains", "native_cpu",
    "cxx_standard",
}  # fmt: skip
"""What a recipe that is drafted from a source has. A lock must not bring commands, for example."""
CODE = [str(one.__file__) for one in (indexes, model, requirements, schema, texts, versions)]
CODE += [__file__, f"{schema.FOLDER}/validate.py"]
"""The files that decide which locks are valid, and what they mean."""


def dumps(resolution: Resolution) -> str:
    """Return the text of a lock; invisible characters in texts of others become escapes.

    Raise `LockError` if a value cannot be stored, because `read_lock` would reject it.
    """
    import tomli_w

    data = _stored(msgspec.to_builtins(resolution, builtin_types=(date,), enc_hook=encode))
    _converted(
        data, "The resolution cannot be stored as a lock", hint="Change this value, and resolve again."
    )
    data[_INTEGRITY] = {"sha256": digest_of(data)}
    return _HEAD + tomli_w.dumps(data, multiline_strings=False)


def encode(value: object) -> str:
    """Return the text of a `Requirement` or `Notice`. For msgspec's `enc_hook`."""
    if isinstance(value, Notice):
        return value.marked
    if isinstance(value, Requirement):
        return str(value)
    raise NotImplementedError


def decode(kind: type, value: object) -> Requirement | Notice:
    """Return the `Requirement` or `Notice` that a text encodes. For msgspec's `dec_hook`."""
    if kind not in {Requirement, Notice}:
        raise NotImplementedError
    if not isinstance(value, str):
        msg = f"Expected a {kind.__name__.lower()} as text"
        raise TypeError(msg)
    if kind is Notice:
        return Notice.from_marked(value)
    try:
        requirement = parse_requirement(value)
    except UsageError as error:
        raise ValueError(error.message.rstrip(".")) from None
    if not is_url(requirement.url):
        msg = f"the URL of {printable(value)!r} has characters that a URL must not have"
        raise ValueError(msg)
    return requirement


def _stored(value: Any, key: str = "") -> Any:  # noqa: ANN401  any TOML value
    """Return a value as `read_lock` accepts it, without keys that are empty or None: TOML has no null.

    A recipe's ``match-runtime`` is not empty by default, and an empty variable is one that is not set.
    """
    if isinstance(value, dict):
        items = {printable(name): _stored(item, name) for name, item in value.items()}
        return {
            name: item
            for name, item in items.items()
            if item not in ("", None, [], {}) or name == "match-runtime" or key == "environment"
        }
    if isinstance(value, list | tuple):
        return [_stored(item, key) for item in value]
    if isinstance(value, str):
        return quoted_url(value) if key in _URL_KEYS else printable(value)
    return value


def digest_of(data: Mapping[str, object]) -> str:
    """Return the SHA-256 of a lock's data in canonical form, without the digest itself.

    Examples
    --------
    >>> digest_of({"a": 1, "b": []}) == digest_of({"b": [], "a": 1})
    True
    >>> digest_of({"a": 1}) == digest_of({"a": True})
    False
    """
    import json

    content = {key: value for key, value in data.items() if key != _INTEGRITY}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=_typed)
    return hashlib.sha256(text.encode()).hexdigest()


def _typed(value: object) -> object:
    """Encode a TOML value that JSON lacks, so that a date differs from its text."""
    return {f"!{type(value).__name__}": value.isoformat() if isinstance(value, date) else str(value)}


def read_lock(path: Path) -> Resolution:
    """Read the resolution in a lock file.

    Raise `LockError` if the file is missing or not a lock, was written by another version of matrix, or was
    changed after matrix wrote it.
    """
    return loads(text_of(path), path)


def loads(text: str, path: Path) -> Resolution:
    """Return the resolution in the text of a lock; see `read_lock`."""
    data = _read_toml(text, path)
    number = data.get("schema")
    if "request" not in data or "target" not in data or number is None:
        msg = f"{path} is not a matrix lock."
        raise LockError(msg, hint="Name the lock with --lock, or write one with `matrix resolve`.")
    if number != SCHEMA or isinstance(number, bool):
        msg = f"{path} has unknown schema version {number!r}. This version of matrix reads {SCHEMA}."
        raise LockError(
            msg, hint=f"Use the version of matrix that wrote it, or {_AGAIN[0].lower()}{_AGAIN[1:]}"
        )
    written = data.pop(_INTEGRITY, None)
    if written is None:
        msg = f"{path} has no digest ([{_INTEGRITY}] at its end). It was cut short or edited."
        raise LockError(msg, hint=_AGAIN)
    if written != {"sha256": digest_of(data)}:
        msg = f"{path} does not match its digest. It was changed after matrix wrote it."
        raise LockError(msg, hint=f"Change the request instead. {_AGAIN}")
    check_texts(data, path, LockError, hint=_NOT_OURS)
    return _converted(data, f"{path} is not a lock that this version of matrix can read", hint=_NOT_OURS)


def _converted(data: dict[str, Any], problem: str, *, hint: str) -> Resolution:
    try:
        resolution = msgspec.convert(data, Resolution, dec_hook=decode)
    except msgspec.ValidationError as error:
        raise LockError(f"{problem}: {explained(str(error), data)}.", hint=hint) from None
    for number, pick in enumerate(resolution.picks):
        if pick.kind == "distribution" and not (is_version(pick.version) and is_version(pick.pinned)):
            msg = (
                f"{problem}: picks[{number}].version is {printable(pick.version)!r}, which is not a version."
            )
            raise LockError(msg, hint=hint)
        if pick.recipe is not None and (wrong := next(_errors_of_recipe(pick, pick.recipe), "")):
            raise LockError(f"{problem}: the recipe of {pick.name}: {wrong}.", hint=hint)
        for file in pick.files:
            if not is_version(version_in(file.name, pick.name) or ""):
                why = f"is not the name of a wheel or an sdist of {pick.name}"
                msg = f"{problem}: {printable(file.name)!r}, a file of picks[{number}], {why}."
                raise LockError(msg, hint=hint)
    return resolution


def _errors_of_recipe(pick: Distribution, recipe: Recipe) -> Iterator[str]:
    """Yield what is wrong with a recipe: it must be as valid as one of a catalog, and for its pick."""
    from resolver.facts.validate import validation_errors

    if (recipe.package, recipe.releases) != (pick.name, f"=={pick.version}"):
        yield f"it is for {printable(recipe.package)} {printable(recipe.releases)}"
    usual = schema.Recipe(package="", backend="rocm", status="inferred", source="")
    for name in sorted({*recipe.__struct_fields__} - _DRAFTED):
        if getattr(recipe, name) != getattr(usual, name):
            yield f"it has {name.replace('_', '-')}, which no drafted recipe has"
    for _, key, text in validation_errors(schema.CatalogFile(schema=schema.SCHEMA, recipe=[recipe])):
        yield f"{key} {text}"


def text_of(path: Path) -> str:
    """Return the text of a lock file; raise `LockError` if it cannot be read."""
    if not path.exists():
        msg = f"There is no lock file {path}."
        raise LockError(msg, hint="Write it with `matrix resolve`.")
    return read_text(path, error=LockError, hint="Name the lock that `matrix resolve` wrote.")


def _read_toml(text: str, path: Path) -> dict[str, Any]:
    if not text.strip():
        msg = f"{path} is empty."
        raise LockError(msg, hint=_AGAIN)
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"{path} is not a matrix lock, because it is not valid TOML: {error}."
        raise LockError(msg, hint=_AGAIN) from None
