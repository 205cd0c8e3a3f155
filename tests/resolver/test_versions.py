"""Versions and specifiers, and every example in the docstrings of the resolver."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from resolver.errors import UsageError
from resolver.versions import allows, join_words, minor, newest_first, parse_specifier, shorten, sort_key
from tests.resolver.universe import EXAMPLES


def test_versions_sort_by_number_and_after_names() -> None:
    mixed = ["10.0", "7.2", "7.14", "2.5.1+rocm6.2", "2.5.1", "2.5.1rc1", "ubuntu.sif", "lumi.sif"]
    by_key = ["lumi.sif", "ubuntu.sif", "2.5.1rc1", "2.5.1", "2.5.1+rocm6.2", "7.2", "7.14", "10.0"]
    assert sorted(mixed, key=sort_key) == by_key
    assert newest_first(mixed) == by_key[::-1]


@pytest.mark.parametrize(
    ("version", "line"),
    [("6.2.4", "6.2"), ("10.0", "10.0"), ("7", "7.0"), ("7.14.1", "7.14"), ("2.5.1+rocm6.2", "2.5")],
)
def test_minor_returns_the_first_two_numbers(version: str, line: str) -> None:
    assert minor(version) == line


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("6.2", "6.2.4", "6.20.0"),
        ("3", "3.12", "4.0"),
        ("2.5.1", "2.5.1+rocm6.2", "2.5.10"),
        ("2.5.1+rocm6.2", "2.5.1+rocm6.2", "2.5.1+rocm6.1"),
        ("2.6.0rc1", "2.6.0rc1", "2.6.0"),
        (" 6.2 ", "6.2.0", "6.3.0"),
        (">=2.4,<3", "2.9.1+rocm6.4", "3.0"),
        ("!=6.2.1", "6.2.2", "6.2.1"),
        ("~=6.2.1", "6.2.4", "6.3.0"),
        ("==6.2.*", "6.2", "6.3"),
        (">=2.5", "2.6.0.dev20240918", "2.5.0rc1"),
    ],
)
def test_specifier_or_bare_version_allows_versions(text: str, inside: str, outside: str) -> None:
    specifier = parse_specifier(text)
    assert allows([specifier], inside)
    assert not allows([specifier], outside)


@pytest.mark.parametrize(
    "text",
    [
        "abc",
        "six.two",
        "==",
        ">=2.4;python_version",
        "6.2 or 6.3",
        "==1.*.*",
        ">=2.4+cpu",
        "1\n2",
        "６.２",
        "\0",
        "x" * 10_000,
        "1." * 5_000,
        "1a" + "+" * 10_000,
        pytest.param("9" * 10_000, id="a number of 10,000 digits"),
        pytest.param(">=" + "9" * 10_000, id="at least a number of 10,000 digits"),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_invalid_specifier_is_rejected_briefly(text: str) -> None:
    with pytest.raises(UsageError) as failure:
        parse_specifier(text)
    assert len(failure.value.message) < 200
    assert failure.value.message.startswith(repr(text[:10])[:-1])  # as it was typed
    assert "==6.2.*" in failure.value.hint
    assert failure.value.exit_code == 2


@EXAMPLES
@given(st.text(max_size=30) | st.text(alphabet="0123456789.*+<>=!~,va ", max_size=20))
@example("")
def test_specifier_text_is_rejected_or_usable(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert allows([parse_specifier(text)], "6.2.4") in {True, False}


def test_specifiers_allow_if_one_matches() -> None:
    lines = [parse_specifier("==6.2.*"), parse_specifier("==6.4.*")]
    assert allows([], "ubuntu.sif")
    assert [allows(lines, version) for version in ("6.2.4", "6.3.0", "6.4.4")] == [True, False, True]


def test_invalid_version_is_not_allowed() -> None:
    assert not allows([parse_specifier(">=0")], "ubuntu.sif")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "nothing"),
        (1, "1"),
        (2, "1 or 2"),
        (5, "1, 2, 3, 4 or 5"),
        (6, "1, 2, 3 ... 6 (6 in all)"),
        (60, "1, 2, 3 ... 60 (60 in all)"),
    ],
)
def test_join_words_shortens_a_long_list(count: int, text: str) -> None:
    assert join_words([str(number) for number in range(1, count + 1)]) == text


def test_join_words_uses_length_and_joiner() -> None:
    assert join_words(list("abc"), joiner="and") == "a, b and c"
    assert join_words(list("abcd"), most=2) == "a ... d (4 in all)"


def test_shorten_cuts_a_long_text() -> None:
    assert shorten("x" * 80) == "x" * 80
    assert shorten("x" * 81) == "x" * 80 + "... (81 characters)"
