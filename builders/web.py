"""HTTP sessions for the whole program, with few connections and retries; reasons of failures for messages."""

from __future__ import annotations

import threading
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.utils import DEFAULT_CA_BUNDLE_PATH
from urllib3.util import Retry
from urllib3.util.ssl_ import create_urllib3_context

from builders.constants import CONNECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable
    from ssl import SSLContext

    from urllib3 import BaseHTTPResponse, HTTPConnectionPool

TIMEOUT = (10, 60)  # seconds to connect, and between two packets
_LONGEST_WAIT = 30  # seconds
_loading = threading.Lock()


class Adapter(HTTPAdapter):
    """Load the certificates once: urllib3 does so for each connection, which takes longer than a request."""

    def build_connection_pool_key_attributes(  # type: ignore[override]
        self, request: requests.PreparedRequest, verify: bool | str, cert: object = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arguments for the connection pool of a request, with a shared context."""
        host, pool = super().build_connection_pool_key_attributes(request, verify, cast("None", cert))
        shared = cast("dict[str, Any]", pool)
        if host["scheme"] == "https" and verify:
            bundle = shared.pop("ca_certs", None) or shared.pop("ca_cert_dir", None) or DEFAULT_CA_BUNDLE_PATH
            with _loading:
                shared["ssl_context"] = _context(bundle)
        return cast("dict[str, Any]", host), shared

    def cert_verify(self, conn: HTTPConnectionPool, url: str, verify: bool | str, cert: object) -> None:
        """Check that the certificates exist; the context has loaded them."""
        super().cert_verify(conn, url, verify, cert)  # type: ignore[no-untyped-call]
        vars(conn).update(ca_certs=None, ca_cert_dir=None)


@cache
def _context(bundle: str) -> SSLContext:
    context = create_urllib3_context()
    if Path(bundle).is_dir():
        context.load_verify_locations(capath=bundle)
    else:
        context.load_verify_locations(bundle)
    return context


def new_session(purpose: str, adapter: Callable[..., HTTPAdapter] = Adapter) -> requests.Session:
    """Return a session that retries, with back-off.

    Parameters
    ----------
    purpose
        The purpose of the session, which becomes part of the user agent.
    adapter
        Returns the adapter; called with the keyword arguments of `HTTPAdapter`.
    """
    session = _Session()
    session.headers["User-Agent"] = f"{_program()} ({purpose})"
    retry = _Retry(
        total=3,
        connect=1,
        read=1,
        backoff_factor=0.5,
        status_forcelist=(429, 500, 502, 503, 504),
        respect_retry_after_header=True,
        raise_on_status=False,
    )
    options: dict[str, Any] = {"max_retries": retry, "pool_maxsize": CONNECTIONS, "pool_block": True}
    for scheme in ("https://", "http://"):
        session.mount(scheme, adapter(**options))
    return session


class _Session(requests.Session):
    """Read proxies and certificates from the environment once for each host."""

    def __init__(self) -> None:
        super().__init__()
        self._settings: dict[tuple[str, str], dict[str, Any]] = {}

    def merge_environment_settings(  # type: ignore[override]
        self, url: str, _proxies: object, stream: bool | None, *_: object
    ) -> dict[str, Any]:
        parts = urlsplit(url)
        host = (parts.scheme, parts.netloc)
        if host not in self._settings:
            self._settings[host] = dict(super().merge_environment_settings(url, {}, None, None, None))
        return self._settings[host] | {"stream": bool(stream)}


class _Retry(Retry):
    """Wait as long as the server asks, up to a limit."""

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        seconds = super().get_retry_after(response)
        return None if seconds is None else min(seconds, _LONGEST_WAIT)


def failure_reason(error: Exception) -> str:
    """Return why a request failed, in a few words."""
    cause = getattr(error.args[0], "reason", None) if error.args else None  # of urllib3's MaxRetryError
    if isinstance(cause, urllib3.exceptions.NewConnectionError):
        return "no connection"
    if isinstance(error, requests.Timeout) or isinstance(cause, urllib3.exceptions.TimeoutError):
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
