"""Catalog and request to a problem: every kind of fact becomes the one relation.

Nothing here decides. Each module turns the rows of one kind into variables, demands and
relations; the search knows nothing of drivers, wheels or images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.compiling.asked import compile_request
from resolver.compiling.bad import compile_known_bad
from resolver.compiling.draft import Draft
from resolver.compiling.kept import compile_kept
from resolver.compiling.packages import compile_packages
from resolver.compiling.platform import compile_platform
from resolver.compiling.torch import compile_torch

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog
    from resolver.model import Request
    from resolver.problem import Problem


def compile_problem(catalog: Catalog, request: Request) -> Problem:
    """Turn a request and the catalog into a problem.

    Raises
    ------
    UsageError
        The request names a component, version, day or image that the catalog does not know.
    """
    draft = Draft(catalog, request)
    compile_platform(draft)
    compile_torch(draft)
    compile_packages(draft)
    compile_known_bad(draft)
    compile_request(draft)
    compile_kept(draft)
    return draft.problem()
