"""The inspection of a base image: its script, the parsed output, and the row for the catalog."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from builders.containers import inspection
from builders.containers.image import LocalImage
from builders.containers.inspection import (
    as_row,
    cached_facts,
    gcc_of,
    inspect_image,
    inspect_in,
    parse_output,
    with_inspected_image,
)
from builders.containers.runtime import View
from builders.machine import host
from builders.recipes import Program
from resolver.errors import CommandError, MatrixError, TooSlowError, UsageError
from resolver.facts.catalog import load
from resolver.texts import check_texts
from resolver.versions import is_version
from tests.support.hostile import INVISIBLE, VISIBLE, places, with_text

IMAGE = LocalImage("base", Path("/images/base.sif"), "ab" * 32)
PYTHON = {
    "version": "3.12.1", "path": "/opt/venv/bin/python3", "prefix": "/opt/venv", "base": "/usr",
    "implementation": "cpython", "headers": True, "venv": True,
    "holds": {"torch": "2.9.1+rocm6.4", "Typing_Extensions": "4.1"},
    "requires": {"Typing_Extensions": [], "torch": ["numpy<3; python_version < '4'"]},
}  # fmt: skip
LINES = [
    ("os", "SUSE BCI 15.5"), ("architecture", "x86_64"),
    ("glibc", "glibc 2.31"),
    ("library", "libz.so.1", "/lib64/libz.so.1"), ("library", "libz.so.1", "/opt/rocm/lib/libz.so.1"),
    ("library", "librccl.so.1", "/opt/rocm/lib/librccl.so.1"),
    ("symbol", "libstdc++.so.6", "GLIBCXX_3.4.9"), ("symbol", "libstdc++.so.6", "GLIBCXX_3.4.11"),
    ("symbol", "libstdc++.so.6", "GLIBCXX_3.4.30"),
    ("symbol", "libstdc++.so.6", "CXXABI_1.3.13"), ("symbol", "libgcc_s.so.1", "GCC_4.2.0"),
    ("symbol", "libgcc_s.so.1", "GCC_12.0.0"),
    ("symbol", "libfabric.so.1", "FABRIC_1.10"), ("symbol", "libfabric.so.1", "FABRIC_1.8"),
    ("rocm", "/opt/rocm", "6.2.4-120"), ("rocm", "/opt/rocm-6.2.4", "6.2.4"),
    ("hipcc", "/opt/rocm/bin/hipcc", "HIP version: 6.2.41134-65d174c3e"),
    ("hipcc", "/opt/rocm/bin/hipcc", "AMD clang version 18.0.0git (https://example/llvm roc-6.2.4)"),
    ("gpu-tool", "rocminfo", "/opt/rocm/bin/rocminfo"),
    ("compiler", "/usr/bin/gcc-12", "12.3.0", "gcc-12 (SUSE Linux) 12.3.0"),
    ("compiler", "/usr/bin/g++-12", "12.3.0", "g++-12 (SUSE Linux) 12.3.0"),
    ("compiler", "/usr/bin/g++", "", "g++ (SUSE Linux) 7.5.0"), ("compiler", "/bin/g++", "9", "g++ 9"),
    ("tool", "cmake", "/usr/bin/cmake", "cmake version 3.28.3"),
    ("mpi", "HYDRA build details:"), ("mpi", "MPICH Version:      4.1.2"),
    ("network-plugin", "/usr/lib/librccl-net.so", ""),
    ("network-plugin", "/opt/libnccl-net.so", "aws-ofi-nccl 1.20.0"),
    ("header", "hwloc.h", ""), ("header", "rdma/fabric.h", "2.1.0."), ("header", "rdma/fabric.h", "1.17.0."),
    ("conda", "/opt/conda"), ("python", "/usr/bin/python3", ""),
    ("python", "/opt/venv/bin/python3", json.dumps(PYTHON)), ("labels", '{"a": "b"}'), ("end",),
]  # fmt: skip


def answer(rows: Sequence[Sequence[str]] = LINES, *, noise: bool = False) -> str:
    lines = ["\t".join(["@fact", *values]) for values in rows]
    return (
        "\n".join(f"no newline at the end: {line}\nWARNING: x" for line in lines)
        if noise
        else "\n".join(lines)
    )


def without(*keys: str) -> list[Sequence[str]]:
    return [values for values in LINES if values[0] not in keys]


@pytest.mark.parametrize("noise", [False, True])
def test_parse_output(noise: bool) -> None:
    facts = parse_output(answer(noise=noise), IMAGE)
    assert (facts.name, facts.path, facts.digest) == ("base", "/images/base.sif", "sha256:" + "ab" * 32)
    assert facts.os == "SUSE BCI 15.5"
    assert (facts.glibc, facts.glibcxx, facts.cxxabi, facts.gcc) == ("2.31", "3.4.30", "1.3.13", "12.0.0")
    assert facts.libstdcxx == "12.1"
    assert (facts.rocm, facts.rocm_path, facts.hipcc, facts.clang) == (
        "6.2.4",
        "/opt/rocm",
        "6.2.41134",
        "18.0.0",
    )
    assert facts.libraries == ("librccl.so.1", "libz.so.1")
    assert Program("g++", "7.5.0", "/usr/bin/g++") in facts.compilers
    assert facts.tools["cmake"].version == "3.28.3"
    assert facts.mpi == "MPICH 4.1.2"
    assert (facts.libfabric, facts.network_headers, facts.network_plugin) == ("2.1.0", True, "1.20.0")
    assert facts.fabric == "1.10"
    (python,) = facts.pythons
    assert (python.path, python.base, python.headers) == ("/opt/venv/bin/python3", "/usr", True)
    assert python.holds["typing-extensions"] == "4.1"
    assert facts.installed["torch"] == "2.9.1+rocm6.4"
    assert python.requires == {"typing-extensions": (), "torch": ("numpy<3; python_version < '4'",)}
    assert facts.labels == {"a": "b"}
    assert facts.missing_tools() == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (without("end"), "the end of its output is missing"),
        ([], "the end of its output is missing"),
        ([*LINES, ("os", "again")], "unexpected line"),
        ([("glibc", "1", "2"), *LINES], "unexpected line"),
        ([("nonsense", "1"), *LINES], "unexpected line"),
        ([("glibc", "glibc 2.38"), *LINES], "2 values of glibc"),
        ([("python", "/bin/python3", '{"version": "3'), *LINES], "/bin/python3 printed"),
        ([("python", "/bin/python3", '{"version": "3.12"}'), *LINES], "/bin/python3 printed"),
        ([("python", "/bin/python3", "3"), *LINES], "/bin/python3 printed"),
        ([*without("labels", "end"), ("labels", "[1]"), ("end",)], "labels"),
        ([*without("labels", "end"), ("labels", "{"), ("end",)], "Expecting"),
    ],
)
def test_damaged_output_is_rejected(lines: Sequence[Sequence[str]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_output(answer(lines), IMAGE)


HOSTILE_VALUES = (*INVISIBLE, *VISIBLE, "[" * 100_000, "9" * 5000, '{"a": ' * 50_000)


def test_values_of_a_hostile_image_are_rejected_or_safe() -> None:
    """Every value of the script's output, and every text of Python's answer, may be anything."""
    outputs = []
    for number, row in enumerate(LINES):
        for place in range(1, len(row)):
            for text in HOSTILE_VALUES[(number + place) % 4 :: 4]:  # other texts for each place
                changed = [*row[:place], text.replace("\0", ""), *row[place + 1 :]]
                outputs.append([*LINES[:number], changed, *LINES[number + 1 :]])
    answered = next(number for number, row in enumerate(LINES) if row[1:2] == ("/opt/venv/bin/python3",))
    for number, key in enumerate(places(PYTHON)):
        for text in HOSTILE_VALUES[number % 2 :: 2]:
            changed = ["python", "/opt/venv/bin/python3", json.dumps(with_text(PYTHON, key, text))]
            outputs.append([*LINES[:answered], changed, *LINES[answered + 1 :]])
    catalog = load()
    for output in outputs:
        try:
            facts = parse_output(answer(output), IMAGE)
        except ValueError:
            continue
        check_texts(msgspec.to_builtins(facts), "image", UsageError)
        image = as_row(facts, catalog)
        assert is_version(image.glibc or "0")
        assert all(map(is_version, (*image.python, *image.holds.values())))


def test_nearly_empty_image_lacks_everything() -> None:
    facts = parse_output(answer([("architecture", "aarch64"), ("end",)]), IMAGE)
    assert (facts.glibc, facts.rocm, facts.pythons) == ("", "", ())
    missing_tools = facts.missing_tools()
    assert [tool.partition(":")[0].partition(";")[0] for tool in missing_tools] == [
        "no ROCm",
        "there is no C++ compiler that supports C++17. Host compilers",
        "the image is for aarch64",
        "no glibc",
    ]


def test_rocm_without_hipcc_is_missing() -> None:
    (missing,) = parse_output(answer(without("hipcc")), IMAGE).missing_tools()
    assert missing.startswith("no hipcc")


def test_pypy_is_ignored() -> None:
    pypy = {**PYTHON, "implementation": "pypy", "prefix": "/opt/pypy"}
    lines = [("python", "/opt/pypy/bin/python3", json.dumps(pypy)), *LINES]
    assert [python.prefix for python in parse_output(answer(lines), IMAGE).pythons] == ["/opt/venv"]


class TestRow:
    def test_row_has_observed_values(self) -> None:
        row = as_row(parse_output(answer(), IMAGE), load())
        assert (row.name, row.rocm, row.glibc, row.libstdcxx) == ("base", "6.2.4", "2.31", "12.1")
        assert (row.status, row.source) == ("observed", f"inspection of base.sif {IMAGE.digest}")
        assert row.digest == IMAGE.digest
        assert row.python == ("3.12",)
        assert row.holds == {"torch": "2.9.1+rocm6.4"}

    def test_pythons_with_torch_come_before_those_with_headers(self) -> None:
        system = {
            **PYTHON,
            "version": "3.14.0",
            "path": "/usr/bin/python3",
            "prefix": "/usr",
            "headers": False,
        }
        lines = [*LINES[:-1], ("python", "/usr/bin/python3", json.dumps({**system, "holds": {}})), ("end",)]
        facts = parse_output(answer(lines), IMAGE)

        def listed(**changes: Any) -> tuple[str, ...]:
            pythons = tuple(msgspec.structs.replace(python, **changes) for python in facts.pythons)
            return as_row(msgspec.structs.replace(facts, pythons=pythons), load()).python

        assert listed() == ("3.12",)
        assert listed(headers=False) == ("3.12",)
        assert listed(holds={}) == ("3.12",)
        assert listed(holds={}, headers=False) == ("3.14", "3.12")

    def test_documented_values_stay(self) -> None:
        catalog = load()
        name = "lumi-rocm-rocm-5.7.3.sif"
        facts = msgspec.structs.replace(parse_output(answer(), IMAGE), name=name)
        assert as_row(facts, catalog).dockerhash == catalog.image[name].dockerhash != ""

    def test_empty_image_has_row(self) -> None:
        row = as_row(parse_output(answer([("end",)]), IMAGE), load())
        assert (row.rocm, row.python, row.holds) == ("", (), {})


def test_gcc_of_symbol_version() -> None:
    versions = ("3.4.28", "3.4.29", "3.4.33", "3.4.9", "")
    assert [gcc_of(version) for version in versions] == ["9.3", "11.1", "14.1", "", ""]


def test_row_of_newer_libstdcxx_has_lower_bound() -> None:
    lines = [*without("end"), ("symbol", "libstdc++.so.6", "GLIBCXX_3.4.99"), ("end",)]
    facts = parse_output(answer(lines), IMAGE)
    assert facts.glibcxx == "3.4.99"
    assert as_row(facts, load()).libstdcxx == "16.2"


def test_inspected_image_leaves_catalog_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.sif" / "usr").mkdir(parents=True)
    monkeypatch.setattr(inspection, "inspect_image", lambda image: parse_output(answer(), image))
    catalog = load()
    extended = with_inspected_image(catalog, str(tmp_path / "mine.sif"))
    assert extended.image["mine"].libstdcxx == "12.1"
    assert "mine" not in catalog.image
    assert with_inspected_image(catalog, "lumi-rocm-rocm-6.2.4.sif") is catalog
    assert with_inspected_image(catalog, None) is catalog


@dataclass(frozen=True)
class Standin:
    """A STAND-IN for a container: it runs a shell on the host, which prints the output."""

    kind: ClassVar[str] = "stand-in"
    image: LocalImage | None = IMAGE
    output: str = ""
    code: int = 0
    seconds: int = 0

    def command(self, command: Sequence[str], view: View, _: Path) -> tuple[list[str], Mapping[str, str]]:
        assert command[:2] == ["/bin/sh", "-c"]
        assert not view.network
        line = ["/bin/sh", "-c", f'printf "%s\\n" "$OUTPUT"; sleep {self.seconds}; exit {self.code}']
        return line, {"PATH": "/bin:/usr/bin", "OUTPUT": self.output}

    @property
    def isolates_network(self) -> bool:
        return True


class TestInspecting:
    def test_result_is_cached_by_digest(self) -> None:
        assert cached_facts(IMAGE) is None
        facts = inspect_in(Standin(output=answer()))  # type: ignore[arg-type]
        renamed = LocalImage("other", Path("/else/other.sif"), IMAGE.sha256)
        again = inspect_image(renamed)
        assert again == msgspec.structs.replace(facts, name="other", path="/else/other.sif")
        assert cached_facts(LocalImage("base", IMAGE.path, "cd" * 32)) is None

    def test_changed_script_inspects_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        inspect_in(Standin(output=answer()))  # type: ignore[arg-type]
        (tmp_path / "inspect.sh").write_text("say end")
        monkeypatch.setattr(inspection, "_SCRIPT", tmp_path / "inspect.sh")
        assert cached_facts(IMAGE) is None

    def test_damaged_output_names_log_and_is_not_cached(self) -> None:
        with pytest.raises(MatrixError, match="the end of its output is missing") as caught:
            inspect_in(Standin(output="no fact"))  # type: ignore[arg-type]
        log = Path(caught.value.message.rpartition("Log: ")[2])
        assert "no fact" in log.read_text()
        assert cached_facts(IMAGE) is None

    def test_image_in_which_nothing_runs_is_an_error(self) -> None:
        with pytest.raises(CommandError, match="Inspecting the base image base") as caught:
            inspect_in(Standin(output="FATAL: no such image", code=255))  # type: ignore[arg-type]
        assert "FATAL: no such image" in caught.value.message

    def test_image_whose_programs_do_not_end_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inspection, "_LONGEST", 0.5)
        with pytest.raises(TooSlowError, match=r"image base did not end within .* s\.\n  Log: ") as caught:
            inspect_in(Standin(output="no end", seconds=60))  # type: ignore[arg-type]
        assert caught.value.hint
        assert cached_facts(IMAGE) is None

    def test_host_cannot_be_inspected(self) -> None:
        with pytest.raises(UsageError):
            inspect_in(Standin(image=None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"]
)
def test_script_reads_only_regular_files(make: Callable[[Path], None], tmp_path: Path) -> None:
    """With another root directory, the script finds nothing there, and ends."""
    for name in ("etc/os-release", "opt/rocm/.info/version", ".singularity.d/labels.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        make(tmp_path / name)
    script = Path(inspection.__file__).with_name("inspect.sh").read_text()
    for name in ("/etc/", "/usr/lib/os-release", "/opt/", "/.singularity.d/"):
        script = script.replace(f" {name}", f" {tmp_path}{name}")
    env = {"PATH": "/nowhere"}
    script = script.replace("PATH=$PATH:/usr/local/sbin:/usr/local/bin", "PATH=$PATH")
    done = subprocess.run(
        ["/bin/sh", "-c", script], capture_output=True, text=True, check=True, timeout=60, env=env
    )
    facts = parse_output(done.stdout, IMAGE)
    assert (facts.os, facts.rocm, facts.labels) == ("", "", {})


def test_script_reads_network_plugin_and_headers(tmp_path: Path) -> None:
    """The directories that the loader and the compiler are told to search come before those of the system."""
    (tmp_path / "rdma").mkdir()
    header = "#define FI_MAJOR_VERSION 2\n#define FI_MINOR_VERSION 6\n#define FI_REVISION_VERSION 0\n"
    (tmp_path / "rdma" / "fabric.h").write_text(header)
    (tmp_path / "hwloc.h").write_text("")
    (tmp_path / "librccl-net.so").write_bytes(b"\x7fELF\0NET/OFI Initializing aws-ofi-nccl 1.19.1-git\0")
    script = Path(inspection.__file__).with_name("inspect.sh").read_text()
    start, end = script.index("# RCCL's network plugin"), script.index("# Pythons and conda.")
    script = script[: script.index("# The system.")] + script[start:end] + "fact end\n"
    env = {**os.environ, "LD_LIBRARY_PATH": f"/nowhere:{tmp_path}", "CPATH": str(tmp_path)}
    done = subprocess.run(
        ["/bin/sh", "-c", script], capture_output=True, text=True, check=True, timeout=60, env=env
    )
    facts = parse_output(done.stdout, IMAGE)
    assert (facts.libfabric, facts.network_headers, facts.network_plugin) == ("2.6.0", True, "1.19.1")


@pytest.mark.integration
def test_script_inspects_the_host() -> None:
    """The host's own shell runs the real script."""
    script = Path(inspection.__file__).with_name("inspect.sh").read_text()
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    facts = parse_output(done.stdout, IMAGE)
    assert facts.glibc == host.glibc_version()
    assert facts.architecture == platform.machine()
    assert facts.os == platform.freedesktop_os_release()["PRETTY_NAME"]
    compiler = next(compiler for compiler in facts.compilers if compiler.name == "g++")
    assert compiler.version in host.compiler_identity()
    assert facts.glibcxx.startswith("3.4.")
    assert "libc.so.6" in facts.libraries
    assert all(python.version.startswith("3.") for python in facts.pythons)
    assert facts.pythons
