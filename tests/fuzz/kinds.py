"""The kinds of untrusted input: valid examples, functions that change them, and the code that reads them."""

from __future__ import annotations

import datetime
import email.parser
import gzip
import io
import json
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from threading import Thread
from typing import IO, Any, NamedTuple, cast
from unittest.mock import patch

import tomli_w
from elftools.elf.elffile import ELFFile
from ruamel.yaml import YAML

from builders.audit.elf import read_object
from builders.audit.gpu_code import read_code_objects
from builders.audit.wheel_audit import audit_wheel
from builders.containers.squashfs import Squashfs
from builders.diagnosis import read_log
from builders.index import Index
from builders.index_client import metadata, pages
from builders.installed import reading
from builders.network.transport import Transport
from builders.network.urls import RequestError
from builders.scheduling.slurm import Slurm
from builders.sources.source import unpack_sdist
from builders.wheels.wheel import DamagedError
from matrix.input.inputs import read_inputs
from matrix.input.settings import Settings, merge, read_file
from matrix.judging.corrections import check, fixed
from matrix.judging.target import ExpectedTarget, expect_request
from matrix.reading import recipe
from matrix.reading.items import Reading
from matrix.reading.recognise import read, read_described
from resolver.answers.resolve import resolve
from resolver.errors import MatrixError
from resolver.facts.catalog import load, load_uncached
from resolver.lock import digest_of, dumps, read_lock
from resolver.model import Request, Resolution, Target
from resolver.reporter import SILENT
from resolver.requirements import parse_requirement
from tests.builders.bundles import HOST, PREFIX, code_object, packed, padded, plain
from tests.fuzz import mutators
from tests.support.elf import shared_object
from tests.support.hostile import CANARY
from tests.support.images import archive_of, layer, oci_archive, sif
from tests.support.installed import Tree, library
from tests.support.strangers import PYLOCK, RUN, SITE, data_of, emitted, everything, read_back

if sys.version_info >= (3, 12):
    import tarfile
else:  # Python 3.11.0 to 3.11.3 have no extraction filters
    import backports.tarfile as tarfile  # noqa: PLR0402  has no types, so it is not an attribute

TESTS = Path(__file__).parents[1]
FACTS = TESTS.parent / "resolver" / "facts"
TAGS = f"cp311-cp311-linux_{platform.machine()}"


class Kind(NamedTuple):
    """A kind of input."""

    name: str
    corpus: Callable[[], Sequence[Any]]
    """Return valid inputs, as text, bytes or data."""
    mutate: Callable[[Random, Any], bytes]
    """Return a changed input as the content of a file."""
    parse: Callable[[bytes], object]
    """The first parser; if it raises an error, the input did not reach the code after it."""
    enter: Callable[[bytes, Path], object]
    """Pass the input to the program; the directory is empty."""
    allowed: tuple[type[Exception], ...] = ()
    """Errors with a message for users."""


def small(paths: Iterable[Path], largest: int) -> list[Path]:
    return sorted(path for path in paths if path.stat().st_size < largest)


def texts(paths: Iterable[Path], largest: int) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in small(paths, largest)]


def utf8(value: str) -> bytes:
    return value.encode(errors="replace")


def mutate_lines(random: Random, value: str) -> bytes:
    return utf8(mutators.lines(random, value))


def mutate_toml(random: Random, value: dict[str, Any]) -> bytes:
    written = tomli_w.dumps(mutators.tree(random, value))
    return utf8(mutators.text(random, written, 1) if random.random() < 0.1 else written)


def parse_toml(content: bytes) -> object:
    return tomllib.loads(content.decode())


def written(content: bytes, path: Path) -> Path:
    path.write_bytes(content)
    return path


# Catalogs, locks, matrix.toml.


def catalogs() -> list[dict[str, Any]]:
    return [tomllib.loads(text) for text in texts(FACTS.rglob("*.toml"), 4000)]


def read_catalog(content: bytes, work: Path) -> None:
    load_uncached([[str(written(content, work / "own.toml"))]])


def locks() -> list[dict[str, Any]]:
    target = Target(backend="rocm", gfx=("gfx90a",), site="lumi-g", date=datetime.date(2025, 6, 1))
    made = []
    for names in (["torch"], ["apex", "deepspeed"]):
        answer = resolve(load(), Request(target, tuple(map(parse_requirement, names))))
        assert isinstance(answer, Resolution)
        lock = tomllib.loads(dumps(answer))
        lock["picks"] = lock["picks"][-3:]  # small ones are faster
        made.append(lock)
    return made


def mutate_lock(random: Random, value: dict[str, Any]) -> bytes:
    """Return a changed lock with the matching digest, so that its content is read."""
    new = mutators.tree(random, {key: item for key, item in value.items() if key != "integrity"})
    if random.random() < 0.98:
        new["integrity"] = {"sha256": digest_of(new)}
    return utf8(tomli_w.dumps(new))


def enter_lock(content: bytes, work: Path) -> None:
    dumps(read_lock(written(content, work / "matrix.lock")))


# Files of strangers: every text of locks, states of runs, pylock files and sites.


def mutate_texts(dump: Callable[[Any], str]) -> Callable[[Random, Any], bytes]:
    """Return a function that replaces texts of data, and writes it."""

    def mutate(random: Random, value: Any) -> bytes:
        return utf8(dump(mutators.strangers_texts(random, value)))

    return mutate


def signed(data: dict[str, Any]) -> str:
    return tomli_w.dumps({**data, "integrity": {"sha256": digest_of(data)}})


def strangers_locks() -> list[dict[str, Any]]:
    return [data_of(everything(keeps_torch=kept)) for kept in (False, True)]


def read_strangers_lock(content: bytes, work: Path) -> Resolution:
    lock = read_lock(written(content, work / "matrix.lock"))
    assert all(line.isprintable() for line in dumps(lock).splitlines())
    return lock


def enter_scripts(content: bytes, work: Path) -> None:
    """Write all files from a lock, and run the scripts; none may run a text."""
    lock = read_strangers_lock(content, work)
    kept = any(pick.origin == "preinstalled" for pick in lock.distributions)
    for consumer in ("venv", "easybuild", "apptainer") if kept else ("cotainr", "tykky", "apptainer"):
        folder = Path(tempfile.mkdtemp(dir=work))
        with suppress(MatrixError):
            for file in emitted(lock, consumer, folder):
                if not file.name.endswith(".txt"):  # the next kind reads them
                    read_back(file, folder)
        assert not list(folder.rglob(CANARY))


def enter_yaml(content: bytes, work: Path) -> None:
    """Write environment files from a lock, and compare what YAML reads."""
    lock = read_strangers_lock(content, work)
    with suppress(MatrixError):
        (file, *_) = emitted(lock, "cotainr", work)
        document = YAML(typ="safe").load(file.text)
        assert [*document] == ["name", "channels", "dependencies"]
        assert document["channels"] == ["conda-forge"]
        *others, pip = document["dependencies"]
        assert [*pip] == ["pip"]
        assert all(isinstance(line, str) and line.isprintable() for line in (*others, *pip["pip"]))
        options = {line.partition(" ")[0] for line in pip["pip"] if line.startswith("-")}
        assert options <= {"--extra-index-url", "--only-binary"}


def enter_run(content: bytes, work: Path) -> None:
    executor = Slurm(Index(work / "index"), SILENT)
    executor.state_file.parent.mkdir(parents=True, exist_ok=True)
    executor.state_file.write_bytes(content)
    run = executor.current_run()
    assert run is not None
    assert all(key.isascii() and "/" not in key for task in run.tasks for key in (task.key, task.name))


def enter_pylock(content: bytes, work: Path) -> None:
    for item in read(written(content, work / "pylock.toml")).items:
        assert item.text.isprintable()
        parse_requirement(item.text)


def enter_settings(content: bytes, work: Path) -> None:
    read_inputs(merge(Settings(), read_file(written(content, work / "matrix.toml"))))


SETTINGS: list[dict[str, Any]] = [
    {
        "requirements": ["torch>=2.4", "deepspeed ; python_version < '3.13'"],
        "site": "lumi-g",
        "date": datetime.date(2026, 3, 1),
        "gfx": ["gfx90a"],
        "python": "3.12",
        "rocm": "6.4.*",
        "catalog": ["facts"],
        "mirrors": {"https://files.example/": "https://mirror.example/files/"},
        "support": "observed",
        "prefer": "newest",
    },
    {"requirements": ["apex"], "backend": "cpu", "index-url": "https://index.example/simple/"},
]


# Requirements and conda files.


@cache
def lumi() -> ExpectedTarget:
    target = Target(backend="rocm", gfx=("gfx90a",), site="lumi-g", date=datetime.date(2026, 3, 1))
    return expect_request(Request(target, ()), load(), "cotainr")


@lru_cache(maxsize=1)
def document(content: bytes, name: str) -> Reading:
    return read_described(content.decode(), name)


def parse_document(name: str) -> Callable[[bytes], object]:
    """Return the parser of lines or of YAML, which rejects a file without any line."""

    def parse(content: bytes) -> None:
        read = document(content, name)
        if not read.lines:
            msg = "no line"
            raise ValueError(msg)

    return parse


def check_document(name: str) -> Callable[[bytes, Path], object]:
    def enter(content: bytes, _: Path) -> None:
        check(document(content, name), lumi())
        if len(content) % 8 == 0:  # it takes several times as long
            fixed(document(content, name), lumi())

    return enter


# Metadata and pages of package indexes.

METADATA = """\
Metadata-Version: 2.1
Name: tiny
Version: 1.0
Summary: A test
Requires-Python: >=3.9,<4
Requires-Dist: torch==2.9.1
Requires-Dist: numpy>=1.2,!=1.3.*; python_version < "3.12" and extra == "all"
Requires-Dist: pkg[a,b] @ https://files.example/pkg-1.0-py3-none-any.whl
Provides-Extra: all
Description-Content-Type: text/markdown
License: a
 long
 text

# Title
"""


def read_metadata(content: bytes, _: Path) -> None:
    parsed = metadata.parse(content, "tiny-1.0-py3-none-any.whl", "its metadata")
    for requirement in parsed.requires:
        parse_requirement(requirement)


def parse_headers(content: bytes) -> None:
    if "Name" not in email.parser.BytesHeaderParser().parsebytes(content):
        msg = "no name"
        raise ValueError(msg)


URL = "https://index.example/simple/tiny/"
NAMES = (
    "tiny-1.0.tar.gz",
    "tiny-1.0-py3-none-any.whl",
    "tiny-1.1+rocm6.4-cp311-cp311-manylinux_2_28_x86_64.whl",
)
HASH = "0" * 64
HTML = (
    '<!DOCTYPE html>\n<html><head><meta name="pypi:repository-version" content="1.1">\n'
    '<meta name="pypi:project-status" content="active"></head><body>\n'
    + "".join(
        f'<a href="../../files/{name}#sha256={HASH}" data-requires-python="&gt;=3.9"'
        f' data-core-metadata="sha256={HASH}" data-yanked="bad">{name}</a><br/>\n'
        for name in NAMES
    )
    + "</body></html>\n"
)
JSON: dict[str, Any] = {
    "meta": {"api-version": "1.3"},
    "name": "tiny",
    "project-status": {"status": "active"},
    "versions": ["1.0"],
    "files": [
        {
            "filename": name,
            "url": f"../../files/{name}",
            "hashes": {"sha256": HASH},
            "requires-python": ">=3.9",
            "size": 1000,
            "upload-time": "2026-01-01T00:00:00.123Z",
            "yanked": False,
            "core-metadata": {"sha256": HASH},
        }
        for name in NAMES
    ],
}


def read_page(content_type: str) -> Callable[[bytes, Path], object]:
    def enter(content: bytes, _: Path) -> None:
        for project in ("tiny", ""):
            for _version, rows in pages.releases(content, content_type, URL, project):
                pages.files(rows, URL, URL)

    return enter


def mutate_json(random: Random, value: dict[str, Any]) -> bytes:
    return utf8(json.dumps(mutators.tree(random, value), default=str))


def parse_html(content: bytes) -> None:
    if "<a " not in content.decode():
        msg = "no link"
        raise ValueError(msg)


# Wheels, shared objects, GPU code.


@cache
def bundles() -> tuple[bytes, ...]:
    entries = [HOST, *((f"{PREFIX}{name}", code_object(name)) for name in ("gfx90a", "gfx942"))]
    bundle = plain(entries, align=64)
    return (
        bundle,
        packed(bundle, 2),
        packed(bundle, 3),
        packed(bundle, 1),
        padded(bundle, packed(bundle, 2), align=64),
    )


@cache
def objects() -> tuple[bytes, ...]:
    versions = {"libc.so.6": ["GLIBC_2.17", "GLIBC_2.34"], "libstdc++.so.6": ["GLIBCXX_3.4.21", "CXXABI_1.3"]}
    symbols = ["_ZN2at4zeroEv", "_ZN3c105ErrorD1Ev", "puts"]
    return (
        shared_object(),
        shared_object(needed=["libc.so.6", "libtorch.so"], soname="op.so", runpath="$ORIGIN:/opt/rocm/lib"),
        shared_object(versions=versions, symbols=symbols, fatbin=bundles()[0]),
    )


def libraries() -> list[bytes]:
    versions = ("GLIBCXX_3.4", "GLIBCXX_3.4.9", "GLIBCXX_3.4.30", "CXXABI_1.3", "CXXABI_1.3.13")
    return [library("libstdc++.so.6", versions), library("libc.so.6", ("GLIBC_2.2.5", "GLIBC_2.34"))]


def wheels() -> list[dict[str, bytes]]:
    info = "tiny-1.0.dist-info"
    wheel = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {TAGS}\n".encode()
    made = []
    for number, item in enumerate(objects()):
        members = {
            "tiny/__init__.py": b"",
            "tiny/op.cpython-311.so": item,
            "tiny/git_version_info_installed.py": b"installed_ops={'a': True}\nversion='1'\n",
            "tiny/kernel.hsaco": code_object(),
            f"{info}/METADATA": METADATA.encode(),
            f"{info}/WHEEL": wheel,
        }
        record = "".join(f"{name},sha256=x,{len(content)}\n" for name, content in members.items())
        made.append({**members, f"{info}/RECORD": record.encode() + b"r,,\n" * number})
    return made


def mutate_wheel(random: Random, value: dict[str, bytes]) -> bytes:
    members = list(value.items())
    for _ in range(random.randint(0, 3)):
        at = random.randrange(len(members))
        name, content = members[at]
        change = random.randrange(4)
        if change == 0:
            members[at] = (mutators.text(random, name, 1) or "x", content)
        elif change == 1:
            members.append(members[at])
        elif name.endswith((".so", ".hsaco")):
            members[at] = (name, mutators.data(random, content))
        else:
            members[at] = (name, utf8(mutators.lines(random, content.decode(errors="replace"))))
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name.replace("\0", "")), content)
    whole = sink.getvalue()
    if random.random() < 0.6:
        start = archive.start_dir if random.random() < 0.8 else 0
        end = len(whole) - (22 if random.random() < 0.9 else 0)
        whole = whole[:start] + mutators.data(random, whole[start:end], most=2) + whole[end:]
    return whole


def parse_zip(content: bytes) -> None:
    zipfile.ZipFile(io.BytesIO(content)).close()


def enter_wheel(content: bytes, work: Path) -> None:
    audit_wheel(written(content, work / f"tiny-1.0-{TAGS}.whl"))


def mutate_data(random: Random, value: bytes) -> bytes:
    return mutators.data(random, value)


def parse_elf(content: bytes) -> None:
    ELFFile(io.BytesIO(content))


def enter_elf(content: bytes, _: Path) -> None:
    read_object("a.so", content)


def enter_gpu_code(content: bytes, _: Path) -> None:
    read_code_objects("x.so", content, 0, len(content))


def parse_bundle(content: bytes) -> None:
    """Accept content that begins with the magic number and a count or version that the reader supports."""
    if content.startswith(b"__CLANG_OFFLOAD_BUNDLE__"):
        (count,) = struct.unpack_from("<Q", content, 24)
        known = 0 < count <= 1024
    else:
        version, method = struct.unpack_from("<HH", content, 4)
        known = content.startswith(b"CCOB") and version in {1, 2, 3} and method in {0, 1}
    if not known:
        msg = "no bundle"
        raise ValueError(msg)


# Sdists.

Member = tuple[str, bytes, bytes, str, dict[str, str]]
"""Name, type, content, target of a link, and extended headers."""
SDISTS: list[list[Member]] = [
    [
        ("tiny-1.0", tarfile.DIRTYPE, b"", "", {}),
        ("tiny-1.0/setup.py", tarfile.REGTYPE, b"print(1)\n", "", {}),
        ("tiny-1.0/src/a.c", tarfile.REGTYPE, b"int a;\n" * 100, "", {"mtime": "1700000000.5"}),
        ("tiny-1.0/link", tarfile.SYMTYPE, b"", "setup.py", {}),
        ("tiny-1.0/hard", tarfile.LNKTYPE, b"", "tiny-1.0/setup.py", {}),
        ("tiny-1.0/PKG-INFO", tarfile.REGTYPE, METADATA.encode(), "", {"comment": "x"}),
    ]
]
TYPES = (b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"S", b"L", b"K", b"x", b"g", b"X", b"Z")
HEADERS = (
    "path", "linkpath", "size", "mtime", "uid", "mode", "hdrcharset", "GNU.sparse.map", "GNU.sparse.size",
    "GNU.sparse.major", "GNU.sparse.name", "GNU.sparse.realsize",
)  # fmt: skip


def mutate_sdist(random: Random, value: list[Member]) -> bytes:
    members = list(value)
    for _ in range(random.randint(1, 3)):
        at, change = random.randrange(len(members)), random.randrange(6)
        name, kind, content, link, headers = members[at]
        if change == 0:
            name = mutators.text(random, name, 1)
        elif change == 1:
            kind = random.choice(TYPES)
        elif change == 2:
            link = mutators.text(random, link, 1)
        elif change == 3:
            headers = {**headers, random.choice(HEADERS): random.choice(("1", "0,1", *mutators.TEXTS))}
        elif change == 4:
            name = random.choice(members)[0]
        end = at if random.random() < 0.3 else at + 1
        members[at:end] = [(name, kind, content, link, headers)]
    sink = io.BytesIO()
    with tarfile.open(
        fileobj=sink, mode="w", format=random.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
    ) as tar:
        for name, kind, content, link, headers in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.pax_headers, info.size = kind, link, headers, len(content)
            tar.addfile(info, io.BytesIO(content))
    whole = sink.getvalue()
    if random.random() < 0.3:
        whole = with_changed_header(random, whole)
    if random.random() < 0.1:
        whole = gzip.compress(whole, 1)
        whole = whole[:10] + mutators.data(random, whole[10:], most=1)
    return whole


def with_changed_header(random: Random, whole: bytes) -> bytes:
    """Change a header and correct its checksum."""
    start = 512 * random.randrange(max(1, len(whole) // 512))
    header = bytearray(mutators.data(random, whole[start : start + 512], most=2)[:512].ljust(512, b"\0"))
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return whole[:start] + bytes(header) + whole[start + 512 :]


def parse_tar(content: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        if tar.next() is None:
            msg = "empty"
            raise ValueError(msg)


def enter_sdist(content: bytes, work: Path) -> None:
    archive = written(content, work / "tiny-1.0.tar.gz")
    try:
        unpack_sdist(archive, work / "out")
    except MatrixError as error:
        if archive.name not in error.message or str(work) in error.message:
            msg = "the message does not name the archive, or has a temporary path"
            raise AssertionError(msg) from None
        raise
    finally:
        shutil.rmtree(work / "out", ignore_errors=True)


def enter_sdist_metadata(content: bytes, _: Path) -> None:
    metadata.from_sdist("tiny-1.0.tar.gz", io.BytesIO(content))


def enter_log(content: bytes, work: Path) -> None:
    read_log(written(content, work / "log"))


# Images, environments and recipes.

DOCKERFILE = """\
ARG BASE=rocm/dev-ubuntu-24.04:7.2
FROM $BASE AS build
ENV PIP_EXTRA_INDEX_URL=https://index.example/simple TORCH=2.9.1
RUN --mount=type=cache,target=/root/.cache pip install "torch==${TORCH}+rocm7.2" \\
    numpy==2.2.* && cd /src && python setup.py install
COPY --from=0 /a /b
FROM build
RUN <<END
pip install -r requirements.txt
END
CMD ["python"]
"""
DEFINITION = """\
Bootstrap: docker
From: {{ BASE }}
Stage: build
%arguments
    BASE=rocm/pytorch:latest
%post
    export X=1; pip install torch==2.9.1 apex
%files from build
    /a /b
"""


@cache
def tree_of_image() -> dict[str, bytes]:
    """Return the files of an image with torch, by their paths."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder), "image", plugin=False).torch().extension("apex")
        tree.file(f"{tree.site}/extra.pth", b"import os\n/opt/other/site-packages\n")
        files = (path for path in tree.root.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@cache
def packed_image() -> bytes:
    """Return a squashfs whose inodes are not compressed, so that changes of them can be read."""
    with tempfile.TemporaryDirectory() as folder:
        root, path = Path(folder, "root"), Path(folder, "a.sqsh")
        for name, content in tree_of_image().items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        line = ["mksquashfs", str(root), str(path), "-quiet", "-no-progress", "-noI", "-noF"]
        subprocess.run(line, check=True)
        return path.read_bytes()


def mutate_squashfs(random: Random, value: bytes) -> bytes:
    """Change the header, or the tables, which are at the end."""
    tables = struct.unpack_from("<Q", value, 64)[0]
    if random.random() < 0.3:
        return mutators.data(random, value[:96])[:96].ljust(96, b"\0") + value[96:]
    return value[:tables] + mutators.data(random, value[tables:])


def mutate_sif(random: Random, value: bytes) -> bytes:
    start = 4096 if random.random() < 0.5 else 0
    return value[:start] + mutators.data(random, value[start : start + 600]) + value[start + 600 :]


@cache
def sif_image() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return sif(Path(folder, "a.sif"), packed_image()).read_bytes()


@cache
def oci_members() -> dict[str, bytes]:
    """Return the members of an archive with two layers."""
    with tempfile.TemporaryDirectory() as folder:
        names = [*tree_of_image()]
        for name, content in tree_of_image().items():
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, name).write_bytes(content)
        layers = [
            layer(Path(folder), *names[::2]),
            gzip.compress(layer(Path(folder), *names[1::2], removed=("etc/.wh.a",))),
        ]
        with tarfile.open(oci_archive(Path(folder, "a.tar"), *layers)) as archive:
            return {info.name: cast("IO[bytes]", archive.extractfile(info)).read() for info in archive}


def mutate_oci(random: Random, value: dict[str, bytes]) -> bytes:
    name = random.choice([*value])
    content = value[name]
    if content.startswith(b"{"):
        content = mutate_json(random, json.loads(content))
    elif content.startswith(b"\x1f\x8b") and random.random() < 0.5:
        content = gzip.compress(with_changed_header(random, gzip.decompress(content)), 1)
    elif random.random() < 0.5:
        content = with_changed_header(random, content)
    else:
        content = mutators.data(random, content)
    with tempfile.TemporaryDirectory() as folder:
        return archive_of(Path(folder, "a.tar"), {**value, name: content}).read_bytes()


def mutate_tree(random: Random, value: dict[str, bytes]) -> bytes:
    """Change one file; return all in a tar archive."""
    name = random.choice([*value])
    content = value[name]
    is_object = content.startswith(b"\x7fELF")
    changed = mutators.data(random, content) if is_object else mutate_lines(random, content.decode("latin-1"))
    with tempfile.TemporaryDirectory() as folder:
        return archive_of(Path(folder, "a.tar"), {**value, name: changed}).read_bytes()


def parse_image(content: bytes) -> None:
    start = content.index(b"hsqs")
    Squashfs(io.BytesIO(content), start)


def enter_image(suffix: str) -> Callable[[bytes, Path], object]:
    return lambda content, work: read_files(written(content, work / f"a{suffix}"))


def enter_tree(content: bytes, work: Path) -> None:
    root = work / "tree"
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(root, filter="data")
        read_files(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def read_files(path: Path) -> None:
    """Read in this process, which has the limits of a case, and derive what is judged."""
    found = reading.installed(path)
    for name in ("missing", "editable", "damaged", "owners", "platform", "versions", "torch", "variables"):
        getattr(found, name)


def enter_recipe(name: str) -> Callable[[bytes, Path], object]:
    return lambda content, _: recipe.read(content.decode(), name)


# Replies of servers.

BODY = b"PK" * 60
REPLIES = [
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 120\r\n\r\n" + BODY,
    b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 880-999/1000\r\nContent-Length: 120\r\n\r\n"
    + BODY,
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3c;name=value\r\n" + BODY[:60] + b"\r\n3C\r\n" + BODY[:60] + b"\r\n0\r\nTrailer: 1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n" + gzip.compress(BODY, mtime=0),
    b"HTTP/1.1 302 Found\r\nLocation: https://files.example:443/a?b=c#d\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 20\r\nContent-Length: 0\r\n\r\n",
    b'HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm="x"\r\nContent-Length: 0\r\n\r\n',
]


def mutate_reply(random: Random, value: bytes) -> bytes:
    if random.random() < 0.5:
        return mutators.data(random, value)
    return mutators.lines(random, value.decode("latin-1")).encode("latin-1", "replace")


def parse_reply(content: bytes) -> None:
    if not content.startswith(b"HTTP/1."):
        msg = "no status line"
        raise ValueError(msg)


def enter_reply(content: bytes, _: Path) -> None:
    """Serve a reply to each request of a client; every host is this server, and no time is spent waiting."""

    def serve(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, suppress(OSError):
                    if not connection.recv(1 << 16):
                        continue
                    connection.sendall(content)
                    connection.shutdown(socket.SHUT_WR)

    def connect(*_: object, **__: object) -> socket.socket:
        return socket.create_connection(address)

    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        patch.dict(os.environ, {"NO_PROXY": "*", "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring"}),
        patch("urllib3.util.connection.create_connection", connect),
        patch("urllib3.util.retry.Retry.sleep"),
    ):
        address = server.getsockname()
        thread = Thread(target=serve, args=[server], daemon=True)
        thread.start()
        try:
            request_all(Transport([], {}))
        finally:
            server.shutdown(socket.SHUT_RDWR)  # ends `accept`
            thread.join()


def request_all(client: Transport) -> None:
    for request in (
        lambda: client.page("http://index.example/simple/", {}),
        lambda: client.small_file("http://files.example/a.metadata", 1000),
        lambda: b"".join(client.download("http://files.example/a.whl", 1000)),
        lambda: client.remote_file("http://files.example/a.whl", 120),
        lambda: client.read_range("http://files.example/a.whl", 0, 120),
    ):
        with suppress(RequestError):
            request()
        client._down.clear()


CHECKS = TESTS / "matrix" / "checks"
LOGS = TESTS / "builders" / "data" / "logs"
KINDS = (
    Kind("catalog", catalogs, mutate_toml, parse_toml, read_catalog, (MatrixError,)),
    Kind("lock", locks, mutate_lock, parse_toml, enter_lock, (MatrixError,)),
    Kind(
        "lock-texts", strangers_locks, mutate_texts(signed), parse_toml, read_strangers_lock, (MatrixError,)
    ),
    Kind("scripts", strangers_locks, mutate_texts(signed), parse_toml, enter_scripts, (MatrixError,)),
    Kind("yaml", strangers_locks, mutate_texts(signed), parse_toml, enter_yaml, (MatrixError,)),
    Kind("run-texts", lambda: [RUN], mutate_texts(json.dumps), json.loads, enter_run, (MatrixError,)),
    Kind(
        "pylock-texts",
        lambda: [PYLOCK],
        mutate_texts(tomli_w.dumps),
        parse_toml,
        enter_pylock,
        (MatrixError,),
    ),
    Kind(
        "site-texts",
        lambda: [tomllib.loads(SITE)],
        mutate_texts(tomli_w.dumps),
        parse_toml,
        read_catalog,
        (MatrixError,),
    ),
    Kind("matrix.toml", lambda: SETTINGS, mutate_toml, parse_toml, enter_settings, (MatrixError,)),
    Kind(
        "requirements",
        lambda: texts(CHECKS.glob("*.txt"), 1000),
        mutate_lines,
        parse_document("a.txt"),
        check_document("a.txt"),
        (MatrixError,),
    ),
    Kind(
        "conda",
        lambda: texts(CHECKS.glob("*.yml"), 400),
        mutate_lines,
        parse_document("a.yml"),
        check_document("a.yml"),
        (MatrixError,),
    ),
    Kind(
        "metadata",
        lambda: [METADATA],
        mutate_lines,
        parse_headers,
        read_metadata,
        (MatrixError, DamagedError),
    ),
    Kind("html", lambda: [HTML], mutate_lines, parse_html, read_page("text/html"), (pages.PageError,)),
    Kind("json", lambda: [JSON], mutate_json, json.loads, read_page("text/json"), (pages.PageError,)),
    Kind("wheel", wheels, mutate_wheel, parse_zip, enter_wheel, (MatrixError,)),
    Kind("elf", objects, mutate_data, parse_elf, enter_elf, (DamagedError,)),
    Kind("elf-versions", libraries, mutate_data, parse_elf, enter_elf, (DamagedError,)),
    Kind(
        "squashfs",
        lambda: [packed_image()],
        mutate_squashfs,
        parse_image,
        enter_image(".sqsh"),
        (MatrixError,),
    ),
    Kind("sif", lambda: [sif_image()], mutate_sif, parse_image, enter_image(".sif"), (MatrixError,)),
    Kind("oci", lambda: [oci_members()], mutate_oci, parse_tar, enter_image(".tar"), (MatrixError,)),
    Kind("installed", lambda: [tree_of_image()], mutate_tree, parse_tar, enter_tree, (MatrixError,)),
    Kind("dockerfile", lambda: [DOCKERFILE], mutate_lines, len, enter_recipe("Dockerfile")),
    Kind("definition", lambda: [DEFINITION], mutate_lines, len, enter_recipe("a.def")),
    Kind("gpu-code", bundles, mutate_data, parse_bundle, enter_gpu_code),
    Kind("sdist", lambda: SDISTS, mutate_sdist, parse_tar, enter_sdist, (MatrixError,)),
    Kind("sdist-metadata", lambda: SDISTS, mutate_sdist, parse_tar, enter_sdist_metadata, (DamagedError,)),
    Kind("http-reply", lambda: REPLIES, mutate_reply, parse_reply, enter_reply),
    Kind("log", lambda: texts(LOGS.glob("*.log"), 2000), mutate_lines, len, enter_log),
)
