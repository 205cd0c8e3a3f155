"""The rig: base images with and without a real HIP compiler, a stand-in for torch, and an ordinary user.

The rig is created once and kept under ``~/.cache/rocm-matrix-rig``, named by a digest of the scripts.
``make-base-image.sh`` and ``standin_torch.py`` describe what the rig can show and what it cannot.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builders.storage.lease import exclusive_lock
from resolver.facts.catalog import load
from tests.rig.standin_torch import make

HERE = Path(__file__).parent
PROJECT = HERE.parent.parent
USER = "hpc"
TORCH = "2.13.0+cpu"
_MADE_BY = ("make-base-image.sh", "mirror.sh", "standin_torch.py")
_TOOLS = {
    "apptainer": "run tests/rig/install-apptainer.sh as root",
    "debootstrap": "apt-get install debootstrap",
    "gcc": "apt-get install gcc",
    "runuser": "apt-get install util-linux",
}
_UNUSED = ("babel", "hypothesis", "mypy", "mypyc", "pip", "ruff*", "selenium", "sphinx", "torch")
"""Packages of the tests that no program of the user needs."""
_PASSED = ("PIP_", "SSL_CERT_", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


class RigError(Exception):
    """The rig cannot be created. A test that needs it fails; it is not skipped."""


@dataclass(frozen=True)
class Rig:
    """The files and the user for tests of container builds."""

    image: Path
    """The base image, a SIF."""
    runtime: Path
    """The base image without compilers and headers."""
    wheels: Path
    """Directory with the stand-in torch wheel."""
    root: Path
    """Directory of this session. The user can read it, and write to directories from `work`."""

    @property
    def torch(self) -> Path:
        """The stand-in torch wheel."""
        (wheel,) = self.wheels.glob("torch-*.whl")
        return wheel

    @property
    def with_project(self) -> dict[str, str]:
        """Variables with which Python finds the project and its dependencies."""
        return {"PYTHONPATH": str(self.root / "site")}

    @property
    def python(self) -> str:
        """An interpreter of the running minor version that the ordinary user may start."""
        name = f"python{sys.version_info.major}.{sys.version_info.minor}"
        for path in (os.path.realpath(sys.executable), f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
            if Path(path).exists() and _as_user([path, "-c", "1"], cwd=self.root).returncode == 0:
                return path
        msg = f"The user {USER} cannot start {name}: apt-get install {name}"
        raise RigError(msg)

    def work(self) -> Path:
        """Create a directory that belongs to the user."""
        path = Path(tempfile.mkdtemp(dir=self.root, prefix="work-"))
        if os.geteuid() == 0:
            shutil.chown(path, USER, USER)
        return path

    def run_as_user(
        self, command: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as the ordinary user, with only the index settings of this environment.

        Parameters
        ----------
        cwd
            The working directory; None for a new directory of the user.
        env
            Additional variables.
        """
        return _as_user(command, cwd=cwd or self.work(), env={**self.user_environment(), **(env or {})})

    def user_environment(self) -> dict[str, str]:
        """Return the user's environment: a temporary home, and this machine's index settings."""
        own = {"HOME": str(self.root / "home"), "TMPDIR": str(self.root / "tmp"), "LANG": "C.UTF-8"}
        return index_settings() | own | {"PATH": "/usr/local/bin:/usr/bin:/bin"}

    def matrix(
        self, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `matrix` as the ordinary user."""
        return self.run_python("-m", "matrix", *arguments, cwd=cwd, env=env)

    def make_libraries(self, folder: Path, objects: Sequence[Path]) -> None:
        """Write the stand-ins for the libraries that objects need and the image lacks; see the script."""
        script = folder.parent / "standin_libraries.py"
        shutil.copy(HERE / script.name, script)
        search = f"PYTHONPATH={self.root / 'site'}"
        inside = ["apptainer", "--silent", "exec", "--bind", str(self.root), "--env", search, str(self.image)]
        command = [*inside, "python3", str(script), str(folder), *map(str, objects)]
        done = self.run_as_user(command, cwd=folder.parent)
        if done.returncode:
            raise RigError(done.stderr)

    def image_with(self, libraries: Path) -> Path:
        """Return a copy of the base image with these libraries in /opt/rocm/lib."""
        tree, image = (libraries.with_name(name) for name in ("image", "with-libraries.sif"))
        build = "apptainer --silent build --mksquashfs-args '-noI -noD -noF -noX'"
        script = f"""
            apptainer --silent build --sandbox {tree} {self.image}
            cp --remove-destination {libraries}/* {tree}/opt/rocm/lib
            {build} {image} {tree}"""
        done = self.run_as_user(["bash", "-ec", script], cwd=libraries.parent)
        if done.returncode:
            raise RigError(done.stderr)
        return image

    def run_python(
        self, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run Python as the ordinary user, with the project and its dependencies."""
        return self.run_as_user([self.python, *arguments], cwd=cwd, env={**self.with_project, **(env or {})})


def index_settings() -> dict[str, str]:
    """Return the variables of this machine with which its package index can be reached."""
    return {name: value for name, value in os.environ.items() if name.startswith(_PASSED) or name in _PROXIES}


@contextmanager
def the_rig() -> Iterator[Rig]:
    """Create the rig if it does not exist, and a session directory for the user.

    Raises
    ------
    RigError
        The rig cannot be created; the error has the last lines of the log.
    """
    kept = _made()
    root = Path(tempfile.mkdtemp(prefix="rocm-matrix-rig-"))
    try:
        root.chmod(0o755)
        for name in ("home", "tmp"):
            (root / name).mkdir()
            if os.geteuid() == 0:
                shutil.chown(root / name, USER, USER)
        (root / "wheels").mkdir()
        for file in (*kept.glob("*.sif"), *kept.glob("torch-*.whl")):
            _link(file, root / "wheels" / file.name if file.suffix == ".whl" else root / file.name)
        copy_site(root / "site")
        yield Rig(root / "base.sif", root / "runtime.sif", root / "wheels", root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _made() -> Path:
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in _MADE_BY)).hexdigest()[:16]
    kept = Path.home() / ".cache" / "rocm-matrix-rig" / digest
    with exclusive_lock(kept.parent / f"{digest}.lock"):
        if not kept.exists():
            _require_tools()
            with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".tmp-") as name:
                made = Path(name) / "made"
                made.mkdir()
                _make(made, kept.parent / f"{digest}.log")
                made.rename(kept)
    return kept


def _require_tools() -> None:
    missing = [f"{name}: {fix}" for name, fix in _TOOLS.items() if not shutil.which(name)]
    if os.geteuid() != 0:
        missing.insert(0, "root: debootstrap creates a root filesystem; run the tests once as root")
    if missing:
        msg = "The rig cannot be created here. It needs\n  " + "\n  ".join(missing)
        raise RigError(msg)


def _make(folder: Path, log: Path) -> None:
    with log.open("w") as sink:
        command = [str(HERE / "make-base-image.sh"), str(folder)]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            check=False,
            env={**os.environ, "RIG_USER": USER},
        )
        if done.returncode:
            raise RigError(_told("The base images could not be created", log))
        downloads = folder / "downloads"
        _download(downloads, sink.fileno(), log)
        (wheel,) = downloads.glob("torch-*.whl")
        make(wheel, folder)
        shutil.rmtree(downloads)


def _download(folder: Path, sink: int, log: Path) -> None:
    """Download the CPU wheel with pip's configuration, or else from the catalog's index."""
    index = load().torch[TORCH].index
    for more in ((), ("--extra-index-url", index)):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", *more]
        command += ["-d", str(folder), f"torch=={TORCH}"]
        if subprocess.run(command, stdout=sink, stderr=sink, check=False).returncode == 0:
            return
    raise RigError(_told(f"torch {TORCH} could not be downloaded", log))


def _told(what: str, log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-30:]
    return "\n  ".join([f"{what}. Log: {log}", *lines])


def _as_user(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    runuser = shutil.which("runuser") or "runuser"  # the user's PATH has no sbin
    words = [runuser, "-u", USER, "--", *command] if os.geteuid() == 0 else list(command)
    return subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def _link(source: Path, target: Path) -> None:
    """Make a file in root's home readable for the user, without a copy if possible."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
    target.chmod(0o644)


def _link_or_copy(source: str, target: str) -> None:
    """Link a file that no test changes: each process of the tests would copy 200 MB."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def copy_site(target: Path) -> None:
    """Copy the project and link its dependencies, because the user cannot read root's directories.

    The copy has all bytecode: the user cannot write it, and would compile all modules again for each command.
    """
    skipped = shutil.ignore_patterns(*_UNUSED)
    shutil.copytree(sysconfig.get_path("purelib"), target, ignore=skipped, copy_function=_link_or_copy)
    for name in ("resolver", "builders", "matrix"):
        shutil.copytree(PROJECT / name, target / name, ignore=skipped, dirs_exist_ok=True)
        compileall.compile_dir(target / name, quiet=2)
    for path in (target, *target.rglob("*")):
        path.chmod(path.stat().st_mode | 0o444 | (0o111 if path.is_dir() else 0))


if __name__ == "__main__":
    _made()
