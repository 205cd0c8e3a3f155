"""The output of pip as a list of preinstalled distributions, and ``--keep-installed``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.containers.image import LocalImage, find_image
from builders.containers.inspection import ImageFacts, ImagePython, as_row
from matrix.cli import main
from matrix.input.request import read_preinstalled
from matrix.reading import pip_output
from resolver.errors import UsageError
from resolver.facts.catalog import Catalog
from resolver.lock import read_lock
from resolver.model import IMAGE, Preinstalled
from tests.resolver.universe import EXAMPLES
from tests.support.commands import run_json

Capture = pytest.CaptureFixture[str]
COLUMNS = """\
WARNING: The directory is not writable.
Package            Version            Editable project location
------------------ ------------------ -------------------------
apex               1.9.0              /opt/src/apex
numpy              2.1.3
Torch              2.9.1+rocm6.4.lumi
typing_extensions  4.12.2

[notice] A new release of pip is available: 25.0 -> 26.3
"""
FREEZE = """\
# frozen
apex==1.9.0
numpy @ file:///croot/numpy-2.1.3-cp312-cp312-linux_x86_64.whl#sha256=aa
-e git+https://github.com/ours/thing@abc#egg=thing
-e /home/me/other
torch @ https://files.example/torch-2.9.1%2Brocm6.4.lumi-cp312-cp312-linux_x86_64.whl
typing-extensions==4.12.2
"""
JSON = json.dumps(
    [
        {"name": "apex", "version": "1.9.0", "editable_project_location": "/opt/src/apex"},
        {"name": "numpy", "version": "2.1.3"},
        {"name": "torch", "version": "2.9.1+rocm6.4.lumi"},
        {"name": "typing_extensions", "version": "4.12.2"},
    ]
)
INSTALLED = {"apex": "1.9.0", "numpy": "2.1.3", "torch": "2.9.1+rocm6.4.lumi", "typing-extensions": "4.12.2"}


@pytest.mark.parametrize(
    "raw",
    [
        COLUMNS.encode(),
        COLUMNS.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + COLUMNS.encode(),
        b"numpy 2.1.3\napex 1.9.0\ntorch 2.9.1+rocm6.4.lumi\ntyping_extensions 4.12.2\n",
        JSON.encode(),
    ],
)
def test_pip_list_formats_are_equal(raw: bytes, catalog: Catalog) -> None:
    Path("list.txt").write_bytes(raw)
    preinstalled = read_preinstalled("list.txt", catalog)
    assert preinstalled == Preinstalled("list.txt", dict(sorted(INSTALLED.items())))


def test_pip_freeze_with_urls_and_editables(catalog: Catalog) -> None:
    Path("list.txt").write_text(FREEZE)
    assert read_preinstalled("list.txt", catalog).installed == {**INSTALLED, "thing": ""}


def test_image_is_a_keyword_unless_given_as_path(catalog: Catalog) -> None:
    Path("image").write_text("torch==2.9.1\n")
    assert read_preinstalled("image", catalog) == Preinstalled(IMAGE)
    assert read_preinstalled("./image", catalog).installed == {"torch": "2.9.1"}


def test_image_on_this_machine_lists_everything(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All packages of the Python with torch are kept, not only those in the catalog."""
    (tmp_path / "mine" / "usr").mkdir(parents=True)
    system = {"packaging": "23.0"}
    own = {"sympy": "1.13.3", "torch": "2.10.0", "triton-rocm": "3.6.0"}

    def inspected(image: LocalImage) -> ImageFacts:
        pythons = tuple(
            ImagePython(
                path="/python",
                version="3.12.3",
                prefix=prefix,
                base="/usr",
                headers=True,
                venv=True,
                holds=held,
            )
            for prefix, held in (("/usr", system), ("/opt/venv", own))
        )
        return ImageFacts(name=image.name, path=str(image.path), digest=image.digest, pythons=pythons)

    monkeypatch.setattr("builders.containers.inspection.inspect_image", inspected)
    assert read_preinstalled("image", catalog, str(tmp_path / "mine")) == Preinstalled(IMAGE, own)
    assert read_preinstalled("image", catalog, "a-name-of-the-catalog.sif") == Preinstalled(IMAGE)
    row = as_row(inspected(find_image(tmp_path / "mine")), catalog)
    assert row.holds == {"torch": "2.10.0", "triton-rocm": "3.6.0"}


def test_pipe_is_read(catalog: Catalog) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"torch==2.9.1\n")
    os.close(writing)
    assert read_preinstalled(f"/dev/fd/{reading}", catalog).installed == {"torch": "2.9.1"}
    os.close(reading)


@pytest.mark.parametrize(
    ("content", "quoted"),
    [
        ("torch==2.9.1\napex>=1.0\n", "list.txt:2: 'apex>=1.0'"),
        ("torch==2.9.1\n\nthis is no list of packages\n", "list.txt:3:"),
        ("apex @ git+https://github.com/ROCm/apex@abc\n", "list.txt:1: the line gives the URL of apex"),
        ("-e git+https://github.com/ROCm/apex@abc#egg=apex\n", "list.txt:1: the line gives the URL of apex"),
        ("foo==1.0\ntorch==2.9.1-x-y\n", "list.txt:2: '2.9.1-x-y' is not a valid version of torch"),
        ("torch==2.9.1\ntorch==2.8.0\n", "list.txt:2: torch 2.8.0 contradicts torch 2.9.1"),
        ("", "lists no distributions"),
        ("# nothing\n", "lists no distributions"),
        ("[]", "lists no distributions"),
        ('[{"name": "torch"}]', "entry 1"),
        ('[{"name": "torch", "version": 2}]', "entry 1"),
        ('{"torch": "2.9.1"}', "not the output of `pip list"),
        ('[{"name": "torch",\n "version"]', "list.txt:2: not valid JSON"),
        ("[" * 50_000, "not valid JSON"),
        ("torch==2.9.1\0", "binary file"),
        ("<html>\n", "list.txt:1:"),
    ],
)
def test_invalid_list_is_refused_with_line(content: str, quoted: str, catalog: Catalog) -> None:
    Path("list.txt").write_text(content)
    with pytest.raises(UsageError) as failure:
        read_preinstalled("list.txt", catalog)
    assert quoted in failure.value.message
    assert len(failure.value.message) < 300


def test_missing_list_is_exit_2(capsys: Capture) -> None:
    assert main(["resolve", "torch", "--keep-installed", "nowhere.txt"]) == 2
    assert "The file nowhere.txt does not exist" in capsys.readouterr().err
    assert main(["resolve", "torch", "--keep-installed", "."]) == 2
    assert "is a directory" in capsys.readouterr().err


NAMES = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
VERSIONS = st.from_regex(r"[0-9]{1,2}(\.[0-9]{1,2}){1,2}(\+rocm[0-9]\.[0-9])?", fullmatch=True)


@pytest.mark.slow
@given(installed=st.dictionaries(NAMES, VERSIONS, min_size=1, max_size=6))
@EXAMPLES
def test_pip_list_formats_agree_for_any_list(installed: dict[str, str]) -> None:
    width = max(len("Package"), *map(len, installed)) + 1
    columns = [f"{'Package':{width}}Version", f"{'-' * (width - 1)} -------"]
    columns += [f"{name:{width}}{version}" for name, version in installed.items()]
    forms = [
        "\n".join(columns),
        "".join(f"{name}=={version}\n" for name, version in installed.items()),
        json.dumps([{"name": name, "version": version} for name, version in installed.items()]),
    ]
    for form in forms:
        items = pip_output.read(form, "list.txt").items
        assert {item.name: item.version for item in items} == installed


ASKED = ["resolve", "deepspeed", "--date", "2026-05-01", "--keep-installed", "list.txt"]


def test_json_names_kept_and_ignored_distributions(capsys: Capture) -> None:
    Path("list.txt").write_text(COLUMNS)
    document = run_json(capsys, *ASKED)
    assert document["target"]["kept"] == {
        "source": "list.txt",
        "installed": INSTALLED,
        "replaced": [],
        "picks": {"apex": "1.9.0", "numpy": "2.1.3", "torch": "2.9.1+rocm6.4.lumi"},
        "ignored": ["typing-extensions"],
    }
    picks = {pick["name"]: pick for pick in document["picks"]}
    assert picks["torch"]["origin"] == picks["apex"]["origin"] == "preinstalled"
    assert picks["apex"]["wheel_version"] == ""
    assert picks["deepspeed"]["origin"] == "build"


def test_json_has_no_kept_without_the_option(capsys: Capture) -> None:
    assert "kept" not in run_json(capsys, *ASKED[:4])["target"]


def test_conflict_names_preinstalled_distribution(capsys: Capture) -> None:
    Path("list.txt").write_text(COLUMNS)
    document = run_json(capsys, *ASKED, "--rocm", "7.0", code=1)
    assert "the base image contains torch 2.9.1+rocm6.4.lumi" in [item["text"] for item in document["core"]]
    assert document["target"]["kept"]["source"] == "list.txt"


def test_text_lists_preinstalled_distributions(capsys: Capture) -> None:
    Path("list.txt").write_text(COLUMNS)
    assert main([*ASKED, "-v"]) == 0
    output = capsys.readouterr()
    order = output.out.partition("Install order")[2]
    assert "Preinstalled: apex, numpy, torch" in order
    assert "torch" not in order.partition("Preinstalled")[0].replace(",", "").split()
    assert "were used" in output.err


def test_option_in_request_file_is_kept_in_lock(capsys: Capture) -> None:
    Path("list.txt").write_text(COLUMNS)
    Path("matrix.toml").write_text(
        'requirements = ["deepspeed"]\nkeep-installed = "list.txt"\ndate = 2026-05-01\npython = "3.12"\n'
    )
    assert main(["resolve", "-q"]) == 0
    lock = read_lock(Path("matrix.lock"))
    assert lock.request.preinstalled is not None
    assert lock.request.preinstalled.installed == INSTALLED
    capsys.readouterr()
    assert main(["env", "--for", "pip"]) == 0
    requirements = capsys.readouterr().out
    assert "Already in the base image, and not installed: " in requirements
    pins = [line for line in requirements.splitlines() if not line.startswith("#")]
    assert not any(line.startswith(("torch==", "apex==")) for line in pins)
    assert any(line.startswith("deepspeed==") for line in pins)


def test_table_warns_that_it_ignores_the_option(capsys: Capture) -> None:
    Path("list.txt").write_text("torch==2.9.1+rocm6.4\nnumpy==1.26.4\n")
    arguments = [
        "table",
        "deepspeed",
        "torch==2.9.1",
        "--python",
        "3.12",
        "--date",
        "2026-05-01",
        "--format",
        "csv",
    ]
    assert main(arguments) == 0
    bare = capsys.readouterr()
    assert "keeps nothing" not in bare.err
    Path("matrix.toml").write_text('keep-installed = "list.txt"\n')
    assert main(arguments) == 0
    output = capsys.readouterr()
    assert output.out == bare.out
    assert "A table ignores --keep-installed" in output.err
