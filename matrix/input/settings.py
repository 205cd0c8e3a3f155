"""The settings in files, the environment and options, before names and versions are checked."""

from __future__ import annotations

import argparse
import datetime
import functools
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from builders.constants import LOCK_FILE
from builders.storage.files import cache_root, make_directories
from resolver.errors import UsageError, closest_names, did_you_mean
from resolver.facts import catalog as facts
from resolver.indexes import IndexStrategy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resolver.facts.catalog import Catalog

SITE_FACTS = Path("/etc/rocm-matrix")
REQUEST_FILE = Path("matrix.toml")
_SOURCES = ("requirements", "requirement_files", "env", "project")
_OF_PROJECT = ("extras", "groups")
_OF_USER = ("account", "cache", "extra-index-url", "index-strategy", "index-url", "mirrors", "site")
"""Keys of the files of a user and of the system: what belongs to a person or a machine."""
_FILES = ("requirement_files", "constraint_files", "override_files", "env", "project", "catalog")
_FILES_OR_NAMES = ("requirements", "site", "base_image", "keep_installed")
_BELONGING = {
    "base_image": ("no_base_image",),  # before what replaces an image: that says nothing about having none
    "no_base_image": ("base_image",),
    "site": ("backend", "gfx", "driver", "rocm", "base_image"),
    "backend": ("gfx", "driver", "rocm", "base_image"),
    "gfx": ("backend",),
}
"""What a setting says only together with another one, so that an option for that replaces it, too."""


EVERYTHING = ""
"""The name that ``--upgrade`` without a name gives."""


class Settings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """The keys of ``matrix.toml``; options of the same name take precedence."""

    cache: str = ""
    """The directory of the cache if XDG_CACHE_HOME is not set; variables such as ``$USER`` are replaced."""

    requirements: list[str] = []
    requirement_files: list[str] = []
    env: str | None = None
    """A conda environment file, whose pip section is resolved."""
    project: str | None = None
    """A ``pyproject.toml``, or the directory that contains it."""
    extras: list[str] = []
    groups: list[str] = []
    constraints: list[str] = []
    constraint_files: list[str] = []
    overrides: list[str] = []
    override_files: list[str] = []
    index_url: str | None = None
    extra_index_url: list[str] = []
    index_strategy: IndexStrategy | None = None
    offline: bool = False
    upgrade: tuple[str, ...] = ()
    site: str | None = None
    date: datetime.date | None = None
    backend: Literal["rocm", "cpu"] | None = None
    gfx: list[str] = []
    driver: str | None = None
    rocm: str | None = None
    python: str | None = None
    base_image: str | None = None
    no_base_image: bool = False
    prefer: Literal["advised", "newest", "proven", "oldest"] | None = None
    no_prebuilt: bool = False
    no_network_plugin: bool = False
    ops: list[str] = []
    """Ops to compile instead of those of a recipe, such as ``deepspeed:fused_adam,cpu_adam``."""
    catalog: list[str] = []
    consumer: str | None = msgspec.field(default=None, name="for")
    """The tool that will install the wheels, as for ``matrix env --for``."""
    keep_installed: str | None = None
    """A file that lists the installed distributions to keep, or ``image``."""
    replace: list[str] = []
    """Installed distributions that are not kept."""
    account: str = ""
    mirrors: dict[str, str] = {}
    """Maps URL prefixes to their replacement."""

    @property
    def has_requirements(self) -> bool:
        """Whether the user named any source of requirements."""
        return any(getattr(self, name) for name in _SOURCES)


def user_files() -> list[Path]:
    """Return the files of settings of the system and of the user that exist; later ones take precedence."""
    system, home = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg", os.environ.get("XDG_CONFIG_HOME", "")
    folders = [*reversed(system.split(":")), home if Path(home).is_absolute() else "~/.config"]
    paths = [Path(folder, "matrix").expanduser() / REQUEST_FILE for folder in folders]
    return [path for path in paths if os.path.exists(path)]  # noqa: PTH110  no error without permission


def in_project(path: Path) -> Path:
    """Return a path in the project: the directory, from here up, with ``matrix.toml`` or ``matrix.lock``.

    The search ends at a directory that everyone may write to, such as ``/tmp``. If there is no project, it is
    the current directory.
    """
    here = Path.cwd()
    for number, folder in enumerate((here, *here.parents)):
        if number and folder.stat().st_mode & stat.S_IWOTH:
            break
        if any(map(os.path.exists, (folder / REQUEST_FILE, folder / LOCK_FILE))):
            return _joined("../" * number, path) if number else path
    return path


@functools.cache
def _joined(folder: str, path: Path) -> Path:
    return Path(folder, path)  # the same object each time, by which a default is recognized


def read_settings(options: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings in force.

    Of a key, the value that comes last counts: that of the system's file, the user's, the project's, the
    environment, and `options`. Raise `UsageError`, with the line, if a file is not valid.
    """
    settings = Settings()
    for path in user_files():
        settings = merge(settings, read_file(path, of_user=True))
    path = in_project(REQUEST_FILE)
    if path.exists():
        settings = merge(settings, read_file(path))
    account = os.environ.get("SBATCH_ACCOUNT")
    settings = merge(settings, {"account": account} if account else {})
    return merge(settings, options or {})


def use_cache() -> None:
    """Let XDG_CACHE_HOME be what a file of the user or the system has as ``cache``, unless it is set.

    Programs that this one starts, such as pip, then use this directory, too.
    """
    for path in reversed(user_files()):
        cache = read_file(path, of_user=True).get("cache")
        if cache and not os.environ.get("XDG_CACHE_HOME"):
            directory = os.path.expandvars(Path(cache).expanduser())
            if "$" in directory or not Path(directory).is_absolute():
                msg = f"{path}: 'cache' is {directory!r}, which is not an absolute path."
                raise UsageError(msg, hint='Write it like: cache = "/scratch/project_465000001/$USER/cache"')
            os.environ["XDG_CACHE_HOME"] = directory


def read_file(path: Path, *, of_user: bool = False) -> dict[str, Any]:
    """Return the settings in a file, by the name of each; relative paths are seen from this directory.

    Raise `UsageError`, with the line, if the file is not valid, or has a key of the other kind of file.
    """
    import tomllib

    try:
        text = path.read_text(encoding="utf-8-sig")
        data = tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        line = re.search(r"\(at line (\d+)", str(error))
        msg = f"Cannot read {path}{f':{line[1]}' if line else ''}: {error}."
        hint = 'Texts need quotes, as in: requirements = ["apex", "torch>=2.4"]' if line else ""
        if isinstance(error, UnicodeDecodeError):
            msg, hint = f"Cannot read {path}: it is not UTF-8 text.", "Save it as UTF-8."
        raise UsageError(msg, hint=hint) from None
    fields = dict(zip(Settings.__struct_encode_fields__, Settings.__struct_fields__, strict=True))
    for key in data:
        if key not in fields:
            msg = f"{path}{_line(text, key)}: unknown key {key!r}."
            raise UsageError(msg, hint=did_you_mean(key, _OF_USER if of_user else fields))
        if (key not in _OF_USER) if of_user else key == "cache":
            place = "the matrix.toml of a project" if of_user else "~/.config/matrix/matrix.toml"
            raise UsageError(f"{path}{_line(text, key)}: {key!r} belongs in {place}.")
        try:
            msgspec.convert({key: data[key]}, Settings)
        except msgspec.ValidationError:
            what, example = _wanted(key, data[key])
            msg = f"{path}{_line(text, key)}: {key!r} must be {what}."
            raise UsageError(msg, hint=f"Write: {key} = {example}") from None
    settings = msgspec.convert(data, Settings)
    if settings.mirrors:
        from builders.network.urls import check_mirrors

        check_mirrors(settings.mirrors, where=str(path))
    return seen_from({fields[key]: getattr(settings, fields[key]) for key in data}, path.parent)


def seen_from(given: dict[str, Any], folder: Path, start: Path = Path()) -> dict[str, Any]:
    """Return settings of a folder with relative paths from another one, if they name what exists."""
    if folder == start:
        return given

    def moved(text: str) -> str:
        path = folder / text
        if Path(text).is_absolute() or not path.exists():
            return text
        relative = os.path.relpath(path, start)
        return relative if relative.startswith(".") else f"./{relative}"

    for name in (*_FILES, *_FILES_OR_NAMES):
        value = given.get(name)
        is_name = name in _FILES_OR_NAMES
        if isinstance(value, list):
            given[name] = [text if is_name and "/" not in text else moved(text) for text in value]
        elif value and not (is_name and "/" not in value and "." not in value):
            given[name] = moved(value)
    return given


def _line(text: str, key: str) -> str:
    """Return a colon and the number of the line that has a key; empty if it is not found."""
    here = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}[\"']?\s*[\].=]")
    lines = (f":{number}" for number, line in enumerate(text.splitlines(), start=1) if here.match(line))
    return next(lines, "")


def _wanted(key: str, value: object) -> tuple[str, str]:
    """Return what a key accepts, and the value as it should be written, or else an example."""
    import json

    import msgspec.inspect

    field = next(field for field in msgspec.structs.fields(Settings) if field.encode_name == key)
    info = msgspec.inspect.type_info(field.type)
    if isinstance(info, msgspec.inspect.UnionType):
        info = info.types[0]
    match info:
        case msgspec.inspect.LiteralType(values=names):
            quoted = [f'"{name}"' for name in names]
            close = closest_names(str(value), map(str, names))
            return f"one of {', '.join(quoted)}, not {value!r}", f'"{close[0]}"' if close else quoted[0]
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            values = value if isinstance(value, list) else [] if isinstance(value, dict) else [value]
            return "a list of strings", json.dumps([str(each) for each in values])
        case msgspec.inspect.DateType():
            day = value.date() if isinstance(value, datetime.datetime) else "2026-02-25"
            return "a date", str(day)
        case msgspec.inspect.BoolType():
            return "true or false", "true"
        case msgspec.inspect.DictType():
            return "a table of strings", '{ "https://github.com/" = "file:///mirrors/github/" }'
    simple = isinstance(value, (int, float, str))
    return "a string", json.dumps(str(value)) if simple else '"..."'


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that the options of a command give."""
    return {
        name: tuple(value) if name == "upgrade" else value
        for name in Settings.__struct_fields__
        if (value := getattr(args, name, None)) not in (None, [], False, "")
    }


def merge(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """Return settings with others in their place.

    A source of requirements replaces all of the settings. Another site, backend or GPU replaces what belongs
    to that of the settings.
    """
    none, options = Settings(), dict(given)
    if any(name in options for name in _SOURCES):
        options = {name: getattr(none, name) for name in (*_SOURCES, *_OF_PROJECT)} | options
    for option, belonging in _BELONGING.items():
        if option in options:
            options = {name: getattr(none, name) for name in belonging} | options
    return msgspec.structs.replace(settings, **options)


def site_file(site: str | None) -> str:
    """Return the path in ``--site FILE``; empty when ``--site`` names a site or is missing."""
    return site if site and ("/" in site or site.endswith(".toml")) else ""


def overlays(settings: Settings) -> list[Path]:
    """Return the facts over the shipped ones: of the system, ``$MATRIX_SITE``, ``--site``, ``--catalog``."""
    variable = os.environ.get("MATRIX_SITE", "")
    if variable and not Path(variable).exists():
        raise UsageError(f"MATRIX_SITE is set to {variable}, which does not exist.")
    paths = [SITE_FACTS] if SITE_FACTS.exists() else []
    paths += [Path(variable)] if variable else []
    file = site_file(settings.site)
    if file and not Path(file).is_file():
        msg = f"The file {file}, which is named as the site, does not exist."
        raise UsageError(msg, hint="Use the name of a site, or a TOML file that defines a site.")
    paths += [Path(file)] if file else []
    return [*paths, *map(Path, settings.catalog)]


def load_catalog(settings: Settings) -> Catalog:
    """Load the shipped catalog and the overlays."""
    cache = cache_root() / "catalog"
    with suppress(OSError):  # without a cache it only takes longer
        make_directories(cache)  # with the modes of a shared directory
    return facts.load(overlays(settings), cache=cache)
