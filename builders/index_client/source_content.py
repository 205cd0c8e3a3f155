"""Read a file of an index before it is chosen: a wheel in part, a small sdist as a whole; no code is run.

An sdist may compile its code for CUDA or leave it out, and torch translates CUDA sources to HIP. So it
*requires CUDA* only if it has nothing to compile, and its setup.py gets the program from NVIDIA's index.
It is *not judged* if it has sources for GPUs, or if its build scripts name any. It is of no use to anybody if
its build script, or the package of a small one, always raises an error (kaolin 0.1).
"""

from __future__ import annotations

import io
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, cast

from builders.gpu import SIGN
from builders.gpu.content import (
    FOR_HIP,
    KERNELS,
    LARGEST_PLACEHOLDER,
    MOST_NAMED,
    NOT_OWN,
    PATH_FOR_HIP,
    has_statements,
    only_raises,
    read_start,
)
from builders.index_client.metadata import downloaded, matching_files
from builders.network.transport import SHORT_TAIL, RequestError, TooLargeReplyError, request_failed
from builders.wheels.wheel import DamagedError
from resolver.errors import EnvironmentLacksError, SourceError
from resolver.indexes import Content
from resolver.versions import join_words

if TYPE_CHECKING:
    from pathlib import Path

    from builders.network.transport import Transport
    from resolver.indexes import File

_COMPILED = (".c", ".cc", ".cpp", ".cxx", ".f", ".f90", ".pyx", ".rs", ".so", *KERNELS)
_SCRIPTS = {"setup.py", "pyproject.toml", "CMakeLists.txt", "meson.build", "Cargo.toml"}
_PACKAGE = re.compile(r"(?:src/)?\w+/__init__\.py")
_REQUIRES = re.compile(r"install_requires|dependencies|urlretrieve")
"""Words of build scripts of a distribution that has its code elsewhere."""
_NVIDIA_INDEX = re.compile(r"pypi\.(?:ngc\.)?nvidia\.com")
_LARGEST_SOURCE = 20_000_000  # bytes of an sdist, which is read as a whole
_UNREAD = Content("", "there is no wheel, and the source was not read")
"""The content of a commit and of a large sdist."""


def read(file: File, local: Path | None, transport: Transport) -> Content | None:
    """Read a wheel as far as `builders.gpu.content` allows, or a small sdist; `local` is it if it is here."""
    is_wheel = file.name.endswith(".whl")
    if not is_wheel and (not file.name.endswith((".tar.gz", ".zip")) or file.size > _LARGEST_SOURCE):
        return _UNREAD
    where = f"{file.name} on {file.index}" if file.index else file.name
    try:
        if local is None:
            return _remote_wheel(file, transport) if is_wheel else _remote_source(file, transport)
        with local.open("rb") as content:
            return read_start(file.name, content) if is_wheel else read_source(file.name, content)
    except DamagedError as error:
        msg = f"{where} {'is not a valid wheel' if is_wheel else 'cannot be read'}: {error}."
        hint = "Exclude this version, or report the problem to the owners of the index."
        raise SourceError(msg, hint=hint) from None
    except RequestError as error:
        raise request_failed(file.url, error) from None
    except FileNotFoundError as error:
        raise SourceError(f"{where} cannot be read: {error}.", hint="Check the index.") from None
    except OSError as error:
        msg = f"{where} cannot be read: {error}."
        raise EnvironmentLacksError(msg, hint="Check the free space and the permissions.") from None


def _remote_wheel(file: File, transport: Transport) -> Content | None:
    remote = transport.remote_file(file.url, SHORT_TAIL)
    if remote is None:
        return Content("", "the wheel, which its server sends only as a whole")
    return read_start(file.name, cast("BinaryIO", io.BufferedReader(remote)), remote.expect)


def _remote_source(file: File, transport: Transport) -> Content | None:
    try:
        with downloaded(file, transport, _LARGEST_SOURCE) as content:
            return read_source(file.name, content)
    except TooLargeReplyError:
        return _UNREAD


def read_source(filename: str, content: BinaryIO) -> Content | None:
    """Return what an sdist contains; None if it has nothing to compile, and nothing names a GPU."""
    compiled: list[str] = []
    is_small = content.seek(0, io.SEEK_END) < LARGEST_PLACEHOLDER
    content.seek(0)

    def is_wanted(path: PurePosixPath) -> bool:
        own = _below_top(path)
        if NOT_OWN.search(own):
            return False
        if own.endswith(_COMPILED):
            compiled.append(own)
        return own.endswith(KERNELS) or own in _SCRIPTS or (is_small and own.endswith(".py"))

    scripts: dict[str, str] = {}
    mentions_hip = False
    has_code = not is_small
    for path, text in matching_files(filename, content, is_wanted):
        own = _below_top(path)
        if (_PACKAGE.fullmatch(own) or own == "setup.py") and only_raises(text):
            broken = f"is a placeholder: its {own} only raises an error"
            return Content(broken, broken=broken)
        has_code = has_code or (own != "setup.py" and own.endswith(".py") and has_statements(text))
        is_for_hip = FOR_HIP.search(text) or PATH_FOR_HIP.search(_below_top(path))
        mentions_hip = mentions_hip or is_for_hip is not None
        if path.name in _SCRIPTS:
            scripts[path.name] = text.decode("utf-8", "replace")
    if not has_code and not compiled and not any(map(_REQUIRES.search, scripts.values())):
        return Content("", "there is no wheel, and its source has no code: it may be a placeholder")
    return _judge(filename, compiled, scripts, mentions_hip=mentions_hip)


def _judge(
    filename: str, compiled: list[str], scripts: dict[str, str], *, mentions_hip: bool
) -> Content | None:
    found = _NVIDIA_INDEX.search(scripts.get("setup.py", ""))
    if found and not compiled:
        return Content(
            f"its setup.py gets the program from {found[0]}, and it has no sources", cuda="required"
        )
    kernels = [PurePosixPath(path).name for path in compiled if path.endswith(KERNELS)]
    if kernels:
        hip = "some mention" if mentions_hip else "none mentions"
        listed = join_words(kernels, most=MOST_NAMED, joiner="and")
        return Content(
            "", f"there is no wheel, and its source has code for CUDA or HIP ({listed}); {hip} HIP"
        )
    name = filename.rpartition("-")[0]
    texts = {**{path: path for path in (name, *compiled)}, **scripts}
    signs = {path: found[0] for path, text in texts.items() if (found := SIGN.search(text))}
    if signs:
        path, word = next(iter(signs.items()))
        where = f"the name of {path}" if path == word or path not in scripts else f"its {path}"
        return Content("", f"there is no wheel, and {where} has the word {word}")
    if compiled:
        return Content(f"its {len(compiled)} sources and its build scripts name nothing of a GPU")
    return None


def _below_top(path: PurePosixPath) -> str:
    return PurePosixPath(*path.parts[1:]).as_posix()
