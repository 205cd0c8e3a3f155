"""Distributions: torch, the distributions tied to its wheels, and extension packages.

Published wheels of torch come before source builds, whatever their versions: compiling torch takes hours,
so it is the last resort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.compiling.clauses import (
    LIMITS,
    Clause,
    allowed_by,
    any_candidate,
    covers,
    known_mask,
    libstdcxx_by,
    line_is,
    no_candidate,
    version_in,
    where,
)
from resolver.compiling.known_bad import AVOIDED, exclude_together
from resolver.compiling.platform import offered_images
from resolver.compiling.problem import Statement, Variable, bits, is_prerelease
from resolver.compiling.problem_builder import built_for_builds, exclude_later_releases
from resolver.environment import Environment, tags_of
from resolver.facts.catalog import is_elsewhere
from resolver.model import UNLISTED, Candidate, Fact
from resolver.requirements import (
    PAIRED_WITH_TORCH,
    TRITON_NAMES,
    exact_requirement,
    normalize_name,
    split_marker,
)
from resolver.versions import allows, join_words, minor, newest_first, parse_specifier, version_key

if TYPE_CHECKING:
    from resolver.compiling.clauses import Test
    from resolver.compiling.problem_builder import ProblemBuilder
    from resolver.facts import schema

_NOT_JUDGED = ", and whether others work was not judged"
_BEYOND = "beyond"
"""The last way to use a release: beyond the bounds that were only inferred."""
WITHIN = ("listed", "any")
"""The other ways: only releases that the catalog lists, or also others."""
PYTORCH = "https://download.pytorch.org/"


def compile_torch(builder: ProblemBuilder) -> None:
    """Add torch and the distributions that its wheels name, and the relations between them."""
    rows = torch_rows(builder)
    torches = [
        Candidate("torch", row.version, "distribution", "published", fact, index=row.index)
        for row in rows
        for fact in [Fact.of(row, f"torch {row.version} is published at {row.index}")]
    ]
    _add_torch_variable(builder, "torch", torches)
    _relate_torch_to_platform(builder, rows)
    _relate_torch_to_images(builder, rows)
    compile_companions(builder)
    exclude_later_releases(builder, "torch")


def compile_companions(builder: ProblemBuilder) -> None:
    """Add torch's triton, and torchvision and torchaudio if they are reachable, unless they are there."""
    exact = [(row, _companions(row)) for row in torch_rows(builder)]
    excluded = {*builder.variables, *PAIRED_WITH_TORCH} - (builder.reachable - builder.variables.keys())
    companions: dict[str, dict[str, list[schema.Torch]]] = {}
    for row, own in exact:
        for name, version in {**own, **_triton_of_some_pythons(row)}.items():
            # torch brings its triton; torchvision and torchaudio count only if something asks for them.
            if name not in excluded:
                companions.setdefault(name, {}).setdefault(version, []).append(row)
    for name in TRITON_NAMES:
        if name not in excluded and builder.candidates(name):
            companions.setdefault(name, {})
    for name, versions in companions.items():
        _add_torch_variable(builder, name, [_companion_candidate(name, *of) for of in versions.items()])
        # Who requires whom decides who is the subject: torchvision requires one torch, torch one triton.
        if name in PAIRED_WITH_TORCH:
            clauses = []
            for version, torches_of in versions.items():
                names = [row.version for row in torches_of]
                text = f"requires torch {join_words(names)}"
                fact = Statement(torches_of[0], f"{name} {version}", text, note="")
                clauses.append(Clause(version_in([version]), version_in(names), fact))
            builder.relate(name, "torch", clauses)
        else:
            clauses = [
                Clause(
                    version_in([row.version]),
                    version_in([own[name]]),
                    Statement(row, f"torch {row.version}", f"requires {name} {own[name]}"),
                )
                for row, own in exact
                if name in own
            ]
            builder.relate("torch", name, clauses)


def torch_rows(builder: ProblemBuilder) -> list[schema.Torch]:
    """Return the wheels for the target's backend, so that explanations do not mention other wheels.

    Return all wheels if the request names only wheels of another backend, or if such a wheel is installed.
    The conflict then reports the wrong backend.
    """
    rows = list(builder.catalog.torch.values())
    preinstalled, backend = builder.request.preinstalled, builder.target.backend
    installed = preinstalled.installed.get("torch", "") if preinstalled else ""
    if installed in builder.catalog.torch and builder.catalog.torch[installed].backend != backend:
        return rows
    fitting = [row for row in rows if row.backend == backend]
    for requirement in builder.request.requirements:
        name = requirement.name
        if name in {"torch", *PAIRED_WITH_TORCH} and requirement.specifier is not None:
            versions = [row.version if name == "torch" else getattr(row, name) for row in fitting]
            if not any(allows([requirement.specifier], version) for version in versions if version):
                return rows
    return fitting


def _add_torch_variable(builder: ProblemBuilder, name: str, published: Sequence[Candidate]) -> None:
    candidates = [*published, *builder.candidates(name)]
    builder.add_variable(name, candidates, last=lambda candidate: candidate.origin == "build")


def _companion_candidate(name: str, version: str, torches: Sequence[schema.Torch]) -> Candidate:
    versions = join_words([row.version for row in torches], joiner="and")
    fact = Fact.of(torches[0], f"{name} {version} is published with torch {versions}", note="")
    return Candidate(name, version, "distribution", "published", fact)


def _relate_torch_to_platform(builder: ProblemBuilder, rows: Iterable[schema.Torch]) -> None:
    clauses: dict[str, list[Clause]] = {name: [] for name in ("backend", "python", "rocm", "gfx", "glibc")}
    requested, backend = builder.target.gfx, builder.target.backend
    title = "ROCm" if backend == "rocm" else "CPU"
    built = {_release_of(row) for row in builder.catalog.torch.values() if row.backend == backend}
    for row in rows:
        this = version_in([row.version])

        def fact(text: str, row: schema.Torch = row) -> Statement:
            return Statement(row, f"torch {row.version}", text)

        text = f"is a {row.backend} build"
        if row.backend != backend and _release_of(row) not in built:
            text += f"; no {title} build of torch {_release_of(row)} is known"
        clauses["backend"].append(Clause(this, version_in([row.backend]), fact(text)))
        text = f"is published for Python {join_words(row.python, most=8, joiner='and')}"
        clauses["python"].append(Clause(this, version_in(row.python), fact(text)))
        if row.rocm:
            line = minor(row.rocm)
            if row.device_extra:
                # These packages are of this ROCm alone; a system's ROCm fits with all its patch releases.
                own = version_in([row.rocm])
                text = f"brings ROCm {row.rocm} as pip packages and is published at {row.index}"
                clauses["rocm"].append(Clause(this, own, fact(text)))
            else:
                where = "" if row.index.startswith(PYTORCH) else f" and published at {row.index}"
                clauses["rocm"].append(Clause(this, line_is(line), fact(f"is built for ROCm {line}{where}")))
        if row.gfx and requested:
            text = f"contains code for {', '.join(row.gfx)}"
            clauses["gfx"].append(Clause(this, covers(row.gfx, requested), fact(text)))
        if row.glibc:
            newer = allowed_by([f">={row.glibc}"])
            clauses["glibc"].append(Clause(this, newer, fact(f"requires glibc {row.glibc} or newer")))
    for name, of_torch in clauses.items():
        builder.relate("torch", name, of_torch, when_present=name == "glibc")


def _relate_torch_to_images(builder: ProblemBuilder, rows: Iterable[schema.Torch]) -> None:
    has_rocm = _images_with_rocm(builder)
    clauses = [
        Clause(
            version_in([row.version]),
            has_rocm,
            Statement(row, f"torch {row.version}", "uses the ROCm of a base image"),
        )
        for row in rows
        if row.system_rocm
    ]
    if clauses:
        builder.relate("torch", "base-image", clauses)


def _images_with_rocm(builder: ProblemBuilder) -> Test:
    """Return a test that allows the base images with a ROCm; it can only be used for base images."""
    names = (row.name for row in builder.catalog.image.values() if row.rocm)
    return known_mask(builder.variables["base-image"].of_versions(names))


def _release_of(row: schema.Torch) -> str:
    return row.version.partition("+")[0]


def _companions(row: schema.Torch) -> dict[str, str]:
    """Return the exact versions of the companions of a torch wheel, by distribution.

    A triton that the wheel requires only on some versions of Python (torch 2.2 and 2.3 before Python 3.12) is
    not included: the marker is in the wheel's metadata, which only an index has.
    """
    companions = {"torchvision": row.torchvision, "torchaudio": row.torchaudio}
    exact = exact_requirement(row.triton)
    if exact is not None:
        companions[exact[0]] = exact[1]
    return {name: version for name, version in companions.items() if version}


def _triton_of_some_pythons(row: schema.Torch) -> dict[str, str]:
    head, marker = split_marker(row.triton)
    exact = exact_requirement(head) if marker else None
    return {exact[0]: exact[1]} if exact else {}


def compile_packages(builder: ProblemBuilder) -> None:
    """Add the extension packages that can become part of a solution."""
    names = [
        name
        for name in builder.catalog.package
        if name in builder.reachable and builder.is_closed(name) and builder.candidates(name)
    ]
    for name in names:
        if name not in builder.variables:
            builder.share((name,), partial(_add_package, builder, name))
    for name in names:
        if builder.is_new(name):
            others = (builder.variables.get(normalize_name(row.on)) for row in builder.requires[name])
            key = name, builder.variables["torch"], frozenset(others)
            builder.share(key, partial(_relate_package, builder, name))
        else:
            _relate_to_requirements(builder, name, _ReleaseMasks(builder.variables[name]))


def _add_package(builder: ProblemBuilder, name: str) -> None:
    builder.add_variable(name, builder.candidates(name), last=_lateness(builder, name))
    _avoid_unlisted(builder, name)


def _relate_package(builder: ProblemBuilder, name: str) -> None:
    masks = _ReleaseMasks(builder.variables[name])
    _relate_to_backend(builder, name, masks)
    _relate_to_images(builder, name)
    _relate_to_requirements(builder, name, masks)
    _relate_to_tags(builder, name)
    _relate_to_build_requirements(builder, name, masks)
    if name != "torch":
        exclude_later_releases(builder, name)


def _lateness(builder: ProblemBuilder, name: str) -> Callable[[Candidate], int]:
    """Return a sort key that puts releases to build after published wheels, whatever their versions.

    Among each, pre-releases come after the others. The releases that the catalog does not list come last,
    because they are untested.
    """
    releases = (candidate.release for candidate in builder.candidates(name))
    has_prebuilt = any(release is not None and is_elsewhere(release) for release in releases)

    def lateness(candidate: Candidate) -> int:
        if candidate.inferred_from:
            return 4
        is_built = has_prebuilt and candidate.origin == "build"
        return 2 * int(is_built) + int(is_prerelease(candidate.version))

    return lateness


def _avoid_unlisted(builder: ProblemBuilder, name: str) -> None:
    """Let the search decide first whether releases that the catalog does not list may be used.

    Such a release never beats one that is known to fit, so a component of its own is decided first.
    """
    unlisted = where(lambda candidate: candidate.inferred_from)
    if unlisted(builder.variables[name]):
        component = decided_first(builder, name)
        fact = Fact(f"the catalog lists releases of {name}", "documented", "the catalog")
        clause = Clause(unlisted, version_in(["any", _BEYOND]), fact)
        builder.relate(name, component, [clause], forbids=True)


def decided_first(builder: ProblemBuilder, name: str) -> str:
    """Return the component with the ways to use a package, which is added if it is new: the safest first."""
    component = f"{UNLISTED}{name}"
    if component not in builder.variables:
        fact = Fact(f"the catalog lists releases of {name}", "documented", "the catalog")
        ways = [Candidate(component, way, "platform", "request", fact) for way in (*WITHIN, _BEYOND)]
        builder.add_variable(
            component, ways, rank=lambda way: way.version, last=lambda way: int(way.version == _BEYOND)
        )
        builder.demand(component, any_candidate, fact.text, fact.source)
    return component


def _prefer_inferred_bounds(builder: ProblemBuilder, name: str, on: str, clauses: Sequence[Clause]) -> None:
    """Let the search leave what was only inferred about releases if it finds nothing within it.

    That bounds hold is no relation of two components: they hold unless the component of `decided_first` has
    its last way. This component is decided first, so the bounds count as long as anything fits within them.
    """
    variable, target = builder.variables[name], builder.variables[on]
    within: dict[int, int] = {}
    beyond: dict[int, int] = {}
    facts: dict[int, Clause] = {}
    for clause in clauses:
        allowed, objects = (beyond if clause.risk else within), clause.objects(target)
        for bit in bits(clause.subjects(variable)):
            allowed[bit] = allowed.get(bit, 0) | objects
            if clause.risk:
                facts[bit] = clause
    outside: dict[int, int] = {}
    for bit, objects in beyond.items():
        if left := objects & ~within[bit]:
            outside[left] = outside.get(left, 0) | 1 << bit
    for left, subjects in outside.items():
        component = decided_first(builder, name)
        ways = builder.variables[component].of_versions(WITHIN)
        bad = {name: subjects, component: ways, on: left}
        said = facts[subjects.bit_length() - 1].text
        fact = said.fact() if isinstance(said, Statement) else said
        exclude_together(builder, bad, fact, f"{AVOIDED}{name}-{on}-{subjects}")


def _relate_to_images(builder: ProblemBuilder, name: str) -> None:
    """Require a base image with ROCm for what uses the system's, if the target has one."""
    package, target = builder.catalog.package[name], builder.target
    if not (builder.open_world and package.system_rocm and target.backend == "rocm"):
        return
    if builder.request.use_image == "none":
        return
    if target.base_image or any(builder.catalog.image[one].rocm for one in offered_images(builder)):
        fact = Fact.of(package, f"every {name} uses the ROCm of a base image", note="")
        clause = Clause(any_candidate, _images_with_rocm(builder), fact)
        builder.relate(name, "base-image", [clause])


def _relate_to_backend(builder: ProblemBuilder, name: str, masks: _ReleaseMasks) -> None:
    clauses = []
    for candidate in builder.candidates(name):
        release = candidate.release
        if release is None:
            continue
        is_published = release.is_published
        backends = release.backend
        if not is_published:
            backends = tuple(backend for backend in backends if _recipe(builder, candidate, release, backend))
        predicate = partial(_backend_text, release, backends, candidate.inferred_from)
        text = Statement(release, f"{release.package} {release.version}", predicate, note="")
        clauses.append(Clause(masks.of(release), version_in(backends), text, build_only=not is_published))
    builder.relate(name, "backend", clauses)


def _recipe(
    builder: ProblemBuilder, candidate: Candidate, release: schema.Release, backend: schema.Backend
) -> schema.Recipe | None:
    if backend == builder.target.backend:
        return candidate.recipe
    return builder.catalog.recipe_for(release, backend)


def _backend_text(release: schema.Release, backends: Sequence[str], neighbour: str) -> str:
    if backends and neighbour:
        return f"is not in the catalog, so it has the facts of {neighbour}"
    if backends:
        text = f"is available for {join_words(backends, joiner='and')}"
        if missing := [backend for backend in release.backend if backend not in backends]:
            text += f"; the catalog has no recipe to build it for {join_words(missing)}"
        return text
    backend = join_words(release.backend, joiner="or")
    return f"is not published as a wheel, and the catalog has no recipe to build it for {backend}"


def _relate_to_requirements(builder: ProblemBuilder, name: str, masks: _ReleaseMasks) -> None:
    grouped: dict[tuple[str, bool], list[schema.Requires]] = {}
    for row in builder.requires.get(name, ()):
        if row.backend in {None, builder.target.backend}:
            on = normalize_name(row.on)
            grouped.setdefault((on, row.when_present or on in LIMITS), []).append(row)
    inferred = {
        f"=={candidate.version}": candidate.inferred_from
        for candidate in builder.candidates(name)
        if candidate.inferred_from
    }
    for (on, when_present), rows in grouped.items():
        if on not in builder.variables:
            continue  # the rows limit a component that is not part of the problem
        if not builder.is_new(name, on, when_present):
            continue
        if on in {"rocm", "gfx", "kernel-driver"} and builder.target.backend != "rocm":
            continue
        subjects = masks.of_rows(rows)
        clauses = [
            Clause(
                subjects[number],
                _allowed_by(row, on, builder.target.gfx),
                _requirement(name, row, inferred.get(row.releases, "")),
                build_only=row.kind == "build",
            )
            for number, row in enumerate(rows)
        ]
        # A partial list excludes nothing. Its clause is there for those who ask what is known.
        clauses += [
            Clause(
                subjects[number],
                any_candidate,
                replace(_requirement(name, row, end="; others may work, too"), is_inferred=True),
                build_only=row.kind == "build",
            )
            for number, row in enumerate(rows)
            if row.partial
        ]
        build = all(row.kind == "build" for row in rows)
        beyond = [
            Clause(
                subjects[number],
                _up_to_newer(builder.variables[name], number, rows, subjects, allowed_by(versions)),
                _requirement(name, row, inferred.get(row.releases, ""), _NOT_JUDGED),
                risk=True,
                build_only=row.kind == "build",
            )
            for number, row in enumerate(rows)
            if (versions := beyond_bounds(row, inferred.get(row.releases, "")))
        ]
        builder.relate(name, on, [*clauses, *beyond], build=build, when_present=when_present)
        if beyond:
            _prefer_inferred_bounds(builder, name, on, [*clauses, *beyond])


def beyond_bounds(row: schema.Requires, neighbour: str = "") -> tuple[str, ...]:
    """Return what a row leaves open although it does not list it; empty if its bounds are more than inferred.

    These are the versions above its bounds, or all if it was copied from an older release (`neighbour`).
    """
    # Code for a GPU is there or not, and a library is new enough or not: nobody may leave these at a risk.
    if row.status != "inferred" or row.on in {"gfx", *LIMITS}:
        return ()
    if neighbour and version_key(row.releases.removeprefix("==")) < version_key(neighbour):
        return (">=0",)
    lowest = tuple(_from_lowest(text) or ">=0" for text in row.versions)
    return () if lowest == row.versions else lowest


def _up_to_newer(
    variable: Variable, number: int, rows: Sequence[schema.Requires], subjects: Sequence[Test], test: Test
) -> Test:
    """Allow what a test does, but no Python above a documented bound of a newer release."""
    if rows[number].on != "python":
        return test
    # If even a newer release is documented to end at Python 3.12, an older one does not reach 3.13.
    versions = [[version_key(one.version) for one in variable.chosen(mask(variable))] for mask in subjects]
    bounds = [
        max(min(clause.high for clause in parse_specifier(text)) for text in row.versions)
        for row, newer in zip(rows, versions, strict=True)
        if row.status == "documented" and min(newer, default=()) > max(versions[number], default=())
    ]
    within = where(lambda python: all(version_key(python.version) < bound for bound in bounds))
    return lambda pythons: test(pythons) & within(pythons)


def _from_lowest(specifier: str) -> str:
    """Return a specifier without its upper bounds.

    Examples
    --------
    >>> _from_lowest(">=4.3,<6"), _from_lowest("==2.12.0+rocm7"), _from_lowest("<3")
    ('>=4.3', '>=2.12.0', '')
    """
    lower = {"==": ">=", "===": ">=", "~=": ">=", ">": ">", ">=": ">="}
    clauses = (clause for clause in parse_specifier(specifier) if clause.operator in lower)
    versions = ((clause, clause.version.removesuffix(".*").partition("+")[0]) for clause in clauses)
    return ",".join(f"{lower[clause.operator]}{version}" for clause, version in versions)


def _relate_to_tags(builder: ProblemBuilder, name: str) -> None:
    """Relate the wheels that the catalog names by their hash to the Pythons and the glibc of their tags.

    Rows that are as strict are the only reason. If wheels for different Pythons need different versions of
    glibc, the newest of these counts.
    """
    variables = builder.variables
    environments = [
        (python.version, Environment(python.version)) for python in variables["python"].candidates
    ]
    clauses: dict[str, list[Clause]] = {"python": [], "glibc": []}
    for number, candidate in enumerate(variables[name].candidates, start=1):
        release = candidate.release
        if release is None or candidate.origin != "published":
            continue
        wheels = [tags_of(one.file) for one in (release.wheel, *release.wheels) if one]
        if not wheels:
            continue
        oldest: dict[str, int] = {}  # by Python, the minor version of the oldest glibc 2
        for python, environment in environments:
            fitting = [glibc for wheel in wheels if (glibc := environment.oldest_glibc(wheel)) is not None]
            if fitting:
                oldest[python] = min(fitting)
        newest = f"2.{max(oldest.values(), default=0)}"
        pythons = join_words(newest_first(oldest)[::-1], most=8, joiner="and") if oldest else "(none)"
        for on, allowed, text in (
            ("python", version_in(oldest), f"is published for Python {pythons} on x86_64"),
            ("glibc", allowed_by([f">={newest}"]), f"requires glibc {newest} or newer"),
        ):
            if builder.allowed(name, number, on) & ~allowed(variables[on]):
                fact = Statement(release, str(candidate), text, note="")
                clauses[on].append(Clause(known_mask(1 << number), allowed, fact))
    for on, of_files in clauses.items():
        builder.relate(name, on, of_files, when_present=on in LIMITS, exact=True)


def _allowed_by(row: schema.Requires, on: str, gfx: Sequence[str]) -> Test:
    if on == "gfx":
        return covers(row.versions, gfx)
    if not row.allows_gfx(gfx):
        return no_candidate
    return libstdcxx_by(row.versions) if on == "libstdcxx" else allowed_by(row.versions)


def _requirement(name: str, row: schema.Requires, neighbour: str = "", end: str = "") -> Statement:
    which = f" {row.releases.removeprefix('==')}" if row.releases else ""
    which += f" ({row.variant})" if row.variant else ""
    return Statement(row, f"{name}{which}", partial(_requirement_text, row, neighbour, end))


def _requirement_text(row: schema.Requires, neighbour: str, end: str) -> str:
    versions = join_words([text.removeprefix("==") for text in row.versions], most=8)
    verb = f"requires {row.on}"
    if row.on == "gfx":
        verb = "can be compiled for" if row.kind == "build" else "contains code for"
    text = f"{verb} {versions}"
    if row.gfx:
        text += f", with code for {', '.join(row.gfx)}"
    text += f" (inferred from {neighbour})" if neighbour and row.status == "inferred" else ""
    return text + end


def _relate_to_build_requirements(builder: ProblemBuilder, name: str, masks: _ReleaseMasks) -> None:
    """Relate built distributions to their ROCm and torch, and to build requirements that no index has."""
    against_torch, in_standard = [], []
    others: dict[str, list[Clause]] = {}
    standards: dict[str, Test] = {}
    for candidate in builder.variables[name].candidates:
        recipe = candidate.recipe
        if candidate.origin != "build" or recipe is None or candidate.release is None:
            continue
        this = masks.of(candidate.release)
        if "torch" in recipe.match_runtime:
            fact = Statement(recipe, str(candidate), "is compiled against torch")
            against_torch.append(Clause(this, any_candidate, fact, build_only=True))
        for required in built_for_builds(builder.catalog, recipe):
            fact = Statement(recipe, str(candidate), f"requires {required.text} to build", note="")
            allowed = allowed_by([str(required.specifier)] if required.specifier else [])
            others.setdefault(required.name, []).append(Clause(this, allowed, fact, build_only=True))
        standard = recipe.cxx_standard
        if standard:
            if standard not in standards:
                standards[standard] = _torch_for_standard(builder, standard)
            text = partial(_standard_text, builder.catalog.torch.values(), standard)
            fact = Statement(recipe, str(candidate), text)
            in_standard.append(Clause(this, standards[standard], fact, build_only=True))
    if builder.target.backend == "rocm":
        _relate_to_rocm_of_builds(builder, name, masks)
    if name != "torch":
        builder.relate(name, "torch", against_torch, build=True)
        builder.relate(name, "torch", in_standard, build=True)
    for other, clauses in others.items():
        builder.relate(name, other, clauses, build=True)


def _relate_to_rocm_of_builds(builder: ProblemBuilder, name: str, masks: _ReleaseMasks) -> None:
    """Relate built distributions to base images with ROCm, or to torch wheels that bring ROCm.

    The latter only if the request names an image without ROCm: it is not known which others have a compiler.
    """
    catalog = builder.catalog
    has_rocm = _images_with_rocm(builder)
    brings_rocm = version_in([row.version for row in catalog.torch.values() if row.pip_rocm])
    named = catalog.image.get(builder.target.base_image or "")
    bare = named.name if named and not named.rocm and name != "torch" else ""
    in_image, with_torch = [], []
    for candidate in builder.variables[name].candidates:
        recipe = candidate.recipe
        if candidate.origin != "build" or recipe is None or candidate.release is None:
            continue
        this = masks.of(candidate.release)
        if bare and "torch" in recipe.match_runtime:
            text = f"is compiled in {bare}, without ROCm, and so with that of torch's pip packages"
            fact = Statement(recipe, str(candidate), text, note="")
            with_torch.append(Clause(this, brings_rocm, fact, build_only=True))
        else:
            fact = Statement(recipe, str(candidate), "is compiled in a base image with ROCm", note="")
            in_image.append(Clause(this, has_rocm, fact, build_only=True))
    builder.relate(name, "base-image", in_image, build=True)
    builder.relate(name, "torch", with_torch, build=True)


def _torch_for_standard(builder: ProblemBuilder, standard: str) -> Test:
    """Return a test that allows each torch that supports a C++ standard, or whose standard is unknown."""
    required = {row.version: int(row.cxx_standard or 0) for row in builder.catalog.torch.values()}
    allowed = where(lambda one: required.get(one.version, 0) <= int(standard))
    return known_mask(allowed(builder.variables["torch"]))


def _standard_text(torches: Iterable[schema.Torch], standard: str) -> str:
    compiling = [_release_of(row) for row in torches if 0 < int(row.cxx_standard or 0) <= int(standard)]
    newest = newest_first(compiling)[0] if compiling else "none"
    return f"is compiled as C++{standard}, which torch supports up to {newest}"


class _ReleaseMasks:
    """The candidates of a package that are releases of the catalog, as masks."""

    def __init__(self, variable: Variable) -> None:
        self._variable = variable
        self._of: dict[tuple[str, str], int] = {}
        self._of_variant: dict[str | None, int] = {None: 0}
        self._built = 0
        for number, candidate in enumerate(variable.candidates, start=1):  # bit 0 means absent
            if candidate.release is not None:
                self._of[candidate.version, candidate.variant] = 1 << number
                self._built |= 0 if candidate.origin == "published" else 1 << number
                for variant in (None, candidate.variant):
                    self._of_variant[variant] = self._of_variant.get(variant, 0) | 1 << number

    def of(self, release: schema.Release) -> Test:
        return known_mask(self._of[release.version, release.variant])

    def of_rows(self, rows: Sequence[schema.Requires]) -> list[Test]:
        """Return for each row about one object a test of releases; a variant's facts replace those of all."""
        masks = [self._applies(row) for row in rows]
        of_variants = {"run": 0, "build": 0}
        for row, mask in zip(rows, masks, strict=True):
            if row.variant and not row.partial:
                of_variants[row.kind] |= mask
        return [
            known_mask(mask if row.variant else mask & ~of_variants[row.kind])
            for row, mask in zip(rows, masks, strict=True)
        ]

    def _applies(self, row: schema.Requires) -> int:
        mask = self._of_variant.get(row.variant, 0)
        if row.kind == "build":
            mask &= self._built
        return mask & self._variable.allowed_by(row.releases) if row.releases else mask
