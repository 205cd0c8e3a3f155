"""One text file with what a first run at a site shows: the machine, the lock, and the output of the jobs.

What identifies people, machines and projects is removed, because the file is sent to others. Names that this
machine knows are replaced wherever they stand as words; everything else is recognized by its form. A name
that neither is known nor has a known form remains, so people must still read the result.
"""

from __future__ import annotations

import grp
import os
import platform
import pwd
import re
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from builders.diagnosis import diagnose, diagnosis_text
from builders.diagnosis.doctor import check_machine
from builders.machine.host import driver_version
from matrix import __version__
from matrix.show.render import findings_text
from resolver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matrix.command_line.context import Context


_PATTERNS = ("matrix-verify-*.out", "slurm-*.out", "matrix-all-reduce-*.log")
"""The output of `matrix check CONTAINER --gpu`, of the job scripts, and of RCCL, in the present directory."""
_LONGEST = 200_000
"""Characters that are kept of the beginning, and of the end, of a file."""

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_KEY|AUTH", re.IGNORECASE)
_SHORTEST_SECRET = 6
_LONGEST_LINE = 2000
_FIRST_GROUP = 1000
"""The lowest number of a group that is not the system's (login.defs(5))."""
_ASSIGNED = (
    r"(?i)([\w-]*(?:token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|credential)[\w-]*"
    r"['\"]?\s*[=:]\s*['\"]?)[^\s'\"&,;]+"
)
_FORMS = (
    # user:password@ in URLs, and what a key, an assignment or a header calls a secret
    (r"(?<=://)[^/\s@'\"]+@", ""),
    (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{8,}", r"\1 SECRET"),
    (_ASSIGNED, r"\1SECRET"),
    # tokens of Hugging Face, GitHub, GitLab, PyPI, AWS, OpenAI and Weights & Biases; JSON web tokens
    (r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|pypi-|AKIA|sk-|wandb_)[A-Za-z0-9_-]{12,}", "SECRET"),
    (r"\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*", "SECRET"),
    (r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b", "EMAIL"),
    # home directories; projects of LUMI
    (r"(?<![\w.])(/(?:[\w.-]+/)*(?:home|users|Users)/)[^/\s:'\",;)]+", r"\1USER"),
    (r"(?<!\w)project_\d+", "PROJECT"),
    # addresses: IPv4 (and so versions with four numbers), IPv6 and MAC
    (r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]*\d)", "ADDRESS"),
    (r"(?i)(?<![0-9a-z:])[0-9a-f]{1,4}:(?:[0-9a-f]{0,4}:){2,6}[0-9a-f]{0,4}(?![0-9a-z:])", "ADDRESS"),
)
_NODES = (
    r"(?m)^rank \d+ of \d+ started on ([^\s]+)$",
    r"(?m)^([A-Za-z][\w.-]*):\d+:\d+ \[\d+\] ",  # RCCL
    r"\b((?:(?:nid|node|gpu|compute|frontier|g)-?\d{3,})|(?:uan|login)-?\d+)\b",
    r"(?i)(?:hostname|nodelist|on node|host)['\"]?\s*[=:]\s*['\"]?([A-Za-z][\w.-]*\d[\w.-]*)",
)


def known_names(environment: Mapping[str, str], accounts: Iterable[str] = ()) -> dict[str, str]:
    """Return the names that this machine knows, and the accounts of Slurm jobs, each with its replacement."""
    names: dict[str, str] = {}
    users = {environment.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SLURM_JOB_USER")}
    homes = {environment.get("HOME", "")}
    with suppress(KeyError):
        entry = pwd.getpwuid(os.getuid())
        users.add(entry.pw_name)
        homes.add(entry.pw_dir)
        names |= dict.fromkeys(filter(None, [entry.pw_gecos.partition(",")[0]]), "USER")
    names |= dict.fromkeys(users, "USER")
    hosts = {socket.gethostname(), environment.get("HOSTNAME", ""), environment.get("SLURMD_NODENAME", "")}
    names |= dict.fromkeys((part for host in hosts for part in (host, host.partition(".")[0])), "HOST")
    for number in os.getgroups():
        with suppress(KeyError):
            if number >= _FIRST_GROUP:
                names.setdefault(grp.getgrgid(number).gr_name, "GROUP")
    names |= dict.fromkeys([*accounts, environment.get("SLURM_JOB_ACCOUNT", "")], "PROJECT")
    names |= {
        value: "SECRET"
        for name, value in environment.items()
        if _SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET
    }
    for home in filter(None, homes):
        names |= dict.fromkeys((home.rstrip("/"), str(Path(home).resolve())), "HOME")
    return {name: value for name, value in names.items() if name.strip("/")}


def anonymous(text: str, names: Mapping[str, str]) -> str:
    """Return a text without secrets and names; every node keeps its own number.

    Examples
    --------
    >>> anonymous("ann: wrote /home/ann/x on nid00123, again on nid00123", {"ann": "USER"})
    'USER: wrote /home/USER/x on NODE1, again on NODE1'
    """
    text = "\n".join(line[:_LONGEST_LINE] for line in text.splitlines())  # the forms are slow on long lines
    for form, replacement in _FORMS:
        text = re.sub(form, replacement, text)
    nodes: dict[str, str] = {}
    for form in _NODES:
        for node in re.findall(form, text):
            if node not in names:
                nodes.setdefault(node, f"NODE{len(nodes) + 1}")
    for name, replacement in sorted({**nodes, **names}.items(), key=lambda item: -len(item[0])):
        text = re.sub(rf"(?i)(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", replacement, text)
    return text


def first_run_text(context: Context, included: Sequence[Path]) -> str:
    """Return the collected text, without secrets and names."""
    names = known_names(os.environ, [context.settings.account])
    if Path.cwd() != Path("/"):
        names |= {str(Path.cwd()): "WORK", str(Path.cwd().resolve()): "WORK"}
    parts = [f"== {title} ==\n{text.strip()}\n" for title, text in _parts(context, included)]
    return anonymous("\n".join(parts), names)


def _parts(context: Context, included: Sequence[Path]) -> Iterator[tuple[str, str]]:
    python = platform.python_version()
    driver = driver_version() or "no AMD kernel driver on this machine"
    yield "matrix", f"matrix {__version__}, Python {python}, {context.today}\nkernel driver: {driver}"
    findings = list(check_machine(context.catalog, context.args.index, {}))
    yield "machine", findings_text(findings)
    if context.has_lock:
        yield context.lock_path.name, context.lock_path.read_text(encoding="utf-8")
    logs = [path for pattern in _PATTERNS for path in sorted(Path().glob(pattern))]
    for path in [*logs, *included]:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UsageError(f"Cannot read {path}: {error.strerror}.") from None
        if len(text) > 2 * _LONGEST:
            text = f"{text[:_LONGEST]}\n... ({len(text) - 2 * _LONGEST} characters) ...\n{text[-_LONGEST:]}"
        yield path.name, text
        if known := diagnosis_text(diagnose(path)):
            yield f"known failures in {path.name}", known
