"""Direct references from the request to the files of the consumers and to a wheelhouse."""

from __future__ import annotations

import io
import json
import os
import tomllib
import zipfile
from pathlib import Path

import pytest

from builders.storage.files import sha256_of
from matrix.cli import main
from resolver.lock import read_lock
from tests.builders.gitrepos import commit, git

PROJECT = '[project]\nname = "{name}"\nversion = "1.2"\n'


@pytest.fixture
def references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the URLs of a wheel, a project and a commit that are locked in the working directory."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "index.html").touch()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "pyproject.toml").write_text(PROJECT.format(name="tree"))
    head = commit(tmp_path / "repo", {"python/pyproject.toml": PROJECT.format(name="repo")})
    git(tmp_path / "repo", "config", "uploadpack.allowAnySHA1InWant", "true")
    wheel = tmp_path / "Some_Wheel-3.0-py3-none-any.whl"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        text = "Metadata-Version: 2.1\nName: some-wheel\nVersion: 3.0\n"
        archive.writestr("some_wheel-3.0.dist-info/METADATA", text)
        archive.writestr("some_wheel-3.0.dist-info/RECORD", "")
    wheel.write_bytes(content.getvalue())
    root = tmp_path.as_uri()
    texts = [
        f"repo @ git+{root}/repo@main#subdirectory=python",
        f"tree @ {root}/tree",
        f"some-wheel @ {wheel.as_uri()}",
    ]
    assert main(["resolve", *texts, "--backend", "cpu", "--index-url", "empty", "--python", "3.12"]) == 0
    return {
        "repo": f"git+{root}/repo@{head}#subdirectory=python",
        "tree": f"{root}/tree",
        "some-wheel": f"{wheel.as_uri()}#sha256={sha256_of(wheel)}",
    }


def _env(consumer: str, *options: str) -> str:
    assert main(["env", "--for", consumer, "-o", "written", *options]) == 0
    return Path("written").read_text()


def test_lock_has_commit_and_hash(references: dict[str, str]) -> None:
    lock = read_lock(Path("matrix.lock"))
    picks = {pick.name: pick for pick in lock.distributions}
    assert {name: picks[name].direct_url for name in references} == references
    assert {name: picks[name].version for name in references} == {
        "repo": "1.2",
        "tree": "1.2",
        "some-wheel": "3.0",
    }
    assert lock.is_complete


@pytest.mark.parametrize("consumer", ["pip", "cotainr"])
def test_requirements_have_the_urls(references: dict[str, str], consumer: str) -> None:
    text = _env(consumer)
    for name, url in references.items():
        assert f"{name} @ {url}\n" in text


def test_uv_has_sources_without_fragments(references: dict[str, str], tmp_path: Path) -> None:
    project = tomllib.loads(_env("uv"))
    assert project["tool"]["uv"]["sources"] == {
        "repo": {
            "git": f"{tmp_path.as_uri()}/repo",
            "rev": references["repo"].rpartition("@")[2].partition("#")[0],
            "subdirectory": "python",
        },
        "tree": {"path": str(tmp_path / "tree")},
        "some-wheel": {"path": str(tmp_path / "Some_Wheel-3.0-py3-none-any.whl")},
    }


def test_pylock_has_commit_directory_and_archive(references: dict[str, str], tmp_path: Path) -> None:
    assert main(["env", "--for", "pylock", "-o", "pylock.toml"]) == 0
    packages = {entry["name"]: entry for entry in tomllib.loads(Path("pylock.toml").read_text())["packages"]}
    url, _, digest = references["some-wheel"].partition("#sha256=")
    size = (tmp_path / "Some_Wheel-3.0-py3-none-any.whl").stat().st_size
    assert packages["some-wheel"]["archive"] == {"url": url, "size": size, "hashes": {"sha256": digest}}
    assert packages["tree"]["directory"] == {"path": str(tmp_path / "tree")}
    assert packages["repo"]["vcs"] == {
        "type": "git",
        "url": f"{tmp_path.as_uri()}/repo",
        "commit-id": references["repo"].rpartition("@")[2].partition("#")[0],
        "subdirectory": "python",
    }


@pytest.mark.usefixtures("references")
def test_wheelhouse_has_sdists_of_project_and_commit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["farm", "fetch", "--wheelhouse", "wheels", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == []
    names = {path.name for path in Path("wheels").iterdir()}
    assert names == {"repo-1.2.tar.gz", "tree-1.2.tar.gz", "Some_Wheel-3.0-py3-none-any.whl"}
    text = _env("pip", "--wheelhouse", "wheels")
    for name, file in (("repo", "repo-1.2.tar.gz"), ("tree", "tree-1.2.tar.gz")):
        assert f"{name}==1.2 --hash=sha256:{sha256_of(Path('wheels', file))}\n" in text
    assert "@" not in text.partition("--find-links")[2]
