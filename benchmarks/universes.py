"""Generated catalogs of any size, in the input formats of all resolvers.

A universe has the layers of the real catalog: a kernel driver, ROCm on it, torch on ROCm, and
extensions on torch and on each other. Versions are whole numbers, newer is larger. Every component needs a
range of versions of another component, as in reality; newer versions need newer ranges.

*Blocked* versions of torch make the problem hard: one extension needs another extension only in versions that
are incompatible with the blocked torch. Any two of the three are compatible, so a search must try this torch;
checking pairs is not enough. There are three kinds of universes:

``satisfiable``
    some versions of torch are blocked, among them the newest that the driver would allow;
``low-driver``
    all versions are blocked, except the one that needs the oldest ROCm that the driver allows;
``unsatisfiable``
    all versions are blocked.

One solution is planted and checked in the first two kinds. The same size and kind always result in the same
universe.
"""

from __future__ import annotations

import random
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from resolver.compiling.problem import Demand, Problem, Relation, RelationRow, Variable
from resolver.model import Candidate, Fact

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

Kind = Literal["satisfiable", "unsatisfiable", "low-driver"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SIZES = ((12, 12), (40, 40), (100, 60))
"""Numbers of extensions and of versions of each component."""

DRIVER, ROCM, TORCH = "a-driver", "b-rocm", "c-torch"
"""In alphabetical order, in which unknown components are decided."""
_BLOCKING = 3
"""Number of pairs of extensions that block versions of torch."""

Versions = frozenset[int]


@dataclass(slots=True)
class Universe:
    """Components, the requirements of each version, and the request.

    Attributes
    ----------
    newest
        Newest version of each component; the oldest is 1.
    needs
        For each version of a component, the compatible versions of others.
    asked
        The requested versions.
    planted
        A solution; None if there is none.
    """

    name: str
    newest: dict[str, int]
    asked: dict[str, Versions]
    needs: dict[tuple[str, int], dict[str, Versions]] = field(default_factory=dict)
    planted: dict[str, int] | None = None

    def holds(self, chosen: Mapping[str, int]) -> bool:
        """Return whether a choice is a solution, by checking every requirement."""
        return all(chosen.get(name) in allowed for name, allowed in self.asked.items()) and all(
            chosen.get(other) in allowed
            for name, version in chosen.items()
            for other, allowed in self.needs[name, version].items()
        )

    def groups(self) -> Iterator[tuple[str, str, list[tuple[Versions, Versions]]]]:
        """Yield subject, object and rows: versions of the subject, and the object's versions for them."""
        groups: dict[tuple[str, str], dict[Versions, set[int]]] = {}
        for (name, version), needs in self.needs.items():
            for other, allowed in needs.items():
                groups.setdefault((name, other), {}).setdefault(allowed, set()).add(version)
        for (name, other), rows in groups.items():
            yield name, other, [(frozenset(subjects), allowed) for allowed, subjects in rows.items()]


def make(extensions: int, versions: int, kind: Kind) -> Universe:
    """Return the universe of a size and kind.

    Parameters
    ----------
    extensions
        Number of packages that require torch.
    versions
        Number of versions of each component.
    kind
        Which versions of torch have a solution.
    """
    chance = random.Random(f"{extensions} {versions} {kind}")  # noqa: S311  not a secret
    names = [f"d-extension-{number:03}" for number in range(extensions)]
    width = max(2, versions // 6)
    driver = versions * 6 // 10
    torch = driver - width - 1 if kind == "low-driver" else driver
    universe = Universe(
        f"{extensions}x{versions} {kind}",
        dict.fromkeys([DRIVER, ROCM, TORCH, *names], versions),
        {DRIVER: frozenset({driver})} | {name: _all(versions) for name in names},
    )
    for version in range(1, versions + 1):
        universe.needs[DRIVER, version] = {}
        universe.needs[ROCM, version] = {DRIVER: _window(version, width, versions)}
        universe.needs[TORCH, version] = {ROCM: _window(version, 1, versions)}
    planted = {DRIVER: driver, ROCM: min(driver, torch + 1), TORCH: torch}
    planted |= {name: chance.randint(versions // 4, versions * 3 // 4) for name in names}
    for number, name in enumerate(names):
        _extension(universe, name, names[:number], planted, chance)
    blocked = [version for version in range(1, versions + 1) if version != torch]
    if kind == "satisfiable":
        blocked = [version for version in blocked if version > torch or chance.random() < 1 / 2]
    _block(universe, names, blocked, chance)
    if kind == "unsatisfiable":
        # Without the planted versions, no version is compatible with the only torch that is not blocked.
        _block(universe, names, [torch], chance)
        return universe
    if not universe.holds(planted):
        msg = f"the planted solution of {universe.name} is not a solution"
        raise AssertionError(msg)
    universe.planted = planted
    return universe


def _all(versions: int) -> Versions:
    return frozenset(range(1, versions + 1))


def _window(middle: int, width: int, versions: int) -> Versions:
    return frozenset(range(max(1, middle - width), min(versions, middle + width) + 1))


def _extension(
    universe: Universe, name: str, earlier: list[str], planted: Mapping[str, int], chance: random.Random
) -> None:
    """Make each version of an extension require torch and up to two earlier extensions."""
    versions, here = universe.newest[name], planted[name]
    others = chance.sample(earlier, min(2, len(earlier)))
    width = chance.randint(1, max(1, versions // 8))
    for version in range(1, versions + 1):
        middle = planted[TORCH] + version - here
        needs = {TORCH: _window(min(max(middle, 1), versions), width, versions)}
        for other in others:
            room = versions // 4
            needs[other] = _window(planted[other] + (version - here) // 2, room, versions) or _all(versions)
        universe.needs[name, version] = needs
    universe.needs[name, here][TORCH] = frozenset({planted[TORCH]})


def _block(universe: Universe, names: list[str], blocked: Iterable[int], chance: random.Random) -> None:
    """Block versions of torch, each by one of a few pairs of extensions."""
    pairs = [(name, other) for name in names for other in universe.needs[name, 1] if other in names]
    pairs = random.Random(universe.name).sample(pairs, _BLOCKING)  # noqa: S311
    for torch in blocked:
        name, other = chance.choice(pairs)
        going = {
            number
            for number in range(1, universe.newest[other] + 1)
            if torch in universe.needs[other, number][TORCH]
        }
        for version in range(1, universe.newest[name] + 1):
            needs = universe.needs[name, version]
            if torch in needs[TORCH]:
                needs[other] -= going


SOURCE = "generated for a benchmark"


def to_problem(universe: Universe) -> Problem:
    """Return a universe as a problem of the resolver."""
    fact = Fact("made up", "documented", SOURCE)
    variables = {
        name: Variable(
            name,
            [
                Candidate(name, str(number), "distribution", "published", fact)
                for number in range(newest, 0, -1)
            ],
        )
        for name, newest in universe.newest.items()
    }

    def mask(name: str, versions: Versions) -> int:
        return variables[name].mask(universe.newest[name] - version for version in versions)

    demands = [
        Demand(variables[name], mask(name, allowed), f"you asked for {name}", "request", "the request")
        for name, allowed in universe.asked.items()
    ]
    relations = [
        Relation(
            variables[name],
            variables[other],
            "run",
            [RelationRow(mask(name, subjects), mask(other, allowed), fact) for subjects, allowed in rows],
        )
        for name, other, rows in universe.groups()
    ]
    return Problem(variables, demands, relations)


def to_clingo(universe: Universe) -> str:
    """Return a universe as an answer set program, whose models are the solutions."""
    lines = [f'version("{name}",1..{newest}).' for name, newest in universe.newest.items()]
    lines += [f'asked("{name}").' for name in universe.asked]
    for name, allowed in universe.asked.items():
        lines += [f'allowed("{name}",{version}).' for version in sorted(allowed)]
    number = 0
    for name, other, rows in universe.groups():
        lines.append(f'relation("{name}","{other}").')
        for subjects, allowed in rows:
            number += 1
            lines += [f'row("{name}",{subject},"{other}",{number}).' for subject in sorted(subjects)]
            lines += [f"goes({number},{version})." for version in sorted(allowed)]
    lines += [
        "in(P) :- asked(P).",
        "in(O) :- pick(P,V), row(P,V,O,_).",
        "1 { pick(P,V) : version(P,V) } 1 :- in(P).",
        ":- asked(P), pick(P,V), not allowed(P,V).",
        ":- pick(P,V), row(P,V,O,R), pick(O,W), not goes(R,W).",
        "#show pick/2.",
    ]
    return "\n".join(lines) + "\n"


def to_catalog(universe: Universe) -> str:
    """Return a universe as a catalog file, an overlay of the shipped catalog."""
    known = f'status = "documented"\nsource = "{SOURCE}"\n'
    parts = ["schema = 1\n"]
    for name, newest in universe.newest.items():
        parts.append(f'[[package]]\nname = "{name}"\ntitle = "{name}"\npypi = "none"\n{known}')
        parts += [
            f'[[release]]\npackage = "{name}"\nversion = "{number}"\npypi = true\nbackend = ["cpu"]\n{known}'
            for number in range(1, newest + 1)
        ]
    for name, other, rows in universe.groups():
        for subjects, allowed in rows:
            for low, high in runs_of(subjects):
                releases = f"=={low}" if low == high else f">={low},<={high}"
                parts.append(
                    f'[[requires]]\npackage = "{name}"\nreleases = "{releases}"\non = "{other}"\n'
                    f'versions = ["{specifier(allowed)}"]\n{known}'
                )
    return "\n".join(parts)


def requirements(universe: Universe) -> list[str]:
    """Return the request as requirements."""
    return [
        name if len(allowed) == universe.newest[name] else f"{name}{specifier(allowed)}"
        for name, allowed in universe.asked.items()
    ]


def specifier(versions: Versions) -> str:
    """Return a set of versions as one specifier (PEP 440).

    Examples
    --------
    >>> specifier(frozenset({2, 3, 5}))
    '>=2,<=5,!=4'
    """
    if not versions:
        return "==0"
    low, high = min(versions), max(versions)
    if low == high:
        return f"=={low}"
    holes = [f"!={number}" for number in range(low, high) if number not in versions]
    return ",".join([f">={low}", f"<={high}", *holes])


def runs_of(versions: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and last of each run of adjacent versions.

    Examples
    --------
    >>> runs_of({1, 2, 3, 7})
    [(1, 3), (7, 7)]
    """
    runs: list[tuple[int, int]] = []
    for version in sorted(versions):
        if runs and runs[-1][1] == version - 1:
            runs[-1] = runs[-1][0], version
        else:
            runs.append((version, version))
    return runs


def write_index(universe: Universe, root: Path) -> None:
    """Write a universe as a package index on disk: empty wheels, pages, metadata files.

    The pages follow PEP 503, and declare metadata files next to the wheels (PEP 658).
    """
    for name, newest in universe.newest.items():
        directory = root / name
        directory.mkdir(parents=True)
        links = []
        for version in range(1, newest + 1):
            wheel = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
            needs = universe.needs[name, version]
            metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(
                f"Requires-Dist: {other}{specifier(allowed)}\n" for other, allowed in needs.items()
            )
            _write_wheel(directory / wheel, name.replace("-", "_"), version, metadata)
            (directory / f"{wheel}.metadata").write_text(metadata, encoding="utf-8")
            links.append(
                f'<a href="{wheel}" data-core-metadata="true" data-dist-info-metadata="true">{wheel}</a><br>'
            )
        page = "<!DOCTYPE html><html><body>\n" + "\n".join(links) + "\n</body></html>\n"
        (directory / "index.html").write_text(page, encoding="utf-8")
    names = "\n".join(f'<a href="{name}/">{name}</a><br>' for name in universe.newest)
    page = f"<!DOCTYPE html><html><body>\n{names}\n</body></html>\n"
    (root / "index.html").write_text(page, encoding="utf-8")


def _write_wheel(path: Path, name: str, version: int, metadata: str) -> None:
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: none\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(zipfile.ZipInfo(file), text)
