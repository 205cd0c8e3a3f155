"""matrix.lock: its content, reading it back, and rejected files."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path

import msgspec
import pytest
import tomli_w

from resolver.answers.resolve import resolve
from resolver.errors import LockError
from resolver.facts.catalog import Catalog
from resolver.lock import digest_of, dumps, read_lock
from resolver.model import Notice, Prefer, Request, Resolution, Target
from tests.resolver.solve_helpers import ask
from tests.support.strangers import everything

FIVE = "torch apex deepspeed flash-attn bitsandbytes"


def _resolved(
    catalog: Catalog, requirements: str, *, day: str = "2026-03-01", prefer: Prefer = "advised"
) -> Resolution:
    answer = resolve(catalog, ask(catalog, requirements, day=day, prefer=prefer))
    assert isinstance(answer, Resolution)
    return answer


@pytest.fixture
def text(catalog: Catalog) -> str:
    """Return the text of a lock."""
    return dumps(_resolved(catalog, FIVE))


@pytest.mark.parametrize(
    ("requirements", "day", "prefer"),
    [
        (FIVE, "2026-03-01", "newest"),
        (f"{FIVE} torchvision", "2026-03-01", "proven"),
        ("torch==2.3.1+rocm6.0", "2026-02-01", "newest"),
        ("apex>=1.7 python==3.12", "2026-03-01", "oldest"),
        ("rocm==6.2.4", "2026-03-01", "newest"),
    ],
)
def test_lock_reads_back_equal(
    requirements: str, day: str, prefer: Prefer, catalog: Catalog, tmp_path: Path
) -> None:
    lock = _resolved(catalog, requirements, day=day, prefer=prefer)
    path = tmp_path / "matrix.lock"
    path.write_text(dumps(lock), encoding="utf-8")
    assert read_lock(path) == lock
    assert dumps(read_lock(path)) == dumps(lock)


def test_request_in_lock_resolves_to_same_lock(catalog: Catalog) -> None:
    for requirements, prefer in ((FIVE, "newest"), ("apex>=1.4 rocm==6.2.* python==3.12", "proven")):
        lock = _resolved(catalog, requirements, prefer=prefer)  # type: ignore[arg-type]
        again = resolve(catalog, lock.request)
        assert isinstance(again, Resolution)
        assert dumps(again) == dumps(lock)


def test_target_has_the_whole_platform(catalog: Catalog) -> None:
    lock = _resolved(catalog, f"{FIVE} python==3.12", day="2026-03-01")
    target, window = lock.target, lock.driver_window
    assert (target.site, target.backend, target.gfx) == ("lumi-g", "rocm", ("gfx90a",))
    assert (target.rocm, target.glibc, target.python, target.driver) == ("6.4.4", "2.39", "3.12", "6.3")
    assert window is not None
    assert (str(window.since), window.until) == ("2026-01-01", None)
    assert window.package == "6.3.60300-2084815"
    assert "Update-202601" in window.source
    assert lock.image is not None
    assert lock.image.name == target.base_image
    assert lock.image.path == catalog.image[lock.image.name].path != ""


def test_known_image_hash_is_locked(catalog: Catalog) -> None:
    name = "lumi-rocm-rocm-6.0.3.sif"
    lock = resolve(catalog, ask(catalog, "torch apex", day="2026-03-01", base_image=name))
    assert isinstance(lock, Resolution)
    assert lock.image is not None
    assert lock.image.dockerhash == "1ada3e019646"
    assert lock.request.target.base_image == name


def test_requested_driver_has_no_window(catalog: Catalog) -> None:
    lock = resolve(catalog, ask(catalog, "torch", driver="6.4"))
    assert isinstance(lock, Resolution)
    assert (lock.target.driver, lock.driver_window) == ("6.4", None)
    assert lock.request.target.driver == "6.4"


def test_lock_has_every_pick_with_facts_and_source(catalog: Catalog) -> None:
    lock = _resolved(catalog, FIVE)
    data = tomllib.loads(dumps(lock))
    assert [row["name"] for row in data["picks"]] == [pick.name for pick in lock.picks]
    assert [len(row["facts"]) for row in data["picks"]] == [len(pick.facts) for pick in lock.picks]
    assert all(fact["source"] for row in data["picks"] for fact in row["facts"])
    assert len(data["edges"]) == len(lock.edges)
    assert data["order"] == [list(group) for group in lock.order]
    assert data["request"]["requirements"] == FIVE.split()
    assert (data["target"]["site"], data["target"]["date"]) == ("lumi-g", date(2026, 3, 1))
    for row in data["picks"]:
        sources = row.keys() & {"sdist", "git", "wheel"}
        extension = row["name"] in {"apex", "deepspeed", "flash-attn", "bitsandbytes"}
        assert len(sources) == extension, row["name"]


def test_label_is_pinned_for_built_wheels_only(catalog: Catalog) -> None:
    lock = _resolved(catalog, FIVE)
    pins = {pick.name: pick.pinned for pick in lock.picks}
    assert pins["apex"] == "1.9.0+rocm6.4.torch2.9.1.gfx90a"
    assert pins["bitsandbytes"] == lock.version_of("bitsandbytes") == "0.49.2"
    assert pins["torch"] == "2.9.1+rocm6.4"
    assert lock.version_of("transformer-engine") == ""
    assert lock.pick("transformer-engine") is None


def test_built_distributions_are_in_install_order(catalog: Catalog) -> None:
    lock = _resolved(catalog, FIVE)
    assert [pick.name for pick in lock.built()] == ["apex", "deepspeed", "flash-attn"]
    turned = msgspec.structs.replace(lock, order=(("flash-attn",), ("apex", "torch")), picks=lock.picks[::-1])
    assert [pick.name for pick in turned.built()] == ["flash-attn", "apex", "deepspeed"]


@pytest.mark.slow
def test_lock_bytes_are_the_same_in_every_process(catalog: Catalog) -> None:
    """Strings hash differently in every process. Three other processes must write the same bytes."""
    program = (
        "import sys; from resolver.facts.catalog import load; from resolver.lock import dumps;"
        "from resolver.answers.resolve import resolve; from tests.resolver.solve_helpers import ask;"
        "catalog = load();"
        f"sys.stdout.write(dumps(resolve(catalog, ask(catalog, {FIVE!r}, day='2026-03-01'))))"
    )
    root = Path(__file__).parents[2]
    here = dumps(_resolved(catalog, FIVE))
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == here


def test_lock_has_header_and_unix_line_endings(text: str) -> None:
    assert text.startswith("# Written by `matrix resolve`")
    assert "\r" not in text
    assert text.endswith("\n")


def test_lock_has_the_text_of_a_warning_with_its_id(catalog: Catalog, tmp_path: Path) -> None:
    lock = msgspec.structs.replace(
        _resolved(catalog, "apex"), warnings=(Notice("skipped", "a 2", "a 2 was skipped."),)
    )
    path = tmp_path / "matrix.lock"
    path.write_text(dumps(lock))
    assert tomllib.loads(path.read_text())["warnings"] == ["a 2 was skipped. [skipped]"]
    (read,) = read_lock(path).warnings
    assert (read, read.id, read.subject) == ("a 2 was skipped.", "skipped", "")
    assert (lock.warnings[0].id, lock.warnings[0].subject) == ("skipped", "a 2")


def test_missing_lock_names_matrix_resolve(tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"matrix\.lock") as failure:
        read_lock(tmp_path / "matrix.lock")
    assert "matrix resolve" in failure.value.hint
    assert failure.value.exit_code == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema = 1", "schema = 3", "unknown schema version 3"),
        ("schema = 1", "schema = true", "unknown schema version True"),
        ("schema = 1", "schema = 0", "unknown schema version 0"),
        ("schema = 1\n", "", "not a matrix lock"),
        ("schema = 1", "schema = 1\nsurprise = 1", "does not match its digest"),
        ("[[picks]]", "[[picks]]\nsurprise = 1", "does not match its digest"),
        ('origin = "build"', 'origin = "somewhere"', "does not match its digest"),
        ("[target]", "[traget]", "not a matrix lock"),
        ("[target]", "[target", "line"),
        ("[integrity]\n", "[target.integrity]\n", "[integrity]"),
        ('[integrity]\nsha256 = "', 'x = "', "has no digest"),
        ("[target]", "<<<<<<< HEAD\n[target]", "not valid TOML"),
        pytest.param("schema = 1", "schema = " + "[" * 20_000, "not valid TOML", id="deeply nested"),
        pytest.param("schema = 1", "schema = " + "9" * 5_000, "not valid TOML", id="a very long number"),
    ],
)
def test_invalid_lock_is_refused_with_hint(
    old: str, new: str, message: str, text: str, tmp_path: Path
) -> None:
    assert old in text
    path = tmp_path / "matrix.lock"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(LockError) as failure:
        read_lock(path)
    assert str(path) in failure.value.message
    assert message in failure.value.message
    assert len(failure.value.message) < 400
    assert "matrix resolve" in failure.value.hint


def test_edited_lock_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "matrix.lock"
    for old, new in (
        ('version = "2.9.1+rocm6.4"', 'version = "2.9.0+rocm6.4"'),
        ("date = 2026-03-01", "date = 2026-03-02"),
        ("date = 2026-03-01", 'date = "2026-03-01"'),
    ):
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(LockError, match="does not match its digest") as failure:
            read_lock(path)
        assert "matrix resolve" in failure.value.hint
        assert failure.value.exit_code == 2


def test_truncated_lock_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "matrix.lock"
    path.write_text(text[: text.index("[integrity]")], encoding="utf-8")
    with pytest.raises(LockError, match="cut short"):
        read_lock(path)


def test_line_endings_bom_and_comments_do_not_matter(text: str, tmp_path: Path) -> None:
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
    "content",
    [
        'version = 1\nrequires-python = ">=3.11"\n[[package]]\nname = "torch"\n',
        '[project]\nname = "x"\n',
        'schema = 1\n[[rocm]]\nversion = "6.2"\n',
        'requirements = ["apex"]\nsite = "lumi-g"\n',
        "torch==2.9.1\napex\n",
        '{"schema": 1, "status": "resolved", "picks": []}',
    ],
)
def test_file_of_another_tool_is_not_a_lock(content: str, tmp_path: Path) -> None:
    path = tmp_path / "some.lock"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(LockError) as failure:
        read_lock(path)
    assert f"{path} is not a matrix lock" in failure.value.message
    assert "matrix resolve" in failure.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \r\n\n", "is empty"),
        (b"\x7fELF\0\1", "binary file"),
        (b"schema = 1\n# caf\xe9\n", ":2: not UTF-8"),
        ("schema = 1\n".encode("utf-16"), "UTF-16"),
        (b"#" * (17 * 2**20), "larger than 16 MiB"),
    ],
)
def test_unreadable_text_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "some.lock"
    path.write_bytes(content)
    with pytest.raises(LockError) as failure:
        read_lock(path)
    assert message in failure.value.message
    assert str(path) in failure.value.message
    assert failure.value.hint


def test_directory_and_pipe_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.lock"
    os.mkfifo(pipe)
    for path, message in ((tmp_path, "is a directory"), (pipe, "not a regular file")):
        with pytest.raises(LockError, match=message):
            read_lock(path)


def test_empty_values_are_omitted_and_read_back(tmp_path: Path) -> None:
    target = Target(backend="cpu", site="local", date=date(2026, 1, 1))
    empty = Resolution(request=Request(target, ()), target=target)
    path = tmp_path / "matrix.lock"
    path.write_text(dumps(empty), encoding="utf-8")
    assert "edges" not in path.read_text()
    assert read_lock(path) == empty


@pytest.mark.parametrize(("value", "reason"), [(["torch"], "Expected a requirement"), ("to rch", "to rch")])
def test_lock_with_invalid_requirement_names_the_file(
    text: str, value: object, reason: str, tmp_path: Path
) -> None:
    data = tomllib.loads(text)
    del data["integrity"]
    data["request"]["requirements"][0] = value
    data["integrity"] = {"sha256": digest_of(data)}
    path = tmp_path / "matrix.lock"
    path.write_text(tomli_w.dumps(data), encoding="utf-8")
    with pytest.raises(LockError, match=f"matrix.lock is not a lock .*{reason}"):
        read_lock(path)


def test_variable_that_a_drafted_recipe_removes_stays_in_the_lock() -> None:
    picks = tomllib.loads(dumps(everything(keeps_torch=False)))["picks"]
    recipes = [pick.get("recipe", {}) for pick in picks]
    assert [recipe["environment"] for recipe in recipes if recipe] == [{"A": "1", "CC": ""}]
