"""What the values of a row must mean: versions, specifiers and requirements that can be read.

The schema knows types only. A value that means nothing would otherwise show much later, or never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Pep508
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from resolver.errors import CatalogError, UsageError
from resolver.versions import parse_specifier, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from resolver.facts import schema


def check_values(path: Path, file: schema.CatalogFile) -> None:
    """See that every version, specifier and requirement of a file can be read.

    Raises
    ------
    CatalogError
        With the file, the row and the value.
    """
    _can_be_read(path, _versions(file), Version, "a version that can be ordered (PEP 440)")
    _can_be_read(path, _specifiers(file), parse_specifier, "a version specifier (PEP 440)")
    _can_be_read(path, _requirements(file), Pep508, "a requirement (PEP 508)")
    for row in file.torch:
        if row.backend == "rocm" and not row.rocm:
            msg = f"{path}: torch {row.version}: a ROCm build must say which rocm it is built for."
            raise CatalogError(msg)
    for recipe in file.recipe:
        if recipe.memory_per_job <= 0:
            msg = f"{path}: recipe of {recipe.package}: memory-per-job must be above 0 GiB."
            raise CatalogError(msg)
    for driver in file.driver:
        if not driver.supports:
            msg = f"{path}: driver {driver.version} supports nothing; name the ROCm lines of AMD's table."
            raise CatalogError(msg)


def _can_be_read(
    path: Path, values: Iterable[tuple[str, str]], read: Callable[[str], object], what: str
) -> None:
    for where, text in values:
        try:
            read(text)
        except (InvalidVersion, InvalidRequirement, UsageError):
            msg = f"{path}: {where}: {shorten(text)!r} is not {what}."
            raise CatalogError(msg) from None


def triton_name(row: schema.Torch) -> str:
    """Give the normalised name of the triton distribution that a torch wheel needs."""
    return canonicalize_name(Pep508(row.triton).name)


def _versions(file: schema.CatalogFile) -> Iterable[tuple[str, str]]:
    yield from (("rocm", row.version) for row in file.rocm)
    yield from (("python", row.version) for row in file.python)
    for driver in file.driver:
        yield from (("driver", text) for text in (driver.version, *driver.supports))
    for module in file.driver_module:
        yield from (("driver-module", text) for text in (module.driver, module.module))
    for torch in file.torch:
        optional = [text for text in (torch.rocm, torch.glibc, torch.torchvision, torch.torchaudio) if text]
        yield from ((f"torch {torch.version}", text) for text in (torch.version, *torch.python, *optional))
    for image in file.image:
        yield from ((f"image {image.name}", text) for text in (image.rocm, image.glibc, *image.python))
    yield from ((f"release of {row.package}", row.version) for row in file.release)
    yield from ((f"window of {row.site}", row.driver) for row in file.window)


def _specifiers(file: schema.CatalogFile) -> Iterable[tuple[str, str]]:
    rows: list[schema.Requires | schema.Recipe] = [*file.requires, *file.recipe]
    yield from ((f"releases of {row.package}", row.releases) for row in rows if row.releases)
    for one in file.requires:
        if one.on != "gfx":
            yield from ((f"{one.package} on {one.on}", text) for text in one.versions)


def _requirements(file: schema.CatalogFile) -> Iterable[tuple[str, str]]:
    yield from ((f"triton of torch {row.version}", row.triton) for row in file.torch if row.triton)
    for recipe in file.recipe:
        yield from ((f"recipe of {recipe.package}", text) for text in (*recipe.declared, *recipe.undeclared))
