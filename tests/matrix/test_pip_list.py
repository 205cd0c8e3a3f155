"""The output of pip as a list of preinstalled distributions, and ``--keep-installed``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.containers.image import LocalImage, find_image
from builders.containers.inspection import ImageFacts, ImagePython, as_row, with_inspected_image
from builders.containers.sbom import sbom_of
from matrix.cli import main
from matrix.input.request import read_preinstalled
from matrix.reading import listed
from matrix.reading.recognise import read
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
        ('{"torch": "2.9.1"}', "neither the output of `pip list"),
        ('{"bomFormat": "CycloneDX"}', "lists no distributions"),
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


APT = {"libc6": "2.39-0ubuntu8.7", "python3": "3.12.3-0ubuntu2", "rocm-core": "6.4.4.60404-129~24.04"}
PIP = {"torch": "2.9.1+rocm6.4", "pytorch-triton-rocm": "3.5.1", "zope.interface": "7.2"}
KEPT = {"pytorch-triton-rocm": "3.5.1", "torch": "2.9.1+rocm6.4", "zope-interface": "7.2"}
STATED = {"python": "3.12", "rocm": "6.4.4"}
SITE = "opt/venv/lib/python3.12/site-packages"


def sbom(form: str, pip: Mapping[str, str] = PIP, sha256: str = "") -> str:
    """Return a list of an image's content; ``packaging`` is in two directories of packages.

    LUMI's form is that of its recipes, CycloneDX is as Trivy writes it, SPDX as Syft does.
    """
    if form == "lumi":
        held = {"apt": APT, "pip": pip}
        return json.dumps(
            {key: [{"name": n, "version": v} for n, v in rows.items()] for key, rows in held.items()}
        )
    found = [("deb/ubuntu", name, version, "var/lib/dpkg/status") for name, version in APT.items()]
    found += [
        ("pypi", name, version, f"{SITE}/{name}-{version}.dist-info/METADATA")
        for name, version in pip.items()
    ]
    found += [("pypi", "torch-helper", "1", "usr/lib/python3/dist-packages/torch_helper-1.egg-info/PKG-INFO")]
    rows = [
        (f"pkg:{kind}/{name}@{quote(version)}?arch=amd64", version, at) for kind, name, version, at in found
    ]
    if form == "CycloneDX":
        components = [
            {"name": "?", "version": version, "purl": purl}
            | {"properties": [{"name": "aquasecurity:trivy:FilePath", "value": at}]}
            for purl, version, at in rows
        ]
        root = {"type": "file", "hashes": [{"alg": "SHA-256", "content": sha256}]}
        nested = {"type": "application", "name": "all", "components": components}
        return json.dumps({"bomFormat": form, "components": [nested], "metadata": {"component": root}})
    packages = [
        {"name": "?", "versionInfo": version, "sourceInfo": f"acquired from manifest file: /{at}, /other"}
        | {
            "externalRefs": [
                {"referenceType": "cpe23Type"},
                {"referenceType": "purl", "referenceLocator": purl},
            ]
        }
        for purl, version, at in rows
    ]
    packages += [
        {"SPDXID": "root", "primaryPackagePurpose": "FILE"}
        | {"checksums": [{"algorithm": "SHA256", "checksumValue": sha256}]}
    ]
    return json.dumps({"spdxVersion": "SPDX-2.3", "packages": packages, "documentDescribes": ["root"]})


FORMS = ("lumi", "CycloneDX", "SPDX")


@pytest.mark.parametrize("form", FORMS)
def test_sboms_of_an_image_are_equal(form: str, catalog: Catalog) -> None:
    """The same image, of whose Pythons only the one with torch counts."""
    Path("image.json").write_text(sbom(form))
    assert read_preinstalled("image.json", catalog) == Preinstalled("image.json", KEPT | STATED)
    of_image = read_preinstalled(IMAGE, catalog, "image.json")
    assert of_image == Preinstalled(IMAGE, KEPT), "Python and ROCm are those of the row"
    reading = read(Path("image.json"))
    assert (reading.kind, reading.python) == ("list of an image", "3.12")
    assert reading.platform == {"glibc": "2.39", "rocm": "6.4.4"}
    row = with_inspected_image(catalog, "image.json").image["image"]
    assert (row.rocm, row.glibc, row.python) == ("6.4.4", "2.39", ("3.12",))
    assert row.holds == {"pytorch-triton-rocm": "3.5.1", "torch": "2.9.1+rocm6.4"}


@given(
    data=st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(re.findall(r'"(\w+)":', sbom("SPDX") + sbom("CycloneDX"))), inner
            )
        ),
        max_leaves=20,
    ),
    form=st.sampled_from(
        [{"bomFormat": "CycloneDX"}, {"spdxVersion": "SPDX-2.3", "packages": []}, {"apt": []}]
    ),
)
@EXAMPLES
def test_damaged_sbom_is_no_error_of_ours(data: object, form: dict[str, Any]) -> None:
    assert sbom_of({**(data if isinstance(data, dict) else {"components": data}), **form}) is not None


@pytest.mark.parametrize("form", FORMS)
def test_base_image_is_its_list(form: str, capsys: Capture) -> None:
    """The row of the catalog with this name has other versions, and the list wins."""
    name = "lumi-multitorch-torch-u24r64f21m43t29-20260319_153422"
    Path(f"{name}.json").write_text(sbom(form, {**PIP, "torch": "2.8.0+rocm6.4", "deepspeed": "0.18.1"}))
    options = ["--site", "lumi-g", "--base-image", f"{name}.json", "--keep-installed", "image"]
    document = run_json(capsys, "resolve", "deepspeed", "torch", *options)
    picks = {pick["name"]: (pick["version"], pick["origin"]) for pick in document["picks"]}
    assert picks["torch"] == ("2.8.0+rocm6.4", "preinstalled")
    assert picks["deepspeed"] == ("0.18.1", "preinstalled")
    assert picks["base-image"][0] == f"{name}.sif"
    refused = run_json(capsys, "resolve", "deepspeed>0.18.1", *options, code=1)
    assert "contains deepspeed 0.18.1" in json.dumps(refused["core"])


def test_list_of_another_image_is_said(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine" / "usr").mkdir(parents=True)
    python = ImagePython(
        path="/p", version="3.12.3", prefix="/", base="/", headers=True, venv=True, holds=KEPT
    )
    monkeypatch.setattr(
        "builders.containers.inspection.inspect_image",
        lambda image: ImageFacts(name="mine", path="", digest=image.digest, pythons=(python,)),
    )
    image = find_image(tmp_path / "mine")
    for form in FORMS:
        Path("list.json").write_text(sbom(form, sha256=image.sha256))
        assert read_preinstalled("list.json", catalog, str(image.path)).installed == KEPT | STATED
    for text, said in [
        (sbom("lumi", {**PIP, "torch": "2.8.0"}), "torch 2.8.0 in the list, 2.9.1+rocm6.4 in the image"),
        (sbom("SPDX", sha256="ab" * 32), f"the list is of sha256:{'ab' * 32}, the image is {image.digest}"),
        (sbom("CycloneDX", sha256="ab" * 32), "the image is sha256:"),
    ]:
        Path("list.json").write_text(text)
        with pytest.raises(UsageError) as failure:
            read_preinstalled("list.json", catalog, str(image.path))
        assert "list.json does not describe " in failure.value.message
        assert said in failure.value.message


def test_list_without_system_cannot_be_a_base_image(catalog: Catalog) -> None:
    Path("x.json").write_text('{"bomFormat": "CycloneDX", "components": [{"purl": "pkg:pypi/torch@2.9.1"}]}')
    with pytest.raises(UsageError, match=r"lists no packages of the system"):
        with_inspected_image(catalog, "x.json")
    Path("x.json").write_text(JSON)
    with pytest.raises(UsageError, match=r"x\.json is not a list of an image's content"):
        with_inspected_image(catalog, "x.json")


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
        items = listed.read(form, "list.txt").items
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
    kept = re.findall(r"(?m)^  (\S+) +\S+ +preinstalled ", output.out)
    assert sorted(kept) == ["apex", "numpy", "torch"]
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
