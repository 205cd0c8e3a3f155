"""A STAND-IN for ROCm's Apex, which no package index has: one small kernel in place of its dozens.

The build resembles that of Apex: torch is imported but not declared, APEX_BUILD_* variables choose the ops,
the package contains the object and a table of compiled ops, and a header comes from a submodule.
Like Apex, it has requirements that only its build backend knows.
"""
# mypy: ignore-errors

import os

from setuptools import find_packages, setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

REQUIRES = [
    "attrs>=22", "click>=8", "colorama", "cxxfilt>=0.2", "iniconfig", "pluggy>=1", "pygments>=2", "pytest>=7",
    "PyYAML>=5.1", "rich>=12", "six", "tabulate", "toml", "tomli", "tqdm>=4.28.1",
]  # fmt: skip
here = os.path.dirname(os.path.abspath(__file__))
is_requested = any(os.environ.get(name) == "1" for name in ("APEX_BUILD_AMP_C", "APEX_BUILD_CUDA_OPS"))
modules = []
if is_requested:
    header = os.path.join(here, "apex", "contrib", "csrc", "cudnn-frontend")
    modules.append(
        CUDAExtension("apex.amp_C", ["csrc/amp_C.cpp", "csrc/scale_kernel.cu"], include_dirs=[header])
    )
with open("apex/git_version_info_installed.py", "w") as table:
    table.write(f"installed_ops={ {'amp_C': is_requested} }\n")

setup(
    name="apex",
    version="1.13.0",
    packages=find_packages(include=["apex"]),
    ext_modules=modules,
    install_requires=REQUIRES,
    cmdclass={"build_ext": BuildExtension} if modules else {},
)
