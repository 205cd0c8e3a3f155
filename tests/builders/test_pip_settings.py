"""The user's pip configuration for a pip in an image: package sources only."""

from __future__ import annotations

import http.server
import os
import threading
from pathlib import Path

import pypi_simple
import pytest

from builders.containers.runtime import Bind
from builders.environments.python import is_reachable, local_bind, pip_settings
from builders.network import urls
from builders.network.urls import PackageSources, package_sources
from resolver.errors import UsageError


@pytest.fixture(autouse=True)
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore the pip configuration of this machine."""
    for name in [*filter(lambda name: name.startswith("PIP_"), os.environ), "NETRC", "VIRTUAL_ENV"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "all"))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "named.conf"))
    monkeypatch.setattr(urls, "_SYSTEM_FILE", tmp_path / "pip.conf")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_files_apply_in_pips_order_then_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everyone = "[global]\nindex-url = http://one/simple\ntimeout = 1\nretries = 1\nproxy = p\n"
    write(tmp_path / "all" / "pip" / "pip.conf", everyone)
    write(tmp_path / "config" / "pip" / "pip.conf", "[global]\nindex_url = http://two/simple\nretries = 2\n")
    write(tmp_path / "named.conf", "[global]\nretries = 3\n[download]\ntimeout = 4\n[install]\ntimeout = 5\n")
    monkeypatch.setenv("PIP_RETRIES", "6")
    env = pip_settings()[0]
    assert env["PIP_INDEX_URL"] == "http://two/simple"
    assert env["PIP_TIMEOUT"] == "4"
    assert env["PIP_RETRIES"] == "6"
    assert env["PIP_PROXY"] == "p"
    assert env["PIP_CONFIG_FILE"] == "/dev/null"


def test_system_file_is_read(tmp_path: Path) -> None:
    write(tmp_path / "pip.conf", "[global]\nretries = 2\n")
    assert pip_settings()[0]["PIP_RETRIES"] == "2"


def test_lines_become_words(tmp_path: Path) -> None:
    write(
        tmp_path / "named.conf", "[global]\nextra-index-url =\n    http://one/simple\n    http://two/simple\n"
    )
    assert pip_settings()[0]["PIP_EXTRA_INDEX_URL"] == "http://one/simple http://two/simple"


def test_files_are_ignored_if_config_file_is_devnull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "config" / "pip" / "pip.conf", "[global]\nretries = 2\n")
    assert "PIP_RETRIES" in pip_settings()[0]
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert "PIP_RETRIES" not in pip_settings()[0]


def test_install_locations_are_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "named.conf", "[global]\ntarget = /elsewhere\nno-binary = :all:\nno-index = true\n")
    for name in ("USER", "PREFIX", "REQUIRE_VIRTUALENV", "LOG", "CACHE_DIR", "ONLY_BINARY"):
        monkeypatch.setenv(f"PIP_{name}", "1")
    own = {"PIP_CONFIG_FILE", "PIP_DISABLE_PIP_VERSION_CHECK", "PIP_NO_INPUT", "PIP_NO_INDEX"}
    assert set(pip_settings()[0]) == own


def test_local_files_are_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wheels", "my index/simple", "home/links"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("ca.pem", "home/.netrc"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    links = f"wheels file://{tmp_path}/my%20index/simple ~/links http://host/links missing"
    monkeypatch.setenv("PIP_FIND_LINKS", links)
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
    env, binds = pip_settings()
    bound = {bind.path.relative_to(tmp_path) for bind in binds}
    assert bound == {Path(name) for name in ("wheels", "my index", "home/links", "ca.pem", "home/.netrc")}
    assert not any(bind.writable for bind in binds)
    words = env["PIP_FIND_LINKS"].split()
    assert words[0] == str(tmp_path / "wheels")
    assert words[3] == "http://host/links"
    assert env["NETRC"] == str(tmp_path / "home" / ".netrc")


def test_mirrors_replace_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    def mirrored(url: str) -> str:
        return url.replace("https://public/", "https://mirror/")

    assert "PIP_INDEX_URL" not in pip_settings(default_index="https://public/simple/")[0]
    assert pip_settings(mirrored, default_index="https://public/simple/")[0]["PIP_INDEX_URL"] == (
        "https://mirror/simple/"
    )
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://public/more https://other/simple")
    monkeypatch.setenv("PIP_INDEX_URL", "https://own/simple")
    env = pip_settings(mirrored, default_index="https://public/simple/")[0]
    assert env["PIP_EXTRA_INDEX_URL"] == "https://mirror/more https://other/simple"
    assert env["PIP_INDEX_URL"] == "https://own/simple"


@pytest.mark.parametrize("text", ["no section\n", "[global]\nretries = 1\nretries = 2\n"])
def test_unreadable_file_is_bad_input(text: str, tmp_path: Path) -> None:
    write(tmp_path / "named.conf", text)
    with pytest.raises(UsageError, match=r"Cannot read pip's configuration .*named\.conf"):
        pip_settings()


def test_local_index_is_bound(tmp_path: Path) -> None:
    (tmp_path / "simple").mkdir()
    assert local_bind((tmp_path / "simple").as_uri()) == Bind(tmp_path)
    assert local_bind("https://host/simple") is None


def test_server_is_reachable_if_it_responds() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        there = f"http://127.0.0.1:{server.server_port}/"
        assert is_reachable(there)
        server.shutdown()
    assert not is_reachable(there)


class Quiet(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Ignore the message."""


def test_local_directory_is_reachable() -> None:
    assert is_reachable("file:///not/there")


def test_package_sources_are_those_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = package_sources()
    assert sources == PackageSources((pypi_simple.PYPI_SIMPLE_ENDPOINT,), (), ())
    write(tmp_path / "named.conf", "[global]\nindex-url = http://one/simple\nextra-index-url = http://two\n")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path} http://host/links.html")
    assert package_sources() == PackageSources(
        ("http://one/simple", "http://two"),
        (tmp_path.as_uri(), "http://host/links.html"),
        (),
    )
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://four")
    own = package_sources("http://own", ["http://two", "http://three"])
    assert own.indexes == ("http://own", "http://two", "http://three", "http://four")
    assert own.by_preference == ("http://two", "http://three", "http://own", "http://four")
    assert own.equal == ("http://four",)


def test_no_index_leaves_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "true")
    assert package_sources().indexes == ()
    assert package_sources("http://own").indexes == ("http://own",)
    extra = ["http://two", "http://three"]
    assert package_sources("", extra).by_preference == tuple(extra)
