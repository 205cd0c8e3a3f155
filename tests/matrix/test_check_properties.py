"""Any file yields findings or a usage error, and corrections terminate."""

from __future__ import annotations

import datetime
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.judging.corrections import check, corrected, fixed
from matrix.judging.target import ExpectedTarget, expect_request
from matrix.reading.recognise import read_described
from matrix.reading.requirements import fixable
from matrix.reading.requirements import read as read_requirements
from resolver.errors import UsageError
from resolver.facts.catalog import load
from resolver.model import Request, Target

_WORDS = st.sampled_from(
    [
        "torch",
        "torch==2.9.1",
        "torch==2.9.1+ROCm6.4",
        "apex",
        "apex==1.9.0+rocm6.4.torch2.9.1.gfx90a",
        "deepspeed==0.18.2",
        "numpy=1.26",
        "tqdm==4.67.1",
        "nvidia-nccl-cu12",
        "--extra-index-url",
        "--index-url",
        "--only-binary",
        "--no-build-isolation",
        "--config-settings",
        "--hash=sha256:00",
        "--pre",
        "--global-option=no-build-isolation",
        "--target",
        ":all:",
        "apex,",
        "pip",
        "install",
        "file:///mnt/simple",
        "https://download.pytorch.org/whl/rocm6.3",
        "git+https://github.com/ROCm/apex",
        "./x.whl",
        "-e",
        "-r",
        ".",
        "\\",
        "'a",
        '"b',
        "$HOME",
        "${X}",
        "#",
        "#c",
        "-",
        ":",
        ",",
        "[",
        "]",
        "{",
        "}",
        "|",
        ">",
        "&",
        "*",
        "!",
        "%",
        "@",
        "==",
        ";",
    ]
) | st.just("\t")
_LINES = st.lists(st.lists(_WORDS, max_size=5).map(" ".join), max_size=8)
_ENDS = st.sampled_from(["\n", "\r\n"])
_HEAD = "channels: [conda-forge]\ndependencies:\n  - python=3.12\n  - pip:\n"


@cache
def lumi(consumer: str) -> ExpectedTarget:
    """Return the versions that fit LUMI-G in March 2026."""
    target = Target(backend="rocm", gfx=("gfx90a",), site="lumi-g", date=datetime.date(2026, 3, 1))
    kind = "cotainr" if consumer == "cotainr" else "pip"
    return expect_request(Request(target, ()), load(), kind)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.text(), st.sampled_from(["a.yml", "a.txt", "a"]))
def test_check_of_any_text_ends_normally(text: str, name: str) -> None:
    try:
        reading = read_described(text, name)
    except UsageError as error:
        assert name in error.message  # noqa: PT017  a text that is neither kind of file
        return
    for finding in check(reading, lumi("cotainr")):
        assert 1 <= finding.evidence["line"] <= max(1, len(text.splitlines()))


@pytest.mark.slow
@settings(deadline=None)
@given(_LINES, _ENDS)
def test_fixed_requirements_need_no_fix(lines: list[str], end: str) -> None:
    text = end.join(lines)
    try:
        reading = fixed(read_described(text, "a.txt"), lumi("pip"))
    except UsageError:
        return  # it begins as JSON does
    new = reading.text
    assert fixed(reading, lumi("pip")).text == new
    assert not fixable(check(reading, lumi("pip")))
    assert new.count("\n") >= text.count("\n")


def test_lines_that_need_the_same_line_are_corrected_together() -> None:
    text = "--extra-index-url https://a https://b\n" * 3
    findings = fixable(check(read_described(text, "a.txt"), lumi("pip")))
    new = corrected(text, findings, is_yaml=False)
    assert new == "--extra-index-url https://a\n" + "--extra-index-url https://b\n" * 3


@pytest.mark.slow
@settings(deadline=None)
@given(_LINES, _ENDS)
def test_fixed_environment_file_stays_valid(lines: list[str], end: str) -> None:
    text = (_HEAD + "".join(f"    - {line}\n" for line in lines)).replace("\n", end)
    try:
        reading = read_described(text, "a.yml")
    except UsageError:
        return
    new = fixed(reading, lumi("cotainr")).text
    assert new.startswith(_HEAD.partition("  - pip:")[0].replace("\n", end))
    assert not fixable(check(read_described(new, "a.yml"), lumi("cotainr")))
    assert new.count("\n") >= text.count("\n")
    assert end == "\n" or new.count("\n") == new.count("\r\n")


@pytest.mark.slow
@settings(deadline=None)
@given(_LINES)
def test_lines_without_findings_stay(lines: list[str]) -> None:
    text = "\n".join(lines)
    try:
        reading = read_requirements(text, "a.txt")
    except UsageError:  # it is nothing like a list of requirements
        return
    findings = fixable(check(reading, lumi("pip")))
    touched = {finding.evidence["line"] for finding in findings}
    unchanged = [line for number, line in enumerate(text.splitlines(), start=1) if number not in touched]
    rest = iter(corrected(text, findings, is_yaml=False).splitlines())
    assert all(line in rest for line in unchanged)  # in this order


@pytest.mark.parametrize(
    "line",
    [
        "git+https://[github.com/ROCm/apex.git",
        "--find-links https://x]y/wheels",
        "a" * 300,
        f"torch=={'9' * 5000}",
        f"torch>{'9' * 5000},<{'9' * 5001}",
    ],
)
def test_line_that_nothing_can_match_is_checked(line: str) -> None:
    check(read_described(f"{line}\n", "a.txt"), lumi("pip"))


@pytest.mark.parametrize("name", ["python", "torch"])
@pytest.mark.parametrize("before", ["", "3."])
@pytest.mark.parametrize("file", ["a.yml", "a.txt"])
def test_version_of_thousands_of_digits_is_checked(file: str, before: str, name: str) -> None:
    """Python itself converts at most 4,300 digits."""
    pin = f"{name}={before}{'9' * 5000}"
    text = f"dependencies: ['{pin}', {{pip: ['torch==2.5.1+rocm6.2']}}]\n" if file != "a.txt" else f"{pin}\n"
    check(read_described(text, file), lumi("cotainr"))


def test_channel_that_is_not_text_is_checked() -> None:
    reading = read_described("channels: [{a: b}, [c]]\ndependencies: [python]\n", "a.yml")
    check(reading, lumi("cotainr"))
