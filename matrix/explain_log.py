"""``matrix explain --log``: what failed in somebody's log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    import argparse

    from matrix.console import Console


def explain_log(args: argparse.Namespace, console: Console) -> int:
    """Say what is recognised in the log; 1 when nothing is."""
    from builders.diagnosis import Context, diagnose, diagnose_stream, diagnosis_text

    context = Context(package=canonicalize_name(args.name or ""), backend=args.backend or "")
    if args.logfile == "-":
        found = diagnose_stream(sys.stdin.buffer, context)
    else:
        found = diagnose(Path(args.logfile), context)
    if args.format == "json":
        console.document({"schema": 1, "log": args.logfile, "diagnosis": msgspec.to_builtins(found)})
    elif found:
        console.data(diagnosis_text(found, sources=True))
    else:
        console.data("Nothing in this log is a failure that is known here.")
        if not args.backend:
            console.info("Some show only when it is said what the build was for: --backend rocm.")
    return 0 if found else 1
