"""Isolate a program on this machine: bubblewrap, or else namespaces and mounts by util-linux.

The program sees the machine's files read-only, without the directories of users, agents and temporary files.
It has its own processes, network and devices, and cannot change its mounts. Only bubblewrap brings up the
loopback device of its network.

Sources: bwrap(1), unshare(1), mount(8), pivot_root(8), user_namespaces(7), mount_namespaces(7).
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import msgspec

from builders.constants import CERTIFICATE_VARIABLES, END_ALL_ON_SIGNAL
from builders.machine.process import output_of
from builders.storage.files import cache_root
from builders.storage.lease import TemporaryDirectory

Kind = Literal["bubblewrap", "namespaces"]
KINDS: tuple[Kind, ...] = ("bubblewrap", "namespaces")

HOME = Path("/tmp/home")  # noqa: S108  inside, where /tmp is private
TEMPORARY = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108
BUILD = Path("/tmp/build")  # noqa: S108
"""The path at which every isolated build sees its own directory, so that all builds have equal paths."""
_HIDDEN = ("/home", "/root", "/run", "/media", *map(str, TEMPORARY))
_SOCKETS = ("SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "GPG_AGENT_INFO", "XAUTHORITY", "KRB5CCNAME", "DOCKER_HOST")
_DIRECTORIES = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "TMPDIR")
_CONFIGURATION = (
    "/etc/pip.conf", "/etc/xdg/pip/pip.conf", "/etc/uv/uv.toml", "/etc/environment", "/etc/gitconfig",
)  # fmt: skip
"""Configuration files of the machine that may contain passwords for indexes and proxies."""
_NAMED_FILES = ("PIP_CONFIG_FILE", "PIP_CLIENT_CERT", "NETRC", "UV_CONFIG_FILE", *CERTIFICATE_VARIABLES)
_OF_ENVIRONMENTS = ("pip.conf", ".condarc")
_OWN = ("/proc", "/dev", "/sys/fs/cgroup")  # mounted anew
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus")
_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class Identity(msgspec.Struct, frozen=True):
    """Whom a program sees as its user, and where."""

    user: int
    group: int
    home: Path = HOME
    host: str = ""
    """The name of the machine; empty for its own. Only bubblewrap can set another."""

    @property
    def name(self) -> str:
        """The name of the user."""
        return pwd.getpwuid(self.user).pw_name


OTHER = Identity(1, 1, Path("/tmp/another-home"), "another-host")  # noqa: S108
"""A user other than the one who builds. Every Linux has a name for it (``daemon`` or ``bin``)."""


class SandboxLayout(msgspec.Struct, frozen=True):
    """The parts of the file system that a program sees or does not see, all as real paths."""

    scratch: Path
    """The directory with its /tmp, /var/tmp and HOME."""
    hidden: tuple[Path, ...]
    binds: tuple[tuple[Path, bool], ...]
    """Paths that it sees although they are in hidden directories, or may write to, parents first."""
    masked: tuple[Path, ...]
    """Files that it sees as empty, because they may contain passwords."""
    cwd: Path
    identity: Identity
    mounts: tuple[tuple[Path, Path], ...] = ()
    """Directories that it may write to, each with a second path at which it sees them."""
    unusable: tuple[Path, ...] = ()
    """Files that it can neither read nor execute."""


def layout(
    scratch: Path,
    *,
    hidden: Sequence[Path],
    binds: Sequence[tuple[Path, bool]],
    path: str,
    cwd: Path | None,
    mounts: Sequence[tuple[Path, Path]] = (),
    identity: Identity | None = None,
) -> SandboxLayout:
    """Return the layout of a program; `SandboxLayout` describes the arguments.

    `scratch` exists. `hidden` are directories besides those of users and agents, and files. Directories of
    programs on `path`, its PATH, are shown even inside hidden ones, such as a conda environment in HOME. The
    second paths of `mounts` are below /tmp.
    """
    identity = identity or Identity(os.getuid(), os.getgid())
    private_home(scratch, identity.home)
    covered = _topmost([*_machine_hidden(), *(path.resolve() for path in hidden if path.is_dir())])
    shown: dict[Path, bool] = {}
    programs = [(path, False) for path in _prefixes(path)]
    for bind, writable in [*programs, *binds]:
        # Programs resolve links, so both names must lead to it. What is not hidden can be read anyway.
        for place in {bind.absolute(), bind.resolve()}:
            if writable or any(place.is_relative_to(directory) for directory in covered):
                shown[place] = writable or shown.get(place, False)
    for place in [*shown]:
        if any(
            place != other and place.is_relative_to(other) and shown[place] <= shown[other] for other in shown
        ):
            del shown[place]  # it is visible through its parent
    # /tmp is a directory below `scratch`, so a path below it needs a place there to be mounted on.
    for place in shown:
        for temporary in TEMPORARY:
            if place.is_relative_to(temporary):
                make_mount_point(inside(scratch, place), place)
    for place, target in mounts:
        make_mount_point(inside(scratch, target), place)
    ordered = sorted(shown.items(), key=lambda item: (len(item[0].parts), item[0]))
    masked = tuple(file for file in _secret_files(path) if _is_seen(file, covered, [*shown]))
    unusable = tuple(path.resolve() for path in hidden if path.is_file())
    own = cwd or TEMPORARY[0]
    return SandboxLayout(scratch, covered, tuple(ordered), masked, own, identity, tuple(mounts), unusable)


def private_home(scratch: Path, home: Path = HOME) -> Path:
    """Create the private directories in `scratch`; return HOME, as a path of the machine."""
    for directory in (*TEMPORARY, home):
        inside(scratch, directory).mkdir(parents=True, exist_ok=True)
    return inside(scratch, home)


def _is_seen(path: Path, covered: Sequence[Path], shown: Sequence[Path]) -> bool:
    hidden, visible = ([path.is_relative_to(place) for place in places] for places in (covered, shown))
    return any(visible) or not any(hidden)


def command_line(kind: Kind, command: Sequence[str], where: SandboxLayout) -> list[str]:
    """Return the command line that runs a program in its layout."""
    return (_bubblewrap if kind == "bubblewrap" else _namespaces)(command, where)


@cache
def sandbox() -> Kind | None:
    """Return the first kind of isolation that works for this user on this machine, or None."""
    with TemporaryDirectory() as directory:
        where = layout(directory.root, hidden=[], binds=[], path=os.defpath, cwd=None)
        # Kernel, distribution and an outer container can each forbid namespaces. Only a trial shows it.
        for kind in KINDS:
            if output_of(command_line(kind, ["/bin/sh", "-c", "echo works"], where)).strip() == "works":
                return kind
    return None


def system_program(name: str) -> str:
    """Return the path of a program of the system, which a sandbox shows, else of one on PATH, else `name`."""
    return shutil.which(name, path=_SYSTEM_PATH) or shutil.which(name) or name


def _machine_hidden() -> list[Path]:
    """Return the directories of users, agents, temporary files and the cache."""
    paths = [*_HIDDEN, str(cache_root()), *(os.environ.get(name, "") for name in _DIRECTORIES)]
    with suppress(KeyError):
        paths.append(pwd.getpwuid(os.getuid()).pw_dir)
    for name in _SOCKETS:
        # A value is a path, or one after a scheme, such as unix:///run/docker.sock. The whole directory of a
        # socket is hidden: agents create others beside it.
        path = Path(os.environ.get(name, "").rpartition(":")[2])
        paths.append(str(path if path.is_dir() else path.parent))
    bus = os.environ.get("DBUS_SESSION_BUS_ADDRESS", "").partition("path=")[2].partition(",")[0]
    paths.append(str(Path(unquote(bus)).parent))
    return [Path(path).resolve() for path in paths if path.startswith("/") and Path(path).is_dir()]


def _topmost(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the directories that are not inside another directory, without those of the system.

    Examples
    --------
    >>> [str(path) for path in _topmost([Path("/a/b"), Path("/"), Path("/a"), Path("/usr"), Path("/ab")])]
    ['/a', '/ab']
    """
    # Without these, no program would start; what is private in them is hidden by its own path.
    system = {Path(name) for name in ("/", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/opt", "/var")}
    kept = sorted({*paths} - system)
    return tuple(
        path for path in kept if not any(path != other and path.is_relative_to(other) for other in kept)
    )


def _prefixes(path: str) -> Iterator[Path]:
    """Yield the directories that programs on a PATH need: ``PREFIX`` for ``PREFIX/bin``, else the entry.

    Directories like ``~/.cargo`` and ``~/.local`` are left out: they also contain passwords and keys.
    """
    home = Path.home()
    for text in filter(None, path.split(os.pathsep)):
        directory = Path(text)
        if not directory.is_absolute() or not directory.is_dir():
            continue
        place = directory.parent if directory.name == "bin" else directory
        private = [
            directory
            for directory in (place, place.parent)
            if directory.parent == home and directory.name.startswith(".")
        ]
        if place in (home, Path("/")):
            yield directory
        elif not private:
            yield place


def _secret_files(path: str) -> Iterator[Path]:
    """Yield the existing configuration files that may contain passwords, in environments on PATH, too."""
    files = [os.environ.get(name, "") for name in _NAMED_FILES]
    own = [str(prefix / name) for prefix in {Path(sys.prefix), *_prefixes(path)} for name in _OF_ENVIRONMENTS]
    for text in dict.fromkeys([*_CONFIGURATION, *files, *own]):
        file = Path(text)
        if file.is_absolute() and file.is_file():
            yield file.resolve()


def inside(scratch: Path, path: Path) -> Path:
    """Return the path on the machine for a path that a program sees below /tmp or /var/tmp."""
    return scratch / path.relative_to("/")


def make_mount_point(path: Path, like: Path) -> None:
    """Create a directory or an empty file to mount something on."""
    if like.is_dir():
        path.mkdir(parents=True, exist_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def _bubblewrap(command: Sequence[str], where: SandboxLayout) -> list[str]:
    line = [
        system_program("bwrap"), "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc",
        "--uid", str(where.identity.user), "--gid", str(where.identity.group), "--cap-drop", "ALL",
        "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev",
    ]  # fmt: skip
    if where.identity.host:
        line += ["--unshare-uts", "--hostname", where.identity.host]
    for name in _settings():
        line += ["--ro-bind", name, name]
    empty = where.scratch / "empty"
    empty.touch()
    # Each mount covers what was at its place before, so the order matters: first everything private is
    # hidden, then parts of it are shown again, and last the files with passwords in them are covered.
    hidden = [path for path in where.hidden if path not in TEMPORARY]
    for path in hidden:
        line += ["--tmpfs", str(path)]
    for path in TEMPORARY:
        line += ["--bind", str(inside(where.scratch, path)), str(path)]
    for path, writable in where.binds:
        line += ["--bind" if writable else "--ro-bind", str(path), str(path)]
    for path, target in where.mounts:
        line += ["--bind", str(path), str(target)]
    for path in where.masked:
        line += ["--ro-bind", str(empty), str(path)]
    for path in where.unusable:
        line += ["--ro-bind", str(_nothing(where)), str(path)]
    # Only now: bwrap makes the places for the binds in these directories.
    for path in hidden:
        line += ["--remount-ro", str(path)]
    return [*line, "--chdir", str(where.cwd), "--", *command]


def _nothing(where: SandboxLayout) -> Path:
    """Return a file without any rights: some versions of CMake take every readable file for a program."""
    path = where.scratch / "nothing"
    path.touch(mode=0)
    return path


def _settings() -> list[str]:
    """Return the files in /proc that root can change from any user namespace; other users never can."""
    names = _SETTINGS if os.getuid() == 0 else ()
    return [f"/proc/{name}" for name in names if Path("/proc", name).exists()]


def _namespaces(command: Sequence[str], where: SandboxLayout) -> list[str]:
    unshare = system_program("unshare")
    # Mounting needs root's rights in the outer user namespace. The program runs in an inner one, which has
    # none over these mounts. --kill-child ends process 1 with `unshare`, and the kernel then all others.
    outer = ["--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc"]
    inner = [unshare, "--user", *_mapping(where.identity), "--", *command]
    script = where.scratch / "enter.sh"  # as an argument, it would fill the logs
    script.write_text(_script(where), encoding="utf-8", errors="surrogateescape")
    return [unshare, *outer, "/bin/sh", str(script), *inner]


@cache
def _mapping(identity: Identity) -> tuple[str, ...]:
    """Return the options that choose the user's ID; util-linux before 2.36 can only map it to 0."""
    own = (f"--map-user={identity.user}", f"--map-group={identity.group}")
    works = output_of([system_program("unshare"), "--user", *own, "echo", "works"])
    return own if works else ("--map-root-user",)


def _script(where: SandboxLayout) -> str:
    """Return the script that makes a new root, enters it and runs its arguments."""
    root = where.scratch / "root"
    root.mkdir(exist_ok=True)
    return "\n".join(
        [
            # A mount that fails must end the script: else, the program would see more than it may. PATH is
            # the user's again only when everything is hidden that must be.
            f"set -e; path=$PATH; PATH={_SYSTEM_PATH}; new={shlex.quote(str(root))}",
            'mount --rbind / "$new"',
            *_read_only(where),
            *_processes_and_devices(),
            *_hide_and_show(where),
            # Unlike chroot, this leaves no way back: the old root is unmounted. The shell still uses it,
            # hence -l.
            'cd "$new"; pivot_root . dev/old; umount -l /dev/old; rmdir /dev/old',
            f"cd {shlex.quote(str(where.cwd))}; PATH=$path",
            # The shell keeps running as process 1, with privileges over the mounts, which the program in its
            # own user namespace lacks. The kernel delivers only signals that process 1 handles
            # (pid_namespaces(7)).
            END_ALL_ON_SIGNAL,
        ]
    )


def _read_only(where: SandboxLayout) -> Iterator[str]:
    # A remount changes one mount, not those below it, so each is made read-only on its own (mount(8)).
    covered = [*where.hidden, *map(Path, _OWN)]
    for point, options in _mounts():
        if "ro" not in options and not any(point.is_relative_to(directory) for directory in covered):
            yield _remount(point, options)


def _processes_and_devices() -> Iterator[str]:
    yield 'mount -t proc -o nosuid,nodev,noexec proc "$new/proc"'
    for name in _settings():
        yield f'mount --bind "$new{name}" "$new{name}"'
        yield _remount(Path(name), ["nosuid", "nodev", "noexec"])
    # Its files can move a process of this user out of the group whose limits apply to it (cgroups(7)).
    if Path("/sys/fs/cgroup").is_dir():
        yield 'mount -t tmpfs -o ro cgroup "$new/sys/fs/cgroup"'
    yield 'mount -t tmpfs -o mode=755,nosuid dev "$new/dev"; cd "$new/dev"; mkdir -m 1777 shm; mkdir pts old'
    # A user namespace cannot make devices (mknod), so those of the machine are mounted.
    yield f"for name in {' '.join(_DEVICES)}; do : >$name; mount --bind /dev/$name $name; done"
    # A new instance does not have the terminals of other processes.
    yield "mount -t devpts -o newinstance,ptmxmode=0666,mode=620,nosuid,noexec devpts pts"
    yield "ln -s pts/ptmx ptmx; cp -P /dev/fd /dev/stdin /dev/stdout /dev/stderr ."


def _hide_and_show(where: SandboxLayout) -> Iterator[str]:
    mounts = _mounts()
    for path in where.hidden:
        if path not in TEMPORARY:
            yield f"mount -t tmpfs -o mode=755,size=1m,nosuid,nodev hidden {_at(path)}"
    for path in TEMPORARY:
        yield f"mount --bind {shlex.quote(str(inside(where.scratch, path)))} {_at(path)}"
    hidden = [path for path in where.hidden if path not in TEMPORARY]
    made = [path for path, _ in where.binds if any(path.is_relative_to(directory) for directory in hidden)]
    directories = [_at(path if path.is_dir() else path.parent) for path in made]
    files = [_at(path) for path in made if not path.is_dir()]
    if directories:
        yield f"mkdir -p {' '.join(directories)}"
    if files:
        yield f"touch {' '.join(files)}"
    for path, writable in where.binds:
        yield f"mount --rbind {shlex.quote(str(path))} {_at(path)}"
        if not writable:
            # The options to keep are those of the mount that the path belongs to: the nearest one above it.
            points = [mount for mount in mounts if path.is_relative_to(mount[0])]
            yield _remount(path, max(points, key=lambda mount: len(mount[0].parts))[1])
    for path, target in where.mounts:
        yield f"mount --rbind {shlex.quote(str(path))} {_at(target)}"
    # Last, so that no directory that is shown covers a mask.
    masks = [(path, Path("/dev/null")) for path in where.masked]
    masks += [(path, _nothing(where)) for path in where.unusable]
    for path, mask in masks:
        yield f"mount --bind {shlex.quote(str(mask))} {_at(path)}"


def _at(path: Path) -> str:
    """Return a path below the new root, quoted for the shell."""
    return f'"$new"{shlex.quote(str(path))}'


def _remount(target: Path, options: Sequence[str]) -> str:
    """Return the command that makes a mount read-only; the kernel requires all other options unchanged."""
    kept = [option for option in options if option not in {"rw", "ro"}]
    return f"mount -o remount,bind,{','.join(['ro', *kept])} {_at(target)}"


def _mounts() -> list[tuple[Path, list[str]]]:
    """Return the mounts that this process can reach, and their options (proc_pid_mountinfo(5))."""
    rows: dict[str, tuple[str, Path, list[str]]] = {}
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields, _, kind = line.partition(" - ")
        number, parent, _, _, text, options, *_ = fields.split(" ")
        for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
            text = text.replace(code, character)
        if not kind.startswith("autofs "):  # not writable, and accessing it would mount a file system
            rows[number] = (parent, Path(text), options.split(","))

    # A mount on the path of another, and not below it in the tree of mounts, hides the other. A command with
    # this path would then change the upper one.
    def is_covered(number: str) -> bool:
        below, path = {number}, rows[number][1]
        while (number := rows[number][0]) in rows and number not in below:
            below.add(number)
        return any(path.is_relative_to(other) for key, (_, other, _) in rows.items() if key not in below)

    return [(path, options) for number, (_, path, options) in rows.items() if not is_covered(number)]
