"""``matrix catalog learn``: identify each argument, and read it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from builders.containers.image import is_local
from builders.learning import LearnedFacts
from builders.learning.machine import learn_image
from builders.learning.origin import ARCHIVES, is_git, learn_origin, read_origin
from matrix.api import package_indexes
from resolver.errors import SourceError, UsageError
from resolver.requirements import parse_requirement
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builders.index_client import IndexClient
    from matrix.command_line.context import Context
    from resolver.facts.catalog import Catalog
    from resolver.indexes import File

OUTPUT = Path("catalog") / "learned.toml"


def learn(names: Sequence[str], catalog: Catalog, context: Context) -> LearnedFacts:
    """Learn from wheels, sources and base images.

    `names` are paths of wheels, sdists, base images, source trees and directories with wheels; URLs of wheels
    and git repositories; names on an index, alone or with a version.
    """
    if not names:
        msg = "`matrix catalog learn` requires at least one name."
        raise UsageError(
            msg, hint="Name wheels, base images or distributions, as in `matrix catalog learn NAME==VERSION`."
        )
    learned = LearnedFacts()
    for name in names:
        if _is_source(name):
            learned.add(_from_source(name, catalog, context))
        elif is_local(Path(name)):
            for part in _from_path(Path(name), catalog, context):
                learned.add(part)
        else:
            for part in _from_index(name, catalog, context):
                learned.add(part)
    return learned


def _is_source(text: str) -> bool:
    """Return whether a name refers to an sdist, a source tree or a git repository."""
    if is_git(text):
        return True
    path = Path(text)
    return text.endswith(ARCHIVES) or (path / "pyproject.toml").is_file() or (path / "setup.py").is_file()


def _from_source(text: str, catalog: Catalog, context: Context) -> LearnedFacts:
    context.console.info(f"Reading {text} ...")
    settings = context.settings
    origin = read_origin(
        text,
        indexes=package_indexes(settings, context.inputs, context.console),
        mirrors=settings.mirrors,
        offline=settings.offline,
    )
    return learn_origin(origin, catalog, context.today)


def _from_path(path: Path, catalog: Catalog, context: Context) -> Iterator[LearnedFacts]:
    from builders.learning.wheel import learn_wheel

    wheels = [path] if path.suffix == ".whl" else []
    if path.is_dir() and not (path / "usr").is_dir():
        wheels = sorted(path.rglob("*.whl"))
        if not wheels:
            msg = f"The directory {path} contains no wheel."
            raise UsageError(msg)
    if not wheels:
        context.console.info(f"Inspecting {path} ...")
        yield learn_image(path, catalog, context.today)
    for wheel in wheels:
        context.console.info(f"Reading {wheel} ...")
        yield learn_wheel(wheel, catalog, context.today)


def _from_index(name: str, catalog: Catalog, context: Context) -> Iterator[LearnedFacts]:
    from builders.learning.wheel import learn_published, learn_url

    if "://" not in name and ("/" in name or name.endswith(".whl")):
        msg = f"{name!r} does not exist."
        raise UsageError(msg, hint="Name a file, a directory, a URL, or a project on the package index.")
    indexes = package_indexes(context.settings, context.inputs, context.console)
    if indexes is None:
        msg = f"{shorten(name)} is not a file, and no package index is configured."
        raise UsageError(msg, hint="Name a wheel or a base image, or configure an index for pip.")
    if "://" in name:
        context.console.info(f"Reading {name} ...")
        yield learn_url(name, catalog, indexes.transport, context.today)
        return
    wheels = _wheels_of(name, indexes)
    if not wheels:
        yield _from_source(name, catalog, context)
    for file in wheels:
        context.console.info(f"Reading {file.name} ...")
        yield learn_published(file, catalog, indexes.transport, context.today)


def _wheels_of(text: str, indexes: IndexClient) -> list[File]:
    """Return the wheels for Linux on x86_64 of the newest allowed release; none if there are only sdists."""
    requirement = parse_requirement(text)
    name, specifier = requirement.name, requirement.specifier
    project = indexes.project(name)
    where = f"Searched: {', '.join(indexes.urls)}."
    if project is None:
        msg = f"{shorten(text)} is not a file, and no index has a project {name}."
        raise SourceError(msg, hint=where)
    allowed = [
        release for release in project.releases if specifier is None or specifier.allows(release.version)
    ]
    for release in allowed:
        if wheels := [file for file in release.files if _is_for_linux(file.name) and file.sha256]:
            return wheels
    if any(not file.name.endswith(".whl") for release in allowed for file in release.files):
        return []
    msg = f"No release that matches {shorten(text)} has a wheel for Linux on x86_64 with a SHA-256."
    raise SourceError(msg, hint=f"{where} To learn how it is built, run `matrix catalog draft {name}`.")


def _is_for_linux(name: str) -> bool:
    """Return whether a wheel is for Linux on x86_64, or for any system, and for usual CPython."""
    if not name.endswith(".whl"):
        return False
    *_, python, abi, platform = name.removesuffix(".whl").split("-")
    if not python.startswith(("cp", "py")) or re.fullmatch(r"cp\d+t", abi):
        return False
    return platform == "any" or ("linux" in platform and platform.endswith("x86_64"))
