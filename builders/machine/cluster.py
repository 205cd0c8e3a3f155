"""The name of Slurm's cluster. It is not in `host`, whose imports take longer than a short command."""

from __future__ import annotations

import os
import re
from pathlib import Path


def cluster_name() -> str:
    """Return the name of Slurm's cluster in a job's environment or Slurm's configuration; empty without."""
    file = Path(os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf")
    named = os.environ.get("SLURM_CLUSTER_NAME", "").lower()
    if named or not (file.is_file() and os.access(file, os.R_OK)):
        return named
    return cluster_in(file.read_text(encoding="utf-8", errors="replace"))


def cluster_in(configuration: str) -> str:
    """Return the name of the cluster in Slurm's configuration, as in ``slurm.conf``; empty without."""
    match = re.search(r"^\s*ClusterName\s*=\s*(\S+)", configuration, re.MULTILINE | re.IGNORECASE)
    return match[1].lower() if match else ""
