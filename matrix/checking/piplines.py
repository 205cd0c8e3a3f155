"""One line of a requirements file, as pip reads it.

Written after pip's documentation of the format, and compared with pip 23.2 (``req/req_file.py``): what stands
before the first word with a hyphen is a requirement, and then only options for a requirement count behind
it; a line that begins with an option is only options, and other words on it are dropped without a message.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cached_property

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

_WITH_VALUE = {
    "-i": "--index-url",
    "-c": "--constraint",
    "-r": "--requirement",
    "-e": "--editable",
    "-f": "--find-links",
    "-C": "--config-settings",
}
_FOR_FILE_VALUES = {
    "--index-url", "--pypi-url", "--extra-index-url", "--constraint", "--requirement", "--editable",
    "--find-links", "--no-binary", "--only-binary", "--trusted-host", "--use-feature", "--all-releases",
    "--only-final",
}  # fmt: skip
_FOR_FILE_FLAGS = {"--no-index", "--prefer-binary", "--require-hashes", "--pre"}
FOR_ONE = {"--hash", "--config-settings", "--config-setting", "--global-option"}
"""Options that may stand behind a requirement."""
INVERTED = "The sense of PIP_NO_BUILD_ISOLATION is inverted: 1 leaves isolation on, 0 turns it off."
_VALUES = _FOR_FILE_VALUES | FOR_ONE
_KNOWN = _VALUES | _FOR_FILE_FLAGS
_COMMENT = re.compile(r"(^|\s+)#.*$")
_WHEEL = re.compile(r"([A-Za-z0-9][\w.]*?)-[^/-]+-[^/]*\.whl$")
_SOURCE = (".tar.gz", ".tgz", ".zip", ".tar.bz2", ".tar.xz")


def without_comment(line: str) -> tuple[str, str]:
    """Split a line into what pip reads and the comment with the spaces before it.

    Examples
    --------
    >>> without_comment("torch==2.9.1  # why")
    ('torch==2.9.1', '  # why')
    """
    found = _COMMENT.search(line)
    text = line[: found.start()] if found else line
    kept = text.rstrip()
    return kept, line[len(kept) :]


@dataclass(frozen=True)
class PipLine:
    """What pip makes of one line.

    Parameters
    ----------
    text
        The line without comment and without space around it.
    """

    text: str

    @cached_property
    def _parts(self) -> tuple[str, str]:
        words = self.text.split(" ")
        for number, word in enumerate(words):
            if word.startswith("-"):
                return " ".join(words[:number]).strip(), " ".join(words[number:])
        return self.text, ""

    @property
    def wanted(self) -> str:
        """The requirement as it is written; empty on a line of options."""
        return self._parts[0]

    @cached_property
    def _words(self) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
        options: list[tuple[str, str]] = []
        rest: list[str] = []
        try:
            words = shlex.split(self._parts[1])
        except ValueError:  # a quote without its other half
            return ((self._parts[1].split(" ")[0], ""),), ()
        words.reverse()
        while words:
            word = words.pop()
            if not word.startswith("-") or word == "-":
                rest.append(word)
                continue
            flag, value, joined = _flag(word)
            if flag in _VALUES and not joined:
                value = words.pop() if words else ""
            options.append((flag, value))
        return tuple(options), tuple(rest)

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Options by their long names, with their values."""
        return self._words[0]

    @property
    def dropped(self) -> tuple[str, ...]:
        """Words behind an option that belong to nothing."""
        return self._words[1]

    @property
    def unquoted(self) -> bool:
        """Whether a quote lacks its other half."""
        try:
            shlex.split(self._parts[1])
        except ValueError:
            return True
        return False

    def values(self, *flags: str) -> list[str]:
        """Give the values of an option on this line."""
        return [value for flag, value in self.options if flag in flags and value]

    @cached_property
    def requirement(self) -> Requirement | None:
        """The requirement by name (PEP 508); None where it is a path, an address or nothing."""
        return requirement_of(self.wanted)

    @cached_property
    def place(self) -> str:
        """The path or address that is installed; empty where pip looks for a name."""
        if self.requirement is not None:
            return self.requirement.url or ""
        editable = self.values("--editable")
        found = editable[0] if editable else self.wanted
        return found if is_place(found) else ""

    @cached_property
    def name(self) -> str:
        """The normalised name of the distribution; empty where the line does not say one."""
        if self.requirement is not None:
            return canonicalize_name(self.requirement.name)
        egg = re.search(r"[#&]egg=([\w.-]+)", self.place)
        wheel = _WHEEL.search(self.place.partition("#")[0].rpartition("/")[2])
        return canonicalize_name(egg[1] if egg else wheel[1] if wheel else "")

    @property
    def is_source(self) -> bool:
        """Whether pip has to build what the line names: a repository, an archive or a directory."""
        return bool(self.place) and not self.place.partition("#")[0].endswith(".whl")

    @cached_property
    def pinned(self) -> str:
        """The version of an exact pin; empty for any other requirement."""
        specifiers = list(self.requirement.specifier) if self.requirement is not None else []
        exact = [one.version for one in specifiers if one.operator in {"==", "==="}]
        return exact[0] if len(exact) == 1 and len(specifiers) == 1 and not exact[0].endswith("*") else ""

    @property
    def local(self) -> str:
        """The local label of the pin, normalised; empty without one."""
        try:
            return Version(self.pinned).local or ""
        except InvalidVersion:
            return ""

    @property
    def public(self) -> str:
        """The pinned version without its label; empty where nothing is pinned."""
        try:
            return Version(self.pinned).public
        except InvalidVersion:
            return ""

    def with_pin(self, version: str) -> str:
        """Write the line with another exact version; extras, marker and options stay."""
        one = self.requirement
        if one is None:
            return self.text
        extras = f"[{','.join(sorted(one.extras))}]" if one.extras else ""
        marker = f" ; {one.marker}" if one.marker else ""
        rest = f" {self._parts[1]}" if self._parts[1] else ""
        return f"{one.name}{extras}=={version}{marker}{rest}"


def _flag(word: str) -> tuple[str, str, bool]:
    """Give the long name of an option, its value, and whether that was in the same word."""
    if word.startswith("--"):
        flag, joined, value = word.partition("=")
        whole = [one for one in _KNOWN if one.startswith(flag)] if flag not in _KNOWN else [flag]
        return (whole[0] if len(whole) == 1 else flag), value, bool(joined)
    long = _WITH_VALUE.get(word[:2], word[:2])
    return long, word[2:], len(word) > len("-x")


def is_known(flag: str) -> bool:
    """Tell whether pip takes an option in a requirements file."""
    return flag in _KNOWN


def requirement_of(text: str) -> Requirement | None:
    """Read a requirement; None for anything else, such as the name of a file that pip would take.

    Examples
    --------
    >>> requirement_of("torch-2.9.1-cp312-cp312-linux_x86_64.whl") is None
    True
    """
    if "@" not in text and text.lower().endswith((".whl", *_SOURCE)):
        return None
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def is_place(text: str) -> bool:
    """Tell whether pip takes a word as a path or an address.

    Examples
    --------
    >>> [is_place(one) for one in ("./a.whl", "git+https://host/x", "wheels/a.whl", "torch", "A=1")]
    [True, True, True, False, False]
    """
    if " " in text and not text.startswith(("/", "./", "../")):
        return False
    start = text.partition("#")[0].lower()
    return "/" in start or start.startswith(".") or start.endswith((".whl", *_SOURCE))
