"""The requirements of the request and of decided releases, as incompatibilities of the search."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial, reduce
from itertools import islice
from operator import or_
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.compiling.clauses import REQUEST
from resolver.compiling.names import (
    build_for_rocm,
    hint_for_unknown,
    instead_of_cuda,
    is_unneeded,
    reject_wrong_name,
    stub,
)
from resolver.compiling.problem import ABSENT, Link, bits, is_prerelease
from resolver.errors import EnvironmentLacksError, NoVersionError, SourceError, UsageError
from resolver.indexes import InstalledFiles, evidence_against, uploaded_by
from resolver.model import Notice
from resolver.requirements import (
    TRITON_NAMES,
    closest_versions,
    is_for_cuda,
    is_rocm_package,
    parse_requirement,
    split_marker,
)
from resolver.solving.rules import EVERYWHERE, without_file
from resolver.solving.states import Decided
from resolver.solving.world import Part, is_of_pip
from resolver.versions import join_words, shorten

if TYPE_CHECKING:
    from datetime import date

    from resolver.environment import Environment
    from resolver.indexes import File, Metadata, PackageIndexes
    from resolver.model import Candidate, Requirement
    from resolver.solving.projects import Projects
    from resolver.solving.search import Assumption
    from resolver.solving.states import Choices, Terms
    from resolver.solving.world import World


_OF_EXTRA = re.compile(r"[^;@]*; extra ==(?!.* or )[^;]*")
"""A requirement that does not apply without an extra."""
_SOME_READ = 3
"""Number of releases of a project that were read before more are read at once."""
_MOST_FOR_EXTRA = 40
"""Number of releases of a project that are read to find one that provides an extra."""


class Requirements(Part):
    """Reads the metadata of decided releases, and adds what they require.

    `loaded` has the decided values whose requirements were added, `decided` what is known of decided values,
    and `needing_cuda` by distribution the first release that was rejected, the CUDA distribution that it
    requires, and what to do.
    """

    def __init__(self, world: World, projects: Projects) -> None:
        super().__init__(world)
        self._projects = projects
        self.loaded: set[Assumption] = set()
        self.decided: defaultdict[Assumption, Decided] = defaultdict(Decided)
        self.needing_cuda: dict[str, tuple[str, str, str]] = {}
        self._providers: dict[tuple[str, str], str] = {}
        """By project and extra, a release that provides the extra; empty if none was found."""
        self._look_ahead = LookAhead(
            world.index.indexes,
            self.request.target.date,
            self._is_decided,
        )

    def add_requests(self) -> None:
        """Add the demands of the request on projects of indexes."""
        requirements = self.request.requirements
        python = min(self.targets.environments, default=0)
        if python:
            environment = self.targets.environments[python]
            self._look_ahead.start(
                (one for one in requirements if environment.applies(one.marker)), environment
            )
        # The order in the request must not matter.
        for requirement in sorted(requirements, key=lambda requirement: (requirement.name, requirement.text)):
            for stated, when in self._replaced(requirement, requirement.marker):
                self._add_request(stated, when)

    def _replaced(
        self, requirement: Requirement, marker: str, extra: str = ""
    ) -> Iterator[tuple[Requirement, int]]:
        """Yield a requirement or its overrides, each with the Pythons for which it applies."""
        pythons = self.targets.applying(marker, extra)
        if extra:
            # What applies without the extra belongs to the project itself; here it would be a second fact.
            pythons &= ~self.targets.applying(marker)
        for stated in self.world.overrides.get(requirement.name, (requirement,)):
            applying = pythons if stated is requirement else pythons & self.targets.applying(stated.marker)
            if applying:
                yield stated, applying

    def _add_request(self, requirement: Requirement, pythons: int) -> None:
        name, when = requirement.name, self.world.when(pythons)
        # What the catalog decides is a demand of the problem already.
        is_closed = name in self.session.number and not is_of_pip(requirement)
        if is_closed and not (name == "triton" and self.triton.is_of_torch(name)):
            return
        if is_for_cuda(name) and name not in self.world.installed:
            backend = self.request.target.backend
            runs_on = "AMD GPUs" if backend == "rocm" else "CPUs"
            msg = f"{shorten(name)} is for CUDA and does not run on {runs_on}."
            raise UsageError(msg, hint=instead_of_cuda(self.world.catalog, name, backend))
        link = Link("", name, "", f"you asked for {requirement.text}", REQUEST, requirement.text)
        if self.triton.is_of_torch(name):
            self._require_triton(when, requirement, link)
            return
        if not requirement.url and name not in self.world.installed:
            reject_wrong_name(self.world.catalog, name)
        nodes = self._projects.nodes(name, requirement.extras)
        if not nodes:
            msg = (
                f"No index has the project {shorten(name)!r}. Searched: {', '.join(self.index.indexes.urls)}."
            )
            hint = hint_for_unknown(name, self.world.bound, self.index.candidates)
            raise NoVersionError(msg, name, hint=hint)
        is_kept = name in self.world.installed  # then its version is a fact, and the two contradict
        if not nodes[0].allowed_by(requirement.specifier) and not when and not is_kept:
            but = self._but_only(nodes[0], 0)
            msg = f"No release of {name} matches {shorten(requirement.text)!r}{but}."
            versions = [release.version for release in nodes[0].releases]
            hints = (closest_versions(requirement, versions), ignored := self.index.ignored(name))
            raise NoVersionError(
                msg, name, hint=" ".join(filter(None, hints)), is_published=bool(versions) and not ignored
            )
        for choices in nodes:
            allowed = choices.allowed_by(requirement.specifier)
            terms = {**when, choices.number: choices.everything & ~allowed}
            predicate = link.predicate + (self._but_only(choices, allowed) if is_kept else "")
            self.search.add(terms, replace(link, object=choices.key, predicate=predicate))

    def _require_triton(self, terms: Terms, requirement: Requirement, link: Link) -> None:
        limits = self.world.limits.get(requirement.name, ())
        for excluded, reason in self.triton.required(requirement, limits, link):
            self.search.add({**terms, **excluded}, reason)

    def _is_decided(self, requirement: Requirement) -> bool:
        """Return whether a requirement is decided without a project of its name on the indexes."""
        name = requirement.name
        has_url = bool(requirement.url or self.index.url(name))
        return has_url or is_rocm_package(name) or name in self.world.bound or name in self.session.number

    def load(self, number: int, mask: int) -> None:
        """Add the requirements of a chosen release, or exclude it if it cannot be used."""
        self.loaded.add((number, mask))
        choices = self._projects.by_number.get(number)
        if choices is None:
            # A selector is neither a project nor a part of the problem, and requires nothing.
            if number in self.session.names:
                self._load_closed(number, mask)
            return
        if not self._projects.admit(choices, mask):
            return
        metadata = self._metadata_of(choices, mask)
        if metadata is None:
            return
        choices.project.read |= mask
        try:
            self._require(number, mask, choices.key, metadata, choices.extra)
        except (UsageError, ValueError) as error:
            reason = f"has an invalid requirement: {str(error).rstrip('.')}"
            self._projects.skip(choices, mask, reason, is_read=True)

    def read_ahead(self, choices: Choices, mask: int, domain: int) -> None:
        """Read more releases of a project at once if its choice is another one that was not read yet.

        A project that was read has conflicts, so as many again are read, as by uv's ``BatchPrefetcher``.
        """
        state = choices.project
        count = state.read.bit_count()
        if count < _SOME_READ or mask & (state.read | state.ahead):
            return
        following = list(islice(bits(domain & ~(state.read | state.ahead | ABSENT)), count))
        state.ahead |= sum(1 << bit for bit in following)
        releases = (self._projects.files_of(choices, bit) for bit in following)
        self._look_ahead.read(files for files in releases if files)

    def _metadata_of(self, choices: Choices, mask: int) -> Metadata | None:
        """Return the metadata of a release; exclude the release if its metadata cannot be used."""
        bit = mask.bit_length() - 1
        try:
            metadata = self.index.requirements(self._projects.files_of(choices, bit))
        except SourceError as error:
            # Without the name of the file, releases with the same defect are one line of a conflict.
            reason = error.__cause__ or error.message.rstrip(".")
            self._projects.skip(choices, mask, f"has broken metadata: {reason}")
            return None
        if metadata is None:
            why = "has no metadata that can be read without running its code or downloading a large file"
            self._projects.skip(choices, mask, why)
        elif metadata.dynamic:
            self.decided[choices.number, mask].is_dynamic = True
        return metadata

    def _require(self, number: int, mask: int, subject: str, metadata: Metadata, extra: str = "") -> None:
        """Add what a release or one of its extras requires; raise `UsageError` or `ValueError` if invalid."""
        requirements = list(self._applying(metadata, extra))
        if requirements:
            # Only a guess of what to fetch: Python may be open, and this is the most preferred one.
            environment = self.targets.environments[min(self.targets.environments)]
            self._look_ahead.start((requirement for requirement, _ in requirements), environment)
        candidate, decided = self.world.candidate_at(number, mask), self.decided[number, mask]
        is_ours = candidate is not None and candidate.origin == "build"
        # The facts of the catalog take the place of what a build may change, but say nothing of extras.
        is_built = candidate is not None and metadata.dynamic and not extra
        if not is_built:
            self.world.add_closed({requirement.name for requirement, _ in requirements})
        if extra:
            self._judge_extra(number, mask, subject, metadata, extra)
        if decided.required is None:
            decided.required = []
        for requirement, pythons in requirements:
            name = requirement.name
            if is_unneeded(self.catalog, metadata.name, name):
                text = f"{name}, which {subject} requires, is left out: {metadata.name} works without it."
                decided.lacking.append((Notice("left-out", name, text), pythons))
                continue
            if is_built and self._is_url_to_add(requirement):
                text = (
                    f"{subject} {metadata.version} requires {requirement.text} ({metadata.source}). A URL is "
                    "used only if the request contains it, so this is not locked: add it to the request."
                )
                decided.lacking.append((Notice("url-not-locked", name, text), pythons))
                continue
            terms = {number: mask, **self.world.when(pythons)}
            brackets = f"[{','.join(requirement.extras)}]" if requirement.extras else ""
            text = f"{name}{brackets}{requirement.specifier or ''}"
            link = Link(subject, name, metadata.version, f"requires {text}", metadata.source)
            if self._require_one(terms, requirement, link, is_ours=is_ours, is_built=is_built):
                decided.required.append((name, text, pythons))

    def _judge_extra(self, number: int, mask: int, subject: str, metadata: Metadata, extra: str) -> None:
        """Exclude a release for the Pythons for which an extra that was asked for brings nothing.

        The extra is a requirement only if some release provides it, and a pinned release is what the user
        wants: otherwise, there is only a warning, as from pip.
        """
        name, version = metadata.name, metadata.version
        asked = [one.marker for one in self.world.asked.get(name, ()) if extra in one.extras]
        lost = reduce(or_, map(self.targets.applying, asked), 0) if asked else self.targets.all
        why = ""
        if extra not in metadata.extras:
            notice = Notice("extra-missing", name, f"{name} {version} does not provide the extra {extra!r}.")
            if asked and (provider := self._provider_of(number, name, extra)):
                why = f"lacks the extra {extra}, which {provider} has"
        else:
            others, brought = self._emptied(metadata, extra) if asked else (0, ())
            lost &= others & self.targets.allowed
            if not lost:
                return
            why = (
                f"requires {join_words(brought)} for the extra {extra}, but not on {self.targets.names(lost)}"
            )
            notice = Notice("extra-empty", name, f"{name} {version} {why}.")
        if why and not self._projects.is_pinned(name, version):
            lacks = extra if notice.id == "extra-missing" else ""
            link = Link(subject, "", version, why, metadata.source, lacks=lacks)
            self.search.add({number: mask, **self.world.when(lost)}, link)
        else:
            self.decided[number, mask].lacking.append((notice, lost))

    def _provider_of(self, number: int, name: str, extra: str) -> str:
        """Return a release that may be used and provides an extra, the newest of the first; empty if none."""
        key = name, extra
        if key not in self._providers:
            self._providers[key] = ""
            releases = list(islice(self._files_by_version(number), _MOST_FOR_EXTRA))
            self._look_ahead.read(files for _, files in releases)
            for version, files in releases:
                with suppress(SourceError, EnvironmentLacksError):
                    metadata = self.index.requirements(files)
                    if metadata is not None and extra in metadata.extras:
                        self._providers[key] = version
                        break
        return self._providers[key]

    def _files_by_version(self, number: int) -> Iterator[tuple[str, Sequence[File]]]:
        """Yield the releases of a distribution that may be used and have files, with these."""
        choices = self._projects.by_number.get(number)
        if choices is not None:
            for bit, release in enumerate(choices.releases, start=1):
                if not isinstance(release, InstalledFiles) and (
                    files := self._projects.files_of(choices, bit)
                ):
                    yield release.version, files
            return
        for candidate in self.problem.variables[self.session.names[number]].candidates:
            if candidate.origin != "preinstalled":
                offered, _, _ = self.index.offered(candidate, self.world.candidate("torch"))
                if files := self.targets.files(offered):
                    yield candidate.version, files

    def _emptied(self, metadata: Metadata, extra: str) -> tuple[int, list[str]]:
        """Return the Pythons for which an extra brings no distribution of the catalog, if it does for others.

        Also return what it brings for others. Other distributions do not count: an extra may well drop a
        backport, such as tomli, for new Pythons, but none of the catalog's distributions is one.
        """
        pythons, names = 0, dict[str, None]()
        for head, marker in map(split_marker, metadata.requires):
            name = parse_requirement(head).name
            if not marker or name not in self.catalog.package:
                continue
            for bit in bits(self.targets.all):
                environment = self.targets.environment(bit)
                if environment.applies(marker, extra) and not environment.applies(marker):
                    pythons |= 1 << bit
                    names[name] = None
        return (self.targets.all & ~pythons if pythons else 0), list(names)

    def _applying(self, metadata: Metadata, extra: str) -> Iterator[tuple[Requirement, int]]:
        """Yield the requirements that apply, each with the Pythons for which it does."""
        requires: Sequence[str] = metadata.requires
        if not extra:  # most requirements of most projects are of extras, so this is faster than to evaluate
            requires = [text for text in requires if not _OF_EXTRA.fullmatch(text)]
        for head, marker in map(split_marker, requires):
            if not marker or self.targets.applying(marker, extra):
                yield from self._replaced(parse_requirement(head), marker, extra)

    def _require_one(
        self, terms: Terms, requirement: Requirement, link: Link, *, is_ours: bool, is_built: bool
    ) -> bool:
        """Add a requirement; return whether the requirement adds its object to the result."""
        name = requirement.name
        if link.subject != "torch" and self.triton.is_of_torch(name):
            if not is_built:
                self._require_triton(terms, requirement, link)
            return not is_ours  # our wheels require the triton of torch by its own name
        if is_rocm_package(name) and self.world.candidate("torch"):
            return self._require_rocm_package(terms, requirement, link)
        if name in self.session.number or name in self.world.bound:
            # For a build, the requirements in the catalog take precedence.
            return not is_built and self._require_closed(terms, requirement, link)
        if is_built and is_for_cuda(name) and self.request.target.backend == "rocm":
            return (
                False  # the metadata are those of a build for CUDA, whose setup.py lists other requirements
            )
        return self._require_open(terms, requirement, link)

    def _require_rocm_package(self, terms: Terms, requirement: Requirement, link: Link) -> bool:
        """Add a requirement on ROCm as a package, or on torch's code for a GPU architecture."""
        name = requirement.name
        if name in self.session.number:  # ROCm itself: the platform has the same version
            self._require_closed(terms, requirement, link)
        torch = self.world.candidate("torch")
        index = torch.index if torch else ""
        try:
            if self._projects.nodes(name, requirement.extras):
                return self._require_open(terms, requirement, link)
        except EnvironmentLacksError as error:
            if self.index.is_configured(index):
                raise
            self._leave_unread(error.message)
            return False
        self._leave_unread(f"{index or 'no index'} does not list {name}")
        return False

    def _leave_unread(self, reason: str) -> None:
        number = self.session.number["torch"]
        self.decided[number, self.search.domains[number]].unread = reason

    def _require_closed(self, terms: Terms, requirement: Requirement, link: Link) -> bool:
        """Add a requirement on a distribution of the problem; return whether it was added."""
        name, specifier = requirement.name, requirement.specifier
        variable = self.problem.variables.get(name)
        if variable is None:
            text = f"{link.predicate}, which the catalog does not have for the backend"
            self.search.add(terms, replace(link, object="", predicate=text))
            return False
        allowed = variable.present if specifier is None else variable.allowed_by(str(specifier))
        if not allowed and link.subject == "torch" and name in TRITON_NAMES:
            torch = self.world.candidate("torch")
            listed = f"{torch.index} does not list it" if torch and torch.index else "no index lists it"
            self._leave_unread(f"{requirement.text} has no version in the catalog, and {listed}")
            return False
        self.search.add({**terms, self.session.number[name]: variable.everything & ~allowed}, link)
        return True

    def _require_open(self, terms: Terms, requirement: Requirement, link: Link) -> bool:
        """Add a requirement on any other distribution; return whether a project may satisfy it."""
        obstacle = self._obstacle_to(requirement)
        nodes: list[Choices] = []
        try:
            nodes = [] if obstacle else self._projects.nodes(requirement.name, requirement.extras)
        except SourceError as error:
            obstacle = f"whose page is broken: {error.message.rstrip('.')}"
        if not nodes:
            text = f"{link.predicate}, {obstacle or 'which no index has'}"
            if is_for_cuda(requirement.name):
                text = f"requires {requirement.name}, {obstacle}"  # whatever version: its name says so
                link = replace(link, for_cuda=requirement.name)
                project = link.subject.partition("[")[0]
                hint = override_hint(link.subject, requirement.name)
                self.needing_cuda.setdefault(project, (link.version, requirement.name, hint))
            self.search.add(terms, replace(link, object="", predicate=text))
        for choices in nodes:
            allowed = choices.allowed_by(requirement.specifier)
            excluded = choices.everything & ~allowed & terms.get(choices.number, -1)  # it may require itself
            why = self._but_only(choices, allowed) or ("" if allowed else ", which matches no release")
            predicate = link.predicate + why
            self.search.add(
                {**terms, choices.number: excluded},
                replace(link, object=choices.key, predicate=predicate),
            )
        return bool(nodes)

    def _is_url_to_add(self, requirement: Requirement) -> bool:
        """Return whether a requirement is a URL of a distribution that nothing else decides."""
        name = requirement.name
        is_known = name in self.session.number or name in self.world.bound or name in self.world.installed
        return bool(requirement.url) and not self.index.url(name) and not is_known

    def _obstacle_to(self, requirement: Requirement) -> str:
        name = requirement.name
        if is_for_cuda(name):
            return "which is for CUDA"
        if self._is_url_to_add(requirement):
            return "whose URL is used only if the request contains it"
        is_on_rocm = self.request.target.backend == "rocm" and name not in self.world.installed
        if is_on_rocm and (row := build_for_rocm(self.world.catalog, name)):
            return f"whose build for AMD GPUs has another name, {join_words(row.by)}"
        return "" if name in self.world.installed or self.index.url(name) else stub(self.world.catalog, name)

    def _but_only(self, choices: Choices, allowed: int) -> str:
        """Return the end of a message about a requirement that the only possible version does not meet."""
        name = choices.name
        if allowed:
            return ""
        if self.index.url(name):
            return f", but the URL of {name} points to {choices.releases[0].version}"
        kept = self.world.installed.get(name)
        return f", but the base image contains {name} {kept}" if kept else ""

    def _load_closed(self, number: int, mask: int) -> None:
        """Add the requirements of a distribution of the catalog, as far as an index has its metadata."""
        name = self.session.names[number]
        candidate = self.problem.variables[name].candidate(mask.bit_length() - 1)
        if candidate.kind != "distribution" or candidate.origin == "preinstalled":
            return
        if candidate.release is not None:
            known = {*self.session.number, *self.world.bound}
            for row in self.world.rows_of(name):
                if row.on not in known and row.applies_to(candidate.release):
                    self._projects.add_row(row, name, {number: mask}, candidate.version)
        is_stated = self.index.stated((), candidate) is not None
        files = () if is_stated else self._files(candidate, number, mask)
        is_from_git = candidate.release is not None and candidate.release.git is not None
        if not (files or is_stated or is_from_git) or self._is_excluded(candidate, number, mask, files):
            return
        metadata = self._metadata_of_closed(candidate, files, number, mask)
        if metadata is None:
            return
        try:
            for extra in ("", *self.world.extras_of(name)):
                self._require(number, mask, f"{name}[{extra}]" if extra else name, metadata, extra)
        except (UsageError, ValueError) as error:
            self.decided[number, mask].unread = f"a requirement in its metadata is invalid: {error}"

    def _is_excluded(self, candidate: Candidate, number: int, mask: int, files: Sequence[File]) -> bool:
        """Exclude a published candidate if the lock excludes one of its files."""
        name, version = candidate.name, candidate.version
        evidence = evidence_against(self.request.excluded, name, version, {file.sha256 for file in files})
        if not evidence or candidate.origin != "published":
            return False
        text = f"is excluded in the lock: {evidence}"
        self.search.add({number: mask}, Link(name, "", version, text, files[0].url))
        return True

    def _metadata_of_closed(
        self, candidate: Candidate, files: Sequence[File], number: int, mask: int
    ) -> Metadata | None:
        """Return the metadata of a distribution of the catalog; None, with the reason, if it is unknown."""
        is_built = candidate.origin == "build"
        try:
            metadata = self.index.requirements(files, candidate)
        except SourceError as error:
            self.decided[number, mask].unread = error.message
            return None
        except EnvironmentLacksError as error:
            if files[0].index in self.index.indexes.urls:
                raise
            self.decided[number, mask].unread = error.message
            return None
        if metadata is None and not files:
            return None  # a commit, whose build backend was not asked
        if metadata is None or (metadata.dynamic and not is_built):
            self.decided[number, mask].unread = "no index has the metadata"
            return None
        return metadata

    def _files(self, candidate: Candidate, number: int, mask: int) -> Sequence[File]:
        """Return the files of a candidate for the most preferred Python; exclude the Pythons without any."""
        release = candidate.release
        offered, indexes, problem = self.index.offered(candidate, self.world.candidate("torch"))
        if problem:
            self.decided[number, mask].unread = problem
            return []
        if release is not None and release.git is not None:
            return []
        is_judged = release is not None and release.is_published and bool(offered)
        if release is not None and is_judged:
            fit = self.targets.fit(offered, any_patch=True)
            for exclusion in without_file(offered, fit, self.targets):
                terms = {number: mask}
                if exclusion.python != EVERYWHERE:
                    terms |= self.world.when(exclusion.python)
                if exclusion.glibc != EVERYWHERE:
                    terms[self.session.number["glibc"]] = exclusion.glibc
                link = Link(candidate.name, "", candidate.version, exclusion.text, release.source)
                self.search.add(terms, link)
        if release is not None and (release.sdist or release.wheel) and offered:
            return offered
        files = self.targets.files(offered)
        if not files and not is_judged:
            url = indexes.urls[0] if len(indexes.urls) == 1 else ""
            listed = f"{url} does not list its files" if url else "no index lists its files"
            self.decided[number, mask].unread = listed
        return files


def override_hint(subject: str, required: str) -> str:
    """Return a hint to resolve a project, or one of its extras, without a distribution that it requires."""
    project, _, extra = subject.partition("[")
    if extra:
        return f"Write {project} without [{extra}, which is for CUDA."
    override = f"{required}; sys_platform == 'never'"
    return f"If {project} works without {required}, write `{override}` into a file for --override."


_MOST_RELEASES = 25
"""Maximum number of releases to check for the release that will probably be chosen."""


class LookAhead:
    """Projects and metadata that a search is likely to need, fetched in the threads of the indexes.

    The replies are only cached: the search requests them again. Only uploads until `day` count. `is_decided`
    returns whether a requirement is decided without a project of its name.
    """

    def __init__(
        self,
        indexes: PackageIndexes,
        day: date,
        is_decided: Callable[[Requirement], bool],
    ) -> None:
        self._indexes = indexes
        self._day = day
        self._is_decided = is_decided
        self._seen: set[tuple[str, tuple[str, ...]]] = set()
        self._remote: set[str] = set()
        """Projects that were not in the cache at the start."""

    def start(self, requirements: Iterable[Requirement], environment: Environment) -> None:
        """Start to fetch the projects that requirements are likely to need and that are not cached."""
        for requirement in requirements:
            name = requirement.name
            key = (name, requirement.extras)
            if key in self._seen or self._is_decided(requirement):
                continue
            self._seen.add(key)
            if name in self._remote or not self._indexes.is_cached(name):
                self._remote.add(name)
                self._indexes.submit(partial(self._fetch, requirement, environment))

    def read(self, releases: Iterable[Sequence[File]]) -> None:
        """Start to read the metadata of releases, each given by its files."""
        for files in releases:
            self._indexes.submit(partial(self._indexes.metadata, files))

    def _fetch(self, requirement: Requirement, environment: Environment) -> None:
        """Fetch a project, the metadata of its likely release, and its requirements; runs in a thread."""
        project = self._indexes.project(requirement.name)
        if project is None:
            return
        allowed = requirement.specifier
        for release in project.releases[:_MOST_RELEASES]:
            if is_prerelease(release.version) or (allowed and not allowed.allows(release.version)):
                continue
            files = environment.installable(uploaded_by(release.files, self._day))
            if not files:
                continue
            metadata = self._indexes.metadata(files)
            split = map(split_marker, metadata.requires if metadata else ())
            extras = ("", *requirement.extras)
            following = (
                parse_requirement(head)
                for head, marker in split
                if any(environment.applies(marker, extra) for extra in extras)
            )
            self.start(following, environment)
            return
