"""The public API: its names, and the examples of its documentation page."""

from __future__ import annotations

import datetime
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import matrix
from builders.containers.engines import ApptainerRuntime
from builders.containers.image import LocalImage
from matrix.cli import main
from resolver.errors import (
    BuildError,
    CatalogError,
    CycleError,
    EnvironmentLacksError,
    MatrixError,
    NoVersionError,
    SourceError,
    UsageError,
)
from resolver.lock import encode
from resolver.texts import html_table

MPI4PY = """
schema = 1
[[recipe]]
package = "mpi4py"
backend = "cpu"
declared = ["{requirement}"]
status = "observed"
source = "tests"
"""
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"


def test_examples_on_the_api_page_run(tmp_path: Path, make_wheel: Callable[..., Path]) -> None:
    wheel = make_wheel()
    (tmp_path / "wheels").mkdir(exist_ok=True)
    wheel.rename(tmp_path / "wheels" / wheel.name)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 6
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
    assert (tmp_path / "matrix.lock").exists()


HINTS = """
import inspect, os, sys, typing, matrix, matrix.api, matrix.api_commands
for words in sys.argv[1:]:
    if os.fork():
        print(os.wait()[1], flush=True)
        continue
    for word in words.split():
        public = getattr(matrix, word)
        typing.get_type_hints(public)
        for name, member in vars(public).items() if inspect.isclass(public) else ():
            member = member.fget if isinstance(member, property) else member
            if inspect.isfunction(member) and not name.startswith("_"):
                typing.get_type_hints(member)
    sys.exit()
"""
"""Prints whether the type hints of the names in each argument are known, each in a process of its own."""
CLASSES = [name for name in matrix.__all__ if inspect.isclass(getattr(matrix, name))]
NAMES = [" ".join(CLASSES), *(name for name in matrix.__all__ if name not in CLASSES)]


@pytest.fixture(scope="module")
def hints() -> tuple[dict[str, str], str]:
    """Return the exit status of each process by names, and what they printed as errors."""
    done = subprocess.run([sys.executable, "-c", HINTS, *NAMES], capture_output=True, text=True, check=False)
    return dict(zip(NAMES, done.stdout.split(), strict=True)), done.stderr


@pytest.mark.parametrize("names", NAMES)
def test_type_hints_of_every_public_name_are_known(names: str, hints: tuple[dict[str, str], str]) -> None:
    """In a new process for each function, where no test or other function has imported the types."""
    found, errors = hints
    assert found[names] == "0", errors


def test_one_value_may_stand_for_a_list(tmp_path: Path) -> None:
    (tmp_path / "facts.toml").write_text("schema = 1\n")
    many = matrix.resolve(["apex"], gfx=["gfx90a"], date=datetime.date(2026, 3, 1), catalog=[tmp_path])
    assert isinstance(many, matrix.Resolution)
    assert matrix.resolve("apex", gfx="gfx90a", date="2026-03-01", catalog=tmp_path) == many
    assert matrix.resolve("apex", gfx="gfx90a", date="2026-03-01", catalog=str(tmp_path)) == many
    two = matrix.resolve("torch", gfx="gfx90a, gfx942", date="2026-03-01")
    assert two.target.gfx == ("gfx90a", "gfx942")
    with pytest.raises(UsageError, match="'soon' is not a valid date"):
        matrix.resolve("apex", date="soon")


def test_build_uses_the_executor_and_raises_the_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    resolution = matrix.resolve(["deepspeed", "torch==2.13.0"], backend="cpu")
    assert isinstance(resolution, matrix.Resolution)
    index = matrix.Index(tmp_path / "index")

    def build(*_: object, **__: object) -> Path:
        return tmp_path / f"built by {os.getppid()}.whl"  # the executor builds in a process of its own

    def fail(*_: object, **__: object) -> Path:
        msg = "It does not compile."
        raise BuildError(msg)

    monkeypatch.setattr("builders.scheduling.local.build_wheel", build)
    assert matrix.build(resolution, index) == [tmp_path / f"built by {os.getpid()}.whl"]
    monkeypatch.setattr("builders.scheduling.local.build_wheel", fail)
    with pytest.raises(BuildError, match="does not compile"):
        matrix.build(resolution, index)


@pytest.fixture
def wheels(make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with a wheel, which is the only package index."""
    directory = make_wheel().parent
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


@pytest.mark.parametrize(
    ("requirement", "facts", "error"),
    [
        ("apx", "", NoVersionError),
        ("torch", "schema = 1\n[[nothing]]\n", CatalogError),
        ("mpi4py", MPI4PY.format(requirement="mpi4py"), CycleError),
        ("tiny @ {wheels}/tiny-1.0-py3-none-any.whl#sha256=" + 64 * "0", "", SourceError),
    ],
)
def test_errors_of_resolve_are_documented(
    tmp_path: Path,
    wheels: Path,
    requirement: str,
    facts: str,
    error: type[MatrixError],
) -> None:
    (tmp_path / "facts.toml").write_text(facts or "schema = 1\n")
    with pytest.raises(error) as caught:
        matrix.resolve(
            [requirement.format(wheels=wheels.as_uri())], backend="cpu", catalog=[tmp_path / "facts.toml"]
        )
    assert type(caught.value) is error
    assert f"\n{error.__name__}\n" in (inspect.getdoc(matrix.resolve) or "")


def test_inspection_without_writable_cache_is_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "image" / "usr").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    monkeypatch.setattr("builders.containers.inspection.choose_runtime", runtime_of)
    with pytest.raises(EnvironmentLacksError, match=os.devnull):
        matrix.resolve(["torch"], base_image=str(tmp_path / "image"))
    assert "\nEnvironmentLacksError\n" in (inspect.getdoc(matrix.resolve) or "")


def runtime_of(_: object, image: LocalImage) -> ApptainerRuntime:
    """Choose Apptainer, whether or not it is installed."""
    return ApptainerRuntime(image)


def test_public_names_exist_and_are_documented() -> None:
    page = PAGE.read_text()
    assert 8 <= len(matrix.__all__) <= 14
    assert set(matrix.__all__) <= set(dir(matrix))  # for completion, and for Sphinx's autodoc
    for name in matrix.__all__:
        assert inspect.getdoc(getattr(matrix, name)), name
        assert re.search(rf"`{name}\b", page), name


@pytest.mark.parametrize("name", [name for name in matrix.__all__ if name.islower()])
def test_functions_have_signatures_with_types(name: str) -> None:
    signature = inspect.signature(getattr(matrix, name))
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(parameter.annotation is not parameter.empty for parameter in signature.parameters.values())


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'solve'"):
        matrix.solve  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"requirements": 1.5}, "requirements must be text, such as 'torch>=2.4', not 1.5."),
        (
            {"requirements": ["torch", None]},
            "Each of requirements must be text, such as 'torch>=2.4', not None.",
        ),
        (
            {"requirements": [b"torch"]},
            "Each of requirements must be text, such as 'torch>=2.4', not b'torch'.",
        ),
        ({"python": 3.12}, "python must be text, such as '3.12', not 3.12."),
        ({"rocm": 6.4}, "rocm must be text, such as '6.4.*', not 6.4."),
        ({"driver": 6}, "driver must be text, such as '6.3', not 6."),
        ({"gfx": [90]}, "Each of gfx must be text, such as 'gfx90a', not 90."),
        ({"catalog": 1}, "catalog must be text, such as 'facts.toml', not 1."),
        ({"site": 1}, "site must be text, such as 'lumi-g', not 1."),
        ({"date": datetime.datetime(2026, 3, 1)}, 'date must be a day, such as "2026-02-25"'),  # noqa: DTZ001
        ({"date": 20260301}, 'date must be a day, such as "2026-02-25"'),
        ({"pyhton": "3.12"}, "Unknown argument 'pyhton'. Did you mean python?"),
    ],
    ids=str,
)
def test_argument_of_another_type_is_an_error_that_says_what_to_write(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        matrix.resolve(**{"requirements": "torch", **arguments})


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"backend": "cuda"}, "backend cannot be 'cuda'.", "Known: rocm, cpu."),
        ({"backend": "ROCm"}, "backend cannot be 'ROCm'.", "Did you mean rocm?"),
        ({"prefer": "newst"}, "prefer cannot be 'newst'.", "Did you mean newest?"),
        ({"prefer": ["newest"]}, "prefer cannot be ['newest'].", "Known: advised, newest, proven, oldest."),
    ],
    ids=str,
)
def test_unknown_choice_is_an_error_that_says_what_to_write(
    arguments: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        matrix.resolve("torch", **arguments)
    assert caught.value.hint == hint


def test_pick_takes_any_spelling_of_a_name() -> None:
    answer = matrix.resolve("flash-attn", date="2026-06-01")
    assert isinstance(answer, matrix.Resolution)
    assert answer.pick("Flash_Attn") == answer.pick("flash-attn") is not None
    assert answer.pick("apex") is None


def test_files_may_be_paths(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"x\.toml, which is named as the site, does not exist"):
        matrix.resolve("torch", site=tmp_path / "x.toml")
    with pytest.raises(UsageError, match=r"x\.sif does not exist"):
        matrix.resolve("torch", base_image=tmp_path / "x.sif")


def test_error_of_the_system_is_an_error_of_matrix(tmp_path: Path) -> None:
    resolution = matrix.resolve("torch", backend="cpu")
    assert isinstance(resolution, matrix.Resolution)
    (tmp_path / "file").touch()
    with pytest.raises(MatrixError, match="file"):
        matrix.write_lock(resolution, tmp_path / "file" / "matrix.lock")
    with pytest.raises(MatrixError):
        matrix.check(tmp_path / "missing.txt")


def test_answers_are_those_of_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    day = ("--site", "lumi-g", "--date", "2026-02-01")
    freeze = tmp_path / "freeze.txt"
    freeze.write_text("torch==2.5.1+cu124\n")
    (tmp_path / "matrix.toml").write_text('site = "frontier"\n')  # the API reads no settings
    answers: dict[tuple[str, ...], Any] = {
        ("table", "apex", *day): matrix.table("apex", site="lumi-g", date="2026-02-01"),
        ("check", "freeze.txt", *day): matrix.check("freeze.txt", site="lumi-g", date="2026-02-01"),
    }
    resolution = matrix.resolve("apex", site="lumi-g", date="2026-02-01")
    assert isinstance(resolution, matrix.Resolution)
    matrix.write_lock(resolution)
    for what in ("apex", "apex==1.10.0", "verify-torch-cpu"):
        answers["explain", what] = matrix.explain(resolution, what)
    assert capsys.readouterr() == ("", "")
    for command, answer in answers.items():
        main([*command, "--format", "json"])
        printed = json.loads(capsys.readouterr().out)
        made = json.loads(msgspec.json.encode(answer, enc_hook=encode))
        assert made == (printed["things"][0] if command[0] == "check" else printed), command
        assert answer._repr_html_().startswith("<p>")
    conflict = matrix.table(["torch", "rocm==7.1.*"], site="lumi-g", date="2026-02-01")
    assert isinstance(conflict, matrix.Conflict)
    assert "<td>you asked for rocm==7.1.*</td>" in conflict._repr_html_()
    assert "<td>apex</td><td>1.9.0</td>" in resolution._repr_html_()


def test_text_in_html_is_escaped() -> None:
    html = "<p>&lt;b&gt;</p><table><tr><td>a&amp;b</td><td></td></tr></table>"
    assert html_table("<b>", [("a&b", "")]) == html
