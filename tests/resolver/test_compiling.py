"""Every kind of fact becomes demands and relations with the same meaning as the catalog."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from resolver.answers.resolve import Search, resolve
from resolver.compiling import add_distributions, compile_problem, start_problem
from resolver.compiling.known_bad import AVOIDED
from resolver.compiling.problem import ABSENT, Problem, bits, is_prerelease
from resolver.compiling.problem_builder import ProblemBuilder
from resolver.errors import UsageError
from resolver.facts.catalog import Catalog, load
from resolver.facts.schema import Release
from resolver.model import Conflict, Prefer, Resolution
from resolver.versions import minor, satisfies, sort_key
from tests.resolver.solve_helpers import ask, without_dates
from tests.resolver.solving import propagate

KNOWN = 'status = "documented"\nsource = "somewhere"\n'


def _left(problem: Problem, name: str) -> set[str]:
    """Return the versions of a component that propagation leaves."""
    domains = propagate(problem)
    assert domains is not None
    return {candidate.version for candidate in problem.variables[name].chosen(domains[name] & ~ABSENT)}


# The driver table.


def _verdict(problem: Problem, rocm: int, driver: int) -> str:
    (table,) = [
        relation
        for relation in problem.relations
        if (relation.subject.name, relation.object.name) == ("rocm", "kernel-driver")
    ]
    rows = table.rows_between(rocm, driver)
    if not rows:
        return "refused"
    return "at-own-risk" if all(row.risk for row in rows) else "supported"


def test_driver_table_decides_verdict(
    catalog: Catalog,
) -> None:
    problem = compile_problem(catalog, ask(catalog, "rocm"))
    rocm, drivers = problem.variables["rocm"], problem.variables["kernel-driver"]
    verdicts = {
        (candidate.version, other.version): _verdict(problem, i, j)
        for i, candidate in enumerate(rocm.candidates, start=1)
        for j, other in enumerate(drivers.candidates, start=1)
    }
    expected = {}
    for version, driver in itertools.product(catalog.rocm, catalog.driver.values()):
        older = sort_key(minor(version)) < min(map(sort_key, driver.supports))
        outside = "at-own-risk" if older else "refused"
        expected[version, driver.version] = "supported" if minor(version) in driver.supports else outside
    assert verdicts == expected
    assert set(verdicts.values()) == {"supported", "at-own-risk", "refused"}


@pytest.mark.parametrize(
    ("rocm", "day", "verdict"),
    [
        ("6.0.3", "2025-02-01", "supported"),
        ("6.0.3", "2026-02-01", "at-own-risk"),
        ("6.2.4", "2025-12-31", "supported"),
        ("6.4.4", "2025-12-31", None),
        ("6.4.4", "2026-01-01", "supported"),
        ("7.0.2", "2026-02-01", "supported"),
        ("7.1.1", "2026-02-01", None),  # AMD's text about one year allows it, the table does not
        ("7.12.0", "2026-02-01", None),  # a preview, which is not in the table
        ("5.4.3", "2023-12-01", "supported"),
        ("5.5.1", "2023-11-01", None),  # AMD published no tested pair with driver 5.2
        ("5.5.1", "2023-12-01", "at-own-risk"),  # but it ran on LUMI
        ("5.5.1", "2025-02-01", "at-own-risk"),
    ],
)
def test_site_driver_depends_on_date(rocm: str, day: str, verdict: str | None, catalog: Catalog) -> None:
    answer = resolve(catalog, ask(catalog, f"rocm=={rocm}", day=day))
    pick = answer.pick("rocm") if isinstance(answer, Resolution) else None
    assert (pick.verdict if pick else None) == verdict


@pytest.mark.parametrize(
    ("rocm", "driver", "text"),
    [
        ("7.12.0", "6.3", "AMD's driver table does not mention ROCm 7.12 with driver 6.3"),
        ("5.6.1", "5.2", "AMD's driver table does not mention ROCm 5.6 with driver 5.2"),
        ("7.1.1", "6.3", "ROCm 7.1 is supported on kernel drivers 6.4, 30.10, 30.20, 30.30, 31.40 and 31.50"),
    ],
)
def test_unsupported_and_unmentioned_rocm_differ(rocm: str, driver: str, text: str, catalog: Catalog) -> None:
    before_any_run = "2023-06-01"
    request = ask(catalog, f"rocm=={rocm}", day=before_any_run, driver=driver)
    answer = resolve(without_dates(catalog), request)
    assert isinstance(answer, Conflict)
    assert text in [item.text for item in answer.core]


@pytest.mark.parametrize(
    ("rocm", "answer"),
    [("6.0.3", Resolution), ("6.4.4", Resolution), ("7.0.2", Conflict), ("7.1.1", Conflict)],
)
def test_unmentioned_newer_rocm_is_refused(rocm: str, answer: type, overlay: Callable[[str], Path]) -> None:
    rows = f'[[driver]]\nversion = "6.3"\nsupports = ["6.4"]\nunsupported = ["7.1"]\n{KNOWN}'
    catalog = load([overlay(rows)])
    result = resolve(catalog, ask(catalog, f"rocm=={rocm}", driver="6.3"))
    assert isinstance(result, answer)
    texts = [item.text for item in result.core] if isinstance(result, Conflict) else []
    assert ("AMD's driver table does not mention ROCm 7.0 with driver 6.3" in texts) == (rocm == "7.0.2")


@pytest.mark.parametrize("prefer", ["newest", "oldest"])
def test_rocm_at_own_risk_comes_last(prefer: Prefer, catalog: Catalog) -> None:
    request = ask(catalog, "rocm", day="2026-02-01", prefer=prefer)
    versions = [
        candidate.version for candidate in compile_problem(catalog, request).variables["rocm"].candidates
    ]
    risky = [version for version in versions if sort_key(minor(version)) < sort_key("6.1")]
    assert versions[-len(risky) :] == risky
    for part in (risky, versions[: -len(risky)]):
        assert part == sorted(part, key=sort_key, reverse=prefer == "newest")


@pytest.mark.parametrize("requirements", ["torch", "torch==2.4.1", "torch apex deepspeed flash-attn"])
def test_supported_rocm_is_preferred(requirements: str, catalog: Catalog) -> None:
    for prefer in ("newest", "oldest", "proven"):
        answer = resolve(catalog, ask(catalog, requirements, prefer=prefer))
        assert isinstance(answer, Resolution)
        assert {pick.verdict for pick in answer.picks} == {"supported"}, prefer


def test_named_driver_replaces_site_driver(catalog: Catalog) -> None:
    problem = compile_problem(catalog, ask(catalog, "rocm", driver="6.1"))
    assert _left(problem, "kernel-driver") == {"6.1"}
    assert {minor(version) for version in _left(problem, "rocm")} >= {"5.7", "6.4"}
    assert "7.0.2" not in _left(problem, "rocm")


# Sites, images and the machine.


OLDEST = {"5.4.5", "5.4.6", "5.5.1", "5.5.3"}
"""Of LUMI's images until the system update of September 2024."""
OLDER = {"5.6.0", "5.6.1", "5.7.1", "5.7.3", "6.0.3"}
"""Of those that were archived in January 2026."""


@pytest.mark.parametrize(
    ("day", "rocm"),
    [
        ("2024-01-23", {*OLDEST, "5.3.0", "5.6.1"}),
        ("2024-10-06", {*OLDER, "6.1.3"}),
        ("2025-01-08", {*OLDER, "6.1.3", "6.2.0", "6.2.1", "6.2.2", "6.2.3"}),
        ("2026-01-22", {*OLDER, "6.1.3", "6.2.0", "6.2.1", "6.2.2", "6.2.3", "6.2.4"}),
        ("2026-01-23", {"6.1.3", "6.2.0", "6.2.1", "6.2.2", "6.2.3", "6.2.4"}),
        ("2026-02-25", {"6.1.3", "6.2.0", "6.2.1", "6.2.2", "6.2.3", "6.2.4", "6.4.4"}),
        ("2026-04-15", {"6.1.3", "6.2.0", "6.2.1", "6.2.2", "6.2.3", "6.2.4", "6.4.4", "7.0.2"}),
    ],
)
def test_site_images_depend_on_date(day: str, rocm: set[str], catalog: Catalog) -> None:
    problem = compile_problem(catalog, ask(catalog, "base-image", day=day))
    images = _left(problem, "base-image")
    assert {catalog.image[name].rocm for name in images} == rocm == _left(problem, "rocm")


def test_public_images_are_offered_locally_only(catalog: Catalog) -> None:
    own = compile_problem(catalog, ask(catalog, "apex", site="local", backend="rocm", gfx=["gfx90a"]))
    public = {row.name for row in catalog.image.values() if row.path.startswith("docker://")}
    assert _left(own, "base-image") <= public
    assert len(_left(own, "base-image")) > 50
    lumi = compile_problem(catalog, ask(catalog, "apex", day="2026-06-01"))
    assert _left(lumi, "base-image").isdisjoint(public)


@pytest.mark.parametrize("driver", ["6.0", "6.1", "6.2", "6.3", "6.4", "30.10", "30.30", "31.50"])
def test_public_image_with_other_torch_is_not_used(driver: str, catalog: Catalog) -> None:
    request = ask(
        catalog, "torch apex", site="local", backend="rocm", gfx=["gfx90a"], driver=driver, python="3.12"
    )
    answer = resolve(catalog, request)
    assert isinstance(answer, Resolution)
    image = answer.pick("base-image")
    assert image is not None
    assert catalog.image[image.version].holds == {}
    assert {pick.verdict for pick in answer.picks} == {"supported"}


def test_named_image_is_the_only_candidate(catalog: Catalog) -> None:
    name = "lumi-rocm-rocm-6.2.4.sif"
    problem = compile_problem(catalog, ask(catalog, "apex", base_image=name))
    assert _left(problem, "base-image") == {name}
    assert _left(problem, "rocm") == {"6.2.4"}
    wheels = _left(problem, "torch") & catalog.torch.keys()
    assert {version.split("+")[1] for version in wheels} == {"rocm6.2", "rocm6.2.0", "rocm6.2.4"}


def test_python_and_glibc_of_machine_are_limits(catalog: Catalog) -> None:
    request = ask(catalog, "torch", site="local", python="3.11", glibc="2.36")
    assert _left(compile_problem(catalog, request), "python") == {"3.11"}
    assert isinstance(resolve(catalog, request), Resolution)
    too_old = ask(catalog, "torch", site="local", python="3.11", glibc="2.12")
    assert catalog.torch["2.13.0+cpu"].glibc == "2.28"
    assert isinstance(resolve(catalog, too_old), Conflict)


def test_cpu_backend_has_no_gpu_components(catalog: Catalog) -> None:
    problem = compile_problem(
        catalog, ask(catalog, "deepspeed", site="local", python="3.11", day="2026-11-21")
    )
    for_cpu = [row for row in catalog.torch.values() if row.backend == "cpu"]
    assert _left(problem, "torch") == {row.version for row in for_cpu if "3.11" in row.python}
    involved = {
        relation.object.name
        for relation in problem.relations
        if relation.subject.name == "deepspeed" and not relation.object.name.startswith(AVOIDED)
    }
    assert involved == {"backend", "torch"}


def test_candidates_cover_all_architectures(catalog: Catalog) -> None:
    def torches(*gfx: str) -> set[str]:
        return _left(compile_problem(catalog, ask(catalog, "torch", gfx=gfx, driver="6.4")), "torch")

    assert torches("gfx90a", "gfx942") == torches("gfx90a") & torches("gfx942")
    assert torches("gfx942") < torches("gfx90a")
    for version in torches("gfx90a", "gfx942") & catalog.torch.keys():
        assert {"gfx90a", "gfx942"} <= set(catalog.torch[version].gfx)


def test_torch_companions_come_from_one_row(catalog: Catalog) -> None:
    answer = resolve(catalog, ask(catalog, "torchvision torchaudio torch==2.5.1 rocm==6.2.*"))
    assert isinstance(answer, Resolution)
    row = catalog.torch["2.5.1+rocm6.2"]
    picked = {pick.name: pick.version for pick in answer.picks}
    assert (picked["torchvision"], picked["torchaudio"]) == (row.torchvision, row.torchaudio)
    assert row.triton == f"pytorch-triton-rocm=={picked['pytorch-triton-rocm']}"


def test_torch_does_not_add_dependents(catalog: Catalog) -> None:
    answer = resolve(catalog, ask(catalog, "torch==2.5.1"))
    assert isinstance(answer, Resolution)
    assert answer.pick("torchvision") is None


# Preference and trust.


@pytest.mark.parametrize("prefer", ["newest", "oldest", "proven"])
def test_candidates_are_in_order_of_preference(prefer: Prefer, catalog: Catalog) -> None:
    requirements = "torch apex deepspeed bitsandbytes"
    variables = compile_problem(catalog, ask(catalog, requirements, prefer=prefer)).variables
    for name in ("torch", "apex", "deepspeed", "python", "bitsandbytes"):
        candidates = variables[name].candidates
        if name == "torch":  # versions to compile come last, in the same order
            published = [candidate.version for candidate in candidates if candidate.version in catalog.torch]
            assert published == [candidate.version for candidate in candidates[: len(published)]]
            candidates = candidates[len(published) :]
            assert published == sorted(published, key=sort_key, reverse=prefer != "oldest")
        versions = [candidate.version for candidate in candidates]
        ordered = sorted(versions, key=sort_key, reverse=prefer != "oldest")
        if name == "python":  # that of the site's images, and the newest line of the day, which comes last
            ordered = ["3.12", *(one for one in ordered if one not in {"3.12", "3.14"}), "3.14"]
        elif name != "torch":
            ordered.sort(key=is_prerelease)
        assert versions == ordered, name
    apex = [candidate.variant for candidate in variables["apex"].candidates if candidate.version == "1.9.0"]
    assert apex == ["", "e37ed12"]


def test_support_is_that_of_weakest_fact(catalog: Catalog) -> None:
    answer = resolve(catalog, ask(catalog, "torch apex deepspeed flash-attn bitsandbytes", day="2025-06-01"))
    assert isinstance(answer, Resolution)
    weakest = ["inferred", "observed", "documented"]
    picks = [pick for pick in answer.picks if pick.kind == "distribution"]
    expected = {pick.name: min((fact.status for fact in pick.facts), key=weakest.index) for pick in picks}
    assert {pick.name: pick.support for pick in picks} == expected
    assert set(expected.values()) == set(weakest)


def test_earlier_requests_of_a_target_change_no_problem(catalog: Catalog) -> None:
    """What requests share is what each would compile alone, also of packages that are added later."""
    one_target = [
        "xformers",
        "torchvision apex",
        "xformers flash-attn",
        "torch==2.5.1+cpu apex",
        "jax-rocm7-plugin",
    ]
    earlier = replace(catalog)

    def contents(one: Catalog, text: str, open_world: bool) -> list[list[object]]:
        builder = start_problem(ProblemBuilder(one, ask(one, text), open_world=open_world))
        before = _content(builder)
        add_distributions(builder, {"vllm", "flash-attn"})
        return [before, _content(builder)]

    asked = [*itertools.product(one_target, [False, True])]
    alone = {one: contents(replace(catalog), *one) for one in asked}
    for one in [*asked, *asked[::-1]]:
        assert contents(earlier, *one) == alone[one], one


def _content(builder: ProblemBuilder) -> list[Any]:
    """Return all of a problem, and check that it has only its own variables."""
    problem = builder.problem()
    variables = problem.variables
    for one in problem.relations:
        assert (variables[one.subject.name], variables[one.object.name]) == (one.subject, one.object)
    assert all(variables[one.variable.name] is one.variable for one in problem.demands)
    return [
        [(name, variable.candidates) for name, variable in variables.items()],
        [(one.variable.name, one.mask, one.text, one.kind, one.source) for one in problem.demands],
        [
            (one.subject.name, one.object.name, one.kind, one.when_present, one.forbids, one.table)
            for one in problem.relations
        ],
        [[(row.subjects, row.objects, row.fact, row.risk) for row in one.rows] for one in problem.relations],
        [problem.preferences, problem.default_images],
    ]


# Invalid requests.


@pytest.mark.parametrize(
    ("requirements", "options", "quoted", "hint"),
    [
        ("apx", {}, "'apx'", "Did you mean apex?"),
        ("scipy", {}, "'scipy'", "package index"),
        ("transformers", {}, "'transformers'", "Known: "),
        ("torchlo", {}, "'torchlo'", "Known: "),
        ("pytorch", {}, "pytorch", "Write torch"),
        ("flash-attn[nosuch]", {}, "'nosuch'", "Known: triton, "),
        ("torch==9.9", {}, "'torch==9.9'", "Known versions: "),
        ("torch==2.9.1+rocm7.9", {}, "'torch==2.9.1+rocm7.9'", "2.9.1+rocm6."),
        ("rocm==6.2.9", {}, "'rocm==6.2.9'", "6.2.4"),
        ("x" * 10_000, {}, "10000 characters", ""),
        ("rocm", {"day": "2020-01-01"}, "lumi-g on 2020-01-01", "2023-05-09"),
        ("rocm", {"driver": "9.9"}, "9.9", ""),
        ("rocm", {"gfx": ["gfx90b"]}, "gfx90b", "gfx90a"),
        ("apex", {"base_image": "lumi-rocm-rocm-6.2.5.sif"}, "lumi-rocm-rocm-6.2.5.sif", "6.2"),
    ],
)
def test_unknown_name_gets_hint(
    requirements: str, options: dict[str, Any], quoted: str, hint: str, catalog: Catalog
) -> None:
    with pytest.raises(UsageError) as failure:
        compile_problem(catalog, ask(catalog, requirements, **options))
    assert quoted in failure.value.message
    assert len(failure.value.message) < 200
    assert hint in failure.value.hint


def test_requirement_for_no_candidate_python_may_match_no_version(catalog: Catalog) -> None:
    only_torch = resolve(catalog, ask(catalog, "torch apex==9.9;python_version<'3.0'"))
    assert isinstance(only_torch, Resolution)
    assert only_torch.pick("apex") is None
    with pytest.raises(UsageError, match="No known version of apex matches"):
        resolve(catalog, ask(catalog, "torch apex==9.9;python_version>='3.0'"))


# The user's own facts.


@pytest.mark.parametrize(("keys", "answer"), [("", Conflict), ('backend = "cpu"', Resolution)])
def test_requirement_applies_to_its_backend_only(
    keys: str, answer: type, overlay: Callable[[str], Path]
) -> None:
    rows = f'[[requires]]\npackage = "deepspeed"\non = "python"\nversions = ["==3.8"]\n{keys}\n{KNOWN}'
    catalog = load([overlay(rows)])
    assert isinstance(resolve(catalog, ask(catalog, "deepspeed python==3.12")), answer)


def test_last_matching_recipe_is_used(catalog: Catalog, overlay: Callable[[str], Path]) -> None:
    mine = load(
        [
            overlay(
                '[[recipe]]\npackage = "apex"\nreleases = "==1.9.0"\nbackend = "rocm"\n'
                f'undeclared = ["torch", "mine"]\n{KNOWN}'
            )
        ]
    )
    for release in catalog.releases_of("apex"):
        before, after = catalog.recipe_for(release, "rocm"), mine.recipe_for(release, "rocm")
        assert before is not None
        assert after is not None
        assert (after != before) == ("mine" in after.undeclared) == (release.version == "1.9.0")
        assert mine.recipe_for(release, "cpu") is None


def test_newest_version_is_chosen_even_if_built(overlay: Callable[[str], Path]) -> None:
    rows = (
        f'[[package]]\nname = "newext"\ntitle = "An extension"\n{KNOWN}'
        f'[[release]]\nversion = "2.0"\nsdist = {{ file = "f", sha256 = "0" }}\n{KNOWN}'
        '[[release]]\nversion = "1.0"\nwheel = { file = "newext-1.0-py3-none-any.whl", sha256 = "0" }\n'
        f"{KNOWN}"
        f'[[recipe]]\nbackend = "rocm"\nundeclared = ["torch"]\n{KNOWN}'
    )
    catalog = load([overlay(rows)])
    answer = resolve(catalog, ask(catalog, "newext"))
    assert isinstance(answer, Resolution)
    assert {pick.name: pick.origin for pick in answer.picks}["newext"] == "build"
    assert {"torch", "base-image"} <= {pick.name for pick in answer.picks}


def test_rows_have_candidates_and_sources(catalog: Catalog) -> None:
    problem = compile_problem(catalog, ask(catalog, "torch"))
    rows = [row for relation in problem.relations for row in relation.rows]
    assert [row for row in rows if not row.fact.source or not row.fact.text] == []
    assert [row for row in rows if not list(bits(row.subjects))] == []


def test_cxx_standard_limits_torch(catalog: Catalog, overlay: Callable[[str], Path]) -> None:
    package = f'[[package]]\nname = "newext"\ntitle = "t"\n{KNOWN}'
    release = f'[[release]]\nversion = "1.0"\nsdist = {{ file = "f", sha256 = "0" }}\n{KNOWN}'
    recipe = f'[[recipe]]\nbackend = "rocm"\nundeclared = ["torch"]\ncxx-standard = "17"\n{KNOWN}'
    mine = load([overlay(package + release + recipe)])
    here: dict[str, Any] = {
        "site": "local",
        "gfx": ["gfx90a"],
        "backend": "rocm",
        "driver": "31.40",
        "day": "2026-11-21",
    }
    answer = resolve(mine, ask(mine, "newext torch==2.14.*", **here))
    assert isinstance(answer, Conflict)
    texts = [item.text for item in answer.core]
    assert any("compiled as C++17, which torch supports up to 2.13" in text for text in texts)
    assert isinstance(resolve(mine, ask(mine, "newext torch==2.13.*", **here)), Resolution)
    assert isinstance(resolve(catalog, ask(catalog, "torch==2.14.*", **here)), Resolution)


def test_conflict_reports_missing_recipe(overlay: Callable[[str], Path]) -> None:
    known = 'status = "observed"\nsource = "test"\n'
    rows = f'[[package]]\nname = "newext"\ntitle = "An extension"\n{known}'
    rows += (
        f'[[release]]\npackage = "newext"\nversion = "1.0"\nsdist = {{ file = "f", sha256 = "0" }}\n{known}'
    )
    catalog = load([overlay(rows)])
    answer = resolve(catalog, ask(catalog, "newext"))
    assert isinstance(answer, Conflict)
    texts = [item.text for item in answer.core]
    assert (
        "newext 1.0 is not published as a wheel, and the catalog has no recipe to build it for rocm" in texts
    )


def test_conflict_reports_backend_without_recipe(overlay: Callable[[str], Path]) -> None:
    package = f'[[package]]\nname = "newext"\ntitle = "t"\n{KNOWN}'
    release = '[[release]]\nversion = "1.0"\nsdist = { file = "f", sha256 = "0" }\n'
    release += f'backend = ["rocm", "cpu"]\n{KNOWN}'
    mine = load([overlay(package + release + f'[[recipe]]\nbackend = "rocm"\n{KNOWN}')])
    answer = resolve(mine, ask(mine, "newext", site="local", backend="cpu"))
    assert isinstance(answer, Conflict)
    texts = [item.text for item in answer.core]
    assert "newext 1.0 is available for rocm; the catalog has no recipe to build it for cpu" in texts


def _commits(catalog: Catalog) -> Iterator[tuple[Release, list[str]]]:
    """Yield each release of a commit whose versions of torch are stated, with their specifiers."""
    for release in catalog.release.values():
        own = [
            row for row in catalog.requires if row.variant and row.on == "torch" and row.applies_to(release)
        ]
        if own and not release.is_published:
            yield release, [text for row in own for text in row.versions]


@pytest.mark.parametrize("prefer", ["newest", "oldest"])
def test_commit_is_chosen_only_with_its_own_torch(prefer: Prefer, catalog: Catalog) -> None:
    """The drivers take turns, and each commit has the other one with the other preference."""
    resolved, drivers = 0, itertools.cycle(("6.3", "31.50") if prefer == "newest" else ("31.50", "6.3"))
    for release, observed in _commits(catalog):
        others = {key: row for key, row in catalog.release.items() if key[0] != release.package}
        alone = replace(catalog, release={**others, release.key(): release})
        options: dict[str, Any] = {"gfx": ["gfx90a"], "driver": next(drivers), "day": "2026-11-21"}
        request = ask(alone, release.package, site="local", backend="rocm", prefer=prefer, **options)
        answer = Search(alone, request, None).answer
        if isinstance(answer, Resolution):
            resolved += 1
            torch = answer.version_of("torch")
            assert any(satisfies(torch, text) for text in observed), (str(release.key()), torch)
    assert resolved >= 8


@pytest.mark.parametrize("site", ["frontier", "lumi-g"])
@pytest.mark.parametrize("torch", ["2.3.1", "2.9.1", "2.10.0", "2.13.0", "2.14.1"])
def test_old_fork_is_not_combined_with_newer_torch(site: str, torch: str, catalog: Catalog) -> None:
    day = "2026-11-21"
    fork = ask(catalog, f"flash-attn==2.0.4 torch=={torch}", site=site, day=day)
    assert isinstance(resolve(catalog, fork), Conflict)
    answer = resolve(catalog, ask(catalog, f"flash-attn torch=={torch}", site=site, day=day))
    assert isinstance(answer, Conflict) or answer.version_of("flash-attn") != "2.0.4"


def test_bound_of_a_commit_replaces_the_general_bound(overlay: Callable[[str], Path]) -> None:
    rows = f"""
[[package]]
name = "newext"
title = "t"
{KNOWN}
[[release]]
version = "1.0"
variant = "abc"
git = {{ url = "https://example.com/newext", commit = "{"a" * 40}" }}
{KNOWN}
[[recipe]]
backend = "rocm"
undeclared = ["torch"]
{KNOWN}
[[requires]]
on = "torch"
versions = [">=1.12"]
kind = "build"
{KNOWN}
[[requires]]
on = "torch"
variant = "abc"
versions = ["==2.5.1"]
kind = "build"
status = "observed"
source = "here"
"""
    catalog = load([overlay(rows)])
    day = "2026-11-21"
    answer = resolve(catalog, ask(catalog, "newext", day=day))
    assert isinstance(answer, Resolution)
    assert answer.version_of("torch").startswith("2.5.1")
    assert isinstance(resolve(catalog, ask(catalog, "newext torch==2.9.1", day=day)), Conflict)
