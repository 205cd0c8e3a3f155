"""Why a build failed, or ended well with nothing in it: what is known, recognised in logs and findings."""

from builders.diagnosis.diagnose import (
    Context,
    Diagnosis,
    Evidence,
    diagnose,
    diagnose_stream,
    diagnose_text,
)
from builders.diagnosis.words import as_document, as_text, explained

__all__ = [
    "Context",
    "Diagnosis",
    "Evidence",
    "as_document",
    "as_text",
    "diagnose",
    "diagnose_stream",
    "diagnose_text",
    "explained",
]
