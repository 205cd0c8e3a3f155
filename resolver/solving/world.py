"""The platform and the catalog of one request, and the search on them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.compiling import add_distributions
from resolver.compiling.clauses import LIMITS
from resolver.compiling.distributions import decided_first
from resolver.compiling.problem import ABSENT, ALWAYS
from resolver.facts.schema import PLATFORM
from resolver.providers.index import IndexProvider, by_name
from resolver.providers.installed import installed_versions, limits_of
from resolver.solving.search import is_required
from resolver.solving.session import Session
from resolver.solving.targets import Targets
from resolver.solving.triton import Triton

if TYPE_CHECKING:
    from resolver.compiling.problem_builder import ProblemBuilder
    from resolver.environment import Environment
    from resolver.facts.schema import Requires
    from resolver.indexes import PackageIndexes
    from resolver.model import Candidate, Request, Requirement
    from resolver.solving.session import Rank, Solution
    from resolver.solving.states import Terms

STRICT, LENIENT = 0b010, 0b100
"""The values of a selector: an exclusion applies, or not."""

_PATCH = r"\d+\.\d+\.\d+"


class World:
    """What the parts of the solver share: the problem, the search, and the providers.

    `bound` has the names that are resolved from the catalog only, whether or not the problem has them,
    `asked`, `limits` and `overrides` by name the requirements, constraints and overrides of the request, and
    `installed` the preinstalled versions by name.
    """

    def __init__(self, builder: ProblemBuilder, indexes: PackageIndexes) -> None:
        self.builder = builder
        self.problem = builder.problem()
        self.request: Request = builder.request
        self.catalog = builder.catalog
        self.session = Session(self.problem)
        self.search = self.session.search
        self.bound = builder.closed
        self._environments: dict[tuple[int, str, bool], Environment] = {}
        self._rows: dict[str, list[Requires]] = {}
        self._demands = 0
        self.most_wheels = 0
        """The Python that was chosen before newer ones because more requested projects have wheels for it."""
        self.state_demands()
        python, glibc = (self.problem.variables[name] for name in ("python", "glibc"))
        allowed = self.demanded("python")
        self.targets = Targets(python, glibc, allowed, _patch_release(self.request))
        self.index = IndexProvider(indexes, self.catalog, self.request, self.targets.applying)
        self.triton = Triton(self.catalog, self.request, self.problem, self.session.number, self.targets)
        self.installed = installed_versions(self.catalog, self.request)
        self.asked = by_name(self.request.requirements)
        self.limits = by_name(limits_of(self.catalog, self.request))
        self.overrides = by_name(self.request.overrides)
        for terms, link in self.triton.limits_to_torch():
            self.search.add(terms, link)

    def demanded(self, name: str) -> int:
        """Return the candidates of a component that the demands allow."""
        allowed = self.problem.variables[name].present
        for demand in self.problem.demands:
            allowed &= demand.mask if demand.variable.name == name else -1
        return allowed

    def state_demands(self) -> None:
        """Add what the problem has gained: variables, relations and demands."""
        self.session.extend()
        # As statements, not as assumptions: then the reasons of a contradiction name them.
        for demand in self.problem.demands[self._demands :]:
            number = self.session.number[demand.variable.name]
            self.search.add({number: demand.variable.everything & ~demand.mask}, demand)
        self._demands = len(self.problem.demands)

    def add_selector(self, rank: Rank) -> int:
        """Add a variable that decides whether an exclusion applies: first it does, then not."""
        # STRICT has the lower bit, so it is the preferred value.
        number = self.search.add_variable(ABSENT | STRICT | LENIENT)
        self.session.rank[number] = rank
        self.search.add({number: ABSENT}, ALWAYS)
        return number

    @property
    def solution(self) -> Solution:
        """The values of the problem's variables."""
        domains = self.search.domains
        pairs = ((name, domains[number]) for name, number in self.session.number.items())
        return {name: mask.bit_length() - 1 for name, mask in pairs if is_required(mask)}

    def environment(self, *, any_patch: bool = False) -> Environment:
        """Return the chosen Python with its glibc, of which all patch releases or any may count."""
        solution = self.solution
        key = solution["python"], self.problem.version(solution, "glibc"), any_patch
        environment = self._environments.get(key)
        if environment is None:
            environment = self.targets.environment(*key[:2], any_patch=any_patch)
            self._environments[key] = environment
        return environment

    def candidate(self, name: str) -> Candidate | None:
        """Return the chosen candidate of a component of the problem."""
        number = self.session.number.get(name)
        domain = self.search.domains[number] if number is not None else ABSENT
        if domain & ABSENT or domain & (domain - 1):
            return None
        return self.problem.variables[name].candidate(domain.bit_length() - 1)

    def when(self, pythons: int) -> Terms:
        """Return the term for Pythons; none if these are all."""
        return {} if pythons == self.targets.all else {self.session.number["python"]: pythons}

    def torches(self) -> Iterator[Candidate]:
        """Yield the candidates of torch that are left: first those of now, then those of any Python."""
        torch = self.problem.variables["torch"]
        yield from torch.chosen(self.search.domains[self.session.number["torch"]])
        yield from torch.chosen(self.demanded("torch"))

    def stated(self, name: str) -> Iterator[Requirement]:
        """Yield everything that the request says about a name."""
        for stated in (self.asked, self.limits, self.overrides):
            yield from stated.get(name, ())

    def rows_of(self, name: str) -> Sequence[Requires]:
        """Return the catalog's run requirements of a distribution for this backend."""
        if name not in self._rows:
            target = self.request.target
            by_key: dict[tuple[object, ...], Requires] = {}
            for row in () if self.is_for_cpu(name) else self.catalog.requires_of(name):
                if row.kind == "run" and row.backend in {None, target.backend}:
                    versions = row.versions if row.allows_gfx(target.gfx) else ()
                    earlier = by_key.get(row.key())
                    if earlier is not None or versions != row.versions:
                        both = (*earlier.versions, *versions) if earlier else versions
                        row = replace(row, versions=both)  # noqa: PLW2901  each of them allows more
                    by_key[row.key()] = row
            self._rows[name] = list(by_key.values())
        return self._rows[name]

    def images_for(self, name: str) -> int:
        """Return the base images that a project which uses the system's ROCm requires; 0 if it requires none.

        If the target offers no image with ROCm, the ROCm is that of the machine.
        """
        package = self.catalog.package.get(name)
        if package is None or not package.system_rocm or self.request.target.backend != "rocm":
            return 0
        if self._has_pip_rocm:
            return 0
        with_rocm = (row.name for row in self.catalog.image.values() if row.rocm)
        images = self.problem.variables["base-image"].of_versions(with_rocm)
        return images if images & self.demanded("base-image") else 0

    @cached_property
    def _has_pip_rocm(self) -> bool:
        """Whether the request names ROCm's pip packages, or a torch that requires them."""
        versions = (row.version for row in self.catalog.torch.values() if row.pip_rocm)
        others = self.demanded("torch") & ~self.problem.variables["torch"].of_versions(versions)
        is_named = any(map(is_of_pip, self.asked.get("rocm", ())))
        return is_named or ("torch" in self.asked and not others)

    def is_for_cpu(self, name: str) -> bool:
        """Return whether the request asks for a distribution on the CPU, by its extra (``jax[cpu]``)."""
        return any("cpu" in requirement.extras for requirement in self.asked.get(name, ()))

    def way_to_use(self, name: str) -> int:
        """Return the variable that decides whether the inferred bounds of a distribution hold."""
        component = decided_first(self.builder, name)
        self.state_demands()
        return self.session.number[component]

    def add_closed(self, names: Collection[str]) -> None:
        """Add the distributions of the catalog among some names to the problem."""
        late = {name for name in names if name in self.bound and name not in self.session.number}
        if late - {*PLATFORM}:
            add_distributions(self.builder, late)
            self.state_demands()

    def candidate_at(self, number: int, mask: int) -> Candidate | None:
        """Return the candidate of a variable of the problem; None for any other variable."""
        name = self.session.names.get(number)
        return self.problem.variables[name].candidate(mask.bit_length() - 1) if name else None

    def extras_of(self, name: str) -> tuple[str, ...]:
        """Return the extras that the request and the target require of a distribution, sorted."""
        variants = {candidate.variant for candidate in self.problem.variables[name].candidates}
        package = self.catalog.package.get(name)
        variants |= {package.default_variant} if package else set()
        extras = {
            extra
            for requirement in self.asked.get(name, ())
            if not variants & {*requirement.extras} and self.targets.applying(requirement.marker)
            for extra in requirement.extras
        }
        torch = self.candidate("torch") if name == "torch" else None
        row = self.catalog.torch.get(torch.version) if torch else None
        extras |= {*row.device_extras(self.request.target.gfx)} if row else set()
        return tuple(sorted(extras))


def is_of_pip(requirement: Requirement) -> bool:
    """Return whether a requirement means ROCm's pip packages (``rocm[libraries]``), not only its release."""
    return requirement.name == "rocm" and bool(requirement.extras)


class Part:
    """A part of the solver, with short names for what all parts share."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.problem = world.problem
        self.session = world.session
        self.search = world.search
        self.index = world.index
        self.targets = world.targets
        self.triton = world.triton
        self.request = world.request
        self.catalog = world.catalog


def is_limit(row: Requires) -> bool:
    """Return whether a row only limits its object, without requiring it."""
    return row.when_present or row.on in LIMITS


def _patch_release(request: Request) -> str:
    clauses = (
        clause
        for requirement in request.requirements
        if requirement.name == "python" and requirement.specifier is not None
        for clause in requirement.specifier
    )
    versions = (one.version.removesuffix(".*") for one in clauses if one.operator == "==")
    return next((version for version in versions if re.fullmatch(_PATCH, version)), "")
