"""Learning from wheels on a server reads small parts of them where the format allows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.learning import measure


@pytest.mark.slow
def test_a_tenth_of_the_bytes_is_read_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    shares = {kind: total["percent"] for kind, total in measure(tmp_path, 100).items()}
    assert 0 < shares["no objects"] <= 10
    assert 0 < shares["stored objects"] <= 10
    assert shares["deflated objects"] > 50  # cannot be skipped
