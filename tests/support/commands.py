"""Run a command in the process of the test."""

from __future__ import annotations

import json
from typing import Any

import pytest

from matrix.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Run a command, check its exit code, and return its output."""
    assert main(list(arguments)) == code
    return capsys.readouterr().out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run a command with JSON output, and return its document."""
    document: dict[str, Any] = json.loads(run(capsys, *arguments, "--format", "json", code=code))
    return document
