"""Platform components: what no pip installs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.compiling.draft import (
    ASKED,
    HERE,
    OTHER_TARGETS,
    Clause,
    covers,
    line_is,
    target_name,
    version_in,
)
from resolver.facts import schema
from resolver.model import Candidate, Fact
from resolver.problem import Favour
from resolver.versions import join_words, minor, newest_first, sort_key

if TYPE_CHECKING:
    from resolver.compiling.draft import Draft
    from resolver.model import Origin

_OF_RELEASE = "Not read from an image: it is that of the distribution release."


def compile_platform(draft: Draft) -> None:
    """Add backend, offload targets, driver, ROCm, base images, glibc and Python."""
    target, catalog = draft.target, draft.catalog
    backends = [Fact(f"backend {name}", "documented", ASKED) for name in ("rocm", "cpu")]
    draft.variable("backend", [_target("backend", fact.text.split()[1], fact) for fact in backends])
    for name in target.gfx[:1]:
        row = catalog.gfx[name]
        fact = Fact.of(row, f"{target_name(target)} is the offload target")
        draft.variable("gfx", [_target("gfx", one, fact) for one in (target_name(target), OTHER_TARGETS)])
    if not target.gfx:
        draft.variable("gfx", [])
    drivers = catalog.driver.values()
    draft.variable(
        "kernel-driver",
        [_plain("kernel-driver", row.version, row, "is a line of AMD's driver") for row in drivers],
    )
    pythons = catalog.python.values()
    draft.variable(
        "python",
        [_plain("python", row.version, row, "is a release line", "default") for row in pythons],
    )
    _rocm(draft)
    _images(draft)


def _target(name: str, version: str, fact: Fact) -> Candidate:
    return Candidate(name, version, "platform", "request", fact)


def _plain(name: str, version: str, row: schema.Row, text: str, origin: Origin = "site") -> Candidate:
    fact = Fact.of(row, f"{name} {version} {text}")
    return Candidate(name, version, "platform", origin, fact)


def _rocm(draft: Draft) -> None:
    rows = draft.catalog.rocm.values()
    clauses = _driver_table(draft)
    drivers = draft.variables["kernel-driver"].candidates
    here = [one for one in drivers if one.version == draft.driver]
    risky = [clause for clause in clauses if clause.risk and any(map(clause.permits, here))]
    draft.variable(
        "rocm",
        [_plain("rocm", row.version, row, "is a release", "base-image") for row in rows],
        last=lambda candidate: any(clause.speaks_of(candidate) for clause in risky),
    )
    draft.relate("rocm", "kernel-driver", clauses, when_present=True)
    if draft.target.gfx:
        of_gfx = [
            Clause(
                version_in([row.version]),
                covers(row.gfx, draft.target.gfx),
                Fact.of(row, f"ROCm {row.version} targets {', '.join(row.gfx)}", note=""),
            )
            for row in rows
            if row.gfx
        ]
        draft.relate("rocm", "gfx", of_gfx)


def _driver_table(draft: Draft) -> list[Clause]:
    """AMD's table, with four answers: supported, at own risk, refused, and nothing said of it."""
    drivers = list(draft.catalog.driver.values())
    here = draft.catalog.driver.get(draft.driver or "")
    lines = dict.fromkeys(newest_first(minor(row.version) for row in draft.catalog.rocm.values()))
    clauses = []
    for line in lines:
        supporting = [row for row in drivers if line in row.supports]
        names = newest_first(row.version for row in supporting)[::-1]
        if here and _says_nothing(here, line):
            text = f"AMD's table says nothing of ROCm {line} and driver {here.version}"
            clauses.append(Clause(line_is(line), version_in(names), Fact.of(here, text)))
            continue
        text = (
            f"ROCm {line} is supported on kernel drivers {join_words(names, most=12, joiner='and')}"
            if names
            else f"ROCm {line} is not in AMD's driver table"
        )
        fact = Fact.of((supporting or drivers)[0], text, note="")
        clauses.append(Clause(line_is(line), version_in(names), fact))
        clauses += [_at_own_risk(line, row) for row in drivers if _is_older(line, row)]
    return clauses


def _is_older(line: str, driver: schema.Driver) -> bool:
    return sort_key(line) < min(map(sort_key, driver.supports))


def _says_nothing(driver: schema.Driver, line: str) -> bool:
    """Tell whether a line is in neither list of a driver, and not older than its window."""
    return line not in (*driver.supports, *driver.unsupported) and not _is_older(line, driver)


def _at_own_risk(line: str, driver: schema.Driver) -> Clause:
    oldest, newest = (pick(driver.supports, key=sort_key) for pick in (min, max))
    window = f"{oldest} to {newest}"
    text = f"ROCm {line} is older than what driver {driver.version} supports ({window}): at own risk"
    note = "Single-node work may run; nobody supports it."
    fact = Fact(text, "inferred", driver.source, note, driver.file)
    return Clause(line_is(line), version_in([driver.version]), fact, risk=True)


def _images(draft: Draft) -> None:
    images = draft.catalog.image
    candidates = [
        _plain("base-image", row.name, row, f"holds {_rocm_in(row)}{_on(row)}", "base-image")
        for row in images.values()
    ]
    draft.variable("base-image", candidates, rank=lambda one: sort_key(images[one.version].rocm or "0"))
    _glibc(draft)
    rocm, glibc = [], []
    for row in images.values():
        this = version_in([row.name])
        if row.rocm:  # in another one that of torch's wheel is all there is
            fact = Fact.of(row, f"{row.name} holds ROCm {row.rocm}", note="")
            rocm.append(Clause(this, version_in([row.rocm]), fact))
        if row.glibc:
            fact = Fact.of(row, f"{row.name} is {row.os}, which has glibc {row.glibc}", note=_note(row))
            glibc.append(Clause(this, version_in([row.glibc]), fact))
    _favour_own_python(draft)
    draft.relate("base-image", "rocm", rocm)
    draft.relate("base-image", "glibc", glibc)


def _favour_own_python(draft: Draft) -> None:
    """Let the Python of the chosen base image come first, unless the request names one."""
    image_variable, python = draft.variables["base-image"], draft.variables["python"]
    first = {
        bit: python.of_versions(draft.catalog.image[candidate.version].python)
        for bit, candidate in enumerate(image_variable.candidates, start=1)
    }
    draft.favours["python"] = Favour("base-image", first)


def _rocm_in(image: schema.Image) -> str:
    return f"ROCm {image.rocm}" if image.rocm else "no ROCm"


def _on(image: schema.Image) -> str:
    return f" on {image.os}" if image.os else ", its system is not documented"


def _note(image: schema.Image) -> str:
    """Say how the glibc of an image is known, unless somebody looked into the image."""
    return "" if image.source.startswith(schema.INSPECTED) else _OF_RELEASE


def _glibc(draft: Draft) -> None:
    facts = {
        row.glibc: Fact.of(row, f"glibc {row.glibc} is that of {row.os}", note=_note(row))
        for row in draft.catalog.image.values()
        if row.glibc
    }
    here = draft.target.glibc
    if here:
        facts[here] = Fact(f"glibc {here} is installed", "observed", HERE)
    draft.variable("glibc", [_glibc_candidate(version, fact) for version, fact in facts.items()])


def _glibc_candidate(version: str, fact: Fact) -> Candidate:
    return Candidate("glibc", version, "platform", "site" if fact.source == HERE else "base-image", fact)
