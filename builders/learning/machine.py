"""Learn the kernel driver, GPUs, Slurm partitions and base images of this machine."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from builders.containers.image import find_image, form_of, image_name
from builders.containers.inspection import as_row, inspect_image
from builders.diagnosis.doctor import count_gpus
from builders.learning import LearnedFacts
from builders.machine import cluster, host
from builders.machine.process import output_of
from builders.scheduling.slurm import hours_of
from resolver.compiling.problem_builder import architecture_of, check_architectures
from resolver.errors import MatrixError, UsageError
from resolver.facts import schema
from resolver.facts.driver import identify_driver
from resolver.versions import join_words, minor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import date
    from pathlib import Path

    from resolver.facts.catalog import Catalog
    from resolver.model import Target


_SINFO = ["sinfo", "--noheader", "--format", "%R|%l|%G"]
_GPUS = re.compile(r"gpu(?::([A-Za-z]\w*))?")
"""A resource of Slurm, such as ``gpu:mi250:8``."""
_STATED = "stated to matrix catalog site"
_IMAGE = (".sif", ".img", ".squashfs", ".tar")


def site_name() -> str:
    """Return the name of Slurm's cluster, or else of this machine."""
    stated = cluster.cluster_name() or cluster.cluster_in(output_of(["scontrol", "show", "config"]))
    return stated or socket.gethostname().partition(".")[0].lower()


def learn_machine(stated: Target, catalog: Catalog, images: Iterable[Path] = ()) -> LearnedFacts:
    """Return the rows of a site for this machine.

    `stated` has the name of the site, the day, and what the user states, which replaces measurements.
    `images` are directories with base images. Inspecting an image may start a container.
    """
    learned = LearnedFacts()
    machine = _Machine(stated, catalog, learned.remarks)
    learned.rows += machine.rows()
    for folder in images:
        for path in _images_in(folder):
            try:
                image = learn_image(path, catalog, stated.date)
            except MatrixError as error:
                learned.remarks.append(f"{path} was left out. {error.message}")
                continue
            learned.add(image)
            learned.rows += machine.images(image.rows)
    learned.rows.sort(key=lambda row: not isinstance(row, schema.Site))
    return learned


class _Machine:
    def __init__(self, stated: Target, catalog: Catalog, remarks: list[str]) -> None:
        self._stated = stated
        self._name = stated.site
        self._catalog = catalog
        self._today = stated.date
        self._remarks = remarks
        self._host = socket.gethostname()
        self._note = f"Read on {stated.date.isoformat()}."
        self._site_row = partial(schema.Site, name=self._name, title=self._name, note=self._note)

    def rows(self) -> Iterator[schema.Row]:
        partitions = _partitions()
        backend = self._stated.backend
        if backend == "rocm":
            yield self._site(partitions)
            yield from self._driver(host.driver_version())
        else:
            yield self._site_row(backend=backend, status="documented", source=_STATED)
        for partition, (hours, models) in partitions.items():
            yield schema.Partition(
                site=self._name,
                name=partition,
                backend="rocm" if models and backend == "rocm" else "cpu",
                max_hours=hours,
                status="observed",
                source=f"{self._host}: {_SINFO[0]}",
                note=self._note,
            )
        if not partitions:
            self._remarks.append("Slurm does not respond here, so the site has no partitions.")

    def _site(self, partitions: Mapping[str, tuple[float, set[str]]]) -> schema.Site:
        """Return the row of a site with GPUs, whose architecture may be missing."""
        check_architectures(self._catalog, self._stated.gfx)
        gfx = tuple(self._stated.gfx)
        measured = sorted(name for name in count_gpus() if self._is_known(name))
        row = self._site_row(
            backend="rocm",
            gfx=gfx or tuple(measured),
            status="documented" if gfx else "observed",
            source=_STATED if gfx else f"{self._host}: /sys/class/kfd/kfd/topology",
        )
        if row.gfx:
            return row
        models = sorted(set().union(*(models for _, models in partitions.values())))
        found = {model: one for model in models if (one := architecture_of(self._catalog, model))}
        if found:
            gfx = tuple(sorted({*found.values()}))
            self._remarks.append(
                f"This machine has no AMD GPU. The architecture {join_words(gfx)} is that of "
                f"{join_words(list(found))}, as Slurm calls the GPUs; check it on a node with GPUs."
            )
            return replace(row, gfx=gfx, status="inferred", source=f"{self._host}: {_SINFO[0]}")
        self._remarks.append(
            "The GPU architecture is missing, because this machine has no AMD GPU. Run this on a node with "
            "GPUs, or state it: --gfx gfx90a. For a site without AMD GPUs, use --backend cpu."
        )
        return row

    def _is_known(self, gfx: str) -> bool:
        if gfx in self._catalog.gfx:
            return True
        self._remarks.append(f"The catalog has no GPU architecture {gfx}, so it was left out.")
        return False

    def _driver(self, reported: str) -> Iterator[schema.Window | schema.SiteAdvice]:
        if self._stated.driver:
            yield self._window(self._stated.driver, "documented", _STATED)
            return
        if not reported:
            rocm, path = host.rocm_version()
            if rocm and minor(rocm) in map(minor, self._catalog.rocm):
                choice = f"Until then, ROCm {minor(rocm)} is preferred, because {path} has {rocm}."
                versions, source = (f"=={minor(rocm)}.*",), f"{self._host}: {path}"
                yield schema.SiteAdvice(
                    site=self._name, on="rocm", versions=versions, recorded=True, since=self._today,
                    status="observed", source=source, note=self._note,
                )  # fmt: skip
            else:
                choice = "Until then, requests for this site must name a driver, or its ROCm, such as "
                choice += "'rocm==6.4.*'."
            self._remarks.append(
                "The kernel driver is missing, because this machine has none that reports its version. Run "
                f"this on a node with GPUs, or state it: --driver 6.3. {choice}"
            )
            return
        try:
            line = identify_driver(reported, self._catalog)
        except UsageError as error:
            self._remarks.append(f"The driver {reported} was left out. {error.message} {error.hint}".strip())
            return
        source = f"{self._host}: package amdgpu-dkms, or else /sys/module/amdgpu/version"
        yield self._window(line, "observed", source, reported)

    def _window(self, line: str, status: schema.Status, source: str, package: str = "") -> schema.Window:
        return schema.Window(
            site=self._name, since=self._today, driver=line, package=package, status=status, source=source,
            note=self._note,
        )  # fmt: skip

    def images(self, rows: Iterable[schema.Row]) -> Iterator[schema.SiteImage]:
        for row in rows:
            if isinstance(row, schema.Image):
                yield schema.SiteImage(
                    site=self._name, image=row.name, status="observed", source=row.source, note=self._note
                )


def _partitions() -> dict[str, tuple[float, set[str]]]:
    """Return Slurm's partitions, each with its time limit in hours (0 for none) and the names of its GPUs."""
    partitions: dict[str, tuple[float, set[str]]] = {}
    for line in output_of(_SINFO).splitlines():
        name, limit, resources = line.split("|", 2)
        _, models = partitions.get(name, (0.0, set()))
        hours = 0.0 if limit == "infinite" else hours_of(limit)
        partitions[name] = hours, models | {match[1] or "gpu" for match in _GPUS.finditer(resources)}
    return partitions


def _images_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        msg = f"{folder} is not a directory."
        raise UsageError(msg)
    images = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            with suppress(UsageError):
                form_of(path)
                images.append(path)
        elif path.suffix in _IMAGE:
            images.append(path)
    if not images:
        msg = f"The directory {folder} contains no base image."
        raise UsageError(
            msg, hint=f"Images are files that end in {', '.join(_IMAGE)}, or unpacked directories."
        )
    return images


def learn_image(path: Path, catalog: Catalog, today: date) -> LearnedFacts:
    """Learn from a base image on this machine; inspecting it may start a container."""
    facts = inspect_image(find_image(path, image_name(str(path), catalog)))
    row = replace(as_row(facts, catalog), note=f"Read on {today.isoformat()}.")
    parts = {"os": "Linux distribution", "glibc": "glibc", "rocm": "ROCm release", "mpi": "MPI"}
    remarks = [f"{facts.name}: no {what} was found." for key, what in parts.items() if not getattr(row, key)]
    size = path.stat().st_size if path.is_file() else 0
    return LearnedFacts(rows=[row], remarks=remarks, size=size, read=size)
