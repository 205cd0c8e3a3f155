"""Text for a terminal: styles, wrapped lines and tables."""

from __future__ import annotations

import io
import re
from typing import TextIO

import pytest

from matrix.show.render import Cell, Screen, screen_of, uses_ascii

ROWS: list[list[Cell]] = [
    [
        "apex",
        "1.9.0",
        ("yellow", "build"),
        "requires torch 2.9.* and is compiled in /appl/local/images/x.sif",
    ],
    [("bold", "deepspeed"), "0.19.8", "build", "requires torch"],
]
HEAD = ["NAME", "VERSION", "FROM", "WHY"]
ESCAPES = re.compile(r"\033\[[\d;]*m")


class Terminal(io.StringIO):
    """Stand in for a terminal of unknown width."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize(
    ("environment", "color", "stream", "expected"),
    [
        ({}, "auto", Terminal(), True),
        ({}, "auto", io.StringIO(), False),
        ({}, "auto", None, False),
        ({"TERM": "dumb"}, "auto", Terminal(), False),
        ({"NO_COLOR": "1"}, "auto", Terminal(), False),
        ({"NO_COLOR": ""}, "auto", Terminal(), True),
        ({"FORCE_COLOR": "1"}, "auto", io.StringIO(), True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, "auto", Terminal(), False),
        ({"NO_COLOR": "1"}, "always", io.StringIO(), True),
        ({"FORCE_COLOR": "1"}, "never", Terminal(), False),
    ],
)
def test_colours_by_option_then_environment_then_terminal(
    environment: dict[str, str],
    color: str,
    stream: TextIO | None,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert screen_of(stream, color).has_colour == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("columns", "stream", "width"),
    [
        ("", io.StringIO(), None),
        ("", Terminal(), 80),
        ("100", io.StringIO(), 100),
        ("20", Terminal(), 60),
        ("wide", io.StringIO(), None),
        ("0", io.StringIO(), None),
    ],
)
def test_width(columns: str, stream: TextIO, width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert screen_of(stream).width == width


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"LANG": "C"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),
        ({"LC_ALL": "POSIX", "LANG": "en_GB.UTF-8"}, True),
        ({"LANG": "C", "LC_ALL": "C.UTF-8"}, False),
    ],
)
def test_locale_c_gets_ascii(
    environment: dict[str, str],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert uses_ascii(io.StringIO(), "├──") == expected
    assert not uses_ascii(io.StringIO(), "|--")


def test_stream_in_ascii_gets_ascii() -> None:
    assert uses_ascii(io.TextIOWrapper(io.BytesIO(), encoding="ascii"), "├──")


def test_table_without_width_is_one_line_for_each_row() -> None:
    lines = Screen().table(ROWS, HEAD).splitlines()
    assert lines[0] == "  NAME       VERSION  FROM   WHY"
    assert lines[1].endswith("build  requires torch 2.9.* and is compiled in /appl/local/images/x.sif")
    assert len(lines) == 3


@pytest.mark.parametrize("width", [60, 80, 120])
def test_table_fits_and_breaks_no_word(width: int) -> None:
    text = Screen(width).table(ROWS, HEAD)
    assert max(map(len, text.splitlines())) <= width
    assert "/appl/local/images/x.sif" in text
    assert sorted(text.split()) == sorted(Screen().table(ROWS, HEAD).split())


def test_last_column_moves_below_rows_without_room_for_it() -> None:
    rows: list[list[Cell]] = [
        ["apex", "1.9.0+rocm6.4.torch2.9.1.gfx90a", "build", "requires torch 2.9.*"],
        ["x", "1", "y", ""],
    ]
    assert Screen(60).table(rows, ["NAME", "VERSION", "FROM", "WHY"], indent="").splitlines() == [
        "NAME  VERSION                          FROM",
        "apex  1.9.0+rocm6.4.torch2.9.1.gfx90a  build",
        "    requires torch 2.9.*",
        "x     1                                y",
    ]


def test_rows_that_are_too_wide_become_paragraphs() -> None:
    rows: list[list[Cell]] = [["apex", "a" * 70, "x y"], ["torch", "b", "z"]]
    assert Screen(60).table(rows, ["NAME", "FILE", "WHY"], indent="").splitlines() == [
        "NAME  apex",
        f"FILE  {'a' * 70}",
        "WHY   x y",
        "",
        "NAME  torch",
        "FILE  b",
        "WHY   z",
    ]


@pytest.mark.parametrize("head", [HEAD, []])
@pytest.mark.parametrize("width", [None, 20, 60, 80])
def test_colours_change_no_character(width: int | None, head: list[str]) -> None:
    rows: list[list[Cell]] = [*ROWS, ["日本語", "", "", "in 5 min: pip install x"]]
    coloured = Screen(width, has_colour=True).table(rows, head)
    assert "\033[33mbuild\033[0m" in coloured
    assert ESCAPES.sub("", coloured) == Screen(width).table(rows, head)


def test_markup_of_rich_is_ordinary_text() -> None:
    assert Screen().table([["[bold]x[/bold]", ":smile:"]], indent="") == "[bold]x[/bold]  :smile:"


@pytest.mark.parametrize("width", [60, 80])
def test_long_lines_are_wrapped_between_words(width: int) -> None:
    url = "https://download.pytorch.org/whl/rocm6.4/torch-2.9.1%2Brocm6.4-cp312-cp312-linux_x86_64.whl"
    text = f"  - {'one two three four ' * 5}five\n  - {url} end\nshort"
    lines = Screen(width).wrapped(text).splitlines()
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())
    assert all(len(line) <= width or line.strip(" -") == url for line in lines)
    assert lines[1].startswith("    ")
    assert lines[-1] == "short"


def test_hanging_indentation_is_for_continuation_lines() -> None:
    assert Screen(14).wrapped("one two three\n  - four five six", hanging=4).splitlines() == [
        "one two",
        "    three",
        "  - four",
        "        five",
        "        six",
    ]


def test_commands_stay_on_one_line() -> None:
    quoted = "`matrix resolve torch --site lumi-g --python 3.12`"
    command = "matrix resolve torch --site lumi-g --python 3.12 --date 2026-06-01 --driver 6.3 --no-lock"
    lines = (
        Screen(60)
        .wrapped(f"To choose another version, run {quoted} here.\nTo see it: {command}")
        .splitlines()
    )
    assert any(quoted in line for line in lines)
    assert command in lines


@pytest.mark.parametrize("start", ["error", "warning", "hint"])
def test_message_that_begins_with_a_program_is_no_command(start: str) -> None:
    lines = Screen(40).wrapped(f"{start}: pip runs in the container, which cannot see it.").splitlines()
    assert lines[0].startswith(f"{start}: pip runs")
    assert all(len(line) <= 40 for line in lines)


def test_wrapped_line_keeps_its_style() -> None:
    screen = Screen(60, has_colour=True)
    text = f"{screen.styled('bold red', 'error:')} " + "word " * 20
    wrapped = screen.wrapped(text)
    assert wrapped.startswith("\033[1;31merror:\033[0m word")
    assert max(len(ESCAPES.sub("", line)) for line in wrapped.splitlines()) <= 60


def test_text_without_width_is_unchanged() -> None:
    text = "word " * 100 + "\n\n  x\n"
    assert Screen().wrapped(text) == text
