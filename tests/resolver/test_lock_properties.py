"""Every lock of the shipped catalog reads back equal, and every changed lock is refused."""

from __future__ import annotations

import copy
import datetime
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from resolver.answers.resolution import preferred_solution
from resolver.answers.resolve import resolve
from resolver.compiling import compile_problem
from resolver.errors import LockError, UsageError
from resolver.facts.catalog import Catalog, load
from resolver.lock import dumps, read_lock
from resolver.model import IMAGE, Prefer, Preinstalled, Request, Resolution
from resolver.solving.session import Session
from tests.resolver.solve_helpers import ask
from tests.resolver.universe import EXAMPLES

CATALOG: Catalog = load()
IN_A_FOLDER = settings(
    EXAMPLES,
    max_examples=30,
    suppress_health_check=[*EXAMPLES.suppress_health_check, HealthCheck.function_scoped_fixture],
)
PREFER: list[Prefer] = ["newest", "proven", "oldest"]
NAMES = sorted(CATALOG.package)
TORCHES = sorted(row.version for row in CATALOG.torch.values() if row.backend == "rocm")
KEPT = [
    None,
    None,
    Preinstalled(IMAGE),
    Preinstalled("list.txt", {"numpy": "1.26.4", "something-else": "1", "torch": "2.9.1+rocm6.4.lumi"}),
    Preinstalled("list.txt", {"python": "3.12.3", "torch": "2.7.1+rocm6.2.4"}),
    Preinstalled("list.txt", {"rocm": "6.4.3", "torch": "2.10.0a0+git49444c3"}),
]


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Draw a request for LUMI: some packages, perhaps with a torch, a Python or a ROCm."""
    requirements = draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True))
    pins = ["torch", *(f"torch=={version}" for version in TORCHES)]
    requirements.append(draw(st.sampled_from(pins)))
    requirements += draw(st.sampled_from([[], ["python==3.12"], ["rocm==6.2.*"], ["rocm>=6.0,<6.5"]]))
    site, day = draw(
        st.sampled_from([("lumi-g", "2025-06-01"), ("lumi-g", "2026-05-01"), ("local", "2026-05-01")])
    )
    driver = draw(st.sampled_from([None, "6.4"]))
    gfx = ["gfx90a"] if draw(st.booleans()) else ["gfx942", "gfx90a"]
    request = ask(
        CATALOG,
        " ".join(dict.fromkeys(requirements)),
        site=site,
        day=day,
        backend="rocm",
        gfx=gfx,
        driver=driver,
        prefer=draw(st.sampled_from(PREFER)),
    )
    preinstalled = draw(st.sampled_from(KEPT))
    return replace(request, preinstalled=preinstalled)


def locked(request: Request) -> Resolution:
    """Resolve a request. To explain a request without a solution takes long, so that is not done."""
    try:
        session = Session(compile_problem(CATALOG, request))
    except UsageError:
        assume(condition=False)
    assume(preferred_solution(CATALOG, request, session)[0])
    answer = resolve(CATALOG, request)
    assert isinstance(answer, Resolution)
    return answer


@pytest.mark.slow
@given(request=requests())
@settings(IN_A_FOLDER, max_examples=20)
def test_generated_lock_reads_back_equal(request: Request, tmp_path: Path) -> None:
    lock = locked(request)
    path = tmp_path / "matrix.lock"
    path.write_text(dumps(lock), encoding="utf-8")
    back = read_lock(path)
    assert back == lock
    assert dumps(back) == dumps(lock)
    assert back.request == request


@pytest.fixture(scope="module")
def text() -> str:
    lock = resolve(CATALOG, ask(CATALOG, "torch apex deepspeed bitsandbytes", day="2025-06-01"))
    assert isinstance(lock, Resolution)
    return dumps(lock)


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from leaves(child, (*path, key))
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from leaves(child, (*path, number))
    else:
        yield path


def another(value: Any, more: str) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1 + len(more)
    if isinstance(value, datetime.date):
        return value + datetime.timedelta(days=1 + len(more))
    return value[1:] + more if value[1:] + more != value else value + "x"


@pytest.mark.slow
@given(data=st.data())
@IN_A_FOLDER
def test_lock_with_changed_value_is_rejected(data: st.DataObject, text: str, tmp_path: Path) -> None:
    document = tomllib.loads(text)
    changed = copy.deepcopy(document)
    *path, last = data.draw(st.sampled_from(list(leaves(document))))
    here: Any = changed
    for key in path:
        here = here[key]
    if data.draw(st.booleans()):
        more = data.draw(st.text("0123456789abcdef.+- ", max_size=3))
        here[last] = another(here[last], more)
    else:
        del here[last]
    file = tmp_path / "matrix.lock"
    file.write_text(tomli_w.dumps(changed), encoding="utf-8")
    with pytest.raises(LockError):
        read_lock(file)


@pytest.mark.slow
@given(data=st.data())
@settings(IN_A_FOLDER, max_examples=150)
def test_changed_character_is_refused_or_harmless(data: st.DataObject, text: str, tmp_path: Path) -> None:
    at = data.draw(st.integers(0, len(text) - 1))
    new = data.draw(st.sampled_from("0a\"=[]{}.,# \n'\\-"))
    changed = text[:at] + new + text[at + 1 :]
    file = tmp_path / "matrix.lock"
    file.write_text(changed, encoding="utf-8")
    try:
        lock = read_lock(file)
    except LockError:
        return
    assert tomllib.loads(changed) == tomllib.loads(text)
    assert dumps(lock) == text
