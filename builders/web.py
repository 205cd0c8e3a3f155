"""HTTP as every part of the program uses it: few connections, retries with back-off, reasons for messages."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT = (10, 60)  # seconds to connect, and between two packets
MISSING = frozenset({404, 410})
"""Status codes of a server that does not have a page."""
CONNECTIONS = 16  # to one host at the same time


def new_session(purpose: str, adapter: Callable[..., HTTPAdapter] = HTTPAdapter) -> requests.Session:
    """Return a session that retries, with back-off, and opens at most 16 connections to a host.

    Parameters
    ----------
    purpose
        What the session is for; it is part of the user agent.
    adapter
        Returns the adapter; called with the keyword arguments of `HTTPAdapter`.
    """
    session = requests.Session()
    session.headers["User-Agent"] = f"{_program()} ({purpose})"
    retry = Retry(
        total=3,
        connect=1,
        backoff_factor=0.5,
        status_forcelist=(429, 500, 502, 503, 504),
        respect_retry_after_header=True,
        raise_on_status=False,
    )
    options: dict[str, Any] = {"max_retries": retry, "pool_maxsize": CONNECTIONS, "pool_block": True}
    for scheme in ("https://", "http://"):
        session.mount(scheme, adapter(**options))
    return session


def failure_reason(error: Exception) -> str:
    """Return why a request failed, in a few words."""
    if isinstance(error, requests.Timeout):
        return "timeout"
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate was not accepted"
    if isinstance(error, requests.TooManyRedirects):
        return "too many redirects"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return str(error) or type(error).__name__


def _program() -> str:
    try:
        return f"rocm-matrix/{version('rocm-matrix')}"
    except PackageNotFoundError:
        return "rocm-matrix"
