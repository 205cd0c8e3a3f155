"""Direct references from the request to the files of the consumers and to a wheelhouse."""

from __future__ import annotations

import io
import json
import os
import tomllib
import zipfile
from pathlib import Path

import msgspec
import pytest

from builders.building.records import log_path, record_failure
from builders.findings import Finding
from builders.index import Index
from builders.sources.source import obtain
from builders.storage.files import sdist_path, sha256_of
from matrix.cli import main
from resolver.errors import BuildError, MatrixError
from resolver.lock import read_lock
from tests.builders.gitrepos import commit, git
from tests.support.tasks import make_recipe, make_task

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
    assert main(["env", "--for", consumer, "-o", "written.txt", *options]) == 0
    return Path("written.txt").read_text()


def test_lock_builds_commit_and_directory_and_pins_the_wheel(references: dict[str, str]) -> None:
    lock = read_lock(Path("matrix.lock"))
    picks = {pick.name: pick for pick in lock.distributions}
    assert {name: picks[name].files[0].url for name in ("repo", "tree")} == {
        name: references[name] for name in ("repo", "tree")
    }
    for name in ("repo", "tree"):
        pick = picks[name]
        assert (pick.origin, pick.version, pick.sdist and pick.sdist.file) == (
            "build", "1.2", f"{name}-1.2.tar.gz",
        )  # fmt: skip
        assert pick.recipe is not None
        assert pick.source is not None
        assert pick.source.kind == "pure"
    assert picks["some-wheel"].direct_url == references["some-wheel"]
    assert lock.is_complete


@pytest.mark.parametrize("consumer", ["pip", "cotainr"])
def test_requirements_have_wheels_only(references: dict[str, str], consumer: str) -> None:
    text = _env(consumer)
    assert f"some-wheel @ {references['some-wheel']}\n" in text
    assert "repo==1.2+cpu" in text
    assert "git+" not in text


@pytest.mark.usefixtures("references")
def test_uv_has_sources_without_fragments(tmp_path: Path) -> None:
    sources = tomllib.loads(_env("uv"))["tool"]["uv"]["sources"]
    assert sources["some-wheel"] == {"path": str(tmp_path / "Some_Wheel-3.0-py3-none-any.whl")}
    assert sources["repo"].keys() == sources["tree"].keys() == {"index"}


def test_pylock_has_the_archive(references: dict[str, str], tmp_path: Path) -> None:
    url, _, digest = references["some-wheel"].partition("#sha256=")
    Path("matrix.lock").unlink()
    Path("matrix.toml").unlink()
    options = ["--backend", "cpu", "--index-url", "empty", "--python", "3.12"]
    assert main(["resolve", f"some-wheel @ {url}", *options]) == 0
    assert main(["env", "--for", "pylock", "-o", "pylock.toml"]) == 0
    (package,) = tomllib.loads(Path("pylock.toml").read_text())["packages"]
    size = (tmp_path / "Some_Wheel-3.0-py3-none-any.whl").stat().st_size
    assert package["archive"] == {"url": url, "size": size, "hashes": {"sha256": digest}}


@pytest.mark.usefixtures("references")
def test_changed_directory_is_not_what_was_locked(tmp_path: Path) -> None:
    lock = read_lock(Path("matrix.lock"))
    pick = next(pick for pick in lock.distributions if pick.name == "tree")
    assert pick.sdist is not None
    assert not obtain(pick).fetched
    sdist_path(pick.sdist).unlink()
    (tmp_path / "tree" / "new.py").write_text("")
    with pytest.raises(MatrixError, match="does not have the pinned hash"):
        obtain(pick)


def test_last_failure_is_explained_with_the_way_to_edit_the_draft(
    references: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    pick = read_lock(Path("matrix.lock")).pick("repo")
    assert pick is not None
    task = msgspec.structs.replace(make_task(make_recipe()), pick=pick)
    error = BuildError("Building repo failed.", hint="Read the log.")
    cause = Finding(
        "missing-header", "error", "The compiler does not find longintrepr.h.", "Use Python 3.10."
    )
    error.details = {"diagnosis": [msgspec.to_builtins(cause)]}
    index = Index(Path("index"))
    record_failure(task, log_path(index, "repo", task.build_key), error)
    capsys.readouterr()
    assert main(["explain", "repo"]) == 0
    shown = capsys.readouterr()
    assert (
        "Cannot explain" not in shown.err
    )  # the source is no row of the catalog, and is resolved again all the same
    text = " ".join(shown.out.split())
    assert (
        "The last build failed Building repo failed. - The compiler does not find longintrepr.h. Use" in text
    )
    assert f"`matrix catalog draft {references['repo']}`" in text
    assert main(["explain", "tree"]) == 0
    assert "failed" not in capsys.readouterr().out
    assert main(["explain", "repo", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["failure"]["diagnosis"][0]["id"] == "missing-header"
