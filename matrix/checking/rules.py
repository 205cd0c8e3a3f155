"""The kinds of findings of `matrix check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from builders.findings import SEVERITIES, Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RULES: dict[str, Severity] = {
    # One line
    "requirement-beside-option": "error",
    "second-value": "error",
    "option-beside-requirement": "error",
    "refused-option": "error",
    "void-setting": "error",
    "hash-on-some": "error",
    "not-a-requirement": "error",
    "tab": "error",
    "variable-not-expanded": "warning",
    "contradicting-requirement": "error",
    "duplicate-requirement": "info",
    "flat-listing": "error",
    "index-replaced": "warning",
    "pre-releases": "warning",
    # torch and the packages released with it
    "cuda-torch": "error",
    "unpinned-torch": "error",
    "unlabelled-torch": "warning",
    "other-rocm": "error",
    "old-rocm": "warning",
    "index-other-rocm": "error",
    "unknown-torch": "warning",
    "torch-python": "error",
    "cuda-package": "error",
    "second-triton": "error",
    "rocm-placeholder": "warning",
    # Names on several indexes
    "any-index": "warning",
    # Extensions
    "other-project": "error",
    "unpinned-extension": "error",
    "unlabelled-extension": "error",
    "other-target": "error",
    "newer-glibc": "warning",
    "missing-python": "warning",
    "not-the-lock": "error",
    "label-spelling": "warning",
    "label-without-index": "warning",
    "no-only-binary": "warning",
    "built-from-source": "error",
    # Paths
    "hidden-path": "error",
    "relative-path": "error",
    "editable": "error",
    # Conda environment files
    "yaml-map": "error",
    "not-text": "error",
    "pip-not-list": "error",
    "several-pip-sections": "error",
    "duplicate-key": "error",
    "unknown-key": "warning",
    "pip-line-outside": "error",
    "conda-torch": "error",
    "pip-not-listed": "warning",
    "pip-unpinned": "info",
    "python-unpinned": "warning",
    "other-python": "error",
    "defaults-channel": "warning",
    "variables-too-late": "warning",
}
"""The severity of every kind of finding by its id, in the order of docs/reference/checking.md."""


def finding_at(
    rule: str,
    line: int,
    text: str,
    message: str,
    *,
    corrected: Iterable[str] = (),
    fixable: bool = False,
    fix: str = "",
) -> Finding:
    """Return a finding about a line that is not an entry."""
    evidence = {"line": line, "text": text, "corrected": tuple(corrected), "fixable": fixable}
    return Finding(rule, RULES[rule], message, fix, evidence)


def in_order(findings: Iterable[Finding], file: str) -> list[Finding]:
    """Sort the findings of a file by line and severity, and drop repeated ones."""
    unique = {(finding.evidence["line"], finding.id, finding.message): finding for finding in findings}
    ordered = sorted(unique.values(), key=_position)
    return [replace(finding, evidence={"file": file, **finding.evidence}) for finding in ordered]


def _position(finding: Finding) -> tuple[int, int, str]:
    return finding.evidence["line"], SEVERITIES.index(finding.severity), finding.id


def fixable(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that ``--fix`` corrects."""
    return [finding for finding in findings if finding.evidence["fixable"]]
