# /// script
# requires-python = ">=3.11"
# dependencies = ["nox>=2024.10"]
# ///
"""What can be done with a clone: ``pipx run nox -s demo``, ``tests``, ``lint``."""

import nox

nox.options.sessions = ["lint", "tests"]
nox.options.reuse_existing_virtualenvs = True


@nox.session
def demo(session: nox.Session) -> None:
    """Resolve, build the real DeepSpeed op, publish, install, and compare it with torch."""
    session.install("-q", ".")
    session.run("python", "examples/demo.py")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types and the direction of imports."""
    session.install("-q", "-e", ".[lint]")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")
    session.run("lint-imports")
    session.run("python", "docs/generate.py", "--check")


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests, the end-to-end build included. Arguments after -- go to pytest."""
    session.install("-q", "-e", ".[test]")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Write the parts of the docs that are made from the catalog; with -- --check only compare."""
    session.install("-q", "-e", ".")
    session.run("python", "docs/generate.py", *session.posargs)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Time commands, index, environments, and the search against other resolvers; prints JSON. Half an hour.

    Arguments after -- go to the search, such as ``--sizes 12x12 --timeout 10``.
    """
    session.install("-q", ".", "clingo>=5.7", "nab-resolver>=0.0.23", "pip>=24", "uv>=0.8")
    session.run("python", "benchmarks/commands.py")
    session.run("python", "-m", "benchmarks.indexing")
    session.run("python", "-m", "benchmarks.audit")
    session.run("python", "-m", "benchmarks.audit", "--packed")
    session.run("python", "benchmarks/environments.py")
    session.run("python", "-m", "benchmarks.resolving", *session.posargs)


@nox.session(default=False)
def heavy(session: nox.Session) -> None:
    """Build real extensions that take minutes in the rig's image, by hand; prints JSON. Root, half an hour.

    Arguments after -- choose, such as ``--only causal-conv1d``. Results: docs/heavy-builds.md.
    """
    session.install("-q", "-e", ".[test]")
    session.run("python", "-m", "benchmarks.heavy", *session.posargs)


@nox.session(default=False)
def overhead(session: nox.Session) -> None:
    """Time build-wheels against a bare pip wheel in the rig's image; prints JSON. Root, 15 minutes."""
    session.install("-q", "-e", ".[test]")
    session.run("python", "-m", "benchmarks.building", *session.posargs)
