"""pip for a target Python, and the user's pip configuration.

A base image does not contain pip's configuration files, or contains its own. So the user's files are read
here. Settings that define where packages come from are passed on as variables, and local directories and
files that they name are bound into the image. Settings that define where packages are installed or how they
are built are not passed on.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from builders.containers.runtime import Bind, run_in
from builders.environments.cached import ensure_cached
from builders.environments.python import python_view
from builders.machine.process import clean_environment
from builders.network.urls import pip_configuration, variable_of
from builders.storage.files import cache_root
from builders.storage.io_errors import explain_cache_errors
from resolver.errors import CommandError, EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from builders.containers.runtime import Runtime
    from builders.environments.python import TargetPython

_NOT_PASSED_ON = (
    "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV", "PIP_PYTHON",
)  # fmt: skip
"""Variables that change where or for which Python pip installs, rather than where packages come from."""
_URLS = {"index-url", "extra-index-url"}
_PATHS = {"find-links", "cert", "client-cert", "constraint"} | _URLS


def ensure_pip(runtime: Runtime, python: TargetPython, *, log: Path) -> Path:
    """Return the directory of a pip that any Python of that version can run.

    ensurepip installs it into a separate environment. ``python DIRECTORY install ...`` then runs pip
    for the environment of that python, as pip itself does for its option ``--python``
    (``pip/_internal/cli/main_parser.py``).
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
    """Read the user's pip configuration as variables and binds, for a pip that runs in an image.

    `mirrored` maps a URL to its mirror. `default_index` is what pip uses when none is configured; it is set
    explicitly if it has a mirror.
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


def pip_environment() -> dict[str, str]:
    """Return the variables for a pip that runs on this machine, with the user's pip configuration."""
    own = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    for name in _NOT_PASSED_ON:
        own.pop(name, None)
    return clean_environment(own | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}, network=True)


def is_reachable(url: str) -> bool:
    """Return whether a web server responds within five seconds; true for URLs of files.

    pip would retry an unreachable index for every project.
    """
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
    """Return the local file or directory that a word of the configuration names, if it exists."""
    url = urlsplit(word)
    if "://" in word and url.scheme != "file":
        return None
    path = Path(unquote(url.path) if url.scheme == "file" else word)
    if path.name == "simple" and path.is_dir():
        path = path.parent  # pages of an index may link to files next to its directory
    return path if path.exists() else None
