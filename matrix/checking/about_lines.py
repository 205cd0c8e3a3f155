"""What pip makes of the form of a line, whatever package it is about."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from matrix.checking.about_twice import check_twice
from matrix.checking.findings import Finding
from matrix.checking.piplines import FOR_ONE, INVERTED, PipLine, is_known, is_place, requirement_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matrix.checking.document import Document, Entry
    from matrix.checking.expected import Expected

INDEXES = ("--index-url", "--pypi-url", "--extra-index-url")
_VARIABLE = re.compile(r"\$(?!\{[A-Z0-9_]+\})(\{?\w+\}?)")
_ONE_EQUALS = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*(\[[\w,.-]+\])?)\s*=\s*(?P<version>\d[\w.+!-]*)")
_ASSIGNMENT = re.compile(r"(export\s+)?[A-Z_][A-Z0-9_]*=")
_COMMAND = re.compile(r"((python\S*\s+-m\s+)?pip3?\s+install|conda\s+install|uv\s+pip\s+install)(\s+|$)")
_PIP_COMMAND = re.compile(r"(python\S*\s+-m\s+)?pip3?\s+install\s+")
_ALONE = {
    "--no-build-isolation", "--no-use-pep517", "--use-pep517", "--no-deps", "--upgrade", "-U", "--user",
    "--no-cache-dir", "--force-reinstall", "--ignore-installed", "-I", "-q", "-v",
}  # fmt: skip
"""Options of pip's command line without a value, so that the word behind one of them is a requirement."""
_ISOLATION = re.compile(r"build.isolation")


def check_lines(document: Document, _: Expected) -> Iterator[Finding]:
    """Check the form of every line that pip gets."""
    for entry in document.entries:
        if "\t" in entry.text:
            texts = (re.sub(r"\t+", " ", entry.text),)
            told = "pip splits this line at spaces only, so what is beside the tab becomes one word with it."
            yield _rewrite("tab", document, entry, told, texts)
        elif entry.pip.wanted:
            yield from _requirement_line(document, entry)
        else:
            yield from _option_line(document, entry)
        yield from _variables(entry)
        yield from _void_settings(document, entry)
    yield from _hashes(document)
    yield from check_twice(document)


def finding(what: str, entry: Entry, consequence: str, **more: object) -> Finding:
    """Make a finding about an entry."""
    return Finding(id=what, line=entry.first, text=entry.text, consequence=consequence, **more)  # type: ignore[arg-type]


def _rewrite(what: str, document: Document, entry: Entry, consequence: str, texts: Sequence[str]) -> Finding:
    """Make a finding with one certain correction: other entries in the place of this one."""
    edit = document.rewritten(entry, texts)
    return finding(what, entry, consequence, corrected=tuple(texts), edit=edit)


def _option_line(document: Document, entry: Entry) -> Iterator[Finding]:
    line = entry.pip
    refused = [flag for flag, _ in line.options if not is_known(flag)]
    if line.unquoted:
        yield finding("not-a-requirement", entry, "A quote lacks its other half; pip ends with an error.")
    elif refused:
        yield _refused(document, entry, refused[0])
    elif line.dropped:
        yield _dropped(document, entry)
    yield from _flat_listing(document, entry)


def _refused(document: Document, entry: Entry, flag: str) -> Finding:
    told = f"pip takes {flag} on its command line only; in a file it ends with: no such option: {flag}."
    remedy = ""
    if _ISOLATION.search(flag):
        told += " Nothing in a file switches build isolation off."
        remedy = "Install wheels that are built already: matrix build-wheels makes them, with an index."
    line = entry.pip
    if not line.dropped:
        edit = document.commented(entry)
        return finding("refused-option", entry, told, remedy=remedy, edit=edit)
    sure = all(one in _ALONE for one, _ in line.options)
    if sure and all(requirement_of(word) is not None for word in line.dropped):
        return replace(_rewrite("refused-option", document, entry, told, line.dropped), remedy=remedy)
    return finding("refused-option", entry, told, remedy=remedy)


def _dropped(document: Document, entry: Entry) -> Finding:
    """Say what happens to the words that belong to no option."""
    line, words = entry.pip, list(entry.pip.dropped)
    options = [_option(flag, value) for flag, value in line.options]
    wants = [word for word in words if requirement_of(word) is not None]
    single = len(line.options) == 1 and line.options[0][0] not in FOR_ONE
    if wants:
        told = f"pip takes this as options only: {', '.join(words)} is not installed, and nothing says so."
        sure = len(wants) == len(words) and not any(flag in FOR_ONE for flag, _ in line.options)
        texts = [*options, *words]
        if sure:
            return _rewrite("requirement-beside-option", document, entry, told, texts)
        return finding("requirement-beside-option", entry, told, remedy="Give each a line of its own.")
    told = f"pip takes one value for an option and leaves out the rest without a message: {', '.join(words)}."
    if single and line.options[0][1] and all(is_place(word) for word in words):
        texts = [_option(line.options[0][0], value) for value in (line.options[0][1], *words)]
        return _rewrite("second-value", document, entry, told, texts)
    return finding("second-value", entry, told, remedy="Give each a line of its own.")


def _option(flag: str, value: str) -> str:
    quoted = f'"{value}"' if re.search(r"[\s\"']", value) else value
    return f"{flag} {quoted}".rstrip()


def _requirement_line(document: Document, entry: Entry) -> Iterator[Finding]:
    line = entry.pip
    if line.requirement is None and not is_place(line.wanted):
        yield _unreadable(document, entry)
        return
    beside = [(flag, value) for flag, value in line.options if flag not in FOR_ONE]
    unknown = [flag for flag, _ in beside if not is_known(flag)]
    if line.unquoted:
        yield finding("not-a-requirement", entry, "A quote lacks its other half; pip ends with an error.")
    elif unknown:
        rest = _without(line, {flag for flag, _ in beside})
        told = f"pip takes {unknown[0]} on its command line only; in a file it ends with: no such option."
        yield _rewrite("refused-option", document, entry, told, [rest])
    elif beside:
        names = ", ".join(dict.fromkeys(flag for flag, _ in beside))
        told = f"pip leaves out {names} behind a requirement, without a message."
        texts = [
            *(_option(flag, value) for flag, value in beside),
            _without(line, {flag for flag, _ in beside}),
        ]
        yield _rewrite("option-beside-requirement", document, entry, told, texts)


def _without(line: PipLine, flags: set[str]) -> str:
    """Write a requirement again without some of the options behind it."""
    kept = [_option(flag, value) for flag, value in line.options if flag not in flags]
    return " ".join([line.wanted, *kept])


def _unreadable(document: Document, entry: Entry) -> Finding:
    text = entry.pip.wanted
    told = "pip ends with: Invalid requirement."
    one = _ONE_EQUALS.fullmatch(text)
    command = _COMMAND.match(entry.text)
    words = text.split()
    if one and not _ASSIGNMENT.match(text):
        fixed = entry.text.replace(text, f"{one['name']}=={one['version']}", 1)
        told += " One = is conda's spelling; pip wants two."
        return _rewrite("not-a-requirement", document, entry, told, [fixed])
    if command:
        told += " This is a command, and a line of the file holds only what would follow it."
        pip = _PIP_COMMAND.match(entry.text)
        rest = entry.text[pip.end() :].strip() if pip else ""
        if rest and requirement_of(rest) is not None:
            return _rewrite("not-a-requirement", document, entry, told, [rest])
        return finding("not-a-requirement", entry, told)
    if _ASSIGNMENT.match(text):
        told += " A file sets no variables."
        remedy = "Set the variable where cotainr or pip runs."
        if "PIP_NO_BUILD_ISOLATION=" in text:
            told += f" {INVERTED}"
            remedy = "Set PIP_NO_BUILD_ISOLATION=0 where cotainr or pip runs."
        return finding("not-a-requirement", entry, told, remedy=remedy)
    # Words without versions may as well be prose, and what they name would be installed.
    if len(words) > 1 and not entry.pip.options and all(_has_version(word) for word in words):
        told += " Each requirement wants a line of its own."
        return _rewrite("not-a-requirement", document, entry, told, words)
    return finding("not-a-requirement", entry, told)


def _has_version(word: str) -> bool:
    one = requirement_of(word)
    return one is not None and bool(one.specifier)


def _variables(entry: Entry) -> Iterator[Finding]:
    found = _VARIABLE.search(entry.text)
    if found:
        name = found[1].strip("{}").upper()
        told = f"pip expands ${{{name}}} with braces and in capitals; {found[0]} stays as it is written."
        corrected = (entry.text.replace(found[0], f"${{{name}}}", 1),)
        yield finding("variable-not-expanded", entry, told, corrected=corrected)


def _void_settings(document: Document, entry: Entry) -> Iterator[Finding]:
    line = entry.pip
    flags = ("--config-settings", "--config-setting", "--global-option")
    void = [(flag, value) for flag, value in line.options if flag in flags and _ISOLATION.search(value)]
    if void:
        told = ("pip hands this to the package's build backend, which knows nothing of it: "
                "the build stays isolated, without torch.")  # fmt: skip
        if not line.wanted:
            alone = not line.dropped and len(void) == len(line.options)
            yield finding("void-setting", entry, told, edit=document.commented(entry) if alone else None)
            return
        kept = [_option(flag, value) for flag, value in line.options if (flag, value) not in void]
        yield _rewrite("void-setting", document, entry, told, [" ".join([line.wanted, *kept])])


def _flat_listing(document: Document, entry: Entry) -> Iterator[Finding]:
    line = entry.pip
    for flag, value in line.options:
        if flag in INDEXES and "repo.radeon.com/rocm/manylinux" in value:
            told = "This is one page with links to wheels and no index, so pip finds nothing there."
            if len(line.options) == 1 and not line.dropped and flag == "--extra-index-url":
                yield _rewrite("flat-listing", document, entry, told, [f"--find-links {value}"])
            else:
                yield finding("flat-listing", entry, told, remedy="Name it with --find-links.")


def _hashes(document: Document) -> Iterator[Finding]:
    wanted = [entry for entry in document.entries if entry.pip.wanted]
    hashed = [entry for entry in wanted if entry.pip.values("--hash")]
    asked = [entry for entry in document.entries if ("--require-hashes", "") in entry.pip.options]
    bare = [entry for entry in wanted if not entry.pip.values("--hash")]
    if (hashed or asked) and bare:
        first = (hashed or asked)[0]
        told = (
            "With one hash, pip wants one for every requirement and every dependency; "
            f"{len(bare)} of {len(wanted)} lines here have none, the first is line {bare[0].first}."
        )
        yield finding("hash-on-some", first, told, remedy="Give hashes to all of them, or to none.")
