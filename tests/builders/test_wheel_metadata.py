"""Headers are edited as bytes: what is not edited stays, and e-mail's own parser sees the same."""

from __future__ import annotations

from email import message_from_bytes

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from builders.labelling.metadata import Headers

NAMES = st.sampled_from(
    ["Name", "version", "VERSION", "Requires-Dist", "requires-dist", "Summary", "X-1", "Provides-Extra"]
)
VALUES = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\x85\u2028\u2029"), max_size=20
)
ENDS = st.sampled_from(["\n", "\r\n"])


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Make a metadata file: headers, some of which go on in further lines, and a description."""
    end = draw(ENDS)
    lines = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=8)):
        more = draw(st.lists(VALUES.map(lambda one: f"{end}        {one}"), max_size=2))
        lines.append(f"{name}:{draw(st.sampled_from(['', ' ', '  ']))}{draw(VALUES)}{''.join(more)}{end}")
    description = draw(st.just("") | st.builds(lambda text: f"{end}{text}", st.text(max_size=60)))
    return "".join([*lines, description]).encode("utf-8", "surrogatepass")


@settings(deadline=None)
@given(st.binary(max_size=200) | files())
@example(b"Name: x\r\rVersion: 1\n")
@example(b":\nVersion: 1\n")
@example(b" Name: x\n")
def test_taking_apart_and_putting_together_changes_nothing(data: bytes) -> None:
    assert Headers.parse(data).render() == data


@settings(deadline=None)
@given(files())
def test_the_parser_of_emails_finds_the_same_headers(data: bytes) -> None:
    read = message_from_bytes(data)
    headers = Headers.parse(data)
    assert [one.name for one in headers.headers] == [name.lower() for name in read]
    payload = headers.rest.decode("ascii", "surrogateescape").removeprefix("\r\n").removeprefix("\n")
    assert read.get_payload() == payload or not payload.isascii()


@settings(deadline=None)
@given(files(), st.lists(st.sampled_from(["1.0", "torch==2.9.1+rocm6.4", "é"]), max_size=3), NAMES)
def test_values_are_replaced_and_all_else_stays(data: bytes, values: list[str], name: str) -> None:
    before = Headers.parse(data)
    after = before.with_values(name, values)
    assert after.values(name) == values
    assert after.rest == before.rest
    others = [one.raw for one in before.headers if one.name != name.lower()]
    assert [one.raw for one in after.headers if one.name != name.lower()] == others
    again = Headers.parse(after.render())
    assert [(one.name, one.value) for one in again.headers] == [
        (one.name, one.value) for one in after.headers
    ]
    assert again.rest == after.rest
    assert after.with_values(name, values) == after


@settings(deadline=None)
@given(files(), st.data())
def test_what_keeps_its_value_keeps_its_bytes(data: bytes, choices: st.DataObject) -> None:
    before = Headers.parse(data)
    old = before.values("Requires-Dist")
    new = [choices.draw(st.sampled_from([value, "apex", None])) for value in old]
    after = before.edited("Requires-Dist", new)
    assert after.values("Requires-Dist") == [value for value in new if value is not None]
    raw = {one.raw for one in after.headers}
    rows = [one for one in before.headers if one.name == "requires-dist"]
    assert all(one.raw in raw for one, value in zip(rows, new, strict=True) if value == one.value)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"A: 1\nB: 2\nA: 3\nC: 4\n\nA: 5\n", b"A: 1\nB: 2\nA: 3\nA: new\nC: 4\n\nA: 5\n"),
        (b"B: 2\r\n\r\nText", b"B: 2\r\nA: new\r\n\r\nText"),
        (b"B: 2", b"B: 2\nA: new\n"),
        (b"A: 1", b"A: 1\nA: new\n"),
        (b"", b"A: new\n"),
    ],
)
def test_what_is_added_stands_behind_the_last_of_its_name(data: bytes, expected: bytes) -> None:
    headers = Headers.parse(data)
    assert headers.edited("A", headers.values("A"), ["new"]).render() == expected


def test_what_is_no_utf8_is_kept() -> None:
    data = b"Requires-Dist: torch\xff\nRequires-Dist: numpy\n\nJ\xf6rg\n"
    headers = Headers.parse(data)
    said = headers.values("Requires-Dist")
    assert headers.edited("Requires-Dist", [said[0], "scipy"]).render() == data.replace(b"numpy", b"scipy")


def test_a_value_that_goes_on_in_further_lines_is_one_value() -> None:
    headers = Headers.parse(b"Requires-Dist: torch\n  >=2\n ; extra == 'x'\nName: y\n")
    assert headers.values("requires-dist") == ["torch >=2 ; extra == 'x'"]
    assert headers.with_values("Requires-Dist", []).render() == b"Name: y\n"
