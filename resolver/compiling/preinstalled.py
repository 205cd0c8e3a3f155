"""Demands that keep installed distributions, and warnings about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from resolver.compiling.clauses import Clause, any_candidate, line_is, version_in, where
from resolver.compiling.problem import Problem, Statement, Variable
from resolver.errors import UsageError
from resolver.model import IMAGE, Fact, Notice
from resolver.providers.installed import (
    inspected_images,
    installed_names,
    installed_versions,
    source_of,
)
from resolver.versions import grouped, join_words, minor, newest_first

if TYPE_CHECKING:
    from resolver.compiling.problem_builder import ProblemBuilder
    from resolver.facts import schema
    from resolver.facts.catalog import Catalog
    from resolver.model import Distribution, Preinstalled, Request

_preinstalled = where(lambda candidate: candidate.origin == "preinstalled")
_LABEL = r"rocm(?P<rocm>\d+\.\d+)|(?P<other>cpu|cu\d)"


def compile_preinstalled(builder: ProblemBuilder) -> None:
    """Add the demands that keep the installed versions."""
    preinstalled = builder.request.preinstalled
    if preinstalled is None:
        return
    if preinstalled.source == IMAGE:
        _keep_image_content(builder)
        return
    image = builder.catalog.image.get(builder.target.base_image or "")
    if image and image.python and "python" not in preinstalled.installed:
        builder.demand("python", version_in(image.python), _python_of(image).text, image.source)
    for name, version in sorted(preinstalled.installed.items(), key=lambda pair: (pair[0] == "torch", pair)):
        # torch last: of several reasons for a conflict, the last tends to be reported
        text, source = f"the base image contains {name} {version}", source_of(preinstalled)
        if name in {"python", "rocm"}:
            builder.demand(name, version_in(_platform(builder, name, version, preinstalled)), text, source)
        elif builder.installed(name):
            builder.demand(name, _preinstalled, text, source)
            if name == "torch" and not any(installed.requires_as for installed in builder.installed(name)):
                _demand_by_label(builder, version, source)


def _demand_by_label(builder: ProblemBuilder, version: str, source: str) -> None:
    """Add the constraints that an installed version of torch implies, if the catalog has no such torch.

    The label is the platform of the build (``+rocm6.4``, ``+cu121``, ``+cpu``). Unless the installed Python
    is listed, Python is limited to the versions that the same public version of torch is published for.
    """
    public, _, label = version.partition("+")
    torch, match = f"the installed torch {version}", re.match(_LABEL, label)
    if match and match["rocm"]:
        text = f"{torch} is labelled as a build for ROCm {match['rocm']}"
        builder.demand("backend", version_in(["rocm"]), text, source)
        if builder.target.backend == "rocm":
            builder.demand("rocm", line_is(match["rocm"]), text, source)
    elif match:
        other = "the CPU" if match["other"] == "cpu" else "CUDA"
        backends = ["cpu"] if match["other"] == "cpu" else []
        text = f"{torch} is labelled as a build for {other}"
        builder.demand("backend", version_in(backends), text, source)
    rows = [row for row in builder.catalog.torch.values() if row.version.partition("+")[0] == public]
    pythons = newest_first({python for row in rows for python in row.python})[::-1]
    listed = builder.request.preinstalled is not None and "python" in builder.request.preinstalled.installed
    if pythons and not listed:
        text = f"torch {public} is published for Python {join_words(pythons, most=8, joiner='and')}"
        builder.demand("python", version_in(pythons), text, source)


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
            msg, hint="Use a list instead: `pip list > installed.txt`, then `--keep-installed installed.txt`."
        )
    images, named = inspected_images(builder.catalog, builder.request), builder.target.base_image
    known = any_candidate if named else version_in([row.name for row in images])
    builder.demand("base-image", known, "you asked to keep the content of the base image")
    pythons = [
        Clause(version_in([row.name]), version_in(row.python), _python_of(row))
        for row in images or [row for row in builder.catalog.image.values() if row.name == named]
        if row.python
    ]
    builder.relate("base-image", "python", pythons, when_present=True)
    for name in sorted(installed_names(builder.catalog, builder.request)):
        if not builder.installed(name):
            continue
        images_of = grouped((image.holds[name], image) for image in images if name in image.holds)
        clauses, back = [], []
        for version, rows in images_of.items():
            names = [row.name for row in rows]

            def is_installed(variable: Variable, version: str = version) -> int:
                return _preinstalled(variable) & variable.of_versions([version])

            for row in rows:
                fact = Fact.of(row, f"the base image {row.name} contains {name} {version}", note="")
                clauses.append(Clause(version_in([row.name]), is_installed, fact))
            text = f"is in {join_words(names, joiner='and')}"
            listed = Statement(rows[0], f"{name} {version}", text, note="")
            back.append(Clause(is_installed, version_in(names), listed))
        builder.relate("base-image", name, clauses, exact=True)
        builder.relate(name, "base-image", back, exact=True)


def preinstalled_warnings(
    catalog: Catalog, request: Request, problem: Problem, solution: Mapping[str, int]
) -> list[Notice]:
    """Return the warnings about installed versions in a solution."""
    preinstalled = request.preinstalled
    if preinstalled is None:
        return []
    chosen = {name: problem.variables[name].candidate(solution[name]) for name in sorted(solution)}
    warnings = [
        Notice("installed-not-in-catalog", name, candidate.remark)
        for name, candidate in chosen.items()
        if candidate.remark
    ]
    for name in chosen:
        for relation in problem.relations:
            other = relation.object.name
            if relation.subject.name == name and other in solution:
                rows = relation.rows_between(solution[name], solution[other])
                texts = (row.fact.text for row in rows if row.contradicts)
                warnings += [
                    Notice("contradicts-catalog", name, f"{text[:1].upper()}{text[1:]}.") for text in texts
                ]
    image = chosen["base-image"].version if "base-image" in chosen else ""
    is_kept = any(candidate.origin == "preinstalled" for candidate in chosen.values())
    is_known = is_kept or installed_versions(catalog, request)
    if preinstalled.source == IMAGE and not is_known:
        text = f"The content of {image} is not known, so no installed version was kept."
        warnings.append(Notice("content-unknown", image, text))
    elif preinstalled.source != IMAGE and image and not request.target.base_image:
        text = (
            f"{preinstalled.source} does not name its base image, so {image} was chosen. "
            f"Name the base image with --base-image."
        )
        warnings.append(Notice("image-not-named", image, text))
    if preinstalled.replaced and not (image in catalog.image and catalog.image[image].requires):
        names = join_words(preinstalled.replaced, joiner="and")
        text = f"Only a list of what is installed was read: what else in it requires of {names} is not known."
        warnings.append(Notice("replaced-unchecked", image, text))
    return warnings


def content_notes(
    catalog: Catalog, request: Request, picks: Sequence[Distribution], image: schema.Image | None
) -> list[Notice]:
    """Return a note if a base image has distributions that would be installed or built again.

    The chosen image counts if it has any of them; else the images that the site offers on the day: those with
    builds, else those with torch and the chosen line of ROCm.
    """
    others = {pick.name: pick for pick in picks if pick.kind == "distribution"}
    if request.preinstalled is not None:
        kept = request.preinstalled
        is_built = any(pick.origin == "build" for pick in picks)
        if kept.source != IMAGE or kept.installed or not image or not is_built:
            return []
        text = (
            f"Only what the catalog records of {image.name} is kept, and it may have more. "
            "If the image is on this machine, name its file: --base-image PATH."
        )
        return [Notice("content-incomplete", image.name, text)]
    if image and (held := _held(catalog, image, request, others)):
        return [_content(image, held, others, "--keep-installed image")]
    built = {name: pick for name, pick in others.items() if pick.origin == "build"}
    target = request.target
    offered = [catalog.image[row.image] for row in catalog.images_at(target.site, target.date)]
    rocm = next((pick.version for pick in picks if pick.name == "rocm"), "")
    if "torch" in others and not any(_held(catalog, row, request, built) for row in offered):
        built = {"torch": others["torch"]}
        offered = [row for row in offered if rocm and row.rocm and minor(row.rocm) == minor(rocm)]
    rows = (
        [] if request.target.base_image else [row for row in offered if _held(catalog, row, request, built)]
    )
    if not rows:
        return []
    best = max(rows, key=lambda row: (len(_held(catalog, row, request, built)), row.name))
    held = _held(catalog, best, request, others)
    return [_content(best, held, others, f"--base-image {best.name} --keep-installed image")]


def _held(
    catalog: Catalog, image: schema.Image, request: Request, picks: Mapping[str, Distribution]
) -> dict[str, str]:
    """Return the distributions among some that an image has; none if the request excludes its content."""
    for stated in (*request.requirements, *request.constraints):
        version = image.holds.get(stated.name)
        versions = {"rocm": (image.rocm,), "python": image.python}.get(stated.name, (version,))
        known = [one for one in versions if one]
        if stated.specifier and known and not any(map(stated.specifier.allows, known)):
            return {}
        variants = {release.variant for release in catalog.releases_of(stated.name)}
        if version and variants & {*stated.extras}:
            return {}
    return {name: version for name, version in image.holds.items() if name in picks}


def _content(
    image: schema.Image, held: Mapping[str, str], picks: Mapping[str, Distribution], options: str
) -> Notice:
    """Return the note that a layer would do, with what it would hold at most: the image may have more."""
    listed = join_words([f"{name} {version}" for name, version in held.items()], most=8, joiner="and")
    rest = [pick for name, pick in picks.items() if name not in held]
    sizes = [_mebibytes(rest), _mebibytes(picks.values())]
    wheels = f" with {sizes[0]} MiB of wheels, instead of {sizes[1]} MiB" if all(sizes) else ""
    text = (
        f"{image.name} has {f'at least {len(held)} of these {len(picks)}' if rest else 'all of these'} "
        f"distributions: {listed}. `matrix build-layer OUT.sqsh REQ...` makes a layer over it{wheels}. "
        f"To resolve so: {options}"
    )
    short = "a base image has all of these"
    if rest:
        adds = f"{sizes[0]} MiB, not {sizes[1]} MiB" if all(sizes) else "the rest"
        short = (
            f"a base image has at least {len(held)} of these {len(picks)}; `matrix build-layer` adds {adds}"
        )
    return Notice("image-has", image.name, text, short)


def _mebibytes(picks: Iterable[Distribution]) -> int:
    """Return the size of the files of published distributions; 0 if any of them has none with a size."""
    sizes = [pick.files[0].size if pick.files else 0 for pick in picks if pick.origin == "published"]
    return -(-sum(sizes) // 2**20) if all(sizes) else 0
