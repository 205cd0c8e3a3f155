"""Run the examples of the pages, and write their output into the pages; ``--check`` only compares.

An example is a fenced block that begins with ```` ```console run ````; `head=N` keeps the first N lines of
each output. The examples of one page run in one empty directory, without package indexes, so that the
output depends on the catalog and the program only. Arguments name pages; the default is all pages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = HERE.parent
_BLOCK = re.compile(r"(?ms)^```console run(?: head=(\d+))?\n(.*?)^```$")
_COMMAND = re.compile(r"(?m)^\$ (.*(?:\\\n.*)*)$")
_PROGRESS = re.compile(r"(?m)^ +\d+\.\d s  .*\n")
_TIME = re.compile(r"\d+(?:\.\d+)? (?:s|min|h|GiB|cores?)\b|\b[0-9a-f]{8,}\b")
_SHOWN = "/home/me/work"
_LONGEST = 120
"""Seconds that a command may take."""


def pages() -> list[Path]:
    """Return the pages that have examples."""
    files = [PROJECT / "README.md", *sorted(HERE.rglob("*.md"))]
    return [page for page in files if _BLOCK.search(page.read_text(encoding="utf-8"))]


def updated(page: str) -> str:
    """Return a page with the current output of its examples."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve() / "work"
        work.mkdir()
        return _BLOCK.sub(lambda block: _run_block(block, work), page)


def same(page: str, other: str) -> bool:
    """Return whether two texts of a page differ at most in times, memory, cores and hashes."""
    return _TIME.sub("*", page) == _TIME.sub("*", other)


def _run_block(block: re.Match[str], work: Path) -> str:
    head = int(block[1]) if block[1] else None
    shown = [f"$ {command}\n{_output(command, work, head)}" for command in _COMMAND.findall(block[2])]
    first_line = block[0].partition("\n")[0]
    return "\n".join([first_line, "\n".join(text.rstrip("\n") for text in shown), "```"])


def _output(command: str, work: Path, head: int | None) -> str:
    bin_directory = work.parent / "bin"
    bin_directory.mkdir(exist_ok=True)
    program = bin_directory / "matrix"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m matrix "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    env = {
        "PATH": f"{bin_directory}:{os.environ['PATH']}",
        "PYTHONPATH": str(PROJECT),
        "PYTHONUNBUFFERED": "1",
        "HOME": str(work.parent),
        "XDG_CACHE_HOME": str(work.parent / "cache"),
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "LANG": "C.UTF-8",
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
    }
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=work,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=_LONGEST,
        check=False,
    )
    text = _PROGRESS.sub("", done.stdout).replace(str(work), _SHOWN).strip("\n")
    lines = [line.rstrip() for line in text.splitlines()]
    if head is not None and len(lines) > head:
        lines = [*lines[:head], "..."]
    return "\n".join(lines)


def main() -> int:
    """Write the pages, or with ``--check`` list those whose output differs."""
    files = [Path(name).resolve() for name in sys.argv[1:] if name != "--check"]
    stale = 0
    for page in files or pages():
        old = page.read_text(encoding="utf-8")
        new = updated(old)
        if same(old, new):
            continue
        stale += 1
        if "--check" in sys.argv:
            print(f"{page.name}: the output of an example has changed; run: nox -s examples")
        else:
            page.write_text(new, encoding="utf-8")
    return int(stale > 0 and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
