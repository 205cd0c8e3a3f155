"""The providers: who knows candidates and their requirements.

| provider | module | knows |
| --- | --- | --- |
| catalog | `catalog` | the releases and recipes of the catalog |
| index | `index` | projects, files and metadata of any index |
| inferred | `inferred` | releases that only an index lists, with the facts of the nearest older release |
| labelled | `labelled` | wheels that were built with this program, on the user's indexes |
| installed | `installed` | what is in the environment or in the base image, and must stay |
| triton | `resolver.solving.triton` | the triton of a torch whose exact triton the catalog does not have |

None changes the catalog. The problem is compiled from the candidates of the catalog and what is installed,
to which each `Provider` (inferred, labelled, triton) adds candidates with their requirements; the search asks
the index provider as it goes on, and what it read of the chosen candidates is recorded for the confirmation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resolver.facts.schema import Requires
    from resolver.model import Candidate


class Provider(Protocol):
    """Who knows candidates of distributions besides those of the catalog, and what they require."""

    def candidates(self, name: str) -> Sequence[Candidate]:
        """Return the candidates of a distribution, in no particular order."""

    def requirements(self, candidate: Candidate) -> Sequence[Requires]:
        """Return the facts that apply to a candidate of this provider only."""
