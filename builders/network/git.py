"""Sources in git: one bare repository per URL in the cache, and files checked out of it.

Each pinned commit is fetched alone (depth 1), so the cache has its files and no history. From servers that
do not serve a commit by its hash, all branches and tags are fetched. Submodules are fetched the same
way, at the commits that the outer tree names. git checks every object against its hash when it is
fetched; ``git fsck`` checks a cached repository again before it is used.

A checkout is written from the cached repositories directly (``git read-tree -u``). So it needs no network,
and the source has no ``.git``: Apex and setuptools-scm would put data from it into the wheel,
and flash-attn would try to fetch its submodules.

git does not read the user's configuration and never asks for a password. Proxies and certificates come
from the usual variables, logins for https from ``~/.netrc``, for ssh from the agent.

Everything that runs git raises `CommandError` if git fails, and `EnvironmentLacksError` if git or the network
is missing, or the cache or the directory to write is full or not writable.

Source: gitprotocol-v2(5), git-fetch(1), gitmodules(5), gitattributes(5).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import msgspec

from builders.machine.process import bytes_of, clean_environment, run
from builders.network.urls import NETWORK_HINT, OFFLINE_HINT, mirrored, without_password
from builders.storage.files import cache_root, is_shared, write_atomic
from builders.storage.io_errors import explain_cache_errors, explain_io_errors
from builders.storage.lease import exclusive_lock
from resolver.errors import CommandError, EnvironmentLacksError, MatrixError, SourceError
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from resolver.facts.schema import Git

ALL = ("",)
"""Selects all submodules, with their own submodules."""

_CONFIGURATION = """\
# Written by matrix: all configuration that its git reads.
[safe]
\tdirectory = *
[gc]
\tauto = 0
[maintenance]
\tauto = false
[fetch]
\tunpackLimit = 1
\tfsckObjects = true
[http]
\tlowSpeedLimit = 1000
\tlowSpeedTime = 60
"""
# A mirror on disk often belongs to another user, hence safe.directory; nothing in it is executed. Parallel
# file systems are slow with many small files, hence unpackLimit.
_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding\n"
"""Check out files as they were committed, whatever ``.gitattributes`` says."""

_FETCH = ("fetch", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REMOTE_REF = re.compile(r"^([0-9a-f]{40})\t(\S+)$", re.MULTILINE)
_SCP_URL = re.compile(r"([\w.]+@[\w.][\w.-]*):([^\s:-][^\s:]*)")
_PASSWORD = re.compile(r"[^\s/'@]+:[^\s/@]*@")
# Messages of git, in the C locale.
_NOT_BY_HASH = re.compile(r"not our ref|unadvertised object|shallow capabilities|dumb http|find remote ref")
"""Matches errors of servers that do not serve a commit by its hash."""
_UNREACHABLE = re.compile(
    r"could not resolve|failed to connect|couldn't connect|connection (refused|reset|timed out)|timed out"
    r"|network is unreachable|no route to host|temporary failure|unable to look up|name or service not known"
    r"|SSL[ _](certificate|connect|peer|error)|certificate (verif|problem)|from proxy|early EOF"
    r"|returned error: 5\d\d|operation too slow|hung up|transfer closed|host key verification",
    re.IGNORECASE,
)
_NOT_READABLE = re.compile(
    r"not found|does not exist|no such file|does not appear to be a git repository|could not read Username"
    r"|could not read Password|authentication failed|permission denied|returned error: 4\d\d|not a git"
    r"|transport '\w+' not allowed|blocked",
    re.IGNORECASE,
)
_INVALID_OBJECT = re.compile(r"error: object [0-9a-f]{40}: \w+: ")
"""Matches a report of `git fsck`, such as that on a directory with two entries of the same name."""
_NOT_CREATED = re.compile(r"unable to create (file|symlink)|invalid path")
_NOT_WRITTEN = re.compile(r"unable to write|write error|invalid index-pack output", re.IGNORECASE)
"""The last alternative appears if the program that writes the files was killed."""


class SourceTree(msgspec.Struct, frozen=True):
    """A repository at a commit, and the directory in the source that it fills."""

    path: str
    """Empty for the outer repository, else the path of the submodule."""
    repository: Repository
    commit: str


class CachedCommit(msgspec.Struct, frozen=True):
    """A pinned commit with its submodules, in the cache; `fetched` is whether the network was used."""

    trees: tuple[SourceTree, ...]
    """Outer repositories before their submodules."""
    fetched: bool

    @property
    def repository(self) -> Repository:
        """The outer repository."""
        return self.trees[0].repository

    @property
    def tree(self) -> str:
        """Git's hash of the files of the outer commit."""
        return self.repository.tree_of(self.trees[0].commit)

    @property
    def size(self) -> int:
        """Size of its repositories in the cache, in bytes."""
        folders = {tree.repository.path for tree in self.trees}
        return sum(file.stat().st_size for folder in folders for file in folder.rglob("*") if file.is_file())

    def large_files(self) -> list[str]:
        """Return the files of which the repository has only pointers to a Git LFS server."""
        return [
            _join(tree.path, file)
            for tree in self.trees
            for file in tree.repository.lfs_pointers(tree.commit)
        ]

    def checkout(self, directory: Path, log: Path) -> None:
        """Write all files into a new directory; raise `SourceError` if one cannot be written."""
        directory.mkdir(parents=True)
        for tree in self.trees:
            tree.repository.checkout(tree.commit, directory / tree.path, log)


def fetch_git(pin: Git, *, offline: bool = False, mirrors: Mapping[str, str] | None = None) -> CachedCommit:
    """Return a pinned commit with the submodules it selects, from the cache or from its server.

    `mirrors` map URL prefixes to their replacement, also for submodules. Raise `SourceError` if there is no
    such commit or submodule, or the cached repository is damaged.
    """
    trees: list[SourceTree] = []
    fetched = False
    pending: list[tuple[str, str, str, Sequence[str]]] = [
        ("", _normalize(pin.url), pin.commit, pin.submodules)
    ]
    while pending:
        path, url, commit, selection = pending.pop()
        repository = Repository(url)
        fetched |= repository.ensure(commit, mirrors or {}, offline=offline)
        trees.append(SourceTree(path, repository, commit))
        links = repository.submodule_commits(commit)
        where = f"{without_password(url)} at {commit}"
        selected = select_submodules(selection, links, where)
        urls = repository.submodule_urls(commit) if selected else {}
        for below, inner in selected.items():
            if below not in urls:
                msg = f"{where}: .gitmodules has no URL for the submodule {below}."
                raise SourceError(
                    msg, hint="Check the commit: git itself could not fetch the submodule either."
                )
            pending.append((_join(path, below), submodule_url(urls[below], url), links[below], inner))
    return CachedCommit(tuple(sorted(trees, key=lambda tree: tree.path)), fetched)


class Repository(msgspec.Struct, frozen=True):
    """The bare repository of a URL, before mirrors are applied, in the cache."""

    url: str

    @property
    def path(self) -> Path:
        """The bare repository."""
        name = re.sub(r"[^\w.-]", "", self.url.rstrip("/").rpartition("/")[2]).removesuffix(".git")
        return cache_root() / "git" / f"{name}-{hashlib.sha256(self.url.encode()).hexdigest()[:16]}.git"

    @property
    def log(self) -> Path:
        """The log of git's output."""
        return self.path.with_suffix(".log")

    def ensure(self, commit: str, mirrors: Mapping[str, str], *, offline: bool = False) -> bool:
        """Fetch a commit with all its files unless it is cached; return whether it was fetched.

        Raise `SourceError` if there is no such repository or commit, or the cached repository is damaged.
        """
        if not is_commit(commit):
            msg = f"{without_password(self.url)}: {commit!r} is not a full commit hash."
            raise SourceError(msg, hint="Write all 40 digits in the catalog, and resolve again.")
        require_git()
        if self._has(commit):
            if not self._is_intact():
                raise self._damaged()
            return False
        if offline:
            msg = f"{without_password(self.url)} at {commit} is not in the cache, and --offline is set."
            raise EnvironmentLacksError(msg, hint=OFFLINE_HINT)
        with explain_cache_errors(), exclusive_lock(self.path.with_suffix(".lock")):
            if not self._has(commit):  # another process may have fetched it
                self._prepare()
                self._fetch(commit, mirrored(self.url, mirrors))
        return True

    def _has(self, commit: str) -> bool:
        # git creates the reference when all objects below it are there.
        return self._output("rev-parse", "--verify", "--quiet", f"{_ref(commit)}^{{commit}}") is not None

    def _is_intact(self) -> bool:
        return self._output("fsck", "--no-dangling", "--no-progress", "--no-reflogs") is not None

    def _prepare(self) -> None:
        """Create the repository if it does not exist, and remove the files that a killed git left in it."""
        self.log.unlink(missing_ok=True)
        if self.path.exists() and not self._is_intact():
            shutil.rmtree(self.path)
        if not self.path.exists():
            # The user's template could have hooks.
            command = ["git", "init", "--quiet", "--bare", "--template=", str(self.path)]
            if is_shared(self.path.parent.stat()):
                command.append("--shared=group")
            run(command, what="Creating a git repository", log=self.log, env=git_environment())
        # This process holds the lock of the repository, so no git that still runs has made these.
        for leftover in [*self.path.rglob("*.lock"), *(self.path / "objects").glob("**/tmp_*")]:
            with suppress(OSError):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        (self.path / "info").mkdir(exist_ok=True)
        write_atomic(self.path / "info" / "attributes", _ATTRIBUTES)

    def _fetch(self, commit: str, url: str) -> None:
        try:
            with explain_cache_errors():
                self._run([*_FETCH, "--depth=1", "origin", f"{commit}:{_ref(commit)}"], url)
        except CommandError as error:
            failure = _fetch_failure(error, url)
            if failure is not None:
                raise failure from None
            self._fetch_all(commit, url)

    def _fetch_all(self, commit: str, url: str) -> None:
        """Fetch all branches and tags, from a server that does not serve a commit by its hash."""
        unshallow = ["--unshallow"] if (self.path / "shallow").exists() else []
        refs = ["+refs/heads/*:refs/all/heads/*", "+refs/tags/*:refs/all/tags/*"]
        try:
            self._run([*_FETCH, *unshallow, "origin", *refs], url)
        except CommandError as error:
            message, hint = _PASSWORD.sub("", error.message), "Check that the URL is a git repository."
            raise _fetch_failure(error, url) or SourceError(message, hint=hint) from None
        if self._output("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}") is None:
            msg = f"{without_password(url)} has no commit {commit} on any branch or tag."
            raise SourceError(
                msg, hint="The commit may have been removed. Name a fork or a mirror that has it."
            )
        self._run(["update-ref", _ref(commit), commit])

    def commit_of(self, ref: str, mirrors: Mapping[str, str]) -> str:
        """Return the commit of a branch or tag on the server, of the default branch (empty), or `ref` itself.

        Raise `SourceError` if there is no such repository, branch or tag.
        """
        if is_commit(ref):
            return ref
        names = [f"refs/heads/{ref}", f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}"]
        if ref.startswith("refs/") or ref in {"", "HEAD"}:
            names = [ref or "HEAD"]
        commits = self._remote_refs(names, mirrors)
        commit = next((commits[name] for name in names if name in commits), "")
        if not commit:
            msg = f"{without_password(self.url)} has no branch or tag {shorten(ref)!r}."
            raise SourceError(msg, hint="Name a branch, a tag, or a commit with all 40 digits.")
        return commit

    def tags(self, mirrors: Mapping[str, str]) -> dict[str, str]:
        """Return the tags of the server with their commits; raise `SourceError` if there is none."""
        refs = self._remote_refs(["refs/tags/*"], mirrors)
        commits = {name: refs.get(f"{name}^{{}}", commit) for name, commit in refs.items()}
        return {
            name.removeprefix("refs/tags/"): commit
            for name, commit in commits.items()
            if not name.endswith("^{}")
        }

    def _remote_refs(self, names: Sequence[str], mirrors: Mapping[str, str]) -> dict[str, str]:
        require_git()
        address = mirrored(self.url, mirrors)
        with explain_cache_errors(), exclusive_lock(self.path.with_suffix(".lock")):
            self._prepare()
            try:
                self._run(["ls-remote", "origin", *names], address)
            except CommandError as error:
                message = _PASSWORD.sub("", error.message)
                raise _fetch_failure(error, address) or SourceError(message, hint="Check the URL.") from None
            return {name: commit for commit, name in _REMOTE_REF.findall(self.log.read_text())}

    def tree_of(self, commit: str) -> str:
        """Return git's hash of the files of a commit."""
        return self._required("rev-parse", f"{commit}^{{tree}}").decode().strip()

    def submodule_commits(self, commit: str) -> dict[str, str]:
        """Return path and commit of every submodule."""
        entries = self._required("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")
        links = [os.fsdecode(entry).split("\t", 1) for entry in entries if entry.startswith(b"160000 ")]
        return {path: head.split()[2] for head, path in links}

    def submodule_urls(self, commit: str) -> dict[str, str]:
        """Return path and URL of every submodule in ``.gitmodules``."""
        listing = self._output("config", "--blob", f"{commit}:.gitmodules", "--list", "-z") or b""
        modules: dict[str, dict[str, str]] = {}
        for entry in os.fsdecode(listing).split("\0"):
            key, _, value = entry.partition("\n")
            section, _, variable = key.rpartition(".")
            modules.setdefault(section, {})[variable] = value
        return {
            module["path"]: module["url"] for module in modules.values() if {"path", "url"} <= module.keys()
        }

    def lfs_pointers(self, commit: str) -> list[str]:
        """Return the files that contain only a pointer to a Git LFS server."""
        if self._output("grep", "-q", "filter=lfs", commit, "--", ":(glob)**/.gitattributes") is None:
            return []
        pattern = "^version https://git-lfs.github.com/spec/"
        listing = self._output("grep", "-l", "-z", pattern, commit) or b""
        return [os.fsdecode(name).partition(":")[2] for name in listing.split(b"\0") if name]

    def checkout(self, commit: str, directory: Path, log: Path) -> None:
        """Write the files of a commit; raise `SourceError` if the file system does not accept a name."""
        directory.mkdir(exist_ok=True)
        index = directory.with_name(f"{directory.name}.git-index")
        command = ["git", f"--git-dir={self.path}", f"--work-tree={directory}"]
        env = git_environment() | {"GIT_INDEX_FILE": str(index)}
        what = f"Checking out {without_password(self.url)} at {commit}"
        try:
            with explain_io_errors(directory, hint="Free some space, or choose another directory."):
                run(
                    [*command, "read-tree", "--reset", "-u", commit],
                    what=what,
                    log=log,
                    cwd=directory,
                    env=env,
                )
        except CommandError as error:
            if not any(_NOT_CREATED.search(line) for line in error.lines):
                raise
            lines = "".join(f"\n    {line}" for line in error.lines)
            msg = f"Cannot check out {without_password(self.url)} at {commit}.{lines}\n  Log: {log}"
            raise SourceError(
                msg, hint="This file system may not support the name. Choose another commit."
            ) from None
        finally:
            index.unlink(missing_ok=True)

    def _damaged(self) -> SourceError:
        """Remove the repository if the cache is writable; return the error that reports the damage."""
        with suppress(OSError), exclusive_lock(self.path.with_suffix(".lock")):
            shutil.rmtree(self.path)
        removed = "" if self.path.exists() else " and was removed"
        msg = f"The cached repository {self.path} of {without_password(self.url)} is damaged{removed}."
        hint = f"Remove {self.path} and run" if not removed else "Run"
        return SourceError(msg, hint=f"{hint} the same command again to fetch it.")

    def _required(self, *arguments: str) -> bytes:
        output = self._output(*arguments)
        if output is None:
            raise self._damaged()
        return output

    def _output(self, *arguments: str) -> bytes | None:
        return bytes_of(["git", f"--git-dir={self.path}", *arguments], env=git_environment())

    def _run(self, arguments: list[str], url: str = "") -> None:
        command = ["git", f"--git-dir={self.path}", *arguments]
        run(command, what=f"git {arguments[0]}", log=self.log, env=git_environment(url))


def select_submodules(
    selection: Sequence[str], present: Iterable[str], where: str
) -> dict[str, tuple[str, ...]]:
    """Return the path of each selected submodule, with the selection among its own submodules.

    Each word of the selection selects all submodules at or below it, recursively, or the part of the
    submodule that it is in. `where` is the repository, for messages. Raise `SourceError` if a word selects
    nothing.

    >>> select_submodules(["third_party"], ["third_party/ck", "csrc/cutlass"], "")
    {'third_party/ck': ('',)}
    >>> select_submodules(["3rdparty/aiter/3rdparty/ck"], ["3rdparty/aiter"], "")
    {'3rdparty/aiter': ('3rdparty/ck',)}
    """
    present = sorted(present)
    selected: dict[str, tuple[str, ...]] = {}
    unused = [name.rstrip("/") for name in selection if name]
    for path in present:
        for name in [name.rstrip("/") for name in selection]:
            if name in {"", path} or path.startswith(f"{name}/"):
                selected[path] = ALL
            elif name.startswith(f"{path}/") and selected.get(path) != ALL:
                selected[path] = (*selected.get(path, ()), name.removeprefix(f"{path}/"))
            else:
                continue
            if name in unused:
                unused.remove(name)
    if unused:
        others = f"Its submodules: {', '.join(present)}." if present else "It has no submodules."
        msg = f"{where} has no submodule {unused[0]}, which the catalog lists. {others}"
        raise SourceError(msg, hint="Correct the row of the release in the catalog, and resolve again.")
    return selected


def submodule_url(url: str, parent: str) -> str:
    """Return the URL of a submodule; ``./`` and ``../`` are relative to the URL of its outer repository.

    >>> submodule_url("../ck.git", "https://host/group/name")
    'https://host/group/ck.git'
    >>> submodule_url("git@host:group/ck.git", "https://host/group/name")
    'ssh://git@host/group/ck.git'
    """
    if not url.startswith(("./", "../")):
        return _normalize(url)
    base = parent.rstrip("/")
    for part in url.split("/"):
        if part == "..":
            base = base.rpartition("/")[0]
        elif part not in {"", "."}:
            base = f"{base}/{part}"
    return base


def _normalize(url: str) -> str:
    """Convert paths and scp-like URLs to URLs, so that mirrors and relative URLs apply to them."""
    if url.startswith("/"):
        return f"file://{url}"
    scp = _SCP_URL.fullmatch(url)
    return f"ssh://{scp[1]}/{scp[2].lstrip('/')}" if scp else url


def _join(path: str, below: str) -> str:
    return f"{path}/{below}" if path else below


def _ref(commit: str) -> str:
    return f"refs/matrix/{commit}"


def is_commit(ref: str) -> bool:
    """Return whether a reference is a full commit hash."""
    return _COMMIT.fullmatch(ref) is not None


def split_reference(url: str) -> tuple[str, str]:
    """Return the URL of a repository, and the branch, tag or commit that follows ``@`` in it."""
    parts = urlsplit(url)
    path, ref = parts.path.rsplit("@", 1) if "@" in parts.path else (parts.path, "")
    return urlunsplit(parts._replace(path=path)), ref


def require_git() -> None:
    """Raise `EnvironmentLacksError` if git is not installed."""
    if shutil.which("git") is None:
        msg = "git is not installed. It is required for sources in git and for patches."
        raise EnvironmentLacksError(
            msg, hint="Install it (Debian: `apt-get install git`) or load its module."
        )


def git_environment(url: str = "") -> dict[str, str]:
    """Return all environment variables of git.

    `url` is that of the remote ``origin``. It may have a password, so no argument of git, which all can read,
    has it.
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
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
        "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
    }
    for name in ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        if os.environ.get(name):
            own["GIT_SSL_CAINFO"] = os.environ[name]
    if os.environ.get("SSH_AUTH_SOCK"):
        own["SSH_AUTH_SOCK"] = os.environ["SSH_AUTH_SOCK"]
    if url:
        own |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "remote.origin.url", "GIT_CONFIG_VALUE_0": url}
    return clean_environment(own, network=True)


def _fetch_failure(error: CommandError, url: str) -> MatrixError | None:
    """Return the error for a failed fetch; None if fetching all branches and tags may help."""
    output = "\n".join(error.lines)
    reasons = [line for line in error.lines if line.startswith(("fatal:", "error:", "remote:"))]
    reason = _PASSWORD.sub("", (reasons or [*error.lines, "no output"])[0])
    shown, log = without_password(url), f"\n  Log: {error.log}"
    if _NOT_BY_HASH.search(output):
        return None
    if _INVALID_OBJECT.search(output):
        msg = f"The repository {shown} is damaged: {reason}{log}"
        return SourceError(msg, hint="Choose another commit, or ask its maintainers to repair it.")
    if _NOT_WRITTEN.search(output):
        msg = f"git cannot write to the cache {cache_root()}: {reason}{log}"
        return EnvironmentLacksError(msg, hint="Free some space, or set XDG_CACHE_HOME to another directory.")
    if _UNREACHABLE.search(output):
        return EnvironmentLacksError(f"{shown} is not reachable: {reason}{log}", hint=NETWORK_HINT)
    if _NOT_READABLE.search(output):
        msg = f"Cannot read the repository {shown}: {reason}{log}"
        return SourceError(
            msg, hint="Check the URL. If the repository requires a login, use ~/.netrc or an ssh agent."
        )
    return None
