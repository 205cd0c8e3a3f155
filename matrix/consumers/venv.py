"""A virtual environment on top of a container, packed into one file.

LUMI's support team points users to the images of its AI Factory, extended in this way: the environment is
made at ``/user-software`` inside the image, where it also appears when its squashfs is mounted, so the
paths in its scripts stay right. Source: Lumi-supercomputer/LUMI-AI-Guide 02-setting-up-environment
(create_venv.sh, create_squashfs.sh, run_squashfs.sh).
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from matrix.consumers.output import MOUNTED, File
from matrix.consumers.requirements import (
    constraint_lines,
    kept_remark,
    requirement_lines,
    requirements_file,
)
from matrix.consumers.shell import environment_steps, fill, head, image_checks, index_checks
from resolver.errors import UsageError

if TYPE_CHECKING:
    from matrix.consumers.output import Where
    from matrix.consumers.pins import Pins

PLACE = "/user-software"
"""Where the environment is inside the container."""
_MAKE, _PACK, _RUN = "create_venv.sh", "create_squashfs.sh", "run.sh"


def require_torch_of_image(pins: Pins, consumer: str) -> None:
    """See that a lock leaves the image's torch alone.

    Raises
    ------
    UsageError
        It would install another one over it.
    """
    if pins.kept_torch is not None:
        return
    torch = next((str(pin) for pin in pins.pins if pin.name == "torch"), "")
    what = f"The lock installs {torch}, which would replace" if torch else "The lock does not keep"
    msg = f"{what} the torch of the base image; --for {consumer} writes nothing that does that."
    hint = (
        "Resolve with --keep-installed image (or a list of what `pip list` says in it), or use --for cotainr."
    )
    raise UsageError(msg, hint=hint)


def venv_files(pins: Pins, where: Where) -> list[File]:
    """Write requirements, constraints and the three scripts.

    Raises
    ------
    UsageError
        The lock would replace the image's torch.
    """
    require_torch_of_image(pins, "venv")
    url = where.mounted_url
    told = [
        f"Make the environment with: bash {_MAKE}; pack it with: bash {_PACK}; run in it with: bash {_RUN}",
        *kept_remark(pins),
    ]
    constraints = constraint_lines(pins, pins.on_top)
    return [
        requirements_file(where.main, pins, requirement_lines(pins, url, pins.on_top), told, "venv"),
        requirements_file("constraints.txt", pins, constraints, ["What may not change."], "venv"),
        File(_MAKE, _make(pins, where), executable=True),
        File(_PACK, _pack(pins), executable=True),
        File(_RUN, _run(pins), executable=True),
    ]


def _make(pins: Pins, where: Where) -> str:
    told = [
        f"Usage: bash {_MAKE}",
        "MATRIX_VENV names the directory of the environment; MATRIX_INDEX and MATRIX_BASE_IMAGE name the",
        "index and the base image where they have moved.",
    ]
    bound = [index_checks(str(where.index), pins.built)] if not where.url else []
    text = fill(
        _MAKE,
        head=head(pins, "venv", _MAKE, told),
        unset=fill("unset.sh", runtime=fill("runtime.sh")),
        checks="\n".join([image_checks(pins), *bound]),
        main=quote(where.main),
        bind=f' -B "$index:{MOUNTED}:ro"' if bound else "",
        steps=environment_steps(pins, PLACE, f"{PLACE}-files"),
    )
    return f"{text}\n"


def _pack(pins: Pins) -> str:
    return fill(_PACK, head=head(pins, "venv", _PACK, [f"Usage: bash {_PACK}"])) + "\n"


def _run(pins: Pins) -> str:
    """Write the script that starts programs in the environment; bind variables of modules stay as they are.

    Source of the variables for LUMI: LUMI-EasyBuild-containers (conda-python-distributed of the
    PyTorch easyconfigs).
    """
    told = [f"Usage: bash {_RUN} COMMAND..., such as: srun ... bash {_RUN} python train.py"]
    text = fill(
        _RUN,
        head=head(pins, "venv", _RUN, told),
        runtime=fill("runtime.sh"),
        checks=image_checks(pins, digest=False),
        site=fill("lumi-g.sh") if pins.site == "lumi-g" else "",
    )
    return f"{text}\n"
