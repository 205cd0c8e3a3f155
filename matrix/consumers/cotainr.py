"""A conda environment file for cotainr, and the script that builds the container with it."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from builders.constants import MOUNT_POINT
from matrix.consumers import Consumer
from matrix.consumers.shared.files import MARK, File, comments
from matrix.consumers.shared.requirements import environment_file, reject_preinstalled, requirement_lines
from matrix.consumers.shared.shell import (
    ENVIRONMENT,
    container_environment,
    fill,
    head,
    image_checks,
    installed_check,
    site_environment,
    source_checks,
    stoppable,
)

if TYPE_CHECKING:
    from matrix.consumers.shared.files import Layout
    from matrix.consumers.shared.installation import Installation

SCRIPT = "build.sh"


def _emit(installation: Installation, layout: Layout) -> list[File]:
    reject_preinstalled(installation, "conda environments")
    image = f", on the base image {installation.image_path}" if installation.image_path else ""
    notes = [f"Build the container with `bash {SCRIPT}`{image}"]
    if not layout.url:
        notes.append(
            f"{SCRIPT} binds the {layout.what} {layout.bound} to {MOUNT_POINT} while cotainr builds."
        )
    lines = requirement_lines(installation, layout.mounted)
    return [
        environment_file(layout.main, installation, notes, "cotainr", lines),
        File(SCRIPT, _build_script(installation, layout), executable=True),
        *_environment_of_jobs(installation),
    ]


def _environment_of_jobs(installation: Installation) -> list[File]:
    """Return the file that job scripts source, if programs need any variable."""
    if not installation.variables:
        return []
    notes = [
        f"{installation.heading}; {MARK} --for cotainr`.",
        f"Source it in every job script: source {ENVIRONMENT}",
    ]
    lines = [*comments(notes), site_environment(installation)]
    return [File(ENVIRONMENT, "\n".join(lines) + "\n")]


def _build_script(installation: Installation, layout: Layout) -> str:
    notes = [
        f"Usage: bash {SCRIPT} [CONTAINER.sif [more options of cotainr]]",
        *_site_hints(installation),
        f"Set {layout.variable} or MATRIX_BASE_IMAGE if the {layout.what} or the base image has moved.",
    ]
    source = source_checks(installation, layout)
    bound = [source, fill("bind.sh")] if source else []
    exports = [f"export {name}={value}" for name, value in installation.pip_variables.items()]
    text = fill(
        "build.sh",
        head=head(installation, "cotainr", SCRIPT, notes),
        main=quote(layout.main),
        script=SCRIPT,
        environment=container_environment(),
        stoppable=stoppable(SCRIPT, "target"),
        load=r"; on LUMI: \`module load LUMI cotainr\`"
        if installation.lock.target.site.startswith("lumi")
        else "",
        checks="\n".join([image_checks(installation), *bound, *exports]),
        check=installed_check(installation.installed, nothing_else=installation.is_complete),
    )
    return f"{text}\n"


def _site_hints(installation: Installation) -> list[str]:
    """Return commands to run the script at the site, if known.

    Source: LUMI-training-materials docs/2day-20260422/205-Containers.md; cotainr issues 51 and 170
    (the unpacked image needs up to 100 GB, and /tmp is memory).
    """
    if not installation.lock.target.site.startswith("lumi"):
        return []
    return [
        "On LUMI, run `module purge; module load LUMI cotainr`, then:",
        f"  srun -A PROJECT -p debug -t 30:00 -c 8 --mem=100G bash {SCRIPT}",
    ]


CONSUMER = Consumer(file="env.yml", emit=_emit, supports_hashes=True)
