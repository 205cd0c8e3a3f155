"""``matrix catalog`` and ``matrix explain``: facts with their sources and files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from matrix.cli import main
from matrix.input import settings
from matrix.show.resolution_text import reason_of
from resolver.facts.catalog import load
from resolver.facts.schema import KINDS
from resolver.model import Fact
from tests.support.locks import built_pick, lock_of

Capture = pytest.CaptureFixture[str]
GOOD = 'schema = 1\n[[rocm]]\nversion = "6.2.9"\nstatus = "observed"\nsource = "our build log"\n'


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MATRIX_SITE", raising=False)


@pytest.mark.slow
@pytest.mark.parametrize("width", ["60", "80"])
def test_explain_answers_first_and_repeats_nothing(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    """Lines that continue a note or a source are indented like its text."""
    monkeypatch.setenv("COLUMNS", width)
    assert main(["resolve", "apex", "deepspeed", "--date", "2026-03-01", "-q"]) == 0
    capsys.readouterr()
    for name in ("torch==2.10.0", "kernel-driver==31.40"):
        assert main(["explain", name]) == 0
        assert capsys.readouterr().out.startswith("Not chosen\n")
    assert main(["explain", "kernel-driver", "-v"]) == 0
    reasons = re.findall(
        r"^    - (?:.*\n)(?:      .*\n)*", capsys.readouterr().out.partition("Not chosen")[2], re.MULTILINE
    )
    assert reasons
    assert len(reasons) == len(set(reasons))
    assert main(["explain"]) == 0
    output = capsys.readouterr().out
    notes = re.findall(r"^    note: (?:.*\n)(?:          .*\n)*", output, re.MULTILINE)
    assert notes
    assert len(notes) == len(set(notes))
    assert re.search(r"^    note: .*\n {10}\S", output, re.MULTILINE)
    assert re.search(r"^    source: .*\n {12}\S", output, re.MULTILINE)


def test_list_counts_rows(capsys: Capture) -> None:
    assert main(["catalog", "list", "--format", "json"]) == 0
    kinds = json.loads(capsys.readouterr().out)["kinds"]
    catalog = load()
    assert kinds["torch"]["rows"] == len(catalog.torch)
    assert sum(count["rows"] for count in kinds.values()) == sum(1 for _ in catalog.rows())
    for count in kinds.values():
        assert count["rows"] == count["documented"] + count["observed"] + count["inferred"]


def test_list_kind_shows_source_and_file(capsys: Capture) -> None:
    assert main(["catalog", "list", "driver", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["name"] for row in rows} == set(load().driver)
    assert all(row["source"] and row["file"].endswith("driver.toml") for row in rows)
    assert main(["catalog", "list", "requires"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("apex ==1.9.0 torch")]
    assert any("versions: ==2.9.*" in line for line in lines)


def test_list_shows_rows_of_every_kind(capsys: Capture) -> None:
    for kind in KINDS:
        assert main(["catalog", "list", kind.replace("_", "-"), "--format", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert [row for row in rows if not row["name"] or row["row"]["source"] != row["source"]] == []
        assert len({row["name"] for row in rows}) == len(rows) or kind in {"requires", "recipe", "known_bad"}


def test_list_unknown_kind_fails(capsys: Capture) -> None:
    assert main(["catalog", "list", "rcom"]) == 2
    assert "Did you mean rocm?" in capsys.readouterr().err


def test_check_accepts_a_valid_file(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GOOD)
    assert main(["catalog", "check", "mine.toml"]) == 0
    assert "Rows: 1, files: 1." in capsys.readouterr().out
    assert main(["catalog", "check", "mine.toml", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["status"], document["rows"], document["findings"]) == ("ok", 1, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("version", "versoin"), "mine.toml:3: [[rocm]] number 1: unknown key 'versoin'"),
        (GOOD.replace("observed", "seen"), "mine.toml:4: [[rocm]] number 1 6.2.9, key status"),
        (GOOD.replace("6.2.9", "six"), "'six' is not a valid version"),
        (GOOD.replace("schema = 1", "schema = 7"), "schema = 7"),
    ],
)
def test_check_reports_file_line_and_key(text: str, message: str, capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    assert main(["catalog", "check", "mine.toml"]) == 1
    assert message in capsys.readouterr().err
    assert main(["catalog", "check", "mine.toml", "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    (finding,) = document["findings"]
    assert message in finding["message"]
    assert (document["status"], finding["id"], finding["severity"]) == ("errors", "bad-catalog", "error")


def test_user_facts_override_site_facts(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, whose in (("etc", "etc"), ("site", "the site"), ("mine", "me")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "facts.toml").write_text(GOOD.replace("our build log", whose))

    def source() -> str:
        assert main(["catalog", "list", "rocm", "--format", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        return "".join(row["source"] for row in rows if row["name"] == "6.2.9")

    monkeypatch.setattr(settings, "SITE_FACTS", tmp_path / "etc")
    assert source() == "etc"
    monkeypatch.setenv("MATRIX_SITE", str(tmp_path / "site"))
    assert source() == "the site"
    (tmp_path / "matrix.toml").write_text('catalog = ["mine"]\n')
    assert source() == "me"
    monkeypatch.setenv("MATRIX_SITE", str(tmp_path / "nowhere"))
    assert main(["catalog", "list"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_check_uses_the_facts_of_the_site(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of the user may name a row of the site."""
    known = 'status = "observed"\nsource = "us"\n'
    (tmp_path / "site.toml").write_text(
        f'schema = 1\n[[site]]\nname = "ours"\ntitle = "ours"\nbackend = "rocm"\n{known}'
    )
    (tmp_path / "mine.toml").write_text(
        f'schema = 1\n[[window]]\nsite = "ours"\nfrom = 2026-01-01\ndriver = "6.4"\n{known}'
    )
    assert main(["catalog", "check", "mine.toml"]) == 1
    assert "'ours'" in capsys.readouterr().err
    monkeypatch.setenv("MATRIX_SITE", str(tmp_path / "site.toml"))
    assert main(["catalog", "check", "mine.toml"]) == 0


def test_explain_shows_fact_source_and_file(capsys: Capture) -> None:
    assert main(["resolve", "apex", "--date", "2026-11-20", "--python", "3.12", "-q"]) == 0
    capsys.readouterr()
    assert main(["explain", "apex", "-v"]) == 0
    output = capsys.readouterr().out
    assert "apex 1.9.0 requires torch 2.9.* [documented]" in output
    assert "git:ROCm/apex@f18052b57ca7:README.md" in output
    assert "in resolver/facts/packages/apex.toml" in output
    assert output.startswith("apex 1.9.0: for torch 2.9.1+rocm6.4 (requires torch 2.9.*)\n")
    sources = [line for line in output.splitlines() if "source: git:ROCm/apex@f18052b57ca7:README.md" in line]
    assert len(sources) == 1
    assert re.search(
        r"\nNot chosen\n  - 1\.8\.0 would also fit with .*\btorch 2\.8\.0.*; 1\.9\.0 is newer\n", output
    )
    assert main(["explain", "--format", "json"]) == 0
    assert {"apex", "torch", "rocm"} <= {
        pick["name"] for pick in json.loads(capsys.readouterr().out)["picks"]
    }
    assert main(["explain", "apx"]) == 2
    assert "Did you mean apex?" in capsys.readouterr().err


def test_driver_option_accepts_a_package_version(capsys: Capture) -> None:
    command = ["resolve", "torch", "--driver", "6.3.6.60003-1739731", "--format", "json", "--no-lock"]
    assert main(command) == 0
    picks = json.loads(capsys.readouterr().out)["picks"]
    assert next(pick["version"] for pick in picks if pick["name"] == "kernel-driver") == "6.0"


def test_explain_shows_the_last_conflict_with_sources(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    request = ["resolve", "torch", "rocm==7.1.*", "--date", "2026-02-01"]
    assert main([*request, "--format", "json"]) == 1
    conflict = json.loads(capsys.readouterr().out)
    assert main(["explain", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == conflict
    assert main(["explain"]) == 0
    output = capsys.readouterr().out
    for item in conflict["core"]:
        assert item["text"] in output
        assert item["kind"] == "request" or all(part in output for part in item["source"].split(" ; "))
    assert "matrix resolve torch rocm --site lumi-g" in output
    assert main(["resolve", "torch", "--date", "2026-02-01", "-q"]) == 0
    capsys.readouterr()
    assert main(["explain"]) == 0
    assert "kernel-driver 6.3" in capsys.readouterr().out


def test_conflict_of_a_request_without_a_lock_names_the_way_back(capsys: Capture) -> None:
    assert main(["resolve", "torch", "--date", "2026-02-01", "-q"]) == 0
    assert main(["resolve", "torch", "rocm==7.1.*", "--date", "2026-02-01", "--no-lock", "-q"]) == 1
    capsys.readouterr()
    assert main(["explain"]) == 0
    shown = capsys.readouterr()
    assert "There is no resolution." in shown.out
    assert "  - you asked for rocm==7.1.*\n" in shown.out
    command = re.search(r"matrix\.lock is unchanged: `matrix (.*)`", shown.err)
    assert command
    assert main(command[1].split()) == 0
    assert "kernel-driver 6.3" in capsys.readouterr().out


def test_explain_of_several_conflicts_shows_one_core(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    clashes = ["torch==2.5.1", "torch==2.9.1", "apex==1.8.0", "apex==1.9.0"]
    assert main(["resolve", *clashes, "--date", "2026-06-01", "--format", "json"]) == 1
    core = [item["text"] for item in json.loads(capsys.readouterr().out)["core"]]
    rest = [item for item in clashes if f"you asked for {item}" not in core]
    assert len(rest) >= 2
    assert main(["resolve", *clashes[1:], "--date", "2026-06-01", "--no-lock"]) == 1
    assert main(["resolve", *clashes, "--date", "2026-06-01", "--no-lock"]) == 1
    capsys.readouterr()
    assert main(["explain"]) == 0
    output = capsys.readouterr().out
    assert "there would be a solution" not in output
    assert "These constraints conflict. Removing any one of them resolves the conflict." in output


def test_damaged_record_of_the_conflict_is_ignored(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["resolve", "torch", "--date", "2026-02-01", "-q"]) == 0
    assert main(["resolve", "rocm==7.1.*", "--date", "2026-02-01", "-q"]) == 1
    (record,) = (tmp_path / "cache" / "matrix" / "last").iterdir()
    for damage in (b"", b"[]", b"\xff", b'{"conflict": 1}'):
        record.write_bytes(damage)
        capsys.readouterr()
        assert main(["explain"]) == 0
        assert "kernel-driver 6.3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("content-not-judgd", "Did you mean content-not-judged?"),
        ("zlib-ng", "Write it with `matrix resolve`."),
    ],
)
def test_explain_without_a_lock_says_that_nobody_knows_a_name(name: str, hint: str, capsys: Capture) -> None:
    assert main(["explain", name]) == 2
    error = capsys.readouterr().err
    assert f"error: '{name}' is not an id, and there is no lock matrix.lock to look it up in." in error
    assert hint in error


def test_explain_gives_reasons_for_rejected_versions(capsys: Capture) -> None:
    assert main(["resolve", "apex", "--date", "2026-06-01", "-q"]) == 0
    capsys.readouterr()
    assert main(["explain", "torch", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [pick["name"] for pick in document["picks"]] == ["torch"]
    assert document["rejected"]
    assert all(
        rejected["core"] or {"instead", "preferred"} & rejected.keys() for rejected in document["rejected"]
    )
    assert main(["explain", "apex==1.12.0"]) == 0
    output = capsys.readouterr().out
    assert "Not chosen" in output
    assert "was released on 2026-06-19, after 2026-06-01" in output
    assert main(["resolve", "vllm", "--date", "2026-06-01", "-q"]) == 0
    capsys.readouterr()
    assert main(["explain", "vllm"]) == 0
    assert re.search(
        r"\b0\.18\.1\b.* would also fit, but rocm would be 7\.0\.2 instead of", capsys.readouterr().out
    )


def test_wrong_results_of_fp16_are_said_on_gfx90a_only(capsys: Capture) -> None:
    for site, version, is_affected in (
        ("lumi-g", ">=2.7", True),
        ("lumi-g", "<2.7", False),
        ("tuolumne", ">=2.7", False),
    ):
        assert main(["resolve", f"torch{version}", "--site", site, "--date", "2026-11-01"]) == 0
        assert ("fp16" in "".join(capsys.readouterr())) == is_affected
        assert main(["explain", "torch"]) == 0
        output = " ".join(capsys.readouterr().out.split())
        said = "training may silently diverge" in output and "pytorch/issues/182952" in output
        assert said == is_affected, site
        assert main(["explain", "torch", "--format", "json"]) == 0
        problems = json.loads(capsys.readouterr().out)["problems"]
        assert any("fp16" in problem for problem in problems) == is_affected


def test_explain_counts_rejected_versions_it_omits(capsys: Capture) -> None:
    assert main(["resolve", "apex", "--date", "2026-06-01", "-q"]) == 0
    capsys.readouterr()
    assert main(["explain", "torch", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    more = document["rejected_more"]
    assert more > 0
    assert main(["explain", "torch", "-v"]) == 0
    output = capsys.readouterr().out
    assert f"{more} more versions were not chosen" in output
    assert "matrix explain 'torch==VERSION'" in output
    assert "2.14.1+rocm7.14" not in output
    assert main(["explain", "torch==2.14.1", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "2.14.1+rocm7.14" in [rejected["version"] for rejected in document["rejected"]]
    assert {rejected["version"].partition("+")[0] for rejected in document["rejected"]} == {"2.14.1"}
    assert document["rejected_more"] == 0
    assert main(["explain", "torch==2.4.0"]) == 0
    assert re.search(r"  - 2\.4\.0\+rocm6\.1 would also fit with .*; \S+ is newer\n", capsys.readouterr().out)


def test_explain_states_why_a_newer_version_is_not_preferred(capsys: Capture) -> None:
    assert main(["resolve", "flash-attn", "--date", "2026-06-01", "-q"]) == 0
    capsys.readouterr()
    assert main(["explain", "rocm==7.0.2"]) == 0
    output = capsys.readouterr().out
    assert re.match(
        r"Not chosen\n  - 7\.0\.2 would also fit with base-image lumi-\S+-u24r70\S+, "
        r"torch 2\.10\.0\+rocm7\.0, triton-rocm 3\.6\.0; 6\.4\.4 is preferred: "
        r"lumi-g advises rocm 6\.4\.\*\n\nrocm 6\.4\.4: ",
        output,
    )
    others = {"triton-rocm": "3.6.0", "torch": "2.10.0+rocm7.0"}
    requirements = [f"{name}=={version}" for name, version in others.items()]
    command = [
        "resolve",
        "flash-attn",
        "rocm==7.0.2",
        *requirements,
        "--date",
        "2026-06-01",
        "--no-lock",
        "-q",
    ]
    assert main(command) == 0  # the others are all that must change


def test_explain_indents_continuation_lines(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["resolve", "flash-attn", "--date", "2026-06-01", "-q"]) == 0
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["explain", "rocm>=7"]) == 0
    assert main(["explain", "base-image"]) == 0
    lines = capsys.readouterr().out.splitlines()
    starts = ("Not chosen", "rocm 6.4.4: ", "base-image lumi-multitorch-", "Known problems")
    assert [line for line in lines if line[:1].strip() and not line.startswith(starts)] == []


def test_explain_works_without_the_locks_catalog(capsys: Capture, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(GOOD)
    assert main(["resolve", "torch", "--date", "2026-02-01", "--catalog", str(mine), "-q"]) == 0
    mine.unlink()
    capsys.readouterr()
    assert main(["explain", "torch"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("torch ")
    assert "Cannot explain why other versions were not chosen" in captured.err
    assert "mine.toml" in captured.err


@pytest.mark.parametrize(("requested", "reason"), [("b", "b 2.0 requires a==1.0"), ("a", "you asked for it")])
def test_reason_is_who_requires_it_and_not_where_it_is_from(requested: str, reason: str) -> None:
    facts = [Fact("a 1.0 is published at https://index.example/simple", "documented", "page")]
    facts += [Fact("b 2.0 requires a==1.0", "documented", "metadata")] if requested == "b" else []
    lock = lock_of(replace(built_pick("a"), facts=tuple(facts)), requested=(requested,))
    pick = lock.pick("a")
    assert pick
    assert reason_of(pick, lock) == reason
