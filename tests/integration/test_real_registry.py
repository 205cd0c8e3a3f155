"""The client against the package index that pip is configured to use."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from packaging.version import Version

from builders.index_client import IndexClient
from builders.pip_configuration import package_sources

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
        ["uv", "pip", "compile", *options, "-"],
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
