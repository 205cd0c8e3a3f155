"""Waits to be killed in the first build, and goes through in the next one."""
# mypy: ignore-errors

import os
import time
from pathlib import Path

from packaging.version import Version
from setuptools import Extension, setup

PID = Path(os.environ["INTERRUPTED_PID"])
if not PID.exists():
    PID.write_text(f"{os.getpid()}\n")
    while True:
        time.sleep(0.05)

setup(
    name="interrupted",
    version=str(Version("1.0")),
    packages=["interrupted"],
    ext_modules=[Extension("interrupted._native", ["interrupted/native.c"])],
)
