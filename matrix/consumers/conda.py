"""The conda environment file that cotainr reads.

What conda and pip make of its lines was found by running them; the rules that matter here:

- conda joins the pip section's lines into a requirements file, so an option stands alone on its
  line: ``--extra-index-url URL pkg`` on one line installs nothing and says nothing;
- a pin with the local label is never satisfied by PyPI, which refuses local labels; an unpinned
  name would be, by whatever project has that name there;
- ``--only-binary NAME`` keeps pip from running a stranger's setup.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.errors import UsageError

if TYPE_CHECKING:
    from resolver.lock import Lock

MOUNTED_INDEX = "file:///mnt/simple"
"""Where cotainr sees the index when it is bound to /mnt, which base images have."""


def conda_environment(lock: Lock, *, index_url: str = MOUNTED_INDEX, index_path: str = "INDEX") -> str:
    """Write the conda environment file for a lock.

    Parameters
    ----------
    lock
        The resolution.
    index_url
        URL of the index as it is seen while the container is built.
    index_path
        The index directory on this machine, for the instructions at the top.

    Returns
    -------
    str
        YAML text.

    Raises
    ------
    UsageError
        The lock does not fix the Python version.
    """
    python = lock.version_of("python")
    if not python:
        msg = "The lock has no Python version."
        raise UsageError(msg, hint="Resolve with --python 3.12 (or another).")
    picks = [lock.find(name) for group in lock.order for name in group]
    known = [pick for pick in picks if pick is not None and pick.kind == "distribution"]
    pinned = [pick for pick in known if pick.origin != "base-image"]
    kept = [f"{pick.name}=={pick.version}" for pick in known if pick.origin == "base-image"]
    built = sorted(pick.name for pick in pinned if pick.origin == "build")
    indexes = dict.fromkeys([index_url, *(pick.index for pick in pinned if pick.index)])
    lines = [
        *_instructions(lock, index_url, index_path),
        *([f"# Not installed, because the base image holds it: {', '.join(kept)}"] if kept else []),
        "name: matrix",
        "channels:",
        "  - conda-forge",
        "dependencies:",
        f"  - python={python}",
        "  - pip",
        "  - pip:",
        *(f"      - --extra-index-url {url}" for url in indexes),
        *(f"      - --only-binary {name}" for name in built),
        *(f"      - {pick.name}=={pick.pinned}" for pick in pinned),
    ]
    return "\n".join(lines) + "\n"


def _instructions(lock: Lock, index_url: str, index_path: str) -> list[str]:
    image = lock.find("base-image")
    base = f"--base-image {image.version}" if image else "--base-image IMAGE"
    lines = [f"# For {lock.target.site} on {lock.target.date}, written by `matrix env --for cotainr`."]
    if index_url == MOUNTED_INDEX:
        lines += [
            "# While cotainr builds, the index must be visible as /mnt, and nothing else be bound:",
            "#   unset SINGULARITY_BINDPATH APPTAINER_BIND APPTAINER_BINDPATH PYTHONPATH",
            f"#   export SINGULARITY_BIND={index_path}:/mnt:ro",
        ]
    return [*lines, f"#   cotainr build container.sif {base} --conda-env env.yml --accept-licenses"]
