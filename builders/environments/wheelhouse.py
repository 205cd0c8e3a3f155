"""Wheels of torch and of build requirements: fetched once, with hashes, for builds without network.

Below the cache::

    wheels/<sha256>/<file>        each wheel once, whoever wanted it
    wheelhouses/<key>.json        what a set of requirements came to: names, versions, files, hashes
    wheelhouses/<key>.part/       a fetch that is not finished; a later one takes up its downloads

The manifest is written last. Only wheels are taken: a build requirement that has to be built itself
would run with the network on, and need an environment of its own.
"""

from __future__ import annotations

import re
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from builders.cache import cache_root
from builders.containers.runtime import Bind, View, run_in
from builders.environments.kept import cache_errors, digest
from builders.environments.pipconfig import linked_directories, local_directory, pip_settings, reachable
from builders.environments.piptool import pip_of
from builders.environments.python import python_view
from builders.files import only_one, sha256_of, write_atomic
from builders.process import log_size, read_since
from resolver.errors import CommandError, EnvironmentLacksError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from builders.containers.runtime import Runtime
    from builders.environments.python import TargetPython
    from resolver.reporter import Reporter

_CUDA = ("nvidia-", "cuda-")
_UNREACHED = re.compile(
    "NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProxyError|SSLError"
    "|connection error:"
)
_HOST = re.compile(r"host='([^']+)'")
_TAIL = 200_000  # characters of a log that are searched for servers that did not answer


class Wheel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A wheel in the cache."""

    name: str
    """Normalised."""
    version: str
    file: str
    sha256: str
    size: int
    """In bytes."""

    @property
    def path(self) -> Path:
        """Where it is."""
        return cache_root() / "wheels" / self.sha256 / self.file


class Wheelhouse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a set of requirements came to."""

    requirements: tuple[str, ...]
    wheels: tuple[Wheel, ...]
    """By name."""
    above: bool = False
    """Whether they need some of the wheels that were there already, which are then not among them."""


def fetch_wheels(
    runtime: Runtime,
    python: TargetPython,
    requirements: Sequence[str],
    *,
    log: Path,
    reporter: Reporter,
    indexes: Sequence[str] = (),
    mirrored: Callable[[str], str] = str,
    over: Sequence[Wheel] = (),
    offline: bool = False,
) -> Wheelhouse:
    """Fetch requirements and all that they need, or take them from the cache.

    Parameters
    ----------
    place, python
        What the wheels are for; pip runs there, so that it takes the right ones.
    requirements
        As PEP 508 has them; torch pinned with its local version label.
    log
        Where pip's output goes.
    reporter
        Told what is being done.
    indexes
        Wheel indexes to offer to pip besides the configured ones, if they can be reached.
    mirrored
        Gives the URL to use instead of one.
    over
        Wheels that are there already: one with a local version label is not taken in another version.
    offline
        Take them from the cache or not at all.

    Raises
    ------
    EnvironmentLacksError
        Something could not be found or fetched, or it is for CUDA.
    UsageError
        What is no requirement.
    """
    wanted = tuple(sorted({_checked(text) for text in requirements}))
    pinned = {wheel.name: wheel for wheel in over if "+" in wheel.version}
    key = digest(
        python.abi,
        python.version,
        python.glibc,
        python.machine,
        wanted,
        sorted(indexes),
        sorted(wheel.sha256 for wheel in over),
    )
    manifest = cache_root() / "wheelhouses" / f"{key}.json"
    if found := _kept(manifest, offline=offline):
        return found
    if offline:
        msg = f"The wheels of {', '.join(wanted)} for Python {python.minor} are not in the cache."
        raise EnvironmentLacksError(msg, hint="Run `matrix fetch` once where there is network.")
    with cache_errors(), only_one(manifest.with_suffix(".lock")):
        if found := _kept(manifest, offline=offline):  # another run was quicker
            return found
        with _staging(manifest.with_suffix(".part")) as part:
            limits = "".join(f"{one.name}=={one.version}\n" for one in pinned.values())
            (part / "constraints.txt").write_text(limits)
            reporter.step(f"fetch {', '.join(wanted)} and what they need")
            links = [str(one.path.parent) for one in over]
            _download(
                runtime,
                python,
                wanted,
                part,
                log=log,
                reporter=reporter,
                indexes=indexes,
                mirrored=mirrored,
                links=links,
            )
            files = sorted((part / "files").iterdir())
            _check(files, wanted, [*pinned])
            wheels = sorted(map(_store, files), key=lambda one: one.name)
            # What does not need torch is whole in itself, so that builds against any torch can share it.
            above = any(one in wheels for one in pinned.values())
            house = Wheelhouse(wanted, tuple(one for one in wheels if not above or one not in over), above)
            write_atomic(manifest, msgspec.json.format(msgspec.json.encode(house), indent=1).decode() + "\n")
        return house


@contextmanager
def _staging(part: Path) -> Iterator[Path]:
    """Give the directory of a fetch; what pip had downloaded whole stays there when the fetch fails."""
    half = [part / "files", part / "tmp"]
    _remove_all(half)
    for directory in half:
        directory.mkdir(parents=True)
    try:
        yield part
    except BaseException:
        _remove_all(half)
        raise
    _remove_all([part])


def _remove_all(directories: Sequence[Path]) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def damaged(wheels: Sequence[Wheel]) -> list[Wheel]:
    """Give the wheels whose file is not what was fetched, and remove these files."""
    bad = [one for one in wheels if not one.path.is_file() or sha256_of(one.path) != one.sha256]
    for one in bad:
        one.path.unlink(missing_ok=True)
    return bad


def _checked(text: str) -> str:
    try:
        return str(Requirement(text))
    except InvalidRequirement as error:
        reason = str(error).partition("\n")[0]
        msg = f"{text!r} is no requirement: {reason}"
        raise UsageError(msg, hint="Write it as PEP 508 has it, such as ninja>=1.11.") from None


def _kept(manifest: Path, *, offline: bool) -> Wheelhouse | None:
    house = _read(manifest)
    return house if house and (offline or not _made_anew(house)) else None


def _read(manifest: Path) -> Wheelhouse | None:
    """Read a manifest; one that is damaged, or whose wheels are gone, counts as not there."""
    try:
        house = msgspec.json.decode(manifest.read_bytes(), type=Wheelhouse)
        whole = all(one.path.stat().st_size == one.size for one in house.wheels)
    except (OSError, msgspec.MsgspecError):
        return None
    return house if whole else None


def _made_anew(house: Wheelhouse) -> bool:
    """Tell whether a directory that pip is told to look into has one of the wheels as another file.

    On an index a file never changes; in a directory of one's own a version is built again and again.
    """
    folders = linked_directories()
    return any(_differs(folder / wheel.file, wheel) for folder in folders for wheel in house.wheels)


def _differs(file: Path, wheel: Wheel) -> bool:
    try:
        said, fetched = file.stat(), wheel.path.stat()
    except OSError:
        return False
    if said.st_size != wheel.size:
        return True
    return said.st_mtime > fetched.st_mtime and sha256_of(file) != wheel.sha256


def _store(file: Path) -> Wheel:
    """Give a fetched wheel its final place."""
    name, version, _, _ = parse_wheel_filename(file.name)
    wheel = Wheel(name, str(version), file.name, sha256_of(file), file.stat().st_size)
    wheel.path.parent.mkdir(parents=True, exist_ok=True)
    file.chmod(0o444)
    file.replace(wheel.path)
    return wheel


def _download(
    runtime: Runtime,
    python: TargetPython,
    wanted: Sequence[str],
    part: Path,
    *,
    log: Path,
    reporter: Reporter,
    indexes: Sequence[str],
    mirrored: Callable[[str], str],
    links: Sequence[str],
) -> None:
    pip = pip_of(runtime, python, log=log)
    options = [f"--find-links={one}" for one in links]
    binds = [Bind(part, writable=True), Bind(pip.parent), *(Bind(Path(one)) for one in links)]
    unreached = []
    for url in map(mirrored, indexes):
        if reachable(url):
            options.append(f"--extra-index-url={url}")
            binds += [bind for bind in [local_directory(url)] if bind is not None]
        else:
            unreached.append(url)
            reporter.step(f"{url} cannot be reached; pip looks only where it is configured to")
    settings = pip_settings(mirrored, default_index=_public_index())
    view = python_view(python, binds=[*settings.binds, *binds], network=True)
    own = {"PIP_CACHE_DIR": str(part / "pip"), "TMPDIR": str(part / "tmp")}
    view = View(env={**view.env, **settings.env, **own}, binds=view.binds, network=True)
    command = [
        str(python.path), str(pip), "download", "--only-binary=:all:", f"--dest={part / 'files'}",
        f"--constraint={part / 'constraints.txt'}", *options, *wanted,
    ]  # fmt: skip
    start = log_size(log)
    try:
        with cache_errors():
            run_in(runtime, command, view, what=f"Fetching {', '.join(wanted)}", log=log)
    except CommandError as error:
        raise EnvironmentLacksError(error.message, hint=_cure(log, start, unreached)) from None


def _cure(log: Path, start: int, unreached: Sequence[str]) -> str:
    """Say what to do, by what could not be reached and what pip said."""
    said = read_since(log, max(start, log_size(log) - _TAIL))
    failed = [line for line in said.splitlines() if _UNREACHED.search(line)]
    silent = [host for line in failed for host in _HOST.findall(line)]
    if failed and not silent:
        silent = ["an index that pip is configured to use"]
    away = [*unreached, *dict.fromkeys(host for host in silent if not any(host in url for url in unreached))]
    if away:
        return (
            f"Not reached from here: {', '.join(away)}. Run this where there is network, map the "
            f"address to a mirror ([mirrors] in matrix.toml), or put the wheels into a directory and name "
            f"it in PIP_FIND_LINKS."
        )
    return (
        "No index that pip knows has such wheels for this Python and this image's glibc. Sources are not "
        "built here: make a wheel of what has none, and name its directory in PIP_FIND_LINKS."
    )


def _check(files: Sequence[Path], wanted: Sequence[str], pinned: Sequence[str]) -> None:
    """Refuse what is for CUDA, and a torch that nobody asked for."""
    asked = {canonicalize_name(Requirement(text).name) for text in wanted} | {*pinned}
    for file in files:
        try:
            name = parse_wheel_filename(file.name)[0]
        except InvalidWheelFilename:
            msg = f"pip fetched {file.name}, which is no wheel."
            raise EnvironmentLacksError(msg, hint="Only wheels are taken.") from None
        if name.startswith(_CUDA):
            msg = f"The wheels of {', '.join(wanted)} would bring {file.name}: that is for CUDA."
            raise EnvironmentLacksError(
                msg,
                hint="Pin torch with its label, such as torch==2.9.1+rocm6.4, and look for what needs CUDA.",
            )
        if name == "torch" and name not in asked:
            msg = f"One of {', '.join(wanted)} needs torch, and no torch is pinned: {file.name} would come."
            raise EnvironmentLacksError(msg, hint="Let the recipe name torch among its build requirements.")


def _public_index() -> str:
    """Give the index that pip uses when it is told nothing."""
    import pypi_simple

    return str(pypi_simple.PYPI_SIMPLE_ENDPOINT)
