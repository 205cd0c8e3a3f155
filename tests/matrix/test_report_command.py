"""``matrix report``: the content of the page, missing sections, and files to include."""

from __future__ import annotations

import json
import re
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builders.index import Index
from matrix.cli import main
from tests.support.tiny import tiny_wheel

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.usefixtures("libraries", "own_cache")

Capture = pytest.CaptureFixture[str]
ON_LUMI = ["--site", "lumi-g", "--date", "2026-06-01"]
REQUEST = 'site = "lumi-g"\ndate = 2026-06-01\n'
BUILT = "1.9.0+rocm6.4.torch2.9.1.gfx90a"


def data() -> dict[str, Any]:
    (embedded,) = re.findall(r'id="data">(.*?)</script>', Path("report.html").read_text())
    document: dict[str, Any] = json.loads(embedded)
    return document


def sections() -> list[str]:
    return re.findall(r'<h2 id="([^"]*)"', Path("report.html").read_text())


def test_report_without_lock_names_commands() -> None:
    Path("matrix.toml").write_text(f'requirements = ["apex", "torch==2.9.1"]\n{REQUEST}')
    assert main(["report"]) == 0
    assert sections() == ["compatibility", "absent"]
    assert "matrix resolve" in Path("report.html").read_text()


def test_report_of_lock_has_its_columns_and_graph(capsys: Capture) -> None:
    assert main(["resolve", "apex", "python==3.12", *ON_LUMI]) == 0
    wheel = tiny_wheel(Path("made"), "apex", BUILT, tags="cp312-cp312-linux_x86_64")
    Index("index").publish(wheel, {})
    assert main(["report"]) == 0
    assert [column["name"] for column in data()["table"]["columns"]] == ["apex"]
    assert {row[2] for row in data()["table"]["rows"]} == {"3.12"}
    table = data()["table"]
    built = {table["rows"][0][1] for cell in table["cells"] if cell["state"] == "built"}
    assert built == {"2.9.1+rocm6.4"}
    assert table["rows"][table["locked"]][1:3] == ["2.9.1+rocm6.4", "3.12"]
    assert "the row of the lock" in Path("report.html").read_text()
    assert {node["name"] for node in data()["graph"]["nodes"]} >= {"apex", "torch"}
    assert sections() == ["lock", "compatibility", "graph", "wheels"]
    assert "no audit on record" in Path("report.html").read_text()
    capsys.readouterr()


def test_lock_is_on_top_and_equal_pythons_are_one_row(capsys: Capture) -> None:
    assert main(["resolve", "apex", *ON_LUMI]) == 0
    printed = capsys.readouterr().out.strip()
    assert main(["report"]) == 0
    page = unescape(Path("report.html").read_text())
    assert printed in page
    assert page.index(printed) < page.index('id="compatibility"')
    table = data()["table"]
    locked = table["rows"][table["locked"]]
    assert locked[2] == "3.12"  # by itself: the page says which Python is locked
    assert any(" to 3." in row[2] for row in table["rows"])
    keys = [[group, torch, *cells] for group, torch, python, *cells in table["rows"]]
    equal = [one for one, other in pairwise(keys) if one == other]
    assert len(equal) <= 2  # beside the locked row only
    headings = [table["groups"][row[0]]["heading"] for row in table["rows"] if "+git" in row[1]]
    assert headings
    assert all("from a commit" in heading for heading in headings)


def test_table_without_rows_becomes_conflict() -> None:
    Path("matrix.toml").write_text(f'requirements = ["apex", "rocm==7.1.*"]\n{REQUEST}')
    assert main(["report"]) == 0
    assert sections() == ["conflict", "absent"]
