"""A ``pyproject.toml`` for uv.

Each index is *explicit*: uv uses it only for the names that are bound to it. Overrides fix the versions,
whatever a dependency requires. Source: uv's documentation, "Package indexes", "Dependency overrides" and
"Dependency metadata"; tested with uv 0.13.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from builders.network.urls import is_flat_listing, local_path
from matrix.consumers import Consumer
from matrix.consumers.shared.installation import MARK, WrittenFile, comments, index_of, pin, wheel_only
from matrix.consumers.shared.requirements import newer_glibc, reject_preinstalled
from resolver.errors import UsageError
from resolver.facts.schema import PLATFORM
from resolver.texts import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matrix.consumers.shared.installation import Installation, Layout

OURS = "matrix"
"""Name of our index in the file."""
_ENVIRONMENT = (
    "sys_platform == 'linux' and platform_machine == 'x86_64' and platform_python_implementation == 'CPython'"
)


def _emit(installation: Installation, layout: Layout) -> list[WrittenFile]:
    reject_preinstalled(installation, "uv's environments")
    if "${" in layout.local:
        msg = f"uv does not expand variables in the URL of an index: {layout.local}."
        raise UsageError(msg, hint="Name the URL without variables: --index-url URL.")
    picks = installation.installed
    pinned = list(map(pin, picks))
    binary = [pick.name for pick in picks if wheel_only(pick)]
    pairs = ", ".join(f"{name} = {_text(value)}" for name, value in installation.rocm_build_variables.items())
    # For the build of `rocm`; uv's cache has a `rocm` for each table.
    build_variables = ["", "[tool.uv.extra-build-variables]", f"rocm = {{ {pairs} }}"] if pairs else []
    lines = [
        *comments([f"{installation.heading}; {MARK} --for uv`."]),
        "# Install with `uv sync`. For your own project, copy the dependencies and all of [tool.uv].",
        "[project]",
        'name = "matrix-environment"',
        'version = "0"',
        f"requires-python = {_text(f'=={installation.python}.*')}",
        *_array("dependencies", [*map(installation.requirement, picks), *installation.unpinned]),
        "",
        "[tool.uv]",
        "package = false",
        *_array("environments", [_ENVIRONMENT]),
        "# A missing wheel is an error; uv runs no setup.py.",
        *(
            ["no-build = true"]
            if installation.is_complete and len(binary) == len(picks)
            else _array("no-build-package", binary)
        ),
        "# These versions override the requirements of dependencies.",
        *_array("override-dependencies", pinned),
        *(
            ["no-index = true", *_array("find-links", [layout.local])]
            if layout.wheelhouse
            else _sources(installation, layout)
        ),
        *(_dependency_metadata(installation) if installation.is_complete else ()),
        *build_variables,
    ]
    return [WrittenFile(layout.main, "\n".join(lines) + "\n")]


def _sources(installation: Installation, layout: Layout) -> list[str]:
    names = _index_names(installation.indexes)
    lines = ["", "[tool.uv.sources]"]
    for pick in installation.installed:
        index = OURS if pick.origin == "build" else names.get(index_of(pick))
        if direct := layout.url_of(pick, installation.named, layout.local):
            path = local_path(location := direct.partition("#")[0])  # uv accepts no fragments
            key, value = ("url", location) if path is None else ("path", str(path))
            lines.append(f"{pick.name} = {{ {key} = {_text(value)} }}")
        elif index:
            lines.append(f"{pick.name} = {{ index = {_text(index)} }}")
    indexes = [(OURS, layout.local)] if installation.built else []
    for name, address in [*indexes, *((name, address) for address, name in names.items())]:
        lines += ["", "[[tool.uv.index]]", f"name = {_text(name)}", f"url = {_text(address)}"]
        lines += ['format = "flat"'] if is_flat_listing(address) else []
        lines += [] if address in installation.searched else ["explicit = true"]
    return lines


def _dependency_metadata(installation: Installation) -> list[str]:
    """Return the tables with the requirements of our wheels, so that uv does not look them up."""
    lines = []
    for pick in installation.built:
        edges = [edge for edge in installation.lock.edges if edge.subject == pick.name]
        required = {edge.object for edge in edges if edge.kind == "run"}.difference(PLATFORM)
        lines += [
            "",
            "[[tool.uv.dependency-metadata]]",
            f"name = {_text(pick.name)}",
            f"version = {_text(pick.pinned)}",
            *_array("requires-dist", sorted(required)),
            *(_array("provides-extra", pick.extras) if pick.extras else ()),
        ]
    return lines


def _text(text: str) -> str:
    """Return a TOML string: JSON quotes printable text as TOML does, but not as ASCII."""
    return json.dumps(printable(text), ensure_ascii=False)


def _array(key: str, items: Sequence[str]) -> list[str]:
    return [f"{key} = [", *(f"    {_text(item)}," for item in items), "]"]


def _index_names(urls: Sequence[str]) -> dict[str, str]:
    """Name each wheel index after the last part of its URL, such as ``rocm6.4``."""
    names: dict[str, str] = {}
    for url in urls:
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", url.rstrip("/").rpartition("/")[2]).strip("-._") or "wheels"
        taken = {OURS, *names.values()}
        names[url] = next(
            name
            for number in range(len(taken) + 1)
            if (name := f"{base}-{number}" if number else base) not in taken
        )
    return names


CONSUMER = Consumer(
    file="pyproject.toml",
    emit=_emit,
    check=newer_glibc,
    runs_on_host=True,
)
