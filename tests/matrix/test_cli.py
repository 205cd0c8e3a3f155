"""The command line as a whole: its commands, start-up and log file."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import matrix
from builders.cache import cache_root
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
        assert f"    {name}" in listing


def main_exits(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


@pytest.mark.parametrize("name", commands())
def test_command_help_has_an_example_that_parses(name: str, capsys: Capture) -> None:
    assert main_exits([name, "--help"]) == 0
    examples = [line for line in capsys.readouterr().out.splitlines() if line.startswith("example: ")]
    assert len(examples) == 1
    program, *arguments = examples[0].removeprefix("example: ").split(" -- ")[0].split()
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
    for file in (ROOT / "matrix" / "commands").glob("*.py"):
        assert "matrix.commands" not in file.read_text().replace(f"matrix.commands.{file.stem}", ""), file


def test_version_imports_nothing_else() -> None:
    code = (
        "import sys; sys.argv = ['matrix', '--version']; from matrix.__main__ import main; main();"
        "assert not {'argparse', 'msgspec', 'pathlib'} & set(sys.modules) - before, set(sys.modules) - before"
    )
    code = f"import sys; before = set(sys.modules); {code}"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"matrix {matrix.__version__}\n"


@pytest.mark.slow
def test_debug_writes_a_log_and_names_it_on_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
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
    monkeypatch.setattr("matrix.context.Context.resolve", broken)
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
