"""Proven sets fit on their day in every format, a verdict never claims too much, and repairs are accepted."""

from __future__ import annotations

import datetime
import functools
import io
import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.findings import Finding
from builders.installed.checks import findings_of
from builders.network.urls import public_index
from matrix.cli import main
from matrix.judging.corrections import check
from matrix.judging.distributions import installed_findings, judge_items, rocm_of
from matrix.judging.target import ExpectedTarget, expect_request
from matrix.judging.verdict import EXIT_CODES, VERDICTS, JudgedItem, Judgement, conclude
from matrix.reading.items import Unread
from matrix.reading.recognise import read, read_described
from resolver.answers.proven import judge, request_of_set
from resolver.consequences.questions import Side
from resolver.facts.catalog import load
from resolver.model import Request, Target
from tests.support.installed import Tree
from tests.support.tiny import tiny_index

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matrix.judging.target import Verdict
    from resolver.facts.schema import ProvenSet

CATALOG = load()
PLATFORM = {"rocm", "base-image", "python", "kernel-driver", "glibc", "libfabric"}
TORCH = {"torch", "torchvision", "torchaudio"}
SETS = [row for row in CATALOG.proven.values() if row.date and row.site]
Capture = pytest.CaptureFixture[str]


def installed(row: ProvenSet) -> dict[str, str]:
    """Return what the set has installed; a commit is in the label, as people build it."""
    versions = {}
    for name, key in row.picks.items():
        number, _, commit = key.partition(" (")
        label = f"+git{commit.rstrip(')')}" if commit and "+" not in number else ""
        if name not in PLATFORM and number[:1].isdigit():
            versions[name] = f"{number}{label}"
    return versions


def wheel_name(name: str, version: str) -> str:
    return f"{name.replace('-', '_')}-{version}-py3-none-any.whl"


HASHES = '{ sha256 = "00" }'
FORMATS = {
    "pip-list.txt": lambda pins: (
        "Package Version\n------- -------\n"
        + "".join(f"{name} {version}\n" for name, version in pins.items())
    ),
    "freeze.txt": lambda pins: "".join(f"{name}=={version}\n" for name, version in pins.items()),
    "conda-list.txt": lambda pins: (
        "# packages in environment at /env:\n#\n# Name Version Build Channel\n"
        + "".join(f"{name} {version} pypi_0 pypi\n" for name, version in pins.items())
    ),
    "uv.lock": lambda pins: "".join(
        f'[[package]]\nname = "{name}"\nversion = "{version}"\nsource = {{ registry = "https://x" }}\n'
        for name, version in pins.items()
    ),
    "pylock.toml": lambda pins: (
        'lock-version = "1.0"\ncreated-by = "uv"\n'
        + "".join(
            f'[[packages]]\nname = "{name}"\nversion = "{version}"\nindex = "https://x.example/simple"\n'
            f'wheels = [{{ url = "https://x.example/{wheel_name(name, version)}", hashes = {HASHES} }}]\n'
            for name, version in pins.items()
        )
    ),
    "pixi.lock": lambda pins: (
        "version: 6\nenvironments:\n  default:\n    packages:\n      linux-64:\n"
        + "".join(
            f"      - pypi: https://x.example/{wheel_name(name, version)}\n" for name, version in pins.items()
        )
    ),
    "list.json": lambda pins: json.dumps([{"name": n, "version": v} for n, v in pins.items()]),
}


@functools.cache
def asked_of(name: str) -> tuple[Side, ExpectedTarget]:
    side = Side(CATALOG, request_of_set(CATALOG, next(row for row in SETS if row.id == name)))
    return side, expect_request(side.request, CATALOG, "pip")


def judged(row: ProvenSet, pins: Mapping[str, str], name: str) -> Judgement:
    reading = read_described(FORMATS[name](pins), name)
    side, expected = asked_of(row.id)
    result = Judgement(thing=name, kind=reading.kind, against=row.site, unread=reading.unread)
    result.findings = list(installed_findings(reading, side))
    result.distributions = list(judge_items(reading, expected))
    conclude(result, row.site)
    return result


TOLD = [row for row in SETS if (pins := installed(row)).keys() != {"torch"} or "+" in pins["torch"]]
"""Sets that a list tells from PyPI's torch of the same version."""
told = pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.id, marks=[pytest.mark.slow] * (n % 2)) for n, row in enumerate(TOLD)]
)


@told
def test_proven_set_fits_on_its_own_day_in_every_format(row: ProvenSet) -> None:
    """Or the driver of that day, or a known-bad combination, says why not."""
    pins, verdicts = installed(row), set()
    for name in FORMATS:
        result = judged(row, pins, name)
        verdicts.add(result.verdict)
        assert {item.verdict for item in result.distributions} == {"fits"}, result.distributions
        if result.verdict not in {"fits", "own-risk"}:
            reasons = {finding.id for finding in result.findings if finding.severity != "info"}
            assert reasons & {"driver-refuses", "driver-not-judged", "known-bad"}
    assert len(verdicts) == 1
    if row.tier == 1 and judge(CATALOG, row).verdict == "resolves":
        assert verdicts == {"fits"}


OF_TORCH = [row for row in SETS if "+rocm" in row.picks.get("torch", "") and {*installed(row)} <= TORCH]


@pytest.mark.slow
@pytest.mark.parametrize("row", OF_TORCH, ids=lambda row: row.id)
def test_proven_set_of_published_wheels_fits_as_a_lock_of_uv(row: ProvenSet, capsys: Capture) -> None:
    """Or the driver of that day says why not; other sets have builds that no lock of uv can name."""
    Path("matrix.toml").write_text('[mirrors]\n"https://download.pytorch.org/" = "http://127.0.0.1:9/"\n')
    index = (tiny_index(Path("own").absolute(), {"numpy": [("1.26.4", [])]}) / "simple").as_uri()
    Path("uv.lock").write_text(FORMATS["uv.lock"](installed(row)).replace("https://x", index))
    options = ["--site", row.site, "--date", str(row.date), "--index-url", index, "--format", "json"]
    code = main(["check", "uv.lock", *options])
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    ids = {finding["id"] for finding in thing["findings"] if finding["severity"] == "error"}
    if not any(finding["id"] == "driver-not-judged" for finding in thing["findings"]):
        assert (code, ids) in ((0, set()), (1, {"other-rocm"})), thing["text"]
    else:
        assert code in {1, 4}


@pytest.mark.parametrize(
    ("index", "line", "torch"),
    [
        ("rocm6.3", "torch", "2.9.1+rocm6.3 resolves with the others"),
        ("rocm6.2.4", "torch==2.7.1", "2.7.1+rocm6.2.4 resolves with the others"),
        ("rocm5.7", "torch==2.7.1", "2.7.1+rocm6.2.4 resolves with the others"),  # not there: an error below
        ("nightly/rocm6.3", "torch", "the catalog has no nightly builds"),
    ],
)
def test_torch_is_what_the_index_of_the_file_has(index: str, line: str, torch: str, capsys: Capture) -> None:
    """Public Dockerfiles and guides install so: ComfyUI's, and those for Frontier."""
    Path("matrix.toml").write_text('[mirrors]\n"https://download.pytorch.org/" = "http://127.0.0.1:9/"\n')
    own = (tiny_index(Path("own").absolute(), {"numpy": [("1.26.4", [])]}) / "simple").as_uri()
    Path("a.txt").write_text(f"--index-url https://download.pytorch.org/whl/{index}\n{line}\n")
    options = ["--site", "lumi-g", "--date", "2026-11-20", "--index-url", own, "--format", "json"]
    code = main(["check", "a.txt", *options])
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    assert [item["evidence"] for item in thing["distributions"]] == [torch]
    assert code == {"rocm5.7": 1, "nightly/rocm6.3": 4}.get(index, 0)


@pytest.mark.parametrize("site", ["lumi-g", "frontier"])
@pytest.mark.parametrize("torch", ["torch", "torch==2.6.0+cu124", "torch==2.7.1+cu124"])
def test_index_for_cuda_becomes_one_that_has_the_torch(site: str, torch: str) -> None:
    text = f"--extra-index-url https://download.pytorch.org/whl/cu124\n{torch}\n"
    target = Target(backend="rocm", gfx=("gfx90a",), site=site, date=datetime.date(2026, 11, 20))
    expected = expect_request(Request(target, ()), CATALOG, "pip")
    rows = [found.evidence["corrected"] for found in check(read_described(text, "a.txt"), expected)]
    index, *lines = [line for row in rows for line in row] or [""]
    of_index = {row.version for row in CATALOG.torch.values() if index.endswith(f" {row.index}")}
    assert of_index or not index
    assert {line.removeprefix("torch==") for line in lines} <= of_index


ROCM_6_2, ROCM_6_4 = ("https://download.pytorch.org/whl/rocm6.2", "https://download.pytorch.org/whl/rocm6.4")
CONDA_FILE = "channels: [conda-forge]\ndependencies:\n  - python=3.12\n  - pip=26.*\n  - pip:\n"


@pytest.mark.parametrize(
    ("name", "text", "code", "rule"),
    [
        ("a.yml", CONDA_FILE + "    - helper\n", 1, "unpinned-torch"),
        ("a.txt", "helper\n", 4, "not-judged"),  # an image or a module may have it
        ("a.txt", "outer\n", 4, "not-judged"),
        ("a.txt", f"--extra-index-url {ROCM_6_4}\ntorch==2.9.1+rocm6.4\nhelper\n", 0, ""),
        ("a.txt", "numpy\n", 0, ""),
        ("Dockerfile", "FROM rocm/pytorch\nRUN pip install helper\n", 4, ""),
        ("a.txt", f"--extra-index-url {ROCM_6_4}\ntorch==2.9.1+rocm6.4\nvision\n", 0, ""),
        ("a.txt", f"--extra-index-url {ROCM_6_4}\ntorch==2.9.1+rocm6.4\naudio\n", 1, "unpinned-torch"),
        (
            "a.sh",
            f"pip install torch==2.9.1 --index-url {ROCM_6_4}\npip install vision\n",
            1,
            "unpinned-torch",
        ),
    ],
)
def test_torch_that_no_line_names_is_pypi_s(
    name: str, text: str, code: int, rule: str, capsys: Capture
) -> None:
    """Seen with peft, gpytorch, fastai and speechbrain: pip installs the torch of PyPI beside them."""
    Path("matrix.toml").write_text('[mirrors]\n"https://download.pytorch.org/" = "http://127.0.0.1:9/"\n')
    packages: dict[str, list[tuple[str, list[str]]]] = {
        "numpy": [("1.26.4", [])],
        "helper": [("1.0", ["torch"])],
        "outer": [("1.0", ["helper"])],
        "vision": [("1.0", ["torch", "torchvision"])],
        "audio": [("1.0", ["torch", "torchaudio"])],
    }
    index = (tiny_index(Path("own").absolute(), packages) / "simple").as_uri()
    Path(name).write_text(text)
    options = ["--site", "lumi-g", "--date", "2026-11-20", "--index-url", index, "--format", "json"]
    assert main(["check", name, *options]) == code
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    found = {row["id"]: row["message"] for row in thing["findings"] if row["severity"] != "info"}
    assert {*found} == {rule} - {""}
    assert not rule or re.search("(helper|vision|audio) needs torch.*, and no line names it", found[rule])


@pytest.mark.parametrize(
    ("text", "code", "verdicts"),
    [
        ("pip install table==1.0\npip install reader==2.0", 4, {"reader": "not-judged", "table": "fits"}),
        ("pip install table==1.0 reader==2.0", 1, {"reader": "does-not-fit", "table": "fits"}),
        (
            "pip install table==1.0\npip install --no-deps reader==2.0",
            4,
            {"reader": "not-judged", "table": "fits"},
        ),
        (f"pip install torch==2.5.1 -i {ROCM_6_2}\npip install newer==2.0", 1, {"torch": "does-not-fit"}),
        (f"pip install torch==2.9.1 -i {ROCM_6_4}\npip install newer==2.0", 0, {"newer": "fits"}),
    ],
)
def test_commands_install_one_after_another(
    text: str, code: int, verdicts: Mapping[str, str], capsys: Capture
) -> None:
    """Seen in scripts with ``--no-deps``, or with pyarrow pinned before datasets: pip replaces it."""
    Path("matrix.toml").write_text('[mirrors]\n"https://download.pytorch.org/" = "http://127.0.0.1:9/"\n')
    packages: dict[str, list[tuple[str, list[str]]]] = {
        "table": [("1.0", []), ("2.0", [])],
        "reader": [("1.0", []), ("2.0", ["table>=2"])],
        "newer": [("1.0", ["torch"]), ("2.0", ["torch>=2.7"])],
    }
    index = (tiny_index(Path("own").absolute(), packages) / "simple").as_uri()
    Path("install.sh").write_text(f"{text}\n")
    options = ["--site", "lumi-g", "--date", "2026-11-20", "--index-url", index, "--format", "json"]
    assert main(["check", "install.sh", *options]) == code
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    found = {row["name"]: row["verdict"] for row in thing["distributions"]}
    assert found.items() >= verdicts.items()


@pytest.mark.parametrize(("requires", "verdict"), [("setuptools", "fits"), ("torch", "not-judged")])
def test_source_that_resolve_does_not_judge_is_no_fit(
    requires: str, verdict: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Seen with llama-cpp-python, axolotl-contribs-lgpl and mmcv."""
    texts = {
        "pyproject.toml": f"[build-system]\nrequires = ['{requires}']\n",
        "PKG-INFO": "Metadata-Version: 2.2\nName: thing\nVersion: 1.0\n",
        "thing.py": "def answer() -> int:\n    return 42\n",
    }
    Path("links").mkdir()
    with tarfile.open("links/thing-1.0.tar.gz", "w:gz") as archive:
        for name, text in texts.items():
            member = tarfile.TarInfo(f"thing-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    monkeypatch.setenv("PIP_FIND_LINKS", str(Path("links").absolute()))
    Path("a.txt").write_text("thing\n")
    main(["check", "a.txt", "--site", "lumi-g", "--date", "2026-11-20", "--format", "json"])
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    assert [item["verdict"] for item in thing["distributions"]] == [verdict]


@pytest.mark.slow
@pytest.mark.parametrize("site", sorted(name for name, row in CATALOG.site.items() if row.gfx))
def test_file_and_list_agree_at_every_site(site: str, capsys: Capture) -> None:
    """A site whose driver is not known gets no "fits" of either, and no exit 70 for any index."""
    Path("matrix.toml").write_text('[mirrors]\n"https://download.pytorch.org/" = "http://127.0.0.1:9/"\n')
    index = (tiny_index(Path("own").absolute(), {"numpy": [("1.26.4", [])]}) / "simple").as_uri()
    url = "https://download.pytorch.org/whl/rocm6.4"
    Path("a.txt").write_text(f"--index-url {url}\ntorch==2.9.1+rocm6.4\n")
    Path("freeze.txt").write_text("torch==2.9.1+rocm6.4\npytorch-triton-rocm==3.5.1\n")
    assert main(["check", "a.txt", "--site", site, "--index-url", index, "--format", "json"]) != 70
    (file,) = json.loads(capsys.readouterr().out)["things"]
    assert main(["check", "freeze.txt", "--site", site, "--index-url", index, "--format", "json"]) != 70
    (listed,) = json.loads(capsys.readouterr().out)["things"]
    assert file["verdict"] == listed["verdict"]
    for rocm in ("5.2", "6.3", "7.1", "7.13"):
        Path("b.txt").write_text(f"--extra-index-url https://download.pytorch.org/whl/rocm{rocm}\ntorch\n")
        assert main(["check", "b.txt", "--site", site, "--index-url", index]) in {0, 1, 4}


def in_tree(row: ProvenSet, folder: Path) -> Judgement:
    """Judge a built environment with the distributions of a set; their files do not matter here."""
    tree = Tree(folder, python=row.picks.get("python", "3.12"))
    for name, version in installed(row).items():
        rocm = rocm_of(version.partition("+")[2]) or row.picks.get("rocm", "")
        values = f"__version__ = {version!r}\nhip = {rocm or None!r}\ncuda = None\n".encode()
        tree.dist(name, version, {"torch/version.py": values} if name == "torch" else {})
    reading = read(folder)
    side = Side(CATALOG, request_of_set(CATALOG, row))
    assert reading.content is not None
    result = Judgement(thing="tree", kind=reading.kind, against=row.site, unread=reading.unread)
    result.findings = findings_of(reading.content, side, None, {})
    conclude(result, row.site)
    return result


@told
def test_proven_set_in_a_tree_is_judged_as_in_a_list(row: ProvenSet, tmp_path: Path) -> None:
    """What a list says against a set, its tree says, too, and nothing else about versions and the driver."""
    listed, built = judged(row, installed(row), "freeze.txt"), in_tree(row, tmp_path / "env")
    about = {"driver-refuses", "driver-risk", "known-bad", "driver-not-judged"}
    of_list, of_tree = (
        {finding.id for finding in each.findings if finding.severity != "info"} & about
        for each in (listed, built)
    )
    assert of_list == of_tree
    errors = {finding.id for finding in built.findings if finding.severity == "error"}
    assert errors <= about | {"computed-name-missing"}, built.findings  # of files that are not there


@pytest.mark.slow
def test_order_of_the_lines_does_not_matter() -> None:
    for row in SETS:
        pins = installed(row)
        if "torch" in pins:
            backwards = dict(reversed(pins.items()))
            first, second = (judged(row, each, "freeze.txt") for each in (pins, backwards))
            assert (first.verdict, first.text) == (second.verdict, second.text)


SEVERITY = st.sampled_from(["error", "warning", "info"])
IDS = st.sampled_from(["cuda-torch", "verify-contents-not-judged", "driver-risk", "known-bad"])
FINDINGS = st.lists(st.builds(Finding, id=IDS, severity=SEVERITY, message=st.just("It is so.")), max_size=4)
ITEMS = st.lists(
    st.builds(JudgedItem, name=st.sampled_from("abc"), verdict=st.sampled_from(VERDICTS)), max_size=4
)
UNREAD = st.lists(st.builds(Unread, st.just(1), st.just("x"), st.just("y"), st.booleans()), max_size=2)


@given(FINDINGS, ITEMS, UNREAD)
def test_fits_never_stands_beside_what_was_not_judged(
    findings: list[Finding], items: list[JudgedItem], unread: list[Unread]
) -> None:
    result = Judgement(
        thing="x", kind="k", against="here", findings=findings, distributions=items, unread=unread
    )
    conclude(result, "here")
    everything = all(item.verdict == "fits" for item in items)
    is_clean = not any(line.matters for line in unread) and everything
    assert (result.verdict == "fits") <= is_clean
    assert (result.exit_code == 1) == (
        any(finding.severity == "error" for finding in findings)
        or any(item.verdict == "does-not-fit" for item in items)
    )
    assert "here" in result.text


EMPTY = {
    "empty.sh": "",
    "job.sh": "#!/bin/bash\n#SBATCH --nodes=1\nsource venv/bin/activate\npython train.py\n",
    "requirements.txt": "# to do\n--extra-index-url https://download.pytorch.org/whl/rocm6.3\n",
    "pyproject.toml": (
        '[project]\nname = "own"\nversion = "1"\nrequires-python = ">=3.8"\ndependencies = []\n'
        '[project.optional-dependencies]\nhip = ["torch==2.5.1+rocm6.2"]\n'
    ),
    "image.sh": "#!/bin/bash\n#SBATCH --nodes=1\nsrun singularity exec own.sif torchrun train.py\n",
}


@pytest.mark.parametrize("name", EMPTY)
def test_what_names_nothing_is_not_judged(name: str, capsys: Capture) -> None:
    """Nothing is against it, and nothing was judged: that is no `fits`."""
    Path(name).write_text(EMPTY[name])
    assert main(["check", name, "--site", "lumi-g"]) == 4, capsys.readouterr().out
    assert "could not be judged" in capsys.readouterr().out


BROKEN = {
    "cuda.txt": "torch==2.5.1+cu124\nnumpy==1.26.4\nnvidia-nccl-cu12==2.21.5\n",
    "bare.txt": "torch==2.3.1\nnumpy==1.26.4\n",
    "old.txt": "torch==2.1.2\nnumpy==1.26.4\n",
    "range.in": "torch>=2.4,<2.8\nnumpy\n",
    "env.yml": "dependencies:\n  - python=3.11\n  - pip\n  - pip:\n    - torch==2.4.0\n    - numpy==1.26.4\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_repair_writes_is_accepted(name: str, tmp_path: Path, capsys: Capture) -> None:
    mirrors = '[mirrors]\n"https://download.pytorch.org/" = "http://127.0.0.1:9/"\n'
    Path("matrix.toml").write_text(mirrors)
    index = (tiny_index(tmp_path / "own", {"numpy": [("1.26.4", []), ("2.2.6", [])]}) / "simple").as_uri()
    Path(name).write_text(BROKEN[name])
    options = ["--site", "lumi-g", "--date", "2026-11-20", "--index-url", index]
    assert main(["check", name, *options]) == 1
    assert main(["check", name, *options, "--repair", "-o", "fixed", "--for", "pip"]) == 0
    capsys.readouterr()
    assert main(["check", "fixed/requirements.txt", *options]) == 0, capsys.readouterr().out


def resolved_lock(capsys: Capture, *requirements: str, name: str = "own.lock") -> None:
    """Write a lock from indexes that exist, whose files are gone afterwards."""
    torch: dict[str, list[tuple[str, list[str]]]] = {
        "torch": [("2.9.1+rocm6.4", [])],
        "pytorch-triton-rocm": [("3.5.1", [])],
    }
    pages = {page: (tiny_index(Path(page).absolute(), rows) / "simple").as_uri() for page, rows in (
        ("torches", torch), ("others", {"einops": [("0.8.0", [])]})
    )}  # fmt: skip
    Path("matrix.toml").write_text(
        f'[mirrors]\n"https://download.pytorch.org/whl/rocm6.4" = "{pages["torches"]}"\n'
        '"https://download.pytorch.org/" = "http://127.0.0.1:9/"\n'
    )
    options = ["--site", "lumi-g", "--date", "2026-11-20", "--index-url", pages["others"], "-o", name]
    assert main(["resolve", "torch==2.9.1+rocm6.4", *requirements, *options]) == 0, capsys.readouterr()
    capsys.readouterr()
    shutil.rmtree("torches")
    shutil.rmtree("others")
    Path("matrix.toml").write_text("")


@pytest.mark.parametrize("requirements", [["einops"], ["flash-attn", "einops"]], ids=["published", "built"])
def test_lock_is_judged_by_its_own_facts(requirements: list[str], capsys: Capture) -> None:
    """On the site of the lock, whatever the site here is; no index has what is built, or is asked."""
    resolved_lock(capsys, *requirements)
    code = main(["check", "own.lock", "--offline", "--format", "json"])
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    assert (code, thing["verdict"]) == (0, "fits"), thing["text"]
    assert {item["name"] for item in thing["distributions"]} >= {"torch", *requirements}
    assert {item["verdict"] for item in thing["distributions"]} == {"fits"}
    assert "lumi-g" in thing["text"]
    assert "--extra-index-url" not in json.dumps(thing)


@pytest.mark.parametrize(
    ("options", "verdict", "says"),
    [
        (["--driver", "5.7"], "does-not-fit", "the kernel driver is 5.7"),
        (["--driver", "6.0"], "does-not-fit", "6.0"),
        (["--backend", "cpu"], "does-not-fit", "torch 2.9.1+rocm6.4"),
        (["--site", "lumi-c"], "does-not-fit", "lumi-c"),
    ],
    ids=lambda value: "-".join(value).lstrip("-") if isinstance(value, list) else None,
)
def test_lock_is_judged_for_the_target_that_the_user_names(
    options: list[str], verdict: Verdict, says: str, capsys: Capture
) -> None:
    resolved_lock(capsys, "einops")
    code = main(["check", "own.lock", *options, "--format", "json"])
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    assert (thing["verdict"], code) == (verdict, EXIT_CODES[verdict]), thing["text"]
    assert says in thing["text"]


@pytest.mark.parametrize("asks", [True, False], ids=["index-of-torch-is-silent", "no-index"])
def test_lock_that_lacks_something_is_not_judged(asks: bool, capsys: Capture) -> None:
    Path("matrix.toml").write_text('[mirrors]\n"https://download.pytorch.org/" = "http://127.0.0.1:9/"\n')
    index = (tiny_index(Path("own").absolute(), {"numpy": [("1.26.4", [])]}) / "simple").as_uri()
    assert main(["resolve", "torch", "--site", "lumi-g", *(["--index-url", index] if asks else [])]) == 0
    capsys.readouterr()
    assert main(["check", "matrix.lock"]) == 4
    assert ("the requirements of torch" if asks else "all files") in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize("name", ["build.sh", "Dockerfile", "image.def", "job"])
def test_file_that_a_script_writes_does_not_tell_its_kind(name: str, capsys: Capture) -> None:
    """Seen in scripts for cotainr that write the environment file and name it in the next line."""
    start = {"Dockerfile": "FROM ubuntu\nRUN ", "image.def": "Bootstrap: docker\nFrom: ubuntu\n%post\n"}
    text = start.get(name, "#!/bin/bash\n") + f"cat > env.yml <<EOF\n{CONDA_FILE}EOF\n"
    Path(name).write_text(
        f"{text}pip install numpy==2.2.6\n".replace("\npip", "\nRUN pip" if "Docker" in name else "\npip")
    )
    assert main(["check", name, "--site", "lumi-g", "--date", "2026-11-20", "--format", "json"]) in {0, 4}
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    assert [row["name"] for row in thing["distributions"] if row["version"]] == ["numpy"]


def test_file_of_requirements_is_installed_without_what_they_require(tmp_path: Path) -> None:
    (tmp_path / "needed.txt").write_text("reader==2.0\n")
    recipe = tmp_path / "Dockerfile"
    lines = ["FROM ubuntu", "COPY needed.txt /tmp/", "RUN pip install --no-deps -r /tmp/needed.txt"]
    recipe.write_text("\n".join([*lines, "RUN pip install table"]))
    found = {item.name: item.alone for item in read(recipe).items if item.installer == "pip"}
    assert found == {"reader": True, "table": False}


PROJECT_OF_UV = f"""[project]
name = "a"
version = "1"
dependencies = ["torch"]
[[tool.uv.index]]
url = "{ROCM_6_4}"
"""
MANIFEST_OF_PIXI = f"""[workspace]
channels = ["conda-forge"]
platforms = ["linux-64"]
[pypi-options]
extra-index-urls = ["{ROCM_6_4}"]
[pypi-dependencies]
torch = "*"
"""


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("a.sh", f"uv pip install torch --index {ROCM_6_4}", 0),
        ("a.sh", f"uv pip install torch --index {ROCM_6_4} --index-strategy unsafe-best-match", 1),
        ("a.sh", f"uv pip install torch==2.9.1 -i {ROCM_6_4} --extra-index-url {public_index()}", 1),
        ("a.sh", f"pip install torch==2.9.1 -i {ROCM_6_4} --extra-index-url {public_index()}", 0),
        ("a.sh", "uv pip install torch --torch-backend=rocm6.4", 0),
        ("a.sh", "UV_TORCH_BACKEND=rocm6.4 uv pip install torch", 0),
        ("a.sh", "uv pip install torch --torch-backend cu126", 1),
        ("a.sh", "uv pip install torch --torch-backend auto", 4),
        ("pyproject.toml", PROJECT_OF_UV, 0),
        ("pyproject.toml", f'{PROJECT_OF_UV}[tool.uv]\nindex-strategy = "unsafe-best-match"\n', 1),
        ("pixi.toml", MANIFEST_OF_PIXI, 0),
    ],
)
def test_uv_and_pixi_take_torch_from_the_first_index(
    name: str, text: str, code: int, capsys: Capture
) -> None:
    """Seen in guides that install torch for ROCm with uv: what pip would take was an error."""
    Path("matrix.toml").write_text('[mirrors]\n"https://download.pytorch.org/" = "http://127.0.0.1:9/"\n')
    Path(name).write_text(f"{text}\n")
    assert main(["check", name, "--site", "lumi-g", "--date", "2026-11-20"]) == code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("a.txt", "torch==2.5.1\n", 0),
        (
            "a.yml",
            CONDA_FILE.replace("  - pip:\n", "  - pytorch=2.5.1\n"),
            4,
        ),  # conda's packages are not judged
        ("a.txt", "torch==2.5.1+cpu\nnvidia-nccl-cu12==2.27.5\n", 4),
        ("a.txt", "torch==2.5.1+cpu\ncupy-cuda12x==13.4.1\n", 4),
    ],
)
def test_builds_for_cuda_run_on_cpus(name: str, text: str, code: int, capsys: Capture) -> None:
    """Seen in environments for LUMI-C: conda's pytorch was refused, because it is not for ROCm."""
    index = (tiny_index(Path("own").absolute(), {"nvidia-nccl-cu12": [("2.27.5", [])]}) / "simple").as_uri()
    Path("matrix.toml").write_text('[mirrors]\n"https://download.pytorch.org/" = "http://127.0.0.1:9/"\n')
    Path(name).write_text(text)
    options = ["--site", "lumi-c", "--date", "2026-11-20", "--index-url", index]
    assert main(["check", name, *options]) == code, capsys.readouterr().out


@pytest.mark.parametrize("chosen", [["--extra", "amd"], ["--extra", "rocm"], []])
def test_environment_or_feature_of_pixi_is_chosen_by_name(chosen: list[str], capsys: Capture) -> None:
    """Seen in workspaces with one environment for each backend; only the default one could be judged."""
    Path("matrix.toml").write_text('[mirrors]\n"https://download.pytorch.org/" = "http://127.0.0.1:9/"\n')
    feature = f'[feature.rocm.pypi-options]\nextra-index-urls = ["{ROCM_6_4}"]\n'
    feature += '[feature.rocm.pypi-dependencies]\ntorch = ">=2.8,<2.10"\n[environments]\namd = ["rocm"]\n'
    Path("pixi.toml").write_text(f'[workspace]\nchannels = []\nplatforms = ["linux-64"]\n{feature}')
    code = main(
        ["check", "pixi.toml", "--site", "lumi-g", "--date", "2026-11-20", "--format", "json", *chosen]
    )
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    found = [(row["name"], row["verdict"]) for row in thing["distributions"]]
    assert (code, found) == ((0, [("torch", "fits")]) if chosen else (4, []))
    assert ("without rocm and amd" in thing["how"]) == (not chosen)
    assert main(["check", "pixi.toml", "--extra", "cuda"]) == 3
    assert "has no environment or feature cuda" in capsys.readouterr().err


def test_all_indexes_of_a_file_are_equal_for_pip(capsys: Capture) -> None:
    """A mirror that a file names beside PyPI lacks the newest releases; pip takes them from the other."""
    releases = {"mirror": ["1.26.4"], "public": ["1.26.4", "2.2.6"]}
    page = {
        name: (tiny_index(Path(name).absolute(), {"numpy": [(one, []) for one in own]}) / "simple").as_uri()
        for name, own in releases.items()
    }
    Path("a.txt").write_text(f"--extra-index-url {page['mirror']}\nnumpy==2.2.6\n")
    Path("a.yml").write_text(
        "channels: [conda-forge]\ndependencies:\n  - python=3.12\n  - pip=26.*\n  - pip:\n"
        f"    - --extra-index-url {page['mirror']}\n    - numpy==2.2.6\n"
    )
    for name in ("a.txt", "a.yml"):
        assert main(["check", name, "--site", "lumi-c", "--index-url", page["public"]]) == 0
    strict = ["check", "a.txt", "--site", "lumi-c", "--index-url", page["public"], "--index-strategy"]
    assert main([*strict, "first-index"]) == 4
    capsys.readouterr()
