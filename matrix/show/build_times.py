"""Expected times of the builds of a resolution, from recorded builds, else from recipes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from builders.building.expected_time import Resources, expected_time
from matrix.show.render import counted, duration

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from resolver.facts.catalog import Catalog
    from resolver.model import Distribution, Resolution


def build_times(resolution: Resolution, catalog: Catalog, index: Path) -> dict[str, Resources]:
    """Return the expected time of each build with all cores of this machine.

    The records of the index, which need not exist, have the times of earlier builds.
    """
    built = resolution.built()
    if not built:
        return {}
    from resolver.facts.catalog import recipe_for
    from resolver.providers.inferred import with_releases_of

    catalog = with_releases_of(catalog, resolution)
    times = {}
    for pick in built:
        release = catalog.release.get((pick.name, pick.version, pick.variant))
        recipe = recipe_for(catalog, release, resolution.target.backend) if release else None
        cores = _cores() if recipe and recipe.core_hours else 1
        seconds, source = expected_time(recipe, _recorded(pick, index), cores)
        times[pick.name] = Resources(cores, 0, seconds, source=source)
    return times


def in_index(resolution: Resolution, index: Path) -> frozenset[str]:
    """Return the distributions to build of which an index has a wheel with this version, label and Python.

    Whether such a wheel was built from the same inputs is known when the builds are planned.
    """
    built, python = resolution.built(), resolution.pick("python")
    if not built or python is None or not index.is_dir():
        return frozenset()
    from packaging.utils import parse_wheel_filename

    from builders.index import Index

    published = Index(index)
    pythons = {f"cp{python.version.replace('.', '')}", "py3"}
    return frozenset(
        pick.name
        for pick in built
        for path in published.wheels_of(pick.name, pick.pinned)
        for tag in parse_wheel_filename(path.name)[3]
        if tag.interpreter in pythons or tag.abi == "abi3"
    )


def _recorded(pick: Distribution, index: Path) -> Mapping[str, float]:
    if not index.is_dir():
        return {}
    from builders.index import Index
    from builders.scheduling.scheduler import recorded

    return recorded(pick, Index(index))


def _cores() -> int:
    from builders.machine.host import cores

    return cores()


def time_text(times: Iterable[Resources], *, cores: bool = False) -> str:
    """Return the sum of expected times as text; recipes only state a minimum time.

    With `cores`, name the number of cores for which a recipe's time was computed.

    Examples
    --------
    >>> measured = Resources(16, 0, 2700, source="record")
    >>> unknown = Resources(16, 0, 120)
    >>> time_text([measured]), time_text([measured, unknown]), time_text([unknown])
    ('about 45 min', 'at least 45 min', 'time unknown')
    >>> time_text([Resources(1, 0, 10, source="packing")])
    'some seconds'
    >>> time_text([Resources(1, 0, 120), Resources(2, 0, 10800, source="recipe")], cores=True)
    'at least 3.0 h with 2 cores'
    """
    rows = list(times)
    known = sum(row.seconds for row in rows if row.source != "guess")
    if not known:
        return "time unknown"
    sources = {row.source for row in rows}
    if sources == {"packing"}:
        return "some seconds"
    text = f"{'about' if sources <= {'record', 'packing'} else 'at least'} {duration(known)}"
    number = next((row.cores for row in rows if row.source == "recipe"), 0)
    return f"{text} with {counted(number, 'core')}" if cores and number else text
