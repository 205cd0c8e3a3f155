"""A file to a document: which of the two formats it is, and what is no file to check at all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from matrix.checking.condafile import read_conda
from matrix.checking.document import read_requirements
from resolver.errors import UsageError
from resolver.textfile import read_text

if TYPE_CHECKING:
    from pathlib import Path

    from matrix.checking.document import Document

LARGEST = 2**20
"""Bytes; a file of lines that a person wrote is far below."""
_HINT = "Name a conda environment file (.yml), or a pip requirements file (.txt)."
_CONDA_KEY = re.compile(r"(?m)^(dependencies|channels)\s*:")


def read_file(path: Path, *, pipes: bool = True) -> str:
    """Read a file that is to be checked.

    Raises
    ------
    UsageError
        It is missing, too large, or no text.
    """
    text = read_text(path, hint=_HINT, largest=LARGEST, pipes=pipes)
    if not text.strip():
        msg = f"{path} is empty."
        raise UsageError(msg, hint=_HINT)
    return text


def read_document(text: str, name: str) -> Document:
    """Read a text as what its name or its beginning says that it is.

    Raises
    ------
    UsageError
        It is a conda environment file that cannot be read.

    Examples
    --------
    >>> read_document("torch==2.9.1", "wanted.txt").kind
    'requirements'
    """
    ending = name.rpartition(".")[2].lower()
    conda = ending in {"yml", "yaml"} or (ending not in {"txt", "in"} and _CONDA_KEY.search(text) is not None)
    return read_conda(text, name) if conda else read_requirements(text, name)
