"""Wheels of torch and of build requirements, downloaded once with hashes for builds without network.

In the cache::

    wheels/<sha256>/<file>        each wheel once
    wheelhouses/<key>.json        the wheels for a set of requirements: names, versions, files, hashes
    wheelhouses/<key>.part/       an unfinished download, which the next download resumes

The manifest (``<key>.json``) is written last. Build requirements must have wheels: building one from source
would need the network and a separate environment. The exception is ``rocm``, of which AMD publishes only an
sdist, because it chooses what it requires for one GPU.

The content of wheels that others compiled is judged completely when they are fetched. Those that PyPI does
not have are also audited. Wheels of the catalog that its facts describe are not read.
"""

from __future__ import annotations

import re
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builders.constants import SOURCE_DATE_EPOCH
from builders.containers.runtime import Bind, run_in
from builders.environments.python import (
    ensure_pip,
    find_links_directories,
    is_reachable,
    local_bind,
    pip_settings,
    python_view,
)
from builders.findings import Finding
from builders.gpu import RULES, STORED
from builders.index_client import IndexClient
from builders.index_client.client import PYTORCH_HOST
from builders.index_client.stored import replace
from builders.machine.process import log_size, read_since
from builders.network.urls import package_sources, public_index, without_password
from builders.storage.files import cache_root, make_directories, make_readable, sha256_of, write_atomic
from builders.storage.io_errors import explain_cache_errors
from builders.storage.lease import digest, exclusive_lock
from builders.wheels.wheel import DamagedError
from resolver.errors import BuildError, CommandError, EnvironmentLacksError, UsageError
from resolver.facts.catalog import prebuilt
from resolver.indexes import IndexStrategy, judged
from resolver.requirements import is_for_cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from builders.containers.runtime import Runtime
    from builders.environments.python import TargetPython
    from resolver.facts.catalog import Catalog
    from resolver.indexes import Content, File, Project
    from resolver.model import Distribution, Resolution
    from resolver.reporter import Reporter


_UNREACHABLE = re.compile(
    "NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProxyError|SSLError"
    "|connection error:|error sending request|dns error|Failed to fetch"
)
"""Output of pip or uv when a server does not respond."""
_HOST = re.compile(r"host='([^']+)'")
_LOG_TAIL = 200_000  # bytes of a log that are searched for unreachable servers

DOES_NOT_FIT = "does-not-fit"
"""Id of the finding that a wheel cannot run on the target of its lock."""


class FetchedWheel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A wheel in the cache."""

    name: str
    version: str
    file: str
    sha256: str
    size: int
    """In bytes."""

    @property
    def path(self) -> Path:
        """The file."""
        return cache_root() / "wheels" / self.sha256 / self.file


class Wheelhouse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The wheels that a set of requirements resolves to."""

    requirements: tuple[str, ...]
    wheels: tuple[FetchedWheel, ...]
    """By name."""
    depends_on_base: bool = False
    """Whether the requirements depend on a constraint; `wheels` then excludes the constraints."""


class FetchOptions(msgspec.Struct, frozen=True):
    """The options of a download of wheels."""

    log: Path
    """Receives pip's output."""
    reporter: Reporter
    indexes: Sequence[str] = ()
    """Wheel indexes that pip uses in addition to the configured ones, if they are reachable."""
    mirrored: Callable[[str], str] = str
    """Maps a URL to its mirror."""
    offline: bool = False
    torch: tuple[FetchedWheel, ...] = ()
    """torch with everything that it requires, if the lock has their files; pip resolves only the rest."""
    rocm: str = ""
    """The requirement of ROCm's pip packages for development, if torch takes its ROCm from pip."""
    gfx: str = ""
    """The GPU architecture for which the sdist ``rocm`` chooses its requirements."""
    strategy: IndexStrategy = "unsafe-best-match"
    """Which of the indexes of pip's configuration count for a build requirement: all, as for pip itself."""


def fetch_wheels(
    runtime: Runtime,
    python: TargetPython,
    requirements: Sequence[str],
    options: FetchOptions,
    *,
    constraints: Sequence[FetchedWheel] = (),
) -> Wheelhouse:
    """Download requirements (PEP 508) and their dependencies, or take them from the cache.

    pip runs in the runtime, so it selects matching wheels. torch is pinned with its local version. A wheel in
    `constraints` that has a local version is not replaced by another version.
    """
    requested = tuple(sorted({_normalize(text) for text in requirements}))
    pinned = {wheel.name: wheel for wheel in constraints if "+" in wheel.version}
    key = digest(
        python.abi,
        python.version,
        python.glibc,
        python.machine,
        requested,
        sorted(options.indexes),
        sorted(wheel.sha256 for wheel in constraints),
        *([options.strategy] if options.strategy == "first-index" else []),
        *([options.gfx] if options.rocm in requested else []),
    )
    manifest = cache_root() / "wheelhouses" / f"{key}.json"
    if house := _cached(manifest, offline=options.offline):
        return house
    if options.offline:
        msg = f"The wheels of {', '.join(requested)} for Python {python.minor} are not in the cache."
        raise EnvironmentLacksError(
            msg, hint="Run `matrix farm fetch` once on a machine with network access."
        )
    with explain_cache_errors(), exclusive_lock(manifest.with_suffix(".lock")):
        if house := _cached(manifest, offline=False):  # another process downloaded it
            return house
        with _download_directory(manifest.with_suffix(".part")) as part:
            pins = "".join(f"{wheel.name}=={wheel.version}\n" for wheel in pinned.values())
            (part / "constraints.txt").write_text(pins)
            options.reporter.step(f"fetch {', '.join(requested)} with dependencies")
            links = [str(wheel.path.parent) for wheel in constraints]
            while True:
                _download(runtime, python, requested, part, links=links, options=options)
                files = sorted((part / "files").iterdir())
                _check(files, requested, [*pinned])
                others = _from_later_indexes(files, requested, pinned, options)
                if not others:
                    break
                # pip has no rule for this, so it is told which versions to ignore. Each turn adds a project.
                with (part / "constraints.txt").open("a") as written:
                    written.writelines(f"{line}\n" for line in others)
                _remove_all([part / "files"])
                make_directories(part / "files")
            wheels = sorted(map(_store, files), key=lambda wheel: wheel.name)
            # Requirements that do not depend on torch can be shared by builds for any torch.
            depends = any(wheel in wheels for wheel in pinned.values())
            kept = tuple(wheel for wheel in wheels if not depends or wheel not in constraints)
            house = Wheelhouse(requested, kept, depends)
            write_atomic(manifest, msgspec.json.format(msgspec.json.encode(house), indent=1).decode() + "\n")
        return house


def remove_damaged(wheels: Sequence[FetchedWheel]) -> list[FetchedWheel]:
    """Return the wheels whose file is missing or has another hash, and remove these files."""
    damaged = [wheel for wheel in wheels if not wheel.path.is_file() or sha256_of(wheel.path) != wheel.sha256]
    for wheel in damaged:
        wheel.path.unlink(missing_ok=True)
    return damaged


@contextmanager
def _download_directory(part: Path) -> Iterator[Path]:
    """Create the directory of a download; after a failure, pip's cache of complete files stays there."""
    partial = [part / "files", part / "tmp"]
    _remove_all(partial)
    for directory in partial:
        make_directories(directory)
    try:
        yield part
    except BaseException:
        _remove_all(partial)
        raise
    _remove_all([part])


def _remove_all(directories: Sequence[Path]) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def _normalize(text: str) -> str:
    try:
        return str(Requirement(text))
    except InvalidRequirement as error:
        reason = str(error).partition("\n")[0]
        msg = f"{text!r} is not a valid requirement: {reason}"
        raise UsageError(msg, hint="Write a PEP 508 requirement, such as ninja>=1.11.") from None


def _cached(manifest: Path, *, offline: bool) -> Wheelhouse | None:
    house = _read(manifest)
    if house is None or offline:
        return house
    # A local directory that pip searches may have another file for a wheel: it may be rebuilt.
    folders = find_links_directories()
    is_outdated = any(_differs(folder / wheel.file, wheel) for folder in folders for wheel in house.wheels)
    return None if is_outdated else house


def _read(manifest: Path) -> Wheelhouse | None:
    """Read a manifest; return None if it or a wheel is missing or damaged."""
    try:
        house = msgspec.json.decode(manifest.read_bytes(), type=Wheelhouse)
        complete = all(wheel.path.stat().st_size == wheel.size for wheel in house.wheels)
    except (OSError, msgspec.MsgspecError):
        return None
    return house if complete else None


def _differs(file: Path, wheel: FetchedWheel) -> bool:
    try:
        status, cached = file.stat(), wheel.path.stat()
    except OSError:
        return False
    if status.st_size != wheel.size:
        return True
    return status.st_mtime > cached.st_mtime and sha256_of(file) != wheel.sha256


def _store(file: Path) -> FetchedWheel:
    name, version, _, _ = parse_wheel_filename(file.name)
    wheel = FetchedWheel(name, str(version), file.name, sha256_of(file), file.stat().st_size)
    make_directories(wheel.path.parent)
    make_readable(file)
    file.replace(wheel.path)
    return wheel


def _download(
    runtime: Runtime,
    python: TargetPython,
    requested: Sequence[str],
    part: Path,
    *,
    links: Sequence[str],
    options: FetchOptions,
) -> None:
    log = options.log
    pip = ensure_pip(runtime, python, log=log)
    arguments = [f"--find-links={link}" for link in links]
    binds = [Bind(part, writable=True), Bind(pip.parent), *(Bind(Path(link)) for link in links)]
    unreachable = []
    for url in map(options.mirrored, options.indexes):
        if is_reachable(url):
            arguments.append(f"--extra-index-url={url}")
            binds += [bind for bind in [local_bind(url)] if bind is not None]
        else:
            unreachable.append(without_password(url))
            options.reporter.step(f"{unreachable[-1]} is not reachable; pip uses only its configured indexes")
    configured, files = pip_settings(options.mirrored, default_index=public_index())
    view = python_view(python, binds=[*files, *binds], network=True)
    own = {"PIP_CACHE_DIR": str(part / "pip"), "TMPDIR": str(part / "tmp")}
    take = ["download", "--only-binary=:all:", f"--dest={part / 'files'}"]
    if options.rocm in requested:
        # The cache of pip is new, so that it has no `rocm` for another GPU; the same sdist is the same wheel.
        take = ["wheel", "--only-binary=:all:", "--no-binary=rocm", f"--wheel-dir={part / 'files'}"]
        own |= {"ROCM_SDK_TARGET_FAMILY": options.gfx, "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH}
    view = msgspec.structs.replace(view, env={**view.env, **configured, **own})
    command = [
        str(python.path), str(pip), *take, f"--constraint={part / 'constraints.txt'}",
        *arguments, *requested,
    ]  # fmt: skip
    start = log_size(log)
    try:
        with explain_cache_errors():
            run_in(runtime, command, view, what=f"Fetching {', '.join(requested)}", log=log)
    except CommandError as error:
        constraints = (part / "constraints.txt").read_text().splitlines()
        excluding = [line.partition("!=")[0] for line in constraints if "!=" in line]
        hint = _download_hint(log, start, unreachable, excluding)
        raise EnvironmentLacksError(error.message, hint=hint) from None


def _download_hint(log: Path, start: int, unreachable: Sequence[str], excluding: Sequence[str]) -> str:
    output = read_since(log, max(start, log_size(log) - _LOG_TAIL))
    failed = [line for line in output.splitlines() if _UNREACHABLE.search(line)]
    hosts = [host for line in failed for host in _HOST.findall(line)]
    if failed and not hosts:
        hosts = ["a configured index"]
    others = [host for host in dict.fromkeys(hosts) if not any(host in url for url in unreachable)]
    if unreachable or others:
        return (
            f"Not reachable from here: {', '.join([*unreachable, *others])}. Run this on a machine with "
            f"network access, map the URL to a mirror ([mirrors] in matrix.toml), or put the wheels into a "
            f"directory and set PIP_FIND_LINKS to it."
        )
    if excluding:
        return (
            f"Of {', '.join(excluding)}, only versions on the first index that has the project are used. Put "
            f"wheels that fit into a directory and set PIP_FIND_LINKS to it, or write "
            f'index-strategy = "unsafe-best-match" into matrix.toml to use all indexes.'
        )
    return (
        "The configured indexes have no such wheels for this Python and the glibc of this image. Build "
        "requirements are not built from source: build the missing wheels and set PIP_FIND_LINKS to "
        "their directory."
    )


def _check(files: Sequence[Path], requested: Sequence[str], pinned: Sequence[str]) -> None:
    names = {canonicalize_name(Requirement(text).name) for text in requested} | {*pinned}
    for file in files:
        try:
            name = parse_wheel_filename(file.name)[0]
        except InvalidWheelFilename:
            msg = f"pip downloaded {file.name}, which is not a wheel."
            raise EnvironmentLacksError(msg, hint="Build requirements must have wheels.") from None
        if is_for_cuda(name):
            msg = f"{', '.join(requested)} would install {file.name}, which is for CUDA."
            hint = "Pin torch with its local version (torch==2.9.1+rocm6.4), or remove the requirement."
            raise EnvironmentLacksError(msg, hint=hint)
        if name == "torch" and name not in names:
            msg = f"{', '.join(requested)} would install {file.name}, but no torch is pinned."
            raise EnvironmentLacksError(msg, hint="Add torch to the recipe's build requirements.")


def _is_exact(file: Path, requested: Sequence[str]) -> bool:
    name, version, *_ = parse_wheel_filename(file.name)
    exact = {f"=={version}", f"==={version}"}
    requirements = map(Requirement, requested)
    return any(
        canonicalize_name(requirement.name) == name and str(requirement.specifier) in exact
        for requirement in requirements
    )


def _from_later_indexes(
    files: Sequence[Path], requested: Sequence[str], pinned: Collection[str], options: FetchOptions
) -> list[str]:
    """Return constraints that exclude what is not on the first index that has a project.

    pip takes the highest version of all indexes, so a stranger's project could replace that of another index
    (dependency confusion). Directories of find-links are the user's own; the indexes of torch are the
    catalog's.
    """
    urls = [*map(options.mirrored, package_sources().by_preference)]
    if options.indexes or options.strategy != "first-index" or len(urls) <= 1:
        return []
    # PyTorch's index has old versions of common build requirements, so it does not count as their first.
    urls.sort(key=lambda url: urlsplit(url).hostname == PYTORCH_HOST)
    first = IndexClient(urls, reporter=options.reporter)
    every = IndexClient(urls, reporter=options.reporter, strategy="unsafe-best-match")
    folders, constraints = find_links_directories(), []
    for file in files:
        name, version, *_ = parse_wheel_filename(file.name)
        if name in pinned or any((folder / file.name).exists() for folder in folders):
            continue
        project = first.project(name)
        if project is None:
            continue
        others = every.project(name) or project
        listed = next((one for one in _files_of(project) if one.name == file.name), None)
        other = next((one for one in _files_of(others) if one.name == file.name), None)
        own = {Version(release.version) for release in project.releases}
        if listed is None and other is not None and version not in own:
            if not _is_exact(file, requested):
                later = {Version(release.version) for release in others.releases} - own
                constraints.append(f"{name}{','.join(f'!={version}' for version in sorted(later))}")
        elif other is not None and (listed is None or (listed.sha256 and listed.sha256 != sha256_of(file))):
            index = next(_files_of(project)).index
            msg = f"pip downloaded {file.name}, but {index} comes first and has other files of this version."
            hint = (
                "Remove one of the indexes from pip's configuration, or put the right wheel into a directory "
                "and set PIP_FIND_LINKS to it."
            )
            raise EnvironmentLacksError(msg, hint=hint)
    return constraints


def _files_of(project: Project) -> Iterator[File]:
    return (file for release in project.releases for file in release.files)


def check_of(
    lock: Resolution, catalog: Catalog, exclude: Callable[[Distribution, str], None]
) -> Callable[[Distribution, Path], None]:
    """Return a check of files that others compiled; `exclude` gets misfits with evidence, one at a time."""
    names = {pick.name for pick in prebuilt(lock, catalog)}
    excluding = Lock()

    def check(pick: Distribution, path: Path) -> None:
        if pick.name in names:
            check_prebuilt(pick, path, lock.target.gfx)
        is_of_catalog = (pick.name, pick.version, pick.variant) in catalog.release
        if pick.name not in names and is_of_catalog:
            return
        finding = judge_fetched(pick, path, lock)
        if finding is not None:
            with excluding:
                exclude(pick, finding.evidence["content"])
            failure = BuildError(finding.message, hint=finding.fix, id="audit")
            failure.findings = (finding,)
            raise failure

    return check


def judge_fetched(pick: Distribution, path: Path, lock: Resolution) -> Finding | None:
    """Read a fetched wheel completely; return a finding if it does not fit the target of its lock."""
    if lock.target.backend != "rocm" or path.suffix != ".whl":
        return None
    content = _content_of(path, pick.files[0].sha256)
    judgement = judged(content, lock.target.gfx, lock.target.rocm or "") if content else None
    if judgement is None or judgement.state != "does-not-fit":
        return None
    text = f"{path.name} does not fit: it {judgement.evidence}."
    fix = (
        "The lock now excludes this file. Run `matrix resolve` again, which chooses another release, or "
        f"request another with {quote(f'{pick.name}!={pick.version}')}."
    )
    return Finding(DOES_NOT_FIT, "error", text, fix, {"file": path.name, "content": judgement.evidence})


def _content_of(path: Path, sha256: str) -> Content | None:
    """Return the complete content of a wheel; it is kept by its hash, because reading takes seconds."""
    stored = cache_root() / "contents" / f"{RULES}-{sha256}.msgpack"
    if sha256:
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            return STORED.decode(stored.read_bytes())
    from builders.gpu.content import read_complete

    try:
        content = read_complete(path)
    except DamagedError as error:
        msg = f"{path.name} is not a valid wheel: {error}."
        raise BuildError(msg, hint="Fetch it again, or request another release.", id="audit") from None
    if sha256:
        replace(stored, msgspec.msgpack.encode(content))
    return content


def check_prebuilt(pick: Distribution, path: Path, gfx: Sequence[str]) -> None:
    """Raise `BuildError` if the audit of a fetched wheel finds errors or a missing GPU architecture."""
    from builders.audit.wheel_audit import audit_wheel

    audit = audit_wheel(path)
    problems = [str(finding) for finding in audit.errors]
    code = {item.architecture for objects in audit.contents.code.values() for item in objects}
    missing = [target for target in gfx if target not in code]
    if missing and not path.name.endswith("-any.whl"):
        problems.append(f"{path.name} contains no code for {', '.join(missing)}.")
    if not problems:
        return
    listed = "".join(f"\n  - {problem}" for problem in problems)
    failure = BuildError(
        f"{path.name}, which others compiled, is not used:{listed}\n  File: {path}",
        hint=f"To build {pick.name}, resolve again with --no-prebuilt.",
        id="audit",
    )
    failure.findings = tuple(audit.errors)
    raise failure
