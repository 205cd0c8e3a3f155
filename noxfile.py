# /// script
# requires-python = ">=3.11"
# dependencies = ["nox>=2024.10"]
# ///
"""Tasks for a clone, run with ``pipx run nox -s NAME``; ``pipx run nox -l`` lists them."""

import os

import nox

nox.options.sessions = ["lint", "tests"]
nox.options.reuse_existing_virtualenvs = True


@nox.session
def demo(session: nox.Session) -> None:
    """Resolve, build a real DeepSpeed op, publish it, install it and compare it with torch."""
    session.install("-q", ".")
    session.run("python", "examples/demo.py")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types, the direction of imports, the generated documents and the links of the site."""
    session.install("-q", "-e", ".[lint]")
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
    session.install("-q", "-e", ".[test]")
    if session.posargs:
        session.run("python", "-m", "pytest", *session.posargs)
        return
    session.run("python", "-m", "pytest", "-n", "auto", "-m", "not integration and not long")
    two_processes = ["-p", "tests.scheduling", "-n", "2", "--dist", "loadscope", "--no-loadscope-reorder"]
    session.run("python", "-m", "pytest", *two_processes, "-m", "integration and not long")


@nox.session(default=False)
def unit(session: nox.Session) -> None:
    """Run the fast tests: at most two minutes on two cores. Arguments after -- go to pytest.

    With ``nox -R`` nothing is installed again, and no network is needed.
    """
    session.install("-q", "-e", ".[test]")
    session.run(
        "python",
        "-m",
        "pytest",
        "-n",
        str((os.cpu_count() or 1) * 3 // 2),  # some tests wait for programs and locks
        "-m",
        "not integration and not slow and not long",
        *session.posargs,
    )


@nox.session(default=False)
def long(session: nox.Session) -> None:
    """Run the tests that take minutes, such as fifty killed builds. Arguments after -- go to pytest."""
    session.install("-q", "-e", ".[test]")
    session.run("python", "-m", "pytest", "-m", "long", *session.posargs)


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """Change valid inputs of every kind, 10,000 times each, and report failures without a message.

    This takes an hour. Arguments after -- choose cases and kinds, such as ``--cases 1000 wheel elf``.
    """
    session.install("-q", "-e", ".[test]")
    session.run("python", "-m", "tests.fuzz", *session.posargs)


@nox.session(default=False)
def dev(session: nox.Session) -> None:
    """Create .venv with everything that tests and lint need, and install the pre-commit hooks."""
    session.run("python", "-m", "venv", ".venv", external=True)
    session.run(".venv/bin/pip", "install", "-q", "-e", ".[test,lint]", "pre-commit>=4", external=True)
    session.run(".venv/bin/pre-commit", "install", external=True)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Write the generated parts of the documents; with -- --check only compare them."""
    session.install("-q", "-e", ".")
    session.run("python", "docs/generate.py", *session.posargs)


@nox.session(default=False)
def site(session: nox.Session) -> None:
    """Write the documentation as a site to site/index.html; a broken link is an error."""
    session.install("-q", "-e", ".[lint]")
    _build_site(session)


@nox.session(default=False)
def examples(session: nox.Session) -> None:
    """Run the examples of the pages, and write their output into the pages. Arguments after -- name pages."""
    session.install("-q", "-e", ".")
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
    session.run("python", "-m", "benchmarks.resolving", *session.posargs)


@nox.session(default=False)
def heavy(session: nox.Session) -> None:
    """Build real extensions that take minutes in the test image, and print JSON.

    This needs root, and takes half an hour. Arguments after -- choose builds, such as
    ``--only causal-conv1d``. Results: docs/howto/heavy-builds.md.
    """
    session.install("-q", "-e", ".[test]")
    session.run("python", "-m", "benchmarks.heavy", *session.posargs)


@nox.session(default=False)
def overhead(session: nox.Session) -> None:
    """Time build-wheels against a bare pip wheel in the test image, and print JSON.

    This needs root, and takes 15 minutes.
    """
    session.install("-q", "-e", ".[test]")
    session.run("python", "-m", "benchmarks.building", *session.posargs)
