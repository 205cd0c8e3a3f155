"""Logs that people showed in public, retyped short: the cause and the remedy of each are those of its case.

``cases/NNN-NAME/log.txt`` is the log. ``expected.toml`` names the known failure that explains it and the kind
of the log (empty: not shown), and what the answer must and must not say.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from builders.diagnosis import looks_like_log, read

CASES = sorted(path.parent for path in Path(__file__).parent.glob("cases/*/log.txt"))


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_log_gets_its_cause_and_remedy(case: Path) -> None:
    expected = tomllib.loads((case / "expected.toml").read_text(encoding="utf-8"))
    with (case / "log.txt").open("rb") as source:
        reading = read(source)
    assert [finding.id for finding in reading.findings] == [expected["row"]]
    assert reading.kind == expected["kind"]
    (finding,) = reading.findings
    answer = f"{finding.message}\n{finding.evidence['cause']}\n{finding.fix}"
    assert [words for words in expected["says"] if words not in answer] == []
    assert [words for words in expected.get("never", ()) if words in answer] == []
    assert finding.evidence["source"]


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_log_is_known_as_a_log_by_its_content(case: Path) -> None:
    assert looks_like_log("upload.txt", (case / "log.txt").read_text(encoding="utf-8"))


def test_cases_are_there() -> None:
    assert len(CASES) >= 22
