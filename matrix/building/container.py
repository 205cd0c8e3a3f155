"""What `build-container` or `build-layer` makes: its plan, and what an interruption leaves.

Everything except the result is in the directory ``RESULT.files`` next to it. The new container is made there,
and gets its final name, which replaces an older container, only at the end.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import shutil
import zipfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from builders.containers.squashfs import Squashfs, is_squashfs
from builders.machine.process import output_of, run
from builders.storage.files import (
    cache_root,
    open_regular,
    remove_tree,
    share_finished,
    write_atomic,
)
from matrix.consumers import UNPACKED
from matrix.consumers.shared.container_variables import DISTURBING, VISIBLE, is_visible
from matrix.consumers.shared.shell import HIDDEN
from matrix.show.render import counted, format_size, shortened
from resolver.errors import CommandError, EnvironmentLacksError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builders.index import Index
    from matrix.command_line.context import Context
    from matrix.consumers import Maker
    from matrix.show.render import Screen
    from resolver.model import Resolution


_SCRIPT_LACKS = 3
"""The exit code with which a script of `matrix env` reports that something is missing."""
_MOST_BLAMED = 5
_STATE = "state.json"
_LARGEST_STATE = 1 << 22  # bytes

STEPS = ("resolve", "fetch", "build-wheels", "env", "container", "verify")
_ENFORCES_ACCOUNTS = re.compile(r"AccountingStorageEnforce\s*=\s*\S*associations")


class ContainerState(msgspec.Struct):
    """What is known about the last container that was made, stored in its directory."""

    inputs: str = ""
    """Digest of everything that it was made from."""
    size: int = 0
    modified: int = 0
    """With `size`, tells whether the container is the one that was made: nanoseconds since the epoch."""
    made: tuple[int, ...] = ()
    """The `modified` of the last results, one of which has the final name."""
    verified: bool = False
    resolved_from: str = ""
    """Digest of the inputs of the last resolution that are not in the lock."""
    wheels: tuple[str, ...] = ()
    """The names of the files that were put into the wheelhouse. No other file there is ever removed."""
    schema: int = 1


class Container:
    """The result of the command: a file or a directory."""

    def __init__(self, path: Path, maker: Maker) -> None:
        self.path = path.absolute()
        self.maker = maker
        self.folder = self.path.with_name(f"{self.path.name}.files")
        self.new = self.folder / self.path.name
        self.wheelhouse = self.folder / "wheels"
        self.log = self.folder / "build.log"
        self.lock = self.folder / "matrix.lock"
        """The lock of the present run, which other commands in the directory do not replace."""

    @cached_property
    def state(self) -> ContainerState:
        """What an earlier command stored; read when it is first needed, which is after waiting for others."""
        try:
            file = open_regular(self.folder / _STATE)
            with os.fdopen(file, "rb") as source:
                return msgspec.json.decode(source.read(_LARGEST_STATE), type=ContainerState)
        except (OSError, msgspec.MsgspecError):
            return ContainerState()

    def check(self) -> None:
        """Check that the path can be the result, and that its directory has only files and directories.

        Another member of a group could put a link there, through which files elsewhere would be replaced.
        """
        for path in (self.folder, *_entries(self.folder), *_entries(self.wheelhouse)):
            if os.path.lexists(path) and (path.is_symlink() or not (path.is_file() or path.is_dir())):
                kind = "a symbolic link" if path.is_symlink() else "neither a file nor a directory"
                msg = f"{path} is {kind}. Nothing was changed."
                raise UsageError(msg, hint="Remove it, or name a container where there is space.")
        example = f"train{self.maker.suffixes[0]}"
        if self.maker.mark:
            if self.path.exists() and not (self.path / self.maker.mark).exists():
                msg = f"{self.path} exists and is not an environment of this kind. It would be replaced."
                raise UsageError(msg, hint="Name another directory.")
        elif self.path.is_dir():
            raise UsageError(f"{self.path} is a directory.", hint=f"Name a file, such as {example}.")
        elif self.path.suffix not in self.maker.suffixes:
            made, suffix, name = self.maker.makes, self.maker.suffixes[0], self.path.name
            msg = f"The first argument is the {made} to build, but {name!r} does not end in {suffix}."
            raise UsageError(msg, hint=f"Example: matrix build-{made} {example} apex deepspeed")
        elif self.maker.makes == "layer" and self.path.exists():
            if not is_squashfs(self.path):
                msg = f"{self.path} exists and is not a layer (a squashfs file). It would be replaced."
                raise UsageError(msg, hint="Name another file.")
            if self.state.made and _stamp(self.path)[1] not in self.state.made:
                msg = f"{self.path} was changed after this command made it. It would be replaced."
                raise UsageError(msg, hint="Move it away, and add what it needs to the requirements.")

    @property
    def program(self) -> str:
        """The program on PATH that makes it; empty if there is none."""
        return next(filter(shutil.which, self.maker.programs), "")

    def is_made_from(self, path: Path, inputs: str) -> bool:
        """Return whether a path is the container that was last made, and was made from these inputs."""
        return self.state.inputs == inputs and _stamp(path) == (self.state.size, self.state.modified)

    def make(self, prefix: Sequence[str], inputs: str) -> None:
        """Make the container at its temporary path, with the output in a log, by a command after `prefix`."""
        self._remove_new()
        self.log.unlink(missing_ok=True)
        command = [*prefix, *self.maker.command(self.folder, self.new)]
        env = {name: value for name, value in os.environ.items() if name not in DISTURBING}
        what = f"Making {self.path.name} with {self.program}"
        try:
            run(command, what=what, log=self.log, env=env)
        except CommandError as error:
            if error.code == _SCRIPT_LACKS:
                raise EnvironmentLacksError(error.message) from None
            lines = [*error.lines, *self._blamed()]
            raise CommandError(what, code=error.code, log=self.log, lines=lines) from None
        self.state.inputs, self.state.verified = inputs, False
        self.state.size, self.state.modified = _stamp(self.new)
        self.state.made = (*self.state.made[-3:], self.state.modified)
        self.save()

    def _blamed(self) -> list[str]:
        """Return the last lines of the log: the lines of files with the packages that failed (`causes`)."""
        place = re.compile(rf"\s+({re.escape(str(self.folder.resolve()))}/[^/]+:\d+: .*)")
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_MOST_BLAMED:]
        return [match[1] for line in lines if (match := place.fullmatch(line))]

    def publish(self) -> None:
        """Give the new container its final name, in place of an older one."""
        share_finished(self.new)
        if not self.maker.mark:
            self.new.replace(self.path)
            return
        old = self.folder / "old"
        if old.exists():
            remove_tree(old)
        if self.path.exists():
            self.path.rename(old)
        self.new.rename(self.path)
        if old.exists():
            remove_tree(old)

    def save(self) -> None:
        """Store the state."""
        write_atomic(self.folder / _STATE, msgspec.json.encode(self.state))

    def prune(self, wanted: Iterable[str]) -> None:
        """Remove files of an earlier lock from the wheelhouse: only those that a command put there."""
        names, earlier = set(wanted), set(self.state.wheels)
        self.state.wheels = tuple(sorted(names | earlier))  # first, so that a killed command leaves no other
        self.save()
        for name in earlier - names:
            path = self.wheelhouse / name
            if path.parent == self.wheelhouse and path.is_file():  # members of a group can edit the list
                path.unlink(missing_ok=True)
        self.state.wheels = tuple(sorted(names))
        self.save()

    def _remove_new(self) -> None:
        left = (
            found for end in (".new-*", f"{UNPACKED}*") for found in self.folder.glob(self.path.name + end)
        )
        for path in (self.new, *left):
            if path.is_dir():
                remove_tree(path)
            else:
                path.unlink(missing_ok=True)


class Layer(msgspec.Struct):
    """What a layer holds. JSON output is this struct, encoded."""

    files: int
    size: int
    """Bytes of the file."""
    content: int
    """Bytes of the files in it."""
    hides: list[str]
    """The files of the image that are not seen with it."""
    run: str
    """The command that starts Python with it."""


def unpacked(wheelhouse: Path) -> str:
    """Return how many files the wheels of a directory hold, and their size; empty if there is none."""
    entries: list[zipfile.ZipInfo] = []
    for path in wheelhouse.glob("*.whl"):
        with zipfile.ZipFile(path) as wheel:
            entries += wheel.infolist()
    size = format_size(sum(entry.file_size for entry in entries))
    return f"{counted(len(entries), 'file')} from wheels, {size} unpacked; " if entries else ""


def read_layer(path: Path, run_line: str) -> Layer:
    """Return what a layer holds."""
    with path.open("rb") as file:
        image = Squashfs(file, 0)
        entries = [*image.entries()]
        hidden = [entry for entry in entries if entry.path == f"/{HIDDEN}"]
        text = b"".join(part for entry in hidden for part in image.chunks(entry) if isinstance(part, bytes))
    size = sum(entry.size for entry in entries)
    return Layer(len(entries), path.stat().st_size, size, text.decode().splitlines(), run_line)


def _entries(folder: Path) -> list[Path]:
    return [*folder.iterdir()] if folder.is_dir() and not folder.is_symlink() else []


def _stamp(path: Path) -> tuple[int, int]:
    """Return the size and the modification time of a path; both 0 if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def inputs_of(
    consumer: str, lock: Resolution, text: str, index: Index, wheels: Mapping[str, Sequence[Path]]
) -> str:
    """Return a digest of everything that a container is made from. `text` is the lock as it is stored."""
    image = lock.image.path if lock.image else ""
    parts = {
        "consumer": consumer,
        "lock": hashlib.sha256(text.encode()).hexdigest(),
        "image": [image, *_stamp(Path(image))] if image else [],
        "wheels": {path.name: _digest(index, name, path) for name in wheels for path in wheels[name]},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _digest(index: Index, project: str, wheel: Path) -> str:
    """Return the hash of a wheel from the page of its project, so that the wheel need not be read."""
    entry = index.entries(project).get(wheel.name)
    return entry.hashes.sha256 if entry else ""


class StepResult(msgspec.Struct):
    """One step of the plan. JSON output is this struct, encoded."""

    name: str
    state: Literal["to do", "done", "up to date"]
    detail: str


class Space(msgspec.Struct):
    """Space that the command needs in a directory."""

    purpose: str
    directory: str
    needed: int
    """At least this number of bytes."""
    free: int
    without: list[str] = []
    """What is not in that number, because its size is not known."""


def space_of(lock: Resolution, folder: Path, maker: Maker, download: int) -> list[Space]:
    """Return the space that the downloads, the files, the result and its base image need, and where."""
    image = Path(lock.image.path) if lock.image and lock.image.path.startswith("/") else None
    base = image.stat().st_size if image and image.is_file() else 0
    sizes = {pick.name: pick.files[0].size for pick in lock.published()}
    published = (pick.name for pick in lock.distributions if pick.origin == "published")
    unknown = sorted((name for name in published if not sizes.get(name)), key=lambda name: name != "torch")
    wheels = sum(sizes.values())
    temporary = os.environ.get("TMPDIR", "")
    if maker.makes == "layer":  # it does not hold the image
        base = 0
    no_base = ["the base image"] if lock.image and not base and maker.makes != "layer" else []
    unpacked = Path(temporary if is_visible(temporary) else VISIBLE[0])
    needs = [
        ("downloads", cache_root(), download, unknown),
        (f"the files and the {maker.makes}", folder, wheels + base, no_base + unknown),
        ("the unpacked base image", unpacked, base, no_base),
    ]
    return [Space(what, str(path), needed, _free(path), without) for what, path, needed, without in needs]


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


def moves(before: Resolution, after: Resolution) -> list[str]:
    """Return what another base image changes, as lines of text."""
    sides = [
        {pick.name: pick for pick in lock.distributions if pick.origin != "preinstalled"}
        for lock in (before, after)
    ]
    known = {pick.name for pick in after.distributions}
    rows = {
        "of the image": [
            f"{name} {before.version_of(name) or 'none'} -> {after.version_of(name) or 'none'}"
            for name in ("torch", "rocm", "python")
            if before.version_of(name) != after.version_of(name)
        ],
        "now in the image": [
            f"{name} {after.version_of(name)}" for name in sides[0] if name in known - {*sides[1]}
        ],
        "another version": [
            f"{name} {pick.version} -> {sides[1][name].version}"
            for name, pick in sides[0].items()
            if name in sides[1] and sides[1][name].version != pick.version
        ],
        "added": [f"{name} {pick.version}" for name, pick in sides[1].items() if name not in sides[0]],
        "no longer needed": [
            f"{name} {pick.version}" for name, pick in sides[0].items() if name not in known
        ],
        "built for it": [name for name, pick in sides[1].items() if pick.origin == "build"],
    }
    lines = [f"  {what}: {', '.join(listed)}" for what, listed in rows.items() if listed]
    return [f"{before.target.base_image or 'no image'} -> {after.target.base_image or 'no image'}", *lines]


def plan_text(title: str, steps: Iterable[StepResult], space: Sequence[Space], screen: Screen) -> str:
    """Return the plan as text: a title, a row for each step, and the space that is needed."""
    rows = [
        (step.name, f"{step.detail}{' (up to date)' if step.state == 'up to date' else ''}") for step in steps
    ]
    needs = [
        f"  {format_size(need.needed)} for {need.purpose} in {need.directory.removeprefix(f'{Path.cwd()}/')} "
        f"({format_size(need.free)} free{': not enough' if need.free < need.needed else ''})"
        for need in space
        if need.needed
    ]
    unsized = list(dict.fromkeys(name for need in reversed(space) for name in need.without))
    more = [f"  without {shortened(unsized, most=3)}, of unknown size"] if unsized else []
    text = "\n".join(["Space, at least:", *needs, *more]) if needs or more else ""
    return "\n".join(filter(None, [screen.wrapped(title), screen.table(rows), screen.wrapped(text)]))


def has_account(context: Context) -> bool:
    """Return whether an account for Slurm jobs is named, or Slurm needs none, or has a default."""
    if context.settings.account:
        return True
    if not _ENFORCES_ACCOUNTS.search(output_of(["scontrol", "show", "config"])):
        return True
    user = getpass.getuser()
    return bool(output_of(["sacctmgr", "-nP", "show", "user", user, "format=DefaultAccount"]).strip())
