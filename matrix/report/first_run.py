"""One text file with what a first run at a site shows: the machine, the lock, and the output of the jobs."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from builders.diagnosis import diagnose, diagnosis_text
from builders.diagnosis.doctor import check_machine
from builders.machine.host import driver_version
from matrix import __version__
from matrix.report.anonymous import anonymous, known_names
from matrix.show.render import findings_text
from resolver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matrix.command_line.context import Context

_PATTERNS = ("matrix-verify-*.out", "slurm-*.out", "matrix-all-reduce-*.log")
"""The output of `matrix verify --gpu`, of the job scripts, and of RCCL, in the present directory."""
_LONGEST = 200_000
"""Characters that are kept of the beginning, and of the end, of a file."""


def first_run_text(context: Context, included: Sequence[Path]) -> str:
    """Return the collected text, without secrets and names.

    Raise `UsageError` if an included file cannot be read.
    """
    names = known_names(os.environ, [context.settings.account])
    names |= {str(Path.cwd()): "WORK", str(Path.cwd().resolve()): "WORK"}
    parts = [f"== {title} ==\n{text.strip()}\n" for title, text in _parts(context, included)]
    return anonymous("\n".join(parts), {name: value for name, value in names.items() if name.strip("/")})


def _parts(context: Context, included: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield the title and the text of each part."""
    python = platform.python_version()
    driver = driver_version() or "no AMD kernel driver on this machine"
    yield "matrix", f"matrix {__version__}, Python {python}, {context.today}\nkernel driver: {driver}"
    findings = list(check_machine(context.catalog, context.args.index, {}))
    yield "machine", findings_text(findings)
    if context.has_lock:
        yield context.lock_path.name, context.lock_path.read_text(encoding="utf-8")
    logs = [path for pattern in _PATTERNS for path in sorted(Path().glob(pattern))]
    for path in [*logs, *included]:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UsageError(f"Cannot read {path}: {error.strerror}.") from None
        if len(text) > 2 * _LONGEST:
            text = f"{text[:_LONGEST]}\n... ({len(text) - 2 * _LONGEST} characters) ...\n{text[-_LONGEST:]}"
        yield path.name, text
        if known := diagnosis_text(diagnose(path)):
            yield f"known failures in {path.name}", known
