"""Asking public sources politely: one request at a time, and only for what changed.

Every answer is kept with its ETag and date, so the next run asks "has it changed?" and most answers
are a 304 without a body. A run that was killed loses nothing that it already has. A host that does
not answer is asked once, not once for each page.

Source: RFC 9110, sections 8.8 (validators), 10.2.3 (Retry-After) and 13.1 (conditional requests).
"""

from __future__ import annotations

import hashlib
import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from builders.files import write_atomic
from builders.sources.mirrors import mirrored
from resolver.errors import EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_TIMEOUT = (10, 60)  # seconds to connect, and between two packets
_PAUSE = 0.1  # seconds between two requests to one host
_LARGEST = 64 * 2**20  # bytes; the longest index pages have about 10 MB
_NOT_MODIFIED = 304
_MISSING = {404, 410}


class Answer(msgspec.Struct, frozen=True):
    """What a source said, as it is kept."""

    url: str
    """Where the answer came from, after redirections."""
    content_type: str
    text: str
    etag: str = ""
    last_modified: str = ""


class Web:
    """A polite client with a memory.

    Parameters
    ----------
    memory
        The directory in which answers are kept.
    mirrors
        URL prefix to the prefix that is asked instead; the longest that fits wins.

    Attributes
    ----------
    asked, unchanged
        How many requests were made, and how many of them were answered "not modified".
    unreachable
        Host to the reason why it could not be asked.
    """

    def __init__(self, memory: Path, mirrors: Mapping[str, str] | None = None) -> None:
        self._memory = memory
        self._mirrors = dict(mirrors or {})
        self._session = requests.Session()
        self._session.headers["User-Agent"] = _user_agent()
        retry = Retry(
            total=3,
            connect=1,
            backoff_factor=1,
            status_forcelist=(429, 500, 502, 503, 504),
            respect_retry_after_header=True,
            raise_on_status=False,
        )
        for scheme in ("https://", "http://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=retry))
        self._last: dict[str, float] = {}
        self.asked = 0
        self.unchanged = 0
        self.unreachable: dict[str, str] = {}

    def get(self, url: str, accept: str = "*/*") -> Answer | None:
        """Fetch a page, or learn that it is as it was.

        Returns
        -------
        Answer or None
            None if the source has no such page.

        Raises
        ------
        EnvironmentLacksError
            The host cannot be reached, or does not want to answer.
        """
        place = self._place(url)
        kept = _read(place)
        headers = {"Accept": accept}
        if kept:
            headers |= {"If-None-Match": kept.etag} if kept.etag else {}
            headers |= {"If-Modified-Since": kept.last_modified} if kept.last_modified else {}
        response = self._ask(self.mirrored(url), headers)
        if response.status_code == _NOT_MODIFIED and kept:
            self.unchanged += 1
            return kept
        if response.status_code in _MISSING:
            return None
        if not response.ok:
            raise self._give_up(url, f"it answered {response.status_code} {response.reason}")
        answer = Answer(
            url=response.url,
            content_type=response.headers.get("Content-Type", ""),
            text=_text(response),
            etag=response.headers.get("ETag", ""),
            last_modified=response.headers.get("Last-Modified", ""),
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(place, msgspec.json.encode(answer).decode())
        return answer

    def mirrored(self, url: str) -> str:
        """Give the address that is asked instead of a URL."""
        return mirrored(url, self._mirrors)

    def _ask(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        host = urlsplit(url).netloc.rpartition("@")[2]
        if host in self.unreachable:
            raise EnvironmentLacksError(f"{host} could not be asked: {self.unreachable[host]}.")
        pause = self._last.get(host, 0.0) + _PAUSE - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        try:
            response = self._session.get(url, headers=dict(headers), timeout=_TIMEOUT, stream=True)
            response._content = _whole(response)  # noqa: SLF001  read with a limit, as .content would
        except (requests.RequestException, ValueError) as error:
            raise self._give_up(url, _reason(error)) from None
        finally:
            self._last[host] = time.monotonic()
            self.asked += 1
        return response

    def _give_up(self, url: str, reason: str) -> EnvironmentLacksError:
        host = urlsplit(self.mirrored(url)).netloc.rpartition("@")[2]
        self.unreachable[host] = reason
        return EnvironmentLacksError(f"{host} could not be asked: {reason}.")

    def _place(self, url: str) -> Path:
        return self._memory / f"{hashlib.sha256(url.encode()).hexdigest()[:20]}.json"


def _user_agent() -> str:
    try:
        return f"rocm-matrix/{version('rocm-matrix')} (catalog update)"
    except PackageNotFoundError:
        return "rocm-matrix (catalog update)"


def _read(place: Path) -> Answer | None:
    try:
        return msgspec.json.decode(place.read_bytes(), type=Answer)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _whole(response: requests.Response) -> bytes:
    parts, size = [], 0
    for part in response.iter_content(2**16):
        size += len(part)
        if size > _LARGEST:
            msg = f"its answer is longer than {_LARGEST // 2**20} MiB"
            raise ValueError(msg)
        parts.append(part)
    return b"".join(parts)


def _text(response: requests.Response) -> str:
    return response.content.decode("utf-8", errors="replace")


def _reason(error: Exception) -> str:
    if isinstance(error, requests.Timeout):
        return "it did not answer in time"
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate was not accepted"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return str(error) or type(error).__name__
