"""A bare copy of a git repository in the cache, which holds the commits that were asked for.

Each commit is fetched alone (depth 1), so that a copy holds the files of that commit and no history.
What a server must allow for that, a commit asked for by its hash, nearly all allow; of the others all
branches and tags are fetched.

Git sees nothing of the user's configuration or of variables such as ``GIT_DIR``: hooks, helpers and
filters have no say in what a source is. It never asks for a password. Proxies and certificates come
from the usual variables, logins for https from ``~/.netrc``, for ssh from the agent.

Source: gitprotocol-v2(5), git-fetch(1), gitattributes(5).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builders.cache import cache_root
from builders.files import TEMPORARY_PREFIX, exclusive_lock, write_atomic
from builders.io_errors import explain_cache_errors
from builders.process import bytes_of, clean_environment, run
from builders.sources.failures import shown
from builders.sources.mirrors import mirrored
from builders.sources.submodules import parse_gitmodules
from resolver.errors import CommandError, EnvironmentLacksError, MatrixError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_CONFIGURATION = """\
# Written by matrix: all the configuration that its git sees.
[core]
\thooksPath = /dev/null
\tfsmonitor = false
[safe]
\tdirectory = *
[credential]
\thelper =
[gc]
\tauto = 0
[fetch]
\tunpackLimit = 1
[http]
\tlowSpeedLimit = 1000
\tlowSpeedTime = 60
[tar]
\tumask = 0022
"""
# A mirror on disk belongs to somebody else more often than not, hence safe.directory; nothing in it
# is run. Every file counts on a parallel file system, hence unpackLimit.
_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding -export-ignore -export-subst\n"
"""Files as they were committed, whatever a ``.gitattributes`` would make of them."""

_QUIETLY = ("--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-maintenance")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REFUSED = re.compile(r"not our ref|unadvertised object|shallow capabilities|dumb http|find remote ref")
"""What a server says that does not give a commit by its hash; it may also say that it hangs up."""
_NO_NETWORK = re.compile(
    r"could not resolve|failed to connect|couldn't connect|connection (refused|reset|timed out)|timed out"
    r"|network is unreachable|no route to host|temporary failure|unable to look up|name or service not known"
    r"|SSL[ _](certificate|connect|peer|error)|certificate (verif|problem)|from proxy|early EOF"
    r"|returned error: 5\d\d|operation too slow|hung up|transfer closed|host key verification",
    re.IGNORECASE,
)
_NOT_THERE = re.compile(
    r"not found|does not exist|no such file|does not appear to be a git repository|could not read Username"
    r"|could not read Password|authentication failed|permission denied|returned error: 4\d\d|not a git",
    re.IGNORECASE,
)
_FULL = re.compile(
    r"no space left|disk quota|file too large|read-only file system|unable to write|write error"
    r"|\A(fatal: )?fetch-pack: invalid index-pack output\Z",
    re.IGNORECASE,
)
"""The last one alone means that what writes the files was stopped without a word, as by a limit."""
_CACHE_HINT = "Set XDG_CACHE_HOME"
_FILE_TOO_LARGE = -25  # SIGXFSZ


@dataclass(frozen=True, slots=True)
class Repository:
    """The copy of a repository in the cache.

    Parameters
    ----------
    url
        Its address as the catalog or a ``.gitmodules`` says it.
    """

    url: str

    @property
    def path(self) -> Path:
        """Where the copy is."""
        name = re.sub(r"[^\w.-]", "", self.url.rstrip("/").rpartition("/")[2]).removesuffix(".git")
        return cache_root() / "git" / f"{name}-{hashlib.sha256(self.url.encode()).hexdigest()[:16]}.git"

    @property
    def log(self) -> Path:
        """Where git's output goes."""
        return self.path.with_suffix(".log")

    def fetch(self, commit: str, mirrors: Mapping[str, str]) -> bool:
        """See that the copy holds a commit with all its files.

        Parameters
        ----------
        commit
            All 40 digits of it.
        mirrors
            URL prefix to what is asked instead.

        Returns
        -------
        bool
            Whether it had to be fetched.

        Raises
        ------
        SourceError
            There is no such repository or commit, or it may not be read.
        EnvironmentLacksError
            There is no git or no network, or the cache cannot be written.
        """
        if not _COMMIT.fullmatch(commit):
            msg = f"{shown(self.url)}: {commit!r} is not a whole commit, so it pins nothing."
            raise SourceError(msg, hint="Write all 40 digits into the release's row, and resolve again.")
        with explain_cache_errors(), exclusive_lock(self.path.with_suffix(".lock")):
            if self._has(commit):
                return False
            self._prepare()
            address = mirrored(self.url, mirrors)
            try:
                self._git(["fetch", *_QUIETLY, "--depth=1", "origin", f"{commit}:{_ref(commit)}"], address)
            except CommandError as error:
                failure = _failure(error, address)
                if failure is not None:
                    raise failure from None
                self._fetch_all(commit, address)
            return True

    def _has(self, commit: str) -> bool:
        # The reference is made when git has seen that everything below it is there.
        return self._ask("rev-parse", "--verify", "--quiet", f"{_ref(commit)}^{{commit}}") is not None

    def _prepare(self) -> None:
        """Make the copy if there is none, and take away what a kill left in it."""
        self.log.unlink(missing_ok=True)
        program()
        if not (self.path / "HEAD").exists():
            command = ["git", "init", "--quiet", "--bare", "--template=", str(self.path)]
            run(command, what="Making a git repository", log=self.log, env=environment())
        for left in [*self.path.rglob("*.lock"), *(self.path / "objects").glob("**/tmp_*")]:
            with suppress(OSError):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        (self.path / "info").mkdir(exist_ok=True)
        write_atomic(self.path / "info" / "attributes", _ATTRIBUTES)

    def _fetch_all(self, commit: str, address: str) -> None:
        """Fetch all branches and tags, for a server that does not give a commit by its hash."""
        whole = ["--unshallow"] if (self.path / "shallow").exists() else []
        command = ["fetch", *_QUIETLY, *whole, "origin", "+refs/heads/*:refs/all/heads/*"]
        try:
            self._git([*command, "+refs/tags/*:refs/all/tags/*"], address)
        except CommandError as error:
            failure = _failure(error, address)
            if failure is None:
                failure = SourceError(_without_login(error.message), hint="Is it a git repository?")
            raise failure from None
        if self._ask("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}") is None:
            msg = f"{shown(address)} has no commit {commit}, on no branch and under no tag."
            hint = "It may have been removed there; a fork or a mirror may still have it."
            raise SourceError(msg, hint=hint)
        self._git(["update-ref", _ref(commit), commit])

    def listing(self, commit: str) -> bytes:
        """Give what ``git ls-tree -r -z`` says of a commit."""
        return self._must("ls-tree", "-r", "-z", "--full-tree", commit)

    def commit_object(self, commit: str) -> bytes:
        """Give a commit as git keeps it."""
        return self._must("cat-file", "commit", commit)

    def submodules(self, commit: str) -> dict[str, str]:
        """Give path and URL of every submodule that ``.gitmodules`` names."""
        return parse_gitmodules(self._ask("config", "--blob", f"{commit}:.gitmodules", "--list", "-z"))

    @contextmanager
    def tar(self, commit: str) -> Iterator[Path]:
        """Give the files of a commit as a tar archive, which is removed at the end."""
        target = self.path.with_name(f"{TEMPORARY_PREFIX}{self.path.stem}.tar")
        with exclusive_lock(self.path.with_suffix(".lock")):
            try:
                self._git(["archive", "--format=tar", f"--output={target}", commit])
                yield target
            except CommandError as error:
                raise _failure(error, self.url) or self._damaged() from None
            finally:
                target.unlink(missing_ok=True)

    def _must(self, *arguments: str) -> bytes:
        found = self._ask(*arguments)
        if found is None:
            raise self._damaged()
        return found

    def _damaged(self) -> SourceError:
        msg = f"The copy of {shown(self.url)} in the cache is damaged."
        return SourceError(msg, hint=f"Remove {self.path} to fetch it again.")

    def _ask(self, *arguments: str) -> bytes | None:
        return bytes_of(["git", f"--git-dir={self.path}", *arguments], env=environment())

    def _git(self, arguments: list[str], address: str = "") -> None:
        command = ["git", f"--git-dir={self.path}", *arguments]
        run(command, what=f"git {arguments[0]}", log=self.log, env=environment(address))


def _ref(commit: str) -> str:
    return f"refs/matrix/{commit}"


def program() -> str:
    """Give the path of git.

    Raises
    ------
    EnvironmentLacksError
        There is none.
    """
    found = shutil.which("git")
    if found is None:
        msg = "git is not installed, and a source is in a git repository."
        raise EnvironmentLacksError(msg, hint="Install it (Debian: apt-get install git), or load its module.")
    return found


def environment(address: str = "") -> dict[str, str]:
    """Give all that git sees of the environment.

    Parameters
    ----------
    address
        What the remote ``origin`` stands for. It is not given as an argument, which everybody on the
        machine could read, with a password if there is one.
    """
    configuration = cache_root() / "git" / "gitconfig"
    if not configuration.exists() or configuration.read_text() != _CONFIGURATION:
        write_atomic(configuration, _CONFIGURATION)
    own = {
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(configuration),
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "SSH_ASKPASS": "",
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
        "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_LFS_SKIP_SMUDGE": "1",
    }
    for name in ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        if os.environ.get(name):
            own["GIT_SSL_CAINFO"] = os.environ[name]
    if os.environ.get("SSH_AUTH_SOCK"):
        own["SSH_AUTH_SOCK"] = os.environ["SSH_AUTH_SOCK"]
    if address:
        own |= {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "remote.origin.url",
            "GIT_CONFIG_VALUE_0": address,
        }
    return clean_environment(own)


def _failure(error: CommandError, address: str) -> MatrixError | None:
    """Say what a failure of git means; None if another way of asking may help."""
    said = "\n".join(error.lines)
    log = f"\n  Log: {error.log}"
    if _REFUSED.search(said):
        return None
    if error.code == _FILE_TOO_LARGE or _FULL.search(said):
        msg = f"Cannot write to the cache: {error.lines[-1] if error.lines else 'a file grew too large'}."
        return EnvironmentLacksError(msg + log, hint=_CACHE_HINT)
    if _NO_NETWORK.search(said):
        msg = f"{shown(address)} could not be reached: {_telling(error.lines)}"
        hint = "Is there network here? On a compute node, fetch on a login node first."
        return EnvironmentLacksError(msg + log, hint=hint)
    if _NOT_THERE.search(said):
        msg = f"{shown(address)} is no repository that can be read here: {_telling(error.lines)}"
        return SourceError(msg + log, hint="It may have moved or need a login (~/.netrc, ssh agent).")
    return None


def _telling(lines: tuple[str, ...]) -> str:
    """Choose the line in which git says why."""
    fatal = [line for line in lines if line.startswith(("fatal:", "error:", "remote:"))]
    return _without_login((fatal or list(lines) or ["no reason given"])[0])


def _without_login(text: str) -> str:
    return re.sub(r"[^\s/'@]+:[^\s/@]*@", "", text)
