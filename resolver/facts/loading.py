"""Load the catalog: the shipped files first, then a site's, then the user's.

Every command that needs facts imports this module first, so it has few imports: the modules that read and
validate files are imported only if a file changed since the compiled form was written. Paths are plain text
here, because importing pathlib takes longer than reading the rows.

The compiled form contains the validated and merged rows, with the time and size of every source file. It is
rewritten when one of them, or the schema, changes. It is a cache: if it is missing, damaged or not writable,
loading only takes longer.

All paths are resolved on entry: two spellings of a path are one file, and the paths in the rows do not depend
on the working directory.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from resolver.errors import CatalogError
from resolver.facts import schema
from resolver.facts.catalog import Catalog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


def load(
    overlays: Iterable[Path] = (), *, shipped: Path | None = None, cache: Path | str | None = None
) -> Catalog:
    """Load the shipped catalog and merge overlays over it.

    Parameters
    ----------
    overlays
        TOML files, or directories whose ``*.toml`` files are all read; later ones take precedence.
    shipped
        A directory to read instead of the shipped files, such as the files of another version of matrix.
    cache
        Directory of the compiled form, which is used as long as no file changed.
    """
    groups = [overlay_files(shipped) if shipped else shipped_files(), *map(overlay_files, overlays)]
    rows = _read_compiled(cache, groups) if cache else None
    if rows is not None:
        return Catalog.from_rows(rows)
    catalog, rows, files = load_uncached(groups)
    if cache:
        _write_compiled(cache, groups, files, rows)
    return catalog


def load_uncached(
    groups: Sequence[Sequence[str]], overrides: Mapping[str, str] | None = None
) -> tuple[Catalog, schema.CatalogFile, list[Path]]:
    """Read and validate layers of files without the compiled form.

    The arguments are those of `read_layers`. Return the catalog, its rows, and all files that were read.
    """
    from resolver.facts.catalog_files import merge, read_layers
    from resolver.facts.validate import check_references

    layers, files = read_layers(groups, overrides)
    rows = merge(layers)
    catalog = Catalog.from_rows(rows)
    check_references(catalog)
    return catalog, rows, files


def shipped_files() -> list[str]:
    """Return the catalog files that come with the program, in a fixed order."""
    return _files_in(os.path.realpath(schema.FOLDER))


def overlay_files(overlay: Path | str) -> list[str]:
    """Return the resolved files of an overlay, which together are one layer."""
    path = os.path.realpath(overlay)
    if not os.path.isdir(path):
        return [path]
    files = _files_in(path)
    if not files:
        msg = f"The catalog directory {overlay} contains no .toml file."
        raise CatalogError(msg)
    return files


def _files_in(folder: str) -> list[str]:
    """Return the resolved files in a resolved folder; links to folders are not followed."""
    paths = (
        os.path.join(where, name)
        for where, _, names in os.walk(folder)
        for name in names
        if name.endswith(".toml")
    )
    return sorted(os.path.realpath(path) if os.path.islink(path) else path for path in paths)


class _Compiled(msgspec.Struct, frozen=True, array_like=True):
    groups: list[list[str]]
    """The requested files, in layers."""
    stamp: list[tuple[str, int, int]]
    """Path, modification time and size of all files that were read, and of the code that defines rows."""
    rows: schema.CatalogFile


def _read_compiled(cache: Path | str, groups: list[list[str]]) -> schema.CatalogFile | None:
    """Return the merged rows of all files, or None if they must be read again."""
    try:
        with open(_compiled_path(cache, groups), "rb") as source:
            stored = msgspec.msgpack.decode(source.read(), type=_Compiled)
        current = stored.groups == groups and stored.stamp == _stamp(path for path, _, _ in stored.stamp)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return stored.rows if current else None


def _write_compiled(
    cache: Path | str, groups: list[list[str]], files: Sequence[Path], rows: schema.CatalogFile
) -> None:
    """Write the merged rows; `files` also contains the included files."""
    target = _compiled_path(cache, groups)
    temporary = f"{target}.{os.getpid()}"
    try:
        os.makedirs(cache, exist_ok=True)
        stamp = _stamp([schema.__file__, __file__, *map(str, files)])
        with open(temporary, "wb") as sink:
            sink.write(msgspec.msgpack.encode(_Compiled(groups, stamp, rows)))
        os.replace(temporary, target)
    except OSError:
        return


def _compiled_path(cache: Path | str, groups: list[list[str]]) -> str:
    # Two sets of files with the same checksum evict each other, which costs only time.
    return os.path.join(cache, f"{crc32(repr(groups).encode()):08x}.msgpack")


def _stamp(paths: Iterable[str]) -> list[tuple[str, int, int]]:
    stamp = []
    for path in paths:
        status = os.stat(path)
        stamp.append((path, status.st_mtime_ns, status.st_size))
    return stamp
