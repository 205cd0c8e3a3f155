"""The environment a wheel is built in: the pinned torch and the undeclared build requirements.

An environment is kept in the cache under the digest of all that went into it, so the next build
with the same torch starts at once. It is complete only when its marker is there: one that a crash
left behind is thrown away and made again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builders.cache import cache_root
from builders.environments.pipconfig import pip_environment, reachable
from builders.files import only_one, write_atomic
from builders.run import CommandError, output_of, run
from resolver.errors import EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_MARKER = "matrix-environment.json"
_LIST = (
    "import importlib.metadata as m, json;"
    "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}, sort_keys=True))"
)


@dataclass(frozen=True, slots=True)
class BuildEnvironment:
    """A finished environment."""

    root: Path
    installed: dict[str, str]
    """Every distribution in it, with its version."""

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.root / "bin" / "python"


def build_environment(
    python: Path,
    requirements: Sequence[str],
    *,
    indexes: Sequence[str],
    log: Path,
    say: Callable[[str], None],
    offline: bool = False,
) -> BuildEnvironment:
    """Make the environment, or take it from the cache.

    Parameters
    ----------
    python
        Interpreter to make it with.
    requirements
        What pip installs into it, torch pinned with its local label.
    indexes
        Wheel indexes to offer to pip besides the configured ones, if they can be reached.
    log
        Where pip's output goes.
    say
        Told what is being done.
    offline
        Take it from the cache or not at all.

    Raises
    ------
    EnvironmentLacksError
        pip could not find or fetch something.
    """
    identity = json.dumps([str(python.resolve()), output_of([str(python), "-VV"]), sorted(requirements)])
    root = cache_root() / "environments" / hashlib.sha256(identity.encode()).hexdigest()[:20]
    with only_one(root.with_suffix(".lock")):
        marker = root / _MARKER
        if not marker.exists():
            if offline:
                msg = f"There is no build environment with {', '.join(requirements)} yet."
                raise EnvironmentLacksError(msg, hint="Run the same command once without --offline.")
            shutil.rmtree(root, ignore_errors=True)
            _make(root, python, requirements, indexes=indexes, log=log, say=say)
            listed = output_of([str(root / "bin" / "python"), "-c", _LIST])
            if not listed:
                msg = f"The Python of the build environment {root} does not run."
                raise EnvironmentLacksError(msg, hint=f"pip's output is in {log}.")
            write_atomic(marker, listed)
        return BuildEnvironment(root, json.loads(marker.read_text()))


def _make(
    root: Path,
    python: Path,
    requirements: Sequence[str],
    *,
    indexes: Sequence[str],
    log: Path,
    say: Callable[[str], None],
) -> None:
    env = pip_environment()
    run(
        [str(python), "-m", "venv", str(root)],
        what="Making a virtual environment",
        log=log,
        env=env,
    )
    options = []
    for url in indexes:
        if reachable(url):
            options += ["--extra-index-url", url]
        else:
            say(f"{url} cannot be reached; pip looks only where it is configured to")
    command = [
        str(root / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--no-input",
        *options,
        *requirements,
    ]
    try:
        run(command, what=f"Installing {', '.join(requirements)}", log=log, env=env)
    except CommandError as error:
        unreached = [url for url in indexes if "--extra-index-url" not in options]
        where = (
            f" Make {unreached[0]} reachable, or give pip another place (PIP_FIND_LINKS, pip.conf)."
            if unreached
            else ""
        )
        raise EnvironmentLacksError(
            error.message, hint=f"pip could not install the build requirements.{where}"
        ) from None
