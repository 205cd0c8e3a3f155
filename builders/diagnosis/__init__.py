"""Diagnose builds that failed or whose wheel is empty: known failures, recognized in logs and findings."""

from builders.diagnosis.diagnose import (
    OUT_OF_MEMORY,
    Context,
    diagnose,
    diagnose_stream,
    diagnosed,
    diagnosis_text,
    explain_failure,
)

__all__ = [
    "OUT_OF_MEMORY",
    "Context",
    "diagnose",
    "diagnose_stream",
    "diagnosed",
    "diagnosis_text",
    "explain_failure",
]
