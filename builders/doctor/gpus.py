"""The GPUs that the kernel knows; no ROCm has to be installed for it.

Source: the kernel's ``drivers/gpu/drm/amd/amdkfd/kfd_topology.c``: one directory a node;
``gfx_target_version`` is major * 10000 + minor * 100 + step, and 0 for a CPU.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")


def gpus(topology: Path = TOPOLOGY) -> Counter[str]:
    """Count this machine's AMD GPUs by offload target."""
    found: Counter[str] = Counter()
    for path in sorted(topology.glob("*/properties")):
        try:
            values = dict(line.split() for line in path.read_text().splitlines() if len(line.split()) == 2)  # noqa: PLR2004
        except OSError:
            continue  # a node that this user may not use
        number = values.get("gfx_target_version", "")
        if number.isdecimal() and int(number):
            found[target_of(int(number))] += 1
    return found


def target_of(number: int) -> str:
    """Give the offload target of a number that the kernel says.

    Examples
    --------
    >>> target_of(90010), target_of(90402), target_of(110000)
    ('gfx90a', 'gfx942', 'gfx1100')
    """
    major, rest = divmod(number, 10000)
    minor, step = divmod(rest, 100)
    return f"gfx{major}{minor:x}{step:x}"
