"""Learn the content of a base image by inspecting it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from builders.containers.image import find_image, image_name
from builders.containers.inspection import as_row, inspect_image
from builders.learning import LearnedFacts

if TYPE_CHECKING:
    from datetime import date
    from pathlib import Path

    from resolver.facts.catalog import Catalog


def learn_image(path: Path, catalog: Catalog, today: date) -> LearnedFacts:
    """Learn from a base image on this machine; inspecting it may start a container."""
    facts = inspect_image(find_image(path, image_name(str(path), catalog)))
    row = replace(as_row(facts, catalog), note=f"Read on {today.isoformat()}.")
    parts = {"os": "Linux distribution", "glibc": "glibc", "rocm": "ROCm release", "mpi": "MPI"}
    remarks = [f"{facts.name}: no {what} was found." for key, what in parts.items() if not getattr(row, key)]
    size = path.stat().st_size if path.is_file() else 0
    return LearnedFacts(rows=[row], remarks=remarks, size=size, read=size)
