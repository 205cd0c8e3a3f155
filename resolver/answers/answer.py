"""What a solver has found, for the lock, the confirmation and the warnings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from resolver.compiling.distributions import beyond_bounds
from resolver.compiling.problem import Pick
from resolver.errors import EnvironmentLacksError, SourceError
from resolver.indexes import InstalledFiles, judged
from resolver.model import Fact, Notice
from resolver.requirements import has_rocm_release, required_name
from resolver.solving.search import is_required
from resolver.solving.states import Decided
from resolver.solving.world import Part, is_limit
from resolver.versions import join_words, parse_specifier, satisfies, version_key

if TYPE_CHECKING:
    from resolver.environment import Environment
    from resolver.facts.schema import Requires
    from resolver.indexes import File, Metadata
    from resolver.model import Edge, Requirement
    from resolver.solving.solver import Solver


_LEFT_OUT = {"left-out", "url-not-locked"}
"""The ids of warnings about requirements that are known, and are not in the answer."""
_ROCM_EXTRA = re.compile(r"(^|-)(rocm|hip|amd)(-|\d|$)")
"""Extras for AMD GPUs, such as ``srt-hip`` or ``rocm7-local``."""


class Recorded(msgspec.Struct):
    """What is known of the requirements of a distribution, for the confirmation."""

    version: str = ""
    """The version in the metadata of a release of an index; empty if it was not read."""
    requires: tuple[str, ...] = ()
    """The requirements in its metadata."""
    extras: tuple[str, ...] = ()
    """The extras that its metadata provides."""
    facts: list[tuple[str, list[str]]] = []
    """What catalog, index and content state: a text, and the requirements of which one must be met."""
    is_built: bool = False
    """Whether the catalog decides about its requirements, because a build may change its metadata."""
    is_open: bool = False
    """Whether some of its requirements could not be read."""


class Answer(Part):
    """The solution of a solver, which must have found one."""

    def __init__(self, solver: Solver) -> None:
        super().__init__(solver.world)
        self.projects = solver.projects
        self.contents = solver.contents
        self._requirements = solver.requirements
        self.solution = self.world.solution
        self.skipped = solver.projects.skipped

    @cached_property
    def picks(self) -> list[Pick]:
        """The releases that the search added; a preinstalled distribution has no files."""
        return list(self._added())

    @cached_property
    def rules(self) -> dict[str, list[tuple[str, Fact]]]:
        """The catalog's rules that tie a pick to ROCm, and those that require it because of ROCm, by name.

        Each is with the name of the distribution that it is about.
        """
        rules: dict[str, list[tuple[str, Fact]]] = {}
        for pick in self.picks:
            for row in self.world.rows_of(pick.name):
                names = {pick.name} if row.on == "rocm" and not row.when_present else set()
                names |= {row.on} if row.backend == "rocm" else set()
                if names and self.is_about(row, pick):
                    versions = join_words([text.removeprefix("==") for text in row.versions])
                    fact = Fact.of(row, f"{pick.name} {pick.version} requires {row.on} {versions}")
                    for name in names:
                        rules.setdefault(name, []).append((pick.name, fact))
        return rules

    def recorded(self, edges: Iterable[Edge]) -> dict[str, Recorded]:
        """Return what is known of the requirements of each distribution; `edges` are those of the catalog."""
        picks = {pick.name: pick for pick in self.picks}
        unread = self.unread()
        recorded = {name: Recorded(is_open=name in unread) for name in (*self.solution, *picks)}
        for edge in edges:
            if edge.object in recorded:
                text = f"{edge.subject} requires {edge.object}"
                recorded[edge.subject].facts.append((text, [edge.object]))
        left_out = {notice.subject for notice in self.lacking() if notice.id in _LEFT_OUT}
        for name, known in recorded.items():
            metadata = self.metadata(name)
            if metadata is not None:
                known.requires = metadata.requires
                if left_out:
                    known.requires = tuple(
                        line for line in metadata.requires if required_name(line) not in left_out
                    )
                known.extras = metadata.extras
                known.is_built = metadata.dynamic and name not in picks
            for row in self._stated_rows(name, picks):
                allowed = [f"{row.on}{text}" for text in row.versions + beyond_bounds(row)]
                known.facts.append((f"{name} requires {row.on}", allowed))
            if pick := picks.get(name):
                known.facts += self._facts_of_pick(pick)
                known.version = metadata.version if metadata is not None else ""
        return recorded

    def metadata(self, name: str) -> Metadata | None:
        """Return the metadata of a distribution; None if it was not read."""
        if not self.was_read(name):
            return None
        is_open = name in self.projects.states and "" in self.projects.states[name].nodes
        candidate = None if is_open else self.world.candidate(name)
        files = self.files_read(name) if is_open else self.files_of(name)
        try:
            if candidate is not None and not files:  # the search has read the file for another Python
                files, _, _ = self.index.offered(candidate, self.world.candidate("torch"))
            return self.index.requirements(files, candidate)
        except (EnvironmentLacksError, SourceError):
            return None

    def _stated_rows(self, name: str, picks: Mapping[str, Pick]) -> Iterator[Requires]:
        """Yield the catalog's rows about a distribution if one of both ends is a project of an index."""
        candidate = self.world.candidate(name)
        release = candidate.release if candidate else None
        for row in self.world.rows_of(name):
            is_known = row.on in picks or (name in picks and row.on in self.solution)
            if not is_known or is_limit(row) or row.on in {"gfx", "python"}:
                continue
            if name in picks:
                is_about = self.is_about(row, picks[name])
            else:
                is_about = row.on not in self.solution and (release is None or row.applies_to(release))
            if is_about:
                yield row

    @cached_property
    def beyond_inferred(self) -> dict[str, list[Fact]]:
        """The inferred bounds that the result does not keep, by the name of the distribution they are of."""
        picks = {pick.name: pick for pick in self.picks}
        found: dict[str, list[Fact]] = {}
        for name in (*self.solution, *picks):
            for row in self._stated_rows(name, picks):
                version = self.version_of(row.on)
                if beyond_bounds(row) and not any(satisfies(version, text) for text in row.versions):
                    text = f"{name} {self.version_of(name)} requires {row.on} {join_words(row.versions)}"
                    fact = Fact.of(row, f"{text}, and whether others work was not judged")
                    found.setdefault(name, []).append(fact)
        return found

    def _facts_of_pick(self, pick: Pick) -> Iterator[tuple[str, list[str]]]:
        """Yield what follows from the version and the content of a release of an index."""
        if pick.name != "rocm" and has_rocm_release(pick.name):
            yield f"{pick.name} is of ROCm {pick.version}", [f"rocm=={pick.version}"]
        content = self.contents.content_of(pick.files[0]) if pick.files else None
        if content is not None:
            judgement = judged(content, self.request.target.gfx)
            if judgement.state == "does-not-fit":
                yield f"{pick.name} {judgement.evidence}", []
            if content.rocm:
                yield f"{pick.name} requires rocm{content.rocm}", [f"rocm{content.rocm}"]

    def _added(self) -> Iterator[Pick]:
        domains = self.search.domains
        for choices, bit in self.projects.chosen():
            files = self.projects.to_install(choices, bit, self.environment)
            is_dynamic = bool(files) and self._decided(choices.number).is_dynamic
            extras = sorted(
                extra for extra, node in choices.project.nodes.items() if is_required(domains[node.number])
            )
            yield Pick(
                choices.name,
                choices.release(bit).version,
                files,
                tuple(filter(None, extras)),
                "inferred" if is_dynamic else "documented",
            )

    def _decided(self, number: int) -> Decided:
        """Return what the search knows of the value of a variable."""
        return self._requirements.decided.get((number, self.search.domains[number]), Decided())

    def _variables_of(self, name: str) -> list[int]:
        """Return the variables of a distribution in the search: of its project and extras, or the catalog."""
        state = self.projects.states.get(name)
        if state is not None:
            return [choices.number for choices in state.nodes.values()]
        return [self.session.number[name]] if name in self.session.number else []

    @cached_property
    def environment(self) -> Environment:
        """The chosen Python with its glibc."""
        return self.world.environment()

    def extras_for_rocm(self) -> dict[str, list[str]]:
        """Return the extras for ROCm of each requested project that has some, none of which is requested.

        What a project of the catalog needs for ROCm is in the catalog and in the solution.
        """
        unknown = self.world.asked.keys() - self.catalog.package.keys()
        found: dict[str, list[str]] = {}
        for pick in self.picks if self.request.target.backend == "rocm" else ():
            files = self.files_read(pick.name) if pick.name in unknown else ()
            metadata = self.index.requirements(files) if files and self.was_read(pick.name) else None
            extras = sorted(one for one in metadata.extras if _ROCM_EXTRA.search(one)) if metadata else []
            if extras and not {*extras} & {*pick.extras}:
                found[pick.name] = extras
        return found

    def replaced_for_cuda(self) -> Iterator[Notice]:
        """Yield a sentence for each pick that was chosen because a newer release requires CUDA."""
        for pick in self.picks:
            newer, required, hint = self._requirements.needing_cuda.get(pick.name, (pick.version, "", ""))
            if version_key(newer) > version_key(pick.version):
                uploaded = min((file.uploaded[:10] for file in self.files_read(pick.name)), default="")
                of_day = f" of {uploaded}" if uploaded else ""
                text = (
                    f"{pick.name} {pick.version}{of_day} was chosen because newer releases, such as {newer}, "
                    f"require {required}, which is for CUDA. {hint}"
                )
                yield Notice("newer-needs-cuda", pick.name, text)

    def passed_for_content(self) -> Iterator[Notice]:
        """Yield a sentence for each pick that was chosen because of what a newer release contains."""
        rocm = self.version_of("rocm")
        for pick in self.picks:
            passed = self.contents.passed(pick, rocm)
            if passed:
                text = f"{pick.name} {pick.version} was chosen because {passed}."
                yield Notice("newer-does-not-fit", pick.name, text)

    def passed_for_wheels(self) -> Iterator[Notice]:
        """Yield a sentence for each pick that was chosen because a newer release has no wheel.

        If something else excludes the newest release of a requested project, a wheel is not the reason.
        """
        for pick in self.picks:
            state = self.projects.states[pick.name]
            newer = state.passed
            if not newer or version_key(newer) <= version_key(pick.version):
                continue
            if pick.name not in self.world.asked or newer == self.projects.newest(state.nodes[""]):
                text = (
                    f"{pick.name} {pick.version} was chosen because {newer} has no wheel for "
                    f"{self.environment}. To build it, require {pick.name}=={newer}."
                )
                yield Notice("newer-has-no-wheel", pick.name, text)

    def files_of(self, name: str) -> tuple[File, ...]:
        """Return the files of a distribution of the catalog in the solution; empty if no index has them."""
        candidate = self.world.candidate(name)
        if candidate is None or candidate.origin == "preinstalled":
            return ()
        files, _, _ = self.index.offered(candidate, self.world.candidate("torch"))
        is_pinned = candidate.release is not None and (candidate.release.sdist or candidate.release.wheel)
        if is_pinned:
            return tuple(files)
        found = self.environment.installable(files)
        return tuple(found or self.world.environment(any_patch=True).installable(files))

    def files_read(self, name: str) -> Sequence[File]:
        """Return the files of a pick from which its metadata was read; none if it is only installed."""
        choices = self.projects.states[name].nodes[""]
        bit = self.search.domains[choices.number].bit_length() - 1
        return (
            () if isinstance(choices.release(bit), InstalledFiles) else self.projects.files_of(choices, bit)
        )

    def needs_newer_patch(self, pick: Pick) -> bool:
        """Return whether only some patch releases of the Python may install a pick."""
        environment = self.environment
        files = pick.files
        return bool(files) and not any(environment.allows_python(file.requires_python) for file in files)

    def version_of(self, name: str) -> str:
        """Return the version of a distribution in the result; empty if it has none."""
        choices = self.projects.node(name)
        if choices is None:
            return self.problem.version(self.solution, name)
        domain = self.search.domains[choices.number]
        return choices.release(domain.bit_length() - 1).version if is_required(domain) else ""

    def is_about(self, row: Requires, pick: Pick) -> bool:
        """Return whether a row of the catalog is about the release of a pick, or about one of its files."""
        if row.releases and not parse_specifier(row.releases).allows(pick.version):
            return False
        read = {wheel.sha256 for wheel in self.catalog.wheel.values() if wheel.package == pick.name}
        return not row.is_of_wheel or any(not file.sha256 or file.sha256 in read for file in pick.files)

    def lacking(self) -> Iterator[Notice]:
        """Yield a warning for each extra that brings nothing for the chosen Python, and what is left out."""
        python = self.search.domains[self.session.number["python"]]
        chosen = {pick.name for pick in self.picks}
        for (number, mask), decided in self._requirements.decided.items():
            if self.search.domains[number] == mask:
                found = dict.fromkeys(notice for notice, pythons in decided.lacking if pythons & python)
                yield from (one for one in found if one.id not in _LEFT_OUT or one.subject not in chosen)

    def was_read(self, name: str) -> bool:
        """Return whether the search has read the metadata of a distribution."""
        return any(self._decided(number).required is not None for number in self._variables_of(name))

    def unread(self) -> dict[str, str]:
        """Return the distributions of the solution whose metadata could not be read, with the reason."""
        return {
            self.session.names[number]: decided.unread
            for (number, mask), decided in self._requirements.decided.items()
            if decided.unread and self.search.domains[number] == mask
        }

    def requirements_of(self, name: str) -> list[tuple[str, str]]:
        """Return the names that a distribution requires in the result, with the requirements as written."""
        python = self.search.domains[self.session.number["python"]]
        return [
            (required, text)
            for number in self._variables_of(name)
            if is_required(self.search.domains[number])
            for required, text, pythons in self._decided(number).required or ()
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
