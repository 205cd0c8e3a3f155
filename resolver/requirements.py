"""Requirements (PEP 508) and names of distributions.

`packaging` imports half of the standard library before it parses a requirement, which takes longer
than most resolutions. So plain requirements are parsed here, and `packaging` parses the rest.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

from resolver.errors import UsageError
from resolver.model import Requirement
from resolver.versions import is_version, parse_specifier, shorten

_NAME = r"\s*(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
_CLAUSE = r"(?:==|!=|<=|>=|<|>|~=)\s*[A-Za-z0-9.*+_-]+\s*"
_LEADING_NAME = re.compile(_NAME)
_EXACT = re.compile(rf"{_NAME}\s*==\s*(?P<version>[^\s;,()*=]+)\s*")
_EXTRAS = r"\s*(?:\[\s*(?P<extras>[A-Za-z0-9._-]+(?:\s*,\s*[A-Za-z0-9._-]+)*)\s*\])?"
_SPECIFIER = rf"{_CLAUSE}(?:,\s*{_CLAUSE})*"
_PLAIN = re.compile(
    rf"{_NAME}{_EXTRAS}\s*(?:(?P<specifier>{_SPECIFIER})|\((?P<bracketed>\s*{_SPECIFIER})\)\s*)?"
)
_SLIP = rf"{_NAME}\s*(?P<operator>=[<>]?|:|\s)\s*v?(?P<version>\d[A-Za-z0-9.*+]*)\s*"
"""A requirement with a wrong operator, such as ``torch=2.9`` (conda), ``torch 2.9`` or ``torch=>2.9``."""
_SEPARATORS = re.compile(r"[-_.]+")
_ROCM_PACKAGE = re.compile(r"rocm|rocm-sdk(?:-.+)?|rocm-bootstrap|rocm-profiler|amd-[a-z]+-device-.+")
_CUDA = re.compile(r"^(nvidia|cuda)-|-cu(da)?1[1-9]\d?x?(-|$)")
_NOT_CUDA = frozenset({"nvidia-ml-py"})  # bindings that can be imported on every machine
TRITON_NAMES = ("triton", "triton-rocm", "pytorch-triton", "pytorch-triton-rocm")
"""Distributions that install the import package ``triton``: two of them overwrite each other's files."""


@cache
def normalize_name(name: str) -> str:
    """Return the normalized name of a distribution (PEP 503).

    Examples
    --------
    >>> normalize_name("Flash_Attn")
    'flash-attn'
    """
    return _SEPARATORS.sub("-", name).lower()


def required_name(requirement: str) -> str:
    """Return the normalized name in a valid requirement.

    Examples
    --------
    >>> required_name("Hjson>=3; python_version < '4'")
    'hjson'
    """
    match = _LEADING_NAME.match(requirement)
    return normalize_name(match["name"]) if match else ""


def is_for_cuda(name: str) -> bool:
    """Return whether a distribution is for CUDA, judging by its normalized name.

    Examples
    --------
    >>> [is_for_cuda(name) for name in ("nvidia-nccl-cu12", "cupy-cuda12x", "tensorrt-cu12-libs")]
    [True, True, True]
    >>> [is_for_cuda(name) for name in ("nvidia-ml-py", "cupy", "faiss-gpu")]
    [False, False, False]
    """
    return name not in _NOT_CUDA and _CUDA.search(name) is not None


def is_rocm_package(name: str) -> bool:
    """Return whether a normalized name is one of AMD's packages that install ROCm for torch.

    Only indexes that have torch for ROCm have them; other indexes may have something else under these names.

    Examples
    --------
    >>> [is_rocm_package(name) for name in ("rocm", "rocm-sdk", "rocm-sdk-core", "amd-torch-device-gfx942")]
    [True, True, True, True]
    >>> is_rocm_package("rocm-docs-core")
    False
    """
    return _ROCM_PACKAGE.fullmatch(name) is not None


def exact_requirement(requirement: str) -> tuple[str, str] | None:
    """Return name and version of a requirement for one version without a marker, else None.

    Examples
    --------
    >>> exact_requirement("pytorch-triton-rocm==3.1.0")
    ('pytorch-triton-rocm', '3.1.0')
    >>> exact_requirement("triton==2.2.0; python_version < '3.12'")
    """
    match = _EXACT.fullmatch(requirement)
    return (normalize_name(match["name"]), match["version"]) if match else None


@lru_cache(maxsize=65536)
def parse_requirement(text: str) -> Requirement:
    """Parse a requirement from the user, such as ``torch>=2.4``, ``rocm==6.2.*`` or ``flash-attn[triton]``.

    Raises
    ------
    UsageError
        The text is invalid.

    Examples
    --------
    >>> parse_requirement("Flash_Attn==2.8.3").name
    'flash-attn'
    """
    plain = _PLAIN.fullmatch(text)
    if plain:
        versions = plain["specifier"] or plain["bracketed"]
        try:
            specifier = parse_specifier(versions) if versions else None
        except UsageError:
            pass  # reported below, with the whole requirement
        else:
            extras = sorted(
                {normalize_name(extra.strip()) for extra in (plain["extras"] or "").split(",")} - {""}
            )
            return Requirement(normalize_name(plain["name"]), specifier, text.strip(), tuple(extras))
    return _parse_with_packaging(text)


@lru_cache(maxsize=65536)
def split_marker(text: str) -> tuple[str, str]:
    """Split a requirement of core metadata into the requirement and its marker, which may be empty.

    Examples
    --------
    >>> split_marker("tomli>=2 ; python_version < '3.11'")
    ('tomli>=2', "python_version < '3.11'")
    """
    head, separator, marker = text.partition(" ;" if "@" in text else ";")
    return head.strip(), marker.strip() if separator else ""


def _parse_with_packaging(text: str) -> Requirement:
    from packaging.requirements import InvalidRequirement
    from packaging.requirements import Requirement as Pep508

    try:
        parsed = Pep508(text)
    except (InvalidRequirement, RecursionError):
        msg = f"{shorten(text)!r} is not a valid requirement."
        raise UsageError(msg, hint=_corrected(text)) from None
    specifier = parse_specifier(str(parsed.specifier)) if str(parsed.specifier) else None
    return Requirement(
        normalize_name(parsed.name),
        specifier,
        text.strip(),
        tuple(sorted(map(normalize_name, parsed.extras))),
        url=parsed.url or "",
        marker=str(parsed.marker or ""),
    )


def _corrected(text: str) -> str:
    """Return a hint with the requirement that an invalid one probably means."""
    slip = re.fullmatch(_SLIP, text)
    if slip is None or not is_version(slip["version"].removesuffix(".*")):
        return "Write a name, or a name and versions: apex, torch>=2.4, rocm==6.2.*"
    operator, version = slip["operator"], slip["version"]
    if len(operator) > 1:
        return f"Write {slip['name']}{operator[::-1]}{version}"
    short = version.replace(".", "").isdigit() and version.count(".") <= 1
    return f"Write {slip['name']}=={version}{'.*' if short else ''}"
