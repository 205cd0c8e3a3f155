"""Local git repositories with HIP extensions that are built like Apex, and the catalog rows for them."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PACKAGES = Path(__file__).resolve().parent.parent / "packages"
_GIT = {
    "GIT_AUTHOR_NAME": "Tests", "GIT_AUTHOR_EMAIL": "tests@example.org", "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_COMMITTER_NAME": "Tests", "GIT_COMMITTER_EMAIL": "tests@example.org", "GIT_CONFIG_NOSYSTEM": "1",
}  # fmt: skip

CATALOG = """
schema = 1
[[package]]
name = "fusedtiny"
title = "a small HIP extension"
import-name = "fusedtiny"
status = "observed"
source = "tests"
{releases}
[[recipe]]
package = "fusedtiny"
backend = "rocm"
releases = "<1.0"
undeclared = ["setuptools", "wheel", "torch", "ninja"]
environment = {{ FORCE_CUDA = "1", PYTORCH_ROCM_ARCH = "{{gfx}}" }}
options = ["--cuda_ext"]
must-contain = ["fusedtiny_cuda*.so"]
{guard_old}
status = "observed"
source = "tests"
[[recipe]]
package = "fusedtiny"
backend = "rocm"
releases = ">=1.0"
undeclared = ["setuptools", "wheel", "torch", "ninja"]
environment = {{ FORCE_CUDA = "1", PYTORCH_ROCM_ARCH = "{{gfx}}", {own} }}
must-contain = ["fusedtiny_cuda*.so"]
source-contains = {{ "setup.py" = "FUSEDTINY_BUILD_CUDA_OPS" }}
status = "observed"
source = "tests"
"""
_RELEASE = """
[[release]]
package = "{package}"
version = "{version}"
git = {{ url = "{url}", commit = "{commit}", submodules = ["{submodule}"] }}
backend = ["rocm"]
status = "observed"
source = "tests"
"""
_OF_CMAKE = """
schema = 1
[[package]]
name = "cmaketiny"
title = "a small HIP library"
import-name = "cmaketiny"
status = "observed"
source = "tests"
[[release]]
package = "cmaketiny"
version = "1.0"
git = {{ url = "{url}", commit = "{commit}" }}
backend = ["rocm"]
status = "observed"
source = "tests"
[[recipe]]
package = "cmaketiny"
backend = "rocm"
undeclared = ["setuptools", "wheel", "torch"]
environment = {{ CMAKE_ARGS = "{arguments}" }}
must-contain = ["cmaketiny/libcmaketiny.so"]
status = "observed"
source = "tests"
"""
_GUARD = 'source-lacks = { "setup.py" = "FUSEDTINY_BUILD_CUDA_OPS" }'


@dataclass(frozen=True)
class Repository:
    """The repository, with the commits of both flag styles."""

    url: str
    old: str
    new: str
    shared: str
    """Commit of the submodule."""

    def catalog(
        self, directory: Path, *, fault: str = "", ops: str = "1", old: str = "", guard: bool = True
    ) -> Path:
        """Write the catalog rows for the repository into a directory.

        Parameters
        ----------
        fault
            The fault in the build of 1.0.
        ops
            Value of the variable that requests kernels.
        old
            A wrong commit for 0.9; the rows then have no 1.0.
        guard
            Whether the old recipe checks that the source reads its flags.
        """
        commits = {"0.9": old} if old else {"0.9": self.old, "1.0": self.new}
        releases = "".join(
            _RELEASE.format(
                package="fusedtiny", version=version, url=self.url, commit=commit, submodule="shared"
            )
            for version, commit in commits.items()
        )
        directory.mkdir(parents=True, exist_ok=True)
        own = f'FUSEDTINY_FAULT = "{fault}", FUSEDTINY_BUILD_CUDA_OPS = "{ops}"'
        text = CATALOG.format(releases=releases, own=own, guard_old=_GUARD if guard else "")
        (directory / "fusedtiny.toml").write_text(text)
        return directory


def make_repository(folder: Path) -> Repository:
    """Create the repository, its submodule, and one commit per flag style."""
    shared, main = folder / "shared.git", folder / "fusedtiny.git"
    header = _make_submodule(shared)
    shutil.copytree(PACKAGES / "fusedtiny", main)
    new = (main / "setup.py").read_text()
    (main / "setup_old.py").rename(main / "setup.py")
    _add_submodule(main, shared, "shared")
    old_commit = _commit(main, "kernels by a flag")
    (main / "setup.py").write_text(new)
    return Repository(main.as_uri(), old_commit, _commit(main, "kernels by a variable"), header)


def make_apex(folder: Path) -> str:
    """Create the repository of the stand-in for Apex; return a catalog in which Apex comes from there."""
    shared, main = folder / "cudnn-frontend.git", folder / "apex.git"
    _make_submodule(shared)
    shutil.copytree(PACKAGES / "apex", main)
    submodule = "apex/contrib/csrc/cudnn-frontend"
    _add_submodule(main, shared, submodule)
    commit = _commit(main, "Apex's build")
    release = _RELEASE.format(
        package="apex", version="1.13.0", url=main.as_uri(), commit=commit, submodule=submodule
    )
    return f"schema = 1\n{release}"


def make_cmaketiny(folder: Path, arguments: str = "-DCMAKE_SKIP_RPATH=ON") -> str:
    """Create the repository of a library that CMake builds with these arguments; return its catalog."""
    shutil.copytree(PACKAGES / "cmaketiny", folder)
    return _OF_CMAKE.format(arguments=arguments, url=folder.as_uri(), commit=_commit(folder, "CMake's build"))


def _make_submodule(folder: Path) -> str:
    shutil.copytree(PACKAGES / "fusedtiny_shared", folder)
    return _commit(folder, "the header")


def _add_submodule(folder: Path, source: Path, path: str) -> None:
    _git(folder, "init", "-q", "-b", "main")
    _git(folder, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", source.as_uri(), path)


def _commit(folder: Path, message: str) -> str:
    if not (folder / ".git").exists():
        _git(folder, "init", "-q", "-b", "main")
    _git(folder, "add", "-A")
    _git(folder, "commit", "-q", "-m", message)
    return _git(folder, "rev-parse", "HEAD").strip()


def _git(folder: Path, *arguments: str) -> str:
    env = {**os.environ, **_GIT}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=env, check=True, capture_output=True, text=True
    )
    return done.stdout
