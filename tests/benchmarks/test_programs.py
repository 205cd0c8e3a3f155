"""A benchmark fails if a program that it times fails or gives a wrong answer."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from benchmarks import commands, programs, resolving

FOLDER = Path(programs.__file__).parent
STARTS_PROGRAMS = {"programs", "resolving"}
"""`resolving` reports the failure of one of several resolvers, after it has run the others."""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit(2)", "ended with exit code 2 instead of 0"),
        ("raise ValueError('a reason')", "a reason"),
        ("import os; os.kill(os.getpid(), 9)", "ended with exit code -9"),
        ("print('other')", "gave a wrong answer, without 'answer'"),
        ("import sys; print('answer', file=sys.stderr); sys.exit(3)", "ended with exit code 3"),
    ],
)
def test_program_that_fails_ends_the_benchmark(code: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=message):
        programs.run(python(code), contains=["answer"])
    with pytest.raises(SystemExit, match=message):
        programs.timed(python(code), tmp_path, contains=["answer"])


def test_right_answers_are_returned_and_timed(tmp_path: Path) -> None:
    answer = python("print('the answer'); raise SystemExit(1)")
    assert programs.run(answer, expected=1, contains=["answer"]) == "the answer\n"
    assert programs.timed(answer, tmp_path, expected=1, contains=["answer"]).wall > 0
    written = python("open('result', 'w').write('the answer')")
    assert programs.timed(written, tmp_path, contains=["answer"], result=tmp_path / "result").cpu > 0
    with pytest.raises(SystemExit, match="wrong answer"):
        programs.timed(written, tmp_path, contains=["other"], result=tmp_path / "result")


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_benchmarks_start_programs_with_the_shared_functions(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    imported = {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    } | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert ("subprocess" in imported) == (name in STARTS_PROGRAMS)


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_every_command_has_a_right_answer(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commands.ANSWERS.keys() == commands.COMMANDS.keys()
    monkeypatch.setitem(commands.COMMANDS, name, python("raise SystemExit(70)"))
    with pytest.raises(SystemExit, match="exit code 70"):
        commands.seconds(name, tmp_path)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("exit 2", "exit code 2"),
        ('echo "{}"', "unreadable answer"),
        ('echo "no JSON"', "unreadable answer"),
        ("""echo '{"picks": []}'""", "wrong"),
    ],
)
@pytest.mark.slow
def test_resolver_that_fails_or_is_wrong_fails_the_benchmark_after_the_others(
    answer: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake = tmp_path / "python"
    fake.write_text(
        f'#!/bin/sh\ncase "$*" in *"-m matrix"*) {answer};; *) exec {sys.executable} "$@";; esac\n'
    )
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    monkeypatch.setattr(
        sys, "argv", ["resolving", "--sizes", "12x12", "--only", "matrix resolve,nab-resolver"]
    )
    with pytest.raises(SystemExit, match=message) as ended:
        resolving.main()
    assert "matrix resolve, 12x12 satisfiable" in str(ended.value)
    assert "nab-resolver" not in str(ended.value)
    cases = json.loads(capsys.readouterr().out)["cases"]
    assert len(cases) == 3
    assert all("median" in case["groups"]["in process"]["nab-resolver"] for case in cases)
