"""A project whose source includes a header that does not exist."""
# mypy: ignore-errors

from packaging.version import Version
from setuptools import Extension, setup

setup(
    name="does_not_compile",
    version=str(Version("1.0")),
    packages=["does_not_compile"],
    ext_modules=[Extension("does_not_compile._native", ["does_not_compile/native.c"])],
)
