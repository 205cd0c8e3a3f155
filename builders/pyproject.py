"""Read ``pyproject.toml`` without running the build backend (PEP 621, PEP 735)."""

from __future__ import annotations

import tomllib
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
from packaging.dependency_groups import DependencyGroupResolver
from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement

from resolver.errors import UsageError, did_you_mean
from resolver.indexes import Metadata
from resolver.requirements import normalize_name
from resolver.texts import read_text
from resolver.versions import is_version, shorten, specifier_or_none

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


FILE = "pyproject.toml"
_NEEDED = ("dependencies", "optional-dependencies", "requires-python")
Declaration = tuple[str, "Requirement"]
"""The key that declares a requirement, and the requirement."""


class ProjectTable(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The ``[project]`` table, as far as resolving needs it."""

    name: str
    version: str = ""
    description: str = ""
    requires_python: str = ""
    dependencies: tuple[str, ...] = ()
    optional_dependencies: dict[str, tuple[str, ...]] = {}
    dynamic: tuple[str, ...] = ()


class BuildSystem(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The ``[build-system]`` table (PEP 517)."""

    requires: tuple[str, ...] = ()
    build_backend: str = "setuptools.build_meta:__legacy__"
    backend_path: tuple[str, ...] = ()


class PyProject(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The tables of a ``pyproject.toml`` that matter for resolving."""

    project: ProjectTable | None = None
    build_system: BuildSystem = BuildSystem()
    dependency_groups: dict[str, list[Any]] = {}
    tool: dict[str, Any] = {}


def read_pyproject(path: Path) -> PyProject:
    """Read a ``pyproject.toml``."""
    try:
        return msgspec.convert(tomllib.loads(read_text(path)), PyProject)
    except (tomllib.TOMLDecodeError, RecursionError, msgspec.ValidationError) as error:
        msg = f"{path} is not a valid {FILE}: {error}."
        raise UsageError(msg) from None


def read_project(top: Path) -> PyProject:
    """Read the ``pyproject.toml`` of a source tree, which may have only a ``setup.py``."""
    if (top / FILE).is_file():
        return read_pyproject(top / FILE)
    if not (top / "setup.py").is_file():
        msg = f"{top} is not a Python project: it has neither {FILE} nor setup.py."
        raise UsageError(msg, hint="Name the directory that contains one of these files.")
    return PyProject()


def static_metadata(path: Path, version: str = "") -> Metadata | None:
    """Return the metadata that a ``pyproject.toml`` states; None if a build may compute a part of them.

    `version` is that of a project that computes nothing else. Raise `UsageError` if a part is invalid.
    """
    project = read_pyproject(path).project if path.is_file() else None
    if project is None or not {*_NEEDED}.isdisjoint(project.dynamic):
        return None
    version = project.version or version
    if not version:
        return None
    if not is_version(version):
        msg = f"{path}: project.version: {shorten(version)!r} is not a valid version (PEP 440)."
        raise UsageError(msg)
    requires = [str(requirement) for _, requirement in _dependencies(project, path)]
    for extra in project.optional_dependencies:
        marker = f'extra == "{normalize_name(extra)}"'
        requires += [str(_with_marker(row, marker)) for _, row in _of_extra(project, path, extra)]
    return Metadata(
        normalize_name(project.name),
        version,
        tuple(requires),
        tuple(map(normalize_name, project.optional_dependencies)),
        project.requires_python,
        f"its {FILE}",
    )


def requirements_of(
    document: PyProject, path: Path, extras: Sequence[str], groups: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield the requirements of a project, some extras and dependency groups, each with its key.

    Its ``requires-python`` becomes a requirement on ``python``. A requirement on the project itself with
    extras, such as ``name[test]``, is replaced by the requirements of these extras.
    """
    project = document.project
    declarations: list[Declaration] = []
    if project is None:
        if extras or not groups:
            msg = f"{path} has no [project] table, so it lists no dependencies."
            hint = "Name a dependency group with --group." if document.dependency_groups else ""
            raise UsageError(msg, hint=hint)
    else:
        if dynamic := [key for key in ("dependencies", "optional-dependencies") if key in project.dynamic]:
            msg = f"{path}: project.{dynamic[0]} is dynamic: the build backend reads it from elsewhere."
            raise UsageError(msg, hint="If it comes from a requirements file, name that file with -r.")
        if project.requires_python:
            if specifier_or_none(project.requires_python) is None:
                text = shorten(project.requires_python)
                msg = f"{path}: project.requires-python: {text!r} is not a valid specifier (PEP 440)."
                raise UsageError(msg, hint="Write it as >=3.10")
            yield "project.requires-python", f"python{project.requires_python}"
        declarations += _dependencies(project, path)
        for extra in extras:
            declarations += _of_extra(project, path, extra)
    declarations += _of_groups(document, path, groups)
    for key, requirement in _without_self(declarations, project, path):
        yield key, str(requirement)


def _dependencies(project: ProjectTable, path: Path) -> Iterator[Declaration]:
    return _parsed(project.dependencies, path, "project.dependencies")


def _of_extra(project: ProjectTable, path: Path, extra: str) -> Iterator[Declaration]:
    for name, texts in project.optional_dependencies.items():
        if normalize_name(name) == normalize_name(extra):
            return _parsed(texts, path, f"project.optional-dependencies.{name}")
    msg = f"{path} has no extra {shorten(extra)!r}."
    hint = did_you_mean(extra, project.optional_dependencies) or "It has no optional dependencies."
    raise UsageError(msg, hint=hint)


def _of_groups(document: PyProject, path: Path, groups: Sequence[str]) -> Iterator[Declaration]:
    if not groups:
        return
    known = {normalize_name(name) for name in document.dependency_groups}
    for group in groups:
        if normalize_name(group) not in known:
            msg = f"{path} has no dependency group {shorten(group)!r}."
            hint = did_you_mean(group, document.dependency_groups) or "The file has no dependency groups."
            raise UsageError(msg, hint=hint)
    try:
        resolver = DependencyGroupResolver(document.dependency_groups)
        for group in groups:
            for requirement in resolver.resolve(group):
                yield f"dependency-groups.{group}", requirement
    except ExceptionGroup as problems:
        reasons = "; ".join(shorten(str(problem), 200) for problem in problems.exceptions)
        msg = f"{path}: [dependency-groups] is not valid: {reasons}."
        raise UsageError(msg) from None
    except RecursionError:
        msg = f"{path}: [dependency-groups] is not valid: nested too deeply."
        raise UsageError(msg) from None


def _without_self(
    declarations: Iterable[Declaration], project: ProjectTable | None, path: Path
) -> Iterator[Declaration]:
    """Replace requirements on the project itself with those of the extras that they name."""
    queue = deque((key, requirement, frozenset[str]()) for key, requirement in declarations)
    done: set[tuple[str, frozenset[str]]] = set()
    while queue:
        key, requirement, markers = queue.popleft()
        if project is None or normalize_name(requirement.name) != normalize_name(project.name):
            for marker in sorted(markers):
                _with_marker(requirement, marker)
            yield key, requirement
            continue
        markers |= {str(requirement.marker)} if requirement.marker else set()
        for extra in sorted(requirement.extras):
            if (extra, markers) not in done:
                done.add((extra, markers))
                queue += [(name, row, markers) for name, row in _of_extra(project, path, extra)]


def _with_marker(requirement: Requirement, marker: str) -> Requirement:
    """Add a condition to the marker of a requirement."""
    old = f"({requirement.marker}) and " if requirement.marker else ""
    requirement.marker = Marker(f"{old}({marker})" if old else marker)
    return requirement


def _parsed(texts: Iterable[str], path: Path, key: str) -> Iterator[Declaration]:
    for text in texts:
        try:
            yield key, Requirement(text)
        except (InvalidRequirement, RecursionError):
            msg = f"{path}: {key}: {shorten(text)!r} is not a valid requirement."
            raise UsageError(msg, hint="Write a name, or a name and versions: torch>=2.4") from None
