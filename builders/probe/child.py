"""Run in a child process of the probe: import installed code, and answer when the judging process asks.

`payload.py` starts this program for each import, so it imports no more than it needs.
"""

from __future__ import annotations

import _socket
import importlib
import importlib.machinery
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST = 600  # characters of an error that are kept
AT_START = frozenset(sys.modules)  # those of start files, such as setuptools', are no requirement of a wheel
SIZE = 256  # rows and columns of the matrices that a GPU multiplies


def inner(kind: str, value: str, address: str) -> None:
    """Answer one part in a child, after the outer process has inspected the child."""
    reply = json.dumps(globals()[f"{kind}_part"](json.loads(value)))
    connection = _socket.socket(_socket.AF_UNIX)  # without the enumerations of `socket`: a fifth of the start
    connection.connect("\0" + address)
    connection.sendall(connection.recv(64) + reply.encode())
    os._exit(0)  # without torch's slow shutdown


def torch_part(value: dict[str, Any]) -> dict[str, Any]:
    """Return the versions of torch, HIP and CUDA; multiply two matrices on each GPU if requested."""
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


def jax_part(_: None) -> dict[str, Any]:
    """Return the version of JAX and the GPUs that it finds; if it finds none, its reason and last remark."""
    import io
    import logging

    remarks = io.StringIO()
    logging.getLogger().addHandler(logging.StreamHandler(remarks))
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others may use the GPUs as well
    try:
        import jax
    except BaseException as error:
        return failure(error)
    gpus, reason = [], ""
    try:
        gpus = [test_gpu_of_jax(jax, device) for device in jax.devices("rocm")]
    except BaseException as error:
        last = remarks.getvalue().strip().splitlines()[-1:]
        reason = f"{failure(error)['text']} {' '.join(f'({line})' for line in last)}".strip()[:LONGEST]
    return {"version": jax.__version__, "gpus": gpus, "no_gpu": reason}


def test_gpu_of_jax(jax: Any, device: Any) -> dict[str, str]:  # noqa: ANN401  a module, and an object of it
    """Multiply two matrices on a device of JAX and compare the product with the CPU's, of numpy."""
    gpu = {"name": "", "arch": "", "error": ""}
    try:
        import numpy

        gpu.update(name=device.device_kind, arch=str(getattr(device, "compute_capability", "")))
        left, right = numpy.random.default_rng(0).random((2, SIZE, SIZE), dtype=numpy.float32)
        product = jax.device_put(left, device) @ jax.device_put(right, device)
        if product.devices() != {device}:
            gpu["error"] = "JAX multiplied two matrices on another device"
        elif not numpy.allclose(numpy.asarray(product), left @ right, rtol=1e-3, atol=1e-3):
            gpu["error"] = "the product of two matrices is wrong"
    except BaseException as error:
        gpu["error"] = f"{type(error).__name__}: {error}"[:LONGEST]
    return gpu


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
    from importlib.util import find_spec

    spec = find_spec(name)
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
    from functools import cache

    root = os.path.realpath(lent) + os.sep
    real = cache(os.path.realpath)  # of a folder: torch has a thousand modules in a few folders
    used = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name not in AT_START:
            folder, _, base = file.rpartition("/")
            path = f"{real(folder)}/{base}"
            if path.startswith(root):
                used.add(path.removeprefix(root))
    if not used:
        return []
    from importlib.metadata import distributions  # slow to import

    return sorted(
        distribution.metadata["Name"]
        for distribution in distributions(path=[lent])
        if any(str(file) in used for file in distribution.files or [])
    )


def object_part(path: str) -> dict[str, Any]:
    """Load a shared object after torch: a Python module by importing it, any other library by its path."""
    import ctypes
    import importlib.util

    try:
        import_torch()
        if any(path.endswith(end) and end != ".so" for end in importlib.machinery.EXTENSION_SUFFIXES):
            loader = importlib.machinery.ExtensionFileLoader(os.path.basename(path).split(".")[0], path)
            spec = importlib.util.spec_from_loader(loader.name, loader)
            if spec is None:
                return {"error": "ImportError", "text": "Python does not accept it as a module"}
            loader.exec_module(importlib.util.module_from_spec(spec))
        else:
            ctypes.CDLL(path)
    except BaseException as error:
        return failure(error)
    return {}


def libraries_part(modules: list[str]) -> dict[str, Any]:
    """Import modules in turn, as a program does; those that fail are left out."""
    from contextlib import suppress

    for name in modules:
        with suppress(BaseException):
            importlib.import_module(name)
    return {}


def failure(error: BaseException) -> dict[str, Any]:
    """Return the class and text of an error, and the module that was not found."""
    lines = str(error).strip().splitlines()
    missing = (getattr(error, "name", "") or "") if isinstance(error, ModuleNotFoundError) else ""
    return {"error": type(error).__name__, "text": (lines[0] if lines else "")[:LONGEST], "missing": missing}


def plugin_part(value: list[Any]) -> dict[str, Any]:
    """Import modules in turn, and load a network plugin as RCCL does."""
    import ctypes

    modules, path = value
    libraries_part(modules)
    try:
        ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        return {"error": str(error)[:LONGEST]}
    return {}
