# /// script
# requires-python = ">=3.11"
# dependencies = ["nox>=2024.10"]
# ///
"""Tasks for a clone: ``python3 noxfile.py NAME``, or ``nox -s NAME``; ``python3 noxfile.py -l`` lists them.

Started as a script, it makes an environment with nox if there is none. A session installs only if its
requirements have changed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Collection
from pathlib import Path

HERE = Path(__file__).resolve().parent
_PACKAGES = {
    "g++": "g++", "git": "git", "chromedriver": "chromium-driver",
    "slurmctld": "slurmctld", "slurmd": "slurmd", "squeue": "slurm-client", "munged": "munge",
    "bwrap": "bubblewrap", "ccache": "ccache", "fish": "fish", "groff": "groff-base",
    "mksquashfs": "squashfs-tools", "ssh-keygen": "openssh-client", "mpicc.mpich": "mpich libmpich-dev",
    "mpicc.openmpi": "openmpi-bin libopenmpi-dev", "debootstrap": "debootstrap",
    "/usr/lib/x86_64-linux-gnu/modulecmd.tcl": "environment-modules",
}  # fmt: skip
"""Debian's packages of the programs and files that the tests need."""
_COMPILER = ("g++",)
_SBIN = "/usr/sbin:/sbin"
_PROCESSES = str((os.cpu_count() or 1) + 1)
"""Processes that run tests: one more than cores, because many wait for programs, jobs and downloads."""
_PARALLEL = ("-n", _PROCESSES, "--dist", "worksteal")
"""Tests of one file mostly run in one process, and so share what the file prepares."""
_MORE_PROCESSES = str((os.cpu_count() or 1) + 2)
"""Integration tests wait more, for servers, locks and images: three processes used 62 % of two cores."""


def missing_packages(names: Collection[str]) -> list[str]:
    """Return the Debian packages of programs and files that this machine does not have."""
    path = f"{os.environ.get('PATH', '')}:{_SBIN}"
    packages = [
        _PACKAGES[name]
        for name in names
        if not (Path(name).exists() if name.startswith("/") else shutil.which(name, path=path))
    ]
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        packages.append("python3-dev")
    return packages


def _start_with_nox() -> None:
    """Run nox on this file with the sessions that the command line names; install nox if it is missing."""
    words = sys.argv[1:]
    sessions = [] if not words or words[0].startswith("-") else ["-s"]
    try:
        import nox  # noqa: F401
    except ModuleNotFoundError:
        python = HERE / ".nox" / "nox" / "bin" / "python"
        if not python.exists():
            _make_environment(python)
        os.execv(python, [str(python), "-m", "nox", "-f", __file__, *sessions, *words])
    os.execv(sys.executable, [sys.executable, "-m", "nox", "-f", __file__, *sessions, *words])


def _make_environment(python: Path) -> None:
    folder = python.parents[1]
    try:
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "-qq", "nox>=2024.10"], check=True)
    except subprocess.CalledProcessError:
        shutil.rmtree(folder, ignore_errors=True)
        sys.exit(
            "error: nox could not be installed (see above).\n"
            "  hint: If ensurepip is missing: apt-get install -y python3-venv. Else check the network."
        )


if __name__ == "__main__":
    _start_with_nox()

import nox

nox.options.sessions = ["lint", "tests"]
nox.options.reuse_existing_virtualenvs = True
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each process compiles all tests and modules again


def install(session: nox.Session, *arguments: str) -> None:
    """Install the project into the session's environment, unless its requirements are those of last time."""
    parts = [(HERE / name).read_bytes() for name in ("pyproject.toml", "hatch_build.py")]
    digest = hashlib.sha256(b"".join([*parts, repr(arguments).encode()])).hexdigest()
    stamp = Path(session.virtualenv.location) / "installed"
    if not stamp.exists() or stamp.read_text() != digest:
        session.install("-q", *arguments)
        stamp.write_text(digest)


def require(session: nox.Session, names: Collection[str]) -> None:
    """Stop if programs are missing, with the line that installs them on Debian."""
    packages = missing_packages(names)
    commands = [f"apt-get install -y {' '.join(packages)}"] if packages else []
    if names is not _COMPILER and not shutil.which("apptainer"):
        commands.append("tests/rig/install-apptainer.sh")
    if names is not _COMPILER and not Path("/opt/lmod").exists():
        commands.append("tests/rig/install-lmod.sh")
    if commands:
        session.error(f"Programs are missing. Install them as root: {' && '.join(commands)}")


@nox.session
def demo(session: nox.Session) -> None:
    """Resolve, build a real DeepSpeed op, publish it, install it and compare it with torch."""
    require(session, _COMPILER)
    install(session, "-e", ".")
    session.run("python", "examples/demo.py")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types, the direction of imports, the generated documents and the links of the site."""
    install(session, "-e", ".[lint]")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")
    session.run("lint-imports")
    session.run("python", "docs/generate.py", "--check")
    _build_site(session)


def _build_site(session: nox.Session) -> None:
    """Write the documentation to site/; a broken link is an error."""
    session.run("sphinx-build", "-q", "-W", "--keep-going", "-b", "html", "-c", "docs", ".", "site")


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests, real builds included. Arguments after -- go to one pytest run instead."""
    if not session.posargs:
        require(session, _PACKAGES)
    install(session, "-e", ".[test]")
    if session.posargs:
        session.run("python", "-m", "pytest", *session.posargs)
        return
    session.run("python", "-m", "pytest", *_PARALLEL, "-m", "not integration and not long")
    scheduled = [
        "-p",
        "tests.scheduling",
        "-n",
        _MORE_PROCESSES,
        "--dist",
        "loadscope",
        "--no-loadscope-reorder",
    ]
    session.run("python", "-m", "pytest", *scheduled, "-m", "integration and not long")


@nox.session(default=False)
def unit(session: nox.Session) -> None:
    """Run the fast tests: two minutes on two cores. Arguments after -- go to pytest.

    No network is needed unless something must be installed.
    """
    install(session, "-e", ".[test]")
    fast = [*_PARALLEL, "-m", "not integration and not slow and not long"]
    session.run("python", "-m", "pytest", *fast, *session.posargs)


@nox.session(default=False)
def long(session: nox.Session) -> None:
    """Run the tests that take minutes, such as fifty killed builds. Arguments after -- go to pytest."""
    install(session, "-e", ".[test]")
    session.run("python", "-m", "pytest", "-m", "long", *session.posargs)


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """Change valid inputs of every kind, 10,000 times each, and report failures without a message.

    This takes an hour. Arguments after -- choose cases and kinds, such as ``--cases 1000 wheel elf``.
    """
    install(session, "-e", ".[test]")
    session.run("python", "-m", "tests.fuzz", *session.posargs)


@nox.session(default=False)
def dev(session: nox.Session) -> None:
    """Create .venv with everything that tests and lint need, and install the pre-commit hooks."""
    session.run("python", "-m", "venv", ".venv", external=True)
    session.run(".venv/bin/pip", "install", "-q", "-e", ".[test,lint]", "pre-commit>=4", external=True)
    session.run(".venv/bin/pre-commit", "install", external=True)


@nox.session(default=False)
def zipapp(session: nox.Session) -> None:
    """Write dist/matrix.pyz: the program and all that it imports, in one file for this Python."""
    session.install("-q", "shiv>=1.0.8", "pip", "setuptools")
    version = sys.version_info[:2]
    name = ".".join(map(str, version))
    check = Path(session.create_tmp(), "check.py")
    check.write_text(
        f"import sys\nif sys.version_info[:2] != {version}:\n"
        f"    sys.exit('error: This matrix.pyz is for Python {name}.\\n'\n"
        f"             '  hint: Start it with python{name}, or make one with the other Python.')\n"
    )
    target = HERE / "dist" / "matrix.pyz"
    target.parent.mkdir(exist_ok=True)
    options = ("--compressed", "--preamble", str(check))
    session.run("shiv", "-q", "-c", "matrix", "-o", str(target), *options, ".")


@nox.session(default=False)
def release(session: nox.Session) -> None:
    """Check that a person signed what public sources have and the catalog lacks; -- --sign NAME signs it.

    It needs a network that reaches all sources.
    """
    install(session, "-e", ".")
    session.run("python", ".ci/signed_update.py", *session.posargs)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Write the generated parts of the documents; with -- --check only compare them."""
    install(session, "-e", ".")
    session.run("python", "docs/generate.py", *session.posargs)


@nox.session(default=False)
def site(session: nox.Session) -> None:
    """Write the documentation as a site to site/index.html; a broken link is an error."""
    install(session, "-e", ".[lint]")
    _build_site(session)


@nox.session(default=False)
def examples(session: nox.Session) -> None:
    """Run the examples of the pages, and write their output into the pages. Arguments after -- name pages."""
    install(session, "-e", ".")
    session.run("python", "docs/run_examples.py", *session.posargs)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Time commands, index, environments, builds and the search against other tools, and print JSON.

    This takes two hours. Arguments after -- go to the search, such as ``--sizes 12x12 --timeout 10``.
    """
    session.install("-q", ".", "clingo>=5.7", "nab-resolver>=0.0.23", "pip>=24", "uv>=0.8", "wheel>=0.45")
    session.run("python", "-m", "benchmarks.commands")
    session.run("python", "-m", "benchmarks.indexing")
    session.run("python", "-m", "benchmarks.index_cache")
    session.run("python", "-m", "benchmarks.open_world")
    session.run("python", "-m", "benchmarks.learning")
    session.run("python", "-m", "benchmarks.audit")
    session.run("python", "-m", "benchmarks.audit", "--packed")
    session.run("python", "benchmarks/environments.py")
    session.run("python", "-m", "benchmarks.four_packages")
    session.run("python", "-m", "benchmarks.sleeping")
    session.run("python", "-m", "benchmarks.pure_builds")
    session.run("python", "-m", "benchmarks.resolving", *session.posargs)


@nox.session(default=False)
def heavy(session: nox.Session) -> None:
    """Build real extensions that take minutes in the test image, and print JSON.

    This needs root, and takes half an hour. Arguments after -- choose builds, such as
    ``--only causal-conv1d``. Results: docs/development/measured-builds.md.
    """
    install(session, "-e", ".[test]")
    session.run("python", "-m", "benchmarks.heavy", *session.posargs)


@nox.session(default=False)
def overhead(session: nox.Session) -> None:
    """Time build-wheels against a bare pip wheel in the test image, and print JSON.

    This needs root, and takes 15 minutes.
    """
    install(session, "-e", ".[test]")
    session.run("python", "-m", "benchmarks.building", *session.posargs)
