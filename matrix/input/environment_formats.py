"""Read files of other programs that list an environment: pip's output, container recipes, ``pylock.toml``.

pip's output is ``pip list`` as columns, freeze and JSON, ``pip freeze``, and the same from uv. Of a
Dockerfile or a definition file of Apptainer, the pip and conda lines are read as a person would: names,
versions and indexes; everything else is listed as not read, and nothing is executed. The packages of a
``pylock.toml`` (PEP 751) become exact requirements.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from packaging.pylock import Package, Pylock, PylockValidationError
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from matrix.reading.requirements import Entry
from resolver.errors import UsageError
from resolver.texts import check_texts, is_url, printable, read_text
from resolver.versions import is_version, shorten

if TYPE_CHECKING:
    pass


_HINT = "Write the file with `pip list --format freeze > FILE`."
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_PIP_MESSAGE = re.compile(r"(WARNING|DEPRECATION|Using Python|\[notice\])", re.IGNORECASE)
_EGG = re.compile(r"[#&]egg=([\w.-]+)")
_COLUMNS = 2

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
_UNREAD_VALUES = {"-r", "--requirement", "-c", "--constraint", "-e", "--editable"}
_CONDA_VALUES = {"-n", "--name", "-p", "--prefix", "-c", "--channel", "-f", "--file"}
_LONGEST = 100

_PYLOCK_HINT = "Write it again with the program that wrote it."
_PYLOCK_NAME = re.compile(r"pylock(\.[^.]+)?\.toml")
_CHOICE = re.compile(r"\b(extras|dependency_groups)\b")


def parse_pip_list(text: str, source: str) -> Iterator[tuple[str, str, int]]:
    """Yield the distributions in the output of pip; `source` is named in errors.

    Examples
    --------
    >>> [(name, version) for name, version, _ in parse_pip_list("Torch==2.9.1+rocm6.4", "list.txt")]
    [('torch', '2.9.1+rocm6.4')]
    """
    if text.lstrip().startswith(("[", "{")) and not text.lstrip().startswith("[notice]"):
        yield from _parse_json(text, source)
        return
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#") or _PIP_MESSAGE.match(line) or set(line) <= {"-", " "}:
            continue
        if line.split()[:_COLUMNS] == ["Package", "Version"]:
            continue
        yield from _parse_line(line, number, source)


def _parse_line(line: str, number: int, source: str) -> Iterator[tuple[str, str, int]]:
    if line.startswith(("-e ", "--editable")):
        egg = _EGG.search(line)
        if egg:
            yield canonicalize_name(egg[1]), "", number
        return
    name, version = _name_and_version(line)
    if name is None or not _NAME.fullmatch(name):
        msg = f"{source}:{number}: {shorten(line)!r} is not a line of `pip list` or `pip freeze`."
        raise UsageError(msg, hint=_HINT)
    yield canonicalize_name(name), version, number


def _name_and_version(line: str) -> tuple[str | None, str]:
    """Return name and version of a line; the name is None if the line has another form."""
    if " @ " in line:
        name, _, url = line.partition(" @ ")
        return name.strip(), _version_in_url(url.strip())
    if "==" in line:
        name, _, version = line.partition("==")
        version = version.lstrip("=").strip()
        return (name.strip(), version) if version and " " not in version else (None, "")
    words = line.split()
    editable = len(words) > _COLUMNS and "/" in words[_COLUMNS]
    if len(words) == _COLUMNS or editable:
        return (words[0], words[1]) if words[1][:1].isdigit() or is_version(words[1]) else (None, "")
    return None, ""


def _version_in_url(url: str) -> str:
    try:
        return str(parse_wheel_filename(unquote(urlsplit(url).path.rpartition("/")[2]))[1])
    except (InvalidWheelFilename, ValueError):
        return ""


def _parse_json(text: str, source: str) -> Iterator[tuple[str, str, int]]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        msg = f"{source}:{line}: not valid JSON: {error}."
        raise UsageError(msg, hint=_HINT) from None
    if not isinstance(rows, list):
        msg = f"{source}:1: this JSON is not the output of `pip list --format json`."
        raise UsageError(msg, hint=_HINT)
    for number, row in enumerate(rows, start=1):
        name, version = (row.get("name"), row.get("version")) if isinstance(row, dict) else (None, None)
        if not (isinstance(name, str) and isinstance(version, str) and _NAME.fullmatch(name)):
            msg = f"{source}: entry {number} has no valid name and version."
            raise UsageError(msg, hint=_HINT)
        yield canonicalize_name(name), version, number


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
    """Yield the logical lines without comments, each with the number of its first line."""
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
    """Yield what an installation by pip names, and whether it can be read."""
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


def is_pylock(path: Path) -> bool:
    """Return whether installers accept a file of this name as a lock.

    Examples
    --------
    >>> is_pylock(Path("pylock.toml")), is_pylock(Path("pylock.gpu.toml")), is_pylock(Path("pyproject.toml"))
    (True, True, False)
    """
    return _PYLOCK_NAME.fullmatch(path.name) is not None


def read_pylock(path: Path) -> tuple[list[tuple[str, str, str]], str]:
    """Read the packages that a lock installs by default, without extras, and its specifier of Python.

    Each package has a name, a requirement (an exact version or a URL, with its marker), and the URL of its
    index, which may be empty. Hashes and files are not read: `matrix` locks the files that fit the target.
    """
    try:
        data = tomllib.loads(read_text(path, pipes=True))
        check_texts(data, path, UsageError, _PYLOCK_HINT)
        lock = Pylock.from_dict(data)
    except (ValueError, RecursionError, PylockValidationError) as error:
        msg = f"{path} is not a valid lock (PEP 751): {error}."
        raise UsageError(msg, hint=_PYLOCK_HINT) from None
    packages = [
        (str(package.name), _requirement(package, lock, path.parent), package.index or "")
        for package in lock.packages
        if _is_default(package, lock)
    ]
    return packages, str(lock.requires_python or "")


def _is_default(package: Package, lock: Pylock) -> bool:
    """Return whether a package is installed by default; `packaging` judges other markers for this machine."""
    if package.marker is None or not _CHOICE.search(str(package.marker)):
        return True
    chosen = {"extras": frozenset[str](), "dependency_groups": frozenset(lock.default_groups or ())}
    return package.marker.evaluate(chosen, context="lock_file")


def _requirement(package: Package, lock: Pylock, folder: Path) -> str:
    url = _url(package, folder)
    if not is_url(url):
        msg = f"{package.name} has a URL with characters that a URL must not have: {url!r}."
        raise UsageError(msg, hint=_PYLOCK_HINT)
    if url:
        text = f"{package.name} @ {url}"
    elif package.version is None:
        text = package.name
    else:
        # Our own wheels have a label, and no index serves them.
        is_built = lock.created_by == "matrix" and package.index is None
        text = f"{package.name}=={package.version.public if is_built else package.version}"
    marker = "" if package.marker is None or _CHOICE.search(str(package.marker)) else str(package.marker)
    return f"{text} ; {marker}" if marker else text


def _url(package: Package, folder: Path) -> str:
    if package.vcs is not None:
        source = package.vcs
        url = f"{source.type}+{source.url or _local(folder, source.path)}@{source.commit_id}"
    elif package.archive is not None:
        url = package.archive.url or _local(folder, package.archive.path)
    elif package.directory is not None:
        url = _local(folder, package.directory.path)
    else:
        return ""
    source_tree = package.vcs or package.archive or package.directory
    subdirectory = source_tree.subdirectory if source_tree else ""
    return f"{url}#subdirectory={subdirectory}" if subdirectory else url


def _local(folder: Path, path: str | None) -> str:
    return (folder / (path or "")).resolve().as_uri()
