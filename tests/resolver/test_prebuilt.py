"""Wheels that others compiled and that PyPI does not have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from resolver.answers.resolve import resolve
from resolver.errors import CatalogError
from resolver.facts.catalog import Catalog, load
from resolver.lock import dumps
from resolver.model import Conflict, Distribution
from tests.resolver.solve_helpers import ask
from tests.support.indexes import URL, FakeIndexes, FakeRelease

Overlay = Callable[[str], Path]
SEEN = 'status = "documented"\nsource = "a test"\n'
RELEASES = "https://example.invalid/releases/download/v1"
INDEX = "https://wheels.invalid/rocm"
TAG = "cp{0}-cp{0}-manylinux_2_28_x86_64"
IMAGE = "rocm/dev-ubuntu-24.04:6.4.4-complete"
PACKAGE = f"""
[[package]]
name = "slow"
title = "An extension that takes hours to compile"
import-name = "slow"
{SEEN}
[[release]]
package = "slow"
version = "2.0"
sdist = {{ file = "slow-2.0.tar.gz", sha256 = "{"ab" * 32}" }}
{SEEN}
[[recipe]]
package = "slow"
backend = "rocm"
{SEEN}
"""


def release_with_wheels(version: str, *pythons: str) -> str:
    files = [f"slow-{version}-{TAG.format(python)}.whl" for python in pythons]
    wheels = ", ".join(
        f'{{ file = "{file}", sha256 = "{number:064x}", url = "{RELEASES}/{file.replace("+", "%2B")}" }}'
        for number, file in enumerate(files)
    )
    return f'\n[[release]]\npackage = "slow"\nversion = "{version}"\nwheels = [{wheels}]\n{SEEN}'


def release_on_index(version: str) -> str:
    return f'\n[[release]]\npackage = "slow"\nversion = "{version}"\nindex = "{INDEX}"\n{SEEN}'


def resolved(
    catalog: Catalog, indexes: FakeIndexes | None = None, *, no_prebuilt: bool = False, python: str = "3.12"
) -> Distribution:
    request = ask(catalog, f"slow torch==2.9.1 python=={python}.*")
    answer = resolve(catalog, replace(request, no_prebuilt=no_prebuilt), indexes)
    assert not isinstance(answer, Conflict), answer
    pick = answer.pick("slow")
    assert pick is not None
    assert f"no_prebuilt = {str(no_prebuilt).lower()}" in dumps(answer)
    return pick


def test_published_wheel_is_preferred_to_newer_build(overlay: Overlay) -> None:
    catalog = load([overlay(PACKAGE + release_with_wheels("1.9+rocm6.4", "311", "312"))])
    pick = resolved(catalog)
    assert (pick.version, pick.origin) == ("1.9+rocm6.4", "published")
    assert pick.facts[0].text == f"slow 1.9+rocm6.4 is published at {RELEASES}"
    (file,) = pick.files
    assert (file.name, file.sha256) == (f"slow-1.9+rocm6.4-{TAG.format('312')}.whl", f"{1:064x}")
    assert pick.direct_url == f"{RELEASES}/slow-1.9%2Brocm6.4-{TAG.format('312')}.whl#sha256={1:064x}"


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        (["cp311-cp311-manylinux_2_28_x86_64"], "is published for Python 3.11 on x86_64"),
        (["cp310-abi3-manylinux_2_28_aarch64"], "is published for Python (none) on x86_64"),
        (["cp312-cp312-manylinux_2_99_x86_64"], "requires glibc 2.99 or newer"),
        (["cp312-cp312-manylinux_2_99_x86_64", "py3-none-manylinux_2_28_x86_64"], ""),
    ],
)
def test_tags_of_named_wheels_count_without_index(overlay: Overlay, tags: list[str], reason: str) -> None:
    files = ", ".join(
        f'{{ file = "slow-1.9-{tag}.whl", sha256 = "{number:064x}", url = "{RELEASES}/slow-1.9-{tag}.whl" }}'
        for number, tag in enumerate(tags)
    )
    text = f'{PACKAGE}\n[[release]]\npackage = "slow"\nversion = "1.9"\nwheels = [{files}]\n{SEEN}'
    catalog, asked = load([overlay(text)]), "slow==1.9 torch==2.9.1 python==3.12.*"
    answer = resolve(catalog, ask(catalog, asked, base_image=IMAGE))
    assert isinstance(answer, Conflict) == bool(reason)
    if isinstance(answer, Conflict):
        assert f"slow 1.9 {reason}" in {item.text for item in answer.core}
        row = '[[requires]]\npackage = "slow"\nreleases = "==1.9"\n{}\n' + SEEN
        rows = ('on = "python"\nversions = ["==2.7.*"]', 'on = "glibc"\nversions = [">=2.199"]')
        known = load([overlay(text + "".join(map(row.format, rows)))])
        strict = resolve(known, ask(known, asked, base_image=IMAGE))
        assert isinstance(strict, Conflict)
        assert not any(reason in item.text for item in strict.core)


def test_no_prebuilt_builds_anyway(overlay: Overlay) -> None:
    catalog = load([overlay(PACKAGE + release_with_wheels("2.0+rocm6.4", "312"))])
    pick = resolved(catalog, no_prebuilt=True)
    assert (pick.version, pick.origin, pick.files) == ("2.0", "build", ())


def test_no_prebuilt_keeps_releases_without_recipe(overlay: Overlay) -> None:
    rows = PACKAGE.replace('backend = "rocm"', 'backend = "cpu"') + release_with_wheels("2.0+rocm6.4", "312")
    assert resolved(load([overlay(rows)]), no_prebuilt=True).origin == "published"


def test_release_on_another_index_is_found_there(overlay: Overlay) -> None:
    catalog = load([overlay(PACKAGE + release_on_index("2.0+rocm64"))])
    on_index = FakeRelease(wheels=[TAG.format("312")], requires=["einops"], index=INDEX)
    indexes = FakeIndexes({"slow": {"2.0+rocm64": on_index, "2.0": []}, "einops": {"0.8": []}})
    pick = resolved(catalog, indexes)
    assert (pick.version, pick.origin, pick.index) == ("2.0+rocm64", "published", INDEX)
    assert [file.index for file in pick.files] == [INDEX]
    assert pick.facts[0].text == f"slow 2.0+rocm64 is published at {INDEX}"


@pytest.mark.parametrize("rows", [release_with_wheels("2.0+rocm64", "312"), release_on_index("2.0+rocm64")])
def test_prebuilt_without_wheel_for_the_python_is_built(overlay: Overlay, rows: str) -> None:
    catalog = load([overlay(PACKAGE + rows)])
    on_index = FakeRelease(wheels=[TAG.format("312")], index=INDEX)
    indexes = FakeIndexes({"slow": {"2.0+rocm64": on_index, "2.0": FakeRelease(wheels=(), sdist=True)}})
    assert resolved(catalog, indexes, python="3.11").origin == "build"


def test_requirements_of_builds_do_not_limit_published_wheels(overlay: Overlay) -> None:
    limit = f'\n[[requires]]\npackage = "slow"\non = "torch"\nversions = ["==2.7.*"]\nkind = "build"\n{SEEN}'
    catalog = load([overlay(PACKAGE + release_with_wheels("2.0+rocm64", "312") + limit)])
    assert resolved(catalog).origin == "published"


def test_release_of_an_index_is_not_a_neighbour(overlay: Overlay) -> None:
    """PyPI's newer release is unrelated to wheels that PyPI does not have."""
    package = PACKAGE.replace('import-name = "slow"', 'import-name = "slow"\npypi = "same"')
    catalog = load([overlay(package + release_on_index("2.1+rocm64"))])
    indexes = FakeIndexes({"slow": {"3.0": FakeRelease(wheels=["cp312-cp312-manylinux_2_28_x86_64"])}})
    request = ask(catalog, "slow>=3 torch==2.9.1", backend="rocm", python="3.12")
    with pytest.raises(Exception, match="has no sdist with a SHA-256"):
        resolve(catalog, request, indexes)


def test_wheel_without_url_is_an_error(overlay: Overlay) -> None:
    rows = release_with_wheels("2.0+rocm64", "312").replace("url = ", "urls = ")
    with pytest.raises(CatalogError, match="urls"):
        load([overlay(PACKAGE + rows)])
    start, _, _ = release_with_wheels("2.0+rocm64", "312").partition(", url")
    with pytest.raises(CatalogError, match="each wheel needs a url"):
        load([overlay(PACKAGE + start + f" }}]\n{SEEN}")])


# Wheels that were built with this program, on a configured index.

SITE = "file:///shared/index/simple"
LABEL = "1.9+rocm6.4.torch2.9.1.gfx90a"


def at_site(*versions: str, tag: str = TAG.format("312")) -> dict[str, FakeRelease]:
    return {version: FakeRelease(wheels=[tag], index=SITE) for version in versions}


def test_labelled_wheel_on_a_configured_index_is_used(overlay: Overlay) -> None:
    catalog = load([overlay(PACKAGE)])
    versions = at_site(LABEL, "3.0+rocm6.4.torch2.8.0.gfx90a", "3.0+rocm6.4.torch2.9.1.gfx942")
    versions |= at_site("3.0+cpu.torch2.9.1", "3.0+rocm7.9.torch2.9.1.gfx90a")
    pick = resolved(catalog, FakeIndexes({"slow": versions}, urls=(URL, SITE)))
    assert (pick.version, pick.origin, pick.index) == (LABEL, "published", SITE)
    assert pick.facts[0].text == f"slow {LABEL} is published at {SITE}"


def test_labelled_wheel_is_not_used_with_no_prebuilt(overlay: Overlay) -> None:
    projects = {"slow": at_site(LABEL) | {"2.0": FakeRelease(wheels=(), sdist=True)}}
    indexes = FakeIndexes(projects, urls=(URL, SITE))
    assert resolved(load([overlay(PACKAGE)]), indexes, no_prebuilt=True).origin == "build"


def test_labelled_wheel_for_another_python_is_not_used(overlay: Overlay) -> None:
    projects = {"slow": at_site(LABEL) | {"2.0": FakeRelease(wheels=(), sdist=True)}}
    indexes = FakeIndexes(projects, urls=(URL, SITE))
    assert resolved(load([overlay(PACKAGE)]), indexes, python="3.11").origin == "build"
