"""Findings as text."""

from __future__ import annotations

from builders.findings import Finding
from matrix.show.render import findings_text


def test_findings_text_quiet_leaves_out_info() -> None:
    findings = [Finding("a", "info", "Fine."), Finding("b", "warning", "Careful.")]
    assert findings_text(findings, quiet=True) == "warning: Careful. [b]"


def test_findings_text_escapes_control_characters() -> None:
    finding = Finding("a", "error", "bad \x1b[31m name", evidence={"text": "a\x07b"})
    assert "\x1b" not in findings_text([finding])
    assert "    a\\x07b" in findings_text([finding])


def test_findings_text_shows_lines_and_correction() -> None:
    evidence = {
        "file": "env.yml",
        "line": 4,
        "text": [{"line": 4, "text": "- torch"}],
        "corrected": ["- torch==2.9.1"],
    }
    text = findings_text([Finding("a", "error", "Not pinned.", "Pin it.", evidence)], indent="  ")
    assert text.splitlines() == [
        "  env.yml:4: error: Not pinned. [a]",
        "      line 4: - torch",
        "    Use:",
        "      - torch==2.9.1",
        "    hint: Pin it.",
    ]
