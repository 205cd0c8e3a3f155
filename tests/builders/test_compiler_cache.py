"""The compiler cache: real builds of a small C++ extension with the real ccache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.building.inputs import Limits
from builders.building.plan import Task, local_build_host
from builders.building.task import build_wheel
from builders.containers.sandbox import sandbox
from builders.index import Index
from builders.machine import host
from builders.machine.host import find_compiler_cache
from builders.storage.files import cache_root
from resolver.errors import UsageError
from resolver.facts.schema import Recipe, Sdist
from tests.support.locks import built_pick
from tests.support.projects import write_sdist
from tests.support.recorder import Recorder
from tests.support.tasks import make_resolution

SETUP = """
from setuptools import Extension, setup
sources = ["native.cpp", "other.cpp"]
setup(name="named", version="1.0", ext_modules=[Extension("named", sources, extra_compile_args=["-g"])])
"""
NATIVE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <vector>
extern const char *other();
static PyObject *where(PyObject *, PyObject *) { return PyUnicode_FromString(__FILE__); }
static PyMethodDef methods[] = {{"where", where, METH_NOARGS, other()}, {NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "named", NULL, -1, methods};
PyMODINIT_FUNC PyInit_named(void) { return PyModule_Create(&module); }
"""
MakeTask = Callable[..., Task]


@pytest.fixture
def named(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTask:
    """Return a function that makes tasks for an extension that contains the name of its source file."""
    if shutil.which("ccache") is None:
        pytest.skip("ccache is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_cache))

    def make(text: str = "other", **recipe: object) -> Task:
        files = {
            "setup.py": SETUP,
            "native.cpp": NATIVE,
            "other.cpp": f'const char *other() {{ return "{text} " __FILE__; }}\n',
        }
        digest = write_sdist(cache_root(), "named", files)
        pick = built_pick("named", wheel_version="1.0+cpu", sdist=Sdist("named-1.0.tar.gz", digest))
        fields = {"must_contain": ("named*.so",), "imports": ("named",), **recipe}
        own = Recipe(
            package="named",
            backend="cpu",
            undeclared=("setuptools", "wheel"),
            match_runtime=(),
            status="observed",
            source="a test",
            **fields,  # type: ignore[arg-type]
        )
        return Task(pick, own, local_build_host(host.running_python()), make_resolution(pick, backend="cpu"))

    return make


def build(task: Task, index: Path, **limits: str) -> tuple[bytes, tuple[int, int] | None, list[str]]:
    """Build; return the wheel, the hits and misses in its record, and the messages."""
    reporter = Recorder()
    built = Index(index)
    wheel = build_wheel(task, built, Limits(jobs=1, **limits), reporter)  # type: ignore[arg-type]
    (published,) = built.published("named")
    measured = published.provenance["predicate"]["runDetails"]["metadata"]["matrix_measured"]
    hits = measured.get("cache_hits")
    counts = None if hits is None else (hits, measured["cache_misses"])
    return wheel.read_bytes(), counts, reporter.messages


@pytest.mark.integration
def test_objects_are_reused_and_wheels_are_identical(named: MakeTask, tmp_path: Path) -> None:
    if sandbox() is None:
        pytest.skip("this machine cannot isolate builds, so their paths differ")
    plain, counts, _ = build(named(), tmp_path / "plain", compiler_cache="none")
    assert counts is None
    first, counts, _ = build(named(), tmp_path / "first")
    assert counts == (0, 2)
    changed, counts, _ = build(named("changed"), tmp_path / "changed")
    assert counts == (1, 1)  # another build key, but the same directory for the build
    again, counts, messages = build(named(), tmp_path / "again")
    assert counts == (2, 0)
    assert plain == first == again != changed
    assert not [text for text in messages if text.startswith(("The compiler cache", "ccache failed"))]


@pytest.mark.integration
def test_objects_are_reused_by_project_that_calls_ccache_itself(named: MakeTask, tmp_path: Path) -> None:
    if sandbox() is None:
        pytest.skip("this machine cannot isolate builds, so that their paths differ")
    itself = {"CC": "ccache cc", "CXX": "ccache c++"}
    build(named("itself", environment=itself), tmp_path / "first")
    _, counts, _ = build(named("itself", environment=itself), tmp_path / "again")
    assert counts == (2, 2)  # its own ccache misses


@pytest.mark.integration
@pytest.mark.parametrize("damage", ["file", "full"])
def test_broken_cache_is_left_out(named: MakeTask, tmp_path: Path, damage: str) -> None:
    """Either the cache cannot be written, or a stand-in for ccache fails as ccache does on a full disk."""
    limits = {}
    if damage == "file":
        directory = cache_root() / "compiler-cache"
        directory.parent.mkdir(parents=True, exist_ok=True)
        kept = directory.with_name("kept")
        if directory.exists():
            directory.rename(kept)
        directory.write_text("not a directory")
    else:
        broken = tmp_path / "ccache"
        broken.write_text(
            '#!/bin/sh\n[ "$1" = --version ] && exit\n'
            'echo "ccache: error: failed to write: No space left on device" >&2; exit 1\n'
        )
        broken.chmod(0o755)
        limits = {"compiler_cache": str(broken)}
    try:
        _, _, messages = build(named("broken"), tmp_path / "index", **limits)
    finally:
        if damage == "file":
            directory.unlink()
    warnings = [text for text in messages if text.startswith(("The compiler cache", "ccache failed"))]
    assert len(warnings) == 1, messages
    assert ("No space left on device" if damage == "full" else "is not used") in warnings[0]


def test_named_compiler_cache_must_exist(tmp_path: Path) -> None:
    assert find_compiler_cache("none") is None
    with pytest.raises(UsageError, match="not an executable program"):
        find_compiler_cache(str(tmp_path / "missing"))
    program = tmp_path / "ccache"
    program.touch(mode=0o755)
    assert find_compiler_cache(str(program)) == program
    assert find_compiler_cache(None) in {None, Path(shutil.which("ccache", path=os.environ["PATH"]) or "/")}
