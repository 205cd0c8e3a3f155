"""Reading catalog files and laying them over one another.

The shipped files are read first, then a site's, then the user's. A later row with the same
identity replaces the earlier one; rows without an identity (requirements) are added.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from resolver.errors import CatalogError, did_you_mean
from resolver.facts import compiled, schema
from resolver.model import PLATFORM
from resolver.versions import parse_specifier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


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
    return sorted(Path(__file__).parent.rglob("*.toml"))


def files_of(overlays: Iterable[Path]) -> list[Path]:
    """Give the files of overlays in the order in which they are laid over one another.

    Raises
    ------
    CatalogError
        A directory holds no catalog file.
    """
    found = []
    for overlay in overlays:
        files = sorted(overlay.rglob("*.toml")) if overlay.is_dir() else [overlay]
        if not files:
            msg = f"The catalog directory {overlay} holds no .toml file."
            raise CatalogError(msg)
        found += files
    return found


def load(overlays: Iterable[Path] = (), *, cache: Path | None = None) -> Catalog:
    """Read the shipped catalog and lay the overlays over it.

    Parameters
    ----------
    overlays
        TOML files, or directories whose ``*.toml`` files are all read, later ones winning.
    cache
        A directory for the compiled form, which is read instead as long as no file changed.

    Raises
    ------
    CatalogError
        A file is missing, is no catalog file, or holds a row that cannot be read. Nothing is
        half-loaded.
    """
    paths = [*shipped(), *files_of(overlays)]
    stored = compiled.read(cache, paths) if cache else None
    catalog = Catalog()
    if stored is not None:
        for file in stored:
            _add(catalog, file)
        return catalog
    from resolver.facts.reading import read_file  # noqa: PLC0415  only when something changed

    files = [read_file(path) for path in paths]
    for file in files:
        _add(catalog, file)
    _check_references(catalog)
    if cache:
        compiled.write(cache, paths, files)
    return catalog


def _add(catalog: Catalog, file: schema.CatalogFile) -> None:
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
    from packaging.utils import canonicalize_name  # noqa: PLC0415  imports slowly

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
    from resolver.facts.values import triton_name  # noqa: PLC0415  imports slowly

    tritons = {triton_name(row) for row in catalog.torch.values() if row.triton}
    return ["torch", "torchvision", "torchaudio", *sorted(tritons)]
