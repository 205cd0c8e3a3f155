"""The user's own configuration of pip, as it must reach a pip that runs inside a base image.

pip reads files and variables (pip's documentation, "Configuration": files in the order global, user,
site, then ``PIP_CONFIG_FILE``; sections ``[global]`` and that of the command; variables over files).
Inside an image these files are not there, or they are the image's own. So they are read here, and what
says where packages come from is passed on as variables; local directories and files that it names are
bound in. What says where packages go, or how they are built, is not passed on.
"""

from __future__ import annotations

import configparser
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from builders.containers.runtime import Bind
from builders.process import clean_environment
from resolver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_PASSED = (
    "index-url", "extra-index-url", "no-index", "find-links", "trusted-host", "proxy", "cert", "client-cert",
    "keyring-provider", "timeout", "default-timeout", "retries", "resume-retries", "constraint", "pre",
    "prefer-binary", "use-feature", "use-deprecated",
)  # fmt: skip
_EVERYONES = Path("/etc/pip.conf")
_SECTIONS = ("global", "install", "download")  # later ones win
_URLS = {"index-url", "extra-index-url"}
_PLACES = {"find-links", "cert", "client-cert", "constraint"} | _URLS


@dataclass(frozen=True, slots=True)
class PipSettings:
    """What a pip in another place is told."""

    env: Mapping[str, str]
    binds: tuple[Bind, ...]


def pip_settings(mirrored: Callable[[str], str] = str, *, default_index: str = "") -> PipSettings:
    """Read the user's configuration of pip.

    Parameters
    ----------
    mirrored
        Gives the URL to use instead of one.
    default_index
        The index pip uses when none is configured; it is named when it has a mirror.

    Raises
    ------
    UsageError
        One of pip's files cannot be read.
    """
    values = _from_files() | _from_environment()
    if default_index and "index-url" not in values and mirrored(default_index) != default_index:
        values["index-url"] = default_index
    binds: dict[Path, Bind] = {}
    env = {}
    for name, text in values.items():
        words = [mirrored(word) if name in _URLS else word for word in text.split()]
        if name in _PLACES:
            words = [_absolute(word) for word in words]
            binds |= {path: Bind(path) for path in map(_bound, words) if path is not None}
        env[_variable(name)] = " ".join(words)
    netrc = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    if netrc.is_file():
        env["NETRC"] = str(netrc)
        binds[netrc] = Bind(netrc)
    own = {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    return PipSettings(env | own, tuple(binds.values()))


def pip_environment() -> dict[str, str]:
    """Give the environment a pip of this machine runs in: cleaned, but with the user's own configuration."""
    own = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    # These would change what is installed or where, rather than where it comes from.
    for name in (
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_USER",
        "PIP_ROOT",
        "PIP_REQUIRE_VIRTUALENV",
        "PIP_PYTHON",
    ):
        own.pop(name, None)
    return clean_environment(own | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"})


def reachable(url: str, *, timeout: float = 5.0) -> bool:
    """Tell whether a web server answers at all; the time limit is in seconds.

    pip would try an unreachable index again and again for every project it looks up.
    """
    import requests

    if not url.startswith(("http://", "https://")):
        return True
    try:
        requests.head(url, timeout=timeout, allow_redirects=True)
    except requests.RequestException:
        return False
    return True


def linked_directories() -> list[Path]:
    """Give the directories of this machine in which pip is configured to look for files (``find-links``)."""
    words = (_from_files() | _from_environment()).get("find-links", "").split()
    paths = (_bound(_absolute(word)) for word in words)
    return [path for path in paths if path is not None and path.is_dir()]


def local_directory(url: str) -> Bind | None:
    """Give what has to be bound in for an index or a list of links to be seen; None for a server's."""
    path = _bound(_absolute(url))
    return Bind(path) if path is not None else None


def _variable(name: str) -> str:
    return f"PIP_{name.upper().replace('-', '_')}"


def _from_environment() -> dict[str, str]:
    found = {name: os.environ.get(_variable(name), "") for name in _PASSED}
    return {name: text for name, text in found.items() if text}


def _from_files() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in _files():
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            reason = str(error).splitlines()[0]
            msg = f"pip's configuration {path} cannot be read: {reason}"
            raise UsageError(msg, hint="`pip config debug` lists the files that pip reads.") from None
        for section in filter(parser.has_section, _SECTIONS):
            for key, text in parser.items(section):
                name = key.lower().replace("_", "-").removeprefix("--")
                if name in _PASSED:
                    found[name] = text
    return found


def _files() -> Iterator[Path]:
    """Give pip's files that exist, later ones winning."""
    named = os.environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return
    home = Path.home()
    everyone = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    paths = [Path(one, "pip", "pip.conf") for one in everyone.split(os.pathsep) if one]
    paths += [_EVERYONES, home / ".pip" / "pip.conf"]
    paths.append(Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config", "pip", "pip.conf"))
    paths += [Path(one, "pip.conf") for one in [os.environ.get("VIRTUAL_ENV", "")] if one]
    paths += [Path(named)] if named else []
    yield from (path for path in paths if path.is_file())


def _absolute(word: str) -> str:
    return word if "://" in word else str(Path(word).expanduser().absolute())


def _bound(word: str) -> Path | None:
    """Give the directory or file of this machine that a word of the configuration speaks of."""
    url = urlsplit(word)
    if "://" in word and url.scheme != "file":
        return None
    path = Path(unquote(url.path) if url.scheme == "file" else word)
    if path.name == "simple" and path.is_dir():
        path = path.parent  # an index's pages may link to files beside them
    return path if path.exists() else None
