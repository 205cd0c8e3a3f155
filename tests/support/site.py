"""A directory of the rig's ordinary user with a lock, from which wheels are built in the image."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from builders.provenance import read_statement
from tests.rig.rig import Rig

TORCH = "torch==2.13.0"


class Site:
    """An ordinary user's directory with a lock, from which wheels are built in the image."""

    def __init__(self, rig: Rig, *requirements: str, targets: tuple[str, ...] = ("--gfx90a",)) -> None:
        self.rig, self.requirements, self.targets = rig, requirements, targets
        self.work = rig.work()
        self.index = self.work / "index"

    def matrix(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.rig.matrix(*arguments, cwd=self.work, env={"PIP_FIND_LINKS": str(self.rig.wheels)})

    def resolve(self, *more: str) -> None:
        done = self.matrix(
            "resolve", *self.requirements, TORCH, "--site", "local", "--backend", "rocm", *self.targets,
            "--base-image", str(self.rig.image), "--driver", "30.30", "--python", "3.11", *more,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def build(self, *more: str) -> subprocess.CompletedProcess[str]:
        return self.matrix("build-wheels", *more)

    def wheel(self, project: str) -> Path:
        (wheel,) = (self.index / "simple" / project).glob("*.whl")
        return wheel

    def audit(self, wheel: Path, *more: str) -> dict[str, Any]:
        done = self.matrix("audit", str(wheel), *more, "--format", "json")
        (one,) = json.loads(done.stdout)["wheels"]
        assert isinstance(one, dict)
        return one

    def statement(self) -> dict[str, Any]:
        (path,) = (self.index / "provenance").iterdir()
        document = json.loads(path.read_text())
        wheel = path.name.removesuffix(".json").rpartition(".")[0]
        assert read_statement(document).is_about(wheel, document["sha256"])
        assert isinstance(document, dict)
        return document

    def results(self) -> dict[str, Any]:
        """Give what was found of the wheel, as its provenance says."""
        products = self.statement()["predicate"]["runDetails"]["byproducts"]
        said = {one["name"]: one["annotations"] for one in products}
        return {name: one["result"] for name, one in said.items() if one["role"] == "result"}

    def materials(self) -> list[dict[str, Any]]:
        """Give what the wheel was made from, as its provenance says."""
        found = self.statement()["predicate"]["buildDefinition"]["resolvedDependencies"]
        assert isinstance(found, list)
        return found
