"""``matrix check``: verdicts on files, and the same findings as the command for each kind of thing."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import parse_wheel_filename

from builders.findings import Finding
from builders.installed.checks import findings_of
from builders.installed.reading import read_installed
from matrix.cli import main
from matrix.judging.target import expect_request
from matrix.judging.verdict import Judgement, conclude
from matrix.reading import recipe
from matrix.reading.recognise import read
from resolver.answers.proven import judge
from resolver.consequences.questions import Side, driver_states
from resolver.facts.catalog import load
from resolver.model import Request, Target
from resolver.versions import minor
from tests.support.elf import shared_object
from tests.support.installed import Tree, gpu_code
from tests.support.tiny import tiny_index

Capture = pytest.CaptureFixture[str]
DAY = "2026-11-20"


def inspected(*arguments: str, code: int, capsys: Capture) -> dict[str, Any]:
    assert main(["check", *arguments, "--site", "lumi-g", "--date", DAY, "--format", "json"]) == code
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    return dict(thing)


def kept(findings: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(row["id"], row["severity"], row["message"]) for row in findings]


VERDICTS: dict[str, tuple[Callable[[Path], Tree], int, str]] = {
    "cuda": (
        lambda p: Tree(p).torch("2.5.1+cu124", cuda="12.4"), 1,
        "cannot use the GPUs of lumi-g on 2026-11-20: torch 2.5.1+cu124 is for CUDA 12.4.",
    ),
    "risk": (
        lambda p: Tree(p).torch("2.3.1+rocm6.0"), 0,
        "works at your own risk since 2026-01 at lumi-g on 2026-11-20: ROCm 6.0 is",
    ),
    "newer": (
        lambda p: Tree(p).torch("2.11.0+rocm7.2"), 0,
        "works at your own risk since 2026-01 at lumi-g on 2026-11-20: lumi-g ran ROCm 7.2",
    ),
    "driver": (
        lambda p: Tree(p).torch("2.13.0+rocm10.0"), 1,
        "cannot use the GPUs of lumi-g on 2026-11-20: ROCm 10.0 does not run on kernel driver 6.3 of lumi-g",
    ),
    "other": (
        lambda p: Tree(p).torch().extension("apex", gfx=["gfx942"]), 1,
        "does not work at lumi-g on 2026-11-20: apex 1.0 contains code for gfx942, but not for gfx90a",
    ),
    "sound": (lambda p: Tree(p).torch().extension("apex"), 0, "fits lumi-g on 2026-11-20."),
    "open": (
        lambda p: Tree(p).torch().dist("odd", "1.0", {
                "odd/a.so": shared_object(fatbin=b"CCOB" + bytes([9, 0]) + bytes(500)),
        }), 4, "could not be judged for lumi-g on 2026-11-20: 1 of 2 compiled packages could not be judged",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VERDICTS)
def test_verdict_is_first_and_decides_the_exit_code(name: str, tmp_path: Path, capsys: Capture) -> None:
    make, code, verdict = VERDICTS[name]
    tree = make(tmp_path / "env")
    document = inspected(str(tree.root), code=code, capsys=capsys)
    assert document["text"].removeprefix(f"{tree.root} ").startswith(verdict)
    main(["check", str(tree.root), "--site", "lumi-g", "--date", DAY])
    assert capsys.readouterr().out.replace("\n", " ").startswith(f"{tree.root} {verdict[:60]}")


def test_verdict_says_since_when_and_what_is_open() -> None:
    text = "The GPU code of a: b could not be judged: it is odd."
    open_ = Finding("verify-contents-not-judged", "warning", text)
    risk = Finding("driver-risk", "warning", "a: b", "", {"since": "2026-01-01", "reason": "ROCm: old"})
    judged = Judgement(thing="a", kind="wheel", against="x", findings=[risk])
    conclude(judged, "x")
    assert judged.text == "a works at your own risk since 2026-01 at x: ROCm: old."
    judged.findings.append(open_)
    conclude(judged, "x")
    assert (judged.verdict, judged.exit_code) == ("not-judged", 4)


def test_windows_of_the_driver_are_in_the_findings(tmp_path: Path, capsys: Capture) -> None:
    tree = Tree(tmp_path / "env").torch("2.3.1+rocm6.0")
    (risk,) = (
        row
        for row in inspected(str(tree.root), code=0, capsys=capsys)["findings"]
        if row["id"] == "driver-risk"
    )
    assert [(row["driver"], row["since"], row["state"]) for row in risk["evidence"]["windows"]] == [
        ("5.2", "2023-05-09", "does not run"),
        ("6.0", "2024-09-01", "supported"),
        ("6.3", "2026-01-01", "at your own risk"),
    ]
    assert risk["evidence"]["sources"]
    tree = Tree(tmp_path / "new").torch()
    (coming,) = (
        row
        for row in inspected(str(tree.root), code=0, capsys=capsys)["findings"]
        if row["id"] == "driver-next"
    )
    assert coming["message"].startswith(
        "From kernel driver 31.40 on, ROCm 6.4 is at your own risk: ROCm 6.4 is older"
    )


@pytest.mark.slow
def test_images_of_lumi_have_their_recorded_outcomes() -> None:
    """Each set that was run at the site runs on the driver of its day, at your own risk if recorded."""
    catalog = load()
    compared = 0
    for row in catalog.proven.values():
        recorded = judge(catalog, row).verdict if row.site == "lumi-g" and row.date else "unknown"
        if recorded not in {"resolves", "at your own risk"}:
            continue
        target = Target(site=row.site, date=row.date, backend="rocm", gfx=("gfx90a",))  # type: ignore[arg-type]
        past, _ = driver_states(Side(catalog, Request(target)), row.picks["rocm"])
        expected = "supported" if recorded == "resolves" else "at your own risk"
        assert past[-1].state == expected, row.id
        compared += 1
    assert compared >= 15


@pytest.mark.parametrize(
    ("image", "states"),
    [
        ("lumi-rocm-rocm-5.6.1.sif", ["at your own risk", "supported", "at your own risk"]),
        ("lumi-rocm-rocm-6.0.3.sif", ["", "supported", "at your own risk"]),
        ("lumi-rocm-rocm-6.1.3.sif", ["", "supported", "supported"]),
        ("lumi-rocm-rocm-6.2.4.sif", ["", "supported", "supported"]),
        ("lumi-multitorch-mpich-u24r64f21m43t29-20260225_144743.sif", ["", "", "supported"]),
    ],
)
def test_images_of_lumi_at_each_window(image: str, states: list[str]) -> None:
    """Which ROCm each driver supports is documented by LUMI: 5.0 to 5.4, 5.6 to 6.2, and 6.1 to 7.0."""
    catalog = load()
    target = Target(
        site="lumi-g", date=catalog.windows_of("lumi-g")[-1].since, backend="rocm", gfx=("gfx90a",)
    )
    past, _ = driver_states(Side(catalog, Request(target)), catalog.image[image].rocm)
    assert [one.state for one in past] == states


@pytest.mark.parametrize("site", ["lumi-g", "frontier"])  # the sites whose driver is known
def test_files_are_judged_by_the_rule_of_the_resolver(site: str) -> None:
    """Files are judged without a search: whether a ROCm runs at a site is what the resolver says."""
    catalog, states = load(), {"": "does-not-fit", "supported": "fits", "at your own risk": "own-risk"}
    request = Request(
        Target(site=site, date=date(2026, 11, 29), backend="rocm", gfx=tuple(catalog.site[site].gfx))
    )
    expected, outcomes = expect_request(request, catalog, "pip"), set()
    for line in sorted({minor(row.version) for row in catalog.rocm.values()}):
        past, _ = driver_states(Side(catalog, request), line)
        if past:
            assert expected.fit(line) == states[past[-1].state], line
            outcomes.add(past[-1].state)
    assert len(outcomes) > 1


CATALOG = load()
OUTCOMES = {
    "5.6": ["driver-risk", "", "driver-risk"],
    "6.2": ["driver-refuses", "", ""],
    "6.4": ["driver-refuses", "driver-refuses", ""],
    "7.0": ["driver-refuses", "driver-refuses", ""],
    "7.2": ["driver-refuses", "driver-refuses", "driver-risk"],
}
"""What LUMI documents for its drivers: ROCm 5.0 to 5.4, 5.6 to 6.2, and 6.1 to 7.0.
An image with ROCm 7.2 ran in September 2026."""
LISTED = sorted(
    {
        row.image
        for row in CATALOG.site_image.values()
        if row.site == "lumi-g" and row.image.startswith("lumi-") and CATALOG.image[row.image].holds
    }
)


def image_of_catalog(path: Path, name: str) -> Tree:
    """Write an image with the ROCm and the distributions that the catalog lists; its files are stand-ins."""
    row = CATALOG.image[name]
    line = minor(row.rocm)
    tree = Tree(path, "image", python=row.python[0], glibc=row.glibc).rocm(row.rocm)
    for dist, version in row.holds.items():
        if dist == "torch":
            tree.torch(version, hip=f"{line}.1")
        elif dist == "bitsandbytes":
            library = f"bitsandbytes/libbitsandbytes_rocm{line.replace('.', '')}.so"
            tree.dist(dist, version, {library: shared_object(fatbin=gpu_code("gfx90a"))})
        else:
            tree.dist(dist, version)
    return tree


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTED)
def test_images_of_lumi_by_their_package_lists(name: str, tmp_path: Path) -> None:
    """On the last day of each driver, the alarms are the driver's, and known problems of what is there."""
    installed = read_installed(image_of_catalog(tmp_path / "image", name).root)
    assert installed.versions == CATALOG.image[name].holds
    rocm = minor(CATALOG.image[name].rocm)
    windows = CATALOG.windows_of("lumi-g")
    for window, outcome in zip(windows, OUTCOMES[rocm], strict=True):
        day = window.until - timedelta(days=1) if window.until else date.fromisoformat(DAY)
        target = Target(site="lumi-g", date=day, backend="rocm", gfx=("gfx90a",))
        findings = findings_of(installed, Side(CATALOG, Request(target)), None, {})
        alarms = [finding for finding in findings if finding.severity != "info"]
        known = [finding.message for finding in alarms if finding.id == "known-bad"]
        held = installed.versions.get("bitsandbytes", "")
        assert any("bitsandbytes" in text for text in known) == held.startswith("0.49.")
        assert any("could not get RCCL to work with ROCm 7.0" in text for text in known) == (rocm == "7.0")
        assert {finding.id for finding in alarms} - {"known-bad"} == {outcome} - {""}, (day, findings)


def test_packages_of_the_user_are_judged(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "base"))
    user = tmp_path / "base/lib/python3.12/site-packages/numpy-2.3.0.dist-info"
    user.mkdir(parents=True)
    (user / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 2.3.0\n")
    conda = Tree(tmp_path / "conda", "conda").torch().dist("numpy", "2.2.0")
    document = inspected(str(conda.root), code=1, capsys=capsys)
    assert "verify-user-site" in {row["id"] for row in document["findings"] if row["severity"] == "error"}
    adds = Tree(tmp_path / "image", "image").torch()
    (adds.root / "opt/venv/pyvenv.cfg").write_text("include-system-site-packages = true\nhome = /usr/bin\n")
    document = inspected(str(adds.root), code=0, capsys=capsys)
    assert "verify-user-site-adds" in {
        row["id"] for row in document["findings"] if row["severity"] == "warning"
    }
    adds.sets(PYTHONNOUSERSITE="1")
    document = inspected(str(adds.root), code=0, capsys=capsys)
    assert "verify-user-site-shut" in {row["id"] for row in document["findings"]}
    venv = Tree(tmp_path / "venv").torch().dist("numpy", "2.2.0")
    document = inspected(str(venv.root), code=0, capsys=capsys)
    assert "verify-user-site-shut" in {row["id"] for row in document["findings"]}


@pytest.fixture
def lock(capsys: Capture) -> Path:
    """Write a lock of torch and two projects of an index."""
    Path("matrix.toml").write_text('[mirrors]\n"https://download.pytorch.org/" = "http://127.0.0.1:9/"\n')
    index = tiny_index(
        Path("own").absolute(), {"numpy": [("1.26.4", [])], "helper": [("1.0.5", ["numpy<2"])]}
    )
    url = (index / "simple").as_uri()
    options = ["--site", "lumi-g", "--date", DAY, "--index-url", url, "--python", "3.12"]
    assert main(["resolve", "torch==2.5.1", "helper", *options]) == 0
    capsys.readouterr()
    return Path("matrix.lock")


def test_environment_is_compared_with_the_lock_beside_it(lock: Path, capsys: Capture) -> None:
    assert lock.exists()
    tree = Tree(Path("env").absolute()).torch("2.5.1+rocm6.2").dist("numpy", "2.0.0").dist("extra", "1.0")
    document = inspected(str(tree.root), code=1, capsys=capsys)
    found = {row["id"]: row["message"] for row in document["findings"]}
    assert found["verify-pin-differs"] == "numpy is 2.0.0, but the lock pins 1.26.4."
    assert (
        found["verify-pin-missing"].startswith("pytorch-triton-rocm")
        or "helper" in found["verify-pin-missing"]
    )
    assert found["verify-unlocked"] == "1 distributions are not in the lock: extra 1.0."


def test_wheel_has_the_findings_of_audit(tmp_path: Path, capsys: Capture) -> None:
    index = tiny_index(tmp_path / "own", {"helper": [("1.0.5", ["numpy<2"])]})
    (wheel,) = index.rglob("*.whl")
    assert parse_wheel_filename(wheel.name)
    code = main(["check", str(wheel), "--format", "json"])
    audited = json.loads(capsys.readouterr().out)["things"][0]["findings"]
    document = inspected(str(wheel), code=code, capsys=capsys)
    assert kept(document["findings"]) == kept(audited)
    document = inspected(str(wheel.parent), code=code, capsys=capsys)
    assert kept(document["findings"]) == kept(audited)
    wheel.write_bytes(wheel.read_bytes()[:-40])
    document_error = main(["check", str(wheel), "--site", "lumi-g", "--date", DAY])
    assert document_error == 3
    assert "is not a valid wheel" in capsys.readouterr().err


DOCKERFILE = """# syntax=docker/dockerfile:1
FROM --platform=linux/amd64 nvidia/cuda:12.4.1-devel-ubuntu22.04 AS base
ARG TORCH=2.5.1
ENV LABEL=cu124 OTHER="x y"
RUN apt-get update && apt-get install -y git \\
    # a comment
    && pip3 install --no-cache-dir torch==${TORCH}+$LABEL "numpy<2; python_version > '3.8'" \\
       --extra-index-url https://download.pytorch.org/whl/cu124 -r requirements.txt
RUN ["python3", "-m", "pip", "install", "deepspeed==0.15.4"]
RUN mamba install -y -c nvidia -n base cuda-nvcc=12.4 && git clone https://github.com/x/y && pip install ./y
RUN --mount=type=cache,target=/root uv pip install --system flash-attn==$UNKNOWN
COPY . /app
"""
DEFINITION = """Bootstrap: docker
From: rocm/pytorch:latest

%files
    mine /opt/mine

%post
    export VERSION=2.3.1
    pip install "torch==$VERSION+rocm6.0" && make -C /opt/mine
    conda create -n x python=3.11 numpy=1.26
%environment
    export X=1
"""


def test_dockerfile_is_read() -> None:
    Path("Dockerfile").write_text(DOCKERFILE)
    found = read(Path("Dockerfile"))
    assert [str(item) for item in found.items if item.installer == "pip"] == [
        "torch 2.5.1+cu124",
        "numpy <2",
        "deepspeed 0.15.4",
        "git+https://github.com/x/y",
    ]
    assert [str(item) for item in found.items if item.installer == "conda"] == ["cuda-nvcc =12.4"]
    assert found.items[0].url == "nvidia/cuda:12.4.1-devel-ubuntu22.04"
    assert [(each.line, each.text) for each in found.unread if each.matters] == [
        (7, "-r requirements.txt"),
        (11, "flash-attn==$UNKNOWN"),
    ]


def test_definition_file_is_read() -> None:
    Path("image.def").write_text(DEFINITION)
    found = read(Path("image.def"))
    assert list(map(str, found.items)) == ["rocm/pytorch:latest", "torch 2.3.1+rocm6.0", "numpy =1.26"]
    assert (found.python, found.variables) == ("3.11", {"VERSION": "2.3.1", "X": "1"})
    assert [(each.line, each.text) for each in found.unread if each.matters] == [(9, "make -C /opt/mine")]


@pytest.mark.parametrize(
    "text",
    [
        "FROM x\nRUN pip install 'a",
        "FROM\nRUN\nENV A\nARG",
        'FROM x\nRUN ["pip"',
        "FROM x\nRUN a && \\",
        "FROM x\nRUN pip install -i",
        "Bootstrap: x\n%post\n\\",
    ],
)
def test_odd_recipes_do_not_fail(text: str) -> None:
    recipe.read(text, "Dockerfile")


def test_what_cannot_be_read_has_exit_code_3(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(range(256)))
    (tmp_path / "zeros.sif").write_bytes(bytes(4096))
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(1 << 40)
    for name in ("empty", "photo.jpg", "zeros.sif", "huge.txt", "nothing.sif"):
        code = 2 if name == "nothing.sif" else 3  # as in every command
        assert main(["check", str(tmp_path / name), "--site", "lumi-g"]) == code, name
        error = capsys.readouterr().err
        assert name in error
        assert "Traceback" not in error


def test_hostile_metadata_is_bounded(tmp_path: Path, capsys: Capture) -> None:
    """Names with control characters, deep markers, other paths in RECORD, and a huge METADATA."""
    tree = Tree(tmp_path / "env").torch()
    deep = f"x; {'(' * 5000}python_version > '3'{')' * 5000}"
    tree.dist(
        "odd",
        "1.0",
        requires=[deep, "not a requirement!", "a @ file:///etc/passwd"],
        gone=["../../../../etc/passwd.so"],
    )
    info = tree.root / tree.site / "worse-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_bytes(
        b"Metadata-Version: 2.1\nName: \x1b[31mworse\nVersion: 1.0\n" + b"x" * (1 << 25)
    )
    (tree.root / tree.site / "loop.so").symlink_to("loop.so")
    document = inspected(str(tree.root), code=1, capsys=capsys)
    assert "\x1b" not in json.dumps(document, ensure_ascii=False)
