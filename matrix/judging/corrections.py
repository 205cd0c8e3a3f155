"""Read a file, apply all rules to it, and correct it."""

from __future__ import annotations

import difflib
import re
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
from matrix.reading.pip_line import counts_on_linux
from matrix.reading.requirements import Document, Entry, fixable, in_order, read_requirements

if TYPE_CHECKING:
    from builders.findings import Finding
    from matrix.judging.target import ExpectedTarget
    from matrix.reading.items import Item, Reading
    from resolver.facts.catalog import Catalog

_OF_FORM = (check_lines, check_paths, check_conda)
_OF_PACKAGES = (check_indexes, check_torch, check_names, check_extensions, check_known)
_CONDA_KEY = re.compile(r"(?m)^(dependencies|channels)\s*:")
_MOST_ROUNDS = 50
"""Limit for corrections one after another; real files need far fewer."""


def read_document(text: str, name: str) -> Document:
    """Parse a file of either kind. Its name determines the kind, or else its content.

    Examples
    --------
    >>> read_document("torch==2.9.1", "requirements.txt").kind
    'requirements'
    """
    ending = name.rpartition(".")[2].lower()
    conda = ending in {"yml", "yaml"} or (ending not in {"txt", "in"} and _CONDA_KEY.search(text) is not None)
    if not conda:
        return read_requirements(text, name)
    from matrix.reading.conda_file import read_conda

    return read_conda(text, name)


def document_of(reading: Reading, catalog: Catalog) -> Document:
    """Return what a file of another format installs in the form that the rules for lines read.

    What pip builds with what the commands before have installed or set is not in it.
    """
    built = built_here(reading, catalog)
    urls = dict.fromkeys([*reading.index_urls, *(url for item in reading.items for url in item.indexes)])
    options = [f"--extra-index-url {url}" for url in urls]
    options += [f"--find-links {url}" for url in reading.find_links]
    entries = [Entry(line=1, text=text, editable=False) for text in options]
    conda: list[Entry] = []
    for item in reading.items:
        entry = Entry(
            line=item.line or 1, text=_line_of(item), editable=False, file=item.file, indexes=item.indexes
        )
        if item.name and item not in built:
            (conda if item.installer == "conda" else entries).append(entry)
    return Document(
        name=reading.name,
        lines=[],
        entries=entries,
        conda=conda,
        has_pip_section=False,
    )


def _line_of(item: Item) -> str:
    if item.installer == "conda":
        return f"{item.name}={item.version}" if item.version else f"{item.name}{item.specifier}"
    return item.requirement


def check(document: Document, expected: ExpectedTarget) -> list[Finding]:
    """Return the findings in a file, ordered by line."""
    counting = [
        entry for entry in document.entries if ";" not in entry.text or counts_on_linux(entry.pip.marker)
    ]
    on_linux = replace(document, entries=counting)
    findings = [finding for rule in _OF_FORM for finding in rule(document, expected)]
    findings += [finding for rule in _OF_PACKAGES for finding in rule(on_linux, expected)]
    return in_order([*document.findings, *findings], document.name)


def fixed(text: str, name: str, expected: ExpectedTarget) -> str:
    """Return a file with every correction that is certain; one can make another possible."""
    for _ in range(_MOST_ROUNDS):
        document = read_document(text, name)
        # Lines that conda cannot read hide others, so they come first.
        findings = fixable(document.findings) or fixable(check(document, expected))
        new = document.corrected(findings) if findings else text
        if new == text:
            break
        text = new
    return text


def difference(old: str, new: str, name: str) -> str:
    """Return a unified diff."""
    before, after = ([f"{line}\n" for line in text.removesuffix("\n").split("\n")] for text in (old, new))
    return "".join(difflib.unified_diff(before, after, name, f"{name} (corrected)", n=1)).rstrip("\n")
