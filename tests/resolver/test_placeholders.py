"""Placeholders in recipes are filled in, and rejected if they are unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from resolver.errors import CatalogError
from resolver.facts.catalog_files import read_file
from resolver.facts.placeholders import FORMS, fill, placeholder_error, placeholders

HEAD = 'schema = 1\n[[package]]\nname = "tiny"\ntitle = "t"\nstatus = "observed"\nsource = "x"\n'
ROW = '[[recipe]]\nbackend = "rocm"\nstatus = "observed"\nsource = "x"\n'


@pytest.mark.parametrize(("name", "form"), [(name, form) for name, forms in FORMS.items() for form in forms])
def test_placeholder_is_parsed_and_filled(name: str, form: str) -> None:
    text = f"a{{{name}:{form}}}b" if form else f"a{{{name}}}b"
    assert placeholder_error(text) == ""
    assert list(placeholders(text)) == [(name, form)]
    assert fill(text, lambda name, form: f"<{name}|{form}>") == f"a<{name}|{form}>b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{jfx}", "{jfx}; known: gfx"),
        ("{gfx:two}", "{gfx:one}"),
        ("{jobs:,}", "the forms of jobs are {jobs}"),
        ("{gfx", "is not part of a placeholder"),
        ("gfx}", "is not part of a placeholder"),
        ("${HOME}", "is not part of a placeholder"),
        ("{}", "is not part of a placeholder"),
    ],
)
def test_invalid_placeholder_is_named(text: str, message: str) -> None:
    assert message in placeholder_error(text)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('environment = { ARCH = "{jfx}" }', "environment"),
        ('options = ["--arch={gfx:x}"]', "options"),
        ('prepare = [["cmake", "-DARCH={gfx"]]', "prepare"),
        ("prepare = [[]]", "prepare"),
        ('attributes = { "tiny" = "1" }', "attributes"),
        ('all-ops = ["T_ALL"]', "all-ops"),
        ('ops = [{ name = "a", variable = "T_A", object = "a*.so", releases = "about 2" }]', "ops"),
    ],
)  # fmt: skip
def test_invalid_recipe_is_rejected_when_read(tmp_path: Path, line: str, key: str) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(f"{HEAD}{ROW}{line}\n")
    with pytest.raises(CatalogError) as caught:
        read_file(path)
    assert f"{path}:11: [[recipe]] tiny" in caught.value.message
    assert f"key {key}" in caught.value.message
