"""A conda environment file and requirements for tykky (``conda-containerize new``).

tykky sees the file systems of the machine, so the index is named by its real path.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from matrix.consumers import Consumer
from matrix.consumers.shared.requirements import (
    environment_file,
    reject_preinstalled,
    requirement_lines,
    requirements_file,
)
from matrix.consumers.shared.shell import environment_of_jobs

if TYPE_CHECKING:
    from matrix.consumers.shared.files import File, Layout
    from matrix.consumers.shared.installation import Installation

_REQUIREMENTS = "req.txt"


def _emit(installation: Installation, layout: Layout) -> list[File]:
    reject_preinstalled(installation, "conda environments")
    variables = "".join(f"{name}={value} " for name, value in installation.pip_variables.items())
    notes = [f"{variables}conda-containerize new --prefix DIR {quote(layout.main)} -r {_REQUIREMENTS}"]
    lines = requirement_lines(installation, layout.local)
    about = ["Read by conda-containerize -r."]
    return [
        environment_file(layout.main, installation, notes, "tykky"),
        requirements_file(_REQUIREMENTS, installation, lines, about, "tykky"),
        *environment_of_jobs(installation, "tykky"),
    ]


CONSUMER = Consumer(file="env.yml", emit=_emit, supports_hashes=True)
