"""Find facts in all public sources for a file of facts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from builders.sources.source import index_url
from builders.storage.files import cache_root
from matrix.maintaining import CatalogUpdate, git_tags, pypi, rocm, sites
from matrix.show.render import shortened
from resolver.errors import EnvironmentLacksError, UsageError, did_you_mean
from resolver.facts.catalog_files import kind_of
from resolver.versions import grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from builders.learning import LearnedFacts
    from matrix.command_line.context import Context
    from resolver.facts.catalog import Catalog
    from resolver.indexes import File

SOURCES = ("pypi", "torch", "rocm", "amd", "vllm", "github", "git", "sites")
OUTPUT = Path("catalog") / "updates.toml"
_MOST_PAGES = 3


def fetch_update(
    catalog: Catalog, sources: Collection[str], packages: Sequence[str], context: Context
) -> CatalogUpdate:
    """Fetch the pages of public sources and return the facts that the catalog lacks.

    `sources` are some of `SOURCES`.
    """
    from builders.learning.wheel import learn_published
    from builders.network.transport import Transport
    from matrix.maintaining import prebuilt, torch_index
    from matrix.maintaining.client import Client

    for name in packages:
        if name not in catalog.package:
            msg = f"The catalog has no package {name!r}."
            raise UsageError(msg, hint=did_you_mean(name, catalog.package))
    mirrors, index, reporter = context.settings.mirrors, index_url(), context.console
    client = Client(cache_root() / "refresh", mirrors)
    transport = Transport((), mirrors)

    def read(file: File) -> LearnedFacts:
        reporter.step(f"reading {file.name}")
        return learn_published(file, catalog, transport, context.today)

    finders: dict[str, Callable[[], CatalogUpdate]] = {
        "pypi": partial(pypi.find_updates, catalog, packages, client, index),
        "torch": partial(torch_index.find_updates, catalog, client),
        "rocm": partial(rocm.find_updates, catalog, client),
        "amd": partial(prebuilt.amd_updates, catalog, client, read),
        "vllm": partial(prebuilt.vllm_updates, catalog, client, index, read),
        "github": partial(prebuilt.github_updates, catalog, client, read),
        "git": partial(git_tags.find_updates, catalog, packages, mirrors),
        "sites": partial(sites.find_updates, catalog, client),
    }
    update = CatalogUpdate()
    for source in (source for source in SOURCES if source in sources):
        reporter.info(f"Checking {source} ...")
        update.add(finders[source]())
    keys = {(type(row), row.key(), row if row.widening else None): row for row in reversed(update.rows)}
    update.rows = list(keys.values())[::-1]
    reporter.info(f"Pages: {client.fetched}, unchanged since the last run: {client.unchanged}.")
    if update.unreachable and not (update.rows or update.remarks or client.answered):
        reasons = "; ".join(by_reason(update.unreachable))
        msg = f"No source could be read, and nothing was changed: {reasons}."
        raise EnvironmentLacksError(
            msg, hint="Check the network, or try again later. [mirrors] in matrix.toml maps URLs to a mirror."
        )
    return update


def leave_own_rows(update: CatalogUpdate, path: Path) -> None:
    """Turn rows that would replace a row of the file into remarks, because its rows are never changed."""
    resolved = str(path.resolve())
    for row in [row for row in update.rows if row.from_file == resolved]:
        update.rows.remove(row)
        update.remarks.append(
            f"{row.location}: the {kind_of(row)} row {row.title} can be extended from {row.source}."
        )


def by_reason(unreachable: Sequence[tuple[str, str]]) -> list[str]:
    """Return each reason once, with the pages that could not be fetched because of it."""
    reasons = grouped((reason.removesuffix("."), page) for page, reason in unreachable)
    return [f"{reason} ({shortened(pages, most=_MOST_PAGES)})" for reason, pages in reasons.items()]
