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

from matrix.cli import main
from matrix.reading.conda_file import _BUILD_VARIABLE
from matrix.reading.requirements import RULES
from resolver.facts.catalog import load
from tests.support.tiny import tiny_index

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
    code = main(["check", str(copy), "--format", "json", *options])
    (document,) = json.loads(capsys.readouterr().out)["things"]
    findings = [finding for finding in document["findings"] if "line" in finding["evidence"]]
    assert [summary_of(finding) for finding in findings] == expected_findings
    assert code == 1 or not any(finding["severity"] == "error" for finding in findings)
    assert all(finding["message"] and finding["evidence"]["text"] for finding in findings)
    assert copy.read_text(encoding="utf-8") == case.read_text(encoding="utf-8")

    main(["check", str(copy), "--format", "json", "--fix", *options])
    (document,) = json.loads(capsys.readouterr().out)["things"]
    assert copy.read_text(encoding="utf-8") == fixed
    assert not [finding for finding in document["findings"] if finding["evidence"].get("fixable")]
    assert bool(document["diff"]) == (fixed != case.read_text(encoding="utf-8"))

    if document["diff"]:  # else this would be the same run again
        main(["check", str(copy), "--format", "json", "--fix", *options])
        assert json.loads(capsys.readouterr().out)["things"][0]["diff"] == ""
        assert copy.read_text(encoding="utf-8") == fixed


def test_check_rules_have_cases() -> None:
    seen = {line.split()[1] for case in CASES for line in expected(case)[1]}
    assert set(RULES) - seen == {
        "any-index",  # these need a lock or an index: test_check_command.py
        "cuda-image",  # a recipe or job: tests/field
        "missing-python",
        "newer-glibc",
        "not-the-lock",
        "other-python",
        "triton-index",  # a project: tests/field
    }


def test_docs_table_matches_rules() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "checking.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (\w+) \| .+ \| .+ \|$", page, re.MULTILINE)
    assert rows == list(RULES.items())


@pytest.mark.slow
def test_releases_that_the_catalog_excludes_do_not_fit_as_in_a_resolution(capsys: Capture) -> None:
    """The catalog knows what these wheels need: `check` has the verdict of `matrix resolve`."""
    catalog, verdicts = load(), set()
    names = {row.package for row in catalog.requires if not catalog.recipes_of(row.package)}
    releases = {
        name: [row.version for row in catalog.releases_of(name)]
        for name in sorted(name for name in names if catalog.package[name].system_rocm)
    }
    pairs = [(name, version) for name, rows in releases.items() for version in {*rows[:1], *rows[-1:]}]
    index = tiny_index(
        Path("own").absolute(), {n: [(v, []) for v in {*r[:1], *r[-1:]}] for n, r in releases.items()}
    )
    options = ["--site", "lumi-g", "--date", "2026-11-26", "--index-url", (index / "simple").as_uri()]
    for name, version in pairs[::3]:
        Path("a.txt").write_text(f"{name}=={version}\n")
        checked = main(["check", "a.txt", *options])
        resolved = main(["resolve", f"{name}=={version}", *options, "--no-lock"])
        assert (checked == 1) == (resolved == 1), (name, version, capsys.readouterr())
        verdicts.add(checked)
    assert verdicts > {1}


def test_variables_of_all_recipes_are_known_as_those_of_builds() -> None:
    variables = {name for row in load().recipe for name in row.environment}
    assert variables
    assert [name for name in sorted(variables) if not _BUILD_VARIABLE.match(name)] == []
