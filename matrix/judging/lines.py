"""Rules about the form of a line, whatever package it names, and about conda's dependencies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement

from builders.constants import MOUNT_POINT, MOUNTED_INDEX
from builders.network.urls import is_flat_listing
from matrix.reading.conda_file import conda_name, is_pip_line
from matrix.reading.items import CONDA
from matrix.reading.pip_line import (
    INDEX_OPTIONS,
    ISOLATION_VARIABLE,
    REQUIREMENT_OPTIONS,
    PipLine,
    is_location,
    parse_requirement,
)
from matrix.reading.requirements import VARIABLE, finding
from resolver.compiling.names import replacement
from resolver.requirements import TORCH_FAMILY
from resolver.versions import bounds_cross, is_version, minor, parse_specifier

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from packaging.specifiers import SpecifierSet

    from builders.findings import Finding
    from matrix.judging.target import ExpectedTarget
    from matrix.reading.items import Item, Reading

_VARIABLE = re.compile(r"\$(?!\{[A-Z0-9_]+\})(\{?\w+\}?)")
_ONE_EQUALS_SIGN = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*(\[[\w,.-]+\])?)\s*=\s*(?P<version>\d[\w.+!-]*)")
_ASSIGNMENT = re.compile(r"(export\s+)?[A-Z_][A-Z0-9_]*=")
_COMMAND = re.compile(r"((python\S*\s+-m\s+)?pip3?\s+install|conda\s+install|uv\s+pip\s+install)(\s+|$)")
_PIP_COMMAND = re.compile(r"(python\S*\s+-m\s+)?pip3?\s+install\s+")
_COMMAND_LINE_FLAGS = {
    "--no-build-isolation", "--no-use-pep517", "--use-pep517", "--no-deps", "--upgrade", "-U", "--user",
    "--no-cache-dir", "--force-reinstall", "--ignore-installed", "-I", "-q", "-v",
}  # fmt: skip
"""Options of pip's command line without a value: a word after one of them is a requirement."""
_ISOLATION = re.compile(r"build.isolation")
_VISIBLE = ("/tmp/", "/var/tmp/", "/mnt/", "/srv/", "/media/")  # noqa: S108
"""Directories that are visible in cotainr's container, and directories in base images to bind to."""
_PATH_OPTIONS = (*INDEX_OPTIONS, "--find-links", "--constraint", "--requirement")
_ROCM_CHANNEL = "rock-the-conda"
"""A channel that has torch for ROCm. Source: gbionics/rock-the-conda@6fee664:README.md, and
https://github.com/conda-forge/conda-forge.github.io/issues/1923 (2026-07-13)."""
_SEPARATE_LINES = "Put each on its own line."


def check_lines(reading: Reading, _: ExpectedTarget) -> Iterator[Finding]:
    """Check the form of every line that pip reads."""
    for entry in reading.pip_lines:
        yield from check_line(entry)
        yield from _check_variables(entry)
        yield from _check_settings(entry)
    yield from _check_hashes(reading)
    yield from _check_duplicates(reading)
    yield from _check_locations(reading)


def check_line(entry: Item) -> Iterator[Finding]:
    """Check that pip accepts a line and does not ignore any part of it."""
    if "\t" in entry.text:
        message = "pip splits this line at spaces only, so the words around the tab become one word."
        yield _rewritten("tab", entry, message, [re.sub(r"\t+", " ", entry.text)])
    elif entry.pip.error:
        message = f"{entry.pip.error}: pip stops with an error."
        yield finding("not-a-requirement", entry, message)
    elif entry.pip.requirement_text:
        yield from _check_requirement(entry)
    else:
        yield from _check_options(entry)


def _rewritten(rule: str, entry: Item, message: str, texts: Sequence[str], fix: str = "") -> Finding:
    """Return a finding whose only sensible correction is to replace the entry."""
    return finding(rule, entry, message, corrected=texts, fixable=True, fix=fix)


def _commented_out(rule: str, entry: Item, message: str, fix: str = "") -> Finding:
    return _rewritten(rule, entry, message, [f"# {entry.text}"], fix)


def _check_options(entry: Item) -> Iterator[Finding]:
    line = entry.pip
    if line.unknown_options:
        yield _unknown_option(entry, line.unknown_options[0])
    elif line.ignored_words:
        yield _ignored_words(entry)
    for flag, value in line.options:
        if flag in INDEX_OPTIONS and is_flat_listing(value):
            message = "This page only lists links to wheels. It is not an index, so pip finds nothing there."
            if len(line.options) == 1 and not line.ignored_words and flag == "--extra-index-url":
                yield _rewritten("flat-listing", entry, message, [f"--find-links {value}"])
            else:
                yield finding("flat-listing", entry, message, fix="Use --find-links instead.")


def _unknown_option(entry: Item, flag: str) -> Finding:
    message = f"pip accepts {flag} on its command line only; in a file it stops with: no such option: {flag}."
    fix = ""
    if _ISOLATION.search(flag):
        message += " No line in a file can switch off build isolation."
        fix = (
            "Install wheels that are already built: `matrix build-wheels` builds them and an index for them."
        )
    line = entry.pip
    if not line.ignored_words and not line.options:
        return _commented_out("refused-option", entry, message, fix)
    flags_only = not line.options and all(flag in _COMMAND_LINE_FLAGS for flag in line.unknown_options)
    if flags_only and all(parse_requirement(word) is not None for word in line.ignored_words):
        return _rewritten("refused-option", entry, message, line.ignored_words, fix)
    return finding("refused-option", entry, message, fix=fix)


def _ignored_words(entry: Item) -> Finding:
    line, words = entry.pip, list(entry.pip.ignored_words)
    options = [_option(flag, value) for flag, value in line.options]
    requirements = [word for word in words if parse_requirement(word) is not None]
    for_one = any(flag in REQUIREMENT_OPTIONS for flag, _ in line.options)
    if words[0] == "-":
        return finding(
            "requirement-beside-option", entry, "The dash belongs to a list in YAML.", fix="Remove it."
        )
    if requirements:
        message = f"pip reads only the options of this line and does not install {', '.join(words)}. "
        message += "It prints no message."
        if len(requirements) == len(words) and not for_one:
            return _rewritten("requirement-beside-option", entry, message, [*options, *words])
        return finding("requirement-beside-option", entry, message, fix=_SEPARATE_LINES)
    message = f"An option takes one value. pip ignores the rest without a message: {', '.join(words)}."
    if len(line.options) == 1 and not for_one and line.options[0][1] and all(map(is_location, words)):
        flag, value = line.options[0]
        return _rewritten("second-value", entry, message, [_option(flag, text) for text in (value, *words)])
    return finding("second-value", entry, message, fix=_SEPARATE_LINES)


def _option(flag: str, value: str) -> str:
    quoted = f'"{value}"' if re.search(r"[\s\"']", value) else value
    return f"{flag} {quoted}".rstrip()


def _check_requirement(entry: Item) -> Iterator[Finding]:
    line = entry.pip
    if line.requirement is None and not is_location(line.requirement_text):
        if not VARIABLE.search(line.requirement_text):  # pip puts in what only its environment knows
            yield _unreadable(entry)
        return
    if line.page:
        message = "pip downloads the page of the repository, and stops: it is not an archive."
        yield finding("not-a-requirement", entry, message, fix=f"Write git+{line.page} to build its head.")
    misplaced = [(flag, value) for flag, value in line.options if flag not in REQUIREMENT_OPTIONS]
    alone = _without(line, misplaced)
    if line.unknown_options:
        flag = line.unknown_options[0]
        message = f"pip accepts {flag} on its command line only; in a file it stops with: no such option."
        yield _rewritten("refused-option", entry, message, [alone])
    elif misplaced:
        flags = ", ".join(dict.fromkeys(flag for flag, _ in misplaced))
        message = f"pip ignores {flags} after a requirement, without a message."
        options = [_option(flag, value) for flag, value in misplaced]
        yield _rewritten("option-beside-requirement", entry, message, [*options, alone])


def _without(line: PipLine, options: Sequence[tuple[str, str]]) -> str:
    kept = [_option(flag, value) for flag, value in line.options if (flag, value) not in options]
    return " ".join([line.requirement_text, *kept])


def _unreadable(entry: Item) -> Finding:
    text = entry.pip.requirement_text
    message = "pip stops with: Invalid requirement."
    one_sign = _ONE_EQUALS_SIGN.fullmatch(text)
    words = text.split()
    if one_sign and not _ASSIGNMENT.match(text):
        message += " A single = is conda's syntax; pip requires ==."
        corrected = entry.text.replace(text, f"{one_sign['name']}=={one_sign['version']}", 1)
        return _rewritten("not-a-requirement", entry, message, [corrected])
    if _COMMAND.match(entry.text):
        message += " This is a command. A line of the file contains only the command's arguments."
        command = _PIP_COMMAND.match(entry.text)
        rest = entry.text[command.end() :].strip() if command else ""
        if rest and parse_requirement(rest) is not None:
            return _rewritten("not-a-requirement", entry, message, [rest])
        return finding("not-a-requirement", entry, message)
    if _ASSIGNMENT.match(text):
        message += " A file cannot set variables."
        fix = "Set the variable in the environment in which you run cotainr or pip."
        if "PIP_NO_BUILD_ISOLATION=" in text:
            message += f" {ISOLATION_VARIABLE}"
            fix = "Set PIP_NO_BUILD_ISOLATION=0 in the environment in which you run cotainr or pip."
        return finding("not-a-requirement", entry, message, fix=fix)
    # Words without versions may be prose, and pip would install packages of those names.
    if len(words) > 1 and not entry.pip.options and all(map(_has_version, words)):
        message += " Each requirement needs its own line."
        return _rewritten("not-a-requirement", entry, message, words)
    return finding("not-a-requirement", entry, message)


def _has_version(word: str) -> bool:
    requirement = parse_requirement(word)
    return requirement is not None and bool(requirement.specifier)


def _check_variables(entry: Item) -> Iterator[Finding]:
    variable = _VARIABLE.search(entry.text)
    if variable:
        name = variable[1].strip("{}").upper()
        message = (
            f"pip expands only ${{{name}}}, with braces and in capitals, and does not change {variable[0]}."
        )
        corrected = entry.text.replace(variable[0], f"${{{name}}}", 1)
        yield finding("variable-not-expanded", entry, message, corrected=[corrected])


def _check_settings(entry: Item) -> Iterator[Finding]:
    line = entry.pip
    flags = ("--config-settings", "--global-option")
    void = [(flag, value) for flag, value in line.options if flag in flags and _ISOLATION.search(value)]
    if not void:
        return
    message = (
        "pip passes this to the build backend, which has no such option. "
        "The build stays isolated and has no torch."
    )
    if line.requirement_text:
        yield _rewritten("void-setting", entry, message, [_without(line, void)])
    elif not line.ignored_words and len(void) == len(line.options):
        yield _commented_out("void-setting", entry, message)
    else:
        yield finding("void-setting", entry, message)


def _check_hashes(reading: Reading) -> Iterator[Finding]:
    requirements = [entry for entry in reading.pip_lines if entry.pip.requirement_text]
    hashed = [entry for entry in requirements if entry.pip.values("--hash")]
    required = [entry for entry in reading.pip_lines if entry.pip.has("--require-hashes")]
    bare = [entry for entry in requirements if not entry.pip.values("--hash")]
    if (hashed or required) and bare:
        message = (
            "If one requirement has a hash, pip requires hashes for all requirements and dependencies. "
            f"{len(bare)} of {len(requirements)} requirements have none, the first on line {bare[0].line}."
        )
        fix = "Add hashes to all requirements, or remove all hashes."
        yield finding("hash-on-some", (hashed or required)[0], message, fix=fix)


def _check_duplicates(reading: Reading) -> Iterator[Finding]:
    """Report names on two lines: pip takes a version that satisfies both (observed: 22.3.1 and 26.3)."""
    seen: dict[str, list[tuple[Item, Requirement]]] = {}
    for entry in reading.pip_lines:
        requirement = entry.pip.requirement
        if requirement is None or requirement.marker:
            continue
        earlier = seen.setdefault(entry.pip.name, [])
        if earlier:
            yield _duplicate(entry, requirement, earlier)
        earlier.append((entry, requirement))


def _check_locations(reading: Reading) -> Iterator[Finding]:
    """Report a name with two URLs, of which one has no name before it (else see `_check_duplicates`).

    pip stops at a wheel for another Python, and at two URLs for one name: it never takes the one that fits.
    """
    seen: dict[str, list[Item]] = {}
    for entry in reading.pip_lines:
        line = entry.pip
        if not (line.location and line.name) or line.marker:
            continue
        for former in seen.setdefault(line.name, []):
            if former.pip.location == line.location or (former.pip.requirement and line.requirement):
                continue
            message = f"{former.place} installs {line.name} from another URL: pip stops at one of them."
            fix = "Keep one of the two, or write when each counts, as in: ; python_version == '3.12'"
            yield finding("contradicting-requirement", entry, message, fix=fix)
            break
        seen[line.name].append(entry)


def _duplicate(entry: Item, requirement: Requirement, earlier: list[tuple[Item, Requirement]]) -> Finding:
    name = entry.pip.name
    for former, other in earlier:
        if error := _contradiction(requirement, other):
            message = f"{former.place} also requires {name}, and the two contradict each other. {error}"
            return finding("contradicting-requirement", entry, message, fix="Keep one of the two.")
    former, other = earlier[0]
    if any(former.text == entry.text for former, _ in earlier):
        return _commented_out("duplicate-requirement", entry, f"{former.place} has the same requirement.")
    fix = "Keep one of the two."
    if not (requirement.url or other.url or entry.pip.options or former.pip.options):
        extras = ",".join(sorted(requirement.extras | other.extras))
        name_and_extras = f"{other.name}[{extras}]" if extras else other.name
        fix = f"Write one line: {Requirement(f'{name_and_extras}{requirement.specifier & other.specifier}')}."
    message = f"{former.place} also requires {name}; pip looks for a version that satisfies both lines."
    return finding("duplicate-requirement", entry, message, fix=fix)


def _contradiction(requirement: Requirement, other: Requirement) -> str:
    """Return pip's error if no version satisfies both requirements; empty if a version may."""
    if requirement.url and other.url:
        if requirement.url.partition("#")[0] == other.url.partition("#")[0]:
            return ""
        return "pip stops with: ResolutionImpossible, because the URLs differ."
    if requirement.url or other.url or not _exclude(requirement.specifier, other.specifier):
        return ""
    both = sorted(f"{each.name}{_as_pip_writes(each.specifier)}" for each in (requirement, other))
    return (
        f"pip stops with: Cannot install {' and '.join(both)} because these package versions have "
        "conflicting dependencies."
    )


def _as_pip_writes(specifiers: SpecifierSet) -> str:
    parts = str(specifiers).split(",")
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _exclude(first: SpecifierSet, second: SpecifierSet) -> bool:
    """Return whether it is certain that no version satisfies both.

    Examples
    --------
    >>> from packaging.specifiers import SpecifierSet as S
    >>> _exclude(S("==1.0"), S("==2.0")), _exclude(S("==1.0"), S("==1.0+label")), _exclude(S("<2"), S(">=2"))
    (True, False, True)
    """
    pins, others = _pins(first), _pins(second)
    if pins or others:
        return not (
            any(second.contains(pin, prereleases=True) for pin in pins)
            or any(first.contains(pin, prereleases=True) for pin in others)
        )
    return bounds_cross(parse_specifier(str(first & second)))


def _pins(specifiers: SpecifierSet) -> list[str]:
    return [
        part.version
        for part in specifiers
        if part.operator in {"==", "==="} and not part.version.endswith(".*") and is_version(part.version)
    ]


def check_paths(reading: Reading, expected: ExpectedTarget) -> Iterator[Finding]:
    """Check that paths and file URLs exist where pip runs."""
    for entry in reading.pip_lines:
        line = entry.pip
        editable = line.values("--editable")
        if editable and expected.consumer != "pip":
            message = "Only this file is copied to where pip runs, so there is no source tree to install."
            if "://" in editable[0]:
                message = "pip would keep the sources in its working directory inside the container."
            yield finding("editable", entry, message, fix="Name a wheel, or a version in an index.")
            continue
        paths = line.values(*_PATH_OPTIONS) + ([line.location] if line.location else [])
        for path in paths:
            yield from _check_path(entry, path, expected)


def _check_path(entry: Item, text: str, expected: ExpectedTarget) -> Iterator[Finding]:
    try:
        parts = urlsplit(text.partition("#")[0].removeprefix("git+"))
    except ValueError:  # it is not valid, such as https://[
        return
    if "[" in text or (parts.scheme and parts.scheme != "file") or "${" in text:
        return
    path = unquote(parts.path)
    relative = not path.startswith("/") or bool(parts.netloc.strip(".") == "" and parts.netloc)
    if relative and expected.consumer != "pip":
        message = f"pip looks for {text} in its working directory, and only this file is copied there."
        yield finding("relative-path", entry, message, fix="Write an absolute path that is visible there.")
    elif expected.consumer == "cotainr" and not f"{path}/".startswith(_VISIBLE):
        message = (
            f"{path} is not visible while cotainr builds; only /tmp, /var/tmp and 127.0.0.1 are. pip ignores "
            "the path and then finds no version, or a different version."
        )
        fix = "Copy it to /tmp in the same job, or bind its directory to /mnt before you run cotainr."
        corrected: list[str] = []
        if any(flag in INDEX_OPTIONS for flag, _ in entry.pip.options):
            corrected = [entry.text.replace(text, MOUNTED_INDEX)]
            directory = path.rstrip("/").removesuffix("/simple") or "/"
            fix = f"Bind it before you run cotainr: `export SINGULARITY_BIND={directory}:{MOUNT_POINT}:ro`"
        yield finding("hidden-path", entry, message, corrected=corrected, fix=fix)


def check_conda(reading: Reading, expected: ExpectedTarget) -> Iterator[Finding]:
    """Check conda's own dependencies."""
    entries: dict[str, Item] = {}
    with_rocm = any(
        _ROCM_CHANNEL in text for text in (*reading.channels, *(line.text for line in reading.conda_lines))
    )
    for entry in reading.conda_lines:
        if is_pip_line(entry.text):
            continue
        key = conda_name(entry.text)
        entries.setdefault(key, entry)
        known = "pytorch" if key == "torch" else key  # as conda calls it
        row = replacement(expected.catalog, known, conda=True) if expected.backend == "rocm" else None
        if row and not (with_rocm and {*row.by} <= {*TORCH_FAMILY}):
            message = f"AMD GPUs cannot use conda's {key}. {row.note}".rstrip()
            fix = f"Put {', '.join(row.by)} into the pip section." if row.by else ""
            yield finding("conda-torch", entry, message, fix=fix)
    if reading.kind != CONDA:
        return
    yield from _check_python(reading, entries.get("python"), expected)
    if "pip" in entries and _has_no_version(entries["pip"]):
        message = "conda takes the newest pip, and pip's rules change between releases."
        yield finding("pip-unpinned", entries["pip"], message, fix="Pin it, for example pip=26.*")


def _has_no_version(entry: Item) -> bool:
    return not re.search(r"[=<>~!\s]", entry.text)


def _check_python(reading: Reading, entry: Item | None, expected: ExpectedTarget) -> Iterator[Finding]:
    corrected = [f"python={expected.python}"] if expected.python else []
    message = "conda chooses the newest Python that the packages allow. torch may have no wheel for it yet."
    if entry is None:
        for first in (reading.conda_lines or reading.pip_lines)[:1]:
            fix = "Add Python with its version to the dependencies."
            yield finding("python-unpinned", first, message, corrected=corrected, fix=fix)
    elif _has_no_version(entry):
        yield finding("python-unpinned", entry, message, corrected=corrected, fixable=bool(corrected))
    elif expected.python and reading.python and minor(reading.python) != expected.python:
        message = (
            f"{expected.against} is for Python {expected.python}; its wheels do not work with "
            f"Python {minor(reading.python)}."
        )
        yield _rewritten("other-python", entry, message, corrected)
