"""Compile the catalog and a request to a problem: every kind of fact becomes a relation or a demand.

The modules make no choices. Each turns the rows of one kind into variables, demands and relations. The search
does not distinguish between drivers, wheels and images.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

from resolver.compiling.distributions import compile_companions, compile_packages, compile_torch, torch_rows
from resolver.compiling.known_bad import AVOIDED, compile_known_bad
from resolver.compiling.platform import add_default_images, add_libstdcxx, compile_platform
from resolver.compiling.preinstalled import compile_preinstalled
from resolver.compiling.problem import Problem, Relation
from resolver.compiling.problem_builder import ProblemBuilder, reachable
from resolver.compiling.request import compile_request, demand_limits
from resolver.model import UNLISTED
from resolver.requirements import PAIRED_WITH_TORCH, TRITON_NAMES

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Backend
    from resolver.model import Request


def compile_problem(
    catalog: Catalog,
    request: Request,
    *,
    also: Collection[str] = (),
    open_world: bool = False,
    apart: bool = False,
) -> Problem:
    """Compile a request and the catalog to a problem; see `ProblemBuilder`."""
    builder = ProblemBuilder(catalog, request, also=also, open_world=open_world, apart=apart)
    return start_problem(builder).problem()


def start_problem(builder: ProblemBuilder) -> ProblemBuilder:
    """Compile the request of a new builder, and return the builder, for `add_distributions`."""
    builder.share("platform", partial(compile_platform, builder))
    add_default_images(builder)
    if builder.is_required("libstdcxx"):
        builder.share("libstdcxx", partial(add_libstdcxx, builder))
    for name in ("torch", *TRITON_NAMES, *PAIRED_WITH_TORCH):
        builder.candidates(name)
    paired = builder.reachable & {*PAIRED_WITH_TORCH}
    builder.share((len(torch_rows(builder)), paired), partial(compile_torch, builder))
    compile_packages(builder)
    compile_known_bad(builder)
    compile_request(builder)
    compile_preinstalled(builder)
    return builder


def add_distributions(builder: ProblemBuilder, names: Collection[str]) -> None:
    """Add distributions of the catalog and all they require; the rest stays, so a search on it can go on."""
    builder.reach(names)
    compile_companions(builder)
    compile_packages(builder)
    compile_known_bad(builder)
    demand_limits(builder)


def subproblem(problem: Problem, catalog: Catalog, backend: Backend, names: Collection[str]) -> Problem:
    """Return the problem as it would be compiled for only some of its packages.

    A table solves the same request for many packages, so their problem is compiled only once. Torch
    wheels of another backend may stay among the candidates; no solution contains them.
    """
    reached = reachable(catalog, backend, names)
    foreign = {name for name in problem.variables if name in {*catalog.package, *PAIRED_WITH_TORCH}} - reached
    required_by_torch = {
        relation.object.name
        for relation in problem.relations
        if relation.subject.name == "torch" and not (relation.when_present or relation.forbids)
    }
    absent = foreign - required_by_torch
    absent |= {f"{UNLISTED}{name}" for name in absent}
    absent |= {
        relation.object.name
        for relation in problem.relations
        if relation.subject.name in absent and relation.object.name.startswith(AVOIDED)
    }

    def is_kept(relation: Relation) -> bool:
        ends = {relation.subject.name, relation.object.name}
        requirement_of_foreign = relation.subject.name in foreign and not relation.forbids
        return not (requirement_of_foreign or ends & absent)

    return Problem(
        {name: variable for name, variable in problem.variables.items() if name not in absent},
        [demand for demand in problem.demands if demand.variable.name not in absent],
        [relation for relation in problem.relations if is_kept(relation)],
        problem.preferences,
        frozenset(names),
    )
