"""What was read of a lock is kept in the cache, and never makes an answer differ."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builders.storage.files import cache_root
from matrix.cli import main
from matrix.input import locking
from resolver import lock as lock_file
from resolver.errors import LockError
from resolver.lock import loads
from resolver.model import Resolution
from tests.support.strangers import everything

PATH = Path("matrix.lock")


@pytest.fixture(autouse=True)
def _lock(own_cache: None) -> None:  # noqa: ARG001
    """Write a lock, which is in no cache yet."""
    assert main(["resolve", "torch", "apex", "--site", "lumi-g", "--date", "2026-03-01", "-q"]) == 0


def kept() -> Path:
    (path,) = (cache_root() / "locks").glob("*.msgpack")
    return path


def reads_text(monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether a lock is read from its text, with the same result as without a cache."""
    texts: list[str] = []

    def counted(text: str, path: Path) -> Resolution:
        texts.append(text)
        return loads(text, path)

    monkeypatch.setattr(lock_file, "loads", counted)
    found = locking.read_lock(PATH)
    assert found == lock_file.read_lock(PATH)
    assert lock_file.dumps(found) == PATH.read_text()
    return len(texts) > 1


@pytest.mark.parametrize("has_every_field", [False, True])
def test_lock_is_read_from_its_text_only_once(
    monkeypatch: pytest.MonkeyPatch, *, has_every_field: bool
) -> None:
    if has_every_field:
        PATH.write_text(lock_file.dumps(everything(keeps_torch=False)))
    assert [reads_text(monkeypatch), reads_text(monkeypatch)] == [True, False]


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x93\xa1a\x90\xa1b", None])
def test_damaged_cache_is_made_again(monkeypatch: pytest.MonkeyPatch, damage: bytes | None) -> None:
    locking.read_lock(PATH)
    content = kept().read_bytes()
    kept().write_bytes(content[:-9] if damage is None else damage)
    assert [reads_text(monkeypatch), reads_text(monkeypatch)] == [True, False]
    assert kept().read_bytes() == content


def test_cache_of_other_code_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = tmp_path / "validate.py"
    code.touch()
    monkeypatch.setattr(lock_file, "CODE", [*lock_file.CODE[:-1], str(code)])
    locking.read_lock(PATH)
    os.utime(code, ns=(0, 0))
    assert [reads_text(monkeypatch), reads_text(monkeypatch)] == [True, False]


def test_changed_lock_is_refused_and_not_kept(capsys: pytest.CaptureFixture[str]) -> None:
    locking.read_lock(PATH)
    before = kept().read_bytes()
    PATH.write_text(PATH.read_text().replace('name = "apex"', 'name = "evil"', 1))
    for _ in range(2):
        assert main(["explain", "torch"]) == 2
        assert "does not match its digest" in capsys.readouterr().err
    assert kept().read_bytes() == before


def test_another_lock_at_the_path_is_another_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    locking.read_lock(PATH)
    assert main(["resolve", "torch", "deepspeed", "--site", "lumi-g", "--date", "2026-03-01", "-q"]) == 0
    assert reads_text(monkeypatch)
    assert locking.read_lock(PATH).pick("deepspeed")
    PATH.unlink()
    with pytest.raises(LockError, match="There is no lock file"):
        locking.read_lock(PATH)
