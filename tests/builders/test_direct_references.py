"""What direct references name, next to package indexes."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.files import sha256_of
from builders.index_client import WithDirectReferences
from resolver.errors import UsageError
from resolver.requirements import parse_requirement
from tests.support.indexes import FakeIndexes, FakeRelease

INDEXES = {"torch": {"2.0": FakeRelease()}, "other": {"1.0": FakeRelease()}}


def with_references(*texts: str) -> WithDirectReferences:
    return WithDirectReferences(FakeIndexes(INDEXES), map(parse_requirement, texts))


def release(text: str) -> tuple[str, str, str]:
    """Return version, file name and hash of the only release of a direct reference."""
    project = with_references(text).project("torch")
    assert project is not None
    (only,) = project.releases
    (file,) = only.files
    assert file.index == ""
    return only.version, file.name, file.sha256


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "https://a.example/torch-2.9.1%2Bcpu-py3-none-any.whl",
            ("2.9.1+cpu", "torch-2.9.1+cpu-py3-none-any.whl", ""),
        ),
        ("https://a.example/torch-2.9.tar.gz#sha256=00", ("2.9", "torch-2.9.tar.gz", "00")),
        ("https://a.example/torch-2.9.zip?x=y", ("2.9", "torch-2.9.zip", "")),
    ],
)
def test_url_is_the_only_release(url: str, expected: tuple[str, str, str]) -> None:
    assert release(f"torch @ {url}") == expected


def test_local_wheel_has_its_hash(tmp_path: Path) -> None:
    wheel = tmp_path / "torch-2.9-py3-none-any.whl"
    wheel.write_bytes(b"content")
    assert release(f"torch @ {wheel.as_uri()}") == ("2.9", wheel.name, sha256_of(wheel))


def test_directory_has_the_version_of_its_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'torch'\nversion = '2.9'\n")
    assert release(f"torch @ {tmp_path.as_uri()}")[0] == "2.9"


def test_other_projects_come_from_the_indexes() -> None:
    indexes = with_references("torch @ https://a.example/torch-2.9-py3-none-any.whl", "other<2")
    project = indexes.project("other")
    assert project is not None
    assert [release.version for release in project.releases] == ["1.0"]
    assert indexes.project("missing") is None


@pytest.mark.parametrize(
    "url",
    ["git+https://a.example/torch", "https://a.example/archive/main.zip", "https://a.example/torch.whl"],
)
def test_url_without_a_version_is_an_error(url: str) -> None:
    with pytest.raises(UsageError, match="torch @") as caught:
        with_references(f"torch @ {url}").project("torch")
    assert "pip wheel" in caught.value.hint


def test_two_urls_of_one_distribution_are_an_error() -> None:
    first, second = (f"torch @ https://a.example/torch-{n}-py3-none-any.whl" for n in (1, 2))
    with pytest.raises(UsageError, match="different URLs"):
        with_references(first, second)
    assert with_references(first, first).project("torch")
