"""Sources of metadata and files outside the indexes' wheels: sdists that a build may change."""

from __future__ import annotations

import pytest

from resolver.facts.catalog import Catalog
from resolver.model import Resolution, Support
from resolver.resolve import resolve
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

LEGACY = FakeRelease(wheels=(), sdist=True, static=False, requires=["six>=1"])


def _resolved(catalog: Catalog, indexes: FakeIndexes, text: str, support: Support = "any") -> Resolution:
    request = ask(catalog, text, site="local", backend="cpu", python="3.12", support=support)
    answer = resolve(catalog, request, indexes)
    assert isinstance(answer, Resolution), answer
    return answer


# Metadata that a build may change.


def test_sdist_with_dynamic_metadata_is_inferred(catalog: Catalog) -> None:
    indexes = FakeIndexes({"old": {"2.0": LEGACY, "1.0": []}, "six": {"1.17": []}})
    lock = _resolved(catalog, indexes, "old")
    pick = lock.pick("old")
    assert pick is not None
    assert (pick.version, pick.support, pick.is_sdist) == ("2.0", "inferred", True)
    assert [fact.status for fact in pick.facts] == ["documented", "inferred"]
    assert lock.version_of("six") == "1.17"
    assert (
        "old 2.0 has only an sdist whose metadata a build may change: its requirements are those of its "
        "PKG-INFO." in lock.warnings
    )


def test_dynamic_metadata_can_exclude_a_release(catalog: Catalog) -> None:
    indexes = FakeIndexes({"old": {"2.0": LEGACY, "1.0": []}, "six": {"0.9": []}})
    lock = _resolved(catalog, indexes, "old")
    assert lock.version_of("old") == "1.0"
    assert not any("PKG-INFO" in warning for warning in lock.warnings)


def test_dynamic_metadata_counts_for_the_catalog(catalog: Catalog) -> None:
    release = FakeRelease(wheels=(), sdist=True, static=False, requires=["torch==2.9.*"])
    lock = _resolved(catalog, FakeIndexes({"old": {"2.0": release}}), "old")
    assert lock.version_of("torch").startswith("2.9.")


@pytest.mark.parametrize("support", ["documented", "observed"])
def test_support_excludes_dynamic_metadata(catalog: Catalog, support: Support) -> None:
    indexes = FakeIndexes({"old": {"2.0": LEGACY, "1.0": []}})
    lock = _resolved(catalog, indexes, "old", support)
    pick = lock.pick("old")
    assert pick is not None
    assert (pick.version, pick.support) == ("1.0", "documented")
    assert (
        "old 2.0 was left out of consideration: it has no metadata that can be read without running its code."
        in lock.warnings
    )


def test_wheel_is_preferred_to_sdist(catalog: Catalog) -> None:
    release = FakeRelease(sdist=True, static=False)
    pick = _resolved(catalog, FakeIndexes({"mixed": {"1.0": release}}), "mixed").pick("mixed")
    assert pick is not None
    assert (pick.support, pick.is_sdist) == ("documented", False)


def test_sdist_is_used_if_no_wheel_fits(catalog: Catalog) -> None:
    release = FakeRelease(wheels=["cp311-cp311-manylinux_2_17_x86_64"], sdist=True, static=False)
    pick = _resolved(catalog, FakeIndexes({"mixed": {"1.0": release}}), "mixed").pick("mixed")
    assert pick is not None
    assert (pick.support, pick.is_sdist) == ("inferred", True)
