"""Extension packages: their releases, what they need, and what building them needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.compiling.draft import Clause, Masked, allowed_by, any_candidate, covers, version_in
from resolver.facts.catalog import recipe_for
from resolver.model import Candidate, Fact
from resolver.problem import Saying
from resolver.requirements import normalize_name
from resolver.versions import join_words, newest_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resolver.compiling.draft import Draft, Test
    from resolver.facts import schema
    from resolver.problem import Variable


def compile_packages(draft: Draft) -> None:
    """Add the packages that the request can bring in."""
    names = [name for name in draft.catalog.package if name in draft.reachable]
    for name in names:
        if name not in draft.variables:
            draft.variable(name, candidates_of(draft, name))
    for name in names:
        masks = _Masks(draft.variables[name])
        _backends(draft, name, masks)
        _requirements(draft, name, masks)
        _building(draft, name, masks)


def candidates_of(draft: Draft, name: str) -> list[Candidate]:
    """Give a candidate for every release row of a package."""
    return [_candidate(draft, release) for release in draft.catalog.releases_of(name)]


def _candidate(draft: Draft, release: schema.Release) -> Candidate:
    return Candidate(
        release.package,
        release.version,
        "distribution",
        "published" if release.wheel or release.pypi else "build",
        Fact.of(release, _origin_text(release)),
        variant=release.variant,
        release=release,
        recipe=recipe_for(draft.catalog, release, draft.target.backend),
    )


def _origin_text(release: schema.Release) -> str:
    name = f"{release.package} {release.version}"
    if release.pypi:
        return f"{name} is published on PyPI"
    if release.wheel:
        return f"{name} is published as {release.wheel.file}"
    if release.sdist:
        return f"{name} is the sdist {release.sdist.file}"
    if release.git:
        return f"{name} is {release.git.url} at {release.git.commit[:12]}"
    return name


def _backends(draft: Draft, name: str, masks: _Masks) -> None:
    clauses = []
    for release in draft.catalog.releases_of(name):
        ready = release.wheel or release.pypi
        possible = release.backend
        if not ready:
            possible = tuple(one for one in possible if recipe_for(draft.catalog, release, one))
        saying = Saying(release.status, _of_backends, (release, possible))
        clauses.append(Clause(masks.of(release), version_in(possible), saying, to_build=not ready))
    draft.relate(name, "backend", clauses)


def _of_backends(release: schema.Release, possible: Sequence[str]) -> Fact:
    text = f"{release.package} {release.version} "
    if possible:
        text += f"can be had for {join_words(possible, joiner='and')}"
    else:
        text += f"is no wheel, and there is no recipe to build it for {join_words(release.backend)}"
    return Fact.of(release, text, note="")


def _requirements(draft: Draft, name: str, masks: _Masks) -> None:
    grouped: dict[tuple[str, bool], list[schema.Requires]] = {}
    for row in draft.requires.get(name, ()):
        if row.backend in {None, draft.target.backend}:
            grouped.setdefault((normalize_name(row.on), row.when_present), []).append(row)
    for (on, when_present), rows in grouped.items():
        if on not in draft.variables:
            continue  # a constraint on what nothing brings in
        if on in {"rocm", "gfx"} and draft.target.backend != "rocm":
            continue
        clauses = [
            Clause(
                masks.spoken_of(row),
                _permits(draft, on, row),
                Saying(row.status, _fact, (name, row)),
                to_build=row.kind == "build",
            )
            for row in rows
        ]
        build = any(row.kind == "build" for row in rows)
        draft.relate(name, on, clauses, build=build, when_present=when_present)


def _permits(draft: Draft, on: str, row: schema.Requires) -> Test:
    if on == "gfx":
        return covers(row.versions, draft.target.gfx)
    return allowed_by(row.versions)


def _fact(name: str, row: schema.Requires) -> Fact:
    which = f" {row.releases.removeprefix('==')}" if row.releases else ""
    which += f" ({row.variant})" if row.variant else ""
    versions = join_words([text.removeprefix("==") for text in row.versions], most=8)
    verb = f"needs {row.on}"
    if row.on == "gfx":
        verb = "can be compiled for" if row.kind == "build" else "holds code for"
    return Fact.of(row, f"{name}{which} {verb} {versions}")


def _building(draft: Draft, name: str, masks: _Masks) -> None:
    """Say what building needs: a base image for ROCm, and torch where it is compiled against it."""
    images = draft.catalog.image

    def has_rocm(image: Candidate) -> bool:
        return bool(images[image.version].rocm)

    in_image, against_torch, in_standard = [], [], []
    standards: dict[str, tuple[Test, str]] = {}
    for one in draft.variables[name].candidates:
        recipe = one.recipe
        if one.origin != "build" or recipe is None or one.release is None:
            continue
        this = masks.of(one.release)
        fact = Fact.of(recipe, f"{one} is compiled in a base image with ROCm", note="")
        in_image.append(Clause(this, has_rocm, fact, to_build=True))
        if "torch" in recipe.match_runtime:
            fact = Fact.of(recipe, f"{one} is compiled against torch")
            against_torch.append(Clause(this, any_candidate, fact, to_build=True))
        if recipe.cxx_standard:
            if recipe.cxx_standard not in standards:
                standards[recipe.cxx_standard] = _headers_allow(draft, recipe.cxx_standard)
            permits, newest = standards[recipe.cxx_standard]
            text = (
                f"{one} is compiled as C++{recipe.cxx_standard}, as the headers of torch are up to {newest}"
            )
            in_standard.append(Clause(this, permits, Fact.of(recipe, text), to_build=True))
    if draft.target.backend == "rocm":
        draft.relate(name, "base-image", in_image, build=True)
    if name != "torch":
        draft.relate(name, "torch", against_torch, build=True)
        draft.relate(name, "torch", in_standard, build=True)


def _headers_allow(draft: Draft, standard: str) -> tuple[Test, str]:
    """Permit the torch whose headers compile as a C++ standard, and those of which it is not known.

    Also gives the newest release of which it is known.
    """
    needed = {row.version: int(row.cxx_standard) for row in draft.catalog.torch.values() if row.cxx_standard}
    compiling = [version.partition("+")[0] for version, one in needed.items() if one <= int(standard)]
    newest = newest_first(compiling)[0] if compiling else "none"
    return (lambda one: needed.get(one.version, 0) <= int(standard)), newest


class _Masks:
    """The candidates of a package that are releases of it, as masks."""

    def __init__(self, variable: Variable) -> None:
        self._variable = variable
        self._of: dict[tuple[str, str], int] = {}
        self._of_variant: dict[str | None, int] = {None: 0}
        for number, one in enumerate(variable.candidates, start=1):
            if one.release is not None:
                self._of[one.version, one.variant] = 1 << number
                for variant in (None, one.variant):
                    self._of_variant[variant] = self._of_variant.get(variant, 0) | 1 << number

    def of(self, release: schema.Release) -> Masked:
        """Permit one release."""
        return Masked(self._of[release.version, release.variant])

    def spoken_of(self, row: schema.Requires) -> Masked:
        """Permit the releases of which a row speaks, as `applies` says it."""
        mask = self._of_variant.get(row.variant, 0)
        return Masked(mask & self._variable.allowed_by(row.releases) if row.releases else mask)
