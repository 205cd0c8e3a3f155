"""Where packages and sources come from: pip's configuration, mirrors, URLs in messages, and failed requests.

pip reads configuration files and variables (pip's documentation, "Configuration": files in the order
global, user, site, then ``PIP_CONFIG_FILE``; sections ``[global]`` and that of the command; variables
take precedence over files).
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

import msgspec

from resolver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


OFFLINE_HINT = (
    "Run `matrix farm fetch` on a machine with network access, or this command once without --offline."
)
NETWORK_HINT = "Check the network. On a compute node, run `matrix farm fetch` on a login node first."
_LOGIN = r"//[^/]*@"
_URL = r"(https?|ssh|git|file)://[^\s-]\S*"

_PASSED_ON = (
    "index-url", "extra-index-url", "no-index", "find-links", "trusted-host", "proxy", "cert", "client-cert",
    "keyring-provider", "timeout", "default-timeout", "retries", "resume-retries", "constraint", "pre",
    "prefer-binary", "use-feature", "use-deprecated",
)  # fmt: skip
_SYSTEM_FILE = Path("/etc/pip.conf")
_SECTIONS = ("global", "install", "download")  # later ones take precedence
_NO = {"", "0", "false", "f", "no", "n", "off"}


class RequestError(Exception):
    """A request failed; the message is a clause. `status` is that of the reply, 0 for none."""

    def __init__(self, reason: str, status: int = 0, *, is_slow: bool = False) -> None:
        super().__init__(reason)
        self.status = status
        self.is_slow = is_slow


class TooLargeReplyError(RequestError):
    """A reply is larger than allowed."""


class PackageSources(msgspec.Struct, frozen=True):
    """URLs of package indexes, the default one first, and of directories and pages with links."""

    indexes: tuple[str, ...]
    find_links: tuple[str, ...]
    named: tuple[str, ...] = ()
    """Those that the user named to `matrix`, in order of preference; the others are from pip's settings."""

    @property
    def by_preference(self) -> tuple[str, ...]:
        """The indexes in order of preference, like uv: first those that are named, the default index last."""
        return tuple(dict.fromkeys([*self.named, *self.indexes[1:], *self.indexes[:1]]))

    @property
    def equal(self) -> tuple[str, ...]:
        """The indexes from pip's settings, of which all count, as in pip."""
        return tuple(url for url in self.by_preference if url not in self.named)


def package_sources(index_url: str = "", extra_index_urls: Sequence[str] = ()) -> PackageSources:
    """Return the indexes and find-links locations that pip would use with these options.

    `index_url` replaces pip's ``index-url``; `extra_index_urls` come before pip's ``extra-index-url``.
    """
    settings = pip_configuration()
    if index_url or settings.get("no-index", "").lower() in _NO:
        extra = (*extra_index_urls, *settings.get("extra-index-url", "").split())
        indexes = [index_url or configured_index(settings), *extra]
    else:
        indexes = [*extra_index_urls[-1:], *extra_index_urls[:-1]]
    links = settings.get("find-links", "").split()
    named = [*extra_index_urls, *([index_url] if index_url else [])]
    return PackageSources(*(tuple(dict.fromkeys(map(_url, words))) for words in (indexes, links, named)))


def configured_index(settings: Mapping[str, str]) -> str:
    """Return the package index of a pip configuration, or the public index."""
    if "index-url" in settings:
        return settings["index-url"]
    return public_index()


@cache
def public_index() -> str:
    """Return the index that pip uses if none is configured: that of package URLs of the type ``pypi``."""
    from packageurl.contrib.purl2url import get_repo_url

    return urljoin(str(get_repo_url("pkg:pypi/pip")), "/simple/")  # type: ignore[no-untyped-call]


def pip_configuration() -> dict[str, str]:
    """Return the settings that define where packages come from."""
    own = {name: os.environ.get(variable_of(name), "").strip() for name in _PASSED_ON}
    return _read_files() | {name: text for name, text in own.items() if text}


def variable_of(name: str) -> str:
    """Return the environment variable for a setting of pip."""
    return f"PIP_{name.upper().replace('-', '_')}"


def _read_files() -> dict[str, str]:
    values: dict[str, str] = {}
    for path in _files():
        import configparser

        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            reason = str(error).splitlines()[0]
            msg = f"Cannot read pip's configuration {path}: {reason}"
            raise UsageError(msg, hint="`pip config debug` lists the files that pip reads.") from None
        for section in filter(parser.has_section, _SECTIONS):
            for key, text in parser.items(section):
                name = key.lower().replace("_", "-").removeprefix("--")
                if name in _PASSED_ON:
                    values[name] = text
    return values


def _files() -> Iterator[Path]:
    """Yield the configuration files that exist; later ones take precedence."""
    own_file = os.environ.get("PIP_CONFIG_FILE", "")
    if own_file == os.devnull:
        return
    home = Path.home()
    system = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    paths = [Path(folder, "pip", "pip.conf") for folder in system.split(os.pathsep) if folder]
    paths += [_SYSTEM_FILE, home / ".pip" / "pip.conf"]
    paths.append(Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config", "pip", "pip.conf"))
    if os.environ.get("VIRTUAL_ENV"):
        paths.append(Path(os.environ["VIRTUAL_ENV"], "pip.conf"))
    if own_file:
        paths.append(Path(own_file))
    yield from (path for path in paths if path.is_file())


def _url(word: str) -> str:
    return word if "://" in word else Path(word).expanduser().absolute().as_uri()


def mirrored(url: str, mirrors: Mapping[str, str]) -> str:
    """Return a URL with its longest prefix that has a mirror replaced.

    A prefix matches whole parts of a path: ``https://host`` does not match ``https://host.example``. The
    ending ``.git`` of a repository is optional.

    >>> mirrored("https://host/a/b", {"https://host/": "file:///m/", "https://host/a": "https://n"})
    'https://n/b'
    >>> mirrored("https://host.example/a", {"https://host": "file:///m"})
    'https://host.example/a'
    >>> mirrored("https://host/a.git", {"https://host/a": "file:///m/a"})
    'file:///m/a'
    >>> mirrored("https://host/%2e%2e/a", {"https://host/": "file:///m/"})
    'https://host/%2e%2e/a'
    """
    for prefix in sorted(mirrors, key=len, reverse=True):
        if not url.startswith(prefix):
            continue
        rest = url.removeprefix(prefix)
        if ".." in unquote(rest).split("/"):  # it would leave the mirror
            continue
        if prefix.endswith("/") or rest[:1] in {"", "/"}:
            return mirrors[prefix] + rest
        if rest == ".git":
            return mirrors[prefix]
    return url


def check_mirrors(mirrors: Mapping[str, str], *, where: str) -> None:
    """Check that both sides of every mirror are URLs, and that both or neither end with a slash."""
    for prefix, replacement in mirrors.items():
        for url in (prefix, replacement):
            if not re.fullmatch(_URL, url):
                msg = f"{where}, [mirrors]: {without_password(url)!r} is not a valid URL."
                raise UsageError(msg, hint="Write https://HOST/PATH/, ssh://HOST/PATH/ or file:///PATH/.")
        if prefix.endswith("/") != replacement.endswith("/"):
            shown = f"{without_password(prefix)!r} and {without_password(replacement)!r}"
            msg = f"{where}, [mirrors]: only one of {shown} ends with a slash."
            raise UsageError(msg, hint="End both with / or neither.")


def without_password(url: str) -> str:
    """Return a URL without its user name and password.

    >>> without_password("https://me:secret@host/simple/")
    'https://host/simple/'
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # a malformed host
        return re.sub(_LOGIN, "//", url)
    if parts.hostname and "@" in parts.netloc:
        return url.replace(parts.netloc, parts.netloc.rpartition("@")[2])
    return url


def git_commit(url: str) -> tuple[str, str] | None:
    """Return the URL of the repository and the commit in the direct reference of a lock; None for other URLs.

    >>> git_commit("git+https://host/name.git@0123#subdirectory=python")
    ('https://host/name.git', '0123')
    """
    if not url.startswith("git+"):
        return None
    repository, _, commit = url.partition("#")[0].removeprefix("git+").rpartition("@")
    return repository, commit


def local_path(url: str) -> Path | None:
    """Return the path of a ``file`` URL; None for other URLs."""
    if url[:5].lower() != "file:":
        return None
    try:
        path = unquote(urlsplit(url).path)
    except ValueError:  # a malformed host
        return None
    return None if "\0" in path else Path(path)


def is_flat_listing(url: str) -> bool:
    """Return whether a page of AMD only lists links to wheels, so that pip needs ``--find-links`` for it.

    Source: rocm.docs.amd.com, install-pytorch of the Radeon documentation, which names the files one by one.
    """
    return "repo.radeon.com/rocm/manylinux" in url


def is_tree(url: str, mirrors: Mapping[str, str]) -> bool:
    """Return whether a URL names a commit, or a directory on this machine."""
    path = local_path(mirrored(url, mirrors))
    return git_commit(url) is not None or (path is not None and path.is_dir())


def is_of_public_index(url: str) -> bool:
    """Return whether an index is PyPI, or another URL of its host."""
    return str(urlsplit(public_index()).hostname) in url
