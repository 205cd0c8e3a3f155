"""Changes to the environment of a command that installs from the index, with their reasons.

`matrix run` applies them, and the scripts of `matrix env` contain the same lists. Each reason was observed by
running cotainr, conda and pip with the variable.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import msgspec

from builders.constants import CERTIFICATE_VARIABLES, MOUNT_POINT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from resolver.facts.schema import SiteVariable

VISIBLE = (PurePath("/tmp"), PurePath("/var/tmp"))  # noqa: S108
"""The only directories of this machine that are visible in a container while cotainr builds it."""
BUILDERS = ("cotainr", "apptainer", "singularity")
_BINDING = ("SINGULARITY_BIND", "SINGULARITY_BINDPATH", "APPTAINER_BIND", "APPTAINER_BINDPATH")
_BINDS = ("SINGULARITY_BIND", "APPTAINER_BIND")
_PATHS = "pip treats packages found there as installed, so they would be missing from the image"
_ELSEWHERE = "pip would not install into the environment of the image"
DISTURBING = {
    **dict.fromkeys(_BINDING, "the build would fail: it has no mount points for the binds of site modules"),
    **dict.fromkeys(("PYTHONPATH", "APPTAINERENV_PYTHONPATH", "SINGULARITYENV_PYTHONPATH"), _PATHS),
    "PYTHONHOME": "it names the standard library of another Python",
    **dict.fromkeys(("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON"), _ELSEWHERE),
    "PIP_REQUIRE_VIRTUALENV": "pip would refuse to install into a conda environment",
    "PIP_DRY_RUN": "pip would install nothing",
    **dict.fromkeys(("APPTAINER_CLEANENV", "SINGULARITY_CLEANENV"), "pip would not find the index"),
}
"""Variables to unset, with the reason."""
_KEPT = {
    "PIP_NO_INDEX": "is kept: pip reads no index, not even this index",
    "PIP_FIND_LINKS": "is kept: its wheels compete with those of the index",
    "PIP_CONSTRAINT": "is kept: it limits the versions that pip can choose",
    "PIP_NO_BUILD_ISOLATION": "is kept: pip inverts it, so only a value such as 0 or no turns isolation off",
}
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
REFERENCE = re.compile(r"\$\{(\w+)\}")
"""A reference to another variable in the value of a site's variable."""
_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")
_LOOPBACK = "127.0.0.1"


class VariableChange(msgspec.Struct, frozen=True):
    """A variable that has a different value for the command than for the caller."""

    name: str
    value: str | None
    """None if it is unset."""
    reason: str
    shown: str | None = None
    """The value in messages, if it is not `value`."""

    def __str__(self) -> str:
        """Return the change and its reason in one line, without the users and passwords in URLs."""
        value = _CREDENTIALS.sub("", self.value if self.shown is None else self.shown) if self.value else ""
        change = f"unset {self.name}" if self.value is None else f"{self.name}={value}"
        return f"{change}: {self.reason}"


def uses_container(command: Sequence[str]) -> bool:
    """Return whether a command builds or runs a container, even after srun, env and the like.

    Examples
    --------
    >>> uses_container(["srun", "-n", "1", "/appl/bin/cotainr", "build", "x.sif"])
    True
    >>> uses_container(["python", "-m", "pip", "install", "torch"])
    False
    """
    return any(PurePath(word).name in BUILDERS for word in command)


def site_changes(
    env: Mapping[str, str], variables: Iterable[SiteVariable], keep: Iterable[str] = ()
) -> list[VariableChange]:
    """Return the changes for a site's variables; one that is already set may be deliberate and stays."""
    changed, changes, kept = dict(env), [], set(keep)
    for row in variables:
        if row.name not in kept and (row.value is None) == (row.name in changed):
            value = None if row.value is None else expanded(row.value, changed)
            # What `${NAME}` stands for may be secret, and messages end up in logs.
            changes.append(VariableChange(row.name, value, f"{row.reason} ({row.source})", shown=row.value))
            changed = applied(changed, changes[-1:])
    return changes


def expanded(value: str, env: Mapping[str, str]) -> str:
    """Replace references to variables as a shell does; a variable that is not set is empty.

    Examples
    --------
    >>> expanded("/tmp/${USER}-${SLURM_NODEID}", {"USER": "me"})
    '/tmp/me-'
    """
    return REFERENCE.sub(lambda reference: env.get(reference[1], ""), value)


def unset_changes(env: Mapping[str, str], keep: Iterable[str] = ()) -> list[VariableChange]:
    """Return the variables to unset for any command, except those in `keep`."""
    kept = set(keep)
    return [
        VariableChange(name, None, reason)
        for name, reason in DISTURBING.items()
        if name in env and name not in kept
    ]


def kept_warnings(env: Mapping[str, str]) -> list[str]:
    """Return warnings about variables that are kept and may have unwanted effects."""
    return [f"{name} {effect}" for name, effect in _KEPT.items() if env.get(name)]


def index_changes(env: Mapping[str, str], url: str) -> list[VariableChange]:
    """Return the changes that make pip and uv read the index, in addition to the caller's indexes.

    pip adds the lines of a requirements file to ``PIP_EXTRA_INDEX_URL``, and both expand
    ``${MATRIX_INDEX_URL}`` there.
    """
    changes = [
        VariableChange("MATRIX_INDEX_URL", url, "for ${MATRIX_INDEX_URL} in requirements"),
        VariableChange("PIP_EXTRA_INDEX_URL", _added(env, "PIP_EXTRA_INDEX_URL", url), "pip reads the index"),
        VariableChange("UV_INDEX", _added(env, "UV_INDEX", url), "uv reads the index"),
    ]
    if _LOOPBACK in url and any(env.get(name) for name in _PROXIES):
        for name in ("no_proxy", "NO_PROXY"):
            excepted = env.get(name, "")
            if excepted != "*" and _LOOPBACK not in excepted.split(","):
                value = f"{excepted},{_LOOPBACK}" if excepted else _LOOPBACK
                changes.append(VariableChange(name, value, "the proxy cannot reach the loopback address"))
    return changes


def bind_changes(index: str) -> list[VariableChange]:
    """Return the changes that bind the index to /mnt, read-only, for SingularityCE and Apptainer."""
    value = f"{index}:{MOUNT_POINT}:ro"
    return [VariableChange(name, value, f"the index is {MOUNT_POINT} in the container") for name in _BINDS]


def container_changes(env: Mapping[str, str], folder: Path, keep: Iterable[str] = ()) -> list[VariableChange]:
    """Return the changes for a command that builds a container; `fill_folder` creates the files they name.

    ``PYTHONNOUSERSITE`` is not set: cotainr itself may be in the user's site directory. `folder` is visible
    in the container.
    """
    kept = set(keep)
    changes = [
        VariableChange(name, None, f"{env[name]} is not visible in the container, where cotainr needs it")
        for name in ("TMPDIR", "TEMP", "TMP")
        if env.get(name) and not is_visible(env[name]) and name not in kept
    ]
    if "PIP_NO_CACHE_DIR" not in env:
        changes.append(VariableChange("PIP_NO_CACHE_DIR", "1", "pip's cache would end up in the image"))
    changes += [
        VariableChange(
            name, str(folder / f"{name}.pem"), f"a copy of {env[name]}, which the container may lack"
        )
        for name in _hidden_certificates(env, kept)
    ]
    if shutil.which("apptainer") and not shutil.which("singularity"):
        path = f"{folder / 'bin'}:{env.get('PATH', '')}"
        changes.append(
            VariableChange("PATH", path, "cotainr calls singularity, and only apptainer is installed")
        )
    return changes


def _hidden_certificates(env: Mapping[str, str], kept: set[str]) -> list[str]:
    return [
        name
        for name in CERTIFICATE_VARIABLES
        if env.get(name) and name not in kept
        if Path(env[name]).is_file() and not is_visible(str(Path(env[name]).resolve()))
    ]


def fill_folder(env: Mapping[str, str], folder: Path, keep: Iterable[str] = ()) -> None:
    """Create the files that `container_changes` names: copies of certificates, and a link to singularity."""
    for name in _hidden_certificates(env, set(keep)):
        shutil.copyfile(env[name], folder / f"{name}.pem")
    apptainer = shutil.which("apptainer")
    if apptainer and not shutil.which("singularity"):
        (folder / "bin").mkdir()
        (folder / "bin" / "singularity").symlink_to(apptainer)


def is_visible(path: str) -> bool:
    """Return whether a path of this machine is visible in a container while it is built.

    Examples
    --------
    >>> is_visible("/tmp/me"), is_visible("/scratch/project"), is_visible("/tmpfs")
    (True, False, False)
    """
    return any(PurePath(path).is_relative_to(directory) for directory in VISIBLE)


def applied(env: Mapping[str, str], changes: Iterable[VariableChange]) -> dict[str, str]:
    """Return the environment after all changes, in their order."""
    result = dict(env)
    for change in changes:
        if change.value is None:
            result.pop(change.name, None)
        else:
            result[change.name] = change.value
    return result


def _added(env: Mapping[str, str], name: str, url: str) -> str:
    urls = env.get(name, "").split()
    return " ".join([*urls, *([] if url in urls else [url])])
