"""The second process of `builders.index_client.fetcher`."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from builders.constants import GARBAGE_THRESHOLD
from builders.index_client.client import IndexClient
from builders.index_client.fetcher import READY
from resolver.errors import MatrixError
from resolver.indexes import File


def serve() -> None:
    """Fetch the pages and metadata that standard input lists, until it ends."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    client = IndexClient(**msgspec.json.decode(sys.stdin.buffer.readline()), is_second=True)
    os.write(1, READY)
    for line in sys.stdin.buffer:
        client.submit(partial(_fetch, client, *msgspec.json.decode(line)))
    os._exit(0)


def _fetch(client: IndexClient, number: int, what: dict[str, Any] | tuple[str, str]) -> None:
    with suppress(MatrixError):  # the first process gets the same error when it tries
        if isinstance(what, dict):
            client.metadata([msgspec.convert(what, File)])
        else:
            client.fetch_page(*what)
    os.write(1, b"%d\n" % number)
