"""The requirements of a built wheel: torch pinned to the very version it was compiled against.

An extension is compiled against one torch: another minor release, or the same one for another
ROCm, has other symbols. So the metadata says ``torch==2.9.1+rocm6.4`` whatever the source's own
said, and pip refuses any other. The pin is metadata only: uv replaces it by an override, pip passes
over it with ``--no-deps``, and `PinStyle` writes a weaker one in the first place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from builders.constants import TRITON_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PinStyle = Literal["exact", "release", "none"]
"""``exact``: the local label is part of the pin; ``release``: any build of that release fits (PEP 440:
``==2.9.1`` also takes ``2.9.1+rocm6.4``); ``none``: what the source requires is left as it is."""

_NEVER = "nvidia-"
"""Beginning of the names of CUDA's packages: nothing that runs on AMD GPUs may bring them."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A distribution that has to be there in one version."""

    name: str
    """Normalised (PEP 503)."""
    version: str
    """With its local label."""
    replaces: tuple[str, ...] = ()
    """Other distributions with the same modules: a requirement of one becomes one of this."""
    always: bool = False
    """Whether it is written even if the source does not require it, as Apex does not require torch."""


@dataclass(frozen=True, slots=True)
class Change:
    """A requirement that is written otherwise than the source has it."""

    before: str
    """As the source has it; empty for an addition."""
    after: str
    """As it is written; empty for what is left out."""
    why: str


def runtime_pins(
    torch: str, others: Mapping[str, str] | None = None, *, add_torch: bool = True
) -> tuple[Pin, ...]:
    """Give the pins for a wheel that was built against a torch.

    Parameters
    ----------
    torch
        Version of the torch it was built against, with its local label; empty if it was built without.
    others
        Name to version of what else has to be the very one that runs: what the recipe matches, and
        torch's triton (by the name that this torch has for it, such as ``pytorch-triton-rocm``).
    add_torch
        Whether to require torch even if the source does not. A requirement of the source becomes exact
        in any case.

    Examples
    --------
    >>> [f"{pin.name} {pin.version}" for pin in runtime_pins("2.9.1+rocm6.4", {"numpy": "2.1.0"})]
    ['torch 2.9.1+rocm6.4', 'numpy 2.1.0']
    """
    pins = [Pin("torch", torch, always=add_torch)] if torch else []
    for given, version in (others or {}).items():
        name = canonicalize_name(given)
        if name == "torch":
            continue
        twins = tuple(one for one in TRITON_NAMES if one != name) if name in TRITON_NAMES else ()
        pins.append(Pin(name, version, twins))
    return tuple(pins)


@dataclass(frozen=True, slots=True)
class Pinned:
    """The requirements as they are to be written."""

    kept: tuple[str | None, ...]
    """For each that the source has what it becomes; None for what is left out."""
    added: tuple[str, ...]
    changes: tuple[Change, ...]
    """What became of those that are written otherwise."""


def pinned(requirements: Sequence[str], pins: Iterable[Pin], loosening: PinStyle = "exact") -> Pinned:
    """Rewrite the requirements of a wheel.

    Extras and markers stay, also in what becomes a pin. What is no requirement that `packaging` can
    read is left as it is.

    Parameters
    ----------
    requirements
        Values of ``Requires-Dist`` as the source has them.
    pins
        What has to be there in one version.
    loosening
        How exact the pins are.
    """
    pins = () if loosening == "none" else tuple(pins)
    by_name = {name: pin for pin in reversed(pins) for name in (pin.name, *pin.replaces)}
    kept: list[str | None] = []
    changes: list[Change] = []
    always: set[str] = set()
    for text in requirements:
        after, why = _one(text, by_name, loosening)
        if why:
            changes.append(Change(text, after, why))
        kept.append(after if after and not (why and after in kept) else None)
        if (one := _read(after)) is not None and one.marker is None:
            always.add(canonicalize_name(one.name))
    lacking = [pin for pin in pins if pin.always and pin.name not in always]
    added = [f"{pin.name}=={_version(pin, loosening)}" for pin in lacking]
    why = "it was built against it, which the source does not say"
    return Pinned(tuple(kept), tuple(added), (*changes, *(Change("", one, why) for one in added)))


def _one(text: str, pins: Mapping[str, Pin], loosening: PinStyle) -> tuple[str, str]:
    """Give what a requirement becomes, and why; no reason where it stays as it is."""
    one = _read(text)
    if one is None:
        return text, ""
    name = canonicalize_name(one.name)
    if name.startswith(_NEVER):
        return "", "it is for NVIDIA's GPUs"
    pin = pins.get(name)
    if pin is None:
        return text, ""
    version = _version(pin, loosening)
    new = Requirement(one.name if name == pin.name else pin.name)
    new.extras, new.marker = one.extras, one.marker
    new.specifier = SpecifierSet(f"=={version}")
    if str(new) == str(one):
        return text, ""
    if name != pin.name:
        why = f"{pin.name} holds the same modules and belongs to this torch"
    elif one.url or not one.specifier.contains(version, prereleases=True):
        why = "it was built against it, although the source asks for another"
    else:
        why = "it was built against it"
    return str(new), why


def _version(pin: Pin, loosening: PinStyle) -> str:
    version = Version(pin.version)
    return version.public if loosening == "release" else str(version)


def _read(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None
