"""Git's trees: the same hashes as git's own, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.sources.trees import Entry, blob_id, check_links, parse_listing, tree_id
from resolver.errors import SourceError
from tests.builders.gitrepos import commit, git

ID = "a" * 40


def test_hashes_are_those_of_git(tmp_path: Path) -> None:
    """Names that sort one way as files and another as directories, a link and a program."""
    names = {"a": "1", "a-b": "2", "a.b/c": "3", "ab/d/e": "4", "ab.c": "5", "ü": "6", "link": "->a"}
    commit(tmp_path, names)
    (tmp_path / "a-b").chmod(0o755)
    commit(tmp_path, {})
    tree = git(tmp_path, "rev-parse", "HEAD^{tree}")
    listing = git(tmp_path, "ls-tree", "-r", "-z", "HEAD").encode()
    entries = parse_listing(listing, "tests")
    assert {path: entry.mode for path, entry in entries.items()} == {
        **dict.fromkeys(names, "100644"),
        "a-b": "100755",
        "link": "120000",
    }
    assert tree_id(entries) == tree
    assert entries["a.b/c"].id == blob_id([b"3"], 1)


@given(
    st.dictionaries(st.text(st.sampled_from("ab-./"), min_size=1), st.just(Entry("100644", ID)), max_size=8)
)
def test_a_listing_is_read_or_refused_and_never_worse(entries: dict[str, Entry]) -> None:
    listing = "".join(f"100644 blob {ID}\t{path}\0" for path in entries).encode()
    try:
        read = parse_listing(listing, "tests")
    except SourceError:
        parts = [path.split("/") for path in entries]
        below = {tuple(part[:n]) for part in parts for n in range(1, len(part))}
        assert any({"", ".", ".."} & set(part) for part in parts) or below & set(map(tuple, parts))
    else:
        assert read == entries
        assert len(tree_id(read)) == 40


@pytest.mark.parametrize(
    ("mode", "path", "why"),
    [
        ("100644", "../escaped", "leads out"),
        ("100644", "a/../../escaped", "leads out"),
        ("100644", "/etc/escaped", "leads out"),
        ("100644", "a/.git/config", "repository"),
        ("100644", ".GIT/hooks/x", "repository"),
        ("100644", "a/" * 300 + "b", "too deep"),
        ("040000", "tree", "mode"),
        ("100644", "kept", "twice"),
        ("100644", "kept/below", "no directory"),
    ],
)
def test_what_must_not_be_written_is_refused(mode: str, path: str, why: str) -> None:
    listing = f"120000 blob {ID}\tkept\0{mode} blob {ID}\t{path}\0".encode()
    with pytest.raises(SourceError, match=why) as caught:
        parse_listing(listing, "https://host/name at 1234")
    assert "https://host/name at 1234" in caught.value.message


@pytest.mark.parametrize(
    "links",
    [
        {"l": "/etc/passwd"},
        {"l": ".."},
        {"a/l": "../../x"},
        {"a/b/d": "../../x", "l": "a/b/d/../../y"},  # inside by its letters only
        {"d": "a", "d2": "d/../.."},
    ],
)
def test_a_link_out_of_the_tree_is_refused(links: dict[str, str]) -> None:
    with pytest.raises(SourceError, match="leads out of the tree"):
        check_links(links, "tests")


@pytest.mark.parametrize(
    "links",
    [
        {"l": "a/b"},
        {"a/l": "../x"},
        {"a/b/l": "./..//../x/./y"},
        {"dangling": "nowhere/at/all"},
        {"one": "two", "two": "one"},
        {"a/b/d": "../..", "l": "a/b/d/x"},
    ],
)
def test_a_link_inside_the_tree_is_kept(links: dict[str, str]) -> None:
    check_links(links, "tests")
