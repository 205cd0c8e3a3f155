"""Read and correct conda environment files, with ruamel.yaml in round-trip mode, as conda itself does.

conda's rules come from its source (``conda/env/env.py``): the items of the pip section become the lines of
a requirements file, only the last of several pip sections is used, and unknown keys are ignored.
"""

from __future__ import annotations

import json
import re
from difflib import SequenceMatcher
from io import StringIO
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import re2
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from matrix.reading.items import Item, Reading, Unread
from matrix.reading.pip_line import ISOLATION_VARIABLE, is_location
from matrix.reading.requirements import HINT, LARGEST, Document, Entry, Kind, add_entries, finding_at
from resolver.errors import UsageError
from resolver.texts import printable
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


NOT_CONDA = "it is not a package of conda"
_KEYS = ("name", "dependencies", "prefix", "channels", "variables")
_BUILD_VARIABLE = re.compile(
    r"(PIP|DS|UV|MAX|CMAKE|TORCH|PYTORCH|ROCM|HIP|HCC|GPU|APEX|FLASH|CUDA|FORCE|CUPY|HOROVOD|AITER|BNB|NVTE"
    r"|XFORMERS|PREBUILD|CAUSAL_CONV1D|MAMBA|BUILD|USE_(CUDA|ROCM|MPI|MKL|DISTRIBUTED|\w+_ATTENTION))(_|$)"
    r"|VLLM_TARGET_DEVICE|MKL_THREADING|(MPI)?(CC|CXX)$|\w*FLAGS$"
)
"""Variables that builds read; each of a recipe's is one (a test compares them)."""
_COMMENT = re.compile(r"(?<=\s)#.*$")
_COMMENTED_OUT = "commented-out "
"""Prefix of an item of the tree that is written as a comment."""
_COMMENTED_OUT_LINE = re.compile(
    rf"(?m)^(?P<indent>\s*)- (?P<quote>['\"]?){_COMMENTED_OUT}(?P<text>.*)(?P=quote)(?P<behind>.*)$"
)
_VERSION = r"(?:\d+!)?[A-Za-z0-9_*]+(?:[.+-][A-Za-z0-9_*]+)*"
_OPERATOR = r"(?:==|!=|<=|>=|~=|<|>|=)"
_SPEC = re2.compile(
    r"(?:(?P<channel>[^\s\[\]=<>!~,|;]+)::?)?(?P<name>_{0,2}[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*)"
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


class CondaDocument(Document, kw_only=True):
    """A conda environment file."""

    kind: ClassVar[Kind] = "conda"
    yaml: YAML
    tree: CommentedMap
    yaml_lines: list[str]
    """The lines as YAML separates them, without their line breaks."""
    has_pip_section: bool = False
    mappings: list[Entry] = msgspec.field(default_factory=list)
    """Items of a pip section that YAML reads as mappings."""

    def add(self, rule: str, line: int, message: str, **more: Any) -> None:  # noqa: ANN401
        """Add a finding about a line."""
        self.findings.append(finding_at(rule, line, self.yaml_lines[line - 1].strip(), message, **more))

    def read_dependencies(self, dependencies: CommentedSeq) -> None:
        """Read conda's dependencies and the pip sections among them."""
        sections: list[Any] = []
        for position, item in enumerate(dependencies):
            line = dependencies.lc.item(position)[0] + 1
            text = _text_of(item)
            if text is not None:
                self.conda.append(self._entry(dependencies, position, text.strip()))
                self._check_spec(line, text.strip())
            elif not isinstance(item, CommentedMap):
                self.add("not-text", line, "conda expects a string here and stops with a Python error.")
            for key in item if text is None and isinstance(item, CommentedMap) else ():
                if key != "pip":
                    self.add("not-text", line, "conda accepts only a pip section here, and stops.")
                    continue
                if sections:
                    message = "conda uses only the last pip section and ignores the others."
                    joinable = all(isinstance(part, list) and part for part in (sections[-1], item["pip"]))
                    self.add(
                        "several-pip-sections",
                        _line_of(item, "pip"),
                        message,
                        fixable=joinable and self.editable,
                        fix="Put all lines under one pip section.",
                    )
                sections.append(item["pip"])
                self._read_section(item)
        self.has_pip_section = bool(sections)

    def _check_spec(self, line: int, text: str) -> None:
        if conda_item(text) is not None or is_pip_line(text):
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
        if isinstance(section, CommentedSeq):
            for position in range(len(section)):
                self.entries += self._read_item(section, position)
        elif section is not None:
            part = "key" if isinstance(section, CommentedMap) else "character"
            message = f"conda expects a list here and would read each {part} as a line."
            self.add("pip-not-list", _line_of(item, "pip"), message, fix="Start each line with a hyphen.")

    def _read_item(self, section: CommentedSeq, position: int) -> Iterator[Entry]:
        text = _text_of(section[position])
        if text is not None:
            texts = [line for part in text.split("\n") if (line := _COMMENT.sub("", part).strip())]
            texts = [line for line in texts if not line.startswith("#")]
            for line in texts:
                yield self._entry(section, position, line, alone=texts == [text.strip()])
            return
        line, column = section.lc.item(position)
        written = _COMMENT.sub("", self.yaml_lines[line][column:]).strip()
        if isinstance(section[position], CommentedMap) and written.startswith("--"):
            message = (
                "YAML reads this line as a mapping. conda expects a string and stops with a TypeError before "
                "pip runs."
            )
            alone = len(section[position]) == 1 and not section.fa.flow_style() and self.editable
            entry = Entry(
                line=line + 1, text=self.yaml_lines[line].strip(), sequence=section, position=position
            )
            self.mappings.append(entry)
            self.add("yaml-map", line + 1, message, corrected=[json.dumps(written)], fixable=alone)
            return
        message = "conda expects a string and stops with a TypeError before pip runs."
        fix = "Write a requirement or an option. Quote it if YAML does not read it as a string."
        self.add("not-text", line + 1, message, fix=fix)

    def _entry(self, sequence: CommentedSeq, position: int, text: str, *, alone: bool = True) -> Entry:
        anchor = getattr(sequence[position], "anchor", None)
        return Entry(
            line=sequence.lc.item(position)[0] + 1,
            text=text,
            editable=alone and self.editable and (anchor is None or anchor.value is None),
            sequence=sequence,
            position=position,
        )

    def check_channels(self, channels: object) -> None:
        """Report channels of Anaconda."""
        if not isinstance(channels, CommentedSeq):
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
        if not isinstance(variables, CommentedMap):
            return
        for name in variables:
            if _BUILD_VARIABLE.match(str(name)):
                message = "conda sets variables after pip has run, so this variable does not affect pip."
                message += f" {ISOLATION_VARIABLE}" if name == "PIP_NO_BUILD_ISOLATION" else ""
                fix = "Set it in the environment in which you run cotainr; pip inherits that environment."
                self.add("variables-too-late", _line_of(variables, name), message, fix=fix)

    def _restructure(self, rules: set[str]) -> None:
        dependencies = self.tree["dependencies"]
        sections = [index for index, item in enumerate(dependencies) if _is_pip_section(item)]
        if "several-pip-sections" in rules:
            _join_sections(dependencies, sections)
        if "pip-not-listed" in rules:
            dependencies.insert(sections[0], "pip")

    def _entries(self) -> list[Entry]:
        return [*self.conda, *self.entries, *self.mappings]

    def _replace(self, entry: Entry, texts: Sequence[str]) -> None:
        new = [
            DoubleQuotedScalarString(json.loads(text))
            if text[0] == '"'
            else re.sub("^# ", _COMMENTED_OUT, text)
            for text in texts
        ]
        assert entry.sequence is not None  # noqa: S101  only requirements files have entries without a list
        entry.sequence[entry.position] = new[-1]
        for text in reversed(new[:-1]):
            entry.sequence.insert(entry.position, text)

    def _text(self) -> str:
        sink = StringIO()
        self.yaml.dump(self.tree, sink)
        text = _COMMENTED_OUT_LINE.sub(_as_comment, sink.getvalue())
        old = "".join(self.lines)
        end = "\r\n" if "\r\n" in old else "\n"
        aligned = _aligned(_LINE_BREAK.split(old), text.split("\n"))
        try:
            same = self.yaml.load(aligned) == self.yaml.load(text)
        except Exception:  # noqa: BLE001  see read_tree
            same = False
        text = aligned if same else text
        text = text if old.endswith("\n") else text.removesuffix("\n")
        return text.replace("\n", end)


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
        channel=(spec["channel"] or "").rstrip(":"),
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


def _as_comment(line: re.Match[str]) -> str:
    quote = line["quote"]
    text = line["text"].replace("''", "'") if quote == "'" else line["text"]
    return f"{line['indent']}# - {text}{line['behind']}"


def _aligned(old: list[str], new: list[str]) -> str:
    # ruamel.yaml writes the whole file with one indentation. Lines that did not change get theirs back, and a
    # changed line moves as far as the unchanged line before it.
    result: list[str] = []
    shift = 0
    stripped = [line.strip() for line in old], [line.strip() for line in new]
    for kind, start, _, first, last in SequenceMatcher(None, *stripped, autojunk=False).get_opcodes():
        for offset, line in enumerate(new[first:last]):
            if kind == "equal":
                result.append(old[start + offset])
                shift = _indentation(old[start + offset]) - _indentation(line)
            else:
                result.append(" " * (_indentation(line) + shift) + line.lstrip())
    return "\n".join(result)


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_pip_section(item: object) -> bool:
    return isinstance(item, CommentedMap) and "pip" in item


def _join_sections(dependencies: CommentedSeq, sections: Sequence[int]) -> None:
    """Move the lines of all pip sections that are lists into the first, with their comments."""
    lists = [index for index in sections if isinstance(dependencies[index]["pip"], list)]
    target = dependencies[lists[0]]["pip"]
    for index in lists[1:]:
        source = dependencies[index]["pip"]
        for position, item in enumerate(source):
            target.append(item)
            if position in source.ca.items:
                target.ca.items[len(target) - 1] = source.ca.items[position]
    for index in reversed(lists[1:]):
        del dependencies[index]


def read_conda(text: str, name: str) -> CondaDocument:
    """Parse a conda environment file."""
    yaml, tree, duplicate = _load(text, name)
    if not isinstance(tree, CommentedMap):
        kind = "nothing" if tree is None else "a list" if isinstance(tree, list) else "a string"
        msg = f"{name}:1: not a conda environment file: it contains {kind} instead of keys."
        raise UsageError(msg, hint=HINT)
    # If a key is there twice, the tree has only the first of the values, so writing it would lose the others.
    document = CondaDocument(
        name=name,
        lines=text.splitlines(keepends=True),
        yaml=yaml,
        tree=tree,
        yaml_lines=_LINE_BREAK.split(text),
        editable=duplicate is None,
    )
    if duplicate is not None:
        message = f"conda rejects the file: {str(duplicate.problem).partition(' with value')[0]}."
        line = duplicate.problem_mark.line + 1
        document.add("duplicate-key", line, message, fix="Merge the two sections into one.")
    for key in tree:
        if key not in _KEYS:
            message = f"conda ignores the section {shorten(str(key))!r}."
            document.add("unknown-key", _line_of(tree, key), message)
    if "dependencies" not in tree:
        msg = f"{name}:1: this environment file has no dependencies."
        raise UsageError(msg, hint=HINT)
    dependencies = tree["dependencies"]
    if not isinstance(dependencies, CommentedSeq):
        msg = f"{name}:{_line_of(tree, 'dependencies')}: `dependencies` is not a list."
        raise UsageError(msg, hint="Start each dependency with a hyphen on its own line.")
    sequence = dependencies.lc.item(0)[1] - tree.lc.col if dependencies else 4
    yaml.indent(mapping=2, sequence=max(sequence, 2), offset=max(sequence - 2, 0))
    document.read_dependencies(dependencies)
    document.check_channels(tree.get("channels"))
    document.check_variables(tree.get("variables"))
    return document


def recognises(name: str, head: str) -> bool:
    """Return whether a file is for conda: by its name, or a key if its name does not tell."""
    ending = name.rpartition(".")[2].lower()
    return ending in {"yml", "yaml"} or (ending not in {"txt", "in"} and _KEY.search(head) is not None)


def read(text: str, name: str) -> Reading:
    """Read what conda and pip install from an environment file."""
    document = read_conda(text, name)
    reading = Reading(
        kind="conda environment",
        name=name,
        document=document,
        findings=document.findings,
        channels=_listed(document.tree.get("channels")),
    )
    variables = document.tree.get("variables")
    if isinstance(variables, CommentedMap):
        reading.variables = {str(key): str(value) for key, value in variables.items()}
    for entry in document.conda:
        item = None if is_pip_line(entry.text) else conda_item(entry.text, line=entry.line)
        if item is not None:
            reading.add(item)
        else:
            reading.unread.append(Unread(entry.line, printable(entry.text), NOT_CONDA))
    add_entries(reading, document)
    return reading


def _listed(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, CommentedSeq) else []


def _load(text: str, name: str) -> tuple[YAML, object, DuplicateKeyError | None]:
    """Parse a file; return also the error if conda rejects it because a key is there twice."""
    yaml = _yaml(text)
    try:
        return yaml, read_tree(yaml, text, name), None
    except UsageError as error:
        duplicate = error.__context__
        if not isinstance(duplicate, DuplicateKeyError):
            raise
    yaml = _yaml(text)
    yaml.allow_duplicate_keys = True
    return yaml, read_tree(yaml, text, name), duplicate


def read_tree(yaml: YAML, text: str, name: str) -> object:
    """Parse YAML."""
    try:
        return yaml.load(text)
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


def _yaml(text: str) -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = LARGEST
    yaml.explicit_start = re.match(r"(?:[^\S\n]*(?:#.*)?\n)*[^\S\n]*---", text) is not None
    return yaml


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
