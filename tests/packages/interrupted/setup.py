"""Wait until this process is killed, in a build with one job; a build with two jobs succeeds."""
# mypy: ignore-errors

import os
import time
from pathlib import Path

from packaging.version import Version
from setuptools import Extension, setup

if os.environ["MAX_JOBS"] == "1":
    Path("started").touch()
    while True:
        time.sleep(0.05)

setup(
    name="interrupted",
    version=str(Version("1.0")),
    packages=["interrupted"],
    ext_modules=[Extension("interrupted._native", ["interrupted/native.c"])],
)
