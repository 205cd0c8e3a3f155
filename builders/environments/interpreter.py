"""What a Python says about itself. `python` sends this file to other interpreters: Python 3.9 is enough."""

from __future__ import annotations

import importlib.util
import platform
import sys
import sysconfig
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def facts() -> dict[str, Any]:
    """Return the fields of a `TargetPython`."""
    minor = "{}.{}".format(*sys.version_info)
    base = Path(sys.base_prefix, "bin", f"python{minor}")
    is_inside = sys.prefix != sys.base_prefix and base.exists()
    return {
        "path": str(base) if is_inside else sys.executable,
        "prefix": sys.base_prefix,
        "version": platform.python_version(),
        "build": sys.version,
        "abi": f"cp{minor.replace('.', '')}{getattr(sys, 'abiflags', '')}",
        "glibc": "".join(platform.libc_ver()[1:]),
        "machine": platform.machine(),
        "headers": Path(sysconfig.get_path("include"), "Python.h").exists(),
        "venv": all(map(importlib.util.find_spec, ("venv", "ensurepip"))),
        "linkers": {name: sysconfig.get_config_var(name) or "" for name in ("LDSHARED", "LDCXXSHARED")},
    }
