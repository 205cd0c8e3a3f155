"""Label a wheel that passed its checks, and publish it with its provenance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import asdict, replace

from builders.building.provenance import SBOM_NAME, BuildRun, statement
from builders.storage.files import sha256_of
from builders.wheels.labelling import Labels, label_wheel, runtime_pins
from resolver.errors import NameTakenError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builders.building.compilation import BuiltWheel
    from builders.building.plan import Task
    from builders.building.provenance import Descriptor
    from builders.index import Index


def publish_build(
    built: BuiltWheel,
    task: Task,
    index: Index,
    folder: Path,
    *,
    platform: str,
    materials: Sequence[Descriptor],
    run: BuildRun,
) -> Path:
    """Label and publish a wheel; use the next build tag if another build takes the name first.

    `folder` is for the labelled wheel; `materials` are everything that the wheel was built from.
    """
    from builders.building.sbom import sbom

    others = {name: version for name, version in task.runtime_versions.items() if name != "torch"}
    pins = runtime_pins(
        task.torch.pinned if task.torch else "", others, add_torch="torch" in task.runtime_versions
    )
    sboms = {SBOM_NAME: sbom(task, materials, program=run.versions["rocm-matrix"])}
    while True:
        number = index.next_build_number(task.pick.name, task.pick.pinned)
        labels = Labels(
            version=task.pick.pinned,
            platform=platform,
            build_number=number,
            pins=pins,
            pin_style=task.pin_style,
            sboms=sboms,
        )
        labelled = label_wheel(built.path, labels, folder)
        built.verify()
        changes = {
            "requirements": [asdict(change) for change in labelled.requirements],
            "notes": list(labelled.notes),
            "dropped_local": labelled.dropped_local,
        }
        record = statement(
            task,
            materials,
            replace(run, results={**run.results, "labels": changes}),
            wheel=labelled.path.name,
            sha256=sha256_of(labelled.path),
        )
        try:
            return index.publish(labelled.path, record)
        except NameTakenError:
            if index.next_build_number(task.pick.name, task.pick.pinned) == number:
                raise
