"""Requirements for tykky's ``pip-containerize``, which uses the machine's Python, and the script."""

from __future__ import annotations

from matrix.consumers.tykky import PIP as CONSUMER

__all__ = ["CONSUMER"]
