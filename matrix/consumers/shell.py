"""The shell scripts that are written: ``scripts/`` holds their text, with places to be filled in."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from shlex import quote
from typing import TYPE_CHECKING

from matrix.consumers.output import MARK

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matrix.consumers.pins import Pin, Pins

_PLACE = re.compile(r"@([A-Z_]+)@")


def fill(name: str, /, **values: str) -> str:
    """Give a text of ``scripts/`` with its places filled in.

    Parameters
    ----------
    name
        Its file.
    values
        What stands at ``@NAME@``, by the name in lower case; a line that comes out empty is left out.
    """
    lines = []
    for line in (files(__package__) / "scripts" / name).read_text(encoding="utf-8").splitlines():
        filled = _PLACE.sub(lambda runtime: values[runtime[1].lower()], line)
        if filled.strip() or not line.strip():
            lines.append(filled.rstrip())
    return "\n".join(lines)


def head(pins: Pins, consumer: str, name: str, told: Sequence[str]) -> str:
    """Give the first lines of a script: what it is for, and how it says that it cannot go on.

    Parameters
    ----------
    pins
        What the lock pins.
    consumer
        For whom it is.
    name
        Name of the script.
    told
        What a person is told at the top.
    """
    about = [f"{pins.heading}; {MARK} --for {consumer}`.", *told]
    return fill("head.sh", about="\n".join(f"# {one}" for one in about), script=name)


def image_checks(pins: Pins, *, digest: bool = True) -> str:
    """Give the lines that see whether the base image is there, and is the one of the lock.

    Parameters
    ----------
    pins
        What the lock pins.
    digest
        Whether its digest is computed, which takes half a minute for tens of gigabytes.
    """
    checks = fill("image.sh", image=_default(pins.image_path))
    locked = pins.image.digest.removeprefix("sha256:") if pins.image and digest else ""
    return checks + (f"\n{fill('digest.sh', digest=locked)}" if locked else "")


def index_checks(index: str, built: Iterable[Pin]) -> str:
    """Give the lines that see whether the index has every wheel, before anything slow starts.

    Parameters
    ----------
    index
        Path of the index directory.
    built
        What must be in it.
    """
    needs = "\n".join(f"need {pin.name} {quote(pin.version)}" for pin in built)
    return fill("index.sh", index=_default(index), needs=needs)


def _default(text: str) -> str:
    """Quote a text for the default of a parameter expansion that stands in no quotes itself."""
    return quote(text) if text else ""


def installed_check(pins: Sequence[Pin], kept: Sequence[Pin] = ()) -> str:
    """Give a Python program that compares what is installed with the pins, and looks for CUDA.

    Parameters
    ----------
    pins
        What must be installed at exactly this version.
    kept
        What must still be there; a version without a label stands for any label.
    """
    wanted = {pin.name: pin.version for pin in (*pins, *kept)}
    return fill("check.py.txt", pinned=json.dumps(wanted, indent=4))


def environment_steps(pins: Pins, prefix: str, folder: str) -> str:
    """Give POSIX shell lines that make a virtual environment on top of an image's Python, inside it.

    Where the lock keeps the image's torch, the Python is the one that holds that, and all that the
    image holds is a constraint, so that pip fails rather than shadow a part of it.

    Parameters
    ----------
    pins
        What the lock pins.
    prefix
        Where the environment is made; a path without spaces.
    folder
        Directory of ``requirements.txt`` and ``constraints.txt``, likewise.
    """
    torch = pins.kept_torch
    ours = ", ".join(json.dumps(pin.name) for pin in pins.on_top)
    limits = fill("limits.sh", prefix=prefix, python=pins.python, ours=ours) if torch else ""
    return fill(
        "environment.sh",
        python=pins.python,
        torch=torch.version if torch else "",
        prefix=prefix,
        files=folder,
        system="--system-site-packages" if torch else "",
        limits=limits,
        image_limits=f"-c {prefix}/image.txt" if torch else "",
        check=installed_check(pins.on_top, pins.kept),
        **{"with": f" with torch {torch.version}" if torch else ""},
    )
