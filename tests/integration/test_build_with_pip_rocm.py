"""Extensions compiled with the ROCm of pip packages, in an image that has none.

The packages have the metadata and the layout of AMD's (`tests.support.therock`). In the rig their content is
Debian's ROCm, and torch is the rig's stand-in, which requires them: so the compiler and the code objects are
real, but no kernel runs.
"""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builders.audit.runtime_libraries import read_torch
from builders.building.apply_recipe import apply_recipe
from builders.containers.runtime import HostRuntime, run_in
from builders.environments.layers import Layers, make_environment, make_layers
from builders.environments.python import TargetPython, find_python
from builders.environments.wheelhouse import FetchOptions
from builders.machine.host import running_python
from resolver.reporter import SILENT
from tests.rig import standin_rocm
from tests.rig.rig import Rig
from tests.support.fusedtiny import Repository, make_cmaketiny
from tests.support.records import materials_of
from tests.support.site import Site
from tests.support.tasks import make_recipe, make_task
from tests.support.therock import write_packages
from tests.support.tiny import tiny_wheel

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROCM, TORCH = "10.1.0", "2.14.0+rocm10.1.0"
BITCODE = "lib/llvm/amdgcn/bitcode"
PROJECTS = ("fusedtiny", "cmaketiny")
PLACE = HostRuntime()
TORCH_ROW = f"""
schema = 1
[[torch]]
version = "{standin_rocm.VERSION}"
backend = "rocm"
index = "https://wheels.example/rocm"
python = ["3.11"]
rocm = "7.2.4"
gfx = ["gfx90a", "gfx942"]
pip-rocm = true
status = "observed"
source = "tests"
"""


@pytest.fixture(scope="module")
def python() -> TargetPython:
    return find_python(PLACE, running_python())


def write_content(folder: Path) -> Path:
    """Write the files of ROCm's packages, divided as AMD divides them."""
    files = {
        "core/bin/hipcc": "#!/bin/sh\necho hipcc of $0\n",
        "core/include/hip/hip_runtime.h": "",
        "core/lib/libamdhip64.so.7": "",
        f"core/{BITCODE}/ocml.bc": "",
        f"core/{BITCODE}/oclc_daz_opt_on.bc": "",
        "libraries/lib/libhipblas.so.3": "",
        "devel/include/hipblas/hipblas.h": "",
        "devel/include/thrust/complex.h": "",
        "devel/lib/cmake/hip/hip-config.cmake": "",
        f"devel/{BITCODE}/oclc_daz_opt_on.bc.absent": "",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def layers(python: TargetPython, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layers]:
    """Return the layer of a torch that requires ROCm's packages, with those for development."""
    work = tmp_path_factory.mktemp("layers")
    content = write_content(work / "content")
    links = work / "links"
    write_packages(links, ROCM, families=("gfx90a", "gfx942"), default="gfx942", content=content)
    tiny_wheel(links, "torch", TORCH, requires=[f"rocm[libraries]=={ROCM}"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_FIND_LINKS", str(links))
        patch.setenv("XDG_CACHE_HOME", str(work / "cache"))
        yield make_layers(PLACE, python, torch=f"torch=={TORCH}", requirements=[], options=options(work))


def options(folder: Path) -> FetchOptions:
    return FetchOptions(folder / "log", SILENT, rocm=f"rocm[devel]=={ROCM}", gfx="gfx90a")


def test_development_files_are_expanded_in_the_layer_of_torch(layers: Layers) -> None:
    """They are links to the files of the packages beside them, so all are in one site-packages."""
    assert layers.torch is not None
    root = layers.torch.rocm
    assert root is not None
    assert {path.relative_to(root).as_posix() for path in root.rglob("*.h")} == {
        "include/hip/hip_runtime.h",
        "include/hipblas/hipblas.h",
        "include/thrust/complex.h",
    }
    assert (root / "bin" / "hipcc").samefile(layers.torch.packages / "_rocm_sdk_core" / "bin" / "hipcc")
    assert not list(layers.torch.packages.rglob("_devel.tar"))
    names = {wheel.name for wheel in layers.torch.wheels}
    assert names == {"torch", "rocm", "rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-devel"}


def test_rocm_is_for_the_gpu_of_the_target(layers: Layers) -> None:
    """Without a GPU here, the default of the sdist would be another."""
    assert layers.torch is not None
    (metadata,) = layers.torch.packages.glob("rocm-*.dist-info/METADATA")
    assert f'rocm-sdk-device-gfx90a=={ROCM}; extra == "device"' in metadata.read_text()


def test_hipcc_with_headers_comes_first(layers: Layers, python: TargetPython, tmp_path: Path) -> None:
    assert layers.torch is not None
    made = make_environment(python, layers.all, root=tmp_path / "env")
    log = tmp_path / "hipcc.log"
    run_in(PLACE, ["/bin/sh", "-c", "hipcc"], made.view, what="Trying", log=log)
    assert f"hipcc of {layers.torch.rocm}/bin/hipcc" in log.read_text()


def test_device_libraries_are_complete(layers: Layers) -> None:
    assert layers.torch is not None
    root = layers.torch.rocm
    variables = apply_recipe(
        make_task(make_recipe(), "gfx90a", pip_rocm=ROCM, rocm_path=str(root))
    ).environment
    assert not Path(variables["ROCM_PATH"], BITCODE, "oclc_daz_opt_on.bc").exists()
    assert Path(variables["HIP_DEVICE_LIB_PATH"], "oclc_daz_opt_on.bc").exists()
    first = variables["CMAKE_PREFIX_PATH"].partition(":")[0]
    assert Path(first, "lib", "cmake", "hip", "hip-config.cmake").exists()


def test_wheel_may_need_libraries_that_torch_installs(layers: Layers, tmp_path: Path) -> None:
    """Those that only the packages for development have are not there at run time."""
    assert layers.torch is not None
    packages = shutil.copytree(layers.torch.packages, tmp_path / "packages")
    (packages / "torch" / "lib").mkdir(parents=True)
    shutil.copy("/bin/true", packages / "torch" / "lib" / "libtorch.so")
    (packages / "_rocm_sdk_devel" / "lib" / "libonly.so").touch()
    found = read_torch(packages / "torch" / "lib").libraries or ()
    assert {name for name in found if "torch" not in name} == {"libamdhip64.so.7", "libhipblas.so.3"}


@pytest.fixture(scope="module")
def built(rig: Rig, repository: Repository) -> Site:
    """Build two packages in an image without ROCm: with headers of ROCm's libraries, and with CMake."""
    work = rig.work()
    image, links = work / "bare", work / "links"
    standin_rocm.unpack(rig.image, image)
    standin_rocm.divide(image, work / "content")
    standin_rocm.make(rig.torch, work / "content", links)
    of_cmake = make_cmaketiny(work / "cmaketiny.git")
    subprocess.run(["chmod", "-R", "a+rX", str(work)], check=True)
    subprocess.run(["chown", "-R", "--reference", str(work), str(work / "cmaketiny.git")], check=True)
    site = Site(
        replace(rig, image=image, wheels=links), *(f"{name}==1.0" for name in PROJECTS), "rocm==7.2.*"
    )
    repository.catalog(site.work / "facts", fault="headers")
    (site.work / "facts" / "cmaketiny.toml").write_text(of_cmake)
    (site.work / "facts" / "torch.toml").write_text(TORCH_ROW)
    (site.work / "matrix.toml").write_text('catalog = ["facts"]\n')
    site.resolve()
    done = site.build()
    assert done.returncode == 0, done.stderr
    return site


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("project", PROJECTS)
def test_extension_is_compiled_with_the_rocm_of_pip(built: Site, project: str) -> None:
    """The package of CMake names no architecture, and there is no GPU here."""
    wheel = built.wheel(project)
    assert wheel.name.startswith(f"{project}-1.0+rocm7.2.torch2.13.0.gfx90a-")
    audit = built.audit(wheel, "--gfx90a")
    assert audit["verdict"] == "sound"
    assert set(map(tuple, audit["code_objects"].values())) == {("gfx90a",)}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("project", PROJECTS)
def test_wheel_needs_the_rocm_of_torch(built: Site, project: str) -> None:
    """It has no search path of the build, and requires the torch that loads ROCm's libraries."""
    with zipfile.ZipFile(built.wheel(project)) as archive:
        (metadata,) = (archive.read(name) for name in archive.namelist() if name.endswith("/METADATA"))
        (library,) = (archive.read(name) for name in archive.namelist() if name.endswith(".so"))
    assert f"Requires-Dist: torch=={standin_rocm.VERSION}".encode() in metadata
    assert b"_rocm_sdk" not in library
    assert str(built.work).encode() not in library


@pytest.mark.long
@pytest.mark.timeout(900)
def test_packages_of_rocm_are_materials_of_the_build(built: Site) -> None:
    """Packages with code for GPUs are not needed to compile, and have gigabytes."""
    names = {material["name"] for material in materials_of(built.statement("fusedtiny"))}
    assert {"rocm", "rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-devel", "torch"} <= names
    assert not {name for name in names if "device" in name}
