"""The lock holds all of a resolution, comes back as it was written, and is refused when it is not one."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from resolver.errors import LockError
from resolver.facts.catalog import Catalog
from resolver.lock import Lock, dumps, make_lock, read_lock, request_of
from resolver.lockfile.migration import UnknownKeyError, from_schema_1
from resolver.model import Prefer, Resolution
from resolver.resolve import resolve
from tests.resolver.asking import ask
from tests.resolver.signing import edited, signed

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


def test_a_lock_holds_the_request_so_that_it_can_be_resolved_again(catalog: Catalog) -> None:
    for wanted, prefer in ((FIVE, "newest"), ("apex>=1.4 rocm==6.2.* python==3.12", "proven")):
        lock = make_lock(_resolved(catalog, wanted, prefer=prefer))  # type: ignore[arg-type]
        again = resolve(catalog, request_of(lock))
        assert isinstance(again, Resolution)
        assert dumps(make_lock(again)) == dumps(lock)


def test_the_whole_platform_is_in_the_target(catalog: Catalog) -> None:
    target = make_lock(_resolved(catalog, f"{FIVE} python==3.12", day="2026-03-01")).target
    assert (target.site, target.backend, target.gfx) == ("lumi-g", "rocm", ("gfx90a",))
    assert (target.rocm, target.glibc, target.python, target.python_abi) == ("6.4.4", "2.39", "3.12", "cp312")
    assert target.driver is not None
    assert (target.driver.version, str(target.driver.since)) == ("6.3", "2026-01-01")
    assert target.driver.until is None
    assert target.driver.package == "6.3.60300-2084815"
    assert "Update-202601" in target.driver.source
    assert target.base_image is not None
    row = catalog.image[target.base_image.name]
    assert target.base_image.path == row.path != ""


def test_the_hash_of_the_image_is_in_the_lock_where_one_is_known(catalog: Catalog) -> None:
    name = "lumi-rocm-rocm-6.0.3.sif"
    answer = resolve(catalog, ask(catalog, "torch apex", day="2025-06-01", base_image=name))
    assert isinstance(answer, Resolution)
    lock = make_lock(answer)
    assert lock.target.base_image is not None
    assert lock.target.base_image.dockerhash == "1ada3e019646"
    assert lock.request.base_image == name


def test_a_driver_that_the_request_named_has_no_window(catalog: Catalog) -> None:
    answer = resolve(catalog, ask(catalog, "torch", driver="6.4"))
    assert isinstance(answer, Resolution)
    lock = make_lock(answer)
    assert lock.target.driver is not None
    assert (lock.target.driver.version, lock.target.driver.since) == ("6.4", None)
    assert lock.request.driver == "6.4"


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
        "import sys; from resolver.facts.loading import load; from resolver.lock import dumps, make_lock;"
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
        ("schema = 2", "schema = 3", "newer matrix: schema 3"),
        ("schema = 2", "schema = 1", "schema 1 has no key"),
        ("schema = 2", "schema = true", "schema True"),
        ("schema = 2", "schema = 0", "schema 0"),
        ("schema = 2\n", "", "no schema"),
        ("schema = 2", "schema = 2\nsurprise = 1", "surprise"),
        ("[[pick]]", "[[pick]]\nsurprise = 1", "surprise"),
        ('origin = "build"', 'origin = "somewhere"', "somewhere"),
        ("declared = false", 'declared = "no"', "declared"),
        ("date = 2025-06-01", "date = 7", "date"),
        ("[target]", "[traget]", "traget"),
        ("[target]", "[target", "line"),
        ("[integrity]\n", "[target.integrity]\n", "integrity"),
        ('[integrity]\nsha256 = "', 'x = "', "field `x`"),
        ("[target]", "<<<<<<< HEAD\n[target]", "merge conflict"),
        pytest.param("schema = 2", "schema = " + "[" * 20_000, "cannot be read", id="deeply nested"),
        pytest.param("schema = 2", "schema = " + "9" * 5_000, "cannot be read", id="a very long number"),
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


def test_an_edit_by_hand_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "matrix.lock"
    for old, new in (
        ('version = "2.7.1+rocm6.2.4"', 'version = "2.7.0+rocm6.2.4"'),
        ("date = 2025-06-01", "date = 2025-06-02"),
        ("date = 2025-06-01", 'date = "2025-06-01"'),
    ):
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(LockError, match="does not match its own digest") as failure:
            read_lock(path)
        assert "matrix resolve" in failure.value.hint
        assert failure.value.exit_code == 2


def test_a_lock_that_was_cut_short_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "matrix.lock"
    path.write_text(text[: text.index("[integrity]")], encoding="utf-8")
    with pytest.raises(LockError, match="cut short"):
        read_lock(path)


def test_line_ends_a_byte_order_mark_and_comments_are_no_edit(text: str, tmp_path: Path) -> None:
    path = tmp_path / "matrix.lock"
    path.write_text(text, encoding="utf-8")
    lock = read_lock(path)
    for raw in (
        text.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + text.encode(),
        text.replace("[target]", "# ours\n\n[target]  # too").encode(),
        text.replace('gfx = [\n    "gfx90a",\n]', "gfx = ['gfx90a']").encode(),
    ):
        path.write_bytes(raw)
        assert read_lock(path) == lock


@pytest.mark.parametrize(
    ("where", "value", "named"),
    [
        ("target.python", "3.11", "the target has python 3.11"),
        ("target.python-abi", "cp310", "cp310"),
        ("target.rocm", "6.4.4", "the target has rocm 6.4.4"),
        ("target.base-image.name", "other.sif", "other.sif"),
        ("pick.-1.version", "newest", "the version 'newest' of torch cannot be read"),
        ("pick.-1.name", "Torch_", "'Torch_' is not normalised"),
        ("pick.-1.name", "apex", "apex was picked 2 times"),
        ("pick.-1.kind", "platform", "torch"),
        ("edge.0.subject", "apx", "an edge begins at 'apx'"),
        ("edge.0.object", "apx", "apx"),
        ("order.0.0", "apx", "the order names 'apx'"),
        ("order.2.0", "torch", "the order names torch 2 times"),
        ("order.2", ["flash-attn"], "the order lacks apex"),
        ("request.requirements.0", "torch=>2", "is not a valid requirement"),
        ("request.requirements.0", "numpy", "there is no pick 'numpy'"),
        ("pick.5.git.commit", None, "to be built and names no source"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused_even_with_a_right_digest(
    where: str, value: object, named: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "matrix.lock"
    path.write_text(signed(edited(text, where, value)), encoding="utf-8")
    with pytest.raises(LockError, match="does not hold together") as failure:
        read_lock(path)
    assert named in failure.value.message


RECORDED = Path(__file__).parent / "locks"


@pytest.mark.parametrize("name", ["schema-1-lumi-g.lock", "schema-1-cpu.lock"])
def test_a_recorded_lock_of_schema_1_is_read_and_that_is_said(name: str, tmp_path: Path) -> None:
    said: list[str] = []
    lock = read_lock(RECORDED / name, tell=said.append)
    assert len(said) == 1
    assert "schema 1" in said[0]
    assert "matrix resolve" in said[0]
    assert lock.schema == 2
    path = tmp_path / "now.lock"
    path.write_text(dumps(lock), encoding="utf-8")
    said.clear()
    assert read_lock(path, tell=said.append) == lock
    assert said == []


def test_what_schema_1_said_is_what_is_read(catalog: Catalog) -> None:
    lock = read_lock(RECORDED / "schema-1-lumi-g.lock")
    assert lock.requirements == (*FIVE.split(), "python==3.12.*")
    assert (lock.target.rocm, lock.target.python_abi) == ("6.2.4", "cp312")
    assert lock.target.base_image is not None
    assert lock.target.base_image.name == lock.version_of("base-image") == "lumi-rocm-rocm-6.2.4.sif"
    assert [pick.name for pick in lock.built()] == ["apex", "deepspeed", "flash-attn"]
    apex = lock.find("apex")
    assert apex is not None
    assert apex.git is not None
    assert apex.git.submodules
    assert request_of(lock).target == ask(catalog, "torch", day="2025-06-01").target


def test_the_migration_changes_nothing_that_it_was_given() -> None:
    data = tomllib.loads((RECORDED / "schema-1-cpu.lock").read_text(encoding="utf-8"))
    before = copy.deepcopy(data)
    assert from_schema_1(data)["schema"] == 2
    assert data == before
    with pytest.raises(UnknownKeyError, match="surprise"):
        from_schema_1({**data, "surprise": 1})


@pytest.mark.parametrize(
    ("content", "seems"),
    [
        ('version = 1\nrequires-python = ">=3.11"\n[[package]]\nname = "torch"\n', "a uv.lock"),
        ('[[package]]\nname = "a"\n[metadata]\nlock-version = "2.1"\n', "a poetry.lock"),
        ('[metadata]\nlock_version = "4.5.0"\n', "a pdm.lock"),
        ('lock-version = "1.0"\ncreated-by = "uv"\n[[packages]]\nname = "a"\n', "a pylock.toml"),
        ('version = 4\n[[package]]\nname = "serde"\n', "a Cargo.lock"),
        ('{"_meta": {"pipfile-spec": 6}, "default": {}}', "a Pipfile.lock"),
        ('{"schema": 1, "status": "resolved", "picks": []}', "--format json"),
        ('{"a": 1}', "JSON"),
        ("version: 6\nenvironments:\n  default:\n", "conda-lock or pixi"),
        ("name: x\ndependencies:\n  - pip\n", "a conda environment file"),
        ("# ours\ntorch==2.9.1\napex\n", "a requirements file"),
        ("<!DOCTYPE html><html></html>", "a web page"),
        ('[project]\nname = "x"\n', "a pyproject.toml"),
        ('schema = 1\n[[rocm]]\nversion = "6.2"\n', "a catalog file"),
        ('requirements = ["apex"]\nsite = "lumi-g"\n', "a request (matrix.toml)"),
    ],
)
def test_another_tools_file_is_named_for_what_it_seems_to_be(
    content: str, seems: str, tmp_path: Path
) -> None:
    path = tmp_path / "some.lock"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(LockError) as failure:
        read_lock(path)
    assert f"{path} is no lock of matrix: it seems to be" in failure.value.message
    assert seems in failure.value.message
    assert "--lock" in failure.value.hint


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "is empty"),
        (b" \r\n\n", "is empty"),
        (b"\x7fELF\0\1", "binary file"),
        (b"schema = 2\n# caf\xe9\n", ":2: not UTF-8"),
        ("schema = 2\n".encode("utf-16"), "UTF-16"),
        (b"#" * (17 * 2**20), "more than 16 MiB"),
    ],
)
def test_what_is_no_text_is_refused(content: bytes, named: str, tmp_path: Path) -> None:
    path = tmp_path / "some.lock"
    path.write_bytes(content)
    with pytest.raises(LockError) as failure:
        read_lock(path)
    assert named in failure.value.message
    assert str(path) in failure.value.message
    assert failure.value.hint


def test_what_is_no_file_is_refused_and_nothing_waits(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.lock"
    os.mkfifo(pipe)
    for path, named in ((tmp_path, "is a directory"), (pipe, "no regular file")):
        with pytest.raises(LockError, match=named):
            read_lock(path)


def test_an_empty_part_of_a_lock_is_left_out_of_the_file_and_comes_back_empty(tmp_path: Path) -> None:
    empty = msgspec.convert(
        {"schema": 2, "order": [], "target": {"site": "local", "date": "2026-01-01", "backend": "cpu"}},
        Lock,
    )
    path = tmp_path / "matrix.lock"
    path.write_text(dumps(empty), encoding="utf-8")
    assert "edge" not in path.read_text()
    assert read_lock(path) == empty
