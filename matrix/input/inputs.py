"""The requirements that a user states: on the command line, in ``matrix.toml`` and in files.

`matrix.judging` parses files; importing it takes longer than most resolutions. If pip would use a line that
`matrix` does not, an error or a warning names it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from matrix.reading.requirements import (
    HINT,
    OPTIONS,
    VARIABLE,
    followed,
    is_index_of_torch,
    lines_of,
    open_included,
)
from resolver.errors import MatrixError, UsageError
from resolver.model import Requirement, Resolution
from resolver.requirements import normalize_name, parse_requirement
from resolver.texts import read_text
from resolver.versions import join_words, minor, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builders.network.urls import PackageSources
    from matrix.input.settings import Settings
    from matrix.reading.items import Item, Reading
    from matrix.reading.requirements import Role

_LONGEST_LINE = 100_000  # characters; pip's parser of options needs minutes for longer ones
_SPECIAL = re.compile(r"^[-.]|[/@\t]|\s-|\$\{|\.(whl|zip|tgz|tar\.\w+)$")
"""Finds options, paths, URLs, direct references and variables."""
_IGNORED = {
    "--pre": "To allow pre-releases of a distribution, name one in its requirement, such as name>=2.0rc1."
}
"""Options that `matrix` ignores, each with a hint on what to do instead."""


StatedHashes = tuple[str, set[str]]
"""Where hashes of a distribution are first stated (file and line), and the SHA-256 that are allowed."""


class Inputs(msgspec.Struct, kw_only=True):
    """The user's requirements from all sources, in the given order."""

    requirements: list[Requirement] = []
    constraints: list[Requirement] = []
    overrides: list[Requirement] = []
    index_url: str | None = None
    """The package index; None means the index in pip's configuration."""
    extra_index_urls: list[str] = []
    find_links: list[str] = []
    """URLs of directories and of pages with links."""
    no_index: bool = False
    bound: dict[str, str] = {}
    """By distribution, the index that a lock (``pylock.toml``) names for it."""
    hashes: dict[str, StatedHashes] = {}
    """By distribution, the files that requirements files allow (``--hash``)."""
    warnings: list[str] = []
    _done: set[tuple[str, Role]] = set()  # real paths; a file may be required and constrain as well

    def of_kind(self, kind: Role) -> list[Requirement]:
        """Return the requirements of a kind."""
        return {"requirements": self.requirements, "constraints": self.constraints}.get(kind, self.overrides)

    def package_sources(self) -> PackageSources:
        """Return the indexes and find-links locations to use: those of the inputs, else those of pip."""
        from builders.network.urls import PackageSources, package_sources

        sources = package_sources(self.index_url or "", self.extra_index_urls)
        links = tuple(dict.fromkeys([*self.find_links, *sources.find_links]))
        return PackageSources((), links) if self.no_index else replace(sources, find_links=links)

    def own_indexes(self) -> tuple[str, ...]:
        """Return the indexes other than PyPI in order of preference, without logins."""
        from builders.network.urls import public_index, without_password

        urls = (without_password(url).rstrip("/") for url in self.package_sources().by_preference)
        return tuple(url for url in urls if url != public_index().rstrip("/"))

    def add(self, kind: Role, texts: Iterable[str], files: Iterable[str]) -> None:
        """Add requirements of the command line or of ``matrix.toml``, and requirements files."""
        for text in texts:
            _reject_file(text)
            if _SPECIAL.search(text.strip()):
                self._add_lines(followed(lines_of(text), "", kind, _refuse, seen=self._done))
            else:
                self._append(parse_requirement(text), kind, _Source())
        for file in files:
            self._add_file(file, kind)

    def _add_file(self, name: str, kind: Role) -> None:
        real = os.path.realpath(name)
        if (real, kind) in self._done:
            return
        self._done.add((real, kind))
        if Path(name).name.startswith("pylock."):
            from matrix.reading.locks import is_pylock, read_pylock

            if is_pylock(Path(name).name):
                self._add_reading(read_pylock(read_text(Path(name), pipes=True), name), kind)
                return
        path, text = open_included(name, "")
        lines = lines_of(text, path)
        self._add_lines(followed(lines, path, kind, _refuse, chain=(real,), seen=self._done))

    def add_environment(self, path: Path) -> None:
        """Add the pip section of a conda environment file, and its Python."""
        from matrix.reading.conda_file import read

        reading = read(read_text(path, hint=HINT, pipes=True), str(path))
        _reject_unread(reading, _Source(str(path)))
        self._add_reading(reading)

    def add_project(self, path: Path, extras: Sequence[str], groups: Sequence[str]) -> None:
        """Add the dependencies in a ``pyproject.toml``."""
        from builders.pyproject import FILE
        from matrix.reading.project import read

        path = path / FILE if path.is_dir() else path
        self._add_reading(read(read_text(path), str(path), extras, groups, strict=True))

    def _add_reading(self, reading: Reading, kind: Role = "requirements") -> None:
        """Add what a conda environment file, a project or a lock installs with pip, and its Python."""
        from builders.network.urls import public_index

        source = _Source(reading.name, directory=str(Path(reading.name).parent))
        is_lock = reading.kind == "pylock.toml"
        if kind == "requirements":
            self._add_python(reading, source)
        lines = (replace(line, file=line.file or source.file) for line in reading.pip_lines)
        self._add_lines((("requirements", entry) for entry in lines), source.directory)
        bound: dict[str, str] = {}
        for item in () if reading.lines else reading.items:
            if item.name == "python" or item.installer == "conda":
                continue
            here = replace(source, line=item.line, key=item.name if is_lock else "")
            self._add_requirement(item.text if is_lock else item.requirement, kind, here)
            url = "".join(item.indexes[:1])
            # Packages from PyPI come from the configured index, which may be a mirror.
            if url and (
                url.rstrip("/") != public_index().rstrip("/") if is_lock else not is_index_of_torch(url)
            ):
                bound[item.name] = _index_url(url, here)
        self.bound |= bound
        if bound and is_lock:
            listed = join_words([*dict.fromkeys(bound.values())], joiner="and")
            self.warnings.append(f"{source.file} adds package indexes for packages that it locks: {listed}.")
        for item in reading.constraints:
            self._add_requirement(item.requirement, "constraints", replace(source, line=item.line))
        if not reading.lines:
            urls = [url for url in reading.index_urls if not is_index_of_torch(url)]
            self.extra_index_urls += [_index_url(url, source) for url in urls]
            for unread in filter(lambda each: each.matters, reading.unread):
                here = replace(source, line=unread.line)
                self.warnings.append(here.text(f"matrix ignores {unread.text}: {unread.reason}."))
        self._report_conda(reading, source)

    def _report_conda(self, reading: Reading, source: _Source) -> None:
        by_conda = (item.name for item in reading.items if item.installer == "conda")
        names = [name for name in dict.fromkeys(by_conda) if name != "pip"]
        if not names:
            return
        listed = join_words(names, most=20, joiner="and")
        text = f"conda installs {listed}: matrix does not resolve conda packages."
        required = {requirement.name for requirement in self.requirements}
        both = [name for name in names if normalize_name(name) in required]
        if both:
            text += f" pip also installs {join_words(both, most=20, joiner='and')}, over conda's files."
        self.warnings.append(source.text(text))

    def _add_python(self, reading: Reading, source: _Source) -> None:
        if reading.python:
            self.requirements.append(parse_requirement(f"python=={minor(reading.python)}.*"))
        for item in reading.items:
            if item.name == "python":
                self.requirements += _python_requirement(item, replace(source, line=item.line))

    def _add_lines(self, lines: Iterable[tuple[Role, Item]], directory: str = "") -> None:
        for kind, entry in lines:
            here = _Source(entry.file, entry.line if entry.file else 0, directory=directory)
            if len(entry.text) > _LONGEST_LINE:
                msg = f"the line has more than {_LONGEST_LINE} characters."
                raise here.error(msg, hint="Split it, or name a requirements file.")
            if not _SPECIAL.search(entry.text) and (requirement := _plain_requirement(entry.text)):
                self._append(requirement, kind, here)
                continue
            expanded = self._expanded(entry, here)
            if expanded is not None:
                _check_form(expanded, here)
                self._add_entry(expanded, kind, here)

    def _expanded(self, entry: Item, source: _Source) -> Item | None:
        """Replace variables as pip does; return None for an index whose variable is not set."""
        missing = [name for name in VARIABLE.findall(entry.text) if name not in os.environ]
        if missing and entry.text.startswith("--extra-index-url"):
            self.warnings.append(
                source.text(f"matrix ignores this index, because the variable {missing[0]} is not set.")
            )
            return None
        if missing:
            msg = f"the variable {missing[0]} is not set."
            raise source.error(msg, hint="Set it in the environment, or remove the line.")
        text = VARIABLE.sub(lambda match: os.environ[match[1]], entry.text)
        if text == entry.text:
            return entry
        return replace(entry, text=text)

    def _add_entry(self, entry: Item, kind: Role, source: _Source) -> None:
        line = entry.pip
        if line.requirement_text:
            self._add_requirement(line.requirement_text, kind, source)
            self._add_hashes(line.values("--hash"), kind, source)
            for flag in dict.fromkeys(flag for flag, _ in line.options if flag != "--hash"):
                self.warnings.append(source.text(f"matrix ignores {flag}."))
            return
        for flag, value in line.options:
            if flag == "--editable" and kind == "constraints":
                msg = "a constraint cannot be editable."
                raise source.error(msg, hint="Write a name and versions.")
            if flag == "--editable":
                self._add_requirement(value, kind, source, editable=True)
            elif flag in {"--requirement", "--constraint"}:
                continue  # the lines of that file follow
            elif flag in {"--index-url", "--extra-index-url", "--find-links", "--no-index"}:
                self._add_index(flag, value, source)
            else:
                self.warnings.append(source.text(f"matrix ignores {flag}. {_IGNORED.get(flag, '')}".rstrip()))

    def _add_hashes(self, hashes: Sequence[str], kind: Role, source: _Source) -> None:
        """Add the hashes of the last requirement; the index states only SHA-256."""
        if not hashes:
            return
        sha256 = {text.partition(":")[2].lower() for text in hashes if text.lower().startswith("sha256:")}
        if not sha256:
            msg = "the line has no SHA-256, the only hash that matrix can compare with the indexes."
            raise source.error(msg, hint="Add --hash=sha256:...")
        name = self.of_kind(kind)[-1].name
        _, known = self.hashes.setdefault(name, (source.text("").removesuffix(": ").rstrip(), set()))
        known |= sha256

    def _add_index(self, flag: str, url: str, source: _Source) -> None:
        if flag == "--no-index":
            self.no_index = True
            return
        url = _index_url(url, source)
        if flag == "--extra-index-url":
            self.extra_index_urls.append(url)
        elif flag == "--find-links":
            self.find_links.append(url)
        else:
            if self.index_url not in {None, url}:
                self.warnings.append(source.text("this --index-url replaces an earlier --index-url."))
            self.index_url = url

    def _add_requirement(self, text: str, kind: Role, source: _Source, *, editable: bool = False) -> None:
        from matrix.reading.pip_line import parse_line

        try:
            requirement = parse_line(text, source.directory, editable=editable)
        except UsageError as error:
            raise source.error(error.message, hint=error.hint) from None
        self._append(requirement, kind, source)

    def _append(self, requirement: Requirement, kind: Role, source: _Source) -> None:
        if kind == "constraints" and requirement.extras:
            msg = f"the constraint {shorten(requirement.text)!r} has extras, which pip rejects."
            raise source.error(msg, hint="Write the name without brackets.")
        self.of_kind(kind).append(requirement)


def with_stated_hashes(resolution: Resolution, hashes: Mapping[str, StatedHashes]) -> Resolution:
    """Return a resolution with only those files of its distributions that requirements files allow."""
    picks = []
    for pick in resolution.picks:
        where, stated = hashes.get(pick.name, ("", set()))
        if stated and pick.origin != "preinstalled":
            sources = {pin.sha256 for pin in (pick.sdist, pick.wheel) if pin}
            files = tuple(file for file in pick.files if file.sha256 in stated)
            if not files and not sources & stated:
                found = ", ".join(f"{file.name} {file.sha256 or 'without hash'}" for file in pick.files[:3])
                msg = (
                    f"{where}: no file of {pick.name} {pick.version} that fits the target has one of "
                    f"the stated hashes. Found: {found or 'no files'}."
                )
                raise MatrixError(
                    msg, hint="Correct the version or the hashes in the file.", id="hash-mismatch"
                )
            pick = replace(pick, files=files or pick.files)  # noqa: PLW2901
        picks.append(pick)
    return replace(resolution, picks=tuple(picks))


def read_inputs(settings: Settings) -> Inputs:
    """Read every source of requirements that the settings name."""
    if (settings.extras or settings.groups) and not settings.project:
        msg = f"{'--extra' if settings.extras else '--group'} needs a project."
        raise UsageError(msg, hint="Name its pyproject.toml with --project.")
    inputs = Inputs()
    index_url = _index_url(settings.index_url, _Source()) if settings.index_url else None
    inputs.extra_index_urls += [_index_url(url, _Source()) for url in settings.extra_index_url]
    inputs.add("requirements", settings.requirements, settings.requirement_files)
    if settings.env:
        inputs.add_environment(Path(settings.env))
    if settings.project:
        inputs.add_project(Path(settings.project), settings.extras, settings.groups)
    inputs.add("constraints", settings.constraints, settings.constraint_files)
    inputs.add("overrides", settings.overrides, settings.override_files)
    if settings.has_requirements and not inputs.requirements:
        files = [file for file in (*settings.requirement_files, settings.env, settings.project) if file]
        msg = f"There are no requirements in {join_words(files or ['matrix.toml'], joiner='and')}."
        raise UsageError(msg, hint="Add a requirement.")
    inputs.index_url = index_url or inputs.index_url
    for name in ("requirements", "constraints", "overrides", "extra_index_urls", "find_links"):
        setattr(inputs, name, list(dict.fromkeys(getattr(inputs, name))))
    return inputs


class _Source(msgspec.Struct, frozen=True):
    file: str = ""
    """Empty for the command line and ``matrix.toml``."""
    line: int = 0
    key: str = ""
    directory: str = ""
    """What paths are relative to: for pip the working directory, for conda that of its file."""

    def error(self, message: str, *, hint: str = "") -> UsageError:
        """Return an error that begins with the location."""
        return UsageError(self.text(message), hint=hint)

    def text(self, message: str) -> str:
        """Return a message that begins with the location."""
        place = [self.file, *([str(self.line)] if self.line else []), *([f" {self.key}"] if self.key else [])]
        return f"{':'.join(place)}: {message}" if self.file else message


def _reject_file(text: str) -> None:
    """Reject the name of a file with requirements, for which an option was forgotten."""
    suffix = Path(text).suffix.lower()
    option = OPTIONS.get(suffix)
    if option and "@" not in text and (suffix == ".txt" or Path(text).is_file()):
        msg = f"{shorten(text)!r} is a file, not a requirement."
        raise UsageError(msg, hint=f"Write {option} {shorten(text)}")


def _plain_requirement(text: str) -> Requirement | None:
    try:
        return parse_requirement(text)
    except UsageError:
        return None


def _refuse(entry: Item, error: UsageError) -> None:
    source = _Source(entry.file, entry.line if entry.file else 0)
    raise source.error(error.message, hint=error.hint) from None


def _reject_unread(reading: Reading, source: _Source) -> None:
    """Raise the first error in a conda environment file, or in a file that it names."""
    for finding in reading.findings:
        if finding.severity == "error":
            hint = finding.fix or f"`matrix check {reading.name}` shows how to correct it."
            raise replace(source, line=finding.evidence["line"]).error(finding.message, hint=hint)
    naming = {
        (line.file, line.line)
        for line in reading.pip_lines
        if line.text.startswith("-") and line.pip.values("--requirement", "--constraint")
    }
    for unread in reading.unread:
        if unread.matters and (unread.file, unread.line) in naming:
            here = replace(source, line=unread.line, file=unread.file or source.file)
            raise here.error(f"{unread.reason}.")


def _check_form(entry: Item, source: _Source) -> None:
    from matrix.judging.lines import check_line

    for finding in check_line(entry):
        corrected = [text for text in finding.evidence["corrected"] if not text.startswith("#")]
        hint = finding.fix or (f"Write: {'; '.join(map(shorten, corrected))}" if corrected else "")
        raise source.error(f"{shorten(entry.text)!r}: {finding.message}", hint=hint)


def _index_url(text: str, source: _Source) -> str:
    """Return the URL of an index or find-links location; a path may be relative to the file, as for pip."""
    if "://" not in text:
        for folder in (os.path.dirname(source.file), ""):  # noqa: PTH120  accepts any text, as does the next
            path = os.path.join(folder, text)  # noqa: PTH118
            if os.path.exists(path):  # noqa: PTH110
                return Path(path).absolute().as_uri()
    try:
        parts = urlsplit(text)
        if parts.scheme == "file" or (parts.scheme in {"http", "https"} and parts.hostname):
            return text
        from builders.network.urls import without_password

        shown = without_password(text)
    except ValueError:
        shown = text
    msg = f"{shorten(shown)!r} is not the URL of a package index, nor an existing path."
    raise source.error(msg, hint="Write https://HOST/PATH or file:///PATH")


def _python_requirement(item: Item, source: _Source) -> list[Requirement]:
    if not item.specifier:
        return []
    try:
        return [parse_requirement(f"python{item.specifier}")]
    except UsageError:
        msg = f"matrix cannot use {shorten(item.text)!r}."
        raise source.error(msg, hint="Write the Python as python=3.12 or python>=3.10,<3.13") from None
