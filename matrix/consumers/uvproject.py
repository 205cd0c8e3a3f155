"""A ``pyproject.toml`` for uv.

Each index is *explicit*: uv asks it for the names that are bound to it and for nothing else, so an
index that happens to have a project of another name is never asked for that. Overrides hold the
versions against whatever a dependency says of them. Source: uv's documentation, "Package indexes" and
"Dependency overrides"; tried with uv 0.13.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from matrix.consumers.output import MARK, File
from resolver.errors import UsageError

if TYPE_CHECKING:
    from matrix.consumers.output import Where
    from matrix.consumers.pins import Pins

OURS = "matrix"
"""Name of our index in the file."""


def uv_files(pins: Pins, where: Where) -> list[File]:
    """Write the project file.

    Raises
    ------
    UsageError
        The lock keeps what a base image holds, which an environment of uv's does not see.
    """
    import tomli_w  # noqa: PLC0415

    if pins.kept:
        kept = ", ".join(map(str, pins.kept))
        msg = f"The lock keeps {kept} of the base image, and uv's environments see nothing of an image."
        raise UsageError(msg, hint="Use --for venv or --for apptainer, or resolve without --keep-installed.")
    names = _index_names(pins)
    sources = {
        pin.name: {"index": OURS if pin.built else names[pin.index]}
        for pin in pins.pins
        if pin.built or pin.index
    }
    indexes = [(OURS, where.local_url)] if pins.built else []
    data = {
        "project": {
            "name": "matrix-environment",
            "version": "0",
            "requires-python": f"=={pins.python}.*",
            "dependencies": [str(pin) for pin in pins.pins],
        },
        "tool": {
            "uv": {
                "package": False,
                "environments": ["sys_platform == 'linux' and platform_machine == 'x86_64'"],
                "no-build-package": [pin.name for pin in pins.pins if pin.wheel_only],
                "override-dependencies": [str(pin) for pin in pins.pins],
                "sources": sources,
                "index": [
                    {"name": name, "url": url, "explicit": True}
                    for name, url in [*indexes, *((name, url) for url, name in names.items())]
                ],
            }
        },
    }
    head = [
        f"{pins.heading}; {MARK} --for uv`.",
        "Install with: uv sync. To use it in a project of your own, take over dependencies and [tool.uv].",
    ]
    text = tomli_w.dumps(data, multiline_strings=False)
    return [File(where.main, "\n".join(f"# {one}" for one in head) + "\n" + text)]


def _index_names(pins: Pins) -> dict[str, str]:
    """Name each wheel index after the last part of its URL, such as ``rocm6.4``."""
    names: dict[str, str] = {}
    for url in pins.indexes:
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", url.rstrip("/").rpartition("/")[2]).strip("-._") or "wheels"
        taken = {OURS, *names.values()}
        names[url] = next(
            name for number in range(len(taken) + 1) if (name := f"{base}-{number}" if number else base) not in taken
        )
    return names
