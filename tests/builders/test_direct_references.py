"""Direct references to files on a server and on this machine, to projects, and to commits."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.index_client import IndexClient
from builders.network.download import Downloads, download
from builders.sources.fetch import fetch_file
from builders.storage.files import cached_file, sdist_path, sha256_of
from resolver.errors import EnvironmentLacksError, MatrixError, SourceError, UsageError
from resolver.facts.schema import Sdist
from resolver.indexes import File, Metadata
from tests.builders.gitrepos import add_submodule, commit, git
from tests.builders.test_index_client import (
    CORE,
    LEGACY,
    REQUIRES_TXT,
    Handler,
    Server,
    sdist_of,
    sha256,
    wheel_of,
)

WHEEL = "some_pkg-1.0-py3-none-any.whl"
PYPROJECT = """
[project]
name = "Some.Pkg"
version = "2.0"
requires-python = ">=3.10"
dependencies = ["six"]
optional-dependencies = { gpu = ["torch>=2"] }
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a client; all share a cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(**options: Any) -> IndexClient:
        return IndexClient([], cache=tmp_path / "cache" / "indexes", **options)

    return make


def read(client: IndexClient, url: str, name: str = "some-pkg") -> tuple[str, File, Metadata]:
    """Return version, file and metadata of a direct reference."""
    project = client.direct(name, url)
    assert project.name == name
    (release,) = project.releases
    (file,) = release.files
    metadata = client.metadata([file])
    assert metadata is not None
    assert file.index == ""
    return release.version, file, metadata


def archive_of(texts: dict[str, str], *, as_zip: bool = False) -> bytes:
    content = io.BytesIO()
    if as_zip:
        with zipfile.ZipFile(content, "w") as files:
            for path, text in texts.items():
                files.writestr(path, text)
        return content.getvalue()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for path, text in texts.items():
            info = tarfile.TarInfo(path)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return content.getvalue()


# Files on a server


def test_remote_wheel_is_downloaded_once(server: Server, client: Any) -> None:
    data = wheel_of(CORE)
    server.file(f"/{WHEEL}?x=y", data)
    url = f"{server.url}/{WHEEL}?x=y"
    version, file, metadata = read(client(), url)
    assert (version, file.name, file.url, file.sha256, file.size) == (
        "1.0",
        WHEEL,
        url,
        sha256(data),
        len(data),
    )
    assert (metadata.extras, file.requires_python) == (("gpu", "big-models"), ">=3.9, <4")
    assert read(client(), url)[1] == file
    assert len(server.requests) == 1
    assert not fetch_file(file, Downloads({}), offline=True)
    assert cached_file(file).read_bytes() == data


def test_old_download_is_checked_under_a_condition(server: Server, client: Any) -> None:
    data = wheel_of(CORE)

    def reply(request: Handler) -> None:
        if request.headers.get("If-None-Match") == '"1"':
            request.reply(304)
        else:
            request.reply(200, data, ETag='"1"')

    server.pages[f"/{WHEEL}"] = reply
    first = read(client(), f"{server.url}/{WHEEL}")
    assert read(client(fresh_for=0), f"{server.url}/{WHEEL}") == first
    assert len(server.requests) == 2
    data = wheel_of(CORE.replace("numpy", "scipy"))
    server.file(f"/{WHEEL}", data)
    assert read(client(fresh_for=0), f"{server.url}/{WHEEL}")[1].sha256 == sha256(data)


def test_hash_of_the_url_is_checked(server: Server, client: Any) -> None:
    data = wheel_of(CORE)
    server.file(f"/{WHEEL}", data)
    url = f"{server.url}/{WHEEL}#sha256="
    assert read(client(), url + sha256(data))[1].url == f"{server.url}/{WHEEL}"
    read(client(fresh_for=0), url + sha256(data))
    assert len(server.requests) == 1
    with pytest.raises(SourceError, match=f"has the SHA-256 {sha256(data)}, but its URL has 00"):
        client().direct("some-pkg", url + "00")


def test_offline_uses_what_was_downloaded(server: Server, client: Any) -> None:
    server.file(f"/{WHEEL}", wheel_of(CORE))
    url = f"{server.url}/{WHEEL}"
    with pytest.raises(EnvironmentLacksError, match="not in the cache, and --offline is set"):
        client(offline=True).direct("some-pkg", url)
    first = read(client(), url)
    assert read(client(offline=True, fresh_for=0), url) == first


def test_metadata_of_dynamic_sdist_is_marked(server: Server, client: Any) -> None:
    data = sdist_of(LEGACY, **{"some_pkg.egg-info/requires.txt": REQUIRES_TXT})
    server.file("/some_pkg-1.0.tar.gz", data)
    version, _, metadata = read(client(), f"{server.url}/some_pkg-1.0.tar.gz")
    assert (version, metadata.dynamic, metadata.requires[0]) == ("1.0", True, "six>=1")


@pytest.mark.parametrize("as_zip", [True, False])
def test_archive_of_a_repository_has_static_metadata(server: Server, client: Any, *, as_zip: bool) -> None:
    name = "v2.zip" if as_zip else "main.tar.gz"
    texts = {"pkg-main/pyproject.toml": "[project]\nname = 'other'", "pkg-main/a/b/pyproject.toml": PYPROJECT}
    server.file(f"/archive/{name}", archive_of(texts, as_zip=as_zip))
    url = f"{server.url}/archive/{name}#subdirectory=a/b"
    version, file, metadata = read(client(), url)
    assert (version, file.url) == ("2.0", url)
    assert file.name == ("some_pkg-2.0.zip" if as_zip else "some_pkg-2.0.tar.gz")
    assert metadata.requires == ("six", 'torch>=2; extra == "gpu"')


@pytest.mark.parametrize(
    ("path", "data", "kind", "text"),
    [
        ("some_pkg-1.0.tar.gz", sdist_of(None), UsageError, "does not state a valid name"),
        (WHEEL, b"not a zip", SourceError, "cannot be used"),
        ("some_pkg-1.0.tar.gz", b"not a tar", SourceError, "cannot be used: its archive"),
        (WHEEL, wheel_of(CORE.replace("1.0", "1.1")), SourceError, "belongs to Some_Pkg 1.1"),
        (WHEEL.replace("some", "other"), None, SourceError, "404"),
    ],
)
def test_unusable_file_is_an_error(
    server: Server, client: Any, *, path: str, data: bytes | None, kind: type[MatrixError], text: str
) -> None:
    if data is not None:
        server.file(f"/{path}", data)
    with pytest.raises(kind, match=text) as caught:
        client().direct("some-pkg", f"{server.url}/{path}")
    assert f"{server.url}/{path}" in caught.value.message
    assert caught.value.hint


def test_other_distribution_is_an_error(server: Server, client: Any) -> None:
    server.file(f"/{WHEEL}", wheel_of(CORE))
    with pytest.raises(UsageError, match="is some-pkg, not other"):
        client().direct("other", f"{server.url}/{WHEEL}")


def test_server_that_is_down_is_an_error(client: Any) -> None:
    with pytest.raises(EnvironmentLacksError, match="cannot be downloaded"):
        client().direct("some-pkg", f"http://127.0.0.1:9/{WHEEL}")


# Files and projects on this machine


def test_local_wheel(tmp_path: Path, client: Any) -> None:
    path = tmp_path / WHEEL
    path.write_bytes(wheel_of(CORE))
    version, file, _ = read(client(offline=True), path.as_uri())
    assert (version, file.name, file.url, file.sha256) == ("1.0", WHEEL, path.as_uri(), sha256_of(path))
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        client().direct("some-pkg", (tmp_path / "missing-1.0.tar.gz").as_uri())


def test_local_sdist_without_pkg_info(tmp_path: Path, client: Any) -> None:
    path = tmp_path / "some_pkg-2.0.tar.gz"
    path.write_bytes(archive_of({"some_pkg-2.0/pyproject.toml": PYPROJECT}))
    version, _, metadata = read(client(), path.as_uri())
    assert (version, metadata.dynamic) == ("2.0", False)


def test_project_is_an_sdist_whose_hash_depends_on_its_files_only(tmp_path: Path, client: Any) -> None:
    (tmp_path / "lib" / "__pycache__").mkdir(parents=True)
    (tmp_path / "lib" / "pyproject.toml").write_text(PYPROJECT)
    version, file, metadata = read(client(), (tmp_path / "lib").as_uri())
    assert (version, file.name, metadata.extras) == ("2.0", "some_pkg-2.0.tar.gz", ("gpu",))
    shutil.copytree(tmp_path / "lib", tmp_path / "other")
    os.utime(tmp_path / "other" / "pyproject.toml", (1, 1))
    assert read(client(), (tmp_path / "other").as_uri())[1].sha256 == file.sha256
    path = sdist_path(Sdist(file.name, file.sha256))
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["some_pkg-2.0/pyproject.toml", "some_pkg-2.0/PKG-INFO"]
    path.unlink()
    download(file.url, path, file.sha256, Downloads({}))  # elsewhere, from the same files
    (tmp_path / "lib" / "pyproject.toml").write_text(f"{PYPROJECT}\n# changed\n")
    assert read(client(), (tmp_path / "lib").as_uri())[1].sha256 != file.sha256
    path.unlink()
    with pytest.raises(MatrixError, match="does not have the pinned hash"):
        download(file.url, path, file.sha256, Downloads({}))


# Commits


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    commit(tmp_path / "repo", {"python/pyproject.toml": PYPROJECT, "pyproject.toml": PYPROJECT})
    git(tmp_path / "repo", "tag", "-a", "v2", "-m", "tests")
    git(tmp_path / "repo", "config", "uploadpack.allowAnySHA1InWant", "true")
    return tmp_path / "repo"


@pytest.mark.parametrize("ref", ["", "@main", "@v2", "@refs/heads/main", "@HEAD", "@commit"])
def test_branch_and_tag_become_a_commit(repository: Path, client: Any, ref: str) -> None:
    head = git(repository, "rev-parse", "HEAD")
    url = f"git+{repository.as_uri()}{ref.replace('commit', head)}"
    version, file, metadata = read(client(), url)
    assert (version, file.name) == ("2.0", "some_pkg-2.0.tar.gz")
    assert file.url == f"git+{repository.as_uri()}@{head}"
    assert metadata.requires == ("six", 'torch>=2; extra == "gpu"')
    assert read(client(offline=True), url)[1] == file


def test_branch_is_read_again(repository: Path, client: Any) -> None:
    url = f"git+{repository.as_uri()}@main#subdirectory=python"
    assert read(client(), url)[0] == "2.0"
    head = commit(repository, {"python/pyproject.toml": PYPROJECT.replace("2.0", "2.1")})
    assert read(client(), url)[0] == "2.0"
    version, file, _ = read(client(fresh_for=0), url)
    assert (version, file.url) == ("2.1", f"git+{repository.as_uri()}@{head}#subdirectory=python")


def test_sdist_of_a_commit_has_its_submodules(repository: Path, client: Any, tmp_path: Path) -> None:
    commit(tmp_path / "inner", {"file": "text"})
    git(tmp_path / "inner", "config", "uploadpack.allowAnySHA1InWant", "true")
    add_submodule(repository, "inner", tmp_path / "inner")
    _, file, _ = read(client(), f"git+{repository.as_uri()}")
    path = sdist_path(Sdist(file.name, file.sha256))
    with tarfile.open(path) as archive:
        assert "some_pkg-2.0/inner/file" in archive.getnames()
    path.unlink()
    download(file.url, path, file.sha256, Downloads({}))


COMPUTED = {
    "setup.py": "from torch.utils.cpp_extension import CppExtension\n"
    "setup(name='some_pkg', version=read(), install_requires=['six', 'a b'], "
    "ext_modules=[CppExtension('some_pkg._C', ['c.cpp'])])"
}


@pytest.mark.parametrize(
    ("files", "version", "requires"),
    [
        (COMPUTED | {"some_pkg/__init__.py": "__version__ = '3.1'"}, "3.1", ("six",)),
        (COMPUTED, "2.5", ("six",)),  # of the tag
        ({"pyproject.toml": PYPROJECT.replace('version = "2.0"', 'dynamic = ["version"]')}, "2.5", ("six",)),
    ],
)
def test_version_that_a_build_computes_is_read_from_files_or_a_tag(
    tmp_path: Path, client: Any, files: dict[str, str], version: str, requires: tuple[str, ...]
) -> None:
    commit(tmp_path / "repo", files)
    git(tmp_path / "repo", "tag", "v2.5")
    git(tmp_path / "repo", "config", "uploadpack.allowAnySHA1InWant", "true")
    url = f"git+{(tmp_path / 'repo').as_uri()}"
    found, file, metadata = read(client(), f"{url}@v2.5")
    assert (found, metadata.requires[:1], metadata.dynamic) == (version, requires, "setup.py" in files)
    content = client().content(file, None)
    assert content.source.kind == ("torch" if "setup.py" in files else "pure")
    if version == "2.5":
        with pytest.raises(UsageError, match="computes its version") as caught:
            client().direct("some-pkg", f"{url}@main")
        assert f"`matrix catalog draft {url}@main --release VERSION`" in caught.value.hint


@pytest.mark.parametrize(
    ("ref", "kind", "text"),
    [
        ("@nope", SourceError, "has no branch or tag 'nope'"),
        ("@--upload-pack=false", SourceError, "has no branch or tag '--upload-pack=false'"),
        ("#subdirectory=none", UsageError, "is not a Python project"),
        ("#subdirectory=../..", SourceError, "is outside of the source"),
        ("@" + "0" * 40, SourceError, "has no commit"),
    ],
)
def test_unusable_commit_is_an_error(
    repository: Path, client: Any, ref: str, kind: type[MatrixError], text: str
) -> None:
    with pytest.raises(kind, match=text) as caught:
        client().direct("some-pkg", f"git+{repository.as_uri()}{ref}")
    assert str(repository) in caught.value.message


def test_missing_repository_is_an_error(tmp_path: Path, client: Any) -> None:
    with pytest.raises(SourceError, match="Cannot read the repository"):
        client().direct("some-pkg", f"git+{(tmp_path / 'none').as_uri()}@main")
