"""What is asked of an installed wheel, and its answer as data.

The script is `payload.py`, one file without dependencies, written into the place and run there by the
Python of a fresh environment: ``python payload.py QUESTIONS``, with the recipe's `run_environment`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from builders.probes.marked import read_marked
from builders.probes.payload import MARK
from resolver.errors import ProbeError

if TYPE_CHECKING:
    from resolver.facts.schema import Recipe


class Said(msgspec.Struct, frozen=True):
    """The answer to one question; `error` is empty if it went well."""

    name: str = ""
    """Module, or glob of the shared object, that was asked for."""
    file: str = ""
    """What was loaded."""
    values: dict[str, str] = {}
    """Attributes that were asked for."""
    error: str = ""
    """Class of the exception, ``signal N``, ``missing`` or ``timeout``."""
    text: str = ""
    """First line of the error."""
    missing: str = ""
    """The module that was not found, for a ModuleNotFoundError."""
    borrowed: list[str] = []
    """Distributions that were only lent to the probe, and that it used."""


class Torch(msgspec.Struct, frozen=True):
    """What the installed torch says of itself."""

    version: str = ""
    hip: str = ""
    gpus: int = 0
    """GPUs that it sees."""
    borrowed: list[str] = []
    """What it used of what was lent, the start of Python included."""
    error: str = ""
    text: str = ""
    missing: str = ""


class Distribution(msgspec.Struct, frozen=True):
    """The installed wheel."""

    name: str
    version: str
    top: list[str]
    """Names that it puts into site-packages."""
    requires: list[str] = []
    """Its run requirements, as its metadata has them."""


class OpTable(msgspec.Struct, frozen=True):
    """What the build wrote down of its ops."""

    installed: dict[str, bool] = {}
    accelerator: str = ""
    torch: str = ""
    """Major.minor of the torch that was compiled against."""
    error: str = ""
    text: str = ""
    missing: str = ""


class Answer(msgspec.Struct, frozen=True):
    """All answers of one probe."""

    schema: int
    python: str
    distribution: Distribution | None
    torch: Torch
    imports: list[Said]
    objects: list[Said]
    op_table: OpTable | None


def probe_script() -> str:
    """Give the text of the script that is run in the environment."""
    return Path(__file__).with_name("payload.py").read_text(encoding="utf-8")


def probe_questions(recipe: Recipe, lent: str = "") -> str:
    """Give the script's one argument: what is asked of a wheel that was built by this recipe.

    Parameters
    ----------
    recipe
        What was promised.
    lent
        Directory of packages that the environment sees although the wheel does not bring them: the build
        requirements, of which many are run requirements as well. What is used of them is reported.
    """
    asked = {
        "distribution": recipe.package,
        "imports": list(recipe.imports),
        "attributes": list(recipe.attributes),
        "objects": list(recipe.must_contain),
        "op_table": recipe.op_table,
        "lent": lent,
    }
    return json.dumps(asked)


def read_answer(output: str) -> Answer:
    """Read what the script printed; what imported modules print before it is passed over.

    Raises
    ------
    ProbeError
        There is no answer in it, or a damaged one.
    """
    return read_marked(output, MARK, Answer, who="the probe", error=ProbeError)
