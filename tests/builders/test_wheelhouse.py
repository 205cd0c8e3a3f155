"""Wheels are downloaded once; wrong wheels and a missing network are errors."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from builders.containers.runtime import HostRuntime, Runtime, View
from builders.environments import wheelhouse
from builders.environments.python import TargetPython
from builders.environments.wheelhouse import (
    FetchedWheel,
    FetchOptions,
    Wheelhouse,
    fetch_wheels,
    remove_damaged,
)
from builders.storage.files import cache_root, sha256_of
from resolver.errors import CommandError, EnvironmentLacksError, UsageError
from tests.support.recorder import Recorder

Fetch = Callable[..., Wheelhouse]
PYTHON = TargetPython(
    path=Path("/usr/bin/python3.12"),
    prefix=Path("/usr"),
    version="3.12.3",
    abi="cp312",
    glibc="2.39",
    machine="x86_64",
    build="3.12.3 (main)",
    where="host",
)


class FakePip:
    """A fake ``pip download``: copies given wheels into the destination."""

    def __init__(self) -> None:
        self.gives: list[Path] = []
        self.commands: list[list[str]] = []
        self.views: list[View] = []
        self.constraints = ""
        self.fails: Sequence[str] = ()

    def __call__(self, _: Runtime, command: Sequence[str], view: View, *, what: str, log: Path) -> None:
        self.commands.append(list(command))
        self.views.append(view)
        options = dict(word.split("=", 1) for word in command if word.startswith("--"))
        self.constraints = Path(options["--constraint"]).read_text()
        assert list(Path(options["--dest"]).iterdir()) == []
        if self.fails:
            log.write_text("\n".join(self.fails))
            raise CommandError(what, code=1, log=log, lines=["ERROR: No matching distribution found"])
        for wheel in self.gives:
            shutil.copy(wheel, options["--dest"])


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> FakePip:
    fake = FakePip()
    monkeypatch.setattr(wheelhouse, "run_in", fake)
    monkeypatch.setattr(wheelhouse, "ensure_pip", lambda *_, **__: Path("/tools/pip"))
    monkeypatch.setattr(wheelhouse, "is_reachable", lambda url: "unreachable" not in url)
    return fake


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def fetch(tmp_path: Path, recorder: Recorder) -> Fetch:
    def call(
        *requirements: str,
        indexes: Sequence[str] = (),
        constraints: Sequence[FetchedWheel] = (),
        offline: bool = False,
        mirrored: Callable[[str], str] = str,
    ) -> Wheelhouse:
        return fetch_wheels(
            HostRuntime(),
            PYTHON,
            requirements,
            FetchOptions(tmp_path / "log", recorder, indexes, mirrored, offline),
            constraints=constraints,
        )

    return call


def test_wheels_are_cached_with_their_hashes(
    pip: FakePip, fetch: Fetch, make_wheel: Callable[..., Path]
) -> None:
    made = [make_wheel("zeta"), make_wheel("alpha", "2.0")]
    pip.gives = made
    house = fetch("zeta>=1", "alpha")
    assert [(wheel.name, wheel.version) for wheel in house.wheels] == [("alpha", "2.0"), ("zeta", "1.0")]
    for wheel, source in zip(house.wheels, reversed(made), strict=True):
        assert wheel.path.read_bytes() == source.read_bytes()
        assert wheel.path.parent.name == wheel.sha256 == sha256_of(source)
        assert wheel.path.stat().st_mode & 0o222 == 0
    (manifest,) = (cache_root() / "wheelhouses").glob("*.json")
    assert [wheel["file"] for wheel in json.loads(manifest.read_text())["wheels"]] == [
        "alpha-2.0-py3-none-any.whl",
        "zeta-1.0-py3-none-any.whl",
    ]
    assert list((cache_root() / "wheelhouses").glob("*.part")) == []
    assert fetch("alpha", "zeta>=1", offline=True) == house
    assert len(pip.commands) == 1


def test_rebuilt_local_wheel_is_fetched_again(
    pip: FakePip,
    fetch: Fetch,
    make_wheel: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    made = make_wheel("zeta")
    file = own / made.name
    file.write_bytes(made.read_bytes())
    monkeypatch.setenv("PIP_FIND_LINKS", str(own))
    pip.gives = [file]
    first = fetch("zeta")
    assert fetch("zeta") == first
    assert len(pip.commands) == 1
    data, seen = file.read_bytes(), first
    for times, change in enumerate((data[:-1] + b"\1", data + b"more"), 2):
        file.write_bytes(change)
        os.utime(file, (2**31, 2**31))
        assert fetch("zeta", offline=True) == seen  # offline, only the cache counts
        seen = fetch("zeta")
        assert seen.wheels[0].sha256 == sha256_of(file)
        assert len(pip.commands) == times


def test_pip_downloads_wheels_only(
    pip: FakePip, fetch: Fetch, make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_TARGET", "/elsewhere")
    pip.gives = [make_wheel("zeta")]
    fetch("zeta", indexes=["http://one/simple"])
    (command,), (view,) = pip.commands, pip.views
    assert command[:4] == ["/usr/bin/python3.12", "/tools/pip", "download", "--only-binary=:all:"]
    assert "--extra-index-url=http://one/simple" in command
    assert view.network
    part = Path(view.env["PIP_CACHE_DIR"]).parent
    assert [bind.path for bind in view.binds if bind.writable] == [part]
    assert Path(view.env["TMPDIR"]).parent == part
    assert "PIP_TARGET" not in view.env


@pytest.mark.parametrize("harm", ["manifest", "wheel gone", "wheel cut", "unknown key"])
def test_incomplete_wheelhouse_is_fetched_again(
    harm: str, pip: FakePip, fetch: Fetch, make_wheel: Callable[..., Path]
) -> None:
    pip.gives = [make_wheel("zeta")]
    house = fetch("zeta")
    (manifest,) = (cache_root() / "wheelhouses").glob("*.json")
    path = house.wheels[0].path
    if harm == "manifest":
        manifest.write_text(manifest.read_text()[:-10])
    elif harm == "unknown key":
        manifest.write_text(manifest.read_text().replace('"depends_on_base"', '"below"'))
    elif harm == "wheel gone":
        path.unlink()
    else:
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(EnvironmentLacksError):
        fetch("zeta", offline=True)
    assert fetch("zeta") == house
    assert sha256_of(path) == house.wheels[0].sha256
    assert len(pip.commands) == 2


def test_damaged_wheel_is_removed(pip: FakePip, fetch: Fetch, make_wheel: Callable[..., Path]) -> None:
    pip.gives = [make_wheel("zeta"), make_wheel("alpha")]
    alpha, zeta = fetch("zeta", "alpha").wheels
    zeta.path.chmod(0o644)
    zeta.path.write_bytes(zeta.path.read_bytes()[::-1])
    assert remove_damaged([alpha, zeta]) == [zeta]
    assert alpha.path.exists()
    assert not zeta.path.exists()


def test_failure_keeps_only_pips_cache(
    pip: FakePip, fetch: Fetch, make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pip.gives = [make_wheel("zeta"), make_wheel("alpha")]

    def interrupted(file: Path) -> FetchedWheel:
        (file.parent.parent / "pip").mkdir()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(wheelhouse, "_store", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch("zeta", "alpha")
    (part,) = (cache_root() / "wheelhouses").glob("*.part")
    assert {path.name for path in part.iterdir()} == {"pip", "constraints.txt"}
    with pytest.raises(EnvironmentLacksError):
        fetch("zeta", "alpha", offline=True)
    assert len(fetch("zeta", "alpha").wheels) == 2
    assert not part.exists()


def test_leftovers_of_killed_download_are_ignored(
    pip: FakePip, fetch: Fetch, make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pip.gives = [make_wheel("zeta")]
    with monkeypatch.context() as patch:
        patch.setattr(wheelhouse, "_remove_all", lambda _: None)  # SIGKILL leaves no time for that
        patch.setattr(wheelhouse, "_check", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fetch("zeta")
    (part,) = (cache_root() / "wheelhouses").glob("*.part")
    assert list((part / "files").iterdir())
    assert len(fetch("zeta").wheels) == 1  # the fake checks that the directory is empty
    assert not part.exists()


def test_offline_error_has_hint(pip: FakePip, fetch: Fetch) -> None:
    with pytest.raises(EnvironmentLacksError, match=r"torch==2\.9\.1\+rocm6\.4.* not in the cache") as caught:
        fetch("torch==2.9.1+rocm6.4", offline=True)
    assert "matrix farm fetch" in caught.value.hint
    assert pip.commands == []


@pytest.mark.parametrize("name", ["nvidia_cublas", "cuda_toolkit"])
def test_cuda_wheel_is_an_error(
    name: str, pip: FakePip, fetch: Fetch, make_wheel: Callable[..., Path]
) -> None:
    pip.gives = [make_wheel("zeta"), make_wheel(name)]
    with pytest.raises(EnvironmentLacksError, match=f"{name}.*CUDA"):
        fetch("zeta")
    with pytest.raises(EnvironmentLacksError, match="not in the cache"):
        fetch("zeta", offline=True)


def test_unrequested_torch_is_an_error(pip: FakePip, fetch: Fetch, make_wheel: Callable[..., Path]) -> None:
    pip.gives = [make_wheel("zeta"), make_wheel("torch", "2.9.1")]
    with pytest.raises(EnvironmentLacksError, match="no torch is pinned"):
        fetch("zeta")


def test_sdist_is_an_error(pip: FakePip, fetch: Fetch, tmp_path: Path) -> None:
    sdist = tmp_path / "zeta-1.0.tar.gz"
    sdist.touch()
    pip.gives = [sdist]
    with pytest.raises(EnvironmentLacksError, match=r"zeta-1\.0\.tar\.gz, which is not a wheel"):
        fetch("zeta")


def test_constraints_are_not_listed_again(
    pip: FakePip, fetch: Fetch, make_wheel: Callable[..., Path]
) -> None:
    """Torch keeps its version. The wheels of a requirement that depends on torch do not include torch."""
    torch, shared = make_wheel("torch", "2.9.1+rocm6.4"), make_wheel("shared")
    pip.gives = [torch, shared]
    base = fetch("torch==2.9.1+rocm6.4").wheels
    assert pip.constraints == ""
    pip.gives = [shared, make_wheel("zeta")]
    alone = fetch("zeta", constraints=base)
    assert pip.constraints == "torch==2.9.1+rocm6.4\n"
    assert f"--find-links={base[1].path.parent}" in pip.commands[-1]
    assert ([wheel.name for wheel in alone.wheels], alone.depends_on_base) == (["shared", "zeta"], False)
    pip.gives = [torch, shared, make_wheel("extra")]
    needing = fetch("extra", constraints=base)
    assert ([wheel.name for wheel in needing.wheels], needing.depends_on_base) == (["extra"], True)


def test_unreachable_servers_are_named(pip: FakePip, fetch: Fetch, recorder: Recorder) -> None:
    broken = "NewConnectionError(\"HTTPSConnection(host='pkgs.example', port=443): Failed\")"
    pip.fails = [
        f"WARNING: Retrying after connection broken by '{broken}'",
        "ERROR: No matching distribution",
    ]
    with pytest.raises(EnvironmentLacksError, match="No matching distribution") as caught:
        fetch("torch==2.9.1+rocm6.4", indexes=["https://me:secret@unreachable.example/whl"])
    hint = caught.value.hint
    assert hint.startswith("Not reachable from here: https://unreachable.example/whl, pkgs.example. ")
    assert "[mirrors]" in hint
    assert "PIP_FIND_LINKS" in hint
    assert caught.value.exit_code == 3
    assert recorder.messages[-1].startswith("https://unreachable.example/whl is not reachable")
    assert not any("extra-index-url" in word for word in pip.commands[0])


def test_missing_wheel_hint_names_find_links(pip: FakePip, fetch: Fetch) -> None:
    pip.fails = ["ERROR: No matching distribution found for zeta"]
    with pytest.raises(EnvironmentLacksError) as caught:
        fetch("zeta")
    assert "The configured indexes have no such wheels" in caught.value.hint


def test_mirrors_apply_to_indexes(pip: FakePip, fetch: Fetch, make_wheel: Callable[..., Path]) -> None:
    pip.gives = [make_wheel("zeta")]
    fetch("zeta", indexes=["https://unreachable.example/whl"], mirrored=lambda _: "http://mirror/whl")
    assert "--extra-index-url=http://mirror/whl" in pip.commands[0]


@pytest.mark.parametrize("text", ["-r file", "--index-url=x", "zeta=1", ""])
def test_invalid_requirement_is_bad_input(text: str, pip: FakePip, fetch: Fetch) -> None:
    with pytest.raises(UsageError, match="is not a valid requirement"):
        fetch(text)
    assert pip.commands == []
