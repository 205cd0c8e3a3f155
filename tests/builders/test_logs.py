"""Logs are searched in linear time; the lines that explain a failure are found in them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from builders.diagnosis import read_log
from builders.storage.logs import error_lines

FATAL = "foo.cpp:3:10: fatal error: x.h: No such file or directory"


@pytest.mark.parametrize(
    "error",
    [
        FATAL,
        "/usr/bin/ld: cannot find -lamdhip64",
        "a.o: undefined reference to `c10::Error::what()'",
        "ModuleNotFoundError: No module named 'torch'",
        "CMake Error at CMakeLists.txt:6 (find_path):",
        'Could not find a package configuration file provided by "hip" with any of',
        "g++: fatal error: Killed signal terminated program cc1plus",
        "error: command '/usr/bin/g++' failed with exit code 1",
    ],
)
def test_error_lines_finds_error(tmp_path: Path, error: str) -> None:
    log = tmp_path / "log"
    noise = [f"[{n}/99] g++ -Werror -Wno-error=x -DNAME=error_code -c {n}.cpp" for n in range(99)]
    log.write_text("\n".join([*noise, error, *noise, "ninja: build stopped: subcommand failed."]))
    assert error_lines(log) == [error]


def test_error_lines_prefers_first_errors(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"{FATAL}\n{FATAL}\n" + "".join(f"b.cpp:{n}: error: follows\n" for n in range(50)))
    chosen = error_lines(log, most=4)
    assert chosen == [FATAL, *(f"b.cpp:{n}: error: follows" for n in range(3))]


def test_error_lines_ignores_file_names(tmp_path: Path) -> None:
    """Setuptools prints every module that it copies, ninja every file that it compiles."""
    log = tmp_path / "log"
    modules = [f"copying tiny/m{n}/exceptions.py -> build/lib/tiny/m{n}" for n in range(9)]
    objects = [f"[{n}/9] g++ -c src/m{n}/error.cpp -o build/m{n}/error.o" for n in range(9)]
    log.write_text("\n".join([*modules, *objects, FATAL, "ninja: build stopped: subcommand failed."]))
    assert FATAL in error_lines(log)


def test_error_lines_without_error_returns_last_lines_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\n".join(b"line %d" % n for n in range(50)) + b"\n\n" + b"x" * 5000 + b"\xff\n")
    chosen = error_lines(log, most=3)
    assert chosen[:2] == ["line 48", "line 49"]
    assert chosen[2].startswith("xxx")
    assert len(chosen[2]) <= 300


def test_error_lines_start_at_the_given_byte(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("error: of an earlier program\n")
    start = log.stat().st_size
    with log.open("a") as sink:
        sink.write("all is well\n")
    assert error_lines(log, start=start) == ["all is well"]


HOSTILE = {
    "one word": b"a",
    "nested repeats": b"error: C10_WARP_SIZE ",
    "many beginnings": b"lib.so",
    "many ends": b": cannot open shared object file",
    "carriage returns": b"not found\r",
    "colours": b"\x1b[0;1;31merror: ",
    "empty lines": b"\n",
    "short lines": b"error: note:\n",
    "files": b"x.cpp:1: error: ",
    "quotes": b"fatal: clone of ' into submodule path '",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_time_for_hostile_log_is_linear(text: bytes, tmp_path: Path) -> None:
    """Expressions that backtrack would take minutes to years for each of these lines of 2 MiB."""
    log = tmp_path / "log"
    log.write_bytes((text * (2**21 // len(text) + 1))[: 2**21])
    start = time.process_time()
    read_log(log)
    error_lines(log)
    assert time.process_time() - start < 5
