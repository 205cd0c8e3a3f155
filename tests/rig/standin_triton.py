"""A STAND-IN for triton, installed as the module ``triton``: every name exists, and nothing can be compiled.

With it, modules that define kernels can be imported, such as flash-attention's.
"""

from __future__ import annotations

import sys
from typing import Any


class _Anything:
    def __getattr__(self, name: str) -> _Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> _Anything:
        return self


language = _Anything()
__getattr__ = language.__getattr__
__path__: list[str] = []
sys.modules[f"{__name__}.language"] = language  # type: ignore[assignment]
