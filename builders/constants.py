"""Names and defaults that several modules share."""

from __future__ import annotations

from pathlib import Path

LOCK_FILE = Path("matrix.lock")
INDEX_DIRECTORY = Path("index")
MOUNTED_INDEX = "file:///mnt/simple"
"""The index as a build inside a container sees it."""
TRITON_NAMES = ("triton", "triton-rocm", "pytorch-triton", "pytorch-triton-rocm")
"""Distributions that install the import package ``triton``: two of them overwrite each other's files."""
