"""A script that wraps a finished container or environment with tykky: its programs are then in ``DIR/bin``.

Nothing is installed. Read in CSCfi/hpc-container-wrapper@b0956d9: ``wrap-container`` copies a container,
needs absolute paths of programs, and activates the conda environment that has them. ``wrap-install --mask``
packs a virtual environment and mounts the files where they were, because its programs contain that path. Both
copy the file of ``--environ`` into the wrappers.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from matrix.consumers import Consumer
from matrix.consumers.shared.container_variables import DISTURBING
from matrix.consumers.shared.installation import WrittenFile
from matrix.consumers.shared.shell import ENVIRONMENT, environment_of_programs, fill, head, script, stoppable

if TYPE_CHECKING:
    from matrix.consumers.shared.installation import Installation, Layout

_NAME = "tykky-wrap"


def _emit(installation: Installation, layout: Layout) -> list[WrittenFile]:
    notes = [
        f"Usage: bash {layout.main} [DIR [more options of wrap-container or wrap-install]]",
        "Wraps a container (*.sif) or the directory of a virtual environment.",
        "MATRIX_ENVIRONMENT names another one.",
    ]
    wrap = script(
        layout.main,
        "wrap_with_tykky.sh",
        head=head(installation, _NAME, layout.main, notes),
        environment=quote(str(layout.environment or "container.sif")),
        unset=" ".join(DISTURBING),
        load=installation.load_of_tykky,
        runtime=fill("runtime.sh"),
        stoppable=stoppable(layout.main, "target"),
    )
    return [
        wrap,
        WrittenFile(ENVIRONMENT, environment_of_programs(installation, _NAME)),
    ]


CONSUMER = Consumer(file="wrap.sh", emit=_emit, uses_environment=True)
