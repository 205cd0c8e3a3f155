"""Platform components, which pip does not install."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

from resolver.compiling.clauses import (
    OTHER_ARCHITECTURES,
    REQUEST,
    THIS_MACHINE,
    Clause,
    allowed_by,
    architectures,
    covers,
    line_is,
    no_candidate,
    version_in,
)
from resolver.compiling.problem import Statement, Variable
from resolver.compiling.problem_builder import exclude_later_releases, is_advised
from resolver.facts import schema
from resolver.facts.driver import drivers_of_modules, is_older, runs_outside_table, supported
from resolver.model import IMAGE, STATUS_RANK, Candidate, Fact
from resolver.versions import join_words, minor, newest_first, sort_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import date

    from resolver.compiling.problem_builder import ProblemBuilder
    from resolver.facts.catalog import Catalog
    from resolver.model import Origin

_GLIBC_OF_RELEASE = "Not read from the image. This is the glibc of that Linux release."


def compile_platform(builder: ProblemBuilder) -> None:
    """Add backend, GPU architectures, driver, Python, ROCm, base images and glibc."""
    target, catalog = builder.target, builder.catalog
    backends = [
        Candidate("backend", name, "platform", "request", Fact(f"backend {name}", "documented", REQUEST))
        for name in ("rocm", "cpu")
    ]
    builder.add_variable("backend", backends)
    gfx = []
    if target.gfx:
        fact = Fact.of(catalog.gfx[target.gfx[0]], f"GPU architecture {architectures(target)}")
        both = architectures(target), OTHER_ARCHITECTURES
        gfx = [Candidate("gfx", name, "platform", "request", fact) for name in both]
    builder.add_variable("gfx", gfx)
    drivers = catalog.driver.values()
    builder.add_variable(
        "kernel-driver",
        [_candidate("kernel-driver", row.version, row, "is in AMD's driver table") for row in drivers],
    )
    _relate_gfx_to_driver(builder)
    pythons = catalog.python.values()
    newest = newest_python(catalog, target.date)
    in_images = {version for name in images_of_site(builder) for version in catalog.image[name].python}
    builder.add_variable(
        "python",
        [_candidate("python", row.version, row, "is a release line", "default") for row in pythons],
        last=lambda one: 0 if one.version in in_images else 2 if one.version == newest else 1,
    )
    _add_rocm(builder)
    _add_images(builder)
    if target.python is None:  # the user's own Python may be newer than the day
        exclude_later_releases(builder, "python")
    if target.base_image is None:  # so may the ROCm of an image that the user names
        exclude_later_releases(builder, "rocm")


def newest_python(catalog: Catalog, day: date) -> str:
    """Return the newest release line of a day: the last choice, because few packages have wheels for it."""
    pythons = catalog.python.values()
    known = (row.version for row in pythons if row.released and row.released <= day)
    return max(known, key=sort_key, default="")


def _relate_gfx_to_driver(builder: ProblemBuilder) -> None:
    this = version_in([architectures(builder.target)])
    for row in (builder.catalog.gfx[name] for name in builder.target.gfx):
        if row.driver:
            fact = Fact.of(row, f"{row.target} requires kernel driver {row.driver}")
            clause = Clause(this, allowed_by([row.driver]), fact)
            builder.relate("gfx", "kernel-driver", [clause], when_present=True)


def _candidate(name: str, version: str, row: schema.Row, text: str, origin: Origin = "site") -> Candidate:
    fact = Fact.of(row, f"{name} {version} {text}")
    return Candidate(name, version, "platform", origin, fact)


def _add_rocm(builder: ProblemBuilder) -> None:
    rows = builder.catalog.rocm.values()
    clauses = _driver_table(builder)
    driver = builder.variables["kernel-driver"]
    here = driver.of_versions([builder.driver or ""])
    candidates = [_candidate("rocm", row.version, row, "is a release", "base-image") for row in rows]
    rocm = Variable("rocm", candidates)
    last = _newer_than_recorded(builder, [row.version for row in rows])
    for clause in clauses:
        if clause.risk and clause.objects(driver) & here:
            last |= dict.fromkeys((one.version for one in rocm.chosen(clause.subjects(rocm))), 1)
    builder.add_variable("rocm", candidates, last=lambda candidate: last.get(candidate.version, 0))
    builder.relate("rocm", "kernel-driver", clauses, when_present=True)
    if builder.target.gfx:
        of_gfx = [
            Clause(
                version_in([row.version]),
                covers(row.gfx, builder.target.gfx),
                Statement(row, f"ROCm {row.version}", f"supports {', '.join(row.gfx)}", note=""),
            )
            for row in rows
            if row.gfx
        ]
        builder.relate("rocm", "gfx", of_gfx)


def _newer_than_recorded(builder: ProblemBuilder, versions: Iterable[str]) -> dict[str, int]:
    """Return the ROCm versions that are newer than those a site with an unknown driver is recorded to have.

    An older ROCm usually runs on a driver, a newer one may not: so the newest comes last, except for what all
    drivers support that the site's modules leave.
    """
    advice = builder.advice.get("rocm")
    if builder.driver is not None or advice is None or not advice.recorded:
        return {}
    drivers = [builder.catalog.driver[name] for name in drivers_of_modules(builder.catalog, advice.modules)]
    ordered = sorted(versions, key=sort_key)
    recorded = [position for position, version in enumerate(ordered) if is_advised(advice, version)]
    newest = max(recorded, default=len(ordered))
    newer = enumerate(ordered[newest + 1 :], start=1)
    runs = {
        line for row in drivers[:1] for line in row.supports if all(line in one.supports for one in drivers)
    }
    return {version: number for number, version in newer if minor(version) not in runs}


def _driver_table(builder: ProblemBuilder) -> list[Clause]:
    """Return AMD's driver table as clauses; runs at the site outside it are at your own risk, too."""
    drivers = list(builder.catalog.driver.values())
    here = builder.catalog.driver.get(builder.driver or "")
    lines = dict.fromkeys(newest_first(minor(row.version) for row in builder.catalog.rocm.values()))
    clauses = []
    for line in lines:
        supporting = [row for row in drivers if line in row.supports]
        names = newest_first(row.version for row in supporting)[::-1]
        if here and line not in (*here.supports, *here.unsupported) and not is_older(line, here):
            text = f"AMD's driver table does not mention ROCm {line} with driver {here.version}"
            clauses.append(Clause(line_is(line), version_in(names), Fact.of(here, text)))
            continue
        text = (
            f"ROCm {line} is supported on kernel drivers {join_words(names, most=12, joiner='and')}"
            if names
            else f"ROCm {line} is not in AMD's driver table"
        )
        fact = Fact.of((supporting or drivers)[0], text, note="")
        clauses.append(Clause(line_is(line), version_in(names), fact))
        clauses += [_at_own_risk(line, row) for row in drivers if is_older(line, row)]
    return clauses + _runs_outside_table(builder)


def _runs_outside_table(builder: ProblemBuilder) -> list[Clause]:
    table = builder.catalog.driver.get(builder.driver or "")
    if table is None:
        return []
    runs = runs_outside_table(builder.catalog, builder.target.site, table, builder.target.date)
    return [
        Clause(line_is(line), version_in([table.version]), Fact.of(row, text), risk=True)
        for line, (row, text) in runs.items()
    ]


def _at_own_risk(line: str, driver: schema.Driver) -> Clause:
    oldest, newest = supported(driver.supports)
    text = f"ROCm {line} is older than driver {driver.version} supports ({oldest} to {newest})"
    note = "Single-node jobs may run, but AMD does not support this."
    fact = Fact(text, "inferred", driver.source, note, driver.file)
    return Clause(line_is(line), version_in([driver.version]), fact, risk=True)


def offered_images(builder: ProblemBuilder) -> dict[str, schema.Row]:
    """Return the base images that the site offers on the day, each with the row that says so."""
    target, catalog = builder.target, builder.catalog
    site = catalog.site.get(target.site)
    offered: dict[str, schema.Row] = {}
    if site and site.public_images:
        offered = {name: row for name, row in catalog.image.items() if "://" in row.path}
    return offered | images_of_site(builder)


def images_of_site(builder: ProblemBuilder) -> dict[str, schema.SiteImage]:
    """Return the base images that rows of the site list on the day, each with its row."""
    target = builder.target
    return {row.image: row for row in builder.catalog.images_at(target.site, target.date)}


def _add_images(builder: ProblemBuilder) -> None:
    images = builder.catalog.image
    candidates = [
        _candidate("base-image", row.name, row, f"contains {rocm}{system}", "base-image")
        for row in images.values()
        for rocm in [f"ROCm {row.rocm}" if row.rocm else "no ROCm"]
        for system in [f" on {row.os}" if row.os else "; its operating system is not known"]
    ]
    kept, listed = builder.request.preinstalled, images_of_site(builder)
    is_kept = kept is not None and kept.source == IMAGE

    def rank(candidate: Candidate) -> tuple[object, date, int]:
        image, offer = images[candidate.version], listed.get(candidate.version) if is_kept else None
        since = (offer and offer.since) or date.min
        return sort_key(image.rocm or "0"), since, len(image.holds) if is_kept else 0

    builder.add_variable("base-image", candidates, rank=rank)
    _add_glibc(builder)
    rocm, glibc, unknown = [], [], []
    for row in images.values():
        this = version_in([row.name])
        if row.rocm:  # an image without ROCm gets it only from torch's wheel
            fact = Statement(row, row.name, f"contains ROCm {row.rocm}", note="")
            known = row.rocm in builder.catalog.rocm
            rocm.append(Clause(this, version_in([row.rocm]) if known else line_is(minor(row.rocm)), fact))
        if row.glibc:
            text = f"is {row.os}, which has glibc {row.glibc}"
            fact = Statement(row, row.name, text, note=_glibc_note(row))
            glibc.append(Clause(this, version_in([row.glibc]), fact))
        else:
            fact = Statement(row, f"the glibc of {row.name}", "is not known", note="")
            unknown.append(Clause(this, no_candidate, fact))
    _prefer_python_of_image(builder)
    builder.relate("base-image", "rocm", rocm)
    builder.relate("base-image", "glibc", glibc)
    builder.relate("base-image", "glibc", unknown, when_present=True, forbids=True)


def add_default_images(builder: ProblemBuilder) -> None:
    """Note the images of the site with ROCm, unless the request names an image or wants none."""
    if builder.request.use_image == "of-site" and not builder.target.base_image:
        with_rocm = (name for name in images_of_site(builder) if builder.catalog.image[name].rocm)
        builder.default_images = builder.variables["base-image"].of_versions(with_rocm)


def add_libstdcxx(builder: ProblemBuilder) -> None:
    """Add the libstdc++ of the base images, which no other component requires to be present."""
    rows = [row for row in _weakest_first(builder.catalog.image) if row.libstdcxx]
    candidates = [
        Candidate("libstdcxx", version, "platform", "base-image", fact)
        for version, row in {row.libstdcxx: row for row in rows}.items()
        for fact in [Fact.of(row, f"libstdcxx {version} is the version in {row.os or row.name}", note="")]
    ]
    builder.add_variable("libstdcxx", candidates)
    clauses = [
        Clause(
            version_in([row.name]),
            version_in([row.libstdcxx]),
            Statement(row, row.name, f"has the libstdc++ of GCC {row.libstdcxx}", note=""),
        )
        for row in rows
    ]
    builder.relate("base-image", "libstdcxx", clauses)


def _prefer_python_of_image(builder: ProblemBuilder) -> None:
    """Prefer the Python that the site advises, else that of the chosen base image."""
    image, python = builder.variables["base-image"], builder.variables["python"]
    if advice := builder.advice.get("python"):
        advised = python.of_versions(
            candidate.version for candidate in python.candidates if is_advised(advice, candidate.version)
        )
        numbers = range(len(image.candidates) + 1)
        builder.preferences["python"] = "base-image", dict.fromkeys(numbers, advised)
        return
    of_machine = [builder.target.python] if builder.target.python else []
    first = {0: python.of_versions(of_machine)}
    for bit, candidate in enumerate(image.candidates, start=1):
        first[bit] = python.of_versions(builder.catalog.image[candidate.version].python or of_machine)
    builder.preferences["python"] = "base-image", first


def _glibc_note(image: schema.Image) -> str:
    """Return the source of an image's glibc version; empty if the image was inspected."""
    return "" if image.source.startswith(schema.INSPECTED) else _GLIBC_OF_RELEASE


def _weakest_first(images: Mapping[str, schema.Image]) -> list[schema.Image]:
    return sorted(images.values(), key=lambda row: STATUS_RANK[row.status])


def _add_glibc(builder: ProblemBuilder) -> None:
    facts = {
        version: Fact.of(row, f"glibc {version} is the version in {row.os}", note=_glibc_note(row))
        for version, row in {row.glibc: row for row in _weakest_first(builder.catalog.image)}.items()
        if version
    }
    here = builder.target.glibc
    if here:
        facts[here] = Fact(f"glibc {here} is installed", "observed", THIS_MACHINE)
    candidates = [
        Candidate("glibc", version, "platform", "site" if version == here else "base-image", fact)
        for version, fact in facts.items()
    ]
    builder.add_variable("glibc", candidates)
