"""A build backend that leaves another wheel next to its own."""
# ruff: noqa: ANN001, ANN201, ARG001
# mypy: ignore-errors

from pathlib import Path


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    for number in (1, 2):
        Path(wheel_directory, f"two_wheels-{number}.0-py3-none-any.whl").touch()
    return "two_wheels-1.0-py3-none-any.whl"
