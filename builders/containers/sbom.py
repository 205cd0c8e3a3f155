"""Read a list of an image's content, as published beside images: CycloneDX, SPDX, or LUMI's own form.

LUMI's AI Factory writes ``{"apt": [...], "pip": [...]}``, each row with a name and a version, into a file
with the name of the image. Source: lumi-ai-factory/laifs-container-recipes@fdf7153:
containerfiles/torch/Venv_Torch, recipes/lumi-multitorch/lumi-multitorch-template.yaml. In the other two,
names and versions are those of package URLs (cyclonedx.org/docs/1.6/json, spdx.github.io/spdx-spec/v2.3,
github.com/package-url/purl-spec).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from resolver.errors import UsageError
from resolver.requirements import normalize_name
from resolver.texts import printable, read_text
from resolver.versions import minor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_PURL = re.compile(r"pkg:(?P<type>[a-z]+)/(?:[^@?#]*/)?(?P<name>[^/@?#]+)(?:@(?P<version>[^?#]+))?")
_SITE = re.compile(
    r"(?P<site>[^\s,:]*python(?P<python>3\.\d+|3)/(?:site|dist)-packages)/[^/ ]+\.(?:dist|egg)-info"
)
"""Where a scanner found a distribution, in a property of CycloneDX or the text of SPDX's ``sourceInfo``."""
_NUMBERS = re.compile(r"(?:\d+:)?(\d+(?:\.\d+)*)")
"""The upstream version of a Debian or RPM package, without the epoch."""
_SYSTEM = {"libc6": "glibc", "glibc": "glibc", "libstdc++6": "libstdc++", "rocm-core": "rocm"}
"""Packages of the system (Debian's and RPM names) whose version is that of a part of the platform."""
_COMPILER = re.compile(r"g\+\+(-\d+)?|gcc\d*-c\+\+")
_SHA256 = re.compile(r"(?:sha256:)?([0-9a-f]{64})")


class _Package(msgspec.Struct, frozen=True):
    type: str
    """As in package URLs: ``pypi``, ``deb``, ``rpm``."""
    name: str
    version: str
    site: str = ""
    """The directory of Python packages that has it, if stated."""
    python: str = ""


class Sbom(msgspec.Struct, frozen=True, kw_only=True):
    """What a list says of an image."""

    form: str
    """``CycloneDX``, ``SPDX`` or ``apt and pip``."""
    distributions: list[tuple[str, str]]
    """Names and versions as written: those that the Python with torch imports, if the list states places."""
    python: str = ""
    platform: dict[str, str] = {}
    """ROCm, glibc, libstdc++ (its GCC) and the operating system, as far as the list has them."""
    compiler: bool = False
    """Whether it lists g++."""
    sha256: str = ""
    """Of the image's file, if stated. The digest of a registry is another one, so it is not read."""


def is_sbom(path: Path) -> bool:
    """Return whether a file stands for its image as a list of the image's content."""
    return path.suffix == ".json" and path.is_file()


def read_sbom(path: Path) -> Sbom:
    """Read a file; raise `UsageError` if it is no list of an image's content."""
    try:
        found = sbom_of(json.loads(read_text(path)))
    except (ValueError, RecursionError):
        found = None
    if found is None:
        msg = (
            f"{path} is not a list of an image's content: neither CycloneDX, SPDX 2, nor LUMI's apt and pip."
        )
        raise UsageError(msg, hint="Name the image itself, or the list that is published beside it.")
    return found


def sbom_of(data: object) -> Sbom | None:
    """Return what JSON says of an image; None if it has none of the forms."""
    match data:
        case {"bomFormat": "CycloneDX"}:
            form, packages = "CycloneDX", [*_of_cyclonedx(data)]
        case {"spdxVersion": str(), "packages": [*rows]}:
            form, packages = "SPDX", [found for row in rows for found in _of_spdx(row)]
        case {"apt": [*_]}:
            kinds = {"deb": "apt", "pypi": "pip"}
            form = "apt and pip"
            packages = [
                _Package(kind, _text(row, "name"), _text(row, "version"))
                for kind, key in kinds.items()
                for row in _list(data, key)
            ]
        case _:
            return None
    system = {package.name: package.version for package in packages if package.type in {"deb", "rpm"}}
    numbers = {name: found[1] for name, text in system.items() if (found := _NUMBERS.match(text))}
    platform = {part: numbers[name] for name, part in _SYSTEM.items() if name in numbers}
    if "rocm" in platform:  # AMD's packages have a fourth number, made of the first three
        platform["rocm"] = ".".join(platform["rocm"].split(".")[:3])
    if "libstdc++" in platform:  # as the catalog has it: the line of GCC, whose releases share a libstdc++
        platform["libstdc++"] = platform["libstdc++"].partition(".")[0]
    for row in _list(data, "components"):
        if _text(row, "type") == "operating-system":
            release = f"{_text(row, 'name').capitalize()} {_text(row, 'version')}"
            platform["os"] = printable(release.strip())
    seen = _seen(packages)
    pythons = {package.python for package in seen if "." in package.python}
    if form == "apt and pip" and "python3" in numbers:  # its recipe makes the environment with this Python
        pythons = {minor(numbers["python3"])}
    return Sbom(
        form=form,
        distributions=[*dict.fromkeys((package.name, package.version) for package in seen)],
        python=pythons.pop() if len(pythons) == 1 else "",
        platform=platform,
        compiler=any(_COMPILER.fullmatch(name) for name in system),
        sha256=_digest_of_file(data),
    )


def _seen(packages: Iterable[_Package]) -> list[_Package]:
    """Return the distributions of the Python that has torch, where the list says which one has what."""
    found = [package for package in packages if package.type == "pypi"]
    sites = {package.site for package in found if normalize_name(package.name) == "torch" and package.site}
    return [package for package in found if not sites or not package.site or package.site in sites]


def _of_cyclonedx(data: object) -> Iterator[_Package]:
    for row in _list(data, "components"):
        places = " ".join(_text(item, "value") for item in _list(row, "properties"))
        yield from _package(_text(row, "purl"), _text(row, "version"), places)
        yield from _of_cyclonedx(row)  # components have components


def _of_spdx(row: object) -> Iterator[_Package]:
    for reference in _list(row, "externalRefs"):
        if _text(reference, "referenceType") == "purl":
            url = _text(reference, "referenceLocator")
            yield from _package(url, _text(row, "versionInfo"), _text(row, "sourceInfo"))


def _package(url: str, version: str, places: str) -> Iterator[_Package]:
    if purl := _PURL.match(url):
        place = _SITE.search(places)
        at = (f"/{place['site'].lstrip('/')}", place["python"]) if place else ("", "")
        yield _Package(purl["type"], unquote(purl["name"]), unquote(purl["version"] or version), *at)


def _digest_of_file(data: object) -> str:
    """Return the SHA-256 of the file that a list describes; empty if it does not state one."""
    root = _dict(_dict(data, "metadata"), "component")
    texts = [_text(row, "content") for row in _list(root, "hashes") if _text(row, "alg") == "SHA-256"]
    texts += [_text(root, "version")] if _text(root, "type") == "file" else []
    described = _list(data, "documentDescribes")
    for row in _list(data, "packages"):
        if _text(row, "primaryPackagePurpose") == "FILE" and _text(row, "SPDXID") in described:
            rows = _list(row, "checksums")
            texts += [_text(one, "checksumValue") for one in rows if _text(one, "algorithm") == "SHA256"]
    return next((found[1] for text in texts if (found := _SHA256.fullmatch(text))), "")


# Of any row, what has another type counts as missing.


def _list(row: object, key: str) -> list[Any]:
    value = row.get(key) if isinstance(row, dict) else None
    return value if isinstance(value, list) else []


def _dict(row: object, key: str) -> dict[str, Any]:
    value = row.get(key) if isinstance(row, dict) else None
    return value if isinstance(value, dict) else {}


def _text(row: object, key: str) -> str:
    value = row.get(key) if isinstance(row, dict) else None
    return value if isinstance(value, str) else ""
