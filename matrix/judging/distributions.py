"""Judge a distribution by name, version and origin: proven sets, labels, images, and facts of the catalog.

Neither a list nor a line has the files, so whatever neither a label nor the catalog explains is not judged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from builders.installed.checks import driver_findings, known_bad_findings
from matrix.judging.target import released_with
from matrix.judging.verdict import JudgedItem, of_pick
from matrix.reading.requirements import finding
from resolver.answers.resolve import resolve
from resolver.compiling.names import image_at, replacement
from resolver.errors import MatrixError
from resolver.model import Resolution
from resolver.requirements import TORCH_FAMILY, TRITON_NAMES, is_for_cuda, parse_requirement
from resolver.versions import COMMIT, is_same_commit, is_version, join_words, minor, version_or_none

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builders.findings import Finding
    from matrix.judging.target import ExpectedTarget, Verdict
    from matrix.reading.items import Item, Reading
    from resolver.consequences.questions import Side
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import ProvenSet
    from resolver.model import Target

CONDA_RUNTIME = {
    "c-compiler", "cmake", "compilers", "cxx-compiler", "fortran-compiler", "gcc", "gfortran", "git", "gxx",
    "libgcc", "libgcc-ng", "libgomp", "libstdcxx", "libstdcxx-ng", "make", "ninja", "pip", "pkg-config",
}  # fmt: skip
"""What conda installs for programs of any kind: compilers with their runtime, tools, and pip."""
_ROCM_LABEL = re.compile(r"rocm(?:(\d+\.\d+)|(\d)(\d)\d?(?![\d.]))")
"""Some projects write ROCm 5.6.1 as ``rocm561``."""
TORCH_LABEL = re.compile(r"torch(\d+(?:\.\d+)*)")
_GFX_LABEL = re.compile(r"gfx[0-9a-f]+")
_CUDA_LABEL = re.compile(r"(?:^|[a-z0-9.]*?[0-9.])cu\d{2,3}(?!\d)")
"""A label such as ``cu128``, ``pt21cu121`` (PyG) or ``torch2.4.cu12``, but not ``cpu``."""
RESOLVE = "`matrix resolve torch` for the same site or base image lists versions that fit."
_CUDA_BUILD = re.compile(r"cuda|cu\d{2,}")
_ROCM_TRITONS = tuple(name for name in TRITON_NAMES if name != "triton")


def rocm_of(label: str) -> str:
    """Return the ROCm release that a local label names; empty if it names none.

    Examples
    --------
    >>> rocm_of("rocm6.4.torch2.9.1.gfx90a"), rocm_of("rocm561"), rocm_of("cu128")
    ('6.4', '5.6', '')
    """
    release = _ROCM_LABEL.match(label)
    return (release[1] or f"{release[2]}.{release[3]}") if release else ""


def installed_findings(reading: Reading, side: Side) -> Iterator[Finding]:
    """Yield the findings about a whole list: the driver and its ROCm, and known-bad combinations."""
    versions = {item.name: item.version for item in reading.items if item.version}
    if side.request.target.backend == "rocm":
        rocm = _rocm(reading, side, versions)
        yield from driver_findings(rocm, side)
        versions |= {"rocm": rocm} if rocm else {}
    versions |= {"python": reading.python} if reading.python else {}
    yield from known_bad_findings(versions, side)


def _rocm(reading: Reading, side: Side, versions: Mapping[str, str]) -> str:
    """Return the ROCm that torch uses: that of its label or row, of the image, or of the proven set."""
    version = versions.get("torch", "")
    known = _rocm_of_torch(version, side.catalog) or reading.platform.get("rocm", "")
    if known or not version:
        return known
    proven = proven_set(reading.items, side.catalog, side.request.target)
    return proven.picks.get("rocm", "") if proven else ""


def _rocm_of_torch(version: str, catalog: Catalog) -> str:
    """Return the ROCm of a torch with a label, which names it, or is in a row of the catalog."""
    row = catalog.torch.get(version) if "+" in version else None
    stated = re.match(r"rocm(\d+\.\d+(\.\d+)?)", version.partition("+")[2])
    return stated[1] if stated else row.rocm if row else ""


def proven_set(items: list[Item], catalog: Catalog, target: Target) -> ProvenSet | None:
    """Return the proven set of the site with this torch that has most of the other distributions as well."""
    versions = {item.name: item.version for item in items if item.version}
    found: list[tuple[int, ProvenSet]] = []
    for row in catalog.proven.values():
        if row.backend != target.backend or row.site not in {target.site, ""}:
            continue
        shared = versions.keys() & row.picks.keys() - {"python", "rocm"}
        same = {name for name in shared if _is_same(versions[name], row.picks[name])}
        # PyPI's torch has no label either, so its version alone proves nothing.
        is_certain = "+" in versions.get("torch", "") or len(same) > 1
        if ("torch" in same and is_certain) or (same and "torch" not in row.picks):
            found.append((len(same), row))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _is_same(installed: str, picked: str) -> bool:
    """Return whether a version is that of a pick, whose commit stands in parentheses."""
    have, (number, _, commit) = version_or_none(installed), picked.partition(" (")
    wanted = version_or_none(number)
    if have is None or wanted is None or have.public != wanted.public:
        return False
    if commit and have.local and re.fullmatch(COMMIT, have.local):
        return is_same_commit(have.local, commit.rstrip(")"))
    return wanted.local is None or have.local == wanted.local


def judge_items(
    reading: Reading, expected: ExpectedTarget, read: Mapping[str, str] | None = None
) -> Iterator[JudgedItem]:
    """Yield the verdict about each distribution of a list; `read` has what wheels that were read say."""
    proven = proven_set(reading.items, expected.catalog, expected.request.target)
    versions = {item.name: item.version for item in reading.items if item.version}
    for item in reading.items:
        if proven and item.version and _is_same(item.version, proven.picks.get(item.name, "")):
            verdict: Verdict = "fits"
            evidence = f"the set {proven.id} of {proven.site or 'another site'} ran with it ({proven.source})"
        else:
            verdict, evidence = _verdict(item, versions, expected, read or {})
        yield JudgedItem.of(item, verdict, evidence)


def of_origin(
    item: Item, versions: Mapping[str, str], expected: ExpectedTarget
) -> tuple[Verdict, str] | None:
    """Judge an image, what has a URL, and what conda installs; None for what pip looks up by name."""
    label, on_gpu = item.version.partition("+")[2], expected.backend == "rocm"
    conda = item.installer == "conda"
    image = image_at(expected.catalog, item.url) if item.installer == "image" else None
    known = "the catalog knows it" if image and image.path else f"its name says ROCm {image and image.rocm}"
    row = replacement(expected.catalog, item.name, conda=True) if conda and on_gpu else None
    of_file = of_label(item, label, versions, expected)[1:] if item.url and label else ("fits", "")
    verdict = "not-judged" if of_file[0] == "fits" else of_file[0]
    cases: list[tuple[object, Verdict, str]] = [
        (image, expected.fit(minor(image.rocm)) if image and image.rocm else "fits", known),
        (item.installer == "image", "not-judged", "the content of the image was not read"),
        (of_file[1], verdict, f"{of_file[1]}; the wheel itself was not read"),
        (item.url, "not-judged", f"it comes from {item.url}, and is not looked up by name"),
        (on_gpu and _CUDA_BUILD.search(item.build), "does-not-fit", f"its build {item.build} is for CUDA"),
        (row, "does-not-fit", f"it is for CUDA ({row.source if row else ''})"),
        (conda and item.name in CONDA_RUNTIME, "fits", "it has no code for a GPU"),
        (conda, "not-judged", "conda installs it"),
    ]
    return next(((verdict, evidence) for holds, verdict, evidence in cases if holds), None)


def _verdict(
    item: Item, versions: Mapping[str, str], expected: ExpectedTarget, read: Mapping[str, str]
) -> tuple[Verdict, str]:
    """Judge a distribution that is there."""
    if answer := of_origin(item, versions, expected):
        return answer
    row = replacement(expected.catalog, item.name)
    is_ours = item.name in TRITON_NAMES or "+rocm" in item.version
    if expected.backend == "rocm" and (row or is_for_cuda(item.name)) and not is_ours:
        return "does-not-fit", "it is for CUDA" + (f" ({row.source})" if row and row.source else "")
    label = item.version.partition("+")[2]
    return (
        _of_other_torch(item, versions, expected)
        or (of_label(item, label, versions, expected)[1:] if label else None)
        or _unlabelled(item, versions, expected, read)
    )


def _of_other_torch(
    item: Item, versions: Mapping[str, str], expected: ExpectedTarget
) -> tuple[Verdict, str] | None:
    """Judge a torchvision or torchaudio that was published with another minor release of torch."""
    torch, (public, _, label) = versions.get("torch", ""), item.version.partition("+")
    if item.name not in TORCH_FAMILY or not is_version(torch) or re.fullmatch(COMMIT, label):
        return None
    torches = [row.version.partition("+")[0] for row in expected.published(item.name, public)]
    if not torches or minor(torch) in map(minor, torches):
        return None
    listed = join_words([*dict.fromkeys(torches)])
    return "does-not-fit", f"it was published with torch {listed}, which it requires, and torch is {torch}"


def of_label(
    item: Item, label: str, versions: Mapping[str, str], expected: ExpectedTarget
) -> tuple[str, Verdict, str]:
    """Judge a build by what its label means, beside the versions of the others, and name the rule.

    A label that says nothing about the platform is not judged, unless it is a commit of the catalog.
    """
    means, torch = f"its label {label} means a build for", versions.get("torch", "")
    gfx, of_torch, rocm = _GFX_LABEL.findall(label), TORCH_LABEL.search(label), rocm_of(label)
    torch_rocm, built_for = _rocm_of_torch(torch, expected.catalog), of_torch[1] if of_torch else torch
    torch_rocm = minor(torch_rocm) if torch_rocm else ""
    rocm = rocm or (torch_rocm if item.name == "torch" else "")
    on_gpu = expected.backend == "rocm"
    missing = [name for name in expected.gfx if gfx and name not in gfx]
    fits_torch = f"{torch.partition('+')[0]}.".startswith(f"{built_for.partition('+')[0]}.") or not torch
    fit = expected.fit(rocm) if rocm else "fits"
    why = expected.because if fit == "fits" else expected.why(rocm)
    of_cpu = on_gpu and (item.name in TORCH_FAMILY or "+cpu" not in torch)
    cases: list[tuple[object, str, Verdict, str]] = [
        (label.startswith("cpu"), "other-target", "does-not-fit" if of_cpu else "fits", f"{means} CPUs"),
        (rocm and not on_gpu, "other-rocm", "does-not-fit", f"{means} ROCm {rocm}"),
        (not on_gpu, "", "not-judged", _unknown(label)),
        (_CUDA_LABEL.match(label), "cuda-torch", "does-not-fit", f"{means} CUDA"),
        (
            missing,
            "other-target",
            "does-not-fit",
            f"{means} {join_words(gfx)}, not for {join_words(missing)}",
        ),
        (
            not fits_torch,
            "other-target",
            "does-not-fit",
            f"it was built for torch {built_for}, and torch is {torch}",
        ),
        (
            rocm and torch_rocm not in {"", rocm},
            "other-rocm",
            "does-not-fit",
            f"{means} ROCm {rocm}, and torch is for ROCm {torch_rocm}",
        ),
        (rocm, "driver-risk" if fit == "own-risk" else "other-rocm", fit, f"{means} ROCm {rocm}; {why}"),
        (gfx, "", "fits", f"{means} {join_words(gfx)}"),
    ]
    found = (row[1:] for row in cases if row[0])
    return next(found, None) or ("", *of_commit(item, versions, expected))


def check_rocm(item: Item, rocm: str, expected: ExpectedTarget, subject: str) -> Iterator[Finding]:
    """Report an image, an index or a distribution that is for a ROCm that does not fit."""
    fit = expected.fit(rocm) if expected.backend == "rocm" else "does-not-fit"
    why = expected.why(rocm) if expected.backend == "rocm" else f"{expected.against} is for the CPU"
    if fit != "fits":
        rule = "driver-risk" if fit == "own-risk" else "other-rocm"
        yield finding(rule, item, f"{subject} is for ROCm {rocm}, and {why}.", fix=RESOLVE)


def of_commit(item: Item, versions: Mapping[str, str], expected: ExpectedTarget) -> tuple[Verdict, str]:
    """Judge a build whose label is a commit: if the catalog has it, by the torch that it is built for."""
    label, torch = item.version.partition("+")[2], versions.get("torch", "").partition("+")[0]
    commits = [release.variant for release in expected.catalog.releases_of(item.name) if release.variant]
    if not (re.fullmatch(COMMIT, label) and any(is_same_commit(label, commit) for commit in commits)):
        return "not-judged", _unknown(label)
    verdict, evidence = _of_facts(item, torch, expected, label)
    return verdict, f"its label {label} is a commit; {evidence}"


def _unknown(label: str) -> str:
    return f"its label {label} does not say what it was built for"


def _unlabelled(
    item: Item, versions: Mapping[str, str], expected: ExpectedTarget, read: Mapping[str, str]
) -> tuple[Verdict, str]:
    catalog, rocm, torch = expected.catalog, expected.backend == "rocm", versions.get("torch", "")
    with_rocm = any(name in versions for name in _ROCM_TRITONS)
    if rocm and item.name in TORCH_FAMILY:
        row = catalog.torch.get(torch)
        verdict: Verdict = "fits"
        if not with_rocm and (item.name == "torch" or not rocm_of(torch.partition("+")[2])):
            verdict = "does-not-fit"
        elif row and "+rocm" in torch and "+" in released_with(row, item.name):
            verdict = "not-judged"  # a build of the user's own may have no label
        if verdict != "fits":
            return verdict, "builds without a label, PyPI's and conda-forge's, are for CUDA or CPUs"
    if item.name in TRITON_NAMES:
        return _of_triton(item, versions, expected, overwritten=item.name == "triton" and with_rocm)
    package = catalog.package.get(item.name)
    if package is None:
        return ("fits", read[item.name]) if item.name in read else ("not-judged", "its wheel was not read")
    for release in catalog.releases_of(item.name):
        if release.version == item.version and release.is_published and expected.backend in release.backend:
            return "fits", f"it is published for {expected.backend} ({release.source})"
    needs_build = package.system_rocm or bool(catalog.recipes_of(item.name))
    if rocm and needs_build:
        return _of_facts(item, torch if torch in catalog.torch else "", expected)
    return "fits", f"it needs no GPU build ({package.source})"


def _of_triton(
    item: Item, versions: Mapping[str, str], expected: ExpectedTarget, *, overwritten: bool
) -> tuple[Verdict, str]:
    """Judge a triton by what the torch of the list requires."""
    if expected.backend == "rocm" and overwritten:
        return "does-not-fit", "two tritons overwrite each other's files"
    row = expected.catalog.torch.get(versions.get("torch", ""))
    needed = parse_requirement(row.triton) if row and row.triton else None
    pin = needed.specifier if needed and needed.name == item.name else None
    if needed and pin and is_version(item.version) and not pin.allows(item.version):
        return "does-not-fit", f"torch {versions['torch']} requires {needed.text}"
    return "fits", "torch's triton"


def _of_facts(item: Item, torch: str, expected: ExpectedTarget, commit: str = "") -> tuple[Verdict, str]:
    """Judge a package that is built for a torch, and does not say for which, by the facts of the catalog."""
    unknown = "nothing says for which torch, ROCm and GPU it was built"
    if not torch or not is_version(item.version):
        return "not-judged", unknown
    texts = (f"torch=={torch}", f"{item.name}=={item.version.partition('+')[0]}")
    request = replace(expected.request, requirements=tuple(map(parse_requirement, texts)))
    try:
        answer = resolve(expected.catalog, request, None)
    except MatrixError:
        return "not-judged", unknown
    pick = answer.pick(item.name) if isinstance(answer, Resolution) else None
    if not isinstance(answer, Resolution) or pick is None:
        return "not-judged", unknown
    if commit and not is_same_commit(commit, pick.variant):
        return "not-judged", unknown
    verdict, evidence = of_pick(pick, answer)
    if verdict == "fits":
        evidence = f"the catalog has this release with torch {torch} ({pick.facts[0].source})"
    return verdict, evidence
