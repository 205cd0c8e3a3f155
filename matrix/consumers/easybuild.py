"""Lines for an easyconfig of LUMI's container modules.

Such an easyconfig makes a virtual environment on top of the image's Python and installs the here-document
``local_pip_requirements`` into it. pip's failure there is swallowed unless the command line ends
with ``|| exit 1``. Source: LUMI-EasyBuild-containers easybuild/easyconfigs/p/PyTorch/
PyTorch-2.3.1-rocm-6.0.3-python-3.12-singularity-exampleVenv-20240923.eb.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.consumers.output import MARK, File
from matrix.consumers.requirements import constraint_lines, requirement_lines
from matrix.consumers.venv import require_torch_of_image
from resolver.errors import UsageError

if TYPE_CHECKING:
    from matrix.consumers.output import Where
    from matrix.consumers.pins import Pins

_VENV = "%(installdir)s/user-software/venv"
_SPECIAL = "%$`\\{}\"',: "


def easybuild_files(pins: Pins, where: Where) -> list[File]:
    """Write the block for the easyconfig.

    Raises
    ------
    UsageError
        The lock would replace the image's torch, or the path of the index holds characters that
        EasyBuild or a shell changes.
    """
    require_torch_of_image(pins, "easybuild")
    url = where.local_url
    if not where.url and {*str(where.index)} & {*_SPECIAL}:
        msg = f"EasyBuild or the shell would change characters in the path of the index, {where.index}."
        raise UsageError(msg, hint="Put the index where the path has only letters, digits, - _ . and /.")
    bind = f"{where.index}:{where.index}:ro"
    lines = [
        f"# {pins.heading}; {MARK} --for easybuild`.",
        "# Take these lines into the container's easyconfig, below local_singularity_bind, local_sif and",
        "# local_conda_env; local_matrix_install belongs where it installs into the virtual environment.",
        "# What the image holds is not installed; constraints keep it: " + ", ".join(map(str, pins.kept)),
        'local_pip_requirements = """',
        *requirement_lines(pins, url, pins.on_top),
        "",
        '"""',
        'local_pip_constraints = """',
        *constraint_lines(pins, pins.on_top),
        "",
        '"""',
        "# Where the index is; nothing else of it is needed once the module is built.",
        f"local_matrix_bind = {'' if where.url else bind!r}",
        "# Each command ends the installation if it fails, which EasyBuild would not notice by itself.",
        "local_matrix_install = [",
        f"    f'cat >{_VENV}/requirements.txt <<EOF {{local_pip_requirements}}EOF',",
        f"    f'cat >{_VENV}/constraints.txt <<EOF {{local_pip_constraints}}EOF',",
        "    f'singularity exec --bind {local_singularity_bind}'",
        "    + (f' --bind {local_matrix_bind}' if local_matrix_bind else '')",
        "    + ' --bind %(installdir)s/user-software:/user-software'",
        "    + f' %(installdir)s/{local_sif} bash -c \\'source /runscripts/init-conda-venv && '",
        "    + 'cd /user-software/venv && PYTHONNOUSERSITE=1 PIP_NO_CACHE_DIR=1 '",
        "    + 'python -m pip install -r requirements.txt -c constraints.txt || exit 1\\' || exit 1',",
        "]",
    ]
    return [File(where.main, "\n".join(lines) + "\n")]
