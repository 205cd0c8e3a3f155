"""Requirements from the command line, ``matrix.toml`` and files."""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.index_client import IndexClient
from matrix.cli import main
from matrix.command_line.options import add_input_options, add_names
from matrix.input.inputs import Inputs, read_inputs
from matrix.input.settings import Settings, merge, options_of
from matrix.input.settings import read_file as read_settings_file
from resolver.errors import UsageError
from resolver.indexes import File
from resolver.lock import dumps, read_lock
from resolver.model import Request, Requirement, Resolution, Target
from resolver.requirements import parse_requirement

PROJECT = """
[project]
name = "My.Library"
version = "1.2"
requires-python = ">=3.10"
dependencies = ["torch>=2.4", "numpy ; python_version < '3.13'"]
[project.optional-dependencies]
Fast = ["apex"]
all = ["my-library[fast]", "my_library[gpu] ; sys_platform == 'linux'"]
gpu = ["flash-attn", "my-library[all]"]
[dependency-groups]
dev = ["mypy", {include-group = "lint"}]
lint = ["ruff"]
"""


def write(name: str, text: str) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


def texts(requirements: Sequence[Requirement]) -> list[str]:
    return [requirement.text for requirement in requirements]


def read_file(text: str) -> Inputs:
    return read_inputs(Settings(requirement_files=[write("r.txt", text)]))


def error_of(settings: Settings) -> str:
    with pytest.raises(UsageError) as caught:
        read_inputs(settings)
    return f"{caught.value.message} {caught.value.hint}"


def error_of_file(text: str) -> str:
    return error_of(Settings(requirement_files=[write("r.txt", text)]))


# Requirements files


def test_lines_keep_order_markers_and_extras() -> None:
    inputs = read_file(
        "# comment\n\ntorch>=2.4  # why\nuvicorn[standard]>=0.3 ; python_version >= '3.9'\ntorch<3\ntorch<3\n"
    )
    assert texts(inputs.requirements) == [
        "torch>=2.4",
        "uvicorn[standard]>=0.3 ; python_version >= '3.9'",
        "torch<3",
    ]
    assert inputs.requirements[1].extras == ("standard",)
    assert inputs.requirements[1].marker
    assert inputs.warnings == []


def test_command_line_comes_before_files() -> None:
    files = [write("a.txt", "apex\n"), write("b.txt", "torch\n")]
    inputs = read_inputs(Settings(requirements=["deepspeed"], requirement_files=files))
    assert texts(inputs.requirements) == ["deepspeed", "apex", "torch"]


def test_nested_files_are_relative_to_the_file() -> None:
    write("requirements/base.txt", "numpy\n")
    write("limits.txt", "torch<3\n")
    write("requirements/dev.txt", "-r base.txt\n-c ../limits.txt\npytest\n")
    inputs = read_inputs(Settings(requirement_files=["requirements/dev.txt"]))
    assert texts(inputs.requirements) == ["numpy", "pytest"]
    assert texts(inputs.constraints) == ["torch<3"]


def test_constraints_and_overrides_are_lists_of_their_own() -> None:
    settings = Settings(
        requirements=["apex"],
        constraints=["torch<3"],
        constraint_files=[write("c.txt", "numpy<2\n")],
        overrides=["triton==3.2"],
        override_files=[write("o.txt", "pillow>=10\n")],
    )
    inputs = read_inputs(settings)
    assert texts(inputs.constraints) == ["torch<3", "numpy<2"]
    assert texts(inputs.overrides) == ["triton==3.2", "pillow>=10"]


def test_index_options_in_files_are_used() -> None:
    inputs = read_file("-i https://a.example/simple\n--extra-index-url https://b.example/simple\ntorch\n")
    assert (inputs.index_url, inputs.extra_index_urls) == (
        "https://a.example/simple",
        ["https://b.example/simple"],
    )


def test_index_option_takes_precedence_over_files() -> None:
    settings = Settings(
        requirement_files=[write("r.txt", "-i https://a.example/simple\ntorch\n")],
        index_url="https://c.example/simple",
    )
    assert read_inputs(settings).index_url == "https://c.example/simple"


@pytest.mark.parametrize(
    "line",
    ["--pre", "--only-binary :all:", "--require-hashes", "apex --config-settings a=b"],
)
def test_ignored_option_gives_a_warning(line: str) -> None:
    (warning,) = read_file(f"torch\n{line}\n").warnings
    flag = next(word for word in line.split() if word.startswith("--"))
    assert warning.startswith(f"r.txt:2: matrix ignores {flag}.")


def test_paths_of_indexes_and_links_are_relative_to_the_file(tmp_path: Path) -> None:
    write("requirements/wheels/a-1-py3-none-any.whl", "")
    write("index/simple/index.html", "")
    text = "--no-index\n-f wheels\n--extra-index-url index/simple\n-f https://a.example/links\ntorch\n"
    inputs = read_inputs(Settings(requirement_files=[write("requirements/r.txt", text)]))
    root = tmp_path.as_uri()
    assert inputs.extra_index_urls == [f"{root}/index/simple"]
    assert inputs.find_links == [f"{root}/requirements/wheels", "https://a.example/links"]
    assert inputs.package_sources().indexes == ()
    assert inputs.package_sources().find_links[:2] == tuple(inputs.find_links)


def test_package_sources_begin_with_the_index_of_the_inputs() -> None:
    inputs = read_file("-i https://a.example/simple\n--extra-index-url https://b.example/simple\ntorch\n")
    indexes = inputs.package_sources().indexes
    assert (indexes[0], indexes[-1]) == ("https://a.example/simple", "https://b.example/simple")


def test_hashes_are_read() -> None:
    lines = ["torch==2.9.1 --hash=sha256:00", "Apex==1.0 \\", "--hash=sha256:1A --hash=sha512:22"]
    inputs = read_file("\n".join([*lines, "torch --hash=sha256:33", ""]))
    assert inputs.hashes == {
        "torch": ("r.txt:1", {"00", "33"}),
        "apex": ("r.txt:2", {"1a"}),
    }
    assert not inputs.warnings


def test_hash_that_no_index_states_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"r.txt:1: the line has no SHA-256"):
        read_file("torch==2.9.1 --hash=sha512:00\n")


def test_variable_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHEELS", "https://a.example")
    assert read_file("-i ${WHEELS}/simple\ntorch\n").index_url == "https://a.example/simple"


def test_index_with_unset_variable_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHEELS", raising=False)
    inputs = read_file("--extra-index-url ${WHEELS}\ntorch\n")
    assert inputs.extra_index_urls == []
    assert "WHEELS is not set" in inputs.warnings[0]
    assert "r.txt:1: the variable WHEELS is not set" in error_of_file("torch @ ${WHEELS}/a.whl\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torch=2.9.1", "torch==2.9.1"),
        ("torch==", "Invalid requirement"),
        ("pip install torch", "command"),
        ("--no-build-isolation", "command line only"),
        ("torch --index-url https://a.example", "ignores --index-url"),
        ("--index-url", "requires"),
        ("--index-url nowhere", "not the URL of a package index"),
        ("torch ; python_version", "Invalid requirement"),
        ("-r missing.txt", "missing.txt does not exist"),
        ("-r https://a.example/r.txt", "Download"),
        ("-r env.yml", "--env"),
        ("-r .", "is a directory"),
        ("./missing", "does not exist"),
        ("torch@2.9.1", "NAME==VERSION"),
        ("torch @ ftp://a.example/x.whl", "not a URL that matrix can use"),
        ("https://a.example/archive", "NAME @ https://a.example/archive"),
        ("other @ https://a.example/torch-2.0-py3-none-any.whl", "is torch, not other"),
        ("torch @ https://me:secret@a.example/torch-2.0-py3-none-any.whl", "netrc"),
        ("torch @ https://a.example/torch.whl", "wheel"),
        ("-e git+git@host:a/b.git", "git+ssh"),
        ("torch @ https://[::1", "not a valid URL"),
        ("a ; " + "(" * 5000, "Invalid requirement"),
    ],
)
def test_error_names_file_and_line(line: str, expected: str) -> None:
    message = error_of_file(f"numpy\n{line}\n")
    assert message.startswith("r.txt:2: ")
    assert expected in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("requirements.txt", "-r"),
        ("requirements/base.txt", "-r"),
        ("fine-tuning.in", "-r"),
        ("env.yml", "--env"),
        ("./environment.yaml", "--env"),
        ("pyproject.toml", "--project"),
    ],
)
def test_file_without_its_option_is_an_error(name: str, option: str) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).touch()
    with pytest.raises(UsageError) as caught:
        read_inputs(Settings(requirements=["torch", name]))
    assert caught.value.hint == f"Write {option} {name}"


def test_name_of_a_project_may_look_like_that_of_a_missing_file() -> None:
    assert texts(read_inputs(Settings(requirements=["ruamel.yaml"])).requirements) == ["ruamel.yaml"]
    assert "-r missing.txt" in error_of(Settings(requirements=["missing.txt"]))


def test_url_of_a_requirements_file_is_an_error() -> None:
    assert "Download" in error_of(Settings(requirement_files=["https://a.example/r.txt"]))


def test_constraint_with_extras_is_an_error() -> None:
    settings = Settings(requirements=["apex"], constraint_files=[write("c.txt", "a[b]<2\n")])
    assert "extras" in error_of(settings)


@pytest.mark.parametrize("content", [b"torch\0", b"\xff\xfet\0", b"\xe9\n", b""])
def test_file_that_is_not_text_is_an_error(content: bytes) -> None:
    Path("r.txt").write_bytes(content)
    assert "r.txt" in error_of(Settings(requirement_files=["r.txt"]))


def test_huge_file_is_an_error() -> None:
    with Path("r.txt").open("wb") as file:
        file.truncate(2**30)
    assert "larger than" in error_of(Settings(requirement_files=["r.txt"]))


@pytest.mark.parametrize(
    "text", ["a\n" * 10**6, "a " + "--hash=x " * 10**5, "a --global-option=" + "y z" * 10**6]
)
def test_absurdly_long_files_and_lines_are_an_error(text: str) -> None:
    assert "more than" in error_of_file(text)


def test_cycle_of_files_is_an_error() -> None:
    write("a.txt", "-r b.txt\n")
    write("b.txt", "torch\n-r ./a.txt\n")
    message = error_of(Settings(requirement_files=["a.txt"]))
    assert message.startswith("b.txt:2: ")
    assert "a.txt -> b.txt -> a.txt" in message


def test_file_that_is_included_exponentially_often_is_read_once() -> None:
    for number in range(40):
        write(f"{number}.txt", f"-r {number + 1}.txt\n-r {number + 1}.txt\n")
    write("40.txt", "torch\n")
    assert texts(read_inputs(Settings(requirement_files=["0.txt"])).requirements) == ["torch"]


def test_deeply_nested_files_are_an_error() -> None:
    for number in range(2000):
        write(f"{number}.txt", f"-r {number + 1}.txt\n")
    assert "nested" in error_of(Settings(requirement_files=["0.txt"]))


# Paths and URLs


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "https://a.example/torch-2.0-py3-none-any.whl",
            "torch @ https://a.example/torch-2.0-py3-none-any.whl",
        ),
        ("https://a.example/apex-1.0.tar.gz", "apex @ https://a.example/apex-1.0.tar.gz"),
        ("apex@git+https://a.example/apex@v1", "apex @ git+https://a.example/apex@v1"),
        ("-e git+https://a.example/x.git@v1#egg=apex", "apex @ git+https://a.example/x.git@v1"),
        (
            "git+ssh://git@a.example/x#egg=apex[fast]&subdirectory=py ; python_version > '3'",
            "apex[fast] @ git+ssh://git@a.example/x#subdirectory=py ; python_version > '3'",
        ),
        ("apex @ git+file:///srv/apex", "apex @ git+file:///srv/apex"),
    ],
)
def test_url_becomes_a_direct_reference(line: str, expected: str) -> None:
    assert texts(read_file(line).requirements) == [expected]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("./lib", "my-library @ {root}/lib"),
        ("-e ./lib[fast]", "my-library[fast] @ {root}/lib"),
        ("-e lib", "my-library @ {root}/lib"),
        ("./lib ; python_version > '3'", "my-library @ {root}/lib ; python_version > '3'"),
        ("My.Library @ {root}/lib", "My.Library @ {root}/lib"),
        ("My.Library @ ./lib", "My.Library @ {root}/lib"),
        ("./a b/apex-1.0-py3-none-any.whl", "apex @ {root}/a%20b/apex-1.0-py3-none-any.whl"),
        ("wheels/apex-1.0.tar.gz", "apex @ {root}/wheels/apex-1.0.tar.gz"),
    ],
)
def test_path_becomes_a_file_url(line: str, text: str, tmp_path: Path) -> None:
    write("lib/pyproject.toml", PROJECT)
    write("a b/apex-1.0-py3-none-any.whl", "")
    write("wheels/apex-1.0.tar.gz", "")
    root = tmp_path.as_uri()
    (requirement,) = read_file(line.format(root=root)).requirements
    assert requirement.text == text.format(root=root)
    assert requirement.url.startswith(root)


def test_path_on_the_command_line() -> None:
    write("lib/pyproject.toml", PROJECT)
    (requirement,) = read_inputs(Settings(requirements=["./lib"])).requirements
    assert requirement.name == "my-library"


@pytest.mark.parametrize(
    ("pyproject", "reason"),
    [
        (None, "not a Python project"),
        ("[build-system]\nrequires = []\n", "does not state a valid name"),
        ("[project]\nname = 'a'\ndynamic = ['version']\n", "computes its version"),
        ("[project]\nname = 'a'\n", "computes its version"),
        ("[project]\nname = 'a'\nversion = 'x y'\n", "not a valid version"),
        ("[project]\nname = 1\n", "project.name"),
        ("[project", "not a valid pyproject.toml"),
        ("[project]\nname = 'a'\nversion = '1'\ndependencies = ['b==']\n", "'b=='"),
    ],
)
def test_directory_without_static_metadata_is_an_error(pyproject: str | None, reason: str) -> None:
    Path("lib").mkdir()
    if pyproject is not None:
        write("lib/pyproject.toml", pyproject)
    message = error_of_file("./lib\n")
    assert message.startswith("r.txt:1: ")
    assert reason in message


def test_static_metadata_of_a_directory() -> None:
    write("lib/pyproject.toml", PROJECT)
    metadata = IndexClient([]).metadata([File("", Path("lib").absolute().as_uri())])
    assert metadata is not None
    assert (metadata.name, metadata.version, metadata.requires_python) == ("my-library", "1.2", ">=3.10")
    assert metadata.extras == ("fast", "all", "gpu")
    assert metadata.requires[:3] == (
        "torch>=2.4",
        'numpy; python_version < "3.13"',
        'apex; extra == "fast"',
    )


# Conda environment files


def test_environment_file_gives_python_and_pip_section(tmp_path: Path) -> None:
    write("envs/lib/pyproject.toml", PROJECT)
    write("envs/more.txt", "numpy\n")
    write(
        "envs/env.yml",
        "channels: [conda-forge, nodefaults]\ndependencies:\n  - python=3.12.4\n  - pip\n  - numpy=1.26\n"
        "  - conda-forge::cmake\n  - pip:\n    - torch>=2.4\n    - -r more.txt\n    - ./lib\n",
    )
    inputs = read_inputs(Settings(env="envs/env.yml"))
    url = (tmp_path / "envs" / "lib").as_uri()
    assert texts(inputs.requirements) == ["python==3.12.*", "torch>=2.4", "numpy", f"my-library @ {url}"]
    (warning,) = inputs.warnings
    assert warning.startswith("envs/env.yml: conda installs numpy and cmake: ")
    assert "pip also installs numpy" in warning


@pytest.mark.parametrize(
    ("python", "expected"),
    [
        ("python", []),
        ("python=3.12", ["python==3.12.*"]),
        ("python 3.12.*", ["python==3.12.*"]),
        ("conda-forge::python=3.12.*=*_cpython", ["python==3.12.*"]),
        ("python>=3.10,<3.13", ["python>=3.10,<3.13"]),
    ],
)
def test_python_of_an_environment_file(python: str, expected: list[str]) -> None:
    write("env.yml", f"dependencies:\n  - {python}\n  - pip:\n    - torch\n")
    assert texts(read_inputs(Settings(env="env.yml")).requirements) == [*expected, "torch"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("dependencies:\n  - pip:\n    - torch=2.4\n", 3),
        ("dependencies:\n  - python=3.11|3.12\n", 2),
        ("dependencies:\n  - pip:\n    - torch\n  - pip:\n    - apex\n", 4),
        ("dependencies:\n  - pip:\n    - --only-binary :all:\n", 3),
        ("dependencies:\n  - git+https://a.example/x\n", 2),
        ("dependencies:\n\t- x\n", 2),
        ("torch\n", 1),
    ],
)
def test_error_in_an_environment_file_names_the_line(text: str, line: int) -> None:
    assert error_of(Settings(env=write("env.yml", text))).startswith(f"env.yml:{line}: ")


# pyproject.toml


def test_project_gives_dependencies_extras_and_groups() -> None:
    write("pyproject.toml", PROJECT)
    inputs = read_inputs(Settings(project=".", extras=["ALL"], groups=["dev"]))
    assert set(texts(inputs.requirements)) == {
        "python>=3.10",
        "torch>=2.4",
        'numpy; python_version < "3.13"',
        "apex",
        'flash-attn; sys_platform == "linux"',
        'apex; sys_platform == "linux"',
        "mypy",
        "ruff",
    }


def test_project_without_extras_gives_its_dependencies_only() -> None:
    write("pyproject.toml", PROJECT)
    inputs = read_inputs(Settings(project="pyproject.toml"))
    assert texts(inputs.requirements) == ["python>=3.10", "torch>=2.4", 'numpy; python_version < "3.13"']


@pytest.mark.parametrize(
    ("pyproject", "more", "reason"),
    [
        (PROJECT, {"extras": ["fats"]}, "Did you mean Fast?"),
        (PROJECT, {"groups": ["dve"]}, "Did you mean dev?"),
        ("[dependency-groups]\na = [{include-group = 'a'}]\n", {"groups": ["a"]}, "includes itself"),
        ("[dependency-groups]\na = ['torch==']\n", {"groups": ["a"]}, "torch=="),
        ("[dependency-groups]\na = [1]\n", {"groups": ["a"]}, "not valid"),
        ("[dependency-groups]\na = ['torch']\n", {}, "--group"),
        ("[project]\nname = 'a'\ndynamic = ['dependencies']\n", {}, "dynamic"),
        ("[project]\nname = 'a'\nrequires-python = 'x'\n", {}, "project.requires-python"),
        ("[project]\nname = 'a'\ndependencies = ['./x']\n", {}, "project.dependencies"),
        ("[project]\nname = 'a'\ndependencies = 'torch'\n", {}, "dependencies"),
        ("[tool.poetry]\nname = 'a'\n", {}, "no [project] table"),
    ],
)
def test_error_in_a_project(pyproject: str, more: dict[str, list[str]], reason: str) -> None:
    write("pyproject.toml", pyproject)
    message = error_of(Settings(project="pyproject.toml", **more))  # type: ignore[arg-type]
    assert message.startswith("pyproject.toml")
    assert reason in message


def test_group_without_project_table() -> None:
    write("pyproject.toml", "[dependency-groups]\na = ['torch']\n")
    assert texts(read_inputs(Settings(project=".", groups=["a"])).requirements) == ["torch"]


def test_extra_without_project_is_an_error() -> None:
    assert "--project" in error_of(Settings(extras=["a"]))


UV = """
[tool.uv]
constraint-dependencies = ["numpy<3"]
override-dependencies = ["pillow==10.0"]
[tool.uv.sources]
torch = [{ index = "mac", marker = "sys_platform == 'darwin'" }, { index = "own" }]
numpy = { git = "https://a.example/numpy", tag = "v2" }
apex = [{ path = "apex", extra = "slow" }, { url = "https://a.example/apex-1.0.tar.gz", extra = "fast" }]
[[tool.uv.index]]
name = "own"
url = "https://own.example/simple"
explicit = true
[[tool.uv.index]]
name = "more"
url = "https://more.example/simple"
"""


def test_sources_of_uv_are_used() -> None:
    write("pyproject.toml", PROJECT + UV)
    inputs = read_inputs(Settings(project=".", extras=["fast"]))
    assert 'numpy @ git+https://a.example/numpy@v2 ; python_version < "3.13"' in texts(inputs.requirements)
    assert "apex @ https://a.example/apex-1.0.tar.gz" in texts(inputs.requirements)
    assert inputs.bound == {"torch": "https://own.example/simple"}
    assert inputs.extra_index_urls == ["https://more.example/simple"]
    assert texts(inputs.constraints) == ["numpy<3"]
    (warning,) = inputs.warnings
    assert "matrix ignores pillow==10.0: uv's override-dependencies are not read." in warning


def test_dependencies_of_poetry_are_read() -> None:
    write("pyproject.toml", "[tool.poetry.dependencies]\npython = '^3.10'\ntorch = '~2.4'\n")
    assert texts(read_inputs(Settings(project=".")).requirements) == ["python<4,>=3.10", "torch<2.5,>=2.4"]


# Settings


def test_matrix_toml_holds_all_inputs() -> None:
    path = write(
        "matrix.toml",
        'requirements = ["apex"]\nrequirement-files = ["r.txt"]\nconstraints = ["torch<3"]\n'
        'constraint-files = ["c.txt"]\noverrides = ["a==1"]\noverride-files = ["o.txt"]\nproject = "."\n'
        'extras = ["fast"]\ngroups = ["dev"]\nindex-url = "https://a.example/simple"\n'
        'extra-index-url = ["https://b.example/simple"]\noffline = true\n',
    )
    write("r.txt", "numpy\n")
    write("c.txt", "numpy<2\n")
    write("o.txt", "b==1\n")
    write("pyproject.toml", PROJECT)
    settings = merge(Settings(), read_settings_file(Path(path)))
    inputs = read_inputs(settings)
    assert settings.offline
    assert texts(inputs.requirements)[:3] == ["apex", "numpy", "python>=3.10"]
    assert {"apex", "mypy"} <= set(texts(inputs.requirements))
    assert texts(inputs.constraints) == ["torch<3", "numpy<2"]
    assert texts(inputs.overrides) == ["a==1", "b==1"]
    assert inputs.index_url == "https://a.example/simple"


def test_source_on_the_command_line_replaces_those_of_matrix_toml() -> None:
    parser = argparse.ArgumentParser()
    add_names(parser, "requirements", metavar="REQ", help="")
    add_input_options(parser)
    settings = Settings(requirements=["apex"], project=".", groups=["dev"], constraints=["torch<3"])
    merged = merge(settings, options_of(parser.parse_args(["-r", "r.txt"])))
    assert merged == Settings(requirement_files=["r.txt"], constraints=["torch<3"])
    merged = merge(settings, options_of(parser.parse_args(["--extra", "fast"])))
    assert (merged.project, merged.extras, merged.groups) == (".", ["fast"], ["dev"])


# The command line and the lock


def test_files_on_the_command_line_become_the_request_in_the_lock(capsys: pytest.CaptureFixture[str]) -> None:
    write("r.txt", "apex\n-c more.txt\n--pre\n")
    write("more.txt", "torch<2.9\n")
    write("c.txt", "torch>=2\n")
    write("o.txt", "torch>=2.1\n")
    options = ["-r", "r.txt", "-c", "c.txt", "--override", "o.txt", "--offline"]
    day = ["--site", "lumi-g", "--exclude-newer", "2025-06-01"]
    assert main(["resolve", "torch>=2.4", *options, *day]) == 0
    assert "warning: r.txt:3: matrix ignores --pre." in capsys.readouterr().err
    request = read_lock(Path("matrix.lock")).request
    assert texts(request.requirements) == ["torch>=2.4", "apex"]
    assert texts(request.constraints) == ["torch<2.9", "torch>=2"]
    assert texts(request.overrides) == ["torch>=2.1"]
    assert request.target.date == datetime.date(2025, 6, 1)


def test_project_on_this_machine_is_resolved_and_pinned_by_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    write("lib/pyproject.toml", "[project]\nname = 'My.Library'\nversion = '1.2'\n")
    write("empty/index.html", "")
    assert main(["resolve", "./lib", "--backend", "cpu", "--index-url", "empty"]) == 0
    pick = read_lock(Path("matrix.lock")).pick("my-library")
    assert pick is not None
    assert (pick.version, pick.origin, pick.files[0].url) == ("1.2", "build", f"{tmp_path.as_uri()}/lib")
    capsys.readouterr()
    assert main(["env", "--for", "pip"]) == 0
    assert "\nmy-library==1.2+cpu" in capsys.readouterr().out


def test_constraints_are_in_the_request_of_the_lock() -> None:
    write("c.txt", "torch<2.9\n")
    assert main(["resolve", "torch", "-c", "c.txt", "--site", "lumi-g", "--offline"]) == 0
    request = read_lock(Path("matrix.lock")).request
    assert texts(request.requirements) == ["torch"]
    assert texts(request.constraints) == ["torch<2.9"]


_NAME = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,5}([._-][A-Za-z0-9]{1,3})?", fullmatch=True)
_EXTRAS = st.lists(_NAME, max_size=2).map(lambda names: f"[{','.join(names)}]" if names else "")
_VERSION = st.lists(st.integers(0, 30), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))
_SPECIFIER = st.tuples(st.sampled_from([">=", "<", "!=", "=="]), _VERSION).map("".join) | st.just("")
_URL = st.sampled_from(
    [
        " @ https://a.example/x-1.0-py3-none-any.whl#sha256=00",
        " @ git+https://a.example/x@v1#subdirectory=a",
        " @ file:///srv/a%20b/x-1.0.tar.gz",
    ]
)
_MARKER = st.sampled_from(
    [
        "",
        " ; python_version < '3.13'",
        " ; extra == 'a' or (os_name == \"nt\" and sys_platform != 'win32')",
    ]
)
_TEXTS = st.lists(st.tuples(_NAME, _EXTRAS, _SPECIFIER | _URL, _MARKER).map("".join), max_size=3)
_LINE_PARTS = st.sampled_from([*"ab.-[]@/:#;='\"<>$\\ \n", "://", "git+", "file:", " @ ", "-e ", "${A}"])


@given(st.tuples(_TEXTS, _TEXTS, _TEXTS))
def test_request_survives_the_lock(
    tmp_path_factory: pytest.TempPathFactory, texts: tuple[list[str], ...]
) -> None:
    required, constraints, overrides = (tuple(map(parse_requirement, part)) for part in texts)
    target = Target(site="local", date=datetime.date(2026, 1, 1), backend="cpu")
    path = tmp_path_factory.mktemp("lock") / "matrix.lock"
    before = Request(target, required, constraints, overrides)
    path.write_text(dumps(Resolution(request=before, target=target)))
    after = read_lock(path).request
    assert _parts(after) == _parts(before)


def _parts(request: Request) -> list[list[object]]:
    parts = ("name", "specifier", "text", "extras", "url", "marker")
    lists = (request.requirements, request.constraints, request.overrides)
    return [[getattr(requirement, part) for part in parts] for group in lists for requirement in group]


@given(st.text(max_size=60) | st.lists(_LINE_PARTS, max_size=30).map("".join))
def test_any_line_gives_inputs_or_an_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_text(text, encoding="utf-8", errors="ignore")
    name = str(path)
    for settings in (
        Settings(requirement_files=[name]),
        Settings(requirements=[text], overrides=[text]),
        Settings(env=name),
        Settings(project=name),
    ):
        try:
            read_inputs(settings)
        except UsageError as error:
            assert error.message  # noqa: PT017
