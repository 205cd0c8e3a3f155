"""Real C++ extensions of torch with several source files, and their catalog rows."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.support.projects import rows_of, write_sdist

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
_COMPILED = re.compile(r"-o \S*/(?P<object>\w+)\.o\b")


def write_extension(
    name: str, cache: Path, *, parts: int, header: str = "c10/core/ScalarType.h"
) -> dict[str, dict[str, object]]:
    """Write the sdist of an extension into a cache; return its catalog rows.

    Parameters
    ----------
    cache
        The directory ``matrix`` in a cache.
    parts
        Number of source files that include a header of torch.
    header
        The header, which determines how long a source file takes to compile.
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
    return rows_of(
        name,
        write_sdist(cache, name, files),
        ["setuptools", "wheel", "torch", "ninja"],
        match_runtime=["torch"],
        must_contain=[f"{name}/_native*.so"],
        imports=[name],
        memory_per_job=0.5,
    )


def compilations(log: str) -> Counter[str]:
    """Return how often ninja built each object, according to its output (``-v``) in a log."""
    lines = (line for line in log.splitlines() if re.match(r"\[\d+/\d+\] ", line))
    return Counter(match["object"] for line in lines for match in _COMPILED.finditer(line))
