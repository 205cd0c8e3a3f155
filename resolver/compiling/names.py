"""Names of projects: whether a project of an index is the one that is meant.

Anyone may register a free name on an index. So the projects that a request names are compared with the wrong
names in the catalog, which are errors, and with the names of its packages, which give warnings.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.errors import UsageError, closest_names, did_you_mean
from resolver.facts.schema import FOLDER, Image
from resolver.model import Notice
from resolver.requirements import is_for_cuda, is_rocm_package, normalize_name, parse_requirement
from resolver.versions import join_words, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Replaces
    from resolver.model import Request, Requirement
    from resolver.versions import SpecifierClause

_TAGS = (
    r"rocm/pytorch:rocm(?P<rocm>[\d.]+)_ubuntu[\d.]+_py[\d.]+_pytorch_(?:release[_-])?(?P<torch>[\d.]+)",
    r"rocm/dev-ubuntu-[\d.]+:(?P<rocm>[\d.]+)(?:-complete)?",
    r"lumi-[a-z\d]+-rocm-(?P<rocm>[\d.]+\d)(?:-python-[\d.]+(?:-pytorch-v(?P<torch>[\d.]+\d))?)?[\w.-]*\.sif",
)
"""Tags of AMD's images, and files of LUMI's, that name their ROCm: that of every row with such a name."""
_TAG_SOURCE = (
    "ROCm/rocm-install-on-linux@f297bde3afa9:docs/reference/docker-image-support-matrix.rst ; "
    "ROCm/ROCm-docker@c0cbe1d08486:push_all.sh ; "
    "Lumi-supercomputer/LUMI-EasyBuild-containers@2382fef78df5:easybuild/easyconfigs/p/PyTorch/"
    "PyTorch-2.7.1-rocm-6.2.4-python-3.12-singularity-20250827.eb"
)
_MOST_FORGOTTEN = 2
"""How many characters at its end a misspelled name may lack, unless a word ends there."""
INSPECT_HINT = "`matrix check FILE --repair -o DIR` adapts a whole environment for CUDA."


def replacement(catalog: Catalog, name: str, *, conda: bool = False) -> Replaces | None:
    """Return the row about a distribution for CUDA: that of its name, or else that of the longest pattern.

    Patterns of distributions on PyPI apply only to names that are for CUDA (`is_for_cuda`).
    """
    exact = catalog.replaces.get((name, conda))
    if exact is not None or not (conda or is_for_cuda(name)):
        return exact
    rows = (row for row in catalog.replaces.values() if row.conda == conda and fnmatchcase(name, row.name))
    return max(rows, key=lambda row: len(row.name), default=None)


def image_at(catalog: Catalog, address: str) -> Image | None:
    """Return the row of an image, by its name, path or address in a registry, else what its name says.

    Only names of AMD's and LUMI's images say something, and only of a ROCm that the catalog has.
    """
    name = _in_registry(address)
    file = name.rpartition("/")[2]
    row = catalog.image.get(name) or catalog.image.get(file)
    named = next((found for tag in _TAGS for one in (name, file) if (found := re.fullmatch(tag, one))), None)
    if row or not named:
        return row
    rocm = next((one for one in (named["rocm"], f"{named['rocm']}.0") if one in catalog.rocm), "")
    torch = named.groupdict().get("torch")
    holds = {"torch": torch} if torch else {}
    tag = Image(name=name, rocm=rocm, holds=holds, status="documented", source=_TAG_SOURCE)
    return tag if rocm else None


def image_for_cuda(catalog: Catalog, address: str) -> Replaces | None:
    """Return the row about a container image for CUDA, by its address without transport, tag and digest."""
    folder, slash, last = _in_registry(address).partition("@")[0].rpartition("/")
    row = catalog.replaces.get((f"{folder}{slash}{last.partition(':')[0]}", False))
    return row if row and row.image else None


def _in_registry(address: str) -> str:
    return address.removeprefix("docker://").removeprefix("docker.io/")


def for_rocm(catalog: Catalog, request: Request) -> tuple[Request, list[Notice]]:
    """Return a request for the ROCm builds of distributions that have them under another name, with notes.

    There are also notes about distributions for NVIDIA GPUs without such a build, if the user pins them. An
    exact version also means the builds of this version: they append the number of their ROCm, or ``.post1``.

    Raises
    ------
    UsageError
        The request names a distribution for NVIDIA GPUs without a version.
    """
    if request.target.backend != "rocm":
        return request, []
    requirements: list[Requirement] = []
    notes: list[Notice] = []
    installed = request.preinstalled.installed if request.preinstalled else {}
    for stated in request.requirements:
        row = None if stated.url or stated.name in installed else build_for_rocm(catalog, stated.name)
        if row is None:
            requirements.append(stated)
            notes += _without_build(catalog, request, stated)
            continue
        requirements += named_by(stated, row)
        text = f"{stated.name} means {join_words(row.by, joiner='and')} on AMD GPUs. {row.note}".strip()
        notes.append(Notice("named-for-rocm", stated.name, text))
    return replace(request, requirements=tuple(requirements)), notes


def _without_build(catalog: Catalog, request: Request, stated: Requirement) -> Iterator[Notice]:
    """Yield what the catalog knows about a distribution for NVIDIA GPUs that nothing replaces on AMD GPUs.

    Raise a UsageError instead if no marker, pin or override shows that the user knows what they ask for.
    """
    row = None if stated.url else replacement(catalog, stated.name)
    if row is None or row.effect not in {"cpu", "none"} or is_for_cuda(stated.name):
        return  # the search rejects what is for CUDA by its name
    msg = f"{stated.name} is for NVIDIA GPUs."
    said = [one for one in (stated, *request.constraints) if one.name == stated.name]
    is_pinned = any(_is_exact(clause) for one in said for clause in one.specifier or ())
    if not (is_pinned or stated.marker or any(one.name == stated.name for one in request.overrides)):
        hint = instead_of_cuda(catalog, stated.name, "rocm")
        raise UsageError(msg, hint=f"{hint} To use it anyway, require {stated.name}==VERSION.")
    instead = f" {join_words(row.by, joiner='and')} runs on the CPU." if row.by else ""
    yield Notice("for-nvidia", stated.name, f"{msg} {row.note}{instead}".strip())


def instead_of_cuda(catalog: Catalog, name: str, backend: str) -> str:
    """Return the hint for a request that names a distribution for CUDA: what to write instead of it."""
    row = replacement(catalog, name)
    note = row.note if row and backend == "rocm" else ""
    by = row.by if row and (backend == "rocm" or row.effect == "cpu") else ()
    on_cpu = ", which runs on the CPU" if row and row.effect == "cpu" and backend == "rocm" else ""
    change = (
        f"Write {join_words(by, joiner='and')} instead{on_cpu}." if by else "Remove it from the requirements."
    )
    return " ".join(filter(None, (change, note, INSPECT_HINT)))


def is_unneeded(catalog: Catalog, project: str, name: str) -> bool:
    """Return whether a project that requires a distribution works without it."""
    row = catalog.package.get(name) or replacement(catalog, name)
    return row is not None and project in row.unneeded_by


def build_for_rocm(catalog: Catalog, name: str) -> Replaces | None:
    """Return the row about a ROCm build of another name; for what can be compiled, `wheels_for_rocm`."""
    return None if catalog.releases_of(name) else _for_rocm(catalog, name)


def wheels_for_rocm(catalog: Catalog, name: str) -> Replaces | None:
    """Return the row about the wheels for some ROCm that a distribution which can be compiled has."""
    return _for_rocm(catalog, name) if catalog.releases_of(name) else None


def _for_rocm(catalog: Catalog, name: str) -> Replaces | None:
    row = None if is_for_cuda(name) else replacement(catalog, name)
    return row if row and row.effect == "rocm" else None


def named_by(stated: Requirement, row: Replaces) -> list[Requirement]:
    """Return the requirements on the builds for ROCm that take the place of a requirement."""
    clauses = stated.specifier or ()
    versions = ",".join(f"{one.operator}{one.version}{'.*' if _is_exact(one) else ''}" for one in clauses)
    marker = f" ; {stated.marker}" if stated.marker else ""
    return [parse_requirement(f"{name}{versions}{marker}") for name in row.by]


def _is_exact(clause: SpecifierClause) -> bool:
    return clause.operator == "==" and not clause.version.endswith(".*")


def reject_wrong_name(catalog: Catalog, name: str) -> None:
    """Raise a UsageError with the right name if a name is known to be that of another project."""
    row = catalog.wrong_name.get(name)
    if row is not None:
        msg = f"The project {name} is {row.project}, not {join_words(row.means)}."
        raise UsageError(msg, hint=f"Write {join_words(row.means)} instead of {name}.")


def stub(catalog: Catalog, name: str) -> str:
    """Return why no requirement on a project can be met: it is a stub; empty if it is not known to be one."""
    row = catalog.wrong_name.get(name)
    return f"which is {row.project}" if row and row.stub else ""


@cache
def _modules() -> str:
    return (Path(FOLDER) / "modules.txt").read_text(encoding="utf-8")


def distributions_of_module(name: str) -> tuple[str, ...]:
    """Return the distributions that install a module of this name, if they have other names.

    Examples
    --------
    >>> distributions_of_module("pil"), distributions_of_module("numpy")
    (('pillow',), ())
    """
    return tuple(_modules().partition(f"\n{name} ")[2].partition("\n")[0].split())


def hint_for_unknown(name: str, known: Collection[str], has_project: Callable[[str], object]) -> str:
    """Return a hint for a name that no index has.

    `has_project` is asked for the singular or plural of the name, and for the same name for ROCm.
    """
    if is_rocm_package(name):
        return "Only AMD's indexes of torch wheels have it: name torch, and a ROCm that has packages."
    if others := distributions_of_module(name):
        listed = join_words(others, joiner="or")
        return f"Did you mean {listed}? {shorten(name)} is the name of its module."
    others = (f"{name}-rocm", name.removesuffix("s") if name.endswith("s") else f"{name}s")
    for other in others:
        if has_project(other):
            return f"Did you mean {other}?"
    return did_you_mean(name, known) if closest_names(name, known) else "Check the name."


def near_names(catalog: Catalog, names: Iterable[str], requested: Collection[str]) -> Iterator[Notice]:
    """Yield a warning for each project name that is a module of another project or close to a package's name.

    There is none if the request has the other project, too.
    """
    packages = {normalize_name(row.import_name or row.name): row.name for row in catalog.package.values()}
    packages |= {row.name: row.name for row in catalog.package.values()}
    for name in names:
        if (meant := distributions_of_module(name)) and name not in packages and not {*requested} & {*meant}:
            text = (
                f"{shorten(name)} is a project on the index, but the module of that name usually comes from "
                f"{join_words(meant, joiner='or')}. If you meant that, correct the request."
            )
            yield Notice("near-name", name, text)
            continue
        close = dict.fromkeys(
            packages[one] for one in closest_names(name, packages) if not _is_shorter_word(name, one)
        )
        if close and name not in packages and not requested & close.keys():
            text = (
                f"{shorten(name)} is a project on the index, and its name is close to that of "
                f"{join_words(list(close))}. If you meant {join_words(list(close))}, correct the request."
            )
            yield Notice("near-name", name, text)


def _is_shorter_word(name: str, other: str) -> bool:
    """Return whether a name is the start of a word of another name: onnx is no misspelled onnxruntime."""
    rest = other.removeprefix(name)
    return rest != other and len(rest) > _MOST_FORGOTTEN and rest[0].isalnum()
