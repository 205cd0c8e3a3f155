"""The user's package indexes in `matrix resolve` and `matrix env`: failing ones, and several of them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from ruamel.yaml import YAML

from builders.index import Index
from builders.machine.host import running_python
from builders.network.urls import public_index
from matrix.api import write_lock
from matrix.cli import main
from resolver.facts.schema import Sdist
from resolver.lock import read_lock
from resolver.model import Resolution
from tests.support.locks import local_file, lock_of, locked_pick
from tests.support.tiny import tiny_index, tiny_wheel

Capture = pytest.CaptureFixture[str]
Packages = Mapping[str, Sequence[tuple[str, Sequence[str]]]]
REFUSED = "http://127.0.0.1:9/simple"
LABEL = "cpu.torch2.9.1"
TORCH_TAGS = "cp312-cp312-manylinux_2_28_x86_64"
FAILING = {
    "refused": ["--index-url", REFUSED],
    "refused extra index": ["--index-url", "EMPTY", "--extra-index-url", REFUSED],
    "missing directory": ["--index-url", "file:///nowhere/simple"],
    "missing directory as extra index": ["--index-url", "EMPTY", "--extra-index-url", "file:///nowhere"],
    "nothing in the cache": ["--index-url", "https://never.example/simple", "--offline"],
}
REQUESTS = {
    "project": ["rich"],
    "package of the catalog": ["deepspeed"],
    "release that the catalog does not list": ["deepspeed==99.1"],
    "torch and project": ["torch", "rich"],
    "torch": ["torch"],
    "several": ["torch", "deepspeed"],
    "several for ROCm": ["torch", "apex", "--backend", "rocm"],
}


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty cache, and make the index of torch one that refuses connections."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    Path("matrix.toml").write_text('[mirrors]\n"https://download.pytorch.org/" = "http://127.0.0.1:9/"\n')


def made(folder: str, packages: Packages) -> str:
    """Write an index; return its URL."""
    return (tiny_index(Path(folder).absolute(), packages) / "simple").as_uri()


def resolved(*arguments: str, code: int = 0) -> dict[str, str]:
    """Resolve for the CPU; return the versions in the lock."""
    options = ["--python", "3.12", "-q"]
    options += [] if "--backend" in arguments else ["--backend", "cpu"]
    assert main(["resolve", *arguments, *options]) == code
    lock = Path("matrix.lock")
    return {pick.name: pick.version for pick in read_lock(lock).distributions} if lock.exists() else {}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("indexes", FAILING.values(), ids=FAILING)
def test_failing_index_is_an_error_and_changes_no_lock(
    indexes: list[str], request_: list[str], capsys: Capture
) -> None:
    empty = made("empty", {"unrelated": [("1.0", [])]})
    options = [empty if word == "EMPTY" else word for word in indexes]
    resolved(*request_, *options, code=3)
    error = capsys.readouterr().err
    assert any(word in error for word in (REFUSED, "nowhere", "never.example")), error
    assert "  hint: " in error
    assert not Path("matrix.lock").exists()


def test_index_of_torch_that_fails_leaves_open_what_torch_requires(capsys: Capture) -> None:
    """Only the catalog names this index, and the answer says that it is incomplete."""
    own = made("own", {"rich": [("13.0", [])]})
    assert main(["resolve", "torch==2.9.1", "rich", "--backend", "cpu", "--index-url", own]) == 0
    output = capsys.readouterr()
    assert "incomplete" in output.out.splitlines()[0]
    assert "The requirements of torch are not locked" in output.err
    lock = read_lock(Path("matrix.lock"))
    assert [reason.partition(":")[0] for reason in lock.left_open] == ["the requirements of torch"]
    assert lock.indexes == (own,)
    resolved(
        "torch==2.9.1",
        "rich",
        "--index-url",
        own,
        "--extra-index-url",
        "https://download.pytorch.org/whl/cpu",
        code=3,
    )


@pytest.fixture
def torch() -> str:
    """Write an index of torch to which the catalog's is mirrored; return the URL of one with its needs."""
    tiny_wheel(Path("pytorch/whl/cpu/torch"), "torch", "2.9.1+cpu", requires=["filelock"], tags=TORCH_TAGS)
    Path("matrix.toml").write_text(
        f'[mirrors]\n"https://download.pytorch.org/" = "{Path("pytorch").absolute().as_uri()}/"\n'
    )
    (file,) = Path("pytorch/whl/cpu/torch").iterdir()
    (file.parent / "index.html").write_text(f'<a href="{file.name.replace("+", "%2B")}">{file.name}</a>')
    return made("own", {"filelock": [("3.0", [])], "rich": [("13.0", [])]})


@pytest.mark.parametrize("how", ["torch", "no index"])
def test_incomplete_resolution_does_not_replace_a_lock(torch: str, how: str, capsys: Capture) -> None:
    command = ["torch==2.9.1", *(["rich"] if how == "torch" else []), "--index-url", torch]
    full = resolved(*command)
    assert {"torch", "filelock"} <= full.keys()
    before = Path("matrix.lock").read_bytes()
    capsys.readouterr()
    if how == "torch":
        shutil.rmtree("pytorch/whl")
    else:
        command = command[:1]
        Path("matrix.toml").unlink()  # it has the index of the first request
    resolved(*command, code=3)
    error = capsys.readouterr().err
    assert "matrix.lock was not replaced" in error
    assert "filelock" in error
    assert Path("matrix.lock").read_bytes() == before
    resolved(*command, "--no-lock")
    assert "filelock" in resolved(*command, "-o", "other.lock")
    Path("matrix.lock").unlink()
    assert "filelock" not in resolved(*command)


def test_lock_that_was_incomplete_may_lose_a_distribution() -> None:
    own = made("own", {"web": [("1.0", ["core"])], "core": [("1.0", [])]})
    assert "core" in resolved("torch==2.9.1", "web", "--index-url", own)
    shutil.rmtree("own")
    made("own", {"web": [("1.1", [])]})
    assert "core" not in resolved("torch==2.9.1", "web", "--index-url", own)


def test_project_belongs_to_the_first_index(capsys: Capture) -> None:
    private = made("private", {"mylab": [("1.0", ["shared"])], "shared": [("1.0", [])]})
    second = made("second", {"mylab": [("2.0", [])], "shared": [("1.5", [])]})
    public = made("public", {"mylab": [("99.0", [])], "shared": [("2.0", [])], "other": [("3.0", [])]})
    order = ["--index-url", public, "--extra-index-url", private, "--extra-index-url", second]
    assert resolved("mylab", "other", *order) == {"mylab": "1.0", "shared": "1.0", "other": "3.0"}
    assert "also has a project" not in capsys.readouterr().err
    resolved("mylab>1", *order, code=2)
    error = capsys.readouterr().err
    assert f"{second} has other releases of mylab" in error
    assert "--index-strategy unsafe-best-match" in error
    everything = ["--index-strategy", "unsafe-best-match"]
    assert resolved("mylab", *order, *everything) == {"mylab": "99.0"}
    error = capsys.readouterr().err
    assert f"mylab 99.0 comes from {public}, and {private} also has a project mylab." in error
    Path("matrix.lock").unlink()
    Path("matrix.toml").write_text('index-strategy = "unsafe-best-match"\n')
    assert resolved("mylab", *order) == {"mylab": "99.0"}
    assert resolved("mylab", *order, "--index-strategy", "first-index") == {"mylab": "1.0", "shared": "1.0"}


def test_conflict_names_index_with_other_releases_and_suggestions_repeat_the_strategy(
    capsys: Capture,
) -> None:
    private = made("private", {"core": [("1.0", [])]})
    public = made(
        "public",
        {
            "web": [("1.0", ["core>=2"]), ("0.9", ["core<2", "old"])],
            "core": [("2.0", [])],
            "old": [("1", [])],
        },
    )
    order = ["--index-url", public, "--extra-index-url", private]
    assert main(["resolve", "web==1.0", "--backend", "cpu", "--python", "3.12", *order]) == 1
    output = capsys.readouterr()
    assert f"{public} has other releases of core" in output.out + output.err
    assert "--index-strategy unsafe-best-match considers all indexes" in output.out + output.err
    strategy = ["--index-strategy", "unsafe-best-match"]
    assert resolved("web", *order, *strategy) == {"web": "1.0", "core": "2.0"}
    capsys.readouterr()
    assert main(["resolve", "web", "core==1.0", "old==2", "--backend", "cpu", *order, *strategy]) == 2
    assert main(["resolve", "web==1.0", "core<2", "--backend", "cpu", *order, *strategy]) == 1
    suggested = [line for line in capsys.readouterr().out.splitlines() if "--extra-index-url" in line]
    assert suggested
    assert all("--index-strategy unsafe-best-match" in line for line in suggested)


def add_sdist(folder: Path, name: str, version: str, *requires: str) -> None:
    stem = f"{name}-{version}"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    data = f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n{needs}".encode()
    folder.mkdir(parents=True)
    with tarfile.open(folder / f"{stem}.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo(f"{stem}/PKG-INFO")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    (folder / "index.html").write_text(f'<a href="{stem}.tar.gz">{stem}.tar.gz</a>')


@pytest.mark.parametrize("strategy", ["first-index", "unsafe-best-match"])
def test_releases_of_the_catalog_may_be_on_any_index(strategy: str) -> None:
    """The catalog says which project it is, so neither another project nor our wheels hide it."""
    public = made("public", {"needed": [("1.0", [])]})
    add_sdist(Path("public/simple/deepspeed"), "deepspeed", "0.19.8", "needed")
    other = made("other", {"deepspeed": [("0.1", ["missing"]), ("99.0", ["missing"])]})
    Index(Path("ours")).publish(tiny_wheel(Path("made"), "deepspeed", f"0.18.0+{LABEL}"), {"build_key": "0"})
    ours = Path("ours/simple").absolute().as_uri()
    order = ["--index-url", public, "--extra-index-url", ours, "--index-strategy", strategy]
    for options in (order, [*order, "--extra-index-url", other]):
        assert "needed" in resolved("deepspeed==0.19.8", "torch==2.9.1", *options)
        pick = read_lock(Path("matrix.lock")).pick("deepspeed")
        assert pick is not None
        assert [file.index for file in pick.files] == [public]
        Path("matrix.lock").unlink()


def test_index_of_a_pylock_serves_only_what_the_lock_names(capsys: Capture) -> None:
    """The lock of a stranger must not decide where other distributions come from."""
    own = made("own", {"a": [("1.0", [])], "b": [("1.0", ["c"])], "c": [("1.0", [])]})
    theirs = made("theirs", {"a": [("1.0", ["c"])], "c": [("66.0", [])]})
    (wheel,) = Path("theirs/simple/a").absolute().glob("*.whl")
    Path("pylock.toml").write_text(
        "lock-version = '1.0'\ncreated-by = 'x'\n[[packages]]\nname = 'a'\nversion = '1.0'\n"
        f"index = '{theirs}'\n[[packages.wheels]]\nname = '{wheel.name}'\nurl = '{wheel.as_uri()}'\n"
        f"hashes = {{sha256 = '{'0' * 64}'}}\n"
    )
    found = resolved("b", "-r", "pylock.toml", "--index-url", own)
    assert found == {"a": "1.0", "b": "1.0", "c": "1.0"}
    a = read_lock(Path("matrix.lock")).pick("a")
    assert a is not None
    assert a.index == theirs
    assert (
        f"pylock.toml adds package indexes for packages that it locks: {theirs}." in capsys.readouterr().err
    )


# `matrix env`


@pytest.mark.parametrize("name", ["true", "No", "null", "rich"])
def test_names_that_yaml_reads_as_values_stay_names(name: str) -> None:
    """A lock of a stranger may leave open a requirement of any name."""
    lock = lock_of(requested=(name,))
    write_lock(lock)
    assert main(["env", "--for", "cotainr", "-o", "env.yml"]) == 0
    document = YAML(typ="safe").load(Path("env.yml").read_text())
    assert document["dependencies"][-1]["pip"][-1] == name


def lock_from(index: str, version: str = "1.0", *, is_hashed: bool = True) -> Resolution:
    file = local_file(tiny_wheel(Path("files").absolute(), "a", version), index=index)
    file = file if is_hashed else replace(file, sha256="")
    lock = lock_of(locked_pick("a", version, file, index=index))
    write_lock(lock)
    return lock


@pytest.mark.parametrize(
    ("index", "version", "consumer", "is_hashed", "is_warned"),
    [
        ("https://own.example/simple", "1.0", "pip", False, True),
        ("https://own.example/simple", "1.0", "cotainr", False, True),
        ("https://own.example/simple", "1.0", "pip", True, False),
        ("https://own.example/simple", "1.0", "uv", False, False),
        ("https://own.example/simple", "1.0", "pylock", True, False),
        ("https://own.example/simple", "1.0+lab", "pip", False, False),
        ("https://download.pytorch.org/whl/cpu", "1.0", "pip", False, False),
        (public_index(), "1.0", "pip", False, False),
    ],
)
def test_pip_follows_its_own_rule(
    index: str, version: str, consumer: str, capsys: Capture, *, is_hashed: bool, is_warned: bool
) -> None:
    lock_from(index, version, is_hashed=is_hashed)
    assert main(["env", "--for", consumer, "-o", "pylock.toml"]) == 0
    error = capsys.readouterr().err
    assert ("pip follows its own rule: it may take a==1.0 from PyPI" in error) is is_warned


def suggested(capsys: Capture, *arguments: str) -> list[dict[str, str | list[str]]]:
    """Return the suggestions for a request without a resolution."""
    assert main(["resolve", *arguments, "--backend", "cpu", "--format", "json", "-q"]) == 1
    suggestions: list[dict[str, str | list[str]]] = json.loads(capsys.readouterr().out)["suggestions"]
    return suggestions


@pytest.mark.parametrize("where", ["command line", "-r", "--env"])
def test_suggested_command_resolves_the_same_request_and_gives_what_it_promises(
    where: str, capsys: Capture
) -> None:
    """Without one of its options, the command would fail, or give other versions."""
    web = {"1.0": ["core<2", "old", "far"], "2.0": ["core>=3", "old", "far"]}
    releases = list(web.items())
    public = made("public", {"web": releases, "core": [("1.0", []), ("1.5", []), ("3.0", [])]})
    extra = made("extra", {"old": [("1.0", []), ("2.0", [])], "far": [("1.0", ["missing"])]})
    Path("limits.txt").write_text("old<2\ncore!=1.5\n")
    Path("replaced.txt").write_text("missing; python_version < '3'\n")
    Path("requirements.txt").write_text("web\n")
    Path("environment.yml").write_text("dependencies:\n  - pip:\n    - web\n")
    files = {"command line": ["web"], "-r": ["-r", "requirements.txt"], "--env": ["--env", "environment.yml"]}
    options = ["--index-url", public, "--extra-index-url", extra, "-c", "limits.txt"]
    options += ["--override", "replaced.txt", "--offline", "--python", "3.12"]
    suggestions = suggested(capsys, *files[where], "core==1.5", *options)
    assert suggestions
    for suggestion in suggestions:
        words = [str(word) for word in suggestion["request"]]
        assert main(["resolve", *words, "--no-lock", "--format", "json", "-q"]) == 0
        given = {pick["name"]: pick["version"] for pick in json.loads(capsys.readouterr().out)["picks"]}
        assert (given["web"], given["core"], given["old"]) == ("2.0", "3.0", "1.0")
        promised = re.findall(r"(\S+) (\d[\w.]*)", str(suggestion["change"]).partition("(gives ")[2])
        assert promised
        assert all(given[name] == version for name, version in promised)


@pytest.mark.parametrize("place", ["default index", "last extra index", "find-links"])
@pytest.mark.usefixtures("torch")
def test_wheel_of_torch_counts_wherever_the_user_has_it(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own index does not answer. Another torch on an index before it is not meant."""
    (wheel,) = Path("pytorch/whl/cpu/torch").glob("*.whl")
    mine = Path("mine/torch")
    mine.mkdir(parents=True)
    shutil.copy(wheel, mine)
    (mine / "index.html").write_text(f'<a href="{wheel.name.replace("+", "%2B")}">{wheel.name}</a>')
    shutil.rmtree("pytorch/whl")
    needed = made("needed", {"filelock": [("3.0", [])], "torch": [("2.9.1", ["missing"])]})
    url = Path("mine").absolute().as_uri()
    options = {
        "default index": ["--index-url", url, "--extra-index-url", needed],
        "last extra index": ["--index-url", needed, "--extra-index-url", needed, "--extra-index-url", url],
        "find-links": ["--index-url", needed],
    }
    if place == "find-links":
        monkeypatch.setenv("PIP_FIND_LINKS", str(mine.absolute()))
    assert resolved("torch==2.9.1", *options[place]) == {"torch": "2.9.1+cpu", "filelock": "3.0"}


@pytest.mark.usefixtures("torch")
def test_wheel_of_torch_for_another_python_states_what_torch_requires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own index does not answer, and a directory has the wheel for one Python only."""
    (wheel,) = Path("pytorch/whl/cpu/torch").glob("*.whl")
    Path("mine").mkdir()
    release = "-".join(wheel.name.split("-")[:2])
    shutil.copy(wheel, f"mine/{release}-cp311-cp311-manylinux_2_28_x86_64.whl")
    shutil.rmtree("pytorch/whl")
    monkeypatch.setenv("PIP_FIND_LINKS", str(Path("mine").absolute()))
    needed = made("needed", {"filelock": [("3.0", [])]})
    assert main(["resolve", "torch==2.9.1", "--index-url", needed, "--site", "archer2-cpu", "-q"]) == 0
    assert {pick.name for pick in read_lock(Path("matrix.lock")).distributions} == {"torch", "filelock"}


@pytest.mark.parametrize("place", ["find-links", "index"])
def test_sdist_of_a_directory_without_hashes_is_pinned_and_drafted(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path("mine/simple/legacy")
    folder.mkdir(parents=True)
    path = folder / "legacy-1.0.tar.gz"
    info = b"Metadata-Version: 2.1\nName: legacy\nVersion: 1.0\n"
    script = b"from setuptools import setup\nsetup(name='legacy', version='1.0', py_modules=['legacy'])\n"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in (("setup.py", script), ("legacy.py", b"x = 1\n"), ("PKG-INFO", info)):
            member = tarfile.TarInfo(f"legacy-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    (folder / "index.html").write_text(f'<a href="{path.name}">{path.name}</a>')
    options = ["--index-url", Path("mine/simple").absolute().as_uri()]
    if place == "find-links":
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder.absolute()))
        options = ["--index-url", made("other", {"other": [("1.0", [])]})]
    assert main(["resolve", "legacy", "--backend", "cpu", "-q", *options]) == 0
    pick = read_lock(Path("matrix.lock")).pick("legacy")
    assert pick is not None
    assert pick.sdist == Sdist(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
    assert pick.recipe is not None
    assert main(["farm", "fetch", "--only-sources"]) == 0


def test_oldest_release_of_an_index_keeps_its_reasons(capsys: Capture) -> None:
    own = made("own", {"web": [("1.0", []), ("2.0", []), ("3.0", [])]})
    Path("matrix.toml").write_text(f'index-url = "{own}"\n')
    assert resolved("web<2") == {"web": "1.0"}
    capsys.readouterr()
    assert main(["explain", "web"]) == 0
    text = capsys.readouterr().out
    assert "3.0" in text.partition("Not chosen")[2]
    assert "you asked for web<2" in text.partition("Not chosen")[2]


def test_requirement_on_python_is_the_same_as_the_option(capsys: Capture) -> None:
    """So a suggested command, which contains such a requirement, has the Python that it promises."""
    other = {"3.11": "3.12", "3.12": "3.13"}.get(running_python(), "3.11")
    own = made("own", {"web": [("1.0", [f"new; python_version == '{other}'"])], "new": [("1.0", [])]})
    for asked in (["web", f"python=={other}"], ["web", "--python", other]):
        assert (
            main(["resolve", *asked, "--backend", "cpu", "--index-url", own, "--no-lock", "--format", "json"])
            == 0
        )
        picks = {pick["name"]: pick["version"] for pick in json.loads(capsys.readouterr().out)["picks"]}
        assert (picks["python"], picks["new"]) == (other, "1.0")
    assert (
        main(["resolve", "web", "--backend", "cpu", "--index-url", own, "--no-lock", "--format", "json"]) == 0
    )
    assert running_python() in {pick["version"] for pick in json.loads(capsys.readouterr().out)["picks"]}


def pip_chooses(name: str) -> str:
    """Return the version that pip takes with its own configuration."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    with_report = [*command, "--no-deps", "--report", "-", name]
    report = json.loads(subprocess.run(with_report, check=True, capture_output=True, text=True).stdout)
    version: str = report["install"][0]["metadata"]["version"]
    return version


def configure_pip(monkeypatch: pytest.MonkeyPatch, default: str, extra: str, *links: Path) -> None:
    """Write a pip.conf, and leave nothing else that configures pip."""
    for name in filter(lambda name: name.startswith("PIP_"), [*os.environ]):
        monkeypatch.delenv(name)
    lines = [
        f"index-url = {default}",
        f"extra-index-url = {extra}",
        *(f"find-links = {one}" for one in links),
    ]
    Path("pip.conf").write_text("\n".join(["[global]", *lines, ""]))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(Path("pip.conf").absolute()))


@pytest.mark.parametrize("newest_on", ["mirror", "default", "links"])
def test_indexes_of_pips_settings_count_alike_as_for_pip(
    newest_on: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A partial mirror as the extra index does not hide what the other index has."""
    versions = {"mirror": "1.0", "default": "1.1", "links": "1.2"} | {newest_on: "2.0"}
    urls = {place: made(place, {"web": [(version, ["core"])]}) for place, version in versions.items()}
    made("default", {"core": [("1.0", [])]})
    links = Path("flat").absolute()
    links.mkdir()
    for wheel in Path("links").rglob("*.whl"):
        shutil.copy(wheel, links)
    configure_pip(monkeypatch, urls["default"], urls["mirror"], links)
    assert pip_chooses("web") == "2.0"
    assert resolved("web") == {"web": "2.0", "core": "1.0"}
    assert "also has a project" not in capsys.readouterr().err
    Path("matrix.lock").unlink()
    first = resolved("web", "--index-strategy", "first-index")
    assert first["web"] == ("1.2" if newest_on == "default" else "2.0")


def test_named_index_comes_before_those_of_pips_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    one: list[tuple[str, list[str]]] = [("1.0", [])]
    own = made("own", {"web": one, "lib": one})
    public = made("public", {"web": [("3.0rc1", []), ("2.0", [])], "lib": one, "core": one})
    configure_pip(monkeypatch, public, made("empty", {"other": one}))
    found = resolved("web", "lib", "core", "--extra-index-url", own)
    assert found == {"web": "1.0", "lib": "1.0", "core": "1.0"}
    error = " ".join(capsys.readouterr().err.split())
    text = "has newer releases, which do not count, because an index before it has the project: web 2.0."
    assert error.count("has newer releases") == 1
    assert f"{public} {text}" in error


@pytest.mark.parametrize("is_ours_first", [True, False])
def test_a_labelled_wheel_of_a_later_equal_index_replaces_nothing(
    monkeypatch: pytest.MonkeyPatch, *, is_ours_first: bool
) -> None:
    first = made("first", {"web": [("1.0", []), *([(f"1.0+{LABEL}", [])] if is_ours_first else [])]})
    configure_pip(monkeypatch, made("second", {"web": [(f"99.0+{LABEL}", [])]}), first)
    assert resolved("web")["web"].startswith("1.0")
