"""``matrix farm fetch``: fetched, cached and missing files."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from builders.recipes import patches_of
from builders.sources.fetch import FetchedItem, MissingItem, fetch_all
from builders.sources.source import obtain
from builders.storage.files import cache_root
from matrix.cli import main
from resolver.errors import EnvironmentLacksError
from resolver.facts.catalog import load
from resolver.lock import read_lock
from resolver.model import Resolution
from tests.builders.gitrepos import add_submodule, commit, files_of, git

Capture = pytest.CaptureFixture[str]
SEEN = 'status = "observed"\nsource = "tests"\n'
PATCH = "--- a/setup.py\n+++ b/setup.py\n@@ -1 +1 @@\n-old\n+new\n"


class Work:
    """A directory with facts for two packages, one from git and one an sdist, and mirrors on disk."""

    def __init__(self, root: Path, repositories: Path) -> None:
        self.root = root
        self.mirror = shutil.copytree(repositories, root / "mirror", symlinks=True)
        self.commit = git(self.mirror / "outer", "rev-parse", "HEAD")
        self.sdist = self._make_sdist()
        digest = hashlib.sha256(PATCH.encode()).hexdigest()
        facts = root / "facts"
        facts.mkdir()
        (facts / "fix.patch").write_text(PATCH)
        (facts / "fromgit.toml").write_text(
            f'schema = 1\n[[package]]\nname = "fromgit"\ntitle = "From git"\n{SEEN}'
            f'[[release]]\nversion = "1.0"\nbackend = ["cpu"]\n{SEEN}'
            f'git = {{ url = "https://git.invalid/group/outer", commit = "{self.commit}", '
            f'submodules = ["csrc"] }}\npatches = [{{ file = "fix.patch", sha256 = "{digest}" }}]\n'
            f'[[recipe]]\nbackend = "cpu"\n{SEEN}'
        )
        (facts / "tiny.toml").write_text(
            f'schema = 1\n[[package]]\nname = "tiny"\ntitle = "Tiny"\n{SEEN}'
            f'[[release]]\nversion = "1.0"\nbackend = ["cpu"]\n{SEEN}'
            f'sdist = {{ file = "tiny-1.0.tar.gz", sha256 = "{self.sdist}" }}\n'
            f'[[recipe]]\nbackend = "cpu"\n{SEEN}'
        )
        (root / "matrix.toml").write_text(
            f'catalog = ["facts"]\n[mirrors]\n"https://git.invalid/group/" = "{self.mirror.as_uri()}/"\n'
            f'"https://index.invalid/" = "{self.mirror.as_uri()}/"\n'
        )

    def _make_sdist(self) -> str:
        source = self.root / "tiny-1.0"
        source.mkdir()
        (source / "setup.py").write_text("tiny\n")
        page = self.mirror / "simple" / "tiny" / "index.html"
        page.parent.mkdir(parents=True)
        archive = page.parent / "tiny-1.0.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(source, "tiny-1.0")
        page.write_text('<a href="tiny-1.0.tar.gz">tiny-1.0.tar.gz</a>')
        return hashlib.sha256(archive.read_bytes()).hexdigest()

    def lock(self) -> Resolution:
        return read_lock(self.root / "matrix.lock")


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a repository and its submodule, which all tests copy."""
    folder = tmp_path_factory.mktemp("repositories")
    inner, outer = folder / "inner", folder / "outer"
    commit(inner, {"inner.h": "int x;\n"})
    commit(outer, {"setup.py": "old\n"})
    add_submodule(outer, "csrc/inner", inner, "https://git.invalid/group/inner")
    return folder


@pytest.fixture
def work(tmp_path: Path, repositories: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Work:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple/")
    made = Work(tmp_path, repositories)
    assert main(["resolve", "tiny", "fromgit", "torch==2.13.0", "--backend", "cpu", "-q"]) == 0
    capsys.readouterr()
    return made


def fetched(capsys: Capture, *arguments: str, code: int = 0) -> Any:
    assert main(["farm", "fetch", "--only-sources", *arguments, "--format", "json"]) == code
    return json.loads(capsys.readouterr().out)


def test_sources_are_fetched_once_then_cached(work: Work, capsys: Capture) -> None:
    document = fetched(capsys)
    by_name = {item["name"]: item for item in document["sources"]}
    assert {name: (item["kind"], item["state"]) for name, item in by_name.items()} == {
        "fromgit": ("git", "fetched"),
        "tiny": ("sdist", "fetched"),
    }
    assert by_name["tiny"]["identity"] == f"sha256:{work.sdist}"
    assert by_name["fromgit"]["identity"].startswith(f"git:{work.commit}:tree:")
    assert by_name["fromgit"]["origin"] == f"https://git.invalid/group/outer@{work.commit}"
    assert Path(by_name["tiny"]["path"]).stat().st_size == by_name["tiny"]["bytes"]
    assert by_name["fromgit"]["bytes"] > 0
    assert Path(by_name["fromgit"]["path"]).is_dir()
    assert document["bytes_fetched"] == sum(item["bytes"] for item in document["sources"])
    assert document["missing"] == []

    shutil.rmtree(work.mirror)
    again = fetched(capsys)
    assert [(item["state"], item["identity"]) for item in again["sources"]] == [
        ("cached", item["identity"]) for item in document["sources"]
    ]
    assert again["bytes_fetched"] == 0
    assert fetched(capsys, "--offline") == again


def test_cached_sources_are_unpacked_without_network(work: Work, capsys: Capture) -> None:
    fetched(capsys)
    shutil.rmtree(work.mirror)
    catalog = load([work.root / "facts"])
    picks = {pick.name: pick for pick in work.lock().built()}
    item = picks["fromgit"]
    source = obtain(item, offline=True, patches=patches_of(item, catalog))
    top = source.unpack(work.root / "build" / "source")
    files = files_of(top)
    files.pop(".gitmodules")
    assert files == {"setup.py": "new\n", "csrc/inner/inner.h": "int x;\n"}
    assert source.inputs["submodules"].keys() == {"csrc/inner"}
    assert source.variables(work.root / "build") == {
        "GIT_CEILING_DIRECTORIES": str(work.root / "build"),
        "SETUPTOOLS_SCM_PRETEND_VERSION": "1.0",
    }
    assert "SETUPTOOLS_SCM_PRETEND_VERSION" not in obtain(picks["tiny"], offline=True).variables(work.root)


@pytest.mark.usefixtures("work")
def test_named_source_only_is_fetched(capsys: Capture) -> None:
    assert [item["name"] for item in fetched(capsys, "Tiny")["sources"]] == ["tiny"]
    assert fetched(capsys, "tinny", code=2)["hint"] == "Did you mean tiny?"


def test_missing_source_does_not_stop_the_others(work: Work, capsys: Capture) -> None:
    """Without the mirrors, no source can be reached, because the hosts do not exist."""
    assert main(["farm", "fetch", "tiny", "-q", "--only-sources"]) == 0
    (work.root / "matrix.toml").write_text('catalog = ["facts"]\n')
    capsys.readouterr()
    document = fetched(capsys, code=3)
    assert [item["name"] for item in document["sources"]] == ["tiny"]
    (missing,) = document["missing"]
    assert (missing["name"], missing["id"]) == ("fromgit", "environment")
    assert "git.invalid" in missing["message"]
    shutil.rmtree(cache_root())
    assert main(["farm", "fetch", "--offline", "--only-sources"]) == 3
    output = capsys.readouterr()
    assert "tiny 1.0  missing  tiny-1.0.tar.gz" in output.out
    assert f"fromgit 1.0  missing  https://git.invalid/group/outer@{work.commit}" in output.out
    assert "0 fetched (0 B), 0 cached, 2 missing" in output.out
    assert output.err.count("and --offline is set") == 2


def test_wrong_hash_is_exit_1(work: Work, capsys: Capture) -> None:
    archive = work.mirror / "simple" / "tiny" / "tiny-1.0.tar.gz"
    archive.write_bytes(archive.read_bytes() + b"\0")
    (missing,) = fetched(capsys, "tiny", code=1)["missing"]
    assert missing["id"] == "hash-mismatch"


def test_fetch_without_lock_hints_at_resolve(work: Work, capsys: Capture) -> None:
    (work.root / "matrix.lock").unlink()
    assert main(["farm", "fetch"]) == 2
    assert "matrix resolve" in capsys.readouterr().err


@pytest.mark.usefixtures("work")
def test_lock_that_builds_nothing(capsys: Capture) -> None:
    assert main(["resolve", "torch==2.13.0", "--backend", "cpu", "-q"]) == 0
    capsys.readouterr()
    assert main(["farm", "fetch"]) == 0
    assert "builds nothing" in capsys.readouterr().out
    assert not (cache_root() / "sources").exists()


def test_invalid_mirror_is_bad_input(work: Work, capsys: Capture) -> None:
    (work.root / "matrix.toml").write_text('[mirrors]\n"git.invalid" = "elsewhere"\n')
    assert main(["farm", "fetch"]) == 2
    assert "[mirrors]" in capsys.readouterr().err


@pytest.mark.integration
def test_real_sdist_from_package_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["resolve", "deepspeed==0.19.8", "torch==2.13.0", "--backend", "cpu", "-q"]) == 0
    capsys.readouterr()
    (item,) = fetched(capsys)["sources"]
    assert (item["name"], item["state"]) == ("deepspeed", "fetched")
    (pick,) = read_lock(tmp_path / "matrix.lock").built()
    top = obtain(pick, offline=True).unpack(tmp_path / "out")
    assert top.name == "deepspeed-0.19.8"
    assert (top / "op_builder" / "builder.py").is_file()


def test_wheels_are_fetched_after_sources(work: Work) -> None:
    lock = work.lock()
    wheel = FetchedItem("torch", "2.13.0", "wheel", "torch.whl", "fetched", 7, "sha256:0", "/torch.whl")
    lost = MissingItem.from_error("ninja", "", "ninja", EnvironmentLacksError("no network"))
    seen = []

    def wheels(given: Resolution, picks: Any) -> list[FetchedItem | MissingItem]:
        seen.append((given, [pick.name for pick in picks]))
        return [wheel, lost]

    result = fetch_all(
        lock, load([work.root / "facts"]), ["tiny"], mirrors={}, offline=True, fetch_wheels=wheels
    )
    assert seen == [(lock, ["tiny"])]
    assert result.sources == [wheel]
    assert [item.name for item in result.missing] == ["tiny", "ninja"]
