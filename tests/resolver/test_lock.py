"""The lock holds all of a resolution, comes back as it was written, and is refused when it is not one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from resolver.errors import LockError
from resolver.facts.catalog import Catalog
from resolver.lock import Lock, dumps, make_lock, read_lock
from resolver.model import Prefer, Resolution
from resolver.resolve import resolve
from tests.resolver.asking import ask

FIVE = "torch apex deepspeed flash-attn bitsandbytes"


def _resolved(
    catalog: Catalog, wanted: str, *, day: str = "2025-06-01", prefer: Prefer = "newest"
) -> Resolution:
    answer = resolve(catalog, ask(catalog, wanted, day=day, prefer=prefer))
    assert isinstance(answer, Resolution)
    return answer


@pytest.fixture
def text(catalog: Catalog) -> str:
    """Give the text of a lock."""
    return dumps(make_lock(_resolved(catalog, FIVE)))


@pytest.mark.parametrize(
    ("wanted", "day", "prefer"),
    [
        (FIVE, "2025-06-01", "newest"),
        (f"{FIVE} torchvision", "2025-06-01", "proven"),
        ("torch==2.3.1+rocm6.0", "2026-02-01", "newest"),
        ("apex>=1.7 python==3.12", "2026-03-01", "oldest"),
        ("rocm==6.2.4", "2025-06-01", "newest"),
    ],
)
def test_a_lock_comes_back_as_it_was_written(
    wanted: str, day: str, prefer: Prefer, catalog: Catalog, tmp_path: Path
) -> None:
    lock = make_lock(_resolved(catalog, wanted, day=day, prefer=prefer))
    path = tmp_path / "matrix.lock"
    path.write_text(dumps(lock), encoding="utf-8")
    assert read_lock(path) == lock
    assert dumps(read_lock(path)) == dumps(lock)


def test_a_lock_holds_every_pick_with_its_facts_and_where_it_comes_from(catalog: Catalog) -> None:
    resolution = _resolved(catalog, FIVE)
    lock = make_lock(resolution)
    assert [pick.name for pick in lock.pick] == [pick.name for pick in resolution.picks]
    assert [len(pick.fact) for pick in lock.pick] == [len(pick.facts) for pick in resolution.picks]
    assert all(fact.source for pick in lock.pick for fact in pick.fact)
    assert len(lock.edge) == len(resolution.edges)
    assert lock.order == resolution.order
    assert lock.requirements == tuple(FIVE.split())
    assert (lock.target.site, lock.target.date.isoformat()) == ("lumi-g", "2025-06-01")
    for pick in lock.pick:
        sources = [one for one in (pick.sdist, pick.git, pick.wheel) if one is not None]
        extension = pick.name in {"apex", "deepspeed", "flash-attn", "bitsandbytes"}
        assert len(sources) == extension, pick.name


def test_what_is_built_is_pinned_with_the_label_and_what_is_published_as_it_is(catalog: Catalog) -> None:
    lock = make_lock(_resolved(catalog, FIVE))
    pins = {pick.name: pick.pinned for pick in lock.pick}
    assert pins["apex"] == "1.7.0+rocm6.2.torch2.7.1.gfx90a"
    assert pins["bitsandbytes"] == lock.version_of("bitsandbytes") == "0.49.2"
    assert pins["torch"] == "2.7.1+rocm6.2.4"
    assert lock.version_of("transformer-engine") == ""
    assert lock.find("transformer-engine") is None


def test_what_is_built_comes_in_install_order(catalog: Catalog) -> None:
    lock = make_lock(_resolved(catalog, FIVE))
    assert [pick.name for pick in lock.built()] == ["apex", "deepspeed", "flash-attn"]
    turned = msgspec.structs.replace(lock, order=(("flash-attn",), ("apex", "torch")), pick=lock.pick[::-1])
    assert [pick.name for pick in turned.built()] == ["flash-attn", "apex", "deepspeed"]


def test_the_same_request_gives_the_same_bytes_in_every_process(catalog: Catalog) -> None:
    """Strings hash differently in every process; three of them must agree with this one."""
    program = (
        "import sys; from resolver.facts.catalog import load; from resolver.lock import dumps, make_lock;"
        "from resolver.resolve import resolve; from tests.resolver.asking import ask; catalog = load();"
        f"sys.stdout.write(dumps(make_lock(resolve(catalog, ask(catalog, {FIVE!r}, day='2025-06-01')))))"
    )
    root = Path(__file__).parents[2]
    here = dumps(make_lock(_resolved(catalog, FIVE)))
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == here


def test_a_lock_is_for_people_too(text: str) -> None:
    assert text.startswith("# Written by `matrix resolve`")
    assert "\r" not in text
    assert text.endswith("\n")


def test_a_missing_lock_is_named_with_the_command_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"matrix\.lock") as failure:
        read_lock(tmp_path / "matrix.lock")
    assert "matrix resolve" in failure.value.hint
    assert failure.value.exit_code == 2


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("schema = 1", "schema = 2", "schema 2"),
        ("schema = 1", "schema = true", "schema"),
        ("schema = 1\n", "", "schema None"),
        ("schema = 1", "schema = 1\nsurprise = 1", "surprise"),
        ("[[pick]]", "[[pick]]\nsurprise = 1", "surprise"),
        ('origin = "build"', 'origin = "somewhere"', "somewhere"),
        ("declared = false", 'declared = "no"', "declared"),
        ("date = 2025-06-01", "date = 7", "date"),
        ("[target]", "[traget]", "traget"),
        ("[target]", "[target", "line"),
        ("[target]", "\0", "line"),
        pytest.param("schema = 1", "schema = " + "[" * 20_000, "Cannot read", id="deeply nested"),
        pytest.param("schema = 1", "schema = " + "9" * 5_000, "Cannot read", id="a very long number"),
    ],
)
def test_what_is_no_lock_is_refused_with_its_name_and_what_to_do(
    old: str, new: str, named: str, text: str, tmp_path: Path
) -> None:
    assert old in text
    path = tmp_path / "matrix.lock"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(LockError) as failure:
        read_lock(path)
    assert str(path) in failure.value.message
    assert named in failure.value.message
    assert len(failure.value.message) < 400
    assert "matrix resolve" in failure.value.hint


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.lock"
    binary.write_bytes(b"\x7fELF\xff\xfe")
    for path in (binary, tmp_path):
        with pytest.raises(LockError, match="Cannot read"):
            read_lock(path)


def test_an_empty_part_of_a_lock_is_left_out_of_the_file_and_comes_back_empty(tmp_path: Path) -> None:
    empty = msgspec.convert(
        {
            "schema": 1,
            "requirements": [],
            "order": [],
            "target": {"site": "local", "date": "2026-01-01", "backend": "cpu"},
            "pick": [],
        },
        Lock,
    )
    path = tmp_path / "matrix.lock"
    path.write_text(dumps(empty), encoding="utf-8")
    assert read_lock(path) == empty
