"""Findings as text for a person, and as JSON for a program."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from matrix.checking.findings import RULES, SEVERITIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matrix.checking.findings import Finding
    from matrix.checking.preflight import Preflight


def as_text(finding: Finding, name: str) -> str:
    """Write one finding."""
    lines = [f"{name}:{finding.line}: {finding.severity}: {RULES[finding.id].title} [{finding.id}]"]
    lines.append(f"    {finding.text}")
    lines.append(f"  {finding.consequence}")
    if finding.corrected:
        lines += ["  Instead:", *(f"    {one}" for one in finding.corrected)]
    if finding.remedy:
        lines.append(f"  {finding.remedy}")
    return "\n".join(map(_printable, lines))


def _printable(line: str) -> str:
    """Show control characters as escapes: a file may hold anything."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in line)


def as_json(finding: Finding) -> dict[str, Any]:
    """Write one finding as a JSON object."""
    return {
        "id": finding.id,
        "severity": finding.severity,
        "line": finding.line,
        "text": finding.text,
        "title": RULES[finding.id].title,
        "consequence": finding.consequence,
        "corrected": list(finding.corrected),
        "remedy": finding.remedy,
        "fixable": finding.edit is not None,
    }


def preflight_json(said: Preflight | None) -> dict[str, Any]:
    """Write pip's answer as a JSON object."""
    if said is None:
        return {"outcome": "not-run", "text": "Left out, as asked.", "output": "", "left_out": []}
    return {
        "outcome": said.outcome,
        "text": said.told,
        "output": said.output,
        "left_out": list(said.left_out),
    }


def preflight_text(said: Preflight) -> str:
    """Write pip's answer as a sentence or two."""
    left = ", ".join(map(str, said.left_out))
    lines = f" Not asked about, as it would be built: line {left}." if left else ""
    return said.told + lines


def summary(findings: Sequence[Finding], against: str, *, refused: bool = False) -> str:
    """Count findings in a sentence.

    Examples
    --------
    >>> summary([], "lumi-g on 2026-02-25")
    'Nothing found. Checked against lumi-g on 2026-02-25.'
    """
    counted = Counter(one.severity for one in findings)
    parts = [f"{counted[one]} {one}{_plural(one, counted[one])}" for one in SEVERITIES if counted[one]]
    sure = sum(one.edit is not None for one in findings)
    parts += ["pip refuses it"] if refused else []
    told = ", ".join(parts) if parts else "Nothing found"
    told += f"; --fix corrects {sure}" if sure else ""
    return f"{told}. Checked against {against}."


def _plural(word: str, number: int) -> str:
    return "" if number == 1 or word == "info" else "s"
