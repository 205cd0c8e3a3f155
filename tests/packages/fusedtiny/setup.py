"""A small HIP extension that is built like Apex: torch not declared, kernels by flag, a submodule's header.

FUSEDTINY_BUILD_CUDA_OPS chooses the kernels to compile; setup_old.py reads the older flag. FUSEDTINY_FAULT
chooses a fault of the build.
"""
# mypy: ignore-errors

import os
import sys
import urllib.request

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

# Like Apex, it ignores the flags of the older commits without a message.
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
if fault == "wave-size":  # the value that DeepSpeed uses if rocminfo finds no GPU
    macros.append(("ROCM_WAVEFRONT_SIZE", "32"))
if fault == "headers":  # no fault: headers of ROCm's libraries, which its runtime lacks
    macros.append(("FUSEDTINY_HEADERS", "1"))
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
