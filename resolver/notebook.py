"""Results as HTML for notebooks, which call ``_repr_html_`` on the result of a cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in HTML; every text is escaped.

    Examples
    --------
    >>> html_table("<b>", ["x"], [["1 & 2"]])
    '<table><caption>&lt;b&gt;</caption><tr><th>x</th></tr><tr><td>1 &amp; 2</td></tr></table>'
    """
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = ("".join(f"<td>{escape(text)}</td>" for text in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{escape(caption)}</caption><tr>{names}</tr>{body}</table>"
