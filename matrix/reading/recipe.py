"""Read Dockerfiles, fragments of them, and definition files of Apptainer.

Of several stages, the last one counts, with those that it builds on; what only others install is listed as
not read. Sources: https://docs.docker.com/reference/dockerfile/ and
https://apptainer.org/docs/user/latest/definition_files.html.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from typing import TYPE_CHECKING

import re2
from msgspec.structs import replace

from builders.findings import Finding
from matrix.reading.items import Item, Reading, Unread
from matrix.reading.shell import LONGEST_VALUE, Shell
from resolver.texts import printable
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_NAMED = re2.compile(r"(?i)(dockerfile|containerfile)([.-].*)?|.*\.(dockerfile|docker|containerfile|def)")
_HEADER = re2.compile(r"(?i)[ \t]*(bootstrap|from|stage)[ \t]*:[ \t]*(.*?)\s*")
_INSTRUCTION = re2.compile(
    r"(?is)[ \t]*(FROM|RUN|ENV|ARG|COPY|ADD|WORKDIR|CMD|ENTRYPOINT|LABEL|USER|EXPOSE|VOLUME|SHELL|STOPSIGNAL"
    r"|HEALTHCHECK|ONBUILD|MAINTAINER)[ \t]+(.*)"
)
_FIRST = re2.compile(
    r"(?m)^[ \t]*(?:(?:FROM|RUN|ENV|ARG)[ \t]+\S|from[ \t]+\S+[ \t]*(?:(?i:as)[ \t]+\w+)?[ \t\r]*$)"
)
_BOOTSTRAP = re2.compile(r"(?im)^[ \t]*Bootstrap[ \t]*:")
_SECTION = re2.compile(r"[ \t]*%(\w+)(.*)")
_HERE = re2.compile(r"<<-?[\"']?(\w+)[\"']?")
_ARGUMENT = re2.compile(r"\{\{\s*(\w+)\s*\}\}")
_FLAGS = re.compile(r"(?:--\S+(?:\s|\\\r?\n)+)+")
_LONGEST_SHOWN = 100


def recognises(name: str, head: str) -> bool:
    """Return whether a file is a recipe, by its name, or by instructions in its content."""
    if name.lower().endswith((".yml", ".yaml", ".toml", ".json", ".md", ".py", ".lock")):
        return False
    return bool(_NAMED.fullmatch(name) or _BOOTSTRAP.search(head) or _FIRST.search(head))


class _Stage(Shell):
    def __init__(self, name: str, base: str, line: int, folder: str) -> None:
        super().__init__(payload_matters=True, context=folder)
        self.name, self.base, self.line = name, base, line
        self.copied_from: list[str] = []
        self.parent = -1
        """The position of the stage that it builds on."""


def read(text: str, name: str) -> Reading:
    r"""Read a recipe.

    Examples
    --------
    >>> found = read("FROM ubuntu\nARG T=2.5.1\nRUN pip install torch==$T && ./own.sh\n", "Dockerfile")
    >>> [str(item) for item in found.items], [each.text for each in found.unread if each.matters]
    (['ubuntu', 'torch 2.5.1'], ['./own.sh'])
    """
    is_definition = _BOOTSTRAP.search(text) is not None
    folder = posixpath.dirname(name) or "."
    stages = _of_definition(text, folder) if is_definition else _of_dockerfile(text, folder)
    kind = "definition file" if is_definition else "Dockerfile"
    if stages and not is_definition and not stages[0].base:
        kind = "fragment of a Dockerfile"
    reading = Reading(kind=kind, name=name)
    chain = _chain(stages)
    kept = {id(stage) for stage in chain}
    copied = {source for stage in chain for source in stage.copied_from}
    for number, stage in enumerate(stages):
        stage.finish()
        if id(stage) in kept:
            _add(reading, stage, is_first=stage is chain[0])
            continue
        matters = bool(copied & {stage.name, str(number)})
        reason = f"it is of stage {stage.name or number}, on which the last stage does not build"
        for item in stage.items:
            reading.unread.append(Unread(item.line, item.text, reason, matters))
        rest = [replace(each, matters=False) for each in stage.unread]
        reading.unread += [Unread(stage.line, f"FROM {printable(stage.base)}", reason, False), *rest]
    reading.unread.sort(key=lambda each: each.line)
    return reading


def _chain(stages: Sequence[_Stage]) -> list[_Stage]:
    """Return the last stage and those that it builds on, the first of them first."""
    chain: list[_Stage] = []
    position = len(stages) - 1
    while position >= 0:
        chain.append(stages[position])
        position = stages[position].parent
    return chain[::-1]


def _add(reading: Reading, stage: _Stage, *, is_first: bool) -> None:
    if is_first and stage.base:
        text = printable(f"FROM {stage.base}")
        reading.items.append(
            Item(name="", url=printable(stage.base), installer="image", line=stage.line, text=text)
        )
    for item in stage.items:
        reading.add(item)
    reading.unread += stage.unread
    reading.variables |= stage.exported
    reading.channels += stage.channels
    reading.find_links += stage.find_links
    reading.constraints += stage.constraints
    reading.findings += [split_by_shell(line, text) for line, text in stage.split_by_shell]


def split_by_shell(line: int, text: str) -> Finding:
    """Return a finding about a requirement without quotes, of which the shell makes a redirection."""
    name, operator, rest = re.split(r"([<>])", text, maxsplit=1)
    message = (
        f"The shell reads {printable(operator + rest)} as a redirection, so pip installs any version of "
        f"{printable(name)}."
    )
    evidence = {"line": line, "text": printable(text), "corrected": (), "fixable": False}
    return Finding("shell-redirection", "warning", message, f'Quote it: "{printable(text)}"', evidence)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the instructions of a Dockerfile, with line breaks instead of continuations, and their lines.

    Comment lines inside of an instruction become empty, so that line numbers stay.
    """
    parts: list[str] = []
    start, ends = 1, ""
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if not stripped and not parts:
            continue
        start = start if parts else number
        if ends:
            parts.append(line)
            ends = "" if stripped == ends else ends
        elif stripped.startswith("#"):
            if not parts:
                continue
            parts.append("\\")
        else:
            here = _HERE.search(stripped)
            ends = here[1] if here else ""
            # An empty line continues an instruction that has begun.
            parts.append("\\" if parts and not stripped else line.rstrip())
        if not ends and not parts[-1].endswith("\\"):
            yield start, "\n".join(parts)
            parts = []
    if parts:
        yield start, "\n".join(parts)


def _of_dockerfile(text: str, folder: str) -> list[_Stage]:
    stages: list[_Stage] = []
    positions: dict[str, int] = {}
    before = Shell(payload_matters=True, context=folder)  # ARG before the first FROM
    for number, line in _logical_lines(text):
        match = _INSTRUCTION.fullmatch(line)
        name = match[1].upper() if match else ""
        if name == "FROM":
            stage = _stage(match[2], number, before, folder)
            stage.parent = positions.get(stage.base.lower(), -1)
            if stage.parent >= 0:
                stage.inherit(stages[stage.parent])
            positions |= {key: len(stages) for key in (stage.name.lower(), str(len(stages))) if key}
            stages.append(stage)
            continue
        if not stages:
            if name == "ARG":
                _set(before, match[2], exported=False)
            elif line.strip():
                # A fragment has no FROM; its ARGs belong to it.
                stages.append(_Stage("", "", 1, folder))
                stages[0].values |= before.values
        if stages and line.strip():
            _instruction(stages[-1], name, match[2] if match else line, number, before)
    return stages


def _stage(rest: str, number: int, before: Shell, folder: str) -> _Stage:
    words = [word for word in before.expand(rest).split() if not word.startswith("--")]
    base = words[0] if words else ""
    name = words[2] if len(words) > 2 and words[1].lower() == "as" else ""  # noqa: PLR2004
    return _Stage(name, base, number, folder)


def _instruction(stage: _Stage, name: str, rest: str, number: int, before: Shell) -> None:
    shown = printable(shorten(f"{name} {' '.join(rest.split())}".strip(), _LONGEST_SHOWN))
    if name == "RUN":
        folder = stage.directory
        flags = _FLAGS.match(rest)
        _mount(stage, flags[0] if flags else "")
        script = _of_exec_form(rest[flags.end() :] if flags else rest)
        stage.run(script, number)
        stage.directory = folder
        return
    if name == "ENV":
        _set(stage, rest, exported=True)
    elif name == "ARG":
        _set(stage, rest, exported=False)
        if "=" not in rest:
            stage.values |= {key: before.values[key] for key in rest.split() if key in before.values}
    elif name == "WORKDIR":
        stage.enter(stage.expand(rest.strip()))
    elif name in {"COPY", "ADD"} and (source := re2.search(r"--from=(\S+)", rest)):
        stage.copied_from.append(source[1])
    elif name in {"COPY", "ADD"}:
        words = [word for word in stage.expand(_of_exec_form(rest)).split() if not word.startswith("--")]
        stage.copy(words)
    reason = "it installs no package" if name else "it is no instruction"
    stage.unread.append(Unread(number, shown, reason, not name or name == "ONBUILD"))


def _mount(shell: Shell, flags: str) -> None:
    """Read ``--mount=type=bind,source=FILE,target=PATH``."""
    for flag in flags.replace("\\\n", " ").split():
        keys = dict(part.partition("=")[::2] for part in flag.removeprefix("--mount=").split(","))
        source, target = keys.get("source", keys.get("src", "")), keys.get("target", keys.get("dst", ""))
        if keys.get("type", "bind") == "bind" and source and target and "from" not in keys:
            shell.copy([source, target])


def _set(shell: Shell, rest: str, *, exported: bool) -> None:
    """Read ``NAME=VALUE ...`` or ``NAME VALUE``."""
    rest = rest.replace("\\\n", " ")
    try:
        words = shlex.split(rest)
    except ValueError:  # an open quote
        words = rest.split()
    if words and "=" not in words[0]:
        words = [f"{words[0]}={' '.join(words[1:])}"] if len(words) > 1 else []
    for word in words:
        key, equals, value = word.partition("=")
        if equals:
            shell.set(key, value, exported=exported)


def _of_exec_form(text: str) -> str:
    try:
        words = json.loads(text) if text.lstrip().startswith("[") else None
    except (ValueError, RecursionError):
        return text
    return shlex.join(map(str, words)) if isinstance(words, list) else text


def _of_definition(text: str, folder: str) -> list[_Stage]:
    stages: list[_Stage] = []
    arguments: dict[str, str] = {}
    for section, rest, start, written in _sections(text):
        lines = _filled(written, arguments)
        if section == "arguments":
            pairs = (line.strip().partition("=") for line in lines if "=" in line)
            arguments |= {key: value.strip("\"'") for key, _, value in pairs}
        if section == "bootstrap" or not stages:
            stages.append(_Stage("", "", start, folder))
        if section in {"post", "setup", "environment"}:
            stages[-1].run("\n".join(lines), start)
            continue
        if section == "from":
            stages[-1].base, stages[-1].line = rest, start
        elif section == "stage":
            stages[-1].name = rest
        elif section == "files":
            _files(stages[-1], rest, lines)
        for number, line in enumerate(lines, start=start):
            if line.strip() and not line.lstrip().startswith("#"):
                shown = printable(shorten(line.strip(), _LONGEST_SHOWN))
                reason = f"it is of the section {section or 'header'}"
                stages[-1].unread.append(Unread(number, shown, reason, matters=False))
    return stages


def _files(stage: _Stage, rest: str, lines: Sequence[str]) -> None:
    """Read the section ``%files``: from another stage, or from beside the file."""
    if source := re2.search(r"from[ \t]+(\S+)", rest):
        stage.copied_from.append(source[1])
        return
    for words in map(str.split, lines):
        stage.copy(words if len(words) > 1 else words * 2)


def _filled(lines: list[str], arguments: Mapping[str, str]) -> list[str]:
    """Replace ``{{ NAME }}`` by the value of the section ``%arguments``."""
    if not arguments:
        return lines
    filled = [_ARGUMENT.sub(lambda match: arguments.get(match[1], match[0]), line) for line in lines]
    return [
        new if len(new) <= max(LONGEST_VALUE, len(line)) else line
        for new, line in zip(filled, lines, strict=True)
    ]


def _sections(text: str) -> Iterator[tuple[str, str, int, list[str]]]:
    """Yield the sections of a definition file: name, the rest of its line, first line, and lines.

    A line of the header (``Bootstrap``, ``From``, ``Stage``) is a section of its own.
    """
    section, rest, start = "", "", 1
    lines: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        header = _HEADER.fullmatch(line) if ":" in line else None
        begins = _SECTION.fullmatch(line) if "%" in line else None
        is_header = header and (
            section in {"", "bootstrap", "from", "stage"} or header[1].lower() == "bootstrap"
        )
        found = begins or (header if is_header else None)
        if found:
            yield section, rest, start, lines
            section, rest = found[1].lower(), found[2].strip()
            start, lines = number + bool(begins), [] if begins else [line]
        else:
            lines.append(line)
    yield section, rest, start, lines
