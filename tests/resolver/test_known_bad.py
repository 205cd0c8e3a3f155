"""Known-bad combinations: only the whole combination is refused or causes a warning, where it applies."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from resolver.answers.resolve import resolve
from resolver.compiling.known_bad import concerning, known_bad_warnings, problems_of
from resolver.errors import CatalogError
from resolver.facts.catalog import Catalog, load
from resolver.facts.schema import PLATFORM
from resolver.model import Conflict, Resolution
from resolver.versions import allows, parse_specifier
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes

Overlay = Callable[[str], Path]

TOGETHER = {
    "apex": "==1.9.0",
    "deepspeed": "==0.18.2",
    "bitsandbytes": "==0.48.2",
    "causal-conv1d": "==1.6.0",
}
"""Versions that resolve together on lumi-g in March 2026 with the shipped catalog."""


def _row(combination: dict[str, str], *keys: str) -> str:
    inner = ", ".join(f"{name} = {json.dumps(text)}" for name, text in combination.items())
    return "\n".join(
        [
            "[[known-bad]]",
            f"combination = {{ {inner} }}",
            'problem = "they corrupt each other"',
            'status = "observed"',
            'source = "a bad day"',
            *keys,
            "",
        ]
    )


def _first(number: int) -> dict[str, str]:
    return dict(itertools.islice(TOGETHER.items(), number))


def _pinned(names: Iterable[str]) -> str:
    return " ".join(f"{name}{TOGETHER[name]}" for name in names)


def _picks(answer: Resolution | Conflict) -> dict[str, str]:
    assert isinstance(answer, Resolution), answer
    return {pick.name: pick.version for pick in answer.picks}


def _said(answer: Resolution | Conflict) -> list[str]:
    assert isinstance(answer, Resolution), answer
    return [warning for warning in answer.warnings if "they corrupt each other" in warning]


def test_problem_of_nearly_every_answer_is_only_explained(overlay: Overlay) -> None:
    """It changes no answer and is no warning."""
    combination = _first(2)
    mine = load([overlay(_row(combination, 'effect = "explain"'))])
    answer = resolve(mine, ask(mine, _pinned(combination)))
    assert _picks(answer).items() >= {name: text[2:] for name, text in combination.items()}.items()
    assert _said(answer) == []
    assert isinstance(answer, Resolution)
    for name in combination:
        problems = problems_of(mine, answer, name)
        assert "apex 1.9.0 and deepspeed 0.18.2: they corrupt each other (a bad day)." in problems
    assert not any("corrupt" in text for text in problems_of(mine, answer, "torch"))


SHOWN = {
    ("warn", "wrong results"): True,
    ("warn", "hang"): True,
    ("warn", "slow"): True,
    ("warn", "missing feature"): True,
    ("warn", "handled"): False,
    ("explain", "wrong results"): True,
    ("explain", "hang"): True,
    ("explain", "slow"): False,
    ("explain", "missing feature"): False,
    ("explain", "handled"): False,
}


@pytest.mark.parametrize(("keys", "shown"), SHOWN.items())
def test_rank_decides_what_an_answer_says(keys: tuple[str, str], shown: bool, overlay: Overlay) -> None:
    effect, rank = keys
    combination = _first(2)
    row = _row(combination, f'effect = "{effect}"', f'rank = "{rank}"')
    answer = resolve(mine := load([overlay(row)]), ask(mine, _pinned(combination)))
    assert bool(_said(answer)) == shown


def test_gravest_problem_is_said_first(overlay: Overlay) -> None:
    ranks = ["slow", "wrong results", "missing feature", "hang"]
    rows = [
        _row({name: TOGETHER[name]}, 'effect = "warn"', f'rank = "{rank}"')
        for name, rank in zip(TOGETHER, ranks, strict=True)
    ]
    mine = load([overlay("\n".join(rows))])
    said = [warning.partition(" ")[0] for warning in _said(resolve(mine, ask(mine, _pinned(TOGETHER))))]
    assert said == ["deepspeed", "causal-conv1d", "apex", "bitsandbytes"]


def test_release_that_writes_half_of_its_results_is_known(catalog: Catalog) -> None:
    """Bitsandbytes 0.49 starts too few blocks for wavefronts of 64; RDNA's have 32."""
    for gfx, bad in {"gfx90a": True, "gfx942": True, "gfx1100": False}.items():
        target = replace(ask(catalog, "", site="frontier").target, gfx=(gfx,))
        for version in ("0.48.2", "0.49.0", "0.49.1", "0.49.2", "0.50.0"):
            said = known_bad_warnings(catalog, target, {"bitsandbytes": version})
            assert any("half of each result" in str(each) for each in said) == (bad and "0.49" in version)


def test_gravest_fact_about_a_gpu_is_said_of_nearly_every_answer(catalog: Catalog) -> None:
    target = ask(catalog, "").target
    said = known_bad_warnings(catalog, target, {"torch": "2.9.1+rocm6.4"})
    assert "silently diverge" in str(said[0])


# Refused combinations.


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_whole_combination_is_refused_with_source(number: int, catalog: Catalog, overlay: Overlay) -> None:
    combination = _first(number)
    request = ask(catalog, _pinned(combination))
    assert isinstance(resolve(catalog, request), Resolution)
    answer = resolve(load([overlay(_row(combination))]), request)
    assert isinstance(answer, Conflict)
    core = "\n".join(item.text for item in answer.core)
    for name, text in combination.items():
        assert f"you asked for {name}{text}" in core
        assert f"{name} {text.removeprefix('==')}" in core
    assert "they corrupt each other" in core
    assert "a bad day" in {item.source for item in answer.core}


@pytest.mark.parametrize("number", [2, 3, 4])
def test_parts_of_combination_stay_possible(number: int, overlay: Overlay) -> None:
    combination = _first(number)
    mine = load([overlay(_row(combination))])
    for part in itertools.combinations(combination, number - 1):
        picks = _picks(resolve(mine, ask(mine, _pinned(part))))
        assert {name: f"=={picks[name]}" for name in part} == {name: combination[name] for name in part}
        assert picks.keys().isdisjoint(combination.keys() - set(part))


@pytest.mark.parametrize("number", [2, 3, 4])
def test_combination_is_avoided_by_any_component(number: int, overlay: Overlay) -> None:
    combination = _first(number)
    mine = load([overlay(_row(combination))])
    for name, text in combination.items():
        others = _pinned(other for other in combination if other != name)
        requirements = f"{others} {name}{text.replace('==', '!=')}"
        assert _picks(resolve(mine, ask(mine, requirements))).keys() >= combination.keys(), name


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_unpinned_request_avoids_combination(number: int, overlay: Overlay) -> None:
    combination = _first(number)
    mine = load([overlay(_row(combination))])
    picks = _picks(resolve(mine, ask(mine, " ".join(combination))))
    inside = [
        allows([parse_specifier(text)], picks[name]) for name, text in combination.items() if name in picks
    ]
    assert picks.keys() >= combination.keys()
    assert not all(inside)


def test_component_without_versions_means_all(overlay: Overlay) -> None:
    mine = load([overlay(_row({"apex": "", "deepspeed": ""}))])
    assert isinstance(resolve(mine, ask(mine, "apex deepspeed")), Conflict)
    assert isinstance(resolve(mine, ask(mine, "apex")), Resolution)
    assert isinstance(resolve(mine, ask(mine, "deepspeed")), Resolution)


def test_combination_may_contain_platform(overlay: Overlay) -> None:
    mine = load([overlay(_row({"apex": "", "python": "==3.12", "rocm": "==6.4.*"}))])
    assert isinstance(resolve(mine, ask(mine, "apex python==3.12 rocm==6.4.*")), Conflict)
    for requirements in (
        "apex python==3.11 rocm==6.4.*",
        "apex python==3.12 rocm==6.2.*",
        "python==3.12 rocm==6.4.4",
    ):
        assert isinstance(resolve(mine, ask(mine, requirements)), Resolution), requirements


@pytest.mark.parametrize("number", [2, 3])
def test_weak_row_excludes_only_its_combination(number: int, catalog: Catalog, overlay: Overlay) -> None:
    combination = dict(
        itertools.islice({"torch": ">=2.8", "rocm": ">=6.4", "python": "==3.8"}.items(), number)
    )
    mine = load([overlay(_row(combination))])
    request = ask(catalog, "torch<2.8")
    assert _picks(resolve(mine, request)) == _picks(resolve(catalog, request))
    assert isinstance(resolve(mine, ask(mine, "torch rocm==6.3.*")), Resolution)


# Conditions.


@pytest.mark.parametrize("effect", ["refuse", "warn"])
@pytest.mark.parametrize(
    ("condition", "counts"),
    [
        ("", True),
        ('backend = "rocm"', True),
        ('backend = "cpu"', False),
        ('gfx = ["gfx90a"]', True),
        ('gfx = ["gfx942", "gfx90a"]', True),
        ('gfx = ["gfx942"]', False),
        ('site = "lumi-g"', True),
        ('site = "archer2"', False),
        ('backend = "rocm"\ngfx = ["gfx90a"]\nsite = "lumi-g"', True),
        ('backend = "rocm"\ngfx = ["gfx90a"]\nsite = "archer2"', False),
    ],
)
def test_combination_needs_all_conditions(
    condition: str, counts: bool, effect: str, overlay: Overlay
) -> None:
    combination = _first(2)
    mine = load([overlay(_row(combination, f'effect = "{effect}"', condition))])
    answer = resolve(mine, ask(mine, _pinned(combination)))
    if effect == "refuse":
        assert isinstance(answer, Conflict) == counts
    else:
        assert len(_said(answer)) == counts


def test_combination_condition_on_architecture(overlay: Overlay) -> None:
    mine = load([overlay(_row({"torch": "==2.9.1"}, 'gfx = ["gfx942"]'))])
    for gfx, refused in ((["gfx90a"], False), (["gfx942"], True), (["gfx90a", "gfx942"], True)):
        answer = resolve(mine, ask(mine, "torch==2.9.1", gfx=gfx))
        assert isinstance(answer, Conflict) == refused, gfx


def test_combination_for_cpu_backend(overlay: Overlay) -> None:
    mine = load([overlay(_row({"deepspeed": "==0.19.8"}, 'backend = "cpu"'))])
    for site, refused in (("lumi-c", True), ("lumi-g", False)):
        answer = resolve(mine, ask(mine, "deepspeed==0.19.8", site=site, day="2026-11-01"))
        assert isinstance(answer, Conflict) == refused, site


# Warnings.


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_warning_needs_whole_combination(number: int, overlay: Overlay) -> None:
    combination = _first(number)
    mine = load([overlay(_row(combination, 'effect = "warn"'))])
    (warning,) = _said(resolve(mine, ask(mine, _pinned(combination))))
    versions = [f"{name} {text.removeprefix('==')}" for name, text in combination.items()]
    assert [version for version in versions if version not in warning] == []
    assert "a bad day" in warning
    for part in itertools.combinations(combination, number - 1):
        assert _said(resolve(mine, ask(mine, _pinned(part) or "torch"))) == []


def test_warning_does_not_change_picks(catalog: Catalog, overlay: Overlay) -> None:
    mine = load([overlay(_row(_first(3), 'effect = "warn"'))])
    request = ask(catalog, " ".join(TOGETHER))
    assert _picks(resolve(mine, request)) == _picks(resolve(catalog, request))


# Rows.


def test_overlay_replaces_row_of_same_combination(tmp_path: Path) -> None:
    for name, effect in (("shipped", "refuse"), ("mine", "warn")):
        row = _row(_first(2), f'effect = "{effect}"')
        (tmp_path / f"{name}.toml").write_text(f"schema = 1\n{row}", encoding="utf-8")
    shipped, mine = tmp_path / "shipped.toml", tmp_path / "mine.toml"
    both = load([shipped, mine])
    assert isinstance(resolve(load([shipped]), ask(both, _pinned(_first(2)))), Conflict)
    assert len(_said(resolve(both, ask(both, _pinned(_first(2)))))) == 1


def test_rows_with_other_conditions_coexist(catalog: Catalog, overlay: Overlay) -> None:
    rows = [_row(_first(1), f'site = "{site}"') for site in ("lumi-g", "archer2")]
    assert len(load([overlay("".join(rows))]).known_bad) == len(catalog.known_bad) + 2


@pytest.mark.parametrize(
    ("combination", "key", "quoted", "hint"),
    [
        ({"apx": "==1.0"}, "", "'apx'", "Did you mean apex?"),
        ({"apex": ""}, 'gfx = ["gfx90b"]', "'gfx90b'", "gfx90a"),
        ({"apex": "abc"}, "", "abc", ""),
    ],
)
def test_row_with_unknown_name_is_refused(
    combination: dict[str, str], key: str, quoted: str, hint: str, overlay: Overlay
) -> None:
    with pytest.raises(CatalogError) as failure:
        load([overlay(_row(combination, key))])
    assert quoted in failure.value.message
    assert hint in failure.value.hint


# The shipped rows.


def _versions(catalog: Catalog, name: str) -> list[str]:
    if name in {"rocm", "torch", "python"}:
        return [*getattr(catalog, name), *(release.version for release in catalog.releases_of(name))]
    releases = [release.version for release in catalog.releases_of(name)]
    if name == "rccl-net":
        return [*releases, *(row.network_plugin for row in catalog.image.values() if row.network_plugin)]
    if name == "libfabric":  # images of users may have any
        return ["1.10.0", *(row.libfabric for row in catalog.image.values() if row.libfabric)]
    return releases


def _is_known(text: str, versions: Sequence[str]) -> bool:
    specifiers = [parse_specifier(text)] if text else []
    return any(allows(specifiers, version) for version in versions)


def _is_between(text: str, versions: Sequence[str]) -> bool:
    """Return whether a specifier means releases of package indexes between known ones, or newer ones."""
    return all(clause.version in versions and clause.operator != "==" for clause in parse_specifier(text))


def test_shipped_rows_name_known_versions(catalog: Catalog) -> None:
    for row in catalog.known_bad.values():
        names = row.combination.keys() & {*PLATFORM, *catalog.package, "torch"}
        for name, text in row.combination.items() if names else ():  # others are projects of an index
            versions = _versions(catalog, name)
            assert _is_known(text, versions) or _is_between(text, versions), (row.combination, name)


def test_shipped_refusals_conflict_as_a_whole(catalog: Catalog) -> None:
    refusing = [row for row in catalog.known_bad.values() if row.effect == "refuse"]
    assert refusing != []
    for row in refusing:
        if "rccl-net" in row.combination:
            continue  # about the plugin and the libfabric of an image: tests/resolver/test_network.py
        if not all(_is_known(text, _versions(catalog, name)) for name, text in row.combination.items()):
            continue  # about releases of package indexes
        first = next(iter(row.combination))
        others = {one.variant for one in catalog.releases_of(first)} - {row.except_variant, ""}
        variant = f"[{min(others)}]" if row.except_variant else ""  # another that has the problem
        parts = [f"{name}{variant * (name == first)}{text}" for name, text in row.combination.items()]
        request = ask(catalog, " ".join(parts), day="2026-11-01")
        assert row in concerning(catalog, request.target)
        assert isinstance(resolve(catalog, request), Conflict), row.combination
        for part in parts if len(parts) > 1 else ():
            alone = resolve(catalog, ask(catalog, part, day="2026-11-01", driver="31.40"))
            here = resolve(catalog, ask(catalog, part, day="2026-11-01"))
            assert isinstance(here, Resolution) or isinstance(alone, Resolution), part


def test_problem_is_not_that_of_an_excepted_variant(catalog: Catalog) -> None:
    rows = [row for row in catalog.known_bad.values() if row.except_variant and not row.excludes]
    assert rows
    for row in rows:
        name = next(iter(row.combination))
        for variant, expected in ((row.except_variant, False), ("", True)):
            suffix = f"[{variant}]" if variant else ""
            found = resolve(catalog, ask(catalog, f"{name}{suffix}{row.combination[name]}"))
            assert isinstance(found, Resolution), found
            pick = found.pick(name)
            assert pick is not None
            if not variant and pick.variant:
                continue  # the default of the catalog is the variant
            assert any(row.problem in text for text in found.warnings) is expected, variant


@pytest.mark.parametrize(("text", "warned"), [("top mmcv", True), ("top mmcv<2.2", False)])
def test_row_that_only_warns_may_name_projects_of_an_index(catalog: Catalog, text: str, warned: bool) -> None:
    """MMDetection refuses to be imported with a newer mmcv, which its metadata do not say."""
    indexes = FakeIndexes(
        {"top": {"1": ["mmdet"]}, "mmdet": {"3.3.0": []}, "mmcv": {"2.2.0": [], "2.1.0": []}}
    )
    answer = resolve(catalog, ask(catalog, text, site="local"), indexes)
    assert isinstance(answer, Resolution)
    assert any("[mmdet-mmcv]" in f"{warning} [{warning.id}]" for warning in answer.warnings) is warned


def test_row_that_excludes_names_only_components_of_the_catalog(overlay: Overlay) -> None:
    with pytest.raises(CatalogError, match="names the component 'mmcv'"):
        load([overlay(_row({"apex": "", "mmcv": ""}))])
