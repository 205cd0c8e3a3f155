"""A virtual environment on top of a container, packed into one file.

It is created at ``/user-software`` inside the image, where its squashfs is mounted later, so paths in its
scripts stay valid. Source: Lumi-supercomputer/LUMI-AI-Guide 02-setting-up-environment (create_venv.sh,
create_squashfs.sh, run_squashfs.sh).
"""

from __future__ import annotations

from shlex import join, quote
from typing import TYPE_CHECKING

from builders.constants import MOUNT_POINT, SOURCE_DATE_EPOCH
from matrix.consumers import UNPACKED, Consumer, Maker
from matrix.consumers.shared.installation import WrittenFile
from matrix.consumers.shared.requirements import (
    constraint_lines,
    preinstalled_note,
    require_torch_of_image,
    requirement_lines,
    requirements_file,
)
from matrix.consumers.shared.shell import (
    HIDES_CODE,
    container_environment,
    environment_steps,
    fill,
    head,
    image_checks,
    script,
    site_binds,
    site_environment,
    source_checks,
    stoppable,
)

if TYPE_CHECKING:
    from pathlib import Path

    from matrix.consumers.shared.installation import Installation, Layout

_PREFIX = "/user-software"
_MAKE, _PACK, _RUN = "create_venv.sh", "create_squashfs.sh", "run.sh"


def _emit(installation: Installation, layout: Layout) -> list[WrittenFile]:
    require_torch_of_image(installation, "venv")
    notes = [
        f"Create the environment with `bash {_MAKE}`, pack it with `bash {_PACK}`,",
        f"and use it with `bash {_RUN}`.",
        *preinstalled_note(installation),
    ]
    lines = requirement_lines(installation, layout, layout.mounted, installation.on_top)
    limits = constraint_lines(installation, ())
    return [
        requirements_file(layout.main, installation, lines, notes, "venv"),
        requirements_file(
            "constraints.txt", installation, limits, ["Versions of the image to keep."], "venv"
        ),
        _create(installation, layout),
        _pack(installation),
        _run(installation),
    ]


def _create(installation: Installation, layout: Layout) -> WrittenFile:
    notes = [
        f"Usage: bash {_MAKE}",
        f"Set MATRIX_VENV to change the directory of the environment, and {layout.variable} or",
        f"MATRIX_BASE_IMAGE if the {layout.what} or the base image has moved.",
    ]
    source = source_checks(installation, layout)
    return script(
        _MAKE,
        _MAKE,
        head=head(installation, "venv", _MAKE, notes),
        environment=container_environment("venv"),
        stoppable=stoppable(_MAKE, "venv"),
        checks="\n".join(filter(None, [image_checks(installation), source])),
        main=quote(layout.main),
        bind=f' -B "$index:{MOUNT_POINT}:ro"' if source else "",
        hides_code=HIDES_CODE,
        steps=environment_steps(installation, _PREFIX, f"{_PREFIX}-files"),
    )


def _pack(installation: Installation) -> WrittenFile:
    return script(
        _PACK,
        _PACK,
        head=head(installation, "venv", _PACK, [f"Usage: bash {_PACK} [FILE]"]),
        stoppable=stoppable(_PACK, "packed"),
        epoch=SOURCE_DATE_EPOCH,
    )


def _run(installation: Installation) -> WrittenFile:
    """Return the script that runs programs in the environment; it keeps bind variables that modules set."""
    notes = [f"Usage: bash {_RUN} COMMAND..., for example `srun ... bash {_RUN} python train.py`"]
    return script(
        _RUN,
        _RUN,
        head=head(installation, "venv", _RUN, notes),
        runtime=fill("runtime.sh"),
        checks=image_checks(installation, digest=False),
        isolated=fill("isolated.sh"),
        binds=site_binds(installation),
        site=site_environment(installation),
    )


def _run_line(program: str, image: str, layer: Path) -> str:
    """Return the command that runs Python with a layer, as LUMI's guide writes it."""
    line = join([program, "exec", "-B", f"{layer}:{_PREFIX}:image-src=/,ro", image, "python"])
    variable = f"{program.upper()}ENV"
    return f"{variable}_PREPEND_PATH={_PREFIX}/bin {variable}_PYTHONNOUSERSITE=1 {line}"


CONSUMER = Consumer(file="requirements.txt", emit=_emit)
LAYER = Maker(
    makes="layer",
    programs=("apptainer", "singularity"),
    module="LUMI",
    install="Install Apptainer or SingularityCE.",
    command=lambda folder, target: [
        *("env", f"MATRIX_VENV={target}{UNPACKED}", "bash", "-ec", 'bash "$1" && bash "$2" "$3"', "layer"),
        *map(str, (folder / _MAKE, folder / _PACK, target)),
    ],
    python=lambda folder, target: join(
        ["env", f"MATRIX_VENV={target}", "bash", str(folder / _RUN), "python"]
    ),
    run=_run_line,
    suffixes=(".sqsh",),
)
"""How `matrix build-layer` makes the file, by the scripts of this consumer."""
