"""Pieces of the shell scripts that are written: quoting, checks before a build, checks after it."""

from __future__ import annotations

import json
from shlex import quote
from typing import TYPE_CHECKING

from matrix.consumers.output import MARK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matrix.consumers.pins import Pin, Pins

__all__ = ["check_installed", "environment_steps", "index_checks", "quote", "script_head"]


def script_head(pins: Pins, consumer: str, told: Sequence[str], name: str) -> list[str]:
    """Give the first lines of a script: what it is for, and how it says that it cannot go on.

    Parameters
    ----------
    pins
        What the lock pins.
    consumer
        For whom it is.
    told
        What a person is told at the top.
    name
        Name of the script.
    """
    return [
        "#!/usr/bin/env bash",
        *(f"# {one}" for one in [f"{pins.heading}; {MARK} --for {consumer}`.", *told]),
        "set -euo pipefail",
        "shopt -s nullglob",
        f"fail() {{ printf '%s: %s\\n' {quote(name)} \"$*\" >&2; exit 3; }}",
        'here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)',
    ]


UNSET = [
    "# Bind variables of site modules end a build with --writable, and a PYTHONPATH of this machine",
    "# makes pip believe that things are installed.",
    "unset SINGULARITY_BIND SINGULARITY_BINDPATH APPTAINER_BIND APPTAINER_BINDPATH PYTHONPATH PYTHONHOME",
]


def index_checks(index: str, built: Sequence[Pin]) -> list[str]:
    """Give the lines that see whether the index has every wheel, before anything slow starts.

    Parameters
    ----------
    index
        Path of the index directory.
    built
        What must be in it.
    """
    return [
        f"index=${{MATRIX_INDEX:-{_default(index)}}}",
        '[ -f "$index/simple/index.html" ] || '
        'fail "there is no index at $index (name another with MATRIX_INDEX=DIR)"',
        'index=$(realpath -- "$index")',
        'case "$index" in *[:,]*) fail "a path with : or , cannot be bound: $index" ;; esac',
        "need() {",
        '    local found=("$index/simple/$1/"*"-$2-"*.whl)',
        '    [ "${#found[@]}" -gt 0 ] || fail "the index $index lacks $1 $2: matrix build-wheels makes it"',
        "}",
        *(f"need {pin.name} {quote(pin.version)}" for pin in built),
    ]


def image_checks(pins: Pins, *, digest: bool = True) -> list[str]:
    """Give the lines that see whether the base image is there, and is the one of the lock.

    Parameters
    ----------
    pins
        What the lock pins.
    digest
        Whether its digest is computed, which takes half a minute for tens of gigabytes.
    """
    locked = pins.image.digest.removeprefix("sha256:") if pins.image and digest else ""
    lines = [
        f"image=${{MATRIX_BASE_IMAGE:-{_default(pins.image_path)}}}",
        '[ -n "$image" ] || fail "the lock names no base image: say it with MATRIX_BASE_IMAGE=PATH"',
        'case "$image" in',
        "    *://*) ;;",
        '    *) [ -e "$image" ] || '
        'fail "there is no base image $image (name another with MATRIX_BASE_IMAGE=PATH)" ;;',
        "esac",
    ]
    if locked:
        lines += [
            'if [ -f "$image" ]; then',
            '    digest=$(sha256sum -- "$image"); digest=${digest%% *}; digest=${digest#\\\\}',
            f'    [ "$digest" = {locked} ] || '
            f'fail "the base image has changed: $image is $digest, the lock was resolved for {locked}"',
            "fi",
        ]
    return lines


def _default(text: str) -> str:
    """Quote a text for the default of a parameter expansion that stands in no quotes itself."""
    return quote(text) if text else ""


def check_installed(pins: Sequence[Pin], kept: Sequence[Pin] = ()) -> str:
    """Give a Python program that compares what is installed with the pins, and looks for CUDA.

    Parameters
    ----------
    pins
        What must be installed at exactly this version.
    kept
        What must still be there; a version without a label stands for any label.
    """
    wanted = json.dumps({pin.name: pin.version for pin in (*pins, *kept)}, indent=4)
    return f"""\
import sys
from importlib import metadata

pinned = {wanted}
wrong = []
for name, version in pinned.items():
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        found = "nothing"
    if version not in (found, found.partition("+")[0]):
        wrong.append(f"{{name}}: {{found}} instead of {{version}}")
for one in metadata.distributions():
    if str(one.metadata["Name"]).lower().startswith("nvidia-"):
        wrong.append(f"{{one.metadata['Name']}} {{one.version}} is for CUDA")
if wrong:
    sys.exit("What is installed is not what the lock says:\\n  " + "\\n  ".join(wrong))
print(f"{{len(pinned)}} distributions are as the lock says.")
"""


def environment_steps(pins: Pins, prefix: str, files: str) -> str:
    """Give POSIX shell lines that make a virtual environment on top of an image's Python.

    They run inside the image. Its Python is the one that holds the torch that the lock keeps; an
    environment of a Python that is in an environment itself does not see that one's packages, so
    these are then named in a ``.pth`` file. Whatever the image holds is a constraint, so that pip
    fails rather than shadow a part of it.

    Parameters
    ----------
    pins
        What the lock pins.
    prefix
        Where the environment is made.
    files
        Directory of ``requirements.txt`` and ``constraints.txt``.
    """
    torch = pins.kept_torch
    wanted = "" if torch is None else torch.version
    site = f'"{prefix}/lib/python{pins.python}/site-packages"'
    system = " --system-site-packages" if torch else ""
    lines = [
        "set -eu",
        "export PYTHONNOUSERSITE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1",
        "unset PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV",
        "look='",
        "import sys",
        "from importlib import metadata",
        "minor, wanted = sys.argv[1:]",
        'found = metadata.version("torch") if wanted else ""',
        'ok = "%d.%d" % sys.version_info[:2] == minor and wanted in (found, found.partition("+")[0])',
        "sys.exit(not ok)'",
        f'sees() {{ [ -x "$1" ] && "$1" -c "$look" {pins.python} {quote(wanted)} 2>/dev/null; }}',
        "python=",
        f'for one in "$(command -v python || :)" "$(command -v python{pins.python} || :)" \\',
        f"    /opt/*/bin/python{pins.python} /opt/*/envs/*/bin/python{pins.python} \\",
        f"    /usr/local/bin/python{pins.python} /usr/bin/python{pins.python}; do",
        '    if sees "$one"; then python=$one; break; fi',
        "done",
        f"[ -n \"$python\" ] || {{ echo 'The image has no Python {pins.python}"
        f"{f' with torch {wanted}' if wanted else ''}.' >&2; exit 3; }}",
        f'"$python" -m venv{system} "{prefix}"',
        "limits=",
    ]
    if torch:
        names = json.dumps(sorted(pin.name for pin in pins.on_top))
        lines += [
            f'sees "{prefix}/bin/python" || "$python" -c \'from importlib import metadata',
            f'print(metadata.distribution("torch").locate_file(""))\' > {site}/base_image.pth',
            f'sees "{prefix}/bin/python" || '
            "{ echo \"The environment does not see the image's torch.\" >&2; exit 3; }",
            f'limits="-c {prefix}/image.txt"',
            f'"{prefix}/bin/python" - > "{prefix}/image.txt" <<\'HELD\'',
            "import re",
            "from importlib import metadata",
            f"ours = {names}",
            "held = {}",
            "for one in metadata.distributions():",
            '    name = re.sub(r"[-_.]+", "-", str(one.metadata["Name"])).lower()',
            '    if re.fullmatch(r"[0-9][0-9a-z.!+_-]*", one.version) and name not in [*ours, "pip"]:',
            "        held.setdefault(name, one.version)",
            'print("\\n".join(f"{name}=={version}" for name, version in sorted(held.items())))',
            "HELD",
        ]
    lines += [
        f'"{prefix}/bin/python" -m pip install -r "{files}/requirements.txt" '
        f'-c "{files}/constraints.txt" $limits',
    ]
    if torch:
        lines += [
            f"[ ! -e {site}/torch ] || {{ echo \"pip put another torch over the image's.\" >&2; exit 1; }}",
        ]
    return "\n".join([*lines, f"\"{prefix}/bin/python\" - <<'CHECK'"]) + (
        f"\n{check_installed(pins.on_top, pins.kept)}CHECK"
    )
