"""The environments in which programs run: the `Runtime` interface, and the host.

A runtime only composes command lines; `builders.machine.process` starts them, so that logs, interrupts and
failures are the same everywhere. Files keep their paths: a container sees a file of the host only if it is
bound, and normally at the same path.

Sources: unshare(1), user_namespaces(7), network_namespaces(7).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import ClassVar, Protocol

import msgspec

from builders.containers.image import LocalImage
from builders.containers.sandbox import (
    HOME,
    Identity,
    command_line,
    layout,
    private_home,
    sandbox,
    system_program,
)
from builders.machine.process import clean_environment, output_in_container, output_of, run
from builders.storage.lease import TemporaryDirectory

DEVICES = ("cat", "/proc/net/dev")
_DEVICE_HEADINGS = 2  # lines of /proc/net/dev
_NOT_FOR_STRANGERS = {"LC_ALL", "LOGNAME", "SHELL", "TERM", "TZ", "USER", "XDG_CACHE_HOME"}
"""Variables of the caller. Without them, an untrusted program runs in the same environment for everybody."""
_MAPPINGS = ("--map-current-user", "--map-root-user")  # util-linux before 2.35 knows only the second


class Bind(msgspec.Struct, frozen=True):
    """A file or directory of the host that a program sees."""

    path: Path
    writable: bool = False
    target: Path | None = None
    """Its path in the container, if different. The host runtime supports only paths in an isolated /tmp."""

    @property
    def inside(self) -> Path:
        """The path at which the program sees it."""
        return self.target or self.path


class View(msgspec.Struct, frozen=True):
    """The parts of the host that a program sees, and its environment."""

    env: Mapping[str, str] = {}
    """Variables set in addition to the runtime's own."""
    path: Sequence[Path] = ()
    """Directories that come first on PATH."""
    cwd: Path | None = None
    binds: Sequence[Bind] = ()
    network: bool = False
    untrusted: bool = False
    """Whether the program is a stranger's. If so, the host runtime isolates it, and it has no network. A
    container isolates every program."""
    hidden: Sequence[Path] = ()
    """What an untrusted program does not see, besides the directories of users, agents and the cache."""
    whole_path: bool = False
    """Whether `path` is the whole PATH on the host; else the caller's follows. The files of its programs are
    visible all the same."""

    def hides(self, path: Path) -> bool:
        """Return whether a path is in one of the directories that it hides itself."""
        return any(path.is_relative_to(directory) for directory in self.hidden)


class Runtime(Protocol):
    """An environment in which programs run."""

    kind: ClassVar[str]
    """``host``, ``apptainer`` or ``podman``."""

    @property
    def image(self) -> LocalImage | None:
        """The base image; None on the host."""
        ...

    def command(self, command: Sequence[str], view: View, scratch: Path) -> tuple[list[str], dict[str, str]]:
        """Return the whole command line, and the environment to start it in.

        `scratch` is an existing directory for the private /tmp, /var/tmp and HOME of the program. A trusted
        program on the host uses those of the user.
        """
        ...

    @property
    def isolates_network(self) -> bool:
        """Whether a program whose view has no network really has none."""
        ...


class HostRuntime(msgspec.Struct, frozen=True):
    """The machine that `matrix` runs on.

    Untrusted programs see it read-only, without the directories of users, agents and the cache, and without
    other processes; see `builders.containers.sandbox`.
    """

    kind: ClassVar[str] = "host"
    image: LocalImage | None = None
    identity: Identity | None = None
    """Whom untrusted programs see as their user, where they can be isolated; None for the caller."""

    def command(self, command: Sequence[str], view: View, scratch: Path) -> tuple[list[str], dict[str, str]]:
        """Return the command, prefixed with the program that isolates it or cuts it off from the network."""
        kind = sandbox() if view.untrusted else None
        own = {}
        if view.untrusted:
            home = (self.identity.home if self.identity else HOME) if kind else private_home(scratch)
            own = {"HOME": str(home), "TMPDIR": str(home.parent)}
        env = clean_environment(own | dict(view.env), network=view.network)
        own_path = [*map(str, view.path)]
        callers = env.get("PATH", os.defpath).split(os.pathsep)
        env["PATH"] = os.pathsep.join([*own_path, *([] if view.whole_path else callers)])
        if view.untrusted:
            env = {
                name: value
                for name, value in env.items()
                if name not in _NOT_FOR_STRANGERS or name in view.env
            }
            env["LANG"] = "C.UTF-8"
        if kind:
            where = layout(
                scratch,
                hidden=view.hidden,
                binds=[(bind.path, bind.writable) for bind in view.binds if bind.target is None],
                path=os.pathsep.join([*own_path, *(path for path in callers if not view.hides(Path(path)))]),
                cwd=view.cwd,
                mounts=[(bind.path, bind.target) for bind in view.binds if bind.target is not None],
                identity=self.identity,
            )
            return command_line(kind, command, where), env
        return [*(() if view.network else without_network()), *command], env

    @property
    def isolates_network(self) -> bool:
        """Whether this user can create network namespaces."""
        return bool(without_network())


def isolation_in(runtime: Runtime) -> str:
    """Return what isolates untrusted programs: the container, ``bubblewrap``, ``namespaces`` or ``none``."""
    return runtime.kind if runtime.image else sandbox() or "none"


def run_in(
    runtime: Runtime,
    command: Sequence[str],
    view: View,
    *,
    what: str,
    log: Path,
    timeout: float | None = None,
) -> None:
    """Run a program in a runtime and append its output to a log.

    The program has a fresh /tmp and HOME, unless it is a trusted program on the host. `what` is what the
    program does, as the beginning of a sentence. `timeout` is in seconds; None sets no limit. Raise
    `CommandError`, with the log's most important lines, if it fails, and `TooSlowError` after `timeout`.
    """
    with _scratch(runtime, view) as scratch:
        line, env = runtime.command(command, view, scratch)
        is_isolated = runtime.image is not None or (view.untrusted and sandbox() is not None)
        cwd = None if is_isolated else view.cwd
        run(line, what=what, log=log, cwd=cwd, env=env, timeout=timeout)


def output_in(runtime: Runtime, command: Sequence[str], view: View | None = None) -> str:
    """Return the output of a program in a runtime, or an empty string if it fails."""
    view = view or View()
    with _scratch(runtime, view) as scratch:
        line, env = runtime.command(command, view, scratch)
        query = output_of if runtime.image is None else output_in_container
        return query(line, env=env)


@contextmanager
def _scratch(runtime: Runtime, view: View) -> Iterator[Path]:
    """Yield a new directory for the program's /tmp and HOME; a trusted program on the host ignores it."""
    if view.untrusted or runtime.image is not None:
        with TemporaryDirectory() as directory:
            yield directory.root
    else:
        yield Path()


@cache
def without_network() -> tuple[str, ...]:
    """Return the prefix that cuts a command off from the network; empty if the kernel does not allow it."""
    for mapping in _MAPPINGS:
        prefix = (system_program("unshare"), "--user", mapping, "--net")
        if only_loopback(output_of([*prefix, *DEVICES])):
            return prefix
    return ()


@cache
def can_mount() -> bool:
    """Return whether this user may mount file systems in its own namespace."""
    unshare = system_program("unshare")
    commands = ([unshare, "--user", mapping, "--mount", "echo", "yes"] for mapping in _MAPPINGS)
    return any(output_of(command).strip() == "yes" for command in commands)


def only_loopback(devices: str) -> bool:
    r"""Return whether the content of ``/proc/net/dev`` lists only the loopback device.

    Examples
    --------
    >>> only_loopback("Inter-|\n face |\n    lo: 0 0\n")
    True
    >>> only_loopback("Inter-|\n face |\n    lo: 0 0\n  eth0: 1 2\n")
    False
    >>> only_loopback("")
    False
    """
    lines = devices.splitlines()
    names = {line.partition(":")[0].strip() for line in lines[_DEVICE_HEADINGS:]}
    return len(lines) >= _DEVICE_HEADINGS and names <= {"lo"}
