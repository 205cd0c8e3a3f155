"""One line of a requirements file, parsed by pip's own code.

`pip-requirements-parser` contains the parser of pip 22. Options that pip has added or removed since are
adjusted here.
"""

from __future__ import annotations

import re
import shlex
from functools import cache, cached_property
from optparse import OptionParser, Values
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pip_requirements_parser import (
    LEGACY_OPTIONS,
    OPT_BY_OPTIONS_DEST,
    OptionParsingError,
    break_args_options,
    build_parser,
)

from resolver.versions import version_or_none

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


class _Options(NamedTuple):
    """The part of a line from the first option on."""

    known: tuple[tuple[str, str], ...] = ()
    unknown: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    error: str = ""


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
    def _parsed(self) -> _Options:
        return _parse_options(self._parts[1])

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Options that pip accepts in a file: long names and values."""
        return self._parsed.known

    @property
    def unknown_options(self) -> tuple[str, ...]:
        """Options that pip accepts only on its command line, or not at all."""
        return self._parsed.unknown

    @property
    def ignored_words(self) -> tuple[str, ...]:
        """Words among the options that pip ignores."""
        return self._parsed.ignored

    @property
    def error(self) -> str:
        """The error with which pip stops at these options, other than an unknown option."""
        return self._parsed.error

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
    def location(self) -> str:
        """The path or URL to install; empty if pip looks up a name."""
        if self.requirement is not None:
            return self.requirement.url or ""
        editable = self.values("--editable")
        text = editable[0] if editable else self.requirement_text
        return text if is_location(text) else ""

    @cached_property
    def name(self) -> str:
        """The normalized name of the distribution; empty if the line has none."""
        if self.requirement is not None:
            return canonicalize_name(self.requirement.name)
        egg = re.search(r"[#&]egg=([\w.-]+)", self.location)
        wheel = _WHEEL.search(self.location.partition("#")[0].rpartition("/")[2])
        return canonicalize_name(egg[1] if egg else wheel[1] if wheel else "")

    @property
    def is_source(self) -> bool:
        """Whether the line names something that pip builds: a repository, a source archive or a directory."""
        return bool(self.location) and not self.location.partition("#")[0].endswith(".whl")

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


@cache
def _option_parser() -> OptionParser:
    parser: OptionParser = build_parser()
    for factory in LEGACY_OPTIONS:
        parser.remove_option(factory().get_opt_string())
    parser.remove_option("--install-option")
    for name, flags in _NEW_OPTIONS.items():
        parser.add_option(*flags, dest=name, action="append")
    return parser


def _parse_options(text: str) -> _Options:
    """Parse options as pip does, and collect unknown ones instead of stopping at the first."""
    try:
        words = shlex.split(text)
    except ValueError:
        return _Options(error="A quote is not closed")
    unknown: list[str] = []
    while True:
        values = Values()
        try:
            _, ignored = _option_parser().parse_args(list(words), values)
        except OptionParsingError as error:
            option = _UNKNOWN.search(error.msg)
            word = next((word for word in words if option and word.startswith(option[1])), None)
            if word is None:
                return _Options(unknown=tuple(unknown), error=error.msg.partition("error: ")[2].strip())
            unknown.append(word.partition("=")[0])
            words.remove(word)
        else:
            known = [
                (_FLAGS[name], "" if value is True else value)
                for name, given in vars(values).items()
                for value in (given if isinstance(given, list) else [given])
            ]
            return _Options(tuple(known), tuple(unknown), tuple(ignored))


def parse_requirement(text: str) -> Requirement | None:
    """Parse a requirement (PEP 508); return None for anything else, such as a file name.

    Examples
    --------
    >>> parse_requirement("torch-2.9.1-cp312-cp312-linux_x86_64.whl") is None
    True
    """
    if "@" not in text and text.lower().endswith((".whl", *_SOURCE_ARCHIVES)):
        return None
    if _TOO_LONG.search(text):
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
