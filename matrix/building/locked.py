"""What a lock names outside itself: the wheels in the index that it means, and where its files come from.

A lock may come from others, and it names what `matrix` copies into directories that others can read. So a
lock that this user did not write must not name paths of this machine, except below an index or a directory
that the user's own configuration names; and every file that it names elsewhere must have a hash.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builders.building.inputs import environment_of
from builders.building.plan import find_build_host, plan
from builders.index_client import IndexClient
from builders.network.urls import git_commit, local_path, mirrored, package_sources, without_password
from matrix.input.inputs import read_inputs
from matrix.input.locking import is_own
from matrix.show.render import counted
from resolver.environment import tags_of
from resolver.errors import LockError, MatrixError
from resolver.indexes import File
from resolver.versions import grouped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from builders.building.plan import BuildHost
    from builders.index import Index
    from matrix.command_line.context import Context
    from matrix.input.settings import Settings
    from resolver.facts.catalog import Catalog
    from resolver.model import Resolution
    from resolver.reporter import Reporter


_MOST_LISTED = 5
_NOT_NAMED = (
    "If the files are yours, name their index or directory in matrix.toml or in pip's configuration (such as "
    "PIP_FIND_LINKS), or resolve again on this machine."
)
_HOST = re.compile(r"(?:://(?:[^/\s@]*@)?|^[\w.]+@)([^/\s:?#]+)")


def wheels_of_lock(
    context: Context, index: Index, candidates: Mapping[str, list[Path]] | None = None
) -> dict[str, list[Path]]:
    """Return the wheels in the index of each distribution that a lock builds, by name.

    Of several builds of a version, only the one with the inputs of the lock is returned, or all, with a
    warning, if this machine cannot determine it. `candidates` are looked up unless the caller has them.
    """
    wheels = {**(candidate_wheels(context.lock, index) if candidates is None else candidates)}
    several = [name for name, paths in wheels.items() if len(paths) > 1]
    if not several:
        return wheels
    reason = "None of them was built from the inputs of the lock."
    try:
        build_host = build_host_of(context, several)
        tasks = plan(context.lock, context.catalog_of_lock, index, build_host, several)
    except MatrixError as error:
        tasks, reason = [], error.message.partition("\n")[0]
    wheels |= {task.pick.name: [task.wheel] for task in tasks if task.wheel and task.pick.name in several}
    for name in several:
        if len(wheels[name]) > 1:
            context.console.warning(
                f"{index.root} has {counted(len(wheels[name]), 'build')} of {name}, and it is not known "
                f"which of them the lock means. pip takes the newest. {reason}"
            )
    return wheels


def build_host_of(context: Context, names: Sequence[str] = ()) -> BuildHost:
    """Return the build host for a lock that the options choose, if there are any."""
    lock, options = context.lock, vars(context.args)
    return find_build_host(
        lock,
        names,
        kind=options.get("where"),
        image=options.get("base_image"),
        python=options.get("python_from"),
        cpu=options.get("cpu") or "",
        site=context.catalog_of_lock.site[lock.target.site],
    )


def candidate_wheels(lock: Resolution, index: Index) -> dict[str, list[Path]]:
    """Return the wheels with the versions of a lock, preferably those that its Python can install."""
    rank = environment_of(lock).rank
    found = {pick.name: index.wheels_of(pick.name, pick.pinned) for pick in lock.built()}
    return {
        name: [path for path in paths if rank(tags_of(path.name)) is not None] or paths
        for name, paths in found.items()
    }


def check_sources(lock: Resolution, settings: Settings, catalog: Catalog, console: Reporter) -> None:
    """Print the hosts that a lock fetches from and that the user's configuration does not name, if any.

    Raise `LockError` if this user did not write the lock, and it names files that a lock of others must not
    name. `catalog` is the user's, without facts that only the lock names.
    """
    hosts = unnamed_hosts(lock, settings, catalog)
    if hosts:
        console.info(f"The lock names hosts that your configuration does not name: {', '.join(hosts)}.")
    safe = {"", "https", "git+https", "git+ssh"}
    files = [*_files_of(lock)]
    if all(file.sha256 and urlsplit(file.url).scheme in safe for _, file in files) or is_own(lock):
        return
    known = set(_urls_of_catalog(catalog))
    files = [row for row in files if not (row[1].sha256 and row[1].url.removeprefix("git+") in known)]
    inputs = read_inputs(settings)
    sources = inputs.package_sources()
    own = [*sources.indexes, *sources.find_links, *settings.mirrors.values()]
    own += [requirement.url for requirement in inputs.requirements]
    problems = {
        f"\n  {name}: {without_password(file.url) or file.name} {problem}": None
        for name, file in files
        if (problem := _problem(file, settings.mirrors, own, hosts))
    }
    if problems:
        listed = "".join([*problems][:_MOST_LISTED])
        msg = f"The lock was not written by you on this machine, so these of its files are not used:{listed}"
        raise LockError(msg, hint=_NOT_NAMED)


def _files_of(lock: Resolution) -> Iterator[tuple[str, File]]:
    """Yield all that is fetched with the name of its distribution; without a URL, an index has it.

    The hash of a commit is its name.
    """
    for pick in lock.distributions:
        yield from (
            (pick.name, File(pin.file, pin.url, pin.sha256)) for pin in (pick.sdist, pick.wheel) if pin
        )
        if pick.git:
            yield pick.name, File("", f"git+{pick.git.url}", pick.git.commit)
        for file in pick.files:
            git = git_commit(file.url)
            yield pick.name, File("", f"git+{git[0]}", git[1]) if git else file


def _problem(file: File, mirrors: Mapping[str, str], own: Sequence[str], unnamed: Sequence[str]) -> str:
    """Return why a lock of others must not name a file, as the end of a sentence; empty if it may.

    `own` are the URLs that the user's configuration names; `unnamed` the hosts to which it does not lead.
    """
    url = mirrored(file.url.removeprefix("git+"), mirrors)
    path = local_path(url)
    if path is not None:
        # Links are followed: a directory that came with the lock may have one to a private file.
        real = Path(os.path.realpath(path))
        roots = [os.path.realpath(root) for root in map(local_path, own) if root]
        return "" if any(map(real.is_relative_to, roots)) else "is not in an index or a directory of yours"
    if not file.sha256 and not _hosts([url]) & _hosts(own):
        return "has no SHA-256"
    if file.url.startswith("git+"):  # any server may have a commit
        return "" if _HOST.search(url) else "is not a URL of a server"
    scheme = urlsplit(url).scheme.lower()
    is_named = scheme == "http" and not _hosts([url]) & {*unnamed}
    return "" if scheme in {"", "https"} or is_named else "is not an https URL"


def unnamed_hosts(lock: Resolution, settings: Settings, catalog: Catalog) -> list[str]:
    """Return the hosts in the URLs of a lock that neither the user nor the user's catalog names.

    A host is also named if a cached page of a configured index links to its files.
    """
    named = _hosts(_urls_of_catalog(catalog))
    files = grouped(
        (host, (name, file)) for name, url, file in _urls_of_lock(lock) for host in _hosts([url]) - named
    )
    if not files:
        return []
    sources = package_sources(settings.index_url or "", settings.extra_index_url)
    mirrors = (*settings.mirrors, *settings.mirrors.values())
    for host in _hosts([*sources.indexes, *sources.find_links, *mirrors, *settings.requirements]):
        files.pop(host, None)
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
