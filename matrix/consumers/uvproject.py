"""A ``pyproject.toml`` for uv.

Each index is *explicit*: uv asks it for the names that are bound to it and for nothing else, so an
index that happens to have a project of another name is never asked for that. Overrides hold the
versions against whatever a dependency says of them. Source: uv's documentation, "Package indexes" and
"Dependency overrides"; tried with uv 0.13.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from matrix.consumers.output import MARK, File
from matrix.consumers.requirements import refuse_kept
from resolver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matrix.consumers.output import Where
    from matrix.consumers.pins import Pins

OURS = "matrix"
"""Name of our index in the file."""


def uv_files(pins: Pins, where: Where) -> list[File]:
    """Write the project file.

    Raises
    ------
    UsageError
        The lock keeps what a base image holds, which an environment of uv's does not see, or the index is
        named by a variable.
    """
    refuse_kept(pins, "uv's environments see")
    if "${" in where.local_url:
        msg = f"uv does not fill in variables in the address of an index, as in {where.local_url}."
        raise UsageError(msg, hint="Write the address out: --index-url URL.")
    names = _index_names(pins)
    pinned = [str(pin) for pin in pins.pins]
    indexes = [(OURS, where.local_url)] if pins.built else []
    lines = [
        f"# {pins.heading}; {MARK} --for uv`.",
        "# Install with: uv sync. For your own project, take over the dependencies and all of [tool.uv].",
        "[project]",
        'name = "matrix-environment"',
        'version = "0"',
        f'requires-python = "=={pins.python}.*"',
        *_array("dependencies", pinned),
        "",
        "[tool.uv]",
        "package = false",
        *_array("environments", ["sys_platform == 'linux' and platform_machine == 'x86_64'"]),
        "# A wheel that is missing fails at once; nobody's setup.py is run.",
        *_array("no-build-package", [pin.name for pin in pins.pins if pin.wheel_only]),
        "# Whatever a dependency says of them, these are the versions.",
        *_array("override-dependencies", pinned),
        "",
        "[tool.uv.sources]",
        *(
            f"{pin.name} = {{ index = {json.dumps(OURS if pin.built else names[pin.index])} }}"
            for pin in pins.pins
            if pin.built or pin.index
        ),
    ]
    for name, url in [*indexes, *((name, url) for url, name in names.items())]:
        lines += ["", "[[tool.uv.index]]", f"name = {json.dumps(name)}", f"url = {json.dumps(url)}"]
        lines.append("explicit = true")
    return [File(where.main, "\n".join(lines) + "\n")]


def _array(key: str, items: Sequence[str]) -> list[str]:
    """Write an array of texts; what JSON quotes, TOML reads (all of it is ASCII without controls)."""
    return [f"{key} = [", *(f"    {json.dumps(item)}," for item in items), "]"]


def _index_names(pins: Pins) -> dict[str, str]:
    """Name each wheel index after the last part of its URL, such as ``rocm6.4``."""
    names: dict[str, str] = {}
    for url in pins.indexes:
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", url.rstrip("/").rpartition("/")[2]).strip("-._") or "wheels"
        taken = {OURS, *names.values()}
        names[url] = next(
            name
            for number in range(len(taken) + 1)
            if (name := f"{base}-{number}" if number else base) not in taken
        )
    return names
