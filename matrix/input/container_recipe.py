"""Read the pip and conda lines of a Dockerfile or a definition file of Apptainer; nothing is executed.

Only what a person would read from these lines is known: names, versions and indexes. Everything else that the
file does is listed as not read.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

from matrix.checking.document import Entry
from resolver.texts import printable
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DOCKER = re.compile(r"(?im)^\s*FROM\s+\S+")
_DEFINITION = re.compile(r"(?im)^\s*Bootstrap\s*:")
_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)\s+(.*)", re.DOTALL)
_SECTION = re.compile(r"\s*%(\w+)")
_HEADER = re.compile(r"\s*From\s*:\s*(\S+)", re.IGNORECASE)
_ASSIGNED = re.compile(r"(\w+)=(\"[^\"]*\"|'[^']*'|\S*)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_SEPARATOR = re.compile(r"&&|\|\||[;|\n]")
_PIP = re.compile(r"(?:\S*/)?(?:uv\s+)?(?:python[\d.]*\s+-m\s+)?pip[\d.]*\s+install\b(.*)", re.DOTALL)
_CONDA = re.compile(r"(?:\S*/)?(?:conda|mamba|micromamba)\s+(?:install|create)\b(.*)", re.DOTALL)
_HARMLESS = re.compile(r"(?:set|export|cd|echo|mkdir|rm|true|source|\.|apt-get\s+(?:update|clean))\b|#|$")
_PIP_VALUES = {"-i", "--index-url", "--extra-index-url", "-f", "--find-links"}
"""Options of pip that a requirements file has as well, each with a value."""
_LEFT_VALUES = {
    "-t", "--target", "--prefix", "--root", "--cache-dir", "--timeout", "--retries", "--trusted-host",
    "--python", "-p", "--global-option", "--config-settings", "--progress-bar",
}  # fmt: skip
"""Options of pip with a value that does not matter."""
_UNREAD_VALUES = {"-r", "--requirement", "-c", "--constraint", "-e", "--editable"}
_CONDA_VALUES = {"-n", "--name", "-p", "--prefix", "-c", "--channel", "-f", "--file"}
_LONGEST = 100


def is_recipe(name: str, text: str) -> bool:
    """Return whether a file is a Dockerfile or a definition file, by its name and content."""
    named = name.lower().startswith(("dockerfile", "containerfile")) or name.endswith(
        (".dockerfile", ".docker")
    )
    is_definition = _DEFINITION.search(text) is not None and not name.endswith((".yml", ".yaml", ".toml"))
    return (named and _DOCKER.search(text) is not None) or is_definition


def read_recipe(text: str) -> tuple[list[Entry], list[Entry], list[str]]:
    r"""Return the pip and the conda lines of a Dockerfile or definition file, and what was not read.

    Examples
    --------
    >>> pip, conda, unread = read_recipe("FROM ubuntu\nARG T=2.5.1\nRUN pip install torch==$T && make\n")
    >>> [(entry.line, entry.text) for entry in pip], unread
    ([(3, 'torch==2.5.1')], ['line 1: the base image ubuntu', 'line 3: make'])
    """
    pip: list[Entry] = []
    conda: list[Entry] = []
    unread: list[str] = []
    commands = _of_definition(text) if _DEFINITION.search(text) else _of_dockerfile(text)
    for number, command in commands:
        if command.startswith("FROM "):
            unread.append(f"line {number}: the base image {printable(command.removeprefix('FROM '))}")
        elif match := _PIP.fullmatch(command):
            _add(pip, unread, number, _pip_words(match[1]))
        elif match := _CONDA.fullmatch(command):
            _add(conda, unread, number, _conda_words(match[1]))
        elif not _HARMLESS.match(command):
            unread.append(f"line {number}: {printable(shorten(' '.join(command.split()), _LONGEST))}")
    return pip, conda, unread


def _add(entries: list[Entry], unread: list[str], number: int, words: Iterable[tuple[str, bool]]) -> None:
    for word, is_read in words:
        if is_read and not _VARIABLE.search(word):
            entries.append(Entry(line=number, text=word))
        else:
            unread.append(f"line {number}: {printable(word)}")


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Yield the logical lines, each with the number of its first line; comments between them are left out."""
    start = 0
    parts: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#") and (parts or not line.lstrip().startswith("#!")):
            continue
        start = start if parts else number
        parts.append(line.rstrip().removesuffix("\\"))
        if not line.rstrip().endswith("\\"):
            yield start, " ".join(parts)
            parts = []
    if parts:
        yield start, " ".join(parts)


def _of_dockerfile(text: str) -> Iterator[tuple[int, str]]:
    """Yield the commands of a Dockerfile, with the values of ARG and ENV, and its base images."""
    variables: dict[str, str] = {}
    for number, line in _joined(text):
        match = _INSTRUCTION.fullmatch(line)
        if match is None:
            continue
        name, rest = match[1].upper(), match[2].strip()
        if name in {"ARG", "ENV"}:
            pairs = _ASSIGNED.findall(rest) or [tuple((*rest.split(None, 1), "")[:2])]
            variables |= {key: _expanded(value.strip("\"'"), variables) for key, value in pairs if value}
        elif name == "FROM":
            words = [word for word in rest.split() if not word.startswith("--")]
            yield number, f"FROM {_expanded(words[0], variables) if words else rest}"
        elif name in {"RUN", "COPY", "ADD"}:
            if name == "RUN":
                rest = _of_exec_form(re.sub(r"^(--\S+\s+)+", "", rest))
                yield from ((number, command) for command in _commands(_expanded(rest, variables)))
            else:
                yield number, f"{name} {rest}"


def _of_definition(text: str) -> Iterator[tuple[int, str]]:
    """Yield the commands in the section ``%post`` of a definition file, and its base image."""
    section = ""
    variables: dict[str, str] = {}
    for number, line in _joined(text):
        if match := _SECTION.match(line):
            section = match[1].lower()
        elif not section and (match := _HEADER.match(line)):
            yield number, f"FROM {match[1]}"
        elif section == "files" and line.strip():
            yield number, f"COPY {line.strip()}"
        elif section == "post":
            for command in _commands(_expanded(line, variables)):
                if match := _ASSIGNED.fullmatch(command.removeprefix("export ").strip()):
                    variables[match[1]] = match[2].strip("\"'")
                else:
                    yield number, command


def _of_exec_form(text: str) -> str:
    """Return a command that may be a list of words as JSON as a shell would read it."""
    try:
        words = json.loads(text) if text.startswith("[") else None
    except (ValueError, RecursionError):
        return text
    return shlex.join(map(str, words)) if isinstance(words, list) else text


def _expanded(text: str, variables: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        return variables.get(match[1] or match[2], match[0])

    return _VARIABLE.sub(value, text)


def _commands(text: str) -> Iterator[str]:
    """Yield the commands of a shell line; separators in quotes do not separate."""
    start, quote = 0, ""
    at = 0
    while at < len(text):
        if quote:
            quote = "" if text[at] == quote else quote
        elif text[at] in "\"'":
            quote = text[at]
        elif match := _SEPARATOR.match(text, at):
            yield text[start:at].strip()
            at = start = match.end()
            continue
        at += 1
    yield text[start:].strip()


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an open quote
        return text.split()


def _pip_words(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the requirements and indexes of an installation by pip, and what cannot be read."""
    words = iter(_words(text))
    for word in words:
        name, _, value = word.partition("=")
        if name in _PIP_VALUES:
            yield f"{name} {value or next(words, '')}", True
        elif name in _UNREAD_VALUES:
            yield f"{name} {value or next(words, '')}", False
        elif name in _LEFT_VALUES:
            _ = value or next(words, "")
        elif word.startswith(("-", "<", ">", "2>")):
            continue
        elif word not in {"pip", "setuptools", "wheel"}:
            yield word, not word.startswith((".", "/"))


def _conda_words(text: str) -> Iterator[tuple[str, bool]]:
    words = iter(_words(text))
    for word in words:
        if word in {"-f", "--file"}:
            yield f"--file {next(words, '')}", False
        elif word in _CONDA_VALUES:
            next(words, "")
        elif not word.startswith(("-", "<", ">")):
            yield word, True
