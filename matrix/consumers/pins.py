"""What a lock pins, in the one form from which every consumer's file is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from resolver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resolver.model import BaseImage, Distribution, Resolution


@dataclass(frozen=True, slots=True)
class Pin:
    """One distribution at exactly one version."""

    name: str
    """Normalised."""
    version: str
    """With its local version label, which no public index accepts: nobody else can serve it."""
    built: bool = False
    """Whether it is built for the lock and lies in our index."""
    wheel_only: bool = False
    """Whether pip may take nothing but a wheel: what is built, and what the lock names a wheel of."""
    index: str = ""
    """URL of the wheel index that serves it, if another than pip's own."""

    def __str__(self) -> str:
        """Give the requirement."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class Hashed:
    """A distribution with the hashes of the files that may be installed for it."""

    name: str
    version: str
    sha256: tuple[str, ...]
    """Hexadecimal digests."""

    def __str__(self) -> str:
        """Give the requirement in pip's hash-checking form."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash=sha256:{one}" for one in self.sha256)])


@dataclass(frozen=True, slots=True)
class Pins:
    """What a lock says to a consumer of the index."""

    site: str
    date: str
    backend: str
    gfx: tuple[str, ...]
    python: str
    """CPython minor."""
    glibc: str
    """Of the base image; empty where that is not known."""
    image: BaseImage | None
    pins: tuple[Pin, ...]
    """What is installed, in the order of the lock."""
    kept: tuple[Pin, ...]
    """What the base image holds and the lock leaves as it is."""
    needed_by_kept: frozenset[str]
    """Names of pins that only what is kept needs: whoever has the one has the other."""
    installed: tuple[Pin, ...] = ()
    """All else that was said to be installed, in the list that was kept."""
    closure: tuple[Hashed, ...] = ()
    """Pins and all that they need, with hashes; empty unless hashes were asked for."""

    @property
    def built(self) -> list[Pin]:
        """What must be in our index."""
        return [pin for pin in self.pins if pin.built]

    @property
    def indexes(self) -> list[str]:
        """URLs of the wheel indexes besides ours and pip's own, each once."""
        return list(dict.fromkeys(pin.index for pin in self.pins if pin.index))

    @property
    def on_top(self) -> tuple[Pin, ...]:
        """What is installed on top of the base image: without what its own torch needs."""
        return tuple(pin for pin in self.pins if pin.name not in self.needed_by_kept)

    @property
    def kept_torch(self) -> Pin | None:
        """The torch of the base image, if the lock keeps it."""
        return next((pin for pin in self.kept if pin.name == "torch"), None)

    @property
    def image_path(self) -> str:
        """Path, address or, where the site keeps neither, name of the base image; empty without one."""
        return (self.image.path or self.image.name) if self.image else ""

    @property
    def heading(self) -> str:
        """For what it was resolved."""
        targets = f", {', '.join(self.gfx)}" if self.gfx else ""
        return f"For {self.site} on {self.date}: {self.backend}{targets}, Python {self.python}"


def pins_of(lock: Resolution) -> Pins:
    """Gather what a lock pins.

    Parameters
    ----------
    lock
        The resolution.

    Raises
    ------
    UsageError
        The lock does not fix the Python version.
    """
    target = lock.target
    python = target.python or lock.version_of("python")
    if not python:
        msg = "The lock has no Python version."
        raise UsageError(msg, hint="Resolve with --python 3.12 (or another).")
    rank = {name: number for number, name in enumerate(name for group in lock.order for name in group)}
    picks = sorted(
        (pick for pick in lock.picks if pick.kind == "distribution"),
        key=lambda pick: (rank.get(pick.name, len(rank)), pick.name),
    )
    kept = [pick for pick in picks if pick.origin == "preinstalled"]
    return Pins(
        site=target.site,
        date=str(target.date),
        backend=target.backend,
        gfx=target.gfx,
        python=python,
        glibc=target.glibc or "",
        image=lock.image,
        pins=tuple(_pin(pick) for pick in picks if pick.origin != "preinstalled"),
        kept=tuple(_pin(pick) for pick in kept),
        needed_by_kept=_needed_by(lock, picks, kept),
        installed=_installed(lock, {pick.name for pick in picks}),
    )


def _pin(pick: Distribution) -> Pin:
    built = pick.origin == "build"
    return Pin(pick.name, pick.pinned, built, built or pick.wheel is not None, pick.index)


def _needed_by(
    lock: Resolution, picks: Sequence[Distribution], kept: Sequence[Distribution]
) -> frozenset[str]:
    """Name what is published and has its only users among what is kept."""
    asked = {requirement.name for requirement in lock.request.requirements}
    users: dict[str, set[str]] = {}
    for edge in lock.edges:
        if edge.kind == "run":
            users.setdefault(edge.object, set()).add(edge.subject)
    held = {pick.name for pick in kept}
    found: set[str] = set()
    while True:
        more = {
            pick.name
            for pick in picks
            if pick.origin == "published" and pick.name not in asked | found
            if users.get(pick.name) and users[pick.name] <= held | found
        }
        if not more:
            return frozenset(found)
        found |= more


def _installed(lock: Resolution, decided: set[str]) -> tuple[Pin, ...]:
    from resolver.versions import is_version

    preinstalled = lock.request.preinstalled
    if preinstalled is None:
        return ()
    return tuple(
        Pin(name, version)
        for name, version in sorted(preinstalled.installed.items())
        if name not in decided | {"python", "rocm"} and is_version(version)
    )
