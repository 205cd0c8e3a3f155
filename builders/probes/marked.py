"""An answer that a script prints as one marked line of JSON, among whatever else is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from resolver.errors import MatrixError

Kind = TypeVar("Kind", bound=msgspec.Struct)
_HINT = "Look at the log; the environment's Python may be broken."
_LONGEST = 200  # characters of what was said instead


def read_marked(output: str, mark: str, kind: type[Kind], *, who: str, error: type[MatrixError]) -> Kind:
    """Read the answer; what imported modules print before it is passed over.

    Parameters
    ----------
    output
        All that was printed.
    mark
        What the line with the answer begins with.
    kind
        The answer's form.
    who
        Who was asked, for messages.
    error
        Raised where there is no answer in it, or a damaged one.
    """
    lines = output.splitlines()
    for line in reversed(lines):
        if line.startswith(mark):
            try:
                return msgspec.json.decode(line.removeprefix(mark), type=kind)
            except msgspec.MsgspecError as damage:
                msg = f"The answer of {who} cannot be read: {damage}."
                raise error(msg, hint=_HINT) from None
    last = next((line for line in reversed(lines) if line.strip()), "nothing at all")
    msg = f"There is no answer of {who}; the last it said was: {last[:_LONGEST]}"
    raise error(msg, hint=_HINT)
