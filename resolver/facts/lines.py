"""On which line of a TOML file a row or a key stands; tomllib does not say."""

from __future__ import annotations

import re


def lines_of(text: str, kind: str, count: int) -> list[int]:
    """Give the lines on which the rows of a kind begin; line 1 for what is not written as ``[[kind]]``."""
    heads = [
        number
        for number, line in enumerate(text.splitlines(), start=1)
        if line.split("#")[0].strip().replace(" ", "") == f"[[{kind}]]"
    ]
    return heads if len(heads) == count else [1] * count


def line_of_key(text: str, begin: int, key: str) -> int:
    """Give the line of a key in the row that begins on a line; that line if the key is not found."""
    for number, line in enumerate(text.splitlines()[begin:], start=begin + 1):
        if line.lstrip().startswith("[["):
            break
        if key and re.match(rf"\s*{re.escape(key)}\s*=|\s*\[\w+\.{re.escape(key)}\]", line):
            return number
    return begin
