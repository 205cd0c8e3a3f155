"""From the parts of a build to the materials of its wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builders.provenance.materials import (
    Distribution,
    GitSource,
    Image,
    Materials,
    Patch,
    Program,
    SdistSource,
    Submodule,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builders.environments.layers import Layers
    from builders.environments.wheelhouse import Wheel
    from builders.plan import Task
    from builders.sources import Source


def materials_of(task: Task, source: Source, layers: Layers) -> Materials:
    """Say what the wheel of a task is made from.

    Parameters
    ----------
    task
        What is built, and where.
    source
        Its source, as it was obtained.
    layers
        The wheels that it is built beside.
    """
    build_host, image = task.build_host, task.build_host.runtime.image
    wheels = sorted(_wheels(layers), key=lambda one: one.name)
    torch = next((one for one in wheels if one.name == "torch"), None)
    return Materials(
        name=task.pick.name,
        version=task.pick.pinned,
        source=_source(source),
        patches=_patches(source),
        torch=_distribution(torch) if torch else None,
        requirements=tuple(_distribution(one) for one in wheels if one is not torch),
        image=Image(name=image.name, digest=image.digest) if image else None,
        programs=tuple(Program(name=one.name, version=one.version) for one in build_host.compilers),
        rocm=build_host.rocm,
        gfx=task.gfx,
        python=build_host.python.version,
    )


def _source(source: Source) -> SdistSource | GitSource:
    said = source.inputs
    if source.kind == "sdist":
        return SdistSource(file=said["file"], sha256=said["sha256"], version=source.version)
    return GitSource(
        url=said["url"],
        commit=said["commit"],
        tree=said["tree"],
        submodules=tuple(
            Submodule(path=path, url=url, commit=commit)
            for path, (url, commit) in sorted(said["submodules"].items())
        ),
    )


def _patches(source: Source) -> tuple[Patch, ...]:
    hashes = source.inputs.get("patches", [])
    return tuple(
        Patch(name=path.name, sha256=sha256) for path, sha256 in zip(source.patches, hashes, strict=True)
    )


def _wheels(layers: Layers) -> Iterator[Wheel]:
    """Give each wheel once: what the build asked for shadows what torch needs."""
    seen: set[str] = set()
    for layer in layers.all:
        for wheel in layer.wheels:
            if wheel.name not in seen:
                seen.add(wheel.name)
                yield wheel


def _distribution(wheel: Wheel) -> Distribution:
    return Distribution(name=wheel.name, version=wheel.version, sha256=wheel.sha256)
