"""The settings in ``matrix.toml`` and in options, before names and versions are checked."""

from __future__ import annotations

import argparse
import datetime
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from builders.storage.files import cache_root, make_directories
from resolver.errors import UsageError, closest_names, did_you_mean
from resolver.facts import catalog as facts
from resolver.indexes import IndexStrategy

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog

SITE_FACTS = Path("/etc/rocm-matrix")
REQUEST_FILE = Path("matrix.toml")
_SOURCES = ("requirements", "requirement_files", "env", "project")
_OF_PROJECT = ("extras", "groups")
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


def read_settings(path: Path = REQUEST_FILE) -> Settings:
    """Read ``matrix.toml``; without the file every setting has its default."""
    try:
        text = path.read_text(encoding="utf-8")
        import tomllib

        data = tomllib.loads(text)
    except FileNotFoundError:
        return Settings()
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"Cannot read {path}: {error}.") from None
    known = [field.encode_name for field in msgspec.structs.fields(Settings)]
    for key in data:
        if key not in known:
            raise UsageError(f"{path}: unknown key {key!r}.", hint=did_you_mean(key, known))
    try:
        settings = msgspec.convert(data, Settings)
    except msgspec.ValidationError as error:
        raise _wrong_type(path, text, data, error) from None
    if settings.mirrors:
        from builders.network.urls import check_mirrors

        check_mirrors(settings.mirrors, where=str(path))
    return settings


def _wrong_type(path: Path, text: str, data: dict[str, Any], error: msgspec.ValidationError) -> UsageError:
    import msgspec.inspect

    match = re.search(r"at `\$\.([\w-]+)", str(error))
    key = match[1] if match else ""
    info = next(field for field in msgspec.structs.fields(Settings) if field.encode_name == key)
    what, example = _wanted(msgspec.inspect.type_info(info.type), data[key])
    here = re.compile(rf"\s*\[?\s*[\"']?{key}[\"']?\s*[\].=]")
    lines = (f":{number}" for number, line in enumerate(text.splitlines(), start=1) if here.match(line))
    return UsageError(f"{path}{next(lines, '')}: {key!r} must be {what}.", hint=f"Write: {key} = {example}")


def _wanted(info: msgspec.inspect.Type, value: object) -> tuple[str, str]:
    """Return what a key accepts, and the value as it should be written, or else an example."""
    import json

    import msgspec.inspect

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


def merge(settings: Settings, args: argparse.Namespace) -> Settings:
    """Return settings with options in their place.

    A source of requirements replaces all of the settings. Another site, backend or GPU replaces what belongs
    to that of the settings.
    """
    options = {
        field.name: value
        for field in msgspec.structs.fields(Settings)
        if (value := getattr(args, field.name, None)) not in (None, [], False, "")
    }
    if "upgrade" in options:
        options["upgrade"] = tuple(options["upgrade"])
    if any(name in options for name in _SOURCES):
        none = Settings()
        options = {name: getattr(none, name) for name in (*_SOURCES, *_OF_PROJECT)} | options
    for option, belonging in _BELONGING.items():
        if option in options:
            options = {name: getattr(Settings(), name) for name in belonging} | options
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
