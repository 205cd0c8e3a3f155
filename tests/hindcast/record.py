"""Record what PyPI has of the catalogued distributions that the environments name.

Run it as ``python -m tests.hindcast.record``, with a network. It keeps pinned versions, and the newest of
each minor version and month: day, Requires-Python, wheels for Linux on x86_64, and the requirements on other
distributions that are recorded, also those in the file of an sdist that a recipe names.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from builders.index_client import IndexClient
from resolver.facts.catalog import load
from resolver.requirements import normalize_name

HERE = Path(__file__).parent
_ELSEWHERE = {"torch", "torchvision", "torchaudio", "tensorflow"}
"""Not from PyPI: the catalog has their wheels for ROCm."""
_WHEEL = re.compile(
    r"-(?:py2\.)?(py3-none-any|(?:py3|cp3\d+)-(?:none|abi3|cp3\d+)-(?:many)?linux[0-9a-z_.]*x86_64.*)\.whl$"
)


def record() -> None:
    """Write `index.toml`."""
    pins: dict[str, set[str]] = {}
    for row in tomllib.loads((HERE / "environments.toml").read_text())["environment"]:
        for pin in row["pins"]:
            name, _, version = pin.partition(" @ ")[0].partition("==")
            pins.setdefault(name, set()).add(version)
    catalog = load()
    names = sorted({*pins, "jaxlib"} & {*catalog.package} - _ELSEWHERE)
    client = IndexClient(["https://pypi.org/simple"])
    lines = [f"# {' '.join((__doc__ or '').split())}", ""]
    for name in names:
        project = client.project(name)
        listing = next((one.requirements for one in catalog.recipes_of(name) if one.requirements), "")
        kept: set[tuple[object, ...]] = set()
        for release in project.releases if project else ():
            version = Version(release.version)
            files = [file for file in release.files if file.yanked is None and file.uploaded >= "2022"]
            key = (*version.release[:2], min((file.uploaded[:7] for file in files), default=""))
            is_new = not version.is_prerelease and key not in kept
            if not files or not (is_new or release.version in pins.get(name, ())):
                continue
            kept.add(key)
            wheels = [match[1] for file in files if (match := _WHEEL.search(file.name))]
            read = client.metadata(files)
            requires = [one for one in (read.requires if read else ()) if _is_recorded(one, names)]
            sdists = [file for file in files if file.name.endswith(".tar.gz")]
            named = client.metadata(sdists, listing) if listing and sdists else None
            listed = [one for one in (named.requires if named else ()) if _is_recorded(one, names)]
            lines += [
                f'[["{name}"]]',
                f'version = "{release.version}"',
                f'uploaded = "{min(file.uploaded for file in files)}"',
                f'requires-python = "{files[0].requires_python}"',
                f"wheels = {wheels}".replace("'", '"'),
                f"sdist = {str(bool(sdists)).lower()}",
                f"requires = {[one.replace(chr(34), chr(39)) for one in requires]!r}",
                *(
                    [f"listed = {{ {listing!r} = {[one.replace(chr(34), chr(39)) for one in listed]!r} }}"]
                    * bool(named)
                ),
                "",
            ]
    (HERE / "index.toml").write_text("\n".join(lines), encoding="utf-8")


def _is_recorded(text: str, names: list[str]) -> bool:
    stated = Requirement(text)
    return normalize_name(stated.name) in {*names, "torch"} and "extra" not in str(stated.marker or "")


if __name__ == "__main__":
    record()
