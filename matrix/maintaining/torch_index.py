"""New torch wheels on PyTorch's indexes, with the distributions that match each of them.

The indexes are those in the catalog, and the index of every newer ROCm line. The metadata file of a wheel
(PEP 658) names its triton, and the torch of a torchvision. Indexes do not state the GPU architectures of a
wheel: they are copied from the newest known wheel, and the row is inferred.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.metadata import InvalidMetadata, Metadata
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from builders.audit.platform_tags import required_glibc
from matrix.maintaining import CatalogUpdate
from matrix.maintaining.client import first_upload, wheels_of
from resolver.environment import Environment
from resolver.errors import EnvironmentLacksError
from resolver.facts import schema
from resolver.requirements import PAIRED_WITH_TORCH
from resolver.versions import minor, sort_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.requirements import Requirement

    from matrix.maintaining.client import Client
    from resolver.facts.catalog import Catalog
    from resolver.indexes import File

_BASE = "https://download.pytorch.org/whl"
_NOTE = "GPU architectures copied from torch {like}; the content of this wheel has not been checked."


def find_updates(catalog: Catalog, client: Client) -> CatalogUpdate:
    """Return the torch wheels that PyTorch's indexes have and the catalog lacks."""
    update = CatalogUpdate()
    for index in indexes(catalog):
        try:
            update.rows += _new_rows(catalog, index, client)
        except EnvironmentLacksError as error:
            update.unreachable.append((index, error.message))
    return update


def indexes(catalog: Catalog) -> list[str]:
    """Return the URLs of PyTorch's indexes except those without the newest known torch, no longer updated."""
    rows = [row for row in catalog.torch.values() if row.index.startswith(_BASE)]
    newest = {
        backend: max(Version(row.version).release[:2] for row in rows if row.backend == backend)
        for backend in {row.backend for row in rows}
    }
    current = {row.index for row in rows if Version(row.version).release[:2] >= newest[row.backend]}
    lines = [sort_key(minor(row.rocm)) for row in rows if row.rocm]
    for version in catalog.rocm:
        if lines and sort_key(minor(version)) > max(lines):
            current.add(f"{_BASE}/rocm{minor(version)}")
    return sorted(current)


def _new_rows(catalog: Catalog, index: str, client: Client) -> list[schema.Row]:
    new = {
        version: linux
        for version, wheels in wheels_of(client.releases(index, "torch")).items()
        if _is_new(version, catalog) and (linux := [wheel for wheel in wheels if is_linux(wheel.name)])
    }
    pairs = _pairs(catalog, index, client) if new else {}
    return [_row(catalog, version, new[version], pairs, client) for version in sorted(new, key=Version)]


def _is_new(version: str, catalog: Catalog) -> bool:
    """Return whether a version is a new final release, not older than known ones with its local label."""
    parsed = Version(version)
    if version in catalog.torch or parsed.is_prerelease or not parsed.local:
        return False
    label = parsed.local.split(".")[0]
    known = [
        Version(known_version).release
        for known_version in catalog.torch
        if (Version(known_version).local or "").split(".")[0] == label
    ]
    return not known or parsed.release >= max(known)


def is_linux(file: str) -> bool:
    """Return whether a wheel is for Linux on x86-64."""
    return "linux" in file and "x86_64" in file


def _row(
    catalog: Catalog, version: str, wheels: list[File], pairs: dict[tuple[str, str], str], client: Client
) -> schema.Torch:
    label = Version(version).local or ""
    rocm = label.removeprefix("rocm") if label.startswith("rocm") else ""
    similar = _most_similar(catalog, rocm)
    return torch_row(
        version,
        wheels,
        client,
        backend="rocm" if rocm else "cpu",
        rocm=rocm,
        gfx=similar.gfx if rocm and similar else (),
        torchvision=pairs.get(("torchvision", version), ""),
        torchaudio=pairs.get(("torchaudio", version), ""),
        cxx_standard=similar.cxx_standard if similar else "",
        status="inferred" if rocm else "documented",
        note=_NOTE.format(like=similar.version) if rocm and similar else "",
    )


def torch_row(version: str, wheels: list[File], client: Client, **more: Any) -> schema.Torch:  # noqa: ANN401
    """Return the row of a torch, with what its wheels and their index state; `more` are the other values."""
    index = wheels[0].index
    triton = (str(needed) for needed in requirements_of(wheels[0], client) if "triton" in needed.name)
    return schema.Torch(
        version=version,
        released=first_upload(wheels),
        index=index,
        python=pythons_of(wheels),
        triton=next(triton, ""),
        glibc=required_glibc(wheels[0].name),
        source=f"{index}/torch/",
        **{"backend": "rocm", **more},
    )


def _most_similar(catalog: Catalog, rocm: str) -> schema.Torch | None:
    """Return the newest known wheel of the same ROCm line or, failing that, of the newest line."""
    rows = [row for row in catalog.torch.values() if bool(row.rocm) == bool(rocm)]
    if not rows:
        return None
    same_line = [row for row in rows if rocm and minor(row.rocm) == minor(rocm)]
    return max(same_line or rows, key=lambda row: (sort_key(row.rocm or "0"), Version(row.version)))


def pythons_of(wheels: Iterable[File]) -> tuple[str, ...]:
    """Return the CPython minor versions with a wheel that allows them; free-threaded builds do not count."""
    minors = set()
    for wheel in wheels:
        try:
            tags = parse_wheel_filename(wheel.name)[3]
        except InvalidWheelFilename:
            continue
        for tag in tags:
            python = f"3.{tag.interpreter.removeprefix('cp3')}"
            if (
                tag.interpreter.startswith("cp3")
                and not tag.abi.endswith("t")
                and Environment(python).allows_python(wheel.requires_python)
            ):
                minors.add(python)
    return tuple(sorted(minors, key=sort_key))


def _pairs(catalog: Catalog, index: str, client: Client) -> dict[tuple[str, str], str]:
    """Return the new torchvision and torchaudio versions of an index by name and torch version."""
    known = {getattr(row, name) for row in catalog.torch.values() for name in PAIRED_WITH_TORCH}
    pairs = {}
    for name in PAIRED_WITH_TORCH:
        for version, wheels in wheels_of(client.releases(index, name)).items():
            linux = [wheel for wheel in wheels if is_linux(wheel.name)]
            if version in known or not linux or Version(version).is_prerelease:
                continue
            for needed in requirements_of(linux[0], client):
                exact = [clause.version for clause in needed.specifier if clause.operator == "=="]
                if needed.name == "torch" and exact:
                    pairs[name, _with_label(exact[0], version)] = version
    return pairs


def _with_label(torch: str, companion: str) -> str:
    """Add the local label of a companion to a torch version that has none."""
    local = Version(companion).local
    return torch if "+" in torch or not local else f"{torch}+{local}"


def requirements_of(wheel: File, client: Client) -> list[Requirement]:
    """Return the requirements in a wheel's metadata file; empty if the file is missing or invalid."""
    if not wheel.has_metadata:
        return []
    page = client.get(f"{wheel.url}.metadata")
    if page is None:
        return []
    try:
        return list(Metadata.from_email(page.text, validate=False).requires_dist or [])
    except (InvalidMetadata, ExceptionGroup):
        return []
