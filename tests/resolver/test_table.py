"""The feasible matrix: every cell equals the answer of ``resolve``, and the rows are complete."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import combinations, product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from resolver.answers import table as table_module
from resolver.answers.resolution import pick_of
from resolver.answers.resolve import resolve
from resolver.answers.table import (
    COMBINATION,
    Cell,
    Table,
    TableRow,
    available_packages,
)
from resolver.compiling import compile_problem
from resolver.compiling.problem import ABSENT, Demand, Problem, Relation, RelationRow, Variable
from resolver.errors import UsageError
from resolver.facts.catalog import Catalog, load_uncached
from resolver.model import Distribution, Prefer, Request, Requirement, Resolution
from resolver.solving.session import Session
from resolver.versions import parse_specifier
from tests.resolver.solve_helpers import ask
from tests.resolver.solving import solve
from tests.resolver.universe import EXAMPLES, FACT, candidate

KNOWN = 'status = "documented"\nsource = "here"\n'


def _rows(kind: str, *bodies: str) -> str:
    return "".join(f"[[{kind}]]\n{body}\n{'' if 'status' in body else KNOWN}\n" for body in bodies)


def _torch(version: str, rocm: str, python: str) -> str:
    return (
        f'version = "{version}+rocm{rocm}"\nbackend = "rocm"\nindex = "https://here/{rocm}"\n'
        f'rocm = "{rocm}"\ngfx = ["gfx90a"]\npython = {python}'
    )


def _requires(package: str, on: str, versions: str, releases: str = "", more: str = "") -> str:
    return f'package = "{package}"\nreleases = "{releases}"\non = "{on}"\nversions = {versions}\n{more}'


def _sdist(package: str, version: str, variant: str = "") -> str:
    file = f'{{ file = "{package}-{version}.tar.gz", sha256 = "{"0" * 64}" }}'
    return f'package = "{package}"\nversion = "{version}"\nvariant = "{variant}"\nsdist = {file}'


def _recipe(package: str) -> str:
    return f'package = "{package}"\nbackend = "rocm"\nmust-contain = ["*.so"]\nimports = ["{package}"]'


TINY = "schema = 1\n" + "".join(
    [
        _rows("gfx", 'target = "gfx90a"'),
        _rows("python", 'version = "3.11"', 'version = "3.12"'),
        _rows(
            "rocm",
            *(f'version = "{version}"\ngfx = ["gfx90a"]' for version in ("5.7.1", "6.2.4", "6.3.1", "6.4.0")),
        ),
        _rows("driver", 'version = "6.3"\nsupports = ["6.2", "6.3", "6.4"]\nunsupported = ["7.0"]'),
        _rows("site", 'name = "hill"\ntitle = "Hill"\nbackend = "rocm"\ngfx = ["gfx90a"]'),
        _rows("window", 'site = "hill"\nfrom = 2026-01-01\ndriver = "6.3"'),
        _rows(
            "image",
            'name = "one.sif"\nrocm = "6.4.0"\nos = "Hill 1"\nglibc = "2.39"',
            'name = "other.sif"\nrocm = "6.4.0"\nos = "Hill 1"\nglibc = "2.39"',
            'name = "older-system.sif"\nrocm = "6.4.0"\nos = "Hill 0"\nglibc = "2.31"',
            'name = "older-rocm.sif"\nrocm = "6.2.4"\nos = "Hill 0"\nglibc = "2.31"',
            'name = "risky.sif"\nrocm = "5.7.1"\nos = "Hill 0"\nglibc = "2.31"',
            'name = "elsewhere.sif"\nrocm = "6.3.1"\nos = "Hill 0"\nglibc = "2.31"',
        ),
        _rows(
            "site-image",
            *(
                f'site = "hill"\nimage = "{image}.sif"'
                for image in ("one", "other", "older-system", "older-rocm", "risky")
            ),
        ),
        _rows(
            "torch",
            _torch("2.9.1", "6.4", '["3.11", "3.12"]'),
            _torch("2.8.0", "6.4", '["3.11"]'),
            _torch("2.8.0", "6.3", '["3.11", "3.12"]'),
            _torch("2.5.1", "6.2", '["3.11", "3.12"]'),
            _torch("2.1.2", "5.7", '["3.11"]'),
            _torch("2.10.0", "7.0", '["3.12"]'),
        ),
        _rows(
            "package",
            *(f'name = "{name}"\ntitle = "x"' for name in ("built", "ready", "upper", "zone", "pair")),
        ),
        _rows(
            "release",
            _sdist("built", "2.0"),
            _sdist("built", "1.5", "abc"),
            _sdist("built", "1.5"),
            _sdist("built", "1.0") + '\nstatus = "inferred"\nsource = "a guess"',
            'package = "ready"\nversion = "3.0"\npypi = true',
            _sdist("ready", "2.0"),
            'package = "ready"\nversion = "1.0"\npypi = true',
            _sdist("upper", "1.1"),
            _sdist("upper", "1.0"),
            'package = "zone"\nversion = "1"\npypi = true\nbackend = ["rocm", "cpu"]',
            'package = "pair"\nversion = "1"\npypi = true',
        ),
        _rows("recipe", *map(_recipe, ("built", "ready", "upper"))),
        _rows(
            "requires",
            _requires("built", "torch", '["==2.9.*"]', "==2.0"),
            _requires("built", "torch", '[">=2.5,<2.9"]', "==1.5"),
            _requires("built", "torch", '["<2.9"]', "==1.0"),
            _requires("ready", "rocm", '[">=6.4.1"]', "==3.0"),
            _requires("ready", "glibc", '[">=2.35"]', "==2.0", "when-present = true"),
            _requires("ready", "python", '["==3.11.*"]', "==2.0"),
            _requires("ready", "gfx", '["gfx90a"]'),
            _requires("upper", "built", '[">=2.0"]', "==1.1"),
            _requires("upper", "built", '["<2.0"]', "==1.0"),
            _requires("zone", "python", '["==3.12.*"]'),
            _requires("zone", "torch", '[">=2"]'),
            _requires("pair", "built", '["==1.5"]'),
            _requires("pair", "ready", '[">=1"]'),
        ),
        _rows(
            "known-bad",
            'combination = { upper = "", zone = "", torch = "==2.9.*" }\nproblem = "they corrupt each other"',
            'combination = { built = "==1.5", ready = "" }\nproblem = "they corrupt each other"',
        ),
        _rows(
            "proven",
            'id = "hill-1"\nsite = "hill"\ndate = 2026-02-01\n'
            'picks = { base-image = "older-system.sif", torch = "2.9.1+rocm6.4", ready = "1.0" }',
        ),
    ]
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """Load a catalog that is small enough to test every request."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    return load_uncached([[str(path)]])[0]


def request_of_cell(table: Table, row: TableRow, column: str) -> Request:
    """Return the request that a cell answers."""
    request = table.request
    pins = [_pin("torch", row.torch), _pin("python", row.python)]
    target = request.target
    if row.images:
        pins.append(Requirement("base-image", None, "base-image"))
        target = replace(target, base_image=row.images[0])
    return replace(
        request, target=target, requirements=(*table.columns[column], *pins, *request.requirements)
    )


def _pin(name: str, version: str) -> Requirement:
    """Pin a version; a torch without a local label does not match the labelled builds of its release."""
    text = f"=={version}" if name != "torch" or "+" in version else f"==={version}"
    return Requirement(name, parse_specifier(text), f"{name}{text}")


def _all(table: Table) -> list[tuple[TableRow, str]]:
    return [(row, column) for row in table.rows() for column in table.columns]


def _check(table: Table, row: TableRow, column: str, image: str) -> None:
    """Check a cell against the answer to its request."""
    of_image = replace(row, images=(image,) if image else ())
    request = request_of_cell(table, of_image, column)
    cell = row.cells[column]
    if not cell.pick:
        assert cell.refused
        assert solve(compile_problem(table.catalog, request)) is None
        return
    answer = resolve(table.catalog, request)
    assert isinstance(answer, Resolution), answer
    picked = answer.pick(column)
    if picked is None:
        assert cell.pick.origin == "build"  # `resolve` takes a published distribution with the same module
        return
    assert cell.pick == replace(picked, wheel_version="")  # a cell has no label
    pinned = {name: pick.version for name in ("torch", "python", "rocm") if (pick := answer.pick(name))}
    assert (pinned["torch"], pinned["python"]) == (row.torch, row.python)
    if image:
        assert pinned["rocm"] == row.rocm
        assert image in {pick.version for pick in answer.picks}
    at_risk = any(pick.verdict == "at-own-risk" for pick in answer.picks if pick.name != column)
    assert row.verdict == ("at-own-risk" if at_risk else "supported")


CHOICES: tuple[Prefer, ...] = ("newest", "oldest", "proven")


@pytest.mark.parametrize("prefer", CHOICES)
@pytest.mark.parametrize("requirements", ["", "zone upper built>=1.5 ready", "built torch<2.9 rocm"])
def test_cells_of_tiny_catalog_equal_resolve(tiny: Catalog, requirements: str, prefer: Prefer) -> None:
    table = Table(tiny, ask(tiny, requirements, site="hill", prefer=prefer))
    cells = _all(table)
    for row, column in cells:
        for image in row.images or ("",):
            _check(table, row, column, image)
    assert any(row.cells[column].pick for row, column in cells)
    assert any(row.cells[column].refused for row, column in cells)


@pytest.mark.parametrize("limits", ["", "torch>=2.8", "python==3.11", "rocm==6.2.*", "base-image"])
def test_rows_are_exactly_the_resolvable_ones(tiny: Catalog, limits: str) -> None:
    request = ask(tiny, limits, site="hill")
    rows = list(Table(tiny, request).rows())
    actual = [(image, row.torch, row.python) for row in rows for image in row.images or ("",)]
    assert len(set(actual)) == len(actual)
    expected = set()
    for torch, python in product(tiny.torch, tiny.python):
        fitting = {
            image
            for image in tiny.image
            if image != "elsewhere.sif" and _resolves(tiny, request, torch, python, image)
        }
        if not fitting and _resolves(tiny, request, torch, python, ""):
            fitting = {""}
        expected |= {(image, torch, python) for image in fitting}
    assert set(actual) == expected


def _resolves(catalog: Catalog, request: Request, torch: str, python: str, image: str) -> bool:
    own = ask(catalog, f"torch=={torch} python=={python}" + " base-image" * bool(image), site="hill")
    target = replace(request.target, base_image=image or None)
    narrowed = replace(request, target=target, requirements=(*request.requirements, *own.requirements))
    return solve(compile_problem(catalog, narrowed)) is not None


def test_images_share_row_if_interchangeable(tiny: Catalog) -> None:
    groups = list(dict.fromkeys(row.images for row in Table(tiny, ask(tiny, "", site="hill")).rows()))
    assert groups == [
        ("one.sif", "other.sif"),
        ("older-system.sif",),
        ("older-rocm.sif",),
        ("risky.sif",),
        (),
    ]
    proven = Table(tiny, ask(tiny, "", site="hill", prefer="proven")).rows()
    assert {len(row.images) for row in proven} == {0, 1}


def test_rows_at_own_risk_come_last(tiny: Catalog) -> None:
    rows = [row for row in Table(tiny, ask(tiny, "", site="hill")).rows() if row.images]
    verdicts = [str(row.verdict) for row in rows]
    assert verdicts == sorted(verdicts, reverse=True)
    assert {row.rocm for row in rows if row.verdict == "at-own-risk"} == {"5.7.1"}


def _cell(table: Table, column: str, **fields: object) -> Cell:
    (row,) = (
        row for row in table.rows() if all(getattr(row, name) == value for name, value in fields.items())
    )
    return row.cells[column]


OLDER = ("older-system.sif",)
NEWER = ("one.sif", "other.sif")


REFUSALS = [
    ("built", (), "2.8.0+rocm6.3", "3.12", "base-image"),
    ("zone", NEWER, "2.9.1+rocm6.4", "3.11", "python"),
    ("upper", (), "2.8.0+rocm6.3", "3.12", "base-image"),
    ("built>=2", OLDER, "2.8.0+rocm6.4", "3.11", "torch"),
    ("ready==2.0", OLDER, "2.8.0+rocm6.4", "3.11", "glibc"),
    ("ready==3.0", OLDER, "2.8.0+rocm6.4", "3.11", "rocm"),
    ("ready>=2.0", OLDER, "2.8.0+rocm6.4", "3.11", "rocm, glibc"),
    ("pair", OLDER, "2.8.0+rocm6.4", "3.11", COMBINATION),
]


@pytest.mark.parametrize("case", REFUSALS, ids=[case[0] for case in REFUSALS])
def test_refusal_names_deciding_components(
    tiny: Catalog, case: tuple[str, tuple[str, ...], str, str, str]
) -> None:
    requirements, images, torch, python, reason = case
    table = Table(tiny, ask(tiny, requirements, site="hill"))
    (column,) = table.columns
    assert _cell(table, column, images=images, torch=torch, python=python).refused == reason


def test_unknown_column_is_bad_input(tiny: Catalog) -> None:
    with pytest.raises(UsageError, match="zoon"):
        Table(tiny, ask(tiny, "zoon", site="hill"))
    assert available_packages(tiny, "cpu") == ["zone"]
    nothing = msgspec.structs.replace(tiny, package={})
    with pytest.raises(UsageError, match="no package"):
        Table(nothing, ask(nothing, "", site="hill"))


def _random_problem(chance: random.Random, packages: list[str]) -> Problem:
    """Return a problem in which packages require random values of each other and of the platform."""
    platform = ["kernel-driver", "base-image", "rocm", "glibc", "torch", "python"]
    sizes = {name: chance.randint(2, 4) for name in [*platform, *packages]}
    variables = {
        name: Variable(
            name,
            [replace(candidate(name, str(size - i)), index=f"{i}" * (name == "torch")) for i in range(size)],
        )
        for name, size in sizes.items()
    }
    pairs = [*combinations(platform, 2), *product(packages, platform), *product(["torch", "rocm"], packages)]
    pairs += [("upper", "built")]

    density = chance.choice([0.3, 0.5, 0.7])

    def some(name: str) -> int:
        return variables[name].mask(i for i in range(sizes[name]) if chance.random() < density)

    relations = []
    for subject, target in chance.sample(pairs, chance.randint(6, 14)):
        rows = [RelationRow(some(subject), some(target), FACT) for _ in range(chance.randint(1, 3))]
        optional = chance.random() < 0.5
        relations.append(Relation(variables[subject], variables[target], "run", rows, when_present=optional))
    required = ["torch", "python", *packages]
    demands = [Demand(variables[name], variables[name].present, name, "request", "here") for name in required]
    return Problem(variables, demands, relations)


@pytest.mark.parametrize(
    "seed",
    [*range(50), 236, 330, 599, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(50, 120))],
)
def test_cells_of_rows_that_share_an_answer_are_solved_alike(tiny: Catalog, seed: int) -> None:
    """Each cell is what a search for this cell alone finds, whatever rows have the same answer.

    The last seeds need what the first do not: absence, a choice that depends on a choice, and a column that
    torch requires.
    """
    columns = ["built", "upper", "zone"]
    problem = _random_problem(random.Random(seed), columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "compile_problem", lambda *_, **__: problem)
        table = Table(tiny, ask(tiny, " ".join(columns), site="hill"))
        rows = list(table.rows())
    for row, column in product(rows, columns):
        session, demands = table.question(column)
        pins = {"torch": row.torch, "python": row.python, "base-image": row.images[0] if row.images else ""}
        masks = {name: problem.variables[name].of_versions([key]) or ABSENT for name, key in pins.items()}
        limits = [Demand(problem.variables[name], mask, "", "fact", "") for name, mask in masks.items()]
        solution = Session(session.problem).solve([*demands, *limits])
        cell = row.cells[column]
        assert cell.pick == (solution and pick_of(session.problem, solution, column))
        assert cell.version == (cell.pick.key if cell.pick else "")
        assert cell.refused == ("" if cell.pick else cell.part.reason(cell.row))


def test_rows_are_computed_lazily(tiny: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is solved when it is reached, and what was not read of it is not computed."""
    solved, picked = (
        _counted(monkeypatch, Session, "solve_within"),
        _counted(monkeypatch, table_module, "pick_of"),
    )
    rows = Table(tiny, ask(tiny, "", site="hill")).rows()
    next(rows)
    after_one = len(solved)
    left = list(rows)
    assert 0 < after_one < len(solved) / 2
    assert not picked
    assert [row.cells["zone"].pick for row in left]
    assert len(picked) == sum(bool(row.cells["zone"].version) for row in left) > 0


def test_rows_that_facts_do_not_distinguish_are_solved_once(
    tiny: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tiny, ask(tiny, "zone", site="hill"))
    solved = _counted(monkeypatch, Session, "solve_within")
    rows = list(table.rows())
    assert len({row.torch for row in rows}) > 2
    assert len(solved) == len(rows) + len({row.python for row in rows})  # zone has facts about Python only


def _counted(monkeypatch: pytest.MonkeyPatch, where: object, name: str) -> list[str]:
    """Return a list that grows with each call of a function."""
    calls: list[str] = []
    real = getattr(where, name)

    def counting(*args: object) -> object:
        calls.append(name)
        return real(*args)

    monkeypatch.setattr(where, name, counting)
    return calls


SITES = {
    "LUMI-G": {"site": "lumi-g", "day": "2026-06-01"},
    "LUMI-G in 2025": {"site": "lumi-g", "day": "2025-03-01"},
    "ARCHER2": {"site": "archer2", "day": "2026-06-01"},
    "the CPU": {"site": "local", "backend": "cpu", "python": "3.12", "glibc": "2.36"},
    "proven": {"site": "lumi-g", "day": "2026-06-01", "prefer": "proven"},
    "oldest": {"site": "lumi-g", "day": "2026-06-01", "prefer": "oldest"},
}


@dataclass(frozen=True, repr=False)
class Whole:
    """A table with all its rows, without a repr, because hypothesis would print megabytes."""

    table: Table
    rows: list[TableRow]


@pytest.fixture(scope="module", params=list(SITES.values()), ids=list(SITES))
def real(request: pytest.FixtureRequest, catalog: Catalog) -> Whole:
    """Return the whole table of a site."""
    table = Table(catalog, ask(catalog, "", **request.param))
    return Whole(table, list(table.rows()))


@pytest.mark.slow
@settings(EXAMPLES, max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_cells_of_shipped_catalog_equal_resolve(real: Whole, seed: int) -> None:
    draw = random.Random(seed)
    row, column = draw.choice(real.rows), draw.choice([*real.table.columns])
    _check(real.table, row, column, draw.choice(row.images or ("",)))


@pytest.mark.slow
def test_build_for_another_framework_is_no_cell_unless_asked_for(catalog: Catalog) -> None:
    """As `resolve horovod`, whatever other columns there are."""

    def cells(columns: str) -> set[str]:
        rows = Table(catalog, ask(catalog, columns, site="lumi-g", day="2026-11-29")).rows()
        return {row.cells["horovod"].version for row in rows if row.rocm == "6.2.4"}

    assert cells("horovod tensorflow-rocm torch==2.7.*") == {""}
    assert cells("horovod[tensorflow] torch==2.7.*") >= {"0.28.1 (tensorflow)"}


@pytest.mark.slow
def test_other_columns_do_not_change_cells(catalog: Catalog) -> None:

    whole = {
        (row.images, row.torch, row.python): _read(row.cells["torch-sparse"])
        for row in Table(catalog, ask(catalog, "", day="2026-06-01")).rows()
    }
    alone = Table(catalog, ask(catalog, "torch-sparse", day="2026-06-01"))
    assert {(r.images, r.torch, r.python): _read(r.cells["torch-sparse"]) for r in alone.rows()} == whole


def _read(cell: Cell) -> tuple[Distribution | None, str]:
    return cell.pick, cell.refused
