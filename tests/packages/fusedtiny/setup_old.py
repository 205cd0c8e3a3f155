"""The setup.py of the older commit: it compiles kernels only with --cuda_ext on the command line."""
# mypy: ignore-errors

import os
import sys

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

here = os.path.dirname(os.path.abspath(__file__))
modules = []
if "--cuda_ext" in sys.argv:
    sys.argv.remove("--cuda_ext")
    sources = ["csrc/binding.cpp", "csrc/kernel.cu"]
    modules.append(CUDAExtension("fusedtiny_cuda", sources, include_dirs=[os.path.join(here, "shared")]))

setup(
    name="fusedtiny",
    version="0.9",
    packages=["fusedtiny"],
    ext_modules=modules,
    cmdclass={"build_ext": BuildExtension} if modules else {},
)
