"""What lies in an index where no reader finds it, or is no file: seen by name and kind, no wheel is read."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builders.files import link_exclusively, sha256_of
from builders.index.damage import Damage
from builders.index.entries import is_wheel
from builders.index.pages import JSON_PAGE, PAGE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builders.index.directory import Directory


def misplaced(index: Directory, *, repair: bool = False) -> Iterator[Damage]:
    """Find folders, pages and wheels that are not what their place asks for.

    Parameters
    ----------
    repair
        Move the wheels of a folder with a wrong name to where they belong, and put the rest aside.
    """
    for damage in _folders(index):
        yield _emptied(index, damage) if repair else damage
    found = list(_pages(index))
    for project in index.folders():
        found += _wheels(index, project)
    for damage in found:
        yield put_aside(index, damage) if repair else damage


def put_aside(index: Directory, damage: Damage) -> Damage:
    """Take what is damaged out of the index."""
    return replace(damage, repaired=f"put aside as {index.put_aside(index.root / damage.path)}")


def is_plain(path: Path) -> bool:
    """Tell whether a path is a regular file itself, and no link to one."""
    return path.is_file() and not path.is_symlink()


def _folders(index: Directory) -> list[Damage]:
    found = []
    for name in index.misnamed_folders():
        where, right = f"simple/{name}", f"simple/{canonicalize_name(name)}"
        text = f"{where} has no normalised name, so no reader looks into it; that is {right}."
        found.append(Damage("folder-misnamed", where, text))
    return found


def _emptied(index: Directory, damage: Damage) -> Damage:
    """Move the wheels of a folder to that of the right name, replacing none, and remove the folder."""
    folder = index.root / damage.path
    good = folder.with_name(canonicalize_name(folder.name))
    if folder.is_symlink():
        folder.unlink()
        return replace(damage, repaired="removed; it was a link")
    if good.exists() and good.samefile(folder):  # a file system that takes both names for one
        folder.rename(good)
        return replace(damage, repaired=f"renamed to simple/{good.name}")
    kept = [put for path in sorted(folder.iterdir()) if (put := _settled(index, path, good))]
    folder.rmdir()
    done = f"emptied into simple/{good.name} and removed"
    return replace(damage, repaired=f"{done}; put aside: {', '.join(kept)}" if kept else done)


def _settled(index: Directory, path: Path, good: Path) -> str:
    """Move one file of such a folder; give its place if it was put aside."""
    target = good / path.name
    if not is_plain(path):
        return index.put_aside(path)
    if path.name not in {PAGE, JSON_PAGE}:
        if not path.name.endswith(".whl"):
            return index.put_aside(path)
        good.mkdir(exist_ok=True)
        taken = os.path.lexists(target) or not link_exclusively(path, target)
        if taken and not (is_plain(target) and sha256_of(target) == sha256_of(path)):
            return index.put_aside(path)
    path.unlink(missing_ok=True)
    return ""


def _pages(index: Directory) -> Iterator[Damage]:
    for folder in (index.simple, *(index.simple / name for name in index.folders())):
        for path in (folder / PAGE, folder / JSON_PAGE):
            if path.exists() and not path.is_file():
                where = str(path.relative_to(index.root))
                yield Damage("page-wrong", where, f"{where} is no file.")


def _wheels(index: Directory, project: str) -> Iterator[Damage]:
    for name in index.listed(project):
        path = index.simple / project / name
        where = str(path.relative_to(index.root))
        if not is_plain(path):
            what = "is a link, which leads nowhere from a copy" if path.is_symlink() else "is no file"
            if os.path.lexists(path):  # or it was removed meanwhile
                yield Damage("wheel-irregular", where, f"{name} {what}.")
        elif not is_wheel(name):
            yield Damage("wheel-misnamed", where, f"{name} is not the name of a wheel, so no page lists it.")
