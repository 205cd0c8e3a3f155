"""Why a build failed, or ended well with nothing in it: what is known, recognised in logs and findings."""

from builders.diagnosis.diagnose import Context, diagnose, diagnose_stream, diagnose_text
from builders.diagnosis.words import diagnosis_text, explain_failure

__all__ = [
    "Context",
    "diagnose",
    "diagnose_stream",
    "diagnose_text",
    "diagnosis_text",
    "explain_failure",
]
