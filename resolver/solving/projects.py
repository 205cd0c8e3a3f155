"""The projects of indexes as variables of the search, and which of their releases may be used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial, reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.compiling.clauses import REQUEST, libstdcxx_by
from resolver.compiling.distributions import WITHIN, beyond_bounds
from resolver.compiling.known_bad import bad_releases
from resolver.compiling.problem import ABSENT, ALWAYS, Link, bits, is_prerelease, names_prerelease
from resolver.errors import TooLargeError
from resolver.indexes import InstalledFiles
from resolver.model import layer
from resolver.requirements import TRITON_NAMES, has_rocm_release
from resolver.solving.rules import EVERYWHERE, Exclusion, RuleContext, judge
from resolver.solving.search import is_required
from resolver.solving.states import Choices, ProjectState, Terms
from resolver.solving.world import LENIENT, STRICT, Part, is_limit
from resolver.versions import join_words, parse_specifier, satisfies

if TYPE_CHECKING:
    from resolver.compiling.problem import Variable
    from resolver.environment import Environment
    from resolver.facts.schema import KnownBad, ProvenSet, Requires
    from resolver.indexes import File, ProjectRelease
    from resolver.solving.rules import Judged
    from resolver.solving.world import World

_MOST_CHECKED = 25
"""Number of releases to check at a time until one can be installed."""
_MOST_UNREADABLE = 5
"""A project is not considered any more after this many releases whose metadata cannot be read."""
_MOST_PROJECTS = 2_000
"""Number of projects and extras in a search; large environments have 500."""
_MOST_PASSED = 3
"""Number of releases before an sdist among which a release with a wheel is preferred to it."""
_FIRST = (-1, 0, 0, "")
_WHEELS_ONLY = layer("python")[0] - 0.5


class Projects(Part):
    """The projects that the search has met.

    `states` has them by name, `by_number` the variables of projects and of their extras, and `skipped` the
    releases that could not be considered, with the reason.
    """

    def __init__(self, world: World, keep: Mapping[str, str]) -> None:
        super().__init__(world)
        self.states: dict[str, ProjectState] = {}
        self.by_number: dict[int, Choices] = {}
        self.skipped: dict[str, str] = {}
        self.selectors: dict[str, int] = {}
        """By id of a proven set that may limit projects, the variable that decides whether it does."""
        self._sets: dict[int, Mapping[str, str]] = {}
        """The versions in these sets, by number of the variable."""
        self._keep = keep
        self._preferring: dict[int, Choices] = {}
        """The projects of which only wheels may be used, if that is possible, by number of their variable."""
        self._lenient = -1
        """The variable that decides whether some patch releases of Python are enough; -1 if not needed."""

    def node(self, name: str) -> Choices | None:
        """Return the variable of a project that the search has met."""
        return self.states[name].nodes[""] if name in self.states else None

    def nodes(self, name: str, extras: Iterable[str] = ()) -> list[Choices]:
        """Return the variables of a project and of its extras; an empty list if no index has it."""
        project = self._project(name)
        return [project, *(self._extra(project, extra) for extra in extras)] if project else []

    def _project(self, name: str) -> Choices | None:
        """Return the variable of a project, with everything that is known of it before a release is read."""
        known = self.node(name)
        releases = None if known else self.index.candidates(name, self.world.torches())
        if releases is None:
            return known
        state = ProjectState(name, releases, self._allows_prereleases(name, releases))
        choices = self._add(Choices(state, ""))
        self.states[name] = state
        self._add_facts(choices)
        for limit in self.world.limits.get(name, ()):
            text = limit.reason or f"you limited {name} to {limit.specifier}"
            excluded = choices.everything & ~choices.allowed_by(limit.specifier) & ~ABSENT
            pythons = self.targets.applying(limit.marker)
            if pythons:
                terms = {**self.world.when(pythons), choices.number: excluded}
                self.search.add(terms, Link("", name, "", text, REQUEST))
        for selector, versions in self._sets.items():
            if name in versions:
                allowed = choices.allowed_by(parse_specifier(f"=={versions[name]}"))
                others = choices.everything & ~allowed & ~ABSENT
                self.search.add({selector: STRICT, choices.number: others}, ALWAYS)
        if name in TRITON_NAMES:
            self._exclude_other_tritons(choices)
        return choices

    def may_use(self, row: ProvenSet) -> None:
        """Let assumptions decide whether projects have only the versions in a proven set."""
        number = self.selectors[row.id] = self.world.add_selector(_FIRST)
        self._sets[number] = row.picks

    def _extra(self, project: Choices, extra: str) -> Choices:
        """Return the variable of an extra, which requires its project."""
        known = project.project.nodes.get(extra)
        if known is not None:
            return known
        # That both have the same release would be an incompatibility for each release. It is added for the
        # release that is decided: `admit` and `same_as_project`.
        choices = self._add(Choices(project.project, extra))
        self.search.add({choices.number: choices.everything & ~ABSENT, project.number: ABSENT}, ALWAYS)
        return choices

    def _add(self, choices: Choices) -> Choices:
        """Add the variable of a project or an extra to the search, and return it."""
        if len(self.by_number) >= _MOST_PROJECTS:
            msg = (
                f"The search stopped after {_MOST_PROJECTS} projects and extras without an answer, "
                f"at {choices.key}."
            )
            raise TooLargeError(msg, hint="Request fewer packages, or pin or exclude those that require it.")
        number = choices.number = self.search.add_variable(choices.everything)
        self.session.rank[number] = self.problem.layer(choices.name)[0], 0, number, choices.key
        self.by_number[number] = choices.project.nodes[choices.extra] = choices
        return choices

    def _exclude_other_tritons(self, choices: Choices) -> None:
        present = choices.everything & ~ABSENT
        for name in TRITON_NAMES:
            other: Variable | Choices | None = self.node(name) or self.problem.variables.get(name)
            if other is None or other is choices or self.world.installed.keys() & {name, choices.name}:
                continue
            number = other.number if isinstance(other, Choices) else self.session.number[name]
            link = Link(
                choices.name, name, "", f"installs the same files as {name}", self.index.indexes.urls[0]
            )
            self.search.add({choices.number: present, number: other.everything & ~ABSENT}, link)

    def _add_facts(self, choices: Choices) -> None:
        self._require_image(choices)
        if has_rocm_release(choices.name):
            self._tie_to_platform(choices)
        for row in self.world.rows_of(choices.name):
            releases = choices.allowed_by(parse_specifier(row.releases) if row.releases else None)
            if row.is_of_wheel:
                releases = self._with_wheel(choices, releases)
            self.add_row(row, choices.name, {choices.number: releases}, row.releases.removeprefix("=="))

    def _require_image(self, choices: Choices) -> None:
        """Require a base image with ROCm for a project that uses the system's; exclude it for CPUs."""
        package = self.catalog.package.get(choices.name)
        source = package.source if package else ""
        if package and package.system_rocm and self.world.request.target.backend == "cpu":
            link = Link(choices.name, "", "", "uses ROCm, which the CPU backend does not have", source)
            self.search.add({choices.number: choices.everything & ~ABSENT}, link)
            return
        allowed = self.world.images_for(choices.name)
        if allowed:
            link = Link(choices.name, "base-image", "", "uses the ROCm of a base image", source)
            images = self.problem.variables["base-image"].everything
            terms = {
                choices.number: choices.everything & ~ABSENT,
                self.session.number["base-image"]: images & ~allowed,
            }
            self.search.add(terms, link)

    def _tie_to_platform(self, choices: Choices) -> None:
        """Require the ROCm that the kernel driver limits to be that of the pip packages."""
        rocm, number = self.problem.variables["rocm"], self.session.number["rocm"]
        for bit, release in enumerate(choices.releases, start=1):
            text = f"is of ROCm {release.version}"
            link = Link(choices.name, "rocm", release.version, text, self.index.indexes.urls[0])
            excluded = rocm.everything & ~rocm.of_versions([release.version])
            self.search.add({choices.number: 1 << bit, number: excluded}, link)

    def _with_wheel(self, choices: Choices, releases: int) -> int:
        """Return the releases with a file that has the hash of a wheel that was read, or has no hash."""
        read = {row.sha256 for row in self.catalog.wheel.values() if row.package == choices.name}
        return sum(
            1 << bit
            for bit in bits(releases)
            if bit and any(not file.sha256 or file.sha256 in read for file in choices.release(bit).files)
        )

    def add_row(self, row: Requires, name: str, terms: Terms, version: str) -> None:
        """Add a requirement of the catalog if one of its ends is outside the catalog."""
        versions = [text.removeprefix("==") for text in row.versions]
        predicate = f"requires {row.on} {join_words(versions, most=8)}"
        if not versions:
            predicate = f"contains no code for {', '.join(self.request.target.gfx)}"
        link = Link(name, row.on, version, predicate, row.source)
        if row.on == "gfx":
            if not row.partial and not {*self.request.target.gfx} <= {*row.versions}:
                link = replace(link, object="", predicate=f"contains code for {join_words(versions, most=8)}")
                self.search.add(terms, link)
            return
        if row.on == "python" and row.is_of_wheel and name in self.states:
            return  # the index knows the files for every Python
        when_present = is_limit(row)
        variable: Variable | Choices | None = self.problem.variables.get(row.on)
        number = self.session.number.get(row.on, -1)
        if variable is None and row.on not in self.world.bound:
            if when_present and row.on not in self.states:
                return
            variable = self._project(row.on)
            number = variable.number if variable else -1
        if variable is None:
            return
        allowed = (ABSENT if when_present else 0) | _allowed(variable, row.versions)
        if not allowed and row.on in self.problem.variables:
            link = replace(link, predicate=f"{predicate}, which the catalog does not have")
        if beyond := _allowed(variable, beyond_bounds(row)) & ~allowed:
            way = self.world.way_to_use(name)
            within = self.problem.variables[self.session.names[way]].of_versions(WITHIN)
            self.search.add({**terms, way: within, number: beyond}, link)
        self.search.add({**terms, number: variable.everything & ~allowed & ~beyond}, link)

    def admit(self, choices: Choices, mask: int) -> bool:
        """Add what follows from the choice of a release; return whether its metadata can be read."""
        number, bit = choices.number, mask.bit_length() - 1
        is_installed = isinstance(choices.release(bit), InstalledFiles)
        if choices.extra:
            project = choices.project.nodes[""]
            self.search.add({number: mask, project.number: project.everything & ~mask}, ALWAYS)
            return not is_installed and bool(self.files_of(choices, bit))
        # Propagation can leave a single release, which `first_usable` then never judges.
        if self.is_first(choices, bit):
            for exclusion, is_strict in self.exclusions(choices, bit):
                self.exclude(choices, [bit], exclusion, is_strict=is_strict)
        if not is_installed and not self.files_of(choices, bit):
            return False
        if not is_installed and self.judge(choices, bit).source_only:
            self.prefer_wheels(choices)
        for extra in choices.project.nodes.values():
            if extra.extra:
                others = extra.everything & ~mask & ~ABSENT
                self.search.add({number: mask, extra.number: others}, ALWAYS)
        return not is_installed

    def same_as_project(self, choices: Choices, domain: int) -> int:
        """Return the release of an extra: the release of its project, which is decided first."""
        project = choices.project.nodes[""]
        mask = self.search.domains[project.number]
        others = choices.everything & ~mask & ~ABSENT
        self.search.add({project.number: mask, choices.number: others}, ALWAYS)
        return domain & mask or domain & -domain

    def judge(self, choices: Choices, bit: int) -> Judged:
        """Return what the rules find about a release, if every patch release of a Python must install it."""
        judged = choices.project.judged.get(bit)
        if judged is None:
            judged = choices.project.judged[bit] = judge(choices.release(bit), self._context(choices))
        return judged

    def _context(self, choices: Choices, *, any_patch: bool = False) -> RuleContext:
        name = choices.name
        return RuleContext(
            self.request.target.date,
            self.targets,
            partial(self.is_pinned, name),
            choices.project.allows_prereleases,
            name,
            self.request.excluded,
            partial(self._known_problem, name),
            any_patch,
        )

    def is_pinned(self, name: str, version: str) -> bool:
        """Return whether the request names this release of a project exactly."""
        return any(
            clause.operator in {"==", "==="} and requirement.specifier.allows(version)
            for requirement in self.world.stated(name)
            if requirement.specifier is not None
            for clause in requirement.specifier
            if not clause.version.endswith(".*")
        )

    def _known_problem(self, name: str, version: str) -> str:
        """Return why a known-bad row excludes a release, alone; empty if none does."""
        rows = self._bad_releases.get(name, ())
        if not rows or self.world.is_for_cpu(name):
            return ""
        kept = name in self.world.installed
        bad = (row for row in rows if satisfies(version, row.combination[name]))
        return next((row.excludes for row in bad if not kept or row.effect == "refuse"), "")

    @cached_property
    def _bad_releases(self) -> dict[str, list[KnownBad]]:
        return bad_releases(self.world.catalog, self.request.target)

    def _allows_prereleases(self, name: str, releases: Iterable[ProjectRelease]) -> bool:
        return (
            any(names_prerelease(stated.specifier) for stated in self.world.stated(name))
            or bool(self.index.url(name))
            or all(is_prerelease(release.version) for release in releases)
        )

    def first_usable(self, choices: Choices, domain: int) -> int:
        """Return the preferred release that may be used; exclude the releases before it."""
        domains, number = self.search.domains, self.session.number
        lenient = domains[self._lenient] if self._lenient >= 0 else 0
        state = domain, domains[number["python"]], domains[number["glibc"]], lenient
        if choices.project.usable[0] != state:
            choices.project.usable = state, self._first_usable(choices, domain)
        return choices.project.usable[1]

    def _first_usable(self, choices: Choices, domain: int) -> int:
        # Releases with the same reason become one incompatibility, which is one line of a conflict.
        unusable: dict[tuple[str, int, int, bool], list[int]] = {}
        mask = domain & -domain
        left = domain
        for _ in range(_MOST_CHECKED):
            mask = self._preferred(choices, left)
            exclusions = self.exclusions(choices, mask.bit_length() - 1)
            if self.is_first(choices, mask.bit_length() - 1):
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
            self.exclude(choices, excluded, Exclusion(text, python, glibc), is_strict=is_strict)
        return mask

    def is_first(self, choices: Choices, bit: int) -> bool:
        """Return whether the exclusions of a release were not added yet, and remember that they are now."""
        is_first = not choices.project.excluded >> bit & 1
        choices.project.excluded |= 1 << bit
        return is_first

    def exclusions(self, choices: Choices, bit: int) -> list[tuple[Exclusion, bool]]:
        """Return the exclusions of a release, and whether each may be lifted for some patch releases."""
        if choices.name in self.world.installed:  # it is there, whatever an index says of its files
            problem = self._known_problem(choices.name, choices.release(bit).version)
            return [(Exclusion(problem), False)] if problem else []
        strict = self.judge(choices, bit).exclusions
        if not strict:
            return []
        anyway = judge(choices.release(bit), self._context(choices, any_patch=True)).exclusions
        # What excludes a release for every patch release of a Python is certain. What excludes it for some is
        # strict: it yields if nothing else helps.
        return [(one, False) for one in anyway] + [(one, True) for one in strict if one not in anyway]

    def _is_excluded_now(self, exclusions: Iterable[tuple[Exclusion, bool]]) -> bool:
        """Return whether exclusions leave no Python and glibc of the current choices."""
        domains, number = self.search.domains, self.session.number
        python, glibc = domains[number["python"]], domains[number["glibc"]]
        lenient = self._lenient >= 0 and domains[self._lenient] == LENIENT
        for exclusion, is_strict in exclusions:
            if not (is_strict and lenient) and not glibc & ~exclusion.glibc:
                python &= ~exclusion.python
        return not python

    def exclude(
        self, choices: Choices, excluded: Sequence[int], exclusion: Exclusion, *, is_strict: bool
    ) -> None:
        """Add an exclusion of releases, which may be lifted for some patch releases if it is strict."""
        first, *others = [choices.release(bit).version for bit in excluded]
        source = self.index.url(choices.name) or self.index.indexes.urls[0]
        terms = {choices.number: sum(1 << bit for bit in excluded)}
        if exclusion.python != EVERYWHERE:
            terms |= self.world.when(exclusion.python)
        if exclusion.glibc != EVERYWHERE:
            terms[self.session.number["glibc"]] = exclusion.glibc
        if is_strict:
            if self._lenient < 0:
                self._lenient = self.world.add_selector(_FIRST)
            terms[self._lenient] = STRICT
        link = Link(choices.name, "", first, exclusion.text, source, others=tuple(others))
        self.search.add(terms, link)

    def _with_wheel_nearby(self, choices: Choices, left: int, mask: int) -> int:
        """Return a release with a wheel that is little older than an sdist; else the sdist."""
        python = self.search.domains[self.session.number["python"]]
        if not self.is_source(choices, mask.bit_length() - 1, python) or self._keep.get(choices.name):
            return mask
        other = mask
        for _ in range(_MOST_PASSED):
            left &= ~other
            if not left or self.request.prefer == "oldest":
                break
            other = self._preferred(choices, left)
            bit = other.bit_length() - 1
            if not self._is_excluded_now(self.exclusions(choices, bit)) and not self.is_source(
                choices, bit, python
            ):
                choices.project.passed = choices.release(mask.bit_length() - 1).version
                return other
        return mask

    def newest(self, choices: Choices) -> str:
        """Return the newest release that the request and the rules allow for the chosen Python."""
        stated = (choices.allowed_by(one.specifier) for one in self.world.stated(choices.name))
        allowed = bits(reduce(and_, stated, choices.everything & ~ABSENT))
        usable = (bit for bit in allowed if not self._is_excluded_now(self.exclusions(choices, bit)))
        return next((choices.release(bit).version for bit in usable), "")

    def is_source(self, choices: Choices, bit: int, python: int) -> bool:
        """Return whether none of some Pythons has a wheel of a release."""
        if isinstance(choices.release(bit), InstalledFiles) or self.index.url(choices.name):
            return False
        return not python & ~ABSENT & ~self.judge(choices, bit).source_only

    def prefer_wheels(self, choices: Choices) -> None:
        """Let the search decide, before Python, whether only wheels of a project may be used."""
        if choices.project.wheels_only >= 0 or self.index.url(choices.name):
            return
        number = self.world.add_selector((_WHEELS_ONLY, 0, choices.number, choices.name))
        choices.project.wheels_only = number
        self._preferring[choices.number] = choices
        # Its rank is before choices that were made, so these are made again.
        self.search.restart()  # it is decided before Python

    def exclude_sources(self) -> bool:
        """Exclude what has no wheel from the projects that must be present and whose wheels may be enough.

        Return whether anything was excluded. Only the releases that are left are judged: of a project that
        nothing requires yet, or of which one release is required, no others can matter, and they may have
        thousands of files.
        """
        is_changed = False
        for number in sorted(self._preferring.keys() & self.search.touched) if self._preferring else ():
            choices, domain = self._preferring[number], self.search.domains[number]
            state = choices.project
            grown = set[int]()
            for bit in bits(domain & ~state.seen if is_required(domain) else 0):
                judged = self.judge(choices, bit)
                if not judged.is_excluded and (pythons := judged.source_only):
                    state.sources[pythons] = state.sources.get(pythons, 0) | 1 << bit
                    grown.add(pythons)
                state.seen |= 1 << bit
            for pythons in sorted(grown):
                link = Link(choices.name, "", "", "has no wheel", self.index.indexes.urls[0])
                terms = {state.wheels_only: STRICT, number: state.sources[pythons]}
                self.search.add({**terms, **self.world.when(pythons)}, link)
                is_changed = True
        return is_changed

    def _preferred(self, choices: Choices, mask: int) -> int:
        kept = mask & choices.of_version(self._keep.get(choices.name, ""))
        return kept or choices.preferred(mask, oldest=self.request.prefer == "oldest")

    def files_of(self, choices: Choices, bit: int) -> Sequence[File]:
        """Return the files of a release that any Python may install; none if it is excluded."""
        files = choices.project.files.get(bit)
        if files is None:
            judged = self.judge(choices, bit)
            files = [] if judged.is_excluded else self.targets.files(judged.files)
            choices.project.files[bit] = files
        return files

    def chosen(self) -> Iterator[tuple[Choices, int]]:
        """Yield the projects of the answer, each with the number of the bit of its release."""
        for state in self.states.values():
            choices = state.nodes[""]
            domain = self.search.domains[choices.number]
            if is_required(domain):
                yield choices, domain.bit_length() - 1

    def to_install(self, choices: Choices, bit: int, environment: Environment) -> tuple[File, ...]:
        """Return the files of a release that the chosen Python may install; none if it is preinstalled."""
        if choices.name in self.world.installed or isinstance(choices.release(bit), InstalledFiles):
            return ()
        key = bit, environment
        known = choices.project.to_install.get(key)
        if known is None:
            files = self.judge(choices, bit).files
            found = environment.installable(files)
            found = found or self.world.environment(any_patch=True).installable(files)
            known = choices.project.to_install[key] = tuple(found)
        return known

    def skip(self, choices: Choices, mask: int, problem: str, *, is_read: bool = False) -> None:
        """Exclude a release with bad metadata; after a few that cannot be read, also the rest."""
        version = choices.release(mask.bit_length() - 1).version
        self.skipped[f"{choices.name} {version}"] = problem
        files = self.files_of(choices, mask.bit_length() - 1)
        source = self.index.url(choices.name) or files[0].index or self.index.indexes.urls[0]
        self.search.add({choices.number: mask}, Link(choices.key, "", version, problem, source))
        if is_read:
            return
        state = choices.project
        state.unreadable |= mask
        if state.unreadable.bit_count() == _MOST_UNREADABLE:
            text = f"was not read, because {_MOST_UNREADABLE} releases cannot be read"
            left = choices.everything & ~ABSENT & ~state.unreadable & ~state.read
            link = Link(f"the rest of {choices.key}", "", "", text, source)
            self.search.add({choices.number: left}, link)


def _allowed(variable: Variable | Choices, versions: Sequence[str]) -> int:
    if isinstance(variable, Choices):
        masks = [variable.allowed_by(parse_specifier(text)) for text in versions]
    elif variable.name == "libstdcxx":
        return libstdcxx_by(versions)(variable)
    else:
        masks = [variable.allowed_by(text) for text in versions]
    return reduce(or_, masks, 0)
