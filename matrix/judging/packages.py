"""Rules about packages: where pip takes torch and the extensions from, and which build it installs."""

from __future__ import annotations

import re
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builders.audit.platform_tags import too_new_glibc
from builders.constants import MOUNTED_INDEX
from builders.index import Index
from builders.machine.host import glibc_version, missing_python
from builders.network.urls import is_of_public_index
from builders.pyproject import FILE
from matrix.judging.distributions import RESOLVE, TORCH_LABEL, check_rocm, of_label, rocm_of
from matrix.judging.target import released_with
from matrix.reading.items import Item
from matrix.reading.pip_line import file_version, url_path
from matrix.reading.requirements import ON_TORCH_INDEX, finding, finding_at
from resolver.compiling.names import image_at, replacement
from resolver.requirements import (
    TORCH_FAMILY,
    TRITON_NAMES,
    is_for_cuda,
    is_rocm_package,
    required_name,
)
from resolver.versions import is_version, join_words, minor, satisfies, sort_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builders.findings import Finding
    from matrix.judging.target import ExpectedTarget
    from matrix.reading.items import Reading
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Package, Torch

_TORCH_INDEX = re.compile(r"download(?:-r2)?\.pytorch\.org/whl/(?:nightly/|test/)?(rocm[\d.]+|cpu|cu\d+)")
OF_COMMANDS = ("Dockerfile", "definition file", "script")
"""Kinds of files whose commands run one after another."""
_WITH_TORCH = re.compile(r"torch|vllm|sglang")
"""In the name of an image that has torch."""
_KEPT = "pip keeps the image's version if it meets this requirement, and else installs PyPI's, built for CUDA"
_SWITCH = re.compile(r"(^|_)(HIP|ROCM|USE|FORCE|WITH)(_|$)")
"""In the name of a variable that chooses what a build is for."""
_CUPY_ROCM = re.compile(r"cupy-rocm-(\d+)-(\d+)")
_BUILD = "Build a wheel with `matrix build-wheels` and pin it with its label."
_ROCM_INDEX = "ROCm's pip packages are on AMD's indexes. `matrix env` writes a file with the right one."
_BOOTSTRAP = "rocm-bootstrap"
"""The only pip package of ROCm that PyPI has, too."""
_HASH = "Add its hash: `matrix env --for pip` writes such a file from a lock."
_CUDA_EXTRA = re.compile(r"(?:^|[-_])cuda", re.IGNORECASE)
_PIN = "Pin version and label, as `matrix env --for cotainr` does from a lock."


def torch_index(url: str) -> str:
    """Return the platform of one of PyTorch's indexes; empty for any other index.

    Examples
    --------
    >>> torch_index("https://download.pytorch.org/whl/rocm6.4"), torch_index("file:///mnt/simple")
    ('rocm6.4', '')
    """
    kind = _TORCH_INDEX.search(url)
    return kind[1].rstrip(".") if kind else ""


def is_nightly(url: str) -> bool:
    """Return whether one of PyTorch's indexes has nightly builds, or candidates of a release."""
    return bool(torch_index(url)) and re.search("/whl/(nightly|test)/", url) is not None


def is_other_index(url: str) -> bool:
    """Return whether an index is neither PyPI's nor PyTorch's, so that it may have any build."""
    return not (torch_index(url) or is_of_public_index(url))


class Indexes:
    """The indexes of a file, and the packages that pip must or must not build."""

    def __init__(self, reading: Reading) -> None:
        self.torch: dict[str, Item] = {}
        """Maps each kind of PyTorch's index (``rocm6.4``) to the line that names it."""
        self.other = False
        """Whether there is any index other than PyPI and PyTorch's."""
        self.has_pages = False
        """Whether there are pages or directories of files (``--find-links``)."""
        self.public = False
        """Whether the file names PyPI."""
        self.is_single = False
        """Whether pip uses only one index, or only directories."""
        self.replacing: Item | None = None
        """The line that replaces PyPI."""
        self.only_binary: set[str] = set()
        """Normalized names that pip must not build; ``:all:`` for all."""
        self.no_binary: dict[str, Item] = {}
        """Maps each normalized name that pip must build to the line that requires this."""
        extra = False
        for entry in reading.pip_lines:
            line = entry.pip
            if line.requirement_text:
                continue
            for url in line.values("--index-url", "--extra-index-url"):
                if torch_index(url):
                    self.torch.setdefault(torch_index(url), entry)
                elif is_of_public_index(url):
                    self.public = True
                else:
                    self.other = True
            self.has_pages = self.has_pages or bool(line.values("--find-links"))
            if line.values("--index-url") or line.has("--no-index"):
                self.replacing = entry
            extra = extra or bool(line.values("--extra-index-url"))
            for value in line.values("--only-binary"):
                self.only_binary |= {_name(name) for name in value.split(",")}
            for value in line.values("--no-binary"):
                self.no_binary |= {_name(name): entry for name in value.split(",")}
        self.is_single = self.replacing is not None and not extra
        self.other = self.other or self.has_pages

    @property
    def any(self) -> bool:
        """Whether the file names an index other than PyPI."""
        return self.other or bool(self.torch)

    def of(self, entry: Item) -> Indexes:
        """Return those of a line that has indexes of its own; pages count for all lines."""
        if not entry.indexes:
            return self
        own = copy(self)
        kinds = {*map(torch_index, entry.indexes)}
        own.torch = {kind: line for kind, line in self.torch.items() if kind in kinds}
        own.other = self.has_pages or any(map(is_other_index, entry.indexes))
        return own

    def source_of(self, name: str) -> str:
        """Return where pip takes a torch without an exact version from, as a clause."""
        if self.any:
            return f"PyTorch's index or PyPI, whichever is newer; PyPI's {name} is built for CUDA"
        return f"PyPI, whose {name} is built for CUDA"

    def without_public(self, entry: Item) -> bool:
        """Return whether pip does not look for a package on PyPI."""
        if entry.indexes:
            return not any(map(is_of_public_index, entry.indexes))
        return self.is_single and not self.public

    def wheels_only(self, name: str) -> bool:
        """Return whether pip must not build a package."""
        return name in self.only_binary or ":all:" in self.only_binary


def _name(text: str) -> str:
    return text.strip() if text.startswith(":") else canonicalize_name(text.strip())


def check_indexes(reading: Reading, expected: ExpectedTarget) -> Iterator[Finding]:
    """Check the options that name indexes."""
    indexes = Indexes(reading)
    pinned = any(_taken(entry, reading, expected) for entry in reading.pip_lines)
    for kind, entry in indexes.torch.items():
        if kind.startswith("cu") and expected.backend == "rocm":
            message = f"The wheels of this index are built for CUDA ({kind}) and do not run on AMD GPUs."
            found = (torch_index(row.index) for row in _fitting_torches(reading, expected))
            corrected = [entry.text.replace(kind, one) for one in found if one.startswith("rocm")]
            yield finding("cuda-torch", entry, message, corrected=corrected[:1])
        elif kind.startswith("rocm") and not pinned:
            yield from check_rocm(entry, rocm_of(kind), expected, "The torch of this index")
    replacing = indexes.replacing
    if replacing is not None and any(torch_index(url) for url in replacing.pip.values("--index-url")):
        names = [entry.pip.name for entry in reading.pip_lines if entry.pip.requirement]
        others = [name for name in names if name not in ON_TORCH_INDEX]
        if others and not (indexes.public or indexes.other):
            message = (
                f"--index-url replaces PyPI: pip looks for {others[0]} only on PyTorch's index, which has "
                "few other packages."
            )
            corrected = [re.sub(r"--index-url|--pypi-url|-i\b", "--extra-index-url", replacing.text, count=1)]
            yield finding("index-replaced", replacing, message, corrected=corrected)
    for entry in reading.pip_lines:
        if entry.pip.has("--pre"):
            message = (
                "Every package without an exact version may now be an alpha, a nightly or a release "
                "candidate."
            )
            yield finding("pre-releases", entry, message, fix="Pin the pre-release that you need instead.")


def _fitting_torches(reading: Reading, expected: ExpectedTarget) -> list[Torch]:
    """Return the builds of the torch that the file pins, else of all torches: those that fit, best first."""
    for entry in reading.pip_lines:
        if entry.pip.name in TORCH_FAMILY and entry.pip.pinned:
            return expected.fitting(entry.pip.name, entry.pip.public)
    publics = dict.fromkeys(row.version.partition("+")[0] for row in expected.catalog.torch.values())
    rows = [row for public in publics for row in expected.fitting("torch", public)]
    return sorted(rows, key=lambda row: (sort_key(row.rocm), sort_key(row.version)), reverse=True)


def check_torch(reading: Reading, expected: ExpectedTarget) -> Iterator[Finding]:
    """Check torch, torchvision, torchaudio, triton and packages for CUDA only."""
    indexes = Indexes(reading)
    own_triton = _triton_of_torch(reading, expected)
    versions = {entry.pip.name: entry.pip.pinned for entry in reading.pip_lines}
    for entry in reading.pip_lines:
        line = entry.pip
        if expected.backend == "rocm":
            yield from _check_cuda(entry, expected)
        yield from _check_label(entry, versions, expected)
        if line.requirement is None or line.location or line.name in expected.pins:
            continue
        is_alias = TORCH_LABEL.search(line.local)  # a wheel of ours that only requires torch's triton
        if line.name == "triton" and own_triton not in {"", "triton"} and not is_alias:
            message = (
                f"The torch of this file requires {own_triton}. pip installs triton into the same directory, "
                "and the second of the two overwrites files of the first."
            )
            fix = f"Remove the line: pip installs {own_triton} with torch."
            yield finding(
                "second-triton", entry, message, corrected=[f"# {entry.text}"], fixable=True, fix=fix
            )
        elif is_rocm_package(line.name) and line.name != _BOOTSTRAP and not indexes.any:
            message = f"No index of the file has {line.name}: PyPI has an empty project of this name."
            yield finding("rocm-placeholder", entry, message, fix=_ROCM_INDEX)
        elif line.name in TORCH_FAMILY:
            yield from _check_family(reading, entry, expected, indexes.of(entry))
        elif release := _CUPY_ROCM.fullmatch(line.name):
            yield from check_rocm(entry, f"{release[1]}.{release[2]}", expected, line.name)


def _check_label(entry: Item, versions: Mapping[str, str], expected: ExpectedTarget) -> Iterator[Finding]:
    """Judge the build that a line pins, or that the name of its file tells."""
    line = entry.pip
    label = file_version(line.location)[1].partition("+")[2] or line.local
    if not label or line.name in expected.pins:
        return
    rule, verdict, evidence = of_label(Item(name=line.name, version=line.pinned), label, versions, expected)
    if verdict not in {"does-not-fit", "own-risk"}:
        return
    is_of_torch = line.name in TORCH_FAMILY
    fitting = expected.fitting(line.name, line.public) if is_of_torch and not line.location else []
    corrected = [line.with_pin(released_with(row, line.name)) for row in fitting[:1]]
    corrected = corrected if verdict == "does-not-fit" else []
    fix = "" if corrected or verdict == "own-risk" else RESOLVE if is_of_torch else _PIN
    yield finding(rule, entry, f"{evidence[:1].upper()}{evidence[1:]}.", corrected=corrected, fix=fix)


def _check_cuda(entry: Item, expected: ExpectedTarget) -> Iterator[Finding]:
    line = entry.pip
    row = replacement(expected.catalog, line.name)
    if not (row or is_for_cuda(line.name)) or line.name in TRITON_NAMES or line.name in expected.pins:
        return
    if _is_built(expected.catalog, line.name):
        return  # cupy: what its source archive is built for is judged with the extensions
    certain = row is not None and row.effect == "drop"
    message = f"{line.name} is for NVIDIA GPUs; AMD GPUs cannot use it."
    if certain:
        message = f"{line.name} is for NVIDIA GPUs. pip would download gigabytes that AMD GPUs cannot use."
    corrected = [f"# {entry.text}"] if certain else []
    fix = f"See whether you need it. {row.note if row else ''}".rstrip()
    if certain:
        fix = "torch for ROCm does not need it."
    elif row and row.by:
        where = ", which runs on the CPU only" if row.effect == "cpu" else ""
        fix = f"Use {', '.join(row.by)} instead{where}. {row.note}".rstrip()
    yield finding("cuda-package", entry, message, corrected=corrected, fixable=certain, fix=fix)


def _triton_of_torch(reading: Reading, expected: ExpectedTarget) -> str:
    line = next((entry.pip for entry in reading.pip_lines if entry.pip.name == "torch"), None)
    if line is None or expected.backend != "rocm":
        return ""
    exact = expected.catalog.torch.get(f"{line.public}+{line.local}")
    rows = [exact] if exact else [] if line.local else expected.fitting("torch", line.public)
    return required_name(rows[0].triton) if rows else ""


def _check_family(
    reading: Reading, entry: Item, expected: ExpectedTarget, indexes: Indexes
) -> Iterator[Finding]:
    line = entry.pip
    taken = _taken(entry, reading, expected)
    if not taken:
        if indexes.without_public(entry):
            return  # its newest; `check_indexes` judges for what an index of PyTorch is
        message = f"Without an exact version, {line.name} comes from {indexes.source_of(line.name)}."
        rows = expected.fitting("torch", _release_of_torch(reading, expected))
        builds = [released_with(row, line.name) for row in rows if torch_index(row.index) in indexes.torch]
        corrected = [line.with_pin(build) for build in builds[:1] if build]
        fix = "" if corrected else RESOLVE
        found = finding(
            "unpinned-torch", entry, message, corrected=corrected, fixable=bool(corrected), fix=fix
        )
        yield _on_cpus(found) if expected.backend == "cpu" else found
    elif not line.local:
        yield from _check_unlabelled(entry, taken, expected, indexes)
    else:
        rows = expected.published(line.name, line.public)
        pinned = f"{line.public}+{line.local}"
        if urls := [row.index for row in rows if released_with(row, line.name) == pinned]:
            yield from _check_index_of_label(entry, indexes, *urls)
        if line.name == "torch" and not (line.local.startswith("cu") and expected.backend == "rocm"):
            yield from _check_labelled(reading, entry, expected, indexes)


def _taken(entry: Item, reading: Reading, expected: ExpectedTarget) -> str:
    """Return the release of torch, torchvision or torchaudio that pip takes; empty if that is not known.

    An exact version, or the newest release of a range, or for the Python of the file, that excludes the
    newest of all. Every torchvision requires exactly one torch, so it follows the torch of the file.
    torchaudio does not: since 2.11, it requires no torch. Source: the metadata of their wheels on PyPI
    (torchvision 0.20.1, 0.25.0; torchaudio 2.10.0, 2.11.0).
    """
    line = entry.pip
    if line.name not in TORCH_FAMILY or line.pinned:
        return line.public if line.name in TORCH_FAMILY and is_version(line.pinned) else ""
    rows = list(expected.catalog.torch.values())
    if line.name == "torchvision":
        torch = _release_of_torch(reading, expected)
        rows = [row for row in rows if row.version.partition("+")[0] == torch]
    newest = _newest(line.name, rows)
    allowed = str(line.requirement.specifier) if line.requirement else ""
    python = minor(reading.python) if reading.python else ""
    inside = _newest(line.name, [row for row in rows if not python or python in row.python], allowed)
    return "" if line.name != "torchvision" and inside == newest else inside  # there may be a newer one


def _newest(name: str, rows: Sequence[Torch], allowed: str = "") -> str:
    releases = {released_with(row, name).partition("+")[0] for row in rows} - {""}
    return max((one for one in releases if satisfies(one, allowed)), key=sort_key, default="")


def _release_of_torch(reading: Reading, expected: ExpectedTarget) -> str:
    torches = (_taken(entry, reading, expected) for entry in reading.pip_lines if entry.pip.name == "torch")
    return next(torches, "")


def _check_unlabelled(
    entry: Item, release: str, expected: ExpectedTarget, indexes: Indexes
) -> Iterator[Finding]:
    """Check a torch without its label: the indexes of the file decide which build pip installs."""
    line = entry.pip
    fitting = expected.fitting(line.name, release)
    published = expected.published(line.name, release)
    indexed = [row for row in published if torch_index(row.index) in indexes.torch]
    indexed = [row for row in fitting if row in indexed] or indexed
    candidates = indexed or fitting
    versions = list(dict.fromkeys(released_with(row, line.name) for row in candidates))
    corrected = [line.with_pin(version) for version in versions[:1]]
    backend = "CPU" if expected.backend == "cpu" else "ROCm"
    if indexed or indexes.other:
        source = "may have" if not indexed else "has"
        message = (
            f"An index of the file {source} {line.name} for {backend}, and pip takes that build. "
            "If pip cannot read the index, it takes PyPI's, which is built for CUDA. "
            "With the label it fails instead."
        )
        certain = len(versions) == 1 and bool(indexed) and indexed[0] in fitting
        if not (indexed and indexes.without_public(entry)):
            yield finding("unlabelled-torch", entry, message, corrected=corrected, fixable=certain)
        if indexed and indexed[0] not in fitting and indexed[0].rocm:
            yield from check_rocm(entry, minor(indexed[0].rocm), expected, line.name)
        return
    where = "None of its indexes" if entry.indexes else "No index of the file"
    message = f"{where} has {line.name} for {backend}: pip takes PyPI's, which is built for CUDA."
    if candidates and line.name == "torch":
        corrected = [f"--extra-index-url {candidates[0].index}", *corrected]
    fix = "" if len(corrected) > 1 else RESOLVE
    found = finding("cuda-torch", entry, message, corrected=corrected, fix=fix)
    yield _on_cpus(found) if expected.backend == "cpu" else found


def _on_cpus(found: Finding) -> Finding:
    return replace(
        found,
        severity="warning",
        message=f"{found.message} It runs on CPUs, and brings gigabytes of CUDA's libraries.",
    )


def _check_index_of_label(entry: Item, indexes: Indexes, *found: str) -> Iterator[Finding]:
    """Report a labelled version that no index of the file can have; `found` are those that have it."""
    if not entry.pip.local or indexes.any:
        return
    message = "PyPI has no labelled versions, and the file names no index that could have this version."
    corrected = [f"--extra-index-url {index}" for index in found[:1]]
    corrected = [*corrected, entry.text] if corrected else []
    certain = bool(corrected) and MOUNTED_INDEX not in found
    yield finding("label-without-index", entry, message, corrected=corrected, fixable=certain)


def _check_labelled(
    reading: Reading, entry: Item, expected: ExpectedTarget, indexes: Indexes
) -> Iterator[Finding]:
    line = entry.pip
    rocm = rocm_of(line.local)
    row = expected.catalog.torch.get(f"{line.public}+{line.local}")
    if row is None:
        versions = [row.version for row in expected.fitting("torch", line.public)]
        message = f"The catalog does not list torch {line.pinned}. This version may not exist."
        message += f" For {expected.against}, the catalog lists {join_words(versions)}." if versions else ""
        corrected = [line.with_pin(version) for version in versions[:1]]
        yield finding("unknown-torch", entry, message, corrected=corrected)
        return
    kind = torch_index(row.index)
    if kind and indexes.torch and kind not in indexes.torch:
        other, index = next(iter(indexes.torch.items()))
        message = f"torch {row.version} is on {row.index}; this index has only wheels for {other}."
        certain = len(indexes.torch) == 1 and not other.startswith("cu")
        certain = certain and (not rocm or expected.fit(rocm) == "fits")
        corrected = [index.text.replace(other, kind)]
        yield finding("index-other-rocm", index, message, corrected=corrected, fixable=certain)
    python = minor(reading.python) if reading.python else expected.python
    if python and row.python and python not in row.python:
        pythons = join_words(row.python, joiner="and")
        message = f"torch {row.version} has wheels for Python {pythons}, but not for {python}."
        yield finding("torch-python", entry, message)


def check_extensions(reading: Reading, expected: ExpectedTarget) -> Iterator[Finding]:
    """Check the extensions of the catalog that a file names."""
    indexes = Indexes(reading)
    for entry in reading.pip_lines:
        line = entry.pip
        yield from _check_spelling(entry)
        yield from _check_machine(entry, expected)
        if line.name in expected.pins:
            yield from _check_pin(entry, expected)
        package = expected.catalog.package.get(line.name or _package_at(expected.catalog, line.location))
        if package is None or package.name in TORCH_FAMILY or not _is_built(expected.catalog, package.name):
            continue
        if line.location:
            if line.is_source and _needs_torch(expected.catalog, package.name):
                message = (
                    f"pip builds {package.name} here, isolated and without torch. The build fails, or "
                    "succeeds without compiled code. The order of the lines does not matter."
                )
                yield finding("built-from-source", entry, message, fix=_BUILD)
            continue
        if line.name in indexes.no_binary:
            message = f"pip has to build {line.name} here, isolated and without torch."
            yield finding("built-from-source", indexes.no_binary[line.name], message, fix=_BUILD)
        if line.requirement is not None and line.name not in expected.pins:
            yield from _check_extension(entry, package, expected, indexes)
        if line.local and not indexes.wheels_only(line.name):
            message = (
                "If the wheel is missing, pip may build a source archive from another index, without torch."
            )
            corrected = [f"--only-binary {line.name}", line.text]
            yield finding("no-only-binary", entry, message, corrected=corrected, fixable=True)
        yield from _check_index_of_label(entry, indexes, MOUNTED_INDEX)


def check_names(reading: Reading, expected: ExpectedTarget) -> Iterator[Finding]:
    """Check names outside the catalog that only our index is meant to serve."""
    if Indexes(reading).is_single:
        return
    for entry in reading.pip_lines:
        line = entry.pip
        known = line.name in expected.pins or line.name in TORCH_FAMILY or line.has("--hash")
        if line.requirement is None or line.location or line.local or known:
            continue
        if _is_built(expected.catalog, line.name) or not (expected.index / "simple" / line.name).is_dir():
            continue
        versions = sorted(
            {str(parse_wheel_filename(path.name)[1]) for path in Index(expected.index).wheels(line.name)},
            key=sort_key,
        )
        reason = "pip takes the highest version from any index, even from another project with this name."
        if line.pinned:
            reason = "Any index can serve this version. A version with a label cannot come from PyPI."
        message = f"The index {expected.index} has {line.name}. {reason}"
        corrected = [line.with_pin(versions[-1])] if versions and "+" in versions[-1] else []
        yield finding("any-index", entry, message, corrected=corrected, fix="" if corrected else _HASH)


def check_known(reading: Reading, expected: ExpectedTarget) -> Iterator[Finding]:
    """Check what the catalog knows of distributions that are not compiled here, as `matrix resolve` would.

    Neither indexes nor wheels are read; `unread` names what this leaves out.
    """
    entries = _entries_of_indexes(reading, expected)
    for name, entry in entries.items():
        if row := expected.catalog.wrong_name.get(name):
            means = join_words(row.means)
            message = f"The project {name} is {row.project}, not {means}."
            yield finding("other-project", entry, message, fix=f"Write {means} instead.")
    if expected.backend == "rocm":
        yield from _check_extras(entries, expected.catalog)


def _entries_of_indexes(reading: Reading, expected: ExpectedTarget) -> dict[str, Item]:
    return {
        entry.pip.name: entry
        for entry in reading.pip_lines
        if entry.pip.requirement is not None
        and not entry.pip.location
        and entry.pip.name not in expected.pins
    }


def _check_extras(entries: Mapping[str, Item], catalog: Catalog) -> Iterator[Finding]:
    """Report extras for CUDA, and what runs on the CPU only because its plugin for ROCm is missing."""
    for name, entry in entries.items():
        extras = sorted(filter(_CUDA_EXTRA.search, entry.pip.extras))
        if extras:
            message = f"{name}[{','.join(extras)}] installs distributions for NVIDIA GPUs."
            yield finding("cuda-package", entry, message, fix="Remove the extra.")
        if extras or "cpu" in entry.pip.extras or entry.pip.marker or _is_for_rocm(catalog, name):
            continue
        needs = {row.on for row in catalog.requires if row.package == name and not _is_built(catalog, name)}
        plugins = sorted(one for one in needs if _is_for_rocm(catalog, one))
        if plugins and not entries.keys() & {*plugins}:
            message = f"pip installs {name} without {join_words(plugins)}, so it runs on the CPU only."
            fix = f"`matrix resolve {name}` chooses a plugin. Require {name}[cpu] if the CPU is enough."
            yield finding("cpu-only", entry, message, fix=fix)


def _is_for_rocm(catalog: Catalog, name: str) -> bool:
    package = catalog.package.get(name)
    return package is not None and package.system_rocm


def _is_built(catalog: Catalog, name: str) -> bool:
    """Return whether a package has releases to build; some packages, such as numpy, only come from PyPI."""
    return any(row.sdist or row.git for row in catalog.releases_of(name)) or bool(catalog.recipes_of(name))


def _package_at(catalog: Catalog, url: str) -> str:
    """Return the project whose repository a URL names: by a row of the catalog, else by its last part."""
    if "+" not in url:
        return ""
    path = url_path(url).split("@")[0].rstrip("/").removesuffix(".git").lower()
    releases = catalog.release.values()
    same = (row.package for row in releases if row.git and url_path(row.git.url).lower() == path)
    return next(same, canonicalize_name(path.rpartition("/")[2]))


def _check_spelling(entry: Item) -> Iterator[Finding]:
    line = entry.pip
    written = line.pinned.partition("+")[2]
    if line.local and line.requirement is not None and written != line.local:
        message = (
            "Labels are lower case with dots. pip normalizes them, but other tools compare them as text."
        )
        corrected = [entry.text.replace(f"+{written}", f"+{line.local}", 1)]
        yield finding("label-spelling", entry, message, corrected=corrected, fixable=True)


def _check_pin(entry: Item, expected: ExpectedTarget) -> Iterator[Finding]:
    line, pin = entry.pip, expected.pins[entry.pip.name]
    if line.location or line.requirement is None:
        return
    if not line.pinned or not is_version(line.pinned) or Version(line.pinned) != Version(pin):
        message = f"{expected.against} has {line.name} {pin}; with this line pip may install another version."
        yield finding("not-the-lock", entry, message, corrected=[line.with_pin(pin)], fixable=True)


def _check_machine(entry: Item, expected: ExpectedTarget) -> Iterator[Finding]:
    """Check that a wheel fits the glibc and the Pythons of the machine that installs it."""
    line = entry.pip
    on_host = expected.consumer == "pip"
    glibc = glibc_version() if on_host else expected.glibc
    names = [Path(url_path(line.location)).name] if line.location.endswith(".whl") else []
    if line.local:
        pages = expected.index / "simple" / line.name
        version = str(Version(line.pinned))
        names = [path.name for path in pages.glob("*.whl") if f"-{version}-" in path.name]
    if required := too_new_glibc(names, glibc):
        where = "this machine" if on_host else "the base image"
        message = (
            f"The wheel of {line.name} requires glibc {required}, and {where} has glibc {glibc}. "
            "pip skips the wheel and reports only the versions of other wheels."
        )
        fix = "Build it in a base image with an older glibc, or install it where glibc is new enough."
        yield finding("newer-glibc", entry, message, fix=fix)
    if on_host and (python := missing_python(names)):
        message = (
            f"The wheel of {line.name} requires Python {python}, and no python{python} is on PATH. "
            "The pip of another Python skips the wheel and reports only the versions of other wheels."
        )
        fix = f"Load or install Python {python}, or build for the Python that you have."
        yield finding("missing-python", entry, message, fix=fix)


def _check_extension(
    entry: Item, package: Package, expected: ExpectedTarget, indexes: Indexes
) -> Iterator[Finding]:
    line = entry.pip
    if line.local or (line.pinned and _is_published(expected, line.name, line.pinned)):
        return
    needs = {row.on for row in expected.catalog.requires_of(package.name)}
    needs_torch = "torch" in needs
    if not needs & {"torch", "rocm"}:
        return  # pip builds it from PyPI as anywhere else, such as mpi4py with conda's MPI
    other_project = package.pypi == "other project"
    if other_project and not indexes.wheels_only(line.name):
        message = f"{line.name} on PyPI is a different project. pip installs that project"
        message += " if it cannot read the index or the index has no higher version" if indexes.any else ""
        message += ", and runs its setup.py."
        corrected = [f"--only-binary {line.name}", line.text]
        yield finding("other-project", entry, message, corrected=corrected, fixable=True, fix=_PIN)
    has_source = any(row.sdist for row in expected.catalog.releases_of(line.name))
    if has_source and not (other_project or _needs_torch(expected.catalog, package.name)):
        yield from _check_settings(entry, expected)
        return
    if not line.pinned:
        reason = "is not built for this torch" + (" and this GPU" if expected.backend == "rocm" else "")
        if other_project:
            reason = "is another project"
        elif _is_published(expected, line.name):
            reason = (
                "may be built for another ROCm" if expected.backend == "rocm" else "may not fit this torch"
            )
        message = f"pip takes the highest version from any index. PyPI's {line.name} {reason}."
        yield finding("unpinned-extension", entry, message, fix=_PIN)
        return
    message = f"No index of the file has a build of {line.name} for {expected.against}, so"
    if indexes.other:
        message = (
            "Of several builds of this version, pip takes the one whose label sorts last. Without the index,"
        )
    if has_source:
        message += " pip takes PyPI's wheel for CUDA, if there is one, or builds the source archive"
        message += ", without torch." if needs_torch else "."
    else:
        message += f" pip takes what PyPI has, which the catalog does not list for {expected.against}."
    fix = _BUILD if has_source and not indexes.other else _PIN
    yield finding("unlabelled-extension", entry, message, fix=fix)


def _needs_torch(catalog: Catalog, name: str) -> bool:
    """Return whether a package is compiled against torch, which pip's isolated build does not have."""
    needed = (text for row in catalog.recipes_of(name) for text in (*row.declared, *row.undeclared))
    return any(required_name(text) == "torch" for text in needed)


def built_here(reading: Reading, catalog: Catalog) -> dict[Item, str]:
    """Return what pip builds for ROCm or keeps, or may, because of what was there before, with the evidence.

    A build that is not isolated has the torch that was installed before. pip isolates every build since 25.3,
    and before only those of projects with build requirements in their pyproject.toml.
    Source: https://pip.pypa.io/en/stable/news/ (25.3) and https://peps.python.org/pep-0518/.
    """
    found: dict[Item, str] = {}
    if reading.lines or reading.installed:
        return found
    may_have_torch = reading.kind.endswith(OF_COMMANDS)  # what runs them may have it
    in_image = False
    for item in reading.items:
        image = image_at(catalog, item.url) if item.installer == "image" else None
        has_torch = item.name == "torch" or (
            item.installer == "image" and (not image or "torch" in image.holds)
        )
        may_have_torch = may_have_torch or has_torch
        in_image = in_image or (
            not image and item.installer == "image" and bool(_WITH_TORCH.search(item.url))
        )
        if item.installer != "pip" or "+" in item.version or item.url.endswith(".whl"):
            continue
        if item.name in TORCH_FAMILY and not item.url:  # a wheel
            if in_image and not any(map(torch_index, item.indexes or reading.index_urls)):
                found[item] = _KEPT
            continue
        name = item.name or _package_at(catalog, item.url)
        wanted = switches(catalog, name)
        if wanted and wanted.items() <= reading.variables.items():
            settings = join_words([f"{key}={value}" for key, value in wanted.items()], joiner="and")
            found[item] = f"pip builds it here for ROCm, with {settings}"
        elif may_have_torch and _needs_torch(catalog, name):
            if not item.isolated:
                found[item] = "it is built here, with the torch that was installed before"
            elif not any(row.declared for row in catalog.recipes_of(name)):
                found[item] = "pip builds it here; its release decides whether the build has torch"
    return found


def check_sources(reading: Reading, expected: ExpectedTarget) -> Iterator[Finding]:
    """Report a torch whose index is explicit, without its triton.

    uv and Poetry use such an index only for the packages that name it. Of torch's triton, PyPI has
    pytorch-triton-rocm up to 2.1.0, and no triton-rocm. Sources:
    https://docs.astral.sh/uv/guides/integration/pytorch/ ; https://github.com/astral-sh/uv/issues/10712
    """
    torch = next((item for item in reading.items if item.name == "torch" and item.indexes), None)
    if reading.kind != FILE or torch is None or torch.indexes[0] in reading.index_urls:
        return
    allowed = f"=={torch.version}" if torch.version else torch.specifier
    rows = [
        row
        for row in expected.catalog.torch.values()
        if row.rocm and torch_index(row.index) == torch_index(torch.indexes[0])
        if row.triton and satisfies(row.version, allowed)
    ]
    newest = max(rows, key=lambda row: sort_key(row.version), default=None)
    if newest is None or sort_key(newest.version) < sort_key("2.2"):
        return
    triton = required_name(newest.triton)
    if not any(item.name == triton for item in reading.items if item.indexes == torch.indexes):
        message = (
            f"torch {newest.version} requires {newest.triton}. The index of torch is explicit, so this is "
            "looked for on PyPI, which does not have it."
        )
        fix = f"Add {triton} to the dependencies, with the index of torch as its source."
        yield finding_at("triton-index", torch.line, torch.text, message, fix=fix)


def switches(catalog: Catalog, name: str) -> dict[str, str]:
    """Return the variables without which pip builds a source archive for CUDA, with their values."""
    return {
        variable: value
        for row in catalog.recipes_of(name)
        if row.backend == "rocm" and not _needs_torch(catalog, name)
        for variable, value in row.environment.items()
        if "{" not in value and _SWITCH.search(variable)
    }


def _check_settings(entry: Item, expected: ExpectedTarget) -> Iterator[Finding]:
    """Report the settings without which pip builds the source archive for another backend."""
    needed = switches(expected.catalog, entry.pip.name) if expected.backend == "rocm" else {}
    if needed:
        settings = join_words([f"{name}={value}" for name, value in sorted(needed.items())], joiner="and")
        message = (
            f"pip builds PyPI's source archive of {entry.pip.name}, for CUDA unless it runs with {settings}."
        )
        yield finding("unlabelled-extension", entry, message, fix=_PIN)


def _is_published(expected: ExpectedTarget, name: str, version: str = "") -> bool:
    return any(
        version in {"", row.version} and row.is_published and expected.backend in row.backend
        for row in expected.catalog.releases_of(name)
    )
