"""Looking into a base image: one shell script is run in it, and its answer is read strictly."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from builders.cache import cache_root
from builders.containers.choosing import choose_runtime
from builders.containers.facts import ImageFacts, ImagePython, Tool, gcc_of
from builders.containers.runtime import View, run_in
from builders.files import write_atomic
from builders.recipes.build import Compiler
from resolver.errors import MatrixError, UsageError
from resolver.versions import is_version, newest_first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from builders.containers.image import Image
    from builders.containers.runtime import Runtime

_SCRIPT = Path(__file__).with_name("inspect.sh")
_MARK = "@fact"
_VERSION = re.compile(r"\d+(\.\d+)+")
_FAMILIES = {"GLIBCXX": "libstdc++.so.6", "CXXABI": "libstdc++.so.6", "GCC": "libgcc_s.so.1"}
_VALUES = {
    "os-id": 1, "os-version": 1, "os": 1, "architecture": 1, "glibc": 1, "library": 2, "symbol": 2, "rocm": 2,
    "hipcc": 2, "gpu-tool": 2, "compiler": 3, "tool": 3, "conda": 1, "python": 2, "labels": 1, "end": 0,
}  # fmt: skip
"""Every key that the script prints, and how many values it has."""

Said = dict[str, list[list[str]]]


def look_into(image: Image, kind: str | None = None) -> ImageFacts:
    """Look into a base image unless that was done before; then no container runtime is needed.

    Parameters
    ----------
    kind
        The runtime, as `choose_runtime` takes it.

    Raises
    ------
    EnvironmentLacksError
        There is no runtime that can run it.
    MatrixError
        As `inspect_image`.
    """
    return remembered(image) or inspect_image(choose_runtime(kind, image))


def inspect_image(runtime: Runtime) -> ImageFacts:
    """Look into the base image of a place; what was seen once is remembered by its digest.

    Raises
    ------
    CommandError
        Nothing can be run in the image; the error names the log.
    MatrixError
        Its answer is damaged; the error names the log.
    UsageError
        The place is this machine.
    """
    image = runtime.image
    if image is None:
        msg = "There is no base image to look into."
        raise UsageError(msg)
    seen = remembered(image)
    if seen is not None:
        return seen
    log = cache_root() / "logs" / f"inspect-{image.sha256[:12]}.log"
    log.unlink(missing_ok=True)
    what = f"Looking into the base image {image.name}"
    run_in(runtime, ["/bin/sh", "-c", _SCRIPT.read_text()], View(), what=what, log=log)
    try:
        facts = read_answer(log.read_text(errors="replace"), image)
    except ValueError as error:
        msg = f"{what} gave a damaged answer: {error}.\n  Log: {log}"
        raise MatrixError(msg, hint="Run it once more; if it stays so, report it with the log.") from None
    with suppress(OSError):  # a cache that cannot be written costs time only
        write_atomic(_memory(image), msgspec.json.encode(facts))
    return facts


def remembered(image: Image) -> ImageFacts | None:
    """Give what was seen in an image of this digest before; None if nobody looked."""
    try:
        seen = msgspec.json.decode(_memory(image).read_bytes(), type=ImageFacts)
    except (OSError, msgspec.DecodeError):
        return None
    return msgspec.structs.replace(seen, name=image.name, path=str(image.path))


def _memory(image: Image) -> Path:
    """Give the file of what was seen; another script or other fields are another file."""
    stamp = hashlib.sha256(_SCRIPT.read_bytes() + _schema()).hexdigest()[:12]
    return cache_root() / "images" / f"{image.sha256}-{stamp}.json"


def _schema() -> bytes:
    """Give the names of all fields: what another version of the program remembered may lack some."""
    kinds: tuple[type[Any], ...] = (ImageFacts, ImagePython, Tool)
    return " ".join(name for kind in kinds for name in kind.__struct_fields__).encode()


def read_answer(text: str, image: Image) -> ImageFacts:
    """Read what the script printed.

    Parameters
    ----------
    text
        Its whole output, and whatever else programs of the image printed meanwhile.

    Raises
    ------
    ValueError
        A line of it is damaged, or the end is missing.
    """
    said = _lines(text)
    one = _only(said)
    versions = {family: _newest_symbol(said, family, library) for family, library in _FAMILIES.items()}
    rocm_path, rocm = next(iter(said["rocm"]), ["", ""])
    hip = "\n".join(line for _, line in said["hipcc"])
    return ImageFacts(
        name=image.name,
        path=str(image.path),
        digest=image.digest,
        os=one("os"),
        os_id=one("os-id"),
        os_version=one("os-version"),
        architecture=one("architecture"),
        glibc=one("glibc").removeprefix("glibc "),
        glibcxx=versions["GLIBCXX"],
        cxxabi=versions["CXXABI"],
        gcc=versions["GCC"],
        libstdcxx=gcc_of(versions["GLIBCXX"]),
        rocm=rocm.partition("-")[0],
        rocm_path=rocm_path,
        hipcc=_after("HIP version:", hip),
        clang=_after("clang version", hip),
        gpu_tools=dict(map(_pair, said["gpu-tool"])),
        compilers=_compilers(said["compiler"]),
        tools={name: Tool(path=path, version=_version_in(line)) for name, path, line in said["tool"]},
        pythons=_pythons(said["python"]),
        conda=tuple(sorted({path for (path,) in said["conda"]})),
        labels=_labels(one("labels")),
        libraries=tuple(sorted({name for name, _ in said["library"]})),
    )


def _lines(text: str) -> Said:
    said: Said = {key: [] for key in _VALUES}
    for line in text.splitlines():
        # A program may have ended its last line without a newline: the mark need not stand first.
        _, found, rest = line.rpartition(f"{_MARK}\t")
        if not found:
            continue
        key, *values = rest.split("\t")
        if said["end"] or _VALUES.get(key) != len(values):
            msg = f"the line {rest[:80]!r} is not what the script prints"
            raise ValueError(msg)
        said[key].append(values)
    if not said["end"]:
        msg = "its end is missing"
        raise ValueError(msg)
    return said


def _only(said: Said) -> Callable[[str], str]:
    """Give a function that gives the one value of a key; empty without any."""

    def one(key: str) -> str:
        values = {row[0] for row in said[key]}
        if len(values) > 1:
            msg = f"there are {len(values)} values of {key}"
            raise ValueError(msg)
        return values.pop() if values else ""

    return one


def _pair(values: list[str]) -> tuple[str, str]:
    name, path = values
    return name, path


def _newest_symbol(said: Said, family: str, library: str) -> str:
    versions = [
        symbol.removeprefix(f"{family}_").rstrip(".")
        for name, symbol in said["symbol"]
        if name == library and symbol.startswith(f"{family}_")
    ]
    return next(iter(newest_first([one for one in versions if is_version(one)])), "")


def _after(what: str, text: str) -> str:
    """Give the version that stands after some words."""
    return _version_in(text.partition(what)[2].partition("\n")[0])


def _version_in(line: str) -> str:
    found = _VERSION.search(line)
    return found[0] if found else ""


def _compilers(rows: Iterable[list[str]]) -> tuple[Compiler, ...]:
    """Give each compiler once, by the first path that PATH finds it at."""
    found: dict[str, Compiler] = {}
    for path, version, line in rows:
        name = path.rpartition("/")[2]
        release = version or _version_in(line)
        if release:
            found.setdefault(name, Compiler(name, release, path))
    return tuple(found.values())


def _pythons(rows: Iterable[list[str]]) -> tuple[ImagePython, ...]:
    """Give each Python once; one that cannot be started, or is no CPython, is left out."""
    found: dict[tuple[str, str], ImagePython] = {}
    for path, answer in rows:
        if not answer:
            continue
        try:
            told = json.loads(answer)
            python = msgspec.convert({**told, "path": path}, ImagePython)
        except (ValueError, TypeError) as error:
            msg = f"{path} answered {answer[:80]!r}: {error}"
            raise ValueError(msg) from None
        if told.get("implementation") == "cpython":
            held = {name.lower().replace("_", "-"): version for name, version in python.holds.items()}
            found.setdefault((python.prefix, python.version), msgspec.structs.replace(python, holds=held))
    return tuple(found.values())


def _labels(text: str) -> dict[str, str]:
    if not text:
        return {}
    told = json.loads(text)
    if not isinstance(told, dict):
        msg = "the labels are no JSON object"
        raise ValueError(msg)  # noqa: TRY004  a damaged answer, as any other
    return {str(key): str(value) for key, value in told.items()}
