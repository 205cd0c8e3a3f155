"""RCCL's network plugin at sites that need one: from the image, built, or missing with a warning."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from resolver.answers.resolve import resolve
from resolver.facts.catalog import Catalog, load
from resolver.lock import dumps, read_lock
from resolver.model import Conflict, Distribution, Request, Resolution
from tests.resolver.solve_helpers import ask

Overlay = Callable[[str], Path]

PLUGIN = "rccl-net"
OURS = {PLUGIN, "libfabric"}
DAY = "2026-11-01"
HEADERS = 'libfabric = "2.1.0"\nnetwork-headers = true\n'


def image(rocm: str, keys: str = "") -> str:
    """Return the rows of an image of the site ridge, which has Slingshot."""
    return f"""
[[site]]
name = "ridge"
title = "Ridge"
backend = "rocm"
gfx = ["gfx90a"]
network = "slingshot"
status = "documented"
source = "its guide"

[[image]]
name = "ridge.sif"
rocm = "{rocm}"
os = "Ubuntu 24.04"
glibc = "2.39"
python = ["3.12"]
{keys}status = "observed"
source = "its recipe"

[[site-image]]
site = "ridge"
image = "ridge.sif"
status = "documented"
source = "its guide"
"""


def answer(catalog: Catalog, names: str = "torch apex", *, day: str = DAY, site: str = "ridge") -> Resolution:
    found = resolve(catalog, ask(catalog, names, site=site, day=day))
    assert isinstance(found, Resolution)
    return found


def plugin(found: Resolution) -> tuple[str, str, str] | None:
    pick = found.pick(PLUGIN)
    return (pick.version, pick.kind, pick.origin) if pick else None


def others(found: Resolution) -> list[Distribution]:
    return [pick for pick in found.picks if pick.name not in OURS]


def about_network(found: Resolution) -> list[str]:
    return [text for text in (*found.warnings, *found.notes) if "RCCL" in text and "LUMI support" not in text]


def test_plugin_of_the_image_is_taken(overlay: Overlay, tmp_path: Path) -> None:
    found = answer(load([overlay(image("7.0.2", f'{HEADERS}network-plugin = "1.20.0"\n'))]))
    assert plugin(found) == ("1.20.0", "platform", "base-image")
    assert found.version_of("libfabric") == "2.1.0"
    assert about_network(found) == []
    assert PLUGIN not in {pick.name for pick in found.distributions}
    (tmp_path / "matrix.lock").write_text(dumps(found))
    assert read_lock(tmp_path / "matrix.lock") == found


def test_problem_of_the_plugin_in_the_image_is_a_warning(overlay: Overlay) -> None:
    found = answer(load([overlay(image("7.0.2", f'{HEADERS}network-plugin = "1.19.1"\n'))]))
    assert plugin(found) == ("1.19.1", "platform", "base-image")
    assert len([text for text in found.warnings if text.startswith("rccl-net >=1.18,<1.20")]) == 2


def test_plugin_is_built_where_the_image_has_what_it_needs(overlay: Overlay) -> None:
    found = answer(load([overlay(image("7.0.2", HEADERS))]))
    assert plugin(found) == ("1.21.1", "distribution", "build")
    pick = found.pick(PLUGIN)
    assert pick is not None
    assert pick.wheel_version.startswith("1.21.1+rocm7.0.torch2.")
    assert any("ridge has Slingshot" in fact.text for fact in pick.facts)
    (note,) = about_network(found)
    assert note.endswith("rccl-net is built. --no-network-plugin leaves it out.")
    assert [requirement.name for requirement in found.request.requirements] == ["torch", "apex"]
    assert [edge.object for edge in found.edges if edge.subject == PLUGIN and edge.kind == "run"] == ["torch"]


def test_fork_that_rccl_cannot_load_is_not_taken(overlay: Overlay) -> None:
    fork = 'network-plugin = "1.4.0"\n'
    assert plugin(answer(load([overlay(image("6.4.4", fork))]))) == ("1.4.0", "platform", "base-image")
    built = answer(load([overlay(image("7.0.2", fork + HEADERS))]))
    assert plugin(built) == ("1.21.1", "distribution", "build")
    found = answer(load([overlay(image("7.0.2", fork))]))
    assert plugin(found) is None
    problem, text = about_network(found)
    assert "version 5" in problem
    assert "the plugin of ridge.sif cannot be used" in text
    assert "not known to have one" not in text


@pytest.mark.parametrize("keys", ["", 'libfabric = "2.1.0"\n', "network-headers = true\n"])
def test_what_is_not_known_is_a_warning_with_the_remedy(keys: str, overlay: Overlay) -> None:
    found = answer(load([overlay(image("7.0.2", keys))]))
    assert plugin(found) is None
    (text,) = about_network(found)
    assert text.startswith(
        "No network plugin for RCCL is chosen: ridge.sif is not known to have one, and it is"
    )
    assert text.endswith("(--base-image) or require rccl-net to compile it in this image.")


def test_required_plugin_is_built_with_a_warning_if_the_image_is_not_known(overlay: Overlay) -> None:
    found = answer(load([overlay(image("7.0.2"))]), "torch apex rccl-net")
    assert plugin(found) == ("1.21.1", "distribution", "build")
    (text,) = (text for text in found.warnings if "hwloc" in text)
    assert text.startswith("It is not known whether ridge.sif has libfabric and hwloc with their headers.")
    found = answer(load([overlay(image("7.0.2", HEADERS))]), "torch apex rccl-net")
    assert [text for text in found.warnings if "hwloc" in text] == []


def test_libfabric_that_is_too_old_is_refused(overlay: Overlay) -> None:
    old = load([overlay(image("7.0.2", HEADERS.replace("2.1.0", "1.10.1")))])
    assert plugin(answer(old)) is None
    assert "no release of rccl-net fits" in " ".join(about_network(answer(old)))
    asked = answer(old, "torch apex rccl-net")
    assert "does not compile with this libfabric" in " ".join(asked.warnings)


def test_plugin_that_fits_nothing_is_a_warning_unless_it_is_required(overlay: Overlay) -> None:
    """Before the first release with ROCm, and for a ROCm whose RCCL needs another interface."""
    catalog = load([overlay(image("7.0.2", HEADERS))])
    found = answer(catalog, day="2026-05-01")
    assert plugin(found) is None
    assert "no release of rccl-net fits" in " ".join(about_network(found))
    asked = ask(catalog, "torch apex rccl-net", site="ridge", day="2026-05-01")
    assert isinstance(resolve(catalog, asked), Conflict)
    found = answer(load([overlay(image("6.1.3", HEADERS))]))
    assert plugin(found) is None
    assert "no release of rccl-net fits" in " ".join(about_network(found))


def test_torch_with_another_rccl_gets_no_plugin_to_build(overlay: Overlay) -> None:
    """Its RCCL is not in torch/lib, so it would not find a plugin there."""
    catalog = load([overlay(image("7.0.2", HEADERS))])
    wheel = catalog.torch[answer(catalog).version_of("torch")]
    for change in ({"system_rocm": True}, {"device_extra": "device-{gfx}", "rocm": "7.0.2"}):
        torch = {**catalog.torch, wheel.version: replace(wheel, **change)}
        found = answer(replace(catalog, torch=torch), f"torch==={wheel.version} apex")
        assert plugin(found) is None
        assert "uses another" in " ".join(about_network(found))


def test_request_may_leave_the_plugin_out(overlay: Overlay) -> None:
    catalog = load([overlay(image("7.0.2", HEADERS))])
    request = replace(ask(catalog, "torch apex", site="ridge", day=DAY), no_network_plugin=True)
    found = resolve(catalog, request)
    assert isinstance(found, Resolution)
    assert plugin(found) is None
    (note,) = about_network(found)
    assert note.startswith(
        "RCCL's network plugin is left out (--no-network-plugin, or --for a tool that uses"
    )
    assert "no_network_plugin = true" in dumps(found)


def test_lock_is_repeated_with_the_same_plugin(overlay: Overlay) -> None:
    catalog = load([overlay(image("7.0.2", HEADERS))])
    first = answer(catalog)
    kept = {pick.name: pick.key for pick in first.picks}
    assert resolve(catalog, first.request, keep=kept) == first


NAMES = ("torch", "apex", "deepspeed", "bitsandbytes", "mpi4py", "torchvision")
DAYS = st.dates(datetime.date(2024, 9, 2), datetime.date(2026, 11, 20))


SITES = st.sampled_from(["lumi-g", "frontier", "archer2"])


@settings(max_examples=12)
@given(names=st.sets(st.sampled_from(NAMES), min_size=1), site=SITES, day=DAYS)
def test_plugin_changes_nothing_else(
    names: set[str], site: str, day: datetime.date, catalog: Catalog
) -> None:
    request: Request = ask(catalog, " ".join(sorted(names)), site=site, day=day.isoformat())
    without = resolve(catalog, replace(request, no_network_plugin=True))
    found = resolve(catalog, request)
    assert type(found) is type(without)
    if isinstance(found, Resolution) and isinstance(without, Resolution):
        assert others(found) == list(without.picks)
        if not catalog.site[site].network or not found.pick("torch"):
            assert replace(without, request=request) == found
        elif found.target.base_image:
            assert found.pick(PLUGIN) or "No network plugin for RCCL" in " ".join(found.warnings)


def test_answer_of_lumi_names_the_plugin_of_its_image_and_what_is_known_against_it(catalog: Catalog) -> None:
    found = answer(catalog, site="lumi-g")
    assert plugin(found) == ("1.4.0", "platform", "base-image")
    (text,) = (text for text in found.warnings if "rccl-net" in text)
    assert "laifs-container-recipes/issues/18" in text
