"""A directory of the rig's ordinary user with a lock, from which wheels are built in the image."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builders.building.provenance import read_statement
from tests.rig.rig import USER, Rig
from tests.support.fusedtiny import Repository

TORCH = "torch==2.13.0"


class Site:
    """An ordinary user's directory with a lock, from which wheels are built in the image."""

    def __init__(self, rig: Rig, *requirements: str, targets: tuple[str, ...] = ("--gfx90a",)) -> None:
        self.rig, self.requirements, self.targets = rig, requirements, targets
        self.work = rig.work()
        self.index = self.work / "index"
        self.env = {"PIP_FIND_LINKS": str(self.rig.wheels)}
        """Environment variables for the program in addition to the user's."""

    def matrix(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.rig.matrix(*arguments, cwd=self.work, env=self.env)

    def resolve(self, *more: str) -> None:
        done = self.matrix(
            "resolve", *self.requirements, TORCH, "--site", "local", "--backend", "rocm", *self.targets,
            "--base-image", str(self.rig.image), "--driver", "30.30", "--python", "3.11", *more,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def build(self, *more: str) -> subprocess.CompletedProcess[str]:
        return self.matrix("build-wheels", *more)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the program without waiting; `pid_of` returns its process id."""
        python = [self.rig.python, "-m", "matrix", *arguments]
        runuser = [shutil.which("runuser") or "runuser", "-u", USER, "--"] if os.geteuid() == 0 else []
        return subprocess.Popen(
            [*runuser, *python],
            cwd=self.work,
            env={**self.rig.user_environment(), **self.rig.with_project, **self.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def link_torch_layer(self, cache: Path) -> None:
        """Link torch's layer from the user's usual cache, because creating it takes a minute."""
        home = self.rig.run_as_user(["sh", "-c", "echo ~"]).stdout.strip()
        for torch in Path(home, ".cache", "matrix", "layers").glob("*/lib/python3.11/site-packages/torch"):
            layer = torch.parents[3]
            target = cache / "matrix" / "layers" / layer.name
            self.rig.run_as_user(["mkdir", "-p", str(target.parent)])
            subprocess.run(["cp", "-a", "--link", str(layer), str(target)], check=True)

    def wheel(self, project: str) -> Path:
        (wheel,) = (self.index / "simple" / project).glob("*.whl")
        return wheel

    def audit(self, wheel: Path, *more: str) -> dict[str, Any]:
        done = self.matrix("check", str(wheel), *more, "--format", "json")
        (row,) = json.loads(done.stdout)["things"][0]["wheels"]
        assert isinstance(row, dict)
        return row

    def statement(self, project: str = "") -> dict[str, Any]:
        (path,) = (self.index / "provenance").glob(f"{project}*")
        document = json.loads(path.read_text())
        wheel = path.name.removesuffix(".json").rpartition(".")[0]
        (subject,) = read_statement(document).subject
        assert (subject.name, subject.digest) == (wheel, {"sha256": document["sha256"]})
        assert isinstance(document, dict)
        return document


def make_site(
    rig: Rig,
    repository: Repository,
    *,
    version: str = "1.0",
    targets: tuple[str, ...] = ("--gfx90a",),
    **catalog: Any,
) -> Site:
    """Resolve for the small extension, with the keywords of `Repository.catalog`."""
    site = Site(rig, f"fusedtiny=={version}", targets=targets)
    repository.catalog(site.work / "facts", **catalog)
    (site.work / "matrix.toml").write_text('catalog = ["facts"]\n')
    site.resolve()
    return site


MakeSite = Callable[..., Site]
"""Returns a directory with a lock for the small extension; the keywords choose the fault in its build."""


def pid_of(started: subprocess.Popen[str]) -> int:
    """Return the process id of the program itself, which is a child of runuser."""
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    return int(children[0]) if os.geteuid() == 0 else started.pid
