"""A STAND-IN for JAX with a plugin for ROCm, and for its numpy: without a GPU, its answers cannot be had.

The variable ``STANDIN_JAX`` says how it behaves; arrays are only names. ``tests/integration/test_jax.py``
runs the same code of the probe with the real JAX, on a CPU.
"""

from __future__ import annotations

from pathlib import Path

_NUMPY = """\
class Array:
    def __init__(self, name):
        self.name = name

    def __matmul__(self, other):
        return Array(f"{self.name} @ {other.name}")


class random:
    class default_rng:
        def __init__(self, seed):
            pass

        def random(self, shape, dtype):
            return Array("left"), Array("right")


float32 = "float32"
asarray = lambda array: Array(array.name)
allclose = lambda one, other, **tolerances: one.name == other.name
"""
_JAX = """\
import logging
import os

behaviour = os.environ["STANDIN_JAX"]
if behaviour == "no import":
    raise RuntimeError("jaxlib is older than jax")
__version__ = "0.10.0"


class Device:
    device_kind, compute_capability = "AMD Instinct MI250X", "gfx90a"


GPU = Device()


class Array:
    def __init__(self, name, device):
        self.name, self.device = name, device

    def __matmul__(self, other):
        if behaviour == "exception":
            raise RuntimeError("INTERNAL: hipErrorNoBinaryForGpu")
        name = "noise" if behaviour == "wrong" else f"{self.name} @ {other.name}"
        return Array(name, None if behaviour == "elsewhere" else self.device)

    def devices(self):
        return {self.device}


def devices(backend):
    if backend == "rocm" and behaviour != "only cpu":
        assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
        return [GPU]
    logger = logging.getLogger("jax._src.xla_bridge")
    logger.error("Exception when calling jax_plugins.xla_rocm7.initialize()")
    logger.error("ValueError: No AMD GPUs were found")
    raise RuntimeError("Unknown backend rocm. Available backends are ['cpu']")


def device_put(array, device):
    return Array(array.name, device)
"""


def write_jax(site: Path) -> None:
    """Write the modules into a directory of packages."""
    (site / "numpy.py").write_text(_NUMPY)
    (site / "jax.py").write_text(_JAX)
    (site / "jax_plugins" / "xla_rocm7").mkdir(parents=True)
