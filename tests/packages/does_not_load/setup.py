"""A project whose extension calls a function that does not exist in any library."""
# mypy: ignore-errors

from packaging.version import Version
from setuptools import Extension, setup

setup(
    name="does_not_load",
    version=str(Version("1.0")),
    packages=["does_not_load"],
    ext_modules=[Extension("does_not_load._native", ["does_not_load/native.c"])],
)
