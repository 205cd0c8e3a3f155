"""What all drawings of a build graph say in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resolver.graph import Node
    from resolver.model import Edge

ORIGIN = {"build": "built", "pip": "left to pip"}
"""Words for origins that are not clear by themselves."""


def origin_of(node: Node) -> str:
    """Say where a distribution comes from."""
    return ORIGIN.get(node.origin, node.origin)


def said_of(edge: Edge) -> str:
    """Say of what kind an edge is.

    Examples
    --------
    >>> from resolver.model import Edge
    >>> said_of(Edge("apex", "torch", "build", declared=False))
    'build, undeclared'
    """
    return edge.kind if edge.declared else f"{edge.kind}, undeclared"


def visible(text: str) -> str:
    r"""Write characters that cannot be seen, such as control characters, as escapes.

    A file made by hand may hold any, and neither a terminal nor XML should get them.

    Examples
    --------
    >>> visible("to\x1brch")
    'to\\x1brch'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
