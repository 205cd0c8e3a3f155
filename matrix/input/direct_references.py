"""Requirements with a URL or a path, in every form that pip accepts, as ``NAME @ URL``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import SplitResult, unquote, urlsplit

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)

from builders.network.urls import without_password
from builders.pyproject import static_metadata
from matrix.checking.pip_line import is_location
from matrix.checking.pip_line import parse_requirement as parse_pep508
from resolver.errors import UsageError
from resolver.requirements import normalize_name, parse_requirement
from resolver.versions import is_version, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resolver.model import Requirement

_EXTRAS = re.compile(r"(?P<location>.+)\[(?P<extras>[^\[\]]*)\]")
_EGG = re.compile(r"egg=(?P<name>[\w.-]+)(?:\[(?P<extras>[^\]]*)\])?")
_REMOTE = {"http", "https", "git+http", "git+https", "git+ssh", "git+git"}
_WEB = ("http", "https")


def parse_line(text: str, directory: str = "", *, editable: bool = False) -> Requirement:
    """Parse a requirement, a URL or a path, with an optional marker.

    Paths are relative to `directory`, by default the working directory. With `editable`, the text is the
    value of ``-e``, which is a path even without a slash.
    """
    parsed = parse_pep508(text)
    if parsed is not None and parsed.url:
        reference = _DirectReference(parsed.url, directory, parsed.name, parsed.extras)
        return reference.requirement(str(parsed.marker or ""))
    if editable or (parsed is None and is_location(text)):
        location, _, marker = text.partition("; " if "://" in text else ";")
        return _DirectReference(location.strip(), directory).requirement(marker.strip())
    return parse_requirement(text)


class _DirectReference:
    """A URL or a path; name and extras are derived from it if they are not stated."""

    def __init__(self, location: str, directory: str, name: str = "", extras: Iterable[str] = ()) -> None:
        self._location, _, fragment = location.partition("#")
        self._directory = directory
        self._name = name
        self._extras = set(extras)
        parts = fragment.split("&")
        self._fragment = "&".join(part for part in parts if not part.startswith("egg="))
        for egg in filter(None, map(_EGG.fullmatch, parts)):
            self._name = self._name or egg["name"]
            self._add_extras(egg["extras"] or "")

    def requirement(self, marker: str) -> Requirement:
        """Return the requirement as ``NAME @ URL``."""
        try:
            parts = urlsplit(self._location)
            login = parts.password or (parts.username if parts.scheme.endswith(_WEB) else "")
        except ValueError:
            self._fail("is not a valid URL")
        if parts.scheme in {"", "file"}:
            url = self._local_url(parts)
        elif parts.scheme == "git+file":
            url = self._location
        elif parts.scheme not in _REMOTE or not parts.hostname:
            self._fail(
                "is not a URL that matrix can use", "Use https://, file://, git+https:// or git+ssh://."
            )
        elif login:
            msg = "The URL contains a login, which matrix.lock would store."
            raise UsageError(msg, hint="Put the login into ~/.netrc, and remove it from the URL.")
        else:
            url = self._location
            self._read_file_name("" if parts.scheme.startswith("git+") else parts.path)
        if not self._name:
            self._fail("does not name its distribution", f"Write: NAME @ {shorten(self._location)}")
        extras = f"[{','.join(sorted(self._extras))}]" if self._extras else ""
        fragment = f"#{self._fragment}" if self._fragment else ""
        return parse_requirement(f"{self._name}{extras} @ {url}{fragment}{f' ; {marker}' if marker else ''}")

    def _local_url(self, parts: SplitResult) -> str:
        """Return the URL of a file or directory on this machine, and read its name."""
        if parts.scheme == "" and self._location.startswith("git+"):
            self._fail("is not a valid URL", "Write: git+ssh://git@HOST/PATH")
        if parts.netloc not in {"", "localhost"}:
            self._fail("is not on this machine", "Write file:///PATH, or a path.")
        text = unquote(parts.path) if parts.scheme else self._location
        path = os.path.join(self._directory, text)  # noqa: PTH118  keeps ./ in messages
        brackets = _EXTRAS.fullmatch(path)
        if brackets and not os.path.lexists(path):
            path = brackets["location"]
            self._add_extras(brackets["extras"])
        if os.path.isdir(path):  # noqa: PTH112  accepts any text, as does the next
            self._check_name(static_metadata(Path(path)).name)
        elif os.path.isfile(path):  # noqa: PTH113
            self._read_file_name(path)
        else:
            start = self._directory or "the working directory"
            if is_version(text):
                self._fail("does not exist", "For a version, write two equals signs: NAME==VERSION.")
            self._fail("does not exist", "" if text.startswith("/") else f"The path is relative to {start}.")
        return Path(path).absolute().as_uri()

    def _read_file_name(self, path: str) -> None:
        """Read the project name from the file name of a wheel or, if none is stated, of an sdist."""
        file = unquote(path.rpartition("/")[2])
        if file.endswith(".whl"):
            try:
                self._check_name(parse_wheel_filename(file)[0])
            except InvalidWheelFilename:
                self._fail(
                    "is not a valid name of a wheel", "Keep the name that the wheel was published with."
                )
        elif not self._name:
            try:
                self._name = parse_sdist_filename(file)[0]
            except InvalidSdistFilename:
                return

    def _check_name(self, name: str) -> None:
        """Check that a stated name is the real name."""
        if self._name and normalize_name(self._name) != name:
            self._fail(f"is {name}, not {self._name}", "Correct the name.")
        self._name = self._name or name

    def _add_extras(self, text: str) -> None:
        self._extras |= {extra.strip() for extra in text.split(",") if extra.strip()}

    def _fail(self, problem: str, hint: str = "") -> NoReturn:
        try:
            shown = without_password(self._location)
        except ValueError:
            shown = self._location
        raise UsageError(f"{shorten(shown)!r} {problem}.", hint=hint)
