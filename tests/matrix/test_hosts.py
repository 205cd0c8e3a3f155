"""Hosts that a lock names and the user's configuration does not, and secrets in messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from builders.index_client import IndexClient
from matrix.building.locked import unnamed_hosts
from matrix.cli import main
from matrix.input.settings import Settings
from resolver.facts.catalog import Catalog
from resolver.facts.schema import Git, Sdist
from resolver.indexes import File
from resolver.lock import dumps
from resolver.model import Distribution
from tests.support.locks import built_pick, lock_of, locked_pick
from tests.support.web_server import web_server

Capture = pytest.CaptureFixture[str]
ZEROS = "0" * 64
INDEX = "https://index.example/simple"
FILE = File("far-1.0-py3-none-any.whl", "https://files.example/far.whl", ZEROS, 1, INDEX)


@pytest.mark.parametrize(
    ("pick", "hosts"),
    [
        (locked_pick("far", "1.0", FILE), ["files.example", "index.example"]),
        (locked_pick("far", "1.0", replace(FILE, url="file:///far.whl", index="")), []),
        (built_pick("far", sdist=Sdist(file="f.zip", sha256="00", url="https://a.example:8")), ["a.example"]),
        (built_pick("far", git=Git(url="ssh://me@git.example/far", commit="00")), ["git.example"]),
        (built_pick("far", git=Git(url="me@git.example:far", commit="00")), ["git.example"]),
        (built_pick("far", git=Git(url="https://github.com/ROCm/apex", commit="00")), []),
        (locked_pick("torch", "2.9.1", index="https://Download.pytorch.org/whl/cpu"), []),
    ],
    ids=[
        "file of an index", "file here", "sdist", "git", "git by ssh", "host of the catalog",
        "index of the catalog",
    ],
)  # fmt: skip
def test_host_that_the_configuration_does_not_name_is_found(
    pick: Distribution, hosts: list[str], catalog: Catalog
) -> None:
    lock = lock_of(pick)
    assert unnamed_hosts(lock, Settings(), catalog) == hosts
    named = [f"https://{host}/simple" for host in hosts]
    assert unnamed_hosts(lock, Settings(extra_index_url=named), catalog) == []
    assert unnamed_hosts(lock, Settings(mirrors={f"{url}/": "file:///m/" for url in named}), catalog) == []
    assert unnamed_hosts(lock, Settings(requirements=[f"x @ {url}/x.whl" for url in named]), catalog) == []


def test_host_of_an_index_that_pip_would_search_is_found(catalog: Catalog) -> None:
    lock = lock_of(left_open=("x",), indexes=("https://evil.example/simple",))
    assert unnamed_hosts(lock, Settings(), catalog) == ["evil.example"]


@pytest.mark.usefixtures("own_cache")
def test_host_to_which_a_page_of_a_configured_index_links_is_named(tmp_path: Path, catalog: Catalog) -> None:
    page = tmp_path / "simple" / "far" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text('<!DOCTYPE html><html><body><a href="https://files.example/far.whl/far-1.0-py3-none-any.whl">'
                    "far-1.0-py3-none-any.whl</a></body></html>")  # fmt: skip
    with web_server(tmp_path) as server:
        index = f"{server}/simple"
        settings = Settings(index_url=index)
        lock = lock_of(locked_pick("far", "1.0", replace(FILE, index=index)))
        assert unnamed_hosts(lock, settings, catalog) == ["files.example"]  # the page was never read
        IndexClient([index]).project("far")
        assert unnamed_hosts(lock, settings, catalog) == []
        other = replace(FILE, url="https://evil.example/far.whl", index=index)
        assert unnamed_hosts(lock_of(locked_pick("far", "1.0", other)), settings, catalog) == ["evil.example"]


@pytest.mark.parametrize("command", [["fetch", "--offline"], ["build-wheels"], ["env", "--for", "pip"]])
def test_hosts_are_named_in_one_line(command: list[str], capsys: Capture) -> None:
    Path("matrix.lock").write_text(dumps(lock_of(locked_pick("far", "1.0", FILE))))
    main(command)
    lines = [line for line in capsys.readouterr().err.splitlines() if "files.example" in line]
    assert lines[0] == (
        "The lock names hosts that your configuration does not name: files.example, index.example."
    )


COMMANDS = [
    ["check"],
    ["check", "--format", "json"],
    ["resolve", "sympy", "--backend", "cpu"],
    ["resolve", "torch", "--backend", "cpu", "--offline"],
    ["resolve", "x @ https://me:s3cr3t@127.0.0.1:9/x-1.0-py3-none-any.whl", "--backend", "cpu"],
    ["check", "list.txt", "--timeout", "20"],
    ["env", "--for", "pip"],
    ["fetch"],
    ["catalog", "list"],
]


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("command", COMMANDS, ids=[" ".join(command[:2]) for command in COMMANDS])
def test_no_command_writes_a_login(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither to stdout, nor to stderr, nor to any file: logs, locks, caches."""
    server = "127.0.0.1:9"
    for name, value in {
        "PIP_NO_INDEX": "0",
        "PIP_INDEX_URL": f"https://me:s3cr3t@{server}/simple",
        "PIP_EXTRA_INDEX_URL": f"https://s3cr3t@{server}/a https://me:s3cr3t@{server}/b",
        "UV_INDEX": f"x=https://me:s3cr3t@{server}/c",
        "PIP_RETRIES": "0",
        "NO_PROXY": "127.0.0.1",
        "GITHUB_TOKEN": "s3cr3t",
    }.items():
        monkeypatch.setenv(name, value)
    Path("list.txt").write_text("sympy\n")
    Path("index/simple").mkdir(parents=True)
    Path("matrix.lock").write_text(dumps(lock_of(locked_pick("far", "1.0", FILE))))
    main([*command[:1], "--debug", "-vv", *command[1:]])
    output = capfd.readouterr()
    assert "s3cr3t" not in output.out + output.err
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"s3cr3t" not in path.read_bytes(), path
