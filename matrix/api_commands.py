"""The part of the Python API that answers as commands do."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from msgspec.structs import asdict

from matrix.api import TargetOptions, public, settings_of, text_of
from matrix.command_line.context import Context
from matrix.command_line.options import defaults_of
from matrix.commands import check as check_command
from matrix.commands import explain as explain_command
from matrix.commands import table as table_command
from matrix.judging.judge import judge_thing
from matrix.show.console import Console
from matrix.show.table_formats import TableDocument, document_of, newest_rows
from resolver.model import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from matrix.commands.explain import ExplainDocument
    from matrix.input.settings import Settings
    from matrix.judging.verdict import Judgement
    from resolver.model import Resolution


@public
def explain(resolution: Resolution, what: str = "") -> ExplainDocument:
    """Return why the versions of a resolution were chosen, as ``matrix explain`` does.

    `what` is a component (``"torch"``), versions of one that were not chosen (``"torch==2.13.0"``), or the
    id of an error, a warning or a finding. Raise `UsageError` if it is none of them.
    """
    words = [text_of("what", what, "torch")] if what else []
    return explain_command.explanation(_context(explain_command, *words).with_lock(resolution))


@public
def table(
    requirements: str | Iterable[str] = (), *, every: bool = False, **target: Unpack[TargetOptions]
) -> TableDocument | Conflict:
    """Return which versions work together, as ``matrix table`` does: the newest torch of each ROCm, or all.

    `requirements` are the columns and the limits of the rows, by default every package. `target` and the
    errors are those of `resolve`.
    """
    found = table_command.table_of(_context(table_command, settings=settings_of(requirements, target)))
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
    words = [*(["--lock", str(lock)] if lock else []), *(["--run"] if run else [])]
    context = _context(check_command, *words, settings=settings_of((), target))
    return judge_thing(text_of("thing", thing, "freeze.txt"), context)[0]


class _Quiet(Console):
    def warning(self, message: str) -> None:
        warnings.warn(str(message), stacklevel=2)


def _context(command: ModuleType, *words: str, settings: Settings | None = None) -> Context:
    """Return the context of a command that reads no settings from files; its warnings become Python's."""
    given = asdict(settings) if settings else {}
    options = {**defaults_of(command, *words), **given, "of_api": True}
    return Context(argparse.Namespace(**options), _Quiet(-1, progress="none"))
