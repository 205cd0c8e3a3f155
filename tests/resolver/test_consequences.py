"""Consequences of changes: small catalogs with known results, and mirrored changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from resolver.answers.resolve import resolve
from resolver.answers.table import Table, TableRow
from resolver.consequences import consequences
from resolver.consequences.holdings import Holding, between_locks
from resolver.consequences.questions import Consequence, Side
from resolver.consequences.tables import Rows, TableDiff
from resolver.facts.catalog import Catalog, load_uncached
from resolver.model import Conflict, Request, Resolution, Target
from tests.resolver.solve_helpers import requirement
from tests.resolver.test_table import KNOWN, TINY

DRIVERS = f"""schema = 1
[[driver]]
version = "30.10"
supports = ["6.4", "7.0"]
unsupported = ["6.2", "6.3"]
{KNOWN}
[[driver]]
version = "6.0"
supports = ["5.7", "6.2"]
unsupported = ["6.3", "6.4", "7.0"]
{KNOWN}
[[rocm]]
version = "7.0.0"
gfx = ["gfx90a"]
{KNOWN}
"""
UPDATES = {
    "nothing": "",
    "a bound": '[[requires]]\npackage = "upper"\nreleases = "==1.1"\non = "torch"\nversions = ["<2.9"]\n',
    "another bound": '[[requires]]\npackage = "ready"\nreleases = "==2.0"\non = "python"\n'
    'versions = [">=3.11"]\n',
    "a torch": '[[torch]]\nversion = "2.11.0+rocm6.4"\nbackend = "rocm"\nindex = "https://here/6.4"\n'
    'rocm = "6.4"\ngfx = ["gfx90a"]\npython = ["3.12"]\n',
    "a release": '[[release]]\npackage = "zone"\nversion = "2"\npypi = true\n',
    "a package": '[[package]]\nname = "fresh"\ntitle = "x"\n'
    + KNOWN
    + '\n[[release]]\npackage = "fresh"\nversion = "1"\npypi = true\n',
    "a driver row": '[[driver]]\nversion = "6.3"\nsupports = ["6.2", "6.3", "6.4", "7.0"]\n',
    "a known problem": '[[known-bad]]\ncombination = { built = "", torch = "==2.9.*" }\n'
    'problem = "it hangs"\n',
    "a recipe": '[[recipe]]\npackage = "built"\nbackend = "rocm"\nmust-contain = ["*.so"]\n'
    'imports = ["built"]\n'
    'environment = { FLAG = "1" }\n',
    "advice": '[[site-advice]]\nsite = "hill"\non = "rocm"\nversions = ["==6.3.*"]\n',
    "an image": '[[image]]\nname = "newer.sif"\nrocm = "6.3.1"\nos = "Hill 2"\nglibc = "2.39"\n'
    + KNOWN
    + '\n[[site-image]]\nsite = "hill"\nimage = "newer.sif"\n',
}
"""Rows that an update adds to the small catalog, or replaces in it."""


@pytest.fixture(scope="module")
def with_update(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Catalog]:
    """Return a function that loads the small catalog with one of the updates."""
    folder = tmp_path_factory.mktemp("catalogs")
    base = folder / "base.toml"
    drivers = folder / "drivers.toml"
    base.write_text(TINY, encoding="utf-8")
    drivers.write_text(DRIVERS, encoding="utf-8")
    loaded: dict[str, Catalog] = {}

    def load(name: str) -> Catalog:
        if name not in loaded:
            layers = [[str(base)], [str(drivers)]]
            if UPDATES[name]:
                layers.append([str(_write(folder / f"{name}.toml", UPDATES[name]))])
            loaded[name] = load_uncached(layers)[0]
        return loaded[name]

    return load


def _write(path: Path, rows: str) -> Path:
    path.write_text(f"schema = 1\n{rows}{KNOWN}", encoding="utf-8")
    return path


Load = Callable[[str], Catalog]


def target(**changes: Any) -> Target:
    return replace(Target(site="hill", date=date(2026, 3, 1), backend="rocm", gfx=("gfx90a",)), **changes)


def side(catalog: Catalog, requirements: str = "", **changes: Any) -> Side:
    return Side(catalog, Request(target(**changes), tuple(map(requirement, requirements.split()))))


def mirrored(changes: Iterable[Consequence]) -> set[Consequence]:
    """Return the consequences of the reverse change."""
    opposite = {
        "breaks": "possible",
        "possible": "breaks",
        "at-own-risk": "supported",
        "supported": "at-own-risk",
    }
    return {
        replace(
            change,
            effect=opposite.get(change.effect, change.effect),
            before=change.after,
            after=change.before,
            was=change.now,
            now=change.was,
        )
        for change in changes
    }


def texts(items: Iterable[Any]) -> list[str]:
    return [item.text for item in items]


def only(changes: Iterable[Consequence], **attributes: str) -> Consequence:
    """Return the only change with these attributes."""
    matching = [
        change
        for change in changes
        if all(getattr(change, name) == value for name, value in attributes.items())
    ]
    assert len(matching) == 1, matching
    return matching[0]


def rows_of(catalog: Catalog, **changes: Any) -> dict[tuple[str, str], TableRow]:
    table = Table(catalog, side(catalog, **changes).request)
    return {(row.torch, row.python): row for row in table.rows()}


def test_same_sides_have_no_consequences(with_update: Load, tmp_path: Path) -> None:
    catalog = with_update("nothing")
    (tmp_path / "base.toml").write_text(TINY, encoding="utf-8")
    (tmp_path / "drivers.toml").write_text(DRIVERS, encoding="utf-8")
    again = load_uncached([[str(tmp_path / "base.toml")], [str(tmp_path / "drivers.toml")]])[0]
    assert consequences(side(catalog), side(catalog)) == []
    assert consequences(side(catalog), side(again)) == []
    assert consequences(side(catalog), side(catalog, driver="6.3")) == []


def test_newer_driver_makes_torch_possible(with_update: Load) -> None:
    catalog = with_update("nothing")
    changes = consequences(side(catalog), side(catalog, driver="30.10"))
    torch = only(changes, kind="torch", effect="possible")
    assert torch.name == "torch 2.10.0+rocm7.0"
    assert [(row_key.torch, row_key.python) for row_key in torch.where] == [("2.10.0+rocm7.0", "3.12")]
    assert texts(torch.core) == [
        "torch 2.10.0+rocm7.0",
        "torch 2.10.0+rocm7.0 is built for ROCm 7.0 and published at https://here/7.0",
        "ROCm 7.0 is supported on kernel drivers 30.10",
        "hill has kernel driver 6.3 on 2026-03-01 (since 2026-01-01)",
    ]
    assert texts(torch.was) == ["hill has kernel driver 6.3 on 2026-03-01 (since 2026-01-01)"]
    assert texts(torch.now) == ["the kernel driver is 30.10"]


def test_newer_driver_puts_old_image_at_risk(with_update: Load) -> None:
    catalog = with_update("nothing")
    changes = consequences(side(catalog), side(catalog, driver="30.10"))
    image = only(changes, kind="base-image", effect="at-own-risk")
    assert image.name == "older-rocm.sif"
    assert texts(image.now) == ["ROCm 6.2 is older than driver 30.10 supports (6.4 to 7.0)"]
    assert not [change for change in changes if change.effect == "breaks"]


def test_older_driver_breaks_torch_and_image_with_core(with_update: Load) -> None:
    catalog = with_update("nothing")
    changes = consequences(side(catalog), side(catalog, driver="6.0"))
    broken = {change.name for change in changes if change.effect == "breaks"}
    assert {"torch 2.9.1+rocm6.4", "torch 2.8.0+rocm6.3", "one.sif"} <= broken
    image = only(changes, name="one.sif")
    assert texts(image.core)[-2:] == [
        "one.sif contains ROCm 6.4.0",
        "ROCm 6.4 is supported on kernel drivers 6.3 and 30.10",
    ]
    assert "the kernel driver is 6.0" in texts(image.core)
    assert texts(image.now) == ["the kernel driver is 6.0"]


def test_every_row_that_changes_is_reported(with_update: Load) -> None:
    """Compare the broken torch versions with the tables, and with conflicts of `resolve`."""
    catalog = with_update("nothing")
    before, after = rows_of(catalog), rows_of(catalog, driver="6.0")
    changes = consequences(side(catalog), side(catalog, driver="6.0"))
    gone = {
        (row_key.torch, row_key.python)
        for change in changes
        if change.kind == "torch" and change.effect == "breaks" and not change.after
        for row_key in change.where
        if not row_key.base_image
    }
    assert gone == before.keys() - after.keys()
    for torch, python in gone:
        request = side(catalog, f"torch=={torch} python=={python}.*", driver="6.0").request
        assert isinstance(resolve(catalog, request), Conflict)


def test_new_bound_changes_cell(with_update: Load) -> None:
    changes = consequences(side(with_update("nothing")), side(with_update("a bound")))
    upper = only(changes, name="upper", effect="breaks")
    assert upper.before == "1.1"
    assert {row_key.torch for row_key in upper.where} == {"2.9.1+rocm6.4"}
    assert texts(upper.now) == ["upper 1.1 requires torch <2.9"]
    assert texts(upper.now)[0] in texts(upper.core)


def test_new_torch_names_its_row(with_update: Load) -> None:
    changes = consequences(side(with_update("nothing")), side(with_update("a torch")))
    torch = only(changes, kind="torch")
    assert (torch.effect, torch.name) == ("possible", "torch 2.11.0+rocm6.4")
    assert texts(torch.core) == ["the catalog has no torch 2.11.0+rocm6.4"]
    assert texts(torch.now) == ["torch 2.11.0+rocm6.4 is published at https://here/6.4"]


def test_new_release_makes_cells_different(with_update: Load) -> None:
    changes = consequences(side(with_update("nothing")), side(with_update("a release")))
    zone = [change for change in changes if change.name == "zone"]
    assert {change.effect for change in zone} <= {"different", "possible"}
    assert all(
        change.after == "2" and texts(change.now) == ["zone 2 is published on PyPI"] for change in zone
    )
    assert all(texts(change.core) == ["the catalog has no zone 2"] for change in zone)


def test_new_package_becomes_possible(with_update: Load) -> None:
    changes = consequences(side(with_update("nothing")), side(with_update("a package")))
    fresh = only(changes, name="fresh")
    assert (fresh.effect, texts(fresh.core)) == ("possible", ["the catalog has no fresh"])
    assert texts(fresh.now) == ["fresh 1 is published on PyPI"]


def test_known_bad_combination_breaks_cells(with_update: Load) -> None:
    changes = consequences(side(with_update("nothing")), side(with_update("a known problem")))
    built = only(changes, name="built", effect="breaks")
    assert any("it hangs" in text for text in texts(built.core))
    assert texts(built.now)[0] in texts(built.core)


def test_changed_recipe_is_different(with_update: Load) -> None:
    changes = consequences(side(with_update("nothing")), side(with_update("a recipe")))
    assert {change.effect for change in changes} == {"different"}
    assert {change.name for change in changes} == {"built 2.0", "built 1.5", "built 1.5 (abc)", "built 1.0"}
    assert texts(changes[0].now) == ["the recipe of built 2.0 differs in environment"]


def test_new_image_adds_rows(with_update: Load) -> None:
    changes = consequences(side(with_update("nothing")), side(with_update("an image")))
    image = only(changes, kind="base-image")
    assert (image.effect, image.name) == ("possible", "newer.sif")
    torch = only(changes, kind="torch")
    assert (torch.name, torch.before, torch.after) == (
        "torch 2.8.0+rocm6.3",
        "published wheels only: no base image works",
        "with a base image",
    )


def test_proven_set_breaks_on_other_driver(with_update: Load) -> None:
    catalog = with_update("nothing")
    changes = consequences(side(catalog), side(catalog, driver="6.0"))
    proven = only(changes, kind="proven-set")
    assert (proven.effect, proven.name, proven.after) == ("breaks", "hill-1", "")
    assert "the kernel driver is 6.0" in texts(proven.core)


def test_proven_set_breaks_by_new_fact(with_update: Load, tmp_path: Path) -> None:
    catalog = with_update("nothing")
    row = '[[known-bad]]\ncombination = { ready = "==1.0", torch = "==2.9.*" }\nproblem = "it hangs"\n'
    paths = [_write(tmp_path / "bad.toml", row)]
    for name, text in (("base", TINY), ("drivers", DRIVERS)):
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    layers = [[str(tmp_path / "base.toml")], [str(tmp_path / "drivers.toml")], list(map(str, paths))]
    changes = consequences(side(catalog), side(load_uncached(layers)[0]))
    proven = only(changes, kind="proven-set")
    assert proven.effect == "breaks"
    assert any("it hangs" in text for text in texts(proven.core))


def _lock(catalog: Catalog, requirements: str, **changes: Any) -> Resolution:
    answer = resolve(catalog, side(catalog, requirements, **changes).request)
    assert isinstance(answer, Resolution)
    return answer


def test_lock_breaks_with_the_pick_and_the_fact(with_update: Load) -> None:
    catalog = with_update("nothing")
    lock = _lock(catalog, "torch built")
    pins = {pick.name: pick.key for pick in lock.picks if pick.name != "kernel-driver"}
    requests = [replace(lock.request, target=target(driver=driver)) for driver in (None, "6.0")]
    before, after = (Side(catalog, request) for request in requests)
    holding = Holding(
        kind="lock",
        name="a.lock",
        before=before,
        after=after,
        pins=pins,
        also=tuple(pins),
    )
    changes = consequences(side(catalog), side(catalog, driver="6.0"), [holding])
    broken = only(changes, kind="lock")
    assert (broken.effect, broken.name) == ("breaks", "a.lock")
    assert any(text.startswith("the lock has ") for text in texts(broken.core))
    assert texts(broken.now) == ["the kernel driver is 6.0"]


def test_locks_differ_by_the_fact_that_excludes_a_pick(with_update: Load) -> None:
    catalog = with_update("nothing")
    old, new = _lock(catalog, "torch built"), _lock(catalog, "torch built", driver="6.0")
    changes = between_locks((Side(catalog, old.request), old), (Side(catalog, new.request), new))
    torch = only(changes, name="torch")
    assert (torch.before, torch.after) == ("2.9.1+rocm6.4", "2.5.1+rocm6.2")
    assert texts(torch.now) == ["the kernel driver is 6.0"]
    assert between_locks((Side(catalog, old.request), old), (Side(catalog, old.request), old)) == []


def test_two_images_are_compared_row_by_row(with_update: Load) -> None:
    catalog = with_update("nothing")
    before, after = side(catalog, base_image="one.sif"), side(catalog, base_image="older-rocm.sif")
    changes = consequences(before, after)
    assert only(changes, name="torch 2.5.1+rocm6.2").effect == "possible"
    assert only(changes, name="torch 2.9.1+rocm6.4").effect == "breaks"
    assert not [change for change in changes if change.kind == "base-image"]


def test_default_follows_the_driver_and_the_advice(with_update: Load) -> None:
    catalog = with_update("nothing")
    default = only(consequences(side(catalog), side(catalog, driver="6.0")), kind="default")
    assert default.before == "torch 2.9.1+rocm6.4, rocm 6.4.0, python 3.12"
    assert default.after.startswith("torch 2.5.1+rocm6.2, ")
    assert texts(default.now) == ["the kernel driver is 6.0"]
    default = only(consequences(side(catalog), side(with_update("advice"))), kind="default")
    assert default.after.startswith("torch 2.8.0+rocm6.3, ")
    assert (texts(default.was), texts(default.now)) == ([], ["hill advises rocm ==6.3.*"])


@pytest.mark.parametrize("name", UPDATES)
def test_unchanged_columns_are_left_out_without_effect(with_update: Load, name: str) -> None:
    before, after = side(with_update("nothing")), side(with_update(name))
    changes = [
        change
        for change in consequences(before, after)
        if change.kind in {"torch", "base-image"} or change.where
    ]
    everything = TableDiff(Rows(before), Rows(after)).consequences()
    assert [change for change in everything if change.kind != "default"] == changes


SIDES = st.tuples(
    st.sampled_from(list(UPDATES)),
    st.sampled_from([None, "6.3", "30.10", "6.0"]),
    st.sampled_from([None, None, "one.sif", "older-rocm.sif"]),
)


@settings(
    max_examples=15,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(SIDES, SIDES)
def test_reverse_change_is_the_mirror(
    with_update: Load, one: tuple[str, str | None, str | None], other: tuple[str, str | None, str | None]
) -> None:
    before, after = (
        side(with_update(name), driver=driver, base_image=image) for name, driver, image in (one, other)
    )
    changes = consequences(before, after)
    assert mirrored(changes) == set(consequences(after, before))
    assert len(set(changes)) == len(changes)
    if one == other:
        assert changes == []
    for change in changes:
        assert change.was or change.now or change.core
        assert change.core or change.effect not in {"breaks", "possible"}
