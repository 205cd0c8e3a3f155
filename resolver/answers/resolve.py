"""Resolve a request to a resolution or a conflict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.answers.network import with_network_plugin
from resolver.answers.resolution import FROM_PROVEN_SET, preferred_solution, resolution_of
from resolver.compiling import compile_problem, start_problem
from resolver.compiling.names import for_rocm, named_by, wheels_for_rocm
from resolver.compiling.problem_builder import advice_for, is_advised, reachable
from resolver.errors import MatrixError
from resolver.facts.catalog import closed_names, is_elsewhere
from resolver.model import Notice, Resolution
from resolver.providers.inferred import InferredProvider
from resolver.providers.labelled import LabelledProvider
from resolver.reporter import SILENT
from resolver.requirements import PAIRED_WITH_TORCH, parse_requirement
from resolver.solving.session import Refuted, Session
from resolver.versions import join_words

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog
    from resolver.indexes import PackageIndexes
    from resolver.model import Conflict, Request
    from resolver.providers import Provider
    from resolver.reporter import Reporter

_LONGEST = 900.0
"""Seconds after which a search gives up, because the releases or the index of a stranger may have no end.

A first search for 500 distributions takes less than a minute on a fast network."""


def resolve(
    catalog: Catalog,
    request: Request,
    indexes: PackageIndexes | None = None,
    *,
    keep: Mapping[str, str] | None = None,
    reporter: Reporter = SILENT,
) -> Resolution | Conflict:
    """Return a resolution with a version of every component that the request needs, or the conflict.

    The result is deterministic: it depends only on the arguments and the state of the indexes.

    Parameters
    ----------
    indexes
        Package indexes for distributions outside the catalog, and for releases that the catalog does not list
        if no listed release can be chosen. Without indexes, only the platform and the catalog are resolved.
    keep
        Version and variant (`Distribution.key`) to prefer, by name, such as from an earlier resolution.
    reporter
        Receives a conflict as soon as it is known; the search for suggestions then takes up to two seconds.

    Raises
    ------
    UsageError
        The request names something that is neither in the catalog nor on an index.
    EnvironmentLacksError
        An index of the user cannot be reached. (If an index that only the catalog names cannot be reached,
        the resolution leaves open what its metadata would require.)
    SourceError
        A page of an index is broken.
    TooLargeError
        The search exceeded its limit.
    """
    stated = request.requirements
    request, notes = for_rocm(catalog, request)
    answer = solve(catalog, request, indexes, keep)
    if request.target.backend == "rocm":
        answer = _with_wheels(catalog, request, answer, indexes, notes)
    if isinstance(answer, Resolution):
        notes += _published_instead(catalog, request, answer, indexes)
        notes += _nothing_to_install(request, answer)
        notes += _code_for_every_gpu(catalog, answer)
        answer = with_network_plugin(
            catalog, request, answer, lambda other, kept: solve(catalog, other, indexes, kept)
        )
        return replace(answer, notes=(*answer.notes, *notes)) if notes else answer
    from resolver.answers.explain import explain_conflict
    from resolver.answers.suggest import SECONDS, suggest

    conflict, core = explain_conflict(request, answer)
    conflict = replace(conflict, warnings=(*answer.warnings, *notes))
    reporter.conflict(conflict)

    until = monotonic() + SECONDS

    def resolves(relaxed: Request) -> Resolution | None:
        try:
            outcome = solve(catalog, relaxed, indexes, until=until)
        except MatrixError:
            return None
        return outcome if isinstance(outcome, Resolution) else None

    in_full = resolves if indexes or request.prefer == "proven" else None
    suggestions = suggest(catalog, request, answer, core, in_full, stated=stated)
    return replace(conflict, suggestions=suggestions)


def _with_wheels(
    catalog: Catalog,
    request: Request,
    answer: Resolution | Refuted,
    indexes: PackageIndexes | None,
    notes: list[Notice],
) -> Resolution | Refuted:
    """Return an answer with wheels of another name in place of what it would compile.

    They are taken if they are for the same ROCm, if the site advises another ROCm, or if there is no solution
    without them. A note says what was replaced, or with which ROCm it could be.
    """
    advice = advice_for(catalog, request).get("rocm")
    for stated in request.requirements if not request.no_prebuilt else ():
        row = wheels_for_rocm(catalog, stated.name)
        pick = answer.pick(stated.name) if isinstance(answer, Resolution) else None
        if row is None or (pick is not None and pick.origin != "build"):
            continue
        rocm = (isinstance(answer, Resolution) and answer.target.rocm) or ""
        others = (other for other in request.requirements if other != stated)
        renamed = replace(request, requirements=(*others, *named_by(stated, row)))
        try:
            found = solve(catalog, renamed, indexes, {"rocm": rocm} if rocm else None)
        except MatrixError:  # the wheels have other versions
            continue
        if not isinstance(found, Resolution):
            continue
        names = join_words(row.by, joiner="and")
        if found.target.rocm == rocm or not rocm or (advice and not is_advised(advice, rocm)):
            text = f"{stated.name} means {names} on ROCm {found.target.rocm}. {row.note}".strip()
            notes.append(Notice("named-for-rocm", stated.name, text))
            request, answer = renamed, found
        else:
            text = (
                f"{stated.name} is compiled for ROCm {rocm}. {names} has wheels for ROCm "
                f"{found.target.rocm}; to use them, require {names}."
            )
            notes.append(Notice("published-instead", stated.name, text))
    return answer


def _published_instead(
    catalog: Catalog, request: Request, answer: Resolution, indexes: PackageIndexes | None
) -> Iterator[Notice]:
    """Yield a sentence for each requested build that a published wheel with other versions would replace."""
    asked = {requirement.name: requirement.extras for requirement in request.requirements}
    built = {pick.name for pick in answer.picks if pick.origin == "build"} - {"torch"}
    for name in sorted(built & asked.keys()) if not request.no_prebuilt else ():
        if not any(map(is_elsewhere, catalog.releases_of(name))) or asked[name]:
            continue
        session = Session(start_problem(catalog, request, open_world=True).problem())
        variable = session.problem.variables[name]
        wheels = variable.mask(
            number for number, candidate in enumerate(variable.candidates) if candidate.origin == "published"
        )
        chosen = session.solve_within(session.narrow_to(session.narrow(), name, wheels))
        if chosen is None:
            continue
        pin = parse_requirement(f"{name}=={variable.candidate(chosen[name]).version}")
        pinned = solve(catalog, replace(request, requirements=(*request.requirements, pin)), indexes)
        if isinstance(pinned, Resolution):
            torch = next((f" with {pick}" for pick in pinned.picks if pick.name == "torch"), "")
            text = f"{name} is compiled, but {pin.text}{torch} is published. To use it, require {pin.text}."
            yield Notice("published-instead", name, text)


def _nothing_to_install(request: Request, answer: Resolution) -> Iterator[Notice]:
    """Yield a sentence if a request only for ROCm does not name its pip packages."""
    if not answer.distributions and any(requirement.name == "rocm" for requirement in request.requirements):
        text = (
            "rocm means the ROCm of a base image or of the machine, so there is nothing to install. For "
            "AMD's pip packages of ROCm, require rocm[libraries], or rocm[devel] to compile."
        )
        yield Notice("nothing-to-install", "rocm", text)


def _code_for_every_gpu(catalog: Catalog, answer: Resolution) -> Iterator[Notice]:
    """Yield a sentence about a torch with the ROCm of pip packages that has no extra for one architecture."""
    row = catalog.torch.get(answer.version_of("torch") or "")
    if row and row.pip_rocm and not row.device_extra and answer.target.gfx:
        extras = ",".join(f"device-{gfx}" for gfx in answer.target.gfx)
        text = (
            f"torch {row.version} has no extra for the code of one GPU architecture, so it may install that "
            f"of all, which has gigabytes. torch[{extras}] means a torch with only that of the target."
        )
        yield Notice("code-of-every-gpu", "torch", text)


def _resolve_closed(
    catalog: Catalog, request: Request, keep: Mapping[str, str] | None
) -> Resolution | Refuted:
    session = Session(compile_problem(catalog, request, keep=keep))
    solution, notes = preferred_solution(catalog, request, session)
    if solution is None:
        return Refuted(session, session.refutation())
    return resolution_of(catalog, request, session.problem, solution, notes)


def solve(
    catalog: Catalog,
    request: Request,
    indexes: PackageIndexes | None,
    keep: Mapping[str, str] | None = None,
    *,
    until: float = inf,
) -> Resolution | Refuted:
    """Return the resolution of a request, or the proof that it has none; see `resolve` for the arguments.

    With indexes, the search gives up with a `TooLargeError` at the time `until` (`time.monotonic`), or when
    it has taken too long.
    """
    if indexes is None:
        return _resolve_closed(catalog, request, keep)
    if request.prefer != "proven":
        return _solve_open(catalog, request, indexes, keep, until)
    found, catalog = _in_proven_set(catalog, request, indexes, until)
    return found or _solve_open(catalog, request, indexes, keep, until)


def _in_proven_set(
    catalog: Catalog, request: Request, indexes: PackageIndexes, until: float
) -> tuple[Resolution | None, Catalog]:
    """Return a resolution inside a proven set that pins a requested project of an index; None if none fits.

    Also return the catalog without the sets tried: those of other requests are chosen later, by their parts.
    """
    from resolver.answers.proven import by_rank

    closed = closed_names(catalog, request.target.backend)
    names = {requirement.name for requirement in request.requirements}
    tried = [
        row
        for row in by_rank(catalog.proven_at(request.target.site), names)
        if (names - closed) & row.picks.keys()
    ]
    for row in tried:
        pins = [parse_requirement(f"{name}=={key}") for name, key in row.picks.items() if name not in closed]
        pinned = replace(request, constraints=(*request.constraints, *pins))
        answer = _solve_open(replace(catalog, proven={row.id: row}), pinned, indexes, {}, until)
        if isinstance(answer, Resolution) and any(
            (note.id, note.subject) == (FROM_PROVEN_SET, row.id) for note in answer.notes
        ):
            return replace(answer, request=request), catalog
    rest = {key: row for key, row in catalog.proven.items() if row not in tried}
    return None, replace(catalog, proven=rest)


def _solve_open(
    catalog: Catalog,
    request: Request,
    indexes: PackageIndexes,
    keep: Mapping[str, str] | None,
    until: float,
) -> Resolution | Refuted:
    from resolver.answers.answer import Answer
    from resolver.answers.assembling import completed
    from resolver.answers.confirmation import confirm
    from resolver.solving.solver import Solver
    from resolver.solving.triton import TritonProvider

    inferred = InferredProvider(catalog, request, indexes)
    providers: list[Provider] = [inferred, TritonProvider(catalog, request, indexes)]
    if not request.no_prebuilt:
        providers.append(LabelledProvider(catalog, request, indexes))
    names = (requirement.name for requirement in request.requirements)
    inferred.start(reachable(catalog, request.target.backend, names))
    inferred.check()
    builder = start_problem(
        catalog, request, also=PAIRED_WITH_TORCH, keep=keep, open_world=True, providers=providers
    )
    solver = Solver(builder, indexes, keep or {})
    solver.search.until = min(until, monotonic() + _LONGEST)
    notes: list[Notice] = []

    def prefer_proven() -> list[tuple[int, int]] | None:
        solution, notes[:] = preferred_solution(builder.catalog, request, solver.session)
        number = solver.session.number
        return None if solution is None else [(number[name], 1 << bit) for name, bit in solution.items()]

    solution = solver.solve(prefer_proven if request.prefer == "proven" else None)
    if isinstance(solution, Refuted):
        return solution
    answer = Answer(solver)
    closed = resolution_of(catalog, request, solver.problem, solution, notes)
    lock = completed(closed, answer)
    confirm(lock, answer.recorded(closed.edges), {*solver.session.number, *solver.world.bound})
    return lock
