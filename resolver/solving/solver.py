"""The whole environment in one search: platform, distributions of the catalog, and projects of indexes.

The platform, torch and the requested distributions of the catalog are decided first, component by
component (`resolver.solving.session`). Their preferred values are assumptions of the same search, which then
adds everything else: it asks for a project only when a distribution requires it, and reads the metadata of a
release only when it considers that release. Requirements become incompatibilities while it runs, and a
project that turns up late is a new variable. If the search refutes the assumptions, what it has learned
excludes them, and the next best ones are assumed. So the platform stays the best possible, and a "no" is a
proof.

Order of decisions, after the assumptions: requested projects; for each project with source releases whether
wheels are enough; Python; the rest. A project that loses its choice repeatedly moves forward in its group,
and the search starts again from the assumptions with everything that it has learned (the rule of uv [1]_).

.. [1] uv's resolver, ``ConflictTracker``; https://docs.astral.sh/uv/reference/internals/resolver/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from resolver.compiling.problem import ABSENT, Link, bits
from resolver.indexes import InstalledFiles
from resolver.model import EARLY_PYTHON, Notice, layer
from resolver.providers.index import HIDDEN
from resolver.solving.judging import ContentJudge
from resolver.solving.projects import Projects
from resolver.solving.reading import Requirements
from resolver.solving.search import Incompatibility, is_required
from resolver.solving.session import Refuted
from resolver.solving.world import Part, World

if TYPE_CHECKING:
    from resolver.compiling.problem_builder import ProblemBuilder
    from resolver.indexes import PackageIndexes
    from resolver.solving.search import Assumption
    from resolver.solving.session import Solution
    from resolver.solving.states import Choices

Prefer = Callable[[Sequence["Assumption"]], "Sequence[Assumption] | None"]
_LOSSES = frozenset({5, 10, 20, 40, 80, 160})
"""A project moves forward each time that it has lost this many choices."""


class Solver(Part):
    """One search for a request."""

    def __init__(self, builder: ProblemBuilder, indexes: PackageIndexes, keep: Mapping[str, str]) -> None:
        super().__init__(World(builder, indexes))
        self.projects = Projects(self.world, keep)
        self.requirements = Requirements(self.world, self.projects)
        self.contents = ContentJudge(self.world, self.projects, self.requirements.needing_cuda)
        self._planned: set[int] = set()
        """The variables of the current assumptions."""
        self._late: set[int] = set()
        """Parts of the platform that turned up after the assumptions were made: these are made again."""
        self._present: list[Assumption] = []
        """Assumptions that these parts are present."""
        self._met: set[int] = set()
        """All such parts so far; assumptions are made again only once for each."""
        self._undecided: set[int] = set()
        """Variables that must be present, and have several values."""

    def solve(self, assumed: Sequence[Assumption] = (), prefer: Prefer | None = None) -> Solution | None:
        """Return the preferred solution under assumptions, from which an `Answer` is made; None if none is.

        `prefer` returns the assumptions to try next, given some, or None if the problem has no solution. By
        default, these are the preferred values of platform, torch, and the requested distributions of the
        catalog.
        """
        self._present.clear()
        self._met.clear()
        self._prefer_python_with_wheels()
        while True:
            assumptions = (prefer or self._preferred_platform)(assumed)
            if assumptions is None and not self._present:
                return None
            failed = self._extends(assumptions) if assumptions is not None else None
            if failed is not None:
                self.search.learn(failed)
            elif assumptions is None:
                self._present.clear()  # what turned up late cannot be part of the platform after all
            elif not self._late:
                present = self._needed()
                if present == self._present:
                    # `_needed` took choices back. With what was learned, this finds the same solution again.
                    self._extends(assumptions)
                    return self.world.solution
                # What required the others has gone, so the platform may be better without them: once more.
                self._present = present
            else:
                self._present += [(number, ~ABSENT) for number in sorted(self._late)]
                self._met |= self._late

    def refuted(self) -> Refuted:
        """Return the proof that the problem has no solution."""
        self.session.is_solvable([])  # without assumptions, so that the reasons are statements only
        failed = self.session.failed or Incompatibility({})
        releases = {choices.key: len(choices.releases) for choices in self.projects.by_number.values()}
        links = [link for link in failed.reasons() if isinstance(link, Link)]
        hints = self._hints(links)
        return Refuted(self.session, failed, releases, tuple(dict.fromkeys(hints)))

    def _prefer_python_with_wheels(self) -> None:
        """Drop from the preferred Pythons those without a wheel of a requested project that has wheels."""
        lacking = 0
        for choices in self._requested() if self.search.narrow([]) else ():
            domain = self.search.domains[choices.number] & ~ABSENT
            bit = (self.projects.first_usable(choices, domain) if domain else 0).bit_length() - 1
            if bit > 0 and not isinstance(choices.release(bit), InstalledFiles):
                judged = self.projects.judge(choices, bit)
                lacking |= judged.source_only if judged.fit.with_wheel else 0
        name, first = self.problem.preferences["python"]
        self.problem.preferences["python"] = name, {bit: mask & ~lacking for bit, mask in first.items()}

    def _requested(self) -> list[Choices]:
        """Return the variables of the requested projects."""
        names = dict.fromkeys(one.name for one in self.request.requirements)
        nodes = map(self.projects.node, names)
        return [node for node in nodes if node is not None]

    def _with_most_wheels(self, pythons: int) -> int:
        """Return the Python for which most requested projects have wheels, unless it is the newest of all."""
        domains = self.search.domains
        chosen = [
            (choices, domains[choices.number].bit_length() - 1)
            for choices in self._requested()
            if is_required(domains[choices.number])
        ]

        def lacking(bit: int) -> int:
            return sum(self.projects.is_source(choices, release, 1 << bit) for choices, release in chosen)

        newest = 1 << len(self.problem.variables["python"].candidates)  # it comes last
        others = pythons & ~newest or pythons
        best = 1 << min(bits(others), key=lacking)
        self.world.most_wheels = best if best != others & -others else 0
        return best

    def _needed(self) -> list[Assumption]:
        """Return the assumptions about late parts that hold without them: another release may have gone."""
        if not self._present:
            return []
        search, numbers = self.search, [self.session.number["python"], *self.projects.by_number]
        # What must be present with all releases and the Python fixed is required by one of them.
        search.narrow([(number, search.domains[number]) for number in numbers])
        return [(number, mask) for number, mask in self._present if is_required(search.domains[number])]

    def _preferred_platform(self, assumed: Sequence[Assumption]) -> Sequence[Assumption] | None:
        last = layer("python")
        numbers = [number for name, number in self.session.number.items() if self.problem.layer(name) < last]
        decided = self.session.decide([*assumed, *self._present], numbers)
        return None if decided is None else decided.assumptions

    def _extends(self, assumptions: Sequence[Assumption]) -> Incompatibility | None:
        self._late.clear()
        self._planned = {number for number, _ in assumptions}
        self.search.touched.update(range(len(self.search.domains)))
        self._undecided.clear()
        return self.search.solve(assumptions, self._choose)

    def _choose(self) -> Assumption | None:
        """Return the next variable to decide and its values; first load what was decided."""
        self._load_decided()
        if not (self.search.is_pending or self._undecided):
            # Only when nothing is left to decide, because content costs most to read.
            self.contents.judge()
        if self.search.is_pending or not self._undecided:
            return None
        # Ends this search as if it were complete, if there are any: `solve` then makes the assumptions again,
        # with these parts at their place in the order of preference.
        self._late = {
            number
            for number in (self._undecided & self.session.names.keys()) - self._planned - self._met
            if self.session.rank[number][0] < EARLY_PYTHON
        }
        if self._late:
            return None
        first = min(self._undecided, key=self.session.rank.__getitem__)
        python = self.session.number["python"]
        if python in self._undecided and self.session.rank[first][0] > EARLY_PYTHON:
            # These Pythons are one choice, so that a conflict takes back all of them at once. Which of them
            # it is follows later, from the wheels of what was requested.
            preferred = self.session.preferred_early("python", self.search.domains)
            if preferred and self.search.domains[python] & ~preferred:
                return python, preferred
        return self._decide(first)

    def _load_decided(self) -> None:
        """Add the requirements of decided releases until one of them adds something to propagate."""
        search = self.search
        if self.projects.exclude_sources():
            return
        # Sorted, because the order in which metadata are read must not depend on the order in a set.
        for number in sorted(search.touched):
            domain = search.domains[number]
            self._undecided.discard(number)
            if is_required(domain) and domain & (domain - 1):
                self._undecided.add(number)
            elif is_required(domain) and (number, domain) not in self.requirements.loaded:
                # What it requires may exclude other decided releases, whose metadata then need not be read.
                self.requirements.load(number, domain)
                if search.is_pending:
                    return
            search.touched.discard(number)

    def _decide(self, number: int) -> Assumption | None:
        """Return the values for a variable; None if some were excluded, which must be propagated first."""
        choices, domain = self.projects.by_number.get(number), self.search.domains[number]
        if choices is None:
            is_python = number == self.session.number["python"]
            return number, self._with_most_wheels(domain) if is_python else domain & -domain
        if choices.extra:
            return number, self.projects.same_as_project(choices, domain)
        mask = self.projects.first_usable(choices, domain)
        if self.search.is_pending:
            return None
        self.requirements.read_ahead(choices, mask, domain)
        if self._loses(choices, mask):
            self.search.restart()
            return self._choose()
        return number, mask

    def _loses(self, choices: Choices, mask: int) -> bool:
        """Count the choices that a project has lost; return whether it moves forward because of them."""
        state = choices.project
        before, state.tried = state.tried or mask, mask
        # A restart makes the same choices again, and these were not lost.
        if before == mask:
            return False
        state.losses += 1
        if state.losses not in _LOSSES:
            return False
        group, forward, position, name = self.session.rank[choices.number]
        self.session.rank[choices.number] = group, forward - 1, position, name
        return True

    def _hints(self, links: Sequence[Link]) -> Iterator[Notice]:
        """Yield hints to resolve without CUDA distributions, and with the releases of other indexes."""
        for_cuda = {link.for_cuda for link in links}
        for project, (_, required, hint) in self.requirements.needing_cuda.items():
            if required in for_cuda:
                yield Notice("needs-cuda", project, hint)
        names = dict.fromkeys(link.object.partition("[")[0] for link in links)
        for name in names:
            if name in self.projects.states and (text := self.projects.index.ignored(name)):
                yield Notice(HIDDEN, name, text)
