"""The sources of ``matrix catalog update``, with a local server whose pages have the form of real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from matrix.maintaining import prebuilt, rocm, sites
from resolver.facts import schema
from resolver.facts.catalog import Catalog, load
from tests.builders.gitrepos import commit, git
from tests.matrix.test_catalog_update import AB, Capture, Sources, sdist, sources, update

__all__ = ["sources"]

HTML = "text/html; charset=utf-8"
MIRRORS = {
    "https://download.pytorch.org/": "torch",
    "https://raw.githubusercontent.com/": "raw",
    "https://repo.amd.com/": "amd",
    "https://stable.repo.amd.com/": "next",
    "https://wheels.vllm.ai/": "vllm",
    "https://api.github.com/": "api",
    "https://github.com/": "github",
}


@pytest.fixture
def pages(sources: Sources) -> Sources:
    lines = (f'"{url}" = "{sources.url}/{folder}/"\n' for url, folder in MIRRORS.items())
    Path("matrix.toml").write_text(f"[mirrors]\n{''.join(lines)}")
    return sources


def written() -> Catalog:
    return load([Path("catalog/updates.toml")])


def put(pages: Sources, url: str, text: str, kind: str = "text/plain") -> None:
    for prefix, folder in MIRRORS.items():
        if url.startswith(prefix):
            pages.pages[f"/{folder}/{url.removeprefix(prefix)}"] = (kind, text)


def listing(*names: str) -> str:
    """Return a page as AMD's and vLLM's generators write it: links without hashes."""
    links = (
        f'    <a href="{name.replace("+", "%2B")}">{name.rpartition("/")[2] or name}</a><br/>'
        for name in names
    )
    head = '<!DOCTYPE html>\n<html>\n  <meta name="pypi:repository-version" content="1.0">\n  <body>\n'
    return f"{head}{chr(10).join(links)}\n  </body>\n</html>\n"


# AMD's indexes.


@pytest.fixture
def amd(pages: Sources) -> Sources:
    """Serve an index with a new torch for a new ROCm 10.1 patch, and with apex."""
    index = "https://stable.repo.amd.com/rocm/whl-next"
    tag = "cp312-cp312-linux_x86_64.whl"
    projects = ["torch/", "torchvision/", "torchaudio/", "apex/", "numpy/", "rocm/"]
    projects += ["amd-torch-device-gfx90a/", "amd-torch-device-gfx942/", "amd-torch-device-gfx110x/"]
    put(pages, f"{index}/", listing(*projects), HTML)
    torch = [f"torch-2.14.0+rocm10.1.7-{tag}", f"torch-2.14.0+rocm10.1.7-{tag.replace('312', '313')}"]
    torch += [
        f"torch-2.15.0a0+rocm10.2.0a20261001-{tag}",
        "torch-2.14.0+rocm10.1.7-cp312-cp312-win_amd64.whl",
    ]
    torch += [f"torch-2.9.1+rocm7.99.0-{tag}"]
    put(pages, f"{index}/torch/", listing(*torch), HTML)
    put(pages, f"{index}/torchvision/", listing(f"torchvision-0.29.0a0+rocm10.1.7-{tag}"), HTML)
    put(pages, f"{index}/torchaudio/", listing(f"torchaudio-2.11.0.3+rocm10.1.7-{tag}"), HTML)
    put(pages, f"{index}/apex/", listing(f"apex-1.14.0+rocm10.1.7-{tag}"), HTML)
    put(pages, f"{index}/numpy/", listing(f"numpy-2.5.3-{tag}"), HTML)
    return pages


@pytest.mark.slow
def test_amd_index_adds_torch_and_apex(amd: Sources, capsys: Capture) -> None:
    shown = update(capsys, "--source", "amd", "--apply", code=3)  # the other index has no page
    assert len(shown["unreachable"]) == 1
    mine = written()
    row = mine.torch["2.14.0+rocm10.1.7"]
    assert row.python == ("3.12", "3.13")
    assert (row.rocm, row.device_extra, row.gfx) == ("10.1.7", "device-{gfx}", ("gfx90a", "gfx942"))
    assert (row.torchvision, row.torchaudio) == ("0.29.0a0+rocm10.1.7", "2.11.0.3+rocm10.1.7")
    assert row.index == "https://stable.repo.amd.com/rocm/whl-next"
    assert not {"2.9.1+rocm7.99.0", "2.15.0a0+rocm10.2.0a20261001"} & mine.torch.keys()
    release = mine.release["apex", "1.14.0+rocm10.1.7", ""]
    assert (release.index, release.status) == (row.index, "inferred")
    needs = {item.on: item.versions for item in mine.requires if item.releases == "==1.14.0+rocm10.1.7"}
    assert needs == {"rocm": ("==10.1.*",), "python": ("==3.12.*",)}
    assert not any(key[0] == "numpy" and "rocm" in key[1] for key in mine.release)
    assert amd.requests


@pytest.mark.slow
def test_amd_index_without_news_adds_nothing(amd: Sources, capsys: Capture) -> None:
    update(capsys, "--source", "amd", "--apply", code=3)
    again = update(capsys, "--source", "amd", "--catalog", "catalog", code=3)
    assert (again["rows"], again["diff"]) == (0, "")
    assert amd.requests


# vLLM's indexes.


@pytest.mark.slow
def test_vllm_index_adds_release_with_its_torch(pages: Sources, capsys: Capture) -> None:
    pages.project("vllm", [sdist("vllm", "0.13.0"), sdist("vllm", "99.1.0"), sdist("vllm", "99.2.0rc1")])
    put(pages, f"{prebuilt.VLLM}/99.1.0/", listing("rocm721/", "triton/"), HTML)
    index = f"{prebuilt.VLLM}/99.1.0/rocm721"
    tag = "cp312-cp312-manylinux_2_34_x86_64.whl"
    put(pages, f"{index}/vllm/", listing(f"../../../abc/vllm-99.1.0+rocm721-{tag}"), HTML)
    put(pages, f"{index}/torch/", listing(f"../../../abc/torch-99.0.0+git8514f05-{tag}"), HTML)
    shown = update(capsys, "--source", "vllm", "--apply")
    mine = written()
    assert mine.release["vllm", "99.1.0+rocm721", ""].index == index
    needs = {row.on: row.versions for row in mine.requires if row.releases == "==99.1.0+rocm721"}
    assert needs == {
        "torch": ("==99.0.0+git8514f05",),
        "rocm": ("==7.2.*",),
        "python": ("==3.12.*",),
        "glibc": (">=2.34",),
    }
    torch = mine.torch["99.0.0+git8514f05"]
    assert (torch.index, torch.rocm, torch.python, torch.glibc) == (index, "7.2.1", ("3.12",), "2.34")
    assert shown["unreachable"] == []
    assert not any("99.2.0" in path or "0.13.0/" in path for path, _ in pages.requests)


@pytest.mark.slow
def test_incomplete_vllm_release_is_left_for_next_run(pages: Sources, capsys: Capture) -> None:
    pages.project("vllm", [sdist("vllm", "99.1.0")])
    put(pages, f"{prebuilt.VLLM}/99.1.0/", listing("rocm721/", "rocm722/"), HTML)
    index = f"{prebuilt.VLLM}/99.1.0/rocm721"
    wheel = "vllm-99.1.0+rocm721-cp312-cp312-manylinux_2_34_x86_64.whl"
    put(pages, f"{index}/vllm/", listing(wheel), HTML)
    put(pages, f"{prebuilt.VLLM}/99.1.0/rocm722/torch/", "not a page", "image/png")
    shown = update(capsys, "--source", "vllm", code=3)
    assert (shown["rows"], len(shown["unreachable"])) == (0, 1)
    put(pages, f"{prebuilt.VLLM}/99.1.0/rocm722/torch/", listing(), HTML)
    assert update(capsys, "--source", "vllm")["rows"] > 0


@pytest.mark.parametrize(
    ("label", "rocm"),
    [
        ("rocm7.14.1", "7.14.1"),
        ("git4cff872c.rocm10.0.0", "10.0.0"),
        ("rocm721", "7.2.1"),
        ("rocm700", "7.0.0"),
        ("rocm72torch2.14", "7.2"),
        ("rocm7.2torch2.14", "7.2"),
        ("rocm714", "7.14"),
        ("git8514f05", ""),
        ("cu130", ""),
    ],
)
def test_rocm_is_read_from_label(label: str, rocm: str, catalog: Catalog) -> None:
    assert prebuilt._rocm_of(catalog, f"1.0+{label}") == rocm


# GitHub releases.


def asset(name: str, digest: str | None = f"sha256:{AB}") -> dict[str, Any]:
    base = "https://github.com/mjun0812/flash-attention-prebuild-wheels/releases/download/v1.0.0"
    url = f"{base}/{name.replace('+', '%2B')}"
    return {"name": name, "browser_download_url": url, "digest": digest, "size": 1, "state": "uploaded"}


@pytest.mark.slow
def test_flash_attention_wheels_of_a_github_release(pages: Sources, capsys: Capture) -> None:
    name = "flash_attn-2.9.1+rocm7.2torch2.14-cp{0}-cp{0}-linux_x86_64.whl"
    assets = [
        asset(name.format("312")),
        asset(name.format("311")),
        asset("flash_attn-2.8.3+cu130torch2.13-cp311-cp311-linux_x86_64.whl"),
        asset("flash_attn-2.9.1+rocm7.2torch2.14-cp312-cp312-win_amd64.whl"),
        asset("flash_attn-2.9.2+rocm7.2torch2.14-cp312-cp312-linux_x86_64.whl", None),
        asset("notes.txt"),
    ]
    release = {"tag_name": "v1.0.0", "assets": assets, "prerelease": False}
    put(pages, prebuilt.RELEASES, json.dumps([release]), "application/json")
    shown = update(capsys, "--source", "github", "--apply")
    assert any("has no SHA-256" in remark for remark in shown["remarks"])
    mine = written()
    row = mine.release["flash-attn", "2.9.1+rocm7.2torch2.14", ""]
    assert [wheel.file for wheel in row.wheels] == [name.format("311"), name.format("312")]
    assert {wheel.sha256 for wheel in row.wheels} == {AB}
    assert row.wheels[0].url.startswith("https://github.com/mjun0812/")
    needs = {item.on: item.versions for item in mine.requires if item.releases == f"=={row.version}"}
    assert needs == {
        "torch": ("==2.14.*",),
        "rocm": ("==7.2.*",),
        "python": ("==3.11.*", "==3.12.*"),
    }


def test_reply_that_is_no_list_of_releases_is_a_remark(pages: Sources, capsys: Capture) -> None:
    put(pages, prebuilt.RELEASES, '{"message": "API rate limit exceeded"}', "application/json")
    assert "no longer a list of releases" in update(capsys, "--source", "github")["remarks"][0]


# Git tags.


@pytest.mark.slow
def test_new_tag_becomes_a_release(pages: Sources, capsys: Capture, tmp_path: Path) -> None:
    repository = tmp_path / "upstream"
    first = commit(repository, {"setup.py": "1"})
    git(repository, "tag", "v1.0")
    second = commit(repository, {"setup.py": "2"})
    git(repository, "tag", "-a", "v1.1", "-m", "annotated")
    git(repository, "tag", "v2.0rc1")
    git(repository, "tag", "nightly")
    seen = 'status = "documented"\nsource = "s"\n'
    Path("facts.toml").write_text(
        f'schema = 1\n[[package]]\nname = "newext"\ntitle = "t"\n{seen}'
        f'[[release]]\nversion = "1.0"\n{seen}'
        f'git = {{ url = "https://git.invalid/newext", commit = "{first}" }}\n'
        f'[[release]]\nversion = "3.0+rocm7.2"\nindex = "https://wheels.invalid"\n{seen}'
        f'[[recipe]]\nbackend = "rocm"\n{seen}'
    )
    Path("matrix.toml").write_text(f'[mirrors]\n"https://git.invalid/" = "{tmp_path.as_uri()}/"\n')
    (tmp_path / "newext").symlink_to(repository)
    update(capsys, "--source", "git", "--package", "newext", "--catalog", "facts.toml", "--apply")
    mine = load([Path("facts.toml"), Path("catalog/updates.toml")])
    releases = {row.version: row for row in mine.releases_of("newext")}
    assert sorted(releases) == ["1.0", "1.1", "3.0+rocm7.2"]
    assert releases["1.1"].git == schema.Git("https://git.invalid/newext", second)
    assert releases["1.1"].source == "https://git.invalid/newext tag v1.1"
    third = commit(repository, {"setup.py": "3"})
    git(repository, "tag", "v1.2")
    update(capsys, "--source", "git", "--package", "newext", "--catalog", "facts.toml", "--apply")
    mine = load([Path("facts.toml"), Path("catalog/updates.toml")])
    assert mine.release["newext", "1.2", ""].git == schema.Git("https://git.invalid/newext", third)
    assert not pages.requests


# AMD's tables.

DRIVER_TABLE = """\
.. csv-table::
  :widths: 30, 70
  :header: "KFD", "Tested user space versions"

    "99.10.x", "7.2.x, 10.0.x"
    "6.2.x", "6.0.x, 6.1.x"
"""


def test_read_drivers_of_table_and_sentence() -> None:
    assert rocm.read_drivers(DRIVER_TABLE) == {"99.10": {"7.2", "10.0"}, "6.2": {"6.0", "6.1"}}
    text = "The AMD GPU Driver 30.10 is compatible with ROCm 7.0.x, 6.4.x, 6.3.x, and 6.2.x. For more details"
    assert rocm.read_drivers(text) == {"30.10": {"7.0", "6.4", "6.3", "6.2"}}
    text = "The AMD GPU Driver (amdgpu) 31.40.1 is compatible with ROCm 7.14.0. For more information, see"
    assert rocm.read_drivers(text) == {"31.40": {"7.14"}}
    assert rocm.read_drivers("<html>") == {}


@pytest.mark.slow
def test_driver_and_architecture_are_added(pages: Sources, capsys: Capture) -> None:
    put(pages, rocm.DRIVERS[0], DRIVER_TABLE + '    "6.3.x", "7.1.x"\n')
    table = (
        "| Product Name | GFX Target | Device Extra |\n| --- | --- | --- |\n"
        "| *All supported GPUs* | (all) | `device-all` |\n"
        "| AMD Instinct MI300X | gfx942   | `device-gfx942`  |\n"
        "| A new one | gfx9999 | `device-gfx9999` |\n"
    )
    put(pages, rocm.TARGETS, table)
    shown = update(capsys, "--source", "rocm", "--apply")
    mine = written()
    assert mine.driver["99.10"].supports == ("7.2", "10.0")
    assert mine.driver["6.3"] == load().driver["6.3"]
    assert any("6.3 supports ROCm 7.1" in remark for remark in shown["remarks"])
    assert f"{rocm.DRIVERS[1]} no longer exists." in shown["remarks"]
    assert mine.gfx.keys() - load().gfx.keys() == {"gfx9999"}


# Documents of sites.

FRONTIER_GUIDE = """\
System Updates
==============

2030-02-10
----------
On Tuesday, Frontier's system software was upgraded.

- Upgrade to AMD GPU 6.16.13 device driver (ROCm 7.2.0 release).
- ROCm/7.1.1 and 7.2.0 were made available as non-default via the ``rocm/7.1.1`` module.

2029-01-01
----------
- Upgrade to AMD GPU 99.1.1 device driver (ROCm 99.1.0 release).

2025-10-21
----------
- Upgrade to AMD GPU 6.14.99 device driver (ROCm 7.0.2 release).

2025-07-29
----------
On Tuesday, a parameter was adjusted.
"""
PARTITIONS = """\
| Name       | Max walltime | Max jobs          | Max resources/job |
| ---------- | ------------ | ----------------- | ----------------- |
| standard-g | 2 days       | 210 (200 running) | 1024 nodes        |
| dev-g      | 30 minutes   |   2 (1 running)   | 32 nodes          |
"""


@pytest.mark.slow
def test_site_documents_give_drivers_and_limits(pages: Sources, capsys: Capture, catalog: Catalog) -> None:
    put(pages, sites.FRONTIER, FRONTIER_GUIDE)
    put(pages, sites.LUMI, PARTITIONS)
    shown = update(capsys, "--source", "sites", "--apply")
    mine = written()
    new = [row for row in mine.windows_of("frontier") if row.since.year >= 2029]
    assert [(str(row.since), row.package) for row in new] == [("2030-02-10", "6.16.13")]
    assert new[0].driver in catalog.driver
    assert any("6.14.99" in remark for remark in shown["remarks"])
    assert any("99.1.1" in remark for remark in shown["remarks"])
    again = update(capsys, "--source", "sites", "--catalog", "catalog")
    assert (again["rows"], again["remarks"]) == (0, shown["remarks"])
    assert mine.partition["lumi-g", "dev-g"].max_hours == 0.5
    assert mine.partition["lumi-g", "standard-g"] == catalog.partition["lumi-g", "standard-g"]


def test_unreachable_sites_are_named(pages: Sources, capsys: Capture) -> None:
    text = Path("matrix.toml").read_text().replace(f"{pages.url}/raw/", "http://127.0.0.1:9/")
    Path("matrix.toml").write_text(text)
    pages.project("horovod", [])
    put(pages, prebuilt.RELEASES, "[]", "application/json")
    assert main_of("--source", "sites", "--source", "github") == 3
    message = capsys.readouterr().err
    assert "The sources that were read have no new facts." in message
    assert "frontier_user_guide.rst" in message


def main_of(*arguments: str) -> int:
    from matrix.cli import main

    return main(["catalog", "update", *arguments])


def test_unreachable_repositories_share_a_line(pages: Sources, capsys: Capture) -> None:
    Path("matrix.toml").write_text('[mirrors]\n"https://github.com/" = "http://nowhere.invalid/"\n')
    assert main_of("--source", "git", "--package", "apex", "--package", "torch") == 3
    message = capsys.readouterr().err
    assert message.count("nowhere.invalid") == 1
    assert "https://github.com/ROCm/apex, https://github.com/pytorch/pytorch" in message
    assert not pages.requests
