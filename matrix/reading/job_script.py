"""Read Slurm batch scripts and other shell scripts: directives, variables, images, and what they install."""

from __future__ import annotations

import shlex

import re2

from matrix.reading.items import Reading, Unread
from matrix.reading.recipe import split_by_shell
from matrix.reading.shell import Shell

_DIRECTIVE = re2.compile(r"#SBATCH[ \t]+(.*)")
_SCRIPT = re2.compile(r"#![^\n]*\b(?:ba|z|da)?sh\b")
_SLURM = re2.compile(r"(?m)^#SBATCH[ \t]")
_NAMED = re2.compile(r"(?i).*\.(sh|sbatch|slurm|job|bash|batch|qsub)")
_LONG = {
    "-A": "account", "-c": "cpus-per-task", "-C": "constraint", "-d": "dependency", "-e": "error",
    "-G": "gpus", "-J": "job-name", "-N": "nodes", "-n": "ntasks", "-o": "output", "-p": "partition",
    "-q": "qos", "-t": "time", "-w": "nodelist",
}  # fmt: skip
"""The long names of Slurm's options. Source: https://slurm.schedmd.com/sbatch.html."""


def recognises(name: str, head: str) -> bool:
    """Return whether a file is a script of a shell, with or without directives of Slurm."""
    return bool(_SLURM.search(head) or _SCRIPT.match(head.lstrip()) or _NAMED.fullmatch(name))


def read(text: str, name: str) -> Reading:
    r"""Read a script.

    Examples
    --------
    >>> found = read("#!/bin/bash\n#SBATCH -N 2\nexport A=1\nsrun singularity exec a.sif true\n", "job.sh")
    >>> found.directives, found.variables, [item.url for item in found.items]
    ({'nodes': '2'}, {'A': '1'}, ['a.sif'])
    """
    is_job = _SLURM.search(text) is not None
    reading = Reading(kind="job script" if is_job else "shell script", name=name)
    reading.directives = {}
    for number, line in enumerate(text.split("\n"), start=1):
        match = _DIRECTIVE.match(line) if line.startswith("#SBATCH") else None
        if match:
            reading.directives |= _directive(match[1])
            reading.unread.append(Unread(number, line.strip(), "it is a directive of Slurm", matters=False))
    shell = Shell(payload_matters=not is_job)
    shell.run(text, 1)
    shell.finish()
    reading.launches = shell.launches
    for item in shell.items:
        reading.add(item)
    reading.variables = shell.exported
    reading.channels, reading.find_links = shell.channels, shell.find_links
    reading.unread += shell.unread
    reading.unread.sort(key=lambda each: each.line)
    reading.findings = [split_by_shell(line, text) for line, text in shell.split_by_shell]
    return reading


def _directive(text: str) -> dict[str, str]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:  # an open quote
        words = text.split()
    if not words:
        return {}
    name, equals, value = words[0].partition("=")
    if not name.startswith("--") and len(name) > 2:  # noqa: PLR2004  -N2
        name, value = name[:2], name[2:]
    value = value if equals or value else "".join(words[1:2])
    return {_LONG.get(name, name.lstrip("-")): value}
