"""The network plugin in the commands: its option, the lock, and a source that cannot be fetched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from matrix.cli import main
from resolver.lock import read_lock

Capture = pytest.CaptureFixture[str]

ON_LUMI = ("--site", "lumi-g", "--date", "2026-11-20")
BUILT = ("rocm==7.0.*", "--base-image", "ridge.sif", "--catalog", "facts.toml")
IMAGE = """
schema = 1

[[image]]
name = "ridge.sif"
rocm = "7.0.2"
os = "Ubuntu 24.04"
glibc = "2.39"
python = ["3.12"]
libfabric = "2.1.0"
network-headers = true
status = "observed"
source = "its recipe"
"""


@pytest.fixture(autouse=True)
def _work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("facts.toml").write_text(IMAGE)


def resolved(capsys: Capture, *arguments: str) -> str:
    assert main(["resolve", "torch", "apex", *ON_LUMI, *arguments]) == 0
    output = capsys.readouterr()
    return " ".join((output.out + output.err).split())


def test_plugin_of_the_image_is_shown_and_is_not_installed(capsys: Capture) -> None:
    assert "rccl-net 1.4.0 base-image in the base image" in resolved(capsys, "-v")
    assert main(["env", "--for", "cotainr"]) == 0
    assert "rccl-net" not in capsys.readouterr().out
    assert main(["explain", "rccl-net", "-v"]) == 0
    assert "laifs-container-recipes/issues/18" in capsys.readouterr().out
    assert main(["diff", *ON_LUMI, "--driver", "6.4"]) == 0
    assert "impossible" not in capsys.readouterr().err


def test_plugin_to_build_has_its_reason(capsys: Capture) -> None:
    text = resolved(capsys, *BUILT, "-v")
    assert "rccl-net 1.21.1 build lumi-g has Slingshot, for which RCCL needs a network plugin" in text
    assert main(["env", "--for", "cotainr"]) == 0
    assert "- rccl-net==1.21.1+rocm7.0.torch2.10.0.gfx90a" in capsys.readouterr().out


def test_option_leaves_the_plugin_out_and_is_part_of_the_lock(capsys: Capture) -> None:
    text = resolved(capsys, *BUILT, "--no-network-plugin")
    assert "RCCL's network plugin is left out (--no-network-plugin, or --for a tool that uses no" in text
    lock = read_lock(Path("matrix.lock"))
    assert lock.request.no_network_plugin
    assert lock.pick("rccl-net") is None
    Path("matrix.toml").unlink()
    resolved(capsys, *BUILT)
    assert main(["build-wheels", "--no-network-plugin"]) == 2
    assert "Resolve again with --no-network-plugin." in capsys.readouterr().err


def test_setting_leaves_the_plugin_out(capsys: Capture) -> None:
    Path("matrix.toml").write_text("no-network-plugin = true\n")
    assert "is left out (--no-network-plugin, or" in resolved(capsys, *BUILT)


def test_tool_of_the_host_does_not_get_the_plugin_of_the_image(capsys: Capture) -> None:
    assert "rccl-net" in resolved(capsys, "--for", "cotainr")
    assert "RCCL's network plugin is left out" in resolved(capsys, "--for", "uv")
    assert read_lock(Path("matrix.lock")).pick("rccl-net") is None


def test_suggestions_repeat_the_option(capsys: Capture) -> None:
    arguments = ["resolve", "torch", "rocm==7.1.*", *ON_LUMI, "--no-network-plugin", "--format", "json"]
    assert main(arguments) == 1
    suggestions = json.loads(capsys.readouterr().out)["suggestions"]
    assert suggestions
    assert all("--no-network-plugin" in suggestion["request"] for suggestion in suggestions)


def test_source_that_cannot_be_fetched_names_the_way_without_it(capsys: Capture) -> None:
    """The source is on a server that this machine does not have; other packages have no such hint."""
    gone = Path("gone").absolute().as_uri()
    mirrors = f'[mirrors]\n"https://github.com/aws/" = "{gone}/"\n"https://github.com/ROCm/" = "{gone}/"\n'
    Path("matrix.toml").write_text(mirrors)
    resolved(capsys, *BUILT)
    assert main(["farm", "fetch", "rccl-net", "--only-sources", "--offline", "--format", "json"]) != 0
    (item,) = json.loads(capsys.readouterr().out)["missing"]
    assert item["hint"].endswith("To do without RCCL's network plugin: `matrix resolve --no-network-plugin`.")
    assert main(["farm", "fetch", "apex", "--only-sources", "--offline", "--format", "json"]) != 0
    (item,) = json.loads(capsys.readouterr().out)["missing"]
    assert "network-plugin" not in item["hint"]
