"""The Python that wheels are built for: found, and tried in the place where it will run.

A base image need not hold the Python that is wanted. Then one of this machine is bound in at the same
path: one that the user names (a conda prefix, or a virtual environment for the Python it was made from),
or one that uv manages.
"""

from __future__ import annotations

import json
import os
import platform
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from builders import host
from builders.containers.runtime import Bind, View, run_in
from builders.environments.kept import digest
from resolver.errors import CommandError, EnvironmentLacksError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builders.containers.runtime import Runtime

QUIET = {"PYTHONPATH": "", "PYTHONHOME": "", "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
"""What every target Python is told: an image may set a PYTHONPATH of its own. Empty means unset."""

_ANSWER = "matrix-answer "
_PROBE = f"""
import importlib.util as u, json, os, platform, sys, sysconfig
minor = "%d.%d" % sys.version_info[:2]
inside = sys.prefix != sys.base_prefix
base = os.path.join(sys.base_prefix, "bin", "python" + minor)
print({_ANSWER!r} + json.dumps({{
    "path": base if inside and os.path.exists(base) else sys.executable,
    "prefix": sys.base_prefix,
    "version": platform.python_version(),
    "build": sys.version,
    "abi": "cp" + minor.replace(".", "") + getattr(sys, "abiflags", ""),
    "glibc": "".join(platform.libc_ver()[1:]),
    "machine": platform.machine(),
    "headers": os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
    "venv": bool(u.find_spec("venv") and u.find_spec("ensurepip")),
}}))
"""
# $1 is the minor version. What is on PATH comes first: that is what the image's makers mean by it.
_LOOK = f"""
for p in "$(command -v "python$1")" /opt/python*/bin/"python$1" /opt/*/bin/"python$1" \
    /opt/*/envs/*/bin/"python$1" /usr/local/bin/"python$1" /usr/bin/"python$1"; do
  if [ -x "$p" ]; then echo "{_ANSWER}$p"; fi
done
"""
_SYSTEM = {Path(name) for name in ("/", "/usr", "/usr/local", "/bin", "/opt", "/lib", "/etc")}
_OLD_GLIBC = re.compile(r"version `(GLIBC_[0-9.]+)' not found")
_NO_LIBRARY = re.compile(r"error while loading shared libraries: ([^:]+):")


class _Said(msgspec.Struct, frozen=True):
    """What an interpreter says of itself."""

    path: str
    prefix: str
    version: str
    build: str
    abi: str
    glibc: str
    machine: str
    headers: bool
    venv: bool


@dataclass(frozen=True, slots=True)
class TargetPython:
    """An interpreter that ran in the place."""

    path: Path
    """As the place knows it; never that of a virtual environment."""
    prefix: Path
    version: str
    """Such as ``3.11.7``."""
    abi: str
    """CPython's ABI tag, such as ``cp311``."""
    glibc: str
    """Of the place; empty where it has another C library."""
    machine: str
    build: str
    """Its ``sys.version``: version, date and compiler."""
    where: str
    """``host``, ``image``, ``given`` or ``uv``."""
    binds: tuple[Bind, ...] = ()
    """What it needs of this machine."""

    @property
    def minor(self) -> str:
        """Such as ``3.11``."""
        return ".".join(self.version.split(".")[:2])

    @property
    def library(self) -> Path:
        """Where its packages are below the prefix of an environment."""
        return Path("lib", f"python{self.minor}{'t' if self.abi.endswith('t') else ''}", "site-packages")

    def key(self, runtime: Runtime) -> str:
        """Give a digest of interpreter and place, for what is made with it."""
        image = runtime.image.sha256 if runtime.image else "host"
        return digest(image, str(self.path), self.build, self.glibc, self.machine)


def find_python(
    runtime: Runtime, version: str, *, given: Path | None = None, image_pythons: Sequence[Path] = ()
) -> TargetPython:
    """Find an interpreter of a minor version that runs in a place and can make environments.

    Parameters
    ----------
    place
        Where it has to run.
    version
        Such as ``3.12``.
    given
        A prefix, a virtual environment or an interpreter that the user names: this one or none.
    image_pythons
        Interpreters that the image is known to hold; it is searched when there are none.

    Raises
    ------
    UsageError
        What the user named is no Python.
    EnvironmentLacksError
        None is there; the error says why each one that was found is of no use.
    """
    reasons = []
    for path, where, binds in _candidates(runtime, version, given, image_pythons):
        found = _try(runtime, path, version, where, binds)
        if isinstance(found, TargetPython):
            return found
        reasons.append(f"{path}: {found}")
    there = f"the base image {runtime.image.name}" if runtime.image else "this machine"
    listed = "".join(f"\n  - {reason}" for reason in dict.fromkeys(reasons))
    msg = f"Python {version} is needed to build for it, and {there} has none that can be used.{listed}"
    hint = f"Make one with `uv python install {version}` or conda, or resolve for another --python."
    raise EnvironmentLacksError(msg, hint=hint)


def python_view(python: TargetPython, *, binds: Sequence[Bind] = (), network: bool = False) -> View:
    """Give what a target Python sees: itself, what is named, and no settings of Python."""
    return View(env=QUIET, binds=(*python.binds, *binds), network=network)


def _candidates(
    runtime: Runtime, version: str, given: Path | None, image_pythons: Sequence[Path]
) -> Iterator[tuple[Path, str, tuple[Bind, ...]]]:
    """Give interpreters to try: path, where it is from, and what has to be bound in."""
    if given is not None:
        yield _given(runtime, version, given)
        return
    if runtime.image is None:
        with suppress(EnvironmentLacksError):
            yield host.find_python(version), "host", ()
    else:
        for path in image_pythons or _look(runtime, version):
            yield path, "image", ()
    for prefix in _managed(version):
        yield prefix / "bin" / f"python{version}", "uv", (Bind(prefix),)


def _given(runtime: Runtime, version: str, given: Path) -> tuple[Path, str, tuple[Bind, ...]]:
    for inside in (given / "bin" / f"python{version}", given):
        if runtime.image is not None and _ask(runtime, [str(inside), "-c", _PROBE], View(env=QUIET))[0]:
            return inside, "image", ()
    given = given.expanduser().absolute()
    if not given.exists():
        there = " on this machine or in the image" if runtime.image else ""
        msg = f"{given} does not exist{there}."
        raise UsageError(msg, hint="Name the prefix of a Python: a directory with bin/ in it.")
    prefix = given if given.is_dir() else given.parent.parent
    settings = prefix / "pyvenv.cfg"
    if settings.exists():  # PEP 405: home is the directory of the interpreter it was made from
        prefix = Path(_settings(settings).get("home", "")).resolve().parent
    prefix = prefix.resolve()
    python = prefix / "bin" / f"python{version}"
    if not python.exists():
        msg = f"{given} has no Python {version}: {python} does not exist."
        raise UsageError(msg, hint="Name the prefix of a Python of that version.")
    if runtime.image is not None and prefix in _SYSTEM:
        msg = f"{python} belongs to this machine's system; {prefix} cannot be bound over the image's own."
        raise EnvironmentLacksError(msg, hint=f"`uv python install {version}` makes one that can.")
    return python, "given", (Bind(prefix),)


def _settings(path: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in path.read_text(encoding="utf-8").splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _look(runtime: Runtime, version: str) -> list[Path]:
    """Give the interpreters of a minor version in an image."""
    answered, lines = _ask(runtime, ["/bin/sh", "-c", _LOOK, "sh", version], View())
    return [Path(line) for line in dict.fromkeys(lines)] if answered else []


def _managed(version: str) -> list[Path]:
    """Give the prefixes of uv's own Pythons, newest first.

    Source: uv's documentation, "Storage" (Python versions): ``$UV_PYTHON_INSTALL_DIR``, else
    ``uv/python`` below ``$XDG_DATA_HOME``; directories ``cpython-3.12.3-linux-x86_64-gnu``.
    """
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    root = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or Path(data, "uv", "python"))
    found = {
        one.resolve(): [int(part) for part in re.findall(r"\d+", one.name.split("-")[1])]
        for one in root.glob(f"cpython-{version}.*-linux-{platform.machine()}-gnu")
        if "+" not in one.name and (one / "bin" / f"python{version}").exists()
    }
    return sorted(found, key=lambda one: found[one], reverse=True)


def _try(
    runtime: Runtime, path: Path, version: str, where: str, binds: tuple[Bind, ...]
) -> TargetPython | str:
    """Run an interpreter in the place: give what it is, or why it is of no use."""
    answered, lines = _ask(runtime, [str(path), "-c", _PROBE], View(env=QUIET, binds=binds))
    if not answered:
        return _why(lines)
    try:
        said = msgspec.convert(json.loads(lines[0]), _Said)
    except (IndexError, ValueError):
        return "it does not say what it is"
    missing_tools = [] if said.headers else ["the headers (Python.h)"]
    missing_tools += [] if said.venv else ["the venv module with pip (ensurepip)"]
    if not f"{said.version}.".startswith(f"{version}."):
        return f"it is Python {said.version}"
    if missing_tools:
        return f"it lacks {' and '.join(missing_tools)}"
    return TargetPython(
        Path(said.path),
        Path(said.prefix),
        said.version,
        abi=said.abi,
        glibc=said.glibc,
        machine=said.machine,
        build=said.build,
        where=where,
        binds=binds,
    )


def _why(lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    if old := _OLD_GLIBC.search(text):
        return f"it needs {old[1]}, which the base image's older glibc does not have"
    if missing := _NO_LIBRARY.search(text):
        return f"it needs {missing[1]}, which is not there"
    return f"it does not run: {lines[-1] if lines else 'no word why'}"


def _ask(runtime: Runtime, command: Sequence[str], view: View) -> tuple[bool, list[str]]:
    """Run a short program: whether it ended well, and its answers, else what it said of its failure."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "log")
        try:
            run_in(runtime, command, view, what="Asking", log=log)
        except CommandError as error:
            return False, list(error.lines)
        lines = log.read_text(errors="replace").splitlines()
    return True, [line.removeprefix(_ANSWER) for line in lines if line.startswith(_ANSWER)]
