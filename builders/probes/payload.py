"""Runs inside the environment that is probed: answers what was asked about an installed wheel, as JSON.

It knows nothing of the program that sends it and needs nothing but Python 3.9. Each question that loads
code is asked in a process of its own, so that one crash does not silence the others.
"""

from __future__ import annotations

import ast
import ctypes
import fnmatch
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "rocm-matrix-probe: "
LONGEST = 600  # characters of an error that are kept
AT_ONCE = 4  # processes; each that imports torch takes half a gigabyte
PATIENCE = 900  # seconds that one import may take: file systems of clusters can be slow


def main(arguments: list[str]) -> None:
    """Answer all questions, or one of them in a child process."""
    if arguments[0] == "--one":
        kind, value = json.loads(arguments[1])
        answers: dict[str, Callable[[Any], dict[str, Any]]]
        answers = {"torch": torch_says, "import": import_says, "object": object_says}
        print(MARK + json.dumps(answers[kind](value)), flush=True)
        os._exit(0)  # it has said all; what torch takes down at the end takes time
    asked = json.loads(arguments[0])
    print(MARK + json.dumps(everything(asked)), flush=True)


def everything(asked: dict[str, Any]) -> dict[str, Any]:
    """Answer all questions; the keys are those of builders.probes.Answer."""
    files, distribution = installed(asked["distribution"])
    lent = asked["lent"]
    names = [name.partition(":") for name in asked["attributes"]]
    modules = list(dict.fromkeys([*asked["imports"], *(module for module, _, _ in names)]))
    found = [
        (glob, path)
        for glob in asked["objects"]
        for path in [one for name, one in sorted(files.items()) if fnmatch.fnmatchcase(name, glob)] or [""]
    ]
    wanted = {module: [what for owner, _, what in names if owner == module] for module in modules}
    questions: list[tuple[str, Any]] = [("torch", lent)]
    questions += [("import", [module, wanted[module], lent]) for module in modules]
    questions += [("object", path) for _, path in found if path]
    # Each imports torch, which takes most of the time.
    with ThreadPoolExecutor(min(AT_ONCE, len(os.sched_getaffinity(0)))) as several:
        told = several.map(lambda question: in_child(*question), questions)
        torch = next(told)
        imports = [dict(next(told), name=module) for module in modules]
        objects = [
            dict(next(told), name=glob, file=path)
            if path
            else {"name": glob, "error": "missing", "text": "", "file": ""}
            for glob, path in found
        ]
    return {
        "schema": 1,
        "python": platform.python_version(),
        "distribution": distribution,
        "torch": torch,
        "imports": imports,
        "objects": objects,
        "op_table": op_table(files, asked["op_table"]),
    }


def installed(name: str) -> tuple[dict[str, str], dict[str, Any] | None]:
    """Give the files of an installed distribution by their name in the wheel, and what it says of itself."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return {}, None
    files = {str(one): str(found.locate_file(one)) for one in found.files or []}
    top = sorted({one.split("/")[0].split(".")[0] for one in files if one.endswith((".py", ".so"))})
    return files, {
        "name": found.metadata["Name"],
        "version": found.version,
        "top": top,
        "requires": found.requires or [],
    }


def in_child(kind: str, value: object) -> dict[str, Any]:
    """Ask one question in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps([kind, value])]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return {"error": "timeout", "text": f"no answer within {PATIENCE} s"}
    for line in reversed(done.stdout.decode(errors="replace").splitlines()):
        if line.startswith(MARK):
            answer: dict[str, Any] = json.loads(line[len(MARK) :])
            return answer
    said = done.stderr.decode(errors="replace").strip().splitlines()
    reason = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return {"error": reason, "text": said[-1][:LONGEST] if said else ""}


def torch_says(lent: str) -> dict[str, Any]:
    """Give version, HIP version and visible GPUs of torch, and what it took of what is lent."""
    try:
        import torch
    except BaseException as error:
        return dict(failure(error), borrowed=borrowed(lent))
    return {
        "version": torch.__version__,
        "hip": torch.version.hip or "",
        "gpus": torch.cuda.device_count(),
        "borrowed": borrowed(lent),
    }


def import_says(value: tuple[str, list[str], str]) -> dict[str, Any]:
    """Import a module; give attributes of it as text, and what it took of the packages that are only lent."""
    name, attributes, lent = value
    try:
        if is_extension(name):
            import_torch()
        module = importlib.import_module(name)
        values = {one: str(getattr(module, one)) for one in attributes}
    except BaseException as error:
        return dict(failure(error), borrowed=borrowed(lent))
    return {"file": getattr(module, "__file__", None) or "", "values": values, "borrowed": borrowed(lent)}


def is_extension(name: str) -> bool:
    """Tell whether a module is a shared object itself, which finds torch's libraries only after torch."""
    spec = importlib.util.find_spec(name)
    return spec is not None and isinstance(spec.loader, importlib.machinery.ExtensionFileLoader)


def import_torch() -> None:
    """Import torch where it is installed; where it is not, nothing needs it."""
    try:
        import torch  # noqa: F401  its libraries are what the object needs
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise


def borrowed(lent: str) -> list[str]:
    """Give the distributions of a directory of which this process has imported something."""
    if not lent:
        return []
    root = os.path.realpath(lent) + os.sep
    real = cache(os.path.realpath)  # of a folder: torch alone has a thousand modules in a few
    used = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file:
            folder, _, name = file.rpartition("/")
            whole = f"{real(folder)}/{name}"
            if whole.startswith(root):
                used.add(whole.removeprefix(root))
    return sorted(
        one.metadata["Name"]
        for one in importlib.metadata.distributions(path=[lent])
        if any(str(file) in used for file in one.files or [])
    )


def object_says(path: str) -> dict[str, Any]:
    """Load a shared object beside torch: a module of Python as such, another library by its path."""
    try:
        import_torch()
        if any(path.endswith(one) and one != ".so" for one in importlib.machinery.EXTENSION_SUFFIXES):
            loader = importlib.machinery.ExtensionFileLoader(Path(path).name.split(".")[0], path)
            spec = importlib.util.spec_from_loader(loader.name, loader)
            if spec is None:
                return {"error": "ImportError", "text": "Python does not take it for a module"}
            loader.exec_module(importlib.util.module_from_spec(spec))
        else:
            ctypes.CDLL(path)
    except BaseException as error:
        return failure(error)
    return {}


def failure(error: BaseException) -> dict[str, Any]:
    """Give class and text of an error, and the module that was not found if that was it."""
    lines = str(error).strip().splitlines()
    missing = (getattr(error, "name", "") or "") if isinstance(error, ModuleNotFoundError) else ""
    return {"error": type(error).__name__, "text": (lines[0] if lines else "")[:LONGEST], "missing": missing}


def op_table(files: dict[str, str], name: str) -> dict[str, Any] | None:
    """Read what a build wrote down of its ops, without running it."""
    if not name:
        return None
    if name not in files:
        return {"error": "missing", "text": name}
    try:
        tree = ast.parse(Path(files[name]).read_text(encoding="utf-8"))
        found = {}
        for line in tree.body:
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                found[line.targets[0].id] = ast.literal_eval(line.value)
        return {
            "installed": {str(one): bool(there) for one, there in found["installed_ops"].items()},
            "accelerator": str(found.get("accelerator_name", "")),
            "torch": str(found.get("torch_info", {}).get("version", "")),
        }
    except (OSError, ValueError, SyntaxError, KeyError, AttributeError) as error:
        return failure(error)


if __name__ == "__main__":
    main(sys.argv[1:])
