"""Libraries of torch, an image and a conda environment, and wheels that need newer ones.

The torch here is a stand-in: a library with a few symbols of torch's names, compiled by gcc.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.audit import libraries
from builders.audit.contents import Expected
from builders.audit.elf import Budget, read_object, read_symbols
from builders.audit.runtime_libraries import (
    LibraryProvider,
    TorchLibraries,
    image_provider,
    literals,
    read_torch,
)
from builders.audit.wheel_audit import audit_wheel

MakeWheel = Callable[..., Path]
Compile = Callable[..., Path]

TAGS = f"cp311-cp311-linux_{platform.machine()}"
OP = "tiny/op.so"
EMPTY = "_ZN2at5emptyEv"
THROW = "_ZNK3c105Error4whatEv"
SHIM = "aoti_torch_delete_tensor"
WRAP = "_Z16THPVariable_WrapN2at10TensorBaseE"


def defines(*names: str) -> str:
    return "\n".join(f'int d{n}(void) __asm__("{name}"); int d{n}(void) {{ return 0; }}'
                     for n, name in enumerate(names))  # fmt: skip


def uses(*names: str, weak: bool = False) -> str:
    mark = "__attribute__((weak)) " if weak else ""
    declared = "\n".join(f'extern {mark}int u{n}(void) __asm__("{name}");' for n, name in enumerate(names))
    calls = " + ".join(f"(u{n} ? u{n}() : 0)" for n in range(len(names)))
    return f"{declared}\nint use(void) {{ return {calls}; }}"


@pytest.fixture
def torch_lib(tmp_path: Path, compile_object: Compile) -> Path:
    """Make a stand-in for an installed torch, and return its library directory."""
    lib = tmp_path / "torch" / "lib"
    lib.mkdir(parents=True)
    for name, source in (
        ("libc10.so", defines(THROW)),
        ("libtorch_cpu.so", defines(EMPTY, SHIM)),
        ("libtorch_python.so", defines(WRAP)),
        ("libamdhip64.so", "int hip(void) { return 0; }"),
    ):
        soname = name + (".7" if name == "libamdhip64.so" else "")
        built = compile_object(name, source, f"-Wl,-soname,{soname}")
        (lib / name).write_bytes(built.read_bytes())
    (lib / "libtorch.so").write_bytes(b"not an object")
    version = (
        "from typing import Optional\n__version__ = '2.13.0+rocm7.2'\nhip: Optional[str] = '7.2.53211-abc'\n"
    )
    (lib.parent / "version.py").write_text(version)
    return lib


def wheel_of(make_wheel: MakeWheel, compile_object: Compile, source: str, *flags: str) -> Path:
    return make_wheel(files={OP: compile_object("op.so", source, *flags).read_bytes()}, tags=TAGS)


def test_read_torch_returns_libraries_and_symbols(torch_lib: Path) -> None:
    torch = read_torch(torch_lib)
    assert (torch.version, torch.rocm) == ("2.13.0+rocm7.2", "7.2")
    assert torch.exports == frozenset({EMPTY, THROW, SHIM, WRAP})
    assert torch.libraries is not None
    assert {"libamdhip64.so", "libamdhip64.so.7", "libc10.so", "libtorch.so"} <= torch.libraries


def test_symbols_of_a_torch_without_libraries_are_unknown(tmp_path: Path) -> None:
    assert read_torch(tmp_path).exports is None


def test_symbols_of_torch_are_accepted(
    make_wheel: MakeWheel, compile_object: Compile, torch_lib: Path
) -> None:
    wheel = wheel_of(make_wheel, compile_object, uses(EMPTY, THROW, SHIM, WRAP))
    report = audit_wheel(wheel, Expected(torch=read_torch(torch_lib)))
    assert report.errors == []
    assert report.objects[0].imports == {EMPTY, THROW, SHIM, WRAP}


@pytest.mark.parametrize(
    "name",
    ["_ZN2at4zeroEv", "_ZTIN3c104BaseE", "_ZN5torch3jitEv", "aoti_torch_gone", "THPGone", "_Z7THPGonev"],
)
def test_symbol_missing_in_torch_is_an_error(
    name: str, make_wheel: MakeWheel, compile_object: Compile, torch_lib: Path
) -> None:
    wheel = wheel_of(make_wheel, compile_object, uses(EMPTY, name))
    assert audit_wheel(wheel).verdict == "sound"
    (error,) = audit_wheel(wheel, Expected(torch=read_torch(torch_lib))).errors
    assert error.id == "torch-symbol-missing"
    assert error.evidence == {"member": OP, "symbol": name, "count": "1"}
    assert "torch 2.13.0+rocm7.2" in error.message
    weak = wheel_of(make_wheel, compile_object, uses(EMPTY, name, weak=True))
    assert audit_wheel(weak, Expected(torch=read_torch(torch_lib))).errors == []


def test_symbols_of_other_libraries_are_ignored(
    make_wheel: MakeWheel, compile_object: Compile, torch_lib: Path
) -> None:
    source = uses("_ZN3foo3barEv", "_ZN12atlast3barEv", "_Z3barN2at6TensorE", "PyLong_FromLong", "hipMalloc")
    wheel = wheel_of(make_wheel, compile_object, source)
    assert audit_wheel(wheel, Expected(torch=read_torch(torch_lib))).errors == []


def test_symbol_of_another_object_is_accepted(
    make_wheel: MakeWheel, compile_object: Compile, torch_lib: Path
) -> None:
    files = {
        OP: compile_object("op.so", uses("_ZN2at3ownEv")).read_bytes(),
        "tiny/libown.so": compile_object("libown.so", defines("_ZN2at3ownEv")).read_bytes(),
    }
    wheel = make_wheel(files=files, tags=TAGS)
    assert audit_wheel(wheel, Expected(torch=read_torch(torch_lib))).errors == []


def test_missing_symbols_are_counted_and_demangled(
    make_wheel: MakeWheel, compile_object: Compile, torch_lib: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"_ZN2at{len(f'gone{n}')}gone{n}Ev" for n in range(9)]
    wheel = wheel_of(make_wheel, compile_object, uses(*names))
    expected = Expected(torch=read_torch(torch_lib))
    (error,) = audit_wheel(wheel, expected).errors
    assert error.evidence["count"] == "9"
    assert "at::gone0()" in error.message
    assert "and 4 more" in error.message
    monkeypatch.setattr(libraries, "output_of", lambda _: "")  # no c++filt
    (error,) = audit_wheel(wheel, expected).errors
    assert names[0] in error.message


@given(table=st.binary(max_size=200), names=st.binary(max_size=100), bits=st.sampled_from([32, 64]))
def test_symbol_table_of_any_content_is_read(table: bytes, names: bytes, bits: int) -> None:
    imports, exports = read_symbols(table, names, bits, Budget(len(table)))
    assert len(imports | exports) <= len(table) // 16


NEWER = """
#include <stdio.h>
int fmt(const char *, ...) __asm__("_ZSt24__throw_out_of_range_fmtPKcz");
int init(void) __asm__("__cxa_init_primary_exception");
int use(void) { return puts("x") + fmt("x") + init(); }
"""
"""Requires GLIBCXX_3.4.20 and CXXABI_1.3.11, as code compiled by GCC 7 does."""


@pytest.mark.parametrize(
    ("facts", "ids"),
    [
        ({"glibc": "2.0"}, ["glibc-too-new"]),
        ({"glibcxx": "3.4"}, ["libstdcxx-too-new"]),
        ({"glibcxx": "3.4.99", "glibc": "2.99", "gcc": "99"}, []),
        ({"cxxabi": "1.0"}, ["libstdcxx-too-new"]),
    ],
)
def test_newer_symbol_versions_are_errors(
    facts: dict[str, str], ids: list[str], make_wheel: MakeWheel, compile_object: Compile
) -> None:
    library = compile_object("op.so", NEWER, "-lstdc++")
    wheel = make_wheel(files={OP: library.read_bytes()}, tags=TAGS)
    report = audit_wheel(wheel, Expected(providers=(image_provider(facts),)))
    assert {"GLIBC", "GLIBCXX", "CXXABI"} <= set(report.objects[0].versions)
    assert [finding.id for finding in report.errors] == ids
    assert all("the base image has" in finding.message for finding in report.errors)


def test_older_libstdcxx_of_conda_is_an_error(
    tmp_path: Path, make_wheel: MakeWheel, compile_object: Compile
) -> None:
    """The test compiles the libraries, with the version definitions of an old libstdc++."""
    lib = tmp_path / "older" / "lib"
    lib.mkdir(parents=True)
    script = tmp_path / "versions"
    script.write_text("GLIBCXX_3.4 { a; };\nGLIBCXX_3.4.9 { b; };\nCXXABI_1.3 { c; };\n")
    source = "int a, b, c;"
    built = compile_object("libstdc++.so.6", source, f"-Wl,--version-script={script}")
    (lib / "libstdc++.so.6").write_bytes(built.read_bytes())
    versions = {"GLIBCXX": "3.4.9", "CXXABI": "1.3"}
    assert read_object("libstdc++.so.6", built.read_bytes()).defines == versions
    conda = LibraryProvider(
        "the conda environment older", versions, frozenset({"libstdc++.so.6"}), is_image=False
    )
    library = compile_object("op.so", NEWER, "-lstdc++")
    wheel = make_wheel(files={OP: library.read_bytes()}, tags=TAGS)
    image = image_provider({"glibcxx": "3.4.99"})
    errors = audit_wheel(wheel, Expected(providers=(image, conda))).errors
    assert {finding.id for finding in errors} == {"libstdcxx-too-new"}
    assert all("the conda environment older" in finding.message for finding in errors)
    strange = compile_object("libstrange.so", "int give(void) { return 1; }", "-Wl,-soname,libstrange.so")
    source = "int give(void); int take(void) { return give(); }"
    wheel = wheel_of(make_wheel, compile_object, source, str(strange), "-Wl,--no-as-needed")
    beside = audit_wheel(wheel, Expected(providers=(conda,)))
    assert beside.errors == []  # the image below it may have the library
    assert "need-elsewhere" in [finding.id for finding in beside.findings]


def test_literals_reads_without_running() -> None:
    assert literals(b"a = {'x': [1, 2]}\nb = print('run')\nc: int = 3\nd = e = None\nf[0] = 1") == {
        "a": {"x": [1, 2]},
        "c": 3,
        "d": None,
        "e": None,
    }
    assert literals(b"a = (") == {}
    assert literals(b"\0") == {}
    assert literals(b"a = " + b"(" * 100_000) == {}


def test_unknown_symbols_of_torch_are_not_compared(make_wheel: MakeWheel, compile_object: Compile) -> None:
    wheel = wheel_of(make_wheel, compile_object, uses("_ZN2at4zeroEv"))
    assert audit_wheel(wheel, Expected(torch=TorchLibraries("2.13.0"))).errors == []
