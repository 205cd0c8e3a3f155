"""The cases in ``checks/``: each is a file with the expected findings next to it.

``NAME.expected`` contains the options of the command, a line ``LINE ID`` for each finding (with ``fixed`` if
``--fix`` corrects it), and after ``----`` the corrected file, if it differs.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from matrix.checking.document import RULES
from matrix.cli import main

HERE = Path(__file__).parent / "checks"
CASES = sorted(path for path in HERE.iterdir() if path.suffix != ".expected")
Capture = pytest.CaptureFixture[str]


def expected(case: Path) -> tuple[list[str], list[str], str]:
    """Return options, findings and the corrected text of a case."""
    head, _, fixed = case.with_name(f"{case.name}.expected").read_text(encoding="utf-8").partition("----\n")
    options, *findings = head.splitlines()
    return options.removeprefix("options: ").split(), findings, fixed or case.read_text(encoding="utf-8")


def summary_of(finding: dict[str, Any]) -> str:
    evidence = finding["evidence"]
    return f"{evidence['line']} {finding['id']}{' fixed' if evidence['fixable'] else ''}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_yields_expected_findings_and_file(case: Path, capsys: Capture) -> None:
    options, expected_findings, fixed = expected(case)
    copy = Path(shutil.copy(case, case.name))
    code = main(["check", str(copy), "--no-preflight", "--format", "json", *options])
    document = json.loads(capsys.readouterr().out)
    findings = document["findings"]
    assert [summary_of(finding) for finding in findings] == expected_findings
    assert code == any(finding["severity"] == "error" for finding in findings)
    assert all(finding["message"] and finding["evidence"]["text"] for finding in findings)
    assert copy.read_text(encoding="utf-8") == case.read_text(encoding="utf-8")

    main(["check", str(copy), "--no-preflight", "--format", "json", "--fix", *options])
    document = json.loads(capsys.readouterr().out)
    assert copy.read_text(encoding="utf-8") == fixed
    assert not [finding for finding in document["findings"] if finding["evidence"]["fixable"]]
    assert bool(document["diff"]) == (fixed != case.read_text(encoding="utf-8"))

    main(["check", str(copy), "--no-preflight", "--format", "json", "--fix", *options])
    assert json.loads(capsys.readouterr().out)["diff"] == ""
    assert copy.read_text(encoding="utf-8") == fixed


def test_check_rules_have_cases() -> None:
    seen = {line.split()[1] for case in CASES for line in expected(case)[1]}
    assert set(RULES) - seen == {
        "any-index",  # these need a lock or an index: test_check_command.py
        "missing-python",
        "newer-glibc",
        "not-the-lock",
        "other-python",
    }


def test_docs_table_matches_rules() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "checking.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (\w+) \| .+ \| .+ \|$", page, re.MULTILINE)
    assert rows == list(RULES.items())
