"""The count of compile commands and the file that is compiled, from runs of the real ninja."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread

import pytest

from builders.building.watch import LogCount, compiling, started
from builders.machine.reaper import descendants
from resolver.reporter import Progress
from tests.support.waiting import wait_until

COMPILER = """#!/bin/sh
while [ ! -e go ]; do sleep 0.02; done
touch "$4"
"""


class Project:
    """A build directory with a compiler that waits for the file ``go``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()
        self.count = LogCount(self.log)
        self.compiler = folder / "cc"
        self.compiler.write_text(COMPILER)
        self.compiler.chmod(0o755)

    def write(self, text: str) -> None:
        with self.log.open("a") as log:
            log.write(text)

    def run(self, sources: Sequence[str]) -> tuple[str, Progress, Progress]:
        """Compile files; return the first, and the counts before it and after the last."""
        rules = "rule cuda_compile\n  command = ./cc -c $in -o $out\nrule link\n  command = touch $out\n"
        objects = [f"{source}.o" for source in sources]
        for source in sources:
            (self.folder / source).touch()
            rules += f"build {source}.o: cuda_compile {source}\n"
        rules += f"build all.so: link {' '.join(objects)}\nbuild all: phony all.so\ndefault {objects[0]}\n"
        (self.folder / "build.ninja").write_text(rules + "".join(f"default {name}\n" for name in objects[1:]))
        go = self.folder / "go"
        with self.log.open("a") as log:
            ninja = subprocess.Popen(["ninja", "-v", "-j1"], cwd=self.folder, stdout=log, stderr=log)
        try:
            wait_until(lambda: all(compiling(started())))
            file, process = compiling(started())
            assert process == ninja.pid
            assert self.count.read() == {}
            before = self.count.begun(process)
        finally:
            go.touch()
            ninja.wait()
        go.unlink()
        return file, before, self.count.read()


def counted(done: int, total: int) -> Progress:
    return {"done": done, "total": total, "unit": ""}


def test_count_is_known_before_the_first_object_and_includes_earlier_extensions(tmp_path: Path) -> None:
    project = Project(tmp_path / "build")
    assert project.run(["amp_C.cpp"]) == ("amp_C.cpp", counted(0, 1), counted(1, 1))
    project.write("building 'apex.syncbn' extension\n")
    assert project.run(["a.cu", "b.cu", "c.cpp"]) == ("a.cu", counted(1, 4), counted(4, 4))


def test_log_has_the_count_once_a_command_has_finished(tmp_path: Path) -> None:
    project = Project(tmp_path / "build")
    project.write("[1/9] c++ -c a.cpp\n")
    assert project.count.read() == counted(1, 9)
    (project.folder / "build.ninja").write_text("build a: compile b\n")
    process = subprocess.Popen(["sleep", "60"], cwd=project.folder)
    try:
        assert project.count.begun(process.pid) == {}
        project.write("[9/9] c++ -c b.cpp\n")
        assert project.count.read() == counted(9, 9)
        assert project.count.begun(process.pid) == counted(9, 10)
    finally:
        process.kill()
        process.wait()


def test_programs_of_cmakes_checks_are_not_counted(tmp_path: Path) -> None:
    project = Project(tmp_path / "CMakeFiles" / "CMakeScratch" / "TryCompile-1")
    assert project.run(["testCCompiler.c"])[1] == {}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("[1/2] a\n[2/2] b\n[1/3] c\n", counted(3, 5)),
        ("[1/2] a\n[1/3] c\n", counted(1, 3)),
        ("[1/1] a\n[1/1] b\n[1/1] c\n", counted(3, 3)),
        ("[ 30%] Building\n", {"done": 30, "total": 100, "unit": "%"}),
        ("no count [1/2]\n[1/2] not ended", {}),
    ],
)
def test_counts_of_finished_runs_are_added(tmp_path: Path, lines: str, expected: Progress) -> None:
    log = tmp_path / "log"
    log.write_text(lines)
    assert LogCount(log).read() == expected


def test_count_starts_again_with_a_new_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("[1/2] a\n[2/2] b\n")
    count = LogCount(log)
    assert count.read() == counted(2, 2)
    log.write_text("[1/2] a\n")
    assert count.read() == counted(1, 2)


def test_samples_see_what_every_thread_started() -> None:
    """The child of a thread and its child, and no other process of this machine."""
    script = "import subprocess as s; s.Popen(['sleep', '60']); print(flush=True); input()"
    programs: list[subprocess.Popen[bytes]] = []
    is_ready, is_seen = Event(), Event()

    def start() -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", script]
        programs.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True))
        is_ready.set()
        is_seen.wait()

    Thread(target=start).start()
    assert is_ready.wait(60)
    try:
        assert programs[0].stdout is not None
        programs[0].stdout.readline()
        found = started()
        assert programs[0].pid in found
        assert sorted(found) == sorted(descendants())
    finally:
        is_seen.set()
        os.killpg(programs[0].pid, signal.SIGKILL)
        programs[0].communicate()
