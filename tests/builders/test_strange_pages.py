"""Pages and metadata of strangers: whatever is wrong with them, reading ends soon, with files or an error."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest

from builders.index_client import IndexClient, metadata, pages
from builders.index_client.html_page import read_html, unescape
from builders.network.transport import Transport
from matrix.cli import main
from resolver.environment import Environment
from resolver.errors import SourceError
from resolver.indexes import File
from resolver.requirements import split_marker

MakeWheel = Callable[..., Path]
NAME = "tiny-1.0-py3-none-any.whl"
URL = "https://i.example/simple/tiny/"
LINK = f'<a href="{NAME}">{NAME}</a>'
DEEP = 200_000

ATOMS = [
    "<", "<a", "<a ", '<a "', '<a href="', "<a x='", "<a href=x ", "<a/", "<a<", "<a =", "<a\n=", "</",
    "</a ", "</a>", "<!", "<![", "<!--", "<!-- -", "<![CDATA[", "<!DOCTYPE", "<!DOCTYPE ", "<![DOCTYPE",
    "<![if", "<?", "<?xml", "<script>", "</script", "<style>", "<title>", "<textarea>", "&", "&#", "&#x",
    "&#9", "&lt", "\0", "\x1b", "--", ">", "<base href=", '<base href="//[">', "<meta ", "<svg><a ",
    '<a href="file:///etc/passwd">', '<meta name="pypi:repository-version" content="',
    '<a href="//[bad/tiny-2.0.zip">', '<a href="tiny-&#' + "9" * 5000 + ';.zip">',
]  # fmt: skip
PLACES = {
    "before the link": "{}" + LINK,
    "after the link": LINK + "{}",
    "between links": LINK + "{}" + LINK.replace("1.0", "2.0"),
    "in a tag": LINK.replace("<a ", "<a {} "),
    "in an attribute": LINK.replace(">", ' data-yanked="{}">', 1),
    "in the text": LINK.replace(f">{NAME}", ">{}"),
}
ENTRY = {"filename": NAME, "url": NAME}
NESTED = ['{"x":', "[", '[{"x":']
_ENTRY = json.dumps(ENTRY)[:-1]
JSON_PAGES = {
    "the page": "@",
    "a key of the page": '{"files": [], "x": @}',
    "the files": '{"files": @}',
    "a file": '{"files": [@]}',
    "a key of a file": f'{{"files": [{_ENTRY}, "x": @}}]}}',
    "the hashes": f'{{"files": [{_ENTRY}, "hashes": @}}]}}',
    "the API version": '{"files": [], "meta": @}',
    "the status": '{"files": [], "project-status": @}',
}


def read(content: bytes, kind: str, url: str = URL) -> list[File] | None:
    """Return the files of a page; None if the page cannot be used."""
    try:
        releases = pages.releases(content, kind, url, "tiny")
    except pages.PageError:
        return None
    return [file for _, rows in releases for file in pages.files(rows, url, "")]


@pytest.mark.parametrize("place", PLACES)
def test_odd_html_is_read_or_rejected(place: str) -> None:
    for atom, times in product(ATOMS, (1, 2, 3, 500)):
        content = PLACES[place].format(atom * times)
        found = read(content.encode(), "text/html")
        assert found is None or {file.name for file in found} <= {
            NAME,
            "tiny-2.0-py3-none-any.whl",
            "tiny-2.0.zip",
        }
        assert not any(file.url.startswith("file:") for file in found or ()), content[:200]


@pytest.mark.parametrize(
    "atom",
    [
        "<!DOCTYPE html>",
        "<![DOCTYPE html>",
        "<!>",
        "<?xml?>",
        "<br/>",
        "</p>",
        "< ",
        "<3",
        "<!-- a -->",
        "&nbsp;",
    ],
)
def test_links_around_odd_html_are_read(atom: str) -> None:
    for times in (1, 500):
        found = read((atom * times + LINK + atom * times).encode(), "text/html")
        assert found is not None
        assert [file.url for file in found] == [URL + NAME]


@pytest.mark.parametrize("atom", [*ATOMS, "<a href=x>", " ", "/", "= ", "<a x = "])
def test_time_grows_with_the_size_of_a_page(atom: str) -> None:
    for head in ("", "<a ", '<a href="', "<!--"):
        started = time.process_time()
        read_html(head + atom * (50_000 // len(atom)))
        assert time.process_time() - started < 0.1, (head, atom)


@pytest.mark.parametrize("place", JSON_PAGES)
@pytest.mark.parametrize("opening", NESTED)
@pytest.mark.parametrize("closed", [True, False])
def test_json_that_is_nested_too_deeply_is_rejected(place: str, opening: str, *, closed: bool) -> None:
    closing = "".join({"{": "}", "[": "]"}.get(letter, "") for letter in reversed(opening))
    nested = opening * DEEP + ("1" + closing * DEEP if closed else "")
    assert read(JSON_PAGES[place].replace("@", nested).encode(), "application/json") is None


@pytest.mark.parametrize(
    "value",
    ["1" * 5000, "-1", "1e400", "null", "true", '""', "[]", "{}", '"' + "x" * 100_000 + '"'],
)
@pytest.mark.parametrize(
    "key", ["filename", "url", "hashes", "size", "upload-time", "requires-python", "yanked"]
)
def test_odd_values_in_json_hide_no_other_file(key: str, value: str) -> None:
    odd = json.dumps(ENTRY | {"filename": "tiny-2.0-py3-none-any.whl", key: None}).replace(
        f'"{key}": null', f'"{key}": {value}'
    )
    found = read(f'{{"files": [{odd}, {json.dumps(ENTRY)}]}}'.encode(), "application/json")
    assert found is not None
    assert NAME in {file.name for file in found}


def test_character_references_are_replaced() -> None:
    assert unescape("&gt;=3.9 &#65;&#x41;&amp;") == ">=3.9 AA&"
    assert unescape("&#" + "9" * 5000 + ";").startswith("&#9")


MARKERS = {
    "parentheses": "(" * 3000 + "python_version >= '3'" + ")" * 3000,
    "open parentheses": "(" * 3000,
    "many clauses": " and ".join(["(os_name == 'posix' or os_name == 'nt')"] * 3000),
    "a long value": f"os_name == '{'x' * 100_000}'",
    "a long version": f"python_version >= '{'1' * 5000}'",
    "no marker": "; ; ;",
    "control characters": "os_name == '\x1b[31m'",
    "an unknown variable": "os_nam == 'posix'",
    "a comparison without order": "os_name ~= 'posix'",
}


@pytest.mark.parametrize("marker", MARKERS.values(), ids=MARKERS)
def test_odd_marker_is_evaluated_or_rejected(marker: str) -> None:
    head, stated = split_marker(f"other; {marker}")
    assert head == "other"
    for extra in ("", "extra"):
        with suppress(ValueError):
            assert Environment("3.12", "2.36").applies(stated, extra) in {True, False}


HEAD = "Metadata-Version: 2.1\nName: tiny\nVersion: 2.0\n"
METADATA = {
    **{f"marker: {name}": f"{HEAD}Requires-Dist: other; {marker}\n" for name, marker in MARKERS.items()},
    "no text": "",
    "binary": "\x00\x01\x02" * 1000,
    "no name": "Version: 2.0\n",
    "another version": HEAD.replace("2.0", "3.0"),
    "a version with many digits": HEAD.replace("2.0", "1" * 5000),
    "an unknown encoding": HEAD.replace("tiny", "=?none?q?tiny?="),
    "an invalid requirement": f"{HEAD}Requires-Dist: [[[\n",
    "a nested requirement": f"{HEAD}Requires-Dist: other{'[' * 3000}\n",
    "a Python with many digits": f"{HEAD}Requires-Python: >={'9' * 5000}\n",
    "an invalid Python": f"{HEAD}Requires-Python: snake\n",
    "many headers": HEAD + "X: y\n" * 50_000,
    "an extra without name": f"{HEAD}Provides-Extra:\nProvides-Extra: {'(' * 3000}\n",
}


@pytest.mark.parametrize("text", METADATA.values(), ids=METADATA)
def test_odd_metadata_is_read_or_rejected(text: str, make_wheel: MakeWheel) -> None:
    wheel = make_wheel("tiny", "2.0", metadata=text)
    file = File(wheel.name, wheel.as_uri(), index="https://i.example/simple")
    try:
        found = metadata.read(file, wheel, Transport((), {}))
    except SourceError as error:
        said = error.message
    else:
        assert found is not None
        said = f"{found.name}: {wheel.name} https://i.example/simple"
    assert wheel.name in said
    assert "https://i.example/simple" in said


@pytest.mark.parametrize("text", METADATA.values(), ids=METADATA)
def test_odd_release_does_not_end_the_resolution(
    text: str,
    make_wheel: MakeWheel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wheels = [make_wheel("tiny", "1.0"), make_wheel("tiny", "2.0", metadata=text), make_wheel("other", "1.0")]
    for wheel in wheels:
        page = tmp_path / "simple" / wheel.name.partition("-")[0] / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        with page.open("a") as links:
            links.write(f'<a href="{wheel.as_uri()}">{wheel.name}</a>')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = [
        "--index-url",
        (tmp_path / "simple").as_uri(),
        "--backend",
        "cpu",
        "--python",
        "3.12",
        "--format",
        "json",
    ]
    assert main(["resolve", "tiny", *options]) == 0
    picks = {pick["name"]: pick["version"] for pick in json.loads(capsys.readouterr().out)["picks"]}
    assert picks["tiny"] in {"1.0", "2.0"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("index.json", '{"files": ' + "[" * DEEP),
        ("index.html", '<meta name="pypi:repository-version" content="9.0">' + LINK),
    ],
)
def test_page_that_cannot_be_used_is_an_error_that_names_it(name: str, content: str, tmp_path: Path) -> None:
    folder = tmp_path / "simple" / "tiny"
    folder.mkdir(parents=True)
    (folder / name).write_text(content)
    client = IndexClient([folder.parent.as_uri()], cache=tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(SourceError, match=r"The page of tiny on file:.* cannot be used: "):
            client.project("tiny")
