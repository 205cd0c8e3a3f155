"""The variables of a command that reads the index: what is set, what is taken away, and why.

What disturbs a build in a container was found by running cotainr, conda and pip with it; a sentence at
each says what happened. Nothing here looks at the machine: files that must be copied are only named.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

VISIBLE = (PurePath("/tmp"), PurePath("/var/tmp"))  # noqa: S108
"""The only directories of this machine that a container sees while cotainr builds it."""
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO")
BUILDERS = ("cotainr", "apptainer", "singularity")
"""Programs that make a container."""
_BINDING = ("SINGULARITY_BIND", "SINGULARITY_BINDPATH", "APPTAINER_BIND", "APPTAINER_BINDPATH")
_BINDS = ("SINGULARITY_BIND", "APPTAINER_BIND")
_PATHS = "what pip finds there counts as installed, and is then missing in the image"
_ELSEWHERE = "pip would install to another place than the image's environment"
_DISTURBING = {
    **dict.fromkeys(_BINDING, "a build has no mount point for what site modules bind, and would die"),
    **dict.fromkeys(("PYTHONPATH", "APPTAINERENV_PYTHONPATH", "SINGULARITYENV_PYTHONPATH"), _PATHS),
    "PYTHONHOME": "it names the standard library of another Python",
    **dict.fromkeys(("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON"), _ELSEWHERE),
    "PIP_REQUIRE_VIRTUALENV": "a conda environment is none, so pip would refuse to install",
    "PIP_DRY_RUN": "pip would install nothing",
    **dict.fromkeys(
        ("APPTAINER_CLEANENV", "SINGULARITY_CLEANENV"), "pip would not be told where the index is"
    ),
}
_REMARKED = {
    "PIP_NO_INDEX": "stays, and keeps pip from reading any index, this one included",
    "PIP_FIND_LINKS": "stays; what lies there competes with the index",
    "PIP_CONSTRAINT": "stays, and limits what pip may choose",
    "PIP_NO_BUILD_ISOLATION": "stays; pip reads it the other way round: only 0 or false turns isolation off",
}
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Change:
    """One variable that the command sees otherwise than the caller."""

    name: str
    value: str | None
    """None where it is taken away."""
    why: str

    def __str__(self) -> str:
        """One line for a person."""
        done = f"unset {self.name}" if self.value is None else f"{self.name}={self.value}"
        return f"{done}: {self.why}"


def makes_container(command: Sequence[str]) -> bool:
    """Tell whether a command makes or runs a container, also behind srun, env and the like.

    Examples
    --------
    >>> makes_container(["srun", "-n", "1", "/appl/bin/cotainr", "build", "x.sif"])
    True
    >>> makes_container(["python", "-m", "pip", "install", "torch"])
    False
    """
    return any(PurePath(word).name in BUILDERS for word in command)


def disturbing(env: Mapping[str, str], keep: Iterable[str] = ()) -> list[Change]:
    """Give what is taken away, whatever the command.

    Parameters
    ----------
    keep
        Names that the user wants to stay.
    """
    kept = set(keep)
    return [Change(name, None, why) for name, why in _DISTURBING.items() if name in env and name not in kept]


def remarks(env: Mapping[str, str]) -> list[str]:
    """Say what stays and may surprise."""
    return [f"{name} {what}" for name, what in _REMARKED.items() if env.get(name)]


def telling(env: Mapping[str, str], url: str) -> list[Change]:
    """Tell pip and uv where the index is, besides all that they know.

    pip adds the lines of a requirements file to ``PIP_EXTRA_INDEX_URL``, and both expand
    ``${MATRIX_INDEX_URL}`` in such a line. Beside a proxy the loopback address needs an exception.
    """
    found = [
        Change("MATRIX_INDEX_URL", url, "for ${MATRIX_INDEX_URL} in requirements"),
        Change("PIP_EXTRA_INDEX_URL", _added(env, "PIP_EXTRA_INDEX_URL", url), "pip reads the index"),
        Change("UV_INDEX", _added(env, "UV_INDEX", url), "uv reads the index"),
    ]
    if _LOOPBACK in url and any(env.get(name) for name in _PROXIES):
        for name in ("no_proxy", "NO_PROXY"):
            there = env.get(name, "")
            if there != "*" and _LOOPBACK not in there.split(","):
                value = f"{there},{_LOOPBACK}" if there else _LOOPBACK
                found.append(Change(name, value, "the proxy cannot reach the loopback address"))
    return found


def binding(index: str) -> list[Change]:
    """Bind the index to /mnt, read-only, for either runtime."""
    value = f"{index}:/mnt:ro"
    return [Change(name, value, "the container sees the index as /mnt") for name in _BINDS]


def for_container(env: Mapping[str, str], keep: Iterable[str] = ()) -> list[Change]:
    """Give what changes where the command makes a container.

    ``PYTHONNOUSERSITE`` is not set: cotainr itself may be installed there, and while it builds the
    container does not see the home directory.
    """
    found = [
        Change(name, None, f"the container does not see {env[name]}; cotainr works below it and would break")
        for name in ("TMPDIR", "TEMP", "TMP")
        if env.get(name) and not is_visible(env[name]) and name not in set(keep)
    ]
    if "PIP_NO_CACHE_DIR" not in env:
        found.append(Change("PIP_NO_CACHE_DIR", "1", "pip's cache would lie in the image"))
    return found


def is_visible(path: str) -> bool:
    """Tell whether a container sees a path of this machine while it is built.

    Examples
    --------
    >>> is_visible("/tmp/me"), is_visible("/scratch/project"), is_visible("/tmpfs")
    (True, False, False)
    """
    return any(PurePath(path).is_relative_to(one) for one in VISIBLE)


def applied(env: Mapping[str, str], changes: Iterable[Change]) -> dict[str, str]:
    """Give the environment after all changes, later ones over earlier ones."""
    result = dict(env)
    for change in changes:
        if change.value is None:
            result.pop(change.name, None)
        else:
            result[change.name] = change.value
    return result


def _added(env: Mapping[str, str], name: str, url: str) -> str:
    there = env.get(name, "").split()
    return " ".join([*there, *([] if url in there else [url])])
