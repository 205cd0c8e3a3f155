"""A STAND-IN for one download of cotainr: Miniforge's installer.

This module is copied into the environment of cotainr, with a ``.pth`` file that imports it at the start.
cotainr is unchanged: it requests the same URL with urllib, and gets `standin_miniforge.sh`, whose path is in
the environment variable `VARIABLE`. If it is empty, and for every other URL, urllib uses the network.
"""

import os
import urllib.request
import urllib.response
from pathlib import Path

VARIABLE = "STANDIN_MINIFORGE"
ADDRESS = "https://github.com/conda-forge/miniforge/releases/latest/download/Miniforge3-Linux-x86_64.sh"


class StandIn(urllib.request.BaseHandler):
    """Run before urllib's network handler."""

    handler_order = 100

    def https_open(self, request: urllib.request.Request) -> urllib.response.addinfourl | None:
        """Return the installer for its URL; None for any other URL."""
        file = os.environ.get(VARIABLE)
        if request.full_url != ADDRESS or not file:
            return None
        installer = Path(file).open("rb")  # noqa: SIM115  the reader closes it
        answer = urllib.response.addinfourl(installer, {}, ADDRESS, 200)  # type: ignore[arg-type]
        answer.msg = "OK"  # type: ignore[attr-defined]
        return answer


urllib.request.install_opener(urllib.request.build_opener(StandIn))
