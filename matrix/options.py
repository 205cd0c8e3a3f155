"""Options and ``matrix.toml`` to a request: the edge at which text becomes types."""

from __future__ import annotations

import argparse
import datetime
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from builders.cache import cache_root
from matrix.imaging import image_name, lay_image
from resolver.driver import identify_driver, lines_of_module, release_of_package
from resolver.errors import UsageError, did_you_mean
from resolver.facts import loading as facts
from resolver.model import Request, Requirement, Target
from resolver.requirements import parse_requirement
from resolver.versions import minor, parse_specifier, shorten, spell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Backend

SITE_FACTS = Path("/etc/rocm-matrix")
REQUEST_FILE = Path("matrix.toml")
DEFAULT_REQUIREMENTS = ("torch", "apex", "deepspeed", "flash-attn", "bitsandbytes")
SUPPORT = ("documented", "observed", "any")
PREFER = ("newest", "proven", "oldest")


class Settings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """Everything that ``matrix.toml`` may say and that the target options may override."""

    requirements: list[str] = []
    site: str | None = None
    date: datetime.date | None = None
    backend: Literal["rocm", "cpu"] | None = None
    gfx: list[str] = []
    driver: str | None = None
    rocm: str | None = None
    python: str | None = None
    base_image: str | None = None
    support: Literal["documented", "observed", "any"] | None = None
    prefer: Literal["newest", "proven", "oldest"] | None = None
    catalog: list[str] = []
    keep_installed: str | None = None
    """A file that lists what is installed and is to stay, or ``image``."""
    mirrors: dict[str, str] = {}
    """URL prefix to the prefix that is asked instead."""


_TARGET_FLAG = re.compile(r"--(gfx\d+[0-9a-z-]*)")


def expand_target_flags(arguments: Iterable[str]) -> list[str]:
    """Let every offload target be a flag of its own, also one that only an overlay knows.

    What stands behind ``--`` belongs to another program.

    Examples
    --------
    >>> expand_target_flags(["resolve", "--gfx90a"])
    ['resolve', '--gfx', 'gfx90a']
    >>> expand_target_flags(["run", "--", "make", "--gfx90a"])
    ['run', '--', 'make', '--gfx90a']
    """
    expanded: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            return [*expanded, argument, *rest]
        flag = _TARGET_FLAG.fullmatch(argument)
        expanded += ["--gfx", flag[1]] if flag else [argument]
    return expanded


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is resolved and built for."""
    group = add_site_options(parser)
    group.add_argument("--rocm", metavar="SPEC", type=_something, help="ROCm, such as 6.2 or '>=6.2,<6.5'")
    group.add_argument("--python", metavar="SPEC", type=_something, help="Python, such as 3.12")
    group.add_argument("--support", choices=SUPPORT, help="how far to trust (default: any)")
    group.add_argument("--prefer", choices=PREFER, help="which of all solutions (default: newest)")


def add_site_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add those of them that name a site, a machine or an image, and what is known of it."""
    group = parser.add_argument_group("target")
    group.add_argument(
        "--site",
        metavar="NAME|FILE",
        type=_something,
        help="a named target, or a file that describes one (default: lumi-g; local for the CPU backend)",
    )
    group.add_argument(
        "--date", metavar="YYYY-MM-DD", type=_day, help="the site as of that day (default: today)"
    )
    group.add_argument("--backend", choices=("rocm", "cpu"), help="default: the site's")
    group.add_argument(
        "--gfx",
        metavar="A,B",
        type=_comma,
        action="extend",
        help="offload targets (default: the site's); each is a flag of its own, too: --gfx90a",
    )
    group.add_argument(
        "--driver",
        metavar="VERSION",
        type=_something,
        help="AMD kernel driver, instead of the site's",
    )
    group.add_argument(
        "--base-image",
        metavar="NAME|PATH",
        type=_something,
        help="base image: a name of the catalog, or a file",
    )
    group.add_argument(
        "--catalog",
        metavar="DIR",
        action="append",
        help="facts to lay over the shipped ones (repeatable)",
    )
    return group


def _day(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        msg = f"{shorten(text)!r} is not a day; write it as 2026-02-25"
        raise argparse.ArgumentTypeError(msg) from None


def _comma(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        msg = f"{shorten(text)!r} lacks a name; write targets as gfx90a,gfx942"
        raise argparse.ArgumentTypeError(msg)
    return names


def _something(text: str) -> str:
    """Refuse an empty text, as an unset variable of a shell gives it: nobody asks for nothing."""
    if not text.strip():
        msg = "it is empty"
        raise argparse.ArgumentTypeError(msg)
    return text


def read_settings(path: Path = REQUEST_FILE) -> Settings:
    """Read ``matrix.toml``; without one the settings are empty.

    Raises
    ------
    UsageError
        It is not valid, or has a key that means nothing.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Settings()
    except (OSError, ValueError) as error:
        msg = f"Cannot read {path}: {error}."
        raise UsageError(msg) from None
    return _settings_of(text, path)


def _settings_of(text: str, path: Path) -> Settings:
    import tomllib

    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"Cannot read {path}: {error}."
        raise UsageError(msg) from None
    known = [field.encode_name for field in msgspec.structs.fields(Settings)]
    for key in data:
        if key not in known:
            msg = f"{path} has the key {key!r}, which means nothing."
            raise UsageError(msg, hint=did_you_mean(key, known))
    try:
        settings = msgspec.convert(data, Settings)
    except msgspec.ValidationError as error:
        msg = f"{path}: {error}."
        raise UsageError(msg) from None
    if settings.mirrors:
        from builders.sources.mirrors import check_mirrors

        check_mirrors(settings.mirrors, where=str(path))
    return settings


def merge(settings: Settings, args: argparse.Namespace) -> Settings:
    """Let the options win over the file."""
    given = {
        field.name: value
        for field in msgspec.structs.fields(Settings)
        if (value := getattr(args, field.name, None)) not in (None, [])
    }
    return msgspec.structs.replace(settings, **given)


def overlays(settings: Settings) -> list[Path]:
    """Give what is laid over the shipped facts, in order.

    First the site's, from ``/etc/rocm-matrix`` and from where ``$MATRIX_SITE`` says, then the file of
    ``--site FILE``, then those that the settings name.

    Raises
    ------
    UsageError
        ``$MATRIX_SITE`` or ``--site`` names a file that does not exist.
    """
    own = os.environ.get("MATRIX_SITE", "")
    if own and not Path(own).exists():
        msg = f"MATRIX_SITE names {own}, which does not exist."
        raise UsageError(msg)
    site = [SITE_FACTS] if SITE_FACTS.exists() else []
    site += [Path(own)] if own else []
    named = site_file(settings.site)
    if named and not Path(named).is_file():
        msg = f"There is no file {named}, which --site names."
        raise UsageError(msg, hint="Name a site, or a file of facts that describes one.")
    site += [Path(named)] if named else []
    return [*site, *(Path(one) for one in settings.catalog)]


def site_file(site: str | None) -> str:
    """Give the file that ``--site`` names; empty where it names a site, or nothing."""
    return site if site and ("/" in site or site.endswith(".toml")) else ""


def load_catalog(settings: Settings) -> Catalog:
    """Load the shipped catalog with its overlays."""
    return facts.load(overlays(settings), cache=cache_root() / "catalog")


def site_named(site: str | None, catalog: Catalog) -> str | None:
    """Give the name of the site that ``--site`` means: the name itself, or a file that describes it."""
    path = site_file(site)
    return _site_of_file(path, catalog) if path else site


def make_request(settings: Settings, catalog: Catalog, today: datetime.date) -> Request:
    """Turn settings into a request.

    A base image of this machine is looked into, and laid over the catalog.

    Raises
    ------
    UsageError
        A name or value means nothing; the message says what was probably meant.
    """
    if settings.base_image:
        lay_image(settings.base_image, catalog)
    target = _target(settings, catalog, today)
    texts = settings.requirements or list(DEFAULT_REQUIREMENTS)
    requirements = [parse_requirement(text) for text in texts]
    for name in ("rocm", "python"):
        text = getattr(settings, name)
        if text:
            specifier = parse_specifier(text)
            requirements.append(Requirement(name, specifier, f"{name}{specifier}"))
    keep = None
    if settings.keep_installed:
        from matrix.installed import read_preinstalled

        keep = read_preinstalled(settings.keep_installed, catalog)
    return Request(
        target,
        tuple(requirements),
        settings.support or "any",
        settings.prefer or "newest",
        site_file=site_file(settings.site),
        catalogs=tuple(settings.catalog),
        keep=keep,
    )


def _site_of_file(path: str, catalog: Catalog) -> str:
    """Find the one site of which a file speaks."""
    own = [row.name for row in catalog.site.values() if row.from_file == path]
    if not own:
        kinds = (catalog.window, catalog.site_image, catalog.partition)
        spoken = [(row.site, row.from_file) for kind in kinds for row in kind.values()]
        own = list(dict.fromkeys(site for site, file in spoken if file == path))
    if len(own) != 1:
        named = f"speaks of {len(own)} sites: {spell(own, joiner='and')}" if own else "speaks of no site"
        msg = f"{path}, which --site names, {named}."
        raise UsageError(msg, hint="A file for --site holds one [[site]] row; see docs/catalog.md.")
    return own[0]


def _target(settings: Settings, catalog: Catalog, today: datetime.date) -> Target:
    site_name = site_named(settings.site, catalog) or ("local" if settings.backend == "cpu" else "lumi-g")
    site = catalog.site.get(site_name)
    if site is None:
        msg = f"There is no site {shorten(site_name)!r}."
        raise UsageError(msg, hint=did_you_mean(site_name, catalog.site))
    backend: Backend = settings.backend or ("rocm" if settings.gfx else site.backend)
    if backend == "cpu":
        _without_gpus(settings)
    gfx = tuple(dict.fromkeys(settings.gfx or site.gfx)) if backend == "rocm" else ()
    if backend == "rocm" and not gfx:
        msg = f"The site {site_name} names no offload target."
        raise UsageError(msg, hint="Name it, such as --gfx90a.")
    target = Target(
        backend=backend,
        gfx=gfx,
        site=site_name,
        date=settings.date or today,
        driver=driver_line(settings.driver, catalog),
        base_image=image_name(settings.base_image, catalog) if settings.base_image else None,
    )
    return _as_here(target, settings, catalog) if site_name == "local" else target


def _without_gpus(settings: Settings) -> None:
    """Refuse what only a GPU has, for the CPU backend."""
    asked = {
        "offload targets": ", ".join(settings.gfx),
        "kernel driver": settings.driver,
        "ROCm": settings.rocm,
    }
    for what, said in asked.items():
        if said:
            msg = f"The CPU backend has no {what}, but {shorten(said)} was asked for."
            raise UsageError(msg, hint="Leave out one of the two.")


def _as_here(target: Target, settings: Settings, catalog: Catalog) -> Target:
    """Complete a target by what this machine says of itself: its Python, and its driver or glibc."""
    from builders import host

    python = None if settings.python else host.running_python()
    if target.backend == "cpu":
        return replace(target, python=python, glibc=host.glibc_version())
    said = host.driver_says() if target.driver is None else ""
    return replace(target, python=python, driver=identify_driver(said, catalog) if said else target.driver)


def driver_line(text: str | None, catalog: Catalog) -> str | None:
    """Read what ``--driver`` says as a line of the driver table.

    Raises
    ------
    UsageError
        It is the kernel module's own version, or names no driver.
    """
    if text is None:
        return None
    if release_of_package(text):
        return identify_driver(text, catalog)
    lines = lines_of_module(text, catalog)
    if lines and minor(text) not in lines:
        msg = f"{text} is what the kernel module of driver {spell(lines)} says of itself, no release number."
        known = [line for line in lines if line in catalog.driver]
        raise UsageError(msg, hint=f"Say --driver {known[0]}." if known else "")
    named = [one.version for one in parse_specifier(text) if one.operator == "=="]
    return minor(named[0].removesuffix(".*")) if named else text


def check_names(names: Sequence[str]) -> list[str]:
    """Normalise the names of distributions on a command line."""
    return [parse_requirement(name).name for name in names]
