"""Read a file of an index before it is chosen: a wheel in part, a small sdist as a whole; no code is run.

An sdist *requires CUDA* if `builders.source_facts.kind` says so, or if it has nothing to compile, and its
setup.py gets the program from NVIDIA's index. It is *not judged* if it has sources for GPUs, which torch may
translate to HIP, or if its build scripts name any. It is of no use to anybody if its build script, or its
package, always raises an error (kaolin 0.1).
"""

from __future__ import annotations

import hashlib
import io
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, cast

from msgspec.structs import replace

from builders.gpu import SIGN
from builders.gpu.content import (
    KERNELS,
    LARGEST_PLACEHOLDER,
    MOST_NAMED,
    NOT_OWN,
    has_statements,
    read_start,
)
from builders.index_client.metadata import downloaded, matching_files
from builders.network.transport import SHORT_TAIL, request_failed
from builders.network.urls import RequestError, TooLargeReplyError
from builders.source_facts.reading import learn_source
from builders.source_facts.recipe_draft import draft_recipes
from builders.storage.lease import TemporaryDirectory
from builders.wheels.wheel import DamagedError
from resolver.errors import EnvironmentLacksError, SourceError, UsageError
from resolver.indexes import Content, SourceClass
from resolver.versions import join_words, shorten

if TYPE_CHECKING:
    from pathlib import Path

    from builders.network.transport import Transport
    from builders.source_facts.facts import SourceFacts
    from resolver.indexes import File

_COMPILED = (".c", ".cc", ".cpp", ".cxx", ".f", ".f90", ".pyx", ".rs", ".so", *KERNELS)
_SCRIPTS = {"setup.py", "pyproject.toml", "CMakeLists.txt", "meson.build", "Cargo.toml"}
_READ = {".py", ".toml", ".cfg", ".cmake", ".txt", ".h", ".hpp", ".so", *_COMPILED}
_NAMED = {"PKG-INFO", ".gitmodules"}
_REQUIRES = re.compile(r"install_requires|dependencies|urlretrieve")
"""Words of build scripts of a distribution that has its code elsewhere."""
_NVIDIA_INDEX = re.compile(r"pypi\.(?:ngc\.)?nvidia\.com")
_LARGEST_SOURCE = 20_000_000  # bytes of an sdist, which is read as a whole
_LARGEST_OBJECT = 1 << 26  # bytes of a member, which may be a shared object
_LARGEST_UNPACKED = 1 << 28  # bytes of all members that are read
_UNREAD = Content(
    "",
    "it is built from source, and the source was not read",
    source=SourceClass("unread", f"it is larger than {_LARGEST_SOURCE // 1_000_000} MB"),
)
"""The content of a large sdist."""


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
            return read_start(file.name, content) if is_wheel else _source(file, content)
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
            return _source(file, content)
    except TooLargeReplyError:
        return _UNREAD


def _source(file: File, content: BinaryIO) -> Content:
    """Read an sdist; without a hash of its index, a build takes only the bytes that were read."""
    found = read_source(file.name, content)
    if file.sha256:
        return found
    content.seek(0)
    return replace(found, sha256=hashlib.file_digest(content, "sha256").hexdigest())  # type: ignore[arg-type]


def read_source(filename: str, content: BinaryIO) -> Content:
    """Return what an sdist contains, and what kind of source it is."""
    is_small = content.seek(0, io.SEEK_END) < LARGEST_PLACEHOLDER
    content.seek(0)
    with TemporaryDirectory() as directory:
        top = directory.root / "source"
        compiled = unpack_scripts(filename, content, top)
        try:
            facts = learn_source(top)
        except UsageError as error:
            reason = error.message.replace(f"{top}/", "its ").replace(f"{top}", "its source").rstrip(".")
            return Content("", f"it is built from source, and {reason}", source=SourceClass("unread", reason))
        recipes = draft_recipes(facts, filename)
        own = (top / name for name in sorted(_SCRIPTS) if (top / name).is_file())
        scripts = {path.name: path.read_text(encoding="utf-8", errors="replace") for path in own}
        code = (path for path in top.rglob("*.py") if path != top / "setup.py" and path.is_file())
        has_code = not is_small or any(has_statements(path.read_bytes()) for path in code)
    source = facts.source
    if source.kind == "placeholder":
        broken = f"is a placeholder: its {source.evidence}"
        return Content(broken, broken=broken, source=source)
    if not has_code and not compiled and not any(map(_REQUIRES.search, scripts.values())):
        text = "it is built from source, and its source has no code: it may be a placeholder"
        return Content("", text, source=source, recipes=recipes)
    return replace(_judge(filename, compiled, scripts, facts), source=source, recipes=recipes)


def unpack_scripts(filename: str, content: BinaryIO, top: Path) -> list[str]:
    """Write the files that say something about the build; return the paths of all compiled ones.

    The files of others, such as tests, are left empty: that they exist is all that matters.
    """
    compiled: list[str] = []
    left = _LARGEST_UNPACKED

    def is_wanted(path: PurePosixPath) -> bool:
        own = _below_top(path)
        if own.endswith(_COMPILED) and not NOT_OWN.search(own):
            compiled.append(own)
        is_inside = len(path.parts) > 1 and not path.is_absolute() and ".." not in path.parts
        return is_inside and (path.suffix in _READ or path.name in _NAMED)

    for path, text in matching_files(filename, content, is_wanted, _LARGEST_OBJECT):
        own = _below_top(path)
        kept = b"" if NOT_OWN.search(own) else text
        left -= len(kept)
        if left < 0:
            msg = "it unpacks to too many bytes"
            raise DamagedError(msg)
        target = top / own
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(kept)
        except (FileExistsError, NotADirectoryError, IsADirectoryError, ValueError) as error:
            raise DamagedError(f"its member {shorten(str(path))!r} cannot be unpacked") from error
    return compiled


def _judge(filename: str, compiled: list[str], scripts: dict[str, str], facts: SourceFacts) -> Content:
    found = _NVIDIA_INDEX.search(scripts.get("setup.py", ""))
    if found and not compiled:
        return Content(
            f"its setup.py gets the program from {found[0]}, and it has no sources", cuda="required"
        )
    if facts.source.kind == "cuda":
        return Content(facts.source.evidence, cuda="required")
    kernels = [PurePosixPath(path).name for path in compiled if path.endswith(KERNELS)]
    if kernels:
        hip = "mentions" if facts.mentions_hip else "does not mention"
        listed = join_words(kernels, most=MOST_NAMED, joiner="and")
        return Content(
            "", f"it is built from source, and its source has code for CUDA or HIP ({listed}); it {hip} HIP"
        )
    name = filename.rpartition("-")[0]
    texts = {**{path: path for path in (name, *compiled)}, **scripts}
    signs = {path: found[0] for path, text in texts.items() if (found := SIGN.search(text))}
    if signs:
        path, word = next(iter(signs.items()))
        where = f"the name of {path}" if path == word or path not in scripts else f"its {path}"
        return Content("", f"it is built from source, and {where} has the word {word}")
    if compiled:
        return Content(f"its {len(compiled)} sources and its build scripts name nothing of a GPU")
    return Content("")


def _below_top(path: PurePosixPath) -> str:
    return PurePosixPath(*path.parts[1:]).as_posix()
