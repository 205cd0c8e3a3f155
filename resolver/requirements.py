"""Requirements (PEP 508) and names of distributions.

`packaging` imports half of the standard library before it parses a requirement, which takes longer
than most resolutions. So plain requirements are parsed here, and `packaging` parses the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

from resolver.errors import UsageError
from resolver.model import Requirement
from resolver.versions import is_version, join_words, parse_specifier, shorten, sort_key

_NAME = r"\s*(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
_CLAUSE = r"(?:[=!~]=|[<>]=?)\s*[A-Za-z0-9.*+_-]+\s*"
_LEADING_NAME = re.compile(_NAME)
_EXACT = re.compile(rf"{_NAME}\s*==\s*(?P<version>[^\s;,()*=]+)\s*")
_EXTRAS = r"\s*(?:\[\s*(?P<extras>[A-Za-z0-9._-]+(?:\s*,\s*[A-Za-z0-9._-]+)*)\s*\])?"
_PLAIN = re.compile(
    rf"{_NAME}{_EXTRAS}\s*(?:(?P<bracket>\()?(?P<specifier>\s*{_CLAUSE}(?:,\s*{_CLAUSE})*)(?(bracket)\)\s*))?"
)
_SLIP = rf"{_NAME}\s*(?P<operator>=[<>]?|:|\s)\s*v?(?P<version>\d[A-Za-z0-9.*+]*)\s*"
"""A requirement with a wrong operator, such as ``torch=2.9`` (conda), ``torch 2.9`` or ``torch=>2.9``."""
_CORRECTIONS = {
    r"""['"\u2018-\u201d]""": "",
    r"^- +|^[\w.-]+::": "",  # of YAML, of conda
    r"(?:==|@)\s*latest$": "",
    r"\s*\^\s*(?=[1-9]\d*\.\d+$)": "~=",  # of Poetry
    r"(?<=\d)\.x$": ".*",
    r"([<>=!~]=?\s*\d[\w.*]*)\s*(?=[<>=!~])": r"\1,",
}.items()
"""What people write that pip does not read, as patterns with their replacements."""
SDIST_ENDINGS = (".tar.gz", ".zip", ".tgz", ".tar.bz2", ".tar.xz")
_EXTRA = r"""extra\s*==\s*["']([^"']+)["']"""
_SEPARATORS = re.compile(r"[-_.]+")
_ROCM_PACKAGE = re.compile(
    r"(?P<release>rocm|rocm-sdk(?:-.+)?|rocm-profiler)|rocm-bootstrap|rocm-kpack|amd-[a-z]+-device(?:-.+)?"
)
_CUDA = re.compile(r"^(nvidia|cuda)-|-cu(da)?1[1-9]\d?x?(-|$)")
_NOT_CUDA = frozenset({"nvidia-ml-py", "nvidia-physicsnemo"})
"""Bindings that can be imported on every machine, and pure Python with CUDA only in its extras."""
PAIRED_WITH_TORCH = ("torchvision", "torchaudio")
"""Distributions that require an exact version of torch, which does not require them (torchaudio to 2.10)."""
TORCH_FAMILY = ("torch", *PAIRED_WITH_TORCH)
LIBRARIES_OF = {"torch": ("libc10", "libtorch"), "tensorflow": ("libtensorflow",)}
"""Frameworks whose libraries others use without requiring them, with the beginnings of their names."""
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


def is_name_of(text: str, project: str) -> bool:
    """Return whether a text is a spelling of a normalized name."""
    return text == project or (len(text) >= len(project) and normalize_name(text) == project)


def version_in(filename: str, project: str) -> str | None:
    """Return the version in the name of a wheel or sdist; None if it is not of that (normalized) project.

    >>> version_in("Flash_Attn-2.8.3+rocm6.4-cp312-cp312-linux_x86_64.whl", "flash-attn")
    '2.8.3+rocm6.4'
    >>> [version_in("python-dateutil-2.9.tar.gz", project) for project in ("python-dateutil", "python")]
    ['2.9', 'dateutil-2.9']
    """
    if filename.endswith(".whl"):
        parts = filename[:-4].split("-")
        if len(parts) == 6:  # noqa: PLR2004  with a build tag
            if not parts[2][:1].isdigit():
                return None
        elif len(parts) != 5:  # noqa: PLR2004
            return None
        return parts[1].replace("_", "-") if is_name_of(parts[0], project) and all(parts) else None
    if not filename.endswith(SDIST_ENDINGS):
        return None
    stem = filename.rpartition(".")[0].removesuffix(".tar")
    cut = stem.find("-")
    while cut != -1:
        if is_name_of(stem[:cut], project):
            return stem[cut + 1 :]
        cut = stem.find("-", cut + 1)
    return None


@lru_cache(maxsize=65536)
def required_name(requirement: str) -> str:
    """Return the normalized name in a valid requirement.

    Examples
    --------
    >>> required_name("Hjson>=3; python_version < '4'")
    'hjson'
    """
    match = _LEADING_NAME.match(requirement)
    return normalize_name(match["name"]) if match else ""


@lru_cache(maxsize=65536)
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


@lru_cache(maxsize=65536)
def is_rocm_package(name: str) -> bool:
    """Return whether a normalized name is one of AMD's packages that install ROCm for torch.

    Indexes without torch for ROCm may have something else under these names.

    Examples
    --------
    >>> [is_rocm_package(name) for name in ("rocm", "rocm-sdk", "rocm-sdk-core", "amd-torch-device-gfx942")]
    [True, True, True, True]
    >>> is_rocm_package("rocm-docs-core")
    False
    """
    return _ROCM_PACKAGE.fullmatch(name) is not None


def has_rocm_release(name: str) -> bool:
    """Return whether the version of a distribution is the release of ROCm, judging by its normalized name.

    Examples
    --------
    >>> [has_rocm_release(name) for name in ("rocm", "rocm-sdk-device-gfx90a", "amd-torch-device-gfx90a")]
    [True, True, False]
    """
    match = _ROCM_PACKAGE.fullmatch(name)
    return match is not None and match["release"] is not None


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

    Raise `UsageError` if the text is invalid.

    Examples
    --------
    >>> parse_requirement("Flash_Attn==2.8.3").name
    'flash-attn'
    """
    plain = _PLAIN.fullmatch(text)
    if plain:
        try:
            specifier = parse_specifier(plain["specifier"]) if plain["specifier"] else None
        except UsageError:
            pass  # reported below, with the whole requirement
        else:
            extras = {normalize_name(extra.strip()) for extra in (plain["extras"] or "").split(",") if extra}
            return Requirement(normalize_name(plain["name"]), specifier, text.strip(), tuple(sorted(extras)))
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


def companions(name: str, requires: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the distributions that may have libraries of a project, and that only its extras require.

    They are those whose names begin with its name, and the frameworks. The result has, by distribution, the
    extra and the requirement.

    >>> companions("mlx", ["numpy", 'mlx-cpu==0.30 ; extra == "cpu"', 'pytest ; extra == "dev"'])
    {'mlx-cpu': ('cpu', 'mlx-cpu==0.30')}
    """
    found: dict[str, tuple[str, str]] = {}
    for head, marker in map(split_marker, requires):
        required, extra = required_name(head), re.search(_EXTRA, marker)
        if extra and (required in LIBRARIES_OF or required.startswith(f"{name}-")):
            found.setdefault(required, (normalize_name(extra[1]), head))
    return found


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
    words = text.split()
    if len(words) > 1 and all(word[0].isalpha() and re.fullmatch(_NAME, word) for word in words):
        return f"Write each as an argument of its own: {' '.join(words)}"
    cleaned = text.strip()
    for pattern, replacement in _CORRECTIONS:
        cleaned = re.sub(pattern, replacement, cleaned)
    if cleaned != text.strip() and _PLAIN.fullmatch(cleaned):
        return f"Write {cleaned}"
    slip = re.fullmatch(_SLIP, text)
    if slip is None or not is_version(slip["version"].removesuffix(".*")):
        return "Write a name, or a name and versions: apex, torch>=2.4, rocm==6.2.*"
    operator, version = slip["operator"], slip["version"]
    if len(operator) > 1:
        return f"Write {slip['name']}{operator[::-1]}{version}"
    short = version.replace(".", "").isdigit() and version.count(".") <= 1
    return f"Write {slip['name']}=={version}{'.*' if short else ''}"


def closest_versions(requirement: Requirement, versions: Iterable[str]) -> str:
    """Return a hint with the known versions before and after the requested one, and the known versions.

    Examples
    --------
    >>> closest_versions(parse_requirement("torch==2.9.5"), ["2.10.0", "2.9.1+rocm6.4", "2.9.1+cpu", "2.9.0"])
    'The nearest versions are 2.9.1 and 2.10.0. Known versions: 2.10.0, 2.9.1 and 2.9.0.'
    """
    versions = list(versions)
    known = list(dict.fromkeys(version.partition("+")[0] for version in versions))
    listed = f"Known versions: {join_words(known, most=12, joiner='and')}."
    stated = [clause.version.removesuffix(".*").partition("+")[0] for clause in requirement.specifier or ()]
    if not stated or not is_version(stated[0]):
        return listed
    labels = [version for version in versions if version.startswith(f"{stated[0]}+")]
    if labels:
        return f"Known labels of this version: {join_words(labels, most=12, joiner='and')}."
    key = sort_key(stated[0])
    lower = max((version for version in known if sort_key(version) < key), key=sort_key, default="")
    higher = min((version for version in known if sort_key(version) > key), key=sort_key, default="")
    near = [version for version in (lower, higher) if version]
    verb = "version is" if len(near) == 1 else "versions are"
    return f"The nearest {verb} {join_words(near, joiner='and')}. {listed}" if near else listed
