"""Sources in git: the pinned commit with its submodules or nothing, whatever the other side does."""

from __future__ import annotations

import http.server
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pytest

from builders.cache import cache_root
from builders.files import TEMPORARY_PREFIX
from builders.sources.archive import Record
from builders.sources.formats import tarfile, zstd
from builders.sources.git import Checkout, _record_place, fetch_git
from builders.sources.repository import Repository, _failure
from builders.sources.unpack import unpack_sdist
from resolver.errors import CommandError, EnvironmentLacksError, MatrixError, SourceError
from resolver.facts.schema import Git
from tests.builders.gitrepos import add_submodule, blob, commit, commit_tree, files_of, git, tree_entry

INNER = {"inner.h": "int inner;\n"}
MIDDLE = {"middle.h": "int middle;\n", "up": "->../../setup.py"}
OUTER = {"setup.py": "print('outer')\n", "run.sh": "#!/bin/sh\n"}


@dataclass
class Repositories:
    """An outer repository with two submodules, of which one has its own."""

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
    """Give the repositories as a copy that a test may break."""
    for name in ("inner", "middle", "outer"):
        shutil.copytree(made.root / name, tmp_path / name, symlinks=True)
    for name in ("middle", "outer"):
        modules = tmp_path / name / ".gitmodules"
        modules.write_text(modules.read_text().replace(made.root.as_uri(), tmp_path.as_uri()))
    git(tmp_path / "middle", "commit", "--quiet", "--all", "--allow-empty", "--message=moved")
    return Repositories(tmp_path, commit(tmp_path / "outer", {}))


def unpacked(checkout: Checkout, target: Path) -> dict[str, str]:
    return files_of(unpack_sdist(checkout.archive, target))


def kept() -> list[str]:
    """Give the names of all finished sources in the cache, and of what was left behind."""
    runtime = cache_root() / "sources" / "git"
    files = [*runtime.glob("*"), *(cache_root() / "git").glob(f"{TEMPORARY_PREFIX}*")]
    return sorted(path.name for path in files if path.suffix != ".lock")


THIRD = {
    "third_party/middle/.gitmodules": '[submodule "deep/inner"]\n\tpath = deep/inner\n\turl = ../inner\n',
    "third_party/middle/middle.h": MIDDLE["middle.h"],
    "third_party/middle/up": MIDDLE["up"],
}


@pytest.mark.parametrize(
    ("listed", "wanted"),
    [
        ([], {"csrc/inner/": "", "third_party/middle/": ""}),
        (["csrc/inner"], {"csrc/inner/inner.h": INNER["inner.h"], "third_party/middle/": ""}),
        (
            ["third_party"],
            {"csrc/inner/": "", **THIRD, "third_party/middle/deep/inner/inner.h": INNER["inner.h"]},
        ),
    ],
)
def test_a_commit_has_the_submodules_that_are_listed_with_their_own(
    made: Repositories, tmp_path: Path, listed: list[str], wanted: dict[str, str]
) -> None:
    checkout = fetch_git(made.pin(*listed))
    found = unpacked(checkout, tmp_path / "out")
    found.pop(".gitmodules")
    assert found == {**OUTER, **wanted}
    assert checkout.fetched
    assert kept() == sorted([checkout.archive.name, *(one for one in kept() if one.endswith(".json"))])
    assert not list((tmp_path / "out").rglob(".git"))


def test_the_second_time_neither_network_nor_git_is_needed(
    repositories: Repositories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fetch_git(repositories.pin("third_party"))
    for name in ("inner", "middle", "outer"):
        shutil.rmtree(repositories.root / name)
    shutil.rmtree(cache_root() / "git")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    again = fetch_git(repositories.pin("third_party"), offline=True)
    assert (again.archive, again.record, again.fetched) == (first.archive, first.record, False)
    with pytest.raises(EnvironmentLacksError, match="not in the cache"):
        fetch_git(repositories.pin("csrc"), offline=True)
    with pytest.raises(EnvironmentLacksError, match="git is not installed"):
        fetch_git(repositories.pin("csrc"))


def test_an_archive_is_the_same_bytes_wherever_it_is_made(
    made: Repositories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fetch_git(made.pin("third_party"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    second = fetch_git(made.pin("third_party"))
    assert first.archive != second.archive
    assert first.archive.name == second.archive.name == f"{first.record.tree}.tar.zst"
    assert first.archive.read_bytes() == second.archive.read_bytes()


def repack(archive: Path, change: Callable[[object, bytes | None], bytes | None]) -> None:
    """Write an archive anew, with other members or contents."""
    with zstd.open(archive, "rb") as source, tarfile.open(fileobj=source) as tar:
        members = [(one, tar.extractfile(one).read() if one.isreg() else None) for one in tar]
    with zstd.open(archive, "wb") as sink, tarfile.open(fileobj=sink, mode="w") as tar:
        for member, content in members:
            changed = change(member, content)
            if changed is not None:
                member.size = len(changed)
            tar.addfile(member, io.BytesIO(changed or b""))


def _edit(member: object, content: bytes | None) -> bytes | None:
    return b"print('evil')\n" if getattr(member, "name", "") == "source/setup.py" else content


def _run(member: object, content: bytes | None) -> bytes | None:
    if getattr(member, "name", "") == "source/setup.py":
        member.mode = 0o755  # type: ignore[attr-defined]
    return content


def _rename(member: object, content: bytes | None) -> bytes | None:
    if getattr(member, "name", "").endswith("inner.h"):
        member.name = "source/csrc/inner/inner.h"  # type: ignore[attr-defined]
    return content


def _move_out(member: object, content: bytes | None) -> bytes | None:
    if getattr(member, "name", "") == "source/setup.py":
        member.name = "setup.py"  # type: ignore[attr-defined]
    return content


def _relink(member: object, content: bytes | None) -> bytes | None:
    if getattr(member, "linkname", ""):
        member.linkname = "../../run.sh"  # type: ignore[attr-defined]
    return content


@pytest.mark.parametrize("change", [_edit, _run, _rename, _move_out, _relink])
def test_a_cached_archive_that_was_changed_is_moved_aside(
    made: Repositories, change: Callable[[object, bytes | None], bytes | None]
) -> None:
    checkout = fetch_git(made.pin("third_party"))
    whole = checkout.archive.read_bytes()
    repack(checkout.archive, lambda _, content: content)
    assert not fetch_git(made.pin("third_party")).fetched  # how it is packed does not matter
    repack(checkout.archive, change)
    with pytest.raises(SourceError, match="not the source that was pinned") as caught:
        fetch_git(made.pin("third_party"), offline=True)
    assert "run the same command again" in caught.value.hint
    assert not checkout.archive.exists()
    assert fetch_git(made.pin("third_party")).archive.read_bytes() == whole


def test_a_record_cannot_leave_a_submodule_out(made: Repositories) -> None:
    """A record of another pin, under the name of this one, is consistent and still not the pinned."""
    without, whole = fetch_git(made.pin()), fetch_git(made.pin("third_party"))
    records = {path.read_text(): path for path in (cache_root() / "sources" / "git").glob("*.json")}
    (lesser,) = (text for text in records if without.record.tree in text)
    (runtime,) = (path for text, path in records.items() if whole.record.tree in text)
    runtime.write_text(lesser)
    with pytest.raises(SourceError, match="submodules are not those that are listed"):
        fetch_git(made.pin("third_party"), offline=True)


def forge(pin: Git, record: Record) -> None:
    """Put a record under the name of a pin."""
    _record_place(pin).write_bytes(msgspec.json.encode(record))


def test_what_holds_together_and_is_another_commit_is_refused(repositories: Repositories) -> None:
    """Whoever can write to the cache can make an archive and a record that go together."""
    pin = repositories.pin("third_party")
    honest = fetch_git(pin).record
    evil = Git(pin.url, commit(repositories.outer, {"setup.py": "evil"}), pin.submodules)
    forged = fetch_git(evil).record
    forge(pin, forged)
    with pytest.raises(SourceError, match=f"the commit of it is not {pin.commit}"):
        fetch_git(pin, offline=True)
    fetch_git(evil)
    forge(pin, msgspec.structs.replace(honest, tree=forged.tree))
    with pytest.raises(SourceError, match=f"the files of it are not those of {pin.commit}"):
        fetch_git(pin, offline=True)


def test_a_submodule_at_another_commit_is_refused(repositories: Repositories) -> None:
    pin = repositories.pin("csrc")
    honest = fetch_git(pin).record
    moved = commit(repositories.root / "inner", {"inner.h": "int evil;\n"})
    inner_url = (repositories.root / "inner").as_uri()
    git(repositories.outer / "csrc" / "inner", "pull", "--quiet", inner_url, "main")
    theirs = Git(pin.url, commit(repositories.outer, {}), pin.submodules)
    forged = fetch_git(theirs).record
    assert forged.gitlinks["csrc/inner"] == moved
    outer, inner = honest.modules[""], forged.modules["csrc/inner"]
    modules = {"": outer, "csrc/inner": inner}
    for gitlinks, why in (
        (forged.gitlinks, "the files of it"),
        (honest.gitlinks, "the commit of csrc/inner"),
    ):
        forge(pin, msgspec.structs.replace(honest, tree=forged.tree, modules=modules, gitlinks=gitlinks))
        with pytest.raises(SourceError, match=why):
            fetch_git(pin, offline=True)
        fetch_git(theirs)  # the archive was moved aside


def test_a_record_that_is_damaged_is_made_anew(made: Repositories) -> None:
    first = fetch_git(made.pin())
    (record,) = (cache_root() / "sources" / "git").glob("*.json")
    record.write_text('{"schema": 1')
    again = fetch_git(made.pin())
    assert again.record == first.record
    assert not again.fetched  # the copy of the repository was still there


def test_files_are_as_they_were_committed(tmp_path: Path) -> None:
    """Attributes would turn line ends, fill in dates, and leave files out of an archive."""
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
    checkout = fetch_git(pin)
    top = unpack_sdist(checkout.archive, tmp_path / "out")
    assert {path: (top / path).read_bytes() for path in files} == files
    assert checkout.record.large_files == ("big.dat",)


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123456\n"


def test_nothing_of_the_users_git_has_a_say(
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


def test_a_server_that_gives_no_commit_by_its_hash(repositories: Repositories) -> None:
    """Version 0 of the protocol without ``allowAnySHA1InWant``: old servers, and some mirrors."""
    old = commit(repositories.outer, {"old.txt": "old"})
    middle = commit(repositories.outer, {"middle.txt": "middle"})
    tip = commit(repositories.outer, {"new.txt": "new"})
    config = cache_root() / "git" / "gitconfig"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builders.sources.repository._CONFIGURATION", "[protocol]\n\tversion = 0\n")
        for one in (tip, old, middle):
            found = fetch_git(Git(repositories.outer.as_uri(), one))
            assert (found.fetched, found.record.commit) == (True, one)
        assert "version = 0" in config.read_text()
        missing = Git(repositories.outer.as_uri(), "1" * 40)
        with pytest.raises(SourceError, match="has no commit 1111"):
            fetch_git(missing)
    assert not (Repository(repositories.outer.as_uri()).path / "shallow").exists()  # all was fetched


def test_a_web_server_that_knows_nothing_of_git(repositories: Repositories) -> None:
    """A copy below any web server, after ``git update-server-info``."""
    git(repositories.outer, "update-server-info")
    handler = partial(_Quiet, directory=str(repositories.root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/outer/.git"
        checkout = fetch_git(Git(url, repositories.commit))
        with pytest.raises(SourceError, match="no repository that can be read"):
            fetch_git(Git(f"http://127.0.0.1:{server.server_port}/nowhere", repositories.commit))
        server.shutdown()
    assert checkout.record.commit == repositories.commit


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_commit_that_is_nowhere(made: Repositories) -> None:
    with pytest.raises(SourceError, match=f"has no commit {'1' * 40}"):
        fetch_git(Git(made.outer.as_uri(), "1" * 40))
    assert kept() == []


@pytest.mark.parametrize("commit", ["09d42ac5", "main", "", "-x", "G" * 40])
def test_what_is_no_whole_commit_pins_nothing(made: Repositories, commit: str) -> None:
    with pytest.raises(SourceError, match="not a whole commit"):
        fetch_git(Git(made.outer.as_uri(), commit))


def test_a_repository_that_is_nowhere(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no repository that can be read") as caught:
        fetch_git(Git((tmp_path / "nowhere").as_uri(), "1" * 40))
    assert "Log:" in caught.value.message


@pytest.mark.parametrize("scheme", ["http", "https", "git"])
def test_a_server_that_cannot_be_reached(scheme: str) -> None:
    """Port 1 of the loopback answers nobody."""
    pin = Git(f"{scheme}://{'' if scheme == 'git' else 'user:hunter2@'}127.0.0.1:1/name.git", "1" * 40)
    with pytest.raises(EnvironmentLacksError, match=r"127\.0\.0\.1:1.* could not be reached") as caught:
        fetch_git(pin)
    said = caught.value.message + caught.value.hint
    said += Repository(pin.url).log.read_text()
    assert "hunter2" not in said
    assert "login node" in said


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
        (-25, [], EnvironmentLacksError),
    ],
)
def test_what_git_says_is_understood(code: int, lines: list[str], meant: type[MatrixError] | None) -> None:
    error = CommandError("git fetch", code=code, log=Path("x.log"), lines=lines)
    failure = _failure(error, "https://user:hunter2@host/name")
    assert (type(failure) if failure else None) is meant
    if failure is not None:
        assert "hunter2" not in failure.message
        assert "x.log" in failure.message


def test_a_password_in_what_git_says_is_not_shown() -> None:
    line = "fatal: unable to access 'https://user:hunter2@host/': Could not resolve host: host"
    failure = _failure(CommandError("git fetch", code=128, log=Path("x.log"), lines=[line]), "https://host/")
    assert failure is not None
    assert "hunter2" not in failure.message
    assert "'https://host/'" in failure.message


def test_submodules_and_repositories_come_from_mirrors(repositories: Repositories, tmp_path: Path) -> None:
    """Nobody asks the hosts that the pin and ``.gitmodules`` name: they do not exist."""
    modules = '[submodule "m"]\n\tpath = third_party/middle\n\turl = https://host.invalid/group/middle.git\n'
    last = commit(repositories.outer, {".gitmodules": modules})
    mirrors = {
        "https://host.invalid/": "file:///nowhere/",
        "https://host.invalid/group/": f"{tmp_path.as_uri()}/",
        "https://host.invalid/group/middle.git": (tmp_path / "middle").as_uri(),
    }
    pin = Git("https://host.invalid/group/outer", last, ("third_party",))
    checkout = fetch_git(pin, mirrors=mirrors)
    assert {path: one.url for path, one in checkout.record.modules.items()} == {
        "": "https://host.invalid/group/outer",
        "third_party/middle": "https://host.invalid/group/middle.git",
        "third_party/middle/deep/inner": "https://host.invalid/group/inner",
    }


# Hostile repositories


def hostile(tmp_path: Path, listing: Callable[[Path, str], bytes]) -> Git:
    repository = tmp_path / "hostile"
    commit(repository, {"setup.py": "x"})
    return Git(repository.as_uri(), commit_tree(repository, listing(repository, blob(repository, b"evil"))))


@pytest.mark.parametrize(
    ("listing", "why"),
    [
        (lambda _, one: tree_entry("100644", b"..", one), "leads out"),
        (lambda _, one: tree_entry("100644", b".git", one), "repository"),
        (lambda _, one: tree_entry("100644", b"a/../../b", one), "leads out"),
        (lambda _, one: tree_entry("120000", b"a", one) + tree_entry("100644", b"a", one), "twice"),
        (lambda where, _: tree_entry("120000", b"a", blob(where, b"../../x")), "leads out"),
        (lambda where, _: tree_entry("120000", b"a", blob(where, b"/etc/passwd")), "leads out"),
    ],
    ids=["up", "git directory", "slashes", "twice", "link up", "link absolute"],
)
def test_a_hostile_tree_is_refused_and_nothing_of_it_kept(
    tmp_path: Path, listing: Callable[[Path, str], bytes], why: str
) -> None:
    with pytest.raises(SourceError, match=why) as caught:
        fetch_git(hostile(tmp_path, listing))
    assert caught.value.exit_code == 1
    assert kept() == []
    assert not list(tmp_path.glob("b"))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ext::sh -c 'touch {root}/touched'", "no address"),
        ("-u./touched", "no address"),
        ("--upload-pack=touch {root}/touched", "no address"),
        ("ssh://-oProxyCommand=touch/x", "no address"),
        ("file://{root}/inner", "on this machine"),
        ("{root}/inner", "on this machine"),
        ("", "does not say where"),
    ],
)
def test_a_hostile_submodule_is_refused(
    repositories: Repositories, tmp_path: Path, url: str, why: str
) -> None:
    said = f"\turl = {url.format(root=tmp_path)}\n" if url else ""
    modules = f'[submodule "m"]\n\tpath = csrc/inner\n{said}'
    last = commit(repositories.outer, {".gitmodules": modules})
    mirrors = {"https://host.invalid/": f"{tmp_path.as_uri()}/"}
    with pytest.raises(SourceError, match=why):
        fetch_git(Git("https://host.invalid/outer", last, ("csrc/inner",)), mirrors=mirrors)
    assert not (tmp_path / "touched").exists()
    assert kept() == []


def test_a_pin_that_is_a_command_is_refused(tmp_path: Path) -> None:
    for url in (f"ext::sh -c 'touch {tmp_path}/touched'", "--upload-pack=x", "plain/path"):
        with pytest.raises(SourceError, match="no address"):
            fetch_git(Git(url, "1" * 40))
    assert not (tmp_path / "touched").exists()


def test_a_submodule_that_is_not_there_is_named_with_those_that_are(made: Repositories) -> None:
    with pytest.raises(SourceError, match="no submodule csrc/cutlass") as caught:
        fetch_git(made.pin("csrc/cutlass"))
    assert "csrc/inner, third_party/middle" in caught.value.message


# Kills, other runs, full disks

FETCH = """
import sys
from builders.sources.git import fetch_git
from resolver.facts.schema import Git
print(fetch_git(Git(sys.argv[1], sys.argv[2], ("third_party",))).record.tree)
"""


def start(pin: Git, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", FETCH, pin.url, pin.commit]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload, no-any-return]


def test_what_a_kill_left_behind_is_no_obstacle(made: Repositories) -> None:
    """The files that git leaves when it is killed; some of them would stop every later fetch."""
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
def test_a_kill_at_any_moment_leaves_a_cache_that_can_be_used(repositories: Repositories) -> None:
    noise = {f"noise/{number}": os.urandom(200_000) for number in range(60)}
    pin = Git(repositories.outer.as_uri(), commit(repositories.outer, noise), ("third_party",))
    interrupted = 0
    for moment in range(1, 15):
        with start(pin) as fetcher:
            time.sleep(moment * 0.06)
            fetcher.kill()
            fetcher.communicate()
        interrupted += fetcher.returncode == -signal.SIGKILL
        for path in (cache_root() / "sources" / "git").glob("*.json"):
            assert path.read_text().endswith("}")
    assert interrupted
    checkout = fetch_git(pin)
    assert fetch_git(pin, offline=True).record == checkout.record
    # Of a kill within the write of git's few settings those may stay, and nothing else.
    left = (cache_root() / "git").glob(f"{TEMPORARY_PREFIX}*")
    assert [path.name for path in left if path.suffix or path.stat().st_size > 1_000] == []


@pytest.mark.integration
def test_two_runs_at_once_agree(made: Repositories) -> None:
    pin = made.pin("third_party")
    runs = [start(pin) for _ in range(3)]
    said = [run.communicate() for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], said
    assert {out.strip() for out, _ in said} == {fetch_git(pin, offline=True).record.tree}


def test_a_file_that_may_not_grow_is_said_and_leaves_nothing(repositories: Repositories) -> None:
    """As a full disk or quota: first git cannot write, then, with its copy there, we cannot."""
    pin = Git(repositories.outer.as_uri(), commit(repositories.outer, {"noise": os.urandom(1_000_000)}))
    for _ in ("git", "archive"):
        with pytest.raises(MatrixError) as caught, _no_file_longer_than(300_000):
            fetch_git(pin)
        assert caught.value.exit_code == 3
        assert "the cache" in caught.value.message
        assert "XDG_CACHE_HOME" in caught.value.hint
        assert kept() == []
        Repository(pin.url).fetch(pin.commit, {})
    assert fetch_git(pin).record.commit == pin.commit


class _no_file_longer_than:  # noqa: N801  reads as a word in a with statement
    """Let no file grow beyond a size, as `setrlimit(2)` does, and ignore the signal as Python does."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __enter__(self) -> None:
        import resource

        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.before[1]))

    def __exit__(self, *_: object) -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


def test_a_cache_that_is_only_read(
    made: Repositories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = fetch_git(made.pin())
    monkeypatch.setattr("builders.sources.git.exclusive_lock", _refuse)
    assert fetch_git(made.pin()).archive == checkout.archive
    with pytest.raises(EnvironmentLacksError, match="Read-only file system") as caught:
        fetch_git(made.pin("csrc"))
    assert str(tmp_path) in caught.value.message


def _refuse(*_: object) -> None:
    raise OSError(30, "Read-only file system")
