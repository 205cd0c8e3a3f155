"""Runs inside the environment that is verified: says what is in it and what loads, as JSON.

It knows nothing of the program that sends it and needs nothing but Python 3.9. What loads code is asked in
processes of their own, so that one crash does not silence the rest.
"""

from __future__ import annotations

import glob
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "rocm-matrix-verify: "
LONGEST = 600  # characters of an error that are kept
PATIENCE = 900  # seconds that one question may take: file systems of clusters can be slow
SYSTEM_LIBRARIES = ("/usr/lib64", "/lib64", "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu")
SIZE = 256  # rows and columns of the matrices that a GPU multiplies


def main(arguments: list[str]) -> None:
    """Answer all questions, or one of them in a child process."""
    if arguments[0] == "--one":
        kind, value = json.loads(arguments[1])
        questions: dict[str, Callable[[Any], dict[str, Any]]] = {"loaded": loaded, "gpu": gpu}
        print(MARK + json.dumps(questions[kind](value)), flush=True)
        return
    asked = json.loads(arguments[0])
    answer = {
        "schema": 1,
        "python": platform.python_version(),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "distributions": distributions(),
        "pip_check": pip_check(),
        "user_site": user_site(),
        "system_libstdcxx": newest_symbols(system_library("libstdc++.so.6")),
        "loaded": in_child("loaded", asked["modules"]),
        "gpu": in_child("gpu", ""),
    }
    print(MARK + json.dumps(answer), flush=True)


def distributions() -> list[dict[str, str]]:
    """Give every distribution on the path, in the order in which it is looked up."""
    found = []
    for one in importlib.metadata.distributions():
        name = one.metadata["Name"]
        if name:
            found.append({"name": name, "version": one.version, "path": str(one.locate_file(""))})
    return found


def pip_check() -> dict[str, Any]:
    """Give what ``pip check`` says; its exit code is None where there is no pip."""
    if importlib.util.find_spec("pip") is None:
        return {"code": None, "lines": []}
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return {"code": None, "lines": []}
    return {"code": done.returncode, "lines": done.stdout.splitlines()}


def user_site() -> dict[str, Any]:
    """Say whether this Python would look into the user's own packages if nobody told it not to."""
    settings = Path(sys.prefix, "pyvenv.cfg")
    shut = ""
    if settings.is_file() and re.search(r"(?m)^include-system-site-packages *= *false", settings.read_text()):
        shut = "it is a virtual environment"
    for script in sorted(glob.glob("/.singularity.d/env/*.sh")):
        if re.search(r"(?m)^[^#\n]*PYTHONNOUSERSITE=[\"']?\w", Path(script).read_text(errors="replace")):
            shut = "the image sets PYTHONNOUSERSITE"
    return {"shut": shut, "minor": f"{sys.version_info[0]}.{sys.version_info[1]}"}


def system_library(name: str) -> str:
    """Find a library where the system, and not Python's environment, has it."""
    for folder in SYSTEM_LIBRARIES:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return os.path.realpath(path)
    return ""


def newest_symbols(path: str) -> dict[str, str]:
    """Give the newest GLIBCXX version that a libstdc++ defines."""
    if not path:
        return {"path": "", "glibcxx": ""}
    found = re.findall(rb"GLIBCXX_(\d+(?:\.\d+)+)\0", Path(path).read_bytes())
    versions = sorted([int(part) for part in one.split(b".")] for one in found)
    return {"path": path, "glibcxx": ".".join(map(str, versions[-1])) if versions else ""}


def loaded(modules: list[str]) -> dict[str, Any]:
    """Import modules in turn, as a program does, and give every shared object that is mapped then."""
    errors = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:
            errors[name] = f"{type(error).__name__}: {error}"[:LONGEST]
    paths = set()
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.partition("/")[2].rstrip("\n")
            if ".so" in path:
                paths.add("/" + path)
    real = [path for path in sorted(paths) if os.path.basename(path).startswith("libstdc++.so")]
    return {
        "objects": sorted(paths),
        "errors": errors,
        "libstdcxx": [newest_symbols(path) for path in real if os.path.exists(path)],
    }


def gpu(_: object) -> dict[str, Any]:
    """Say what torch is for and which GPUs it sees, and let each multiply two matrices."""
    import torch

    answer: dict[str, Any] = {
        "torch": torch.__version__,
        "hip": torch.version.hip or "",
        "cuda": torch.version.cuda or "",
        "gpus": [],
    }
    for number in range(torch.cuda.device_count()):
        one: dict[str, str] = {"name": "", "arch": "", "error": ""}
        answer["gpus"].append(one)
        try:
            said = torch.cuda.get_device_properties(number)
            one.update(name=said.name, arch=str(getattr(said, "gcnArchName", "")))
            left, right = torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE)
            made = (left.to(f"cuda:{number}") @ right.to(f"cuda:{number}")).cpu()
            if not torch.allclose(made, left @ right, rtol=1e-3, atol=1e-3):
                one["error"] = "the product of two matrices is wrong"
        except BaseException as error:
            one["error"] = f"{type(error).__name__}: {error}"[:LONGEST]
    return answer


def in_child(kind: str, value: object) -> dict[str, Any]:
    """Ask one question in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps([kind, value])]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer within {PATIENCE} s"}
    for line in reversed(done.stdout.decode(errors="replace").splitlines()):
        if line.startswith(MARK):
            answer: dict[str, Any] = json.loads(line[len(MARK) :])
            return answer
    said = done.stderr.decode(errors="replace").strip().splitlines()
    reason = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return {"failed": ": ".join([reason, *said[-1:]])[:LONGEST]}


if __name__ == "__main__":
    main(sys.argv[1:])
