"""Small strict parsers of the formats that `matrix graph` writes.

They follow the descriptions of the formats and reject anything that is not well formed.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from typing import Any

Arrow = tuple[str, str, bool]
"""From, to, and whether the line is solid."""


@dataclass
class Drawn:
    """Nodes and edges as drawn, each as often as it is drawn."""

    nodes: list[tuple[str, str]] = field(default_factory=list)
    """Label and the box it is in."""
    arrows: list[Arrow] = field(default_factory=list)
    """By the first line of the labels."""
    words: list[str] = field(default_factory=list)
    """Texts of the edges, in the same order."""


_DOT = re.compile(r'\s*("(?:\\.|[^"\\])*"|->|[{}\[\]=]|[A-Za-z_][\w]*|-?\d+)', re.DOTALL)


def read_dot(text: str) -> Drawn:
    """Read the part of Graphviz's language that `matrix graph` writes: statements, attributes, subgraphs."""
    tokens = []
    position = 0
    text = text.strip()
    while position < len(text):
        match = _DOT.match(text, position)
        assert match, text[position : position + 40]
        tokens.append(match[1])
        position = match.end()
    assert tokens[:3] == ["digraph", "matrix", "{"]
    assert tokens[-1] == "}"
    drawn, names, box, arrows = Drawn(), {}, [""], []
    rest = iter(tokens[3:])
    pending: list[str] = []
    for token in rest:
        if token == "subgraph":
            box.append(next(rest))
            assert next(rest) == "{"
        elif token == "}":
            box.pop()
        elif token == "[":
            attributes = _attributes(rest)
            if len(pending) == 3:
                assert pending[1] == "->"
                arrows.append((pending[0], pending[2], attributes["style"] == "solid"))
                drawn.words.append(_unquoted(attributes["label"]))
            elif pending[-1].startswith('"'):
                assert pending[-1] not in names, "drawn twice"
                names[pending[-1]] = _unquoted(attributes["label"])
                drawn.nodes.append((names[pending[-1]], box[-1]))
            pending = []
        elif token == "=":
            pending.pop()
            next(rest)
        else:
            pending.append(token)
    assert not box
    for start, end, solid in arrows:
        drawn.arrows.append((_first(names[start]), _first(names[end]), solid))
    return drawn


def _attributes(tokens: Any) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for name in tokens:
        if name == "]":
            return attributes
        assert next(tokens) == "="
        attributes[name] = next(tokens)
    msg = "no end of the attributes"
    raise AssertionError(msg)


def _unquoted(text: str) -> str:
    r"""Return a label without its escapes: ``\n`` is a line break, any other escape is its character."""
    if not text.startswith('"'):
        return text
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text[1:-1])


def _first(label: str) -> str:
    return label.partition("\n")[0]


_NODE = re.compile(r'    (n\d+)\["([^"\[\]{}|`]*)"\]')
_ARROW = re.compile(r'  (n\d+) (-->|-\.->)\|"([a-z, ]+)"\| (n\d+)')


def read_mermaid(text: str) -> Drawn:
    """Read a flowchart line by line; only the syntax that `matrix graph` writes."""
    lines = text.splitlines()
    assert lines[0].startswith("%% ")
    assert lines[1] == "flowchart TB"
    drawn, names, box, arrows = Drawn(), {}, "", []
    for line in lines[2:]:
        if subgraph := re.fullmatch(r'  subgraph (g\d+)\["generation \d+"\]', line):
            box = subgraph[1]
        elif line == "  end":
            box = ""
        elif node := _NODE.fullmatch(line):
            assert node[1] not in names, "drawn twice"
            label = html.unescape(re.sub(r"#(\d+);", r"&#\1;", node[2].replace("<br/>", "\n")))
            names[node[1]] = label
            drawn.nodes.append((label, box))
        elif arrow := _ARROW.fullmatch(line):
            arrows.append((arrow[1], arrow[4], arrow[2] == "-->"))
            drawn.words.append(arrow[3])
        else:
            assert re.fullmatch(r"  (classDef [a-z]+ [-\w#:, ]+|class n\d+(,n\d+)* [a-z]+)", line), line
    for start, end, solid in arrows:
        drawn.arrows.append((_first(names[start]), _first(names[end]), solid))
    return drawn
