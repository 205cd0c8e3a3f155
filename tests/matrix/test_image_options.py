"""``--base-image`` with a file, and ``matrix doctor``; what an image holds is said, not looked into here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.containers import choosing, inspect
from builders.containers.facts import ImageFacts
from builders.containers.image import Image, find_image
from builders.doctor import machine
from builders.recipes.build import Compiler
from builders.sources.everything import Haul
from matrix.cli import main
from matrix.commands import doctor, fetch
from matrix.imaging import image_name
from resolver.errors import EnvironmentLacksError, UsageError
from resolver.facts.loading import load
from resolver.lock import read_lock
from resolver.model import Resolution
from tests.builders.test_base_image import sif

Capture = pytest.CaptureFixture[str]
KNOWN = "lumi-rocm-rocm-6.2.4.sif"
ASKED = ["torch", "deepspeed", "--gfx90a", "--driver", "6.3", "--python", "3.12"]


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An unpacked image, and a STAND-IN for the look into it."""
    (tmp_path / "mine.sif" / "usr").mkdir(parents=True)

    def look_into(image: Image, kind: str | None = None) -> ImageFacts:  # noqa: ARG001
        return ImageFacts(
            name=image.name,
            path=str(image.path),
            digest=image.digest,
            os="SUSE BCI 15.5",
            architecture="x86_64",
            glibc="2.38",
            rocm="6.2.4",
            rocm_path="/opt/rocm",
            hipcc="6.2.41134",
            compilers=(Compiler("g++-12", "12.3.0", "/usr/bin/g++-12"),),
        )

    monkeypatch.setattr(inspect, "look_into", look_into)
    monkeypatch.setattr(doctor, "look_into", look_into)
    return tmp_path / "mine.sif"


class TestName:
    def test_a_name_of_the_catalog_is_itself(self) -> None:
        assert image_name(KNOWN, load()) == KNOWN

    def test_a_path_elsewhere_is_known_by_its_file_name(self) -> None:
        assert image_name(f"/appl/elsewhere/{KNOWN}", load()) == KNOWN

    def test_a_file_is_called_what_the_catalog_calls_it_else_by_its_stem(self, tmp_path: Path) -> None:
        for name in (KNOWN, "own.sif", "own.tar"):
            (tmp_path / name).touch()
        catalog = load()
        assert image_name(str(tmp_path / KNOWN), catalog) == KNOWN
        assert image_name("own.sif", catalog) == image_name("./own.tar", catalog) == "own"

    def test_what_is_nowhere(self) -> None:
        catalog = load()
        with pytest.raises(UsageError, match=r"no file /no/x\.sif"):
            image_name("/no/x.sif", catalog)
        with pytest.raises(EnvironmentLacksError, match="is an address") as caught:
            image_name("docker://no/x:1", catalog)
        assert "apptainer pull" in caught.value.hint
        assert image_name("typo", catalog) == "typo"  # the resolver says what was probably meant


def run(capsys: Capture, *arguments: str, code: int = 0) -> Any:
    assert main([*arguments, "--format", "json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_set_is_made_for_what_the_image_holds(image: Path, capsys: Capture) -> None:
    told = run(capsys, "resolve", *ASKED, "--base-image", str(image))
    picks = {pick["name"]: pick for pick in told["picks"]}
    assert (picks["base-image"]["version"], picks["rocm"]["version"]) == ("mine", "6.2.4")
    assert picks["glibc"]["version"] == "2.38"
    facts = [fact for pick in picks.values() for fact in pick["facts"] if "inspection of" in fact["source"]]
    assert {fact["status"] for fact in facts} == {"observed"}
    assert "mine holds ROCm 6.2.4" in {fact["text"] for fact in facts}
    locked = read_lock(Path("matrix.lock")).image
    assert locked is not None
    assert (locked.name, locked.path, locked.digest) == ("mine", str(image), find_image(image).digest)


@pytest.mark.usefixtures("image")
def test_what_was_not_taken_is_explained_with_the_same_image(capsys: Capture) -> None:
    run(capsys, "resolve", *ASKED, "--base-image", "mine.sif")
    told = run(capsys, "explain", "rocm")
    assert any("mine holds ROCm 6.2.4" in item["text"] for one in told["rejected"] for item in one["core"])


@pytest.mark.usefixtures("image")
def test_a_conflict_names_what_the_image_holds(capsys: Capture) -> None:
    told = run(capsys, "resolve", *ASKED, "--rocm", "6.3", "--base-image", "mine.sif", code=1)
    assert any(item["text"] == "mine holds ROCm 6.2.4" for item in told["core"])


def test_the_catalog_itself_is_not_changed(image: Path, capsys: Capture) -> None:
    run(capsys, "resolve", *ASKED, "--base-image", str(image))
    told = run(capsys, "resolve", *ASKED, "--base-image", "mine", code=2)
    assert "'mine'" in told["message"]


def test_sources_are_fetched_with_an_image_that_is_not_where_the_lock_says(
    image: Path, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "resolve", *ASKED, "--base-image", str(image))
    (tmp_path / "elsewhere").mkdir()
    moved = image.rename(tmp_path / "elsewhere" / image.name)
    used: list[Path] = []

    def choose_runtime(_: object, image: Image) -> None:
        used.append(image.path)
        msg = "no container runtime"
        raise EnvironmentLacksError(msg)

    def only_wheels(lock: Resolution, *_: object, wheels: Any, **__: object) -> Haul:
        return Haul(missing=list(wheels(lock, lock.built())))

    monkeypatch.setattr(choosing, "choose_runtime", choose_runtime)
    monkeypatch.setattr(fetch, "fetch_all", only_wheels)
    (lost,) = run(capsys, "fetch", code=3)["missing"]
    assert f"no base image {image}" in lost["message"]
    (lost,) = run(capsys, "fetch", "--base-image", str(moved), code=3)["missing"]
    assert (lost["message"], used) == ("no container runtime", [moved])
    told = run(capsys, "fetch", "--base-image", KNOWN, code=2)
    assert f"You asked for base image {KNOWN}, but matrix.lock was resolved for mine." in told["message"]


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "is_reachable", lambda _: False)


@pytest.mark.usefixtures("_no_network")
class TestDoctor:
    def test_lacks_of_the_machine_are_no_failure(self, capsys: Capture) -> None:
        told = run(capsys, "doctor")
        assert told["schema"] == 1
        assert "image" not in told
        assert {one["state"] for one in told["host"]} <= {"ok", "note", "lack"}
        network = [one for one in told["host"] if one["topic"].startswith("network")]
        assert len(network) >= 3
        assert {one["state"] for one in network} == {"lack"}

    def test_mirrors_are_asked_instead(self, capsys: Capture, tmp_path: Path) -> None:
        torch = next(row.index for row in load().torch.values() if row.rocm)
        prefix = torch.partition("/whl/")[0]
        (tmp_path / "matrix.toml").write_text(f'[mirrors]\n"{prefix}" = "https://mirror.example"\n')
        told = run(capsys, "doctor")
        (url,) = [one["data"]["url"] for one in told["host"] if one["topic"] == "network-torch"]
        assert url.startswith("https://mirror.example/whl/")

    def test_an_image_that_can_build(self, image: Path, capsys: Capture) -> None:
        told = run(capsys, "doctor", "--base-image", str(image))
        assert (told["image"]["name"], told["image"]["can_build"], told["image"]["lacks"]) == (
            "mine",
            True,
            [],
        )
        assert main(["doctor", "--base-image", str(image)]) == 0
        text = capsys.readouterr().out
        assert "Wheels for ROCm can be built in it." in text
        assert "g++-12 12.3.0" in text

    def test_an_image_that_cannot(
        self, image: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said = inspect.look_into
        monkeypatch.setattr(
            doctor,
            "look_into",
            lambda image, kind: msgspec.structs.replace(said(image, kind), compilers=()),
        )
        told = run(capsys, "doctor", "--base-image", str(image), code=3)
        assert told["image"]["can_build"] is False
        assert "no C++ compiler" in told["image"]["lacks"][0]
        assert main(["doctor", "--base-image", str(image)]) == 3
        assert "cannot be built in it:\n  - there is no C++ compiler" in capsys.readouterr().out

    def test_an_image_of_the_catalog_that_is_elsewhere(self, capsys: Capture) -> None:
        told = run(capsys, "doctor", "--base-image", KNOWN, code=3)
        assert "is not on this machine: /" in told["message"]

    def test_what_is_no_image_is_bad_input(self, capsys: Capture, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        assert "neither usr nor bin" in run(capsys, "doctor", "--base-image", "empty", code=2)["message"]
        sif(tmp_path / "cut.sif", missing=1)
        assert "is cut off" in run(capsys, "doctor", "--base-image", "cut.sif", code=2)["message"]

    def test_a_name_that_nobody_knows(self, capsys: Capture) -> None:
        told = run(capsys, "doctor", "--base-image", "lumi-rocm-rocm-6.2.5.sif", code=2)
        assert KNOWN in told["hint"]
