"""nab-resolver (PubGrub) on problems with integer versions, to check our search and to compare it.

Install it with ``pip install nab-resolver``; the tests and the benchmark use it, the program does not.

References
----------
N. Weizenbaum, "PubGrub: next-generation version solving" (2018), the algorithm of Dart's pub.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nab_resolver.errors import ResolutionError, ResolutionTerminatedError
from nab_resolver.ranges import Range
from nab_resolver.resolver import BaseProvider, Resolver

from benchmarks.universes import runs_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nab_resolver.types import RangeProtocol

Needs = dict[str, Range[int]]
"""The requirements of one version."""


class Provider(BaseProvider[str, int]):
    """Describe a problem to nab-resolver.

    Versions are preferred in the given order. Components that caused the most conflicts are decided first,
    then those with the fewest remaining versions.
    """

    def __init__(
        self, versions: Mapping[str, Collection[int]], needs: Mapping[tuple[str, int], Needs]
    ) -> None:
        self._versions = versions
        self._needs = needs
        self._alike = {name: _alike(sorted(ones), name, needs) for name, ones in versions.items()}

    def choose_version(self, package: str, version_range: RangeProtocol[int]) -> int | None:
        """Return the first remaining version."""
        return next((version for version in self._versions[package] if version in version_range), None)

    def has_satisfying_version(self, package: str, version_range: RangeProtocol[int]) -> bool:
        """Return whether a version remains."""
        return self.choose_version(package, version_range) is not None

    def get_dependencies(self, package: str, version: int) -> Needs:
        """Return the requirements of a version."""
        return self._needs.get((package, version), {})

    def prioritize(
        self,
        package: str,
        version_range: RangeProtocol[int],
        conflict_counts: Mapping[str, int],
        culprit_counts: Mapping[str, int] | None = None,  # noqa: ARG002  part of the contract
    ) -> tuple[int, int]:
        """Return the sort key of a component; the smallest is decided next."""
        left = sum(version in version_range for version in self._versions[package])
        return -conflict_counts.get(package, 0), left

    def widen_decision(self, package: str, version: int) -> Range[int] | None:
        """Return the adjacent versions with the same requirements."""
        return self._alike[package].get(version)


def _alike(versions: list[int], name: str, needs: Mapping[tuple[str, int], Needs]) -> dict[int, Range[int]]:
    """Return for each version its run of adjacent versions with the same requirements."""
    runs: list[list[int]] = []
    for version in versions:
        if runs and needs.get((name, runs[-1][-1]), {}) == needs.get((name, version), {}):
            runs[-1].append(version)
        else:
            runs.append([version])
    return {version: Range.between(run[0], run[-1] + 1) for run in runs if len(run) > 1 for version in run}


def as_range(versions: Collection[int]) -> Range[int]:
    """Return a set of versions as half-open intervals, one for each run."""
    allowed: Range[int] = Range.empty()
    for low, high in runs_of(versions):
        allowed |= Range.between(low, high + 1)
    return allowed


def resolve(provider: Provider, asked: Mapping[str, Range[int]]) -> dict[str, int] | None:
    """Return a solution; None if there is none.

    Raises
    ------
    ResolutionTerminatedError
        A limit or a fault of the resolver stopped it, so it is unknown whether there is a solution.
    """
    try:
        return Resolver(provider).resolve(asked)
    except ResolutionTerminatedError:
        raise
    except ResolutionError:
        return None
