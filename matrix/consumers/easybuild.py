"""Lines for an easyconfig of LUMI's container modules.

Such an easyconfig creates a virtual environment on top of the image's Python and installs the here-document
``local_pip_requirements`` into it. EasyBuild ignores a failing pip unless the command line ends with
``|| exit 1``. Source: LUMI-EasyBuild-containers easybuild/easyconfigs/p/PyTorch/
PyTorch-2.3.1-rocm-6.0.3-python-3.12-singularity-exampleVenv-20240923.eb.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.consumers import Consumer
from matrix.consumers.shared.installation import MARK, WrittenFile, comments, pin
from matrix.consumers.shared.requirements import (
    constraint_lines,
    require_torch_of_image,
    requirement_lines,
)
from resolver.errors import UsageError
from resolver.texts import printable

if TYPE_CHECKING:
    from matrix.consumers.shared.installation import Installation, Layout

_VENV = "%(installdir)s/user-software/venv"
_INTERPRETED = ("$", "`", "\\", "{", "}", '"""', "%(")
_SPECIAL = "%$`\\{}\"',: "


def _emit(installation: Installation, layout: Layout) -> list[WrittenFile]:
    require_torch_of_image(installation, "easybuild")
    binds = layout.binds(installation)
    if binds and {*str(layout.bound)} & {*_SPECIAL}:
        what = f"the path of the {layout.what}, {layout.bound}"
        msg = f"EasyBuild or the shell would change characters in {what}."
        raise UsageError(msg, hint="Move it to a path that has only letters, digits, - _ . and /.")
    bind = f"{layout.bound}:{layout.bound}:ro" if binds else ""
    variables = "".join(f"{name}={value} " for name, value in installation.rocm_variables.items())
    digest = installation.image_digest
    checksums = [
        "# EasyBuild compares the image with the digest in the lock. The image must be the only source.",
        f"checksums = [{digest!r}]",
    ]
    notes = [
        f"{installation.heading}; {MARK} --for easybuild`.",
        "Copy these lines into the container's easyconfig, below local_singularity_bind, local_sif and",
        "local_conda_env. Run local_matrix_install where the easyconfig fills the virtual environment.",
        "The image already has these distributions, and constraints keep them: "
        + ", ".join(map(pin, installation.preinstalled)),
    ]
    lines = [
        *comments(notes),
        *(checksums if digest else ()),
        'local_pip_requirements = """',
        *_checked(requirement_lines(installation, layout, layout.local, installation.on_top)),
        "",
        '"""',
        'local_pip_constraints = """',
        *_checked(constraint_lines(installation, ())),
        "",
        '"""',
        f"# The {layout.what}. It is not needed after the module is built.",
        f"local_matrix_bind = {bind!r}",
        "# EasyBuild ignores a failing pip. So `|| exit 1` stops the installation.",
        "local_matrix_install = [",
        f"    f'cat >{_VENV}/requirements.txt <<EOF {{local_pip_requirements}}EOF',",
        f"    f'cat >{_VENV}/constraints.txt <<EOF {{local_pip_constraints}}EOF',",
        "    f'singularity exec --bind {local_singularity_bind}'",
        "    + (f' --bind {local_matrix_bind}' if local_matrix_bind else '')",
        "    + ' --bind %(installdir)s/user-software:/user-software'",
        "    + f' %(installdir)s/{local_sif} bash -c \\'source /runscripts/init-conda-venv && '",
        "    + 'cd /user-software/venv && PYTHONNOUSERSITE=1 PIP_NO_CACHE_DIR=1 '",
        f"    + '{variables}python -m pip install {installation.no_deps}'",
        "    + '-r requirements.txt -c constraints.txt || exit 1\\' || exit 1',",
        "]",
    ]
    return [WrittenFile(layout.main, "\n".join(lines) + "\n")]


def _checked(lines: list[str]) -> list[str]:
    """Return lines that neither Python, EasyBuild's templates nor the shell's here-document would change."""
    for line in lines:
        if line == "EOF" or not line.isprintable() or any(text in line for text in _INTERPRETED):
            msg = f"EasyBuild or the shell would change this line: {printable(line)}"
            raise UsageError(msg, hint="Use --for venv, or request this distribution in another way.")
    return lines


CONSUMER = Consumer(file="easyconfig-lines.py", emit=_emit)
