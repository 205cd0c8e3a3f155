"""A base image run by Apptainer or SingularityCE, as an ordinary user.

Nothing of the caller's environment goes in, nor what the site's configuration binds by itself
(home, working directory, ``bind path`` entries); processes are in a PID namespace of their own, so
that none of them outlives the runtime, even when that is killed.
Source: https://apptainer.org/docs/user/main/ (bind paths, environment, network, security).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from builders.containers.image import Image
from builders.containers.inside import Temporary, binds, script
from builders.containers.namespaces import only_loopback, without_network
from builders.containers.runtime import Bind, View
from builders.process import clean_environment, output_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHUT = ("--cleanenv", "--containall", "--no-mount", "home,cwd,bind-paths,hostfs")
_NO_NETWORK = ("--net", "--network", "none")
_OWN_VARIABLES = ("APPTAINER_TMPDIR", "APPTAINER_CACHEDIR", "SINGULARITY_TMPDIR", "SINGULARITY_CACHEDIR")
_OF_ROOT = (("--no-privs",), ("--userns",))
_HOSTS = Path("/etc/hosts")


class _Cut(NamedTuple):
    """How a program is cut off from the network: words before the runtime, and options of it."""

    before: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class ApptainerRuntime:
    """A base image, a SIF file or an unpacked directory, run by Apptainer or SingularityCE."""

    kind: ClassVar[str] = "apptainer"
    image: Image
    program: str = "apptainer"
    """``apptainer`` or ``singularity``, or the path of one."""
    tmp: Path | None = None
    """Where the directory is made that is /tmp inside; the system's temporary directory when None."""

    def command(self, command: Sequence[str], view: View) -> tuple[list[str], dict[str, str]]:
        """Give the command line of the runtime, and the environment of the runtime itself."""
        cut = _Cut() if view.network else self._cut
        return self._line(command, view, cut), _environment()

    @property
    def isolates_network(self) -> bool:
        """Whether a program without network really has none; tried once, in this image."""
        return any(self._cut)

    @cached_property
    def _temporary(self) -> Temporary:
        return Temporary(self.tmp)

    @cached_property
    def _privileges(self) -> tuple[str, ...]:
        """Options by which root runs a program with no more rights than a build needs.

        By default the runtime hands root's capabilities on, and fails where root itself, in a
        container of its own, has not all of them.
        """
        if os.geteuid() != 0:
            return ()
        for options in _OF_ROOT:
            line = [self.program, "exec", *_SHUT, *options, str(self.image.path), "/bin/sh", "-c", "echo yes"]
            if output_of(line, env=_environment()).strip() == "yes":
                return options
        return _OF_ROOT[0]

    @cached_property
    def _cut(self) -> _Cut:
        """What cuts the network off here; nothing if nothing does."""
        for cut in (_Cut(options=_NO_NETWORK), _Cut(before=without_network())):
            line = self._line(["cat", "/proc/net/dev"], View(), cut)
            if only_loopback(output_of(line, env=_environment())):
                return cut
        return _Cut()

    def _line(self, command: Sequence[str], view: View, cut: _Cut) -> list[str]:
        bound = binds(view)
        if view.network and _HOSTS.is_file() and all(bind.path != _HOSTS for bind in bound):
            bound.insert(0, Bind(_HOSTS))  # with ``bind-paths`` off the runtime does not bind it
        mounts = [f"{outside}:{inside}" for outside, inside in self._temporary.mounts(bound)]
        mounts += [f"{bind.path}:{bind.inside}{'' if bind.writable else ':ro'}" for bind in bound]
        line = [*cut.before, self.program, "--quiet", "exec", *_SHUT, *self._privileges, *cut.options]
        for mount in mounts:
            line += ["--bind", mount]
        return [*line, str(self.image.path), "/bin/sh", "-c", script(view), "sh", *command]


def _environment() -> dict[str, str]:
    """Give the environment of the runtime: its own directories, and none of what it would pass in.

    Site modules set ``SINGULARITY_BIND`` and the like, which would change what a build sees.
    """
    kept = {name: os.environ[name] for name in _OWN_VARIABLES if name in os.environ}
    return clean_environment(kept)
