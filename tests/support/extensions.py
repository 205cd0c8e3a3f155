"""Real C++ extensions of torch with several sources, and the catalog rows for them."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections import Counter
from pathlib import Path

TORCH = "2.13.0"
_SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
sources = ["module.cpp", *(f"part{{number}}.cpp" for number in range({parts}))]
setup(
    name="{name}",
    version="1.0",
    packages=["{name}"],
    ext_modules=[CppExtension("{name}._native", sources)],
    cmdclass={{"build_ext": BuildExtension}},
)
"""
_PART = """
#include <{header}>
#include <string>
#include <cstddef>
std::size_t part{number}() {{
    static std::size_t total = 0;
    for (auto type : {{c10::ScalarType::Float, c10::ScalarType::Long}})
        total += c10::elementSize(type) + {number};
    return total;
}}
"""
_MODULE = """
#include <Python.h>
#include <cstddef>
{declarations}
static PyObject *answer(PyObject *, PyObject *) {{ return PyLong_FromSize_t({sum}); }}
static PyMethodDef methods[] = {{{{"answer", answer, METH_NOARGS, ""}}, {{nullptr, nullptr, 0, nullptr}}}};
static PyModuleDef module = {{PyModuleDef_HEAD_INIT, "_native", nullptr, -1, methods}};
PyMODINIT_FUNC PyInit__native() {{ return PyModule_Create(&module); }}
"""
_ROWS = """
[[package]]
name = "{name}"
title = "an extension of the tests"
import-name = "{name}"
status = "observed"
source = "tests"
[[release]]
package = "{name}"
version = "1.0"
sdist = {{ file = "{name}-1.0.tar.gz", sha256 = "{sha256}" }}
backend = ["cpu"]
status = "observed"
source = "tests"
[[recipe]]
package = "{name}"
backend = "cpu"
undeclared = ["setuptools", "wheel", "torch", "ninja"]
match-runtime = ["torch"]
must-contain = ["{name}/_native*.so"]
imports = ["{name}"]
memory-per-job = 0.5
status = "observed"
source = "tests"
"""
_COMPILED = re.compile(r"-o \S*/(?P<object>\w+)\.o\b")


def write_extension(name: str, cache: Path, *, parts: int, header: str = "c10/core/ScalarType.h") -> str:
    """Write the sdist of an extension into a cache; return its catalog rows.

    Parameters
    ----------
    cache
        The directory ``matrix`` in a cache.
    parts
        Number of sources that include a header of torch.
    header
        That header; it decides how long a source compiles.
    """
    numbers = range(parts)
    files = {
        "setup.py": _SETUP.format(name=name, parts=parts),
        f"{name}/__init__.py": "import torch\n\nfrom ._native import answer\n",
        "module.cpp": _MODULE.format(
            declarations="\n".join(f"std::size_t part{number}();" for number in numbers),
            sum=" + ".join(f"part{number}()" for number in numbers),
        ),
        **{f"part{number}.cpp": _PART.format(header=header, number=number) for number in numbers},
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for member, text in files.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{member}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    sdist = cache / "sources" / digest[:16] / f"{name}-1.0.tar.gz"
    sdist.parent.mkdir(parents=True, exist_ok=True)
    sdist.write_bytes(buffer.getvalue())
    return _ROWS.format(name=name, sha256=digest)


def write_catalog(directory: Path, rows: list[str]) -> None:
    """Write catalog rows into a directory for ``--catalog``."""
    directory.mkdir()
    (directory / "extensions.toml").write_text("schema = 1\n" + "".join(rows))


def compilations(log: str) -> Counter[str]:
    """Return how often ninja finished each object, as its output with ``-v`` in a log shows."""
    lines = (line for line in log.splitlines() if re.match(r"\[\d+/\d+\] ", line))
    return Counter(match["object"] for line in lines for match in _COMPILED.finditer(line))
