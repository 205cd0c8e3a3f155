# PYTHON_ARGCOMPLETE_OK: argcomplete's global completion looks for this line
"""Entry point: ``matrix`` and ``python -m matrix``."""

from __future__ import annotations

import os
import sys

_INTERRUPTED = 130
"""The exit code of `matrix.cli` after an interruption: 128 + SIGINT."""
_GARBAGE_THRESHOLD = 100_000
"""Number of new objects after which Python searches for reference cycles. Nearly everything that a command
creates lives until the command ends, so Python's default costs a tenth of the run time and frees nothing."""
_HELP = os.path.join(os.path.dirname(__file__), "help.txt")  # noqa: PTH118, PTH120  pathlib imports 20 modules
"""The help that `matrix.cli` prints on a terminal of 80 columns; `docs/generate.py` writes it."""


def main() -> int:
    """Run the program and return its exit code. Version and help are printed without further imports."""
    try:
        code = _run()
    except KeyboardInterrupt:  # before `matrix.cli` catches it, or while it reports another one
        code = _INTERRUPTED
    if code == _INTERRUPTED:
        # An interruption can leave a lock held, also one of the standard library. What libraries do at exit
        # would wait for it forever.
        os._exit(code)
    return code


def _run() -> int:
    _open_missing_streams()
    is_text = sys.argv[1:] in (["--version"], ["-V"], ["--help"], ["-h"], ["help"], [])
    if is_text and "_ARGCOMPLETE" not in os.environ and _print_text():
        return 0
    import gc

    gc.set_threshold(_GARBAGE_THRESHOLD)
    import signal
    import warnings

    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # of libraries; they are for developers
    if "_ARGCOMPLETE" in os.environ:
        from matrix.commands.completion import complete

        complete()
    from matrix.cli import main as run

    code = run()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the interpreter would print a traceback while it ends
    gc.freeze()  # the interpreter then skips the last search for reference cycles
    return code


def _open_missing_streams() -> None:
    """Open /dev/null in place of standard streams that were closed; else a file would get their numbers.

    `sys.stdout` and `sys.stderr` stay None, so that `Console` can detect the closed stream.
    """
    if None not in {sys.stdin, sys.stdout, sys.stderr}:
        return
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115


def _print_text() -> bool:
    """Print the version or the help. Return False if that fails; `matrix.cli` then reports the error."""
    from matrix import __version__

    if sys.stdout is None:
        return False
    try:
        if sys.argv[1:] in (["--version"], ["-V"]):
            print(f"matrix {__version__}", flush=True)  # noqa: T201
        else:
            with open(_HELP, encoding="utf-8") as file:  # noqa: PTH123
                print(file.read(), end="", flush=True)  # noqa: T201
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
