"""Sdists whose metadata a build may change, direct references, and extras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from msgspec.structs import replace

from resolver.answers.resolve import resolve
from resolver.errors import CycleError, LockError, UsageError
from resolver.facts.catalog import Catalog
from resolver.facts.schema import Backend, Recipe
from resolver.indexes import Content, SourceClass, StatedMetadata
from resolver.lock import dumps, read_lock
from resolver.model import Conflict, Preinstalled, Request, Resolution
from resolver.providers.inferred import with_releases_of
from resolver.requirements import parse_requirement
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

Projects = dict[str, Mapping[str, FakeRelease | Sequence[str]]]
Kind = Literal["pure", "compiled", "torch", "downloads", "unread"]
"""The kinds of sources that are not refused."""
STATIC = FakeRelease(wheels=(), sdist=True)
LEGACY = FakeRelease(wheels=(), sdist=True, static=False, requires=["six>=1"])


def _resolved(catalog: Catalog, indexes: FakeIndexes, text: str) -> Resolution:
    request = ask(catalog, text, site="local", backend="cpu", python="3.12")
    answer = resolve(catalog, request, indexes)
    assert isinstance(answer, Resolution), answer
    return answer


# Metadata that a build may change.


def test_sdist_with_dynamic_metadata_is_inferred(catalog: Catalog) -> None:
    indexes = FakeIndexes({"old": {"2.0": LEGACY, "1.0": STATIC}, "six": {"1.17": []}})
    lock = _resolved(catalog, indexes, "old")
    pick = lock.pick("old")
    assert pick is not None
    assert (pick.version, pick.support, pick.origin) == ("2.0", "inferred", "build")
    assert [fact.status for fact in pick.facts] == ["documented", "inferred"]
    assert lock.version_of("six") == "1.17"
    assert lock.incomplete == ("old",)


def test_installed_release_is_not_built_from_its_sdist(catalog: Catalog) -> None:
    indexes = FakeIndexes({"old": {"2.0": LEGACY}, "six": {"1.17": []}})
    request = ask(catalog, "old", site="local", backend="cpu", python="3.12")
    lock = resolve(catalog, replace(request, preinstalled=Preinstalled("list.txt", {"old": "2.0"})), indexes)
    assert isinstance(lock, Resolution), lock
    pick = lock.pick("old")
    assert pick is not None
    assert (pick.origin, pick.support, pick.files) == ("preinstalled", "documented", ())
    assert not any("PKG-INFO" in warning for warning in lock.warnings)


def test_dynamic_metadata_can_exclude_a_release(catalog: Catalog) -> None:
    indexes = FakeIndexes({"old": {"2.0": LEGACY, "1.0": []}, "six": {"0.9": []}})
    lock = _resolved(catalog, indexes, "old")
    assert lock.version_of("old") == "1.0"
    assert not any("PKG-INFO" in warning for warning in lock.warnings)


def test_dynamic_metadata_counts_for_the_catalog(catalog: Catalog) -> None:
    release = FakeRelease(wheels=(), sdist=True, static=False, requires=["torch==2.9.*"])
    lock = _resolved(catalog, FakeIndexes({"old": {"2.0": release}}), "old")
    assert lock.version_of("torch").startswith("2.9.")


def test_wheel_is_preferred_to_sdist(catalog: Catalog) -> None:
    release = FakeRelease(sdist=True, static=False)
    pick = _resolved(catalog, FakeIndexes({"mixed": {"1.0": release}}), "mixed").pick("mixed")
    assert pick is not None
    assert (pick.support, pick.origin) == ("documented", "published")


def test_sdist_is_used_if_no_wheel_fits(catalog: Catalog) -> None:
    release = FakeRelease(wheels=["cp311-cp311-manylinux_2_17_x86_64"], sdist=True, static=False)
    pick = _resolved(catalog, FakeIndexes({"mixed": {"1.0": release}}), "mixed").pick("mixed")
    assert pick is not None
    assert (pick.support, pick.origin) == ("inferred", "build")


# Sources are builds.


def _draft(kind: Kind, backend: Backend) -> Content:
    recipe = Recipe(
        package="ext",
        backend=backend,
        undeclared=("setuptools<82", "torch", "helper") if kind == "torch" else ("setuptools",),
        match_runtime=("torch",) if kind == "torch" else (),
        status="inferred",
        source="ext-1.0.tar.gz",
    )
    source = SourceClass(kind, "setup.py:3 shows it")
    return Content("", source=source, recipes=(recipe,) if kind != "unread" else ())


@pytest.mark.parametrize("backend", get_args(Backend))
@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_distribution_is_a_wheel_or_a_build(
    catalog: Catalog, kind: Kind, hashed: bool, backend: Backend
) -> None:
    source = replace(STATIC, source=_draft(kind, backend), hashed=hashed)
    projects: Projects = {"ext": {"1.0": source}, "user": {"1": ["ext"]}}
    request = ask(
        catalog, "user", site="lumi-g" if backend == "rocm" else "local", backend=backend, python="3.12"
    )
    lock = resolve(catalog, request, FakeIndexes(projects))
    assert isinstance(lock, Resolution), lock
    assert all(pick.files[0].name.endswith(".whl") for pick in lock.distributions if pick.origin != "build")
    (pick,) = lock.built()
    assert pick.lacks_recipe == (kind == "unread" or not hashed)
    assert pick.lacks_recipe != (with_releases_of(catalog, lock).recipes_of("ext") == [pick.recipe])
    assert any(pick.name in warning for warning in lock.warnings) == (pick.lacks_recipe or kind != "pure")


def test_drafted_build_comes_after_torch_and_what_its_script_imports(catalog: Catalog) -> None:
    projects = {"ext": {"1.0": replace(STATIC, source=_draft("torch", "cpu"))}, "helper": {"1": STATIC}}
    request = ask(catalog, "ext helper torch", site="local", backend="cpu", python="3.12")
    lock = resolve(catalog, request, FakeIndexes(projects))
    assert isinstance(lock, Resolution), lock
    rank = {name: number for number, group in enumerate(lock.order) for name in group}
    assert rank["ext"] > max(rank["torch"], rank["helper"])
    edges = {(edge.object, edge.kind, edge.requirement) for edge in lock.edges if edge.subject == "ext"}
    assert edges == {
        ("helper", "build", ""),
        ("setuptools", "build", "setuptools<82"),
        ("torch", "build", ""),
        ("torch", "run", ""),
    }


def test_cycle_of_builds_is_named(catalog: Catalog) -> None:
    """The script of ext imports helper, whose wheel requires ext."""
    projects: Projects = {
        "ext": {"1.0": replace(STATIC, source=_draft("torch", "cpu"))},
        "helper": {"1": ["ext"]},
    }
    with pytest.raises(CycleError, match=r"(ext|helper) -> (ext|helper) -> "):
        _resolved(catalog, FakeIndexes(projects), "helper")


def test_drafted_recipe_is_the_same_in_a_lock_that_was_read(catalog: Catalog, tmp_path: Path) -> None:
    """An empty list is not the default of ``match-runtime``, so it must not be left out."""
    indexes = FakeIndexes({"ext": {"1.0": replace(STATIC, source=_draft("pure", "cpu"))}})
    lock = _resolved(catalog, indexes, "ext")
    (tmp_path / "matrix.lock").write_text(dumps(lock))
    assert read_lock(tmp_path / "matrix.lock").picks == lock.picks


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"package": "torch"}, "it is for torch ==1.0"),
        ({"releases": ""}, "it is for ext"),
        ({"environment": {"A": "{other}"}}, "unknown placeholder"),
        ({"environment": {"A=$(x)": "1"}}, "is not the name of an environment variable"),
        ({"declared": ("-r file",)}, "is not a valid requirement"),
        ({"prepare": (("rm", "x"),)}, "it has prepare"),
    ],
)
def test_recipe_in_a_lock_of_others_is_checked(catalog: Catalog, change: dict[str, Any], text: str) -> None:
    indexes = FakeIndexes({"ext": {"1.0": replace(STATIC, source=_draft("pure", "cpu"))}})
    lock = _resolved(catalog, indexes, "ext")
    (pick,) = lock.built()
    assert pick.recipe is not None
    other = replace(pick, recipe=replace(pick.recipe, **change))
    with pytest.raises(LockError, match=f"the recipe of ext: .*{text}"):
        dumps(replace(lock, picks=tuple(other if one is pick else one for one in lock.picks)))


def test_torch_that_a_source_needs_and_the_request_lacks_is_named(catalog: Catalog) -> None:
    indexes = FakeIndexes({"ext": {"1.0": replace(STATIC, source=_draft("torch", "cpu"))}})
    warnings = _resolved(catalog, indexes, "ext").warnings
    assert any(
        "compiled against torch, and the request lacks it: `matrix add torch`" in text for text in warnings
    )


# Direct references.


URL = "https://host.example/lib-2.0-py3-none-any.whl"
OTHER = "https://host.example/lib-3.0-py3-none-any.whl"
INDEX: Projects = {"lib": {"1.0": [], "4.0": []}, "six": {"1.17": []}, "user": {"1.0": ["lib>=2"], "0.9": []}}


def _with_url(release: FakeRelease | None = None) -> FakeIndexes:
    release = release or FakeRelease(requires=["six"], extras=["fast"])
    return FakeIndexes(INDEX, direct={URL: ("lib", "2.0", release), OTHER: ("lib", "3.0", FakeRelease())})


def _request(catalog: Catalog, *texts: str, **limits: list[str]) -> Request:
    request = replace(
        ask(catalog, "", site="local", backend="cpu", python="3.12"),
        requirements=tuple(map(parse_requirement, texts)),
    )
    return replace(request, **{kind: tuple(map(parse_requirement, texts)) for kind, texts in limits.items()})


def _answer(catalog: Catalog, indexes: FakeIndexes, *texts: str, **limits: list[str]) -> Resolution:
    answer = resolve(catalog, _request(catalog, *texts, **limits), indexes)
    assert isinstance(answer, Resolution), answer
    return answer


def test_url_is_the_only_release(catalog: Catalog) -> None:
    indexes = _with_url()
    lock = _answer(catalog, indexes, f"lib @ {URL}", "user")
    pick = lock.pick("lib")
    assert pick is not None
    assert (pick.version, pick.index, pick.is_sdist) == ("2.0", "", False)
    assert pick.direct_url == f"{URL}#sha256={pick.files[0].sha256}"
    fact = pick.facts[0]
    assert (fact.text, fact.status, fact.source) == (
        "lib 2.0 comes from the URL in the request",
        "documented",
        URL,
    )
    assert (lock.version_of("user"), lock.version_of("six")) == ("1.0", "1.17")
    assert "lib" not in indexes.asked


@pytest.mark.parametrize("kind", ["constraints", "overrides"])
def test_url_in_limits_is_the_only_release(catalog: Catalog, kind: str) -> None:
    lock = _answer(catalog, _with_url(), "user", **{kind: [f"lib @ {URL}"]})
    assert lock.version_of("lib") == "2.0"
    assert _answer(catalog, _with_url(), "six", **{kind: [f"lib @ {URL}"]}).pick("lib") is None


def test_url_whose_marker_is_false_does_not_count(catalog: Catalog) -> None:
    lock = _answer(catalog, _with_url(), f"lib @ {URL} ; sys_platform == 'win32'", "user")
    assert lock.version_of("lib") == "4.0"
    texts = [f"lib @ {URL} ; sys_platform == 'win32'", f"lib @ {OTHER} ; sys_platform == 'linux'"]
    assert _answer(catalog, _with_url(), *texts).version_of("lib") == "3.0"


def test_two_urls_of_one_distribution_are_an_error(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match="have different URLs") as caught:
        _answer(catalog, _with_url(), f"lib @ {URL}", constraints=[f"lib @ {OTHER}"])
    assert caught.value.hint == "Keep one URL of lib."
    lock = _answer(catalog, _with_url(), f"lib @ {URL}", f"lib[fast] @ {URL}")
    assert lock.version_of("lib") == "2.0"


def test_version_of_the_url_can_conflict(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match=r"matches 'lib>=3', but the URL of lib points to 2\.0"):
        _answer(catalog, _with_url(), f"lib @ {URL}", "lib>=3")
    projects: Projects = {**INDEX, "user": {"1.0": ["lib>=3"]}}
    indexes = FakeIndexes(projects, direct={URL: ("lib", "2.0", FakeRelease())})
    answer = resolve(catalog, _request(catalog, f"lib @ {URL}", "user"), indexes)
    assert isinstance(answer, Conflict)
    assert "user 1.0 requires lib>=3, but the URL of lib points to 2.0" in {item.text for item in answer.core}


def test_wheel_at_url_must_fit_the_target(catalog: Catalog) -> None:
    indexes = _with_url(FakeRelease(requires_python="<3.12"))
    answer = resolve(catalog, _request(catalog, f"lib @ {URL}"), indexes)
    assert isinstance(answer, Conflict)
    assert any("requires Python <3.12" in item.text and item.source == URL for item in answer.core)


def test_metadata_may_not_add_a_url(catalog: Catalog) -> None:
    projects: Projects = {"needy": {"1.0": [f"lib @ {URL}"], "0.9": []}, "lib": {"1.0": []}}
    indexes = FakeIndexes(projects, direct={URL: ("lib", "2.0", FakeRelease())})
    assert _answer(catalog, indexes, "needy").version_of("needy") == "0.9"
    lock = _answer(catalog, indexes, "needy", f"lib @ {URL}")
    assert (lock.version_of("needy"), lock.version_of("lib")) == ("1.0", "2.0")


@pytest.mark.parametrize("kind", ["requirements", "constraints", "overrides"])
def test_url_of_the_catalog_is_an_error(catalog: Catalog, kind: str) -> None:
    request = replace(_request(catalog, "torch"), **{kind: (parse_requirement(f"torch @ {URL}"),)})
    with pytest.raises(UsageError, match="has a URL, but torch must be from the catalog"):
        resolve(catalog, request, _with_url())


# Extras.


def test_missing_extra_is_a_warning(catalog: Catalog) -> None:
    lock = _answer(catalog, _with_url(), f"lib[fast,slow] @ {URL}")
    assert "lib 2.0 does not provide the extra 'slow'." in lock.warnings
    assert not any("'fast'" in warning for warning in lock.warnings)


def test_extra_of_a_git_commit_is_known_when_its_backend_was_asked(catalog: Catalog) -> None:
    for extra in ("fast", "73423b4"):  # the second one is a variant
        answer = resolve(catalog, ask(catalog, f"apex[{extra}]", day="2026-11-22"), FakeIndexes({}))
        assert isinstance(answer, Resolution), answer
        assert not [warning for warning in answer.warnings if f"'{extra}'" in warning]
        assert answer.incomplete == ("apex",)


def test_misspelt_variant_is_an_error_and_not_an_extra(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match="no variant 'trition'") as caught:
        resolve(catalog, ask(catalog, "flash-attn[trition]", day="2026-11-22"), FakeIndexes({}))
    assert caught.value.hint == "Did you mean triton?"


def test_extra_of_the_catalog(catalog: Catalog) -> None:
    release = FakeRelease(
        requires=["filelock", 'lib>=2 ; extra == "dev"', 'six ; extra == "docs"'], extras=["dev", "docs"]
    )
    closed = _answer(catalog, FakeIndexes({"filelock": {"1.0": []}}), "deepspeed").pick("deepspeed")
    assert closed is not None
    projects: Projects = {
        **INDEX,
        "filelock": {"1.0": []},
        "deepspeed": {closed.version: replace(release, sdist=True)},
    }
    lock = _answer(catalog, FakeIndexes(projects), "deepspeed[dev,none]")
    pick = lock.pick("deepspeed")
    assert pick is not None
    assert (pick.version, pick.extras) == (closed.version, ("dev", "none"))
    assert (lock.version_of("lib"), lock.version_of("filelock")) == ("4.0", "1.0")
    assert lock.pick("six") is None
    assert f"deepspeed {pick.version} does not provide the extra 'none'." in lock.warnings
    assert not any("'dev'" in warning for warning in lock.warnings)


@pytest.mark.parametrize(("other", "versions"), [("causal-conv1d", ">=1.5"), ("bitsandbytes", "")])
def test_extra_of_the_catalog_requires_other_packages_of_the_catalog(
    catalog: Catalog, other: str, versions: str
) -> None:
    """As in ``mamba-ssm[causal-conv1d]``: the catalog says what a build requires, not what extras do."""

    def answered(indexes: FakeIndexes, text: str) -> Resolution:
        answer = resolve(catalog, ask(catalog, text, day="2026-06-01"), indexes)
        assert isinstance(answer, Resolution), answer
        return answer

    version = answered(FakeIndexes({}), "mamba-ssm").version_of("mamba-ssm")
    release = FakeRelease(
        requires=["xformers", f"{other}{versions} ; extra == 'fast'"],
        extras=["fast"],
        sdist=True,
        static=False,
    )
    indexes = FakeIndexes({"mamba-ssm": {version: release}})
    lock = answered(indexes, "mamba-ssm[fast]")
    assert lock.version_of("mamba-ssm") == version
    assert lock.version_of(other)
    assert ("mamba-ssm", other) in {(edge.subject, edge.object) for edge in lock.edges}
    assert lock.pick("xformers") is None
    assert answered(indexes, "mamba-ssm").pick(other) is None


def test_source_whose_backend_was_asked_needs_no_index_that_lists_it(catalog: Catalog) -> None:
    request, indexes = _request(catalog, "deepspeed"), FakeIndexes({"filelock": {"1.0": []}})
    before = resolve(catalog, request, indexes)
    assert isinstance(before, Resolution)
    pick = before.pick("deepspeed")
    assert pick is not None
    assert before.incomplete == ("deepspeed",)
    assert any("deepspeed" in text and "does not list its files" in text for text in before.left_open)
    stated = StatedMetadata(pick.name, pick.version, pick.source_digest, ("filelock",))
    after = resolve(catalog, replace(request, stated=(stated,)), indexes)
    assert isinstance(after, Resolution)
    assert (after.incomplete, after.version_of("filelock")) == ((), "1.0")
    assert not [text for text in after.left_open if "deepspeed" in text]
    other = replace(stated, source="0" * 64)  # as of another file of this version
    assert resolve(catalog, replace(request, stated=(other,)), indexes) == replace(
        before, request=replace(request, stated=(other,))
    )
