"""A random sample of the learned rows is read again from the real files on the package index."""

from __future__ import annotations

import datetime
import random

import pytest

from builders.index_client import IndexClient
from builders.learning.wheel import learn_published
from builders.sources.source import index_url
from resolver.facts import schema
from resolver.facts.catalog import load
from resolver.indexes import File

pytestmark = pytest.mark.integration
_WHEELS = 2
_ROWS = 25


@pytest.mark.long
@pytest.mark.timeout(900)
def test_random_learned_rows_agree_with_the_files() -> None:
    catalog = load()
    seed = random.randrange(10**6)
    chosen = random.Random(seed).sample(sorted(catalog.wheel), _WHEELS)
    rows: list[tuple[schema.Row, File]] = []
    for name in chosen:
        wheel = catalog.wheel[name]
        version = f"=={wheel.version}"
        about = [
            row
            for row in catalog.requires
            if row.package == wheel.package and row.releases == version and name in row.source
        ]
        rows += [(row, _file(wheel)) for row in (wheel, *about)]
    sample = random.Random(seed).sample(rows, min(_ROWS, len(rows)))
    today = datetime.datetime.now(tz=datetime.UTC).date()
    transport = IndexClient([index_url()]).transport
    read = {file.name: learn_published(file, catalog, transport, today) for _, file in sample}
    wrong = [
        f"{row.location}: {row.title}"
        for row, file in sample
        if not any(_agrees(row, learned) for learned in read[file.name].rows)
    ]
    assert not wrong, f"seed {seed}"


def _file(wheel: schema.Wheel) -> File:
    project = IndexClient([index_url()]).project(wheel.package)
    assert project is not None
    files = [file for release in project.releases for file in release.files]
    (file,) = [file for file in files if file.name == wheel.file]
    assert file.sha256 == wheel.sha256
    return file


def _agrees(row: schema.Row, learned: schema.Row) -> bool:
    """Return whether a catalog row includes the facts of one wheel; rows for several Pythons have more."""
    if type(row) is not type(learned) or row.key() != learned.key():
        return False
    if isinstance(row, schema.Requires) and isinstance(learned, schema.Requires):
        same = (
            {*learned.versions} <= {*row.versions} if row.on == "python" else learned.versions == row.versions
        )
        return same and row.gfx == learned.gfx
    known = ("code", "libraries", "ops", "licence", "sha256", "version")
    return all(getattr(row, name) == getattr(learned, name) for name in known)
