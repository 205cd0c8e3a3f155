"""What people type or write by mistake, and the line that the hint has for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("'torch'", "Write torch"),
        ("conda-forge::numpy", "Write numpy"),
        ("torch 2.9", "Write torch==2.9.*"),
        ("torch apex", "Write each as an argument of its own: torch apex"),
        ("torch==2.9.x", "Write torch==2.9.*"),
        ("torch==latest", "Write torch"),
        ("torch>=1.2<2", "Write torch>=1.2,<2"),
        ("- torch", "Remove it."),
        ("torch ^2.9", "Write torch~=2.9"),
        ("torch^2.9.1", "Write a name, or a name and versions"),
    ],
)
def test_invalid_requirement_comes_with_the_right_one(typed: str, hint: str, capsys: Capture) -> None:
    assert main(["resolve", typed, "--no-lock"]) == 2
    assert hint in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (["--gfx90a", "build-wheels"], "matrix build-wheels --gfx90a"),
        (["inspect", "freeze.txt"], "Use `matrix check THING`."),
        (["verify", "train.sif"], "Use `matrix check THING --run`."),
        (["audit", "a.whl"], "Use `matrix check WHEEL`."),
        (["doctor"], "Use `matrix check`."),
        (["build"], "Did you mean build-container or build-layer or build-wheels?"),
        (["build-wheels", "--jobs", "8G"], "write 8"),
        (["resolve", "torch", "--python", "3.12.x"], "Write 3.12, or a range as in PEP 440"),
        (["resolve", "torch", "--rocm", "ROCm6.4"], "Write 6.4, or a range"),
        (["resolve", "torch", "--driver", "amdgpu"], "Write a version, or a range"),
        (["resolve", "torch", "--gfx", "MI300"], "Did you mean gfx942?"),
        (["explain", "torch"], "Write it with `matrix resolve`."),
        (["resolve", "torch", "-o", "none/matrix.lock"], "Create it with `mkdir -p`, or name another path."),
        (["resolve", "torch", "--site", "lumi-g", "--base-image", "lumi-mine.sif"], "Or name a file on this"),
    ],
)
def test_mistyped_command_line_has_its_correction(line: list[str], hint: str, capsys: Capture) -> None:
    assert main(line) == 2
    assert hint in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("content", "hint"),
    [(b'requirements = ["caf\xe9"]', "Save it as UTF-8."), (b"requirements = [apex]", "Texts need quotes")],
)
def test_unreadable_project_file_says_what_to_write(content: bytes, hint: str, capsys: Capture) -> None:
    Path("matrix.toml").write_bytes(content)
    assert main(["resolve", "--no-lock"]) == 2
    assert hint in capsys.readouterr().err


def test_part_of_a_name_is_what_the_lock_calls_it(capsys: Capture) -> None:
    assert main(["resolve", "apex", "--site", "lumi-g", "--date", "2026-11-20", "--offline", "-q"]) == 0
    image = "lumi-multitorch-mpich-u24r64f21m43t29-20260225_144743.sif"
    meant = {"image": "base-image", "driver": "kernel-driver", image: "base-image", "fp16": "fp16-flush"}
    for typed, name in meant.items():
        assert main(["explain", typed]) == 2
        assert f"Did you mean {name}?" in capsys.readouterr().err
