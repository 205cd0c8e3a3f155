"""Resolve the distributions outside the catalog against package indexes.

The network (`resolver.network`) decides the platform and the distributions of the catalog. Its solution is
the assumption of a second search (`resolver.incompatibilities`), which adds all other distributions. That
search requests a project from an index only when a distribution requires the project, and the metadata of a
release only when it considers that release. The requirements become incompatibilities while it runs. If it
finds no solution, it returns the part of the assumption that is the reason. The network adds this part as a
relation and decides again. So the platform stays the best possible, and a requirement of any distribution
can change ROCm, torch or Python. If there is no solution, this is proved: the network has no solution with
the added relations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.choices import ALWAYS, Choices, Installed, Link, Pick, is_prerelease, names_prerelease
from resolver.compiling.clauses import LIMITS, REQUEST
from resolver.compiling.request import closest_versions
from resolver.environment import Environment, names_python
from resolver.errors import EnvironmentLacksError, SourceError, UsageError, did_you_mean
from resolver.facts.catalog import applies, is_elsewhere
from resolver.incompatibilities import Incompatibility, Search, is_required
from resolver.indexes import File, files_of, uploaded_by
from resolver.look_ahead import LookAhead
from resolver.problem import ABSENT, bits
from resolver.requirements import (
    TRITON_NAMES,
    exact_requirement,
    is_for_cuda,
    is_rocm_package,
    normalize_name,
    parse_requirement,
    split_marker,
)
from resolver.specifiers import version_key, version_or_none
from resolver.versions import join_words, parse_specifier, shorten

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Requires
    from resolver.indexes import Metadata, PackageIndexes, Release
    from resolver.model import Candidate, Request, Requirement
    from resolver.problem import Problem, Variable
    from resolver.session import Solution

_MOST_CHECKED = 25
"""Number of releases to check at a time until one can be installed."""


class TritonFoundError(Exception):
    """The index of torch has a triton whose exact version is not in the catalog.

    Attributes
    ----------
    torch
        Version of torch.
    requirement
        Its requirement, with the exact version and with the marker of the catalog.
    """

    def __init__(self, torch: str, requirement: str) -> None:
        super().__init__(torch, requirement)
        self.torch = torch
        self.requirement = requirement


class WantedError(Exception):
    """A release requires distributions of the catalog that the solution does not contain."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(*names)
        self.names = frozenset(names)


class OpenWorld:
    """The distributions outside the catalog that a request needs.

    Parameters
    ----------
    catalog, request
        The facts and the request.
    problem
        The problem of the platform and the catalog.
    bound
        Names that are resolved from the catalog only, whether or not the problem has them.
    indexes
        The package indexes.
    keep
        Versions to prefer, by name.
    any_patch
        Whether to allow releases that only some patch releases of the Python may install.

    Attributes
    ----------
    has_answer
        Whether an index has replied.
    skipped
        Releases that could not be considered, with the reason.
    """

    def __init__(
        self,
        catalog: Catalog,
        request: Request,
        problem: Problem,
        *,
        bound: frozenset[str],
        indexes: PackageIndexes,
        keep: Mapping[str, str],
        any_patch: bool,
    ) -> None:
        self._keep = keep
        self._catalog = catalog
        self._request = request
        self._problem = problem
        self._bound = bound
        self._indexes = indexes
        self._search = Search()
        self._any_patch = any_patch
        self._environment = Environment("")
        self._closed: dict[str, int] = {}
        self._open: dict[str, Choices] = {}
        self._by_number: dict[int, Choices] = {}
        self._loaded: dict[int, set[int]] = {}
        """For each variable the values whose requirements were added, for the current environment."""
        self._undecided: set[int] = set()
        """Variables that must be present, and have several values."""
        self._installable_files: dict[tuple[str, str], list[File]] = {}
        """By project and version, for the current environment."""
        self._requires: dict[tuple[int, int], list[tuple[str, str]]] = {}
        self._installed = request.preinstalled.installed if request.preinstalled else {}
        self._limits = _by_name(request.constraints)
        self._overrides = _by_name(request.overrides)
        self._asked = _by_name(request.requirements)
        self._requested: set[tuple[str, str]] = set()
        self._files: dict[tuple[str, int], tuple[File, ...]] = {}
        self._solution: Solution = {}
        self.has_answer = False
        self.skipped: dict[str, str] = {}
        self._needing_cuda: dict[str, tuple[str, str]] = {}
        """By project, the first release that was rejected, and the CUDA distribution that it requires."""
        self._unread: dict[tuple[str, int], str] = {}
        self._dynamic: set[tuple[str, str]] = set()
        self._lacking: dict[tuple[int, int], list[str]] = {}
        self._may_infer = request.support == "any"
        self._look_ahead = LookAhead(
            indexes, request.target.date, self._is_decided, allow_dynamic=self._may_infer
        )
        for name, variable in problem.variables.items():
            self._closed[name] = self._search.add_variable(variable.everything)
        self._names = {number: name for name, number in self._closed.items()}
        self._tritons = [name for name in TRITON_NAMES if name in self._closed]
        """The distributions of the problem that install ``triton``."""
        if not self._installed.keys() & {*TRITON_NAMES}:
            for name in self._tritons:
                self._limit_to_torch(name)

    def extend(self, solution: Solution, free: Collection[str]) -> Incompatibility | None:
        """Add the distributions outside the catalog to a solution of the problem.

        Parameters
        ----------
        solution
            The solution.
        free
            Distributions of the problem that the solution does not contain, but could.

        Returns
        -------
        Incompatibility or None
            None if there is a result, which `picks` yields. Otherwise the values of the problem's variables
            that are part of no result, by the variables' numbers in the order of the problem.

        Raises
        ------
        WantedError
            A release requires a free distribution, or a distribution that the problem does not have.
        TritonFoundError
            The catalog has no candidate for the triton that torch requires, but torch's index has one.
        UsageError
            No index has a requested project.
        EnvironmentLacksError
            An index cannot be reached.
        SourceError
            A page of an index is broken.
        """
        self._solution = solution
        python, glibc = self._version("python"), self._version("glibc")
        if (python, glibc) != (self._environment.python, self._environment.glibc):
            self._environment = Environment(python, glibc, any_patch=self._any_patch)
            self._loaded.clear()
            self._installable_files.clear()
        self._search.touched.update(range(len(self._search.domains)))
        self._look_ahead.start(
            (
                requirement
                for requirement in self._request.requirements
                if self._environment.applies(requirement.marker)
            ),
            self._environment,
        )
        for requirement in self._request.requirements:
            for stated, when in self._replaced(requirement, requirement.marker):
                self._add_request(stated, when)
        assumptions = [
            (number, 1 << solution.get(name, 0)) for name, number in self._closed.items() if name not in free
        ]
        return self._search.solve(assumptions, self._choose)

    def picks(self) -> Iterator[Pick]:
        """Yield the releases that the search added; a preinstalled distribution has no files."""
        extras: dict[str, list[str]] = {}
        for choices in self._open.values():
            if choices.extra and is_required(self._search.domains[choices.number]):
                extras.setdefault(choices.name, []).append(choices.extra)
        for choices in self._open.values():
            domain = self._search.domains[choices.number]
            if is_required(domain) and not choices.extra:
                release = choices.release(domain.bit_length() - 1)
                is_installed = choices.name in self._installed
                files = () if is_installed else tuple(self._installable(choices.name, release))
                is_dynamic = bool(files) and (choices.name, release.version) in self._dynamic
                yield Pick(
                    choices.name,
                    release.version,
                    files,
                    tuple(sorted(extras.get(choices.name, ()))),
                    "inferred" if is_dynamic else "documented",
                )

    def earlier_index(self, name: str, index: str) -> str:
        """Return the first index that has a project, if it comes before the index of the files."""
        urls = self._indexes.urls
        earlier = urls[: urls.index(index)] if index in urls else ()
        return next((url for url in earlier if self._indexes.at(url).project(name) is not None), "")

    def replaced_for_cuda(self) -> Iterator[str]:
        """Yield a sentence for each pick that was chosen because a newer release requires CUDA."""
        for pick in self.picks():
            newer, required = self._needing_cuda.get(pick.name, (pick.version, ""))
            if version_key(newer) > version_key(pick.version):
                yield (
                    f"{pick.name} {pick.version} was chosen because newer releases, such as {newer}, require "
                    f"{required}, which is for CUDA. {_override_hint(pick.name, required)}"
                )

    def refused_for_cuda(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield, for each CUDA distribution in the texts, a hint to resolve without it."""
        words = {word.strip(",") for text in texts for word in text.split()}
        for project, (_, required) in self._needing_cuda.items():
            if required in words:
                yield _override_hint(project, required)

    def files_of(self, name: str) -> tuple[File, ...]:
        """Return the files of a distribution of the catalog in the solution; empty if no index has them."""
        return self._files.get((name, self._solution[name]), ())

    def needs_newer_patch(self, pick: Pick) -> bool:
        """Return whether only some patch releases of the Python may install a pick."""
        strict = Environment(self._environment.python)
        files = pick.files
        return bool(files) and not any(strict.allows_python(file.requires_python) for file in files)

    def version_of(self, name: str) -> str:
        """Return the version of a distribution in the result; empty if it has none."""
        choices = self._open.get(name)
        if choices is None:
            return self._version(name)
        domain = self._search.domains[choices.number]
        return choices.release(domain.bit_length() - 1).version if is_required(domain) else ""

    def extras_of(self, name: str) -> tuple[str, ...]:
        """Return the extras that the request and the target require of a distribution, sorted."""
        variants = {candidate.variant for candidate in self._problem.variables[name].candidates}
        extras = {
            extra
            for requirement in self._asked.get(name, ())
            if not variants & {*requirement.extras} and self._environment.applies(requirement.marker)
            for extra in requirement.extras
        }
        row = self._catalog.torch.get(self._version(name)) if name == "torch" else None
        if row and row.device_extra:
            extras |= {row.device_extra.format(gfx=target) for target in self._request.target.gfx}
        return tuple(sorted(extras))

    def lacking(self) -> Iterator[str]:
        """Yield a sentence for each required extra that the metadata of its distribution does not have."""
        for (number, mask), texts in self._lacking.items():
            if self._search.domains[number] == mask:
                yield from dict.fromkeys(texts)

    def unread(self) -> dict[str, str]:
        """Return the distributions of the solution whose metadata could not be read, with the reason."""
        return {
            name: reason for (name, bit), reason in self._unread.items() if self._solution.get(name) == bit
        }

    def requirements_of(self, name: str) -> list[tuple[str, str]]:
        """Return the names that a distribution requires in the result, with the requirements as written."""
        if name in self._closed and name not in self._open:
            return self._requires.get((self._closed[name], 1 << self._solution.get(name, 0)), [])
        required = []
        for choices in self._open.values():
            if choices.name == name and is_required(self._search.domains[choices.number]):
                required += self._requires.get((choices.number, self._search.domains[choices.number]), [])
        return required

    def requested_tritons(self) -> list[Requirement]:
        """Return the requirements of the request that mean the triton of torch."""
        return [
            requirement
            for requirement in self._request.requirements
            if self._is_of_torch(requirement.name) and self._environment.applies(requirement.marker)
        ]

    def stated(self) -> list[Incompatibility]:
        """Return the statements of the request and of the metadata read so far; each reason is a `Link`."""
        return self._search.stated

    def everything(self) -> list[int]:
        """Return the mask of all values of each variable: first the problem's variables, in its order."""
        masks = [variable.everything for variable in self._problem.variables.values()]
        return [*masks, *(choices.everything for choices in self._by_number.values())]

    def number_of_releases(self, name: str) -> int:
        """Return the number of releases of an added project."""
        choices = self._open.get(name)
        return len(choices.releases) if choices else 0

    def _version(self, name: str) -> str:
        bit = self._solution.get(name, 0)
        return self._problem.variables[name].candidate(bit).version if bit else ""

    def _of_target(self, *names: str) -> dict[int, int]:
        """Return terms for the target's components in the solution."""
        return {
            self._closed[name]: 1 << self._solution.get(name, 0) for name in names if name in self._closed
        }

    def _replaced(
        self, requirement: Requirement, marker: str, extra: str = ""
    ) -> Iterator[tuple[Requirement, dict[int, int]]]:
        """Yield a requirement or its overrides if they apply, with terms for the Python if it matters."""
        if not self._environment.applies(marker, extra):
            return
        for stated in self._overrides.get(requirement.name, (requirement,)):
            if stated is requirement or self._environment.applies(stated.marker):
                depends = names_python(marker) or names_python(stated.marker)
                yield stated, self._of_target("python") if depends else {}

    def _add_request(self, requirement: Requirement, when: dict[int, int]) -> None:
        """Add the demand of a requirement in the request, under the Python of the solution."""
        name = requirement.name
        state = (requirement.text, self._environment.python)
        is_closed = name in self._closed and not (name == "triton" and self._is_of_torch(name))
        if is_closed or state in self._requested:
            return
        self._requested.add(state)
        if is_for_cuda(name) and name not in self._installed:
            backend = "AMD GPUs" if self._request.target.backend == "rocm" else "CPUs"
            msg = f"{shorten(name)} is for CUDA and does not run on {backend}."
            raise UsageError(msg, hint="Remove it from the requirements.")
        if self._is_of_torch(name):
            self._require_triton(
                when, requirement, Link("", name, "", f"you asked for {requirement.text}", REQUEST)
            )
            return
        nodes = self._nodes(name, requirement.extras)
        if not nodes:
            msg = f"No index has the project {shorten(name)!r}. Searched: {', '.join(self._indexes.urls)}."
            hint = did_you_mean(name, self._bound)
            raise UsageError(msg, hint=hint if hint.startswith("Did") else "Check the name.")
        if not nodes[0].allowed_by(requirement.specifier) and not when:
            but = self._but_url(nodes[0], 0)
            msg = f"No release of {name} matches {shorten(requirement.text)!r}{but}."
            versions = [release.version for release in nodes[0].releases]
            raise UsageError(msg, hint=closest_versions(requirement, versions))
        for choices in nodes:
            allowed = choices.allowed_by(requirement.specifier)
            link = Link("", choices.key, "", f"you asked for {requirement.text}", REQUEST)
            self._search.add({**when, choices.number: choices.everything & ~allowed}, link)

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
        releases = base.releases if base else self._releases(name)
        if releases is None:
            return None
        choices = self._open[key] = Choices(name, extra, releases)
        choices.number = self._search.add_variable(choices.everything)
        self._by_number[choices.number] = choices
        if base:
            present = choices.everything & ~ABSENT
            self._search.add({choices.number: present, base.number: ABSENT}, ALWAYS)
            return choices
        self._add_facts(choices)
        if not any(names_prerelease(requirement.specifier) for requirement in self._stated(name)):
            choices.avoids_prereleases = True
        for limit in self._limits.get(name, ()):
            text = f"you limited {name} to {limit.specifier}"
            excluded = choices.everything & ~choices.allowed_by(limit.specifier) & ~ABSENT
            terms = {**self._pythons(limit.marker), choices.number: excluded}
            self._search.add(terms, Link("", name, "", text, REQUEST))
        if name in TRITON_NAMES:
            self._exclude_other_tritons(choices)
        return choices

    def _limit_to_torch(self, name: str) -> None:
        """Exclude, for each torch of the catalog, every triton except the required triton."""
        torch, triton = self._closed["torch"], self._closed[name]
        variable = self._problem.variables[name]
        for bit, candidate in enumerate(self._problem.variables["torch"].candidates, start=1):
            row = self._catalog.torch.get(candidate.version)
            if not row or not row.triton or candidate.origin == "preinstalled":
                continue
            head, marker = split_marker(row.triton)
            own = parse_requirement(head)
            if own.name == name and not marker and exact_requirement(head):
                continue  # the problem has a relation for it
            allowed = variable.allowed_by(str(own.specifier or "")) if own.name == name else 0
            link = Link("torch", name, row.version, f"requires {row.triton}", row.source)
            self._search.add({torch: 1 << bit, triton: variable.present & ~allowed}, link)
            if allowed and marker:
                without = self._pythons(marker, applying=False)
                self._search.add({torch: 1 << bit, **without, triton: variable.present}, link)

    def _pythons(self, marker: str, *, applying: bool = True) -> dict[int, int]:
        """Return a term for the Pythons to which a marker applies, or does not; empty without a marker."""
        if not marker:
            return {}
        pythons = enumerate(self._problem.variables["python"].candidates, start=1)
        bits = (bit for bit, row in pythons if Environment(row.version).applies(marker) is applying)
        return {self._closed["python"]: sum(1 << bit for bit in bits)}

    def _exclude_other_tritons(self, choices: Choices) -> None:
        """Exclude the other projects that install ``triton`` if this project is chosen."""
        present = choices.everything & ~ABSENT
        for name in TRITON_NAMES:
            other: Variable | Choices | None = self._open.get(name) or self._problem.variables.get(name)
            if other is None or other is choices or self._installed.keys() & {name, choices.name}:
                continue
            number = other.number if isinstance(other, Choices) else self._closed[name]
            text = f"installs the same files as {name}"
            link = Link(choices.name, name, "", text, self._indexes.urls[0])
            self._search.add({choices.number: present, number: other.everything & ~ABSENT}, link)

    def _is_triton(self, name: str) -> bool:
        """Return whether a name is a triton for ROCm, which PyPI does not have."""
        return name in TRITON_NAMES and self._request.target.backend == "rocm"

    def _is_of_torch(self, name: str) -> bool:
        """Return whether a name means the triton of torch, which has several names."""
        return self._is_triton(name) and name not in self._installed

    @cached_property
    def _without_triton(self) -> int:
        """The mask of absence and of the torch versions that are not known to require triton."""
        mask = ABSENT
        for bit, candidate in enumerate(self._problem.variables["torch"].candidates, start=1):
            row = self._catalog.torch.get(candidate.version)
            if candidate.origin != "preinstalled" and not (row and row.triton):
                mask |= 1 << bit
        return mask

    def _require_triton(self, terms: dict[int, int], requirement: Requirement, link: Link) -> None:
        """Require a torch whose triton has a version that a requirement allows."""
        limits = [requirement, *self._limits.get(requirement.name, ())]
        without = {}
        for name in self._tritons:
            triton = self._problem.variables[name]
            excluded = ABSENT
            for limit in limits:
                allowed = triton.allowed_by(str(limit.specifier)) if limit.specifier else triton.present
                excluded |= triton.everything & ~allowed
            without[self._closed[name]] = excluded
        link = link._replace(object=next(iter(self._tritons), ""))
        self._search.add({**terms, self._closed["torch"]: self._without_triton}, link)
        self._search.add({**terms, **without}, link)

    def _add_facts(self, choices: Choices) -> None:
        """Add the catalog's facts about the releases of a project."""
        for row in self._rows.get(choices.name, ()):
            releases = choices.allowed_by(parse_specifier(row.releases) if row.releases else None)
            if row.is_of_wheel:
                releases = self._with_wheel(choices, releases)
            self._add_row(row, choices.name, {choices.number: releases}, row.releases.removeprefix("=="))

    def _with_wheel(self, choices: Choices, releases: int) -> int:
        """Return the releases with a file that has the hash of a wheel that was read, or has no hash."""
        read = {row.sha256 for row in self._catalog.wheel.values() if row.package == choices.name}
        bits = [bit for bit in range(1, len(choices.releases) + 1) if releases >> bit & 1]
        return sum(
            1 << bit
            for bit in bits
            if any(not file.sha256 or file.sha256 in read for file in choices.release(bit).files)
        )

    @cached_property
    def _rows(self) -> dict[str, list[Requires]]:
        """The catalog's requirements for this backend, by distribution."""
        target = self._request.target
        by_key: dict[tuple[object, ...], Requires] = {}
        for row in self._catalog.requires:
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

    def _add_row(self, row: Requires, name: str, terms: dict[int, int], version: str) -> None:
        """Add a requirement of the catalog if one of its ends is outside the catalog."""
        versions = [text.removeprefix("==") for text in row.versions]
        predicate = f"requires {row.on} {join_words(versions, most=8)}"
        if not versions:
            predicate = f"contains no code for {', '.join(self._request.target.gfx)}"
        link = Link(name, row.on, version, predicate, row.source)
        if row.on == "gfx":
            allowed_anyway = row.partial and self._request.support == "any"
            if not allowed_anyway and not {*self._request.target.gfx} <= {*row.versions}:
                link = link._replace(object="", predicate=f"contains code for {join_words(versions, most=8)}")
                self._search.add(terms, link)
            return
        when_present = row.when_present or row.on in LIMITS
        variable: Variable | Choices | None = self._problem.variables.get(row.on)
        number = self._closed.get(row.on, -1)
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
        self._search.add({**terms, number: variable.everything & ~allowed}, link)

    def _releases(self, name: str) -> Sequence[Release] | None:
        """Return the releases of a project that may be chosen, newest first; None if no index has it."""
        installed = self._installed.get(name)
        url = self._url(name)
        if url and not installed:
            return self._indexes.direct(name, url).releases
        if is_rocm_package(name) and not installed:
            return self._releases_beside_torch(name)
        project = self._indexes.project(name)
        self.has_answer = True
        if installed:
            offered = project.releases if project and not self._is_triton(name) else ()
            same = [release for release in offered if release.version == installed]
            return same or [Installed(installed)]
        return project.releases if project else None

    def _releases_beside_torch(self, name: str) -> Sequence[Release] | None:
        """Return the releases of a project on the indexes of the torch versions that the request allows."""
        torch = self._problem.variables["torch"]
        allowed = torch.present
        for demand in self._problem.demands:
            allowed &= demand.mask if demand.variable.name == "torch" else torch.everything
        here = self._index_of_torch()
        rows = (self._catalog.torch.get(torch.candidate(bit).version) for bit in bits(allowed))
        releases: dict[str, Release] = {}
        for url in dict.fromkeys([here, *(row.index for row in rows if row and row.device_extra)]):
            try:
                project = self._indexes.at(url).project(name)
            except (EnvironmentLacksError, SourceError):
                if url == here:
                    raise
                continue
            self.has_answer = True
            for release in project.releases if project else ():
                releases.setdefault(release.version, release)
        return (
            sorted(releases.values(), key=lambda release: version_key(release.version), reverse=True) or None
        )

    def _url(self, name: str) -> str:
        """Return the URL of the direct reference that the request has for a name, if any.

        Raises
        ------
        UsageError
            The request has several URLs for the name.
        """
        direct = [
            requirement
            for requirement in self._stated(name)
            if requirement.url and self._environment.applies(requirement.marker)
        ]
        for other in direct[1:]:
            if other.url != direct[0].url:
                msg = f"{shorten(other.text)!r} and {shorten(direct[0].text)!r} have different URLs."
                raise UsageError(msg, hint=f"Keep one URL of {name}.")
        return direct[0].url if direct else ""

    def _but_url(self, choices: Choices, allowed: int) -> str:
        """Return the end of a message about a requirement that a direct reference does not meet."""
        if allowed or not self._url(choices.name):
            return ""
        return f", but the URL of {choices.name} points to {choices.releases[0].version}"

    def _is_decided(self, requirement: Requirement) -> bool:
        """Return whether a requirement is decided without a project of its name on the indexes."""
        name = requirement.name
        has_url = any(stated.url for stated in (requirement, *self._stated(name)))
        return has_url or is_rocm_package(name) or name in self._bound or name in self._closed

    def _stated(self, name: str) -> Iterator[Requirement]:
        for stated in (self._asked, self._limits, self._overrides):
            yield from stated.get(name, ())

    def _choose(self) -> tuple[int, int] | None:
        """Return the next variable to decide and its value; read the metadata of decided releases."""
        domains, touched, undecided = self._search.domains, self._search.touched, self._undecided
        for number in sorted(touched):
            domain = domains[number]
            undecided.discard(number)
            if not domain & ABSENT:
                if number in self._names and self._names[number] not in self._solution:
                    raise WantedError([self._names[number]])
                if domain & (domain - 1):
                    undecided.add(number)
                elif domain not in self._loaded.get(number, ()):
                    self._load(number, domain)
                    return number, domain
            touched.discard(number)
        if not undecided:
            return None
        first = min(undecided)
        choices, domain = self._by_number[first], self._search.domains[first]
        if choices.extra:
            return first, self._same_as_project(choices, domain)
        return first, self._first_usable(choices, domain)

    def _same_as_project(self, choices: Choices, domain: int) -> int:
        """Return the release of an extra: the release of its project, which is decided first."""
        project = self._open[choices.name]
        mask = self._search.domains[project.number]
        others = choices.everything & ~mask & ~ABSENT
        self._search.add({project.number: mask, choices.number: others}, ALWAYS)
        return domain & mask or domain & -domain

    def _first_usable(self, choices: Choices, domain: int) -> int:
        """Return the preferred release that can be installed; exclude the releases before it."""
        unusable: dict[tuple[str, bool], int] = {}
        versions: dict[tuple[str, bool], list[str]] = {}
        for _ in range(_MOST_CHECKED):
            mask = self._preferred(choices, domain)
            release = choices.release(mask.bit_length() - 1)
            problem = self._obstacle(choices.name, release)
            if problem is None:
                break
            unusable[problem] = unusable.get(problem, 0) | mask
            versions.setdefault(problem, []).append(release.version)
            if domain == mask:
                break
            domain &= ~mask
        for problem, masks in unusable.items():
            text, by_target = problem
            source = self._url(choices.name) or self._indexes.urls[0]
            link = Link(choices.name, "", ", ".join(versions[problem]), text, source)
            terms = self._of_target("python", "glibc") if by_target else {}
            self._search.add({**terms, choices.number: masks}, link)
        return mask

    def _preferred(self, choices: Choices, mask: int) -> int:
        kept = mask & choices.of_version(self._keep.get(choices.name, ""))
        if kept:
            return kept
        return choices.preferred(mask, oldest=self._request.prefer == "oldest")

    def _installable(self, name: str, release: Release) -> list[File]:
        """Return the files of a release that the target may install."""
        key = (name, release.version)
        files = self._installable_files.get(key)
        if files is None:
            files = uploaded_by(release.files, self._request.target.date)
            kept = [file for file in files if file.yanked is None] or files
            files = self._installable_files[key] = self._environment.installable(kept)
        return files

    def _obstacle(self, name: str, release: Release) -> tuple[str, bool] | None:
        """Return why a release cannot be installed, and whether that depends on the target; else None."""
        if isinstance(release, Installed):
            return None
        installable = self._installable(name, release)
        if installable and installable[0].yanked is None:
            return None
        files = uploaded_by(release.files, self._request.target.date)
        if not files:
            return f"was uploaded after {self._request.target.date}", False
        if all(file.yanked is not None for file in files) and not self._is_pinned(name, release.version):
            return "is yanked", False
        return None if installable else (self._not_for_target(files), True)

    def _not_for_target(self, files: Sequence[File]) -> str:
        pythons = {file.requires_python for file in files}
        if len(pythons) == 1 and not self._environment.allows_python(python := pythons.pop()):
            return f"requires Python {python}"
        return f"has no file for {self._environment}"

    def _is_pinned(self, name: str, version: str) -> bool:
        """Return whether a requirement pins exactly this version, so that it may be yanked (PEP 592)."""
        return any(
            clause.operator in {"==", "==="} and requirement.specifier.allows(version)
            for requirement in self._stated(name)
            if requirement.specifier is not None
            for clause in requirement.specifier
            if not clause.version.endswith(".*")
        )

    def _load(self, number: int, mask: int) -> None:
        """Add the requirements of a chosen release, or exclude it if it cannot be used."""
        self._loaded.setdefault(number, set()).add(mask)
        choices = self._by_number.get(number)
        if choices is None:
            self._load_closed(number, mask)
            return
        release = choices.release(mask.bit_length() - 1)
        if choices.extra:
            project = self._open[choices.name]
            self._search.add({number: mask, project.number: project.everything & ~mask}, ALWAYS)
        else:
            problem = self._obstacle(choices.name, release)
            if problem:
                self._first_usable(choices, mask)
                return
            for extra in self._open.values():
                if extra.extra and extra.name == choices.name:
                    others = extra.everything & ~mask & ~ABSENT
                    self._search.add({number: mask, extra.number: others}, ALWAYS)
        if isinstance(release, Installed):
            return
        metadata = self._metadata_of(choices, mask, release)
        if metadata is None:
            return
        try:
            self._require(number, mask, choices.key, metadata, choices.extra)
        except (UsageError, ValueError) as error:
            self._skip(choices, mask, f"has an invalid requirement: {error}")

    def _metadata_of(self, choices: Choices, mask: int, release: Release) -> Metadata | None:
        """Return the metadata of a release; exclude the release if its metadata cannot be used."""
        files = self._installable(choices.name, release)
        try:
            metadata = self._indexes.metadata(files, allow_dynamic=self._may_infer)
        except SourceError as error:
            self._skip(choices, mask, f"has broken metadata: {error.message}")
            return None
        if metadata is None:
            self._skip(choices, mask, "has no metadata that can be read without running its code")
        elif metadata.dynamic:
            self._dynamic.add((choices.name, release.version))
        return metadata

    def _skip(self, choices: Choices, mask: int, problem: str) -> None:
        version = choices.release(mask.bit_length() - 1).version
        self.skipped[f"{choices.name} {version}"] = problem
        source = self._url(choices.name) or self._indexes.urls[0]
        link = Link(choices.key, "", version, problem, source)
        self._search.add({**self._of_target("python", "glibc"), choices.number: mask}, link)

    def _require(self, number: int, mask: int, subject: str, metadata: Metadata, extra: str = "") -> None:
        """Add the requirements of a release or of one of its extras.

        Raises
        ------
        UsageError, ValueError
            A requirement is invalid.
        """
        requirements = list(self._applying(metadata, extra))
        self._look_ahead.start((requirement for requirement, _ in requirements), self._environment)
        bound = {
            requirement.name
            for requirement, _ in requirements
            if requirement.name in self._bound and requirement.name not in self._closed
        }
        is_ours = number in self._names and self._candidate(number, mask).origin == "build"
        is_built = number in self._names and metadata.dynamic
        if bound and not is_built:
            raise WantedError(bound)
        if extra and extra not in metadata.extras:
            text = f"{metadata.name} {metadata.version} does not provide the extra {extra!r}."
            self._lacking.setdefault((number, mask), []).append(text)
        if not extra or number not in self._names:
            self._requires[number, mask] = []
        required = self._requires[number, mask]
        for requirement, when in requirements:
            name = requirement.name
            terms = {number: mask, **when}
            text = f"requires {name}{_brackets(requirement)}{requirement.specifier or ''}"
            link = Link(subject, name, metadata.version, text, metadata.source)
            if self._require_one(terms, requirement, link, is_ours=is_ours, is_built=is_built):
                required.append((name, text.removeprefix("requires ")))

    def _require_one(
        self, terms: dict[int, int], requirement: Requirement, link: Link, *, is_ours: bool, is_built: bool
    ) -> bool:
        """Add a requirement; return whether the requirement adds its object to the result."""
        name = requirement.name
        if link.subject != "torch" and self._is_of_torch(name):
            if not is_built:
                self._require_triton(terms, requirement, link)
            return not is_ours  # our wheels require the triton of torch by its own name
        if is_rocm_package(name) and "torch" in self._solution:
            return self._require_rocm_package(terms, requirement, link)
        if name in self._closed or name in self._bound:
            # For a build, the requirements in the catalog take precedence.
            return not is_built and self._require_closed(terms, requirement, link)
        return self._require_open(terms, requirement, link)

    def _require_rocm_package(self, terms: dict[int, int], requirement: Requirement, link: Link) -> bool:
        """Add a requirement on ROCm as a package, or on torch's code for a GPU architecture."""
        name = requirement.name
        if name in self._closed:  # ROCm itself: the platform has the same version
            self._require_closed(terms, requirement, link)
        if self._nodes(name, requirement.extras):
            return self._require_open(terms, requirement, link)
        self._unread["torch", self._solution["torch"]] = f"{self._index_of_torch()} does not list {name}"
        return False

    def _require_closed(self, terms: dict[int, int], requirement: Requirement, link: Link) -> bool:
        """Add a requirement on a distribution of the problem; return whether it was added."""
        name, specifier = requirement.name, requirement.specifier
        variable = self._problem.variables[name]
        allowed = variable.present if specifier is None else variable.allowed_by(str(specifier))
        if not allowed and link.subject == "torch" and name in TRITON_NAMES:
            self._find_triton(requirement)
            return False
        self._search.add({**terms, self._closed[name]: variable.everything & ~allowed}, link)
        return True

    def _require_open(self, terms: dict[int, int], requirement: Requirement, link: Link) -> bool:
        """Add a requirement on any other distribution; return whether a project may satisfy it."""
        obstacle = self._obstacle_to(requirement)
        nodes = [] if obstacle else self._nodes(requirement.name, requirement.extras)
        if not nodes:
            text = f"{link.predicate}, {obstacle or 'which no index has'}"
            if is_for_cuda(requirement.name):
                project = link.subject.partition("[")[0]
                self._needing_cuda.setdefault(project, (link.version, requirement.name))
            self._search.add(terms, link._replace(object="", predicate=text))
        for choices in nodes:
            allowed = choices.allowed_by(requirement.specifier)
            excluded = choices.everything & ~allowed & terms.get(choices.number, -1)  # it may require itself
            why = self._but_url(choices, allowed) or ("" if allowed else ", which matches no release")
            predicate = link.predicate + why
            self._search.add(
                {**terms, choices.number: excluded},
                link._replace(object=choices.key, predicate=predicate),
            )
        return bool(nodes)

    def _applying(self, metadata: Metadata, extra: str) -> Iterator[tuple[Requirement, dict[int, int]]]:
        """Yield the requirements that apply, each with the terms for the Python on which that depends."""
        environment = self._environment
        for text in metadata.requires:
            head, marker = split_marker(text)
            if not environment.applies(marker, extra) or (extra and environment.applies(marker)):
                continue  # a requirement that applies without the extra belongs to the project itself
            yield from self._replaced(parse_requirement(head), marker, extra)

    def _obstacle_to(self, requirement: Requirement) -> str:
        """Return the reason why no project can satisfy a requirement; empty if a project may."""
        name = requirement.name
        if is_for_cuda(name):
            return "which is for CUDA"
        if requirement.url and not self._url(name):
            return "whose URL is used only if the request contains it"
        return ""

    def _find_triton(self, requirement: Requirement) -> None:
        """Search the index of torch for a triton that the catalog does not have.

        Raises
        ------
        TritonFoundError
            The index has such a triton.
        """
        index, row = self._index_of_torch(), self._catalog.torch.get(self._version("torch"))
        listed = f"{index} does not list it" if index else "no index lists it"
        problem = f"{requirement.text} has no version in the catalog, and {listed}"
        try:
            project = (self._indexes.at(index) if index else self._indexes).project(requirement.name)
        except (EnvironmentLacksError, SourceError) as error:
            project, problem = None, error.message
        for release in project.releases if project and row else ():
            is_allowed = requirement.specifier is None or requirement.specifier.allows(release.version)
            is_final = not is_prerelease(release.version)
            if (
                row
                and is_allowed
                and is_final
                and self._environment.installable(uploaded_by(release.files, self._request.target.date))
            ):
                marker = split_marker(row.triton)[1]
                exact = f"{requirement.name}=={release.version}" + (f"; {marker}" if marker else "")
                raise TritonFoundError(row.version, exact)
        self._unread["torch", self._solution["torch"]] = problem

    def _candidate(self, number: int, mask: int) -> Candidate:
        return self._problem.variables[self._names[number]].candidate(mask.bit_length() - 1)

    def _load_closed(self, number: int, mask: int) -> None:
        """Add the requirements of a distribution of the catalog, as far as an index has its metadata."""
        name = self._names[number]
        candidate = self._candidate(number, mask)
        if candidate.kind != "distribution" or candidate.origin == "preinstalled":
            return
        if candidate.release is not None:
            known = {*self._closed, *self._bound}
            for row in self._rows.get(name, ()):
                if row.on not in known and applies(row, candidate.release):
                    self._add_row(row, name, {number: mask}, candidate.version)
        files, indexes = self._offered(candidate)
        if not files:
            self._exclude_unfit(candidate, number, mask)
            return
        self._files[name, mask.bit_length() - 1] = tuple(files)
        try:
            metadata = indexes.metadata(files, allow_dynamic=candidate.origin == "build")
        except (EnvironmentLacksError, SourceError) as error:
            self._unread[name, self._solution[name]] = error.message
            return
        if metadata is None:
            self._unread[name, self._solution[name]] = "no index has the metadata"
            return
        try:
            for extra in ("", *self.extras_of(name)):
                self._require(number, mask, f"{name}[{extra}]" if extra else name, metadata, extra)
        except (UsageError, ValueError) as error:
            self._unread[name, self._solution[name]] = f"a requirement in its metadata is invalid: {error}"

    def _exclude_unfit(self, candidate: Candidate, number: int, mask: int) -> None:
        """Exclude a release that has no wheel for the target, unless its wheels are unknown."""
        release = candidate.release
        is_unread = (candidate.name, self._solution[candidate.name]) in self._unread
        if release is not None and is_elsewhere(release) and not is_unread:
            text = f"has no wheel for {self._environment}"
            link = Link(candidate.name, "", candidate.version, text, release.source)
            self._search.add({**self._of_target("python", "glibc"), number: mask}, link)

    def _offered(self, candidate: Candidate) -> tuple[list[File], PackageIndexes]:
        """Return the files of a candidate, and the indexes that have them."""
        release = candidate.release
        index = candidate.index
        if not index and release is None and candidate.origin == "published":
            index = self._index_of_torch()
        indexes = self._indexes.at(index) if index else self._indexes
        if release is not None and release.git is not None:
            return [], indexes
        if release is not None and release.wheels:
            return self._environment.installable(files_of(release)), indexes
        try:
            project = indexes.project(candidate.name)
        except (EnvironmentLacksError, SourceError) as error:
            self._unread[candidate.name, self._solution[candidate.name]] = error.message
            return [], indexes
        parsed = version_or_none(candidate.version)
        offered = next(
            (
                published.files
                for published in project.releases
                if version_or_none(published.version) == parsed
            )
            if project
            else iter(()),
            (),
        )
        pinned = release and (release.sdist or release.wheel)
        if pinned:
            files = [file for file in offered if file.name == pinned.file]
        else:
            files = self._environment.installable(offered)
        if not files and not (offered and release is not None and is_elsewhere(release)):
            self._unread[candidate.name, self._solution[candidate.name]] = (
                f"{index} does not list its files" if index else "no index lists its files"
            )
        return files, indexes

    def _index_of_torch(self) -> str:
        bit = self._solution.get("torch", 0)
        return self._problem.variables["torch"].candidate(bit).index if bit else ""


def _override_hint(project: str, required: str) -> str:
    """Return a hint to resolve a project without a distribution that it requires."""
    override = f"{required}; sys_platform == 'never'"
    return f"If {project} works without {required}, write `{override}` into a file for --override."


def _by_name(requirements: Iterable[Requirement]) -> dict[str, list[Requirement]]:
    by_name: dict[str, list[Requirement]] = {}
    for requirement in requirements:
        by_name.setdefault(requirement.name, []).append(requirement)
    return by_name


def _brackets(requirement: Requirement) -> str:
    return f"[{','.join(requirement.extras)}]" if requirement.extras else ""
