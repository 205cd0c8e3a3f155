"""A small HIP extension of Apex's build shape: torch not declared, kernels by flag, a submodule's header.

What is compiled is said by FUSEDTINY_BUILD_CUDA_OPS; the older flag is read by setup_old.py. What goes
wrong, if anything, is said by FUSEDTINY_FAULT.
"""
# mypy: ignore-errors

import os
import sys
import urllib.request

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

# As Apex does: the flags of the older commits are thrown away without a word.
sys.argv = [word for word in sys.argv if word != "--cuda_ext"]
fault = os.environ.get("FUSEDTINY_FAULT", "")
here = os.path.dirname(os.path.abspath(__file__))
sources = ["csrc/binding.cpp", "csrc/kernel.cu"]
macros, link = [], []
if fault == "network":
    urllib.request.urlopen("https://wheels.example/fusedtiny-1.0.whl", timeout=10)
if fault == "other-gfx":
    os.environ["PYTORCH_ROCM_ARCH"] = "gfx942"
if fault == "undefined-symbol":
    macros.append(("FUSEDTINY_UNDEFINED", "1"))
if fault == "wave-size":  # what DeepSpeed compiles in where rocminfo sees no GPU
    macros.append(("ROCM_WAVEFRONT_SIZE", "32"))
if fault == "lost-library":
    os.system(f"printf 'void nobody(void) {{}}' | gcc -shared -fPIC -x c - -o {here}/libnobody.so")
    link = ["-Wl,--no-as-needed", f"-L{here}", "-lnobody"]
kind = CUDAExtension
if fault == "cpu-only":
    kind, sources = CppExtension, ["csrc/binding.cpp", "csrc/host.cpp"]

modules = []
if os.environ.get("FUSEDTINY_BUILD_CUDA_OPS") == "1":
    modules.append(
        kind(
            "fusedtiny_cuda",
            sources,
            include_dirs=[os.path.join(here, "shared")],
            define_macros=macros,
            extra_link_args=link,
        )
    )

setup(
    name="fusedtiny",
    version="1.0",
    packages=["fusedtiny"],
    ext_modules=modules,
    cmdclass={"build_ext": BuildExtension} if modules else {},
)
