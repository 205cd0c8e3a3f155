"""Headers of METADATA and WHEEL are edited; other headers and the description stay."""

from __future__ import annotations

from email import message_from_bytes
from email.parser import HeaderParser

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from builders.wheels.labelling import edit_headers

NAMES = st.sampled_from(
    ["Name", "version", "VERSION", "Requires-Dist", "requires-dist", "Summary", "X-1", "Provides-Extra"]
)
VALUES = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\x85\u2028\u2029"), max_size=20
)
ENDS = st.sampled_from(["\n", "\r\n"])


def read(data: bytes) -> tuple[list[tuple[str, str]], str]:
    """Return the headers, with folded lines joined, and the description."""
    message = HeaderParser().parsestr(data.decode("latin-1"))
    headers = [(name.lower(), " ".join(value.split())) for name, value in message.items()]
    return headers, str(message.get_payload())


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Make a metadata file: headers, some of them folded, and a description."""
    end = draw(ENDS)
    lines = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=8)):
        more = draw(st.lists(VALUES.map(lambda text: f"{end}        x{text}"), max_size=2))
        lines.append(f"{name}:{draw(st.sampled_from(['', ' ', '  ']))}{draw(VALUES)}{''.join(more)}{end}")
    description = draw(st.just("") | st.builds(lambda text: f"{end}{text}", st.text(max_size=60)))
    return "".join([*lines, description]).encode("utf-8", "surrogatepass")


@pytest.mark.slow
@settings(deadline=None)
@given(st.binary(max_size=200) | files())
@example(b"Name: x\r\rVersion: 1\n")
@example(b":\nVersion: 1\n")
@example(b" Name: x\n")
def test_edit_without_changes_keeps_headers_and_description(data: bytes) -> None:
    edited = edit_headers(data, {})
    assert read(edited) == read(data)
    assert edit_headers(edited, {}) == edited


@pytest.mark.slow
@settings(deadline=None)
@given(files(), st.lists(st.sampled_from(["1.0", "torch==2.9.1+rocm6.4", "\xe9"]), max_size=3), NAMES)
def test_edit_replaces_values_and_keeps_the_rest(data: bytes, values: list[str], name: str) -> None:
    before, description = read(data)
    edited = edit_headers(data, {name: values})
    after, same_description = read(edited)
    encoded = [value.encode().decode("latin-1") for value in values]
    assert [value for header, value in after if header == name.lower()] == encoded
    others = [header for header in before if header[0] != name.lower()]
    assert [header for header in after if header[0] != name.lower()] == others
    assert same_description == description
    assert edit_headers(edited, {name: values}) == edited


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"A: 1\nB: 2\nA: 3\nC: 4\n\nA: 5\n", b"A: new\nB: 2\nC: 4\n\nA: 5\n"),
        (b"B: 2", b"B: 2\nA: new\n\n"),
        (b"A: 1", b"A: new\n\n"),
        (b"", b"A: new\n\n"),
    ],
)
def test_new_value_takes_the_place_of_the_first(data: bytes, expected: bytes) -> None:
    assert edit_headers(data, {"A": ["new"]}) == expected


def test_edit_keeps_invalid_utf8() -> None:
    data = b"Name: torch\xff\nAuthor: J\xc3\xb6rg\n\nJ\xf6rg\n"
    edited = edit_headers(data, {"Version": ["1.0"]})
    assert edited == b"Name: torch\xff\nAuthor: J\xc3\xb6rg\nVersion: 1.0\n\nJ\xf6rg\n"


def test_empty_list_removes_a_folded_header() -> None:
    data = b"Requires-Dist: torch\n  >=2\n ; extra == 'x'\nName: y\n"
    assert edit_headers(data, {"Requires-Dist": []}) == b"Name: y\n\n"


def test_email_reads_the_edited_headers() -> None:
    edited = edit_headers(b"Name: y\nVersion: 1\n\nText\n", {"Version": ["2"], "Tag": ["a", "b"]})
    message = message_from_bytes(edited)
    assert (message["Version"], message.get_all("Tag")) == ("2", ["a", "b"])
    assert message.get_payload() == "Text\n"
