"""What a command that reads a lock asks of it: the facts it was resolved with, and the target it is for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from builders.containers.image import image_name
from matrix.request import driver_line, site_named
from matrix.settings import load_catalog, site_file
from resolver.errors import UsageError
from resolver.versions import allows, parse_specifier

if TYPE_CHECKING:
    import argparse

    from matrix.settings import Settings
    from resolver.facts.catalog import Catalog
    from resolver.model import Resolution

_TARGET = ("site", "date", "backend", "gfx", "driver", "rocm", "python", "base_image")


def catalog_of(lock: Resolution, path: Path, settings: Settings) -> Catalog:
    """Load the shipped catalog with its overlays and those that a lock was resolved with.

    Of each kind, what the settings name counts instead of the lock's. A file that the lock names is
    looked for beside it, and then from here, as it was when it was resolved.

    Parameters
    ----------
    path
        Where the lock lies.

    Raises
    ------
    UsageError
        One of the lock's is not here.
    """
    named = "" if site_file(settings.site) else lock.request.site_file
    site = _found(named, path) if named else ""
    catalogs = [] if settings.catalog else [_found(one, path) for one in lock.request.catalogs]
    given = {"site": site or settings.site, "catalog": catalogs or settings.catalog}
    return load_catalog(msgspec.structs.replace(settings, **given))


def _found(named: str, lock: Path) -> str:
    for folder in (lock.parent, Path()):
        if (folder / named).exists():
            return str(folder / named)
    msg = f"The lock was resolved with the facts in {named}, which are neither here nor beside it."
    raise UsageError(msg, hint="Bring them there, name others with --site or --catalog, or resolve again.")


def names_target(args: argparse.Namespace) -> bool:
    """Tell whether options say what is resolved or built for."""
    return any(getattr(args, name) for name in _TARGET)


def same_target(lock: Resolution, args: argparse.Namespace, catalog: Catalog) -> None:
    """See that the options do not ask for another target than the lock's.

    Raises
    ------
    UsageError
        They do; nothing else is ever built in its place.
    """
    target = lock.target
    asked = {
        "backend": (args.backend or ("rocm" if args.gfx else None), target.backend),
        "offload targets": (
            ",".join(sorted(set(args.gfx))) if args.gfx else None,
            ",".join(sorted(target.gfx)),
        ),
        "site": (site_named(args.site, catalog), target.site),
        "date": (args.date and args.date.isoformat(), target.date.isoformat()),
        "driver": (driver_line(args.driver, catalog), lock.version_of("kernel-driver")),
    }
    differing = [
        (what, wanted, locked) for what, (wanted, locked) in asked.items() if wanted not in {None, locked}
    ]
    for what in ("python", "rocm"):
        wanted, locked = getattr(args, what), lock.version_of(what)
        if wanted and not (locked and allows([parse_specifier(wanted)], locked)):
            differing.append((what, wanted, locked))
    for what, wanted, locked in differing:
        _refuse(what, wanted, locked, args)
    same_image(lock, args, catalog)


def same_image(lock: Resolution, args: argparse.Namespace, catalog: Catalog) -> None:
    """See that ``--base-image`` does not name another image than the lock's.

    Raises
    ------
    UsageError
        It does.
    """
    wanted = args.base_image and image_name(args.base_image, catalog)
    locked = lock.version_of("base-image")
    if wanted not in {None, locked}:
        _refuse("base image", wanted, locked, args)


def _refuse(what: str, wanted: str | None, locked: str, args: argparse.Namespace) -> NoReturn:
    msg = f"You asked for {what} {wanted}, but {args.lock} was resolved for {locked or 'none'}."
    raise UsageError(msg, hint="Resolve for that target first, or name another file with --lock.")
