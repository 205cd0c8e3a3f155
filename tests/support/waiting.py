"""Wait for effects of other processes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path


def wait_until(
    condition: Callable[[], object], process: subprocess.Popen[str] | None = None, *, patience: float = 120
) -> None:
    """Wait some seconds until a condition holds; fail at once if a process that must run has ended."""
    deadline = time.monotonic() + patience
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_end(pid: int) -> None:
    """Wait until a process of another parent has ended."""
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
