"""A short run of every kind; ``nox -s fuzz`` is the long run."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import run as run_module
from tests.fuzz.kinds import KINDS, Kind
from tests.fuzz.run import FaultError, limits, run, run_case

CASES = 5
MORE = {"elf-versions": 100}
"""Kinds that are read from every image, and quickly."""
short = settings(
    max_examples=CASES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(3_000 // len(KINDS), marks=pytest.mark.slow, id="3,000"),
        pytest.param(
            100_000 // len(KINDS), marks=[pytest.mark.long, pytest.mark.timeout(3600)], id="100,000"
        ),
    ],
)
@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_many_changed_inputs_end_with_result_or_message(kind: Kind, cases: int) -> None:
    assert run(kind, cases).faults == {}


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_changed_inputs_end_with_result_or_message(kind: Kind, tmp_path: Path) -> None:
    """Run the first cases of the long run, then cases that hypothesis reduces to the smallest failing one."""
    least = MORE.get(kind.name, CASES)
    result = run(kind, least)
    assert result.faults == {}
    assert result.parsed == least
    parsed = []

    @short
    @given(st.randoms(use_true_random=False))
    def case(random: Random) -> None:
        parsed.append(run_case(kind, random, tmp_path))

    with limits():
        case()
    assert sum(parsed) > CASES // 3


def endless(*_: object) -> None:
    while True:
        pass


def memory(*_: object) -> bytes:
    return bytes(8 << 30)


def broken(*_: object) -> None:
    raise KeyError


@pytest.mark.parametrize(
    ("enter", "name"), [(endless, "TooSlow"), (memory, "MemoryError"), (broken, "KeyError")]
)
def test_time_memory_and_other_errors_are_faults(
    enter: object, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "SECONDS", 0.1)
    kind = KINDS[2]._replace(enter=enter, allowed=(ValueError,))  # type: ignore[arg-type]
    with limits(), pytest.raises(FaultError, match=name):
        run_case(kind, Random(1), tmp_path)
