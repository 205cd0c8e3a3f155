"""A project whose build requires packaging, but that does not declare this requirement."""
# mypy: ignore-errors

from packaging.version import Version
from setuptools import Extension, setup

setup(
    name="sound",
    version=str(Version("1.0")),
    packages=["sound"],
    ext_modules=[Extension("sound._native", ["sound/native.c"])],
)
