"""Find the Python that wheels are built for, and its pip, in the runtime where they will be used.

If a base image lacks the required Python, one of this machine is bound into the image at the same path: one
that the user names (a prefix, or a virtual environment, which stands for the Python it was created from), or
one that uv manages. The user's pip settings about where packages come from are passed on as variables, and
local files that they name are bound into the image; those about where packages are installed or how they are
built are not.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace

from builders.containers.runtime import Bind, View, run_in
from builders.environments import interpreter
from builders.machine import host
from builders.network.urls import pip_configuration, variable_of
from builders.storage.files import cache_root
from builders.storage.io_errors import explain_cache_errors
from builders.storage.lease import TemporaryDirectory, digest, ensure_cached
from resolver.errors import CommandError, EnvironmentLacksError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from builders.containers.runtime import Runtime


QUIET = {"PYTHONPATH": "", "PYTHONHOME": "", "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
"""Variables for every target Python: an image may set its own PYTHONPATH. Empty means unset."""

_ANSWER = "matrix-answer "
_PROBE = f"{Path(interpreter.__file__).read_text()}\nimport json; print({_ANSWER!r} + json.dumps(facts()))"
# $1 is the minor version. PATH comes first, because the authors of the image chose it.
_SEARCH = f"""
for p in "$(command -v "python$1")" /opt/python*/bin/"python$1" /opt/*/bin/"python$1" \
    /opt/*/envs/*/bin/"python$1" /usr/local/bin/"python$1" /usr/bin/"python$1"; do
  if [ -x "$p" ]; then echo "{_ANSWER}$p"; fi
done
"""
_SYSTEM = {Path(name) for name in ("/", "/usr", "/usr/local", "/bin", "/opt", "/lib", "/etc")}
_OLD_GLIBC = re.compile(r"version `(GLIBC_[0-9.]+)' not found")
_NO_LIBRARY = re.compile(r"error while loading shared libraries: ([^:]+):")

_URLS = {"index-url", "extra-index-url"}
_PATHS = {"find-links", "cert", "client-cert", "constraint"} | _URLS


class TargetPython(msgspec.Struct, frozen=True):
    """An interpreter that ran in a runtime."""

    path: Path
    """Path in the runtime; never that of a virtual environment."""
    prefix: Path
    version: str
    """The full version, such as ``3.11.7``."""
    abi: str
    """CPython's ABI tag, such as ``cp311``."""
    glibc: str
    """glibc version of the runtime; empty if it has another C library."""
    machine: str
    build: str
    """Its ``sys.version``: version, date and compiler."""
    where: str
    """``host``, ``image``, ``given`` or ``uv``."""
    binds: tuple[Bind, ...] = ()
    """The files of this machine that it needs."""
    linkers: Mapping[str, str] = {}
    """The commands with which its extensions are linked: sysconfig's ``LDSHARED`` and ``LDCXXSHARED``."""
    headers: bool = True
    venv: bool = True

    @property
    def minor(self) -> str:
        """The major and minor version, such as ``3.11``."""
        return ".".join(self.version.split(".")[:2])

    @property
    def identity(self) -> dict[str, str]:
        """The properties that determine extensions built with it; a patch release changes none."""
        return {"python": self.abi, "linkers": digest(dict(self.linkers))[:12]}

    @property
    def library(self) -> Path:
        """Path of site-packages below the prefix of an environment."""
        return Path("lib", f"python{self.minor}{'t' if self.abi.endswith('t') else ''}", "site-packages")

    def key(self, runtime: Runtime) -> str:
        """Return a digest of interpreter and runtime, for everything that depends on them."""
        image = runtime.image.sha256 if runtime.image else "host"
        return digest(image, str(self.path), self.build, self.glibc, self.machine)


def find_python(
    runtime: Runtime, version: str, *, given: Path | None = None, image_pythons: Sequence[Path] = ()
) -> TargetPython:
    """Find an interpreter of a minor version that runs in a runtime and can create environments.

    `given` is a prefix, a virtual environment or an interpreter that the user names; no other is tried.
    Without `image_pythons`, the image is searched.
    """
    reasons = []
    for path, where, binds in _candidates(runtime, version, given, image_pythons):
        candidate = _try(runtime, path, version, where, binds)
        if isinstance(candidate, TargetPython):
            return candidate
        reasons.append(f"{path}: {candidate}")
    place = f"the base image {runtime.image.name}" if runtime.image else "this machine"
    listed = "".join(f"\n  - {reason}" for reason in dict.fromkeys(reasons))
    msg = f"Python {version} is required, but {place} has no usable Python {version}.{listed}"
    hint = f"Install it with `uv python install {version}` or conda, or resolve for another --python."
    raise EnvironmentLacksError(msg, hint=hint)


def python_view(python: TargetPython, *, binds: Sequence[Bind] = (), network: bool = False) -> View:
    """Return the view of a target Python: itself, the binds, and no Python settings of the image."""
    return View(env=QUIET, binds=(*python.binds, *binds), network=network)


def _candidates(
    runtime: Runtime, version: str, given: Path | None, image_pythons: Sequence[Path]
) -> Iterator[tuple[Path, str, tuple[Bind, ...]]]:
    """Yield interpreters to try: path, origin, and the files that must be bound into the image."""
    if given is not None:
        yield _given(runtime, version, given)
        return
    if runtime.image is None:
        with suppress(EnvironmentLacksError):
            yield host.find_python(version), "host", ()
    else:
        for path in image_pythons or _search_image(runtime, version):
            yield path, "image", ()
    for prefix in _uv_prefixes(version):
        yield prefix / "bin" / f"python{version}", "uv", (Bind(prefix),)


def _given(runtime: Runtime, version: str, given: Path) -> tuple[Path, str, tuple[Bind, ...]]:
    for inside in (given / "bin" / f"python{version}", given):
        if runtime.image is not None and _run(runtime, [str(inside), "-c", _PROBE], View(env=QUIET))[0]:
            return inside, "image", ()
    given = given.expanduser().absolute()
    if not given.exists():
        where = " on this machine or in the image" if runtime.image else ""
        msg = f"{given} does not exist{where}."
        raise UsageError(msg, hint="Name the prefix of a Python: a directory that contains bin/.")
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
        msg = f"{python} belongs to this machine's system. {prefix} cannot replace {prefix} in the image."
        raise EnvironmentLacksError(
            msg, hint=f"Install a Python in another directory with `uv python install {version}`."
        )
    return python, "given", (Bind(prefix),)


def _settings(path: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in path.read_text(encoding="utf-8").splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _search_image(runtime: Runtime, version: str) -> list[Path]:
    succeeded, lines = _run(runtime, ["/bin/sh", "-c", _SEARCH, "sh", version], View())
    return [Path(line) for line in dict.fromkeys(lines)] if succeeded else []


def _uv_prefixes(version: str) -> list[Path]:
    """Return the prefixes of uv's Pythons, newest first. Source: uv's documentation, "Storage"."""
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    root = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or Path(data, "uv", "python"))
    releases = {
        prefix.resolve(): [int(part) for part in re.findall(r"\d+", prefix.name.split("-")[1])]
        for prefix in root.glob(f"cpython-{version}.*-linux-{platform.machine()}-gnu")
        if "+" not in prefix.name and (prefix / "bin" / f"python{version}").exists()
    }
    return sorted(releases, key=lambda prefix: releases[prefix], reverse=True)


def _try(
    runtime: Runtime, path: Path, version: str, where: str, binds: tuple[Bind, ...]
) -> TargetPython | str:
    """Run an interpreter; return it, or the reason why it cannot be used."""
    if runtime.image is None and str(path) == getattr(sys, "_base_executable", ""):
        python = this_python(where)
    else:
        succeeded, lines = _run(runtime, [str(path), "-c", _PROBE], View(env=QUIET, binds=binds))
        if not succeeded:
            return _failure_reason(lines)
        try:
            python = _converted({**json.loads(lines[0]), "where": where})
        except (IndexError, ValueError, TypeError):
            return "it does not report its version"
    missing = [] if python.headers else ["the headers (Python.h)"]
    missing += [] if python.venv else ["the venv module with pip (ensurepip)"]
    if not f"{python.version}.".startswith(f"{version}."):
        return f"it is Python {python.version}"
    if missing:
        return f"it is missing {' and '.join(missing)}"
    if where == "host" and python.prefix not in _SYSTEM:
        binds = (Bind(python.prefix),)  # it may be in a directory that builds do not see
    return replace(python, binds=binds)


def this_python(where: str = "host") -> TargetPython:
    """Return the Python that runs this program, without starting it."""
    return _converted({**interpreter.facts(), "where": where})


def _converted(reply: Mapping[str, Any]) -> TargetPython:
    return msgspec.convert(reply, TargetPython, dec_hook=lambda kind, text: kind(text))


def _failure_reason(lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    if old := _OLD_GLIBC.search(text):
        return f"it needs {old[1]}, but the glibc of the base image is older"
    if missing := _NO_LIBRARY.search(text):
        return f"it needs {missing[1]}, which is missing"
    return f"it does not run: {lines[-1] if lines else 'no output'}"


def _run(runtime: Runtime, command: Sequence[str], view: View) -> tuple[bool, list[str]]:
    """Run a short program; return whether it succeeded, and its output, or the last lines after a failure."""
    with TemporaryDirectory() as directory:
        log = directory.root / "log"
        try:
            run_in(runtime, command, view, what="Asking", log=log)
        except CommandError as error:
            return False, list(error.lines)
        lines = log.read_text(errors="replace").splitlines()
    return True, [line.removeprefix(_ANSWER) for line in lines if line.startswith(_ANSWER)]


def ensure_pip(runtime: Runtime, python: TargetPython, *, log: Path) -> Path:
    """Return the directory of a pip that any Python of that version can run (``python DIRECTORY install``).

    pip itself does this for its option ``--python`` (``pip/_internal/cli/main_parser.py``).
    """
    root = cache_root() / "tools" / python.key(runtime)

    def build() -> None:
        view = python_view(python, binds=[Bind(root, writable=True)])
        # Two commands, because venv hides the output of ensurepip, such as the error of a full disk.
        commands = [
            [str(python.path), "-m", "venv", "--without-pip", str(root)],
            [str(root / "bin" / "python"), "-m", "ensurepip", "--upgrade", "--default-pip"],
        ]
        try:
            with explain_cache_errors():
                for command in commands:
                    run_in(runtime, command, view, what=f"Installing pip with {python.path}", log=log)
        except CommandError as error:
            hint = f"Check that this command works: `{python.path} -m ensurepip --version`"
            raise EnvironmentLacksError(error.message, hint=hint) from None

    ensure_cached(root, build)
    return root / python.library / "pip"


def pip_settings(
    mirrored: Callable[[str], str] = str, *, default_index: str = ""
) -> tuple[Mapping[str, str], tuple[Bind, ...]]:
    """Return the user's pip configuration as variables and binds, for a pip that runs in an image.

    `mirrored` maps a URL to its mirror; `default_index` is set explicitly if it has one.
    """
    values = pip_configuration()
    if default_index and "index-url" not in values and mirrored(default_index) != default_index:
        values["index-url"] = default_index
    binds: dict[Path, Bind] = {}
    env = {}
    for name, text in values.items():
        words = [mirrored(word) if name in _URLS else word for word in text.split()]
        if name in _PATHS:
            words = [_absolute(word) for word in words]
            binds |= {path: Bind(path) for path in map(_local_path, words) if path is not None}
        env[variable_of(name)] = " ".join(words)
    netrc = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    if netrc.is_file():
        env["NETRC"] = str(netrc)
        binds[netrc] = Bind(netrc)
    own = {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    return env | own, tuple(binds.values())


def is_reachable(url: str) -> bool:
    """Return whether a web server responds within 5 s; pip would retry an index for every project."""
    import requests

    if not url.startswith(("http://", "https://")):
        return True
    try:
        requests.head(url, timeout=5.0, allow_redirects=True)
    except requests.RequestException:
        return False
    return True


def find_links_directories() -> list[Path]:
    """Return the local directories that pip is configured to search (``find-links``)."""
    words = pip_configuration().get("find-links", "").split()
    paths = (_local_path(_absolute(word)) for word in words)
    return [path for path in paths if path is not None and path.is_dir()]


def local_bind(url: str) -> Bind | None:
    """Return the bind that makes a local index or list of links visible; None for the URL of a server."""
    path = _local_path(_absolute(url))
    return Bind(path) if path is not None else None


def _absolute(word: str) -> str:
    return word if "://" in word else str(Path(word).expanduser().absolute())


def _local_path(word: str) -> Path | None:
    url = urlsplit(word)
    if "://" in word and url.scheme != "file":
        return None
    path = Path(unquote(url.path) if url.scheme == "file" else word)
    if path.name == "simple" and path.is_dir():
        path = path.parent  # pages of an index may link to files next to its directory
    return path if path.exists() else None
