"""Apply all rules to what was read, and correct the lines of a file."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from msgspec.structs import replace

from matrix.judging.lines import check_conda, check_lines, check_paths
from matrix.judging.packages import (
    built_here,
    check_extensions,
    check_indexes,
    check_known,
    check_names,
    check_torch,
)
from matrix.reading.items import CONDA, Item
from matrix.reading.pip_line import counts_on_linux
from matrix.reading.recognise import read_described
from matrix.reading.requirements import fixable, in_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from builders.findings import Finding
    from matrix.judging.target import ExpectedTarget
    from matrix.reading.items import Reading
    from resolver.facts.catalog import Catalog

_OF_FORM = (check_lines, check_paths, check_conda)
_OF_PACKAGES = (check_indexes, check_torch, check_names, check_extensions, check_known)
_MOST_ROUNDS = 50
"""Limit for corrections one after another; real files need far fewer."""


def _as_lines(reading: Reading, catalog: Catalog) -> Iterator[Item]:
    """Yield what a file of another format installs as the lines that the rules read.

    What pip builds with what the commands before have installed or set is not among them.
    """
    built = built_here(reading, catalog)
    places = dict.fromkeys(reading.index_urls, 1)
    for item in reading.items:
        for url in item.indexes:
            places.setdefault(url, item.line or 1)
    yield from (Item(line=line, text=f"--extra-index-url {url}") for url, line in places.items())
    yield from (Item(line=1, text=f"--find-links {url}") for url in reading.find_links)
    for item in reading.items:
        if item.name and item not in built:
            by_conda = item.installer == "conda"
            text = item.requirement
            if by_conda:
                text = f"{item.name}={item.version}" if item.version else f"{item.name}{item.specifier}"
            yield replace(item, text=text, line=item.line or 1, installer="conda" if by_conda else "pip")


def check(reading: Reading, expected: ExpectedTarget) -> list[Finding]:
    """Return the findings in a file, ordered by line."""
    lines = reading.lines or [*_as_lines(reading, expected.catalog)]
    everywhere = replace(reading, lines=lines)
    counting = [
        line
        for line in lines
        if line.installer == "conda" or ";" not in line.text or counts_on_linux(line.pip.marker)
    ]
    on_linux = replace(reading, lines=counting)
    findings = [finding for rule in _OF_FORM for finding in rule(everywhere, expected)]
    findings += [finding for rule in _OF_PACKAGES for finding in rule(on_linux, expected)]
    return in_order([*reading.findings, *findings], reading.name)


def fixed(reading: Reading, expected: ExpectedTarget) -> Reading:
    """Return a file with every correction that is certain; one can make another possible."""
    for _ in range(_MOST_ROUNDS):
        # Lines that conda cannot read hide others, so they come first.
        findings = fixable(reading.findings) or fixable(check(reading, expected))
        new = corrected(reading.text, findings, is_yaml=reading.kind == CONDA)
        if new == reading.text:
            break
        reading = read_described(new, reading.name)
    return reading


def corrected(text: str, findings: Iterable[Finding], *, is_yaml: bool) -> str:
    """Return a file with the first correction of each line."""
    lines = text.splitlines(keepends=True)
    chosen: dict[tuple[int, str], Sequence[str]] = {}
    inserted: set[object] = set()
    for finding in findings:
        place = finding.evidence["line"], finding.evidence["text"]
        *before, last = finding.evidence["corrected"]
        if place not in chosen:
            chosen[place] = [last] if tuple(before) in inserted else [*before, last]
            inserted.add(tuple(before))
    for (number, old), new in sorted(chosen.items(), reverse=True):
        lines[number - 1 : number] = _rewritten(lines, number - 1, old, new, is_yaml=is_yaml)
    return "".join(lines)


def _rewritten(lines: Sequence[str], at: int, old: str, new: Sequence[str], *, is_yaml: bool) -> list[str]:
    """Return a line with other texts; its comment stays with the last of them."""
    code = lines[at].rstrip("\r\n")
    # The last line of the file may have no line break.
    end = lines[at][len(code) :] or ("\r\n" if lines[0].endswith("\r\n") else "\n")
    before, after = code.split(old, 1)
    texts = [f"{before}{text}" for text in new]
    if is_yaml:
        from matrix.reading.conda_file import list_item, written_as

        start, quote, after = written_as(code, old) or (before, "", after)
        texts = [f"{start}{text}" if text == old else list_item(start, quote, text) for text in new]
    return [*(f"{text}{end}" for text in texts[:-1]), f"{texts[-1]}{after}{lines[at][len(code) :]}"]


def difference(old: str, new: str, name: str) -> str:
    """Return a unified diff."""
    before, after = ([f"{line}\n" for line in text.removesuffix("\n").split("\n")] for text in (old, new))
    return "".join(difflib.unified_diff(before, after, name, f"{name} (corrected)", n=1)).rstrip("\n")
