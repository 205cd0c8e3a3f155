"""The shipped catalog: the resolver finds a solution if there is one, and proves it if there is none.

Random universes did not show the solutions that resolvelib misses; these requests do.
"""

from __future__ import annotations

import random

import pytest

from resolver.answers.resolve import resolve
from resolver.compiling import compile_problem
from resolver.compiling.problem import Problem
from resolver.errors import UsageError
from resolver.facts.catalog import Catalog
from resolver.model import Resolution
from tests.resolver.judge import has_solution
from tests.resolver.solve_helpers import ask
from tests.resolver.solving import solve_preferred

PACKAGES = [
    *("torch", "torchvision", "numpy", "apex", "deepspeed", "flash-attn", "bitsandbytes", "xformers"),
    *("vllm", "aiter", "mamba-ssm", "causal-conv1d", "transformer-engine"),
]
PINS = {
    "torch": [f"==2.{minor}.*" for minor in range(1, 12)],
    "apex": ["==1.3.0", "==1.6.0"],
    "flash-attn": ["==2.6.3", "==2.8.3"],
    "numpy": ["<2", ">=2"],
}
PYTHONS = ["3.8", "3.9", "3.10", "3.12", "3.14"]
DAYS = ["2023-09-01", "2025-03-01", "2026-02-01", "2026-11-21"]
SEEDS = range(120)


def random_problem(catalog: Catalog, seed: int) -> Problem | None:
    """Compile a request of a few packages; None if it names an unknown version."""
    chance = random.Random(seed)
    requirements = [
        name + (chance.choice(PINS[name]) if name in PINS and chance.random() < 0.8 else "")
        for name in chance.sample(PACKAGES, chance.randint(1, 3))
    ]
    if chance.random() < 0.6:
        requirements.append(f"python=={chance.choice(PYTHONS)}")
    gfx = [chance.choice(["gfx942", "gfx1100"])] if chance.random() < 0.3 else None
    try:
        return compile_problem(
            catalog, ask(catalog, " ".join(requirements), day=chance.choice(DAYS), gfx=gfx)
        )
    except UsageError:
        return None


@pytest.mark.slow
def test_resolver_agrees_with_judge_on_catalog(catalog: Catalog) -> None:
    solvable = 0
    problems = {seed: problem for seed in SEEDS if (problem := random_problem(catalog, seed)) is not None}
    for seed, problem in problems.items():
        expected = has_solution(problem)
        assert (solve_preferred(problem) is not None) == expected, seed
        solvable += expected
    assert len(problems) // 5 < solvable < len(problems) * 4 // 5


@pytest.mark.parametrize(
    ("requirements", "day", "gfx"),
    [
        ("bitsandbytes python==3.8", "2026-11-21", None),
        ("torch==2.9.* aiter", "2026-11-21", ["gfx942"]),
        ("causal-conv1d python==3.8", "2025-03-01", None),
        ("apex==1.3.0 python==3.8", "2025-12-31", None),
        ("mamba-ssm bitsandbytes python==3.8", "2026-11-21", ["gfx1100"]),
    ],
)
def test_solutions_missed_by_resolvelib_are_found(
    catalog: Catalog, requirements: str, day: str, gfx: list[str] | None
) -> None:
    answer = resolve(catalog, ask(catalog, requirements, day=day, gfx=gfx))
    assert isinstance(answer, Resolution)
    assert {pick.name for pick in answer.picks} >= {text.partition("=")[0] for text in requirements.split()}
