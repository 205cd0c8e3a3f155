"""Mirrors replace URL prefixes, but only whole parts of a path."""

from __future__ import annotations

import pytest

from builders.network.urls import check_mirrors, mirrored
from resolver.errors import UsageError

MIRRORS = {
    "https://host.example/": "https://mirror.site/all/",
    "https://host.example/group/": "file:///data/group/",
    "https://host.example/group/one": "ssh://git@mirror.site/one",
    "https://other": "https://mirror.site/other",
}


@pytest.mark.parametrize(
    ("url", "replaced"),
    [
        ("https://host.example/a/b", "https://mirror.site/all/a/b"),
        ("https://host.example/group/two", "file:///data/group/two"),
        ("https://host.example/group/one", "ssh://git@mirror.site/one"),
        ("https://host.example/group/one/x", "ssh://git@mirror.site/one/x"),
        ("https://host.example/group/one.git", "ssh://git@mirror.site/one"),
        ("https://host.example/group/one.github", "file:///data/group/one.github"),
        ("https://host.example/group/one-more", "file:///data/group/one-more"),
        ("https://other", "https://mirror.site/other"),
        ("https://other.example/x", "https://other.example/x"),
        ("http://host.example/a", "http://host.example/a"),
        ("https://mirror.site/all/a", "https://mirror.site/all/a"),
    ],
)
def test_longest_prefix_of_whole_parts_is_replaced(url: str, replaced: str) -> None:
    assert mirrored(url, MIRRORS) == replaced
    assert mirrored(url, dict(reversed(MIRRORS.items()))) == replaced
    assert mirrored(url, {}) == url


def test_valid_mirrors_pass_check() -> None:
    check_mirrors(MIRRORS, where="matrix.toml")


@pytest.mark.parametrize(
    ("prefix", "instead"),
    [
        ("host.example/", "https://mirror.site/"),
        ("https://host.example/", "/data/mirror/"),
        ("https://host.example/", "ext::sh -c x/"),
        ("https://host.example/", "https://mirror.site"),
        ("https://host.example", "https://mirror.site/"),
        ("", "https://mirror.site"),
    ],
)
def test_invalid_mirror_is_an_error(prefix: str, instead: str) -> None:
    with pytest.raises(UsageError, match=r"matrix\.toml, \[mirrors\]"):
        check_mirrors({prefix: instead}, where="matrix.toml")


def test_error_hides_password_of_mirror() -> None:
    with pytest.raises(UsageError) as caught:
        check_mirrors({"https://host/": "https://user:hunter2@mirror"}, where="matrix.toml")
    assert "hunter2" not in caught.value.message
