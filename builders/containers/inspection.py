"""Inspect a base image: run one shell script in it and parse its output strictly.

The result is cached under the image's digest. `with_inspected_image` adds it to a catalog.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from packaging.version import Version

from builders.containers.engines import choose_runtime
from builders.containers.image import LocalImage, find_image, image_name, is_local
from builders.containers.runtime import Runtime, View, run_in
from builders.containers.sbom import is_sbom, read_sbom
from builders.recipes import Program, choose_compilers
from builders.storage.files import cache_root, write_atomic
from builders.storage.lease import exclusive_lock
from resolver.errors import EnvironmentLacksError, MatrixError, TooSlowError, UsageError
from resolver.facts import schema
from resolver.facts.catalog import Catalog
from resolver.requirements import TRITON_NAMES, normalize_name
from resolver.texts import check_texts, printable
from resolver.versions import is_version, minor, newest_first, sort_key

_FIRST_GCC = {
    "3.4.22": "6.1", "3.4.23": "7.1", "3.4.24": "7.2", "3.4.25": "8.1", "3.4.26": "9.1", "3.4.27": "9.2",
    "3.4.28": "9.3", "3.4.29": "11.1", "3.4.30": "12.1", "3.4.31": "13.1", "3.4.32": "13.2", "3.4.33": "14.1",
    "3.4.34": "15.1", "3.4.35": "16.1", "3.4.36": "16.2",
}  # fmt: skip
"""First GCC release with each ``GLIBCXX`` version, oldest first.
Source: gcc.gnu.org/onlinedocs/libstdc++/manual/abi.html; for GCC 16, the libstdc++ of 16.1.1 and 16.2.1 on
Fedora."""
_CXX_STANDARD = "17"
"""C++ standard of the headers of every torch that has ROCm wheels today."""
_SCRIPT = Path(__file__).with_name("inspect.sh")
_MARK = "@fact"
_LARGEST_OUTPUT = 32 * 2**20  # characters; a longer output lacks its end
_LONGEST = 900.0  # seconds; programs of the image answer within seconds, but the file system may be slow
_VERSION = re.compile(r"\d+(\.\d+)+")
_MPI = re.compile(r"(Open MPI|MPICH)\b\D*(\d+(?:\.\d+)+)")
"""Matches the output of Open MPI's ``ompi_info`` and ``mpirun``, and of MPICH's ``mpichversion``."""
_LIBRARIES = {
    "GLIBCXX": "libstdc++.so.6", "CXXABI": "libstdc++.so.6", "GCC": "libgcc_s.so.1",
    "FABRIC": "libfabric.so.1",
}  # fmt: skip
_VALUES = {
    "os": 1, "architecture": 1, "glibc": 1, "library": 2, "symbol": 2, "rocm": 2,
    "hipcc": 2, "gpu-tool": 2, "compiler": 3, "tool": 3, "mpi": 1, "conda": 1, "python": 2, "labels": 1,
    "network-plugin": 2, "header": 2, "end": 0,
}  # fmt: skip
"""Every key that the script prints, and its number of values."""

_Lines = dict[str, list[list[str]]]


class ImagePython(msgspec.Struct, frozen=True, kw_only=True):
    """A Python in a base image."""

    path: str
    version: str
    prefix: str
    base: str
    """Prefix of the Python that it was created from, if it is a virtual environment; else its own."""
    headers: bool
    venv: bool
    """Whether it can create virtual environments with pip."""
    holds: dict[str, str] = {}
    """Every distribution that it can import, with its version."""
    requires: dict[str, tuple[str, ...]] = {}
    """What the metadata of each of them requires, without extras."""


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a base image. Values of missing parts are empty."""

    name: str
    path: str
    digest: str
    os: str = ""
    """The distribution's own name, such as ``Ubuntu 24.04.3 LTS``."""
    architecture: str = ""
    glibc: str = ""
    glibcxx: str = ""
    """Newest symbol version of libstdc++, such as ``3.4.33``."""
    cxxabi: str = ""
    gcc: str = ""
    """Newest symbol version of libgcc_s."""
    libstdcxx: str = ""
    """First GCC release that has `glibcxx`; the newest known release if `glibcxx` is newer."""
    rocm: str = ""
    rocm_path: str = ""
    hipcc: str = ""
    """HIP version that hipcc reports."""
    clang: str = ""
    """Release of the clang that hipcc calls."""
    gpu_tools: dict[str, str] = {}
    """``rocminfo``, ``amdgpu-arch`` and the like, with their paths."""
    compilers: tuple[Program, ...] = ()
    tools: dict[str, Program] = {}
    mpi: str = ""
    """Name and version, such as ``MPICH 4.1.2``."""
    fabric: str = ""
    """Newest symbol version of the libfabric that the loader finds, such as ``1.8``."""
    libfabric: str = ""
    """Its version, if its headers are there."""
    network_headers: bool = False
    """Whether the headers of libfabric and hwloc are there, for building a network plugin."""
    network_plugin: str = ""
    """Release of RCCL's network plugin, if the loader finds it and it names its release."""
    pythons: tuple[ImagePython, ...] = ()
    conda: tuple[str, ...] = ()
    """Prefixes of conda and its environments."""
    labels: dict[str, str] = {}
    libraries: tuple[str, ...] = ()
    """Sonames that the loader finds, including ROCm's libraries."""

    @property
    def with_torch(self) -> list[ImagePython]:
        """The Pythons that can import torch."""
        return [python for python in self.pythons if "torch" in python.holds]

    @property
    def installed(self) -> dict[str, str]:
        """Every distribution of its `main` Pythons, of the first one."""
        return next((python.holds for python in self.main), {})

    @property
    def main(self) -> Sequence[ImagePython]:
        """Its Pythons with torch, else those with headers, for which extensions can be built, else all."""
        with_headers = [python for python in self.pythons if python.headers]
        return self.with_torch or with_headers or self.pythons

    def missing_tools(self, *, rocm: bool = True) -> list[str]:
        """Return the requirements of a build (one for the CPU if not `rocm`) that the image does not meet."""
        missing = []
        if rocm and not self.hipcc:
            missing.append(
                "no hipcc: the image has only ROCm's runtime; use an image with a compiler (-dev, -complete)"
                if self.rocm
                else "no ROCm: neither /opt/rocm/.info/version nor hipcc"
            )
        try:
            choose_compilers(self.compilers, _CXX_STANDARD)
        except EnvironmentLacksError as error:
            text = error.message.removesuffix(".")
            missing.append(text[:1].lower() + text[1:])
        if self.architecture and self.architecture != "x86_64":
            missing.append(
                f"the image is for {self.architecture}; AMD's GPUs and torch's ROCm wheels need x86_64"
            )
        if not self.glibc:
            missing.append("no glibc: torch's wheels require it")
        return missing


def with_inspected_image(
    catalog: Catalog, given: str | None, name: str = "", *, start: bool = True
) -> Catalog:
    """Add the contents of a base image on this machine, or of the list of one (`read_sbom`), to a catalog.

    The row takes precedence over a row of the same name. For a name, or a path that is not on this machine,
    return the catalog unchanged. `given` is the value of ``--base-image``; `name` is the name of the row, by
    default the result of `image_name`. Unless `start`, raise `EnvironmentLacksError` if the image was not
    inspected on this machine before.
    """
    if not given or not is_local(Path(given)):
        return catalog
    name = name or image_name(given, catalog)
    if is_sbom(Path(given)):
        return catalog.with_image(row_of_list(Path(given), name, catalog))
    image = find_image(Path(given), name)
    facts = inspect_image(image) if start else cached_facts(image)
    if facts is None:
        msg = f"The base image {given} was not inspected on this machine."
        hint = f"`matrix check --base-image {given}` inspects it: it runs a script in the image."
        raise EnvironmentLacksError(msg, hint=hint)
    return catalog.with_image(as_row(facts, catalog))


def inspect_image(image: LocalImage) -> ImageFacts:
    """Inspect a base image in the runtime of this machine; a cached result needs none."""
    return cached_facts(image) or inspect_in(choose_runtime(None, image))


def inspect_in(runtime: Runtime) -> ImageFacts:
    """Inspect the base image of a runtime, unless the result is cached under its digest."""
    image = runtime.image
    if image is None:
        msg = "There is no base image to inspect."
        raise UsageError(msg)
    cached = cached_facts(image)
    if cached is not None:
        return cached
    log = cache_root() / "logs" / f"inspect-{image.sha256[:12]}.log"
    with exclusive_lock(log.with_suffix(".lock")):
        return cached_facts(image) or _inspected(runtime, image, log)


def _inspected(runtime: Runtime, image: LocalImage, log: Path) -> ImageFacts:
    log.unlink(missing_ok=True)
    what = f"Inspecting the base image {image.name}"
    command = ["/bin/sh", "-c", _SCRIPT.read_text()]
    try:
        run_in(runtime, command, View(), what=what, log=log, timeout=_LONGEST)
    except TooSlowError as error:
        msg = f"{what} did not end within {_LONGEST:.0f} s.\n  Log: {log}"
        hint = "A program in the image may not end. The log has the output until then."
        raise error.changed(message=msg, hint=hint) from None
    try:
        with log.open(encoding="utf-8", errors="replace") as output:
            facts = parse_output(output.read(_LARGEST_OUTPUT), image)
    except ValueError as error:
        msg = f"{what} failed: {error}.\n  Log: {log}"
        hint = "Run the command again. If it fails again, report the error with the log."
        raise MatrixError(msg, hint=hint) from None
    with suppress(OSError):  # without a cache it only takes longer
        write_atomic(_cache_file(image), msgspec.json.encode(facts))
    return facts


def cached_facts(image: LocalImage) -> ImageFacts | None:
    """Return the cached result for an image of this digest, or None."""
    try:
        facts = msgspec.json.decode(_cache_file(image).read_bytes(), type=ImageFacts)
    except (OSError, msgspec.DecodeError):
        return None
    return msgspec.structs.replace(facts, name=image.name, path=str(image.path))


def _cache_file(image: LocalImage) -> Path:
    """Return the file that caches the result; its name depends on the script and the fields."""
    kinds: tuple[type[Any], ...] = (ImageFacts, ImagePython, Program)
    fields = " ".join(name for kind in kinds for name in kind.__struct_fields__).encode()
    table = " ".join(_FIRST_GCC).encode()
    stamp = hashlib.sha256(_SCRIPT.read_bytes() + fields + table).hexdigest()[:12]
    return cache_root() / "images" / f"{image.sha256}-{stamp}.json"


def as_row(facts: ImageFacts, catalog: Catalog) -> schema.Image:
    """Return the row of an inspected image; facts that no inspection finds are those of a row of its name."""
    documented = catalog.image.get(facts.name)
    return schema.Image(
        name=facts.name,
        rocm=facts.rocm if is_version(facts.rocm) else "",
        os=facts.os,
        glibc=facts.glibc,
        libstdcxx=facts.libstdcxx,
        path=facts.path,
        digest=facts.digest,
        dockerhash=documented.dockerhash if documented else "",
        python=tuple(newest_first({minor(python.version) for python in facts.main})),
        compiler=any(compiler.name == "g++" for compiler in facts.compilers),
        mpi=facts.mpi or (documented.mpi if documented else ""),
        libfabric=facts.libfabric or (documented.libfabric if documented else ""),
        network_headers=facts.network_headers,
        network_plugin=facts.network_plugin or (documented.network_plugin if documented else ""),
        holds=_catalogued(facts.installed, catalog),
        requires=next((python.requires for python in facts.main), {}),
        status="observed",
        source=f"{schema.INSPECTED}{facts.path.rpartition('/')[2]} {facts.digest}",
    )


def row_of_list(path: Path, name: str, catalog: Catalog) -> schema.Image:
    """Return the row of an image from the list of its content; what the list lacks is that of the catalog."""
    listed, documented = read_sbom(path), catalog.image.get(name)
    platform = listed.platform
    if documented is None and "glibc" not in platform:
        msg = f"{path} lists no packages of the system, so the ROCm and the glibc of its image are not known."
        raise UsageError(msg, hint=f"Name the image with --base-image, and add --keep-installed {path}.")
    row = documented or schema.Image(name=name, status="observed", source="")
    installed = {normalize_name(one): version for one, version in listed.distributions}
    return msgspec.structs.replace(
        row,
        rocm=platform.get("rocm", row.rocm),
        os=platform.get("os", row.os),
        glibc=platform.get("glibc", row.glibc),
        libstdcxx=platform.get("libstdc++", row.libstdcxx),
        python=(listed.python,) if listed.python else row.python,
        compiler=listed.compiler or row.compiler,
        holds=_catalogued(installed, catalog),
        status="observed",
        source=f"list of the image's content: {path.name}",
    )


def _catalogued(installed: Mapping[str, str], catalog: Catalog) -> dict[str, str]:
    """Return those distributions of the Python with torch that the catalog has."""
    names = {*catalog.package, "torch", "torchvision", "torchaudio", *TRITON_NAMES}
    return {
        name: version for name, version in sorted(installed.items()) if name in names and is_version(version)
    }


def gcc_of(glibcxx: str) -> str:
    """Return the first GCC release whose libstdc++ has a symbol version.

    For a symbol version newer than our table, return the newest release in it, which is a lower bound.

    Examples
    --------
    >>> gcc_of("3.4.32"), gcc_of("3.4.99"), gcc_of("3.4.9"), gcc_of("")
    ('13.2', '16.2', '', '')
    """
    newest = next(reversed(_FIRST_GCC))
    if is_version(glibcxx) and sort_key(glibcxx) > sort_key(newest):
        return _FIRST_GCC[newest]
    return _FIRST_GCC.get(glibcxx, "")


def parse_output(text: str, image: LocalImage) -> ImageFacts:
    """Parse output of the script and others; raise `ValueError` if a line is damaged or the end missing."""
    lines = _parse_lines(text)
    versions = {family: _newest_symbol(lines, family, library) for family, library in _LIBRARIES.items()}
    rocm_path, rocm = next(iter(lines["rocm"]), ["", ""])
    hip = "\n".join(line for _, line in lines["hipcc"])
    headers = dict(reversed([(name, _version_in(version)) for name, version in lines["header"]]))
    return ImageFacts(
        name=image.name,
        path=str(image.path),
        digest=image.digest,
        os=_only(lines, "os"),
        architecture=_only(lines, "architecture"),
        glibc=_version_in(_only(lines, "glibc")),
        glibcxx=versions["GLIBCXX"],
        cxxabi=versions["CXXABI"],
        gcc=versions["GCC"],
        libstdcxx=gcc_of(versions["GLIBCXX"]),
        rocm=rocm.partition("-")[0],
        rocm_path=rocm_path,
        hipcc=_version_after("HIP version:", hip),
        clang=_version_after("clang version", hip),
        gpu_tools={name: path for name, path in lines["gpu-tool"]},  # noqa: C416  rows are lists
        compilers=_compilers(lines["compiler"]),
        tools={name: Program(name, _version_in(line), path) for name, path, line in lines["tool"]},
        mpi=next((f"{match[1]} {match[2]}" for (line,) in lines["mpi"] if (match := _MPI.search(line))), ""),
        fabric=versions["FABRIC"],
        libfabric=headers.get("rdma/fabric.h", ""),
        network_headers={"rdma/fabric.h", "hwloc.h"} <= headers.keys(),
        network_plugin=next(filter(None, (_version_in(text) for _, text in lines["network-plugin"])), ""),
        pythons=_pythons(lines["python"]),
        conda=tuple(sorted({path for (path,) in lines["conda"]})),
        labels=_labels(_only(lines, "labels")),
        libraries=tuple(sorted({name for name, _ in lines["library"]})),
    )


def _parse_lines(text: str) -> _Lines:
    rows: _Lines = {key: [] for key in _VALUES}
    for line in text.splitlines():
        # A program may have ended its output without a newline, so the mark need not come first.
        _, mark, rest = line.rpartition(f"{_MARK}\t")
        if not mark:
            continue
        key, *values = rest.split("\t")
        if rows["end"] or _VALUES.get(key) != len(values):
            msg = f"unexpected line {rest[:80]!r}"
            raise ValueError(msg)
        rows[key].append(list(map(printable, values)))
    if not rows["end"]:
        msg = "the end of its output is missing"
        raise ValueError(msg)
    return rows


def _only(lines: _Lines, key: str) -> str:
    values = {row[0] for row in lines[key]}
    if len(values) > 1:
        msg = f"there are {len(values)} values of {key}"
        raise ValueError(msg)
    return values.pop() if values else ""


def _newest_symbol(lines: _Lines, family: str, library: str) -> str:
    versions = [
        symbol.removeprefix(f"{family}_").rstrip(".")
        for name, symbol in lines["symbol"]
        if name == library and symbol.startswith(f"{family}_")
    ]
    return next(iter(newest_first([version for version in versions if is_version(version)])), "")


def _version_after(words: str, text: str) -> str:
    return _version_in(text.partition(words)[2].partition("\n")[0])


def _version_in(line: str) -> str:
    match = _VERSION.search(line)
    return match[0] if match else ""


def _compilers(rows: Iterable[list[str]]) -> tuple[Program, ...]:
    """Return each compiler once, with its first path on PATH."""
    by_name: dict[str, Program] = {}
    for path, version, line in rows:
        name = path.rpartition("/")[2]
        release = version or _version_in(line)
        if release:
            by_name.setdefault(name, Program(name, release, path))
    return tuple(by_name.values())


def _pythons(rows: Iterable[list[str]]) -> tuple[ImagePython, ...]:
    """Return each CPython once, without those that do not start."""
    pythons: dict[tuple[str, str], ImagePython] = {}
    for path, answer in rows:
        if not answer:
            continue
        try:
            values = json.loads(answer)
            python = msgspec.convert({**values, "path": path}, ImagePython)
            check_texts(values, path, UsageError)
            Version(python.version)
        except (ValueError, TypeError, RecursionError, UsageError) as error:
            msg = f"{path} printed {answer[:80]!r}: {error}"
            raise ValueError(msg) from None
        if values.get("implementation") == "cpython":
            held = {normalize_name(name): version for name, version in python.holds.items()}
            needs = {normalize_name(name): texts for name, texts in python.requires.items()}
            python = msgspec.structs.replace(python, holds=held, requires=needs)
            pythons.setdefault((python.prefix, python.version), python)
    return tuple(pythons.values())


def _labels(text: str) -> dict[str, str]:
    if not text:
        return {}
    try:
        labels = json.loads(text)
    except RecursionError:
        labels = None
    if not isinstance(labels, dict):
        msg = "the labels are not a JSON object"
        raise ValueError(msg)  # noqa: TRY004  damaged like any other line
    return {printable(str(key)): printable(str(value)) for key, value in labels.items()}
