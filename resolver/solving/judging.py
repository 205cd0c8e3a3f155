"""Judge what the wheels of an answer contain, before it is the answer.

When everything is decided, the files that would be installed are read, all at the same time, and only as far
as each file needs. What they need becomes incompatibilities of the search, which then continues. So a release
is read only if it would otherwise be part of the answer, and an older release that would take its place is
read, too. The wheels of a release differ only in their Python: if one does not fit, the release is excluded.

A release that cannot be judged hardly needs less than a newer one. So what speaks against the nearest newer
release of which something is known, from the catalog or from its content, also speaks against it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property, reduce
from operator import or_
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.compiling.distributions import beyond_bounds
from resolver.compiling.problem import Link
from resolver.errors import SourceError
from resolver.indexes import Content, Judgement, judged
from resolver.model import EARLY_PYTHON, layer
from resolver.requirements import LIBRARIES_OF, companions, is_for_cuda, parse_requirement, required_name
from resolver.solving.states import Examined
from resolver.solving.world import STRICT
from resolver.versions import join_words, satisfies, version_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resolver.compiling.problem import Pick
    from resolver.environment import Environment
    from resolver.indexes import File, Metadata
    from resolver.solving.projects import Projects
    from resolver.solving.states import Choices, Terms
    from resolver.solving.world import World

_MOST_UNFIT = 10
"""A project is not considered any more after this many releases that do not fit."""
_MOST_UNKNOWN = 3
"""Number of releases that cannot be judged before it is enough that nothing is known of a release."""
_FOR_GPU = r"-(?:amdgpu|rocm|hip)(?![a-z])"
"""Part of the name of a build for AMD GPUs, such as openmm-hip-6."""
_REQUESTED, _OTHERS = EARLY_PYTHON + 0.5, layer("python")[0] - 0.5


class ContentJudge:
    """What the wheels of chosen releases contain, and what follows from it.

    `needing_cuda` has, by project, a release that requires a distribution for CUDA, that distribution, and a
    hint.
    """

    def __init__(
        self, world: World, projects: Projects, needing_cuda: Mapping[str, tuple[str, str, str]]
    ) -> None:
        self._world = world
        self._search = world.search
        self._projects = projects
        self._needing_cuda = needing_cuda
        self._for_gpu = world.request.target.backend == "rocm"
        self._examined: dict[str, Examined] = {}
        """By the URL of the file."""

    def judge(self) -> None:
        """Read the files of the chosen releases, and add what follows from their content to the search."""
        environment = self._world.environment()  # what is learned may take back the choice of Python
        chosen = list(self._chosen(environment))
        new = [one for one in chosen if one.file.url not in self._examined]
        if not self._for_gpu:  # there, what the other wheels have for GPUs does not matter
            new = [one for one in new if not one.is_wheel or self._may_lack_libraries(one)]
        # All but the first are read in other threads; the first is read here, at once.
        self._read_ahead(new[1:])
        for one in new:
            if _is_unknown(self._judge(one)):
                # `new` grows while this loop runs, so that these are judged by it, too.
                following = list(self._following(one, environment))
                self._read_ahead(following)
                new += following
        for one in chosen:  # also those that were examined beside what had their libraries
            if known := self._examined.get(one.file.url):
                self._exclude_without_libraries(known, environment)

    def _may_lack_libraries(self, one: Examined) -> bool:
        """Return whether a compiled wheel, of which the catalog has no facts, may use libraries of others."""
        if one.file.name.endswith("-any.whl") or one.name in self._world.catalog.package:
            return False
        metadata = self._metadata(one)
        requires = metadata.requires if metadata else ()
        return any(required_name(text) == "torch" for text in requires) or bool(
            companions(one.name, requires)
        )

    def _metadata(self, one: Examined) -> Metadata | None:
        return self._world.index.requirements(self._projects.files_of(one.choices, one.bit))

    def _exclude_without_libraries(self, one: Examined, environment: Environment) -> None:
        """Exclude a wheel that needs a library of a distribution that only an extra of it requires."""
        metadata = self._metadata(one) if one.content and one.content.needs else None
        if metadata is None or one.content is None or self._is_unfit(one):
            return
        those = companions(one.name, metadata.requires)
        chosen = {choices.name for choices, _ in self._projects.chosen()}
        chosen |= self._world.solution.keys() | self._world.installed.keys()
        if any(f"{name}-".startswith(tuple(f"{other}-" for other in those)) for name in chosen):
            return  # also tensorflow-rocm instead of tensorflow
        for library, path in one.content.needs:
            for name in sorted(those, key=lambda name: (is_for_cuda(name), name)):
                extra, requirement = those[name]
                if self._has_library(name, requirement, library, environment):
                    wanted = f"{one.name}[{extra}]"
                    text = f"lacks {library}, which {path} needs and {name} has: request {wanted}"
                    one.judgement = Judgement("does-not-fit", text)
                    self._search.add({one.choices.number: one.mask}, replace(_link(one, text), object=wanted))
                    self._limit(one)
                    return

    def _has_library(self, name: str, requirement: str, library: str, environment: Environment) -> bool:
        """Return whether the wheel that a requirement would install has a library."""
        if name in LIBRARIES_OF:
            return library.startswith(LIBRARIES_OF[name])
        indexes, specifier = self._world.index.indexes, parse_requirement(requirement).specifier
        project = indexes.project(name)
        for release in project.releases if project else ():
            if specifier is None or specifier.allows(release.version):
                for file in environment.installable(release.files)[:1]:
                    with suppress(SourceError):
                        content = indexes.content(file, None)
                        return content is not None and library in content.libraries
        return False

    def _is_unfit(self, one: Examined) -> bool:
        return one.judgement is not None and one.judgement.state == "does-not-fit"

    def _read_ahead(self, files: Iterable[Examined]) -> None:
        for one in files:
            if not self._known(one) and not self._evidence_against_source(one):
                self._world.index.indexes.submit(self._reading(one))

    def judgement_of(self, file: File) -> Judgement | None:
        """Return what is known of a file of the answer; None if nothing in it is compiled."""
        one = self._examined.get(file.url)
        if one is None:
            return None
        if one.judgement and one.judgement.on_cpu and one.content:
            for choices, _ in self._projects.chosen():
                if choices.name.startswith(f"{one.name}-") and re.search(_FOR_GPU, choices.name):
                    return Judgement("fits", f"{choices.name} has its code for GPUs")
        return one.judgement

    def content_of(self, file: File) -> Content | None:
        """Return what was read from a file of the answer; None if it was not read, or is not compiled."""
        return self._examined[file.url].content if file.url in self._examined else None

    def passed(self, pick: Pick, rocm: str) -> str:
        """Return a clause on the newest release that its content excluded; empty if older than the pick."""
        newer = [
            one
            for one in self._projects.states[pick.name].contents
            if version_key(one.version) > version_key(pick.version)
        ]
        own = self.judgement_of(pick.files[0]) if pick.files else None
        is_unknown = own is not None and own.state == "not-judged"
        for one in sorted(newer, key=lambda one: version_key(one.version), reverse=True):
            judgement = one.judgement
            if one.content and not self._is_unfit(one):
                judgement = judged(one.content, self._world.request.target.gfx, rocm)
            if judgement and judgement.state == "does-not-fit":
                return f"{one.version} {judgement.evidence}"
            if judgement and judgement.state == "not-judged" and not is_unknown and one.is_wheel:
                text = f"{one.version} cannot be judged ({judgement.evidence})"
                return f"{text}. To use it, require {one.name}=={one.version}"
        return ""

    def _chosen(self, environment: Environment) -> Iterator[Examined]:
        for choices, bit in self._projects.chosen():
            files = self._projects.to_install(choices, bit, environment)
            if files:
                yield Examined(choices, bit, files[0])

    def _following(self, one: Examined, environment: Environment) -> Iterator[Examined]:
        """Yield the next releases with a wheel, of which the search probably needs the first that fits."""
        if self._is_pinned(one) or self._world.request.prefer == "oldest":
            return
        state = one.choices.project
        left = _MOST_UNKNOWN - (state.unknown | state.like_newer).bit_count()
        stated = [item.specifier for item in self._world.stated(one.name) if item.specifier]
        for bit in range(one.bit + 1, len(one.choices.releases) + 1) if left > 0 else ():
            version = one.choices.release(bit).version
            if not self._projects.files_of(one.choices, bit) or not all(
                item.allows(version) for item in stated
            ):
                continue
            files = self._projects.to_install(one.choices, bit, environment)
            following = Examined(one.choices, bit, files[0]) if files else None
            if following and following.is_wheel and following.file.url not in self._examined:
                yield following
                left -= 1
            if not left:
                return

    def _judge(self, one: Examined) -> Examined:
        """Add what follows from a file, unless it was examined before; return what was found in it."""
        known = self._examined.get(one.file.url)
        if known is not None:
            return known
        try:
            one.judgement = judgement = self._judgement(one)
        except SourceError as error:
            self._projects.skip(one.choices, one.mask, f"has a file that cannot be read: {error.message}")
            return one
        self._examined[one.file.url] = one
        one.choices.project.contents.append(one)
        if judgement is None:
            return one
        if one.content and one.content.cuda == "required" and not one.choices.project.for_cuda:
            one.choices.project.for_cuda = f"{one.version} {judgement.evidence}"
            if one.name in self._world.asked:
                self._exclude_older(one)
        if judgement.state == "does-not-fit":
            self._exclude(one, judgement)
        elif one.content and one.content.rocm:
            self._require_rocm(one, one.content)
        if _is_unknown(one) and not self._excludes_like_newer(one, judgement):
            self._prefer_judged(one, judgement)
        return one

    def _judgement(self, one: Examined) -> Judgement | None:
        known = self._known(one) if self._for_gpu else ""
        if known:
            content = None if one.is_wheel else self._reading(one)()
            one.content = _only_source(content) if content else None
            return Judgement("fits", f"the catalog has its facts: {known}")
        evidence = self._evidence_against_source(one) if self._for_gpu else ""
        if evidence:
            return Judgement("does-not-fit", evidence)
        content = self._reading(one)()
        if content and not self._for_gpu:
            content = _without_gpu(content) if one.is_wheel else _only_source(content)
        one.content = content
        if content is None or not (content.evidence or content.unread):
            return None  # nothing in it is compiled
        return judged(content, self._world.request.target.gfx)

    def _evidence_against_source(self, one: Examined) -> str:
        version, required, _ = self._needing_cuda.get(one.name, ("", "", ""))
        reason = f"{version} requires {required}, which is for CUDA" if version else ""
        reason = "" if one.is_wheel else reason or one.choices.project.for_cuda
        return f"has no wheel that can be judged, and {reason}" if reason else ""

    def _exclude(self, one: Examined, judgement: Judgement) -> None:
        """Exclude a release that does not fit; an sdist only for the Pythons without a wheel.

        If other releases speak against an sdist, they speak against all releases that have no wheel at all.
        """
        _, required, _ = self._needing_cuda.get(one.name, ("", "", ""))
        for_cuda = required if one.content is None else ""
        number, link = one.choices.number, replace(_link(one, judgement.evidence), for_cuda=for_cuda)
        pythons = (
            {} if one.is_wheel else self._world.when(self._projects.judge(one.choices, one.bit).source_only)
        )
        self._search.add({number: one.mask, **pythons}, link)
        if one.is_wheel:
            one.reasons.append(({}, judgement.evidence))
        if one.content is not None:
            self._limit(one)
            return
        without = {
            bit: release.version
            for bit, release in enumerate(one.choices.releases, start=1)
            if bit != one.bit and not any(file.name.endswith(".whl") for file in release.files)
        }
        mask = sum(1 << bit for bit in without)
        self._search.add({number: mask}, replace(link, version=", ".join(without.values())))

    def _exclude_older(self, one: Examined) -> None:
        """Exclude the releases before one that requires CUDA, unless a newer one fits or facts are known.

        A project that now is for CUDA only was so before, or had no code for GPUs. A pin is left to the user.
        """
        contents = one.choices.project.contents
        if any(item.bit < one.bit and item.judgement and item.judgement.state == "fits" for item in contents):
            return
        older = 0
        for bit in range(one.bit + 1, len(one.choices.releases) + 1):
            release = one.choices.release(bit)
            is_known = any(self._known(Examined(one.choices, bit, file)) for file in release.files)
            if not (is_known or self._projects.is_pinned(one.name, release.version)):
                older |= 1 << bit
        text = f"are not chosen because {one.version} requires CUDA. To use one, require {one.name}==VERSION"
        link = Link(f"the releases of {one.name} before {one.version}", "", "", text, one.file.url)
        self._search.add({one.choices.number: older}, link)

    def _reading(self, one: Examined) -> Callable[[], Content | None]:
        """Return a function that returns what a wheel contains; it may run in another thread."""
        index = self._world.index
        files = self._projects.files_of(one.choices, one.bit)
        is_pure = one.file.name.endswith("-any.whl")  # only of these, the metadata decides what is read

        def read() -> Content | None:
            return index.indexes.content(one.file, index.requirements(files) if is_pure else None)

        return read

    def _known(self, one: Examined) -> str:
        """Return the source of a release's facts, not a wheel's; empty if they lack ROCm or the GPUs."""
        is_same = one.file.sha256 in self._wheels
        sources = {
            row.on: row.source.partition(" ; ")[0]
            for row in self._world.rows_of(one.name)
            if row.on in {"rocm", "gfx"} and (is_same or not row.is_of_wheel)
            if not row.releases or satisfies(one.version, row.releases)
        }
        return sources["gfx"] if len(sources) > 1 else ""

    @cached_property
    def _wheels(self) -> frozenset[str]:
        return frozenset(row.sha256 for row in self._world.catalog.wheel.values())

    def _require_rocm(self, one: Examined, content: Content) -> None:
        rocm, number = self._world.problem.variables["rocm"], self._world.session.number["rocm"]
        excluded = rocm.everything & ~rocm.allowed_by(content.rocm)
        text = f"requires rocm{content.rocm}: {content.evidence}"
        # None of the ROCm versions that are left fits, so it counts as a release that does not fit.
        if not self._search.domains[number] & ~excluded:
            self._limit(one)
        terms = {one.choices.number: one.mask, number: excluded}
        self._search.add(terms, replace(_link(one, text), object="rocm"))
        one.reasons.append(({number: excluded}, text))

    def _excludes_like_newer(self, one: Examined, judgement: Judgement) -> bool:
        """Add what speaks against the nearest newer release of which something is known.

        Return whether this excludes the release whatever else is chosen. A pinned one is left to the user.
        """
        if self._is_pinned(one):
            return False
        for bit in range(one.bit - 1, 0, -1):
            seen = [item for item in one.choices.project.contents if item.bit == bit]
            if any(map(_is_unknown, seen)):
                continue
            reasons = [reason for item in seen for reason in item.reasons]
            reasons += self._reasons_of_catalog(one.choices, bit)
            if reasons:
                self._exclude_for(reasons, one, judgement, one.choices.release(bit).version)
            if reasons or seen:
                return any(not terms for terms, _ in reasons)
        return False

    def _exclude_for(
        self, reasons: Iterable[tuple[Terms, str]], one: Examined, judgement: Judgement, newer: str
    ) -> None:
        """Exclude an unjudged release for the reasons against a newer one; after several, also all older."""
        state, older = one.choices.project, 0
        state.like_newer |= one.mask
        if state.like_newer.bit_count() == _MOST_UNKNOWN:
            older = self._unread(one.choices) & ~(one.mask - 1)
        for terms, why in reasons:
            text = f"was not judged ({judgement.evidence}), and {newer} {why}"
            self._search.add({one.choices.number: one.mask, **terms}, _link(one, text))
            if older:
                rest = Link(
                    f"the rest of {one.name}", "", "", f"was not read, and {newer} {why}", one.file.url
                )
                self._search.add({one.choices.number: older, **terms}, rest)

    def _reasons_of_catalog(self, choices: Choices, bit: int) -> Iterator[tuple[Terms, str]]:
        target = self._world.request.target
        version = choices.release(bit).version
        for row in self._world.rows_of(choices.name):
            if row.on not in {"rocm", "gfx"} or (row.releases and not satisfies(version, row.releases)):
                continue
            text = f"requires {row.on} {join_words(row.versions, most=8)} [{row.source}]"
            if row.on == "gfx":
                if not {*target.gfx} <= {*row.versions}:
                    yield {}, text
                continue
            rocm = self._world.problem.variables["rocm"]
            allowed = reduce(or_, map(rocm.allowed_by, row.versions + beyond_bounds(row)), 0)
            yield {self._world.session.number["rocm"]: rocm.everything & ~allowed}, text

    def _is_pinned(self, one: Examined) -> bool:
        return self._projects.is_pinned(one.name, one.version)

    def _limit(self, one: Examined) -> None:
        """Count a release that does not fit; after several of them, exclude the rest of its project."""
        state = one.choices.project
        state.unfit |= one.mask
        if state.unfit.bit_count() == _MOST_UNFIT:
            text = f"was not read, because {_MOST_UNFIT} releases do not fit"
            terms = {one.choices.number: self._unread(one.choices)}
            self._search.add(terms, Link(f"the rest of {one.name}", "", "", text, one.file.url))

    def _unread(self, choices: Choices) -> int:
        """Return the releases of a project that were not read, and of which the catalog has no facts."""
        unread = 0
        for bit, release in enumerate(choices.releases, start=1):
            if not any(file.url in self._examined for file in release.files):
                is_known = any(self._known(Examined(choices, bit, file)) for file in release.files)
                unread |= 0 if is_known else 1 << bit
        return unread

    def _prefer_judged(self, one: Examined, judgement: Judgement) -> None:
        """Let the search decide first whether releases that cannot be judged may be used."""
        choices, state, why = one.choices, one.choices.project, f"was not judged: {judgement.evidence}"
        if state.judged_only < 0:
            rank = _REQUESTED if one.name in self._world.asked else _OTHERS
            state.judged_only = self._world.add_selector((rank, 0, choices.number, one.name))
            self._search.restart()  # it is decided before the project
        state.unknown |= one.mask
        self._search.add({state.judged_only: STRICT, choices.number: one.mask}, _link(one, why))
        if state.unknown.bit_count() == _MOST_UNKNOWN:
            terms = {state.judged_only: STRICT, choices.number: self._unread(choices)}
            self._search.add(terms, replace(_link(one, "was not read"), version=""))


def _without_gpu(content: Content) -> Content:
    """Return what decides about a wheel on the CPU: what it has for GPUs does not, unless it needs CUDA."""
    cuda = "none" if content.cuda == "optional" else content.cuda
    return replace(content, cuda=cuda, rocm="", gfx=(), gpu_builds=(), unseen="")


def _only_source(content: Content) -> Content:
    """Return what a source is and how it is built, without what it has for GPUs."""
    broken = content.broken
    return Content(
        broken, broken=broken, source=content.source, recipes=content.recipes, sha256=content.sha256
    )


def _link(one: Examined, predicate: str) -> Link:
    return Link(one.name, "", one.version, predicate, one.file.url)


def _is_unknown(one: Examined) -> bool:
    """Return whether what may decide about a wheel was not read."""
    is_open = one.judgement is not None and one.judgement.state == "not-judged"
    return is_open and one.is_wheel and one.content is not None and bool(one.content.unread)
