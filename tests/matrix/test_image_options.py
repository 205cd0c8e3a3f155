"""``--base-image`` with a file, and ``matrix check``; a stand-in replaces the inspection of the image."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.building import plan
from builders.containers import inspection
from builders.containers.image import LocalImage, find_image, image_name
from builders.containers.inspection import ImageFacts
from builders.diagnosis import doctor as machine
from builders.recipes import Program
from builders.sources.fetch import FetchResult
from builders.storage.files import write_atomic
from matrix.cli import main
from matrix.farm import fetch
from matrix.farm.fetch import copy_image
from matrix.judging import machine as judged_machine
from resolver.errors import EnvironmentLacksError, UsageError
from resolver.facts.catalog import load
from resolver.lock import read_lock
from resolver.model import BaseImage, Resolution
from tests.builders.test_base_image import sif
from tests.support.commands import run_json

Capture = pytest.CaptureFixture[str]
KNOWN = "lumi-rocm-rocm-6.2.4.sif"
ASKED = ["torch", "deepspeed", "--gfx90a", "--driver", "6.3", "--python", "3.12"]


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an unpacked image; a STAND-IN replaces its inspection."""
    (tmp_path / "mine.sif" / "usr").mkdir(parents=True)

    def inspect_image(image: LocalImage) -> ImageFacts:
        facts = ImageFacts(
            name=image.name,
            path=str(image.path),
            digest=image.digest,
            os="SUSE BCI 15.5",
            architecture="x86_64",
            glibc="2.38",
            rocm="6.2.4",
            rocm_path="/opt/rocm",
            hipcc="6.2.41134",
            compilers=(Program("g++-12", "12.3.0", "/usr/bin/g++-12"),),
        )
        write_atomic(inspection._cache_file(image), msgspec.json.encode(facts))
        return facts

    monkeypatch.setattr(inspection, "inspect_image", inspect_image)
    monkeypatch.setattr(judged_machine, "inspect_image", inspect_image)
    return tmp_path / "mine.sif"


class TestName:
    def test_catalog_name_is_kept(self) -> None:
        assert image_name(KNOWN, load()) == KNOWN

    def test_missing_path_is_known_by_its_file_name(self) -> None:
        assert image_name(f"/appl/elsewhere/{KNOWN}", load()) == KNOWN

    def test_file_has_catalog_name_or_stem(self, tmp_path: Path) -> None:
        for name in (KNOWN, "own.sif", "own.tar"):
            (tmp_path / name).touch()
        catalog = load()
        assert image_name(str(tmp_path / KNOWN), catalog) == KNOWN
        assert image_name("own.sif", catalog) == image_name("./own.tar", catalog) == "own"

    def test_unknown_path_and_address_are_rejected(self) -> None:
        catalog = load()
        with pytest.raises(UsageError, match=r"/no/x\.sif does not exist"):
            image_name("/no/x.sif", catalog)
        with pytest.raises(EnvironmentLacksError, match="is an address") as caught:
            image_name("docker://no/x:1", catalog)
        assert "apptainer pull" in caught.value.hint
        assert image_name("typo", catalog) == "typo"  # the resolver suggests a name


def test_resolve_uses_content_of_image(image: Path, capsys: Capture) -> None:
    answer = run_json(capsys, "resolve", *ASKED, "--base-image", str(image))
    picks = {pick["name"]: pick for pick in answer["picks"]}
    assert (picks["base-image"]["version"], picks["rocm"]["version"]) == ("mine", "6.2.4")
    assert picks["glibc"]["version"] == "2.38"
    facts = [fact for pick in picks.values() for fact in pick["facts"] if "inspection of" in fact["source"]]
    assert {fact["status"] for fact in facts} == {"observed"}
    assert "mine contains ROCm 6.2.4" in {fact["text"] for fact in facts}
    locked = read_lock(Path("matrix.lock")).image
    assert locked is not None
    assert (locked.name, locked.path, locked.digest) == ("mine", str(image), find_image(image).digest)


@pytest.mark.usefixtures("image")
def test_explain_uses_the_locked_image(capsys: Capture) -> None:
    run_json(capsys, "resolve", *ASKED, "--base-image", "mine.sif")
    answer = run_json(capsys, "explain", "rocm")
    assert any(
        "mine contains ROCm 6.2.4" in item["text"]
        for rejected in answer["rejected"]
        for item in rejected["core"]
    )


def test_image_beside_a_lock_is_not_started(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The lock names an image of the catalog, and a file of that name lies beside it."""
    run_json(capsys, "resolve", *ASKED, "--base-image", KNOWN)
    Path("matrix.toml").unlink(missing_ok=True)
    Path("requirements.txt").write_text("torch\n")
    (tmp_path / KNOWN / "usr").mkdir(parents=True)
    monkeypatch.setattr(inspection, "inspect_image", pytest.fail)
    main(["check", "requirements.txt", "--format", "json"])
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    assert thing["distributions"]


def test_image_of_a_received_lock_is_not_started(
    image: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock and the image may come from a stranger; the image was not inspected on this machine."""
    run_json(capsys, "resolve", *ASKED, "--base-image", "mine.sif")
    inspection._cache_file(find_image(image)).unlink()
    monkeypatch.setattr(inspection, "inspect_image", pytest.fail)
    assert main(["explain", "rocm"]) == 0
    assert "was not inspected on this machine" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("image")
def test_conflict_cites_content_of_image(capsys: Capture) -> None:
    answer = run_json(capsys, "resolve", *ASKED, "--rocm", "6.3", "--base-image", "mine.sif", code=1)
    assert any(item["text"] == "mine contains ROCm 6.2.4" for item in answer["core"])
    requests = [suggestion["request"] for suggestion in answer["suggestions"]]
    assert any("mine.sif" in words for words in requests)
    for words in requests:
        run_json(capsys, "resolve", *words)


@pytest.mark.slow
def test_inspected_image_is_not_remembered_by_name(image: Path, capsys: Capture) -> None:
    run_json(capsys, "resolve", *ASKED, "--base-image", str(image))
    answer = run_json(capsys, "resolve", *ASKED, "--base-image", "mine", code=2)
    assert "'mine'" in answer["message"]


@pytest.mark.slow
def test_fetch_accepts_image_that_has_moved(
    image: Path, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_json(capsys, "resolve", *ASKED, "--base-image", str(image))
    (tmp_path / "elsewhere").mkdir()
    moved = image.rename(tmp_path / "elsewhere" / image.name)
    used: list[Path] = []

    def choose_runtime(_: object, image: LocalImage) -> None:
        used.append(image.path)
        msg = "no container runtime"
        raise EnvironmentLacksError(msg)

    def only_wheels(lock: Resolution, *_: object, fetch_wheels: Any, **__: object) -> FetchResult:
        return FetchResult(missing=list(fetch_wheels(lock, lock.built())))

    monkeypatch.setattr(plan, "choose_runtime", choose_runtime)
    monkeypatch.setattr(fetch, "fetch_all", only_wheels)
    (lost,) = run_json(capsys, "farm", "fetch", code=3)["missing"]
    assert f"The base image {image} does not exist" in lost["message"]
    (lost,) = run_json(capsys, "farm", "fetch", "--base-image", str(moved), code=3)["missing"]
    assert (lost["message"], used) == ("no container runtime", [moved])
    answer = run_json(capsys, "farm", "fetch", "--base-image", KNOWN, code=2)
    assert f"You asked for base image {KNOWN}, but matrix.lock was resolved for mine." in answer["message"]


@pytest.fixture
def link(image: Path, tmp_path: Path) -> Path:
    """Return a link of a site to the first of two images, outside of the project; see `image`."""
    image.rename(tmp_path / "unused")
    site = tmp_path / "site"
    site.mkdir()
    for number in (1, 2):
        sif(site / f"release{number}.sif", f"data {number}".encode() * 1000)
    (site / "mine.sif").symlink_to("release1.sif")
    return site / "mine.sif"


def test_changed_link_is_a_named_difference(link: Path, capsys: Capture) -> None:
    run_json(capsys, "resolve", *ASKED, "--base-image", str(link))
    before = read_lock(Path("matrix.lock")).image
    assert before is not None
    first = find_image(link)
    assert (before.path, before.digest) == (str(first.path), first.digest)
    link.unlink()
    link.symlink_to("release2.sif")
    assert main(["resolve"]) == 0
    other = find_image(link)
    assert (
        f"The base image mine has changed since matrix.lock was written: {first.path} was {first.digest}, "
        f"{other.path} is {other.digest}."
    ) in " ".join(capsys.readouterr().err.split())


def test_steps_use_the_copy_of_the_image(link: Path, capsys: Capture) -> None:
    run_json(capsys, "resolve", *ASKED, "--base-image", str(link))
    digest = find_image(link).digest
    fetched = ["farm", "fetch", "deepspeed", "--only-sources", "--copy-image", "--offline"]
    run_json(capsys, *fetched, code=3)  # nothing else is in the cache
    copy = Path(f"mine-{digest[7:19]}.sif").absolute()
    for _ in range(2):  # resolving again keeps the copy
        locked = read_lock(Path("matrix.lock")).image
        assert locked is not None
        assert (locked.path, locked.digest) == (str(copy), digest)
        run_json(capsys, "resolve", *ASKED, "--base-image", str(link))
    link.resolve().unlink()
    assert main(["env", "--for", "cotainr", "-o", ".", "-q"]) == 0
    assert f"image=${{MATRIX_BASE_IMAGE:-{copy}}}" in Path("build.sh").read_text()
    run_json(capsys, *fetched, code=3)
    assert not [*Path().glob(".mine*")]
    copy.write_bytes(copy.read_bytes()[:-1] + b"?")
    answer = run_json(capsys, *fetched, code=1)
    assert "The base image has changed" in answer["message"]


def test_killed_copy_continues(link: Path, tmp_path: Path) -> None:
    """The copying process ends by SIGKILL after a part, as by the limit of a login node."""
    locked = BaseImage("mine", str(link.resolve()))
    program = (
        "import os, pathlib, shutil, signal\n"
        "from matrix.farm import fetch\n"
        "from resolver.model import BaseImage\n"
        "def copy(source, target, size):\n"
        "    target.write(source.read(1000)); target.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "shutil.copyfileobj = copy\n"
        f"fetch.copy_image(BaseImage('mine', {locked.path!r}), pathlib.Path('matrix.lock'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    (part,) = tmp_path.glob(".mine-*.part")
    assert part.stat().st_size == 1000
    assert not [*tmp_path.glob("mine-*.sif")]
    part.write_bytes(part.read_bytes()[:900])
    copied = copy_image(locked, tmp_path / "matrix.lock")
    assert Path(copied.path).read_bytes() == link.read_bytes()
    assert copied.digest == find_image(link).digest
    assert not [*tmp_path.glob(".mine-*.part")]


def test_damaged_part_of_a_copy_is_not_used(link: Path, tmp_path: Path) -> None:
    locked = BaseImage("mine", str(link.resolve()))
    part = tmp_path / f".mine-{find_image(link).sha256[:12]}.sif.part"
    part.write_bytes(b"other bytes")
    with pytest.raises(EnvironmentLacksError, match="differs from the image"):
        copy_image(locked, tmp_path / "matrix.lock")
    assert Path(copy_image(locked, tmp_path / "matrix.lock").path).read_bytes() == link.read_bytes()


@pytest.fixture
def _bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine that has only a C++ compiler, and no network."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "g++").write_text("#!/bin/sh\necho g++ 12\n")
    (programs / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(machine, "is_reachable", lambda _: False)
    monkeypatch.setattr(
        judged_machine, "index_url", lambda: "https://index.example/simple"
    )  # else pip is started


@pytest.mark.usefixtures("_bare_machine")
class TestDoctor:
    def test_missing_tools_do_not_change_exit_code(self, capsys: Capture) -> None:
        answer = run_json(capsys, "check")
        assert answer["schema"] == 1
        assert "image" not in answer["things"][0]
        severities = {finding["id"]: finding["severity"] for finding in answer["things"][0]["findings"]}
        network = [name for name in severities if name.startswith("network-")]
        assert len(network) >= 3
        # On this PATH there is only a C++ compiler.
        missing = {*network, "container-runtimes", "slurm", "pythons", "user-namespaces"}
        assert {name for name in missing if severities[name] != "warning"} == set()
        assert severities["compiler"] == severities["cores-memory"] == "info"
        assert "error" not in severities.values()
        assert main(["check"]) == 0
        assert "warning: sbatch is not on PATH." in capsys.readouterr().out

    def test_mirror_replaces_server(self, capsys: Capture, tmp_path: Path) -> None:
        torch = next(row.index for row in load().torch.values() if row.rocm)
        prefix = torch.partition("/whl/")[0]
        (tmp_path / "matrix.toml").write_text(f'[mirrors]\n"{prefix}" = "https://mirror.example"\n')
        (thing,) = run_json(capsys, "check")["things"]
        (url,) = [
            finding["evidence"]["url"] for finding in thing["findings"] if finding["id"] == "network-torch"
        ]
        assert url.startswith("https://mirror.example/whl/")

    def test_image_that_can_build(self, image: Path, capsys: Capture) -> None:
        answer = run_json(capsys, "check", "--base-image", str(image))
        assert (
            answer["things"][0]["image"]["name"],
            answer["things"][0]["image"]["can_build"],
            answer["things"][0]["image"]["missing"],
        ) == (
            "mine",
            True,
            [],
        )
        assert main(["check", "--base-image", str(image)]) == 0
        text = capsys.readouterr().out
        assert "This image can build wheels for ROCm." in text
        assert "g++-12 12.3.0" in text

    def test_image_without_compiler_cannot_build(
        self, image: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inspect_image = inspection.inspect_image
        monkeypatch.setattr(
            judged_machine,
            "inspect_image",
            lambda image: msgspec.structs.replace(inspect_image(image), compilers=()),
        )
        answer = run_json(capsys, "check", "--base-image", str(image), code=3)
        assert answer["things"][0]["image"]["can_build"] is False
        assert "no C++ compiler" in answer["things"][0]["image"]["missing"][0]
        assert main(["check", "--base-image", str(image)]) == 3
        assert (
            "This image cannot build wheels for ROCm:\n  - there is no C++ compiler"
            in capsys.readouterr().out
        )

    def test_catalog_image_elsewhere_is_missing(self, capsys: Capture) -> None:
        answer = run_json(capsys, "check", "--base-image", KNOWN, code=3)
        assert "is not on this machine: /" in answer["message"]

    def test_invalid_image_is_bad_input(self, capsys: Capture, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        assert "neither usr nor bin" in run_json(capsys, "check", "--base-image", "empty", code=2)["message"]
        sif(tmp_path / "cut.sif", missing=1)
        assert "is truncated" in run_json(capsys, "check", "--base-image", "cut.sif", code=2)["message"]

    def test_unknown_name_gets_suggestion(self, capsys: Capture) -> None:
        answer = run_json(capsys, "check", "--base-image", "lumi-rocm-rocm-6.2.5.sif", code=2)
        assert KNOWN in answer["hint"]


@pytest.mark.usefixtures("image")
def test_diff_uses_the_locked_image(capsys: Capture) -> None:
    Path("matrix.toml").write_text('requirements = ["deepspeed", "torch>=2.9"]\n', encoding="utf-8")
    for name, driver in (("matrix.lock", "6.3"), ("other.lock", "30.10")):
        given = ["torch", "--gfx90a", "--driver", driver, "--base-image", "mine.sif", "-o", name]
        run_json(capsys, "resolve", *given)
    answer = run_json(capsys, "diff", "--driver", "5.7", code=1)
    assert {change["effect"] for change in answer["consequences"] if change["kind"] == "lock"} == {"breaks"}
    answer = run_json(capsys, "diff", "matrix.lock", "other.lock")
    assert [change["name"] for change in answer["consequences"]] == ["kernel-driver"]


def test_layer_needs_an_image_with_python(image: Path, capsys: Capture) -> None:
    """Else torch would be planned for a Python that nothing has."""
    words = ["build-layer", "x.sqsh", "--base-image", str(image), "--gfx90a", "--driver", "6.3"]
    assert main([*words, "torch"]) == 2
    assert (
        "mine.sif has no Python, so it keeps nothing, and nothing can be installed over it."
        in capsys.readouterr().err
    )
    assert not Path("x.sqsh").exists()
