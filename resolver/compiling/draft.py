"""The problem while it is being written, and the few words its rows are written in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from resolver.compiling.installed import extend, kept_names, with_installed
from resolver.errors import UsageError, did_you_mean
from resolver.model import STATUS_RANK, SUPPORT_FLOOR
from resolver.problem import ABSENT, Demand, Favour, Problem, Relation, Row, Saying, Variable
from resolver.requirements import normalize_name
from resolver.versions import minor, satisfies, shorten, sort_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from _typeshed import SupportsRichComparison

    from resolver.compiling.installed import Installed
    from resolver.facts import schema
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Backend, EdgeKind
    from resolver.model import Candidate, Fact, Request, Target

    Test = Callable[[Candidate], bool]

ASKED = "the request"
HERE = "this machine"
PAIRED = ("torchvision", "torchaudio")
"""They need a certain torch, torch does not need them."""
OTHER_TARGETS = "others"
"""The alternative to the wanted offload targets: with it, wanting them can be named as a reason."""


class Clause(msgspec.Struct, frozen=True):
    """One fact before it becomes masks: which subjects it speaks of, which objects it permits."""

    speaks_of: Test
    permits: Test
    fact: Fact | Saying
    risk: bool = False
    to_build: bool = False
    """It speaks of building only, so not of what is installed already."""


class Draft:
    """Variables, demands and relations in the making.

    Attributes
    ----------
    catalog, request
        What the problem is made from.
    reachable
        Names of the distributions that the request can bring in: what is asked for, what that
        requires, and so on. Nothing else can become part of a solution, so nothing else is compiled.
    requires
        What each of them requires.
    driver
        Minor line of the target's kernel driver, or None where it is not known.
    window
        The site's driver window that says so, or None when the request named the driver.
    """

    def __init__(self, catalog: Catalog, request: Request) -> None:
        self.catalog = catalog
        self.request = request
        self.target = request.target
        check_target(catalog, self.target)
        self.window = window_of(catalog, request)
        self.driver = self.target.driver or (self.window.driver if self.window else None)
        asked = [*(one.name for one in request.requirements), *kept_names(catalog, request)]
        self.reachable = reachable(catalog, self.target.backend, asked)
        self.requires: dict[str, list[schema.Requires]] = {}
        for row in catalog.requires:
            if row.package in self.reachable:
                self.requires.setdefault(row.package, []).append(row)
        self.variables: dict[str, Variable] = {}
        self._demands: list[Demand] = []
        self._relations: list[Relation] = []
        self.favours: dict[str, Favour] = {}
        self._installed: dict[str, list[Installed]] = {}
        self._floor = SUPPORT_FLOOR[request.support]

    def may_need(self, name: str) -> bool:
        """Tell whether a distribution beside torch can be part of a solution."""
        return name in self.reachable or name not in PAIRED

    def installed(self, name: str) -> list[Installed]:
        """Give the installed versions of a component."""
        return self._installed.get(name, [])

    def problem(self) -> Problem:
        """Give the finished problem."""
        return Problem(self.variables, self._demands, self._relations, self.favours)

    def variable(
        self,
        name: str,
        candidates: Iterable[Candidate],
        *,
        rank: Callable[[Candidate], SupportsRichComparison] = lambda one: sort_key(one.version),
        last: Test = lambda _: False,
    ) -> None:
        """Add a component; its candidates are put in the order of preference.

        Highest rank first, or lowest first when the request prefers the oldest; of one rank, the
        candidate without a variant first; behind all others what is to be tried `last`.
        Candidates weaker than the wanted support may not be chosen.
        """
        ordered = sorted(candidates, key=lambda one: one.variant)
        ordered.sort(key=rank, reverse=self.request.prefer != "oldest")
        ordered.sort(key=last)
        if self.request.preinstalled is not None:
            ordered, self._installed[name] = with_installed(self.catalog, self.request, name, ordered)
        self.variables[name] = Variable(name, ordered)
        trusted = sum(map(self._trusts, ordered))
        if trusted < len(ordered):
            text = f"--support {self.request.support} trusts {trusted} of {len(ordered)} versions of {name}"
            self.ask(name, self._trusts, text, optional=True)

    def _trusts(self, one: Candidate) -> bool:
        return STATUS_RANK[one.fact.status] >= self._floor

    def relate(
        self,
        subject: str,
        target: str,
        clauses: Sequence[Clause],
        *,
        build: bool = False,
        when_present: bool = False,
        forbids: bool = False,
        as_it_is: bool = False,
    ) -> None:
        """Add a relation. A clause weaker than the wanted support permits nothing.

        It is not left out: a subject of which only weak facts are known would then be free.
        A clause that `forbids` something counts as it is, however weak: nothing rests on it.
        What is said of a version holds for the installed ones that are taken for it, unless the
        relation is to be taken `as_it_is`.
        """
        one, other = self.variables[subject], self.variables[target]
        rows: list[Row] = []
        needs = 0
        for clause in clauses:
            subjects = _mask(one, clause.speaks_of)
            if not subjects:
                continue
            fact, objects = clause.fact, 0
            if forbids or STATUS_RANK[fact.status] >= self._floor:
                objects = _mask(other, clause.permits)
            else:
                fact = fact.fact() if isinstance(fact, Saying) else fact
                text = f"{fact.text} (only {fact.status}; --support {self.request.support} does not trust it)"
                fact = replace(fact, text=text)
            needs |= 0 if clause.to_build else 1 << len(rows)
            rows.append(Row(subjects, objects, fact, clause.risk))
        if rows and self.request.preinstalled is not None and not as_it_is:
            ends = ((name, self.installed(name)) for name in (subject, target))
            extend(rows, needs, *ends, request=self.request, forbids=forbids)
        if rows:
            kind: EdgeKind = "build" if build else "run"
            self._relations.append(
                Relation(one, other, kind, rows, when_present=when_present, forbids=forbids)
            )

    def ask(
        self, name: str, permits: Test, text: str, *, optional: bool = False, of_target: bool = False
    ) -> None:
        """Add a demand that the request makes."""
        mask = self._mask(name, permits, optional=optional)
        self._demands.append(Demand(self.variables[name], mask, text, "request", ASKED, of_target))

    def state(self, name: str, permits: Test, text: str, source: str, *, optional: bool = False) -> None:
        """Add a demand that the target makes: a fact about a site or this machine."""
        mask = self._mask(name, permits, optional=optional)
        self._demands.append(Demand(self.variables[name], mask, text, "fact", source))

    def forbid(self, name: str, what: Test, fact: Fact) -> None:
        """Add a demand that a fact makes: none of these may be chosen."""
        bad = _mask(self.variables[name], what)
        for kept in self.installed(name):
            bad |= kept.bit if bad & kept.needs_of else 0
        mask = self.variables[name].everything & ~bad
        self._demands.append(Demand(self.variables[name], mask, fact.text, "fact", fact.source))

    def _mask(self, name: str, permits: Test, *, optional: bool) -> int:
        variable = self.variables[name]
        mask = _mask(variable, permits)
        return mask | ABSENT if optional else mask


def _mask(variable: Variable, test: Test) -> int:
    """Give the mask of the candidates that pass a test."""
    if test is any_candidate:
        return variable.present
    if isinstance(test, LookedUp):
        return test.of(variable)
    return variable.mask(i for i, one in enumerate(variable.candidates) if test(one))


def reachable(catalog: Catalog, backend: Backend, asked: Iterable[str]) -> frozenset[str]:
    """Follow what brings something in from torch and what is asked for."""
    needs: dict[str, set[str]] = {}
    for row in catalog.requires:
        if not row.when_present and row.backend in {None, backend}:
            needs.setdefault(row.package, set()).add(normalize_name(row.on))
    found: set[str] = set()
    coming = ["torch", *asked]
    while coming:
        name = coming.pop()
        if name not in found:
            found.add(name)
            coming += needs.get(name, ())
    return frozenset(found)


def check_target(catalog: Catalog, target: Target) -> None:
    """See that the target names only what the catalog knows."""
    known: tuple[tuple[str, Sequence[str | None], Mapping[str, object]], ...] = (
        ("offload target", target.gfx, catalog.gfx),
        ("kernel driver", [target.driver], catalog.driver),
        ("base image", [target.base_image], catalog.image),
    )
    for what, names, rows in known:
        for name in names:
            if name is not None and name not in rows:
                msg = f"The catalog knows no {what} {shorten(name)!r}."
                raise UsageError(msg, hint=did_you_mean(name, rows))


def window_of(catalog: Catalog, request: Request) -> schema.Window | None:
    """Find the site's driver window of the target's day.

    None for a site without a GPU driver, and where the request names the driver.

    Raises
    ------
    UsageError
        The site's driver of that day is not known.
    """
    target = request.target
    if target.driver:
        return None
    windows = catalog.windows_of(target.site) if target.backend == "rocm" else []
    for window in windows:
        if window.since <= target.date and (window.until is None or target.date < window.until):
            return window
    if windows:
        msg = f"Nothing is known of the driver of {target.site} on {target.date}."
        known = f"{windows[0].since} to {windows[-1].until or 'today'}"
        raise UsageError(msg, hint=f"Known days: {known}. Or name the driver with --driver.")
    return None


def any_candidate(_: Candidate) -> bool:
    """Permit everything."""
    return True


class LookedUp(msgspec.Struct, frozen=True):
    """A test whose mask is looked up and not searched for, candidate by candidate."""

    def __call__(self, candidate: Candidate) -> bool:
        """Tell whether a candidate passes."""
        raise NotImplementedError

    def of(self, variable: Variable) -> int:
        """Give the mask of the candidates that pass."""
        raise NotImplementedError


class Masked(LookedUp, frozen=True):
    """Permits the candidates in a mask that is known already."""

    mask: int

    def of(self, variable: Variable) -> int:  # noqa: ARG002  it was made for this variable
        """Give the mask."""
        return self.mask


class VersionIn(LookedUp, frozen=True):
    """Permits some versions."""

    versions: frozenset[str]

    def __call__(self, candidate: Candidate) -> bool:
        """Tell whether a candidate is one of them."""
        return candidate.version in self.versions

    def of(self, variable: Variable) -> int:
        """Give the mask of these versions."""
        return variable.of_versions(self.versions)


class AllowedBy(LookedUp, frozen=True):
    """Permits what any of some specifiers allows."""

    specifiers: tuple[str, ...]

    def __call__(self, candidate: Candidate) -> bool:
        """Tell whether a specifier allows a candidate."""
        return any(satisfies(candidate.version, one) for one in self.specifiers)

    def of(self, variable: Variable) -> int:
        """Give the mask of what they allow."""
        mask = 0
        for one in self.specifiers:
            mask |= variable.allowed_by(one)
        return mask


def version_in(versions: Iterable[str]) -> Test:
    """Permit these versions."""
    return VersionIn(frozenset(versions))


def line_is(line: str) -> Test:
    """Permit the versions of one major.minor line."""
    return lambda candidate: minor(candidate.version) == line


def allowed_by(specifiers: Sequence[str]) -> Test:
    """Permit what any of the specifiers allows; everything, if there is none."""
    if not specifiers:
        return any_candidate
    return AllowedBy(tuple(specifiers))


def covers(offered: Iterable[str], wanted: Sequence[str]) -> Test:
    """Permit the wanted offload targets if all are offered, and other targets in any case."""
    covered = set(wanted) <= set(offered)
    return lambda candidate: covered or candidate.version == OTHER_TARGETS


def target_name(target: Target) -> str:
    """Give the offload targets as the one version of the component ``gfx``."""
    return ",".join(target.gfx)
