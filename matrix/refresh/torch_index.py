"""Torch wheels that PyTorch's indexes have and the catalog does not, with what fits only each of them.

Which indexes there are follows from the facts: those the catalog names, and the one of every newer
ROCm line. What the wheel's metadata says (triton, the torch of a torchvision) is read where the
index serves it (PEP 658). Which offload targets a wheel holds code for no index says: it is taken
from the newest known wheel, and the row is marked as inferred.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.metadata import InvalidMetadata, Metadata
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from matrix.refresh.learned import Learned
from matrix.refresh.simple import files_by_version, project_page
from resolver.errors import EnvironmentLacksError
from resolver.facts import schema
from resolver.versions import minor, sort_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.requirements import Requirement
    from pypi_simple import DistributionPackage

    from matrix.refresh.web import Web
    from resolver.facts.catalog import Catalog

_BASE = "https://download.pytorch.org/whl"
_NOTE = "Offload targets as in torch {like}; nobody has read what this wheel holds."
_PAIRED = ("torchvision", "torchaudio")


def learn(catalog: Catalog, web: Web) -> Learned:
    """Look into every index for torch wheels that the catalog does not have."""
    learned = Learned()
    for index in indexes(catalog):
        try:
            _learn_index(catalog, index, web, learned)
        except EnvironmentLacksError as error:
            learned.unreachable.append(f"{index}: {error.message}")
    return learned


def indexes(catalog: Catalog) -> list[str]:
    """Give the indexes to look into: PyTorch's that the catalog names, and those of newer ROCm lines.

    An index of a line that the newest known torch has left behind gets nothing new any more.
    """
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


def _learn_index(catalog: Catalog, index: str, web: Web, learned: Learned) -> None:
    page = project_page(web, index, "torch")
    if page is None:
        return
    grouped = files_by_version(page, ["wheel"])
    new = {version: wheels for version, wheels in grouped.items() if _is_new(version, catalog)}
    pairs = _pairs(catalog, index, web) if new else {}
    for version, wheels in sorted(new.items(), key=lambda item: Version(item[0])):
        linux = [wheel for wheel in wheels if _is_linux(wheel.filename)]
        if linux:
            learned.rows.append(_row(catalog, index, version, linux, pairs=pairs, web=web))


def _is_new(version: str, catalog: Catalog) -> bool:
    """Tell whether a version is a final release that is newer than all known ones of its kind."""
    parsed = Version(version)
    if version in catalog.torch or parsed.is_prerelease or not parsed.local:
        return False
    kind = parsed.local.split(".")[0]
    known = [
        Version(one).release
        for one in catalog.torch
        if (Version(one).local or "").split(".")[0] == kind or Version(one).local == parsed.local
    ]
    return not known or parsed.release >= max(known)


def _is_linux(file: str) -> bool:
    return "linux" in file and "x86_64" in file


def _row(
    catalog: Catalog,
    index: str,
    version: str,
    wheels: list[DistributionPackage],
    *,
    pairs: dict[tuple[str, str], str],
    web: Web,
) -> schema.Torch:
    label = Version(version).local or ""
    rocm = label.removeprefix("rocm") if label.startswith("rocm") else ""
    like = _most_alike(catalog, rocm)
    tag = _platform_tag(wheels[0].filename)
    needs = _requirements(wheels[0], web)
    triton = next((str(one) for one in needs if "triton" in one.name), "")
    return schema.Torch(
        version=version,
        backend="rocm" if rocm else "cpu",
        rocm=rocm,
        index=index,
        python=_pythons(wheels),
        gfx=like.gfx if rocm and like else (),
        triton=triton,
        torchvision=pairs.get(("torchvision", version), ""),
        torchaudio=pairs.get(("torchaudio", version), ""),
        glibc=_glibc(tag),
        platform_tag=tag,
        bundles_rocm=like.bundles_rocm if rocm and like else None,
        cxx_standard=like.cxx_standard if like else "",
        status="inferred" if rocm else "documented",
        source=f"{index}/torch/",
        note=_NOTE.format(like=like.version) if rocm and like else "",
    )


def _most_alike(catalog: Catalog, rocm: str) -> schema.Torch | None:
    """Give the newest known wheel of the nearest ROCm line, or the newest for the CPU."""
    rows = [row for row in catalog.torch.values() if bool(row.rocm) == bool(rocm)]
    if not rows:
        return None
    same = [row for row in rows if rocm and minor(row.rocm) == minor(rocm)]
    return max(same or rows, key=lambda row: (sort_key(row.rocm or "0"), Version(row.version)))


def _pythons(wheels: Iterable[DistributionPackage]) -> tuple[str, ...]:
    """Give the CPython minors with a wheel; free-threaded builds are not counted."""
    found = set()
    for wheel in wheels:
        try:
            tags = parse_wheel_filename(wheel.filename)[3]
        except InvalidWheelFilename:
            continue
        for tag in tags:
            if tag.interpreter.startswith("cp3") and not tag.abi.endswith("t"):
                found.add(f"3.{tag.interpreter.removeprefix('cp3')}")
    return tuple(sorted(found, key=sort_key))


def _platform_tag(file: str) -> str:
    return file.removesuffix(".whl").rsplit("-", 1)[-1].split(".")[0]


def _glibc(tag: str) -> str:
    """Read the glibc floor of a perennial manylinux tag (PEP 600); other tags do not say it."""
    parts = tag.split("_")
    return f"{parts[1]}.{parts[2]}" if tag.startswith("manylinux_") else ""


def _pairs(catalog: Catalog, index: str, web: Web) -> dict[tuple[str, str], str]:
    """Find which torch each new torchvision and torchaudio of an index is for."""
    known = {getattr(row, name) for row in catalog.torch.values() for name in _PAIRED}
    found = {}
    for name in _PAIRED:
        page = project_page(web, index, name)
        for version, wheels in files_by_version(page, ["wheel"]).items() if page else ():
            linux = [wheel for wheel in wheels if _is_linux(wheel.filename)]
            if version in known or not linux or Version(version).is_prerelease:
                continue
            for needed in _requirements(linux[0], web):
                exact = [one.version for one in needed.specifier if one.operator == "=="]
                if needed.name == "torch" and exact:
                    found[name, _labelled(exact[0], version)] = version
    return found


def _labelled(torch: str, like: str) -> str:
    """Give a torch version the label of its companion, if its requirement has none."""
    local = Version(like).local
    return torch if "+" in torch or not local else f"{torch}+{local}"


def _requirements(wheel: DistributionPackage, web: Web) -> list[Requirement]:
    """Read a wheel's requirements from the metadata file beside it; none if the index serves none."""
    if not wheel.has_metadata:
        return []
    answer = web.get(wheel.metadata_url)
    if answer is None:
        return []
    try:
        return list(Metadata.from_email(answer.text, validate=False).requires_dist or [])
    except (InvalidMetadata, ExceptionGroup):
        return []
