"""The catalog: all facts, keyed by their identity; loaded from the shipped files, a site's, and the user's.

Every command that needs facts imports this module first, so it has few imports: the modules that read and
validate files are imported only if a file changed since the compiled form was written. Paths are plain text
here, because importing pathlib takes longer than reading the rows.

The compiled form contains the validated and merged rows, with the time and size of every source file. It is
rewritten when one of them, or the schema, changes. All paths are resolved: two spellings are one file.
"""

from __future__ import annotations

import os
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar
from zlib import crc32

import msgspec

from resolver.errors import CatalogError, did_you_mean
from resolver.facts import schema
from resolver.requirements import PAIRED_WITH_TORCH, exact_requirement, normalize_name, required_name
from resolver.versions import built_for, grouped, satisfies

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import date
    from pathlib import Path
    from typing import Any

    from resolver.model import Distribution, Resolution

_OfPackage = TypeVar("_OfPackage", schema.Release, schema.Requires, schema.Recipe)
_MOST_TARGETS = 16
"""Targets whose parts of problems are kept."""


class Catalog(msgspec.Struct, frozen=True, dict=True):
    """All facts, keyed by their identity."""

    rocm: dict[str, schema.Rocm]
    driver: dict[str, schema.Driver]
    driver_module: dict[str, schema.DriverModule]
    gfx: dict[str, schema.Gfx]
    python: dict[str, schema.Python]
    torch: dict[str, schema.Torch]
    image: dict[str, schema.Image]
    site: dict[str, schema.Site]
    partition: dict[tuple[str, str], schema.Partition]
    job: dict[str, schema.Job]
    window: dict[tuple[object, ...], schema.Window]
    site_image: dict[tuple[object, ...], schema.SiteImage]
    site_advice: dict[tuple[object, ...], schema.SiteAdvice]
    site_variable: dict[tuple[object, ...], schema.SiteVariable]
    package: dict[str, schema.Package]
    release: dict[tuple[str, str, str], schema.Release]
    wheel: dict[str, schema.Wheel]
    requires: list[schema.Requires]
    recipe: list[schema.Recipe]
    known_bad: dict[tuple[object, ...], schema.KnownBad]
    proven: dict[str, schema.ProvenSet]
    wrong_name: dict[str, schema.WrongName]
    replaces: dict[tuple[object, ...], schema.Replaces]
    inferred: dict[tuple[object, ...], str] = {}
    """The releases that no file lists, each with the version of the release whose facts it inherits."""

    @classmethod
    def from_rows(cls, rows: schema.CatalogFile) -> Catalog:
        """Return a catalog of merged rows."""
        keyed: dict[str, Any] = {"requires": rows.requires, "recipe": rows.recipe}
        for kind in (name for name in schema.KINDS if name not in keyed):
            of_kind = getattr(rows, kind)
            key = type(of_kind[0]).by_identity() if of_kind else None
            keyed[kind] = {key(row): row for row in of_kind} if key else {}
        return cls(**keyed)

    def with_image(self, row: schema.Image) -> Catalog:
        """Return a catalog with this base image, which replaces an image of the same name."""
        return msgspec.structs.replace(self, image={**self.image, row.name: row})

    def of_kind(self, kind: str) -> list[schema.Row]:
        """Return the rows of one kind, named as in `schema.KINDS`."""
        rows = getattr(self, kind)
        return list(rows.values() if isinstance(rows, dict) else rows)

    def rows(self) -> Iterator[schema.Row]:
        """Yield every row of every kind."""
        for kind in schema.KINDS:
            yield from self.of_kind(kind)

    def windows_of(self, site: str) -> list[schema.Window]:
        """Return a site's driver windows, oldest first; a window without an end ends at the next window."""
        rows = sorted((w for w in self.window.values() if w.site == site), key=lambda w: w.since)
        ends = [*(row.since for row in rows[1:]), None]
        return [
            row if row.until else msgspec.structs.replace(row, until=end)
            for row, end in zip(rows, ends, strict=False)
        ]

    def window_on(self, site: str, day: date) -> schema.Window | None:
        """Return the driver window of a site on a day, if it is known."""
        return next((row for row in self.windows_of(site) if within(row, day)), None)

    def images_at(self, site: str, day: date, *, base: bool = True) -> list[schema.SiteImage]:
        """Return the images that a site offers on a day, only those to build on unless `base` is false."""
        rows = self.site_image.values()
        return [row for row in rows if row.site == site and within(row, day) and (row.base or not base)]

    def proven_at(self, site: str) -> list[schema.ProvenSet]:
        """Return the proven sets of a site, and those of no site."""
        return [row for row in self.proven.values() if row.site in {"", site}]

    def variables_of(self, site: str, day: date, versions: Mapping[str, str]) -> list[schema.SiteVariable]:
        """Return the environment variables that must be set at a site, or must not be set."""
        return [
            row
            for row in self.site_variable.values()
            if row.site == site and within(row, day) and matches(row.combination, versions)
        ]

    def releases_of(self, package: str) -> list[schema.Release]:
        """Return the releases of a package, in the order of the files."""
        return self._releases.get(package, [])

    def recipes_of(self, package: str) -> list[schema.Recipe]:
        """Return all recipes of a package, in the order of the files."""
        return self._recipes.get(package, [])

    def recipe_for(self, release: schema.Release, backend: str) -> schema.Recipe | None:
        """Return the recipe that builds a release for a backend; the last recipe if several match."""
        recipes = reversed(self.recipes_of(release.package))
        return next((row for row in recipes if row.backend == backend and row.applies_to(release)), None)

    def requires_of(self, package: str) -> list[schema.Requires]:
        """Return all requirements of a package, in the order of the files."""
        return self._requires.get(package, [])

    def parts_for(self, *target: object) -> dict[object, Any]:
        """Return what was compiled from it for a target; see `resolver.compiling.ProblemBuilder.share`."""
        if target not in self._parts and len(self._parts) >= _MOST_TARGETS:
            del self._parts[next(iter(self._parts))]
        return self._parts.setdefault(target, {})

    @cached_property
    def _parts(self) -> dict[object, dict[object, Any]]:
        return {}

    @cached_property
    def _requires(self) -> dict[str, list[schema.Requires]]:
        return _by_package(self.requires)

    @cached_property
    def _releases(self) -> dict[str, list[schema.Release]]:
        return _by_package(self.release.values())

    @cached_property
    def _recipes(self) -> dict[str, list[schema.Recipe]]:
        return _by_package(self.recipe)


def matches(combination: Mapping[str, str], versions: Mapping[str, str]) -> bool:
    """Return whether versions match the specifiers of a combination; an empty specifier allows any."""
    return all(
        name in versions and (not specifier or satisfies(versions[name], specifier))
        for name, specifier in combination.items()
    )


def within(row: schema.Dated, day: date) -> bool:
    """Return whether a day is in the range of dates of a row."""
    return (row.since is None or row.since <= day) and (row.until is None or day < row.until)


def is_elsewhere(release: schema.Release) -> bool:
    """Return whether a release consists of wheels that PyPI does not have."""
    return bool(release.wheels or release.index)


def prebuilt(lock: Resolution, catalog: Catalog) -> list[Distribution]:
    """Return the distributions of a lock whose wheels were compiled by others."""

    def is_prebuilt(pick: Distribution) -> bool:
        row = catalog.release.get((pick.name, pick.version, pick.variant))
        compiled = is_elsewhere(row) if row else built_for(pick.version) is not None
        return compiled and pick.origin == "published" and bool(pick.files)

    return [pick for pick in lock.distributions if is_prebuilt(pick)]


def _by_package(rows: Iterable[_OfPackage]) -> dict[str, list[_OfPackage]]:
    return grouped((row.package, row) for row in rows)


def closed_names(catalog: Catalog, backend: schema.Backend) -> frozenset[str]:
    """Return the names that are resolved from the catalog only, because an index may have something else.

    PyPI's torch is a CUDA build, and its apex is not NVIDIA's. Releases from PyPI (numpy) do not count.
    """
    packages = {row.package for row in catalog.release.values() if not row.pypi}
    packages |= {row.name for row in catalog.package.values() if row.pypi == "none"}
    tritons = (exact_requirement(row.triton) for row in catalog.torch.values() if row.backend == backend)
    names = {exact[0] for exact in tritons if exact}
    return frozenset({*schema.PLATFORM, "torch", *PAIRED_WITH_TORCH, *packages, *names})


def load(overlays: Iterable[Path] = (), *, cache: Path | str | None = None) -> Catalog:
    """Load the shipped catalog, and merge overlays over it, the last on top.

    Overlays are TOML files, or directories whose ``*.toml`` files are all read. `cache` is the directory of
    the compiled form.
    """
    groups = [shipped_files(), *map(overlay_files, overlays)]
    compiled = _read_compiled(cache, groups) if cache else None
    if compiled is not None:
        return compiled
    catalog, rows, files = load_uncached(groups)
    if cache:
        _write_compiled(cache, groups, files, rows)
    return catalog


def load_uncached(
    groups: Sequence[Sequence[str]], overrides: Mapping[str, str] | None = None
) -> tuple[Catalog, schema.CatalogFile, list[Path]]:
    """Read and validate layers as `read_layers` does; return the catalog, its rows, and all files."""
    from resolver.facts.catalog_files import merge, read_layers

    layers, files = read_layers(groups, overrides)
    rows = merge(layers)
    catalog = Catalog.from_rows(rows)
    _check_references(catalog)
    return catalog, rows, files


_REFERENCES = {
    "image": ("site_image",),
    "site": ("site_image", "partition", "job", "window", "site_advice", "site_variable"),
    "driver": ("window",),
    "package": ("release", "wheel", "requires", "recipe"),
}
"""The keys that name a row of the kind of the same name, with the kinds of rows that have them."""


def _check_references(catalog: Catalog) -> None:
    """Check that every row that others refer to exists, and that rows do not contradict each other."""
    for key, kinds in _REFERENCES.items():
        for kind in kinds:
            for row in catalog.of_kind(kind):
                _check_exists(row, key, getattr(row, key), getattr(catalog, key))
    for proven in catalog.proven.values():
        _check_exists(proven, "site", proven.site or "local", catalog.site)
    _check_components(catalog)
    _check_windows(catalog)
    _check_unique(catalog)


def _check_components(catalog: Catalog) -> None:
    tritons = {required_name(row.triton) for row in catalog.torch.values() if row.triton}
    published_with_torch = ["torch", "torchvision", "torchaudio", *sorted(tritons)]
    components = dict.fromkeys([*schema.PLATFORM, *catalog.package, *published_with_torch])
    for row in catalog.requires:
        _check_exists(row, "component", normalize_name(row.on), components)
    combinations: list[schema.KnownBad | schema.SiteVariable] = [
        *(row for row in catalog.known_bad.values() if row.excludes),
        *catalog.site_variable.values(),
    ]
    for combined in combinations:
        for name in combined.combination:
            _check_exists(combined, "component", name, components)
    for bad in catalog.known_bad.values():
        for target in bad.gfx:
            _check_exists(bad, "GPU architecture", target, catalog.gfx)


def _check_exists(row: schema.Row, kind: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        msg = f"{row.location}: this row names the {kind} {name!r}, which is not in the catalog."
        raise CatalogError(msg, hint=did_you_mean(name, known))


def _check_windows(catalog: Catalog) -> None:
    for site in catalog.site:
        for earlier, later in pairwise(catalog.windows_of(site)):
            if earlier.until is not None and earlier.until > later.since:
                msg = (
                    f"{later.location}: {site} has driver {later.driver} from {later.since}, but "
                    f"{earlier.location} has driver {earlier.driver} until {earlier.until}."
                )
                raise CatalogError(msg, hint=f"End the earlier window: until = {later.since}.")


def _check_unique(catalog: Catalog) -> None:
    """Check that a path belongs to one image, a file has one hash, and a commit has one version."""
    images: dict[str, schema.Image] = {}
    for image in catalog.image.values():
        if image.path:
            other = images.setdefault(image.path, image)
            if other is not image:
                raise _contradiction(
                    image, other, f"the images {image.name} and {other.name} have the same path"
                )
    files: dict[str, tuple[schema.Release, schema.Sdist]] = {}
    commits: dict[tuple[str, str, str], schema.Release] = {}
    for release in catalog.release.values():
        for file in filter(None, (release.sdist, release.wheel, *release.wheels)):
            first, known = files.setdefault(file.file, (release, file))
            if known.sha256 != file.sha256:
                raise _contradiction(release, first, f"{file.file} has two hashes")
        if release.git:
            commit = (release.package, release.git.url, release.git.commit)
            first = commits.setdefault(commit, release)
            if first.version != release.version:
                versions = f"{first.version} and {release.version}"
                raise _contradiction(
                    release, first, f"commit {release.git.commit[:12]} has two versions, {versions}"
                )


def _contradiction(row: schema.Row, other: schema.Row, reason: str) -> CatalogError:
    return CatalogError(f"{row.location} contradicts {other.location}: {reason}.")


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


_Compiled = tuple[list[list[str]], list[tuple[str, int, int]], schema.CatalogFile]
"""The requested files in layers; path, modification time and size of all files that were read, and of the
code that defines rows; the merged rows."""


def _read_compiled(cache: Path | str, groups: list[list[str]]) -> Catalog | None:
    """Return the catalog of all files, or None if they must be read again."""
    try:
        with open(_compiled_path(cache, groups), "rb") as source:
            requested, known, catalog = _decoded(source.read())
        current = requested == groups and known == stamp(path for path, _, _ in known)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return catalog if current else None


@lru_cache(maxsize=2)
def _decoded(data: bytes) -> tuple[list[list[str]], list[tuple[str, int, int]], Catalog]:
    """Decode the compiled form once, also if the facts of a lock are those of the settings."""
    requested, known, rows = msgspec.msgpack.decode(data, type=_Compiled)
    return requested, known, Catalog.from_rows(rows)


def _write_compiled(
    cache: Path | str, groups: list[list[str]], files: Sequence[Path], rows: schema.CatalogFile
) -> None:
    target = _compiled_path(cache, groups)
    temporary = f"{target}.{os.getpid()}"
    try:
        os.makedirs(cache, exist_ok=True)
        current = stamp([schema.__file__, __file__, *map(str, files)])
        with open(temporary, "wb") as sink:
            sink.write(msgspec.msgpack.encode((groups, current, rows)))
        os.replace(temporary, target)
    except OSError:
        return


def _compiled_path(cache: Path | str, groups: list[list[str]]) -> str:
    # Two sets of files with the same checksum evict each other, which costs only time.
    return os.path.join(cache, f"{crc32(repr(groups).encode()):08x}.msgpack")


def stamp(paths: Iterable[str]) -> list[tuple[str, int, int]]:
    """Return the path, modification time and size of files, which change with what is compiled from them."""
    stamps = []
    for path in paths:
        status = os.stat(path)
        stamps.append((path, status.st_mtime_ns, status.st_size))
    return stamps
