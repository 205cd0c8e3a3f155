"""What the options that name indexes lead to, as a whole."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from matrix.checking.about_lines import finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matrix.checking.document import Document, Entry
    from matrix.checking.expected import Expected
    from matrix.checking.findings import Finding

_TORCH_INDEX = re.compile(r"download(?:-r2)?\.pytorch\.org/whl/(?:nightly/|test/)?(rocm[\d.]+|cpu|cu\d+)")
TORCH_FAMILY = ("torch", "torchvision", "torchaudio")
TRITONS = ("pytorch-triton-rocm", "triton-rocm")


def torch_index(url: str) -> str:
    """Say for what an index of torch's makers holds wheels; empty for any other.

    Examples
    --------
    >>> torch_index("https://download.pytorch.org/whl/rocm6.4"), torch_index("file:///mnt/simple")
    ('rocm6.4', '')
    """
    found = _TORCH_INDEX.search(url)
    return found[1].rstrip(".") if found else ""


class Indexes:
    """What the lines of a file say about where packages come from.

    Parameters
    ----------
    document
        The file.
    """

    def __init__(self, document: Document) -> None:
        entries = document.entries
        self.torch: dict[str, Entry] = {}
        """Kind of torch index (``rocm6.4``) to the line that names it."""
        self.own = False
        """Whether there is any other index than PyPI and torch's."""
        self.only: Entry | None = None
        """The line that replaces PyPI."""
        self.binary: set[str] = set()
        """Normalised names that pip may take as wheels only; ``:all:`` for all."""
        self.source: dict[str, Entry] = {}
        """Normalised names that pip must build, to the line that says so."""
        for entry in entries:
            line = entry.pip
            if line.wanted:
                continue
            for url in line.values("--index-url", "--extra-index-url", "--pypi-url"):
                if torch_index(url):
                    self.torch.setdefault(torch_index(url), entry)
                elif "pypi.org" not in url:
                    self.own = True
            self.own = self.own or bool(line.values("--find-links"))
            if line.values("--index-url", "--pypi-url") or ("--no-index", "") in line.options:
                self.only = entry
            for value in line.values("--only-binary"):
                self.binary |= {_name(one) for one in value.split(",")}
            for value in line.values("--no-binary"):
                self.source |= {_name(one): entry for one in value.split(",")}

    @property
    def rocm(self) -> list[str]:
        """Lines of ROCm for which torch's own indexes are named, such as ``6.4``."""
        return [kind.removeprefix("rocm") for kind in self.torch if kind.startswith("rocm")]

    def wheels_only(self, name: str) -> bool:
        """Whether pip may take a package as a wheel only."""
        return name in self.binary or ":all:" in self.binary

    @property
    def any(self) -> bool:
        """Whether anything but PyPI is named."""
        return self.own or bool(self.torch)


def _name(text: str) -> str:
    return text.strip() if text.startswith(":") else canonicalize_name(text.strip())


def check_indexes(document: Document, expected: Expected) -> Iterator[Finding]:
    """Check the options that name indexes."""
    indexes = Indexes(document)
    for kind, entry in indexes.torch.items():
        if kind.startswith("cu") and expected.backend == "rocm":
            told = f"The wheels of this index are built for CUDA ({kind}) and do nothing on AMD's GPUs."
            yield finding("cuda-torch", entry, told, corrected=_rocm_urls(entry, kind, expected))
    only = indexes.only
    if only is not None and any(torch_index(url) for url in only.pip.values("--index-url")):
        wanted = [entry.pip.name for entry in document.entries if entry.pip.requirement]
        others = [name for name in wanted if name not in (*TORCH_FAMILY, *TRITONS)]
        if others:
            told = (f"--index-url takes the place of PyPI: {others[0]} is looked for only at torch's index, "
                    "which has few other packages.")  # fmt: skip
            corrected = (only.text.replace("--index-url", "--extra-index-url"),)
            yield finding("index-replaced", only, told, corrected=corrected)
    for entry in document.entries:
        if ("--pre", "") in entry.pip.options:
            told = "Every name without an exact version may now come as an alpha, a nightly or a candidate."
            yield finding("pre-releases", entry, told, remedy="Pin the pre-release that you want instead.")


def _rocm_urls(entry: Entry, kind: str, expected: Expected) -> tuple[str, ...]:
    newest = expected.rocm[-1] if expected.rocm else ""
    return (entry.text.replace(kind, f"rocm{newest}"),) if newest else ()
