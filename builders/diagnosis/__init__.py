"""Diagnose builds that failed or whose wheel is empty: known failures, recognized in logs and findings."""

from builders.diagnosis.diagnose import (
    KILLED,
    OUT_OF_MEMORY,
    DiagnosisContext,
    diagnose,
    diagnose_stream,
    diagnosed,
    diagnosis_text,
    explain_failure,
)

__all__ = [
    "KILLED",
    "OUT_OF_MEMORY",
    "DiagnosisContext",
    "diagnose",
    "diagnose_stream",
    "diagnosed",
    "diagnosis_text",
    "explain_failure",
]
