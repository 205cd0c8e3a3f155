"""Run inside the environment that is probed: answer one question about it, as JSON.

The script knows nothing about the program that sends it and needs only Python 3.9. Everything that imports
code runs in a separate process, so that a crash loses only one answer.
"""

from __future__ import annotations

import ast
import ctypes
import fnmatch
import glob
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
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
TIMEOUT = 900  # seconds for one import: file systems of clusters can be slow
SYSTEM_LIBRARIES = ("/usr/lib64", "/lib64", "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu")
SBOM = "sboms/rocm-matrix.cdx.json"  # written into the wheels that matrix builds
OP_PROPERTY = "rocm-matrix:op"
SIZE = 256  # rows and columns of the matrices that a GPU multiplies


def main(arguments: list[str]) -> None:
    """Answer the question; in a child process, one part of it."""
    if arguments[0] == "--one":
        kind, value = json.loads(arguments[1])
        parts: dict[str, Callable[[Any], dict[str, Any]]]
        parts = {
            "torch": torch_part,
            "import": import_part,
            "object": object_part,
            "libraries": libraries_part,
        }
        print(MARK + json.dumps(parts[kind](value)), flush=True)
        os._exit(0)  # without torch's slow shutdown
    question = json.loads(arguments[0])
    reply = wheel_reply(question) if "distribution" in question else environment_reply(question)
    print(MARK + json.dumps(reply), flush=True)


def in_child(kind: str, value: object) -> dict[str, Any]:
    """Answer one part in a separate process."""
    command = [sys.executable, __file__, "--one", json.dumps([kind, value])]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return {"error": "timeout", "text": f"no answer within {TIMEOUT} s"}
    for line in reversed(done.stdout.decode(errors="replace").splitlines()):
        if line.startswith(MARK):
            reply: dict[str, Any] = json.loads(line[len(MARK) :])
            return reply
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    reason = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return {"error": reason, "text": lines[-1][:LONGEST] if lines else ""}


def failure(error: BaseException) -> dict[str, Any]:
    """Return the class and text of an error, and the module that was not found."""
    lines = str(error).strip().splitlines()
    missing = (getattr(error, "name", "") or "") if isinstance(error, ModuleNotFoundError) else ""
    return {"error": type(error).__name__, "text": (lines[0] if lines else "")[:LONGEST], "missing": missing}


# --- One installed wheel --------------------------------------------------------------------------------


def wheel_reply(question: dict[str, Any]) -> dict[str, Any]:
    """Import the modules and load the objects of a wheel; the keys are those of `WheelReply`."""
    files, metadata = installed(question["distribution"])
    lent = question["lent"]
    names = [name.partition(":") for name in question["attributes"]]
    modules = list(dict.fromkeys([*question["imports"], *(module for module, _, _ in names)]))
    attributes = {module: [what for owner, _, what in names if owner == module] for module in modules}
    objects = [
        (pattern, path)
        for pattern in question["objects"]
        for path in [file for name, file in sorted(files.items()) if fnmatch.fnmatchcase(name, pattern)]
        or [""]
    ]
    parts: list[tuple[str, Any]] = [("torch", {"lent": lent, "gpus": False})]
    parts += [("import", [module, attributes[module], lent]) for module in modules]
    parts += [("object", path) for _, path in objects if path]
    # Each imports torch, which takes most of the time.
    with ThreadPoolExecutor(min(AT_ONCE, len(os.sched_getaffinity(0)))) as pool:
        replies = pool.map(lambda part: in_child(*part), parts)
        return {
            "distribution": metadata,
            "torch": next(replies),
            "imports": [dict(next(replies), name=module) for module in modules],
            "objects": [
                dict(next(replies), name=pattern, file=path)
                if path
                else {"name": pattern, "error": "missing"}
                for pattern, path in objects
            ],
            "op_table": op_table(files, question["op_table"]),
        }


def installed(name: str) -> tuple[dict[str, str], dict[str, Any] | None]:
    """Return the files of an installed distribution by their names in the wheel, and its metadata."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return {}, None
    files = {str(file): str(distribution.locate_file(file)) for file in distribution.files or []}
    top = sorted({file.split("/")[0].split(".")[0] for file in files if file.endswith((".py", ".so"))})
    return files, {
        "name": distribution.metadata["Name"],
        "version": distribution.version,
        "top": top,
        "requires": distribution.requires or [],
    }


def import_part(value: tuple[str, list[str], str]) -> dict[str, Any]:
    """Import a module; return attributes of it as text, and the lent distributions that it used."""
    name, attributes, lent = value
    try:
        if is_extension(name):
            import_torch()
        module = importlib.import_module(name)
        values = {attribute: str(getattr(module, attribute)) for attribute in attributes}
    except BaseException as error:
        return dict(failure(error), borrowed=borrowed(lent))
    return {"file": getattr(module, "__file__", None) or "", "values": values, "borrowed": borrowed(lent)}


def is_extension(name: str) -> bool:
    """Return whether a module is a shared object. Such a module needs the libraries that torch loads."""
    spec = importlib.util.find_spec(name)
    return spec is not None and isinstance(spec.loader, importlib.machinery.ExtensionFileLoader)


def import_torch() -> None:
    """Import torch if it is installed."""
    try:
        import torch  # noqa: F401  loads the libraries that the object needs
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise


def borrowed(lent: str) -> list[str]:
    """Return the distributions of a directory from which this process has imported something."""
    if not lent:
        return []
    root = os.path.realpath(lent) + os.sep
    real = cache(os.path.realpath)  # of a folder: torch alone has a thousand modules in a few
    used = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file:
            folder, _, name = file.rpartition("/")
            path = f"{real(folder)}/{name}"
            if path.startswith(root):
                used.add(path.removeprefix(root))
    return sorted(
        distribution.metadata["Name"]
        for distribution in importlib.metadata.distributions(path=[lent])
        if any(str(file) in used for file in distribution.files or [])
    )


def object_part(path: str) -> dict[str, Any]:
    """Load a shared object after torch: a Python module by importing it, any other library by its path."""
    try:
        import_torch()
        if any(path.endswith(end) and end != ".so" for end in importlib.machinery.EXTENSION_SUFFIXES):
            loader = importlib.machinery.ExtensionFileLoader(Path(path).name.split(".")[0], path)
            spec = importlib.util.spec_from_loader(loader.name, loader)
            if spec is None:
                return {"error": "ImportError", "text": "Python does not accept it as a module"}
            loader.exec_module(importlib.util.module_from_spec(spec))
        else:
            ctypes.CDLL(path)
    except BaseException as error:
        return failure(error)
    return {}


def op_table(files: dict[str, str], name: str) -> dict[str, Any] | None:
    """Read the ops that a build recorded, without executing the file."""
    if not name:
        return None
    if name not in files:
        return {"error": "missing", "text": name}
    try:
        tree = ast.parse(Path(files[name]).read_text(encoding="utf-8"))
        values = {}
        for line in tree.body:
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                values[line.targets[0].id] = ast.literal_eval(line.value)
        return {
            "installed": {str(op): bool(compiled) for op, compiled in values["installed_ops"].items()},
            "accelerator": str(values.get("accelerator_name", "")),
            "torch": str(values.get("torch_info", {}).get("version", "")),
        }
    except (OSError, ValueError, SyntaxError, KeyError, AttributeError) as error:
        return failure(error)


# --- torch ----------------------------------------------------------------------------------------------


def torch_part(value: dict[str, Any]) -> dict[str, Any]:
    """Return torch's version and what it is built for; let each GPU multiply two matrices if requested."""
    lent = value["lent"]
    try:
        import torch
    except BaseException as error:
        return dict(failure(error), borrowed=borrowed(lent))
    return {
        "version": torch.__version__,
        "hip": getattr(torch.version, "hip", None) or "",
        "cuda": getattr(torch.version, "cuda", None) or "",
        "gpus": [test_gpu(torch, number) for number in range(torch.cuda.device_count())]
        if value["gpus"]
        else [],
        "borrowed": borrowed(lent),
    }


def test_gpu(torch: Any, number: int) -> dict[str, str]:  # noqa: ANN401  a module
    """Multiply two matrices on a GPU and compare the product with the CPU's."""
    gpu = {"name": "", "arch": "", "error": ""}
    try:
        properties = torch.cuda.get_device_properties(number)
        gpu.update(name=properties.name, arch=str(getattr(properties, "gcnArchName", "")))
        left, right = torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE)
        product = (left.to(f"cuda:{number}") @ right.to(f"cuda:{number}")).cpu()
        if not torch.allclose(product, left @ right, rtol=1e-3, atol=1e-3):
            gpu["error"] = "the product of two matrices is wrong"
    except BaseException as error:
        gpu["error"] = f"{type(error).__name__}: {error}"[:LONGEST]
    return gpu


# --- A whole environment --------------------------------------------------------------------------------


def environment_reply(question: dict[str, Any]) -> dict[str, Any]:
    """Return installed distributions and loaded libraries; the keys are those of `EnvironmentReply`."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "distributions": distributions(),
        "pip_check": pip_check(),
        "user_site": user_site(),
        "system_libstdcxx": newest_symbols(system_library("libstdc++.so.6")),
        "libraries": in_child("libraries", question["modules"]),
        "torch": in_child("torch", {"lent": "", "gpus": True}),
    }


def distributions() -> list[dict[str, Any]]:
    """Return every distribution on the path, in the order of the path."""
    return [
        {
            "name": distribution.metadata["Name"],
            "version": distribution.version,
            "path": str(distribution.locate_file("")),
            "ops": recorded_ops(distribution),
        }
        for distribution in importlib.metadata.distributions()
        if distribution.metadata["Name"]
    ]


def recorded_ops(distribution: importlib.metadata.Distribution) -> list[str]:
    """Return the ops that the wheel was built with, as its bill of materials says; empty without one."""
    try:
        document = json.loads(distribution.read_text(SBOM) or "{}")
        listed = [row for formula in document["formulation"] for row in formula.get("properties", [])]
        return [str(row["value"]) for row in listed if row["name"] == OP_PROPERTY]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def pip_check() -> dict[str, Any]:
    """Return the result of ``pip check``; its exit code is None without pip."""
    if importlib.util.find_spec("pip") is None:
        return {"code": None, "lines": []}
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return {"code": None, "lines": []}
    return {"code": done.returncode, "lines": done.stdout.splitlines()}


def user_site() -> dict[str, Any]:
    """Return whether this Python ignores the user's own packages by itself, and why."""
    settings = Path(sys.prefix, "pyvenv.cfg")
    ignored = ""
    if settings.is_file() and re.search(r"(?m)^include-system-site-packages *= *false", settings.read_text()):
        ignored = "it is a virtual environment"
    for script in sorted(glob.glob("/.singularity.d/env/*.sh")):
        if re.search(r"(?m)^[^#\n]*PYTHONNOUSERSITE=[\"']?\w", Path(script).read_text(errors="replace")):
            ignored = "the image sets PYTHONNOUSERSITE"
    return {"ignored": ignored, "minor": f"{sys.version_info[0]}.{sys.version_info[1]}"}


def system_library(name: str) -> str:
    """Return the path of a library of the system, not of Python's environment."""
    for folder in SYSTEM_LIBRARIES:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return os.path.realpath(path)
    return ""


def newest_symbols(path: str) -> dict[str, str]:
    """Return the newest GLIBCXX version that a libstdc++ defines."""
    if not path:
        return {"path": "", "glibcxx": ""}
    matches = re.findall(rb"GLIBCXX_(\d+(?:\.\d+)+)\0", Path(path).read_bytes())
    versions = sorted([int(part) for part in match.split(b".")] for match in matches)
    return {"path": path, "glibcxx": ".".join(map(str, versions[-1])) if versions else ""}


def libraries_part(modules: list[str]) -> dict[str, Any]:
    """Import modules in turn, as a program does; return every shared object that is mapped then."""
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
    libstdcxx = [path for path in sorted(paths) if os.path.basename(path).startswith("libstdc++.so")]
    return {
        "objects": sorted(paths),
        "errors": errors,
        "libstdcxx": [newest_symbols(path) for path in libstdcxx if os.path.exists(path)],
    }


if __name__ == "__main__":
    main(sys.argv[1:])
