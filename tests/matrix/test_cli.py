"""The command line as a whole: its commands, start-up and log file."""

from __future__ import annotations

import importlib
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import matrix
from builders.storage.files import cache_root
from matrix.cli import commands, main, make_parser


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)


Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]


def test_help_lists_every_command_with_a_summary(capsys: Capture) -> None:
    assert main_exits(["--help"]) == 0
    listing = capsys.readouterr().out
    assert len(commands()) >= 14
    for name in commands():
        assert listing.count(f"\n  {name} ") + listing.count(f"\n  {name}\n") == 1


def test_help_begins_with_the_way_of_a_user(capsys: Capture) -> None:
    assert main_exits(["--help"]) == 0
    listing = capsys.readouterr().out
    names = re.findall(r"(?m)^  ([a-z][a-z-]*)(?: |$)", listing.partition("from requirements")[2])
    used = ["build-layer", "build-container", "resolve", "check", "explain", "env", "build-wheels", "table"]
    assert [name for name in names if name in used] == used
    assert names.index("report") < names.index("farm") < names.index("catalog")
    assert len(names) <= 18


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["resolve"], "matrix.commands.resolve"),
        (["build-wheels"], "matrix.commands.build_wheels"),
        (["farm", "plan"], "matrix.farm.plan"),
    ],
)
def test_help_of_a_command_begins_with_its_most_used_options(
    words: list[str], name: str, capsys: Capture
) -> None:
    assert main_exits([*words, "--help"]) == 0
    text = capsys.readouterr().out
    module = importlib.import_module(name)
    first, rest = text.split("most used:")[1].split("\noptions:")
    shown = set(re.findall(r"(?m)^  (?:-\w \S+, )?(--[\w-]+)", first))
    assert shown == set(module.MOST_USED)
    assert not [option for option in shown if re.search(rf"(?m)^  (?:-\w \S+, )?{option}\b", rest)]


def test_program_alone_prints_its_help(capsys: Capture) -> None:
    assert main([]) == 0
    alone = capsys.readouterr().out
    assert main_exits(["--help"]) == 0
    assert capsys.readouterr().out == alone


@pytest.mark.parametrize(
    ("line", "same"),
    [
        (["help"], ["--help"]),
        (["help", "table"], ["table", "--help"]),
        (["help", "index", "list"], ["index", "list", "--help"]),
        (["-q", "help", "help"], ["--help"]),
    ],
)
def test_help_command(line: list[str], same: list[str], capsys: Capture) -> None:
    assert main_exits(line) == 0
    text = capsys.readouterr().out
    assert main_exits(same) == 0
    assert capsys.readouterr().out == text


def test_help_of_unknown_command_suggests_one(capsys: Capture) -> None:
    assert main(["help", "reslove"]) == 2
    assert capsys.readouterr().err == "error: Unknown command 'reslove'.\n  hint: Did you mean resolve?\n"


def options_of_a_new_command(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str]:
    """Return the verbosity and the colour mode that a command receives."""
    import matrix.commands

    (tmp_path / "hello.py").write_text(
        "SUMMARY = 'greet'\nEXAMPLE = 'matrix hello'\ndef add_arguments(parser): pass\n"
        "def execute(context):\n    global seen\n"
        "    seen = context.console.verbosity, context.console.color\n"
        "    return 0\n"
    )
    monkeypatch.setattr(matrix.commands, "__path__", [*matrix.commands.__path__, str(tmp_path)])
    assert main(line) == 0
    seen: tuple[int, str] = sys.modules.pop("matrix.commands.hello").seen
    return seen


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        (["hello"], (0, "auto")),
        (["-v", "hello"], (1, "auto")),
        (["hello", "-v"], (1, "auto")),
        (["--color", "never", "-q", "hello"], (-1, "never")),
        (["--color=always", "hello", "-vv"], (2, "always")),
        (["--color", "always", "hello", "--color", "never"], (0, "never")),
    ],
)
def test_global_options_before_and_after_the_command(
    line: list[str], seen: tuple[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert options_of_a_new_command(line, tmp_path, monkeypatch) == seen


@pytest.mark.parametrize(
    ("line", "is_coloured"),
    [(["--color", "always", "resolve", "--bad"], True), (["resolve", "--bad", "--color=never"], False)],
)
def test_color_applies_to_errors_of_the_command_line(
    line: list[str], is_coloured: bool, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(line) == 2
    assert ("\033[" in capsys.readouterr().err) == is_coloured


def main_exits(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


@pytest.mark.parametrize("name", commands())
def test_command_help_has_an_example_that_parses(name: str, capsys: Capture) -> None:
    assert main_exits([name, "--help"]) == 0
    examples = [line for line in capsys.readouterr().out.splitlines() if line.startswith("example: ")]
    assert len(examples) == 1
    line = examples[0].removeprefix("example: ").removeprefix('eval "$(').removesuffix(')"')
    program, *arguments = line.split(" -- ")[0].split()
    assert program == "matrix"
    assert arguments[0] == name


def test_new_command_module_needs_no_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matrix.commands

    (tmp_path / "hello_world.py").write_text(
        "SUMMARY = 'greet'\nEXAMPLE = 'matrix hello-world'\n"
        "def add_arguments(parser): pass\ndef execute(context): return 7\n"
    )
    monkeypatch.setattr(matrix.commands, "__path__", [*matrix.commands.__path__, str(tmp_path)])
    assert "hello-world" in commands()
    assert main(["hello-world"]) == 7


def test_commands_do_not_import_each_other() -> None:
    """Only those do whose steps are other commands."""
    for file in (ROOT / "matrix" / "commands").glob("*.py"):
        if file.stem not in {"check", "add", "remove"}:
            assert "matrix.commands" not in file.read_text().replace(f"matrix.commands.{file.stem}", ""), file


def test_rich_is_not_imported_without_text_that_needs_it() -> None:
    code = (
        "import sys; from matrix.cli import main\n"
        "for line in ['--help', 'resolve --help', 'catalog list --format json', 'resolve --bad']:\n"
        "    try: main(line.split())\n"
        "    except SystemExit: pass\n"
        "    assert 'rich' not in sys.modules, line"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version_imports_nothing_else(option: str) -> None:
    code = (
        f"import sys; sys.argv = ['matrix', '{option}']; from matrix.__main__ import main; main();"
        "assert not {'argparse', 'msgspec', 'pathlib'} & set(sys.modules) - before, set(sys.modules) - before"
    )
    code = f"import sys; before = set(sys.modules); {code}"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"matrix {matrix.__version__}\n"


@pytest.mark.parametrize(("option", "shown"), [([], False), (["-W", "default"], True)])
def test_warnings_of_libraries_are_shown_on_request(option: list[str], shown: bool) -> None:
    code = (
        "import sys, warnings; from matrix.__main__ import main; sys.argv[1:] = ['completion', 'fish'];"
        "main(); warnings.warn('skip __pycache__', RuntimeWarning)"
    )
    done = subprocess.run(
        [sys.executable, *option, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ("RuntimeWarning: skip __pycache__" in done.stderr) is shown


@pytest.mark.slow
def test_debug_writes_a_log_and_names_it_on_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["resolve", "apx", "--debug"]) == 2
    (log,) = (cache_root() / "logs").glob("matrix-*.log")
    assert f"Log: {log}" in capsys.readouterr().err
    assert "'apx'" in log.read_text()


def test_debug_log_has_the_traceback_of_an_internal_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("matrix.command_line.context.Context.resolve", broken)
    assert main(["resolve", "torch", "--debug"]) == 70
    assert "Traceback" not in capsys.readouterr().err
    (log,) = (cache_root() / "logs").glob("matrix-*.log")
    assert "ZeroDivisionError" in log.read_text()


def test_parser_for_one_command_imports_only_that_command() -> None:
    code = (
        "import sys; from matrix.cli import make_parser; make_parser('resolve');"
        "names = [name for name in sys.modules if name.startswith('matrix.commands.')]; print(names)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "['matrix.commands.resolve']\n"
    assert make_parser("resolve").prog == "matrix"


WRITING = {
    "resolve": ["torch"],
    "table": ["torch"],
    "env": ["--for", "pip"],
    "report": [],
    "catalog": ["site"],
    "farm": ["plan"],
    "check": ["file.txt", "--repair"],
}


def _writes(command: str) -> bool:
    parsers = [make_parser(command)]
    for parser in parsers:
        for action in parser._actions:
            if action.dest == "output":
                return True
            if isinstance(action.choices, dict):
                parsers += action.choices.values()
    return False


@pytest.mark.parametrize("command", sorted(name for name in commands() if _writes(name)))
def test_output_needs_an_existing_directory_in_every_command(command: str, capsys: Capture) -> None:
    words = [command, *WRITING[command]]
    assert main([*words, "-o", "missing/here/file.txt"]) == 2
    assert "The directory missing/here does not exist." in capsys.readouterr().err
    assert main([*words, "-o", "-"]) == 2
    assert "-o /dev/stdout" in capsys.readouterr().err
    assert not list(Path().iterdir())
