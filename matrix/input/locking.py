"""A lock and its catalog, the versions to keep from it, and the options that must match it."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from zlib import crc32

import msgspec
from msgspec.structs import replace

from builders.containers.image import image_name
from builders.storage.files import cache_root, make_directories, write_atomic
from matrix.input.request import driver_line, request_ops, site_named
from matrix.input.settings import EVERYTHING, load_catalog, site_file
from matrix.show.render import shortened
from matrix.show.resolution_text import weighed_reason
from resolver.errors import EnvironmentLacksError, LockError, MatrixError, UsageError, did_you_mean
from resolver.facts.catalog import stamp
from resolver.indexes import ExcludedFile
from resolver.model import Resolution
from resolver.providers.inferred import with_releases_of
from resolver.versions import allows, parse_specifier, shorten, version_or_none

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection

    from matrix.input.settings import Settings
    from matrix.show.json_document import LockChange
    from resolver.facts.catalog import Catalog
    from resolver.indexes import PackageIndexes
    from resolver.model import Distribution, Request


def read_lock(path: Path) -> Resolution:
    """Read the resolution in a lock file as `resolver.lock.read_lock` does.

    TOML is read slowly, so a valid lock is kept in the cache, in one file for each path, with the digest of
    its text and a stamp of the code that checks it.
    """
    from builders.index_client import stored
    from resolver import lock as lock_file

    text = lock_file.text_of(path)
    kept = cache_root() / "locks" / f"{crc32(os.fsencode(path.absolute())):08x}.msgpack"
    state = hashlib.sha256(text.encode()).hexdigest(), stamp(lock_file.CODE)
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        kind = tuple[str, list[tuple[str, int, int]], Resolution]
        *known, lock = msgspec.msgpack.decode(kept.read_bytes(), type=kind, dec_hook=lock_file.decode)
        if known == [*state]:
            return lock
    lock = lock_file.loads(text, path)
    stored.replace(kept, msgspec.msgpack.encode((*state, lock), enc_hook=lock_file.encode))
    return lock


def catalog_of(lock: Resolution, path: Path, settings: Settings, *, drafts: bool = True) -> Catalog:
    """Load the catalog with the overlays of the settings, else those of a lock.

    They are beside the lock or in the working directory. Releases of the lock that it lacks are added, with
    the facts of the nearest older release. Without `drafts`, those with a drafted recipe are not: whoever
    resolves again gets their sources from the indexes.
    """
    site = settings.site
    if lock.request.site_file and not site_file(settings.site):
        site = _overlay(lock.request.site_file, path)
    catalogs = settings.catalog or overlays_of(lock, path)
    catalog = load_catalog(replace(settings, site=site, catalog=catalogs))
    return with_releases_of(catalog, lock, drafts=drafts)


def catalog_with_image_of(
    lock: Resolution, path: Path, settings: Settings, *, drafts: bool = True
) -> Catalog:
    """Return `catalog_of` with the content of the lock's base image, if a file; see `with_inspected_image`.

    The image is not started, because the lock and the image may be a stranger's.
    """
    catalog, image = catalog_of(lock, path, settings, drafts=drafts), lock.image
    if image and lock.request.target.base_image and image.path.startswith("/"):
        from builders.containers.inspection import with_inspected_image

        catalog = with_inspected_image(catalog, image.path, image.name, start=False)
    return catalog


def overlays_of(lock: Resolution, path: Path) -> list[str]:
    """Return the paths of the overlays of a lock, next to it or in the working directory."""
    return [_overlay(name, path) for name in lock.request.catalogs]


def _overlay(name: str, lock: Path) -> str:
    for directory in (lock.parent, Path()):
        if (directory / name).exists():
            return str(directory / name)
    msg = (
        f"The lock was resolved with the facts in {name}, which is neither in the working directory nor next "
        "to the lock."
    )
    raise UsageError(msg, hint="Copy it here, name another with --site or --catalog, or resolve again.")


def read_earlier(path: Path, *, required: bool = False) -> Resolution | None:
    """Return the lock that an answer will replace; None if there is none, or it cannot be read.

    Raise `LockError` in both cases if it is required.
    """
    if not required and not path.exists():
        return None
    try:
        return read_lock(path)
    except LockError:
        if required:
            raise
        return None


def is_own(lock: Resolution) -> bool:
    """Return whether this user wrote a lock; the record of others, in a shared cache, does not count."""
    from resolver.lock import dumps

    with suppress(OSError, LockError):  # a lock of others may lack what each lock of ours has
        return _own_record(dumps(lock)).stat().st_uid == os.getuid()
    return False


def _own_record(text: str) -> Path:
    return cache_root() / "locks" / hashlib.sha256(text.encode()).hexdigest()


def note_own(text: str) -> None:
    """Remember that this user wrote a lock, which therefore may name whatever the user's request named."""
    record = _own_record(text)
    with suppress(OSError):  # a read-only cache
        make_directories(record.parent)
        record.touch()


def exclude_file(path: Path, name: str, sha256: str, evidence: str) -> None:
    """Exclude a file that does not fit: the next resolution that replaces the lock chooses another.

    `evidence` ends a sentence that starts with the distribution: ``requires CUDA: _C.so needs
    libcudart.so.12``.
    """
    from resolver.lock import dumps

    lock = read_lock(path)
    found = ExcludedFile(name, lock.version_of(name), sha256, evidence)
    known = lock.request.excluded
    if found not in known:
        request = replace(lock.request, excluded=(*known, found))
        text = dumps(replace(lock, request=request))
        write_atomic(path, text)
        if is_own(lock):
            note_own(text)


def exclude_pick(path: Path, pick: Distribution, evidence: str) -> None:
    """Exclude the file of a distribution in a lock; see `exclude_file`."""
    try:
        exclude_file(path, pick.name, pick.files[0].sha256, evidence)
    except OSError as error:
        msg = f"{pick.files[0].name} does not fit: it {evidence}. {path} cannot be written: {error.strerror}."
        hint = f"Request another release of {pick.name}, and resolve again."
        raise EnvironmentLacksError(msg, hint=hint) from None


def is_same_request(one: Request, other: Request) -> bool:
    """Return whether two requests differ at most in their date, files of facts, and what sources state."""
    read = {"facts_files": other.facts_files, "stated": other.stated}
    return (
        replace(one, target=other.target, dated=other.dated, **read) == other
        and replace(one.target, date=other.target.date) == other.target
    )


def kept_versions(lock: Resolution, upgrade: Collection[str]) -> dict[str, str]:
    """Return the version and variant of each distribution in a lock, by name, except those to upgrade."""
    if EVERYTHING in upgrade:
        return {}
    keys = {pick.name: pick.key for pick in lock.picks}
    for name in upgrade:
        if name not in keys:
            msg = f"The lock has no {shorten(name)!r} to upgrade."
            raise UsageError(msg, hint=did_you_mean(name, keys))
    return {name: key for name, key in keys.items() if name not in upgrade}


def is_unchanged(lock: Resolution, again: Resolution) -> bool:
    """Return whether a later resolution of the same request gave the same result as a lock."""
    same = replace(again, request=lock.request, target=replace(again.target, date=lock.target.date))
    return (
        is_same_request(lock.request, again.request)
        and lock.request.facts_files == again.request.facts_files
        and same == lock
    )


def check_not_smaller(lock: Resolution, again: Resolution, path: Path) -> None:
    """Check that an incomplete resolution of the same request does not replace a lock that has more."""
    missing = {pick.name for pick in lock.distributions} - {pick.name for pick in again.distributions}
    reasons = [reason for reason in again.left_open if reason not in lock.left_open]
    if any(pick.files for pick in lock.picks) and not any(pick.files for pick in again.picks):
        reasons.append("no package index was used")
    if missing and reasons and is_same_request(lock.request, again.request):
        msg = (
            f"{path} was not replaced: the new resolution of the same request is incomplete "
            f"({shortened(reasons, most=2, separator='; ')}), and lacks {shortened(sorted(missing))}."
        )
        hint = f"Resolve when all indexes can be reached. To replace the lock anyway, remove {path} first."
        raise EnvironmentLacksError(msg, hint=hint)


def changed_facts(lock: Resolution, again: Resolution, path: Path) -> list[str]:
    """Return a sentence for each file of facts that changed between a lock and a later resolution."""
    before = {file.path: file.sha256 for file in lock.request.facts_files}
    after = {file.path: file.sha256 for file in again.request.facts_files}
    sentences = [
        f"{file} has changed since {path} was written."
        for file in after
        if before.get(file, after[file]) != after[file]
    ]
    one, other = lock.image, again.image
    if one and other and one.name == other.name and one.digest and other.digest not in {"", one.digest}:
        sentences.append(
            f"The base image {one.name} has changed since {path} was written: {one.path} was {one.digest}, "
            f"{other.path} is {other.digest}."
        )
    if is_same_request(lock.request, again.request):
        sentences += [f"{path} was resolved without the facts in {file}." for file in after.keys() - before]
        sentences += [
            f"{path} was resolved with the facts in {file}, which was not read now."
            for file in before.keys() - after
        ]
    return sorted(sentences)


def changes(lock: Resolution, again: Resolution, indexes: PackageIndexes | None) -> list[LockChange]:
    """Return the picks that changed, with the reason if known; `indexes` know what was yanked or removed."""
    from matrix.show.json_document import LockChange

    before = {pick.name: pick for pick in lock.picks}
    after = {pick.name: pick for pick in again.picks}
    found = []
    for name in sorted(before.keys() | after):
        old, new = before.get(name), after.get(name)
        if old and new and old.key == new.key:
            continue
        because = _withdrawn(old, indexes) if old else ""
        if new and not because:
            reason, says_more = weighed_reason(new, again)
            is_new = old is None or reason != weighed_reason(old, lock)[0]
            because = reason if is_new and says_more else ""
        found.append(LockChange(name, old.key if old else "", new.key if new else "", because))
    return found


def _withdrawn(pick: Distribution, indexes: PackageIndexes | None) -> str:
    """Return that a version was yanked or is gone from its index; empty if it was not."""
    index = next((file.index for file in pick.files if file.index), "")
    if indexes is None or not index:
        return ""
    try:
        project = indexes.at(index).project(pick.name)
    except MatrixError:
        return ""
    offered = {
        file.name: file.yanked
        for release in (project.releases if project else ())
        if version_or_none(release.version) == version_or_none(pick.version)
        for file in release.files
    }
    locked = [file.name for file in pick.files]
    if not any(name in offered for name in locked):
        return f"{index} no longer has {pick.version}"
    reasons = [offered.get(name) for name in locked]
    if any(reason is None for reason in reasons):
        return ""
    reason = next(filter(None, reasons), "")
    return f"{pick.version} was yanked{f' ({shorten(reason)})' if reason else ''}"


def same_target(lock: Resolution, args: argparse.Namespace, catalog: Catalog) -> None:
    """Check that the options agree with the target of the lock."""
    target = lock.target
    pairs = {
        "backend": (args.backend or ("rocm" if args.gfx else None), target.backend),
        "GPU architectures": (
            ",".join(sorted(set(args.gfx))) if args.gfx else None,
            ",".join(sorted(target.gfx)),
        ),
        "site": (site_named(args.site, catalog), target.site),
        "date": (args.date and args.date.isoformat(), target.date.isoformat()),
        "driver": (driver_line(args.driver, catalog), target.driver),
    }
    for what, (asked, locked) in pairs.items():
        if asked not in {None, locked}:
            _refuse(what, asked, locked, args)
    for what in ("python", "rocm"):
        asked, version = getattr(args, what), lock.version_of(what)
        if asked and not (version and allows([parse_specifier(asked)], version)):
            _refuse(what, asked, version, args)
    for name in ("no_prebuilt", "no_network_plugin"):
        if getattr(args, name, False) and not getattr(lock.request, name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{args.lock} was resolved without {option}.", hint=f"Resolve again with {option}."
            )
    if getattr(args, "no_base_image", False) and lock.image:
        _refuse("base image", "none", lock.image.name, args)
    ops = request_ops(getattr(args, "ops", None) or ())
    if ops and ops != lock.request.ops:
        locked = " ".join(lock.request.ops) or "the ops of the recipes"
        msg = f"You asked for the ops {' '.join(ops)}, but {args.lock} was resolved for {locked}."
        raise UsageError(msg, hint="Resolve again with --ops, or name another file with --lock.")
    same_image(lock, args, catalog)


def check_ops(lock: Resolution, catalog: Catalog) -> None:
    """Check that packages whose ops a request names are built, and that their recipes have these ops."""
    built = {pick.name: pick for pick in lock.built()} if lock.request.ops else {}
    for text in lock.request.ops:
        from builders.building.plan import recipe_of

        name = text.partition(":")[0]
        if name not in built:
            msg = f"--ops names {name}, but {name} is not built."
            raise UsageError(msg, hint=did_you_mean(name, built))
        recipe_of(built[name], lock, with_releases_of(catalog, lock))


def same_image(lock: Resolution, args: argparse.Namespace, catalog: Catalog) -> None:
    """Check that ``--base-image`` agrees with the base image of the lock."""
    asked = args.base_image and image_name(args.base_image, catalog)
    if asked not in {None, lock.target.base_image}:
        _refuse("base image", asked, lock.target.base_image, args)


def _refuse(what: str, asked: str | None, locked: str | None, args: argparse.Namespace) -> NoReturn:
    msg = f"You asked for {what} {asked}, but {args.lock} was resolved for {locked or 'none'}."
    raise UsageError(msg, hint="Resolve for that target first, or name another file with --lock.")
