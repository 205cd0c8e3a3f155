"""The label of a wheel is in normal form, so pip and uv compare it exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from resolver.facts.catalog import Catalog, load
from resolver.versions import labelled, minor, wheel_label
from tests.resolver.universe import EXAMPLES

numbers = st.lists(st.integers(0, 99), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
suffixes = st.sampled_from(["", "rc1", "a0", ".post1", ".dev20240918", "rc2.post1.dev3"])
locals_ = st.sampled_from(["", "+cpu", "+rocm6.2", "+git.e37ed12", "+GITf0da167", "+d20240401"])
versions = st.builds(lambda *parts: "".join(parts), numbers, suffixes, locals_)
labels = st.builds(
    wheel_label,
    backend=st.just("rocm"),
    torch=versions,
    rocm=numbers,
    gfx=st.lists(st.sampled_from(list(load().gfx)), min_size=1, max_size=3, unique=True),
) | st.builds(wheel_label, backend=st.just("cpu"), torch=versions)


@EXAMPLES
@given(versions, labels)
def test_labelled_version_has_label_as_local_part(version: str, label: str) -> None:
    made = labelled(version, label)
    assert Version(made).local == label == label.lower()
    assert Version(made).public == Version(version).public
    assert str(Version(made)) == made
    assert labelled(made, label) == made


@EXAMPLES
@given(versions, numbers, st.permutations(["gfx90a", "gfx942"]))
def test_label_names_rocm_torch_and_architectures(torch: str, rocm: str, gfx: list[str]) -> None:
    label = wheel_label(backend="rocm", torch=torch, rocm=rocm, gfx=gfx)
    assert label == f"rocm{minor(rocm)}.torch{Version(torch).public}.{gfx[0]}.{gfx[1]}"


@pytest.mark.parametrize(
    ("version", "made"),
    [
        ("2.8.3", "2.8.3+rocm6.4.torch2.9.1.gfx90a"),
        ("1.9.0+git.e37ed12", "1.9.0+rocm6.4.torch2.9.1.gfx90a"),
        ("0.43.2.dev", "0.43.2.dev0+rocm6.4.torch2.9.1.gfx90a"),
    ],
)
def test_label_replaces_local_part_of_the_source(version: str, made: str) -> None:
    assert (
        labelled(version, wheel_label(backend="rocm", torch="2.9.1+rocm6.4", rocm="6.4.4", gfx=["gfx90a"]))
        == made
    )


def test_shipped_releases_can_be_labelled(catalog: Catalog) -> None:
    label = wheel_label(backend="cpu", torch="2.13.0+cpu")
    made = {labelled(release.version, label) for release in catalog.release.values()}
    assert {Version(version).local for version in made} == {"cpu.torch2.13.0"}
