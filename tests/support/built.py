"""A directory in which `matrix` built the real DeepSpeed, and a function to run `matrix`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LABELLED = "0.19.8+cpu.torch2.13.0"


@dataclass(frozen=True)
class Built:
    """A directory in which deepspeed was resolved and built for the CPU."""

    work: Path
    said: str
    log: Path
    """The log of the successful build; other tests build into the same index and fail on purpose."""

    @property
    def index(self) -> Path:
        return self.work / "index"

    @property
    def wheel(self) -> Path:
        (wheel,) = (self.index / "simple" / "deepspeed").glob("*.whl")
        return wheel

    def matrix(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return matrix(self.work, *arguments)

    def matrix_json(self, *arguments: str) -> Any:
        return json.loads(self.matrix(*arguments, "--format", "json").stdout)


def matrix(work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a directory."""
    command = [sys.executable, "-m", "matrix", *arguments]
    return subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
