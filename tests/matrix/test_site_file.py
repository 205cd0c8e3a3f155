"""``--site FILE``: a site of one's own, in one file."""

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
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("site.toml").write_text(SITE)


def run_json(capsys: Capture, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main([*arguments, "--format", "json", "--date", "2026-03-01"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_file_describes_the_site_and_is_named_by_the_facts(capsys: Capture) -> None:
    document = run_json(capsys, "resolve", "apex", "--site", "site.toml")
    assert (document["target"]["site"], document["target"]["gfx"]) == ("cirrus", ["gfx942"])
    picks = {pick["name"]: pick for pick in document["picks"]}
    assert picks["kernel-driver"]["version"] == "6.4"
    assert picks["base-image"]["version"] == "ours.sif"
    held = next(one for one in picks["base-image"]["facts"] if "holds ROCm 6.4.4" in one["text"])
    assert held["file"] == "site.toml"
    assert {fact["file"] for fact in picks["torch"]["facts"] if "file" in fact} >= {
        "resolver/facts/torch.toml"
    }


def test_what_is_suggested_names_the_file_and_the_catalog_again(capsys: Capture) -> None:
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
    ("text", "said"),
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
def test_a_file_that_describes_no_site_is_refused(text: str, said: str, capsys: Capture) -> None:
    Path("site.toml").write_text(text)
    assert main(["resolve", "apex", "--site", "site.toml", "--no-lock"]) == 2
    assert said in capsys.readouterr().err


def test_a_missing_file_is_named_and_a_plain_name_is_a_site(capsys: Capture) -> None:
    assert main(["resolve", "apex", "--site", "gone.toml"]) == 2
    assert "The file gone.toml (given with --site) does not exist" in capsys.readouterr().err
    assert main(["resolve", "apex", "--site", "lumi-gg"]) == 2
    assert "Did you mean lumi-g" in capsys.readouterr().err


def test_a_lock_remembers_its_site_and_every_command_takes_it(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    resolve = ["resolve", "apex", "--site", "site.toml", "--date", "2026-03-01"]
    assert main(resolve) == 0
    for more in ([], ["--site", "site.toml"], ["--site", "cirrus", "--gfx942"]):
        assert main(["graph", *more]) == 0
        assert main(["env", "--for", "cotainr", "-o", "out/", *more]) == 0
        assert main(["build-wheels", "--dry-run", *more]) == 3  # only the image is missing
        assert "ours.sif" in capsys.readouterr().err
    assert main(["env", "--for", "cotainr", "--site", "lumi-g"]) == 2
    assert "You asked for site lumi-g, but matrix.lock was resolved for cirrus" in capsys.readouterr().err
    assert main(["verify", "--gpu", "--dry-run", "--partition", "p"]) == 0
    capsys.readouterr()
    Path("site.toml").rename("moved.toml")
    for command in (["fetch", "--offline"], ["build-wheels", "--dry-run"], ["verify"]):
        assert main(command) == 2
        assert "resolved with the facts in site.toml, which are neither here" in capsys.readouterr().err
    assert main(["build-wheels", "--dry-run", "--site", "moved.toml"]) == 3
    assert "ours.sif" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["beside the lock", "here"])
def test_the_facts_of_a_lock_are_found_from_another_directory(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    """Those that lie beside the lock count, not a file of that name that happens to lie here."""
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
