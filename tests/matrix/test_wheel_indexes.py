"""Locks with wheels of AMD's and vLLM's indexes, from a local server with pages like theirs."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from matrix.cli import main
from resolver.facts.catalog import load
from resolver.lock import read_lock
from resolver.model import Resolution
from resolver.versions import minor
from tests.support.tiny import tiny_wheel
from tests.support.web_server import web_server

Capture = pytest.CaptureFixture[str]
AMD = "https://stable.repo.amd.com/rocm/whl-next"
TORCH = "2.14.0+rocm10.1.0"
TRITON = "3.8.0+git669b31ac.rocm10.1.0"
TAGS = "cp312-cp312-linux_x86_64"


@pytest.fixture
def amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Serve AMD's index and, as pip's own, an index with other projects of these names.

    Returns the directory of AMD's index.
    """
    root = tmp_path / "server"
    index, pypi = root / "amd" / "rocm" / "whl-next", root / "simple"
    device = f'amd-torch-device-gfx942=={TORCH}; extra == "device-gfx942"'
    put(
        index,
        "torch",
        TORCH,
        tags=TAGS,
        requires=["rocm[libraries]~=10.1.0", "rocm-bootstrap", f"triton=={TRITON}", "filelock", device],
        extras=["device-gfx942"],
    )
    put(index, "amd-torch-device-gfx942", TORCH, tags=TAGS, requires=["rocm-sdk-device-gfx942==10.1.0"])
    put(index, "triton", TRITON, tags=TAGS)
    put(index, "rocm-bootstrap", "0.1.0")
    for part in ("core", "libraries", "device-gfx942"):
        put(index, f"rocm-sdk-{part}", "10.1.0", tags="py3-none-linux_x86_64")
    put_rocm(index, "10.1.0")
    put(pypi, "filelock", "3.32.3")
    for name in ("rocm", "rocm-bootstrap", "rocm-sdk-core", "amd-torch-device-gfx942", "triton"):
        put(pypi, name, "99.0")
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with web_server(root) as url:
        monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple")
        hosts = "".join(f'"https://{host}repo.amd.com/" = "{url}/amd/"\n' for host in ("stable.", ""))
        Path("matrix.toml").write_text(f"[mirrors]\n{hosts}")
        yield index


def put(index: Path, name: str, version: str, **more: Any) -> Path:
    """Add a wheel to an index whose pages have neither hashes nor metadata."""
    wheel = tiny_wheel(index / name, name, version, **more)
    write_page(index / name)
    return wheel


def put_rocm(index: Path, version: str) -> None:
    """Add the sdist `rocm`, whose requirements setuptools wrote on the machine that made it."""
    folder = index / "rocm"
    folder.mkdir(parents=True)
    stem = f"rocm-{version}"
    texts = {
        "PKG-INFO": f"Metadata-Version: 2.4\nName: rocm\nVersion: {version}\n"
        "Provides-Extra: libraries\nDynamic: requires-dist\nDynamic: provides-extra\n"
        f"Requires-Dist: rocm-sdk-core=={version}\n"
        f'Requires-Dist: rocm-sdk-libraries=={version}; extra == "libraries"\n',
        "setup.py": "import setuptools\n\nsetuptools.setup(name='rocm')\n",
        "src/rocm_sdk/__init__.py": "",
    }
    with tarfile.open(folder / f"{stem}.tar.gz", "w:gz") as archive:
        for path, text in texts.items():
            member = tarfile.TarInfo(f"{stem}/{path}")
            member.size = len(text.encode())
            archive.addfile(member, BytesIO(text.encode()))
    write_page(folder)


def write_page(folder: Path) -> None:
    files = sorted(path.name for path in folder.iterdir() if path.name != "index.html")
    links = "\n".join(f'    <a href="{file.replace("+", "%2B")}">{file}</a><br>' for file in files)
    (folder / "index.html").write_text(f"<!DOCTYPE html>\n<html>\n  <body>\n{links}\n  </body>\n</html>\n")


def resolved(*arguments: str, code: int = 0) -> Resolution:
    options = ("--backend", "rocm", "--gfx", "gfx942", "--python", "3.12", "--site", "local", "-q")
    assert main(["resolve", *arguments, *options]) == code
    return read_lock(Path("matrix.lock"))


def test_torch_of_amd_is_locked_with_its_rocm(amd: Path) -> None:
    lock = resolved("torch[device-gfx942]")
    amds = {pick.name: pick.version for pick in lock.distributions if pick.index == AMD}
    assert amds == {
        "torch": TORCH,
        "amd-torch-device-gfx942": TORCH,
        "triton": TRITON,
        "rocm": "10.1.0",
        "rocm-bootstrap": "0.1.0",
        "rocm-sdk-core": "10.1.0",
        "rocm-sdk-libraries": "10.1.0",
        "rocm-sdk-device-gfx942": "10.1.0",
    }
    assert {pick.name for pick in lock.distributions} - amds.keys() == {"filelock"}
    assert (lock.target.rocm, lock.left_open) == ("10.1.0", ())
    order = {name: number for number, group in enumerate(lock.order) for name in group}
    assert order["rocm-sdk-core"] < order["rocm"] < order["torch"]
    assert amd.exists()


@pytest.mark.slow
def test_lock_with_rocm_packages_is_fetched_and_exported(amd: Path, capsys: Capture) -> None:
    resolved("torch[device-gfx942]")
    assert "ROCm 10.1.0" in capsys.readouterr().out
    assert main(["farm", "fetch", "--format", "json"]) == 0
    sources = json.loads(capsys.readouterr().out)["sources"]
    assert {item["name"]: item["kind"] for item in sources if item["name"] in {"rocm", "torch"}} == {
        "rocm": "sdist",
        "torch": "wheel",
    }
    assert main(["env", "--for", "pip", "-o", "out.txt"]) == 0
    text = Path("out.txt").read_text()
    for line in (f"torch=={TORCH}", f"amd-torch-device-gfx942=={TORCH}", "rocm==10.1.0", AMD):
        assert line in text
    assert amd.exists()


@pytest.mark.slow
def test_index_without_the_device_is_reported(amd: Path) -> None:
    for path in (amd / "amd-torch-device-gfx942").iterdir():
        path.unlink()
    lock = resolved("torch[device-gfx942]")
    assert any("amd-torch-device-gfx942" in reason for reason in lock.left_open)


SEEN = 'status = "observed"\nsource = "tests"\n'


def test_wheel_of_another_index_is_locked_fetched_and_audited(amd: Path, capsys: Capture) -> None:
    """A wheel without code for the GPU stands in for one that was compiled for other GPUs."""
    index = f"{AMD.removesuffix('/rocm/whl-next')}/vllm"
    put(amd.parents[1] / "vllm", "compiled", "1.0+rocm721", tags=TAGS, requires=["filelock"])
    Path("facts.toml").write_text(
        f'schema = 1\n[[package]]\nname = "compiled"\ntitle = "Compiled elsewhere"\npypi = "same"\n{SEEN}'
        f'[[release]]\nversion = "1.0+rocm721"\nindex = "{index}"\n{SEEN}'
        f'[[requires]]\nreleases = "==1.0+rocm721"\non = "rocm"\nversions = ["==7.2.*"]\n{SEEN}'
    )
    lock = resolved("compiled", "torch==2.11.0", "--catalog", "facts.toml")
    pick = lock.pick("compiled")
    assert pick is not None
    assert (pick.origin, pick.index, pick.version) == ("published", index, "1.0+rocm721")
    assert [file.name for file in pick.files] == [f"compiled-1.0+rocm721-{TAGS}.whl"]
    assert (lock.version_of("filelock"), minor(lock.target.rocm or "")) == ("3.32.3", "7.2")
    capsys.readouterr()
    assert main(["farm", "fetch", "compiled", "--format", "json"]) == 1
    (item,) = json.loads(capsys.readouterr().out)["missing"]
    assert "contains no code for gfx942" in item["message"]


@pytest.mark.slow
def test_update_reads_wheels_of_amd(amd: Path, capsys: Capture) -> None:
    put(amd, "apex", "1.14.0+rocm10.1.0", tags=TAGS, requires=["torch==2.14.*", "numpy>=2"])
    projects = sorted(path.name for path in amd.iterdir())
    (amd.parent / "whl-multi-arch").mkdir()
    write_page(amd.parent / "whl-multi-arch")
    links = "".join(f'    <a href="{name}/">{name}</a><br/>\n' for name in projects)
    (amd / "index.html").write_text(f"<!DOCTYPE html>\n<html>\n  <body>\n{links}  </body>\n</html>\n")
    assert main(["catalog", "update", "--source", "amd", "--apply", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["remarks"], shown["unreachable"]) == ([], [])
    mine = load([Path("catalog/updates.toml")])
    release = mine.release["apex", "1.14.0+rocm10.1.0", ""]
    assert (release.index, release.status) == (AMD, "observed")
    needs = {
        row.on: (row.versions, row.status)
        for row in mine.requires
        if row.package == "apex" and row.releases == "==1.14.0+rocm10.1.0"
    }
    assert needs["torch"] == (("==2.14.*",), "observed")
    assert not any(row.source.endswith("sha256:") for row in mine.requires)
    assert needs["numpy"] == ((">=2",), "observed")
    assert needs["rocm"] == (("==10.1.*",), "inferred")
    assert TORCH in mine.torch  # the shipped row


@pytest.mark.slow
def test_wheel_of_a_github_release_is_locked_with_its_requirements(amd: Path, capsys: Capture) -> None:
    wheel = tiny_wheel(amd.parents[1] / "v1", "compiled", "1.0+rocm7.2", tags=TAGS, requires=["filelock"])
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    url = f"https://repo.amd.com/v1/{wheel.name.replace('+', '%2B')}"
    Path("facts.toml").write_text(
        f'schema = 1\n[[package]]\nname = "compiled"\ntitle = "Compiled elsewhere"\n{SEEN}'
        f'[[release]]\nversion = "1.0+rocm7.2"\n{SEEN}'
        f'wheels = [{{ file = "{wheel.name}", sha256 = "{sha256}", url = "{url}" }}]\n'
    )
    Path("matrix.toml").write_text(
        'no-prebuilt = true\ncatalog = ["facts.toml"]\n' + Path("matrix.toml").read_text()
    )
    lock = resolved("compiled", "torch==2.11.0")
    assert lock.request.no_prebuilt  # it cannot be built, so the wheel is kept
    pick = lock.pick("compiled")
    assert pick is not None
    assert (pick.origin, pick.direct_url) == ("published", f"{url}#sha256={sha256}")
    assert lock.version_of("filelock") == "3.32.3"
    assert main(["env", "--for", "pip", "-o", "out.txt"]) == 0
    assert f"compiled @ {url}#sha256={sha256}" in Path("out.txt").read_text()
    assert capsys.readouterr().out
