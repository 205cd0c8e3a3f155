"""A definition file for an unprivileged build of an image on top of the base image.

The build of SingularityCE with PRoot, and apptainer's without root, show ``%post`` a clean environment and
bind nothing onto new paths; so wheels are copied in with ``%files`` and removed again. What is installed goes
into an environment of its own, which leaves the image's packages as they are. Source:
LUMI-training-materials docs/2day-20260422/205-Containers.md ("unprivileged proot build").
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from matrix.consumers.output import MARK, File
from matrix.consumers.requirements import constraint_lines, kept_remark, requirement_lines
from matrix.consumers.shell import environment_steps
from resolver.errors import MatrixError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from matrix.consumers.output import Where
    from matrix.consumers.pins import Pins

PREFIX = "/opt/matrix"
"""Where the environment is in the image."""
_FILES = "/opt/matrix-files"


def definition_files(pins: Pins, where: Where, *, wheelhouse: Path | None = None) -> list[File]:
    """Write the definition file.

    Parameters
    ----------
    pins
        What the lock pins.
    where
        Where the file and the index are.
    wheelhouse
        Directory with the wheels of everything that is installed; then nothing is downloaded.

    Raises
    ------
    UsageError
        The lock has no base image, or a path has characters that a definition file cannot hold.
    MatrixError
        The wheelhouse is no directory, or has no wheels.
    """
    if not pins.image_path:
        msg = "The lock has no base image to build on."
        raise UsageError(msg, hint="Resolve with --base-image NAME or PATH.")
    copied, lines = _sources(pins, where, wheelhouse)
    for path in (pins.image_path, *(source for source, _ in copied)):
        if any(one.isspace() or one in "*?[]{}\"'\\" for one in path):
            msg = (
                f"A definition file cannot name {path!r}: it holds spaces or characters with a meaning there."
            )
            raise UsageError(msg, hint="Move it, or name it by another path.")
    bootstrap, _, address = pins.image_path.rpartition("://")
    told = [
        f"{pins.heading}; {MARK} --for apptainer`.",
        f"Build with: singularity build container.sif {quote(where.main)} (or apptainer build)",
        "On LUMI: module load LUMI PRoot, and unset SINGULARITY_BIND SINGULARITY_BINDPATH first.",
        *kept_remark(pins),
    ]
    text = [
        *(f"# {one}" for one in told),
        f"Bootstrap: {bootstrap or 'localimage'}",
        f"From: {address}",
        "",
        "%files",
        *(f"    {source} {target}" for source, target in copied),
        "",
        "%post",
        f"mkdir -p {_FILES}",
        f"cat > {_FILES}/requirements.txt <<'REQUIREMENTS'",
        *lines,
        "REQUIREMENTS",
        f"cat > {_FILES}/constraints.txt <<'CONSTRAINTS'",
        *constraint_lines(pins, pins.on_top),
        "CONSTRAINTS",
        environment_steps(pins, PREFIX, _FILES),
        "# The layers are squashed, so what is removed takes no room in the image.",
        f"rm -rf {_FILES}",
        "",
        "%environment",
        f"export PATH={PREFIX}/bin:$PATH PYTHONNOUSERSITE=1",
        "",
        "%labels",
        f"org.matrix.site {pins.site}",
        f"org.matrix.date {pins.date}",
        *(f"org.matrix.{pin.name} {pin.version}" for pin in pins.on_top),
        "",
        "%test",
        f"{PREFIX}/bin/python -m pip --version",
    ]
    return [File(where.main, "\n".join(text) + "\n")]


def _sources(pins: Pins, where: Where, wheelhouse: Path | None) -> tuple[list[tuple[str, str]], list[str]]:
    """Give what is copied into the image, and the requirement lines that find it there."""
    if wheelhouse is not None:
        if not wheelhouse.is_dir() or not any(wheelhouse.glob("*.whl")):
            msg = f"There are no wheels in {wheelhouse}."
            raise MatrixError(msg, hint="`pip download -r requirements.txt -d DIR` brings them together.")
        found = f"{_FILES}/wheels"
        pinned = [
            line for line in requirement_lines(pins, "", pins.on_top) if "--extra-index-url" not in line
        ]
        return [(str(wheelhouse.resolve()), found)], ["--no-index", f"--find-links {found}", *pinned]
    if where.url:
        return [], requirement_lines(pins, where.url, pins.on_top)
    # Only what is needed: a project page is found without the page of all projects.
    simple = where.index / "simple"
    copied = [(str(simple / pin.name), f"{_FILES}/simple/{pin.name}") for pin in pins.built]
    return copied, requirement_lines(pins, f"file://{_FILES}/simple", pins.on_top)
