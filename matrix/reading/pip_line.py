"""One line of a requirements file, parsed by pip's own code.

`pip-requirements-parser` contains the parser of pip 22. Options that pip has added or removed since are
adjusted here.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress
from functools import cache, cached_property
from optparse import OptionParser, Values
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec
from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from pip_requirements_parser import (
    LEGACY_OPTIONS,
    OPT_BY_OPTIONS_DEST,
    OptionParsingError,
    break_args_options,
    build_parser,
)

from builders.network.urls import without_password
from builders.source_facts.reading import tree_metadata
from resolver.environment import Environment
from resolver.errors import UsageError
from resolver.requirements import normalize_name
from resolver.requirements import parse_requirement as parse_stated
from resolver.versions import is_version, shorten, version_or_none

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resolver.model import Requirement as StatedRequirement


_Options = list[tuple[str, str]]
"""Long names of options with their values."""

REQUIREMENT_OPTIONS = {"--hash", "--config-settings", "--global-option"}
"""Options that apply to one requirement and may follow it."""
INDEX_OPTIONS = ("--index-url", "--extra-index-url")
ISOLATION_VARIABLE = (
    "PIP_NO_BUILD_ISOLATION is inverted: the value 1 keeps build isolation, 0 switches it off."
)
_NEW_OPTIONS = {
    "config_settings": ("--config-settings", "--config-setting", "-C"),
    "all_releases": ("--all-releases",),
    "only_final": ("--only-final",),
}
_FLAGS = OPT_BY_OPTIONS_DEST | {name: flags[0] for name, flags in _NEW_OPTIONS.items()}
_UNKNOWN = re.compile(r"no such option: (\S+)")
_WHEEL = re.compile(r"([A-Za-z0-9][\w.]*?)-[^/-]+-[^/]*\.whl$")
_SOURCE_ARCHIVES = (".tar.gz", ".tgz", ".zip", ".tar.bz2", ".tar.xz")
_TOO_LONG = re.compile(r"\d{1000}|^\s*[\w.-]{256}")
"""Matches numbers and names that are too long for any version or file."""

LONGEST_LINE = 50_000
"""Longest line that is read, in characters; pip's parser of options needs minutes for longer ones."""
_LONGEST = 5000  # characters of a requirement without options
_EXTRAS = re.compile(r"(?P<location>.+)\[(?P<extras>[^\[\]]*)\]")
_EGG = re.compile(r"egg=(?P<name>[\w.-]+)(?:\[(?P<extras>[^\]]*)\])?")
_REMOTE = {"http", "https", "git+http", "git+https", "git+ssh", "git+git"}
_WEB = ("http", "https")
_PYTHONS = [Environment(f"3.{minor}") for minor in range(6, 17)]


def counts_on_linux(marker: str, **chosen: str) -> bool:
    """Return whether a marker (PEP 508) can hold on Linux on x86-64, with any Python and any extra.

    `chosen` has values of other variables, such as `extra`.

    Examples
    --------
    >>> counts_on_linux("sys_platform == 'win32'"), counts_on_linux("python_version < '3.9'")
    (False, True)
    """
    if not marker:
        return True
    try:
        parsed = Marker(marker)
        return any(
            parsed.evaluate({**each.variables, "python_full_version": f"{each.python}.9", **chosen})
            for each in _PYTHONS
        )
    except (InvalidMarker, UndefinedEnvironmentName, UndefinedComparison, RecursionError):
        return True


class PipLine(msgspec.Struct, frozen=True, dict=True):
    """One line as pip reads it. `text` is the line without comment and surrounding spaces."""

    text: str

    @cached_property
    def _parts(self) -> tuple[str, str]:
        requirement, options = break_args_options(self.text)
        return requirement.strip(), options

    @property
    def requirement_text(self) -> str:
        """The requirement as written; empty on a line of options."""
        return self._parts[0]

    @cached_property
    def _options(self) -> tuple[_Options, list[str], list[str], str]:
        return _parse_options(self._parts[1])

    @property
    def options(self) -> _Options:
        """Options that pip accepts in a file: long names and values."""
        return self._options[0]

    @property
    def unknown_options(self) -> list[str]:
        """Options that pip accepts only on its command line, or not at all."""
        return self._options[1]

    @property
    def ignored_words(self) -> list[str]:
        """Words among the options that pip ignores."""
        return self._options[2]

    @property
    def error(self) -> str:
        """The error with which pip stops at these options, other than an unknown option."""
        return self._options[3]

    def values(self, *flags: str) -> list[str]:
        """Return the values of options."""
        return [value for flag, value in self.options if flag in flags and value]

    def has(self, flag: str) -> bool:
        """Return whether an option is on the line."""
        return any(name == flag for name, _ in self.options)

    @cached_property
    def requirement(self) -> Requirement | None:
        """The requirement (PEP 508); None for a path, a URL or a line of options."""
        return parse_requirement(self.requirement_text)

    @cached_property
    def _place(self) -> tuple[str, str]:
        if self.requirement is not None:
            return self.requirement.url or "", str(self.requirement.marker or "")
        text = "".join(self.values("--editable")[:1]) or self.requirement_text
        location, _, marker = text.partition("; " if "://" in text else ";")
        return (location.strip(), marker.strip()) if is_location(text) else ("", "")

    @property
    def location(self) -> str:
        """The path or URL to install; empty if pip looks up a name."""
        return self._place[0]

    @property
    def marker(self) -> str:
        """When the line counts (PEP 508); empty if always."""
        return self._place[1]

    @cached_property
    def name(self) -> str:
        """The normalized name of the distribution; empty if the line has none."""
        if self.requirement is not None:
            return canonicalize_name(self.requirement.name)
        egg = re.search(r"[#&]egg=([\w.-]+)", self.location)
        wheel = _WHEEL.search(self.location.partition("#")[0].rpartition("/")[2])
        return canonicalize_name(egg[1] if egg else wheel[1] if wheel else "")

    @property
    def extras(self) -> tuple[str, ...]:
        """The normalized extras of a requirement, a URL or a path."""
        extras = self.requirement.extras if self.requirement is not None else set[str]()
        if self.requirement is None:
            named = _EGG.search(self.location.partition("#")[2])
            brackets = _EXTRAS.fullmatch(self.location) if "://" not in self.location else None
            extras = _split((named and named["extras"]) or (brackets and brackets["extras"]) or "")
        return tuple(sorted(map(normalize_name, extras)))

    @property
    def is_source(self) -> bool:
        """Whether the line names something that pip builds: a repository, a source archive or a directory."""
        return bool(self.location) and not (self.page or self.location.partition("#")[0].endswith(".whl"))

    @property
    def page(self) -> str:
        """The address of a repository's page, which is no archive; empty if it is another thing."""
        match = re.fullmatch(r"(https://git(?:hub|lab)\.com/[\w.-]+/[\w.-]+?)/?", self.location)
        return match[1] if match else ""

    @cached_property
    def pinned(self) -> str:
        """The version of an exact pin; empty for any other requirement."""
        specifiers = list(self.requirement.specifier) if self.requirement is not None else []
        exact = [part.version for part in specifiers if part.operator in {"==", "==="}]
        return exact[0] if len(exact) == 1 and len(specifiers) == 1 and not exact[0].endswith("*") else ""

    @property
    def local(self) -> str:
        """The normalized local label of the pin; empty if there is none."""
        version = version_or_none(self.pinned)
        return (version and version.local) or ""

    @property
    def public(self) -> str:
        """The pinned version without its label; empty if nothing is pinned."""
        version = version_or_none(self.pinned)
        return version.public if version else ""

    def with_pin(self, version: str) -> str:
        """Return the line with another exact version; extras, marker and options do not change."""
        requirement = self.requirement
        if requirement is None:
            return self.text
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        marker = f" ; {requirement.marker}" if requirement.marker else ""
        options = f" {self._parts[1]}" if self._parts[1] else ""
        return f"{requirement.name}{extras}=={version}{marker}{options}"


def file_version(url: str) -> tuple[str, str]:
    """Return name and version of the wheel or sdist that a URL or path names; empty if it names none."""
    file = url_path(url.partition("#")[0]).rpartition("/")[2] if "://" in url else url.rpartition("/")[2]
    try:
        if file.endswith(".whl"):
            name, version, _, _ = parse_wheel_filename(unquote(file))
        else:
            name, version = parse_sdist_filename(unquote(file))
    except (InvalidWheelFilename, InvalidSdistFilename):
        return "", ""
    return name, str(version)


@cache
def _option_parser() -> OptionParser:
    parser: OptionParser = build_parser()
    for factory in LEGACY_OPTIONS:  # newer releases of pip reject them
        parser.remove_option(factory().get_opt_string())
    parser.remove_option("--install-option")
    for name, flags in _NEW_OPTIONS.items():
        parser.add_option(*flags, dest=name, action="append")
    return parser


def _parse_options(text: str) -> tuple[_Options, list[str], list[str], str]:
    """Return the options in a text, the unknown ones, the words that pip ignores, and pip's error."""
    try:
        words = shlex.split(text)
    except ValueError:
        return [], [], [], "A quote is not closed"
    unknown: list[str] = []
    while True:  # the parser stops at the first unknown option, so it runs again without it
        values = Values()
        try:
            _, ignored = _option_parser().parse_args(list(words), values)
        except OptionParsingError as error:
            option = _UNKNOWN.search(error.msg)
            word = next((word for word in words if option and word.startswith(option[1])), None)
            if word is None:
                return [], unknown, [], error.msg.partition("error: ")[2].strip()
            unknown.append(word.partition("=")[0])
            words.remove(word)
        else:
            known = [
                (_FLAGS[name], "" if value is True else value)
                for name, given in vars(values).items()
                for value in (given if isinstance(given, list) else [given])
            ]
            return known, unknown, ignored, ""


def parse_requirement(text: str) -> Requirement | None:
    """Parse a requirement (PEP 508); return None for anything else, such as a file name.

    Examples
    --------
    >>> parse_requirement("torch-2.9.1-cp312-cp312-linux_x86_64.whl") is None
    True
    """
    if "@" not in text and text.lower().endswith((".whl", *_SOURCE_ARCHIVES)):
        return None
    if len(text) > _LONGEST or _TOO_LONG.search(text):
        return None
    try:
        return Requirement(text)
    except (InvalidRequirement, RecursionError):
        return None


def is_location(text: str) -> bool:
    """Return whether pip treats a word as a path or a URL.

    Examples
    --------
    >>> [is_location(word) for word in ("./a.whl", "git+https://host/x", "wheels/a.whl", "torch", "A=1")]
    [True, True, True, False, False]
    >>> is_location("https://host/a.whl ; python_version > '3'")
    True
    """
    if " " in text and not text.startswith(("/", "./", "../")) and "://" not in text.partition(" ")[0]:
        return False
    start = text.partition("#")[0].lower()
    return "/" in start or start.startswith(".") or start.endswith((".whl", *_SOURCE_ARCHIVES))


def url_path(url: str) -> str:
    """Return the path of a URL; empty if it is not valid, such as ``https://[``."""
    try:
        return unquote(urlsplit(url).path)
    except ValueError:
        return ""


def parse_line(text: str, directory: str = "", *, editable: bool = False) -> StatedRequirement:
    """Parse a requirement, a URL or a path, with an optional marker.

    Paths are relative to `directory`. With `editable`, the text is the value of ``-e``: a path even without a
    slash.
    """
    parsed = parse_requirement(text)
    if parsed is not None and parsed.url:
        return _direct_reference(parsed.url, directory, str(parsed.marker or ""), parsed.name, parsed.extras)
    if editable or (parsed is None and is_location(text)):
        location, _, marker = text.partition("; " if "://" in text else ";")
        return _direct_reference(location.strip(), directory, marker.strip())
    return parse_stated(text)


def _direct_reference(
    text: str, directory: str, marker: str, name: str = "", extras: Iterable[str] = ()
) -> StatedRequirement:
    """Return a URL or path as ``NAME @ URL``; name and extras are derived from it if they are not stated."""
    location, _, fragment = text.partition("#")
    parts = fragment.split("&")
    eggs = [egg for egg in map(_EGG.fullmatch, parts) if egg]
    name = name or next((egg["name"] for egg in eggs), "")
    extras = {*extras}.union(*(_split(egg["extras"] or "") for egg in eggs))
    fragment = "&".join(part for part in parts if not part.startswith("egg="))
    url = location
    try:
        address = urlsplit(location)
        login = address.password or (address.username if address.scheme.endswith(_WEB) else "")
    except ValueError:
        _fail(location, "is not a valid URL")
    if address.scheme in {"", "file"}:
        path, more = _local_path(location, address, directory)
        extras |= _split(more)
        if os.path.isdir(path):  # noqa: PTH112  accepts any text
            name = _agreed(location, name, tree_metadata(Path(path), path).name)
        else:
            name = _name_of_file(location, path, name)
        url = Path(path).absolute().as_uri()
    elif address.scheme != "git+file":
        if address.scheme not in _REMOTE or not address.hostname:
            hint = "Use https://, file://, git+https:// or git+ssh://."
            _fail(location, "is not a URL that matrix can use", hint)
        if login:
            msg = "The URL contains a login, which matrix.lock would store."
            raise UsageError(msg, hint="Put the login into ~/.netrc, and remove it from the URL.")
        name = _name_of_file(location, "" if address.scheme.startswith("git+") else address.path, name)
    if not name:
        _fail(location, "does not name its distribution", f"Write: NAME @ {shorten(location)}")
    listed = f"[{','.join(sorted(extras))}]" if extras else ""
    fragment = f"#{fragment}" if fragment else ""
    return parse_stated(f"{name}{listed} @ {url}{fragment}{f' ; {marker}' if marker else ''}")


def _split(extras: str) -> set[str]:
    return {extra.strip() for extra in extras.split(",") if extra.strip()}


def _local_path(location: str, address: SplitResult, directory: str) -> tuple[str, str]:
    """Return the path of a file or directory on this machine, and the extras in brackets behind it."""
    if address.scheme == "" and location.startswith("git+"):
        _fail(location, "is not a valid URL", "Write: git+ssh://git@HOST/PATH")
    if address.netloc not in {"", "localhost"}:
        _fail(location, "is not on this machine", "Write file:///PATH, or a path.")
    text = unquote(address.path) if address.scheme else location
    path = os.path.join(directory, text)  # noqa: PTH118  keeps ./ in messages
    extras = ""
    brackets = _EXTRAS.fullmatch(path)
    if brackets and not os.path.lexists(path):
        path, extras = brackets["location"], brackets["extras"]
    if not os.path.isdir(path) and not os.path.isfile(path):  # noqa: PTH112, PTH113  accept any text
        hint = f"The path is relative to {directory or 'the working directory'}."
        if is_version(text):
            hint = "For a version, write two equals signs: NAME==VERSION."
        _fail(location, "does not exist", "" if text.startswith("/") else hint)
    return path, extras


def _name_of_file(location: str, path: str, stated: str) -> str:
    file = unquote(path.rpartition("/")[2])
    if file.endswith(".whl"):
        try:
            return _agreed(location, stated, parse_wheel_filename(file)[0])
        except InvalidWheelFilename:
            hint = "Keep the name that the wheel was published with."
            _fail(location, "is not a valid name of a wheel", hint)
    with suppress(InvalidSdistFilename):
        return stated or parse_sdist_filename(file)[0]
    return ""


def _agreed(location: str, stated: str, name: str) -> str:
    if stated and normalize_name(stated) != name:
        _fail(location, f"is {name}, not {stated}", "Correct the name.")
    return stated or name


def _fail(location: str, problem: str, hint: str = "") -> NoReturn:
    with suppress(ValueError):
        location = without_password(location)
    raise UsageError(f"{shorten(location)!r} {problem}.", hint=hint)
