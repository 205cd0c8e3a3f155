"""Entry point: ``matrix`` and ``python -m matrix``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the program; the version is printed without importing anything else."""
    if sys.argv[1:] == ["--version"]:
        from matrix import __version__

        print(f"matrix {__version__}")  # noqa: T201
        return 0
    import gc

    _import_msgspec()
    from matrix.cli import main as run

    code = run()
    gc.freeze()  # nothing that still exists needs a last search for reference cycles
    return code


def _import_msgspec() -> None:
    """Import msgspec without ``typing_extensions``, which would take a sixth of the time of resolving.

    msgspec uses the same functions of `typing` if the package is not installed.
    """
    hidden = "typing_extensions" not in sys.modules
    if hidden:
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        if hidden:
            del sys.modules["typing_extensions"]


if __name__ == "__main__":
    sys.exit(main())
