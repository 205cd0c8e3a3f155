"""The providers: who knows candidates and their requirements.

| provider | module | knows |
| --- | --- | --- |
| catalog | `catalog` | releases, recipes and platform rows of the catalog |
| index | `index` | projects, files and metadata of any index |
| inferred | `inferred` | releases that only an index lists, with the facts of the nearest older release |
| labelled | `labelled` | wheels that were built with this program, on the user's indexes |
| preinstalled, image | `installed` | what is in the environment or the base image, and must stay |

Each has `candidates` and `requirements`, and none changes the catalog. The search asks them as it goes on; the
confirmation asks them again, for the chosen candidates only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

Candidate_contra = TypeVar("Candidate_contra", contravariant=True)
Candidate_co = TypeVar("Candidate_co", covariant=True)
Requirements_co = TypeVar("Requirements_co", covariant=True)
