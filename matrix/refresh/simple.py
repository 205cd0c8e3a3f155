"""Pages of a package index (PEP 503 and PEP 691), read by pypi-simple from what was fetched."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pypi_simple

from resolver.errors import EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matrix.refresh.web import Web


def project_page(web: Web, index: str, project: str) -> pypi_simple.ProjectPage | None:
    """Fetch the page of a project.

    Returns
    -------
    pypi_simple.ProjectPage or None
        None if the index has no such project.

    Raises
    ------
    EnvironmentLacksError
        The index cannot be reached, or what answers is no index.
    """
    answer = web.get(f"{index.rstrip('/')}/{project}/", pypi_simple.ACCEPT_ANY)
    if answer is None:
        return None
    try:
        if "json" in answer.content_type:
            return pypi_simple.ProjectPage.from_json_data(json.loads(answer.text), answer.url)
        return pypi_simple.ProjectPage.from_html(project, answer.text, answer.url)
    except (ValueError, TypeError, KeyError) as error:
        msg = f"{answer.url} is no page of a package index: {error}."
        raise EnvironmentLacksError(msg) from None


def files_by_version(
    page: pypi_simple.ProjectPage, kinds: Iterable[str]
) -> dict[str, list[pypi_simple.DistributionPackage]]:
    """Group the files of some kinds (``sdist``, ``wheel``) by their version; what has none is left out."""
    wanted = set(kinds)
    found: dict[str, list[pypi_simple.DistributionPackage]] = {}
    for package in page.packages:
        if package.version and package.package_type in wanted:
            found.setdefault(package.version, []).append(package)
    return found
