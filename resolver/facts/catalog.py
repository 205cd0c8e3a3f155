"""Reading catalog files and laying them over one another.

The shipped files are read first, then a site's, then the user's. A later row with the same
identity replaces the earlier one; rows without an identity (requirements) are added.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from packaging.utils import canonicalize_name

from resolver.errors import CatalogError, did_you_mean
from resolver.facts import schema
from resolver.facts.values import check_values, triton_name
from resolver.model import PLATFORM
from resolver.versions import parse_specifier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_LARGEST_FILE = 8 * 2**20  # bytes; the shipped catalog is far below, so more is a mistake


@dataclass(slots=True)
class Catalog:
    """All facts, keyed by what identifies them."""

    rocm: dict[str, schema.Rocm] = field(default_factory=dict)
    driver: dict[str, schema.Driver] = field(default_factory=dict)
    driver_module: dict[str, schema.DriverModule] = field(default_factory=dict)
    gfx: dict[str, schema.Gfx] = field(default_factory=dict)
    python: dict[str, schema.Python] = field(default_factory=dict)
    torch: dict[str, schema.Torch] = field(default_factory=dict)
    image: dict[str, schema.Image] = field(default_factory=dict)
    site: dict[str, schema.Site] = field(default_factory=dict)
    window: dict[tuple[str, str], schema.Window] = field(default_factory=dict)
    site_image: dict[tuple[str, str, str], schema.SiteImage] = field(default_factory=dict)
    package: dict[str, schema.Package] = field(default_factory=dict)
    release: dict[tuple[str, str, str], schema.Release] = field(default_factory=dict)
    requires: list[schema.Requires] = field(default_factory=list)
    recipe: list[schema.Recipe] = field(default_factory=list)
    proven: dict[str, schema.ProvenSet] = field(default_factory=dict)

    def rows(self) -> Iterator[schema.Row]:
        """Yield every row of every kind."""
        for name in self.__slots__:
            kind = getattr(self, name)
            yield from kind.values() if isinstance(kind, dict) else kind

    def windows_of(self, site: str) -> list[schema.Window]:
        """Give a site's driver windows, the oldest first."""
        return sorted((w for w in self.window.values() if w.site == site), key=lambda w: w.since)

    def releases_of(self, package: str) -> list[schema.Release]:
        """Give all releases of a package, in the order of the files."""
        return [row for row in self.release.values() if row.package == package]

    def recipe_for(self, release: schema.Release, backend: str) -> schema.Recipe | None:
        """Find the recipe that builds a release for a backend; the last that fits wins."""
        found = None
        for row in self.recipe:
            if row.backend == backend and applies(row, release):
                found = row
        return found


def applies(row: schema.Requires | schema.Recipe, release: schema.Release) -> bool:
    """Tell whether a row speaks of this release of its package."""
    return (
        row.package == release.package
        and (row.variant is None or row.variant == release.variant)
        and (not row.releases or parse_specifier(row.releases).contains(release.version, prereleases=True))
    )


def shipped() -> list[Path]:
    """Give the catalog files that come with the program, in a fixed order."""
    root = Path(str(resources.files("resolver.facts")))
    return sorted(root.rglob("*.toml"))


def load(overlays: Iterable[Path] = ()) -> Catalog:
    """Read the shipped catalog and lay the overlays over it.

    Parameters
    ----------
    overlays
        TOML files, or directories whose ``*.toml`` files are all read, later ones winning.

    Raises
    ------
    CatalogError
        A file is missing, is no catalog file, or holds a row that cannot be read. Nothing is
        half-loaded.
    """
    catalog = Catalog()
    for path in shipped():
        _add(catalog, path, read_file(path))
    for overlay in overlays:
        files = sorted(overlay.rglob("*.toml")) if overlay.is_dir() else [overlay]
        if not files:
            msg = f"The catalog directory {overlay} holds no .toml file."
            raise CatalogError(msg)
        for path in files:
            _add(catalog, path, read_file(path))
    _check_references(catalog)
    return catalog


def load_gfx() -> list[str]:
    """Give the names of all shipped offload targets, which are flags of the command line."""
    path = Path(str(resources.files("resolver.facts"))) / "gfx.toml"
    return [row.target for row in read_file(path).gfx]


def read_file(path: Path) -> schema.CatalogFile:
    """Read and validate one catalog file.

    Raises
    ------
    CatalogError
        With the file, the line where that is known, the row and the key.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE:
            msg = f"{path} is larger than {_LARGEST_FILE // 2**20} MiB: that is no catalog file."
            raise CatalogError(msg)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        msg = f"Cannot read the catalog file {path}: {error.strerror}."
        raise CatalogError(msg) from None
    except UnicodeDecodeError as error:
        msg = f"{path} is not UTF-8 text (byte {error.start})."
        raise CatalogError(msg) from None
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"{path} is not valid TOML: {error}."
        raise CatalogError(msg) from None
    version = data.get("schema")
    if version != schema.SCHEMA:
        msg = f"{path} has schema = {version!r}; this program reads schema = {schema.SCHEMA}."
        raise CatalogError(msg, hint="Begin the file with the line: schema = 1")
    _name_the_package(data)
    try:
        return msgspec.convert(data, schema.CatalogFile)
    except msgspec.ValidationError as error:
        raise _explain(path, text, data, str(error)) from None


def _name_the_package(data: dict[str, Any]) -> None:
    """Normalise the names of packages; in a file of one package its rows need not name it."""
    packages = _tables(data, "package")
    for row in packages:
        _normalise(row, "name")
    name = packages[0].get("name") if len(packages) == 1 else None
    for kind in ("release", "requires", "recipe"):
        for row in _tables(data, kind):
            if name is not None:
                row.setdefault("package", name)
            _normalise(row, "package")


def _tables(data: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    rows = data.get(kind)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _normalise(row: dict[str, Any], key: str) -> None:
    if isinstance(row.get(key), str):
        row[key] = canonicalize_name(row[key])


_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$\.(?P<path>.*)`)?$", re.DOTALL)
_INDEX = re.compile(r"(?P<kind>[\w-]+)\[(?P<index>\d+)\]\.?(?P<key>.*)")
_UNKNOWN = re.compile(r"unknown field `(?P<key>.*?)`")


def _explain(path: Path, text: str, data: Mapping[str, Any], error: str) -> CatalogError:
    match = _AT.match(error)
    what, where = (match["what"], match["path"] or "") if match else (error, "")
    hint = ""
    unknown = _UNKNOWN.search(what)
    place = _INDEX.match(where)
    if unknown and not place:
        hint = did_you_mean(
            unknown["key"], [f.encode_name for f in msgspec.structs.fields(schema.CatalogFile)]
        )
    if not place:
        return CatalogError(f"{path}: {what} {where}".rstrip(), hint=hint)
    kind, index = place["kind"], int(place["index"])
    line = _line_of(text, kind, index)
    if unknown:
        struct = next(
            f.type.__args__[0] for f in msgspec.structs.fields(schema.CatalogFile) if f.encode_name == kind
        )
        hint = did_you_mean(unknown["key"], [f.encode_name for f in msgspec.structs.fields(struct)])
    rows = data.get(kind)
    row = rows[index] if isinstance(rows, list) and index < len(rows) else {}
    label = row.get("version") or row.get("name") or row.get("id") or "" if isinstance(row, dict) else ""
    key = f", key {place['key']}" if place["key"] else ""
    return CatalogError(f"{path}:{line}: [[{kind}]] number {index + 1} {label}{key}: {what}", hint=hint)


def _line_of(text: str, kind: str, index: int) -> int:
    heads = [
        number
        for number, line in enumerate(text.splitlines(), start=1)
        if line.split("#")[0].strip().replace(" ", "") == f"[[{kind}]]"
    ]
    return heads[index] if index < len(heads) else 1


def _add(catalog: Catalog, path: Path, file: schema.CatalogFile) -> None:
    check_values(path, file)
    catalog.rocm |= {row.version: row for row in file.rocm}
    catalog.driver |= {row.version: row for row in file.driver}
    catalog.driver_module |= {row.driver: row for row in file.driver_module}
    catalog.gfx |= {row.target: row for row in file.gfx}
    catalog.python |= {row.version: row for row in file.python}
    catalog.torch |= {row.version: row for row in file.torch}
    catalog.image |= {row.name: row for row in file.image}
    catalog.site |= {row.name: row for row in file.site}
    catalog.window |= {(row.site, row.since.isoformat()): row for row in file.window}
    catalog.site_image |= {(row.site, row.image, str(row.since)): row for row in file.site_image}
    catalog.package |= {row.name: row for row in file.package}
    catalog.release |= {(row.package, row.version, row.variant): row for row in file.release}
    catalog.requires += file.requires
    catalog.recipe += file.recipe
    catalog.proven |= {row.id: row for row in file.proven}


def _check_references(catalog: Catalog) -> None:
    """See that rows name only what exists, so that a typing error cannot hide a fact."""
    for site_image in catalog.site_image.values():
        _known("image", site_image.image, catalog.image)
        _known("site", site_image.site, catalog.site)
    for window in catalog.window.values():
        _known("site", window.site, catalog.site)
        _known("driver", window.driver, catalog.driver)
    for release in catalog.release.values():
        _known("package", release.package, catalog.package)
        if sum(map(bool, (release.sdist, release.git, release.wheel, release.pypi))) != 1:
            msg = f"{release.package} {release.version}: give exactly one of sdist, git, wheel and pypi."
            raise CatalogError(msg)
    components = [*PLATFORM, *catalog.package, *companions(catalog)]
    for row in catalog.requires:
        _known("package", row.package, catalog.package)
        _known("component", canonicalize_name(row.on), dict.fromkeys(components))
        if canonicalize_name(row.on) == row.package:
            msg = f"A row of the catalog says that {row.package} needs itself."
            raise CatalogError(msg)
    for recipe in catalog.recipe:
        _known("package", recipe.package, catalog.package)


def _known(kind: str, name: str, rows: Mapping[str, object]) -> None:
    if name not in rows:
        msg = f"The catalog has no {kind} {name!r}, but a row names it."
        raise CatalogError(msg, hint=did_you_mean(name, rows))


def companions(catalog: Catalog) -> list[str]:
    """Give the names of torch and of the distributions that are published beside it."""
    tritons = {triton_name(row) for row in catalog.torch.values() if row.triton}
    return ["torch", "torchvision", "torchaudio", *sorted(tritons)]
