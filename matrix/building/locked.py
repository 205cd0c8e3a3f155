"""What a lock names outside itself: the wheels in the index that it means, and the hosts of its files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builders.building.inputs import environment_of
from builders.building.plan import find_build_host, plan
from builders.index_client import IndexClient
from builders.network.urls import package_sources
from matrix.show.render import counted
from resolver.errors import MatrixError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from builders.index import Index
    from matrix.command_line.context import Context
    from matrix.input.settings import Settings
    from matrix.show.console import Console
    from resolver.facts.catalog import Catalog
    from resolver.indexes import File
    from resolver.model import Resolution


_HOST = re.compile(r"(?:://(?:[^/\s@]*@)?|^[\w.]+@)([^/\s:?#]+)")


def wheels_of_lock(
    lock: Resolution,
    catalog: Catalog,
    index: Index,
    console: Console,
    args: argparse.Namespace | None = None,
    *,
    candidates: Mapping[str, list[Path]] | None = None,
) -> dict[str, list[Path]]:
    """Return the wheels in the index of each distribution that a lock builds, by name.

    Of several builds of a version, only the one with the inputs of the lock is returned, or all, with a
    warning, if this machine cannot determine it. `candidates` are looked up unless the caller has them.
    `args` may have the options of a build host.
    """
    wheels = {**(candidate_wheels(lock, index) if candidates is None else candidates)}
    several = [name for name, paths in wheels.items() if len(paths) > 1]
    if not several:
        return wheels
    reason = "None of them was built from the inputs of the lock."
    options = {} if args is None else vars(args)
    try:
        build_host = find_build_host(
            lock,
            several,
            kind=options.get("where"),
            image=options.get("base_image"),
            python=options.get("python_from"),
            cpu=options.get("cpu", ""),
        )
        tasks = plan(lock, catalog, index, build_host, several)
    except MatrixError as error:
        tasks, reason = [], error.message.partition("\n")[0]
    wheels |= {task.pick.name: [task.wheel] for task in tasks if task.wheel and task.pick.name in several}
    for name in several:
        if len(wheels[name]) > 1:
            console.warning(
                f"{index.root} has {counted(len(wheels[name]), 'build')} of {name}, and it is not known "
                f"which of them the lock means. pip takes the newest. {reason}"
            )
    return wheels


def candidate_wheels(lock: Resolution, index: Index) -> dict[str, list[Path]]:
    """Return the wheels with the versions of a lock, preferably those that its Python can install."""
    rank = environment_of(lock).rank
    found = {pick.name: index.wheels_of(pick.name, pick.pinned) for pick in lock.built()}
    return {
        name: [path for path in paths if rank(path.name) is not None] or paths
        for name, paths in found.items()
    }


def report_hosts(context: Context) -> None:
    """Print the hosts that the lock fetches from and that the user's configuration does not name, if any."""
    hosts = unnamed_hosts(context.lock, context.settings, context.catalog)
    if hosts:
        names = ", ".join(hosts)
        context.console.info(f"The lock names hosts that your configuration does not name: {names}.")


def unnamed_hosts(lock: Resolution, settings: Settings, catalog: Catalog) -> list[str]:
    """Return the hosts in the URLs of a lock that neither the user nor the user's catalog names.

    A host is also named if a cached page of a configured index links to its files.
    """
    sources = package_sources(settings.index_url or "", settings.extra_index_url)
    mirrors = (*settings.mirrors, *settings.mirrors.values())
    named = _hosts([*sources.indexes, *sources.find_links, *mirrors, *settings.requirements])
    named |= _hosts(_urls_of_catalog(catalog))
    files: dict[str, list[tuple[str, File | None]]] = {}
    for name, url, file in _urls_of_lock(lock):
        for host in _hosts([url]) - named:
            files.setdefault(host, []).append((name, file))
    indexes = {url.rstrip("/") for url in sources.indexes}
    return sorted(host for host, rows in files.items() if not _is_linked(*rows[0], indexes, settings, host))


def _hosts(texts: Iterable[str]) -> set[str]:
    return {host.lower() for text in texts for host in _HOST.findall(text)}


def _urls_of_catalog(catalog: Catalog) -> Iterator[str]:
    yield from (row.index for row in catalog.torch.values())
    for release in catalog.release.values():
        yield release.index
        yield from (file.url for file in (release.sdist, release.wheel, *release.wheels) if file)
        yield from ([release.git.url] if release.git else [])


def _urls_of_lock(lock: Resolution) -> Iterator[tuple[str, str, File | None]]:
    """Yield every URL of the distributions, each with the name, and with its file if an index has it."""
    yield from (("", url, None) for url in lock.indexes)
    for pick in lock.distributions:
        yield pick.name, pick.index, None
        yield from ((pick.name, source.url, None) for source in (pick.sdist, pick.wheel, pick.git) if source)
        for file in pick.files:
            yield pick.name, file.index, None
            yield pick.name, file.url, file if file.index else None


def _is_linked(name: str, file: File | None, indexes: set[str], settings: Settings, host: str) -> bool:
    """Return whether the cached page of a project on a configured index links to a host."""
    if file is None or file.index not in indexes:
        return False
    client = IndexClient([file.index], mirrors=settings.mirrors, offline=True)
    try:
        project = client.project(name)
    except MatrixError:
        return False
    releases = project.releases[:1] if project else ()
    return any(urlsplit(other.url).hostname == host for release in releases for other in release.files)
