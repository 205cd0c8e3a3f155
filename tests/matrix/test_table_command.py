"""``matrix table``: four formats with the same content, written row by row, and exit codes."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from matrix.cli import main
from matrix.show.render import Screen
from matrix.show.table_formats import to_csv, to_json, to_summary
from resolver.answers.table import Table, TableRow
from resolver.facts.catalog import Catalog, load
from resolver.model import SCHEMA
from resolver.versions import sort_key
from tests.resolver.solve_helpers import ask
from tests.support.commands import run, run_json

pytestmark = pytest.mark.usefixtures("libraries")

Capture = pytest.CaptureFixture[str]
COLUMNS = ["apex", "flash-attn", "bitsandbytes", "aiter"]
ON_LUMI = ["--site", "lumi-g", "--date", "2026-06-01"]
ASKED = ["table", *COLUMNS, "torch>=2.7", "python>=3.11", *ON_LUMI]


@pytest.fixture(autouse=True)
def _without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)


@pytest.fixture(scope="module")
def asked() -> dict[str, Any]:
    """Return the table of `ASKED` as JSON."""
    catalog = load()
    request = ask(catalog, " ".join([*COLUMNS, "torch>=2.7", "python>=3.11"]), day="2026-06-01")
    table = Table(catalog, request)
    document: dict[str, Any] = json.loads("".join(to_json(table, table.rows())))
    return document


def test_json_has_documented_keys(capsys: Capture, asked: dict[str, Any]) -> None:
    document = run_json(capsys, *ASKED, "--all")
    assert document["rows"] == asked["rows"]
    assert document["schema"] == SCHEMA
    assert (document["target"]["site"], document["target"]["gfx"]) == ("lumi-g", ["gfx90a"])
    assert document["columns"] == COLUMNS
    assert document["limits"] == ["torch>=2.7", "python>=3.11"]
    assert document["rows"]
    for row in document["rows"]:
        assert row.keys() == {"base_image", "rocm", "torch", "python", "verdict", "cells"}
        assert row["verdict"] in {"supported", "at-own-risk"}
        assert list(row["cells"]) == COLUMNS
        assert row["cells"]["aiter"] == {"refused": "gfx"}
        for cell in row["cells"].values():
            assert cell.keys() in ({"version", "variant", "origin", "support"}, {"refused"})
            assert all(isinstance(value, str) for value in cell.values())


def test_limits_select_rows(capsys: Capture) -> None:
    rows = run_json(capsys, "table", "--all", "apex", "torch>=2.8", "python==3.12", "rocm==6.4.*", *ON_LUMI)[
        "rows"
    ]
    assert {(row["python"], row["rocm"]) for row in rows} == {("3.12", "6.4.4")}
    assert {row["torch"].split("+")[0] for row in rows} >= {"2.8.0", "2.9.1"}
    assert not any(row["torch"].startswith("2.7") for row in rows)


def test_wheels_of_another_name_are_named(capsys: Capture) -> None:
    """The cells of cupy are what is compiled."""
    assert main(["table", "cupy", "--site", "lumi-g"]) == 0
    assert "takes them: cupy-rocm-7-0." in capsys.readouterr().err
    assert main(["table", "cupy", "cupy-rocm-7-0", "--site", "lumi-g"]) == 0
    assert "takes them" not in capsys.readouterr().err


@pytest.mark.slow
def test_cell_equals_resolve(capsys: Capture) -> None:
    rows = run_json(capsys, *ASKED, "--all")["rows"]
    for row in rows[:: len(rows) // 6]:
        for name in ("apex", "bitsandbytes"):
            line = [
                "resolve",
                name,
                f"torch==={row['torch']}",
                f"python=={row['python']}",
                *ON_LUMI,
                "--no-lock",
            ]
            if row["base_image"]:
                line += ["--base-image", row["base_image"]]
            cell = row["cells"][name]
            answer = run_json(capsys, *line, code="refused" in cell)
            if "refused" in cell:
                assert answer["status"] == "conflict"
            else:
                (pick,) = (row for row in answer["picks"] if row["name"] == name)
                assert {key: pick[key] for key in cell} == cell


def _of_csv(text: str) -> tuple[list[str], list[dict[str, str]]]:
    assert text.count("\r\n") == text.count("\n")
    reader = csv.DictReader(text.splitlines(), strict=True)
    rows = list(reader)
    return list(reader.fieldnames or ()), rows


def _key(cell: dict[str, str]) -> str:
    if "refused" in cell:
        return ""
    return f"{cell['version']} ({cell['variant']})" if cell["variant"] else cell["version"]


def test_csv_equals_json(capsys: Capture, asked: dict[str, Any]) -> None:
    header, rows = _of_csv(run(capsys, *ASKED, "--format", "csv"))
    assert header == ["base_image", "rocm", "torch", "python", "verdict", *COLUMNS]
    expected = [
        {key: value for key, value in row.items() if key != "cells"}
        | {name: _key(cell) for name, cell in row["cells"].items()}
        for row in asked["rows"]
    ]
    assert rows == expected


def page_data(text: str) -> dict[str, Any]:
    """Return the data that is embedded in a page."""
    (embedded,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    table: dict[str, Any] = json.loads(embedded)["table"]
    return table


def listed(pythons: str) -> list[str]:
    """Return the Pythons of a range."""
    first, _, last = pythons.partition(" to ")
    minors = range(int(first[2:]), int(last[2:]) + 1) if last else ()
    return [f"3.{number}" for number in minors] or pythons.split(", ")


def test_html_is_self_contained_and_equals_json(capsys: Capture, asked: dict[str, Any]) -> None:
    text = run(capsys, *ASKED, "--format", "html")
    assert text.isascii()
    assert not re.search(r"(src|data|action)=|<link|url\((?!#)|@import", text)
    assert "<title>Compatible versions: lumi-g on 2026-06-01</title>" in text
    table = page_data(text)
    assert [column["name"] for column in table["columns"]] == COLUMNS
    shown = set()
    for group, torch, pythons, *numbers in table["rows"]:
        cells = tuple(table["cells"][number]["text"] for number in numbers)
        images = table["groups"][group]["images"] or [""]
        shown |= {(image, torch, python, cells) for image in images for python in listed(pythons)}
    rows = asked["rows"]
    assert shown == {
        (
            row["base_image"],
            row["torch"],
            row["python"],
            tuple(_key(cell) or cell["refused"] for cell in row["cells"].values()),
        )
        for row in rows
    }


def test_html_cells_have_state_support_and_sources(capsys: Capture) -> None:
    table = page_data(run(capsys, *ASKED, "--format", "html"))
    states = {cell["state"] for cell in table["cells"]}
    assert states == {"buildable", "published", "impossible"}
    for cell in table["cells"]:
        if cell["state"] != "impossible":
            facts = [table["facts"][number] for number in cell["facts"]]
            assert cell["support"] in {status for _, status, _, _ in facts}
            assert all(text and source for text, _, source, _ in facts)


EVIL = """schema = 1
[[site]]
name = "hill"
title = "Hill"
backend = "rocm"
gfx = ["gfx90a"]
status = "documented"
source = "here"
[[image]]
name = "<img src=x onerror=alert(1)>&\\".sif"
rocm = "6.4.4"
os = "x"
glibc = "2.39"
status = "documented"
source = "here"
[[site-image]]
site = "hill"
image = "<img src=x onerror=alert(1)>&\\".sif"
status = "documented"
source = "here"
"""


@pytest.mark.parametrize("option", [[], ["--no-prebuilt"]])
def test_commands_of_page_have_options_of_request(capsys: Capture, option: list[str]) -> None:
    page = run(capsys, "table", "aiter", "torch==2.9.1", *ON_LUMI, *option, "--format", "html")
    assert page_data(page)["options"][-1:] == (option or ["gfx90a"])


def test_catalog_text_is_escaped(capsys: Capture) -> None:
    Path("evil.toml").write_text(EVIL)
    line = [
        "table",
        "apex",
        "torch==2.9.1",
        "--site",
        "evil.toml",
        "--date",
        "2026-06-01",
        "--python",
        "3.12",
    ]
    text = run(capsys, *line, "--format", "html")
    assert "<img" not in text
    assert '<img src=x onerror=alert(1)>&".sif' in page_data(text)["groups"][0]["images"]
    _, rows = _of_csv(run(capsys, *line, "--format", "csv"))
    assert rows[0]["base_image"] == '<img src=x onerror=alert(1)>&".sif'


def test_narrow_text_has_several_tables_of_the_same_rows(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = run(capsys, *ASKED, "--all")
    assert max(map(len, text.splitlines())) <= 80
    assert text.isascii()
    shown: dict[tuple[str, ...], str] = {}
    images: list[str] = []
    for block in text.split("\n\n")[1:]:
        lines = block.splitlines()
        if not lines[0].startswith("torch, python"):
            images = [line.strip() for line in lines if line.startswith("  ")]
            continue
        (_, *names), *rows = (re.split("  +", line) for line in lines)
        for row, *cells in rows:
            for name, cell in zip(names, cells, strict=True):
                shown |= {(image, *row.split(", "), name): cell for image in images}
    for row in asked["rows"]:
        for name in ("apex", "flash-attn", "bitsandbytes"):
            if row["base_image"]:
                cell = row["cells"][name]
                expected = _key(cell) or f"- {cell['refused'].split(', ')[0]}"
                assert shown[row["base_image"], row["torch"], row["python"], name] == expected
    assert not any(name == "aiter" for *_, name in shown)


@pytest.fixture(scope="module", params=["lumi-g", pytest.param("frontier", marks=pytest.mark.slow), "lumi-c"])
def whole(request: pytest.FixtureRequest) -> tuple[Table, list[TableRow]]:
    """Return the table of a site with three packages, and its rows."""
    catalog = load()
    table = Table(catalog, ask(catalog, "deepspeed mpi4py aiter", site=request.param, day="2026-06-01"))
    return table, list(table.rows())


@pytest.mark.parametrize("width", [60, 80, 300])
def test_summary_is_the_newest_torch_of_each_rocm(whole: tuple[Table, list[TableRow]], width: int) -> None:
    """Each column is a row of the whole table, for all Pythons that it names; no line is empty."""
    names = ["deepspeed", "mpi4py", "aiter"]
    text = "".join(to_summary(*whole, Screen(width)))
    assert max(map(len, text.splitlines())) <= max(width, 80)
    assert len(text.splitlines()) <= 50
    rows = json.loads("".join(to_json(*whole)))["rows"]
    columns: list[dict[str, str]] = []
    for block in text.split("\n\n")[1:]:
        lines = [re.split("  +", each) for each in block.splitlines()]
        assert all(set(each[1:]) != {"-"} for each in lines)
        columns += [
            dict(zip([each[0] for each in lines], cells, strict=True))
            for cells in zip(*[e[1:] for e in lines], strict=True)
        ]
    for column in columns:
        same = [row for row in rows if row["rocm"] == column.get("ROCm", "")]
        newest = max((row["torch"] for row in same), key=sort_key)
        assert column["torch"] == re.sub(r"\+rocm[\d.]+$", "", newest)
        first, _, last = column["python"].partition(" to ")
        pythons = [f"3.{n}" for n in range(int(first[2:]), int(last[2:]) + 1)] if last else first.split(", ")
        for python in pythons:
            assert any(
                all(column.get(name, "-") == _short(row["cells"][name]) for name in names)
                for row in same
                if (row["torch"], row["python"]) == (newest, python)
            )
    usable = [row for row in rows if row["base_image"] and row["verdict"] == "supported"]
    assert len(columns) == max(len({".".join(row["rocm"].split(".")[:2]) for row in usable}), 1)


def _short(cell: dict[str, Any]) -> str:
    return re.sub(r"\+rocm[\d.]+$", "", _key(cell)) or "-"


def test_text_is_coloured_on_terminal_only(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ["table", "apex", "cupy", "torch<2.9", "python==3.10", "--all", *ON_LUMI]
    plain = run(capsys, *line)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "400")
    assert run(capsys, *line) == plain
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = run(capsys, *line)
    assert "\033[2m- base-image\033[0m" in coloured
    assert "\033[33mROCm 6.0" in coloured
    for code in ("\033[1m", "\033[2m", "\033[33m", "\033[0m"):
        coloured = coloured.replace(code, "")
    assert coloured == plain


def test_own_risk_is_marked_in_every_format(capsys: Capture) -> None:
    line = ["table", "apex", "torch<2.4", "--python", "3.10", *ON_LUMI]
    assert "at-own-risk" in {row["verdict"] for row in run_json(capsys, *line, "--all")["rows"]}
    assert "ROCm 6.0, no base image works: published wheels only, at your own risk" in run(
        capsys, *line, "--all"
    )
    assert "own risk" in run(capsys, *line)
    assert any(group["risk"] for group in page_data(run(capsys, *line, "--format", "html"))["groups"])
    assert "at-own-risk" in {row["verdict"] for row in _of_csv(run(capsys, *line, "--format", "csv"))[1]}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["table", "csv", "json", "html"])
def test_output_is_deterministic(capsys: Capture, form: str) -> None:
    once = run(capsys, *ASKED, "--format", form)
    assert run(capsys, *ASKED, "--format", form) == once
    out = Path("table.out")
    assert run(capsys, *ASKED, "--format", form, "-o", str(out)) == ""
    assert out.read_bytes().decode() == once
    assert [path.name for path in Path().iterdir() if path.suffix == ".out"] == ["table.out"]


def test_interrupted_table_keeps_old_file(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Table.rows

    def failing(self: Table) -> Iterator[TableRow]:
        yield next(real(self))
        raise KeyboardInterrupt

    monkeypatch.setattr(Table, "rows", failing)
    Path("table.csv").write_text("as it was")
    assert main([*ASKED, "--format", "csv", "-o", "table.csv"]) == 130
    assert Path("table.csv").read_text() == "as it was"
    assert [path.name for path in Path().iterdir()] == ["table.csv"]
    capsys.readouterr()


def test_table_without_rows_is_conflict(capsys: Capture) -> None:
    document = run_json(capsys, "table", "--all", "apex", "rocm==7.1.*", *ON_LUMI, code=1)
    assert document["status"] == "conflict"
    assert any("rocm==7.1.*" in item["text"] for item in document["core"])
    image = ["--base-image", "lumi-rocm-rocm-6.2.4.sif"]
    document = run_json(capsys, "table", "--all", "apex", "torch==2.9.1", *image, *ON_LUMI, code=1)
    assert any("lumi-rocm-rocm-6.2.4.sif" in item["text"] for item in document["core"])


def test_request_file_gives_columns_and_limits(capsys: Capture) -> None:
    Path("matrix.toml").write_text(
        'requirements = ["apex", "torch==2.9.1"]\nsite = "lumi-g"\ndate = 2026-06-01\npython = "3.12"\n'
    )
    document = run_json(capsys, "table", "--all")
    assert document["columns"] == ["apex"]
    assert {(row["torch"][:5], row["python"]) for row in document["rows"]} == {("2.9.1", "3.12")}


def _renderers(table: Table) -> dict[str, Callable[[Iterator[TableRow]], Iterator[str]]]:
    return {
        "csv": lambda rows: to_csv(table, rows),
        "json": lambda rows: to_json(table, rows),
    }


@pytest.fixture(scope="module")
def small() -> tuple[Catalog, Table]:
    """Return a table of a few rows."""
    catalog = load()
    return catalog, Table(catalog, ask(catalog, "apex torch>=2.8 python==3.12", day="2026-06-01"))


@pytest.mark.parametrize("form", ["csv", "json"])
def test_rows_are_written_one_by_one(small: tuple[Catalog, Table], form: str) -> None:
    rows = list(small[1].rows())
    steps = 0

    def counted() -> Iterator[TableRow]:
        nonlocal steps
        for row in rows:
            steps += 1
            yield row

    written = ""
    for piece in _renderers(small[1])[form](counted()):
        written += piece
        if rows[0].cells["apex"].version in written and rows[0].torch in written:
            break
    assert steps == 1


@pytest.mark.slow
@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_closed_pipe_ends_quietly(form: str, tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    line = [sys.executable, "-m", "matrix", "table", *ON_LUMI, "-q", "--format", form]
    environment = {"PYTHONPATH": root, "XDG_CACHE_HOME": str(tmp_path), "PATH": ""}
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(20)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0
