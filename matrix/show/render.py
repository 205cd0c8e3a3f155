"""Findings, numbers with their nouns, lists of names, durations and sizes as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from matrix.show.screen import PLAIN, Screen
from resolver.texts import printable

if TYPE_CHECKING:
    from builders.findings import Finding
    from resolver.model import Distribution

_STYLES = {"error": "bold red", "warning": "bold yellow", "info": "cyan"}

_SIZE_STEP = 1024
_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def findings_text(
    findings: Iterable[Finding], *, quiet: bool = False, indent: str = "", screen: Screen = PLAIN
) -> str:
    """Return findings as text, each as a message, its evidence and a hint; `quiet` leaves out ``info``.

    The ``file`` and ``line`` of the evidence come before the message. Its ``text`` (a line of a file, or a
    list of ``{line, text}``) and ``corrected`` (the lines that should replace the text) come after the
    message. The rest of the evidence appears only in JSON.

    Examples
    --------
    >>> from builders.findings import Finding
    >>> finding = Finding("tab", "error", "pip rejects a tab.", "Use a space.", {"file": "r.txt", "line": 3})
    >>> print(findings_text([finding]))
    r.txt:3: error: pip rejects a tab. [tab]
      hint: Use a space.
    """
    lines: list[str] = []
    for finding in findings:
        if quiet and finding.severity == "info":
            continue
        evidence = finding.evidence
        file, line = evidence.get("file", ""), evidence.get("line", "")
        where = f"{file}:{line}: " if file and line else f"{file}: " if file else ""
        severity = screen.styled(_STYLES[finding.severity], f"{finding.severity}:")
        message = f"{printable(where)}{severity} {printable(finding.message)} [{finding.id}]"
        lines.append(screen.wrapped(indent + message))
        lines += [f"{indent}    {printable(text)}" for text in _quoted(evidence.get("text", ()))]
        if evidence.get("corrected"):
            lines += [
                f"{indent}  Use:",
                *(f"{indent}    {printable(text)}" for text in evidence["corrected"]),
            ]
        if finding.fix:
            lines.append(screen.wrapped(f"{indent}  hint: {printable(finding.fix)}"))
    return "\n".join(lines)


def _quoted(text: Any) -> list[str]:  # noqa: ANN401
    if isinstance(text, str):
        return text.splitlines()
    return [f"line {row['line']}: {row['text']}" for row in text]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1.

    Examples
    --------
    >>> counted(1, "wheel"), counted(2, "base image")
    ('1 wheel', '2 base images')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def count_text(findings: Sequence[Finding]) -> str:
    """Return the number of findings of each severity.

    Examples
    --------
    >>> from builders.findings import Finding
    >>> count_text([Finding("a", "error", ""), Finding("b", "error", ""), Finding("c", "info", "")])
    '2 errors, 1 info'
    >>> count_text([])
    'no findings'
    """
    from builders.findings import SEVERITIES

    counts = Counter(finding.severity for finding in findings)
    parts = [
        f"{counts[severity]} {severity}{'s' if counts[severity] > 1 and severity != 'info' else ''}"
        for severity in SEVERITIES
        if counts[severity]
    ]
    return ", ".join(parts) or "no findings"


def shortened(names: Iterable[str], *, most: int = 5, separator: str = ", ") -> str:
    """Join names for a sentence; name the first ones of a long list and count the others.

    Examples
    --------
    >>> shortened(["a", "b"]), shortened(["a", "b", "c", "d"], most=2)
    ('a, b', 'a, b and 2 more')
    """
    names = list(names)
    rest = len(names) - most
    if rest <= 1:
        return separator.join(names)
    return f"{separator.join(names[:most])} and {rest} more"


def sdists_text(sdists: Sequence[Distribution]) -> str:
    """Return a warning about distributions that have no wheel for the target; empty if there are none."""
    if not sdists:
        return ""
    names = shortened(f"{pick.name} {pick.version}" for pick in sdists)
    return f"No wheel for the target: {names}. pip will build from source."


def duration(seconds: float) -> str:
    """Return a duration as text.

    Examples
    --------
    >>> duration(42), duration(600), duration(5400)
    ('42 s', '10 min', '1.5 h')
    """
    if seconds < 90:  # noqa: PLR2004
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"  # noqa: PLR2004


def format_size(size: int) -> str:
    """Format a number of bytes.

    Examples
    --------
    >>> format_size(512), format_size(1536), format_size(3 * 2**30)
    ('512 B', '1.5 KiB', '3.0 GiB')
    """
    amount, number = float(size), 0
    while amount >= _SIZE_STEP and number < len(_SIZE_UNITS) - 1:
        amount, number = amount / _SIZE_STEP, number + 1
    return f"{amount:.1f} {_SIZE_UNITS[number]}" if number else f"{size} B"
