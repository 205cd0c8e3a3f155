"""Publishers that are killed at any moment, and a reader that always looks: nothing acknowledged is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from builders.index import Index
from builders.index.maintenance import check
from tests.support.tiny import tiny_wheel

PUBLISHERS = 6
WHEELS = 12
"""Wheels for each publisher; most are of one project."""


def publish_all(index: Path, wheels: list[Path], acknowledged: int) -> None:
    """Publish wheels, and write the name of each to a pipe after that."""
    for wheel in wheels:
        Index(index).publish(wheel, {"build_key": wheel.name})
        os.write(acknowledged, f"{wheel.name}\n".encode())


def start(index: Path, wheels: list[Path], acknowledged: int) -> int:
    child = os.fork()
    if not child:
        try:
            publish_all(index, wheels, acknowledged)
        finally:
            os._exit(int(sys.exc_info()[0] is not None))
    return child


def listed(index: Path, project: str) -> list[set[str]]:
    """Return the wheels on both pages of a project, read as any reader does."""
    folder = index / "simple" / project
    html = (folder / "index.html").read_text()
    data = json.loads((folder / "index.json").read_bytes())
    in_html = {line.rpartition(">")[0].rpartition("</a>")[0].rpartition(">")[2] for line in html.splitlines()}
    return [in_html, {row["filename"] for row in data["files"]}]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [8.0, pytest.param(120.0, marks=pytest.mark.long)])
def test_killed_publishers_lose_nothing_acknowledged(
    tmp_path: Path, seconds: float, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(f"storm {seconds}")
    figures = dict.fromkeys(("rounds", "runs", "kills", "acknowledged", "reads", "missing"), 0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        storm(tmp_path / str(figures["rounds"]), chance, figures)
        figures["rounds"] += 1
    with capsys.disabled():
        sys.stdout.write(f"\n{figures}\n")
    assert figures["missing"] == 0
    assert figures["kills"] > figures["rounds"]
    assert figures["acknowledged"] > figures["rounds"]


def storm(root: Path, chance: random.Random, figures: dict[str, int]) -> None:
    """Run publishers of one index until all wheels are published or their publishers killed."""
    index = root / "index"
    shares = [
        [
            tiny_wheel(root / f"made{number}", "shared" if minor % 4 else "other", f"{number}.{minor}")
            for minor in range(WHEELS)
        ]
        for number in range(PUBLISHERS)
    ]
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    children = [start(index, share, writing) for share in shares]
    figures["runs"] += len(children)
    doomed = {child: time.monotonic() + chance.uniform(0.002, 0.25) for child in children[1:]}
    acknowledged: set[str] = set()
    left = set(children)
    while left:
        for child in [*left]:
            if child in doomed and time.monotonic() > doomed[child]:
                os.kill(child, signal.SIGKILL)
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                left.discard(child)
                figures["kills"] += os.WIFSIGNALED(status)
                assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
        look(index, acknowledged, figures)
        try:
            text = os.read(reading, 1 << 16).decode()
        except BlockingIOError:
            continue
        acknowledged.update(text.split())
    os.close(writing)
    acknowledged.update(os.read(reading, 1 << 16).decode().split())
    os.close(reading)
    figures["acknowledged"] += len(acknowledged)
    look(index, acknowledged, figures)
    # Nobody repairs the pages for those who were killed: what is acknowledged is there without it.
    found = {finding.id for finding in check(Index(index))}
    assert found <= {"page-wrong", "record-without-wheel", "leftover"}


def look(index: Path, acknowledged: set[str], figures: dict[str, int]) -> None:
    """Read the pages, and count the wheels that were acknowledged before and are missing."""
    for project in ("shared", "other"):
        due = {name for name in acknowledged if name.startswith(project)}
        if due:
            figures["reads"] += 1
            figures["missing"] += sum(len(due - page) for page in listed(index, project))
