"""An image with the layout of the LUMI AI Factory images, built from the rig's base image.

As in the real image, torch is preinstalled in the virtual environment /opt/venv, which is first on PATH and
excludes the packages of the Python that it was created from. Differences: Debian instead of Ubuntu, Python
3.11 in /opt/python3.11 instead of 3.12 in /usr, and neither MPICH nor libfabric. torch and triton are
STAND-INS, with which nothing runs on a GPU.

Source: lumi-ai-factory/laifs-container-recipes@fdf7153e8f99:containerfiles/torch/Venv_Torch.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.rig.rig import HERE as RIG
from tests.rig.rig import Rig
from tests.support.tiny import wheel_of

NUMPY = "2.1.0"
"""A numpy that is not the newest, as in images."""
TRITON = "3.7.1"
_TOOLS = ("setuptools", "wheel")
_DEFINITION = """\
Bootstrap: localimage
From: {base}
%files
    {wheels} /wheels
%post
    python3.11 -m venv /opt/venv
    /opt/venv/bin/pip install -q --no-cache-dir --no-index --find-links /wheels {names}
    # Like Ubuntu's python3-packaging: the environment does not see it.
    /opt/venv/bin/pip install -q --no-index --no-deps --find-links /wheels \\
        --target /opt/python3.11/lib/python3.11/site-packages packaging==23.0
    rm -rf /wheels
%environment
    export PATH=/opt/venv/bin:$PATH
"""


def make_laif_image(rig: Rig) -> Path:
    """Build the image as the ordinary user, and return its path."""
    folder = rig.work()
    wheels = folder / "wheels"
    wheels.mkdir()
    names = [f"torch=={rig.torch.name.split('-')[1]}", f"triton-rocm=={TRITON}", f"numpy=={NUMPY}", *_TOOLS]
    (wheels / rig.torch.name).hardlink_to(rig.torch)
    wheel_of(wheels, "triton-rocm", TRITON, {"triton.py": (RIG / "standin_triton.py").read_bytes()})
    line = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "--python-version", "3.11"]
    line += [
        "--platform",
        "manylinux_2_28_x86_64",
        "--platform",
        "manylinux2014_x86_64",
        "-d",
        str(wheels),
        "--find-links",
        str(wheels),
    ]
    for more in (names, ["--no-deps", "packaging==23.0"]):
        subprocess.run([*line, *more], check=True)
    subprocess.run(["chmod", "-R", "a+rX", str(wheels)], check=True)
    definition = folder / "laif.def"
    definition.write_text(_DEFINITION.format(base=rig.image, wheels=wheels, names=" ".join(names)))
    image = folder / "laif.sif"
    fast = ["--mksquashfs-args", "-noI -noD -noF -noX"]
    done = rig.run_as_user(["apptainer", "build", *fast, str(image), str(definition)], folder)
    assert done.returncode == 0, done.stderr
    return image
