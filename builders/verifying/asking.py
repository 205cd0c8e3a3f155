"""What an environment is asked, and its answer as data.

The script is `payload.py`, one file without dependencies, run by the Python of that environment.
"""

from __future__ import annotations

import json
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from builders.containers.runtime import Bind, View, output_in, run_in
from builders.probes import probe_questions, probe_script
from builders.probes import read_answer as read_probe
from builders.probes.marked import read_marked
from builders.process import log_size, read_since
from builders.verifying.payload import MARK
from resolver.errors import MatrixError, UsageError, VerifyError
from resolver.requirements import normalize_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builders.containers.runtime import Runtime
    from builders.probes import Answer as Probe
    from resolver.facts.schema import Recipe

_PYTHON = 'exec "$(command -v python || command -v python3)" "$@"'
_DEVICES = ("/dev/kfd", "/dev/dri")
_NO_PYTHON = "Name the Python with --python: its path in the image, or on this machine without an image."


class Held(msgspec.Struct, frozen=True):
    """An installed distribution."""

    name: str
    version: str
    path: str
    """The directory that it is in."""


class Symbols(msgspec.Struct, frozen=True):
    """A libstdc++ with the newest ``GLIBCXX`` version that it defines; empty where there is none."""

    path: str = ""
    glibcxx: str = ""


class PipCheck(msgspec.Struct, frozen=True):
    """What ``pip check`` said; its exit code is None if it could not be asked."""

    code: int | None
    lines: list[str]


class UserSite(msgspec.Struct, frozen=True):
    """Whether the user's own packages would be seen."""

    minor: str
    shut: str = ""
    """Why they are not; empty if they are."""


class Loaded(msgspec.Struct, frozen=True):
    """What is mapped after torch and the extensions were imported in one process."""

    objects: list[str] = []
    errors: dict[str, str] = {}
    """Module to why it does not import."""
    libstdcxx: list[Symbols] = []
    failed: str = ""
    """Why there is no answer."""


class Gpu(msgspec.Struct, frozen=True):
    """One GPU that torch sees."""

    name: str
    arch: str
    error: str


class Gpus(msgspec.Struct, frozen=True):
    """What torch is for, and its GPUs."""

    torch: str = ""
    hip: str = ""
    cuda: str = ""
    gpus: list[Gpu] = []
    failed: str = ""


class Answer(msgspec.Struct, frozen=True):
    """All that an environment says of itself."""

    schema: int
    python: str
    executable: str
    prefix: str
    distributions: list[Held]
    pip_check: PipCheck
    user_site: UserSite
    system_libstdcxx: Symbols
    loaded: Loaded
    gpu: Gpus


class Asking:
    """An environment that is asked questions.

    Parameters
    ----------
    place
        Where it is.
    python
        Its Python, as the place knows it; empty for the first on PATH.
    folder
        An empty directory that the place may see, for the scripts.
    log
        Where everything goes that is printed.
    env
        Variables besides the place's own.
    """

    def __init__(
        self, runtime: Runtime, python: str, *, folder: Path, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self._place, self._python, self._folder, self._log = runtime, python, folder, log
        self._first = [python] if python else ["/bin/sh", "-c", _PYTHON, "sh"]
        devices = [Path(name) for name in _DEVICES if Path(name).exists()]
        self._view = View(
            env=dict(env or {}), binds=[Bind(folder), *(Bind(path, writable=True) for path in devices)]
        )
        (folder / "verify.py").write_text(_script(), encoding="utf-8")
        (folder / "probe.py").write_text(probe_script(), encoding="utf-8")

    def environment(self, modules: Sequence[str]) -> Answer:
        """Ask for all that is in it, and what loads when some modules are imported in turn.

        Raises
        ------
        CommandError
            No Python ran; the error names the log.
        VerifyError
            The answer is damaged.
        UsageError
            What was named is no Python.
        """
        try:
            said = self._run("verify.py", json.dumps({"modules": list(modules)}), {})
            return read_answer(said)
        except MatrixError:
            if self._is_no_python():
                msg = f"{self._python} is no Python that runs."
                raise UsageError(msg, hint=_NO_PYTHON) from None
            raise

    def distribution(self, recipe: Recipe) -> Probe:
        """Ask an installed distribution what its recipe promises."""
        return read_probe(self._run("probe.py", probe_questions(recipe), recipe.run_environment))

    def _is_no_python(self) -> bool:
        """Tell whether the Python that was named is to blame, and not the place."""
        if not self._python:
            return False
        shell, python = ["/bin/sh", "-c", "echo $((6 * 7))"], [self._python, "-c", "print(6 * 7)"]
        said = [output_in(self._place, command, self._view).strip() for command in (shell, python)]
        return said[0].endswith("42") and not said[1].endswith("42")

    def _run(self, script: str, question: str, env: Mapping[str, str]) -> str:
        start = log_size(self._log)
        view = View(env={**self._view.env, **env}, binds=self._view.binds)
        command = [*self._first, str(self._folder / script), question]
        try:
            run_in(self._place, command, view, what="Asking the environment", log=self._log)
        except MatrixError as error:
            error.hint = error.hint or _NO_PYTHON
            raise
        return read_since(self._log, start)


def read_answer(output: str) -> Answer:
    """Read what the script printed; what imported modules print before it is passed over.

    Raises
    ------
    VerifyError
        There is no answer in it, or a damaged one.
    """
    return read_marked(output, MARK, Answer, who="the environment", error=VerifyError)


def in_user_site(base: Path, minor: str) -> dict[str, str]:
    """Give what a user installed for a Python with ``pip install --user``: name to version.

    Parameters
    ----------
    base
        ``~/.local``, or what ``PYTHONUSERBASE`` names.
    minor
        Version of the Python, such as ``3.12``.
    """
    folder = base / "lib" / f"python{minor}" / "site-packages"
    if not folder.is_dir():
        return {}
    found = distributions(path=[str(folder)])
    return {normalize_name(one.metadata["Name"]): one.version for one in found if one.metadata["Name"]}


def _script() -> str:
    return Path(__file__).with_name("payload.py").read_text(encoding="utf-8")
