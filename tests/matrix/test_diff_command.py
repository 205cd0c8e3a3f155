"""``matrix diff``: the sides that options describe, locks, text, JSON and exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from matrix.cli import main
from matrix.show.consequences_text import consequences_text, summary
from resolver.consequences.questions import Consequence, RowKey
from resolver.model import CoreItem
from tests.support.commands import run, run_json

Capture = pytest.CaptureFixture[str]
SITE = ["--site", "lumi-g", "--date", "2026-06-01"]
SMALL = 'requirements = ["apex", "torch>=2.9"]\n'
"""A request that keeps the table small."""


@pytest.fixture(autouse=True)
def _with_a_small_request(tmp_path: Path) -> None:
    (tmp_path / "matrix.toml").write_text(SMALL, encoding="utf-8")


def effects(document: dict[str, Any], kind: str) -> dict[str, str]:
    return {change["name"]: change["effect"] for change in document["consequences"] if change["kind"] == kind}


def write_lock(capsys: Capture, name: str, *requirements: str, site: list[str] = SITE) -> None:
    run(capsys, "resolve", *requirements, *site, "-o", name)


def test_no_change_is_empty(capsys: Capture) -> None:
    assert run(capsys, "diff", *SITE).splitlines()[:1] == ["Nothing changes."]
    assert run_json(capsys, "diff", *SITE, "--driver", "6.3")["consequences"] == []


def test_driver_is_that_of_after(capsys: Capture) -> None:
    text = run(capsys, "diff", *SITE, "--driver", "30.10")
    answer, title, *rest = text.splitlines()
    assert title.endswith("kernel driver 6.3 -> 30.10")
    assert re.search(r"Becomes possible: \d+ torch versions\.", answer)
    assert "    * lumi-g has kernel driver 6.3 on 2026-06-01 (since 2026-01-01)" in rest
    assert "    * now: the kernel driver is 30.10" in rest


def test_broken_things_set_the_exit_code(capsys: Capture) -> None:
    document = run_json(capsys, "diff", *SITE, "--driver", "5.7", code=1)
    assert document["after"]["target"]["driver"] == "5.7"
    assert document["before"]["target"]["driver"] is None
    torches = effects(document, "torch")
    assert torches["torch 2.10.0+rocm7.0"] == "breaks"
    for change in document["consequences"]:
        assert change["core"] or change["effect"] not in {"breaks", "possible"}


def test_reason_names_only_the_fact_about_what_breaks(capsys: Capture) -> None:
    document = run_json(capsys, "diff", "--site", "lumi-g", "--date", "2026-10-01", "--driver", "5.7", code=1)
    image = next(change for change in document["consequences"] if "-u24r72" in change["name"])
    assert [fact["text"] for fact in image["was"]] == [
        "lumi-g has kernel driver 6.3 on 2026-10-01 (since 2026-01-01)",
        "lumi-g ran ROCm 7.2 in September 2026, which AMD does not list for driver 6.3",
    ]


def test_from_options_describe_before(capsys: Capture) -> None:
    document = run_json(capsys, "diff", *SITE, "--from-driver", "5.7")
    assert effects(document, "torch")["torch 2.10.0+rocm7.0"] == "possible"
    document = run_json(
        capsys, "diff", "--site", "lumi-g", "--from-date", "2026-02-27", "--date", "2026-06-01"
    )
    assert set(effects(document, "base-image").values()) == {"possible"}


@pytest.mark.slow
def test_catalog_is_a_layer_of_after(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "update.toml").write_text(
        'schema = 1\n[[known-bad]]\ncombination = { apex = "==1.10.0" }\nproblem = "it hangs"\n'
        'status = "observed"\nsource = "a test"\n',
        encoding="utf-8",
    )
    document = run_json(capsys, "diff", *SITE, "--catalog", "update.toml", code=1)
    assert document["before"]["catalogs"] == []
    assert document["after"]["catalogs"] == ["update.toml"]
    assert "breaks" in {change["effect"] for change in document["consequences"] if change["name"] == "apex"}
    mirror = run_json(capsys, "diff", *SITE, "--from-catalog", "update.toml")
    assert effects(mirror, "package")["apex"] == "possible"


def test_own_lock_is_checked(capsys: Capture) -> None:
    write_lock(capsys, "matrix.lock", "torch==2.10.0+rocm7.0")
    document = run_json(capsys, "diff", *SITE, "--driver", "5.7", code=1)
    assert effects(document, "lock") == {"matrix.lock": "breaks"}
    lock = next(change for change in document["consequences"] if change["kind"] == "lock")
    assert ["kernel-driver"] in [item["about"] for item in lock["now"]]
    text = run(capsys, "diff", *SITE, "--driver", "5.7", code=1)
    assert "  lock matrix.lock\n" in text


def test_lock_that_was_broken_before_is_a_warning(capsys: Capture) -> None:
    write_lock(capsys, "old.lock", "torch==2.5.1", "rocm==6.2.*")
    assert main(["diff", "old.lock", *SITE, "--driver", "5.7", "--from-driver", "5.7"]) == 0
    assert "old.lock is impossible on both sides" in capsys.readouterr().err


def test_lock_of_another_site_is_not_checked(capsys: Capture) -> None:
    write_lock(capsys, "cpu.lock", "torch", site=["--backend", "cpu"])
    assert main(["diff", "cpu.lock", *SITE]) == 0
    assert "it was resolved for local" in capsys.readouterr().err


def test_two_locks_are_compared(capsys: Capture) -> None:
    write_lock(capsys, "one.lock", "torch==2.10.0+rocm7.0")
    write_lock(capsys, "other.lock", "torch", site=[*SITE, "--driver", "6.0"])
    document = run_json(capsys, "diff", "one.lock", "other.lock", *SITE)
    torch = next(change for change in document["consequences"] if change["name"] == "torch")
    assert torch["before"] == "2.10.0+rocm7.0"
    assert torch["now"][0]["text"] == "the kernel driver is 6.0"
    assert run(capsys, "diff", "one.lock", "one.lock", *SITE).splitlines()[:1] == ["Nothing changes."]
    lines = run(capsys, "diff", "one.lock", "other.lock", *SITE).splitlines()
    assert re.match(r"one\.lock -> other\.lock: \d+ versions differ", lines[0])
    assert any(re.match(r"  torch +2\.10\.0\+rocm7\.0 -> ", line) for line in lines)
    assert len(lines) < 24
    assert "the kernel driver is 6.0" in run(capsys, "diff", "one.lock", "other.lock", *SITE, "-v")


def test_requirements_that_the_catalog_lacks_do_not_count(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "matrix.toml").write_text('requirements = ["apex", "torch>=2.9", "lightning"]\n', "utf-8")
    assert run_json(capsys, "diff", *SITE, "--driver", "30.10")["consequences"]


def test_things_with_one_reason_share_a_paragraph() -> None:
    driver = CoreItem("the kernel driver is 5.7", "request", "the request")

    def broken(torch: str, rocm: str) -> Consequence:
        fact = CoreItem(f"torch {torch} is built for ROCm {rocm}", "fact", "here")
        return Consequence(
            effect="breaks",
            kind="torch",
            name=f"torch {torch}",
            before="supported",
            where=(RowKey("", torch, "3.12"), RowKey("", torch, "3.9")),
            now=(driver,),
            core=(fact, CoreItem(f"ROCm {rocm} needs driver 6.3", "fact", "there"), driver),
        )

    changes = [broken("2.9.1", "6.4"), broken("2.9.0", "6.4"), broken("2.8.0", "6.3")]
    assert summary(changes) == "Breaks: 3 torch versions."
    assert consequences_text(changes).splitlines() == [
        "Breaks",
        "  torch 2.9.1, 2.9.0 with Python 3.9 to 3.12",
        "    These conflict now:",
        "    - torch 2.9.1 is built for ROCm 6.4",
        "    - ROCm 6.4 needs driver 6.3",
        "    * the kernel driver is 5.7",
        "  torch 2.8.0 with Python 3.9 to 3.12",
        "    These conflict now:",
        "    - torch 2.8.0 is built for ROCm 6.3",
        "    - ROCm 6.3 needs driver 6.3",
        "    * the kernel driver is 5.7",
    ]
    assert "ROCm 6.4 needs driver 6.3 [there]" in consequences_text(changes, sources=True)


def test_images_are_compared_as_lists_and_as_rows(capsys: Capture, tmp_path: Path) -> None:
    """Of a row of the catalog, what it does not state is no difference."""
    image = "lumi-multitorch-full-u24r64f21m43t29-20260124_092648.sif"
    apt = [
        {"name": "libc6", "version": "2.39-0ubuntu8"},
        {"name": "rocm-core", "version": "7.0.2.70002-56~24.04"},
    ]
    for name, torch, others in (("a", "2.9.1+rocm6.4", {"einops": "0.8.1"}), ("b", "2.10.0+rocm7.0", {})):
        pip = [{"name": key, "version": version} for key, version in {"torch": torch, **others}.items()]
        (tmp_path / f"{name}.json").write_text(json.dumps({"apt": apt, "pip": pip}))

    def changes(*sides: str) -> dict[str, tuple[str, str]]:
        assert main(["diff", *sides, "--site", "lumi-g", "--format", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)["consequences"]
        return {row["name"]: (row["before"], row["after"]) for row in rows}

    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    assert changes(a, b) == {"einops": ("0.8.1", ""), "torch": ("2.9.1+rocm6.4", "2.10.0+rocm7.0")}
    assert changes(image, b) == {"torch": ("2.9.1+rocm6.4", "2.10.0+rocm7.0"), "rocm": ("6.4.4", "7.0.2")}


OLD_IMAGE = "lumi-multitorch-torch-u24r64f21m43t29-20260319_153422.sif"
NEW_IMAGE = "lumi-multitorch-full-u24r70f21m50t210-20260513_121430.sif"


def test_layer_is_moved_to_another_image(capsys: Capture, tmp_path: Path) -> None:
    """`diff` says whether what is over the image still fits; `build-layer` says what it becomes."""
    (tmp_path / "matrix.toml").unlink()
    site = ["--site", "lumi-g", "--date", "2026-11-20"]
    words = ["resolve", "deepspeed", *site, "--base-image", OLD_IMAGE, "--keep-installed", "image"]
    run(capsys, *words, "-o", "deepspeed.lock")
    sides = ["--from-base-image", OLD_IMAGE, "--base-image", NEW_IMAGE]
    document = run_json(capsys, "diff", "deepspeed.lock", *site, *sides, code=1)
    (broken,) = (change for change in document["consequences"] if change["kind"] == "lock")
    assert "contains deepspeed 0.18.9+lumi.aif.dsops" in str(broken["now"])

    assert main(["build-layer", "deepspeed.sqsh", "--base-image", NEW_IMAGE, "--dry-run", *site[2:]]) == 0
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert f"{OLD_IMAGE} -> {NEW_IMAGE}" in lines
    assert "of the image: torch 2.9.1+rocm6.4 -> 2.10.0, rocm 6.4.4 -> 7.0.2" in lines
    assert "now in the image: deepspeed 0.18.9+lumi.aif.dsops" in lines
