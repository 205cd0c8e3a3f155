"""``--site FILE``: a site that one file defines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from matrix.cli import main

Capture = pytest.CaptureFixture[str]

KNOWN = 'status = "documented"\nsource = "our own pages"\n'
SITE = f"""schema = 1

[[site]]
name = "cirrus"
title = "Cirrus"
backend = "rocm"
gfx = ["gfx942"]
{KNOWN}
[[window]]
site = "cirrus"
from = 2026-01-01
driver = "6.4"
{KNOWN}
[[image]]
name = "ours.sif"
rocm = "6.4.4"
os = "Ubuntu 24.04"
glibc = "2.39"
python = ["3.12"]
{KNOWN}
[[site-image]]
site = "cirrus"
image = "ours.sif"
{KNOWN}
"""


@pytest.fixture(autouse=True)
def _site_file() -> None:
    Path("site.toml").write_text(SITE)


def run_json(capsys: Capture, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main([*arguments, "--format", "json", "--date", "2026-03-01"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_site_file_defines_the_site_and_is_named_by_facts(capsys: Capture) -> None:
    document = run_json(capsys, "resolve", "apex", "--site", "site.toml")
    assert (document["target"]["site"], document["target"]["gfx"]) == ("cirrus", ["gfx942"])
    picks = {pick["name"]: pick for pick in document["picks"]}
    assert picks["kernel-driver"]["version"] == "6.4"
    assert picks["base-image"]["version"] == "ours.sif"
    fact = next(fact for fact in picks["base-image"]["facts"] if "ROCm 6.4.4" in fact["text"])
    assert fact["file"] == "site.toml"
    assert {fact["file"] for fact in picks["torch"]["facts"] if "file" in fact} >= {
        "resolver/facts/torch.toml"
    }


SPELLINGS = ("./site.toml", "site.toml", "link.toml", "{}/site.toml", "../site.toml")


@pytest.mark.parametrize("spellings", [SPELLINGS, SPELLINGS[::-1]], ids=["relative first", "absolute first"])
def test_site_file_is_found_under_every_spelling_of_its_path(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spellings: tuple[str, ...]
) -> None:
    """Each run but the first finds the compiled catalog of a run with another spelling."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "link.toml").symlink_to("site.toml")
    (tmp_path / "other").mkdir()
    for spelling in spellings:
        is_elsewhere = spelling.startswith("..")
        monkeypatch.chdir(tmp_path / "other" if is_elsewhere else tmp_path)
        document = run_json(capsys, "resolve", "apex", "--site", spelling.format(tmp_path), "--no-lock")
        assert document["target"]["site"] == "cirrus"
        image = next(pick for pick in document["picks"] if pick["name"] == "base-image")
        files = {fact["file"] for fact in image["facts"] if fact["file"].endswith("site.toml")}
        assert files == {str(tmp_path / "site.toml") if is_elsewhere else "site.toml"}


def test_explain_names_the_site_file_from_another_directory(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["resolve", "apex", "--site", "./site.toml", "--date", "2026-03-01", "-q"]) == 0
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    resolve = ["resolve", "apex", "--site", "../site.toml", "--date", "2026-03-01", "-q"]
    assert main(resolve) == 0
    capsys.readouterr()
    assert main(["explain", "base-image", "-v"]) == 0
    assert f"in {tmp_path}/site.toml" in capsys.readouterr().out


def test_suggestions_repeat_site_file_and_catalog(capsys: Capture) -> None:
    Path("mine").mkdir()
    Path("mine/more.toml").write_text("schema = 1\n")
    document = run_json(
        capsys, "resolve", "torch", "rocm==7.14.*", "--site", "site.toml", "--catalog", "mine", code=1
    )
    for suggestion in document["suggestions"]:
        words = suggestion["request"]
        assert words[words.index("--site") + 1] == "site.toml"
        assert words[words.index("--catalog") + 1] == "mine"
        assert main(["resolve", *words, "--no-lock", "-q"]) == 0
    assert document["suggestions"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema = 1\n", "defines no site"),
        (
            SITE + SITE.replace("schema = 1\n", "").replace("cirrus", "stratus").replace("ours", "theirs"),
            "cirrus and stratus",
        ),
        (SITE.replace("gfx942", "gfx9421"), "gfx9421"),
        (SITE.replace('driver = "6.4"', 'driver = "6.44"'), "site.toml:11"),
    ],
)
def test_site_file_without_a_single_valid_site_fails(text: str, message: str, capsys: Capture) -> None:
    Path("site.toml").write_text(text)
    assert main(["resolve", "apex", "--site", "site.toml", "--no-lock"]) == 2
    assert message in capsys.readouterr().err


def test_missing_site_file_and_unknown_site_are_named(capsys: Capture) -> None:
    assert main(["resolve", "apex", "--site", "gone.toml"]) == 2
    assert "The file gone.toml, which is named as the site, does not exist" in capsys.readouterr().err
    assert main(["resolve", "apex", "--site", "lumi-gg"]) == 2
    assert "Did you mean lumi-g" in capsys.readouterr().err


@pytest.mark.slow
def test_commands_use_the_site_file_of_the_lock(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    resolve = ["resolve", "apex", "--site", "site.toml", "--date", "2026-03-01"]
    assert main(resolve) == 0
    assert main(["env", "--for", "cotainr", "-o", "out/"]) == 0
    for more in ([], ["--site", "site.toml"], ["--site", "cirrus", "--gfx942"]):
        assert main(["build-wheels", "--dry-run", *more]) == 3  # only the image is missing
        assert "ours.sif" in capsys.readouterr().err
    assert main(["build-wheels", "--site", "lumi-g"]) == 2
    assert "You asked for site lumi-g, but matrix.lock was resolved for cirrus" in capsys.readouterr().err
    assert main(["check", "--gpu", "--dry-run", "--partition", "p"]) == 0
    capsys.readouterr()
    Path("site.toml").rename("moved.toml")
    assert main(["check", "--run"]) == 2
    assert "The file site.toml, which is named as the site, does not exist." in capsys.readouterr().err
    Path("matrix.toml").unlink()
    for command in (["farm", "fetch", "--offline"], ["build-wheels", "--dry-run"]):
        assert main(command) == 2
        assert (
            "resolved with the facts in site.toml, which is neither in the working directory"
            in capsys.readouterr().err
        )
    assert main(["build-wheels", "--dry-run", "--site", "moved.toml"]) == 3
    assert "ours.sif" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["beside the lock", "here"])
def test_facts_of_a_lock_are_found_from_another_directory(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    """A file beside the lock has precedence over a file of the same name in the working directory."""
    other = tmp_path / "other"
    other.mkdir()
    lock = other / "matrix.lock" if where == "here" else Path("matrix.lock").absolute()
    assert main(["resolve", "apex", "--site", "site.toml", "--date", "2026-03-01", "-o", str(lock)]) == 0
    if where == "beside the lock":
        (other / "site.toml").write_text("no facts at all")
        monkeypatch.chdir(other)
    capsys.readouterr()
    assert main(["build-wheels", "--dry-run", "--lock", str(lock)]) == 3  # only the image is missing
    assert "ours.sif" in capsys.readouterr().err
    assert main(["explain", "apex", "--lock", str(lock)]) == 0
    assert "cannot be explained" not in capsys.readouterr().err
