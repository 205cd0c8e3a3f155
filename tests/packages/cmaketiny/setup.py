"""A small HIP library that CMake builds, without an installation step."""
# mypy: ignore-errors

import os
import shlex
import subprocess

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class Build(build_ext):
    def build_extension(self, _extension: Extension) -> None:
        target = os.path.join(os.path.abspath(self.build_lib), "cmaketiny")
        options = [f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={target}", *shlex.split(os.environ["CMAKE_ARGS"])]
        subprocess.run(["cmake", "-S", ".", "-B", self.build_temp, "-G", "Ninja", *options], check=True)
        subprocess.run(["cmake", "--build", self.build_temp], check=True)


setup(
    name="cmaketiny",
    version="1.0",
    packages=["cmaketiny"],
    ext_modules=[Extension("cmaketiny.library", [])],
    cmdclass={"build_ext": Build},
)
