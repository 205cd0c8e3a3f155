"""Why a build failed, or succeeded with nothing in it: known failures, recognized in logs and findings."""

from builders.diagnosis.diagnose import (
    Context,
    diagnose,
    diagnose_stream,
    diagnose_text,
    diagnosis_text,
    explain_failure,
)

__all__ = ["Context", "diagnose", "diagnose_stream", "diagnose_text", "diagnosis_text", "explain_failure"]
