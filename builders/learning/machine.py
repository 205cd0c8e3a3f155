"""Learn the kernel driver, GPUs, Slurm partitions and base images of this machine."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from builders import host
from builders.containers.image import form_of
from builders.doctor import count_gpus
from builders.learning import LearnedFacts
from builders.learning.image import learn_image
from builders.probe.slurm import hours_of
from builders.process import output_of
from resolver.driver import identify_driver
from resolver.errors import MatrixError, UsageError
from resolver.facts import schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import date
    from pathlib import Path

    from resolver.facts.catalog import Catalog

_SINFO = ["sinfo", "--noheader", "--format", "%R|%l|%G"]
_CLUSTER = re.compile(r"^ClusterName\s*=\s*(\S+)", re.MULTILINE)
_IMAGE = (".sif", ".img", ".squashfs", ".tar")


def site_name() -> str:
    """Return the name of Slurm's cluster, or else of this machine."""
    match = _CLUSTER.search(output_of(["scontrol", "show", "config"]))
    return (match[1] if match else socket.gethostname().partition(".")[0]).lower()


def learn_machine(name: str, catalog: Catalog, today: date, images: Iterable[Path] = ()) -> LearnedFacts:
    """Return the rows of a site for this machine.

    Parameters
    ----------
    name
        Name of the site.
    images
        Directories with base images. Inspecting an image may start a container.

    Raises
    ------
    UsageError
        A directory does not exist or contains no image.
    """
    learned = LearnedFacts()
    machine = _Machine(name, catalog, today, learned.remarks)
    learned.rows += machine.rows()
    for folder in images:
        for path in _images_in(folder):
            try:
                image = learn_image(path, catalog, today)
            except MatrixError as error:
                learned.remarks.append(f"{path} was left out. {error.message}")
                continue
            learned.add(image)
            learned.rows += machine.images(image.rows)
    learned.rows.sort(key=lambda row: not isinstance(row, schema.Site))
    return learned


class _Machine:
    """Create the rows of a site from the properties of this machine."""

    def __init__(self, name: str, catalog: Catalog, today: date, remarks: list[str]) -> None:
        self._name = name
        self._catalog = catalog
        self._today = today
        self._remarks = remarks
        self._host = socket.gethostname()
        self._note = f"Read on {today.isoformat()}."

    def rows(self) -> Iterator[schema.Row]:
        """Yield the site, its driver and its partitions."""
        reported = host.driver_version()
        gfx = sorted(name for name in count_gpus() if self._is_known(name))
        partitions = _partitions()
        if not gfx:
            self._remarks.append(
                "This machine has no AMD GPU, so the site has no GPU architecture. Run this on a node with "
                "GPUs, or add an architecture to the file: gfx = [...]."
            )
        has_gpus = bool(gfx or reported)
        yield schema.Site(
            name=self._name,
            title=self._name,
            backend="rocm" if has_gpus else "cpu",
            gfx=tuple(gfx),
            status="observed",
            source=f"{self._host}: /sys/class/kfd/kfd/topology",
            note=self._note,
        )
        yield from self._driver(reported)
        for partition, (hours, with_gpus) in partitions.items():
            yield schema.Partition(
                site=self._name,
                name=partition,
                backend="rocm" if with_gpus and has_gpus else "cpu",
                max_hours=hours,
                status="observed",
                source=f"{self._host}: {_SINFO[0]}",
                note=self._note,
            )
        if not partitions:
            self._remarks.append("Slurm does not respond here, so the site has no partitions.")

    def _is_known(self, gfx: str) -> bool:
        if gfx in self._catalog.gfx:
            return True
        self._remarks.append(f"The catalog has no GPU architecture {gfx}, so it was left out.")
        return False

    def _driver(self, reported: str) -> Iterator[schema.Window]:
        if not reported:
            self._remarks.append(
                "This machine has no AMD kernel driver that reports its version, so the site has no driver. "
                "Name one with --driver when you resolve, or add a [[window]]."
            )
            return
        try:
            line = identify_driver(reported, self._catalog)
        except UsageError as error:
            self._remarks.append(f"The driver {reported} was left out. {error.message} {error.hint}".strip())
            return
        yield schema.Window(
            site=self._name,
            since=self._today,
            driver=line,
            package=reported,
            status="observed",
            source=f"{self._host}: package amdgpu-dkms, or else /sys/module/amdgpu/version",
            note=self._note,
        )

    def images(self, rows: Iterable[schema.Row]) -> Iterator[schema.SiteImage]:
        """Yield the rows for the base images that the site has."""
        for row in rows:
            if isinstance(row, schema.Image):
                yield schema.SiteImage(
                    site=self._name, image=row.name, status="observed", source=row.source, note=self._note
                )


def _partitions() -> dict[str, tuple[float, bool]]:
    """Return Slurm's partitions, each with its time limit in hours (0 for none) and whether it has GPUs."""
    partitions: dict[str, tuple[float, bool]] = {}
    for line in output_of(_SINFO).splitlines():
        name, limit, resources = line.split("|", 2)
        _, with_gpus = partitions.get(name, (0.0, False))
        hours = 0.0 if limit == "infinite" else hours_of(limit)
        partitions[name] = hours, with_gpus or "gpu" in resources
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
