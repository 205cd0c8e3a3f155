"""The part of the Python API that answers as commands do."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from matrix.api import TargetOptions, public, settings_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from matrix.command_line.context import Context
    from matrix.commands.explain import ExplainDocument
    from matrix.input.settings import Settings
    from matrix.judging.verdict import Judgement
    from matrix.show.table_formats import TableDocument
    from resolver.model import Conflict, Resolution


@public
def explain(resolution: Resolution, what: str = "") -> ExplainDocument:
    """Return why the versions of a resolution were chosen, as ``matrix explain`` does.

    `what` is a component (``"torch"``), versions of one that were not chosen (``"torch==2.13.0"``), or the
    id of an error, a warning or a finding. Raise `UsageError` if it is none of them.
    """
    from matrix.commands import explain as command

    words = [text_of("what", what, "torch")] if what else []
    return command.explanation(_context(command, *words).with_lock(resolution))


@public
def table(
    requirements: str | Iterable[str] = (), *, every: bool = False, **target: Unpack[TargetOptions]
) -> TableDocument | Conflict:
    """Return which versions work together, as ``matrix table`` does: the newest torch of each ROCm, or all.

    `requirements` are the columns and the limits of the rows, by default every package. `target` and the
    errors are those of `resolve`.
    """
    from matrix.commands import table as command
    from matrix.show.table_formats import document_of, newest_rows
    from resolver.model import Conflict

    found = command.table_of(_context(command, settings=settings_of(requirements, target)))
    rows = found.rows_or_conflict()
    if isinstance(rows, Conflict):
        return rows
    return document_of(found, rows if every else newest_rows(rows).values())


@public
def check(
    thing: str | Path = "",
    *,
    lock: str | Path | None = None,
    run: bool = False,
    **target: Unpack[TargetOptions],
) -> Judgement:
    """Return what a thing is, whether it works at a site, and why not, as ``matrix check`` does.

    `thing` is a file of pip, conda, uv, pixi or poetry, a log, a wheel, an environment or an image, by
    default this machine. Only with `run`, it is started. `target` is that of `resolve`. Raise `MatrixError`
    if it cannot be read.
    """
    from matrix.commands import check as command
    from matrix.judging.judge import judge_thing

    words = [*(["--lock", str(lock)] if lock else []), *(["--run"] if run else [])]
    context = _context(command, *words, settings=settings_of((), target))
    return judge_thing(text_of("thing", thing, "freeze.txt"), context)[0]


def _context(command: ModuleType, *words: str, settings: Settings | None = None) -> Context:
    """Return the context of a command that reads no settings from files; its warnings become Python's."""
    import argparse

    from msgspec.structs import asdict

    from matrix.command_line.context import Context
    from matrix.command_line.options import defaults_of
    from matrix.show.console import Console

    class Quiet(Console):
        def warning(self, message: str) -> None:
            warnings.warn(str(message), stacklevel=2)

    given = asdict(settings) if settings else {}
    options = {**defaults_of(command, *words), **given, "of_api": True}
    return Context(argparse.Namespace(**options), Quiet(-1, progress="none"))
