"""A definition file for an unprivileged build of an image on top of the base image.

``%post`` of such a build (SingularityCE with PRoot, apptainer without root) has a clean environment and
cannot bind files to new paths. So wheels are copied in with ``%files`` and removed again, and everything is
installed into a separate environment. Source: LUMI-training-materials docs/2day-20260422/205-Containers.md
("unprivileged proot build").
"""

from __future__ import annotations

import re
import shutil
from shlex import quote
from typing import TYPE_CHECKING

from matrix.consumers import Consumer, Maker
from matrix.consumers.shared.installation import MARK, WrittenFile, comments
from matrix.consumers.shared.requirements import (
    constraint_lines,
    preinstalled_note,
    requirement_lines,
)
from matrix.consumers.shared.shell import environment_steps, site_environment
from resolver.errors import UsageError
from resolver.texts import printable

if TYPE_CHECKING:
    from pathlib import Path

    from matrix.consumers.shared.installation import Installation, Layout

_PREFIX = "/opt/matrix"
_FILES = "/opt/matrix-files"
_FILE = "container.def"
_RUNTIMES = ("apptainer", "singularity")
_END = "# end of the file"
"""The end of a here-document; no requirement can be this text, as it could be a word."""


def _emit(installation: Installation, layout: Layout) -> list[WrittenFile]:
    if not installation.image_path:
        msg = "The lock has no base image to build on."
        is_cpu = installation.lock.target.backend == "cpu"
        hint = "Use --for cotainr." if is_cpu else "Resolve with --base-image NAME or PATH."
        raise UsageError(msg, hint=hint)
    copied, lines = _sources(installation, layout)
    for path in (installation.image_path, *(source for source, _ in copied)):
        if not path.isprintable() or any(char.isspace() or char in "*?[]{}\"'\\" for char in path):
            msg = f"A definition file cannot contain {path!r}, because of its spaces or special characters."
            raise UsageError(msg, hint="Move or link it to another path.")
    remote = re.fullmatch(r"([a-z]+)://(.+)", installation.image_path)
    bootstrap, address = remote.groups() if remote else ("localimage", installation.image_path)
    notes = [
        f"{installation.heading}; {MARK} --for apptainer`.",
        f"Build with `singularity build container.sif {quote(layout.main)}` (or `apptainer build`).",
        "To replace a container, build new.sif, then `mv new.sif container.sif`.",
        "With --force, a failed build can lose the old container.",
        "On LUMI, first `module load LUMI PRoot; unset SINGULARITY_BIND SINGULARITY_BINDPATH`.",
        *_digest_note(installation),
        *preinstalled_note(installation),
    ]
    text = [
        *comments(notes),
        f"Bootstrap: {bootstrap}",
        f"From: {address}",
        "",
        "%files",
        *(f"    {source} {target}" for source, target in copied),
        "",
        "%post",
        f"mkdir -p {_FILES}",
        f"cat > {_FILES}/requirements.txt <<'{_END}'",
        *lines,
        _END,
        f"cat > {_FILES}/constraints.txt <<'{_END}'",
        *constraint_lines(installation, ()),
        _END,
        environment_steps(installation, _PREFIX, _FILES),
        "# The layers are squashed, so removed files take no space in the image.",
        f"rm -rf {_FILES}",
        "",
        "%environment",
        f"export PATH={_PREFIX}/bin:$PATH PYTHONNOUSERSITE=1",
        site_environment(installation),
        "",
        "%labels",
        f"org.matrix.site {printable(installation.lock.target.site)}",
        f"org.matrix.date {installation.lock.target.date}",
        *(f"org.matrix.{pick.name} {pick.pinned}" for pick in installation.on_top),
        "",
        "%test",
        f"{_PREFIX}/bin/python -m pip --version",
    ]
    return [WrittenFile(layout.main, "\n".join(text) + "\n")]


def _digest_note(installation: Installation) -> list[str]:
    """Return the command that checks the base image; a build without root cannot check it."""
    image, digest = installation.lock.image, installation.image_digest
    if not image or not digest or not image.path.endswith(".sif"):
        return []
    return [f"Check the base image first: `echo {quote(f'{digest}  {image.path}')} | sha256sum -c`"]


def _sources(installation: Installation, layout: Layout) -> tuple[list[tuple[str, str]], list[str]]:
    chosen = installation.on_top
    if layout.wheelhouse is not None:
        copy = f"{_FILES}/wheels"
        return [(str(layout.wheelhouse), copy)], requirement_lines(installation, layout, copy, chosen)
    if layout.url:
        return [], requirement_lines(installation, layout, layout.local, chosen)
    # The pages of our projects are enough: pip does not read the page that lists all projects.
    simple = layout.index / "simple"
    copied = [(str(simple / pick.name), f"{_FILES}/simple/{pick.name}") for pick in installation.built]
    return copied, requirement_lines(installation, layout, f"file://{_FILES}/simple", chosen)


def _command(folder: Path, target: Path) -> list[str]:
    runtime = next(filter(shutil.which, _RUNTIMES), _RUNTIMES[0])
    return [runtime, "build", str(target), str(folder / _FILE)]


CONSUMER = Consumer(
    file=_FILE,
    emit=_emit,
    maker=Maker(
        programs=_RUNTIMES,
        module="LUMI PRoot",
        install="Install Apptainer or SingularityCE.",
        command=_command,
    ),
)
