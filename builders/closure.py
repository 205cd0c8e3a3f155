"""Resolve requirements to wheels with hashes, dependencies included, without installing anything.

pip resolves them for the Python and the glibc of the target (``pip install --dry-run --report``, pip's
documentation, "Installation report"). pip evaluates markers for the Python that runs it, so this must be
the target's minor version. Without such a Python, uv resolves (``uv pip compile --generate-hashes``).
Only wheels are considered: no setup.py runs to find dependencies.
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
from builders.environments.pip import ensure_pip, is_reachable, pip_environment, pip_settings
from builders.environments.python import find_python
from builders.environments.wheelhouse import CUDA_PREFIXES, UNREACHABLE
from builders.glibc_tags import platform_tags
from builders.process import clean_environment, log_size, read_since, run
from builders.sources import index_url, without_password
from resolver.errors import CommandError, EnvironmentLacksError, MatrixError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builders.environments.python import TargetPython
    from resolver.reporter import Reporter

_WHAT = "Resolving the pinned requirements and their dependencies"
_INDEX_OPTION = "--extra-index-url"
_UV_GLIBC = (17, 28, *range(31, 41))
"""glibc minor versions that ``uv pip compile --python-platform`` accepts. Source: its help, uv 0.13."""
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_SHA256_DIGITS = 64


@dataclass(frozen=True, slots=True)
class ResolvedWheel:
    """A distribution of the closure."""

    name: str
    """Normalized."""
    version: str
    sha256: tuple[str, ...]
    """Hashes of the wheels that may be installed."""


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


def resolve_closure(
    lines: Sequence[str],
    *,
    python: str,
    log: Path,
    reporter: Reporter,
    given: Path | None = None,
    glibc: str = "",
) -> list[ResolvedWheel]:
    """Resolve requirements and their dependencies to wheels with hashes, sorted by name.

    Parameters
    ----------
    lines
        Lines of a requirements file; options are on lines of their own.
    python
        CPython minor version of the target.
    log
        Receives the output of pip or uv.
    given
        Interpreter or prefix to run pip with, if the user names one.
    glibc
        glibc version of the target; this machine's when empty.

    Raises
    ------
    EnvironmentLacksError
        An index is not reachable, or there is neither such a Python nor uv.
    MatrixError
        The requirements conflict, an index has no matching wheel, or CUDA would be installed.
    """
    lines, unreachable = _reachable_lines(lines, reporter)
    start = log_size(log)
    try:
        wheels = _resolve(lines, python, given, glibc, log=log, reporter=reporter)
    except CommandError as error:
        raise _failure(error, read_since(log, start), unreachable) from None
    _check(wheels)
    return sorted(wheels, key=lambda wheel: wheel.name)


def _resolve(
    lines: Sequence[str], python: str, given: Path | None, glibc: str, *, log: Path, reporter: Reporter
) -> list[ResolvedWheel]:
    try:
        interpreter = find_python(HostRuntime(), python, given=given)
    except EnvironmentLacksError as error:
        uv = shutil.which("uv")
        if uv is None or given is not None:
            hint = f"Name a Python with --python-from PATH, or install uv. {error.hint}"
            raise EnvironmentLacksError(error.message, hint=hint) from None
        reporter.step(f"no Python {python} on this machine; resolve with uv")
        return _resolve_with_uv(uv, lines, python, glibc, log)
    reporter.step(f"resolve with the pip of {interpreter.path}")
    return _resolve_with_pip(interpreter, lines, glibc, log)


def _reachable_lines(lines: Sequence[str], reporter: Reporter) -> tuple[list[str], list[str]]:
    """Remove unreachable indexes, which pip would retry for every project."""
    kept, unreachable = [], []
    for line in lines:
        option, _, url = line.partition(" ")
        if option == _INDEX_OPTION and not is_reachable(url):
            unreachable.append(without_password(url))
            reporter.step(f"{unreachable[-1]} is not reachable; pip uses its configured indexes only")
        else:
            kept.append(line)
    return kept, unreachable


def _resolve_with_pip(
    python: TargetPython, lines: Sequence[str], glibc: str, log: Path
) -> list[ResolvedWheel]:
    runtime = HostRuntime()
    pip = ensure_pip(runtime, python, log=log)
    with tempfile.TemporaryDirectory(prefix="matrix-closure-") as name:
        folder = Path(name)
        requirements, report = folder / "requirements.txt", folder / "report.json"
        requirements.write_text("\n".join(lines) + "\n", encoding="utf-8")
        tags = [f"--platform={tag}" for tag in platform_tags(glibc, python.machine)] if glibc else []
        command = [
            str(python.path), str(pip), "install", "--dry-run", "--ignore-installed", "--quiet",
            "--only-binary=:all:", f"--target={folder / 'target'}", *tags,
            f"--report={report}", f"--requirement={requirements}",
        ]  # fmt: skip
        view = View(env={**pip_environment(), "TMPDIR": name}, network=True)
        run_in(runtime, command, view, what=_WHAT, log=log)
        return [_from_report(item) for item in msgspec.json.decode(report.read_bytes(), type=_Report).install]


def _from_report(item: _Item) -> ResolvedWheel:
    archive = item.download_info.archive_info
    digest = archive.hashes.get("sha256", "") or archive.hash.removeprefix("sha256=")
    if len(digest) != _SHA256_DIGITS:
        msg = f"Neither the index page nor pip has a SHA-256 of {item.download_info.url}."
        raise MatrixError(msg, hint="Omit --hashes, or use an index that publishes hashes.")
    return ResolvedWheel(canonicalize_name(item.metadata.name), item.metadata.version, (digest,))


def _resolve_with_uv(
    uv: str, lines: Sequence[str], python: str, glibc: str, log: Path
) -> list[ResolvedWheel]:
    accepted = [number for number in _UV_GLIBC if glibc and number <= int(glibc.split(".")[1])]
    platform = f"x86_64-manylinux_2_{accepted[-1] if accepted else 28}"
    settings = pip_settings().env
    with tempfile.TemporaryDirectory(prefix="matrix-closure-") as name:
        folder = Path(name)
        requirements, compiled = folder / "requirements.in", folder / "requirements.txt"
        requirements.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [
            uv, "pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-annotate",
            "--only-binary=:all:", "--index-strategy=unsafe-best-match",
            f"--python-version={python}", f"--python-platform={platform}",
            f"--default-index={index_url()}",
            *(f"--index={url}" for url in settings.get("PIP_EXTRA_INDEX_URL", "").split()),
            *(f"--find-links={url}" for url in settings.get("PIP_FIND_LINKS", "").split()),
            f"--output-file={compiled}", str(requirements),
        ]  # fmt: skip
        run(command, what=_WHAT, log=log, env=clean_environment())
        return _parse_compiled(compiled.read_text(encoding="utf-8"))


def _parse_compiled(text: str) -> list[ResolvedWheel]:
    """Parse the output of uv; a backslash at the end of a line continues it."""
    lines = text.replace("\\\n", " ").splitlines()
    return [
        ResolvedWheel(canonicalize_name(pin[1]), pin[2], tuple(_HASH.findall(line)))
        for line in lines
        if (pin := _PIN.match(line))
    ]


def _failure(error: CommandError, output: str, unreachable: Sequence[str]) -> MatrixError:
    """Distinguish an unreachable index from requirements that conflict."""
    if "no such option: --report" in output:
        msg = "The pip of this Python is older than 22.2 and cannot report what it would install."
        return EnvironmentLacksError(msg, hint="Name another Python of that version with --python-from PATH.")
    if unreachable or UNREACHABLE.search(output):
        where = f" Not reachable: {', '.join(unreachable)}." if unreachable else ""
        hint = "Run this on a machine with network, or set PIP_INDEX_URL or PIP_FIND_LINKS to a mirror."
        return EnvironmentLacksError(error.message + where, hint=hint)
    hint = "Only wheels are considered. Run `matrix build-wheels` if wheels are missing from the index."
    return MatrixError(error.message, hint=hint)


def _check(wheels: Sequence[ResolvedWheel]) -> None:
    cuda = sorted(f"{wheel.name} {wheel.version}" for wheel in wheels if wheel.name.startswith(CUDA_PREFIXES))
    if cuda:
        msg = f"The pinned requirements would install packages for CUDA: {', '.join(cuda)}."
        raise MatrixError(msg, hint="`pip install --dry-run --report -` shows what requires them.")
    unhashed = [wheel.name for wheel in wheels if not wheel.sha256]
    if unhashed:
        msg = f"There is no hash for {', '.join(unhashed)}."
        raise MatrixError(msg, hint="Omit --hashes, or use an index that publishes hashes.")
