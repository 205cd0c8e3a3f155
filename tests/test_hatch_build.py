"""The build hook: libraries come from a registry, are checked against their hash, and may be missing."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import hatch_build
from hatch_build import DownloadError, Library, archive_url, vendor

FILES = {"package/dist/a.js": b"a();", "package/LICENSE": b"MIT"}


def archive(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return content.getvalue()


ARCHIVE = archive(FILES)
LIBRARY = Library(
    "@scope/a",
    "1.2.3",
    base64.b64encode(hashlib.sha512(ARCHIVE).digest()).decode(),
    {"package/dist/a.js": "a.js", "package/LICENSE": "a.LICENSE"},
)


class Registry(BaseHTTPRequestHandler):
    """Stand in for an npm registry with one archive."""

    asked: list[str] = []  # noqa: RUF012  one list for the test

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(ARCHIVE)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    Registry.asked.clear()
    with HTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/npm/"
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", url)
        yield url
        server.shutdown()


@pytest.mark.usefixtures("registry")
def test_files_are_downloaded_once(tmp_path: Path) -> None:
    directory = tmp_path / "report" / "vendored"
    vendor(directory, (LIBRARY,))
    vendor(directory, (LIBRARY,))
    assert Registry.asked == ["/npm/@scope/a/-/a-1.2.3.tgz"]
    assert (directory / "a.js").read_bytes() == b"a();"
    assert (directory / "a.LICENSE").read_bytes() == b"MIT"
    vendor(directory, (LIBRARY._replace(version="1.2.4"),))
    assert Registry.asked[1:] == ["/npm/@scope/a/-/a-1.2.4.tgz"]
    assert [path.name for path in directory.parent.iterdir()] == ["vendored"]


@pytest.mark.usefixtures("registry")
def test_other_hash_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="has the SHA-512"):
        vendor(tmp_path / "vendored", (LIBRARY._replace(sha512="AAAA"),))
    assert list(tmp_path.iterdir()) == []


def test_unreachable_registry_does_not_fail_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://127.0.0.1:1/")
    warnings: list[str] = []

    class App:
        """Stand in for hatchling's application."""

        display_warning = staticmethod(warnings.append)

    hook = hatch_build.CustomBuildHook(str(tmp_path), {}, None, None, "", "", App())  # type: ignore[arg-type]
    hook.initialize("standard", {})
    assert "NPM_CONFIG_REGISTRY" in warnings[0]
    assert not (tmp_path / hatch_build.DIRECTORY).exists()


def test_url_that_is_not_http_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "file:///etc")
    with pytest.raises(DownloadError, match="not an HTTP URL"):
        vendor(tmp_path / "vendored", (LIBRARY,))


def test_registry_of_user_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NPM_CONFIG_REGISTRY", "npm_config_registry"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "npmrc"
    config.write_text("; a comment\naudit=false\nregistry = https://npm.example/team/\n")
    monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(config))
    assert archive_url(LIBRARY) == "https://npm.example/team/@scope/a/-/a-1.2.3.tgz"


def test_default_registry_needs_no_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NPM_CONFIG_REGISTRY", "npm_config_registry"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(tmp_path / "missing"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert archive_url(LIBRARY).startswith("https://")
    assert archive_url(LIBRARY).endswith("/@scope/a/-/a-1.2.3.tgz")
