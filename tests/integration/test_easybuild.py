"""The real EasyBuild installs a container module with our lines in its easyconfig, as an ordinary user.

The easyconfig resembles those for PyTorch in Lumi-supercomputer/LUMI-EasyBuild-containers: it copies the
image, creates a virtual environment on top of it, and packs the environment, which the module's commands use.
The torch in the image is a stand-in, an empty wheel.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from builders.index import Index
from matrix.api import write_lock
from matrix.cli import main
from resolver.lock import read_lock
from resolver.model import BaseImage
from tests.rig.rig import Rig
from tests.support.locks import with_image, with_kept
from tests.support.projects import rows_of, write_catalog
from tests.support.tiny import tiny_wheel, wheel_of

MODULES = "/usr/lib/x86_64-linux-gnu/modulecmd.tcl"
"""The program of Debian's package environment-modules."""
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path(MODULES).exists(), reason="needs Debian's package environment-modules"),
]
EASYBUILD = ["easybuild-framework==5.4.1", "easybuild-easyblocks==5.4.1"]
VERSION, NEWER = "1.0", "2.0"
LABEL = "+cpu.torch2.13.0"
USED = (".singularity.d", "bin", "environment", "etc", "lib", "lib64", "opt", "singularity", "usr")
UNUSED = (
    "usr/include",
    "usr/lib/llvm-*",
    "usr/lib/gcc",
    "usr/libexec",
    "usr/share",
    "lib*.a",
    "libLLVM*",
    "libclang*",
)
"""Directories and files that a Python without a compiler does not need."""
HEAD = """
easyblock = 'MakeCp'
name = 'PyTorch'
version = '2.13.0'
versionsuffix = '-singularity'
homepage = 'https://example.org'
description = 'A container with a virtual environment.'
toolchain = SYSTEM
local_sif = 'image.sqsh'
local_conda_env = 'pytorch'
local_singularity_bind = '%(installdir)s/runscripts:/runscripts'
sources = [{'filename': local_sif, 'extract_cmd': '/bin/cp -L %s .'}]
skipsteps = ['build']
files_to_copy = [([local_sif], '.')]
local_init = 'source /user-software/venv/pytorch/bin/activate'
local_python = '''#!/bin/bash
exec singularity exec \\$SIF python "\\$@"
'''
"""
TAIL = """
postinstallcmds = [
    'mkdir -p %(installdir)s/bin %(installdir)s/runscripts %(installdir)s/user-software/venv',
    f'cat >%(installdir)s/runscripts/init-conda-venv <<EOF\\n{local_init}\\nEOF',
    f'cat >%(installdir)s/bin/python <<EOF\\n{local_python}EOF',
    'chmod a+x %(installdir)s/bin/python',
    'singularity exec --bind %(installdir)s/user-software:/user-software '
    f'%(installdir)s/{local_sif} python -m venv --system-site-packages /user-software/venv/{local_conda_env}',
] + local_matrix_install + [
    'mksquashfs %(installdir)s/user-software %(installdir)s/user-software.squashfs -no-progress',
    'rm -rf %(installdir)s/user-software',
]
sanity_check_paths = {'files': ['user-software.squashfs'], 'dirs': ['runscripts']}
modextravars = {
    'SIF': '%(installdir)s/' + local_sif,
    'SINGULARITY_BIND': '%(installdir)s/user-software.squashfs:/user-software:image-src=/',
    'SINGULARITYENV_PREPEND_PATH': '/user-software/venv/pytorch/bin',
}
moduleclass = 'devel'
"""


@dataclass(frozen=True)
class Site:
    """A user's directory with lock, index and easyconfig, and the user's EasyBuild."""

    rig: Rig
    work: Path
    tools: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.tools / 'bin'}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        env = {"PATH": path, "MODULES_CMD": MODULES, "PIP_INDEX_URL": "file:///nowhere", "PIP_FIND_LINKS": ""}
        return self.rig.run_as_user(command, self.work, env)

    def eb(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.run(
            "eb",
            "PyTorch.eb",
            f"--prefix={self.work / 'software'}",
            f"--sourcepath={self.work}",
            "--modules-tool=EnvironmentModules",
            "--module-syntax=Tcl",
            *options,
        )

    def write_easyconfig(self, version: str, image: Path) -> None:
        """Resolve on top of the image, and put the lines of `matrix env` into an easyconfig."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.work)
            patch.setenv("PIP_NO_INDEX", "1")
            patch.setenv("PIP_CONFIG_FILE", os.devnull)
            patch.setenv("PIP_FIND_LINKS", "")
            project = rows_of("fused", "0" * 64, [], version=version, imports=["fused"])
            write_catalog(Path("facts", "fused.toml"), [project])
            Path("matrix.toml").write_text('catalog = ["facts"]\n')
            request = [f"fused=={version}", "torch==2.13.0", "--backend", "cpu", "--python", "3.11"]
            assert main(["resolve", *request, "-q"]) == 0
            digest = f"sha256:{hashlib.sha256(image.read_bytes()).hexdigest()}"
            base = BaseImage(name="image", path=str(image), digest=digest)
            lock = with_image(read_lock(Path("matrix.lock")), base)
            write_lock(with_kept(lock, "torch"))
            assert main(["env", "--for", "easybuild", "-o", "lines.py"]) == 0
        (self.work / "PyTorch.eb").write_text(HEAD + (self.work / "lines.py").read_text() + TAIL)
        self.own()

    def publish(self, version: str) -> None:
        """Publish the wheel in the index."""
        (self.work / "wheels").mkdir(exist_ok=True)
        code = f'VERSION = "{version}{LABEL}"\n'.encode()
        wheel = wheel_of(
            self.work / "wheels", "fused", f"{version}{LABEL}", {"fused.py": code}, requires=("torch",)
        )
        Index(self.work / "index").publish(wheel, {"build_key": version})
        self.own()

    def has_module(self) -> bool:
        return (self.work / "software" / "modules" / "all" / "PyTorch" / "2.13.0-singularity").exists()

    def own(self) -> None:
        """Make the user the owner of all files."""
        subprocess.run(["chown", "-R", "--reference", str(self.work), str(self.work)], check=True)

    def in_module(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Load the module, and run a command."""
        load = f'eval "$({MODULES} bash load PyTorch/2.13.0-singularity)"'
        modules = self.work / "software" / "modules" / "all"
        return self.run("bash", "-c", f"export MODULEPATH={modules}; {load}; {shlex.join(command)}")

    def verify(self) -> tuple[int, dict[str, Any]]:
        """Verify the module, without the packages of the Python that runs the project."""
        setting = (f"{name}={value}" for name, value in self.rig.with_project.items())
        options = ("env -u PYTHONPATH python", "--run", "--format", "json")
        done = self.in_module("env", *setting, self.rig.python, "-m", "matrix", "check", *options)
        return done.returncode, json.loads(done.stdout)["things"][0]


@pytest.fixture(scope="module")
def image(rig: Rig) -> Path:
    """Pack the Python of the rig's image with a stand-in for torch, without compilers."""
    work = rig.work()
    unpacked, image = work / "unpacked", work / "image.sqsh"
    excluded = " ".join(f"--exclude='{pattern}'" for pattern in UNUSED)
    pack = f"apptainer -s exec --containall {rig.image} tar -C / {excluded} -c {' '.join(USED)}"
    copy = f"mkdir -p unpacked/{{dev,proc,sys,tmp,var/tmp}} && {pack} | tar -x -C unpacked"
    done = rig.run_as_user(["bash", "-c", f"set -o pipefail; {copy}"], work)
    assert done.returncode == 0, done.stderr
    wheel = tiny_wheel(work / "wheels", "torch", "2.13.0+cpu")
    site = unpacked / "opt" / "python3.11" / "lib" / "python3.11" / "site-packages"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True)
    command = ["mksquashfs", str(unpacked), str(image), "-comp", "lz4", "-no-progress", "-quiet", "-all-root"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    image.chmod(0o644)
    shutil.rmtree(unpacked)
    return image


@pytest.fixture(scope="module")
def tools(rig: Rig) -> Path:
    """Install EasyBuild into an environment of the user, with Apptainer named `singularity` as at sites."""
    folder = rig.work() / "easybuild"
    subprocess.run([find_uv_bin(), "venv", "-q", "--python", rig.python, str(folder)], check=True)
    command = [find_uv_bin(), "pip", "install", "-q", "--python", str(folder / "bin" / "python"), *EASYBUILD]
    subprocess.run(command, check=True)
    (folder / "bin" / "singularity").symlink_to(shutil.which("apptainer") or "apptainer")
    return folder


@pytest.fixture(scope="module")
def site(rig: Rig, image: Path, tools: Path) -> Site:
    """Write an easyconfig with the lines for a lock whose wheel is not in the index yet."""
    work = rig.work()
    shutil.copy(image, work)
    one = Site(rig, work, tools)
    one.publish(NEWER)
    one.write_easyconfig(VERSION, image)
    return one


VERSIONS = "import fused, torch, sys; print(fused.VERSION, torch.__file__, sys.prefix)"


def versions(site: Site) -> list[str]:
    """Return the versions that the module's command imports, and the directories they come from."""
    done = site.in_module("python", "-c", VERSIONS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


def expected(version: str) -> list[str]:
    torch = "/opt/python3.11/lib/python3.11/site-packages/torch.py"
    return [f"{version}{LABEL}", torch, "/user-software/venv/pytorch"]


def assert_pip_failed(done: subprocess.CompletedProcess[str], version: str) -> None:
    """Check that `eb` failed, and that the output file that it names contains the reason."""
    assert done.returncode != 0, done.stdout
    output = re.search(r"\S+/out\.txt", done.stderr)
    assert output, done.stderr
    text = Path(output[0]).read_text()
    assert f"No matching distribution found for fused=={version}{LABEL}" in text


def test_module_is_installed_verified_and_kept(site: Site) -> None:
    assert_pip_failed(site.eb(), VERSION)
    assert not site.has_module()
    site.publish(VERSION)
    done = site.eb()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert site.has_module()
    assert versions(site) == expected(VERSION)
    code, answer = site.verify()
    assert (code, answer["verdict"]) == (0, "fits"), answer["findings"]
    assert "import fused: loads" in [finding["message"] for finding in answer["findings"]]
    image = site.work / "image.sqsh"
    size = image.stat().st_size
    with image.open("ab") as file:
        file.write(b"changed")
    done = site.eb("--rebuild")
    assert done.returncode != 0
    assert "Checksum verification for" in done.stderr
    os.truncate(image, size)
    assert versions(site) == expected(VERSION)


@pytest.mark.long
def test_reinstallation_repairs_failed_one(site: Site, image: Path) -> None:
    """EasyBuild deletes the old installation first, so after a failed reinstallation there is no module."""
    site.write_easyconfig(NEWER, image)
    wheels = site.work / "index" / "simple" / "fused"
    wheels.rename(site.work / "hidden")
    assert_pip_failed(site.eb("--rebuild"), NEWER)
    assert not site.has_module()
    (site.work / "hidden").rename(wheels)
    done = site.eb("--rebuild")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert versions(site) == expected(NEWER)
