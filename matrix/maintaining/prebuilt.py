"""Wheels that others compiled for ROCm: AMD's and vLLM's indexes, and flash-attention in GitHub releases.

A label such as ``+rocm7.2torch2.14`` or ``+rocm721`` names the versions that a wheel was compiled for. Its
file name states the Pythons and the glibc, and its metadata the torch. One wheel of each release is read in
parts. If that wheel cannot be read, the rows of the release come from names alone, and are inferred.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builders.audit.platform_tags import required_glibc
from builders.learning import LearnedFacts
from matrix.maintaining import CatalogUpdate
from matrix.maintaining.client import first_upload, wheels_of
from matrix.maintaining.torch_index import is_linux, pythons_of, requirements_of, torch_row
from resolver.errors import EnvironmentLacksError, MatrixError
from resolver.facts import schema
from resolver.indexes import File, files_of
from resolver.versions import minor, sort_key, version_or_none

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from matrix.maintaining.client import Client
    from resolver.facts.catalog import Catalog

AMD = ("https://repo.amd.com/rocm/whl-multi-arch", "https://stable.repo.amd.com/rocm/whl-next")
VLLM = "https://wheels.vllm.ai/rocm"
RELEASES = "https://api.github.com/repos/mjun0812/flash-attention-prebuild-wheels/releases?per_page=100"
_ROCM = re.compile(r"(?:^|\.)rocm(\d+(?:\.\d+)*)(?=torch|$)")
_TORCH = re.compile(r"torch(\d+\.\d+(?:\.\d+)?)")
_VARIANT = re.compile(r"rocm\d+")
_DEVICE = re.compile(r"amd-torch-device-(gfx[0-9a-f]+)")
_BEFORE_VLLM = "0.13"  # its last release without wheels for ROCm
_NOTE = "From the names of its files; the content was not read."

Reader = Callable[[File], LearnedFacts]
"""Reads facts from a wheel on a server by fetching parts of the file; raises a `MatrixError` on failure."""


# AMD's indexes.


def amd_updates(catalog: Catalog, client: Client, read: Reader) -> CatalogUpdate:
    """Return AMD's torch wheels, and AMD's wheels of packages of the catalog, that the catalog lacks."""
    update = CatalogUpdate()
    own = (row.index for row in catalog.torch.values() if row.device_extra)
    for index in dict.fromkeys([*AMD, *own]):
        try:
            update.add(_amd_update(catalog, index, client, read))
        except EnvironmentLacksError as error:
            update.unreachable.append((index, error.message))
    return update


def _amd_update(catalog: Catalog, index: str, client: Client, read: Reader) -> CatalogUpdate:
    update = CatalogUpdate()
    names = {canonicalize_name(name) for name in client.projects(index)}
    targets = {match[1] for name in names if (match := _DEVICE.fullmatch(name))}
    gfx = tuple(target for target in catalog.gfx if target in targets)
    pages = {name: _linux_wheels(client, index, name) for name in ("torch", "torchvision", "torchaudio")}
    update.rows += [
        _amd_torch(catalog, pages, version, gfx, client)
        for version in pages["torch"]
        if version not in catalog.torch and _is_known_line(catalog, version)
    ]
    for name in catalog.package:
        if name in names and name not in pages:
            for version, wheels in _linux_wheels(client, index, name).items():
                if _is_known_line(catalog, version) and (name, version, "") not in catalog.release:
                    rows = _release_rows(catalog, name, version, wheels, index=index, client=client)
                    _add_read(rows, wheels[0], read, update)
    return update


def _is_known_line(catalog: Catalog, version: str) -> bool:
    rocm = _rocm_of(catalog, version)
    return bool(rocm) and minor(rocm) in {minor(known) for known in catalog.rocm}


def _amd_torch(
    catalog: Catalog,
    pages: dict[str, dict[str, list[File]]],
    version: str,
    gfx: tuple[str, ...],
    client: Client,
) -> schema.Torch:
    rocm = _rocm_of(catalog, version)
    like = _same_release(catalog, version)

    def companion(name: str) -> str:
        known = Version(getattr(like, name)).release if like and getattr(like, name) else ()
        same_rocm = (version for version in pages[name] if known and Version(version).local == f"rocm{rocm}")
        return next((version for version in same_rocm if Version(version).release[: len(known)] == known), "")

    return torch_row(
        version,
        pages["torch"][version],
        client,
        rocm=rocm,
        gfx=gfx,
        torchvision=companion("torchvision"),
        torchaudio=companion("torchaudio"),
        cxx_standard=like.cxx_standard if like else "",
        pip_rocm=True,
        device_extra="device-{gfx}",
        status="documented",
        note="GPU architectures: those for which the index has device packages of some torch.",
    )


def _same_release(catalog: Catalog, version: str) -> schema.Torch | None:
    """Return a known torch whose version differs only by its local label."""
    public = Version(version).public
    return next((row for row in catalog.torch.values() if Version(row.version).public == public), None)


# vLLM's indexes: one for each release and ROCm.


def vllm_updates(catalog: Catalog, client: Client, index: str, read: Reader) -> CatalogUpdate:
    """Return vLLM's new wheels for ROCm, with each index's torch for them; `index` has vLLM's releases."""
    update = CatalogUpdate()
    try:
        for version in _vllm_versions(catalog, client, index):
            of_version = CatalogUpdate()  # all or nothing, because a later run looks only for newer versions
            for variant in client.projects(f"{VLLM}/{version}", missing_ok=True):
                if _VARIANT.fullmatch(variant):
                    _add_vllm(catalog, f"{VLLM}/{version}/{variant}", client, read, of_version)
            update.add(of_version)
    except EnvironmentLacksError as error:
        update.unreachable.append((VLLM, error.message))
    return update


def _vllm_versions(catalog: Catalog, client: Client, index: str) -> list[str]:
    """Return the releases for which there may be an index that the catalog does not have."""
    known = [Version(row.version) for row in catalog.releases_of("vllm") if row.index]
    newest = max((version.public for version in known), key=sort_key, default=_BEFORE_VLLM)
    versions = client.releases(index, "vllm") or {}
    new = (text for text in filter(_is_final, versions) if sort_key(text) > sort_key(newest))
    return sorted(new, key=sort_key)


def _add_vllm(catalog: Catalog, index: str, client: Client, read: Reader, update: CatalogUpdate) -> None:
    torches = _linux_wheels(client, index, "torch")
    for version, wheels in _linux_wheels(client, index, "vllm").items():
        if ("vllm", version, "") in catalog.release:
            continue
        rows = _release_rows(
            catalog, "vllm", version, wheels, index=index, client=client, torch=list(torches)
        )
        _add_read(rows, wheels[0], read, update)
        rocm = _rocm_of(catalog, version)
        update.rows += [
            torch_row(
                torch,
                files,
                client,
                rocm=rocm,
                cxx_standard=like.cxx_standard if (like := _same_release(catalog, torch)) else "",
                status="inferred",
                system_rocm=True,
                note=f"ROCm from the name of the index. {_NOTE}",
            )
            for torch, files in torches.items()
            if torch not in catalog.torch and rocm
        ]


# GitHub releases.


class _Asset(msgspec.Struct):
    name: str
    browser_download_url: str
    digest: str | None = None


class _GitHubRelease(msgspec.Struct):
    assets: list[_Asset]
    prerelease: bool = False
    published_at: datetime.datetime | None = None


def github_updates(catalog: Catalog, client: Client, read: Reader) -> CatalogUpdate:
    """Return flash-attention's wheels for ROCm in GitHub releases that the catalog lacks."""
    update = CatalogUpdate()
    text = client.document(RELEASES, update)
    if text is None:
        return update
    try:
        releases = msgspec.json.decode(text, type=list[_GitHubRelease])
    except msgspec.DecodeError:
        update.remarks.append(f"{RELEASES} is no longer a list of releases and was skipped.")
        return update
    wheels: dict[str, list[schema.Sdist]] = {}
    days: dict[str, datetime.date | None] = {}
    assets = ((asset, release) for release in releases if not release.prerelease for asset in release.assets)
    for asset, release in assets:
        version, sha256 = _version_of(asset.name), (asset.digest or "").removeprefix("sha256:")
        if not version or not is_linux(asset.name) or not _rocm_of(catalog, version):
            continue
        if not sha256:
            update.remarks.append(f"{asset.browser_download_url} has no SHA-256, so it was skipped.")
        elif not any(wheel.file == asset.name for wheel in wheels.get(version, ())):
            days[version] = release.published_at and release.published_at.astimezone(datetime.UTC).date()
            wheels.setdefault(version, []).append(
                schema.Sdist(asset.name, sha256, asset.browser_download_url)
            )
    for version, files in wheels.items():
        if ("flash-attn", version, "") not in catalog.release:
            first = File(name=files[0].file, url=files[0].url, sha256=files[0].sha256)
            _add_read(_github_rows(catalog, version, files, days[version]), first, read, update)
    return update


def _version_of(file: str) -> str:
    """Return the version of a wheel of flash-attn; empty for any other file."""
    try:
        name, version, _, _ = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return ""
    return str(version) if name == "flash-attn" and not version.is_prerelease else ""


def _github_rows(
    catalog: Catalog, version: str, wheels: Sequence[schema.Sdist], released: datetime.date | None
) -> Iterator[schema.Row]:
    label = Version(version).local or ""
    source = wheels[0].url.rpartition("/")[0].replace("/download/", "/tag/")
    torch = _TORCH.search(label)
    release = schema.Release(
        package="flash-attn",
        version=version,
        released=released,
        wheels=tuple(sorted(wheels, key=lambda wheel: wheel.file)),
        status="inferred",
        source=source,
        note=_NOTE,
    )
    yield release
    yield from _requirements(catalog, release, files_of(release), [f"=={torch[1]}.*"] if torch else [])


# Rows of a release.


def _release_rows(
    catalog: Catalog,
    package: str,
    version: str,
    wheels: list[File],
    *,
    index: str,
    client: Client,
    torch: Sequence[str] = (),
) -> Iterator[schema.Row]:
    """Yield a release on an index and its requirements; `torch` are versions on the same index."""
    needed = next((row for row in requirements_of(wheels[0], client) if row.name == "torch"), None)
    release = schema.Release(
        package=package,
        version=version,
        released=first_upload(wheels),
        index=index,
        status="inferred",
        source=f"{index}/{package}/",
        note=_NOTE,
    )
    yield release
    versions = [str(needed.specifier)] if needed and needed.specifier else [f"=={text}" for text in torch]
    yield from _requirements(catalog, release, wheels, versions)


def _add_read(rows: Iterable[schema.Row], file: File, read: Reader, update: CatalogUpdate) -> None:
    """Add the rows of a release, with facts from the content of one wheel where names are not enough.

    The Pythons remain those of all wheels, and the torch remains that of the index.
    """
    rows = list(rows)
    try:
        learned = read(file)
    except MatrixError as error:
        update.remarks.append(f"{file.name} was not read, so its rows are inferred: {error.message}")
        update.rows += rows
        return
    kept = {row.on for row in rows if isinstance(row, schema.Requires) and row.on in {"python", "torch"}}
    contents = [row for row in learned.rows if isinstance(row, schema.Requires) and row.on not in kept]
    if not file.sha256:
        source = f"{file.index} {file.name} (the index has no hashes)"
        contents = [msgspec.structs.replace(row, source=source) for row in contents]
    stated = {row.on for row in contents}
    for row in rows:
        if isinstance(row, schema.Release):
            update.rows.append(msgspec.structs.replace(row, status="observed", note=""))
        elif isinstance(row, schema.Requires) and row.on not in stated:
            update.rows.append(row)
    update.rows += contents
    update.rows += [row for row in learned.rows if isinstance(row, schema.Wheel) and row.sha256]


def _requirements(
    catalog: Catalog, release: schema.Release, files: Sequence[File], torch: Sequence[str]
) -> Iterator[schema.Requires]:
    rocm = _rocm_of(catalog, release.version)
    glibc = {required_glibc(file.name) for file in files} - {""}
    stated = {
        "torch": torch,
        "rocm": [f"=={minor(rocm)}.*"] if rocm else [],
        "python": [f"=={python}.*" for python in pythons_of(files)],
        "glibc": [f">={max(glibc, key=sort_key)}"] if glibc else [],
    }
    for on, versions in stated.items():
        if versions:
            yield schema.Requires(
                package=release.package,
                releases=f"=={release.version}",
                on=on,
                versions=tuple(versions),
                when_present=on == "glibc",
                status="inferred",
                source=release.source,
                note=_NOTE,
            )


def _linux_wheels(client: Client, index: str, name: str) -> dict[str, list[File]]:
    """Return the final releases of a project with their wheels for Linux on x86-64."""
    releases = wheels_of(client.releases(index, name))
    return {
        version: linux
        for version, wheels in releases.items()
        if _is_final(version) and (linux := [wheel for wheel in wheels if is_linux(wheel.name)])
    }


def _is_final(version: str) -> bool:
    parsed = version_or_none(version)
    return (
        parsed is not None
        and not parsed.is_devrelease
        and (parsed.local is not None or not parsed.is_prerelease)
    )


def _rocm_of(catalog: Catalog, version: str) -> str:
    """Return the ROCm that a local label names, such as ``7.2.1`` for ``rocm721``; empty if it names none.

    Digits without dots are split so that they match a release or a line in the catalog.
    """
    match = _ROCM.search(Version(version).local or "")
    if match is None:
        return ""
    text = match[1]
    if "." in text or len(text) == 1:
        return text
    known = {*catalog.rocm, *map(minor, catalog.rocm)}
    splits = [".".join(parts) for parts in _splits(text)]
    return next((split for split in splits if split in known), splits[0])


def _splits(digits: str) -> Iterable[tuple[str, ...]]:
    """Yield ways to split digits into major, minor and patch, or major and minor; one-digit majors first."""
    for major in range(1, min(3, len(digits))):
        for end in range(major + 1, len(digits)):
            yield digits[:major], digits[major:end], digits[end:]
        yield digits[:major], digits[major:]
