"""Variables of a site, and variables that break an installation into a container, with their reasons.

The scripts of `matrix env` contain these lists. Each reason was observed by running cotainr, conda and pip
with the variable.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from resolver.facts.schema import SiteVariable

VISIBLE = (PurePath("/tmp"), PurePath("/var/tmp"))  # noqa: S108
"""The only directories of this machine that are visible in a container while cotainr builds it."""
DISTURBING = (
    # Site modules bind paths for which an image that is built has no mount points.
    *("SINGULARITY_BIND", "SINGULARITY_BINDPATH", "APPTAINER_BIND", "APPTAINER_BINDPATH"),
    # pip treats packages found there as installed, so they would be missing from the image.
    *("PYTHONPATH", "APPTAINERENV_PYTHONPATH", "SINGULARITYENV_PYTHONPATH"),
    "PYTHONHOME",  # the standard library of another Python
    # pip would install elsewhere than into the environment of the image, or nothing.
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON"),
    *("PIP_REQUIRE_VIRTUALENV", "PIP_DRY_RUN"),
    *("APPTAINER_CLEANENV", "SINGULARITY_CLEANENV"),  # pip would not find the index
)
"""Variables to unset."""
LIMITING = ("PIP_CONSTRAINT", "PIP_FIND_LINKS", "PIP_NO_BUILD_ISOLATION", "PIP_NO_INDEX")
"""Variables that change what pip installs, and that a user may need."""
REFERENCE = re.compile(r"\$\{(\w+)\}")
"""A reference to another variable in the value of a site's variable."""


def site_values(env: Mapping[str, str], variables: Iterable[SiteVariable]) -> dict[str, str]:
    """Return the values of a site's variables; one that is already set may be deliberate and stays."""
    values: dict[str, str] = {}
    for row in variables:
        if row.value is not None and row.name not in env:
            values[row.name] = expanded(row.value, {**env, **values})
    return values


def expanded(value: str, env: Mapping[str, str]) -> str:
    """Replace references to variables as a shell does; a variable that is not set is empty.

    Examples
    --------
    >>> expanded("/tmp/${USER}-${SLURM_NODEID}", {"USER": "me"})
    '/tmp/me-'
    """
    return REFERENCE.sub(lambda reference: env.get(reference[1], ""), value)


def is_visible(path: str) -> bool:
    """Return whether a path of this machine is visible in a container while it is built.

    Examples
    --------
    >>> is_visible("/tmp/me"), is_visible("/scratch/project"), is_visible("/tmpfs")
    (True, False, False)
    """
    return any(PurePath(path).is_relative_to(directory) for directory in VISIBLE)
