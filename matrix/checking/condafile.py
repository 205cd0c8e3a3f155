"""A conda environment file, read down to the places of its lines.

What conda does with it stands in its sources (``conda/env/env.py``): the pip section's items go to pip,
joined by newlines; of several sections the last one counts; keys it does not know are left out.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import yaml

from matrix.checking.document import Document, Entry
from matrix.checking.findings import Edit, Finding
from matrix.checking.piplines import INVERTED
from resolver.errors import UsageError
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEYS = ("name", "dependencies", "prefix", "channels", "variables")
_TEXT = "tag:yaml.org,2002:str"
_NULL = "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"
_ITEM = re.compile(r"\s*(-\s+)+")
_NOT_PLAIN = "&*!"
_COMMENT = re.compile(r"\s+#.*$")
_LATE = re.compile(
    r"(PIP|DS|UV|MAX|CMAKE|TORCH|PYTORCH|ROCM|HIP|HCC|GPU|APEX|FLASH|CUDA|FORCE)_|CC$|CXX$|\w*FLAGS$"
)


def read_conda(text: str, name: str) -> Document:
    """Read a conda environment file.

    Raises
    ------
    UsageError
        It is not YAML, not one mapping, or has no list of dependencies; with the line.
    """
    reader = _Reader(text, name)
    reader.read()
    return Document(
        kind="conda",
        name=name,
        lines=tuple(reader.lines),
        entries=tuple(reader.entries),
        conda=tuple(reader.conda),
        found=tuple(reader.found),
        has_pip_section=bool(reader.sections),
        spell=spell,
    )


def spell(text: str) -> str:
    """Write a text as one YAML item, quoted where YAML would read something else.

    Examples
    --------
    >>> spell("torch==2.9.1+rocm6.4"), spell("--only-binary :all:")
    ('torch==2.9.1+rocm6.4', '"--only-binary :all:"')
    """
    try:
        node = yaml.compose(f"- {text}", Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError):
        return json.dumps(text)
    item = node.value[0] if isinstance(node, yaml.SequenceNode) and len(node.value) == 1 else None
    same = isinstance(item, yaml.ScalarNode) and item.tag == _TEXT and item.value == text
    return text if same else json.dumps(text)


def compose(text: str, name: str) -> yaml.Node | None:
    """Read YAML to its nodes, which know their places.

    Raises
    ------
    UsageError
        It is not YAML.
    """
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = text.count("\n", 0, mark.index) + 1 if mark else 1
        written = text.split("\n")[line - 1].strip()
        msg = f"{name}:{line}: not valid YAML: {error.problem or error}: {shorten(written)!r}."
        hint = "Indent with spaces; YAML takes no tabs." if "\t" in text.split("\n")[line - 1] else ""
        raise UsageError(msg, hint=hint) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = chr(_number(error.character))
        msg = f"{name}:{line}: not valid YAML: the character {character!r} may not stand in it."
        raise UsageError(msg) from None
    except (RecursionError, ValueError):
        msg = f"{name}: nested too deeply for an environment file."
        raise UsageError(msg) from None


def _number(character: object) -> int:
    return character if isinstance(character, int) else ord(str(character)[:1] or "?")


@dataclass
class _Reader:
    """Collects what a file holds."""

    text: str
    name: str
    lines: list[str] = field(init=False)
    entries: list[Entry] = field(default_factory=list)
    conda: list[Entry] = field(default_factory=list)
    found: list[Finding] = field(default_factory=list)
    sections: list[yaml.Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = self.text.split("\n")

    def read(self) -> None:
        """Read everything."""
        top = compose(self.text, self.name)
        if not isinstance(top, yaml.MappingNode):
            msg = f"{self.name}:{self.line(top)}: this is no conda environment file: "
            what = "nothing" if top is None else "a list" if isinstance(top, yaml.SequenceNode) else "a text"
            raise UsageError(f"{msg}it holds {what} and not keys such as dependencies.", hint=_HINT)
        self.duplicates(top)
        keys = {key.value: (key, value) for key, value in self.pairs(top) if isinstance(key, yaml.ScalarNode)}
        for word, (key, _) in keys.items():
            if word not in _KEYS:
                told = f"conda leaves the section {shorten(word)!r} out and goes on."
                self.say("unknown-key", key, told)
        if "dependencies" not in keys:
            msg = f"{self.name}:{self.line(top)}: this environment file has no dependencies."
            raise UsageError(msg, hint=_HINT)
        key, dependencies = keys["dependencies"]
        if not isinstance(dependencies, yaml.SequenceNode):
            msg = f"{self.name}:{self.line(key)}: dependencies is no list."
            raise UsageError(msg, hint="Begin each dependency with a hyphen on a line of its own.")
        self.dependencies(dependencies)
        self.channels(keys.get("channels"))
        self.variables(keys.get("variables"))

    def line(self, node: yaml.Node | None) -> int:
        """Give the line on which a node begins, from 1; newlines only, whatever else YAML takes for one."""
        return self.text.count("\n", 0, node.start_mark.index) + 1 if node is not None else 1

    def pairs(self, top: yaml.MappingNode) -> list[tuple[yaml.Node, yaml.Node]]:
        """Give keys with their values, and those that ``<<`` takes from elsewhere, as conda reads them.

        What stands in the mapping itself comes before what is merged into it, and of that the first.

        Raises
        ------
        UsageError
            What is to be merged is no mapping.
        """
        found = [(key, value) for key, value in top.value if key.tag != _MERGE]
        known = {str(key.value) for key, _ in found}
        seen, pending = {id(top)}, self.merged(top)[::-1]
        while pending:
            one = pending.pop()
            if id(one) not in seen:
                seen.add(id(one))
                new = [
                    each for each in one.value if each[0].tag != _MERGE and str(each[0].value) not in known
                ]
                found += new
                known |= {str(key.value) for key, _ in new}
                pending += self.merged(one)[::-1]
        return found

    def merged(self, node: yaml.MappingNode) -> list[yaml.MappingNode]:
        """Give the mappings that ``<<`` names: one, or a list of them."""
        found = []
        for key, value in node.value:
            if key.tag != _MERGE:
                continue
            for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(one, yaml.MappingNode):
                    msg = f"{self.name}:{self.line(key)}: << takes what a mapping holds; this is none."
                    raise UsageError(msg, hint="Name one with an anchor: <<: *anchor.")
                found.append(one)
        return found

    def say(self, what: str, node: yaml.Node, consequence: str, **more: object) -> None:
        """Note a finding."""
        line = self.line(node)
        text = self.lines[line - 1].strip()
        self.found.append(Finding(id=what, line=line, text=text, consequence=consequence, **more))  # type: ignore[arg-type]

    def duplicates(self, node: yaml.MappingNode) -> None:
        """Find keys that come twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            word = str(key.value)
            if word in seen:
                told = f"conda refuses the whole file, because the key {shorten(word)!r} comes twice."
                self.say("duplicate-key", key, told, remedy="Put what stands under both under one.")
            seen.add(word)

    def dependencies(self, node: yaml.SequenceNode) -> None:
        """Read conda's dependencies and the pip sections among them."""
        for item in node.value:
            if isinstance(item, yaml.MappingNode):
                self.duplicates(item)
                for key, value in self.pairs(item):
                    if key.value == "pip":
                        self.section(key, value)
                    else:
                        self.say("not-text", item, "conda knows no such section and cannot go on.")
            elif item.tag == _TEXT:
                self.conda.append(self.entry(item))
            else:
                self.say("not-text", item, "conda wants a text here and ends with an error of Python.")

    def section(self, key: yaml.Node, value: yaml.Node) -> None:
        """Read one pip section."""
        if self.sections:
            told = "conda takes only the last pip section; nothing of the ones before it is installed."
            self.say("several-pip-sections", key, told, edit=self.joined(key, self.sections[-1], value),
                     remedy="Put all lines under one pip section.")  # fmt: skip
        self.sections.append(value)
        if isinstance(value, yaml.SequenceNode):
            for item in value.value:
                self.entries += self.items(item)
        elif value.tag != _NULL:
            told = "conda wants a list here; it would take every character for a line of its own."
            self.say("pip-not-list", key, told, remedy="Begin each line with a hyphen.")

    def joined(self, key: yaml.Node, former: yaml.Node, value: yaml.Node) -> Edit | None:
        """Make two sections that follow each other one, by turning the second's head into a comment."""
        if not isinstance(former, yaml.SequenceNode) or not isinstance(value, yaml.SequenceNode):
            return None
        if not former.value or not value.value or former.flow_style or value.flow_style:
            return None
        line, end = self.line(key), self.text.count("\n", 0, former.end_mark.index) + 1
        between = [one.strip() for one in self.lines[end - 1 : line - 1]]
        bare = self.lines[line - 1].split("#")[0].strip()
        aligned = former.start_mark.column == value.start_mark.column
        if any(one and not one.startswith("#") for one in between) or bare != "- pip:" or not aligned:
            return None
        head = self.lines[line - 1]
        indent = " " * (len(head) - len(head.lstrip()))
        return Edit(line, line, (f"{indent}# {head.lstrip()}",))

    def items(self, item: yaml.Node) -> Iterator[Entry]:
        """Read one item of a pip section: one line for pip, or several where it has newlines."""
        if isinstance(item, yaml.ScalarNode) and item.tag == _TEXT:
            entry = self.entry(item)
            texts = [one for part in item.value.split("\n") if (one := _COMMENT.sub("", part).strip())]
            if len(texts) == 1 and texts[0] == entry.text:
                yield entry
            else:
                for text in texts:
                    if not text.startswith("#"):
                        yield Entry(first=entry.first, last=entry.last, text=text)
            return
        line = self.line(item)
        raw = self.lines[line - 1].removesuffix("\r")
        written = _COMMENT.sub("", _ITEM.sub("", raw, count=1)).strip()
        if isinstance(item, yaml.MappingNode) and written.startswith("--"):
            head = _ITEM.match(raw)
            tail = raw[raw.index(written) + len(written) :] + self.lines[line - 1][len(raw) :]
            single = (
                head is not None and item.end_mark.line <= item.start_mark.line + 1 and len(item.value) == 1
            )
            new = f"{head[0] if head else ''}{json.dumps(written)}{tail}"
            told = (
                "YAML reads a key and a value; conda wants a text and ends with a TypeError before pip runs."
            )
            self.say("yaml-map", item, told, corrected=(json.dumps(written),),
                     edit=Edit(line, line, (new,)) if single else None)  # fmt: skip
            return
        told = "conda wants a text here and ends with a TypeError before pip runs."
        self.say(
            "not-text", item, told, remedy="Write a requirement or an option, in quotes if YAML reads more."
        )

    def entry(self, item: yaml.ScalarNode) -> Entry:
        """Give a text with its place."""
        start, end = item.start_mark.index, item.end_mark.index
        first = self.line(item)
        last = self.text.count("\n", 0, max(end - 1, start)) + 1
        line = self.lines[first - 1]
        begin = self.text.rfind("\n", 0, start) + 1
        before, behind = line[: start - begin], line[end - begin :] if last == first else ""
        editable = (
            first == last
            and _ITEM.fullmatch(before) is not None
            and self.text[start : start + 1] not in _NOT_PLAIN
            and (not behind.strip() or behind.strip().startswith("#"))
        )
        return Entry(
            first=first,
            last=last,
            text=item.value.strip(),
            before=before,
            behind=behind,
            editable=editable,
        )

    def channels(self, found: tuple[yaml.Node, yaml.Node] | None) -> None:
        """Look for channels with surprises."""
        if found is None or not isinstance(found[1], yaml.SequenceNode):
            return
        for item in found[1].value:
            if str(item.value) in {"defaults", "anaconda", "main"}:
                told = ("Anaconda's channel wants a licence in larger organisations, and its packages do not "
                        "mix well with those of conda-forge, from which cotainr's conda comes.")  # fmt: skip
                self.say("defaults-channel", item, told, corrected=("conda-forge",))

    def variables(self, found: tuple[yaml.Node, yaml.Node] | None) -> None:
        """Look for variables that are meant for the build."""
        if found is None or not isinstance(found[1], yaml.MappingNode):
            return
        for key, _ in self.pairs(found[1]):
            word = str(key.value)
            if not _LATE.match(word):
                continue
            told = "conda sets variables after pip has run, so this one has no part in the installation."
            if word == "PIP_NO_BUILD_ISOLATION":
                told += f" {INVERTED}"
            remedy = "Set it where cotainr runs: the environment of the caller reaches pip."
            self.say("variables-too-late", key, told, remedy=remedy)


_HINT = "Name a conda environment file (.yml), or a pip requirements file (.txt)."
