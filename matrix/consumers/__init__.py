"""The tools for which `matrix env` writes files.

A module of this package is a consumer of its name, with ``-`` instead of ``_``, and defines it as
``CONSUMER``; nothing else is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    import argparse

    from builders.findings import Finding
    from matrix.consumers.shared.installation import Installation, Layout, WrittenFile


UNPACKED = ".unpacked"
"""The end of the name of the directory that a layer is packed from."""


class Maker(msgspec.Struct, frozen=True, kw_only=True):
    """How one container, environment or layer is made from the files of a consumer."""

    makes: Literal["container", "layer"] = "container"
    programs: tuple[str, ...]
    module: str
    """LUMI's modules that have the program, as arguments of ``module load``."""
    install: str
    command: Callable[[Path, Path], list[str]]
    """Returns the command that makes it, given the directory of the files and the path of the result."""
    python: Callable[[Path, Path], str] | None = None
    """Returns the command that starts its Python, given the same paths; None for an image."""
    run: Callable[[str, str, Path], str] | None = None
    """Returns the command that runs Python with a layer, given the program, the base image and the layer."""
    mark: str = ""
    """A file in every environment of this kind, relative to its directory; empty for a file."""
    suffixes: tuple[str, ...] = (".sif", ".simg", ".img")
    """The ends of its name, if it is a file."""
    job: tuple[str, ...] = ()
    """The resources of srun that it needs on LUMI, where login nodes are too small for it."""


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that installs from the index, and how its files are written."""

    file: str
    emit: Callable[[Installation, Layout], list[WrittenFile]]
    """Returns the main file, then the others."""
    check: Callable[[Installation, Layout], list[Finding]] = lambda _, __: []
    """Returns notes for the user about the files."""
    runs_on_host: bool = False
    """Whether programs run with the glibc of the machine instead of that of the base image."""
    maker: Maker | None = None
    """None if its files do not make one container or environment."""
    uses_environment: bool = False
    """Whether its files use a finished container or environment (``--environment``) and install nothing."""


def consumer_names() -> list[str]:
    """Return the names of all consumers, without importing them."""
    files = Path(__file__).parent.glob("*.py")  # pkgutil imports inspect, which takes 4 ms
    return sorted(file.stem.replace("_", "-") for file in files if not file.stem.startswith("_"))


def add_consumer(parser: argparse.ArgumentParser, help: str, *, required: bool = False) -> None:  # noqa: A002
    """Add ``--for``."""
    names = consumer_names()
    parser.add_argument(
        "--for", dest="consumer", choices=names, metavar="CONSUMER", required=required, help=help
    )


def container_consumers() -> list[str]:
    """Return the names of the consumers that make one container or environment."""
    return [name for name in consumer_names() if load_consumer(name).maker]


def load_consumer(name: str) -> Consumer:
    """Import one consumer."""
    consumer: Consumer = import_module(f"{__name__}.{name.replace('-', '_')}").CONSUMER
    return consumer
