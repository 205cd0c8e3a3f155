"""Sources from a server that speaks git over HTTP, as the hosts of the catalog's repositories do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.network.git import Repository, fetch_git
from resolver.errors import SourceError
from resolver.facts.schema import Git
from tests.builders.gitrepos import add_submodule, commit, files_of, git
from tests.builders.gitserver import Served, git_server

SECRET = ("someone", "hunter2")


@pytest.fixture
def repositories(tmp_path: Path) -> Path:
    """Create a repository of three commits, with its submodule in the same directory."""
    root = tmp_path / "repositories"
    commit(root / "inner", {"inner.h": "int inner;\n"})
    commit(root / "outer", {"setup.py": "print(1)\n", "large.h": "int x;\n" * 200_000})
    add_submodule(root / "outer", "csrc/inner", root / "inner", "../inner")
    commit(root / "outer", {"setup.py": "print(2)\n"})
    return root


@pytest.fixture
def served(repositories: Path) -> Iterator[Served]:
    with git_server(repositories) as server:
        yield server


def pin_of(served: Served, repositories: Path, revision: str = "HEAD") -> Git:
    return Git(f"{served.url}/outer", git(repositories / "outer", "rev-parse", revision), ("csrc/inner",))


@pytest.mark.parametrize(("revision", "text"), [("HEAD", "print(2)\n"), ("HEAD~1", "print(1)\n")])
def test_commit_and_submodule_are_fetched_without_history(
    served: Served, repositories: Path, tmp_path: Path, revision: str, text: str
) -> None:
    pin = pin_of(served, repositories, revision)
    cached = fetch_git(pin)
    cached.checkout(tmp_path / "out", tmp_path / "log")
    files = files_of(tmp_path / "out")
    assert (files["setup.py"], files["csrc/inner/inner.h"]) == (text, "int inner;\n")
    assert {tree.repository.url for tree in cached.trees} == {pin.url, f"{served.url}/inner"}
    copy = Repository(pin.url).path
    assert git(copy, "rev-list", "--all", "--count") == "1"
    assert {request for request in served.asked if request.startswith("POST")} == {
        "POST /outer/git-upload-pack",
        "POST /inner/git-upload-pack",
    }
    before = list(served.asked)
    assert not fetch_git(pin).fetched
    assert served.asked == before


@pytest.mark.slow
def test_netrc_login_is_used_and_no_password_prompted(
    repositories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with git_server(repositories, login=SECRET) as server:
        pin = pin_of(server, repositories)
        with pytest.raises(SourceError, match="could not read Username") as caught:
            fetch_git(pin)
        assert "Log:" in caught.value.message
        netrc = tmp_path / ".netrc"
        netrc.write_text("machine 127.0.0.1 login {} password {}\n".format(*SECRET))
        netrc.chmod(0o600)
        assert fetch_git(pin).trees[0].commit == pin.commit
        assert SECRET[1] not in Repository(pin.url).log.read_text()


def test_unknown_repository_is_an_error(served: Served) -> None:
    with pytest.raises(SourceError, match="Cannot read the repository"):
        fetch_git(Git(f"{served.url}/nowhere", "1" * 40))


def test_unknown_commit_is_an_error(served: Served) -> None:
    with pytest.raises(SourceError, match=f"has no commit {'1' * 40}"):
        fetch_git(Git(f"{served.url}/outer", "1" * 40))
