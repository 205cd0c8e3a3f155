"""pip's own answer to the lines of a file, before cotainr hides it.

pip resolves them for the target's Python and installs nothing. Nothing is built either, so only wheels count,
and what would be built (a repository, a directory, an archive) is left out and named. What cannot be asked is
said to be unanswered, never passed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name
from packaging.version import Version

from builders.host import running_python
from builders.process import output_of, run
from matrix.checking.about_indexes import TORCH_FAMILY, TRITONS
from resolver.errors import CommandError, TooSlowError
from resolver.versions import is_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from matrix.checking.document import Document, Entry
    from matrix.checking.expected import Expected

Outcome = Literal["passed", "refused", "unclear", "not-run"]
MOUNTED = "file:///mnt/simple"
"""Where cotainr sees the index; on this machine another directory stands for it."""
_OLDEST_PIP = Version("22.3")
_GLIBC = "2.39"
"""Where nothing is known of the base image: that of the newest in use, which refuses the least."""
_OLDEST_GLIBC_MINOR = 5  # manylinux1
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What pip said."""

    outcome: Outcome
    told: str
    """That in one or two sentences."""
    output: str = ""
    """pip's error in full."""
    left_out: tuple[int, ...] = ()
    """Lines of the file that pip was not asked about, because it would have had to build them."""


def preflight(document: Document, expected: Expected, *, index: Path, seconds: float) -> Preflight:
    """Ask pip.

    Parameters
    ----------
    document
        The file.
    expected
        What it is for.
    index
        The index directory that the consumer will see as `MOUNTED`.
    seconds
        How long pip may take.
    """
    if any(one.id in {"yaml-map", "not-text", "pip-not-list", "duplicate-key"} for one in document.found):
        return _not_run("conda does not get as far as pip")
    left = tuple(entry.first for entry in document.entries if _builds(entry))
    asked = [entry for entry in document.entries if not _builds(entry)]
    if not any(entry.pip.wanted for entry in asked):
        return _not_run("there is no requirement to ask about" + (" but what would be built" if left else ""))
    texts = {entry.first: _seen_here(entry.text, index) for entry in asked}
    missing = next(_not_here(texts.values()), "")
    if missing:
        hint = "; name the index with --index" if missing.startswith(MOUNTED) else ""
        return _not_run(f"{missing} is not on this machine{hint}")
    return replace(_ask(document, expected, texts, seconds), left_out=left)


def _ask(document: Document, expected: Expected, texts: Mapping[int, str], seconds: float) -> Preflight:
    """Ask pip about lines, each with its place in the file."""
    python = _python_of(document) or expected.python or running_python()
    found = _find_pip(python)
    if found is None:
        return _not_run(f"no Python here has a pip from {_OLDEST_PIP} on")
    interpreter, version = found
    with tempfile.TemporaryDirectory(prefix="matrix-check-") as name:
        work = Path(name)
        (work / "requirements.txt").write_text("\n".join(texts.values()) + "\n", encoding="utf-8")
        command = [interpreter, *_options(work, python, expected.glibc or _GLIBC)]
        cwd = Path(document.name).absolute().parent if expected.consumer == "pip" else work
        log = work / "said.log"
        try:
            run(command, what="pip", log=log, cwd=cwd, env=_environment(expected), timeout=seconds)
        except TooSlowError:
            return _not_run(f"pip had no answer within {seconds:g} s")
        except CommandError as error:
            details = work / "pip.log"
            said = _in_places(log.read_text(encoding="utf-8", errors="replace"), work, texts, document.name)
            more = details.read_text(encoding="utf-8", errors="replace") if details.exists() else ""
            return _refused(said, more, error.code, expected)
    same = f"{version[0]} for Python {python}"
    same += "" if version[1] == python else f" (markers as for {version[1]})"
    return Preflight(outcome="passed", told=f"pip {same} finds a set of wheels for what it was asked.")


def _in_places(said: str, work: Path, texts: Mapping[int, str], name: str) -> str:
    """Put the user's file in the place of the one that pip was given."""
    places = list(texts)

    def runtime(found: re.Match[str]) -> str:
        number = int(found[1])
        return f"{name} (line {places[number - 1]})" if number <= len(places) else found[0]

    given = re.escape(str(work / "requirements.txt"))
    return re.sub(rf"{given} \(line (\d+)\)", runtime, said).replace(str(work / "requirements.txt"), name)


def _not_run(why: str, output: str = "") -> Preflight:
    return Preflight(outcome="not-run", told=f"pip was not asked, or did not answer: {why}.", output=output)


def _builds(entry: Entry) -> bool:
    """Whether pip would have to build something, or read a file that may say so.

    Building runs what a stranger wrote, so whatever is not surely a name or a wheel counts, too.
    """
    line = entry.pip
    named = line.requirement is not None or not line.wanted or line.place.partition("#")[0].endswith(".whl")
    free = ":none:" in " ".join(line.values("--only-binary"))  # would undo what pip is told here
    several = len(entry.text.splitlines()) > 1
    asked = line.values("--editable", "--requirement", "--no-binary")
    return bool(line.is_source or asked or free or several or not named)


def _seen_here(text: str, index: Path) -> str:
    """Put the index of this machine in the place of the one that the container sees."""
    if not (index / "simple").is_dir():
        return text
    return text.replace(MOUNTED, (index / "simple").absolute().as_uri())


def _not_here(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for word in text.split():
            url = word.partition("=")[2] if word.startswith("--") else word
            if url.startswith("file:") and not Path(unquote(urlsplit(url).path)).exists():
                yield url


def _python_of(document: Document) -> str:
    for entry in document.conda:
        found = re.fullmatch(r"python\s*={1,2}\s*(\d+\.\d+)(\.[\d*]+)*", entry.text)
        if found:
            return found[1]
    return ""


def _find_pip(python: str) -> tuple[str, tuple[str, str]] | None:
    """Find an interpreter with a pip, of the wanted minor if there is one; with pip's version and its own."""
    for one in (shutil.which(f"python{python}"), sys.executable, shutil.which("python3")):
        said = output_of([one, "-m", "pip", "--version"]) if one else ""
        found = re.match(r"pip (\S+) from .*\(python (\d+\.\d+)\)", said)
        if one and found and is_version(found[1]) and Version(found[1]) >= _OLDEST_PIP:
            return one, (found[1], found[2])
    return None


def _options(work: Path, python: str, glibc: str) -> list[str]:
    minors = range(int(glibc.split(".")[1]), _OLDEST_GLIBC_MINOR - 1, -1)
    old = ("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64")
    platforms = [*(f"manylinux_2_{minor}_x86_64" for minor in minors), *old]
    return [
        *("-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-input", "--no-color"),
        *("--disable-pip-version-check", "--only-binary", ":all:", "--retries", "1", "--timeout", "15"),
        *("--python-version", python, "--implementation", "cp"),
        *(f"--platform={one}" for one in platforms),
        *("--target", str(work / "nowhere"), "--log", str(work / "pip.log")),
        *("-r", str(work / "requirements.txt")),
    ]


def _environment(expected: Expected) -> dict[str, str]:
    """Give pip what it will see: cotainr passes the caller's variables on, but not its files."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if expected.consumer == "cotainr":
        kept.setdefault("PIP_CONFIG_FILE", os.devnull)
    return kept | {"PYTHONNOUSERSITE": "1"}


def _refused(said: str, details: str, code: int, expected: Expected) -> Preflight:
    """Say what a failure of pip means.

    Parameters
    ----------
    said
        What it printed.
    details
        Its own log, which names the addresses that it could not read.
    """
    kept = [line.rstrip() for line in said.splitlines() if line.strip() and not _NOISE.match(line)]
    output = "\n".join(kept)
    unreached = _UNREACHED.search(details or said)
    if unreached:
        return _not_run(f"{unreached['url'] or 'an index'} could not be reached", output)
    missing = _MISSING.search(said)
    name = canonicalize_name(missing[1]) if missing else ""
    if name and name not in expected.catalog.package and name not in (*TORCH_FAMILY, *TRITONS):
        told = (
            f"pip finds no wheel of {name} for this Python and glibc. It may have a source archive, which "
            "was not looked at: nothing is built here."
        )
        return Preflight(outcome="unclear", told=told, output=output)
    told = f"pip ended with exit code {code}; so it will where the file is used."
    return Preflight(outcome="refused", told=told, output=output)
