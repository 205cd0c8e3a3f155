"""A project that leaves its extension out without a message if it finds no GPU, as real packages do."""
# mypy: ignore-errors

import os
from pathlib import Path

from packaging.version import Version
from setuptools import Extension, setup

extensions = [Extension("skips_extension._native", ["skips_extension/native.c"])]
has_gpu = Path("/dev/no-such-gpu").exists()
setup(
    name="skips_extension",
    version=str(Version("1.0")),
    packages=["skips_extension"],
    ext_modules=extensions if has_gpu or os.environ.get("FORCE_NATIVE") == "1" else [],
)
