"""The conda environment file: what YAML, conda and pip make of its lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from matrix.cli import main


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)
    asked = ["apex", "deepspeed", "flash-attn", "bitsandbytes", "torchvision"]
    assert main(["resolve", *asked, "--date", "2026-03-01", "--python", "3.12", "-q"]) == 0
    capsys.readouterr()
    assert main(["env", "--for", "cotainr", "-o", "env.yml"]) == 0
    assert "is not in" in capsys.readouterr().err  # nothing was built yet, and that is said
    return yaml.safe_load(Path("env.yml").read_text())


def pip_lines(environment: Any) -> list[str]:
    (section,) = (one["pip"] for one in environment["dependencies"] if isinstance(one, dict))
    assert all(isinstance(line, str) for line in section)  # an unquoted `:all:` would be a map
    return list(section)


def test_python_and_pip_are_dependencies(environment: Any) -> None:
    assert environment["dependencies"][0] == "python=3.12"
    assert "pip" in environment["dependencies"]


def test_every_option_stands_alone_on_its_line(environment: Any) -> None:
    for line in pip_lines(environment):
        if line.startswith("-"):
            assert len(line.split()) == 2, line  # with a requirement behind it pip installs nothing
        else:
            assert "--" not in line


def test_indexes_are_ours_and_the_one_of_the_torch_wheel(environment: Any) -> None:
    urls = [line.split()[1] for line in pip_lines(environment) if line.startswith("--extra-index-url")]
    assert urls == ["file:///mnt/simple", "https://download.pytorch.org/whl/rocm6.4"]


def test_pins_are_exact_and_what_is_built_is_pinned_by_label_and_binary_only(environment: Any) -> None:
    lines = pip_lines(environment)
    pins = dict(line.split("==") for line in lines if not line.startswith("-"))
    assert pins["torch"] == "2.9.1+rocm6.4"
    assert pins["torchvision"] == "0.24.1+rocm6.4"
    assert pins["pytorch-triton-rocm"] == "3.5.1"
    for name in ("apex", "deepspeed", "flash-attn"):
        assert pins[name].endswith("+rocm6.4.torch2.9.1.gfx90a")
        assert f"--only-binary {name}" in lines
    assert not any("nvidia" in line for line in lines)


def test_the_base_image_and_the_bind_are_in_the_instructions(environment: Any) -> None:
    del environment
    text = Path("env.yml").read_text()
    assert "cotainr build" in text
    assert "--base-image lumi-multitorch" in text
    assert "/index:/mnt:ro" in text
