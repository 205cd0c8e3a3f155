"""Specifiers as intervals allow the same versions as `packaging`, one by one and all at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from packaging.requirements import Requirement as Pep508
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import resolver
from resolver.errors import UsageError
from resolver.requirements import exact_requirement, normalize_name, parse_requirement, required_name
from resolver.versions import Versions, sort_key, specifier_or_none
from tests.resolver.universe import EXAMPLES

NUMBERS = st.sampled_from(["0", "1", "2", "10"])
RELEASES = st.lists(NUMBERS, min_size=1, max_size=4).map(".".join)
SUFFIXES = st.sampled_from(
    ["", "", "", "a1", "rc2", ".dev3", ".post1", "a1.post2", "rc1.dev1", ".post1.dev2"]
)
LOCALS = st.sampled_from(["", "", "+cpu", "+rocm6.2", "+RocM6-2", "+1"])
VERSIONS = st.builds("{}{}{}{}".format, st.sampled_from(["", "", "", "1!"]), RELEASES, SUFFIXES, LOCALS)
OPERATORS = st.sampled_from(["==", "!=", "<=", ">=", "<", ">", "~=", "==="])
CLAUSES = st.builds(
    "{}{}{}{}".format,
    OPERATORS,
    st.sampled_from(["", " "]),
    RELEASES | VERSIONS,
    st.sampled_from(["", "", ".*"]),
)
SPECIFIERS = st.lists(CLAUSES, max_size=3).map(",".join)


@EXAMPLES
@given(SPECIFIERS, st.lists(VERSIONS, unique=True, max_size=8))
@example("~=1.0", ["1.0a1", "1", "1.99", "2a1", "2"])
@example("<1", ["1a1", "1.dev0", "0.9.post1", "1+cpu"])
@example(">1", ["1.post1", "1+cpu", "1.post1.dev1", "1.0.1.dev1"])
@example("==1.0.*", ["1", "1a1", "1.0.9", "1.1.dev0", "1!1.0"])
@example("!=1+cpu", ["1", "1+cpu", "1.0+CPU"])
@example(">=1", ["1.post1.dev1", "1a1.post1", "1rc1.dev1"])
@example("<1a2", ["1a1", "1a2.dev1", "1a2", "0.9"])
@example("<=1a2+cpu", ["1a1"])
@example("==2.5.0a0+gitf0da167", ["2.5.0a0", "2.5.0a0+gitf0da167", "2.5.0"])
@example("==1a0.*", ["1a0"])
def test_specifier_allows_same_versions_as_packaging(text: str, versions: list[str]) -> None:
    try:
        known = SpecifierSet(text, prereleases=True)
    except InvalidSpecifier:
        assert specifier_or_none(text) is None
        event("refused")
        return
    specifier = specifier_or_none(text)
    assert specifier is not None
    event("left to packaging" if specifier.other is not None else "plain")
    allowed = {version: known.contains(Version(version), prereleases=True) for version in versions}
    assert {version: specifier.allows(version) for version in versions} == allowed
    masks = {version: 1 << number for number, version in enumerate(versions)} | {"ubuntu.sif": 1 << 60}
    assert Versions(masks).allowed_by(specifier) == sum(
        masks[version] for version in versions if allowed[version]
    )


@EXAMPLES
@given(SPECIFIERS)
@example(">= 2.4 , < 3")
@example("==1,==1")
@example("==2,")
def test_specifier_text_is_the_same_as_packagings(text: str) -> None:
    specifier = specifier_or_none(text)
    if specifier is not None:
        assert str(SpecifierSet(str(specifier))) == str(SpecifierSet(text))
        assert sorted((clause.operator, clause.version) for clause in specifier) == sorted(
            (clause.operator, clause.version) for clause in SpecifierSet(str(specifier))
        )


@EXAMPLES
@given(st.lists(VERSIONS, max_size=8))
def test_versions_sort_as_in_packaging(versions: list[str]) -> None:
    assert [Version(version) for version in sorted(versions, key=sort_key)] == sorted(map(Version, versions))


@EXAMPLES
@given(st.text(alphabet="abZ09._-", min_size=1, max_size=12))
def test_name_is_normalized_as_in_packaging(name: str) -> None:
    assert normalize_name(name) == canonicalize_name(name)


@EXAMPLES
@given(
    st.sampled_from(["apex", "Flash_Attn", "a.b-c", " torch "]),
    st.sampled_from(["", "[all]"]),
    SPECIFIERS | st.just("@ https://example.org/a.whl"),
    st.sampled_from(["", "; python_version < '3.12'"]),
)
def test_requirement_is_parsed_as_in_packaging(name: str, extra: str, rest: str, marker: str) -> None:
    text = f"{name}{extra}{rest}{marker}"
    try:
        known = Pep508(text)
    except ValueError:
        with pytest.raises(UsageError, match="is not a valid requirement"):
            parse_requirement(text)
        return
    assert required_name(text) == canonicalize_name(known.name)
    pins = [clause.version for clause in known.specifier if clause.operator == "=="]
    if len(known.specifier) == 1 and pins and not known.extras and known.marker is None:
        assert exact_requirement(text) == ((required_name(text), pins[0]) if "*" not in pins[0] else None)
    else:
        assert exact_requirement(text) is None
    requirement = parse_requirement(text)
    assert (requirement.name, requirement.text) == (canonicalize_name(known.name), text.strip())
    assert set(requirement.extras) == {canonicalize_name(extra) for extra in known.extras}
    assert (requirement.url, requirement.marker) == (known.url or "", str(known.marker or ""))
    assert str(SpecifierSet(str(requirement.specifier or ""))) == str(known.specifier)


SLOW = {"packaging.specifiers", "packaging.requirements", "dataclasses", "subprocess", "logging"}
"""`packaging.specifiers` imports half of the standard library, and `dataclasses` imports `inspect`."""


@pytest.mark.slow
def test_resolve_does_not_import_slow_modules(tmp_path: Path) -> None:
    """Print JSON, because rich, which prints text, imports `dataclasses`."""
    arguments = ["resolve", "torch>=2.4", "apex", "--date", "2026-03-01", "--quiet", "--format", "json"]
    code = (
        f"import sys; from matrix.cli import main; code = main({arguments});"
        f"print(*sorted({SLOW} & sys.modules.keys()), file=sys.stderr); sys.exit(code)"
    )
    own = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHONPATH": str(Path(resolver.__file__).parent.parent),
    }
    for _ in range(2):  # the first run also imports the modules that read the catalog's files
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=own, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == ""
