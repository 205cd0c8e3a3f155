"""Sources in git: the pinned commit with its submodules, or an error that names the reason."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from builders.network.git import CachedCommit, Repository, _fetch_failure, fetch_git
from builders.storage.files import TEMPORARY_PREFIX, cache_root
from resolver.errors import CommandError, EnvironmentLacksError, MatrixError, SourceError
from resolver.facts.schema import Git
from tests.builders.gitrepos import add_submodule, blob, commit, commit_tree, files_of, git, tree_entry
from tests.support.web_server import web_server

INNER = {"inner.h": "int inner;\n"}
MIDDLE = {"middle.h": "int middle;\n", "up": "->../../setup.py"}
OUTER = {"setup.py": "print('outer')\n", "run.sh": "#!/bin/sh\n"}


@dataclass
class Repositories:
    """An outer repository with two submodules, one of which has a submodule of its own."""

    root: Path
    commit: str

    @property
    def outer(self) -> Path:
        return self.root / "outer"

    def pin(self, *submodules: str) -> Git:
        return Git(self.outer.as_uri(), self.commit, submodules)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Repositories:
    root = tmp_path_factory.mktemp("repositories")
    for name, files in (("inner", INNER), ("middle", MIDDLE), ("outer", OUTER)):
        commit(root / name, files)
    add_submodule(root / "middle", "deep/inner", root / "inner", "../inner")
    add_submodule(root / "outer", "third_party/middle", root / "middle")
    last = add_submodule(root / "outer", "csrc/inner", root / "inner")
    return Repositories(root, last)


@pytest.fixture
def repositories(made: Repositories, tmp_path: Path) -> Repositories:
    """Copy the repositories, so that a test can change them."""
    for name in ("inner", "middle", "outer"):
        shutil.copytree(made.root / name, tmp_path / name, symlinks=True)
    for name in ("middle", "outer"):
        modules = tmp_path / name / ".gitmodules"
        modules.write_text(modules.read_text().replace(made.root.as_uri(), tmp_path.as_uri()))
    git(tmp_path / "middle", "commit", "--quiet", "--all", "--allow-empty", "--message=moved")
    return Repositories(tmp_path, commit(tmp_path / "outer", {}))


def checkout(cached: CachedCommit, directory: Path) -> dict[str, str]:
    cached.checkout(directory, directory.with_suffix(".log"))
    return files_of(directory)


def commits(cached: CachedCommit) -> dict[str, str]:
    return {tree.path: tree.commit for tree in cached.trees}


THIRD = {
    "third_party/middle/.gitmodules": '[submodule "deep/inner"]\n\tpath = deep/inner\n\turl = ../inner\n',
    "third_party/middle/middle.h": MIDDLE["middle.h"],
    "third_party/middle/up": MIDDLE["up"],
}


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([], {"csrc/inner/": "", "third_party/middle/": ""}),
        (["csrc/inner"], {"csrc/inner/inner.h": INNER["inner.h"], "third_party/middle/": ""}),
        (
            ["third_party"],
            {"csrc/inner/": "", **THIRD, "third_party/middle/deep/inner/inner.h": INNER["inner.h"]},
        ),
    ],
)
def test_commit_has_selected_submodules_with_their_own(
    made: Repositories, tmp_path: Path, listed: list[str], expected: dict[str, str]
) -> None:
    cached = fetch_git(made.pin(*listed))
    files = checkout(cached, tmp_path / "out")
    files.pop(".gitmodules")
    assert files == {**OUTER, **expected}
    assert cached.fetched
    assert not list((tmp_path / "out").rglob(".git"))
    assert {path.name for path in tmp_path.iterdir()} <= {"out", "out.log", "cache"}


def test_second_fetch_needs_no_network(
    repositories: Repositories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fetch_git(repositories.pin("third_party"))
    for name in ("inner", "middle", "outer"):
        shutil.rmtree(repositories.root / name)
    again = fetch_git(repositories.pin("third_party"), offline=True)
    assert (again.trees, again.tree, again.fetched) == (first.trees, first.tree, False)
    assert checkout(again, tmp_path / "out")["setup.py"] == OUTER["setup.py"]
    with pytest.raises(EnvironmentLacksError, match="not in the cache"):
        fetch_git(Git(repositories.outer.as_uri(), "1" * 40), offline=True)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(EnvironmentLacksError, match="git is not installed"):
        fetch_git(repositories.pin("csrc"))


def test_offline_names_missing_submodule(made: Repositories) -> None:
    fetch_git(made.pin())
    with pytest.raises(EnvironmentLacksError, match=r"middle at .* is not in the cache") as caught:
        fetch_git(made.pin("third_party"), offline=True)
    assert "matrix farm fetch" in caught.value.hint


def test_submodule_shared_by_two_sources_is_fetched_once(made: Repositories) -> None:
    cached = fetch_git(made.pin("third_party", "csrc"))
    assert len(cached.trees) == 4
    assert len({tree.repository.path for tree in cached.trees}) == 3
    assert len(list((cache_root() / "git").glob("*.git"))) == 3


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_damaged_repository_is_removed_and_fetched_again(
    made: Repositories, tmp_path: Path, damage: str
) -> None:
    cached = fetch_git(made.pin("third_party"))
    (pack,) = (cached.repository.path / "objects" / "pack").glob("*.pack")
    pack.chmod(0o644)
    content = bytearray(pack.read_bytes())
    content[len(content) // 2] ^= 0xFF
    if damage == "gone":
        pack.unlink()
    else:
        pack.write_bytes(content if damage == "changed" else content[:-100])
    with pytest.raises(MatrixError) as caught:
        fetch_git(made.pin("third_party"), offline=True)
    assert caught.value.exit_code in {1, 3}
    assert fetch_git(made.pin("third_party")).fetched
    assert checkout(fetch_git(made.pin("third_party"), offline=True), tmp_path / "out")["run.sh"]


def test_files_are_checked_out_as_committed(tmp_path: Path) -> None:
    """Attributes would change line endings and expand keywords."""
    repository = tmp_path / "repository"
    files = {
        "unix.txt": b"one\ntwo\n",
        "date.txt": b"$Format:%H$ $Id$\n",
        "secret.py": b"x = 1\n",
        "\xff.txt".encode("latin-1").decode("utf-8", "surrogateescape"): b"name",
    }
    commit(repository, files)
    attributes = "* text eol=crlf ident export-subst\n*.py export-ignore\n*.dat filter=lfs\n"
    pin = Git(repository.as_uri(), commit(repository, {".gitattributes": attributes, "big.dat": POINTER}))
    cached = fetch_git(pin)
    top = tmp_path / "out"
    cached.checkout(top, tmp_path / "log")
    assert {path: (top / path).read_bytes() for path in files} == files
    assert cached.large_files() == ["big.dat"]


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123456\n"


def test_user_git_configuration_is_ignored(
    made: Repositories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched, hooks = tmp_path / "touched", tmp_path / "hooks"
    hooks.mkdir()
    for name in ("reference-transaction", "post-checkout", "fsmonitor"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {touched}\nexit 1\n")
        (hooks / name).chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        f'[core]\n\thooksPath = {hooks}\n\tfsmonitor = {hooks}/fsmonitor\n[url "file:///nowhere/"]\n'
        f"\tinsteadOf = file:///\n[init]\n\ttemplateDir = {hooks}\n[protocol]\n\tallow = never\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "remote.origin.uploadpack")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "false")
    assert fetch_git(made.pin("third_party")).fetched
    assert not touched.exists()
    assert not (tmp_path / "elsewhere.git").exists()


# Servers


def test_server_without_fetch_by_hash(repositories: Repositories) -> None:
    """Version 0 of the protocol without ``allowAnySHA1InWant``: old servers, and some mirrors."""
    old = commit(repositories.outer, {"old.txt": "old"})
    middle = commit(repositories.outer, {"middle.txt": "middle"})
    tip = commit(repositories.outer, {"new.txt": "new"})
    config = cache_root() / "git" / "gitconfig"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builders.network.git._CONFIGURATION", "[protocol]\n\tversion = 0\n")
        for revision in (tip, old, middle):
            cached = fetch_git(Git(repositories.outer.as_uri(), revision))
            assert (cached.fetched, commits(cached)) == (True, {"": revision})
        assert "version = 0" in config.read_text()
        missing = Git(repositories.outer.as_uri(), "1" * 40)
        with pytest.raises(SourceError, match="has no commit 1111"):
            fetch_git(missing)
    assert not (Repository(repositories.outer.as_uri()).path / "shallow").exists()  # all was fetched


def test_plain_web_server(repositories: Repositories) -> None:
    """A repository below any web server, after ``git update-server-info``."""
    git(repositories.outer, "update-server-info")
    with web_server(repositories.root) as url:
        cached = fetch_git(Git(f"{url}/outer/.git", repositories.commit))
        with pytest.raises(SourceError, match="Cannot read the repository"):
            fetch_git(Git(f"{url}/nowhere", repositories.commit))
    assert commits(cached) == {"": repositories.commit}


def test_unknown_commit_is_an_error(made: Repositories) -> None:
    with pytest.raises(SourceError, match=f"has no commit {'1' * 40}"):
        fetch_git(Git(made.outer.as_uri(), "1" * 40))


@pytest.mark.parametrize("commit", ["09d42ac5", "main", "", "-x", "G" * 40])
def test_abbreviated_commit_is_rejected(made: Repositories, commit: str) -> None:
    with pytest.raises(SourceError, match="not a full commit hash"):
        fetch_git(Git(made.outer.as_uri(), commit))


def test_missing_repository_error_names_log(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="Cannot read the repository") as caught:
        fetch_git(Git((tmp_path / "nowhere").as_uri(), "1" * 40))
    assert "Log:" in caught.value.message


@pytest.mark.parametrize("scheme", ["http", "https", "git"])
def test_unreachable_server_error_hides_password(scheme: str) -> None:
    """No server listens on port 1 of the loopback interface."""
    pin = Git(f"{scheme}://{'' if scheme == 'git' else 'user:hunter2@'}127.0.0.1:1/name.git", "1" * 40)
    with pytest.raises(EnvironmentLacksError, match=r"127\.0\.0\.1:1.* is not reachable") as caught:
        fetch_git(pin)
    text = caught.value.message + caught.value.hint
    text += Repository(pin.url).log.read_text()
    assert "hunter2" not in text
    assert "login node" in text


@pytest.mark.parametrize(
    ("code", "lines", "meant"),
    [
        (128, ["fatal: git upload-pack: not our ref 1", "fatal: the remote end hung up unexpectedly"], None),
        (128, ["error: Server does not allow request for unadvertised object 1"], None),
        (128, ["fatal: dumb http transport does not support shallow capabilities"], None),
        (1, ["fatal: something that nobody has seen"], None),
        (128, ["fatal: unable to access 'https://h/': Could not resolve host: h"], EnvironmentLacksError),
        (128, ["error: RPC failed; curl 56 Recv failure: Connection reset by peer"], EnvironmentLacksError),
        (128, ["fatal: unable to access 'https://h/': SSL certificate problem"], EnvironmentLacksError),
        (128, ["fatal: the remote end hung up unexpectedly"], EnvironmentLacksError),
        (128, ["fatal: repository 'https://h/openssl.git/' not found"], SourceError),
        (128, ["fatal: could not read Username for 'https://h': terminal prompts disabled"], SourceError),
        (128, ["fatal: unable to access 'https://h/': The requested URL returned error: 403"], SourceError),
        (128, ["fatal: write error: No space left on device"], EnvironmentLacksError),
        (128, ["fatal: fetch-pack: invalid index-pack output"], EnvironmentLacksError),
    ],
)
def test_git_failures_are_classified(code: int, lines: list[str], meant: type[MatrixError] | None) -> None:
    error = CommandError("git fetch", code=code, log=Path("x.log"), lines=lines)
    failure = _fetch_failure(error, "https://user:hunter2@host/name")
    assert (type(failure) if failure else None) is meant
    if failure is not None:
        assert "hunter2" not in failure.message
        assert "x.log" in failure.message


def test_password_in_git_output_is_hidden() -> None:
    line = "fatal: unable to access 'https://user:hunter2@host/': Could not resolve host: host"
    failure = _fetch_failure(
        CommandError("git fetch", code=128, log=Path("x.log"), lines=[line]), "https://host/"
    )
    assert failure is not None
    assert "hunter2" not in failure.message
    assert "'https://host/'" in failure.message


def test_mirrors_apply_to_submodules(repositories: Repositories, tmp_path: Path) -> None:
    """The hosts in the pin and in ``.gitmodules`` do not exist, so only mirrors can answer."""
    modules = '[submodule "m"]\n\tpath = third_party/middle\n\turl = https://host.invalid/group/middle.git\n'
    last = commit(repositories.outer, {".gitmodules": modules})
    mirrors = {
        "https://host.invalid/": "file:///nowhere/",
        "https://host.invalid/group/": f"{tmp_path.as_uri()}/",
        "https://host.invalid/group/middle.git": (tmp_path / "middle").as_uri(),
    }
    pin = Git("https://host.invalid/group/outer", last, ("third_party",))
    cached = fetch_git(pin, mirrors=mirrors)
    assert {tree.path: tree.repository.url for tree in cached.trees} == {
        "": "https://host.invalid/group/outer",
        "third_party/middle": "https://host.invalid/group/middle.git",
        "third_party/middle/deep/inner": "https://host.invalid/group/inner",
    }


def test_mirror_without_git_suffix_matches_submodule_with_it(
    repositories: Repositories, tmp_path: Path
) -> None:
    modules = '[submodule "m"]\n\tpath = third_party/middle\n\turl = https://host.invalid/group/middle.git\n'
    last = commit(repositories.outer, {".gitmodules": modules})
    names = ("outer", "middle", "inner")
    mirrors = {f"https://host.invalid/group/{name}": (tmp_path / name).as_uri() for name in names}
    cached = fetch_git(Git("https://host.invalid/group/outer", last, ("third_party",)), mirrors=mirrors)
    assert [tree.path for tree in cached.trees] == ["", "third_party/middle", "third_party/middle/deep/inner"]


@pytest.mark.parametrize("name", [b"..", b".git", b"a/../../b"])
def test_git_refuses_paths_outside_of_source(tmp_path: Path, name: bytes) -> None:
    repository = tmp_path / "hostile"
    commit(repository, {"setup.py": "x"})
    hostile = commit_tree(repository, tree_entry("100644", name, blob(repository, b"evil")))
    with pytest.raises(SourceError):
        fetch_git(Git(repository.as_uri(), hostile)).checkout(tmp_path / "out" / "source", tmp_path / "log")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"evil"]


COMMANDS = ["ext::sh -c 'touch {root}/touched'", "--upload-pack=touch {root}/touched", "-u./touched"]


def test_file_with_long_name_is_an_error(tmp_path: Path) -> None:
    where = tmp_path / "long"
    commit(where, {"a": "1"})
    made = commit_tree(where, tree_entry("100644", b"n" * 300, blob(where, b"x")))
    cached = fetch_git(Git(where.as_uri(), made))
    with pytest.raises(SourceError, match=r"Cannot check out .*/long at (.|\n)* nnnnn") as caught:
        cached.checkout(tmp_path / "out", tmp_path / "log")
    assert str(tmp_path / "out") not in caught.value.message


@pytest.mark.parametrize("mode", ["100644", "120000"])
def test_directory_with_two_entries_of_one_name_is_an_error(tmp_path: Path, mode: str) -> None:
    """A link and a directory of the same name could lead to files outside of the source."""
    where = tmp_path / "twice"
    commit(where, {"a/b": "1"})
    below = git(where, "rev-parse", "HEAD:a")
    listing = tree_entry(mode, b"a", blob(where, b"/tmp")) + tree_entry("40000", b"a", below)
    with pytest.raises(SourceError, match=r"twice is damaged: .*duplicate file entries"):
        fetch_git(Git(where.as_uri(), commit_tree(where, listing)))


@pytest.mark.parametrize("url", COMMANDS)
def test_url_that_is_a_command_is_not_run(repositories: Repositories, tmp_path: Path, url: str) -> None:
    url = url.format(root=tmp_path)
    with pytest.raises(SourceError):
        fetch_git(Git(url, "1" * 40))
    modules = f'[submodule "m"]\n\tpath = csrc/inner\n\turl = {url}\n'
    last = commit(repositories.outer, {".gitmodules": modules})
    with pytest.raises(SourceError):
        fetch_git(Git(repositories.outer.as_uri(), last, ("csrc/inner",)))
    assert not (tmp_path / "touched").exists()


def test_submodule_without_url_is_an_error(repositories: Repositories) -> None:
    last = commit(repositories.outer, {".gitmodules": '[submodule "m"]\n\tpath = csrc/inner\n'})
    with pytest.raises(SourceError, match=r"\.gitmodules has no URL for the submodule csrc/inner"):
        fetch_git(Git(repositories.outer.as_uri(), last, ("csrc/inner",)))


def test_unknown_submodule_error_lists_existing_ones(made: Repositories) -> None:
    with pytest.raises(SourceError, match="no submodule csrc/cutlass") as caught:
        fetch_git(made.pin("csrc/cutlass"))
    assert "csrc/inner, third_party/middle" in caught.value.message


# Kills, other runs, full disks

FETCH = """
import sys
from builders.network.git import fetch_git
from resolver.facts.schema import Git
print(fetch_git(Git(sys.argv[1], sys.argv[2], ("third_party",))).tree)
"""


def start(pin: Git, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", FETCH, pin.url, pin.commit]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload, no-any-return]


def test_leftovers_of_killed_git_are_removed(made: Repositories) -> None:
    """A killed git leaves these files; some of them would block every later fetch."""
    copy = Repository(made.outer.as_uri()).path
    git(Path("/"), "init", "--quiet", "--bare", str(copy))
    (copy / "config").unlink()
    left = ["shallow.lock", "config.lock", "objects/pack/tmp_pack_x", "objects/tmp_objdir-incoming-x/pack/y"]
    for name in left:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(b"PACK")
    assert fetch_git(made.pin("third_party")).fetched
    assert [name for name in left if (copy / name).exists()] == []


@pytest.mark.integration
def test_kill_at_any_moment_leaves_usable_cache(repositories: Repositories) -> None:
    noise = {f"noise/{number}": os.urandom(200_000) for number in range(60)}
    pin = Git(repositories.outer.as_uri(), commit(repositories.outer, noise), ("third_party",))
    interrupted = 0
    for moment in range(1, 15):
        with start(pin) as fetcher:
            time.sleep(moment * 0.06)
            fetcher.kill()
            fetcher.communicate()
        interrupted += fetcher.returncode == -signal.SIGKILL
    assert interrupted
    cached = fetch_git(pin)
    assert fetch_git(pin, offline=True).trees == cached.trees
    # A process that is killed while it writes git's few settings leaves only these.
    left = (cache_root() / "git").glob(f"{TEMPORARY_PREFIX}*")
    assert [path.name for path in left if path.suffix or path.stat().st_size > 1_000] == []


@pytest.mark.integration
def test_parallel_fetches_agree(made: Repositories) -> None:
    pin = made.pin("third_party")
    runs = [start(pin) for _ in range(3)]
    results = [run.communicate() for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], results
    assert {out.strip() for out, _ in results} == {fetch_git(pin, offline=True).tree}


@pytest.mark.usefixtures("no_shortcuts")
def test_full_disk_leaves_nothing_half_done(repositories: Repositories, tmp_path: Path) -> None:
    """A limit on the size of files acts like a full disk or quota."""
    pin = Git(repositories.outer.as_uri(), commit(repositories.outer, {"noise": os.urandom(500_000).hex()}))
    with pytest.raises(EnvironmentLacksError, match="the cache") as caught, _no_file_longer_than(300_000):
        fetch_git(pin)
    assert "XDG_CACHE_HOME" in caught.value.hint
    with pytest.raises(EnvironmentLacksError, match="not in the cache"):
        fetch_git(pin, offline=True)
    cached = fetch_git(pin)
    with pytest.raises(CommandError), _no_file_longer_than(300_000):
        cached.checkout(tmp_path / "full", tmp_path / "log")
    assert len(checkout(cached, tmp_path / "out")["noise"]) > 0


class _no_file_longer_than:  # noqa: N801  reads as a word in a with statement
    """Limit the size of files with `setrlimit(2)`; Python ignores the signal."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __enter__(self) -> None:
        import resource

        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.before[1]))

    def __exit__(self, *_: object) -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


def test_read_only_cache_is_enough_for_cached_commit(
    made: Repositories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = fetch_git(made.pin())
    monkeypatch.setattr("builders.network.git.exclusive_lock", _refuse)
    assert fetch_git(made.pin()).trees == cached.trees
    with pytest.raises(EnvironmentLacksError, match="Read-only file system") as caught:
        fetch_git(made.pin("csrc"))
    assert str(tmp_path) in caught.value.message


def _refuse(*_: object) -> None:
    raise OSError(30, "Read-only file system")
