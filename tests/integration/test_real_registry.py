"""The client against the package index that pip is configured to use."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import uv
from packaging.version import Version

from builders.index_client import IndexClient
from builders.network.urls import package_sources
from matrix.cli import main
from resolver.lock import read_lock

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

_PROJECTS = ("boto3", "numpy", "pyyaml", "tqdm", "typing-extensions")


def test_projects_and_metadata_then_offline(tmp_path: Path) -> None:
    sources = package_sources()
    client = IndexClient(sources.indexes, find_links=sources.find_links, cache=tmp_path)
    offline = IndexClient(sources.indexes, find_links=sources.find_links, cache=tmp_path, offline=True)
    for name in _PROJECTS:
        project = client.project(name)
        assert project is not None
        versions = [Version(release.version) for release in project.releases]
        assert versions == sorted(versions, reverse=True)
        assert len(set(versions)) == len(versions)
        release = next(r for r in project.releases if r.files and not Version(r.version).is_prerelease)
        metadata = client.metadata(release.files)
        assert metadata is not None
        assert (metadata.name, Version(metadata.version)) == (name, Version(release.version))
        assert metadata.requires_python
        assert all(len(file.sha256) == 64 for file in release.files)
        again = offline.project(name)
        assert again is not None
        assert [entry.version for entry in again.releases] == [entry.version for entry in project.releases]
        assert offline.metadata(release.files) == metadata
    assert client.project("no-such-project-anywhere-on-earth") is None


def test_same_newest_version_as_uv(tmp_path: Path) -> None:
    index = package_sources().indexes[0]
    client = IndexClient([index], cache=tmp_path)
    options = ["--no-deps", "--python-version", "3.12", "--no-header", "--no-annotate", "--index-url", index]
    listing = subprocess.run(
        [uv.find_uv_bin(), "pip", "compile", *options, "-"],
        input="\n".join(_PROJECTS),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for line in listing.split():
        name, _, version = line.partition("==")
        project = client.project(name)
        assert project is not None
        stable = (r.version for r in project.releases if r.files and not Version(r.version).is_prerelease)
        assert version in list(stable)[:3]  # the newest may not support this Python


_OLD = ("hydra-core==1.3.2", "docopt", "fire", "pyperclip", "rouge-score", "sacremoses==0.0.53")
"""Projects whose sdists old versions of setuptools wrote, or that require such a project (antlr4)."""


@pytest.mark.parametrize("requirement", _OLD)
def test_same_versions_as_uv_where_sdists_are_not_static(
    requirement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = ["--backend", "cpu", "--site", "local", "--python", "3.12"]
    # The first index of a machine may be a mirror of some files only.
    assert main(["resolve", requirement, *target, "--index-strategy", "unsafe-best-match"]) == 0
    lock = read_lock(Path("matrix.lock"))
    platform = f"x86_64-manylinux_{lock.version_of('glibc').replace('.', '_')}"
    options = ["--python-version", "3.12", "--python-platform", platform, "--no-header", "--no-annotate"]
    listing = subprocess.run(
        [uv.find_uv_bin(), "pip", "compile", *options, "-"],
        input=requirement,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert sorted(f"{pick.name}=={pick.version}" for pick in lock.distributions) == sorted(listing.split())
    inferred = [pick for pick in lock.distributions if pick.support == "inferred"]
    assert all(pick.origin == "build" for pick in inferred)


def test_url_of_a_real_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = package_sources()
    project = IndexClient(sources.indexes, find_links=sources.find_links, cache=tmp_path).project("rich")
    assert project is not None
    release = next(one for one in project.releases if one.files and not Version(one.version).is_prerelease)
    wheel = release.files[0]
    monkeypatch.chdir(tmp_path)
    requirement = f"rich[jupyter] @ {wheel.url}#sha256={wheel.sha256}"
    target = ["--backend", "cpu", "--site", "local", "--python", "3.12"]
    # The first index of a machine may be a mirror of some files only.
    assert main(["resolve", requirement, *target, "--index-strategy", "unsafe-best-match"]) == 0
    lock = read_lock(Path("matrix.lock"))
    pick = lock.pick("rich")
    assert pick is not None
    assert (pick.version, pick.extras) == (release.version, ("jupyter",))
    assert pick.direct_url == f"{wheel.url}#sha256={wheel.sha256}"
    assert lock.pick("pygments")
    assert lock.pick("ipywidgets")
    assert lock.is_complete
