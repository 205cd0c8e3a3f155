"""Run the probe script in an environment, and parse its reply.

The script is one file without dependencies, which the environment's own Python runs. It prints its
reply as one line of JSON, marked with a random number that the probed code cannot read.
"""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from builders.containers.runtime import Bind, Runtime, View, output_in, run_in
from builders.machine.process import log_size, read_since
from builders.probe.payload import MARK
from resolver.errors import CommandError, MatrixError, UsageError
from resolver.facts.schema import Recipe
from resolver.requirements import normalize_name

_PYTHON = 'exec "$(command -v python || command -v python3)" "$@"'
_ALONE = ("-I", "-S")  # no installed code runs in this process
_SCRIPT = "main.py"  # its child processes can read this name
_WHOLE = "# --- A whole environment"  # begins the part of the script that only such a question needs
_DEVICES = ("/dev/kfd", "/dev/dri")
_NO_PYTHON = "Name the Python with --python: its path in the image; without an image, its path or a command."
_HINT = "Read the log; the environment's Python may be broken."
_LONGEST = 200  # characters of the output that are shown


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one part of the probe; `error` is empty on success."""

    error: str = ""
    """Class of the exception, ``signal N``, ``exit code N``, ``missing``, ``not mapped`` or ``timeout``."""
    text: str = ""
    """First line of the error."""
    missing: str = ""
    """The module that was not found, for a ModuleNotFoundError."""

    @property
    def failure(self) -> str:
        """Error and text in one line."""
        return f"{self.error}: {self.text}".rstrip(": ")


class LoadReply(Outcome, frozen=True):
    """The result of one import, or of loading one shared object."""

    name: str = ""
    """Module, or pattern of the shared object."""
    file: str = ""
    """The file that was loaded."""
    values: dict[str, str] = {}
    """The requested attributes."""
    borrowed: list[str] = []
    """Distributions that were only lent to the probe, and that the import used."""


class Gpu(msgspec.Struct, frozen=True):
    """A GPU that torch or JAX finds."""

    name: str
    arch: str
    error: str


class FrameworkReply(Outcome, frozen=True):
    """The installed torch or JAX."""

    version: str = ""
    hip: str = ""
    """The ROCm that it was built for, and `cuda` the CUDA; empty for JAX, whose plugins have them."""
    cuda: str = ""
    gpus: list[Gpu] = []
    """The GPUs that it finds, each tested with two matrices; empty if no test was requested."""
    borrowed: list[str] = []
    """Lent distributions that torch used."""
    no_gpu: str = ""
    """Why JAX finds no GPU, in its own words."""


class WheelMetadata(msgspec.Struct, frozen=True):
    """The metadata of the installed wheel."""

    name: str
    version: str
    top: list[str]
    """Top-level names in site-packages."""
    requires: list[str] = []


class WheelReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply about one installed wheel."""

    distribution: WheelMetadata | None
    """None if the wheel is not installed."""
    torch: FrameworkReply
    imports: list[LoadReply] = []
    objects: list[LoadReply] = []
    variables: dict[str, str] = {}
    """The variables that programs need, as the environment sets them."""


class InstalledDist(msgspec.Struct, frozen=True):
    """An installed distribution."""

    name: str
    version: str
    path: str
    """The directory that contains it."""
    ops: list[str] = []
    """The ops that it was built with, if `matrix` built it."""
    compared: int = 0
    """Number of files that were compared with their hashes."""
    differing: list[str] = []
    """Files that differ or are missing."""
    metadata_sha256: str = ""
    requires: list[str] = []
    """The lines of ``Requires-Dist``."""
    archives: list[str] = []
    """Its ``.kpack`` archives of GPU code, by path."""


class LibStdCxx(msgspec.Struct, frozen=True):
    """A libstdc++ and the newest ``GLIBCXX`` version that it defines; empty if there is none."""

    path: str = ""
    glibcxx: str = ""


class UserSite(msgspec.Struct, frozen=True):
    """How Python treats the user's own packages."""

    minor: str
    ignored: str = ""
    """The reason why Python ignores them; empty if it does not."""
    path: str = ""
    """Their directory on its search path; empty in a container, where the probe switches them off."""


class NetworkPlugin(msgspec.Struct, frozen=True):
    """A network plugin of RCCL, which is opened only when a job communicates."""

    path: str
    interfaces: list[int]
    """The versions of RCCL's network interface that it offers."""
    libfabric: str = ""
    """The name of the libfabric that it needs; empty if it needs none."""
    found: str = ""
    """Where the loader finds this libfabric; empty if nowhere that is known."""
    searched: bool = True
    """Whether RCCL is known to search its directory."""
    needs: str = ""
    """The newest symbol version of libfabric that it needs, such as ``1.8``."""
    has: str = ""
    """The newest symbol version of this libfabric."""
    error: str = ""
    """Why it does not load after torch and the extensions; empty if it does, or if nothing was started."""
    loaded: str = ""
    """The libfabric of the process in which it was loaded."""


class Libraries(Outcome, frozen=True):
    """The shared objects that are mapped after torch and the extensions were imported in one process."""

    objects: list[str] = []
    libstdcxx: list[LibStdCxx] = []
    of_torch: list[str] = []
    """The shared objects that the installed torch brings."""
    prefixes: list[str] = []
    """The prefixes of Python's environment, and of the Python that it was created from."""
    plugins: list[NetworkPlugin] = []
    """The network plugins of RCCL, in the order in which RCCL searches for them."""
    plugin_variable: str = ""
    """The value of ``NCCL_NET_PLUGIN``."""
    copied: list[str] = []
    """The loaded objects that are copies of libraries of the system's ROCm."""


class EnvironmentReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply about a whole environment."""

    python: str
    executable: str
    distributions: list[InstalledDist]
    user_site: UserSite
    system_libstdcxx: LibStdCxx
    libraries: Libraries
    torch: FrameworkReply
    jax: FrameworkReply | None = None
    """None if no plugin of JAX is installed, so that JAX is for CPUs."""
    system_rocm: str = ""
    """The directory of the system's ROCm; empty if it has none."""
    variables: dict[str, str] = {}

    @property
    def installed(self) -> dict[str, InstalledDist]:
        """The distributions by normalized name: of several copies, the one that Python finds."""
        return {normalize_name(dist.name): dist for dist in reversed(self.distributions)}


class ContentsReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply about the objects of an environment."""

    written: list[tuple[str, str]]
    """Name of each distribution with objects, and of the wheel with them in the directory of the probe."""
    left: list[str]
    """Distributions whose objects are too large to be copied."""


_Reply = TypeVar("_Reply", WheelReply, EnvironmentReply, ContentsReply)


class Probe:
    """An environment that can be probed.

    `python` is the path of its Python in `runtime`, or on the host a command that starts it; empty for the
    first on PATH. `folder` is an empty directory for the script, which the runtime may mount. `log` gets
    everything that is printed. `env` has variables in addition to the runtime's own, and `variables` those
    that programs need: those that the environment does not set get these values.
    """

    def __init__(
        self,
        runtime: Runtime,
        python: str,
        *,
        folder: Path,
        log: Path,
        env: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._runtime, self._python, self._log = runtime, python, log
        self._variables = dict(variables or {})
        self._start = _words(python, runtime) if python else ["/bin/sh", "-c", _PYTHON, "sh"]
        devices = [Bind(Path(name), writable=True) for name in _DEVICES if Path(name).exists()]
        self._view = View(env=dict(env or {}), binds=[Bind(folder, writable=True), *devices])
        self._folder = folder

    def ask_environment(
        self, modules: Sequence[str], files: Mapping[str, Mapping[str, str]] | None = None
    ) -> EnvironmentReply:
        """Return the content of the environment, and the libraries that load when modules are imported.

        `files` has, by normalized name, the distributions whose files are compared with their hashes: paths
        with hashes as in RECORD. RECORD of the installed distribution is used if there are none.
        """
        question = {
            "modules": list(modules),
            "files": {name: dict(rows) for name, rows in (files or {}).items()},
            "is_image": self._runtime.image is not None,
        }
        try:
            return self._ask(question, EnvironmentReply)
        except MatrixError as error:
            if self._prints(self._start, self._view):
                raise
            connected = replace(self._view, network=True)
            if self._runtime.image is None and self._prints(self._start, connected):
                self._view = connected  # setuid programs, such as container runtimes, do not start without it
                return self._ask(question, EnvironmentReply)
            if self._python and self._prints(["/bin/sh"], self._view):
                reason = f": {error.lines[-1]}" if isinstance(error, CommandError) and error.lines else "."
                msg = f"`{self._python}` does not start a working Python{reason}"
                raise UsageError(msg, hint=_NO_PYTHON) from None
            raise

    def ask_contents(self, skipped: Iterable[str]) -> ContentsReply:
        """Write the objects of distributions that may be for GPUs into wheels in the directory of the probe.

        `skipped` are normalized names.
        """
        return self._ask({"skipped": sorted(skipped)}, ContentsReply)

    def ask_wheel(self, recipe: Recipe) -> WheelReply:
        """Return the reply about the promises of a recipe, for an installed distribution."""
        return self._ask(wheel_question(recipe), WheelReply)

    def seconds_to_start(self) -> float | None:
        """Return how long a program takes that starts the Python and ends; None if it fails.

        It was started before, so its files are in the page cache.
        """
        began = monotonic()
        return monotonic() - began if self._prints(self._start, self._view) else None

    def _prints(self, start: Sequence[str], view: View) -> bool:
        """Return whether the environment's Python, or a shell, starts and prints a word."""
        word = "rocm-matrix-starts"
        line = f"print('{word}')" if start is self._start else f"echo {word}"
        return word in output_in(self._runtime, [*start, "-c", line], view).split()

    def _ask(self, question: Mapping[str, Any], kind: type[_Reply]) -> _Reply:
        question = {**question, "variables": self._variables}
        what, folder, log = "Probing the environment", self._folder, self._log
        try:
            return ask(
                self._runtime, self._start, question, kind, self._view, folder=folder, what=what, log=log
            )
        except MatrixError as error:
            raise error.changed(hint=error.hint or _NO_PYTHON) from error.__cause__


def _words(python: str, runtime: Runtime) -> list[str]:
    if runtime.image is not None or Path(python).exists():
        return [python]
    try:
        return shlex.split(python)
    except ValueError as error:
        msg = f"{python!r} is not a valid command: {str(error).lower()}."
        hint = "Name a Python, or a command that starts one, quoted as in a shell."
        raise UsageError(msg, hint=hint) from None


def ask(
    runtime: Runtime,
    python: Sequence[str],
    question: Mapping[str, Any],
    kind: type[_Reply],
    view: View,
    *,
    folder: Path,
    what: str,
    log: Path,
) -> _Reply:
    """Run the script in an environment and return its reply; `what` is as for `run_in`.

    `folder` must be writable in the view: the script removes itself.
    """
    script, nonce, start = folder / _SCRIPT, secrets.token_hex(), log_size(log)
    script.write_text(probe_script(question, nonce), encoding="utf-8")
    try:
        run_in(runtime, [*python, *_ALONE, str(script)], view, what=what, log=log)
    finally:
        script.unlink(missing_ok=True)
    return parse_reply(read_since(log, start), nonce, kind)


def probe_script(question: Mapping[str, Any], nonce: str) -> str:
    """Return the text of the script that answers a question."""
    payload, child = (
        Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("payload.py", "child.py")
    )
    child += "\ninner(*sys.argv[1:])"
    if "distribution" in question:  # the rest takes as long to compile as Python to start
        payload = payload.partition(_WHOLE)[0]
    return f"{payload}\nCHILD = {child!r}\nouter({dict(question)!r}, {nonce!r})\n"


def wheel_question(recipe: Recipe, lent: str = "") -> dict[str, Any]:
    """Return the question about a wheel that was built by this recipe.

    `lent` is the directory of the build requirements, which the environment lends to the wheel: many of them
    are run requirements as well. The reply lists those that the wheel used.
    """
    return {
        "distribution": recipe.package,
        "imports": list(recipe.imports),
        "attributes": list(recipe.attributes),
        "objects": list(recipe.must_contain),
        "lent": lent,
    }


def parse_reply(output: str, nonce: str, kind: type[_Reply]) -> _Reply:
    """Parse the output of the script, ignoring every line that does not begin with the mark and the nonce."""
    lines, mark = output.splitlines(), f"{MARK}{nonce} "
    for line in lines:
        if line.startswith(mark):
            try:
                return msgspec.json.decode(line.removeprefix(mark), type=kind)
            except msgspec.MsgspecError as error:
                msg = f"Cannot read the reply of the probe: {error}."
                raise MatrixError(msg, hint=_HINT, id="probe") from None
    last = next((line for line in reversed(lines) if line.strip()), "nothing")
    msg = f"The probe did not reply. Its last output was: {last[:_LONGEST]}"
    raise MatrixError(msg, hint=_HINT, id="probe")


def user_packages(minor: str) -> dict[str, str]:
    """Return the versions, by name, that ``pip install --user`` installed for a Python such as ``3.12``."""
    base = Path(os.environ.get("PYTHONUSERBASE") or Path.home() / ".local")
    folder = base / "lib" / f"python{minor}" / "site-packages"
    if not folder.is_dir():
        return {}
    return {
        normalize_name(distribution.metadata["Name"]): distribution.version
        for distribution in distributions(path=[str(folder)])
        if distribution.metadata["Name"]
    }
