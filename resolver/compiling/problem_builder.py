"""The builder of a problem, and the functions that read its target and request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property, reduce
from itertools import islice, product
from operator import and_
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from resolver.compiling.clauses import REQUEST, Clause, known_mask, no_candidate
from resolver.compiling.problem import (
    ABSENT,
    Demand,
    Problem,
    Relation,
    RelationRow,
    Statement,
    Variable,
)
from resolver.errors import UsageError, closest_names, did_you_mean
from resolver.facts.catalog import closed_names, within
from resolver.model import IMAGE, Fact
from resolver.providers.catalog import candidates_of
from resolver.providers.installed import InstalledVersion, installed_names, merged, source_of
from resolver.requirements import (
    normalize_name,
    parse_requirement,
    required_name,
)
from resolver.versions import satisfies, shorten, sort_key

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

    from resolver.compiling.clauses import Test
    from resolver.facts import schema
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Backend
    from resolver.model import Candidate, Request, Requirement, Target
    from resolver.providers import Provider


class ProblemBuilder:
    """Variables, demands and relations of a problem.

    `also` has distributions of the catalog that distributions outside it may require; `keep` has the version
    and variant (`Candidate.key`) to prefer, by component; `providers` have more candidates. With
    `open_world`, names that are not in the catalog are resolved from indexes, instead of being an error. With
    `apart`, each requirement is a request of its own, with torch, as in a table.

    Attributes
    ----------
    reachable
        Names of the distributions that can become part of a solution: the requested distributions, their
        requirements, and so on. Only these are compiled.
    driver
        Major.minor line of the target's kernel driver, or None if it is not known.
    window
        The site's driver window, or None if the request names the driver.
    advice
        The site's advice, by component; empty if the request does not follow its advice.
    widened
        Whether a provider besides the catalog has had candidates of a distribution.
    """

    def __init__(
        self,
        catalog: Catalog,
        request: Request,
        *,
        also: Iterable[str] = (),
        keep: Mapping[str, str] | None = None,
        open_world: bool = False,
        apart: bool = False,
        providers: Sequence[Provider] = (),
    ) -> None:
        self._providers = providers
        self._candidates: dict[str, list[Candidate]] = {}
        self.catalog = catalog
        self.request = request
        self.target = request.target
        self.open_world, self.apart = open_world, apart
        self.widened = False
        self._keep = keep or {}
        check_target(catalog, self.target)
        self.window = window_of(catalog, request)
        self.driver = self.target.driver or (self.window.driver if self.window else None)
        self.advice = advice_for(catalog, request)
        requested = [requirement.name for requirement in request.requirements]
        self.reachable = reachable(
            catalog, self.target.backend, [*requested, *installed_names(catalog, request), *also]
        )
        self.requires: dict[str, list[schema.Requires]] = {}
        self._add_requires(self.reachable)
        self._compiled: dict[object, bool] = {}
        self.variables: dict[str, Variable] = {}
        self._demands: list[Demand] = []
        self._relations: list[Relation] = []
        self.preferences: dict[str, tuple[str, dict[int, int]]] = {}
        self.default_images = 0
        self._installed: dict[str, list[InstalledVersion]] = {}
        bare = replace(request, requirements=(), constraints=(), overrides=())
        shared = catalog.parts_for(bare, open_world, *self._keep.items())
        self._shared = shared if request.preinstalled is None else None

    def share(self, key: object, compile_part: Callable[[], None]) -> None:
        """Compile a part of the problem, or take over what an earlier request for the target compiled of it.

        `key` is what the part depends on besides the catalog and the target. A variable is a key, too.
        """
        if self._shared is None or self.widened:
            compile_part()
            return
        tables: tuple[dict[Any, Any], ...] = self.variables, self.preferences, self._compiled
        lists: tuple[list[Any], ...] = self._demands, self._relations
        if key not in self._shared:
            rows = [*(table.items() for table in tables), *lists]
            sizes = [len(one) for one in rows]
            compile_part()
            # Tables and lists keep their order, so what was added is at their ends.
            self._shared[key] = [[*islice(one, size, None)] for one, size in zip(rows, sizes, strict=True)]
            return
        add = [*(table.update for table in tables), *(one.extend for one in lists)]
        for add_to, part in zip(add, self._shared[key], strict=True):
            add_to(part)

    def reach(self, names: Iterable[str]) -> None:
        """Make more distributions reachable, with their requirements."""
        reached = reachable(self.catalog, self.target.backend, [*self.reachable, *names])
        self._add_requires(reached - self.reachable)
        self.reachable = reached

    def _add_requires(self, names: Collection[str]) -> None:
        for name in names:
            self.requires[name] = [*self.catalog.requires_of(name)]
        for name, provider in product(sorted(names), self._providers):
            for candidate in provider.candidates(name):
                self.requires[name] += provider.requirements(candidate)

    def candidates(self, name: str) -> list[Candidate]:
        """Return the candidates that the providers have for a distribution."""
        known = self._candidates.get(name)
        if known is None:
            others = [one for provider in self._providers for one in provider.candidates(name)]
            self.widened |= bool(others)
            known = self._candidates[name] = [*candidates_of(self.catalog, self.request, name), *others]
        return known

    def is_new(self, *key: object) -> bool:
        """Return whether a part of the problem is compiled for the first time."""
        is_new = key not in self._compiled
        self._compiled[key] = True
        return is_new

    @cached_property
    def closed(self) -> frozenset[str]:
        """The names that are resolved from the catalog only, whether or not the problem has them."""
        return closed_names(self.catalog, self.target.backend)

    def is_closed(self, name: str) -> bool:
        """Return whether a name is resolved from the catalog only; without indexes, all names are."""
        return not self.open_world or name in self.variables or name in self.closed

    def is_required(self, name: str) -> bool:
        """Return whether one of the reachable distributions has a fact about a component."""
        return any(row.on == name for rows in self.requires.values() for row in rows)

    def installed(self, name: str) -> list[InstalledVersion]:
        """Return the installed versions of a component."""
        return self._installed.get(name, [])

    def problem(self) -> Problem:
        """Return the finished problem."""
        requested = frozenset(requirement.name for requirement in self.request.requirements)
        return Problem(
            self.variables, self._demands, self._relations, self.preferences, requested, self.default_images
        )

    def add_variable(
        self,
        name: str,
        candidates: Iterable[Candidate],
        *,
        rank: Callable[[Candidate], SupportsRichComparison] = lambda candidate: sort_key(candidate.version),
        last: Callable[[Candidate], int] = lambda _: 0,
    ) -> None:
        """Add a component, and sort its candidates in the order of preference.

        The highest rank comes first, or the lowest if the request prefers the oldest. Within a rank, the
        candidate without a variant comes first, then what a proven set of the site has, then the newest by
        day: the commits of a branch have one version. Versions that the site advises come before the others.
        `last` takes precedence over the advice: the lowest value comes first. The version to keep comes
        before all others.
        """
        # Sorting is stable: the weakest criterion is the first, and each later one is stronger.
        ordered = sorted(candidates, key=lambda candidate: candidate.variant)
        if ordered and ordered[-1].variant:
            day, sets = self.request.target.date, self.catalog.proven_at(self.request.target.site)
            proven = {row.picks.get(name) for row in sets if row.date is None or row.date <= day}
            ordered.sort(key=lambda one: (one.variant != "", one.key not in proven, -_day(one)))
        ordered.sort(key=rank, reverse=self.request.prefer != "oldest")
        if advice := self.advice.get(name):
            ordered.sort(key=lambda candidate: not is_advised(advice, candidate.version))
        ordered.sort(key=last)
        if kept := self._keep.get(name):
            ordered.sort(key=lambda candidate: candidate.key != kept)
        if self.request.preinstalled is not None:
            ordered, self._installed[name] = merged(self.catalog, self.request, name, ordered)
        self.variables[name] = Variable(name, ordered)

    def relate(
        self,
        subject: str,
        target: str,
        clauses: Sequence[Clause],
        *,
        build: bool = False,
        when_present: bool = False,
        forbids: bool = False,
        exact: bool = False,
    ) -> None:
        """Add a relation between two components.

        Facts about a version also apply to the installed versions that match it, unless the relation is
        `exact`.
        """
        variable, other = self.variables[subject], self.variables[target]
        rows: list[RelationRow] = []
        runtime = 0
        for clause in clauses:
            subjects = clause.subjects(variable)
            if not subjects:
                continue
            runtime |= 0 if clause.build_only else 1 << len(rows)
            rows.append(RelationRow(subjects, clause.objects(other), clause.text, clause.risk))
        if rows and self.request.preinstalled is not None and not exact:
            ends = ((name, self.installed(name)) for name in (subject, target))
            _extend_to_installed(rows, runtime, *ends, request=self.request, forbids=forbids)
        if rows:
            self._relations.append(
                Relation(
                    variable,
                    other,
                    "build" if build else "run",
                    rows,
                    when_present=when_present,
                    forbids=forbids,
                )
            )

    def allowed(self, subject: str, number: int, target: str) -> int:
        """Return the candidates of a component that all relations so far allow with one of another's."""
        tables = (
            relation.table
            for relation in self._relations
            if (relation.subject.name, relation.object.name) == (subject, target)
        )
        return reduce(and_, (table[number] for table in tables), self.variables[target].present)

    def demand(
        self,
        name: str,
        allowed: Test,
        text: str,
        source: str = "",
        *,
        optional: bool = False,
        **more: Any,  # noqa: ANN401
    ) -> None:
        """Add a demand with other fields of the `Demand`: of the request, else a fact, which has a source."""
        mask = allowed(self.variables[name]) | (ABSENT if optional else 0)
        kind: Literal["request", "fact"] = "fact" if source else "request"
        self._demands.append(Demand(self.variables[name], mask, text, kind, source or REQUEST, **more))

    def forbid(self, name: str, mask: int, fact: Fact, *, installed: bool = True) -> None:
        """Add the demand of a fact that excludes some candidates, installed ones only if `installed`."""
        for version in self.installed(name):
            mask = mask | version.bit if installed and mask & version.requires_as else mask & ~version.bit
        allowed = self.variables[name].everything & ~mask
        self._demands.append(Demand(self.variables[name], allowed, fact.text, "fact", fact.source))


def exclude_later_releases(builder: ProblemBuilder, name: str) -> None:
    """Exclude catalog releases later than the target's day; for those of an index, upload times decide."""
    catalog, day, clauses = builder.catalog, builder.target.date, []
    tables: dict[str, Mapping[str, schema.Torch | schema.Rocm | schema.Python]] = {
        "torch": catalog.torch,
        "rocm": catalog.rocm,
        "python": catalog.python,
    }
    for number, candidate in enumerate(builder.variables[name].candidates, start=1):
        row = candidate.release or tables.get(name, {}).get(candidate.version)
        if row is None or not row.from_file or candidate.inferred_from:
            continue
        if candidate.origin == "preinstalled":
            continue
        if row.released is not None and row.released > day:
            text = f"was released on {row.released}, after {day}"
        elif row.released is None and builder.request.dated:
            text = f"has no known release date, so it may be newer than {day}"
        else:
            continue
        fact = Statement(row, str(candidate), text, note="")
        clauses.append(Clause(known_mask(1 << number), no_candidate, fact))
    builder.relate(name, "backend", clauses, exact=True)


def built_for_builds(catalog: Catalog, recipe: schema.Recipe) -> Iterator[Requirement]:
    """Yield the build requirements of a recipe that are built by recipes, too, because no index has them."""
    for text in (*recipe.declared, *recipe.undeclared):
        name = required_name(text)
        if name == "torch" or not catalog.recipes_of(name):
            continue
        releases = [row for row in catalog.releases_of(name) if recipe.backend in row.backend]
        if any(row.is_published for row in releases):
            continue
        if any(catalog.recipe_for(row, recipe.backend) for row in releases):
            requirement = parse_requirement(text)
            if not requirement.marker:
                yield requirement


def reachable(catalog: Catalog, backend: Backend, names: Iterable[str]) -> frozenset[str]:
    """Return torch, the given distributions, and all their direct and indirect requirements."""
    reached: set[str] = set()
    left = ["torch", *names]
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            rows = (row for row in catalog.requires_of(name) if not row.when_present)
            left += [normalize_name(row.on) for row in rows if row.backend in {None, backend}]
            recipes = (recipe for recipe in catalog.recipes_of(name) if recipe.backend == backend)
            left += [row.name for recipe in recipes for row in built_for_builds(catalog, recipe)]
    return frozenset(reached)


def check_target(catalog: Catalog, target: Target) -> None:
    """Raise a UsageError if the target names something that is not in the catalog."""
    check_architectures(catalog, target.gfx)
    driver, image = target.driver, target.base_image
    if driver is not None and driver not in catalog.driver:
        msg = f"The catalog has no kernel driver {shorten(driver)!r}."
        raise UsageError(msg, hint=did_you_mean(driver, catalog.driver))
    if image is not None and image not in catalog.image:
        hint = did_you_mean(image, catalog.image)
        images = [row for row in catalog.site_image.values() if row.site == target.site]
        images.sort(key=lambda row: str(row.since or ""), reverse=True)
        if images and not closest_names(image, catalog.image):
            listed = ", ".join(row.image for row in images[:3])
            hint = f"{target.site} has {listed} and others. Or name a file on this machine."
        raise UsageError(f"The catalog has no base image {shorten(image)!r}.", hint=hint)


def check_architectures(catalog: Catalog, names: Iterable[str]) -> None:
    """Raise a UsageError if the catalog does not have a GPU architecture."""
    for name in names:
        if name not in catalog.gfx:
            msg = f"The catalog has no GPU architecture {shorten(name)!r}."
            meant = architecture_of(catalog, name)
            raise UsageError(msg, hint=f"Did you mean {meant}?" if meant else did_you_mean(name, catalog.gfx))


def architecture_of(catalog: Catalog, typed: str) -> str:
    """Return the architecture of a product, such as ``mi250x``, or of a name without ``gfx``; else empty."""
    word = "".join(filter(str.isalnum, typed.lower()))
    products = {product.lower(): row.target for row in catalog.gfx.values() for product in row.products}
    begun = {target for product, target in products.items() if product.startswith(word)}  # mi300
    if word in products or len(begun) == 1:
        return products.get(word) or begun.pop()
    return next((one for one in (f"gfx{word}", word) if one in catalog.gfx), "")


def advice_for(catalog: Catalog, request: Request) -> dict[str, schema.SiteAdvice]:
    """Return the site's advice for the target's day, by component; empty if the request ignores it."""
    target = request.target
    if request.prefer != "advised":
        return {}
    return {
        row.on: row
        for row in catalog.site_advice.values()
        if row.site == target.site and within(row, target.date)
    }


def _day(candidate: Candidate) -> int:
    """Return the day on which a release could first be had, as a number; 0 if it is not known."""
    released = candidate.release and candidate.release.released
    return released.toordinal() if released else 0


def is_advised(advice: schema.SiteAdvice, version: str) -> bool:
    """Return whether a site advises a version."""
    matches = fnmatchcase if advice.on == "base-image" else satisfies
    return any(matches(version, text) for text in advice.versions)


def window_of(catalog: Catalog, request: Request) -> schema.Window | None:
    """Return the site's driver window on the day; None without a GPU driver, or if the request names it."""
    target = request.target
    if target.driver:
        return None
    windows = catalog.windows_of(target.site) if target.backend == "rocm" else []
    for window in windows:
        if within(window, target.date):
            return window
    if windows:
        msg = f"The kernel driver of {target.site} on {target.date} is not known."
        known = f"{windows[0].since} to {windows[-1].until or 'today'}"
        raise UsageError(
            msg, hint=f"Known days: {known}. Use one of these, or name the driver with --driver."
        )
    return None


def _extend_to_installed(
    rows: list[RelationRow],
    runtime: int,
    subject: tuple[str, list[InstalledVersion]],
    target: tuple[str, list[InstalledVersion]],
    *,
    request: Request,
    forbids: bool,
) -> None:
    """Extend the rows of a relation to the installed versions that match the versions in them.

    `subject` and `target` are names of components with their installed versions. `rows` are replaced in
    place. `runtime` has a bit for each row that applies at run time, and not only to the build. A relation
    that `forbids` only excludes combinations.
    """
    (name, subjects), (other_name, objects) = subject, target
    mentioned = 0
    for number, row in enumerate(rows):
        mentioned |= row.subjects if runtime >> number & 1 else 0
    # The installed subjects whose counterparts in the catalog all have rows, with what these allow.
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
    # What is installed together is compatible, so a row allows it although the catalog does not.
    together = sum(installed.bit for installed in objects)
    for bit, row_objects in allowed.items():
        if together & ~row_objects and not forbids:
            text = f"the base image contains {name} and {other_name} in versions that the catalog excludes"
            source, listed = "the catalog's rows of base images", request.preinstalled
            if listed and listed.source != IMAGE:
                source = source_of(listed)
            fact = Fact(text, "observed", source)
            rows.append(RelationRow(bit, together & ~row_objects, fact, contradicts=True))
