"""Confirm an answer: resolvelib and `packaging` resolve the request again, with only what the lock has.

resolvelib is a second resolver. It begins with the request and what it keeps of a base image, follows what
was recorded as the requirements of each distribution of the lock, and must reach all of them and nothing
else. Specifiers, markers, extras and Requires-Python are evaluated by `packaging`. Neither the search nor the
parsers that it uses have a part in this, because their mistakes would confirm themselves. A difference is a
fault of the program, not an answer.

What `packaging` says of a text depends on nothing else, so it is asked only once: the cache of the indexes
keeps its answers. Importing it takes longer than the rest of the confirmation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import packaging
import resolvelib
from resolvelib.resolvers import Resolution

from resolver.environment import Environment
from resolver.errors import InternalError
from resolver.requirements import (
    TRITON_NAMES,
    is_for_cuda,
    is_rocm_package,
    normalize_name,
    split_marker,
)

if TYPE_CHECKING:
    from resolvelib.providers import Preference

    from resolver.answers.answer import Recorded
    from resolver.indexes import PackageIndexes
    from resolver.model import Requirement as Requested
    from resolver.model import Resolution as Lock


_EXTRA, _OR = re.compile(r"""\bextra\s*==\s*["']\w"""), re.compile(r"\bor\b")
_OF_EXTRA = re.compile(r"""[^;@]*; extra == ["'][\w.-]+["']""")
"""A requirement that does not apply without an extra: so are most, and evaluating them takes longest."""
_AT_A_TIME = 3
"""Requirements that resolvelib resolves together."""
_MOST_SAID = 5_000
"""Answers of `packaging` that are kept; a resolution of 200 distributions needs 1,000."""
_REQUEST = ""
"""In place of the name of a distribution: the request."""


class _Need(msgspec.Struct, frozen=True):
    """resolvelib's requirement: a name of the lock, and whether its version there is allowed."""

    key: str
    """Name of a component or distribution, with an extra in brackets."""
    text: str
    is_met: bool


class _Parsed(msgspec.Struct, frozen=True, array_like=True):
    """A requirement without its marker, as `packaging` parses it."""

    name: str
    extras: tuple[str, ...]
    specifier: str

    def __str__(self) -> str:
        brackets = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{brackets}{self.specifier}"


class _Said(msgspec.Struct):
    """What `packaging` has said of requirements, of markers in an environment, and of specifiers."""

    requirements: dict[str, _Parsed] = {}
    markers: dict[str, bool] = {}
    specifiers: dict[str, bool] = {}

    def __len__(self) -> int:
        return len(self.requirements) + len(self.markers) + len(self.specifiers)


_said_decoder = msgspec.msgpack.Decoder(_Said)


class _Packaging:
    """`packaging`, which is asked about each text only once."""

    def __init__(self, indexes: PackageIndexes | None) -> None:
        self._indexes = indexes
        self._key = f"packaging {packaging.__version__}"
        self._said = _Said()
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            self._said = _said_decoder.decode(indexes.recall(self._key) if indexes else b"")
        if len(self._said) > _MOST_SAID:
            self._said = _Said()
        self._kept = len(self._said)

    def keep(self) -> None:
        """Store what was asked for the first time."""
        if self._indexes and len(self._said) > self._kept:
            self._indexes.remember(self._key, msgspec.msgpack.encode(self._said))

    def parsed(self, text: str) -> _Parsed:
        """Parse a requirement that has no marker; raise `ValueError` if it is not valid."""
        known = self._said.requirements.get(text)
        if known is None:
            from packaging.requirements import Requirement
            from packaging.utils import canonicalize_name

            one = Requirement(text)
            extras = tuple(sorted(map(canonicalize_name, one.extras)))
            known = _Parsed(canonicalize_name(one.name), extras, str(one.specifier))
            self._said.requirements[text] = known
        return known

    def applies(self, marker: str, variables: Mapping[str, str]) -> bool:
        """Return whether a marker is true; raise `ValueError` if it is not valid."""
        key = f"{marker}\n{variables['python_full_version']}\n{variables['extra']}"
        known = self._said.markers.get(key)
        if known is None:
            from packaging.markers import Marker

            known = self._said.markers[key] = Marker(marker).evaluate(dict(variables))
        return known

    def allows(self, specifier: str, version: str) -> bool:
        """Return whether a specifier allows a version; one that is not valid allows all, as for pip."""
        key = f"{specifier}\n{version}"
        known = self._said.specifiers.get(key)
        if known is None:
            from packaging.specifiers import InvalidSpecifier, SpecifierSet

            try:
                known = SpecifierSet(specifier).contains(version, prereleases=True)
            except InvalidSpecifier:
                known = True
            self._said.specifiers[key] = known
        return known


def confirm(
    lock: Lock,
    recorded: Mapping[str, Recorded],
    closed: Collection[str],
    indexes: PackageIndexes | None = None,
) -> None:
    """Check that a lock meets its request and all that was recorded, and that nothing in it is superfluous.

    `recorded` has the requirements of distributions by name, and `closed` the names about which the catalog
    decides, not the indexes, which keep what `packaging` says. Raise `InternalError` if the lock is wrong.
    """
    said = _Packaging(indexes)
    provider = _LockProvider(lock, recorded, closed, said)
    problem = ""
    try:
        reached = _reached(provider)
    except resolvelib.ResolutionError:
        problem = f"it violates {'; '.join(provider.violated)}"
    except ValueError as error:
        problem = f"a requirement is not valid: {error}"
    else:
        superfluous = sorted(
            pick.name
            for pick in lock.picks
            if pick.kind == "distribution"
            and pick.name not in reached
            and pick.origin != "preinstalled"  # it is there without being required
        )
        if superfluous:
            problem = f"nothing requires {', '.join(superfluous)}"
    if problem:
        import logging

        log = logging.getLogger(__name__)
        log.debug("answer: %s", provider.chosen)
        log.debug("resolvelib: %s", problem)
        msg = f"The answer was not confirmed by resolvelib: {problem}."
        raise InternalError(msg, hint="Please report this request. --debug writes both answers into a log.")
    said.keep()


def _reached(provider: _LockProvider) -> set[str]:
    """Return everything that the request, or what it keeps, requires directly or indirectly."""
    # resolvelib takes quadratic time in the number of requirements. So it follows a few of them, and the
    # provider postpones the others, with which the next resolution begins. As the lock has one candidate for
    # each name, this accepts the same locks as one resolution of everything.
    reached: set[str] = set()
    while root := provider.root():
        # Not by a `Resolver`, which also makes a graph of the result.
        resolution = Resolution(provider, resolvelib.BaseReporter())
        reached |= resolution.resolve([root], max_rounds=3 * _AT_A_TIME).mapping.keys()
    return reached


class _LockProvider(resolvelib.AbstractProvider["_Need", str, str]):
    """What is in the lock, and the recorded requirements of its distributions."""

    def __init__(
        self,
        lock: Lock,
        recorded: Mapping[str, Recorded],
        closed: Collection[str],
        said: _Packaging,
    ) -> None:
        # What is preinstalled stays, whether or not anything requires it.
        kept = (pick.name for pick in lock.distributions if pick.origin == "preinstalled")
        self._postponed = [_Need(key, key, is_met=True) for key in (_REQUEST, *kept)]
        """The requirements that are not resolved yet."""
        self._following: dict[str, list[_Need]] = {}
        """The requirements of each candidate that are resolved now, and `_found`: the names so far."""
        self._found: set[str] = set()
        self._left = 0
        """How many more requirements are resolved now."""
        self.violated: list[str] = []
        """The requirements on the first name that the lock does not have in an allowed version."""
        self._request = lock.request
        self._recorded = recorded
        self._closed = closed
        self._packaging = said
        self._is_left_open = bool(lock.left_open)
        platform = {pick.name: pick for pick in lock.picks}
        self._picks = platform | {pick.name: pick for pick in lock.distributions}  # ROCm can be both
        self.chosen = {name: pick.version for name, pick in self._picks.items()}
        """The versions by name, with an extra in brackets. resolvelib's candidates are these names."""
        for name, pick in self._picks.items():
            extras = (normalize_name(extra) for extra in (pick.variant, *pick.extras) if extra)
            self.chosen |= {f"{name}[{extra}]": pick.version for extra in extras}
        self.chosen[_REQUEST] = ""
        environment = Environment(self._requested_patch() or lock.target.python or "")
        self._patches = environment.patches
        self._variables = environment.variables
        self._markers: dict[tuple[str, str], bool] = {}
        self._pythons: dict[str, bool] = {}
        self._overrides = self._by_name(lock.request.overrides)
        limits = self._by_name(lock.request.constraints)
        self._limits = {name: [limit.specifier for limit in stated] for name, stated in limits.items()}

    def identify(self, requirement_or_candidate: _Need | str) -> str:
        one = requirement_or_candidate
        return one if isinstance(one, str) else one.key

    def narrow_requirement_selection(  # type: ignore[override]  # resolvelib names all arguments
        self, identifiers: Iterable[str], **_: object
    ) -> Iterable[str]:
        return [next(iter(identifiers))]  # each name has one candidate at most, so the order does not matter

    def get_preference(self, identifier: str, **_: object) -> Preference:  # type: ignore[override]
        return identifier

    def find_matches(
        self,
        identifier: str,
        requirements: Mapping[str, Iterator[_Need]],
        incompatibilities: Mapping[str, Iterator[str]],
    ) -> Callable[[], Iterator[str]]:
        unmet = {
            need.text for need in requirements[identifier] if identifier not in self.chosen or not need.is_met
        }
        # resolvelib goes back and then blames the last choice that is left, so the first reason is kept
        self.violated = self.violated or sorted(unmet)
        found = [] if unmet or identifier in incompatibilities[identifier] else [identifier]
        return found.__iter__  # resolvelib would ask `typing` whether a list is a sequence

    def is_satisfied_by(self, requirement: _Need, candidate: str) -> bool:  # noqa: ARG002
        return requirement.is_met

    def get_dependencies(self, candidate: str) -> Sequence[_Need]:
        if candidate not in self._following:
            self._following[candidate] = self._first(self.needs_of(candidate))
        return self._following[candidate]

    def root(self) -> _Need | None:
        """Return the requirement with which the next resolution begins; None if all are resolved."""
        self._following, self._left = {}, _AT_A_TIME
        roots: list[_Need] = []
        while self._postponed and not roots:
            roots = self._first([self._postponed.pop()])
        return roots[0] if roots else None

    def _first(self, needs: Iterable[_Need]) -> list[_Need]:
        """Return the requirements to resolve now, and postpone those for which this is too large."""
        first: list[_Need] = []
        for need in needs:
            if need.is_met and need.key in self._found:
                continue  # what `packaging` finds met by a distribution that was found changes nothing
            if self._left:
                self._left -= 1
                self._found.add(need.key)
                first.append(need)
            else:
                self._postponed.append(need)
        return first

    def needs_of(self, candidate: str) -> Iterator[_Need]:
        """Yield the requirements of the request, or what was recorded of a distribution or an extra of it."""
        if candidate == _REQUEST:
            for requirement in self._request.requirements:
                yield from self._stated(requirement.text, "the request")
            return
        name, _, extra = candidate.rstrip("]").partition("[")
        pick, known = self._picks[name], self._recorded.get(name)
        source = f"{name} {pick.version}"
        # the lock has those extras of a distribution of the catalog that the request or the target requires
        parts = [f"{name}[{one}]" for one in pick.extras] if name in self._closed else []
        for key in [name] if extra else parts:
            yield _Need(key, f"{candidate} requires {key}", is_met=True)
        if pick.alias_of:
            yield _Need(pick.alias_of, f"{source} is a name of {pick.alias_of}", is_met=True)
        if pick.files and not any(self._allows_python(file.requires_python) for file in pick.files):
            yield _Need("python", f"{source} requires Python {pick.files[0].requires_python}", is_met=False)
        if known and known.version not in {"", pick.version}:
            text = f"the metadata of {source} is of {known.version}"
            yield _Need(name, text, self._allows(name, f"=={known.version}"))
        for text, alternatives in known.facts if known else ():
            stated = [self._packaging.parsed(one) for one in alternatives]
            is_met = any(self._allows(one.name, one.specifier) for one in stated)
            yield _Need(stated[0].name if stated else name, text, is_met)
        for line in known.requires if known else ():
            if extra or not _OF_EXTRA.fullmatch(line):
                yield from self._stated(line, source, extra, known)

    def _stated(
        self, line: str, source: str, extra: str = "", known: Recorded | None = None
    ) -> Iterator[_Need]:
        """Yield what a requirement, or the overrides that replace it, require of the lock."""
        head, marker = split_marker(line)
        if marker and not extra and _EXTRA.search(marker) and not _OR.search(marker):
            return  # false without an extra
        if not self._applies(marker, extra) or (extra and self._applies(marker)):
            return  # what applies without the extra is required by the distribution itself
        requirement = self._packaging.parsed(head)
        name = requirement.name
        if known and known.is_built and not extra and (name in self._closed or self._is_for_cuda(name)):
            return  # the facts of the catalog are about what the recipe builds
        stated = self._overrides.get(name, [requirement])
        if name in TRITON_NAMES and name not in self.chosen:  # that of torch may have another name
            name = next((own for own in TRITON_NAMES if own in self.chosen), name)
        is_open = known is not None and self._is_left_open and (known.is_open or is_rocm_package(name))
        if name not in self.chosen and is_open:
            return  # the lock says so
        for one in stated:
            text = f"{source} requires {head if one is requirement else one}"
            if name in TRITON_NAMES and "torch" in self.chosen and self._request.target.backend == "rocm":
                yield _Need("torch", text, is_met=True)
            yield _Need(name, text, self._allows(name, one.specifier))
            for key in self._extras_of(name, one, is_requested=known is None):
                yield _Need(key, text, is_met=True)

    def _is_for_cuda(self, name: str) -> bool:
        return self._request.target.backend == "rocm" and is_for_cuda(name)

    def _by_name(self, stated: Sequence[Requested]) -> dict[str, list[_Parsed]]:
        """Return overrides or constraints by name, without those whose marker is false."""
        named: dict[str, list[_Parsed]] = {one.name: [] for one in stated}
        for one in stated:
            head, marker = split_marker(one.text)
            named[one.name] += [self._packaging.parsed(head)] if self._applies(marker) else []
        return named

    def _extras_of(self, name: str, stated: _Parsed, *, is_requested: bool) -> Iterator[str]:
        """Yield the required extras that the lock must have.

        Of a distribution of the catalog, these are the extras that the request names: other names in brackets
        are variants.
        """
        known = self._recorded.get(name)
        for extra in stated.extras:
            key = f"{name}[{extra}]"
            is_extra = name not in self._closed or (is_requested and known and extra in known.extras)
            if is_extra or key in self.chosen:
                yield key

    def _applies(self, marker: str, extra: str = "") -> bool:
        """Return whether a marker is true; a requirement counts if the oldest or newest Python needs it."""
        key = marker, extra
        if key not in self._markers:
            patches = self._patches if "python_full_version" in marker else self._patches[:1]
            self._markers[key] = not marker or any(
                self._packaging.applies(
                    marker, {**self._variables, "python_full_version": python, "extra": extra}
                )
                for python in patches
            )
        return self._markers[key]

    def _allows_python(self, requires_python: str) -> bool:
        if requires_python not in self._pythons:
            self._pythons[requires_python] = self._allows("python", requires_python)
        return self._pythons[requires_python]

    def _allows(self, name: str, specifier: str) -> bool:
        """Return whether a specifier and the constraints allow the version in the lock."""
        version = self.chosen.get(name, "")
        versions = (version, *self._patches) if name == "python" else (version,)
        for one in (specifier, *self._limits.get(name, ())):
            if one and not any(self._packaging.allows(one, text) for text in versions):
                return False
        return True

    def _requested_patch(self) -> str:
        """Return the patch release of Python that the request names (``python==3.12.4``), if any."""
        for stated in self._request.requirements:
            specifier = self._packaging.parsed(stated.text).specifier if stated.name == "python" else ""
            for clause in specifier.split(","):
                version = clause.removeprefix("==").removesuffix(".*")
                if clause[:2] == "==" and clause[:3] != "===" and version.count(".") > 1:
                    return version
        return ""
