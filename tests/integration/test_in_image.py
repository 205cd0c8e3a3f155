"""Wheels for gfx90a, compiled in a base image by an ordinary user, and wheels that are rejected.

The image has a real HIP compiler; torch is the rig's stand-in, and there is no GPU. So the code objects are
real, but the tests do not show that their kernels run.
"""

from __future__ import annotations

import json
import re
import zipfile

import pytest

from tests.rig.rig import Rig
from tests.support.fusedtiny import Repository
from tests.support.records import materials_of, results_of
from tests.support.site import MakeSite, Site, make_site

pytestmark = pytest.mark.integration
LABEL = "rocm7.2.torch2.13.0.gfx90a"
FORGETFUL = """
schema = 1
[[recipe]]
package = "deepspeed"
backend = "rocm"
releases = "==0.19.8"
undeclared = ["torch", "setuptools", "wheel", "packaging", "psutil", "py-cpuinfo", "ninja"]
environment = { PYTORCH_ROCM_ARCH = "{gfx}", DS_ENABLE_NINJA = "1", DS_BUILD_FUSED_ADAM = "1" }
must-contain = ["deepspeed/ops/adam/fused_adam_op*.so"]
status = "observed"
source = "tests"
"""


def refused(site: Site, *, code: int = 1) -> str:
    """Build a wheel that must not be published; return stderr after checking that it was not."""
    done = site.build()
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not list(site.index.glob("simple/*/*.whl"))
    return done.stderr


def requirements(site: Site) -> list[str]:
    """Return the requirements in the metadata of the small extension's wheel."""
    with zipfile.ZipFile(site.wheel("fusedtiny")) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    return re.findall(r"(?m)^Requires-Dist: (.*)$", metadata)


@pytest.fixture(scope="module")
def sound(rig: Rig, repository: Repository) -> Site:
    """Build the small extension without a fault, once for the tests that only read the result."""
    site = make_site(rig, repository)
    done = site.build()
    assert done.returncode == 0, done.stderr
    return site


def test_git_source_with_submodule_builds_for_target(sound: Site, repository: Repository) -> None:
    site = sound
    wheel = site.wheel("fusedtiny")
    assert re.fullmatch(
        rf"fusedtiny-1\.0\+{re.escape(LABEL)}-cp311-cp311-manylinux_2_\d+_x86_64\.whl", wheel.name
    )
    audit = site.audit(wheel, "--gfx90a")
    assert audit["verdict"] == "sound"
    assert set(map(tuple, audit["code_objects"].values())) == {("gfx90a",)}
    results = results_of(site.statement())
    assert results["network"] == "off"
    assert "probe-object" in {finding["id"] for finding in results["findings"]}
    materials = materials_of(site.statement())
    commits = [material["digest"]["gitCommit"] for material in materials if "gitCommit" in material["digest"]]
    assert commits == [repository.new, repository.shared]
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith(".dist-info/sboms/rocm-matrix.cdx.json") for name in names)
    assert "torch==2.13.0+rocm7.2" in requirements(site)
    assert "up to date" in site.build().stdout


def test_one_wheel_for_two_targets(tiny: MakeSite) -> None:
    site = tiny(targets=("--gfx90a", "--gfx942"))
    assert site.build().returncode == 0
    audit = site.audit(site.wheel("fusedtiny"), "--gfx90a", "--gfx942")
    assert set(map(tuple, audit["code_objects"].values())) == {("gfx90a", "gfx942")}
    assert site.wheel("fusedtiny").name.startswith("fusedtiny-1.0+rocm7.2.torch2.13.0.gfx90a.gfx942-")


def test_wheel_does_not_contain_index_directory(sound: Site) -> None:
    """Host and device code contain ``__FILE__``."""
    with zipfile.ZipFile(sound.wheel("fusedtiny")) as archive:
        (library,) = (archive.read(member) for member in archive.namelist() if member.endswith(".so"))
    assert str(sound.work).encode() not in library
    assert library.count(b"/matrix/source/source/csrc/kernel.hip\0") == 2


@pytest.mark.long
def test_older_flags_build_older_commit(tiny: MakeSite) -> None:
    site = tiny(version="0.9")
    done = site.build()
    assert done.returncode == 0, done.stderr
    assert site.audit(site.wheel("fusedtiny"), "--gfx90a")["verdict"] == "sound"


def test_older_flags_on_newer_commit_are_rejected(tiny: MakeSite, repository: Repository) -> None:
    output = refused(tiny(version="0.9", old=repository.new))
    assert "nothing was compiled" in output
    assert "FUSEDTINY_BUILD_CUDA_OPS" in output


def test_wheel_without_shared_object_is_rejected(tiny: MakeSite, repository: Repository) -> None:
    """As with Apex and flags that it ignores, the wheel can be imported, but contains no kernel."""
    output = refused(tiny(version="0.9", old=repository.new, guard=False))
    assert "it contains no shared object at all" in output


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("cpu-only", "The wheel contains no GPU code"),
        pytest.param("other-gfx", "gfx942", marks=pytest.mark.long),
        ("undefined-symbol", "no_such_function_of_torch"),
        pytest.param("lost-library", "libnobody.so", marks=pytest.mark.long),
        ("wave-size", "wavefronts of 32 lanes"),
        ("network", "network"),
    ],
)
def test_silent_failure_is_rejected(tiny: MakeSite, fault: str, says: str) -> None:
    assert says in refused(tiny(fault=fault))


def test_other_base_image_stops_build(tiny: MakeSite) -> None:
    site = tiny()
    lock = site.work / "matrix.lock"
    digest = re.search(r'digest = "(sha256:[0-9a-f]{64})"', lock.read_text())
    assert digest is not None
    small = site.work / "other"
    (small / "usr").mkdir(parents=True)
    done = site.build("--base-image", str(small))
    assert done.returncode in {1, 2, 3}
    assert not site.index.joinpath("simple").exists()


@pytest.mark.long
def test_deepspeed_without_accelerator_is_rejected(rig: Rig) -> None:
    """The build ends with exit code 0, and the wheel contains fused_adam, but for the CPU."""
    site = Site(rig, "deepspeed==0.19.8")
    (site.work / "facts.toml").write_text(FORGETFUL)
    (site.work / "matrix.toml").write_text('catalog = ["facts.toml"]\n')
    site.resolve()
    output = refused(site)
    assert "accelerator" in output or "The wheel contains no GPU code" in output


def test_hip_extension_is_identical_when_built_again(sound: Site) -> None:
    done = sound.build("--rebuild", "--format", "json")
    assert done.returncode == 0, done.stderr
    (wheel,) = json.loads(done.stdout)["wheels"]
    assert (wheel["state"], wheel["diagnosis"]) == ("identical", [])


def test_flash_attn_triton_builds_pure_wheel(rig: Rig) -> None:
    site = Site(rig, "flash-attn[triton]==2.8.3")
    site.resolve()
    done = site.build()
    assert done.returncode == 0, done.stderr
    assert "pure Python and contains no GPU code" in done.stderr
    assert site.wheel("flash-attn").name.endswith("-none-any.whl")
