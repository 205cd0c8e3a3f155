"""``matrix check``: report lines of a file that pip or conda rejects, ignores or gets wrong.

The preflight: pip itself checks whether the file can be installed; cotainr would hide pip's error.
pip resolves the lines for the target's Python with ``--dry-run``. Lines that pip would have to build are
left out and listed, because the check must not run a build. If pip cannot be run or cannot reach an index,
the result is ``not-run``, never ``passed``.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import sys
from codecs import BOM_UTF8
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace
from packaging.utils import canonicalize_name
from packaging.version import Version

from builders.constants import INDEX_DIRECTORY, LOCK_FILE, MOUNTED_INDEX
from builders.findings import Finding
from builders.machine.host import running_python
from builders.machine.process import output_of, run
from builders.storage.files import write_atomic
from builders.storage.lease import TemporaryDirectory
from matrix.command_line.options import add_format, add_site_options
from matrix.judging.corrections import check, difference, fixed, read_document, summary
from matrix.judging.packages import TORCH_FAMILY, unread
from matrix.judging.target import CONSUMERS, Consumer, expect_lock, expect_request
from matrix.reading.pip_line import url_path
from matrix.reading.requirements import Kind, read_file
from matrix.show.json_document import JsonDocument
from matrix.show.render import findings_text
from resolver.environment import NEWEST_PATCH, platform_tags
from resolver.errors import CommandError, TooSlowError, UsageError
from resolver.requirements import TRITON_NAMES
from resolver.versions import is_version, join_words, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from matrix.command_line.context import Context
    from matrix.judging.target import ExpectedTarget
    from matrix.reading.requirements import Document, Entry
    from matrix.show.console import Console


SUMMARY = "check an environment file for lines that pip or conda will reject, ignore or get wrong"
EXAMPLE = "matrix check env.yml --site lumi-g --fix"
_SECONDS = 120.0
_FOR_CUDA = {"cuda-torch", "cuda-package", "conda-torch"}
_TARGET_OPTIONS = ("site", "date", "backend", "driver", "base_image", "gfx")

Outcome = Literal["passed", "refused", "unclear", "not-run"]
_OLDEST_PIP = Version("22.3")
_GLIBC = "2.39"
"""The glibc to assume for an unknown image: the newest in use, so that pip skips the fewest wheels."""
_NOISE = re.compile(
    r"\s*(\$ |Looking in|Collecting|Obtaining|Downloading|Using cached|Would install|Requirement already|━"
    r"|-+$|Processing|Reading|Preparing|Discarding|\[notice\]|DEPRECATION)"
)
_UNREACHED = re.compile(
    r"Could not fetch URL (?P<url>\S+): (connection error|timed out|There was a problem confirming"
    r"|HTTPS?ConnectionPool|5\d\d |.*Temporary failure|.*Max retries)"
    r"|NewConnectionError|NameResolutionError|ConnectTimeoutError|[Ff]ailed to connect"
)
_MISSING = re.compile(r"No matching distribution found for ([A-Za-z0-9][\w.-]*)")
_UNREADABLE_BY_CONDA = {"yaml-map", "not-text", "pip-not-list", "duplicate-key"}


class Preflight(msgspec.Struct, frozen=True, kw_only=True):
    """The result of running pip."""

    outcome: Outcome
    text: str
    """The result in one or two sentences."""
    output: str = ""
    """pip's error in full."""
    left_out: tuple[int, ...] = ()
    """Lines of the file that were not passed to pip, because pip would have to build them."""

    def __str__(self) -> str:
        """Return the result and the lines that were left out."""
        lines = ", ".join(map(str, self.left_out))
        return f"{self.text} Lines not checked, as pip would build them: {lines}." if lines else self.text


SKIPPED = Preflight(outcome="not-run", text="Skipped, as requested with --no-preflight.")


def preflight(document: Document, expected: ExpectedTarget, *, seconds: float) -> Preflight:
    """Check with pip whether the file can be installed. `seconds` is the time limit for pip."""
    if any(finding.id in _UNREADABLE_BY_CONDA for finding in document.findings):
        return _not_run("conda stops before it starts pip")
    left_out = tuple(entry.line for entry in document.entries if _builds(entry))
    checked = [entry for entry in document.entries if not _builds(entry)]
    if not any(entry.pip.requirement_text for entry in checked):
        return _not_run("pip would build every requirement" if left_out else "there is no requirement")
    texts = {entry.line: _with_local_index(entry.text, expected.index) for entry in checked}
    missing = next(_missing_files(texts.values()), "")
    if missing:
        hint = "; name the index with --index" if missing.startswith(MOUNTED_INDEX) else ""
        return _not_run(f"{missing} does not exist on this machine{hint}")
    return replace(_ask(document, expected, texts, seconds), left_out=left_out)


def _ask(document: Document, expected: ExpectedTarget, texts: Mapping[int, str], seconds: float) -> Preflight:
    python = document.python or expected.python or running_python()
    pip = _find_pip(python)
    if pip is None:
        return _not_run(f"no Python on this machine has pip {_OLDEST_PIP} or newer")
    interpreter, pip_version, pip_python = pip
    with TemporaryDirectory() as directory:
        work = directory.root
        (work / "requirements.txt").write_text("\n".join(texts.values()) + "\n", encoding="utf-8")
        command = [interpreter, *_options(work, python, expected.glibc or _GLIBC)]
        cwd = Path(document.name).absolute().parent if expected.consumer == "pip" else work
        log = work / "output.log"
        try:
            # A pip that is ended leaves its temporary files.
            env = _environment(expected) | {"TMPDIR": str(work)}
            run(command, what="pip", log=log, cwd=cwd, env=env, timeout=seconds)
        except TooSlowError:
            return _not_run(f"pip did not finish within {seconds:g} s")
        except CommandError as error:
            details = work / "pip.log"
            output = log.read_text(encoding="utf-8", errors="replace")
            output = _with_lines_of_file(output, work, texts, document.name)
            more = details.read_text(encoding="utf-8", errors="replace") if details.exists() else ""
            return _failed(output, more, error.code, expected)
    markers = "" if pip_python == python else f" (environment markers evaluated for {pip_python})"
    return Preflight(
        outcome="passed", text=f"pip {pip_version} for Python {python}{markers} finds wheels for everything."
    )


def _with_lines_of_file(output: str, work: Path, texts: Mapping[int, str], name: str) -> str:
    """Return pip's output with the name and the line numbers of the user's file."""
    lines = list(texts)

    def line_of_file(position: re.Match[str]) -> str:
        number = int(position[1])
        return f"{name} (line {lines[number - 1]})" if number <= len(lines) else position[0]

    given = str(work / "requirements.txt")
    return re.sub(rf"{re.escape(given)} \(line (\d+)\)", line_of_file, output).replace(given, name)


def _not_run(reason: str, output: str = "") -> Preflight:
    return Preflight(outcome="not-run", text=f"pip could not check the file: {reason}.", output=output)


def _builds(entry: Entry) -> bool:
    """Return whether pip would run a build, or read a file that may lead to a build.

    A build runs other people's code, so every entry counts that is not certainly a name or a wheel.
    """
    line = entry.pip
    is_wheel = line.location.partition("#")[0].endswith(".whl")
    clear = line.requirement is not None or not line.requirement_text or is_wheel
    allows_builds = ":none:" in " ".join(line.values("--only-binary"))  # undoes --only-binary :all:
    several_lines = len(entry.text.splitlines()) > 1
    options = line.values("--editable", "--requirement", "--no-binary")
    return bool(line.is_source or options or allows_builds or several_lines or not clear)


def _with_local_index(text: str, index: Path) -> str:
    """Replace the URL of the index in the container with its URL on this machine."""
    if not (index / "simple").is_dir():
        return text
    return text.replace(MOUNTED_INDEX, (index / "simple").absolute().as_uri())


def _missing_files(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for word in text.split():
            url = word.partition("=")[2] if word.startswith("--") else word
            if url.startswith("file:") and not Path(url_path(url)).exists():
                yield url


def _find_pip(python: str) -> tuple[str, str, str] | None:
    """Return an interpreter with pip, preferably of the given minor version, and the versions of both."""
    for interpreter in (shutil.which(f"python{python}"), sys.executable, shutil.which("python3")):
        output = output_of([interpreter, "-m", "pip", "--version"]) if interpreter else ""
        version = re.match(r"pip (\S+) from .*\(python (\d+\.\d+)\)", output)
        if interpreter and version and is_version(version[1]) and Version(version[1]) >= _OLDEST_PIP:
            return interpreter, version[1], version[2]
    return None


def _options(work: Path, python: str, glibc: str) -> list[str]:
    return [
        *("-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-input", "--no-color"),
        *("--disable-pip-version-check", "--only-binary", ":all:", "--retries", "1", "--timeout", "15"),
        *("--python-version", f"{python}.{NEWEST_PATCH}", "--implementation", "cp"),
        *(f"--platform={platform}" for platform in platform_tags(glibc)),
        *("--target", str(work / "nowhere"), "--log", str(work / "pip.log")),
        *("-r", str(work / "requirements.txt")),
    ]


def _environment(expected: ExpectedTarget) -> dict[str, str]:
    """Return the variables that pip gets where the file is used; cotainr passes them on, but not pip.conf."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if expected.consumer == "cotainr":
        kept.setdefault("PIP_CONFIG_FILE", os.devnull)
    return kept | {"PYTHONNOUSERSITE": "1"}


def _failed(output: str, details: str, code: int, expected: ExpectedTarget) -> Preflight:
    """Explain a failure of pip. `details` is pip's log, which contains the URLs that it could not read."""
    output = "\n".join(
        line.rstrip() for line in output.splitlines() if line.strip() and not _NOISE.match(line)
    )
    unreached = _UNREACHED.search(details or output)
    if unreached:
        return _not_run(f"{unreached['url'] or 'an index'} could not be reached", output)
    missing = _MISSING.search(output)
    name = canonicalize_name(missing[1]) if missing else ""
    if name and name not in expected.catalog.package and name not in (*TORCH_FAMILY, *TRITON_NAMES):
        text = (
            f"pip finds no wheel of {name} for this Python and glibc. There may be a source archive, which "
            "this check ignores because it builds nothing."
        )
        return Preflight(outcome="unclear", text=text, output=output)
    text = f"pip failed with exit code {code}, as it will where the file is used."
    return Preflight(outcome="refused", text=text, output=output)


class CheckDocument(JsonDocument, kw_only=True):
    """The findings in a file, and the result of the preflight."""

    status: Literal["ok", "errors"]
    file: str
    kind: Kind
    consumer: Consumer = msgspec.field(name="for")
    against: str
    findings: list[Finding]
    unread: list[str]
    """Distributions of which the catalog knows nothing, and whose wheels were not read."""
    preflight: Preflight
    diff: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="a conda environment file (.yml) or a pip requirements file"
    )
    parser.add_argument(
        "--fix", action="store_true", help="apply all corrections that are certain, and show a diff"
    )
    parser.add_argument(
        "--for",
        dest="consumer",
        choices=CONSUMERS,
        help="the tool that reads FILE (default: cotainr for an environment file, pip for requirements)",
    )
    parser.add_argument(
        "--lock",
        metavar="FILE",
        type=Path,
        help=f"check against this lock (default: {LOCK_FILE} beside FILE, unless an option names a target)",
    )
    parser.add_argument(
        "--no-preflight", dest="preflight", action="store_false", help="do not run pip to resolve the file"
    )
    parser.add_argument(
        "--index",
        metavar="DIR",
        type=Path,
        default=INDEX_DIRECTORY,
        help=f"the index that the file names as {MOUNTED_INDEX} (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=_SECONDS,
        help="time limit for pip (default: 120)",
    )
    add_format(parser)
    add_site_options(parser)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if 0 < seconds < float("inf"):
        return seconds
    msg = f"{shorten(text)!r} is not a number of seconds"
    raise argparse.ArgumentTypeError(msg)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    text = read_file(args.file, pipes=not args.fix)
    document = read_document(text, str(args.file))
    consumer: Consumer = args.consumer or ("cotainr" if document.kind == "conda" else "pip")
    expected = _expected(context, consumer)
    diff = ""
    if args.fix:
        new = fixed(text, document.name, expected)
        diff = difference(text, new, document.name)
        if new != text:
            _write(args.file, new)
            document = read_document(new, document.name)
    findings, names = check(document, expected), unread(document, expected)
    answer = preflight(document, expected, seconds=args.timeout) if args.preflight else SKIPPED
    rejected = answer.outcome == "refused"
    failed = rejected or any(finding.severity == "error" for finding in findings)
    if args.format == "json":
        _report_preflight(answer, console)
        console.document(
            CheckDocument(
                status="errors" if failed else "ok",
                file=document.name,
                kind=document.kind,
                consumer=consumer,
                against=expected.against,
                findings=findings,
                unread=names,
                preflight=answer,
                diff=diff,
            )
        )
    else:
        console.answer(summary(findings, expected.against, rejected=rejected))
        _show(findings, answer, diff, console)
        if any(finding.id in _FOR_CUDA for finding in findings):
            file = shlex.quote(document.name)
            console.info(f"For an environment that fits: `matrix inspect {file} --repair -o DIR`")
        if names:
            option = "--env" if document.kind == "conda" else "-r"
            console.info(
                f"Not looked at: the wheels of {join_words(names, joiner='and')}, and so whether they run on "
                f"AMD GPUs. `matrix resolve {option} {shlex.quote(document.name)}` reads them."
            )
    return 1 if failed else 0


def _expected(context: Context, consumer: Consumer) -> ExpectedTarget:
    args = context.args
    target_options = [name for name in _TARGET_OPTIONS if getattr(args, name)]
    if args.lock and target_options:
        msg = f"--lock and --{target_options[0].replace('_', '-')} both define the target of the file."
        raise UsageError(msg, hint="Use one of the two options.")
    sibling = args.file.parent / LOCK_FILE
    if args.lock is None and not target_options and sibling.is_file():
        args.lock = sibling
    if args.lock is None:
        return expect_request(context.request(), context.catalog_with_image, consumer, args.index)
    return expect_lock(context.lock, str(args.lock), context.catalog_of_lock, consumer, args.index)


def _write(path: Path, text: str) -> None:
    """Replace the text of a file; keep its permissions and its byte order mark."""
    mode = path.stat().st_mode & 0o7777
    with path.open("rb") as source:
        mark = source.read(len(BOM_UTF8)) == BOM_UTF8
    write_atomic(path, (BOM_UTF8 if mark else b"") + text.encode())
    path.chmod(mode)


def _show(findings: list[Finding], answer: Preflight, diff: str, console: Console) -> None:
    shown = [finding for finding in findings if console.verbosity >= 0 or finding.severity == "error"]
    output = "\n".join(f"    {line}" for line in answer.output.splitlines())
    parts = [diff, findings_text(shown), f"Output of pip:\n{output}" if output else ""]
    if any(parts):
        console.data("\n" + "\n\n".join(filter(None, parts)))
    _report_preflight(answer, console)


def _report_preflight(answer: Preflight, console: Console) -> None:
    if answer is not SKIPPED:
        report = console.info if answer.outcome == "passed" else console.warning
        report(str(answer))
