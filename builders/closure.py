"""Everything that a set of requirements comes to, with hashes: asked of a real resolver, nothing installed.

pip resolves it, for the Python and the glibc of the target (``pip install --dry-run --report``, pip's
documentation, "Installation report"). It reads markers for the Python that runs it, so that one must be
of the target's minor version. Where there is none, uv does it (``uv pip compile --generate-hashes``).
Only wheels are taken: nobody's setup.py is run to find out what it needs.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from packaging.utils import canonicalize_name

from builders.containers.runtime import HostRuntime, View, run_in
from builders.environments.pipconfig import pip_environment, pip_settings, reachable
from builders.environments.piptool import pip_of
from builders.environments.python import find_python
from builders.process import clean_environment, log_size, read_since, run
from builders.sources import index_url
from resolver.errors import CommandError, EnvironmentLacksError, MatrixError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builders.environments.python import TargetPython
    from resolver.reporter import Reporter

_CUDA = ("nvidia-", "cuda-")
_OPTION = "--extra-index-url"
_OLDEST_GLIBC = 5  # of manylinux1
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_UV_GLIBC = (17, 28, *range(31, 41))
"""Minors of glibc that ``uv pip compile --python-platform`` knows. Source: its help, uv 0.13."""
_UNREACHED = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProxyError|SSLError"
    r"|connection error:|error sending request|dns error|Failed to fetch"
)
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Member:
    """One distribution of a closure."""

    name: str
    """Normalised."""
    version: str
    sha256: tuple[str, ...]
    """Of the wheels that may be installed."""


class _Archive(msgspec.Struct, frozen=True):
    hash: str = ""
    hashes: dict[str, str] = {}


class _Download(msgspec.Struct, frozen=True):
    url: str
    archive_info: _Archive = _Archive()


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    version: str


class _Item(msgspec.Struct, frozen=True):
    download_info: _Download
    metadata: _Metadata


class _Report(msgspec.Struct, frozen=True):
    install: list[_Item]


def closure_of(
    lines: Sequence[str],
    *,
    python: str,
    log: Path,
    reporter: Reporter,
    given: Path | None = None,
    glibc: str = "",
) -> list[Member]:
    """Resolve requirements and all that they need, to wheels with their hashes.

    Parameters
    ----------
    lines
        Lines of a requirements file; options stand on lines of their own.
    python
        CPython minor of the target.
    log
        Where the resolver's output goes.
    reporter
        Told what is being done.
    given
        Interpreter or prefix that the user names for it.
    glibc
        That of the target; this machine's when empty.

    Returns
    -------
    list of Member
        By name.

    Raises
    ------
    EnvironmentLacksError
        An index cannot be reached, or there is neither such a Python nor uv.
    MatrixError
        They do not go together, an index has no such wheel, or something for CUDA is among them.
    """
    lines, away = _within_reach(lines, reporter)
    try:
        interpreter = find_python(HostRuntime(), python, given=given)
    except EnvironmentLacksError as error:
        uv = shutil.which("uv")
        if uv is None or given is not None:
            hint = f"Name one with --python-from PATH, or put uv on PATH. {error.hint}"
            raise EnvironmentLacksError(
                error.message.replace("to build for it", "to resolve for it"), hint=hint
            ) from None
        reporter.step(f"no Python {python} here; uv resolves")
        members = _with_uv(lines, uv=uv, python=python, glibc=glibc, log=log, away=away)
    else:
        reporter.step(f"resolve with the pip of {interpreter.path}")
        members = _with_pip(interpreter, lines, glibc, log, away)
    _check(members)
    return sorted(members, key=lambda one: one.name)


def platform_tags(glibc: str, machine: str = "x86_64") -> list[str]:
    """Give the platform tags of wheels that run with a glibc (PEP 600), newest first.

    Examples
    --------
    >>> platform_tags("2.18")[:3]
    ['manylinux_2_18_x86_64', 'manylinux_2_17_x86_64', 'manylinux2014_x86_64']
    """
    newest = int(glibc.split(".")[1])
    tags = []
    for number in range(newest, _OLDEST_GLIBC - 1, -1):
        tags.append(f"manylinux_2_{number}_{machine}")
        if number in _LEGACY:
            tags.append(f"{_LEGACY[number]}_{machine}")
    return [*tags, f"linux_{machine}"]


def _within_reach(lines: Sequence[str], reporter: Reporter) -> tuple[list[str], list[str]]:
    """Leave out the indexes that cannot be reached: pip would try each again for every project."""
    kept, away = [], []
    for line in lines:
        option, _, url = line.partition(" ")
        if option == _OPTION and not reachable(url):
            away.append(url)
            reporter.step(f"{url} cannot be reached; pip looks only where it is configured to")
        else:
            kept.append(line)
    return kept, away


def _with_pip(
    python: TargetPython, lines: Sequence[str], glibc: str, log: Path, away: Sequence[str]
) -> list[Member]:
    runtime = HostRuntime()
    pip = pip_of(runtime, python, log=log)
    with tempfile.TemporaryDirectory(prefix="matrix-closure-") as name:
        folder = Path(name)
        wanted, report = folder / "requirements.txt", folder / "report.json"
        wanted.write_text("\n".join(lines) + "\n", encoding="utf-8")
        tags = [f"--platform={tag}" for tag in platform_tags(glibc, python.machine)] if glibc else []
        command = [
            str(python.path), str(pip), "install", "--dry-run", "--ignore-installed", "--quiet",
            "--only-binary=:all:", f"--target={folder / 'target'}", *tags,
            f"--report={report}", f"--requirement={wanted}",
        ]  # fmt: skip
        view = View(env={**pip_environment(), "TMPDIR": name}, network=True)
        start = log_size(log)
        try:
            run_in(runtime, command, view, what="Resolving what is pinned and all that it needs", log=log)
        except CommandError as error:
            raise _failure(error, log, start, away) from None
        return [_member(item) for item in msgspec.json.decode(report.read_bytes(), type=_Report).install]


def _member(item: _Item) -> Member:
    said = item.download_info.archive_info
    digest = said.hashes.get("sha256", "") or said.hash.removeprefix("sha256=")
    if len(digest) != 64:  # noqa: PLR2004  digits of a SHA-256
        msg = f"{item.download_info.url} has no SHA-256, neither on its index page nor from pip."
        raise MatrixError(msg, hint="Leave out --hashes, or let the index publish hashes.")
    return Member(canonicalize_name(item.metadata.name), item.metadata.version, (digest,))


def _with_uv(
    lines: Sequence[str], *, uv: str, python: str, glibc: str, log: Path, away: Sequence[str]
) -> list[Member]:
    known = [number for number in _UV_GLIBC if glibc and number <= int(glibc.split(".")[1])]
    platform = f"x86_64-manylinux_2_{known[-1]}" if known else "x86_64-manylinux_2_28"
    settings = pip_settings().env
    with tempfile.TemporaryDirectory(prefix="matrix-closure-") as name:
        folder = Path(name)
        wanted, found = folder / "requirements.in", folder / "requirements.txt"
        wanted.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [
            uv, "pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-annotate",
            "--only-binary=:all:", "--index-strategy=unsafe-best-match",
            f"--python-version={python}", f"--python-platform={platform}",
            f"--default-index={index_url()}",
            *(f"--index={url}" for url in settings.get("PIP_EXTRA_INDEX_URL", "").split()),
            *(f"--find-links={url}" for url in settings.get("PIP_FIND_LINKS", "").split()),
            f"--output-file={found}", str(wanted),
        ]  # fmt: skip
        start = log_size(log)
        try:
            run(
                command,
                what="Resolving what is pinned and all that it needs",
                log=log,
                env=clean_environment(),
            )
        except CommandError as error:
            raise _failure(error, log, start, away) from None
        return _compiled(found.read_text(encoding="utf-8"))


def _compiled(text: str) -> list[Member]:
    """Read what uv wrote; a backslash at the end of a line continues it."""
    lines = text.replace("\\\n", " ").splitlines()
    return [
        Member(canonicalize_name(pinned[1]), pinned[2], tuple(_HASH.findall(line)))
        for line in lines
        if (pinned := _PINNED.match(line))
    ]


def _failure(error: CommandError, log: Path, start: int, away: Sequence[str]) -> MatrixError:
    """Tell an index that was not reached from requirements that cannot be met."""
    said = read_since(log, start)
    if "no such option: --report" in said:
        msg = "The pip that this Python brings is older than 22.2 and cannot say what it would install."
        return EnvironmentLacksError(msg, hint="Name a newer Python of that version with --python-from PATH.")
    if away or _UNREACHED.search(said):
        where = f" Not reached: {', '.join(away)}." if away else ""
        hint = "Run this where there is network, or set PIP_INDEX_URL or PIP_FIND_LINKS to a mirror."
        return EnvironmentLacksError(error.message + where, hint=hint)
    hint = "Is everything built (matrix build-wheels)? Only wheels are taken, sources are not built here."
    return MatrixError(error.message, hint=hint)


def _check(members: Sequence[Member]) -> None:
    wrong = [f"{one.name} {one.version}" for one in members if one.name.startswith(_CUDA)]
    if wrong:
        msg = f"What is pinned would bring {', '.join(sorted(wrong))}: that is for CUDA."
        raise MatrixError(msg, hint="Look at who needs it: `pip install --dry-run --report -` says so.")
    bare = [one.name for one in members if not one.sha256]
    if bare:
        msg = f"There is no hash for {', '.join(bare)}."
        raise MatrixError(msg, hint="Leave out --hashes, or let the index publish hashes.")
