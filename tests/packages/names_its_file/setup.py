"""A project that compiles a file by its absolute path, as CMake does."""
# mypy: ignore-errors

from pathlib import Path

from setuptools import Extension, setup

source = Path(__file__).resolve().parent / "names_its_file" / "native.c"
setup(
    name="names_its_file",
    version="1.0",
    packages=["names_its_file"],
    ext_modules=[Extension("names_its_file._native", [str(source)])],
)
