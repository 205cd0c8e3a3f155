"""A base image run by podman: an unpacked directory, or an archive that podman or docker saved.

A SIF is Apptainer's own format, which podman does not read.
Source: podman-run(1).
"""

from __future__ import annotations

import os
import resource
import shutil
import tarfile
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from builders.containers.image import Image, form_of
from builders.containers.inside import Temporary, binds, script
from builders.containers.namespaces import only_loopback
from builders.containers.runtime import View
from builders.process import clean_environment, output_of
from resolver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SHUT = ("--rm", "--quiet", "--http-proxy=false", "--log-driver=none", "--security-opt", "label=disable")
_FILES, _PROCESSES = 65536, 8192
"""The most open files and processes that are asked for. Without a number podman asks for more than an
ordinary user, or root without CAP_SYS_RESOURCE, may have."""
_OWN_VARIABLES = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "CONTAINERS_CONF")


@dataclass(frozen=True)
class PodmanRuntime:
    """A base image, an unpacked directory or an archive, run by podman.

    An interrupt or a kill of the program ends what runs inside. A SIGKILL of podman itself does not:
    the container then ends when its program ends.
    """

    kind: ClassVar[str] = "podman"
    image: Image
    program: str = "podman"
    tmp: Path | None = None
    """Where the directory is made that is /tmp inside; the system's temporary directory when None."""

    def command(self, command: Sequence[str], view: View) -> tuple[list[str], dict[str, str]]:
        """Give the command line of podman, and the environment of podman itself."""
        return self._line(command, view, self._runtime), _environment()

    @property
    def isolates_network(self) -> bool:
        """Whether a program without network really has none; tried once, in this image."""
        return self._works(self._runtime)

    @cached_property
    def _runtime(self) -> tuple[str, ...]:
        """Options before ``run``: where podman's own choice of a runtime does not work, runc may."""
        if not self._works(()) and shutil.which("runc") and self._works(("--runtime", "runc")):
            return ("--runtime", "runc")
        return ()

    @cached_property
    def _temporary(self) -> Temporary:
        return Temporary(self.tmp)

    @cached_property
    def _image(self) -> tuple[str, ...]:
        form = form_of(self.image.path)
        if form == "directory":
            return ("--rootfs", f"{self.image.path}:O")  # what is written goes to a layer that is thrown away
        if form == "archive":
            return (f"{_transport(self.image.path)}:{self.image.path}",)
        msg = f"podman cannot run {self.image.path}: it is a {form} file."
        raise UsageError(msg, hint="--in apptainer runs it.")

    def _works(self, runtime: tuple[str, ...]) -> bool:
        return only_loopback(
            output_of(self._line(["cat", "/proc/net/dev"], View(), runtime), env=_environment())
        )

    def _line(self, command: Sequence[str], view: View, runtime: tuple[str, ...]) -> list[str]:
        bound = binds(view)
        volumes = [f"{outside}:{inside}:rw" for outside, inside in self._temporary.mounts(bound)]
        volumes += [f"{bind.path}:{bind.inside}:{'rw' if bind.writable else 'ro'}" for bind in bound]
        line = [self.program, *runtime, "run", *_SHUT, f"--network={'host' if view.network else 'none'}"]
        if os.geteuid() != 0:
            line.append("--userns=keep-id")  # or what is written belongs to another user
        for name, limit, most in (
            ("nofile", resource.RLIMIT_NOFILE, _FILES),
            ("nproc", resource.RLIMIT_NPROC, _PROCESSES),
        ):
            hard = resource.getrlimit(limit)[1]
            number = most if hard == resource.RLIM_INFINITY else min(hard, most)
            line += ["--ulimit", f"{name}={number}:{number}"]
        for volume in volumes:
            line += ["--volume", volume]
        return [
            *line,
            "--entrypoint=",
            *self._image,
            "/bin/sh",
            "-c",
            script(view, first_process=True),
            "sh",
            *command,
        ]


def _transport(path: Path) -> str:
    """Say which of the two layouts an archive has."""
    try:
        with tarfile.open(path) as archive:
            names = {one.name.removeprefix("./") for one in archive}
    except (tarfile.TarError, OSError, EOFError) as error:
        msg = f"Cannot read {path}: {error}."
        raise UsageError(msg) from None
    if "oci-layout" in names:
        return "oci-archive"
    if "manifest.json" in names:
        return "docker-archive"
    msg = f"{path} is no archive of an image: it has neither oci-layout nor manifest.json."
    raise UsageError(msg, hint="Write one with: podman save -o FILE IMAGE")


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _OWN_VARIABLES if name in os.environ}
    return clean_environment(kept)
