"""``matrix catalog learn`` and ``matrix catalog site``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders.learning import machine
from builders.machine import host
from builders.scheduling.slurm import partition_for
from builders.storage.files import sha256_of
from matrix.cli import main
from matrix.input.facts_file import without_rows
from resolver.facts.catalog import load
from tests.support.range_server import serving

MakeWheel = Callable[..., Path]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("MATRIX_SITE", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)


def learn(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert main(["catalog", "learn", *arguments, "--format", "json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_diff_is_shown_and_written_only_with_apply(make_wheel: MakeWheel, capsys: Capture) -> None:
    path = make_wheel(requires_python=">=3.9")
    assert main(["catalog", "learn", str(path)]) == 0
    output = capsys.readouterr()
    assert '+versions = [">=3.9"]' in output.out
    assert "Nothing was written" in output.err
    written = Path("catalog/learned.toml")
    assert not written.exists()
    assert learn(capsys, str(path), "--apply")["written"] == str(written)
    row = load([written]).wheel[path.name]
    assert (row.version, row.sha256) == ("1.0", sha256_of(path))
    again = learn(capsys, str(path), "--apply")
    assert (again["rows"], again["diff"], again["written"]) == (0, "", "")


def test_changed_wheel_replaces_its_rows_and_leaves_others(make_wheel: MakeWheel, capsys: Capture) -> None:
    learn(capsys, str(make_wheel("other")), str(make_wheel(requires_python=">=3.9")), "--apply")
    file = Path("catalog/learned.toml")
    file.write_text(file.read_text().replace("[[wheel]]", "# A comment of a person.\n[[wheel]]", 1))
    learn(capsys, str(make_wheel(requires_python=">=3.10")), "--apply")
    catalog = load([file])
    rows = [row.versions for row in catalog.requires if row.package == "tiny" and row.on == "python"]
    assert rows == [(">=3.10",)]
    assert {"tiny", "other"} <= {row.package for row in catalog.wheel.values()}
    assert "# A comment of a person." in file.read_text()


def test_removing_rows_leaves_all_other_text() -> None:
    before = 'schema = 1\n\n[[rocm]]\nnote = "one\u2028two"\n'
    text = f'{before}\n[[rocm]]\nversion = "6.4.4"\r\n'
    assert without_rows(text, []) == text
    assert without_rows(text, [6]) == before


def test_bound_beside_one_of_the_catalog_is_a_remark(make_wheel: MakeWheel, capsys: Capture) -> None:
    facts = Path("facts.toml")
    facts.write_text(
        'schema = 1\n[[package]]\nname = "tiny"\ntitle = "t"\nstatus = "documented"\nsource = "s"\n'
        '[[requires]]\non = "python"\nversions = [">=3.8"]\nstatus = "documented"\nsource = "s"\n'
    )
    report = learn(capsys, str(make_wheel(requires_python=">=3.9")), "--catalog", str(facts))
    assert 'on = "python"' not in report["diff"]
    assert any("facts.toml:7 has >=3.8" in remark for remark in report["remarks"])


@pytest.mark.slow
def test_directory_and_name_on_an_index(
    make_wheel: MakeWheel, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = make_wheel(version="1.0"), make_wheel(version="2.0")
    assert learn(capsys, str(old.parent))["rows"] == 3  # the package and two wheels
    links = "".join(f'<a href="/made/{p.name}#sha256={sha256_of(p)}">{p.name}</a>' for p in (old, new))
    page = tmp_path / "simple" / "tiny" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(links)
    with serving(tmp_path) as server:
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        assert 'version = "2.0"' in learn(capsys, "tiny")["diff"]
        assert 'version = "1.0"' in learn(capsys, "tiny==1.0")["diff"]
        assert main(["catalog", "learn", "tiny==3.0"]) == 1
        assert "has a wheel" in capsys.readouterr().err
        assert main(["catalog", "learn", "nothing"]) == 1
        assert "no index has a project nothing" in capsys.readouterr().err


def test_bad_arguments_are_usage_errors(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "setup.py").touch()
    for arguments, text in (
        ([], "requires at least one name"),
        (["empty"], "contains no wheel"),
        (["project"], "project does not state a valid name"),
        (["matrix-no-wheel.txt"], "matrix-no-wheel.txt"),
        (["./missing.whl"], "'./missing.whl' does not exist"),
        (["missing.whl"], "'missing.whl' does not exist"),
    ):
        (tmp_path / "matrix-no-wheel.txt").write_text("no image")
        assert main(["catalog", "learn", *arguments]) == 2
        assert text in capsys.readouterr().err


# A site.


@pytest.fixture
def _node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a node with two gfx90a GPUs, their driver and Slurm."""
    topology = tmp_path / "nodes"
    for number, version in enumerate((0, 90010, 90010)):
        (topology / str(number)).mkdir(parents=True)
        (topology / str(number) / "properties").write_text(f"gfx_target_version {version}\n")
    monkeypatch.setattr("builders.diagnosis.doctor._TOPOLOGY", topology)
    monkeypatch.setattr(host, "driver_version", lambda: "6.3.6.60003-1739731")
    answers = {
        "sinfo": "standard-g|2-00:00:00|gpu:mi250:8\ndebug|30:00|gpu:1\nlong|infinite|gpu:1\n"
        "small|3:00:00|(null)\nsmall|3:00:00|(null)\n",
        "scontrol": "SlurmUser = slurm\nClusterName             = Cirrus\n",
    }
    monkeypatch.setattr(machine, "output_of", lambda command: answers.get(command[0], ""))


@pytest.mark.usefixtures("_node")
def test_site_file_has_what_the_machine_reports(capsys: Capture) -> None:
    assert main(["catalog", "site", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["site"], report["written"]) == ("cirrus", "cirrus.toml")
    assert report["remarks"] == []
    assert main(["catalog", "check", "cirrus.toml"]) == 0
    catalog = load([Path("cirrus.toml")])
    assert (catalog.site["cirrus"].gfx, catalog.site["cirrus"].backend) == (("gfx90a",), "rocm")
    (window,) = catalog.windows_of("cirrus")
    assert window.driver == "6.0"
    limits = {
        row.name: (row.backend, row.max_hours) for row in catalog.partition.values() if row.site == "cirrus"
    }
    assert limits == {
        "standard-g": ("rocm", 48.0),
        "debug": ("rocm", 0.5),
        "long": ("rocm", 0.0),
        "small": ("cpu", 3.0),
    }
    assert [partition_for(catalog, "cirrus", hours) for hours in (0.25, 48, 100)] == [
        "debug",
        "standard-g",
        "long",
    ]
    capsys.readouterr()
    assert (
        main(["resolve", "torch", "--site", "cirrus.toml", "--offline", "--format", "json", "--no-lock"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["target"]["driver"] == "6.0"


@pytest.mark.usefixtures("_node")
def test_existing_site_file_is_kept(capsys: Capture) -> None:
    Path("mine.toml").write_text("mine")
    assert main(["catalog", "site", "-o", "mine.toml"]) == 2
    assert "mine.toml already exists" in capsys.readouterr().err
    assert Path("mine.toml").read_text() == "mine"


@pytest.fixture
def _login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine without GPU, driver and Slurm."""
    monkeypatch.setattr(machine, "count_gpus", dict)
    monkeypatch.setattr(host, "driver_version", lambda: "")
    monkeypatch.setattr(machine, "output_of", lambda _: "")


INIT = ["catalog", "site", "--name", "login", "-o", "login.toml"]


@pytest.mark.usefixtures("_login")
@pytest.mark.parametrize("known", ["6.4.1-83", "6.2.99", "99.0.0", ""])
def test_rocm_of_a_machine_without_driver_is_preferred_to_newer_ones(
    known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Without a known ROCm, requests must name a driver or the ROCm."""
    (tmp_path / "rocm/.info").mkdir(parents=True)
    if known:
        (tmp_path / "rocm/.info/version").write_text(f"{known}\n")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    assert main([*INIT, "--gfx", "gfx90a"]) == 0
    is_unknown = known in {"99.0.0", ""}
    assert ("must name a driver, or its ROCm" in capsys.readouterr().err) == is_unknown
    assert main(["catalog", "check", "login.toml"]) == 0
    capsys.readouterr()
    ask = ["resolve", "torch", "--site", "login.toml", "--offline", "--no-lock", "--format", "json"]
    assert main(ask) == (2 if is_unknown else 0)
    output = capsys.readouterr()
    if is_unknown:
        assert "Neither the kernel driver of the site login nor a ROCm" in output.out
        for more in (["--driver", "6.3"], ["rocm==6.4.*"], ["torch==2.9.1+rocm6.4"]):
            assert main([*ask, *more]) == 0
        return
    picks = {pick["name"]: pick["version"] for pick in json.loads(output.out)["picks"]}
    assert ".".join(picks["rocm"].split(".")[:2]) == {"6.4.1-83": "6.4", "6.2.99": "6.2"}[known]


@pytest.mark.usefixtures("_login")
def test_what_a_login_node_cannot_measure_is_missing_and_asked_for(capsys: Capture) -> None:
    assert main(INIT) == 0
    warnings = capsys.readouterr().err
    for text in ("GPU architecture is missing", "kernel driver is missing", "Slurm does not respond"):
        assert text in warnings
        assert re.search(rf"^# - .*{text}", Path("login.toml").read_text(), re.MULTILINE)
    assert main(["resolve", "torch", "--site", "login.toml", "--offline", "--no-lock"]) == 2
    assert "The GPU architecture of the site login is not known" in capsys.readouterr().err
    assert (
        main(
            [
                "resolve",
                "torch",
                "--site",
                "login.toml",
                "rocm==6.4.*",
                "--gfx90a",
                "--offline",
                "--no-lock",
                "--format=json",
            ]
        )
        == 0
    )
    target = json.loads(capsys.readouterr().out)["target"]
    assert (target["backend"], target["gfx"], target.get("driver")) == ("rocm", ["gfx90a"], None)


@pytest.mark.usefixtures("_login")
def test_facts_may_be_stated_on_a_login_node(capsys: Capture) -> None:
    assert main([*INIT, "--gfx90a", "--driver", "6.3"]) == 0
    assert "missing" not in capsys.readouterr().err
    catalog = load([Path("login.toml")])
    assert (catalog.site["login"].backend, catalog.site["login"].gfx) == ("rocm", ("gfx90a",))
    assert [window.driver for window in catalog.windows_of("login")] == ["6.3"]


@pytest.mark.usefixtures("_login")
def test_site_without_gpus_is_stated(capsys: Capture) -> None:
    assert main([*INIT, "--backend", "cpu"]) == 0
    assert "GPU" not in capsys.readouterr().err
    assert load([Path("login.toml")]).site["login"].backend == "cpu"


@pytest.mark.usefixtures("_login")
@pytest.mark.parametrize(
    "more", [["--gfx", "mi250x"], ["--driver", "5.99"], ["--backend", "cpu", "--gfx90a"]]
)
def test_wrong_statement_is_an_error(more: list[str]) -> None:
    assert main([*INIT, *more]) == 2
    assert not Path("login.toml").exists()


@pytest.mark.usefixtures("_node")
def test_architecture_comes_from_slurm_if_the_machine_has_no_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(machine, "count_gpus", dict)
    assert main(["catalog", "site"]) == 0
    assert re.search(r"architecture gfx90a is that of mi250, as Slurm", capsys.readouterr().err)
    catalog = load([Path("cirrus.toml")])
    assert (catalog.site["cirrus"].gfx, catalog.site["cirrus"].status) == (("gfx90a",), "inferred")
    assert {
        row.name for row in catalog.partition.values() if row.site == "cirrus" and row.backend == "rocm"
    } == {
        "standard-g",
        "debug",
        "long",
    }


@pytest.mark.usefixtures("_node")
def test_driver_that_the_catalog_does_not_know_is_a_remark(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(host, "driver_version", lambda: "9.9.9")
    assert main(["catalog", "site"]) == 0
    assert re.search(r"driver 9\.9\.9 was left out", capsys.readouterr().err)
    assert load([Path("cirrus.toml")]).windows_of("cirrus") == []


@pytest.mark.usefixtures("_node")
def test_directory_without_images_is_an_error(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "images").mkdir()
    assert main(["catalog", "site", "--images", "images"]) == 2
    assert "contains no base image" in capsys.readouterr().err
    assert not Path("cirrus.toml").exists()


@pytest.mark.usefixtures("_node")
def test_damaged_image_is_left_out_with_a_remark(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "images" / "notes").mkdir(parents=True)
    (tmp_path / "images" / "cut.sif").write_text("cut")
    assert main(["catalog", "site", "--images", "images", "--format", "json"]) == 0
    (remark,) = json.loads(capsys.readouterr().out)["remarks"]
    assert re.search(r"cut\.sif was left out\. .* is not an image", remark)
