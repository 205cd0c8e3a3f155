"""What it means for a build when the system refuses it the place that it writes to."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from builders.files import FULL, REFUSED
from resolver.errors import EnvironmentLacksError, MatrixError

if TYPE_CHECKING:
    from collections.abc import Iterator

_FULL_DIAGNOSES = {"disk-full", "quota"}
"""What `builders.diagnosis` calls it when a program of the build met it."""


@contextmanager
def index_refusals(root: Path, work: Path) -> Iterator[None]:
    """Say what it means when an index has no room or cannot be written.

    Parameters
    ----------
    root
        The index.
    work
        The build directory below it. It is removed when there is no room, for that is what lacks.

    Raises
    ------
    EnvironmentLacksError
        There is no room, or it may not be written; whether we met it or a program of the build.
    """
    try:
        yield
    except OSError as error:
        if error.filename and not Path(str(error.filename)).is_relative_to(root):
            raise  # another place than the index
        if error.errno in FULL:
            raise _full(root, work, os.strerror(error.errno)) from None
        if error.errno in REFUSED:
            where = error.filename or root
            msg = f"The index {root} cannot be written: {os.strerror(error.errno)} ({where})."
            hint = "Name a directory that you may write to: --index DIR. Nothing was published."
            raise EnvironmentLacksError(msg, hint=hint) from None
        raise
    except MatrixError as error:
        found = error.details.get("diagnosis", [])
        if any(one["id"] in _FULL_DIAGNOSES for one in found[:1]):
            refusal = _full(root, work, error.message)
            refusal.details = error.details
            raise refusal from None
        raise


def _full(root: Path, work: Path, why: str) -> EnvironmentLacksError:
    shutil.rmtree(work, ignore_errors=True)
    msg = f"There is no room left to build in {root}: {why.rstrip('.')}."
    hint = (
        "Nothing was published, and what was half built is removed. Free some space, or name a directory "
        "with more: --index DIR; what builds keep besides is in TMPDIR and XDG_CACHE_HOME."
    )
    return EnvironmentLacksError(msg, hint=hint)
