"""PyTorch's package index as a directory, in place of download.pytorch.org, which machines may not reach.

It has the wheels that the catalog lists, under their names and with the requirements of the same releases
on the configured index, except those for CUDA. The wheels contain nothing else.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from packaging.version import Version

from builders.index_client import IndexClient
from resolver.facts.catalog import Catalog
from resolver.facts.schema import Torch
from tests.support.tiny import wheel_of

_FOR_CUDA = re.compile(r"(nvidia|cuda|triton)\b")
_LABEL = re.compile(r"\+.*")


def write_torch_index(root: Path, catalog: Catalog, indexes: IndexClient, oldest: str) -> None:
    """Write pages and wheels for torch releases from `oldest` on; `root` replaces the host in URLs."""
    pages: dict[Path, list[Path]] = defaultdict(list)
    for row in catalog.torch.values():
        if row.index.startswith("https://download.pytorch.org/") and Version(row.version) >= Version(oldest):
            folder = root / urlsplit(row.index).path.lstrip("/")
            for name, version, requires in _distributions(row, indexes):
                for python in row.python:
                    tag = f"cp{python.replace('.', '')}"
                    platform = "manylinux_2_28_x86_64" if row.glibc == "2.28" else "linux_x86_64"
                    wheel = wheel_of(
                        folder, name, version, {}, requires=requires, tag=f"{tag}-{tag}-{platform}"
                    )
                    pages[folder / name].append(wheel)
    for page, wheels in pages.items():
        page.mkdir(exist_ok=True)
        links = [f'<a href="../{wheel.name}">{wheel.name}</a><br/>' for wheel in dict.fromkeys(wheels)]
        body = "\n".join([f"<h1>Links for {page.name}</h1>", *links])
        (page / "index.html").write_text(f"<!DOCTYPE html>\n<html><body>{body}</body></html>\n")


def _distributions(row: Torch, indexes: IndexClient) -> Iterable[tuple[str, str, list[str]]]:
    """Yield name, version and requirements of torch and of the distributions that are published with it."""
    requires = _published_requirements(indexes, "torch", row.version)
    triton, _, version = row.triton.partition(";")[0].partition("==")
    if version:
        yield triton, version, _published_requirements(indexes, "triton", version)
        requires = [*requires, f'{triton}=={version}; platform_system == "Linux"']
    yield "torch", row.version, requires
    for name, companion in (("torchvision", row.torchvision), ("torchaudio", row.torchaudio)):
        if companion:
            yield name, companion, _published_requirements(indexes, name, companion)


def _published_requirements(indexes: IndexClient, name: str, version: str) -> list[str]:
    project = indexes.project(name)
    assert project is not None
    public = Version(_LABEL.sub("", version))
    release = next((one for one in project.releases if Version(one.version) == public), None)
    metadata = indexes.metadata(release.files) if release else None
    return [text for text in metadata.requires if not _FOR_CUDA.match(text)] if metadata else []
