"""Update a file of facts from public sources.

New rows are appended to the text of the file: its comments, order and rows do not change. The whole
catalog must load with the new text before anything is written.
"""

from __future__ import annotations

import difflib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from builders.storage.cache import cache_root
from builders.storage.files import exclusive_lock, write_atomic
from matrix.input.inputs import Inputs
from matrix.input.request import make_request
from matrix.input.settings import Settings
from matrix.refresh import CatalogUpdate, git_tags, pypi, rocm_matrix, rocm_tables, sites
from resolver.consequences import Side
from resolver.errors import CatalogError, EnvironmentLacksError, UsageError, did_you_mean
from resolver.facts.catalog_files import kind_of, row_to_toml
from resolver.facts.loading import load, load_uncached, overlay_files, shipped_files
from resolver.facts.schema import SCHEMA
from resolver.textfile import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import date

    from builders.learning import LearnedFacts
    from resolver.facts import schema
    from resolver.facts.catalog import Catalog
    from resolver.indexes import File
    from resolver.reporter import Reporter

SOURCES = ("pypi", "torch", "rocm", "amd", "vllm", "github", "git", "sites")
OUTPUT = Path("catalog") / "updates.toml"
_HEADER = "# Facts that are not in the shipped catalog.\n"
_MOST_PAGES = 3


def fetch_update(
    catalog: Catalog,
    *,
    sources: Collection[str],
    packages: Sequence[str],
    index: str,
    mirrors: Mapping[str, str],
    today: date,
    reporter: Reporter,
) -> CatalogUpdate:
    """Fetch the pages of public sources and return the facts that the catalog lacks.

    `sources` are some of `SOURCES`; `index` is the URL of the package index. `today` is the day on which
    wheels are read.
    """
    from builders.learning.wheel import learn_published
    from builders.network.transport import Transport
    from matrix.refresh import prebuilt, torch_index
    from matrix.refresh.client import Client

    for name in packages:
        if name not in catalog.package:
            msg = f"The catalog has no package {name!r}."
            raise UsageError(msg, hint=did_you_mean(name, catalog.package))
    client = Client(cache_root() / "refresh", mirrors)
    transport = Transport((), mirrors)

    def read(file: File) -> LearnedFacts:
        reporter.step(f"reading {file.name}")
        return learn_published(file, catalog, transport, today)

    finders: dict[str, list[Callable[[], CatalogUpdate]]] = {
        "pypi": [partial(pypi.find_updates, catalog, packages, client, index)],
        "torch": [partial(torch_index.find_updates, catalog, client)],
        "rocm": [
            partial(rocm_matrix.find_updates, catalog, client),
            partial(rocm_tables.find_updates, catalog, client),
        ],
        "amd": [partial(prebuilt.amd_updates, catalog, client, read)],
        "vllm": [partial(prebuilt.vllm_updates, catalog, client, index, read)],
        "github": [partial(prebuilt.github_updates, catalog, client, read)],
        "git": [partial(git_tags.find_updates, catalog, packages, mirrors)],
        "sites": [partial(sites.find_updates, catalog, client)],
    }
    update = CatalogUpdate()
    for source in (source for source in SOURCES if source in sources):
        reporter.info(f"Checking {source} ...")
        for find in finders[source]:
            update.add(find())
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


class Draft:
    """The new text of a file of facts.

    The file may not exist yet; `header` is the comment at the top of a new file. `overlays` are the files and
    directories of facts that are in use.
    """

    def __init__(self, path: Path, overlays: Sequence[Path], *, header: str = _HEADER) -> None:
        self.path = path
        self._header = header
        is_in_use = any(path == overlay or overlay in path.parents for overlay in overlays)
        self.overlays = [*overlays] if is_in_use or not path.exists() else [*overlays, path]
        self.before = self.after = _text_of(path)

    def load(self) -> Catalog:
        """Load the catalog with the current file."""
        return load(self.overlays)

    def replace(self, rows: Iterable[schema.Row], catalog: Catalog) -> None:
        """Append rows to the text, in place of the rows of the file with the same identity.

        Raise `CatalogError` if the catalog cannot be loaded with the new text.
        """
        rows = list(rows)
        keys = {(type(row), row.key()) for row in rows}
        path = str(self.path.resolve())
        own = [
            row.from_line
            for row in catalog.rows()
            if row.from_file == path and (type(row), row.key()) in keys
        ]
        self.after = without_rows(self.before, own)
        self.append(rows)

    def append(self, rows: Iterable[schema.Row]) -> Catalog:
        """Append rows to the text, and return the catalog with them.

        Raise `CatalogError` if the catalog cannot be loaded with the new text.
        """
        self.after = with_rows(self.after, rows, header=self._header)
        if self.after == self.before:
            return self.load()
        groups = [shipped_files(), *map(overlay_files, self.overlays)]
        path = str(self.path.resolve())
        if not any(path in group for group in groups):
            inside = [n for n, overlay in enumerate(self.overlays, start=1) if overlay in self.path.parents]
            if inside:
                groups[inside[-1]].append(path)
            else:
                groups.append([path])
        return load_uncached(groups, overrides={path: self.after})[0]

    def diff(self) -> str:
        """Return the change as a unified diff; empty if there is none."""
        old = str(self.path) if self.before else "/dev/null"
        before, after = self.before.splitlines(), self.after.splitlines()
        return "\n".join(difflib.unified_diff(before, after, old, str(self.path), lineterm="", n=2))

    def write(self) -> bool:
        """Write the file if its text changed; return whether it did."""
        if self.after == self.before:
            return False
        with exclusive_lock(cache_root() / "refresh" / "writing.lock"):
            if _text_of(self.path) != self.before:
                msg = f"Another process changed {self.path}. Nothing was written."
                raise UsageError(msg, hint="Run the same command again.")
            write_atomic(self.path, self.after)
        return True


def with_rows(text: str, rows: Iterable[schema.Row], *, header: str = _HEADER) -> str:
    """Return the text of a catalog file with rows appended; a new file begins with the header."""
    added = "".join(f"\n{row_to_toml(row)}" for row in rows)
    if not added:
        return text
    text = text or f"{header}schema = {SCHEMA}\n"
    return text + added if text.endswith("\n") else f"{text}\n{added}"


def side_at(site: str, catalog: Catalog, today: date) -> Side:
    """Return a catalog with a request for torch at a site."""
    settings = Settings(site=site, requirements=["torch"])
    return Side(catalog, make_request(settings, catalog, today, Inputs()))


def without_rows(text: str, lines: Iterable[int]) -> str:
    """Return the text of a catalog file without the rows that begin on some lines, counted from 1."""
    kept = text.split("\n")
    for first in sorted(lines, reverse=True):
        end = first
        while end < len(kept) and not kept[end].startswith("[["):
            end += 1
        while end > first and (not kept[end - 1].strip() or kept[end - 1].startswith("#")):
            end -= 1  # keep empty lines after the row, and a comment on the next row
        start = first - 1 if first == 1 or kept[first - 2].strip() else first - 2
        del kept[start:end]
    return "\n".join(kept)


def leave_own_rows(update: CatalogUpdate, path: Path) -> None:
    """Turn rows that would replace a row of the file into remarks, because its rows are never changed."""
    resolved = str(path.resolve())
    for row in [row for row in update.rows if row.from_file == resolved]:
        update.rows.remove(row)
        update.remarks.append(
            f"{row.location}: the {kind_of(row)} row {row.title} can be extended from {row.source}."
        )


def by_reason(unreachable: Iterable[str]) -> list[str]:
    """Return each reason once, with the pages that could not be fetched because of it."""
    pages_by_reason: dict[str, list[str]] = {}
    for entry in unreachable:
        page, _, reason = entry.removesuffix(".").partition(": ")
        pages_by_reason.setdefault(reason, []).append(page)
    return [f"{reason} ({_first_pages(pages)})" for reason, pages in pages_by_reason.items()]


def _first_pages(pages: Sequence[str]) -> str:
    more = f" and {len(pages) - _MOST_PAGES} more" if len(pages) > _MOST_PAGES else ""
    return f"{', '.join(pages[:_MOST_PAGES])}{more}"


def _text_of(path: Path) -> str:
    hint = "Name another file with --output."
    return read_text(path, error=CatalogError, hint=hint, mark=False) if path.exists() else ""
