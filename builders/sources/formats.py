"""Tar with extraction filters, and zstandard, wherever this Python has them."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 12):
    import tarfile
else:  # Python 3.11.0 to 3.11.3 have no extraction filters
    import backports.tarfile as tarfile  # noqa: PLR0402  has no types, and so is no attribute

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["tarfile", "zstd"]
