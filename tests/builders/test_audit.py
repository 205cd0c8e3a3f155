"""Objects, promises and the platform tag of a wheel."""

from __future__ import annotations

import platform
import re
import struct
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.audit.contents import Expected
from builders.audit.elf import SharedObject
from builders.audit.platform_tags import platform_tag
from builders.audit.promises import check_promised_objects
from builders.audit.wheel_audit import WheelAudit, audit_wheel
from resolver.facts.schema import Recipe

MakeWheel = Callable[..., Path]
Compile = Callable[..., Path]

SOURCE = '#include <stdio.h>\nint answer(void) { return printf("%d", 42); }\n'
TAGS = f"cp311-cp311-linux_{platform.machine()}"
OP = "tiny/ops/adam_op.cpython-311.so"
OTHER_CPU = {"x86_64": (183, "EM_AARCH64"), "aarch64": (62, "EM_X86_64")}


def recipe(*must_contain: str) -> Recipe:
    return Recipe(package="tiny", backend="cpu", must_contain=must_contain, status="observed", source="test")


def audit(wheel: Path, promised: Recipe) -> WheelAudit:
    return audit_wheel(wheel, Expected(recipe=promised))


def ids_of(report: WheelAudit) -> list[tuple[str, str]]:
    """Return ids and severities, without the info on the tag that every wheel here gets."""
    ids = [(finding.id, finding.severity) for finding in report.findings]
    return [pair for pair in ids if pair != ("plain-platform-tag", "info")]


@pytest.fixture
def binary(compile_object: Compile) -> bytes:
    return compile_object("answer.so", SOURCE).read_bytes()


def test_promised_object_is_found(make_wheel: MakeWheel, binary: bytes) -> None:
    report = audit(make_wheel(files={OP: binary}, tags=TAGS), recipe("tiny/ops/adam_op*.so"))
    assert ids_of(report) == [("object-found", "info")]
    assert any(OP in finding.message for finding in report.findings)
    assert report.errors == []
    assert [item.path for item in report.objects] == [OP]


def test_promised_object_is_missing(make_wheel: MakeWheel, binary: bytes) -> None:
    report = audit(
        make_wheel(files={OP: binary}, tags=TAGS), recipe("tiny/ops/adam_op*.so", "tiny/ops/lamb_op*.so")
    )
    assert ids_of(report) == [("object-missing", "error"), ("object-found", "info")]
    (error,) = report.errors
    assert "tiny/ops/lamb_op*.so" in error.message
    assert OP in error.message
    assert error.fix


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["-g", "-march=skylake-avx512"], [("cpu-options", "warning")]),
        (["-g", "-march=znver3", "-mavx512f"], [("cpu-options", "warning")]),
        (["-Wl,-z,x86-64-v4"], [("cpu-too-old", "error")]),
        (["-g", "-march=znver3"], []),
        (["-g", "-march=skylake-avx512", "-mno-avx512f", "-march=znver2"], []),
        (["-march=skylake-avx512"], []),  # nothing records it
    ],
)
def test_recorded_cpu_is_compared(
    make_wheel: MakeWheel, compile_object: Compile, flags: list[str], found: list[tuple[str, str]]
) -> None:
    wheel = make_wheel(files={OP: compile_object("cpu.so", SOURCE, *flags).read_bytes()}, tags=TAGS)
    assert ids_of(audit_wheel(wheel, Expected(cpu="znver3"))) == found
    for cpu in ("", "znver4"):
        assert ids_of(audit_wheel(wheel, Expected(cpu=cpu))) == []


def test_pure_wheel_has_platform_any(make_wheel: MakeWheel) -> None:
    report = audit(make_wheel(), recipe())
    assert report.findings == ()
    assert (report.objects, report.platform_tag) == ((), "any")
    (error,) = audit(make_wheel(), recipe("tiny/_C*.so")).errors
    assert error.id == "object-missing"
    assert "no shared object at all" in error.message


@pytest.mark.parametrize("content", [b"just text\n", b"", b"\x7fELF"])
def test_file_named_so_that_is_not_elf_is_an_error(
    make_wheel: MakeWheel, binary: bytes, content: bytes
) -> None:
    wheel = make_wheel(files={OP: binary, "tiny/fake.so": content}, tags=TAGS)
    report = audit(wheel, recipe("tiny/ops/adam_op*.so", "tiny/fake*.so"))
    assert ids_of(report) == [("not-elf", "error"), ("object-missing", "error"), ("object-found", "info")]
    assert "tiny/fake.so" in report.findings[0].message


@pytest.mark.parametrize("name", ["tiny/.sops.yaml", "tiny/data.sorted.csv", "tiny/lib.source.txt"])
def test_other_suffixes_with_so_are_ignored(make_wheel: MakeWheel, binary: bytes, name: str) -> None:
    report = audit(make_wheel(files={OP: binary, name: b"text\n"}, tags=TAGS), recipe(OP))
    assert report.errors == []


@pytest.mark.parametrize("name", ["tiny/libone.so.1", "tiny/libone.so.1.2.3"])
def test_versioned_library_is_an_object(make_wheel: MakeWheel, binary: bytes, name: str) -> None:
    report = audit(make_wheel(files={name: binary}, tags=TAGS), recipe("tiny/libone.so*"))
    assert [item.path for item in report.objects] == [name]
    assert report.errors == []


def test_object_for_another_cpu_is_an_error(make_wheel: MakeWheel, binary: bytes) -> None:
    number, name = OTHER_CPU[platform.machine()]
    other = binary[:18] + struct.pack("<H", number) + binary[20:]
    report = audit(make_wheel(files={OP: other}, tags=TAGS), recipe(OP))
    assert ids_of(report) == [("other-machine", "error"), ("object-found", "info")]
    assert name in report.findings[0].message
    assert platform.machine() in report.findings[0].message


def test_needed_libraries_are_read(make_wheel: MakeWheel, compile_object: Compile) -> None:
    library = compile_object("libtinyhelp.so", "int help(void) { return 1; }", "-Wl,-soname,libtinyhelp.so.7")
    source = "int help(void); int main_(void) { return help(); }"
    user = compile_object("user.so", source, f"-L{library.parent}", "-ltinyhelp", "-Wl,--no-as-needed", "-lm")
    report = audit(make_wheel(files={OP: user.read_bytes()}, tags=TAGS), recipe(OP))
    (item,) = report.objects
    assert item.needed == ("libtinyhelp.so.7", "libm.so.6", "libc.so.6")


def test_truncated_object_is_a_finding(make_wheel: MakeWheel, binary: bytes) -> None:
    for length in (20, 64, 100, len(binary) // 2, len(binary) - 1):
        report = audit(make_wheel(files={OP: binary[:length]}, tags=TAGS, folder=f"cut{length}"), recipe(OP))
        assert ("not-elf", "error") in ids_of(report), length


def test_platform_tag_follows_symbol_versions(make_wheel: MakeWheel, binary: bytes) -> None:
    tag = platform_tag(make_wheel(files={OP: binary}, tags=TAGS))
    assert re.fullmatch(rf"manylinux_2_\d+_{platform.machine()}", tag)


def test_newer_symbol_gives_newer_tag(make_wheel: MakeWheel, compile_object: Compile) -> None:
    """``getrandom`` came with glibc 2.25."""
    source = "#include <sys/random.h>\nint newer(void) { int one; return getrandom(&one, 4, 0); }"
    older = compile_object("older.so", "int older(void) { return 1; }")
    newer = compile_object("newer.so", source)
    floors = []
    for library in (older, newer):
        tag = platform_tag(make_wheel(files={OP: library.read_bytes()}, tags=TAGS, folder=library.stem))
        floors.append(int(tag.split("_")[2]))
    assert floors[0] < 25 <= floors[1]


def test_library_in_purelib_is_read(make_wheel: MakeWheel, binary: bytes) -> None:
    path = f"tiny-1.0.data/purelib/{OP}"
    report = audit(make_wheel(files={path: binary}, tags=TAGS), recipe(path))
    assert [item.path for item in report.objects] == [path]


def test_torch_libraries_do_not_change_the_tag(make_wheel: MakeWheel, compile_object: Compile) -> None:
    """A library that no policy lists leads to the plain tag; torch's own library does not."""
    tags = {}
    for name in ("libtorch_cpu", "libstrange"):
        library = compile_object(f"{name}.so", "int give(void) { return 1; }", f"-Wl,-soname,{name}.so")
        source = "int give(void); int take(void) { return give(); }"
        user = compile_object(f"uses_{name}.so", source, f"-L{library.parent}", f"-l{name[3:]}")
        wheel = make_wheel(files={OP: user.read_bytes()}, tags=TAGS, folder=name)
        tags[name] = platform_tag(wheel)
    assert tags["libtorch_cpu"].startswith("manylinux_2_")
    assert tags["libstrange"] == f"linux_{platform.machine()}"


def test_extension_without_libc_is_read(make_wheel: MakeWheel, compile_object: Compile) -> None:
    """Small extensions call only Python, and Ubuntu's gcc links only the libraries that an object uses."""
    source = "#include <Python.h>\nPyMODINIT_FUNC PyInit_small(void) { return PyDict_New(); }"
    include = f"-I{sysconfig.get_path('include')}"
    small = compile_object("small.so", source, include, "-Wl,--as-needed")
    path = "tiny/small.abi3.so"
    report = audit(make_wheel(files={path: small.read_bytes()}, tags=TAGS), recipe(path))
    assert ids_of(report) == [("object-found", "info")]
    assert report.objects[0].needed == ()
    assert report.platform_tag != "any"


@given(
    paths=st.lists(st.sampled_from(["a/x.so", "a/y.so", "b/x.so"]), unique=True),
    patterns=st.lists(st.sampled_from(["a/x*.so", "*/y.so", "a/*", "c/*"]), unique=True),
)
def test_audit_promise_has_one_finding(paths: list[str], patterns: list[str]) -> None:
    contents: Any = SimpleNamespace(objects=[SharedObject(path, ()) for path in paths])
    findings = list(check_promised_objects(contents, Expected(recipe=recipe(*patterns))))
    kept = {
        "a/x*.so": "a/x.so" in paths,
        "*/y.so": "a/y.so" in paths,
        "a/*": any(name.startswith("a/") for name in paths),
        "c/*": False,
    }
    assert [finding.severity == "info" for finding in findings] == [kept[glob] for glob in patterns]
