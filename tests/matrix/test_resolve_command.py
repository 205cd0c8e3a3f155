"""``matrix resolve``: JSON, text, lock and exit codes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import msgspec
import pytest

from builders.index import Index
from matrix.cli import main, main_inner
from matrix.consumers import consumer_names, load_consumer
from matrix.show.console import Console
from resolver.lock import encode, read_lock
from resolver.versions import sort_key
from tests.support.commands import run_json
from tests.support.tiny import tiny_wheel
from tests.support.web_server import web_server

Capture = pytest.CaptureFixture[str]
FOUR = ["apex", "deepspeed", "flash-attn", "bitsandbytes"]
ON_LUMI = ["--site", "lumi-g", "--date", "2025-06-01", "--python", "3.12"]


def test_picks_have_facts_with_sources(capsys: Capture) -> None:
    document = run_json(capsys, "resolve", *FOUR, *ON_LUMI)
    assert (document["schema"], document["status"]) == (1, "resolved")
    names = {pick["name"] for pick in document["picks"]}
    assert names >= {*FOUR, "torch", "rocm", "base-image", "python", "kernel-driver"}
    for pick in document["picks"]:
        assert pick["facts"], pick["name"]
        assert all(fact["source"] and fact["status"] for fact in pick["facts"])
        assert pick["support"] in {"documented", "observed", "inferred"}
        assert pick["verdict"] in {"supported", "at-own-risk"}


def test_built_extensions_come_after_torch(capsys: Capture) -> None:
    document = run_json(capsys, "resolve", *FOUR, *ON_LUMI)
    edge = {"from": "apex", "to": "torch", "kind": "build", "declared": False}
    assert edge in document["edges"]
    rank = {name: number for number, group in enumerate(document["order"]) for name in group}
    for edge in document["edges"]:
        assert rank[edge["to"]] < rank[edge["from"]]


@pytest.mark.parametrize(("day", "limit"), [("2025-06-01", "2.31"), ("2026-03-01", "2.38")])
def test_base_image_has_no_newer_glibc_than_the_host_of_the_consumer(
    capsys: Capture, day: str, limit: str
) -> None:
    """A consumer that uses its host's glibc limits the base image; for all others the answer is the same."""

    def picks(*more: str) -> list[dict[str, str]]:
        line = ("resolve", "torch", "deepspeed", "--site", "lumi-g", "--date", day, "--no-lock", *more)
        return [*run_json(capsys, *line)["picks"]]

    usual, limited = picks(), picks(f"glibc<={limit}", "--no-network-plugin")
    (glibc,) = (pick["version"] for pick in limited if pick["name"] == "glibc")
    assert sort_key(glibc) <= sort_key(limit)
    answers = {consumer: picks("--for", consumer) for consumer in consumer_names()}
    on_host = {consumer for consumer in answers if load_consumer(consumer).runs_on_host}
    assert 0 < len(on_host) < len(answers)
    assert [name for name in answers if answers[name] != (limited if name in on_host else usual)] == []


def test_unknown_glibc_of_host_is_refused_unless_it_is_stated(capsys: Capture) -> None:
    request = ["resolve", "torch", "--site", "frontier", "--for", "tykky", "--no-lock"]
    assert main(request) == 2
    error = capsys.readouterr().err
    assert "the glibc of frontier is not known" in error
    assert "'glibc<=2.31'" in error
    assert main([*request, "glibc<=2.31"]) == 0
    Path("matrix.toml").write_text('for = "tykky"\nsite = "frontier"\n')
    assert main(["resolve", "torch", "--no-lock"]) == 2


def test_image_that_is_too_new_for_the_consumer_is_refused_because_of_it(capsys: Capture) -> None:
    image = "lumi-multitorch-mpich-u24r64f21m43t29-20260225_144743.sif"
    target = ["--site", "lumi-g", "--date", "2026-03-01", "--base-image", image]
    assert main(["resolve", "torch", *target, "--for", "tykky", "--no-lock"]) == 1
    conflict = capsys.readouterr().out
    assert "  - tykky uses the glibc of lumi-g, 2.38\n" in conflict
    assert "you asked for" not in conflict
    assert "instead of glibc" not in conflict


def test_base_image_with_unknown_glibc_does_not_meet_a_limit(capsys: Capture, tmp_path: Path) -> None:
    facts = """schema = 1
[[image]]
name = "unknown.sif"
rocm = "6.4.4"
path = "/unknown.sif"
status = "observed"
source = "a test"
"""
    (tmp_path / "facts.toml").write_text(facts)
    request = ["resolve", "torch", "--no-lock", "--base-image", "unknown.sif", "--catalog", str(tmp_path)]
    assert main([*request, "-q"]) == 0
    assert main([*request, "--for", "tykky"]) == 1
    assert "the glibc of unknown.sif is not known" in capsys.readouterr().out


def test_label_names_rocm_torch_and_gpu_architecture(capsys: Capture) -> None:
    picks = {p["name"]: p for p in run_json(capsys, "resolve", *FOUR, *ON_LUMI)["picks"]}
    torch = picks["torch"]["version"].partition("+")[0]
    rocm = ".".join(picks["rocm"]["version"].split(".")[:2])
    for name in ("apex", "deepspeed", "flash-attn"):
        version = picks[name]["version"]
        assert picks[name]["wheel_version"] == f"{version}+rocm{rocm}.torch{torch}.gfx90a"
    assert picks["torch"]["wheel_version"] == ""


def test_label_names_all_gpu_architectures(capsys: Capture) -> None:
    document = run_json(capsys, "resolve", "deepspeed", *ON_LUMI, "--gfx90a", "--gfx", "gfx942")
    (deepspeed,) = (p for p in document["picks"] if p["name"] == "deepspeed")
    assert deepspeed["wheel_version"].endswith(".gfx90a.gfx942")


def test_text_starts_with_the_answer(capsys: Capture) -> None:
    assert main(["resolve", *FOUR, *ON_LUMI]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert re.fullmatch(
        r"Resolved \d packages for lumi-g \(2025-06-01\): "
        r"4 to build, at least [\d.]+ \w+ with \d+ cores?; \d to download",
        lines[0],
    )
    assert re.search(r"(?m)^  build +apex 1\.\d\S*( \(.*?\))? \(at least ", captured.out)
    assert len(lines) < 25
    assert captured.err.splitlines()[-1] == "Next: `matrix build-container train.sif`"


def test_reason_is_the_request_if_that_decides(capsys: Capture) -> None:
    assert main(["resolve", "torch==2.6.*", *ON_LUMI, "-v"]) == 0
    assert re.search(
        r"\n  torch +2\.6\S+ +published +you asked for torch==2\.6\.\*\n", capsys.readouterr().out
    )


def test_next_command_after_nothing_to_build_uses_the_lock_that_was_written(capsys: Capture) -> None:
    assert main(["resolve", "torch", "--backend", "cpu", "-o", "my lock"]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == "Next: `matrix env --for pip --lock 'my lock'`"


def test_wheel_in_the_index_is_not_announced_as_a_build(capsys: Capture, tmp_path: Path) -> None:
    assert main(["resolve", *FOUR, *ON_LUMI]) == 0
    assert capsys.readouterr().out.split(": ")[1].startswith("4 to build, ")
    apex = next(pick for pick in read_lock(Path("matrix.lock")).distributions if pick.name == "apex")
    for tags, announced in (
        ("cp311-cp311-linux_x86_64", "4 to build"),
        ("cp312-cp312-linux_x86_64", "3 to build"),
    ):
        wheel = tiny_wheel(tmp_path / "made", "apex", apex.pinned, tags=tags)
        Index(Path("index")).publish(wheel, {"build_key": tags})
        assert main(["resolve", *FOUR, *ON_LUMI]) == 0
        output = capsys.readouterr().out
        assert output.split(": ")[1].startswith(announced)
        is_present = announced.startswith("3")
        assert ("; 1 in the index" in output.splitlines()[0]) is is_present
        assert (f"apex {apex.key} (in the index)" in output) is is_present


def test_torch_from_source_is_announced_with_hours(capsys: Capture) -> None:
    """The proven set of that day has a torch that LUMI compiled."""
    assert main(["resolve", "torch", "--prefer", "proven", "--site", "lumi-g", "--date", "2026-08-01"]) == 0
    captured = capsys.readouterr()
    assert re.search(r"1 to build, at least [\d.]+ (h|min) with", captured.out.splitlines()[0])
    assert "All versions are from the proven set" in captured.err
    assert "warning: All versions" not in captured.err


def test_request_without_proven_set_is_a_warning(capsys: Capture) -> None:
    assert main(["resolve", "torch==2.6.*", "--prefer", "proven", "--backend", "cpu"]) == 0
    assert "warning: No proven set fits this request" in capsys.readouterr().err


def test_lock_has_same_bytes_the_second_time(capsys: Capture) -> None:
    del capsys
    assert main(["resolve", *FOUR, *ON_LUMI, "-o", "one.lock", "-q"]) == 0
    assert main(["resolve", *FOUR, *ON_LUMI, "-o", "two.lock", "-q"]) == 0
    assert Path("one.lock").read_bytes() == Path("two.lock").read_bytes()
    assert read_lock(Path("one.lock")).version_of("torch").startswith("2.")


def test_no_lock_option_writes_no_file(capsys: Capture, tmp_path: Path) -> None:
    del capsys
    assert main(["resolve", "torch", "--no-lock"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_conflict_exits_1_and_keeps_the_lock(capsys: Capture) -> None:
    lock = Path("matrix.lock")
    lock.write_text("as it was")
    arguments = ["resolve", "torch", "rocm==7.1.*", "--site", "lumi-g", "--date", "2026-02-01"]
    document = run_json(capsys, *arguments, code=1)
    assert document["status"] == "conflict"
    texts = " ".join(item["text"] for item in document["core"])
    assert "rocm==7.1.*" in texts
    assert "kernel driver 6.3" in texts
    assert {item["kind"] for item in document["core"]} == {"request", "fact"}
    assert all(item["source"] for item in document["core"])
    assert document["suggestions"]
    assert main(arguments) == 1
    text = capsys.readouterr().out
    assert "ROCm 7.1 is supported on kernel drivers 6.4" in text
    assert "These requests resolve" in text
    assert lock.read_text() == "as it was"


def test_cpu_backend_at_gpu_site_has_no_architectures(capsys: Capture) -> None:
    document = run_json(capsys, "resolve", "torch", "--backend", "cpu", "--site", "lumi-g")
    assert document["target"]["backend"] == "cpu"
    assert document["target"].get("gfx", []) == []
    assert read_lock(Path("matrix.lock")).target.gfx == ()


def test_json_is_the_struct_that_the_lock_holds(capsys: Capture) -> None:
    document = run_json(capsys, "resolve", "apex", *ON_LUMI)
    lock = read_lock(Path("matrix.lock"))
    assert document.pop("changes") == []
    assert document == msgspec.json.decode(msgspec.json.encode(lock, enc_hook=encode))


@pytest.mark.parametrize(
    "command",
    [
        ["build-wheels", "--dry-run"],
        ["explain", "--graph"],
        ["farm", "fetch"],
        ["explain"],
        ["env", "--for", "pip"],
        ["check", "--run"],
        ["check", "requirements.txt"],
        ["index", "prune"],
    ],
)
def test_missing_lock_named_by_the_user_is_an_error(command: list[str], capsys: Capture) -> None:
    Path("requirements.txt").write_text("torch\n")
    Path("index", "simple").mkdir(parents=True)
    files = sorted(Path().rglob("*"))
    assert main([*command, "--lock", "missing.lock"]) == 2
    captured = capsys.readouterr()
    assert "There is no lock file missing.lock" in captured.err
    assert captured.out == ""
    assert sorted(Path().rglob("*")) == files


def test_options_override_request_file(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "matrix.toml").write_text(
        'requirements = ["torch"]\nsite = "lumi-g"\ndate = 2026-03-01\npython = "3.12"\nrocm = "6.4"\n'
    )
    picks = {p["name"]: p["version"] for p in run_json(capsys, "resolve")["picks"]}
    assert (picks["python"], picks["torch"]) == ("3.12", "2.9.1+rocm6.4")
    picks = {p["name"]: p["version"] for p in run_json(capsys, "resolve", "--rocm", "6.2")["picks"]}
    assert picks["torch"].endswith("+rocm6.2.4")


def test_cpu_request_is_for_this_machine(capsys: Capture) -> None:
    document = run_json(
        capsys, "resolve", "deepspeed", "torch==2.13.0", "--backend", "cpu", "--python", "3.11"
    )
    assert (document["target"]["site"], document["target"]["gfx"]) == ("local", [])
    picks = {p["name"]: p for p in document["picks"]}
    assert picks["torch"]["version"] == "2.13.0+cpu"
    assert picks["deepspeed"]["wheel_version"] == f"{picks['deepspeed']['version']}+cpu.torch2.13.0"
    assert "rocm" not in picks


def test_prefer_proven_chooses_a_proven_set(capsys: Capture) -> None:
    document = run_json(capsys, "resolve", *FOUR, *ON_LUMI, "--prefer", "proven")
    picks = {p["name"]: p["version"] for p in document["picks"]}
    assert (picks["torch"], picks["deepspeed"]) == ("2.5.1+rocm6.2", "0.15.1")
    assert any("s-2.5.1-rocm6.2.3" in note for note in document["notes"])


def test_overlay_fact_changes_the_choice(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(
        'schema = 1\n[[requires]]\npackage = "deepspeed"\nreleases = "==0.16.9"\non = "python"\n'
        'versions = ["<3.12"]\nstatus = "observed"\nsource = "our ticket 42"\n'
    )
    shipped = run_json(capsys, "resolve", "deepspeed", *ON_LUMI)
    overlaid = run_json(capsys, "resolve", "deepspeed", *ON_LUMI, "--catalog", "site.toml")
    versions = [
        next(p["version"] for p in one["picks"] if p["name"] == "deepspeed") for one in (shipped, overlaid)
    ]
    assert versions[0] == "0.16.9"
    assert versions[1] != "0.16.9"


def test_lock_is_written_when_stdout_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("matrix.show.console.Console.data", gone)
    with pytest.raises(BrokenPipeError):
        main_inner(["resolve", "torch", "--date", "2026-03-01"], Console())
    assert read_lock(Path("matrix.lock")).version_of("torch")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--backend", "cpu", "--rocm", "6.2"], "The CPU backend has no ROCm, but '6.2' was requested"),
        (["--backend", "cpu", "--driver", "6.3"], "The CPU backend has no kernel driver"),
        (["--backend", "cpu", "--gfx90a"], "The CPU backend has no GPU architectures, but 'gfx90a'"),
        (["--backend", "cpu", "--base-image", "x.sif"], "The CPU backend has no base image, but 'x.sif'"),
        (["--gfx", ","], "contains an empty name"),
        (["--gfx", ""], "contains an empty name"),
        (["--rocm", ""], "--rocm: the value is empty"),
        (["--python", " "], "--python: the value is empty"),
        (["--site", ""], "--site: the value is empty"),
        (["torch>=2.4,<2.4"], "its conditions exclude one another"),
        (["torch>2.4,<2.3"], "its conditions exclude one another"),
    ],
)
def test_contradictory_or_empty_options_are_refused(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["resolve", "--no-lock", *options]) == 2
    assert message in capsys.readouterr().err


def test_other_gpu_without_site_uses_no_facts_of_lumi(capsys: Capture) -> None:
    line = ["resolve", "torch", "apex", "--gfx", "gfx942", "--date", "2026-06-01", "--no-lock"]
    assert main([*line, "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["target"]["site"], answer["target"]["gfx"]) == ("local", ["gfx942"])
    versions = {pick["name"]: pick["version"] for pick in answer["picks"]}
    assert "kernel-driver" not in versions
    assert "lumi" not in versions["base-image"]


def test_offline_warns_that_pages_may_be_old(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    index = Index(tmp_path / "index")
    index.publish(tiny_wheel(tmp_path / "wheels", "web", "1.0"), {})
    with web_server(index.simple) as url:
        Path("matrix.toml").write_text(f'backend = "cpu"\npython = "3.12"\nindex-url = "{url}"\n')
        assert main(["resolve", "web"]) == 0
    for page in (tmp_path / "cache").rglob("*.jsonl"):
        os.utime(page, (0, 0))
    with Path("matrix.toml").open("a") as settings:
        settings.write("offline = true\n")
    capsys.readouterr()
    assert main(["resolve", "web", "-o", "other.lock"]) == 0
    assert "--offline uses cached pages of package indexes" in capsys.readouterr().err
    assert main(["explain", "web"]) == 0
    assert "--offline uses cached pages of package indexes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--gfx942"], "lumi-g has gfx90a, not gfx942"),
        (["--gfx", "gfx90a,gfx1100"], "lumi-g has gfx90a, not gfx1100"),
        (["--driver", "6.4"], "lumi-g is not known to have had kernel driver 6.4, only 5.2, 6.0 and 6.3."),
        (["--gfx90a", "--driver", "6.0"], ""),
        ([], ""),
    ],
)
def test_what_the_site_does_not_have_is_said_first(options: list[str], text: str, capsys: Capture) -> None:
    document = run_json(capsys, "resolve", "torch", "--site", "lumi-g", "--no-lock", *options)
    found = [one for one in document["warnings"] if one.startswith("lumi-g ")]
    assert [one[: len(text)] for one in found] == ([text] if text else [])
    assert not found or document["warnings"][0] == found[0]


def test_no_base_image_is_part_of_request_and_lock(capsys: Capture) -> None:
    request = ["resolve", "torch", "--site", "lumi-g", "--date", "2026-03-01"]
    assert run_json(capsys, *request)["image"]["name"].startswith("lumi-multitorch-mpich")
    assert main(["build-wheels", "--no-base-image"]) == 2
    assert "You asked for base image none, but" in capsys.readouterr().err
    assert run_json(capsys, *request, "--no-base-image")["image"] is None
    assert read_lock(Path("matrix.lock")).request.use_image == "none"
    Path("matrix.toml").write_text("no-base-image = true\n")
    assert run_json(capsys, *request)["image"] is None
    image = "lumi-rocm-rocm-6.2.4.sif"
    assert run_json(capsys, *request, "--base-image", image)["image"]["name"] == image
    assert main([*request, "--base-image", image, "--no-base-image"]) == 2
    assert "--base-image and --no-base-image exclude each other." in capsys.readouterr().err


@pytest.mark.parametrize("consumer", ["pip", "cotainr"])
def test_image_is_the_default_only_for_tools_that_install_in_it(consumer: str, capsys: Capture) -> None:
    request = ["resolve", "torch", "--site", "lumi-g", "--date", "2026-03-01", "--for", consumer]
    assert (run_json(capsys, *request)["image"] is None) == (consumer == "pip")
