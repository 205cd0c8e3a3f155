"""The whole environment in one search: platform, distributions of the catalog, and projects of indexes.

The platform, torch and the requested distributions of the catalog are decided first, component by component
(`resolver.session`). Their preferred values are assumptions of the same search, which then adds everything else:
it asks for a project only when a distribution requires it, and reads the metadata of a release only when it
considers that release. Requirements become incompatibilities while it runs, and a project that turns up late is
a new variable. If the search refutes the assumptions, what it has learned excludes them, and the next best
ones are assumed. So the platform stays the best possible, and a "no" is a proof.

Order of decisions, after the assumptions: requested projects; for each project with source releases whether
wheels are enough; Python; the rest. A project that loses its choice repeatedly moves forward in its group, and
the search starts again from the assumptions with everything that it has learned (the rule of uv [1]_).

.. [1] uv's resolver, ``ConflictTracker``; https://docs.astral.sh/uv/reference/internals/resolver/
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.choices import ALWAYS, Choices, Installed, Link, Pick, is_prerelease, names_prerelease
from resolver.compiling import add_distributions
from resolver.compiling.clauses import LIMITS, REQUEST
from resolver.compiling.problem_builder import closed_names
from resolver.compiling.request import closest_versions
from resolver.errors import EnvironmentLacksError, SourceError, UsageError, did_you_mean
from resolver.facts.catalog import applies, is_elsewhere
from resolver.look_ahead import LookAhead
from resolver.model import EARLY_PYTHON, PLATFORM, layer
from resolver.problem import ABSENT, bits
from resolver.providers.index import IndexProvider, by_name
from resolver.requirements import (
    is_for_cuda,
    is_rocm_package,
    normalize_name,
    parse_requirement,
    split_marker,
)
from resolver.rules import EVERYWHERE, Context, Exclusion, judge
from resolver.search import Incompatibility, is_required
from resolver.session import Refuted, Session
from resolver.specifiers import version_key
from resolver.targets import Targets
from resolver.triton import TRITON_NAMES, Triton
from resolver.versions import join_words, parse_specifier, shorten

if TYPE_CHECKING:
    from resolver.compiling.problem_builder import ProblemBuilder
    from resolver.environment import Environment
    from resolver.facts.schema import Requires
    from resolver.indexes import File, Metadata, PackageIndexes
    from resolver.model import Candidate, Request, Requirement
    from resolver.problem import Variable
    from resolver.rules import Judged
    from resolver.search import Assumption
    from resolver.session import Solution

_MOST_CHECKED = 25
"""Number of releases to check at a time until one can be installed."""
_MOST_UNREADABLE = 5
"""A project is not considered any more after this many releases whose metadata cannot be read."""
_MOST_PASSED = 3
"""Number of releases before an sdist among which a release with a wheel is preferred to it."""
_LOSSES = frozenset({5, 10, 20, 40, 80, 160})
"""A project moves forward each time that it has lost this many choices."""
_FIRST = (-1, 0, 0, "")
_WHEELS_ONLY = layer("python")[0] - 0.5
_STRICT, _LENIENT = 0b010, 0b100

_Rank = tuple[float, int, int, str]
_Terms = dict[int, int]


class Solver:
    """One search for a request.

    Parameters
    ----------
    builder
        The problem of the platform and the catalog, which grows with late distributions.
    indexes
        The package indexes.
    keep
        Versions to prefer, by name.

    Attributes
    ----------
    index
        The provider of the indexes.
    skipped
        Releases that could not be considered, with the reason.
    """

    def __init__(self, builder: ProblemBuilder, indexes: PackageIndexes, keep: Mapping[str, str]) -> None:
        self.builder = builder
        self.problem = builder.problem()
        self.request: Request = builder.request
        self.catalog = builder.catalog
        self.session = Session(self.problem)
        self.search = self.session.search
        self.skipped: dict[str, str] = {}
        self._bound = closed_names(self.catalog, self.request.target.backend)
        self._keep = keep
        self._demands = 0
        self._rank: dict[int, _Rank] = {}
        self._open: dict[str, Choices] = {}
        self._nodes_of: dict[str, list[Choices]] = {}
        """The variables of each project and of its extras."""
        self._by_number: dict[int, Choices] = {}
        self._names: dict[int, str] = {}
        """Names of the problem's variables, by number."""
        self._state_demands()
        python, glibc = (self.problem.variables[name] for name in ("python", "glibc"))
        allowed = python.present
        for demand in self.problem.demands:
            allowed &= demand.mask if demand.variable is python else -1
        self.targets = Targets(python, glibc, allowed, _patch_release(self.request))
        self.index = IndexProvider(indexes, self.catalog, self.request, self.targets.applying)
        self.triton = Triton(self.catalog, self.request, self.problem, self.session.number, self.targets)
        self._installed = self.request.preinstalled.installed if self.request.preinstalled else {}
        self._limits = by_name(self.request.constraints)
        self._overrides = by_name(self.request.overrides)
        self._asked = by_name(self.request.requirements)
        self._picks: list[Pick] | None = None
        self._loaded: set[Assumption] = set()
        self._undecided: set[int] = set()
        self._judged: dict[tuple[str, int], Judged] = {}
        self._excluded: set[tuple[str, int]] = set()
        """The releases whose exclusions were added."""
        self._requires: dict[Assumption, list[tuple[str, str, int]]] = {}
        self._wheels_only: dict[str, int] = {}
        self._lenient = -1
        """The variable that decides whether some patch releases of Python are enough; -1 if not needed."""
        self._tried: dict[int, int] = {}
        self._losses: dict[int, int] = {}
        self._unreadable: dict[str, int] = {}
        self._passed: dict[str, str] = {}
        """By project, a release that was not chosen because it has no wheel."""
        self._needing_cuda: dict[str, tuple[str, str]] = {}
        """By project, the first release that was rejected, and the CUDA distribution that it requires."""
        self._unread: dict[Assumption, str] = {}
        self._dynamic: set[tuple[str, str]] = set()
        self._lacking: dict[Assumption, list[str]] = {}
        self._look_ahead = LookAhead(
            indexes,
            self.request.target.date,
            self._is_decided,
            allow_dynamic=self.request.support == "any",
        )
        for terms, link in self.triton.limits_to_torch():
            self.search.add(terms, link)

    # The search

    def solve(self, prefer: Callable[[], Sequence[Assumption] | None] | None = None) -> Solution | Refuted:
        """Return a solution of the problem, with the projects that `picks` then yields, or the proof of none.

        Parameters
        ----------
        prefer
            Returns the assumptions to try next, None if the problem has no solution. By default, these are the
            preferred values of platform, torch, and the requested distributions of the catalog.

        Raises
        ------
        UsageError
            No index has a requested project.
        EnvironmentLacksError
            An index cannot be reached.
        SourceError
            A page of an index is broken.
        TooLargeError
            The search reached its limit.
        """
        self._add_requests()
        while True:
            assumptions = (prefer or self._preferred_platform)()
            if assumptions is None:
                return self._refuted()
            failed = self._extends(assumptions)
            if failed is None:
                return self.solution
            self.search.learn(failed)

    def _refuted(self) -> Refuted:
        failed = self.session.failed or Incompatibility({})
        releases = {choices.key: len(choices.releases) for choices in self._open.values()}
        links = [link for link in failed.reasons() if isinstance(link, Link)]
        hints = self._refused_for_cuda(link.predicate for link in links)
        return Refuted(self.session, failed, releases, tuple(dict.fromkeys(hints)))

    def _preferred_platform(self) -> Sequence[Assumption] | None:
        last = layer("python")
        numbers = [number for name, number in self.session.number.items() if self.problem.layer(name) < last]
        decided = self.session.decide((), numbers)
        return decided and decided.assumptions

    def _extends(self, assumptions: Sequence[Assumption]) -> Incompatibility | None:
        self.search.touched.update(range(len(self.search.domains)))
        self._undecided.clear()
        self._picks = None
        return self.search.solve(assumptions, self._choose)

    def _choose(self) -> Assumption | None:
        """Return the next variable to decide and its values; read the metadata of decided releases."""
        search, undecided = self.search, self._undecided
        for number in sorted(search.touched):
            domain = search.domains[number]
            undecided.discard(number)
            if is_required(domain):
                if domain & (domain - 1):
                    undecided.add(number)
                elif (number, domain) not in self._loaded:
                    self._load(number, domain)
                    if search.is_pending:
                        return None
            search.touched.discard(number)
        if not undecided:
            return None
        first = min(undecided, key=self._rank.__getitem__)
        python = self.session.number["python"]
        if python in undecided and self._rank[first] > EARLY_PYTHON:
            preferred = self.session.preferred_early("python", search.domains)
            if preferred and search.domains[python] & ~preferred:
                return python, preferred
        choices, domain = self._by_number.get(first), search.domains[first]
        if choices is None:
            return first, domain & -domain
        if choices.extra:
            return first, self._same_as_project(choices, domain)
        mask = self._first_usable(choices, domain)
        if search.is_pending:
            return None
        if self._loses(first, mask):
            search.restart()
            return self._choose()
        return first, mask

    def _loses(self, number: int, mask: int) -> bool:
        """Count the choices that a project has lost; return whether it moves forward because of them."""
        before = self._tried.get(number, mask)
        self._tried[number] = mask
        if before == mask:
            return False
        self._losses[number] = losses = self._losses.get(number, 0) + 1
        if losses not in _LOSSES:
            return False
        group, forward, position, name = self._rank[number]
        self._rank[number] = group, forward - 1, position, name
        return True

    def _state_demands(self) -> None:
        """Add what the problem has gained: variables, relations and demands."""
        self.session.extend()
        for name, number in self.session.number.items():
            if number not in self._names:
                self._names[number] = name
                group, key = self.problem.layer(name)
                self._rank[number] = group, 0, 0, key
        for demand in self.problem.demands[self._demands :]:
            number = self.session.number[demand.variable.name]
            self.search.add({number: demand.variable.everything & ~demand.mask}, demand)
        self._demands = len(self.problem.demands)

    def _add_selector(self, rank: _Rank) -> int:
        """Add a variable that decides whether an exclusion applies: first it does, then not."""
        number = self.search.add_variable(ABSENT | _STRICT | _LENIENT)
        self._rank[number] = rank
        self.search.add({number: ABSENT}, ALWAYS)
        return number

    # The result

    @property
    def solution(self) -> Solution:
        """The values of the problem's variables."""
        domains = self.search.domains
        pairs = ((name, domains[number]) for name, number in self.session.number.items())
        return {name: mask.bit_length() - 1 for name, mask in pairs if is_required(mask)}

    def candidate(self, name: str) -> Candidate | None:
        """Return the chosen candidate of a component of the problem."""
        number = self.session.number.get(name)
        domain = self.search.domains[number] if number is not None else ABSENT
        if domain & ABSENT or domain & (domain - 1):
            return None
        return self.problem.variables[name].candidate(domain.bit_length() - 1)

    def picks(self) -> list[Pick]:
        """Return the releases that the search added; a preinstalled distribution has no files."""
        if self._picks is None:
            self._picks = list(self._added())
        return self._picks

    def _added(self) -> Iterator[Pick]:
        extras: dict[str, list[str]] = {}
        for choices in self._open.values():
            if choices.extra and is_required(self.search.domains[choices.number]):
                extras.setdefault(choices.name, []).append(choices.extra)
        environment = self.environment
        for choices in self._open.values():
            domain = self.search.domains[choices.number]
            if is_required(domain) and not choices.extra:
                release = choices.release(domain.bit_length() - 1)
                files = (
                    ()
                    if isinstance(release, Installed)
                    else self._judge(choices, domain.bit_length() - 1).files
                )
                if choices.name in self._installed:
                    files = ()
                is_dynamic = bool(files) and (choices.name, release.version) in self._dynamic
                yield Pick(
                    choices.name,
                    release.version,
                    tuple(environment.installable(files) or self._lenient_environment.installable(files)),
                    tuple(sorted(extras.get(choices.name, ()))),
                    "inferred" if is_dynamic else "documented",
                )

    @property
    def environment(self) -> Environment:
        """The chosen Python with its glibc."""
        return self._environment_of(any_patch=False)

    @property
    def _lenient_environment(self) -> Environment:
        return self._environment_of(any_patch=True)

    def _environment_of(self, *, any_patch: bool) -> Environment:
        solution = self.solution
        glibc = self.problem.version(solution, "glibc")
        return self.targets.environment(solution["python"], glibc, any_patch=any_patch)

    def replaced_for_cuda(self) -> Iterator[str]:
        """Yield a sentence for each pick that was chosen because a newer release requires CUDA."""
        for pick in self.picks():
            newer, required = self._needing_cuda.get(pick.name, (pick.version, ""))
            if version_key(newer) > version_key(pick.version):
                yield (
                    f"{pick.name} {pick.version} was chosen because newer releases, such as {newer}, require "
                    f"{required}, which is for CUDA. {_override_hint(pick.name, required)}"
                )

    def passed_for_wheels(self) -> Iterator[str]:
        """Yield a sentence for each pick that was chosen because a newer release has no wheel."""
        for pick in self.picks():
            newer = self._passed.get(pick.name, pick.version)
            if version_key(newer) > version_key(pick.version):
                yield (
                    f"{pick.name} {pick.version} was chosen because {newer} has no wheel for "
                    f"{self.environment}. To build it, require {pick.name}=={newer}."
                )

    def _refused_for_cuda(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield, for each CUDA distribution in the texts, a hint to resolve without it."""
        words = {word.strip(",") for text in texts for word in text.split()}
        for project, (_, required) in self._needing_cuda.items():
            if required in words:
                yield _override_hint(project, required)

    def files_of(self, name: str) -> tuple[File, ...]:
        """Return the files of a distribution of the catalog in the solution; empty if no index has them."""
        candidate = self.candidate(name)
        if candidate is None or candidate.origin == "preinstalled":
            return ()
        try:
            files, _ = self.index.offered(candidate, self.candidate("torch"))
        except (EnvironmentLacksError, SourceError):
            return ()
        is_pinned = candidate.release is not None and (candidate.release.sdist or candidate.release.wheel)
        return tuple(files if is_pinned else self.environment.installable(files))

    def files_read(self, name: str) -> Sequence[File]:
        """Return the files of a pick from which its metadata was read; none if it is only installed."""
        choices = self._open[name]
        bit = self.search.domains[choices.number].bit_length() - 1
        return () if isinstance(choices.release(bit), Installed) else self._files_of(choices, bit)

    def needs_newer_patch(self, pick: Pick) -> bool:
        """Return whether only some patch releases of the Python may install a pick."""
        environment = self.environment
        files = pick.files
        return bool(files) and not any(environment.allows_python(file.requires_python) for file in files)

    def version_of(self, name: str) -> str:
        """Return the version of a distribution in the result; empty if it has none."""
        choices = self._open.get(name)
        if choices is None:
            return self.problem.version(self.solution, name)
        domain = self.search.domains[choices.number]
        return choices.release(domain.bit_length() - 1).version if is_required(domain) else ""

    def extras_of(self, name: str) -> tuple[str, ...]:
        """Return the extras that the request and the target require of a distribution, sorted."""
        variants = {candidate.variant for candidate in self.problem.variables[name].candidates}
        extras = {
            extra
            for requirement in self._asked.get(name, ())
            if not variants & {*requirement.extras} and self.targets.applying(requirement.marker)
            for extra in requirement.extras
        }
        torch = self.candidate("torch") if name == "torch" else None
        row = self.catalog.torch.get(torch.version) if torch else None
        if row and row.device_extra:
            extras |= {row.device_extra.format(gfx=target) for target in self.request.target.gfx}
        return tuple(sorted(extras))

    def lacking(self) -> Iterator[str]:
        """Yield a sentence for each required extra that the metadata of its distribution does not have."""
        for (number, mask), texts in self._lacking.items():
            if self.search.domains[number] == mask:
                yield from dict.fromkeys(texts)

    def unread(self) -> dict[str, str]:
        """Return the distributions of the solution whose metadata could not be read, with the reason."""
        return {
            self._names[number]: reason
            for (number, mask), reason in self._unread.items()
            if self.search.domains[number] == mask
        }

    def requirements_of(self, name: str) -> list[tuple[str, str]]:
        """Return the names that a distribution requires in the result, with the requirements as written."""
        python = self.search.domains[self.session.number["python"]]
        numbers = [choices.number for choices in self._nodes_of.get(name, ())]
        if name in self.session.number and not numbers:
            numbers = [self.session.number[name]]
        return [
            (required, text)
            for number in numbers
            if is_required(self.search.domains[number])
            for required, text, pythons in self._requires.get((number, self.search.domains[number]), ())
            if pythons & python
        ]

    def requested_tritons(self) -> list[Requirement]:
        """Return the requirements of the request that mean the triton of torch."""
        python = self.search.domains[self.session.number["python"]]
        return [
            requirement
            for requirement in self.request.requirements
            if self.triton.is_of_torch(requirement.name)
            and self.targets.applying(requirement.marker) & python
        ]

    # Requirements of the request

    def _add_requests(self) -> None:
        requirements = self.request.requirements
        python = min(self.targets.environments, default=0)
        if python:
            environment = self.targets.environments[python]
            self._look_ahead.start(
                (one for one in requirements if environment.applies(one.marker)), environment
            )
        for requirement in sorted(requirements, key=lambda requirement: requirement.name):
            for stated, when in self._replaced(requirement, requirement.marker):
                self._add_request(stated, when)

    def _replaced(
        self, requirement: Requirement, marker: str, extra: str = ""
    ) -> Iterator[tuple[Requirement, int]]:
        """Yield a requirement or its overrides, each with the Pythons for which it applies."""
        pythons = self.targets.applying(marker, extra)
        if extra:  # a requirement that applies without the extra belongs to the project itself
            pythons &= ~self.targets.applying(marker)
        for stated in self._overrides.get(requirement.name, (requirement,)):
            applying = pythons if stated is requirement else pythons & self.targets.applying(stated.marker)
            if applying:
                yield stated, applying

    def _when(self, pythons: int) -> _Terms:
        """Return the term for Pythons; none if these are all."""
        return {} if pythons == self.targets.all else {self.session.number["python"]: pythons}

    def _add_request(self, requirement: Requirement, pythons: int) -> None:
        """Add the demand of a requirement in the request, for some Pythons."""
        name, when = requirement.name, self._when(pythons)
        if name in self.session.number and not (name == "triton" and self.triton.is_of_torch(name)):
            return
        if is_for_cuda(name) and name not in self._installed:
            backend = "AMD GPUs" if self.request.target.backend == "rocm" else "CPUs"
            msg = f"{shorten(name)} is for CUDA and does not run on {backend}."
            raise UsageError(msg, hint="Remove it from the requirements.")
        link = Link("", name, "", f"you asked for {requirement.text}", REQUEST)
        if self.triton.is_of_torch(name):
            self._require_triton(when, requirement, link)
            return
        nodes = self._nodes(name, requirement.extras)
        if not nodes:
            msg = (
                f"No index has the project {shorten(name)!r}. Searched: {', '.join(self.index.indexes.urls)}."
            )
            hint = did_you_mean(name, self._bound)
            raise UsageError(msg, hint=hint if hint.startswith("Did") else "Check the name.")
        if not nodes[0].allowed_by(requirement.specifier) and not when:
            but = self._but_url(nodes[0], 0)
            msg = f"No release of {name} matches {shorten(requirement.text)!r}{but}."
            versions = [release.version for release in nodes[0].releases]
            raise UsageError(msg, hint=closest_versions(requirement, versions))
        for choices in nodes:
            allowed = choices.allowed_by(requirement.specifier)
            terms = {**when, choices.number: choices.everything & ~allowed}
            self.search.add(terms, link._replace(object=choices.key))

    def _require_triton(self, terms: _Terms, requirement: Requirement, link: Link) -> None:
        limits = self._limits.get(requirement.name, ())
        for excluded, reason in self.triton.required(requirement, limits, link):
            self.search.add({**terms, **excluded}, reason)

    # Projects

    def _nodes(self, name: str, extras: Iterable[str] = ()) -> list[Choices]:
        """Return the variables of a project and of its extras; an empty list if no index has it."""
        project = self._node(name, "")
        return [project, *(self._node(name, extra) for extra in extras)] if project else []  # type: ignore[list-item]

    def _node(self, name: str, extra: str) -> Choices | None:
        key = f"{name}[{extra}]" if extra else name
        choices = self._open.get(key)
        if choices is not None:
            return choices
        base = self._node(name, "") if extra else None
        releases = base.releases if base else self.index.candidates(name, self._torches())
        if releases is None:
            return None
        choices = self._open[key] = Choices(name, extra, releases)
        self._nodes_of.setdefault(name, []).append(choices)
        choices.number = self.search.add_variable(choices.everything)
        self._by_number[choices.number] = choices
        self._rank[choices.number] = self.problem.layer(name)[0], 0, choices.number, key
        if base:
            present = choices.everything & ~ABSENT
            self.search.add({choices.number: present, base.number: ABSENT}, ALWAYS)
            return choices
        self._add_facts(choices)
        for limit in self._limits.get(name, ()):
            text = f"you limited {name} to {limit.specifier}"
            excluded = choices.everything & ~choices.allowed_by(limit.specifier) & ~ABSENT
            pythons = self.targets.applying(limit.marker)
            if pythons:
                terms = {**self._when(pythons), choices.number: excluded}
                self.search.add(terms, Link("", name, "", text, REQUEST))
        if name in TRITON_NAMES:
            self._exclude_other_tritons(choices)
        return choices

    def _torches(self) -> list[Candidate]:
        """Return the candidates of torch that are left: first those of now, then those of any Python."""
        torch = self.problem.variables["torch"]
        here = torch.chosen(self.search.domains[self.session.number["torch"]])
        allowed = torch.present
        for demand in self.problem.demands:
            allowed &= demand.mask if demand.variable is torch else -1
        return [*here, *torch.chosen(allowed)]

    def _exclude_other_tritons(self, choices: Choices) -> None:
        """Exclude the other projects that install ``triton`` if this project is chosen."""
        present = choices.everything & ~ABSENT
        for name in TRITON_NAMES:
            other: Variable | Choices | None = self._open.get(name) or self.problem.variables.get(name)
            if other is None or other is choices or self._installed.keys() & {name, choices.name}:
                continue
            number = other.number if isinstance(other, Choices) else self.session.number[name]
            link = Link(
                choices.name, name, "", f"installs the same files as {name}", self.index.indexes.urls[0]
            )
            self.search.add({choices.number: present, number: other.everything & ~ABSENT}, link)

    def _is_decided(self, requirement: Requirement) -> bool:
        """Return whether a requirement is decided without a project of its name on the indexes."""
        name = requirement.name
        has_url = bool(requirement.url or self.index.url(name))
        return has_url or is_rocm_package(name) or name in self._bound or name in self.session.number

    def _stated(self, name: str) -> Iterator[Requirement]:
        for stated in (self._asked, self._limits, self._overrides):
            yield from stated.get(name, ())

    # Facts of the catalog about projects

    def _add_facts(self, choices: Choices) -> None:
        """Add the catalog's facts about the releases of a project."""
        for row in self.rows_of(choices.name):
            releases = choices.allowed_by(parse_specifier(row.releases) if row.releases else None)
            if row.is_of_wheel:
                releases = self._with_wheel(choices, releases)
            self._add_row(row, choices.name, {choices.number: releases}, row.releases.removeprefix("=="))

    def _with_wheel(self, choices: Choices, releases: int) -> int:
        """Return the releases with a file that has the hash of a wheel that was read, or has no hash."""
        read = {row.sha256 for row in self.catalog.wheel.values() if row.package == choices.name}
        return sum(
            1 << bit
            for bit in bits(releases)
            if bit and any(not file.sha256 or file.sha256 in read for file in choices.release(bit).files)
        )

    @cached_property
    def _rows(self) -> dict[str, list[Requires]]:
        """The catalog's requirements for this backend, by distribution."""
        target = self.request.target
        by_key: dict[tuple[object, ...], Requires] = {}
        for row in self.catalog.requires:
            if row.kind == "run" and row.backend in {None, target.backend}:
                versions = row.versions if row.allows_gfx(target.gfx) else ()
                earlier = by_key.get(row.key())
                if earlier is not None or versions != row.versions:
                    both = (*earlier.versions, *versions) if earlier else versions
                    row = replace(row, versions=both)  # noqa: PLW2901  each of them allows more
                by_key[row.key()] = row
        rows: dict[str, list[Requires]] = {}
        for row in by_key.values():
            rows.setdefault(normalize_name(row.package), []).append(row)
        return rows

    def rows_of(self, name: str) -> Sequence[Requires]:
        """Return the catalog's run requirements of a distribution for this backend."""
        return self._rows.get(name, ())

    @staticmethod
    def is_limit(row: Requires) -> bool:
        """Return whether a row only limits its object, without requiring it."""
        return row.when_present or row.on in LIMITS

    def _add_row(self, row: Requires, name: str, terms: _Terms, version: str) -> None:
        """Add a requirement of the catalog if one of its ends is outside the catalog."""
        versions = [text.removeprefix("==") for text in row.versions]
        predicate = f"requires {row.on} {join_words(versions, most=8)}"
        if not versions:
            predicate = f"contains no code for {', '.join(self.request.target.gfx)}"
        link = Link(name, row.on, version, predicate, row.source)
        if row.on == "gfx":
            allowed_anyway = row.partial and self.request.support == "any"
            if not allowed_anyway and not {*self.request.target.gfx} <= {*row.versions}:
                link = link._replace(object="", predicate=f"contains code for {join_words(versions, most=8)}")
                self.search.add(terms, link)
            return
        if row.on == "python" and row.is_of_wheel and name in self._open:
            return  # the index knows the files for every Python
        when_present = self.is_limit(row)
        variable: Variable | Choices | None = self.problem.variables.get(row.on)
        number = self.session.number.get(row.on, -1)
        if variable is None and row.on not in self._bound:
            if when_present and row.on not in self._open:
                return
            variable = self._node(row.on, "")
            number = variable.number if variable else -1
        if variable is None:
            return
        allowed = ABSENT if when_present else 0
        for text in row.versions:
            if isinstance(variable, Choices):
                allowed |= variable.allowed_by(parse_specifier(text))
            else:
                allowed |= variable.allowed_by(text)
        self.search.add({**terms, number: variable.everything & ~allowed}, link)

    # Releases

    def _same_as_project(self, choices: Choices, domain: int) -> int:
        """Return the release of an extra: the release of its project, which is decided first."""
        project = self._open[choices.name]
        mask = self.search.domains[project.number]
        others = choices.everything & ~mask & ~ABSENT
        self.search.add({project.number: mask, choices.number: others}, ALWAYS)
        return domain & mask or domain & -domain

    def _judge(self, choices: Choices, bit: int) -> Judged:
        """Return what the rules find about a release, if every patch release of a Python must install it."""
        key = choices.name, bit
        judged = self._judged.get(key)
        if judged is None:
            judged = self._judged[key] = judge(choices.release(bit), self._context(choices))
        return judged

    def _context(self, choices: Choices, *, any_patch: bool = False) -> Context:
        name = choices.name

        def is_pinned(version: str) -> bool:
            return any(
                clause.operator in {"==", "==="} and requirement.specifier.allows(version)
                for requirement in self._stated(name)
                if requirement.specifier is not None
                for clause in requirement.specifier
                if not clause.version.endswith(".*")
            )

        return Context(
            self.request.target.date, self.targets, is_pinned, self._allows_prereleases(choices), any_patch
        )

    def _allows_prereleases(self, choices: Choices) -> bool:
        if choices.allows_prereleases is None:
            choices.allows_prereleases = (
                any(names_prerelease(stated.specifier) for stated in self._stated(choices.name))
                or bool(self.index.url(choices.name))
                or all(is_prerelease(release.version) for release in choices.releases)
            )
        return choices.allows_prereleases

    def _first_usable(self, choices: Choices, domain: int) -> int:
        """Return the preferred release that may be used; exclude the releases before it."""
        unusable: dict[tuple[str, int, int, bool], list[int]] = {}
        mask = domain & -domain
        left = domain
        for _ in range(_MOST_CHECKED):
            mask = self._preferred(choices, left)
            exclusions = self._exclusions(choices, mask.bit_length() - 1)
            if self._is_first(choices, mask.bit_length() - 1):
                for exclusion, is_strict in exclusions:
                    key = (exclusion.text, exclusion.python, exclusion.glibc, is_strict)
                    unusable.setdefault(key, []).append(mask.bit_length() - 1)
            if not self._is_excluded_now(exclusions):
                mask = self._with_wheel_nearby(choices, left, mask)
                break
            left &= ~mask
            if not left:
                break
        for (text, python, glibc, is_strict), excluded in unusable.items():
            self._exclude(choices, excluded, Exclusion(text, python, glibc), is_strict=is_strict)
        return mask

    def _is_first(self, choices: Choices, bit: int) -> bool:
        """Return whether the exclusions of a release were not added yet, and remember that they are now."""
        key = choices.name, bit
        is_first = key not in self._excluded
        self._excluded.add(key)
        return is_first

    def _exclusions(self, choices: Choices, bit: int) -> list[tuple[Exclusion, bool]]:
        """Return the exclusions of a release, and whether each may be lifted for some patch releases."""
        if isinstance(choices.release(bit), Installed):
            return []
        strict = self._judge(choices, bit).exclusions
        if not strict:
            return []
        anyway = judge(choices.release(bit), self._context(choices, any_patch=True)).exclusions
        return [(one, False) for one in anyway] + [(one, True) for one in strict if one not in anyway]

    def _is_excluded_now(self, exclusions: Iterable[tuple[Exclusion, bool]]) -> bool:
        """Return whether exclusions leave no Python and glibc of the current choices."""
        domains, number = self.search.domains, self.session.number
        python, glibc = domains[number["python"]], domains[number["glibc"]]
        lenient = self._lenient >= 0 and domains[self._lenient] == _LENIENT
        for exclusion, is_strict in exclusions:
            if not (is_strict and lenient) and not glibc & ~exclusion.glibc:
                python &= ~exclusion.python
        return not python

    def _exclude(
        self, choices: Choices, excluded: Sequence[int], exclusion: Exclusion, *, is_strict: bool
    ) -> None:
        versions = ", ".join(choices.release(bit).version for bit in excluded)
        source = self.index.url(choices.name) or self.index.indexes.urls[0]
        terms = {choices.number: sum(1 << bit for bit in excluded)}
        if exclusion.python != EVERYWHERE:
            terms |= self._when(exclusion.python)
        if exclusion.glibc != EVERYWHERE:
            terms[self.session.number["glibc"]] = exclusion.glibc
        if is_strict:
            if self._lenient < 0:
                self._lenient = self._add_selector(_FIRST)
            terms[self._lenient] = _STRICT
        self.search.add(terms, Link(choices.name, "", versions, exclusion.text, source))

    def _with_wheel_nearby(self, choices: Choices, left: int, mask: int) -> int:
        """Return a release with a wheel that is little older than an sdist; else the sdist."""
        python = self.search.domains[self.session.number["python"]]
        if not self._is_source(choices, mask.bit_length() - 1, python) or self._keep.get(choices.name):
            return mask
        other = mask
        for _ in range(_MOST_PASSED):
            left &= ~other
            if not left or self.request.prefer == "oldest":
                break
            other = self._preferred(choices, left)
            bit = other.bit_length() - 1
            if not self._is_excluded_now(self._exclusions(choices, bit)) and not self._is_source(
                choices, bit, python
            ):
                self._passed[choices.name] = choices.release(mask.bit_length() - 1).version
                return other
        return mask

    def _is_source(self, choices: Choices, bit: int, python: int) -> bool:
        """Return whether none of some Pythons has a wheel of a release."""
        if isinstance(choices.release(bit), Installed) or self.index.url(choices.name):
            return False
        return not python & ~ABSENT & ~self._judge(choices, bit).source_only

    def _prefer_wheels(self, choices: Choices) -> None:
        """Let the search decide, before Python, whether only wheels of a project may be used."""
        if choices.name in self._wheels_only or self.index.url(choices.name):
            return
        excluded: dict[int, int] = {}
        for bit in range(1, len(choices.releases) + 1):
            if isinstance(choices.release(bit), Installed):
                return
            judged = self._judge(choices, bit)
            if not judged.is_excluded and judged.source_only:
                excluded[judged.source_only] = excluded.get(judged.source_only, 0) | 1 << bit
        number = self._add_selector((_WHEELS_ONLY, 0, choices.number, choices.name))
        self._wheels_only[choices.name] = number
        for pythons, releases in excluded.items():
            link = Link(choices.name, "", "", "has no wheel", self.index.indexes.urls[0])
            self.search.add({number: _STRICT, choices.number: releases, **self._when(pythons)}, link)

    def _preferred(self, choices: Choices, mask: int) -> int:
        kept = mask & choices.of_version(self._keep.get(choices.name, ""))
        return kept or choices.preferred(mask, oldest=self.request.prefer == "oldest")

    def _load(self, number: int, mask: int) -> None:
        """Add the requirements of a chosen release, or exclude it if it cannot be used."""
        self._loaded.add((number, mask))
        choices = self._by_number.get(number)
        if choices is None:
            if number in self._names:
                self._load_closed(number, mask)
            return
        bit = mask.bit_length() - 1
        release = choices.release(bit)
        if choices.extra:
            project = self._open[choices.name]
            self.search.add({number: mask, project.number: project.everything & ~mask}, ALWAYS)
        else:
            if self._is_first(choices, bit):
                for exclusion, is_strict in self._exclusions(choices, bit):
                    self._exclude(choices, [bit], exclusion, is_strict=is_strict)
            if not isinstance(release, Installed) and not self._files_of(choices, bit):
                return
            if not isinstance(release, Installed) and self._judge(choices, bit).source_only:
                self._prefer_wheels(choices)
            for extra in self._nodes_of[choices.name]:
                if extra.extra:
                    others = extra.everything & ~mask & ~ABSENT
                    self.search.add({number: mask, extra.number: others}, ALWAYS)
        if isinstance(release, Installed):
            return
        metadata = self._metadata_of(choices, mask)
        if metadata is None:
            return
        try:
            self._require(number, mask, choices.key, metadata, choices.extra)
        except (UsageError, ValueError) as error:
            self._skip(choices, mask, f"has an invalid requirement: {error}")

    def _files_of(self, choices: Choices, bit: int) -> Sequence[File]:
        """Return the files of a release that any Python may install; none if it is excluded."""
        judged = self._judge(choices, bit)
        return () if judged.is_excluded else self.targets.files(judged.files)

    def _metadata_of(self, choices: Choices, mask: int) -> Metadata | None:
        """Return the metadata of a release; exclude the release if its metadata cannot be used."""
        bit = mask.bit_length() - 1
        try:
            metadata = self.index.requirements(self._files_of(choices, bit))
        except SourceError as error:
            self._skip(choices, mask, f"has broken metadata: {error.message}")
            return None
        if metadata is None:
            self._skip(choices, mask, "has no metadata that can be read without running its code")
        elif metadata.dynamic:
            self._dynamic.add((choices.name, choices.release(bit).version))
        return metadata

    def _skip(self, choices: Choices, mask: int, problem: str) -> None:
        version = choices.release(mask.bit_length() - 1).version
        self.skipped[f"{choices.name} {version}"] = problem
        source = self.index.url(choices.name) or self.index.indexes.urls[0]
        self.search.add({choices.number: mask}, Link(choices.key, "", version, problem, source))
        unreadable = self._unreadable[choices.name] = self._unreadable.get(choices.name, 0) + 1
        if unreadable == _MOST_UNREADABLE:
            read = sum(known for number, known in self._loaded if number == choices.number)
            text = f"was not read, because {unreadable} other releases cannot be read"
            left = choices.everything & ~ABSENT & ~read
            self.search.add({choices.number: left}, Link(choices.key, "", "", text, source))

    # Requirements of releases

    def _require(self, number: int, mask: int, subject: str, metadata: Metadata, extra: str = "") -> None:
        """Add the requirements of a release or of one of its extras.

        Raises
        ------
        UsageError, ValueError
            A requirement is invalid.
        """
        requirements = list(self._applying(metadata, extra))
        if requirements:
            environment = self.targets.environments[min(self.targets.environments)]
            self._look_ahead.start((requirement for requirement, _ in requirements), environment)
        candidate = self._candidate(number, mask)
        is_ours = candidate is not None and candidate.origin == "build"
        is_built = candidate is not None and metadata.dynamic
        if not is_built:
            self._add_closed({requirement.name for requirement, _ in requirements})
        if extra and extra not in metadata.extras:
            text = f"{metadata.name} {metadata.version} does not provide the extra {extra!r}."
            self._lacking.setdefault((number, mask), []).append(text)
        if not extra or candidate is None:
            self._requires[number, mask] = []
        required = self._requires[number, mask]
        for requirement, pythons in requirements:
            name = requirement.name
            terms = {number: mask, **self._when(pythons)}
            text = f"requires {name}{_brackets(requirement)}{requirement.specifier or ''}"
            link = Link(subject, name, metadata.version, text, metadata.source)
            if self._require_one(terms, requirement, link, is_ours=is_ours, is_built=is_built):
                required.append((name, text.removeprefix("requires "), pythons))

    def _applying(self, metadata: Metadata, extra: str) -> Iterator[tuple[Requirement, int]]:
        """Yield the requirements that apply, each with the Pythons for which it does."""
        for text in metadata.requires:
            head, marker = split_marker(text)
            if self.targets.applying(marker, extra):
                yield from self._replaced(parse_requirement(head), marker, extra)

    def _add_closed(self, names: Collection[str]) -> None:
        """Add the distributions of the catalog among some names to the problem."""
        late = {name for name in names if name in self._bound and name not in self.session.number}
        if late - {*PLATFORM}:
            add_distributions(self.builder, late)
            self._state_demands()

    def _candidate(self, number: int, mask: int) -> Candidate | None:
        name = self._names.get(number)
        return self.problem.variables[name].candidate(mask.bit_length() - 1) if name else None

    def _require_one(
        self, terms: _Terms, requirement: Requirement, link: Link, *, is_ours: bool, is_built: bool
    ) -> bool:
        """Add a requirement; return whether the requirement adds its object to the result."""
        name = requirement.name
        if link.subject != "torch" and self.triton.is_of_torch(name):
            if not is_built:
                self._require_triton(terms, requirement, link)
            return not is_ours  # our wheels require the triton of torch by its own name
        if is_rocm_package(name) and self.candidate("torch"):
            return self._require_rocm_package(terms, requirement, link)
        if name in self.session.number or name in self._bound:
            # For a build, the requirements in the catalog take precedence.
            return not is_built and self._require_closed(terms, requirement, link)
        return self._require_open(terms, requirement, link)

    def _require_rocm_package(self, terms: _Terms, requirement: Requirement, link: Link) -> bool:
        """Add a requirement on ROCm as a package, or on torch's code for a GPU architecture."""
        name = requirement.name
        if name in self.session.number:  # ROCm itself: the platform has the same version
            self._require_closed(terms, requirement, link)
        if self._nodes(name, requirement.extras):
            return self._require_open(terms, requirement, link)
        torch = self.candidate("torch")
        self._leave_unread("torch", f"{torch.index if torch else 'no index'} does not list {name}")
        return False

    def _leave_unread(self, name: str, reason: str) -> None:
        number = self.session.number[name]
        self._unread[number, self.search.domains[number]] = reason

    def _require_closed(self, terms: _Terms, requirement: Requirement, link: Link) -> bool:
        """Add a requirement on a distribution of the problem; return whether it was added."""
        name, specifier = requirement.name, requirement.specifier
        variable = self.problem.variables.get(name)
        if variable is None:
            text = f"{link.predicate}, which the catalog does not have for the backend"
            self.search.add(terms, link._replace(object="", predicate=text))
            return False
        allowed = variable.present if specifier is None else variable.allowed_by(str(specifier))
        if not allowed and link.subject == "torch" and name in TRITON_NAMES:
            torch = self.candidate("torch")
            listed = f"{torch.index} does not list it" if torch and torch.index else "no index lists it"
            self._leave_unread("torch", f"{requirement.text} has no version in the catalog, and {listed}")
            return False
        self.search.add({**terms, self.session.number[name]: variable.everything & ~allowed}, link)
        return True

    def _require_open(self, terms: _Terms, requirement: Requirement, link: Link) -> bool:
        """Add a requirement on any other distribution; return whether a project may satisfy it."""
        obstacle = self._obstacle_to(requirement)
        nodes = [] if obstacle else self._nodes(requirement.name, requirement.extras)
        if not nodes:
            text = f"{link.predicate}, {obstacle or 'which no index has'}"
            if is_for_cuda(requirement.name):
                project = link.subject.partition("[")[0]
                self._needing_cuda.setdefault(project, (link.version, requirement.name))
            self.search.add(terms, link._replace(object="", predicate=text))
        for choices in nodes:
            allowed = choices.allowed_by(requirement.specifier)
            excluded = choices.everything & ~allowed & terms.get(choices.number, -1)  # it may require itself
            why = self._but_url(choices, allowed) or ("" if allowed else ", which matches no release")
            predicate = link.predicate + why
            self.search.add(
                {**terms, choices.number: excluded},
                link._replace(object=choices.key, predicate=predicate),
            )
        return bool(nodes)

    def _obstacle_to(self, requirement: Requirement) -> str:
        """Return the reason why no project can satisfy a requirement; empty if a project may."""
        name = requirement.name
        if is_for_cuda(name):
            return "which is for CUDA"
        if requirement.url and not self.index.url(name):
            return "whose URL is used only if the request contains it"
        return ""

    def _but_url(self, choices: Choices, allowed: int) -> str:
        """Return the end of a message about a requirement that a direct reference does not meet."""
        if allowed or not self.index.url(choices.name):
            return ""
        return f", but the URL of {choices.name} points to {choices.releases[0].version}"

    # Distributions of the catalog

    def _load_closed(self, number: int, mask: int) -> None:
        """Add the requirements of a distribution of the catalog, as far as an index has its metadata."""
        name = self._names[number]
        candidate = self.problem.variables[name].candidate(mask.bit_length() - 1)
        if candidate.kind != "distribution" or candidate.origin == "preinstalled":
            return
        if candidate.release is not None:
            known = {*self.session.number, *self._bound}
            for row in self.rows_of(name):
                if row.on not in known and applies(row, candidate.release):
                    self._add_row(row, name, {number: mask}, candidate.version)
        files = self._files(candidate, number, mask)
        if not files:
            return
        try:
            _, indexes = self.index.offered(candidate, self.candidate("torch"))
            metadata = indexes.metadata(files, allow_dynamic=candidate.origin == "build")
        except (EnvironmentLacksError, SourceError) as error:
            self._unread[number, mask] = error.message
            return
        if metadata is None:
            self._unread[number, mask] = "no index has the metadata"
            return
        try:
            for extra in ("", *self.extras_of(name)):
                self._require(number, mask, f"{name}[{extra}]" if extra else name, metadata, extra)
        except (UsageError, ValueError) as error:
            self._unread[number, mask] = f"a requirement in its metadata is invalid: {error}"

    def _files(self, candidate: Candidate, number: int, mask: int) -> Sequence[File]:
        """Return the files of a candidate for the most preferred Python; exclude the Pythons without any."""
        release = candidate.release
        try:
            offered, indexes = self.index.offered(candidate, self.candidate("torch"))
        except (EnvironmentLacksError, SourceError) as error:
            self._unread[number, mask] = error.message
            return []
        if release is not None and release.git is not None:
            return []
        if release is not None and (release.sdist or release.wheel) and offered:
            return offered
        files = self.targets.files(offered)
        if release is not None and is_elsewhere(release) and offered:
            fit = self.targets.fit(offered)
            source = release.source
            missing = self.targets.allowed & ~fit.pythons
            text = f"has no wheel for {self.targets.names(missing)} on x86_64" if missing else ""
            if missing:
                link = Link(candidate.name, "", candidate.version, text, source)
                self.search.add({number: mask, **self._when(missing)}, link)
            for glibc, pythons in fit.wheels.items():
                terms = {number: mask, **self._when(pythons)}
                terms[self.session.number["glibc"]] = self.targets.older_glibc(glibc)
                link = Link(
                    candidate.name, "", candidate.version, f"requires glibc 2.{glibc} or newer", source
                )
                self.search.add(terms, link)
        elif not files:
            url = indexes.urls[0] if len(indexes.urls) == 1 else ""
            listed = f"{url} does not list its files" if url else "no index lists its files"
            self._unread[number, mask] = listed
        return files


def _patch_release(request: Request) -> str:
    """Return the patch release of Python that a request pins; empty if it pins none."""
    for requirement in request.requirements:
        if requirement.name == "python" and requirement.specifier is not None:
            for clause in requirement.specifier:
                if clause.operator == "==" and clause.version.count(".") == 2 and "*" not in clause.version:  # noqa: PLR2004
                    return clause.version
    return ""


def _override_hint(project: str, required: str) -> str:
    """Return a hint to resolve a project without a distribution that it requires."""
    override = f"{required}; sys_platform == 'never'"
    return f"If {project} works without {required}, write `{override}` into a file for --override."


def _brackets(requirement: Requirement) -> str:
    return f"[{','.join(requirement.extras)}]" if requirement.extras else ""
