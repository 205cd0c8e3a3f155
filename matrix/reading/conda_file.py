"""Read conda environment files, with ruamel.yaml in round-trip mode, as conda itself does.

conda's rules come from its source (``conda/env/env.py``): the items of the pip section become the lines of
a requirements file, only the last of several pip sections is used, and unknown keys are ignored.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, TypeGuard

import re2

from matrix.reading.items import CONDA, Installer, Item, Reading, Unread
from matrix.reading.pip_line import ISOLATION_VARIABLE, is_location
from matrix.reading.requirements import HINT, add_lines, finding_at
from resolver.errors import UsageError
from resolver.texts import printable
from resolver.versions import shorten

if TYPE_CHECKING:
    from ruamel.yaml.comments import CommentedMap, CommentedSeq
    from ruamel.yaml.constructor import DuplicateKeyError

_KEYS = ("name", "dependencies", "prefix", "channels", "variables")
_BUILD_VARIABLE = re.compile(
    r"(PIP|DS|UV|MAX|CMAKE|TORCH|PYTORCH|ROCM|HIP|HCC|GPU|APEX|FLASH|CUDA|FORCE|CUPY|HOROVOD|AITER|BNB|NVTE"
    r"|XFORMERS|PREBUILD|CAUSAL_CONV1D|MAMBA|BUILD|USE_(CUDA|ROCM|MPI|MKL|DISTRIBUTED|\w+_ATTENTION))(_|$)"
    r"|VLLM_TARGET_DEVICE|MKL_THREADING|(MPI)?(CC|CXX)$|CPATH$|\w*FLAGS$"
)
"""Variables that builds read; each of a recipe's is one (a test compares them)."""
_COMMENT = re.compile(r"(?<=\s)#.*$")
_LIST_ITEM = re.compile(r"\s*-\s+")
_REST = re.compile(r"\s*|\s+#.*")
_VERSION = r"(?:\d+!)?[A-Za-z0-9_*]+(?:[.+-][A-Za-z0-9_*]+)*"
_OPERATOR = r"(?:==|!=|<=|>=|~=|<|>|=)"
_SPEC = re2.compile(
    r"(?:[^\s\[\]=<>!~,|;]+::?)?(?P<name>_{0,2}[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*)"
    rf"(?:(?P<versions>(?:\s*{_OPERATOR}\s*|\s+){_VERSION}"
    rf"(?:\s*[,|]\s*(?:{_OPERATOR}\s*)?{_VERSION})*)"
    r"(?:(?:\s*=\s*|\s+)(?P<build>[A-Za-z0-9_*][A-Za-z0-9_.+*-]*))?)?"
    r"\s*(?:\[[^\[\]]*\])?\s*"
)
"""Matches a package specification of conda: channel, name, versions, build, and more in brackets.

Source: CEP 26 (names), CEP 29 (specifications), and what conda and rattler accept (tests/reading).
"""
_KEY = re2.compile(r"(?m)^(dependencies|channels)[ \t]*:")
_NAME = re.compile(r"(?:[\w./-]+::)?([A-Za-z0-9_.-]+)")
_PIN = re2.compile(rf"\s*(?P<operator>={{0,2}})\s*(?P<version>{_VERSION})")
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # YAML's


class _File:
    """The structure of an environment file, as conda reads it."""

    def __init__(self, text: str, reading: Reading, *, editable: bool) -> None:
        self.lines = [*text.splitlines(), ""]
        self.reading = reading
        self.editable = editable

    def add(self, rule: str, line: int, message: str, **more: Any) -> None:  # noqa: ANN401
        """Add a finding about a line."""
        text = more.pop("text", self.lines[line - 1].strip())
        self.reading.findings.append(finding_at(rule, line, text, message, **more))

    def read_dependencies(self, dependencies: CommentedSeq) -> None:
        """Read conda's dependencies and the pip sections among them."""
        sections: list[int] = []
        for position, item in enumerate(dependencies):
            line = dependencies.lc.item(position)[0] + 1
            text = _text_of(item)
            if text is not None:
                self._keep(dependencies, position, text.strip(), "conda")
                self._check_spec(line, text.strip())
            elif not _is_map(item):
                self.add("not-text", line, "conda expects a string here and stops with a Python error.")
            for key in item if text is None and _is_map(item) else ():
                if key != "pip":
                    self.add("not-text", line, "conda accepts only a pip section here, and stops.")
                    continue
                at = _line_of(item, "pip")
                if sections:
                    message = "conda uses only the last pip section and ignores the others."
                    self.add("several-pip-sections", at, message, fix="Put all lines under one pip section.")
                sections.append(at)
                self._read_section(item)
        names = {conda_name(line.text) for line in self.reading.conda_lines if not is_pip_line(line.text)}
        if "pip" not in names and self.reading.pip_lines:
            message = "conda warns and adds a pip of its choice."
            fix = "List pip among the dependencies, before the pip section."
            is_alone = self.editable and written_as(self.lines[sections[0] - 1], "pip:") is not None
            self.add(
                "pip-not-listed",
                sections[0],
                message,
                text="pip:",
                corrected=["pip", "pip:"],
                fixable=is_alone,
                fix=fix,
            )

    def _check_spec(self, line: int, text: str) -> None:
        if is_pip_line(text):
            message = "conda cannot parse this; only lines of the pip section go to pip."
            self.add("pip-line-outside", line, message, text=text, fix="Move it into the pip section.")
            return
        if conda_item(text) is not None:
            return
        first, dash, _ = text.partition(" - ")
        if dash and first == "pip":
            message = f"YAML joins this line and those below it to one text: {shorten(text)!r}."
            fix = "Write a colon after pip: `- pip:`"
            self.add("conda-spec", line, message, fix=fix)
        else:
            message = f"conda cannot read {shorten(text)!r}: it is not a package with versions."
            fix = "Write a name, or a name and versions, such as numpy>=1.26,<2 or numpy=1.26."
            self.add("conda-spec", line, message, fix=fix)

    def _read_section(self, item: CommentedMap) -> None:
        section = item["pip"]
        if _is_list(section):
            for position in range(len(section)):
                self._read_item(section, position)
        elif section is not None:
            part = "key" if _is_map(section) else "character"
            message = f"conda expects a list here and would read each {part} as a line."
            self.add("pip-not-list", _line_of(item, "pip"), message, fix="Start each line with a hyphen.")

    def _read_item(self, section: CommentedSeq, position: int) -> None:
        text = _text_of(section[position])
        if text is not None:
            texts = (_COMMENT.sub("", part).strip() for part in text.split("\n"))
            for line in texts:
                if line and not line.startswith("#"):
                    self._keep(section, position, line, "pip")
            return
        line, column = section.lc.item(position)
        written = _COMMENT.sub("", self.lines[line][column:]).strip()
        if _is_map(section[position]) and written.startswith("--"):
            message = (
                "YAML reads this line as a mapping. conda expects a string and stops with a TypeError before "
                "pip runs."
            )
            is_alone = written_as(self.lines[line], written) is not None
            alone = len(section[position]) == 1 and is_alone and self.editable
            quoted = [json.dumps(written)]
            self.add("yaml-map", line + 1, message, text=written, corrected=quoted, fixable=alone)
            return
        message = "conda expects a string and stops with a TypeError before pip runs."
        fix = "Write a requirement or an option. Quote it if YAML does not read it as a string."
        self.add("not-text", line + 1, message, fix=fix)

    def _keep(self, sequence: CommentedSeq, position: int, text: str, installer: Installer) -> None:
        line = sequence.lc.item(position)[0] + 1
        alone = self.editable and written_as(self.lines[line - 1], text) is not None
        self.reading.lines.append(Item(line=line, text=text, editable=alone, installer=installer))

    def check_channels(self, channels: object) -> None:
        """Report channels of Anaconda."""
        if not _is_list(channels):
            return
        for position, channel in enumerate(channels):
            if isinstance(channel, str) and channel in {"defaults", "anaconda", "main"}:
                message = (
                    "Larger organizations need a licence for Anaconda's channel, and its packages do not mix "
                    "well with those of conda-forge, which cotainr uses."
                )
                self.add(
                    "defaults-channel", channels.lc.item(position)[0] + 1, message, corrected=["conda-forge"]
                )

    def check_variables(self, variables: object) -> None:
        """Report variables that are meant for pip."""
        if not _is_map(variables):
            return
        for name in variables:
            if _BUILD_VARIABLE.match(str(name)):
                message = "conda sets variables after pip has run, so this variable does not affect pip."
                message += f" {ISOLATION_VARIABLE}" if name == "PIP_NO_BUILD_ISOLATION" else ""
                fix = "Set it in the environment in which you run cotainr; pip inherits that environment."
                self.add("variables-too-late", _line_of(variables, name), message, fix=fix)


def written_as(line: str, text: str) -> tuple[str, str, str] | None:
    """Return what is before a text that is the only item of a YAML list on its line, its quote, and the rest.

    Examples
    --------
    >>> written_as("  - 'numpy<2' # old", "numpy<2"), written_as("  - &a numpy<2", "numpy<2")
    (('  - ', "'", ' # old'), None)
    """
    match = _LIST_ITEM.match(line)
    quoted = line[match.end() :] if match else ""
    for quote in ("", '"', "'"):
        whole = f"{quote}{text}{quote}"
        if match and quoted.startswith(whole) and _REST.fullmatch(rest := quoted[len(whole) :]):
            return match[0], quote, rest
    return None


def list_item(start: str, quote: str, text: str) -> str:
    """Return an item of a YAML list, quoted as before or if it must be; ``# TEXT`` becomes a comment.

    Examples
    --------
    >>> list_item("  - ", "", "--only-binary :all:"), list_item("  - ", "'", "# apex")
    ('  - "--only-binary :all:"', '  # - apex')
    """
    if text.startswith("# "):
        return f"{start[: -len(start.lstrip())]}# {start.lstrip()}{text[2:]}"
    if text.startswith('"'):
        return f"{start}{text}"
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    plain = f"{quote}{text}{quote}"
    try:
        is_same = YAML(typ="safe", pure=True).load(f"- {plain}\n") == [text]
    except YAMLError:
        is_same = False
    return f"{start}{plain if is_same else json.dumps(text, ensure_ascii=False)}"


def conda_item(text: str, *, line: int = 0) -> Item | None:
    """Return what one of conda's package specifications installs; None if conda or mamba rejects it.

    One equals sign means that version and those below it: ``numpy=1.26``; with a build or two equals signs,
    the version is exact.

    Examples
    --------
    >>> str(conda_item("conda-forge::Numpy==1.26.4")), str(conda_item("numpy=1.26"))
    ('numpy 1.26.4', 'numpy =1.26')
    >>> conda_item("numpy=>1.26"), conda_item("numpy>=1.26,")
    (None, None)
    """
    spec = _SPEC.fullmatch(text.partition("#")[0].strip())
    if spec is None:
        return None
    versions = spec["versions"] or ""
    pin = _PIN.fullmatch(versions)
    exact = pin and "*" not in pin["version"] and (pin["operator"] != "=" or spec["build"])
    return Item(
        name=spec["name"].lower(),
        version=pin["version"] if pin and exact else "",
        specifier="" if exact else "".join(versions.split()),
        installer="conda",
        build=spec["build"] or "",
        line=line,
        text=printable(text),
    )


def conda_name(text: str) -> str:
    """Return the name in one of conda's dependencies; empty if there is none.

    Examples
    --------
    >>> conda_name("conda-forge::Numpy=1.26")
    'numpy'
    """
    name = _NAME.match(text)
    return name[1].lower() if name else ""


def is_pip_line(text: str) -> bool:
    """Return whether one of conda's dependencies is a line for pip."""
    start = text.partition("#")[0]
    return (
        text.startswith("-")
        or "+" in start
        or " @ " in text
        or is_location(text.rsplit("::", maxsplit=1)[-1])
    )


def recognises(name: str, head: str) -> bool:
    """Return whether a file is for conda: by its name, or a key if its name does not tell."""
    ending = name.rpartition(".")[2].lower()
    return ending in {"yml", "yaml"} or (ending not in {"txt", "in"} and _KEY.search(head) is not None)


def read(text: str, name: str) -> Reading:
    """Read what conda and pip install from an environment file."""
    tree, duplicate = _load(text, name)
    if not _is_map(tree):
        kind = "nothing" if tree is None else "a list" if isinstance(tree, list) else "a string"
        msg = f"{name}:1: not a conda environment file: it contains {kind} instead of keys."
        raise UsageError(msg, hint=HINT)
    reading = Reading(kind=CONDA, name=name, text=text, channels=_listed(tree.get("channels")))
    # If a key is there twice, the tree has only the first of the values, so writing it would lose the others.
    file = _File(text, reading, editable=duplicate is None)
    if duplicate is not None:
        message = f"conda rejects the file: {str(duplicate.problem).partition(' with value')[0]}."
        line = duplicate.problem_mark.line + 1
        file.add("duplicate-key", line, message, fix="Merge the two sections into one.")
    for key in tree:
        if key not in _KEYS:
            message = f"conda ignores the section {shorten(str(key))!r}."
            file.add("unknown-key", _line_of(tree, key), message)
    if "dependencies" not in tree:
        msg = f"{name}:1: this environment file has no dependencies."
        raise UsageError(msg, hint=HINT)
    dependencies = tree["dependencies"]
    if not _is_list(dependencies):
        msg = f"{name}:{_line_of(tree, 'dependencies')}: `dependencies` is not a list."
        raise UsageError(msg, hint="Start each dependency with a hyphen on its own line.")
    file.read_dependencies(dependencies)
    file.check_channels(tree.get("channels"))
    variables = tree.get("variables")
    file.check_variables(variables)
    if _is_map(variables):
        reading.variables = {str(key): str(value) for key, value in variables.items()}
    for spec in reading.conda_lines:
        item = None if is_pip_line(spec.text) else conda_item(spec.text, line=spec.line)
        if item is not None:
            reading.add(item)
        else:
            reading.unread.append(Unread(spec.line, printable(spec.text), "it is not a package of conda"))
    add_lines(reading)
    return reading


def _listed(value: object) -> list[str]:
    return [str(item) for item in value] if _is_list(value) else []


def _load(text: str, name: str, *, duplicates: bool = False) -> tuple[object, DuplicateKeyError | None]:
    """Parse a file; return also the error if conda rejects it because a key is there twice."""
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.reader import ReaderError

    yaml = YAML()
    yaml.allow_duplicate_keys = duplicates
    try:
        return yaml.load(text), None
    except DuplicateKeyError as error:
        return _load(text, name, duplicates=True)[0], error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        lines = _LINE_BREAK.split(text)
        line = min(mark.line + 1 if mark else 1, len(lines))
        written = lines[line - 1]
        msg = f"{name}:{line}: invalid YAML: {error.problem or error}: {shorten(written.strip())!r}."
        hint = "Indent with spaces; YAML does not accept tabs." if "\t" in written else ""
        raise UsageError(msg, hint=hint) from None
    except ReaderError as error:
        line = len(_LINE_BREAK.findall(text, 0, error.position)) + 1
        msg = f"{name}:{line}: invalid YAML: the character {chr(error.character)!r} is not allowed."
        raise UsageError(msg) from None
    except RecursionError:
        msg = f"{name}: invalid environment file: nested too deeply."
        raise UsageError(msg) from None
    except Exception as error:  # noqa: BLE001  ruamel.yaml raises any kind for invalid scalars and tags
        msg = f"{name}: invalid YAML: {error}."
        raise UsageError(msg) from None


def _is_map(value: object) -> TypeGuard[CommentedMap]:
    from ruamel.yaml.comments import CommentedMap

    return isinstance(value, CommentedMap)


def _is_list(value: object) -> TypeGuard[CommentedSeq]:
    from ruamel.yaml.comments import CommentedSeq

    return isinstance(value, CommentedSeq)


def _text_of(item: object) -> str | None:
    """Return the text of a string item, with or without the tag ``!!str``; None for any other item."""
    if isinstance(item, str):
        return str(item)
    tag = getattr(item, "tag", None)
    return str(getattr(item, "value", "")) if str(getattr(tag, "value", "")).endswith(":str") else None


def _line_of(mapping: CommentedMap, key: object) -> int:
    """Return the line of a key, including a key that was merged (``<<``)."""
    for source in (mapping, *mapping.merge):
        if key in source.lc.data:
            return int(source.lc.key(key)[0]) + 1
    return int(mapping.lc.line) + 1
