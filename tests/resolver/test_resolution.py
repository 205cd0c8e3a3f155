"""Resolutions: the default Python, origins, and the image chosen for preinstalled packages."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from resolver.answers.rejected import rejected_versions, search_naming
from resolver.answers.resolve import resolve
from resolver.facts.catalog import Catalog
from resolver.model import IMAGE, Distribution, Preinstalled, Request, Resolution
from tests.resolver.solve_helpers import ask

DAY = "2026-11-22"


def resolved(catalog: Catalog, request: Request) -> Resolution:
    answer = resolve(catalog, request)
    assert isinstance(answer, Resolution)
    return answer


@pytest.mark.parametrize("prefer", ["newest", "proven"])
def test_default_python_is_that_of_the_base_image(catalog: Catalog, prefer: str) -> None:
    request = replace(ask(catalog, "apex", day=DAY), prefer=prefer)
    lock = resolved(catalog, request)
    python = lock.pick("python")
    assert python is not None
    assert lock.image is not None
    assert python.version in catalog.image[lock.image.name].python
    assert python.origin == "base-image"
    assert any("has Python" in fact.text for fact in python.facts)
    assert not any("--python-from" in warning for warning in lock.warnings)


def test_python_of_image_does_not_cost_a_newer_torch(catalog: Catalog) -> None:
    lock = resolved(catalog, ask(catalog, "apex", day=DAY))
    other = resolved(catalog, ask(catalog, "apex python==3.13", day=DAY))
    assert lock.version_of("torch") == other.version_of("torch")


def test_another_python_is_used_with_a_warning(catalog: Catalog) -> None:
    lock = resolved(catalog, ask(catalog, "apex python==3.13", day=DAY))
    python = lock.pick("python")
    assert python is not None
    assert (python.version, python.origin) == ("3.13", "request")
    (warning,) = [warning for warning in lock.warnings if "--python-from" in warning]
    assert f"The base image {lock.target.base_image} has Python 3.12, not 3.13." in warning


def test_python_without_image_is_a_default_and_not_requested(catalog: Catalog) -> None:
    lock = resolved(catalog, ask(catalog, "torch", day=DAY))
    python = lock.pick("python")
    assert lock.image is None
    assert python is not None
    assert python.origin == "default"


@pytest.mark.parametrize(("driver", "origin"), [("6.4", "request"), (None, "site")])
def test_driver_of_request_is_not_of_site(catalog: Catalog, driver: str | None, origin: str) -> None:
    pick = resolved(catalog, ask(catalog, "torch", day=DAY, driver=driver)).pick("kernel-driver")
    assert pick is not None
    assert pick.origin == origin


def test_python_of_machine_gives_way_to_that_of_base_image(catalog: Catalog) -> None:
    def python_of(requirements: str) -> tuple[Resolution, Distribution]:
        request = ask(
            catalog, requirements, site="local", backend="rocm", gfx=["gfx942"], python="3.11", day=DAY
        )
        lock = resolved(catalog, request)
        python = lock.pick("python")
        assert python is not None
        return lock, python

    lock, python = python_of("torch apex")
    assert lock.image is not None
    assert catalog.image[lock.image.name].python == ("3.12",)
    assert (python.version, python.origin) == ("3.12", "base-image")
    assert not any("--python-from" in warning for warning in lock.warnings)
    lock, python = python_of("torch")
    assert lock.image is None
    assert (python.version, python.origin) == ("3.11", "site")


def test_another_python_than_that_of_machine_requires_an_image(catalog: Catalog) -> None:
    request = ask(catalog, "torch==2.3.* rocm==6.0.*", site="local", backend="rocm", gfx=["gfx90a"], day=DAY)
    too_new = replace(request, target=replace(request.target, python="3.14"))
    assert resolved(catalog, request).image is None
    assert resolved(catalog, too_new).image is not None


def test_explain_names_why_newer_python_was_not_preferred(catalog: Catalog) -> None:
    """An image of an older Python than those that the site lists."""
    request = ask(catalog, "torch", day=DAY, base_image="ccpe/25.09-rocm-6.3.4")
    lock = resolved(catalog, request)
    passed_over, _ = rejected_versions(search_naming(catalog, request, None, "python"), lock, "python")
    reasons = {candidate.version: candidate.preferred for candidate in passed_over}
    assert reasons["3.13"] == f"python 3.11 is preferred because it is in base-image {lock.target.base_image}"


def test_preinstalled_image_has_something_installed(catalog: Catalog) -> None:
    for requirements in ("apex", "bitsandbytes", "numpy"):
        request = replace(ask(catalog, requirements, day=DAY), preinstalled=Preinstalled(IMAGE))
        lock = resolved(catalog, request)
        assert lock.target.base_image is not None
        assert catalog.image[lock.target.base_image].holds
