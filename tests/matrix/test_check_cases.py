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
from msgspec.structs import replace

from matrix.cli import main
from matrix.judging.corrections import check
from matrix.judging.target import expect_request
from matrix.reading.conda_file import _BUILD_VARIABLE
from matrix.reading.requirements import RULES
from matrix.reading.requirements import read as read_requirements
from resolver.answers.resolve import resolve
from resolver.facts.catalog import load
from resolver.model import Conflict
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

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
def test_wheels_that_the_catalog_knows_fit_as_in_a_resolution() -> None:
    """The check reads no index; with one that has every file, `matrix resolve` refuses the same releases."""
    catalog = load()
    releases = {
        name: [row.version for row in catalog.releases_of(name)]
        for name in {row.package for row in catalog.requires}
        if not catalog.recipes_of(name) and catalog.package[name].system_rocm
    }
    releases = {name: versions[:2] + versions[-2:] for name, versions in releases.items() if versions}
    tags = [f"cp3{minor}-cp3{minor}-manylinux_2_17_x86_64" for minor in range(8, 16)]
    indexes = FakeIndexes(
        {
            name: {version: FakeRelease(wheels=tags) for version in versions}
            for name, versions in releases.items()
        }
    )
    refused = set()
    for name, versions in releases.items():
        for version in versions:
            request = ask(catalog, f"{name}=={version}", day="2026-11-26")
            target = expect_request(replace(request, requirements=()), catalog, "pip")
            found = check(read_requirements(f"{name}=={version}\n", "requirements.txt"), target)
            answer = resolve(catalog, request, indexes)
            does_not_fit = any(finding.id == "does-not-fit" for finding in found)
            assert does_not_fit == isinstance(answer, Conflict), (name, version)
            refused |= {does_not_fit}
    assert refused == {True, False}


def test_variables_of_all_recipes_are_known_as_those_of_builds() -> None:
    variables = {name for row in load().recipe for name in row.environment}
    assert variables
    assert [name for name in sorted(variables) if not _BUILD_VARIABLE.match(name)] == []
