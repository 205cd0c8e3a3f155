"""Results in interactive Python are short."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from builders.audit.wheel_audit import audit_wheel
from resolver.answers.resolve import resolve
from resolver.facts.catalog import load
from resolver.model import Conflict, Resolution
from tests.resolver.solve_helpers import ask


@pytest.fixture(scope="module")
def resolution() -> Resolution:
    catalog = load()
    answer = resolve(catalog, ask(catalog, "apex deepspeed", day="2026-06-01"))
    assert isinstance(answer, Resolution)
    return answer


def test_resolution(resolution: Resolution) -> None:
    assert repr(resolution).startswith("<Resolution for lumi-g on 2026-06-01 (rocm, gfx90a): ")
    assert len(repr(resolution)) < 600


def test_conflict() -> None:
    catalog = load()
    answer = resolve(catalog, ask(catalog, "apex rocm==7.1.*", day="2026-06-01"))
    assert isinstance(answer, Conflict)
    assert "you asked for rocm==7.1.*" in repr(answer)


def test_audit(make_wheel: Callable[..., Path]) -> None:
    audit = audit_wheel(make_wheel())
    assert repr(audit).startswith("<WheelAudit of tiny-1.0-py3-none-any.whl: ")
