"""What every reader returns: items that a file or tree installs, and lines that were not read."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from builders.network.urls import without_password
from resolver.texts import printable

if TYPE_CHECKING:
    from builders.findings import Finding
    from builders.installed.reading import Installed
    from matrix.reading.pip_line import PipLine

_PYTHON = r"={0,3}(\d{1,9}(?:\.\d{1,9})*)(?:\.\*)?"
Installer = Literal["pip", "conda", "image", "unknown"]
CONDA = "conda environment"
"""The kind of conda's environment files."""


class Item(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One thing that a line or a tree installs, or a line as it is written."""

    name: str = ""
    """Normalized (PEP 503), ``python`` included; empty if a URL or path does not tell it."""
    version: str = ""
    """The exact version with its local label."""
    specifier: str = ""
    """Otherwise, as for pip (PEP 440) or as conda writes it."""
    extras: tuple[str, ...] = ()
    marker: str = ""
    url: str = ""
    """An archive, repository, directory or image: then it is never looked up by name."""
    hashes: tuple[str, ...] = ()
    """As for pip: ``sha256:...``."""
    installer: Installer = "pip"
    isolated: bool = True
    """Whether pip may build it without what is installed (not with ``--no-build-isolation``)."""
    alone: bool = False
    """Whether pip installs it without what it requires (``--no-deps``)."""
    build: str = ""
    """conda's build string."""
    indexes: tuple[str, ...] = ()
    """All indexes of its own command or source, the main one first; empty for those of the file."""
    line: int = 0
    """From 1; 0 for what is installed and for data without lines."""
    text: str = ""
    """As written."""
    file: str = ""
    """The file that has the line, if it is one that the thing names (``-r``)."""
    editable: bool = False
    """Whether it is a line that has nothing else on it, so that it can be replaced."""

    @cached_property
    def pip(self) -> PipLine:
        """Its text as pip reads it."""
        from matrix.reading.pip_line import PipLine

        return PipLine(self.text)

    @property
    def place(self) -> str:
        """The line for a message."""
        return f"Line {self.line}{f' of {printable(self.file)}' if self.file else ''}"

    @property
    def requirement(self) -> str:
        """What it installs as a requirement for pip (PEP 508)."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        versions = f" @ {self.url} " if self.url else f"=={self.version}" if self.version else self.specifier
        return f"{self.name}{extras}{versions}{f'; {self.marker}' if self.marker else ''}".strip()

    @property
    def known_as(self) -> str:
        """The name, else the URL without a login, as a user leaves it out."""
        return self.name or without_password(self.url)

    def __str__(self) -> str:
        return " ".join(filter(None, [self.known_as, self.version or self.specifier]))


class Unread(msgspec.Struct, frozen=True):
    """A line, or a part of one, from which no item was made."""

    line: int
    text: str
    reason: str
    matters: bool = True
    """Whether it may install or change something that is judged."""
    file: str = ""
    """As of `Item`."""

    def __str__(self) -> str:
        of_file = f" of {printable(self.file)}" if self.file else ""
        where = f"line {self.line}{of_file}: " if self.line else ""
        return f"{where}{self.text}{f' ({self.reason})' if self.reason else ''}"


class Reading(msgspec.Struct, kw_only=True):
    """What a reader found in a file, tree or image."""

    kind: str
    """Such as ``requirements`` or ``Dockerfile``."""
    name: str
    """The path as given."""
    items: list[Item] = []
    constraints: list[Item] = []
    """What limits the versions of others, and installs nothing (``-c``)."""
    unread: list[Unread] = []
    python: str = ""
    """The version of Python that it pins."""
    index_urls: list[str] = []
    """The indexes of the whole file, as far as it names them; one that is the main index first."""
    find_links: list[str] = []
    channels: list[str] = []
    variables: dict[str, str] = {}
    """Variables that it exports (conda's ``variables``, ``ENV``, ``export``)."""
    installed: bool = False
    """Whether it says what is there (a list, a tree), rather than what would be installed."""
    findings: list[Finding] = []
    """Problems of the structure: what its own tool rejects."""
    text: str = ""
    """Of a file for pip or conda, which can be corrected."""
    lines: list[Item] = []
    """The lines of such a file that pip or conda reads, with options, as they are written."""
    directives: dict[str, str] | None = None
    """What a script asks Slurm for (``#SBATCH``), by long names; None for what is no script."""
    launches: list[tuple[int, list[str]]] = []
    """The commands of a script that start tasks or containers, as lines and words."""
    content: Installed | None = None
    """The files of a tree or image."""
    platform: dict[str, str] = {}
    """What else an image has: ROCm, glibc, libstdc++ (as the GCC that has it), operating system, MPI."""
    how: str = ""
    """How an image was read, or what of a project was not; else empty."""
    sha256: str = ""
    """Of the image's file, if a list of its content states it."""

    @property
    def pip_lines(self) -> list[Item]:
        """The lines that pip reads."""
        return [line for line in self.lines if line.installer == "pip"]

    @property
    def conda_lines(self) -> list[Item]:
        """The lines that conda reads."""
        return [line for line in self.lines if line.installer == "conda"]

    def add(self, item: Item) -> None:
        """Add an item; a Python of one version is what the file pins."""
        if item.name == "python":
            item = replace(item, installer="unknown")
            if pin := re.fullmatch(_PYTHON, item.version or item.specifier):
                self.python = pin[1]
                return
        self.items.append(item)


def pip_item(text: str, *, line: int = 0, shown: str = "", indexes: tuple[str, ...] = ()) -> Item | None:
    """Return what a line installs; None if it is neither a requirement, a URL nor a path.

    `shown` is the text to keep, if it is not the line itself. A URL keeps its place; only the name of a wheel
    tells a version.

    Examples
    --------
    >>> pip_item("torch==2.5.1+cu124").version, pip_item("apex @ git+https://host/apex@abc").url
    ('2.5.1+cu124', 'git+https://host/apex@abc')
    >>> pip_item("https://host/torch-2.9.1%2Brocm6.4-cp312-cp312-linux_x86_64.whl").version
    '2.9.1+rocm6.4'
    """
    from matrix.reading.pip_line import LONGEST_LINE, PipLine, file_version

    if len(text) > LONGEST_LINE:
        return None
    parsed = PipLine(text)
    requirement, location, pinned = parsed.requirement, parsed.location, parsed.pinned
    if requirement is None and not location:
        return None
    return Item(
        name=parsed.name,
        version=pinned or file_version(location)[1],
        specifier=str(requirement.specifier) if requirement and not pinned else "",
        extras=parsed.extras,
        marker=parsed.marker,
        url=location,
        hashes=tuple(parsed.values("--hash")),
        indexes=indexes,
        line=line,
        text=printable(shown or text),
    )
