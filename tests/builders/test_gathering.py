"""The materials of a wheel from the parts of its build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from builders.containers.image import Image as BaseImage
from builders.environments.layers import Layer, Layers
from builders.environments.wheelhouse import Wheel
from builders.gathering import materials_of
from builders.plan import Task
from builders.provenance import Distribution, GitSource, Image, Patch, Program, SdistSource, Submodule
from builders.sources import Source

A, B, C = "a" * 64, "b" * 64, "c" * 64


def wheel(name: str, version: str, sha256: str = A) -> Wheel:
    return Wheel(name, version, f"{name}-{version}-py3-none-any.whl", sha256, 1)


def layer(*wheels: Wheel) -> Layer:
    return Layer(Path("layer"), Path("layer/packages"), wheels)


def source(kind: str, inputs: dict[str, Any], patches: Sequence[Path] = ()) -> Source:
    return Source(
        "apex", "1.9.0", kind, "", "", Path("archive"), 0, inputs, fetched=False, patches=tuple(patches)
    )


@dataclass
class StandInTask:
    """Stand-in for a task: what is asked of one here, without a catalog or a place to build in."""

    gfx: tuple[str, ...] = ("gfx90a",)
    image: BaseImage | None = None
    pick: Any = field(default_factory=lambda: SimpleNamespace(name="apex", pinned="1.9.0+rocm6.4"))

    @property
    def build_host(self) -> Any:
        compilers = (SimpleNamespace(name="g++", version="13.3.0"),) if self.image else ()
        return SimpleNamespace(
            runtime=SimpleNamespace(image=self.image),
            compilers=compilers,
            rocm="6.4.4" if self.image else "",
            python=SimpleNamespace(version="3.12.3"),
        )


LAYERS = Layers(
    torch=layer(wheel("torch", "2.9.1+rocm6.4", B), wheel("setuptools", "70.0")),
    requirements=layer(wheel("setuptools", "80.9.0", C), wheel("ninja", "1.13.0")),
)


def test_a_build_from_git_in_an_image() -> None:
    task = cast("Task", StandInTask(image=BaseImage("rocm-6.4.4", Path("image.sif"), A)))
    inputs = {
        "url": "https://git.example.org/apex",
        "commit": "1" * 40,
        "tree": "2" * 40,
        "submodules": {"ck": ["https://git.example.org/ck", "3" * 40]},
        "patches": [B],
    }
    made = materials_of(task, source("git", inputs, [Path("patches/guard.patch")]), LAYERS)
    assert (made.name, made.version, made.gfx) == ("apex", "1.9.0+rocm6.4", ("gfx90a",))
    assert made.source == GitSource(
        url="https://git.example.org/apex",
        commit="1" * 40,
        tree="2" * 40,
        submodules=(Submodule(path="ck", url="https://git.example.org/ck", commit="3" * 40),),
    )
    assert made.patches == (Patch(name="guard.patch", sha256=B),)
    assert made.torch == Distribution(name="torch", version="2.9.1+rocm6.4", sha256=B)
    assert [(one.name, one.version) for one in made.requirements] == [
        ("ninja", "1.13.0"),
        ("setuptools", "80.9.0"),
    ]
    assert made.image == Image(name="rocm-6.4.4", digest=f"sha256:{A}")
    assert made.programs == (Program(name="g++", version="13.3.0"),)
    assert (made.rocm, made.python) == ("6.4.4", "3.12.3")


def test_a_build_from_an_sdist_on_the_host_without_torch() -> None:
    task = cast("Task", StandInTask(gfx=()))
    sdist = source("sdist", {"file": "apex-1.9.0.tar.gz", "sha256": C})
    made = materials_of(task, sdist, Layers(torch=None, requirements=None))
    assert made.source == SdistSource(file="apex-1.9.0.tar.gz", sha256=C, version="1.9.0")
    assert (made.torch, made.requirements, made.image, made.programs) == (None, (), None, ())


def test_a_patch_without_its_hash_is_a_fault() -> None:
    task = cast("Task", StandInTask())
    sdist = source("sdist", {"file": "a.tar.gz", "sha256": C}, [Path("a.patch")])
    with pytest.raises(ValueError, match="zip"):
        materials_of(task, sdist, LAYERS)
