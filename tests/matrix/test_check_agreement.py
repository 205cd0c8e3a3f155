"""The same set gets the same verdict in every form: as a lock, and as what is written from it."""

from __future__ import annotations

import datetime
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from matrix.cli import main
from matrix.judging.verdict import of_pick
from resolver.compiling.names import image_at
from resolver.facts.catalog import load
from resolver.indexes import Judgement, SourceClass
from resolver.lock import read_lock
from resolver.model import Distribution, Fact, Request, Resolution, Target
from tests.support.tiny import tiny_index

CATALOG = load()
DAY = "2026-11-20"
WITH_DRIVER = sorted(name for name in CATALOG.site if CATALOG.windows_of(name))
TARGET = Target(backend="rocm", gfx=("gfx90a",), site="lumi-g", date=datetime.date.fromisoformat(DAY))
Capture = pytest.CaptureFixture[str]

TORCHES: dict[str, dict[str, list[tuple[str, list[str]]]]] = {
    "rocm5.7": {"torch": [("2.3.1+rocm5.7", [])], "pytorch-triton-rocm": [("2.3.1", [])]},
    "rocm6.1": {"torch": [("2.4.1+rocm6.1", [])], "pytorch-triton-rocm": [("3.0.0", [])]},
    "rocm6.4": {"torch": [("2.9.1+rocm6.4", [])], "pytorch-triton-rocm": [("3.5.1", [])]},
    "rocm7.2": {"torch": [("2.12.0+rocm7.2", [])], "triton-rocm": [("3.7.0", [])]},
}
"""What stands in for PyTorch's indexes: the torch of each ROCm, and its triton."""
ROCM7: list[tuple[str, list[str]]] = [("0.9.1.post3", [])]
OTHERS: dict[str, list[tuple[str, list[str]]]] = {
    "einops": [("0.8.0", [])],
    "numpy": [("2.2.6", [])],
    "jax": [("0.9.1", [])],
    "jaxlib": [("0.9.1", [])],
    "jax-rocm7-plugin": ROCM7,
    "jax-rocm7-pjrt": ROCM7,
}
REQUESTS = {
    "pure": ["einops"],
    "old": ["torch==2.3.1+rocm5.7", "einops"],
    "older": ["torch==2.4.1+rocm6.1"],
    "usual": ["torch==2.9.1+rocm6.4", "einops"],
    "new": ["torch==2.12.0+rocm7.2"],
    "jax": ["jax[rocm7-local]", "jax-rocm7-plugin"],
}


@pytest.fixture(autouse=True)
def index() -> str:
    """Write indexes of a few projects in place of PyPI and PyTorch's, and return the first."""
    mirrors = {
        f"https://download.pytorch.org/whl/{name}": (
            tiny_index(Path(name).absolute(), rows) / "simple"
        ).as_uri()
        for name, rows in TORCHES.items()
    } | {
        "https://download.pytorch.org/": "http://127.0.0.1:9/",
        "https://repo.radeon.com/": "http://127.0.0.1:9/",
    }
    Path("matrix.toml").write_text(
        "[mirrors]\n" + "".join(f'"{old}" = "{new}"\n' for old, new in mirrors.items())
    )
    return (tiny_index(Path("own").absolute(), OTHERS) / "simple").as_uri()


def checked(thing: str, capsys: Capture, *options: str) -> dict[str, Any]:
    assert main(["check", thing, *options, "--format", "json"]) in {0, 1, 4}
    judged: dict[str, Any] = json.loads(capsys.readouterr().out)["things"][0]
    return judged


@pytest.mark.slow
@pytest.mark.parametrize("asked", REQUESTS)
@pytest.mark.parametrize("site", [*WITH_DRIVER, "setonix"])
def test_same_set_has_one_verdict_in_every_form(site: str, asked: str, index: str, capsys: Capture) -> None:
    """Seen with jax at lumi-g, and with everything at sites whose driver is not known."""
    Path("locked").mkdir()
    Path("forms").mkdir()
    options = ["--site", site, "--date", DAY, "--index-url", index]
    if main(["resolve", *REQUESTS[asked], *options, "-o", "locked/matrix.lock"]) != 0:
        pytest.skip("not at this site")
    capsys.readouterr()
    lock = read_lock(Path("locked/matrix.lock"))
    names = {pick.name for pick in lock.picks}
    pins = {pick.name: pick.pinned for pick in lock.distributions}
    pages = {pick.index for pick in lock.distributions if pick.index}
    lines = "".join(f"{name}=={version}\n" for name, version in pins.items())
    Path("forms/list.txt").write_text("Package Version\n------- -------\n" + lines.replace("==", " "))
    Path("forms/requirements.txt").write_text(
        "".join(f"--extra-index-url {page}\n" for page in pages) + lines
    )
    assert main(["env", "--for", "pylock", "--lock", "locked/matrix.lock", "-o", "forms/pylock.toml"]) == 0
    capsys.readouterr()
    judged = {"lock": checked("locked/matrix.lock", capsys)}
    judged |= {path.name: checked(str(path), capsys, *options) for path in Path("forms").iterdir()}
    verdicts = {form: one["verdict"] for form, one in judged.items()}
    assert len({*verdicts.values()}) == 1, (verdicts, [one["text"] for one in judged.values()])
    is_risky = any(pick.verdict == "at-own-risk" for pick in lock.picks)
    of_site = {
        True: "own-risk",
        False: "fits" if site in WITH_DRIVER or "rocm" not in names else "not-judged",
    }
    assert verdicts["lock"] == of_site[is_risky]


@pytest.mark.parametrize("name", ["score", "parser-runtime"])
def test_source_whose_build_was_not_asked_is_not_judged(
    name: str, index: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Seen with rouge-score and antlr4-python3-runtime: its lock was said to contradict itself."""
    module = name.replace("-", "_")
    texts = {"setup.py": f"from setuptools import setup\nsetup(name='{name}', version='1.0')\n"}
    texts |= {"PKG-INFO": f"Metadata-Version: 1.2\nName: {name}\nVersion: 1.0\n", f"{module}.py": "ONE = 1\n"}
    Path("links").mkdir()
    with tarfile.open(f"links/{name}-1.0.tar.gz", "w:gz") as archive:
        for path, text in texts.items():
            member = tarfile.TarInfo(f"{name}-1.0/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    monkeypatch.setenv("PIP_FIND_LINKS", str(Path("links").absolute()))
    options = ["--site", "lumi-g", "--date", DAY, "--index-url", index]
    assert main(["resolve", name, *options, "-o", "own.lock"]) == 0
    capsys.readouterr()
    Path("a.txt").write_text(f"{name}==1.0\n")
    Path("list.txt").write_text(f"Package Version\n------- -------\n{name} 1.0\n")
    lock, file = checked("own.lock", capsys), checked("a.txt", capsys, *options)
    for one in (lock, file):
        assert one["verdict"] == "not-judged", one["text"]
        (item,) = (row for row in one["distributions"] if row["name"] == name)
        assert "which a build may change" in item["evidence"]
    assert checked("list.txt", capsys, *options)["verdict"] == "fits"  # what is there was built


@pytest.mark.parametrize(
    ("line", "fits"),
    [("cupy==14.2.0+rocm7.1.notorch.gfx90a", True), ("cupy==13.6.0+rocm6.4", True), ("cupy==13.6.0", False)],
)
def test_label_for_rocm_says_more_than_a_name_for_cuda(
    line: str, fits: bool, index: str, capsys: Capture
) -> None:
    Path("freeze.txt").write_text(f"numpy==2.2.6\n{line}\n")
    options = ["--site", "frontier", "--date", DAY, "--index-url", index]
    judged = checked("freeze.txt", capsys, *options)
    verdicts = {row["name"]: row["verdict"] for row in judged["distributions"]}
    assert verdicts["cupy"] == ("fits" if fits else "does-not-fit")


@pytest.mark.parametrize(("site", "verdict"), [("lumi-g", "fits"), ("frontier", "fits")])
def test_torch_of_the_catalog_is_known_by_its_label(
    site: str, verdict: str, index: str, capsys: Capture
) -> None:
    """The torch of vLLM's wheels is labelled with a commit; the catalog has its ROCm."""
    Path("list.txt").write_text("Package Version\n------- -------\ntorch 2.9.1+git8907517\nnumpy 2.2.6\n")
    judged = checked("list.txt", capsys, "--site", site, "--date", DAY, "--index-url", index)
    assert judged["verdict"] == verdict, judged["text"]


FACTS = tuple(Fact(f"it is {status}", status, "source") for status in ("documented", "inferred"))
CONTENT = {state: Judgement(state, state) for state in ("fits", "does-not-fit", "not-judged")}
PICK = Distribution(
    name="a",
    version="1",
    kind="distribution",
    origin="published",
    support="documented",
    verdict="supported",
    facts=FACTS,
)


@pytest.mark.parametrize(
    ("changes", "verdict", "says"),
    [
        ({}, "fits", "documented"),
        ({"support": "inferred"}, "fits", "inferred"),  # a bound that it keeps
        ({"support": "inferred", "facts": FACTS[::-1]}, "not-judged", "it is inferred that"),  # the release
        ({"support": "inferred", "facts": FACTS[::-1], "content": CONTENT["fits"]}, "fits", "fits"),
        ({"support": "inferred", "verdict": "at-own-risk"}, "not-judged", "at your own risk: it is inferred"),
        ({"verdict": "at-own-risk", "content": CONTENT["fits"]}, "own-risk", "at your own risk"),
        ({"verdict": "at-own-risk", "content": CONTENT["not-judged"]}, "not-judged", "not-judged"),
        ({"content": CONTENT["does-not-fit"]}, "does-not-fit", "does-not-fit"),
        ({"support": "inferred", "source": SourceClass("pure", "")}, "not-judged", "it is inferred that"),
    ],
)
def test_verdict_about_a_pick(changes: dict[str, Any], verdict: str, says: str) -> None:
    answer = Resolution(request=Request(TARGET, ()), target=TARGET, picks=(), incomplete=("a",))
    found, evidence = of_pick(replace(PICK, **changes), answer)
    assert (found, says in evidence) == (verdict, True), evidence


def test_names_of_images_say_what_their_rows_have() -> None:
    bare = replace(CATALOG, image={})
    named = [row for row in CATALOG.image.values() if image_at(bare, row.path)]
    assert len(named) > 80
    for row in named:
        tag = image_at(bare, row.path)
        assert tag is not None
        assert tag.rocm == row.rocm
        assert tag.holds.items() <= row.holds.items() or not row.holds


@pytest.mark.parametrize(
    ("image", "verdict"),
    [
        ("rocm/pytorch:rocm6.4.4_ubuntu24.04_py3.12_pytorch_release_2.7.1", "fits"),
        ("docker.io/rocm/pytorch:rocm6.1.3_ubuntu22.04_py3.10_pytorch_release-2.1.2", "fits"),
        ("rocm/dev-ubuntu-22.04:6.2.4", "fits"),
        ("rocm/pytorch:rocm7.2.2_ubuntu24.04_py3.12_pytorch_release_2.10.0", "own-risk"),
        ("rocm/pytorch:rocm10.0_ubuntu26.04_py3.14_pytorch_release_2.13.0", "does-not-fit"),
        ("rocm/pytorch:rocm6.4.9_ubuntu24.04_py3.12_pytorch_release_2.7.1", "not-judged"),  # no such ROCm
        ("/appl/local/containers/sif-images/lumi-pytorch-rocm-6.2.4-python-3.12-pytorch-v2.7.1.sif", "fits"),
        ("/scratch/p/lumi-pytorch-rocm-6.2.1-python-3.12-pytorch-20240918-vllm-4075b35.sif", "fits"),
        ("lumi-jax-rocm-6.2.4-python-3.12-jax-community-0.5.0.sif", "fits"),
        ("lumi-pytorch-rocm-5.6.1-python-3.10-pytorch-v2.2.0.sif", "own-risk"),
        ("lumi-pytorch-rocm.sif", "not-judged"),
        ("rocm/pytorch:latest", "not-judged"),
        ("other/pytorch:rocm6.4.4_ubuntu24.04_py3.12_pytorch_release_2.7.1", "not-judged"),
    ],
)
def test_image_is_judged_by_its_name(image: str, verdict: str, index: str, capsys: Capture) -> None:
    """Images of public Dockerfiles and scripts, most of which the catalog does not list."""
    Path("Dockerfile").write_text(f"FROM {image}\nRUN pip install einops\n")
    judged = checked("Dockerfile", capsys, "--site", "lumi-g", "--date", DAY, "--index-url", index)
    assert judged["verdict"] == verdict, judged["text"]


@pytest.mark.parametrize(
    ("audio", "verdict"),
    [("2.8.0+rocm6.4", "fits"), ("2.8.0", "not-judged"), ("2.7.1+rocm6.3", "does-not-fit")],
)
def test_companion_without_a_label_beside_a_torch_with_one(
    audio: str, verdict: str, index: str, capsys: Capture
) -> None:
    """Seen in lists of ComfyUI: PyPI's torchaudio, which is for CUDA, was taken for one of ROCm."""
    pins = {"torch": "2.8.0+rocm6.4", "pytorch-triton-rocm": "3.4.0", "torchaudio": audio}
    lines = "".join(f"{name} {version}\n" for name, version in pins.items())
    Path("list.txt").write_text(f"Package Version\n------- -------\n{lines}")
    judged = checked("list.txt", capsys, "--site", "lumi-g", "--date", DAY, "--index-url", index)
    verdicts = {row["name"]: row["verdict"] for row in judged["distributions"]}
    assert verdicts == {"torch": "fits", "pytorch-triton-rocm": "fits", "torchaudio": verdict}


@pytest.mark.parametrize("torch", ["pytorch==1.13.1", "pytorch==2.3.1"])
def test_risk_of_the_nearest_is_not_that_of_the_file(torch: str, index: str, capsys: Capture) -> None:
    Path("env.yml").write_text(f"channels: [conda-forge]\ndependencies:\n  - python=3.10\n  - {torch}\n")
    judged = checked("env.yml", capsys, "--site", "lumi-g", "--date", DAY, "--index-url", index)
    assert judged["verdict"] == "does-not-fit"
    assert not {"driver-risk", "driver-not-judged"} & {row["id"] for row in judged["findings"]}
