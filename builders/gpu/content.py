"""Read what a wheel contains for GPUs: cheaply before it is chosen, completely before it is used.

Both stages read with the reader of the audit and judge with the same rules. They differ in how much is read:

- `read_start` reads the directory and the metadata of a wheel on a server, by one or two range requests. If
  these suggest GPU code, it also reads objects: small ones as a whole, and the start of some large ones,
  which has the table of the libraries that they need. The limits depend on the file only.
- `read_complete` reads every shared object, code object and CUDA source of a wheel on this machine.

**CUDA required or optional.** No file states this. The rules follow from wheels whose use of CUDA is known
(docs/development/content.md). CUDA is *required* if

1. an extension module needs a library of CUDA, itself or through other libraries of the wheel: Python
   cannot import it without CUDA. This does not count if the wheel has variants of an object for several
   devices (``ops_cpu.so`` beside ``ops_cuda.so``), because it may choose, or if its ``__init__.py`` calls
   ``load_library`` in a ``try`` block, because it can do without (torchao). A library that is no extension
   module may be a plugin, which is opened if a GPU is present. So in a wheel without extension modules,
   CUDA is required only if all libraries need it that no other library of the wheel needs;
2. its name is that of a build for CUDA (``cuml-cu12``), or its metadata requires such a distribution
   without a condition, and no object contains code for CUDA beside a path that needs none (as in xgboost);
3. it has no object, but CUDA sources that do not mention HIP: it compiles them when it is used. A few beside
   much Python do not count, nor do any beside sources in a folder for HIP (optimum-quanto).

CUDA is *optional* if there is any other code for CUDA or library for it: Python can load the wheel without.
A wheel that also needs libraries of ROCm is never bound to CUDA by rule 1.

**Libraries of other distributions.** A library without which, by rule 1, the wheel cannot be used, and that
neither it nor every system has, is *needed* if an extra of the wheel may bring it (mlx needs ``libmlx.so``).
Whether the extra does is read in the wheel that it requires. Everything else may come from the system.

Two kinds of wheels are *not judged*, although their objects were read:

- Its name is for ROCm, but nothing shows for which releases: it opens HIP when it is used (hip-python).
- It uses torch's C++ interface, which is not stable, and the metadata does not say for which release of
  torch it was compiled (torchrl).

Texts in objects are no evidence: LLVM and the loaders of CPU builds name libraries of all vendors.
Directories are none either: CuPy for ROCm has its extension modules in ``cupy/cuda``.
"""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

import msgspec
from msgspec.structs import replace

from builders.audit.contents import (
    BARE_OBJECT,
    OTHER_BACKENDS,
    SHARED_OBJECT,
    VARIANT,
    matches_any,
    read_contents,
)
from builders.audit.elf import SharedObject, read_ends
from builders.audit.platform_tags import CUDA_LIBRARIES, ROCM_LIBRARIES, libraries_of_system
from builders.gpu import FRAMEWORKS, SIGN
from builders.wheels.wheel import DamagedError, WheelReader
from resolver.environment import Environment
from resolver.indexes import Content
from resolver.requirements import companions, is_for_cuda
from resolver.versions import join_words

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from packaging.requirements import Requirement

    from builders.audit.contents import Contents
    from builders.findings import Finding

_ROCM_OF = {
    "libamdhip64.so.5": ">=5,<6", "libamdhip64.so.6": ">=6,<7", "libamdhip64.so.7": ">=7",
    "libhipblas.so.2": ">=6,<7", "libhipblas.so.3": ">=7",
}  # fmt: skip
"""Names of ROCm's libraries that change with its major version, and the ROCm lines that have them.
``libamdhip64`` has HIP's major version, which is 7 for ROCm 10, too. Source: torch's wheels, and the
libraries of bitsandbytes for ROCm 6.2 to 10.0."""
_THEROCK = "librocm_sysdeps_"
"""Prefix of the copies of system libraries that ROCm has since 7.9, its first release from TheRock. ROCm 7.2
and older have none. Source: ROCm/TheRock@therock-7.9.0:docs/development/artifacts.md."""

KERNELS = (".cu", ".cuh", ".hip")
"""Ends of the names of CUDA and HIP sources."""
NOT_OWN = re.compile(
    r"(?:^|/)(?:third_?party|3rdparty|external|tests?|testing|examples|samples)/|(?:^|/)CMake(?:CUDA|HIP)Comp",
    re.IGNORECASE,
)
"""Directories with sources that the distribution itself does not compile, and CMake's probes of compilers."""
_FOR_HIP = re.compile(rb"USE_ROCM|__HIP|IS_HIP_EXTENSION|hip/hip_|hip_runtime")
"""Words of sources that can be compiled for HIP."""
_PATH_FOR_HIP = re.compile(r"(?:^|[/_])(?:hip|rocm)(?=[/_.])|\.hip$", re.IGNORECASE)
"""Paths of sources for HIP."""
_NAME_FOR_ROCM = re.compile(r"(?:^|[-_.])(?:rocm|hip)(?![a-z])", re.IGNORECASE)
_TORCH_SYMBOL = re.compile(rb"(?<=\0)_ZNK?(?:3c10|2at|5torch)[^\0]+")
"""A symbol of torch's C++ interface in a table of names."""
_STABLE_TORCH = re.compile(rb"\0(?:aoti_torch|torch_call)_")
"""A symbol of torch's stable interface, which later releases keep."""
_TORCH_LIBRARY = re.compile(r"lib(?:c10|torch)(?:_\w+)?\.so")
_TORCH_RELEASE = re.compile(r"torch_?\d")
"""Part of the name of an object for one release of torch, beside others (torch-c-dlpack-ext)."""
_EXTENSION = re.compile(r"\.(?:cpython-|abi3|pypy)[^/]*so$")
_COPIES = re.compile(r"(?:^|/)([^/]+)\.libs/(?!lib\1)[^/]+$")
"""Where auditwheel puts copies of libraries: those with the name of the wheel are its own."""
_ENVIRONMENT = Environment("3.12")
"""The environment for markers. The same for every machine and Python, so that the answer is."""

_MINOR = 0.05
"""The size of CUDA sources, relative to Python code, below which they do not decide. Without objects,
peft and transformers have less than 0.01; those that are for GPUs (gsplat, nerfacc) have more than 0.25."""
_LARGE_OBJECT = 100_000_000  # bytes; few objects without GPU code are as large
_WHOLE = 3 << 19  # compressed bytes of all objects that are read as a whole before the wheel is chosen
_LARGEST_UNPACKED = 1 << 25  # bytes of each of them
_START = 1 << 18  # compressed bytes of the start of a larger object
_ENDS = 1 << 19  # compressed bytes of the ends of all of these
_MOST_STARTS = 4
_MOST_KERNELS, _KERNEL_BYTES = 100, 1 << 20  # sources, and their bytes, before the wheel is chosen
_MOST_KERNELS_COMPLETE, _KERNEL_BYTES_COMPLETE = 10_000, 1 << 26
_LARGEST_INIT = 1 << 18  # bytes of Python code that is parsed
LARGEST_PLACEHOLDER = 1 << 15  # bytes of a distribution that may have no code at all
_MOST_BARE = 8  # code objects in separate files
_HEADER = 512  # bytes before the data of a member in a zip file, and more
_NEAR = 1 << 15  # bytes between two members that are read by one request
MOST_NAMED = 3


def rocm_of(names: Collection[str]) -> set[str]:
    """Return the releases of ROCm that have the libraries that one object needs.

    >>> rocm_of(["libamdhip64.so.7", "libm.so.6"]), rocm_of(["libamdhip64.so.7", "librocm_sysdeps_drm.so.2"])
    ({'>=7'}, {'>=7.9'})
    """
    if any(name.startswith(_THEROCK) for name in names):
        return {">=7.9"}
    return {_ROCM_OF[name] for name in names if name in _ROCM_OF}


def read_complete(
    path: Path,
    content: BinaryIO | None = None,
    expect: Callable[[Iterable[tuple[int, int]]], None] | None = None,
) -> Content | None:
    """Return what a wheel contains; None if nothing in it is compiled.

    `content` and `expect` are those of `read_start`, for a wheel on a server. Raise `DamagedError` if the
    file is not a wheel; `OSError` if it cannot be read.
    """
    with WheelReader(path, content) as wheel:
        texts = {f"{wheel.dist_info}/METADATA", f"{wheel.dist_info}/WHEEL"}
        if expect is not None:
            expect(_joined((info, 0, info.compress_size) for info in wheel.members if _is_binary(info)))
        contents, findings = read_contents(
            path.name, wheel, lambda info: info.filename in texts or _is_binary(info)
        )
        return content_of(contents, wheel, findings)


def content_of(contents: Contents, wheel: WheelReader, findings: Iterable[Finding] = ()) -> Content | None:
    """Return what a wheel contains whose objects were read; None if nothing in it is compiled."""
    if placeholder := _placeholder(contents, wheel):
        return placeholder
    kernels = _kernels(wheel.members)
    mentions, problems = _mention_hip(wheel, kernels, _MOST_KERNELS_COMPLETE, _KERNEL_BYTES_COMPLETE)
    unread = [item.message.rstrip(".") for item in findings if item.severity != "info"] + problems
    without = _can_do_without(wheel)
    return _Judge(
        contents,
        kernels=[info.filename for info in kernels],
        mentions_hip=mentions,
        unread=unread,
        can_do_without=without,
    ).content()


def content_of_installed(
    contents: Contents, inits: Iterable[bytes], findings: Iterable[Finding], *, knows_torch: bool
) -> Content | None:
    """Return what an installed distribution contains; None if nothing in it is compiled.

    `inits` are its ``__init__.py`` files, `findings` the problems of reading its objects. Its CUDA sources
    are not read. `knows_torch` is whether its symbols are compared with the installed torch.
    """
    unread = [item.message.rstrip(".") for item in findings if item.severity != "info"]
    without = any(map(_tries_to_load, inits))
    return _Judge(contents, unread=unread, can_do_without=without, knows_torch=knows_torch).content()


def read_start(
    name: str, content: BinaryIO, expect: Callable[[Iterable[tuple[int, int]]], None] | None = None
) -> Content | None:
    """Return what a wheel contains, as far as the limits allow; None if nothing in it is compiled.

    `expect` receives start and end of the parts that will be read, so that a server gets fewer requests.
    Raise `DamagedError` if the file is not a wheel.
    """
    with WheelReader(Path(name), content) as wheel:
        texts = {f"{wheel.dist_info}/METADATA", f"{wheel.dist_info}/WHEEL"}
        contents, _ = read_contents(name, wheel, lambda info: info.filename in texts)
        if placeholder := _placeholder(contents, wheel):
            return placeholder
        binary = [info for info in wheel.members if _is_binary(info)]
        kernels = _kernels(wheel.members)
        plain = None
        if not _is_suspicious(contents, binary, kernels):
            text = f"the names of its {len(binary)} shared objects and its metadata name nothing of a GPU"
            libraries = _libraries(info.filename for info in binary)
            plain = Content(text, gpu_builds=_gpu_builds(contents), libraries=libraries) if binary else None
            if not (plain and _companions(contents)):
                return plain
        whole, large, left = _plan(binary, kernels)
        end = _ENDS // max(1, len(large))
        if expect is not None:
            parts = [(info, 0, info.compress_size) for info in whole]
            parts += [(info, 0, _START) for info in large]
            parts += [(info, max(0, info.compress_size - end), end) for info in large]
            expect(_joined(parts))
        chosen = texts | {info.filename for info in whole if _is_binary(info)}
        found = _judge_planned(name, wheel, chosen, kernels, large=large, left=left, end=end)
        return replace(plain, needs=found.needs) if plain and found else found


def _plan(
    binary: Sequence[zipfile.ZipInfo], kernels: Sequence[zipfile.ZipInfo]
) -> tuple[list[zipfile.ZipInfo], list[zipfile.ZipInfo], list[zipfile.ZipInfo]]:
    """Choose what to read: small files first, then the start and the end of large objects.

    Return the members that are read as a whole, those large objects, and the objects that are not read.
    """
    objects = sorted(
        filter(_is_object, binary), key=lambda info: (_is_copy(info), info.compress_size, info.header_offset)
    )
    bare = [info for info in binary if not _is_object(info)]
    whole = [*bare[:_MOST_BARE], *kernels[:_MOST_KERNELS]]
    budget = _WHOLE
    larger = []
    for info in objects:
        budget -= info.compress_size
        if budget >= 0 and info.file_size <= _LARGEST_UNPACKED:
            whole.append(info)
        else:
            larger.append(info)
    larger.sort(key=lambda info: (_is_copy(info), not SIGN.search(_file_name(info)), -info.file_size))
    start = [info for info in larger[:_MOST_STARTS] if not _is_copy(info)]
    return whole, start, [info for info in larger if info not in start and _may_decide(info)]


def _judge_planned(
    name: str,
    wheel: WheelReader,
    chosen: Collection[str],
    kernels: Sequence[zipfile.ZipInfo],
    *,
    large: Sequence[zipfile.ZipInfo],
    left: Sequence[zipfile.ZipInfo],
    end: int,
) -> Content | None:
    """Read the chosen members, and of large objects the start and the last `end` compressed bytes; judge."""
    contents, findings = read_contents(name, wheel, lambda info: info.filename in chosen)
    unread = [item.message.rstrip(".") for item in findings if item.severity != "info"]
    started, hidden, hip = [], [], []
    unseen: dict[str, str] = {}
    for info in large:
        try:
            first = wheel.start(info, _START)
            needed, has_cuda_code, has_hip_code, unknown = read_ends(first, wheel.end(info, end))
        except DamagedError as error:
            unread.append(f"{info.filename} {error}")
            continue
        if needed is None:
            hidden.append(info)
        if has_hip_code:
            hip.append(info.filename)
        if unknown:
            unseen[info.filename] = unknown
        # Builds of JIT compilers remove their need of the driver, and its name stays in the table (tilelang).
        names = (name for name in needed or () if not name.startswith("libcuda.so"))
        imports = _names_of_torch(first, needed)
        started.append(
            SharedObject(info.filename, tuple(names), imports=imports, has_cuda_code=has_cuda_code)
        )
    hidden += left
    if hidden:
        size = sum(info.file_size for info in hidden) / 1e6
        listed = _named([_file_name(info) for info in hidden])
        unread.append(_not_read(f"{listed} ({size:.0f} MB)", len(hidden)))
    bare = [info for info in wheel.members if _is_binary(info) and not _is_object(info)]
    if len(bare) > _MOST_BARE:
        count = len(bare) - _MOST_BARE
        unread.append(_not_read(f"{count} of its {len(bare)} code objects", count))
    mentions, problems = _mention_hip(wheel, kernels, _MOST_KERNELS, _KERNEL_BYTES)
    return _Judge(
        replace(contents, objects=(*contents.objects, *started)),
        kernels=[info.filename for info in kernels],
        mentions_hip=mentions,
        hip=hip,
        unseen=unseen,
        unread=unread + problems,
        can_do_without=_can_do_without(wheel),
    ).content()


def _names_of_torch(start: bytes, needed: Sequence[str] | None) -> frozenset[str]:
    """Return a symbol of torch that a large object seems to need, from its start and the libraries it needs.

    An object that needs no library of torch has such names itself (paddlepaddle). If its names are not in the
    start, ``_Z`` stands for them.
    """
    if needed is not None and not any(map(_TORCH_LIBRARY.match, needed)):
        return frozenset()
    if found := _TORCH_SYMBOL.search(start):
        return frozenset({found[0].decode("ascii", "replace")})
    return frozenset({"_Z"} if needed and not _STABLE_TORCH.search(start) else ())


def _can_do_without(wheel: WheelReader) -> bool:
    """Return whether a package tries to load libraries beside its ``__init__.py``, and handles a failure."""
    folders = {str(PurePosixPath(info.filename).parent) for info in wheel.members if _is_object(info)}
    inits = {f"{folder}/__init__.py" for folder in folders if "/" not in folder}
    for info in wheel.members:
        if info.filename in inits and info.file_size <= _LARGEST_INIT:
            with suppress(DamagedError):
                if _tries_to_load(wheel.read(info)):
                    return True
    return False


def _parsed(source: bytes) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _tries_to_load(source: bytes) -> bool:
    tree = _parsed(source)
    return tree is not None and any(
        isinstance(part, ast.Attribute) and part.attr == "load_library"
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        for statement in node.body
        for part in ast.walk(statement)
    )


def _is_object(info: zipfile.ZipInfo) -> bool:
    return SHARED_OBJECT.search(info.filename) is not None


def _is_binary(info: zipfile.ZipInfo) -> bool:
    return not info.is_dir() and (_is_object(info) or info.filename.endswith(BARE_OBJECT))


def _is_copy(info: zipfile.ZipInfo) -> bool:
    return _COPIES.search(info.filename) is not None


def _companions(contents: Contents) -> Mapping[str, object]:
    return companions(contents.name, contents.header("METADATA", "Requires-Dist"))


def _libraries(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the names of libraries that other distributions may need: neither modules nor copies."""
    own = (PurePosixPath(path).name for path in paths if not _COPIES.search(path))
    return tuple(sorted({name for name in own if name.startswith("lib")}))


def _file_name(info: zipfile.ZipInfo) -> str:
    return info.filename.rpartition("/")[2]


def _may_decide(info: zipfile.ZipInfo) -> bool:
    """Return whether an object matters: a copy of another project's library only if it may be for GPUs."""
    large = info.file_size > _LARGE_OBJECT
    return not _is_copy(info) or large or SIGN.search(_file_name(info)) is not None


def _kernels(members: Sequence[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
    """Return the CUDA and HIP sources of a wheel that has nothing compiled; no others are compiled later.

    A few beside much Python are for a part that works without them (peft, transformers): they are left out.
    """
    if any(map(_is_binary, members)):
        return []
    kernels = [
        info
        for info in members
        if info.filename.endswith(KERNELS) and not NOT_OWN.search(info.filename) and info.file_size
    ]
    python = sum(info.file_size for info in members if info.filename.endswith(".py"))
    is_minor = sum(info.file_size for info in kernels) < _MINOR * python
    return [] if is_minor else kernels


def _is_suspicious(
    contents: Contents, binary: Sequence[zipfile.ZipInfo], kernels: Sequence[zipfile.ZipInfo]
) -> bool:
    """Return whether a wheel may have GPU code, judging by its metadata and the names of its members."""
    requirements = [requirement.name for requirement in contents.requirements()]
    listed = contents.header("METADATA", "Classifier")
    classifiers = [text for text in listed if text.startswith("Environment")]
    texts = [f"{contents.name}-{contents.version}", *requirements, *classifiers]
    return (
        any(map(SIGN.search, texts))
        or any(name in FRAMEWORKS for name in requirements)
        or any(SIGN.search(info.filename) or not _is_object(info) for info in binary)
        or any(info.file_size > _LARGE_OBJECT and not _is_copy(info) for info in binary)
        or bool(kernels)
    )


def _mention_hip(
    wheel: WheelReader, kernels: Sequence[zipfile.ZipInfo], most: int, most_bytes: int
) -> tuple[bool, list[str]]:
    """Return whether any CUDA source mentions HIP, and what was not read of the sources."""
    if any(_PATH_FOR_HIP.search(info.filename) for info in kernels):
        return True, []
    for number, info in enumerate(kernels):
        most_bytes -= info.file_size
        if number >= most or most_bytes < 0:
            left = len(kernels) - number
            return False, [_not_read(f"{left} of its {len(kernels)} CUDA sources", left)]
        try:
            if _FOR_HIP.search(wheel.read(info)):
                return True, []
        except DamagedError as error:
            return False, [f"{info.filename} {error}"]
    return False, []


def _joined(parts: Iterable[tuple[zipfile.ZipInfo, int, int]]) -> list[tuple[int, int]]:
    """Return start and end of parts of members (offset, size) in the file; near ones become one part."""
    joined: list[tuple[int, int]] = []
    spans = (
        (info.header_offset + offset, min(size, info.compress_size - offset)) for info, offset, size in parts
    )
    for start, size in sorted(spans):
        end = start + size + _HEADER
        if joined and start - joined[-1][1] < _NEAR:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _not_read(what: str, count: int) -> str:
    return f"{what} {'was' if count == 1 else 'were'} not read"


def _named(names: Sequence[str]) -> str:
    return join_words(names, most=MOST_NAMED, joiner="and")


def _gpu_builds(contents: Contents) -> tuple[str, ...]:
    return gpu_builds(contents.name, contents.texts.get("METADATA", b"").decode("utf-8", "replace"))


def gpu_builds(name: str, description: str) -> tuple[str, ...]:
    """Return the builds of a distribution for GPUs that its description names, the newest last.

    >>> gpu_builds("tiny-conv", "pip install tiny_conv-cu118, or tiny-conv-cu120; not tiny-conv-gpu-docs")
    ('tiny-conv-cu118', 'tiny-conv-cu120')
    """
    own = name.replace("-", "[-_.]")
    pattern = rf"(?<![\w.-]){own}[-_](?:cu1\d\d?x?|cuda[\d.-]*x?|gpu|rocm[\d.-]*|hip[\d-]*)(?![\w-])"
    found = re.findall(pattern, description, re.IGNORECASE)
    return tuple(sorted({text.lower().replace("_", "-").rstrip("-.") for text in found}))


def _placeholder(contents: Contents, wheel: WheelReader) -> Content | None:
    """Return the content of a small wheel that cannot be imported, or has no code; None for any other."""
    if sum(info.file_size for info in wheel.members) > LARGEST_PLACEHOLDER:
        return None
    has_code = bool(contents.header("METADATA", "Requires-Dist"))  # as a metapackage
    for info in wheel.members:
        if info.filename.startswith(f"{wheel.dist_info}/") or info.is_dir():
            continue
        if not info.filename.endswith(".py"):
            has_code = True
            continue
        try:
            source = wheel.read(info)
        except DamagedError:
            return None
        if info.filename.endswith("/__init__.py") and info.filename.count("/") == 1 and only_raises(source):
            broken = f"is a placeholder: its {info.filename} only raises an error"
            return Content(broken, broken=broken)
        has_code = has_code or has_statements(source)
    return None if has_code else Content("", "it has no code: it may be a placeholder")


def only_raises(source: bytes) -> bool:
    """Return whether Python code always raises an error when it is run."""
    tree = _parsed(source)
    return tree is not None and any(isinstance(statement, ast.Raise) for statement in tree.body)


def has_statements(source: bytes) -> bool:
    """Return whether Python code does more than to describe itself; true for code that cannot be parsed.

    A text and variables such as ``__version__`` are a description.
    """
    tree = _parsed(source)
    return tree is None or not all(map(_describes, tree.body))


def _describes(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return all(isinstance(one, ast.Name) and one.id.startswith("__") for one in statement.targets)
    return isinstance(statement, ast.Expr)


class _Judge(msgspec.Struct, dict=True):
    """Apply the rules of this module to what was read of a wheel."""

    contents: Contents
    kernels: Sequence[str] = ()
    """Its own CUDA and HIP sources."""
    mentions_hip: bool = False
    """Whether any of these mentions HIP."""
    hip: Collection[str] = ()
    """The objects with code for AMD GPUs that was not read."""
    unseen: Mapping[str, str] = {}
    """Objects that may have other code for GPUs, each with a clause that says why."""
    unread: Sequence[str] = ()
    """What was not read, as clauses."""
    can_do_without: bool = False
    """Whether Python code of the wheel handles objects that cannot be loaded."""
    knows_torch: bool = False
    """Whether its symbols are compared with those of the torch that it runs with."""

    def __post_init__(self) -> None:
        self._paths = [
            info.filename for info in self.contents.members if _is_object(info) and not info.is_dir()
        ]
        objects = self.contents.objects
        by_name = {PurePosixPath(path).name: path for path in self._paths}
        by_name |= {item.soname: item.path for item in objects if item.soname}
        self._users: dict[str, list[str]] = {}
        self._outside: dict[str, list[str]] = {}
        """By object, the needed libraries that the wheel does not have."""
        for item in objects:
            for name in item.needed:
                if by_name.get(name) == item.path:  # the start of an object also shows its own name
                    continue
                if name in by_name:
                    self._users.setdefault(by_name[name], []).append(item.path)
                else:
                    self._outside.setdefault(item.path, []).append(name)
        self._own = [path for path in self._paths if not _COPIES.search(path)] or self._paths
        self._cuda = self._needing(CUDA_LIBRARIES)
        self._rocm = self._needing(ROCM_LIBRARIES)

    def _needing(self, patterns: Sequence[str]) -> dict[str, str]:
        """Return the objects that need a library, also through others, each with the object that does so."""
        found = {
            path: f"{path} needs {next(name for name in names if matches_any(name, patterns))}"
            for path, names in self._outside.items()
            if any(matches_any(name, patterns) for name in names)
        }
        waiting = [*found]
        for path in waiting:
            for user in self._users.get(path, ()):
                if user not in found:
                    found[user] = found[path]
                    waiting.append(user)
        return found

    def content(self) -> Content | None:
        """Return the content; None if nothing in the wheel is compiled."""
        is_pure = not self._paths and not self.contents.code
        if is_pure and not self.kernels and not self.unread and not is_for_cuda(self.contents.name):
            return None
        required = self._requires_cuda()
        if required:
            return Content(required, cuda="required")
        gfx, of_code = self._gfx()
        evidence = [of_code, *list(self._rocm.values())[:1]]
        optional = self._has_cuda()
        evidence = [text for text in (*evidence, optional) if text]
        if not evidence and self.contents.objects:
            count = len(self.contents.objects)
            of_those = "its" if count == len(self._paths) else f"the {count} that were read of its"
            evidence.append(f"none of {of_those} {len(self._paths)} shared objects needs a library for GPUs")
        unseen = (f"{PurePosixPath(path).name}: {why}" for path, why in self.unseen.items())
        return Content(
            "; ".join(evidence),
            "; ".join(self._unread(gfx)),
            "optional" if optional else "none",
            self._rocm_range(),
            gfx,
            () if optional or self._rocm or gfx else _gpu_builds(self.contents),
            unseen="" if optional or self._rocm else "; ".join(unseen),
            needs=tuple(self._needs()),
            libraries=_libraries(self._paths),
        )

    def _requires_cuda(self) -> str:
        name = self.contents.name
        if not self._rocm and not self.contents.code:
            decisive = self._without_alternative(self._cuda)
            if decisive:
                return self._cuda[decisive]
        if is_for_cuda(name):
            return next(iter(self._cuda.values()), f"the name {name} is that of a build for CUDA")
        siblings = [item for item in map(self._cuda_sibling, self.contents.requirements()) if item]
        has_path_beside = any(item.has_cuda_code for item in self.contents.objects) and not self._cuda
        are_objects_known = not self._paths or not (self.unseen or self.unread)
        if siblings and not has_path_beside and are_objects_known:
            return f"it requires {_named(siblings)}, for CUDA"
        if self.kernels and not self.mentions_hip and not self.unread:
            listed = _named([PurePosixPath(path).name for path in self.kernels])
            return f"it compiles CUDA sources when it is used ({listed}), and none of them mentions HIP"
        return ""

    def _without_alternative(self, needing: Collection[str]) -> str:
        """Return one of some objects without which the wheel cannot be used; empty if none."""
        extensions = [path for path in self._own if _EXTENSION.search(path)]
        if not extensions:
            roots = [path for path in self._own if not self._users.get(path)]
            return roots[0] if roots and {*needing} >= {*roots} else ""
        needy = [path for path in extensions if path in needing]
        has_other = self.can_do_without or self._has_variants(needing)
        return needy[0] if needy and not has_other else ""

    def _needs(self) -> Iterator[tuple[str, str]]:
        """Yield the libraries that only an extra may bring, each with an object that needs it."""
        if not _companions(self.contents):
            return
        of_others = (*ROCM_LIBRARIES, *OTHER_BACKENDS, *libraries_of_system(), "ld-linux*")
        for name in sorted({*chain.from_iterable(self._outside.values())}):
            path = "" if matches_any(name, of_others) else self._without_alternative(self._needing([name]))
            if path:
                yield name, path

    def _has_variants(self, needing: Collection[str]) -> bool:
        """Return whether an object has variants for several devices, and some of them are not among these."""
        keys: dict[str, set[str]] = {}
        for path in self._own:
            keys.setdefault(VARIANT.sub("", path), set()).add(path)
        return any(len(paths) > 1 and not paths <= {*needing} for paths in keys.values())

    @staticmethod
    def _cuda_sibling(requirement: Requirement) -> str:
        """Return the name of a required distribution for CUDA, if Linux needs it."""
        if not is_for_cuda(requirement.name):
            return ""
        return requirement.name if _ENVIRONMENT.applies(str(requirement.marker or "")) else ""

    def _of_unknown_torch(self) -> str:
        """Return an object that is compiled against torch for unknown releases; empty if none is."""
        pins = (item.specifier for item in self.contents.requirements() if item.name == "torch")
        is_known = any(clause.operator not in {">", ">=", "!="} for pin in pins for clause in pin)
        if is_known or self.can_do_without or self.knows_torch:
            return ""
        return next((item.path for item in self.contents.objects if self._uses_torch(item)), "")

    def _uses_torch(self, item: SharedObject) -> bool:
        """Return whether an object of the wheel itself uses the C++ interface of some release of torch."""
        is_choice = _TORCH_RELEASE.search(PurePosixPath(item.path).name)
        is_own = item.path in self._own and not is_choice
        own = chain.from_iterable(one.exports for one in self.contents.objects)
        imports = item.imports.difference(own) if is_own else ()  # paddlepaddle has names of torch
        return any(name.startswith("_Z") for name in imports)

    def _has_cuda(self) -> str:
        """Return a clause about CUDA that the wheel can use; empty if there is none."""
        if self._cuda:
            return f"{next(iter(self._cuda.values()))}, which other parts of the wheel do not need"
        code = [item.path for item in self.contents.objects if item.has_cuda_code]
        return f"{code[0]} contains code for NVIDIA GPUs, but needs no library for it" if code else ""

    def _gfx(self) -> tuple[tuple[str, ...], str]:
        """Return the GPU architectures of all HIP code, and where it is.

        An architecture counts if any object has code for it: the others may be for other GPUs only.
        """
        code = {
            path: objects
            for path, objects in self.contents.code.items()
            if objects and not matches_any(PurePosixPath(path).name, ROCM_LIBRARIES)
        }
        names = sorted({item.name for objects in code.values() for item in objects})
        return tuple(names), f"{min(code)} contains code for AMD GPUs" if code else ""

    def _rocm_range(self) -> str:
        """Return the releases of ROCm that have the needed libraries; several lines are joined.

        An object that was not read may be for another line, as in bitsandbytes, unless one that must be
        imported needs this line.
        """
        are_known = not self.unread or not self._has_variants(self._cuda)
        objects = [
            path for path in self._outside if are_known and (_EXTENSION.search(path) or not self.unread)
        ]
        ranges = sorted({*chain.from_iterable(rocm_of(self._outside[path]) for path in objects)})
        if not ranges:
            return ""
        _, _, upper = ranges[-1].partition(",")
        return ",".join(filter(None, (ranges[0].partition(",")[0], upper)))

    def _unread(self, gfx: Sequence[str]) -> Iterator[str]:
        yield from self.unread
        hip = {*self.hip} | (self.unseen.keys() & self._rocm.keys())
        if hip:
            yield f"the GPU code of {_named(sorted(PurePosixPath(path).name for path in hip))} was not read"
        packs = sum(info.filename.endswith(".kpack") for info in self.contents.members)
        if packs and not gfx:
            yield "its GPU code is in .kpack files, which are not read"
        name = self.contents.name
        if self._paths and _NAME_FOR_ROCM.search(name) and not (self._rocm or self._cuda or gfx):
            yield f"the name {name} is for ROCm, and nothing in it shows for which releases"
        of_torch = self._of_unknown_torch()
        if of_torch:
            yield f"{of_torch} is compiled against torch, and the metadata does not say for which releases"
        if self.mentions_hip:
            count = len(self.kernels)
            yield f"its {count} CUDA sources mention HIP, but it is not known whether they compile for it"
