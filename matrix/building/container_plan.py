"""The plan of `matrix build-container`: its steps, the space that it needs, and what it lacks."""

from __future__ import annotations

import getpass
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from builders.machine.process import output_of
from builders.network.urls import local_path, without_password
from builders.storage.cache import cache_root, cached_file
from matrix.consumers.shared.container_variables import VISIBLE, is_visible
from matrix.show.render import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from matrix.command_line.context import Context
    from matrix.show.screen import Screen
    from resolver.model import Resolution

STEPS = ("resolve", "fetch", "build-wheels", "env", "container", "verify")
_ENFORCES_ACCOUNTS = re.compile(r"AccountingStorageEnforce\s*=\s*\S*associations")


class StepResult(msgspec.Struct):
    """One step of the plan. JSON output is this struct, encoded."""

    name: str
    state: Literal["to do", "done", "up to date", "skipped"]
    detail: str


class Space(msgspec.Struct):
    """Space that the command needs in a directory."""

    purpose: str
    directory: str
    needed: int
    """At least this number of bytes."""
    free: int


def space_of(lock: Resolution, folder: Path) -> list[Space]:
    """Return the space that the files, the container and its base image need, as far as known.

    `folder` is the directory of the files and of the new container.
    """
    files = [pick.files[0] for pick in lock.distributions if pick.origin == "published" and pick.files]
    image = Path(lock.image.path) if lock.image and lock.image.path.startswith("/") else None
    base = image.stat().st_size if image and image.is_file() else 0
    wheels = sum(file.size for file in files)
    download = sum(file.size for file in files if not cached_file(file).exists())
    temporary = os.environ.get("TMPDIR", "")
    needs = [
        ("downloads", cache_root(), download),
        ("the files and the container", folder, wheels + base),
        ("the unpacked base image", Path(temporary if is_visible(temporary) else VISIBLE[0]), base),
    ]
    return [Space(purpose, str(path), needed, _free(path)) for purpose, path, needed in needs]


def _free(path: Path) -> int:
    """Return the free space in a directory that may not exist yet."""
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(existing).free


def chosen_text(lock: Resolution) -> str:
    """Return the versions of torch, ROCm, Python and the requested distributions in one line."""
    names = ("torch", "rocm", "python")
    chosen = [f"{name} {version}" for name in names if (version := lock.version_of(name))]
    requested = {requirement.name for requirement in lock.request.requirements} - {"torch"}
    others = [f"{pick.name} {pick.version}" for pick in lock.distributions if pick.name in requested]
    return ", ".join([*chosen, *others])


def plan_text(title: str, steps: Iterable[StepResult], space: Iterable[Space], screen: Screen) -> str:
    """Return the plan as text: a title, a row for each step, and the space that is needed."""
    rows = [
        (step.name, f"{step.detail}{' (up to date)' if step.state == 'up to date' else ''}") for step in steps
    ]
    needs = [
        f"  {format_size(need.needed)} for {need.purpose} in {need.directory} ({format_size(need.free)} free)"
        for need in space
        if need.needed
    ]
    text = "\n".join(["Space, at least:", *needs]) if needs else ""
    return "\n".join(filter(None, [screen.wrapped(title), screen.table(rows), screen.wrapped(text)]))


def has_account(context: Context) -> bool:
    """Return whether an account for Slurm jobs is named, or Slurm needs none, or has a default."""
    if context.settings.account or os.environ.get("SBATCH_ACCOUNT"):
        return True
    if not _ENFORCES_ACCOUNTS.search(output_of(["scontrol", "show", "config"])):
        return True
    user = getpass.getuser()
    return bool(output_of(["sacctmgr", "-nP", "show", "user", user, "format=DefaultAccount"]).strip())


def hidden_sources(context: Context) -> Iterator[str]:
    """Yield the package indexes and find-links that a container cannot see."""
    sources = context.inputs.package_sources()
    for url in (*sources.indexes, *sources.find_links):
        path = local_path(url)
        if (path is not None and not is_visible(str(path))) or url.startswith("/"):
            yield without_password(url)
