"""``pylock.toml`` as input: locks of uv, pip and matrix become exact requirements."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import uv

from builders.network.urls import public_index
from matrix.input.inputs import Inputs, read_inputs
from matrix.input.settings import Settings
from resolver.errors import UsageError
from tests.support.tiny import tiny_index

HEAD = 'lock-version = "1.0"\ncreated-by = "a test"\n'
HASH = 'hashes = { sha256 = "00" }\n'


def package(name: str, version: str, *lines: str) -> str:
    """Return a package with one wheel."""
    file = f"{name}-{version}-py3-none-any.whl"
    head = ["[[packages]]", f"name = '{name}'", f"version = '{version}'", *lines, "[[packages.wheels]]"]
    return "\n".join([*head, f"name = '{file}'", f"url = 'https://x.example/{file}'", HASH])


def read(text: str, name: str = "pylock.toml", **more: list[str]) -> Inputs:
    Path(name).write_text(text)
    return read_inputs(Settings(**({"requirement_files": [name]} | more)))  # type: ignore[arg-type]


def texts(inputs: Inputs) -> list[str]:
    return [requirement.text for requirement in inputs.requirements]


def test_versions_markers_and_python_are_read() -> None:
    inputs = read(
        f"{HEAD}requires-python = '>=3.11'\n"
        + package("torch", "2.9.1+rocm6.4", "index = 'https://download.pytorch.org/whl/rocm6.4'")
        + "[[packages]]\nname = 'tomli'\nversion = '2.0'\nmarker = \"python_version < '3.11'\"\n"
        f"index = '{public_index()}'\n"
        f"[packages.sdist]\nurl = 'https://x.example/tomli-2.0.tar.gz'\n{HASH}"
    )
    assert texts(inputs) == [
        "python>=3.11",
        "torch==2.9.1+rocm6.4",
        'tomli==2.0 ; python_version < "3.11"',
    ]
    assert inputs.bound == {"torch": "https://download.pytorch.org/whl/rocm6.4"}
    assert inputs.extra_index_urls == []


def test_places_become_direct_references(tmp_path: Path) -> None:
    project = tmp_path / "locks" / "project"
    project.mkdir(parents=True)
    (project / "pyproject.toml").write_text("[project]\nname = 'project'\nversion = '1'\n")
    inputs = read(
        f"{HEAD}[[packages]]\nname = 'a'\n[packages.archive]\nurl = 'https://x.example/a-1.0.tar.gz'\n{HASH}"
        "[[packages]]\nname = 'b'\n[packages.vcs]\ntype = 'git'\nurl = 'https://x.example/b'\n"
        f"commit-id = '{'0' * 40}'\nsubdirectory = 'python'\n"
        "[[packages]]\nname = 'project'\n[packages.directory]\npath = 'project'\n",
        name="locks/pylock.gpu.toml",
    )
    assert texts(inputs) == [
        "a @ https://x.example/a-1.0.tar.gz",
        f"b @ git+https://x.example/b@{'0' * 40}#subdirectory=python",
        f"project @ {project.as_uri()}",
    ]


def test_extras_and_other_groups_are_left_out() -> None:
    markers = {
        "plot": "'plot' in extras",
        "dev": "'dev' in dependency_groups",
        "main": "'main' in dependency_groups",
    }
    rows = [package(name, "1", f'marker = "{marker}"') for name, marker in markers.items()]
    head = f"{HEAD}extras = ['plot']\ndependency-groups = ['dev', 'main']\ndefault-groups = ['main']\n"
    assert texts(read(head + "".join(rows))) == ["main==1"]


def test_own_wheels_are_required_without_label() -> None:
    """No index serves them: they are built for the new lock, or found in our index."""
    head = HEAD.replace("a test", "matrix")
    torch = package("torch", "2.9.1+rocm6.4", "index = 'https://x.example/whl'")
    text = head + package("apex", "1.9.0+rocm6.4.torch2.9.1.gfx90a") + torch
    assert texts(read(text)) == ["apex==1.9.0", "torch==2.9.1+rocm6.4"]


def test_lock_as_constraints() -> None:
    inputs = read(
        HEAD + package("a", "1.0"), requirement_files=[], requirements=["b"], constraint_files=["pylock.toml"]
    )
    assert texts(inputs) == ["b"]
    assert [constraint.text for constraint in inputs.constraints] == ["a==1.0"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[packages", "not a valid lock"),
        ("packages = []\n", "lock-version"),
        ('lock-version = "2.0"\ncreated-by = "x"\npackages = []\n', "version 2.0 is not supported"),
        (f"{HEAD}packages = [{{}}]\n", "name"),
    ],
)
def test_invalid_lock_is_an_error(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        read(text)
    assert caught.value.message.startswith("pylock.toml")


def test_locks_of_uv_and_pip_are_read(tmp_path: Path) -> None:
    index = tiny_index(
        tmp_path / "index",
        {"top": [("1.0", ["below>=1"]), ("2.0", ["below>=1"])], "below": [("1.5", [])]},
    )
    url = (index / "simple").as_uri()
    compile_with_uv = [uv.find_uv_bin(), "pip", "compile", "-", "--format", "pylock.toml", "-q"]
    subprocess.run(
        [*compile_with_uv, "--default-index", url, "--no-cache", "-o", "pylock.uv.toml"],
        input="top<2", text=True, check=True,
    )  # fmt: skip
    lock_with_pip = [sys.executable, "-m", "pip", "lock", "top<2", "-q", "--isolated", "--index-url", url]
    subprocess.run([*lock_with_pip, "-o", "pylock.pip.toml"], check=True)
    for name in ("pylock.uv.toml", "pylock.pip.toml"):
        inputs = read(Path(name).read_text(), name)
        pins = [text for text in texts(inputs) if not text.startswith("python")]
        assert sorted(pins) == ["below==1.5", "top==1.0"], name
