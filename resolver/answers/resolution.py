"""Convert a solution of the catalog's problem to a resolution, with its edges, install order and warnings."""

from __future__ import annotations

import graphlib
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from datetime import timedelta
from graphlib import TopologicalSorter
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec.structs import astuple, replace

from resolver.compiling.known_bad import known_bad_warnings
from resolver.compiling.platform import newest_python
from resolver.compiling.preinstalled import preinstalled_warnings
from resolver.compiling.problem_builder import advice_for, is_advised, window_of
from resolver.environment import Environment
from resolver.errors import CycleError
from resolver.facts.catalog import within
from resolver.facts.driver import drivers_of_modules
from resolver.facts.schema import PLATFORM
from resolver.indexes import files_of
from resolver.model import (
    STATUS_RANK,
    BaseImage,
    Distribution,
    DriverWindow,
    Edge,
    Fact,
    Notice,
    Resolution,
)
from resolver.requirements import required_name
from resolver.solving.session import Session, Solution
from resolver.versions import join_words, labelled, minor, sort_key, wheel_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from resolver.compiling.problem import Problem, Relation, RelationRow
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Image, Recipe, Release, Rocm, SiteAdvice, Torch
    from resolver.indexes import File
    from resolver.model import Candidate, Request, Target
    from resolver.solving.search import Assumption

_OLD = timedelta(days=730)
"""A release is old if the newest one came so much later."""
_OLD_SITE = timedelta(days=183)
"""What is known of a site is old after this time."""
_EXPECTED = {"rocm": "ROCm", "torch": "torch", "gfx": "GPU architectures"}
"""What limits a distribution for GPUs, and its name in warnings."""
FROM_PROVEN_SET = "from-proven-set"
"""The id of the note that names the proven set of all versions."""
_SHOWN = [name for name in PLATFORM if name not in {"backend", "gfx"}]


def preferred_solution(
    catalog: Catalog,
    request: Request,
    session: Session,
    assumed: Sequence[Assumption] = (),
    selectors: Mapping[str, int] = {},
) -> tuple[Solution | None, list[Notice]]:
    """Return the preferred solution under assumptions, and notes about it; for `selectors` see `proven`."""
    if request.prefer != "proven":
        return session.solve(assumed=assumed), []
    from resolver.answers.proven import solve_proven

    names = {requirement.name for requirement in request.requirements}
    sets = catalog.proven_at(request.target.site)
    solution, proven = solve_proven(session, sets, names, assumed, selectors)
    if proven:
        text = f"All versions are from the proven set {proven.id} ({proven.source})."
        return solution, [Notice(FROM_PROVEN_SET, proven.id, text)]
    return solution, []


def resolution_of(
    catalog: Catalog, request: Request, problem: Problem, solution: Solution, notes: Sequence[Notice]
) -> Resolution:
    """Convert a solution of the catalog's problem to a resolution."""
    candidates = {name: problem.variables[name].candidate(bit) for name, bit in solution.items()}
    shown = [name for name in _SHOWN if name in candidates]
    shown += sorted(name for name, candidate in candidates.items() if candidate.kind == "distribution")
    picks = [pick_of(problem, solution, name) for name in shown]
    versions = {pick.name: pick.version for pick in picks}
    edges = edges_of(list(candidates.values()), problem.relations)
    image = catalog.image.get(versions.get("base-image", ""))
    warnings = []
    if request.prefer == "proven" and not notes:
        text = "No proven set fits this request; the newest versions were chosen."
        warnings.append(Notice("no-proven-set", "", text))
    warnings += _warnings(catalog, request, problem, solution, picks)
    picks = [_with_origin(pick, catalog, request, image) for pick in picks]
    picks = [_with_extras(pick, catalog, request) for pick in picks]
    advice = advice_for(catalog, request)
    picks = [_advised_pick(pick, advice[pick.name]) if pick.name in advice else pick for pick in picks]
    window = window_of(catalog, request)
    notes = [*notes]
    for torch in (pick for pick in picks if pick.name == "torch" and pick.origin == "build"):
        text = f"No published wheel of torch fits this request, so {torch} is compiled from source."
        notes.append(Notice("torch-from-source", "torch", text))
    if problem.default_images and image is None and "rocm" in versions:
        text = f"No base image that {request.target.site} lists fits this request, so none is used."
        notes.append(Notice("no-image-fits", "base-image", text))
    return Resolution(
        request=request,
        target=replace(
            request.target,
            driver=versions.get("kernel-driver"),
            base_image=versions.get("base-image"),
            rocm=versions.get("rocm"),
            python=versions.get("python"),
            glibc=versions.get("glibc"),
        ),
        image=BaseImage(image.name, image.path, image.digest, image.dockerhash, image.libstdcxx)
        if image
        else None,
        driver_window=DriverWindow(window.since, window.until, window.package, window.source)
        if window and "kernel-driver" in versions
        else None,
        picks=with_labels(request.target, picks),
        order=generations((pick.name for pick in picks if pick.kind == "distribution"), edges),
        edges=edges,
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def _warnings(
    catalog: Catalog, request: Request, problem: Problem, solution: Solution, picks: Sequence[Distribution]
) -> Iterator[Notice]:
    versions = {pick.name: pick.version for pick in picks}
    candidates = {pick.name: problem.variables[pick.name].candidate(solution[pick.name]) for pick in picks}
    if request.target.backend == "rocm" and "kernel-driver" not in solution:
        yield Notice(
            "driver-unknown", "kernel-driver", unknown_driver(catalog, request, versions.get("rocm", ""))
        )
    seen = catalog.site[request.target.site].seen
    if seen and request.target.date - seen > _OLD_SITE:
        site = request.target.site
        text = f"What is known of {site} is of {seen} or older: driver, ROCm and images may differ."
        yield Notice("site-facts-old", site, text)
    yield from _not_of_site(catalog, request.target)
    image = catalog.image.get(versions.get("base-image", ""))
    if image and not image.glibc:
        text = f"The glibc of {image.name} is not known, so no wheel was checked against it."
        yield Notice("glibc-unknown", image.name, text)
    for pick in picks:
        if pick.verdict == "at-own-risk":
            reasons = _reasons(problem, solution, pick.name)
            texts = (row.fact.text for relation, row in reasons if _is_risk(relation, row, pick.name))
            text = f"{pick.name} {pick.version} is at your own risk: {'; '.join(dict.fromkeys(texts))}."
            yield Notice("at-own-risk", pick.name, text)
    yield from preinstalled_warnings(catalog, request, problem, solution)
    yield from known_bad_warnings(
        catalog, request.target, versions, {pick.name: pick.variant for pick in picks}
    )
    for candidate in candidates.values():
        yield from _not_known(catalog, request.target, candidate)
    for candidate in candidates.values():
        if candidate.inferred_from:
            facts = f"the facts of {candidate.inferred_from} (inferred)"
            text = f"{candidate} is not in the catalog, so it has {facts}."
            yield Notice("inferred", candidate.name, text)
    yield from _age_warning(catalog, request, [*candidates.values()])
    if image:
        yield from _image_warnings(image, problem, solution)


def unknown_driver(catalog: Catalog, request: Request, rocm: str) -> str:
    """Return what is known about an unknown driver: at most which ones the site's modules of ROCm leave."""
    target = request.target
    rows = (
        row for row in catalog.site_advice.values() if row.site == target.site and within(row, target.date)
    )
    modules = next((row.modules for row in rows if row.on == "rocm" and row.modules), ())
    drivers = drivers_of_modules(catalog, modules)
    if not drivers or not rocm:
        return "The kernel driver of this target is not known, so ROCm was not checked against it."
    line = minor(rocm)
    fitting = [name for name in drivers if line in catalog.driver[name].supports]
    which = "all" if fitting == drivers else join_words(fitting, joiner="and") if fitting else "none"
    installed, first, last = join_words(modules, joiner="and"), drivers[0], drivers[-1]
    return (
        f"The kernel driver of {target.site} is not known. Its modules of ROCm {installed} leave drivers "
        f"{first} to {last} (inferred from AMD's table). Of these, AMD lists ROCm {line} for {which}."
    )


def _not_of_site(catalog: Catalog, target: Target) -> Iterator[Notice]:
    """Warn about a GPU that the site does not have, and a driver that it is not known to have had."""
    site = catalog.site[target.site]
    if others := site.lacks(target.gfx):
        own, listed = join_words(site.gfx, joiner="and"), join_words(others, joiner="and")
        text = f"{target.site} has {own}, not {listed}: what is built for {listed} does not run there."
        yield Notice("gpu-not-of-site", listed, text)
    drivers = [window.driver for window in catalog.windows_of(target.site)]
    if target.driver and drivers and target.driver not in drivers:
        text = (
            f"{target.site} is not known to have had kernel driver {target.driver}, only "
            f"{join_words([*dict.fromkeys(drivers)], joiner='and')}."
        )
        yield Notice("driver-not-of-site", "kernel-driver", text)


def _image_warnings(image: Image, problem: Problem, solution: Solution) -> Iterator[Notice]:
    candidates = (problem.variables[name].candidate(bit) for name, bit in solution.items())
    for candidate in () if image.mpi else candidates:
        if candidate.recipe and candidate.recipe.mpi:
            text = (
                f"{candidate} is compiled against the MPI of {image.name}, which is not known. "
                "Check that the image has mpicc."
            )
            yield Notice("mpi-unknown", candidate.name, text)
    version = problem.version(solution, "python")
    if image.python and version and version not in image.python:
        own = join_words(image.python, joiner="and")
        text = (
            f"The base image {image.name} has Python {own}, not {version}. Python {version} comes from "
            "conda, as in containers of cotainr and tykky. To build for this Python, pass its prefix to "
            "--python-from."
        )
        yield Notice("python-not-of-image", image.name, text)


def _age_warning(catalog: Catalog, request: Request, candidates: Sequence[Candidate]) -> Iterator[Notice]:
    """Warn about releases that are much older than the newest of the day, unless the request asks for one."""
    asked = {item.name for item in (*request.requirements, *request.constraints) if item.specifier}
    asked |= {"rocm"} if request.target.base_image else set()
    old = {}
    for candidate in candidates:
        rows = _dated_rows(catalog, request, candidate.name)
        own = candidate.release or next((row for row in rows if row.version == candidate.version), None)
        day = own.released if own and not candidate.inferred_from else None  # else that of another release
        known = [row for row in rows if row.released and row.released <= request.target.date]
        newest = max(known, key=lambda row: (row.released, sort_key(row.version)), default=None)
        if day and newest and newest.released and newest.released - day > _OLD:
            text = f"{candidate} is from {day} (newest: {newest.version}, {newest.released})"
            old[candidate.name] = text if candidate.origin != "preinstalled" else ""
    if old and all(old.values()) and not asked & {*old} and request.prefer != "oldest":
        text = f"This is an old combination: {'; '.join(old.values())}. `matrix explain` has the reasons."
        yield Notice("old-combination", "", text)


def _dated_rows(catalog: Catalog, request: Request, name: str) -> list[Torch | Rocm | Release]:
    backend = request.target.backend
    if name == "torch":
        return [row for row in catalog.torch.values() if row.backend == backend]
    if name == "rocm":
        return [*catalog.rocm.values()]
    return [row for row in catalog.releases_of(name) if backend in row.backend]


def _not_known(catalog: Catalog, target: Target, candidate: Candidate) -> Iterator[Notice]:
    """Yield a warning for each fact that the catalog has about other releases, but not about this one.

    A release for GPUs needs one about ROCm or torch. That nothing limits it is no evidence that it works.
    """
    own, recipe = candidate.release, candidate.recipe
    if own is None or target.backend != "rocm" or candidate.inferred_from or own.package == "torch":
        return
    rows = [
        row
        for row in catalog.requires
        if row.package == own.package and row.backend in {None, "rocm"}
        if row.kind == "run" or not own.is_published
    ]
    releases = [row for row in catalog.releases_of(own.package) if "rocm" in row.backend]
    variants = Counter(row.variant for row in releases)
    kinds = {variant for variant, count in variants.items() if count > 1}  # all others are commits
    kind = own.variant if own.variant in kinds else ""
    others = [row for row in releases if row.variant == kind and row.is_published == own.is_published]
    is_for_gpus = own.backend == ("rocm",) or (recipe is not None and "torch" in recipe.match_runtime)
    known = {row.on for row in rows if row.applies_to(own)}
    expected = {row.on for row in rows if not row.when_present for other in others if row.applies_to(other)}
    expected |= {"rocm"} if is_for_gpus and not known & {"rocm", "torch"} else set()
    expected -= {"torch"} - {*recipe.match_runtime} if recipe else set()
    for on, what in _EXPECTED.items():
        if on in expected - known:
            text = f"Not known: which {what} {candidate} works with; the catalog has no fact about it."
            yield Notice("fact-missing", candidate.name, text)


def _with_origin(pick: Distribution, catalog: Catalog, request: Request, image: Image | None) -> Distribution:
    if pick.name == "python":
        return _python_pick(pick, catalog, request, image)
    if pick.name == "kernel-driver" and request.target.driver and request.target.site != "local":
        return replace(pick, origin="request")  # at "local", the driver may be the one that was detected
    return pick


def _with_extras(pick: Distribution, catalog: Catalog, request: Request) -> Distribution:
    row = catalog.torch.get(pick.version) if pick.name == "torch" else None
    return replace(pick, extras=row.device_extras(request.target.gfx)) if row else pick


def _python_pick(pick: Distribution, catalog: Catalog, request: Request, image: Image | None) -> Distribution:
    installed = request.preinstalled.installed if request.preinstalled else {}
    if any(requirement.name == "python" for requirement in request.requirements):
        return replace(pick, origin="request")
    if image and pick.version in image.python:
        fact = Fact.of(image, f"{image.name} has Python {join_words(image.python, joiner='and')}", note="")
        return replace(pick, origin="base-image", facts=(*pick.facts, fact))
    if pick.version == request.target.python:
        return replace(pick, origin="site")
    if "python" in installed:
        return replace(pick, origin="base-image")
    site, day = request.target.site, request.target.date
    offered = (catalog.image[row.image] for row in catalog.images_at(site, day))
    if row := next((row for row in offered if pick.version in row.python), None):
        fact = Fact.of(row, f"python {pick.version} is in base images of {site}", note="")
        return replace(pick, facts=(fact, *pick.facts))
    which = "oldest" if request.prefer == "oldest" else "newest"
    text = f"python {pick.version} is the {which} release line that fits"
    newest = newest_python(catalog, day)
    if newest != pick.version:
        text = f"{text}; {newest} comes last"
    return replace(pick, facts=(replace(pick.facts[0], text=text), *pick.facts[1:]))


def _advised_pick(pick: Distribution, advice: SiteAdvice) -> Distribution:
    if not is_advised(advice, pick.version):
        return pick
    versions = join_words([text.removeprefix("==") for text in advice.versions])
    fact = Fact.of(advice, f"{advice.site} {advice.verb} {advice.on} {versions}")
    return replace(pick, facts=(*pick.facts, fact))


def with_labels(target: Target, picks: Sequence[Distribution]) -> tuple[Distribution, ...]:
    """Label all distributions to build: a wheel of a plain version could come from another index."""
    versions = {pick.name: pick.version for pick in picks}
    torch, rocm = versions.get("torch", ""), versions.get("rocm", "")
    label = wheel_label(backend=target.backend, torch=torch, rocm=rocm, gfx=target.gfx)
    return tuple(
        replace(pick, wheel_version=labelled(pick.version, label)) if pick.origin == "build" else pick
        for pick in picks
    )


def pick_of(problem: Problem, solution: Solution, name: str) -> Distribution:
    """Return a component of a solution, with the facts that allow it."""
    candidate = problem.variables[name].candidate(solution[name])
    origin = candidate.origin
    if name == "rocm" and not _is_in_image(problem, solution):
        origin = "published"  # it comes with torch's wheel
    facts: dict[str, Fact] = {candidate.fact.text: candidate.fact}
    risky = False
    weakest = candidate.fact.status
    for relation, row in _reasons(problem, solution, name):
        fact = row.fact
        facts.setdefault(fact.text, fact)
        risky = risky or _is_risk(relation, row, name)
        if relation.subject.name == name:
            weakest = min(weakest, fact.status, key=STATUS_RANK.__getitem__)
    release, index = candidate.release, candidate.index
    if not index and candidate.kind == "distribution" and origin == "published" and release is None:
        torch = problem.variables["torch"].candidate(solution["torch"]) if "torch" in solution else None
        index = torch.index if torch else ""  # it is published beside torch
    return Distribution(
        name=name,
        version=candidate.version,
        variant=candidate.variant,
        kind=candidate.kind,
        origin=origin,
        support=weakest,
        verdict="at-own-risk" if risky else "supported",
        index=index,
        sdist=release.sdist if release else None,
        git=release.git if release else None,
        wheel=release.wheel if release else None,
        patches=release.patches if release else (),
        files=_files(problem, solution, release) if release else (),
        facts=tuple(facts.values()),
    )


def _files(problem: Problem, solution: Solution, release: Release) -> tuple[File, ...]:
    if not release.wheels:
        return ()
    python, glibc = (problem.version(solution, name) for name in ("python", "glibc"))
    return tuple(Environment(python, glibc).installable(files_of(release)))


def _reasons(problem: Problem, solution: Solution, name: str) -> Iterator[tuple[Relation, RelationRow]]:
    """Yield the relations that are reasons for a pick, each with its most trusted row."""
    for relation in problem.relations:
        if _is_reason(relation, name, solution):
            rows = relation.rows_between(solution[relation.subject.name], solution[relation.object.name])
            if rows:
                yield relation, max(rows, key=lambda row: (not row.risk, STATUS_RANK[row.text.status]))


def _is_risk(relation: Relation, row: RelationRow, name: str) -> bool:
    return row.risk and relation.subject.name == name


def _is_in_image(problem: Problem, solution: Solution) -> bool:
    """Return whether the solution has a base image that contains ROCm."""
    image = solution.get("base-image", 0)
    rows = (
        row
        for relation in problem.relations
        if (relation.subject.name, relation.object.name) == ("base-image", "rocm")
        for row in relation.rows
    )
    return bool(image) and any(row.subjects >> image & 1 for row in rows)


def _is_reason(relation: Relation, name: str, solution: Solution) -> bool:
    """Return whether a relation is a reason for a pick; a platform component may also be its object."""
    if relation.forbids or relation.subject.name not in solution or relation.object.name not in solution:
        return False
    if relation.object.name == "backend":
        return False  # the same for every pick, so it is not a reason
    return name == relation.subject.name or (name in PLATFORM and name == relation.object.name)


def edges_of(candidates: Sequence[Candidate], relations: Iterable[Relation]) -> tuple[Edge, ...]:
    """Return the run and build edges among chosen distributions and their build requirements.

    Torch is also a run requirement of everything that is compiled against it. A build requirement on a
    distribution that is not chosen has the text of the recipe; pip chooses its version.
    """
    chosen = {candidate.name: candidate for candidate in candidates if candidate.kind == "distribution"}
    edges: set[Edge] = set()
    for_builds: set[tuple[str, str]] = set()
    for relation in relations:
        subject, target = relation.subject.name, relation.object.name
        if subject in chosen and target in chosen and _needs(relation, chosen[subject]):
            if relation.kind == "run" or target == "torch":
                edges.add(Edge(subject, target, "run", declared=True))
            elif chosen[subject].origin == "build":
                for_builds.add((subject, target))
    for name, candidate in chosen.items():
        recipe = candidate.recipe if candidate.origin == "build" else None
        if recipe is None:
            continue
        for edge in recipe_edges(name, recipe, chosen):
            edges.add(edge)
            for_builds.discard((name, edge.object))
    edges |= {Edge(*pair, "build", declared=True) for pair in for_builds}
    return tuple(sorted(edges, key=astuple))


def recipe_edges(name: str, recipe: Recipe, chosen: Container[str]) -> Iterator[Edge]:
    """Yield the build edges of a distribution from its recipe."""
    for declared, requirements in ((True, recipe.declared), (False, recipe.undeclared)):
        for requirement in requirements:
            required = required_name(requirement)
            yield Edge(name, required, "build", declared, "" if required in chosen else requirement)


def _needs(relation: Relation, subject: Candidate) -> bool:
    bit = 1 << (relation.subject.candidates.index(subject) + 1)
    return not relation.when_present and any(row.subjects & bit for row in relation.rows)


def generations(names: Iterable[str], edges: Iterable[Edge]) -> tuple[tuple[str, ...], ...]:
    """Return the install order: each group needs only members of earlier groups.

    `names` are installed even if no edge contains them. Raise `CycleError` if the edges form a cycle.

    Examples
    --------
    >>> generations(["apex", "torch"], [Edge("apex", "torch", "build", declared=False)])
    (('torch',), ('apex',))
    """
    # Not by networkx, as in `resolver.answers.graph`: importing it takes longer than resolving.
    sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(names, ()))
    edges = sorted(edges, key=astuple)
    for subject, own in groupby(edges, attrgetter("subject")):
        sorter.add(subject, *(edge.object for edge in own))
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        needed_first: list[str] = error.args[1]
        path = needed_first[::-1]
        steps = set(pairwise(path))
        to_build = any(edge.kind == "build" and (edge.subject, edge.object) in steps for edge in edges)
        raise CycleError(path, to_build=to_build) from None
    groups = []
    while sorter.is_active():
        group = sorter.get_ready()
        sorter.done(*group)
        groups.append(tuple(sorted(group)))
    return tuple(groups)


def without_cycles(edges: tuple[Edge, ...]) -> tuple[Edge, ...]:
    """Return the edges without one of each run cycle, which pip installs in any order; build cycles stay."""
    while True:
        try:
            generations((), edges)
        except CycleError as error:
            steps = set(pairwise(error.path))
            closing = [edge for edge in edges if (edge.subject, edge.object) in steps]
            if any(edge.kind == "build" for edge in closing):
                return edges
            edges = tuple(edge for edge in edges if edge is not closing[-1])
        else:
            return edges
