"""Confirm an answer: resolvelib resolves the same request over the same providers, limited to the answer.

resolvelib is a second, independent resolver. It knows only the chosen candidates, asks the providers for
their requirements again, and must accept every one of them: none may violate a requirement, and none may be
superfluous. Masks and learned incompatibilities have no part in this: versions are compared with
specifiers, and markers are evaluated for the chosen Python. A difference is a fault of the program, not an
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import resolvelib

from resolver.compiling.problem import ABSENT
from resolver.errors import EnvironmentLacksError, InternalError, SourceError, UsageError
from resolver.facts.catalog import applies
from resolver.indexes import judged
from resolver.requirements import (
    TRITON_NAMES,
    has_rocm_release,
    is_rocm_package,
    parse_requirement,
    split_marker,
)
from resolver.solving.world import is_limit
from resolver.versions import parse_specifier, version_key

if TYPE_CHECKING:
    from resolvelib.providers import Preference
    from resolvelib.resolvers import RequirementInformation

    from resolver.answers.answer import Answer
    from resolver.indexes import Metadata
    from resolver.model import Requirement

_BATCH = 5
"""Number of requirements to resolve at a time; more of them, or fewer, take longer."""


class _Need(msgspec.Struct, frozen=True):
    """resolvelib's requirement: a chosen version must pass a test."""

    key: str
    """Name of a component or distribution, with an extra in brackets."""
    text: str
    allows: Callable[[str], bool]


def confirm(answer: Answer) -> None:
    """Check with resolvelib that the answer of a solver meets the request, and that nothing is superfluous.

    resolvelib takes quadratic time in the number of requirements, so it resolves a few at a time: those of
    the request, then those of each accepted candidate. There is one candidate for each name, so this accepts
    the same answers as one resolution of everything.
    """
    provider = _AnswerProvider(answer)
    problem = ""
    try:
        accepted = _accepted(provider)
    except resolvelib.ResolutionImpossible as error:
        problem = f"it violates {'; '.join(sorted({cause.requirement.text for cause in error.causes}))}"
    else:
        superfluous = sorted(provider.chosen.keys() - accepted)
        if superfluous:
            problem = f"nothing requires {', '.join(superfluous)}"
    if problem:
        import logging

        log = logging.getLogger(__name__)
        log.debug("answer: %s", provider.chosen)
        log.debug("resolvelib: %s", problem)
        msg = f"The answer was not confirmed by resolvelib: {problem}."
        raise InternalError(msg, hint="Please report this request. --debug writes both answers into a log.")


def _accepted(provider: _AnswerProvider) -> set[str]:
    """Return everything that the request requires directly or indirectly."""
    needs = provider.roots()
    accepted: set[str] = set()
    while needs:
        batch = [needs.pop() for _ in range(min(_BATCH, len(needs)))]
        resolver = resolvelib.Resolver(provider, resolvelib.BaseReporter())
        mapping = resolver.resolve(batch, max_rounds=_BATCH + 1).mapping
        for key in mapping:
            if key not in accepted:
                accepted.add(key)
                needs += provider.needs_of(key)
    return accepted


def _always(_: str) -> bool:
    return True


def _never(_: str) -> bool:
    return False


class _AnswerProvider(resolvelib.AbstractProvider["_Need", str, str]):
    """The chosen candidates, and their requirements as the providers state them."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._problem = answer.problem
        self._solution = answer.solution
        self._environment = answer.environment
        self._picks = {pick.name: pick for pick in answer.picks}
        self.chosen = {
            name: self._problem.variables[name].candidate(bit).version for name, bit in self._solution.items()
        }
        """The chosen versions by name, with an extra in brackets. resolvelib's candidates are these names."""
        for name, pick in self._picks.items():
            for key in (name, *(f"{name}[{extra}]" for extra in pick.extras)):
                self.chosen[key] = pick.version
        self._overrides: dict[str, list[Requirement]] = {}
        for override in answer.request.overrides:
            self._overrides.setdefault(override.name, []).append(override)

    def roots(self) -> list[_Need]:
        """Return the demands of the target and the requirements of the request."""
        needs = [
            self._of_candidates(demand.variable.name, demand.mask, demand.text)
            for demand in self._problem.demands
            if not demand.mask & ABSENT or demand.variable.name in self._solution
            if not demand.mask & ABSENT or not self._allows(demand.variable.name, demand.mask)
        ]
        for requirement in self._answer.request.requirements:
            needs += self._stated(requirement, requirement.marker, "the request")
        for limit in self._answer.request.constraints:
            is_chosen = limit.name in self.chosen and self._environment.applies(limit.marker)
            version = self.chosen[limit.name] if is_chosen else ""
            if is_chosen and limit.specifier is not None and not limit.specifier.allows(version):
                needs.append(_Need(limit.name, limit.text, limit.specifier.allows))
        return needs

    def identify(self, requirement_or_candidate: _Need | str) -> str:
        one = requirement_or_candidate
        return one if isinstance(one, str) else one.key

    def get_preference(
        self,
        identifier: str,
        resolutions: Mapping[str, str],  # noqa: ARG002  part of resolvelib's contract
        candidates: Mapping[str, Iterator[str]],  # noqa: ARG002
        information: Mapping[str, Iterator[RequirementInformation[_Need, str]]],  # noqa: ARG002
        backtrack_causes: Sequence[RequirementInformation[_Need, str]],  # noqa: ARG002
    ) -> Preference:
        return identifier

    def find_matches(
        self,
        identifier: str,
        requirements: Mapping[str, Iterator[_Need]],
        incompatibilities: Mapping[str, Iterator[str]],
    ) -> Iterable[str]:
        chosen = self.chosen.get(identifier)
        if chosen is None or identifier in incompatibilities[identifier]:
            return []
        return [identifier] if all(need.allows(chosen) for need in requirements[identifier]) else []

    def is_satisfied_by(self, requirement: _Need, candidate: str) -> bool:
        return requirement.allows(self.chosen[candidate])

    def get_dependencies(self, candidate: str) -> Iterable[_Need]:  # noqa: ARG002
        return ()  # `_accepted` asks for them

    def needs_of(self, key: str) -> list[_Need]:
        name, _, extra = key.rstrip("]").partition("[")
        version = self.chosen[key]
        needs = list(self._facts(name))
        if name in self._solution:
            needs += self._relations(name)
        if extra:
            needs.append(_Need(name, f"{key} {version}", version.__eq__))
        if images := self._answer.world.images_for(name):
            needs.append(self._of_candidates("base-image", images, f"{name} uses the ROCm of a base image"))
        if name in self._picks and name != "rocm" and has_rocm_release(name):
            needs.append(_Need("rocm", f"{name} is of ROCm {version}", version.__eq__))
        needs += self._content(name)
        metadata = self._metadata(name)
        if metadata is not None:
            if name in self._picks and version_key(metadata.version) != version_key(version):
                needs.append(_Need(name, f"{version} has the metadata of {metadata.version}", _never))
            extras = (extra,) if name in self._picks else self._answer.world.extras_of(name)
            for text in metadata.requires:
                needs += self._required(name, text, metadata, extras)
        return needs

    def _relations(self, name: str) -> Iterator[_Need]:
        for relation in self._problem.relations:
            if relation.subject.name == name:
                mask, other = relation.table[self._solution[name]], relation.object.name
                if mask & ABSENT and (other not in self._solution or self._allows(other, mask)):
                    continue  # it neither requires nor excludes the other component
                yield self._of_candidates(other, mask, f"{name} is related to {other}")

    def _of_candidates(self, name: str, mask: int, text: str) -> _Need:
        return _Need(name, text, _always if self._allows(name, mask) else _never)

    def _allows(self, name: str, mask: int) -> bool:
        return bool(mask >> self._solution.get(name, 0) & 1)

    def _facts(self, name: str) -> Iterator[_Need]:
        """Yield what the catalog says about a distribution if one of both ends is a project of an index."""
        candidate = self._answer.world.candidate(name)
        for row in self._answer.world.rows_of(name):
            is_project = name in self._picks
            if not is_project and (row.on in self._answer.problem.variables or row.on not in self._picks):
                continue
            if is_project and row.on not in self.chosen:
                continue
            release = candidate.release if candidate else None
            if release is not None and not applies(row, release):
                continue
            if is_limit(row) or row.on in {"gfx", "python"}:
                continue
            if is_project and not self._answer.is_about(row, self._picks[name]):
                continue
            if row.on in self._picks or is_project:
                specifiers = [parse_specifier(text) for text in row.versions]
                is_allowed = any(one.allows(self.chosen[row.on]) for one in specifiers)
                yield _Need(row.on, f"{name} requires {row.on}", _always if is_allowed else _never)

    def _content(self, name: str) -> Iterator[_Need]:
        pick = self._picks.get(name)
        for other, excluded in self._answer.contents.excluded_as_newer(name) if pick else ():
            text = f"{name} cannot be judged, and a newer release has a requirement on {other}"
            yield self._of_candidates(other, ~excluded, text)
        content = self._answer.contents.content_of(pick.files[0]) if pick and pick.files else None
        if content is None:
            return
        judgement = judged(content, self._answer.request.target.gfx)
        if judgement.state == "does-not-fit":
            yield _Need(name, f"{name} {judgement.evidence}", _never)
        if content.rocm:
            allows = parse_specifier(content.rocm).allows
            yield _Need("rocm", f"{name} requires rocm{content.rocm}", allows)

    def _metadata(self, name: str) -> Metadata | None:
        if not self._answer.was_read(name):
            return None
        if name in self._picks:
            files = self._answer.files_read(name)
        else:
            candidate = self._answer.world.candidate(name)
            if candidate is None or candidate.kind != "distribution":
                return None
            files = self._answer.files_of(name)
        try:
            return self._answer.index.requirements(files) if files else None
        except (EnvironmentLacksError, SourceError):
            return None

    def _required(self, name: str, text: str, metadata: Metadata, extras: Sequence[str]) -> Iterator[_Need]:
        head, marker = split_marker(text)
        applies = self._environment.applies
        if applies(marker):
            if name in self._picks and "" not in extras:
                return  # it belongs to the project itself
        elif not any(applies(marker, extra) for extra in extras):
            return
        try:
            requirement = parse_requirement(head)
        except UsageError:
            return  # the search reported it
        is_built = name in self._solution and metadata.dynamic
        for need in self._stated(requirement, "", f"{name} {metadata.version}"):
            of_catalog = need.key in self._solution or need.key in TRITON_NAMES
            if not (is_built and of_catalog):
                yield need

    def _stated(self, requirement: Requirement, marker: str, source: str) -> Iterator[_Need]:
        """Yield what a requirement, or the overrides that replace it, require."""
        if not self._environment.applies(marker):
            return
        for stated in self._overrides.get(requirement.name, (requirement,)):
            if stated is not requirement and not self._environment.applies(stated.marker):
                continue
            yield from self._need(stated, source)

    def _need(self, requirement: Requirement, source: str) -> Iterator[_Need]:
        name, specifier = requirement.name, requirement.specifier
        if name == "python":
            return  # a demand of the problem has the same meaning
        if name in TRITON_NAMES and source.startswith("torch ") and "torch" in self._answer.unread():
            return  # the answer says that it is not locked
        if self._answer.triton.is_of_torch(name) and not source.startswith("torch "):
            yield _Need("torch", f"{source} requires the triton of torch", _always)
            name = next((own for own in TRITON_NAMES if own in self._solution), name)
        text = f"{source} requires {requirement.text}"

        def allows(version: str) -> bool:
            return specifier is None or specifier.allows(version)

        if name in self._solution:
            if not (is_rocm_package(name) and name in self._picks):
                yield _Need(name, text, allows)
                return
        elif is_rocm_package(name) and name not in self._picks:
            return  # reported as not listed
        yield _Need(name, text, allows)
        for extra in requirement.extras:
            yield _Need(f"{name}[{extra}]", text, allows)
