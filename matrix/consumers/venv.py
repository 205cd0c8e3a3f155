"""A virtual environment on top of a container, packed into one file.

LUMI's support team points users to the images of its AI Factory, extended in this way: the environment is
made at ``/user-software`` inside the image, where it also appears when its squashfs is mounted, so the
paths in its scripts stay right. Source: Lumi-supercomputer/LUMI-AI-Guide 02-setting-up-environment
(create_venv.sh, create_squashfs.sh, run_squashfs.sh).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.consumers.output import MOUNTED, File
from matrix.consumers.requirements import (
    constraint_lines,
    kept_remark,
    requirement_lines,
    requirements_file,
)
from matrix.consumers.shell import (
    UNSET,
    environment_steps,
    image_checks,
    index_checks,
    script_head,
)
from resolver.errors import UsageError

if TYPE_CHECKING:
    from matrix.consumers.output import Where
    from matrix.consumers.pins import Pins

PLACE = "/user-software"
"""Where the environment is inside the container."""
_MAKE, _PACK, _RUN = "create_venv.sh", "create_squashfs.sh", "run.sh"
_VENV = "venv=${MATRIX_VENV:-$here/matrix-venv}"


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
    hint = "Resolve with --keep-installed image (or a list of what `pip list` says in it), or use --for cotainr."
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
    bound = not where.url
    told = [
        f"Usage: bash {_MAKE}",
        "MATRIX_VENV names the directory of the environment, MATRIX_INDEX and MATRIX_BASE_IMAGE the index and",
        "the base image where they have moved.",
    ]
    index = f' -B "$index:{MOUNTED}:ro"' if bound else ""
    lines = [
        *script_head(pins, "venv", told, _MAKE),
        _VENV,
        *UNSET,
        'command -v singularity >/dev/null || fail "neither SingularityCE nor Apptainer is on PATH"',
        *image_checks(pins),
        *(index_checks(str(where.index), pins.built) if bound else []),
        'case "$here$venv" in *[:,]*) fail "a path with : or , cannot be bound: $here, $venv" ;; esac',
        '[ ! -e "$venv" ] || fail "$venv is there already: remove it, or name another with MATRIX_VENV=DIR"',
        'files=$(mktemp -d)',
        'trap \'rm -rf -- "$files"\' EXIT',
        f'cp -- "$here/{where.main}" "$files/requirements.txt"',
        'cp -- "$here/constraints.txt" "$files/constraints.txt"',
        'mkdir -p -- "$venv"',
        "# What is half made is of no use.",
        'trap \'rm -rf -- "$files" "$venv"\' EXIT',
        f'singularity exec -B "$venv:{PLACE}" -B "$files:{PLACE}-files:ro"{index} "$image" sh -s <<\'INSIDE\'',
        environment_steps(pins, PLACE, f"{PLACE}-files"),
        "INSIDE",
        'trap \'rm -rf -- "$files"\' EXIT',
        f"printf 'Made %s. Pack it with: bash {_PACK}\\n' \"$venv\"",
    ]
    return "\n".join(lines) + "\n"


def _pack(pins: Pins) -> str:
    lines = [
        *script_head(pins, "venv", [f"Usage: bash {_PACK}"], _PACK),
        _VENV,
        '[ -x "$venv/bin/pip" ] || [ -L "$venv/bin/python" ] || '
        f'fail "there is no environment $venv: bash {_MAKE} makes it"',
        'command -v mksquashfs >/dev/null || fail "mksquashfs is not on PATH (package squashfs-tools)"',
        'packed=$venv.sqsh',
        'half=$packed.$$',
        'trap \'rm -f -- "$half"\' EXIT',
        'mksquashfs "$venv" "$half" -noappend -no-progress -processors 1 -no-xattrs',
        'mv -f -- "$half" "$packed"',
        'rm -rf -- "$venv"',
        "printf 'Made %s, and removed the directory.\\n' \"$packed\"",
    ]
    return "\n".join(lines) + "\n"


def _run(pins: Pins) -> str:
    """Write the script that starts programs in the environment; bind variables of modules stay as they are.

    Source of the variables for LUMI: LUMI-EasyBuild-containers (conda-python-distributed of the
    PyTorch easyconfigs): MIOpen cannot lock files on Lustre, RCCL must use the Slingshot interfaces.
    """
    lumi = [
        "# MIOpen cannot lock files on Lustre; RCCL must use the Slingshot interfaces.",
        'export MIOPEN_USER_DB_PATH="${MIOPEN_USER_DB_PATH:-/tmp/$(id -un)-miopen-cache-${SLURM_NODEID:-0}}"',
        'export MIOPEN_CUSTOM_CACHE_DIR="${MIOPEN_CUSTOM_CACHE_DIR:-$MIOPEN_USER_DB_PATH}"',
        'mkdir -p -- "$MIOPEN_USER_DB_PATH"',
        'export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-hsn0,hsn1,hsn2,hsn3}"',
        'export NCCL_NET_GDR_LEVEL="${NCCL_NET_GDR_LEVEL:-3}"',
    ]
    told = [f"Usage: bash {_RUN} COMMAND..., such as: srun ... bash {_RUN} python train.py"]
    lines = [
        *script_head(pins, "venv", told, _RUN),
        _VENV,
        '[ "$#" -gt 0 ] || fail "say what to run"',
        *image_checks(pins, digest=False),
        'if [ -f "$venv.sqsh" ]; then',
        f'    bind=$venv.sqsh:{PLACE}:image-src=/',
        'elif [ -d "$venv" ]; then',
        f'    bind=$venv:{PLACE}',
        "else",
        f'    fail "there is neither $venv.sqsh nor $venv: bash {_MAKE} makes it"',
        "fi",
        "# A ~/.local of this machine would leak in, and so would its PYTHONPATH.",
        "unset PYTHONPATH PYTHONHOME",
        "export SINGULARITYENV_PYTHONNOUSERSITE=1 APPTAINERENV_PYTHONNOUSERSITE=1",
        f"export SINGULARITYENV_PREPEND_PATH={PLACE}/bin APPTAINERENV_PREPEND_PATH={PLACE}/bin",
        *(lumi if pins.site == "lumi-g" else []),
        'exec singularity exec -B "$bind" "$image" "$@"',
    ]
    return "\n".join(lines) + "\n"
