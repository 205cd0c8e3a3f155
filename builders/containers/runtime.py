"""A place where programs of a build run, and how a command line is made for it.

A place only writes command lines; `builders.process` starts them, so that logs, interrupts and failures
are the same everywhere. Files keep their paths: what a program may see of this machine is bound in
at the same path, and nothing else is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

from builders.containers.namespaces import without_network
from builders.process import clean_environment, output_of, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from builders.containers.image import Image


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or directory of this machine that a program sees."""

    path: Path
    writable: bool = False
    target: Path | None = None
    """Where the program sees it; at the same path when None. This machine itself cannot do that."""

    @property
    def inside(self) -> Path:
        """Where the program sees it."""
        return self.target or self.path


@dataclass(frozen=True, slots=True)
class View:
    """What a program sees of this machine, and what it is told."""

    env: Mapping[str, str] = field(default_factory=dict)
    """Variables set for it, over the place's own."""
    path: Sequence[Path] = ()
    """Directories put before the place's own PATH."""
    cwd: Path | None = None
    binds: Sequence[Bind] = ()
    network: bool = False
    """Whether it may use the network; off unless said."""


class Runtime(Protocol):
    """Where programs run."""

    kind: ClassVar[str]
    """``host``, ``apptainer`` or ``podman``."""

    @property
    def image(self) -> Image | None:
        """The base image; None on this machine itself."""
        ...

    def command(self, command: Sequence[str], view: View) -> tuple[list[str], dict[str, str]]:
        """Give the whole command line, and the environment it is started in.

        Parameters
        ----------
        command
            Program and arguments, as the place itself knows them.
        view
            What the program sees.
        """
        ...

    @property
    def isolates_network(self) -> bool:
        """Whether a program without network really has none here."""
        ...


@dataclass(frozen=True)
class HostRuntime:
    """The machine that the program runs on."""

    kind: ClassVar[str] = "host"
    image: Image | None = None

    def command(self, command: Sequence[str], view: View) -> tuple[list[str], dict[str, str]]:
        """Give the command as it is, behind ``unshare`` where it may not use the network.

        In such a namespace not even the loopback device is up.
        """
        env = clean_environment(view.env)
        own = [str(one) for one in view.path]
        env["PATH"] = os.pathsep.join([*own, env.get("PATH", os.defpath)])
        cut = [] if view.network else without_network()
        return [*cut, *command], env

    @property
    def isolates_network(self) -> bool:
        """Whether user namespaces can be made here."""
        return bool(without_network())


def run_in(runtime: Runtime, command: Sequence[str], view: View, *, what: str, log: Path) -> None:
    """Run a program in a place with everything it prints going to a log.

    Parameters
    ----------
    what
        What it is for, as the beginning of a sentence.
    log
        File that the output is appended to.

    Raises
    ------
    CommandError
        It failed; the error names the log and the lines that tell most.
    """
    line, env = runtime.command(command, view)
    run(line, what=what, log=log, cwd=view.cwd if runtime.image is None else None, env=env)


def output_in(runtime: Runtime, command: Sequence[str], view: View | None = None) -> str:
    """Give what a program prints in a place, or an empty text if it cannot be run."""
    line, env = runtime.command(command, view or View())
    return output_of(line, env=env)
