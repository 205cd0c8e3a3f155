"""Entry point: ``matrix`` and ``python -m matrix``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the program; the version is printed without importing anything else."""
    if sys.argv[1:] == ["--version"]:
        from matrix import __version__

        print(f"matrix {__version__}")  # noqa: T201
        return 0
    from matrix.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
