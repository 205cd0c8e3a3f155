"""Catalog files in layers: the shipped ones, a site's, the user's, each laid over what is below it.

A row of a later layer replaces the row with the same identity. Inside one layer no row stands above
another, so two that say different things of the same are a contradiction, and an error. Requirements
about the same releases widen one another inside a layer; a later layer replaces them together.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolver.errors import CatalogError
from resolver.facts import schema
from resolver.facts.reading import read_file
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Layer = list[schema.CatalogFile]
_OF_THE_FILE = {"from_file", "from_line"}


def read_layers(
    groups: Iterable[Sequence[str]], instead: Mapping[str, str] | None = None
) -> tuple[list[Layer], list[Path]]:
    """Read groups of files, each group a layer over the one before it.

    What a file includes is a layer of its own below the group that the file is in.

    Parameters
    ----------
    groups
        Paths of the files, the lowest layer first.
    instead
        Text to read instead of what a file holds, by path.

    Returns
    -------
    tuple
        The layers, the lowest first, and all files that were read, each once.

    Raises
    ------
    CatalogError
        A file cannot be read, or includes itself.
    """
    layers: list[Layer] = []
    seen: dict[Path, Path] = {}

    def walk(path: Path, above: Mapping[Path, Path]) -> schema.CatalogFile | None:
        real = path.resolve()
        if real in above:
            chain = ", which includes ".join(map(str, [*above.values(), path]))
            msg = f"A catalog file includes itself: {chain}."
            raise CatalogError(msg)
        if real in seen:
            return None
        file = read_file(path, (instead or {}).get(str(path)))
        seen[real] = path
        for name in file.include:
            included = walk(path.parent / name, {**above, real: path})
            if included is not None:
                layers.append([included])
        return file

    for group in groups:
        read = [walk(Path(path), {}) for path in group]
        layers.append([file for file in read if file is not None])
    return layers, list(seen.values())


def merge(layers: Iterable[Layer]) -> schema.CatalogFile:
    """Lay the layers over one another.

    Raises
    ------
    CatalogError
        Two rows of one layer say different things of the same, or the same thing twice.
    """
    merged: dict[str, dict[tuple[object, ...], list[schema.Row]]] = {kind: {} for kind in schema.KINDS}
    for layer in layers:
        for kind in schema.KINDS:
            own: dict[tuple[object, ...], list[schema.Row]] = {}
            for file in layer:
                for row in getattr(file, kind):
                    beside = own.setdefault(row.key(), [])
                    _clash(kind, beside, row)
                    beside.append(row)
            merged[kind] |= own
    rows: dict[str, Any] = {
        kind: [row for beside in found.values() for row in beside] for kind, found in merged.items()
    }
    return schema.CatalogFile(schema=schema.SCHEMA, **rows)


def place(row: schema.Row) -> str:
    """Give file and line of a row, as compilers do."""
    return f"{row.from_file}:{row.from_line}"


def _clash(kind: str, beside: Sequence[schema.Row], row: schema.Row) -> None:
    for other in beside:
        differing = [
            name
            for name in row.__struct_fields__
            if name not in _OF_THE_FILE and getattr(row, name) != getattr(other, name)
        ]
        if row.widening and differing and "versions" in differing:
            continue
        what = " ".join(str(part) for part in row.key() if part not in {None, "", False, ()})
        said = f"{place(row)}: [[{kind.replace('_', '-')}]] {what}"
        if not differing:
            msg = f"{said} stands twice, first at {place(other)}."
            raise CatalogError(msg, hint="Remove one of the two.")
        key = differing[0]
        msg = (
            f"{said} contradicts {place(other)}: {key.replace('_', '-')} is {_spell(getattr(row, key))} here "
            f"and {_spell(getattr(other, key))} there, and neither stands above the other."
        )
        raise CatalogError(
            msg, hint="Keep one and put the other into its note, or into a file that is laid over."
        )


def _spell(value: object) -> str:
    return shorten(repr(value))
