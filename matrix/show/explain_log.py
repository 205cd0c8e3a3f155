"""``matrix explain --log``: recognize known failures in a log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.utils import canonicalize_name

from builders.findings import Finding
from matrix.show.json_document import JsonDocument

if TYPE_CHECKING:
    import argparse

    from matrix.show.console import Console


class DiagnosisDocument(JsonDocument, kw_only=True):
    """The known failures in a log."""

    status: Literal["ok", "unrecognized"]
    log: str
    diagnosis: list[Finding]


def explain_log(args: argparse.Namespace, console: Console) -> int:
    """Print the failures recognized in a log; return 1 if there are none."""
    from builders.diagnosis import DiagnosisContext, diagnose, diagnose_stream, diagnosis_text

    context = DiagnosisContext(package=canonicalize_name(args.name or ""), backend=args.backend or "")
    if args.logfile == "-":
        findings = diagnose_stream(sys.stdin.buffer, context)
    else:
        findings = diagnose(Path(args.logfile), context)
    if args.format == "json":
        console.document(
            DiagnosisDocument(
                status="ok" if findings else "unrecognized", log=args.logfile, diagnosis=findings
            )
        )
    elif findings:
        console.data(diagnosis_text(findings, sources=True))
    else:
        console.data("No known failure was recognized in this log.")
        if not args.backend:
            console.info("Some failures are recognized only if the backend is known: add --backend rocm.")
    return 0 if findings else 1
