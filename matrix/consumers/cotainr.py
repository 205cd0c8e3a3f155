"""A conda environment file for cotainr, and the script that builds the container with it."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from builders.constants import MOUNT_POINT
from builders.findings import Finding
from builders.network.urls import local_path
from matrix.consumers import Consumer, Maker
from matrix.consumers.shared.container_variables import is_visible
from matrix.consumers.shared.installation import MARK, WrittenFile, comments, pin
from matrix.consumers.shared.requirements import environment_file, reject_preinstalled, requirement_lines
from matrix.consumers.shared.shell import (
    ENVIRONMENT,
    container_environment,
    fill,
    head,
    image_checks,
    installed_check,
    script,
    site_environment,
    source_checks,
    stoppable,
)
from matrix.show.render import shortened

if TYPE_CHECKING:
    from matrix.consumers.shared.installation import Installation, Layout

SCRIPT = "build.sh"
_MODULE = "LUMI cotainr"
_JOB = ("-p", "debug", "-t", "30:00", "-c", "8", "--mem=100G")
"""Source: LUMI-training-materials docs/2day-20260422/205-Containers.md; cotainr issues 51 and 170
(the unpacked image needs up to 100 GB, and /tmp is memory)."""


def _emit(installation: Installation, layout: Layout) -> list[WrittenFile]:
    reject_preinstalled(installation, "conda environments")
    image = f", on the base image {installation.image_path}" if installation.image_path else ""
    notes = [f"Build the container with `bash {SCRIPT}`{image}"]
    if not layout.url:
        notes.append(
            f"{SCRIPT} binds the {layout.what} {layout.bound} to {MOUNT_POINT} while cotainr builds."
        )
    lines = requirement_lines(installation, layout, layout.mounted)
    return [
        environment_file(
            layout.main, installation, notes, "cotainr", lines, has_compiler=installation.has_compiler
        ),
        _build_script(installation, layout),
        *_environment_of_jobs(installation),
    ]


def _environment_of_jobs(installation: Installation) -> list[WrittenFile]:
    if not installation.variables:
        return []
    notes = [
        f"{installation.heading}; {MARK} --for cotainr`.",
        f"Source it in every job script: source {ENVIRONMENT}",
    ]
    lines = [*comments(notes), fill("isolated.sh"), site_environment(installation)]
    return [WrittenFile(ENVIRONMENT, "\n".join(lines) + "\n")]


def _build_script(installation: Installation, layout: Layout) -> WrittenFile:
    notes = [
        f"Usage: bash {SCRIPT} [CONTAINER.sif [more options of cotainr]]",
        *_site_hints(installation),
        f"Set {layout.variable} or MATRIX_BASE_IMAGE if the {layout.what} or the base image has moved.",
    ]
    source = source_checks(installation, layout)
    bound = [source, fill("bind.sh")] if source else []
    exports = [f"export {name}={value}" for name, value in installation.pip_variables.items()]
    return script(
        SCRIPT,
        "build.sh",
        head=head(installation, "cotainr", SCRIPT, notes),
        main=quote(layout.main),
        script=SCRIPT,
        environment=container_environment("target"),
        stoppable=stoppable(SCRIPT, "target"),
        logged=fill("logged.sh"),
        load=rf"; on LUMI: \`module load {_MODULE}\`"
        if installation.lock.target.site.startswith("lumi")
        else "",
        checks="\n".join([image_checks(installation), *bound, *exports]),
        check=installed_check(installation.installed, nothing_else=installation.is_complete),
    )


def _site_hints(installation: Installation) -> list[str]:
    if not installation.lock.target.site.startswith("lumi"):
        return []
    return [
        f"On LUMI, run `module purge; module load {_MODULE}`, then:",
        f"  srun -A PROJECT {' '.join(_JOB)} bash {SCRIPT}",
    ]


def _check(installation: Installation, layout: Layout) -> list[Finding]:
    """Name the distributions whose files the container cannot see."""
    picks = (pick for pick in installation.installed if pick.origin == "published" and pick.files)
    paths = {pin(pick): local_path(pick.files[0].url) for pick in picks}
    hidden = [name for name, path in paths.items() if path is not None and not is_visible(str(path))]
    if layout.wheelhouse is not None or not hidden:
        return []
    message = f"The container cannot see the files of {shortened(hidden)}, which are on this machine."
    fix = "Run `matrix farm fetch --wheelhouse wheels`, and repeat this command with --wheelhouse wheels."
    return [Finding("hidden-files", "warning", message, fix, {"distributions": hidden})]


CONSUMER = Consumer(
    file="env.yml",
    emit=_emit,
    check=_check,
    maker=Maker(
        programs=("cotainr",),
        module=_MODULE,
        install="Install it with `pipx install cotainr`.",
        # Without -v, cotainr writes a spinner to the log.
        command=lambda folder, target: ["bash", str(folder / SCRIPT), str(target), "-v", "--no-color"],
        job=_JOB,
    ),
)
