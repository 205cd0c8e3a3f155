"""What drafted recipes demand of a wheel, compared with the catalog's recipes; prints a table.

For each release of the catalog that has an sdist and a recipe, the sdist is fetched and read, and a recipe is
drafted, as if the catalog had none. Releases of one recipe with the same difference are one line.

``python -m benchmarks.drafts [PACKAGE ...]``
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from builders.source_facts.reading import learn_source
from builders.source_facts.recipe_draft import draft_recipes
from builders.sources.source import fetch_sdist, unpack_sdist
from resolver.errors import MatrixError
from resolver.facts.catalog import Catalog, load
from resolver.facts.schema import Recipe, Release


def difference(drafted: Recipe, recipe: Recipe) -> str:
    """Return how the files that a draft demands differ from those of the catalog's recipe."""
    ours, theirs = set(drafted.must_contain), set(recipe.must_contain)
    if ours == theirs:
        return f"same: {', '.join(sorted(ours)) or 'nothing'}"
    parts = {"only the draft": ours - theirs, "only the catalog": theirs - ours}
    return "; ".join(f"{who}: {', '.join(sorted(files))}" for who, files in parts.items() if files)


def compare(catalog: Catalog, release: Release, seconds: list[float]) -> Iterator[tuple[str, str, str, str]]:
    """Yield package, releases of the recipe, backend and difference, for each recipe of a release."""
    assert release.sdist is not None
    with tempfile.TemporaryDirectory() as folder:
        top = unpack_sdist(fetch_sdist(release.package, release.sdist), Path(folder))
        started = time.process_time()
        facts = learn_source(top)
        seconds.append(time.process_time() - started)
    for drafted in draft_recipes(facts, ""):
        recipe = catalog.recipe_for(release, drafted.backend)
        if recipe is not None:
            yield release.package, recipe.releases, recipe.backend, difference(drafted, recipe)


def main() -> None:
    """Compare, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE")
    catalog = load()
    seconds: list[float] = []
    versions: dict[tuple[str, str, str, str], list[str]] = {}
    for package in parser.parse_args().packages or catalog.package:
        for release in catalog.releases_of(package):
            if release.sdist is None:
                continue
            try:
                for row in compare(catalog, release, seconds):
                    versions.setdefault(row, []).append(release.version)
            except MatrixError as error:
                versions.setdefault((package, "", "", str(error)), []).append(release.version)
    print("| package | releases | backend | must contain |\n| --- | --- | --- | --- |")
    for (package, _, backend, text), found in versions.items():
        print(f"| {package} | {', '.join(found)} | {backend} | {text} |")
    print(f"Read {len(seconds)} sources, {statistics.median(seconds):.2f} CPU seconds at the median.")


if __name__ == "__main__":
    main()
