"""Preinstalled distributions: as candidates, in the catalog's relations, and as demands that keep them.

An installed version that is not in the catalog, such as torch 2.9.1+rocm6.4.lumi, has the
requirements of the catalog version with the same public version whose local label is a prefix of its own.
If no label matches (a torch 2.10.0 that was compiled for the image), only the public version is matched:
other distributions accept it as that torch, and its own requirements are not known. Both cases cause a
warning if the version is chosen.

Two distributions that are installed together are compatible, even if the catalog excludes the combination.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace
from packaging.version import InvalidVersion, Version

from resolver.compiling.clauses import Clause, LineIs, any_candidate, version_in
from resolver.errors import UsageError
from resolver.model import IMAGE, PLATFORM, Candidate, Fact
from resolver.problem import Problem, Row
from resolver.versions import join_words, minor, newest_first

if TYPE_CHECKING:
    from resolver.compiling.problem_builder import ProblemBuilder
    from resolver.facts import schema
    from resolver.facts.catalog import Catalog
    from resolver.model import Preinstalled, Request, Target

_LABEL = re.compile(r"rocm(?P<rocm>\d+\.\d+)|(?P<other>cpu|cu\d)")


class InstalledVersion(msgspec.Struct, frozen=True):
    """One installed version among the candidates of a variable, all as masks."""

    bit: int
    requires_as: int
    """The candidates whose requirements it shares."""
    accepted_as: int
    """The candidates that it replaces in the requirements of other distributions."""


_Installed = tuple[str, list[InstalledVersion]]
"""Name of a component, and its installed versions."""


def installed_names(catalog: Catalog, request: Request) -> set[str]:
    """Return the names of all distributions that are installed, or that the chosen base image may contain."""
    if request.preinstalled is None:
        return set()
    if request.preinstalled.source != IMAGE:
        return set(request.preinstalled.installed)
    return {name for image in _inspected_images(catalog, request.target) for name in image.holds}


def with_installed(
    catalog: Catalog, request: Request, name: str, known: Sequence[Candidate]
) -> tuple[list[Candidate], list[InstalledVersion]]:
    """Return the candidates of a component, followed by its installed versions.

    Parameters
    ----------
    catalog, request
        The facts and the request.
    name
        The component.
    known
        Its candidates in the catalog, in the order of preference.
    """
    candidates, masks = list(known), []
    for version, fact in _facts(catalog, request, name).items():
        requires_as, accepted_as = _matches(version, known)
        same = [known[i] for i in requires_as if known[i].version == version]
        similar = [known[i].version for i in requires_as]
        candidates.append(
            Candidate(
                name,
                version,
                "distribution",
                "preinstalled",
                fact,
                index=same[0].index if same else "",
                remark="" if same else _remark(name, version, similar, accepted_as),
            )
        )
        bits = (sum(1 << (i + 1) for i in positions) for positions in (requires_as, accepted_as))
        masks.append(InstalledVersion(1 << len(candidates), *bits))
    return candidates, masks


def _facts(catalog: Catalog, request: Request, name: str) -> dict[str, Fact]:
    """Return the installed versions of a component, each with its source."""
    preinstalled = request.preinstalled
    if preinstalled is None or name in PLATFORM:
        return {}
    if preinstalled.source != IMAGE:
        version = preinstalled.installed.get(name)
        text = f"the base image contains {name} {version}"
        return {version: Fact(text, "observed", _source(preinstalled))} if version else {}
    facts: dict[str, Fact] = {}
    for image in _inspected_images(catalog, request.target):
        version = image.holds.get(name)
        if version:
            facts.setdefault(version, Fact.of(image, f"a base image contains {name} {version}", note=""))
    return facts


def _inspected_images(catalog: Catalog, target: Target) -> list[schema.Image]:
    """Return the base images that may be chosen and whose content is known."""
    return [row for row in catalog.image.values() if row.holds and target.base_image in {None, row.name}]


def _source(preinstalled: Preinstalled) -> str:
    return f"installed: {preinstalled.source}"


def _matches(version: str, known: Sequence[Candidate]) -> tuple[list[int], list[int]]:
    """Return the positions of the candidates with the same requirements, and of those that it can replace."""
    exact = [i for i, candidate in enumerate(known) if candidate.version == version]
    if exact:
        return exact, exact
    public, label = _split(version)
    parts = [(i, _split(candidate.version)) for i, candidate in enumerate(known)]
    labels = {i: other for i, (other_public, other) in parts if other_public == public}
    prefixes = {i: len(other) for i, other in labels.items() if other and label[: len(other)] == other}
    longest = [i for i, length in prefixes.items() if length == max(prefixes.values())]
    return longest, longest or list(labels)


def _split(version: str) -> tuple[str, list[str]]:
    """Return the public version and the parts of the local label."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return version, []
    return parsed.public, parsed.local.split(".") if parsed.local else []


def _remark(name: str, version: str, similar: Sequence[str], accepted_as: Sequence[int]) -> str:
    text = f"{name} {version} of the base image is not in the catalog"
    if similar:
        return f"{text}; the facts about {name} {join_words(sorted(set(similar)), joiner='and')} were used."
    if accepted_as:
        public = Version(version).public
        return f"{text}; it was treated as {name} {public}, and its own requirements were not checked."
    return f"{text}, so its requirements were not checked."


def extend(
    rows: list[Row],
    runtime: int,
    subject: _Installed,
    target: _Installed,
    *,
    request: Request,
    forbids: bool,
) -> None:
    """Extend the rows of a relation to the installed versions that match the versions in them.

    Parameters
    ----------
    rows
        The rows of the relation; replaced in place.
    runtime
        A bit for each row that applies at run time, and not only to the build.
    subject, target
        Installed versions of both components.
    request
        Lists the installed distributions.
    forbids
        Whether the relation only excludes combinations.
    """
    (name, subjects), (other_name, objects) = subject, target
    mentioned = 0
    for number, row in enumerate(rows):
        mentioned |= row.subjects if runtime >> number & 1 else 0
    allowed = dict.fromkeys(
        (
            installed.bit
            for installed in subjects
            if installed.requires_as and not installed.requires_as & ~mentioned
        ),
        0,
    )
    for number, row in enumerate(rows):
        row_subjects, row_objects = row.subjects, row.objects
        for installed in objects:
            row_objects &= ~installed.bit if installed.requires_as else row_objects
            row_objects |= installed.bit if row_objects & installed.accepted_as else 0
        for installed in subjects:
            row_subjects &= ~installed.bit
            if installed.bit in allowed and row.subjects & installed.requires_as and runtime >> number & 1:
                row_subjects |= installed.bit
                allowed[installed.bit] |= row_objects
        rows[number] = replace(row, subjects=row_subjects, objects=row_objects)
    together = sum(installed.bit for installed in objects)
    for bit, row_objects in allowed.items():
        if together & ~row_objects and not forbids:
            text = f"the base image contains {name} and {other_name} in versions that the catalog excludes"
            fact = Fact(text, "observed", _source_of_all(request))
            rows.append(Row(bit, together & ~row_objects, fact, contradicts=True))


def _source_of_all(request: Request) -> str:
    preinstalled = request.preinstalled
    return (
        _source(preinstalled)
        if preinstalled and preinstalled.source != IMAGE
        else "the catalog's rows of base images"
    )


def compile_preinstalled(builder: ProblemBuilder) -> None:
    """Add the demands that keep the installed versions.

    Raises
    ------
    UsageError
        The installed Python or ROCm is not in the catalog, or the target has no base image.
    """
    preinstalled = builder.request.preinstalled
    if preinstalled is None:
        return
    if preinstalled.source == IMAGE:
        _keep_image_content(builder)
        return
    image = builder.catalog.image.get(builder.target.base_image or "")
    if image and image.python and "python" not in preinstalled.installed:
        builder.demand_stated("python", version_in(image.python), _python_of(image).text, image.source)
    for name, version in sorted(preinstalled.installed.items(), key=lambda pair: (pair[0] == "torch", pair)):
        # torch last: of several reasons for a conflict, the last tends to be reported
        text, source = f"the base image contains {name} {version}", _source(preinstalled)
        if name in {"python", "rocm"}:
            builder.demand_stated(
                name, version_in(_platform(builder, name, version, preinstalled)), text, source
            )
        elif builder.installed(name):
            builder.demand_stated(name, _is_preinstalled, text, source)
            if name == "torch" and not any(installed.requires_as for installed in builder.installed(name)):
                _demand_by_label(builder, version, source)


def _demand_by_label(builder: ProblemBuilder, version: str, source: str) -> None:
    """Add the constraints that an installed version of torch implies, if the catalog has no such torch.

    The label is the platform of the build (``+rocm6.4``, ``+cu121``, ``+cpu``). Unless the installed Python
    is listed, Python is limited to the versions that the same public version of torch is published for.
    """
    public, _, label = version.partition("+")
    torch, match = f"the installed torch {version}", _LABEL.match(label)
    if match and match["rocm"]:
        text = f"{torch} is labelled as a build for ROCm {match['rocm']}"
        builder.demand_stated("backend", version_in(["rocm"]), text, source)
        if builder.target.backend == "rocm":
            builder.demand_stated("rocm", LineIs(match["rocm"]), text, source)
    elif match:
        other = "the CPU" if match["other"] == "cpu" else "CUDA"
        backends = ["cpu"] if match["other"] == "cpu" else []
        text = f"{torch} is labelled as a build for {other}"
        builder.demand_stated("backend", version_in(backends), text, source)
    rows = [row for row in builder.catalog.torch.values() if row.version.partition("+")[0] == public]
    pythons = newest_first({python for row in rows for python in row.python})[::-1]
    listed = builder.request.preinstalled is not None and "python" in builder.request.preinstalled.installed
    if pythons and not listed:
        text = f"torch {public} is published for Python {join_words(pythons, most=8, joiner='and')}"
        builder.demand_stated("python", version_in(pythons), text, source)


def _python_of(image: schema.Image) -> Fact:
    text = f"the content of base image {image.name} is for its Python {join_words(image.python)}"
    return Fact.of(image, text, note="")


def _platform(builder: ProblemBuilder, name: str, version: str, preinstalled: Preinstalled) -> list[str]:
    """Return the versions of Python or ROCm in the catalog that correspond to an installed version."""
    known = [candidate.version for candidate in builder.variables[name].candidates]
    line = minor(version)
    versions = [
        candidate for candidate in known if candidate == version or (name == "python" and candidate == line)
    ]
    versions = versions or [candidate for candidate in known if name == "rocm" and minor(candidate) == line]
    if not versions:
        msg = f"{preinstalled.source} lists {name} {version}, which is not in the catalog."
        raise UsageError(msg, hint=f"Known: {join_words(known, most=12, joiner='and')}.")
    return versions


def _keep_image_content(builder: ProblemBuilder) -> None:
    """Tie the content of a base image to the choice of that image."""
    if builder.target.backend != "rocm":
        msg = "--keep-installed image keeps the content of a base image, and the CPU backend has none."
        raise UsageError(
            msg, hint="Use a list instead: pip list > installed.txt, then --keep-installed installed.txt"
        )
    images = _inspected_images(builder.catalog, builder.target)
    known = any_candidate if builder.target.base_image else version_in([row.name for row in images])
    builder.demand_requested("base-image", known, "you asked to keep the content of the base image")
    pythons = [
        Clause(version_in([row.name]), version_in(row.python), _python_of(row))
        for row in images
        if row.python
    ]
    builder.relate("base-image", "python", pythons, when_present=True)
    for name in sorted(installed_names(builder.catalog, builder.request)):
        if not builder.installed(name):
            continue
        images_of: dict[str, list[schema.Image]] = {}
        for image in images:
            if name in image.holds:
                images_of.setdefault(image.holds[name], []).append(image)
        clauses, back = [], []
        for version, rows in images_of.items():
            names = [row.name for row in rows]

            def is_installed(candidate: Candidate, version: str = version) -> bool:
                return _is_preinstalled(candidate) and candidate.version == version

            for row in rows:
                fact = Fact.of(row, f"the base image {row.name} contains {name} {version}", note="")
                clauses.append(Clause(version_in([row.name]), is_installed, fact))
            fact = Fact.of(rows[0], f"{name} {version} is in {join_words(names, joiner='and')}", note="")
            back.append(Clause(is_installed, version_in(names), fact))
        builder.relate("base-image", name, clauses, exact=True)
        builder.relate(name, "base-image", back, exact=True)


def _is_preinstalled(candidate: Candidate) -> bool:
    return candidate.origin == "preinstalled"


def preinstalled_warnings(request: Request, problem: Problem, solution: Mapping[str, int]) -> list[str]:
    """Return the warnings about installed versions in a solution."""
    preinstalled = request.preinstalled
    if preinstalled is None:
        return []
    chosen = {name: problem.variables[name].candidate(solution[name]) for name in sorted(solution)}
    warnings = [candidate.remark for candidate in chosen.values() if candidate.remark]
    for name in chosen:
        for relation in problem.relations:
            other = relation.object.name
            if relation.subject.name == name and other in solution:
                rows = relation.rows_between(solution[name], solution[other])
                warnings += [_sentence(row.fact.text) for row in rows if row.contradicts]
    image = chosen["base-image"].version if "base-image" in chosen else ""
    if preinstalled.source == IMAGE and not any(map(_is_preinstalled, chosen.values())):
        warnings.append(f"The content of {image} is not known, so no installed version was kept.")
    elif preinstalled.source != IMAGE and image and not request.target.base_image:
        warnings.append(
            f"{preinstalled.source} does not name its base image, so {image} was chosen. "
            f"Name the base image with --base-image."
        )
    return warnings


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
