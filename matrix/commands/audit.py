"""``matrix audit``: check the contents of wheels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builders.audit import Expected, audit_wheel, image_provider, read_torch
from builders.audit.runtime_libraries import read_conda, read_image_facts
from builders.audit.wheel_audit import Report
from matrix.command_line.options import add_format
from matrix.show.json_document import JsonDocument
from matrix.show.render import findings_text
from resolver.errors import UsageError, did_you_mean
from resolver.facts.catalog import Catalog, recipe_for
from resolver.texts import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from builders.audit import LibraryProvider
    from matrix.command_line.context import Context
    from matrix.show.console import Console
    from resolver.facts.schema import Recipe

_VERSIONS = {
    "glibc": "glibc, such as 2.31,",
    "glibcxx": "newest GLIBCXX version of libstdc++, such as 3.4.28,",
    "cxxabi": "newest CXXABI version of libstdc++, such as 1.3.12,",
}
SUMMARY = "check the contents of wheels"
EXAMPLE = "matrix audit --gfx90a index/simple/apex/*.whl"


class AuditDocument(JsonDocument, kw_only=True):
    """The contents of wheels, and the findings."""

    status: Literal["ok", "errors"]
    wheels: list[Report]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("wheels", nargs="+", metavar="WHEEL", type=Path, help="wheel files")
    parser.add_argument(
        "--gfx",
        metavar="A,B",
        action="append",
        default=[],
        help="GPU architectures that each wheel must contain code for; also --gfx90a",
    )
    parser.add_argument(
        "--package", metavar="NAME", help="compare with the content that the recipe for NAME promises"
    )
    parser.add_argument(
        "--torch-lib", metavar="DIR", type=Path, help="torch/lib of the torch that the wheels will run with"
    )
    parser.add_argument(
        "--base-image-facts",
        metavar="FILE",
        type=Path,
        help="output of `matrix doctor --base-image IMAGE --format json` for the image that the wheels "
        "will run in",
    )
    parser.add_argument(
        "--conda", metavar="DIR", type=Path, help="the conda environment that the wheels will run in"
    )
    for name, what in _VERSIONS.items():
        parser.add_argument(f"--{name}", metavar="VERSION", help=f"{what} where the wheels will run")
    add_format(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    architectures = tuple(
        dict.fromkeys(name.strip() for text in args.gfx for name in text.split(",") if name.strip())
    )
    for name in architectures:
        if name.partition(":")[0] not in context.catalog.gfx:
            msg = f"The catalog has no GPU architecture {name!r}."
            raise UsageError(msg, hint=did_you_mean(name, context.catalog.gfx))
    torch = read_torch(args.torch_lib) if args.torch_lib else None
    providers = _providers(args)
    reports = []
    for path in args.wheels:
        recipe = _recipe(args.package, path, context.catalog) if args.package else None
        with console.task(f"audit {path.name}"):
            audit = audit_wheel(path, Expected(architectures, recipe, torch, providers))
        reports.append(audit.report())
    defective = any(report.verdict == "defective" for report in reports)
    if args.format == "json":
        console.document(AuditDocument(status="errors" if defective else "ok", wheels=reports))
    else:
        texts = [_text(report, context) for report in reports]
        console.data("\n\n".join([*_answer(reports, console), *texts]))
    return int(defective)


def _providers(args: argparse.Namespace) -> tuple[LibraryProvider, ...]:
    """Return the libraries that the wheels will run with, from files and options; options take precedence."""
    versions = {name: version for name in _VERSIONS if (version := getattr(args, name))}
    providers = []
    if args.base_image_facts:
        providers.append(read_image_facts(args.base_image_facts, versions))
    elif versions:
        providers.append(image_provider(versions))
    if args.conda:
        providers.append(read_conda(args.conda))
    return tuple(providers)


def _recipe(package: str, path: Path, catalog: Catalog) -> Recipe:
    """Return the recipe of the wheel's release; its label names the backend."""
    if package not in catalog.package:
        msg = f"The catalog has no package {package!r}."
        raise UsageError(msg, hint=did_you_mean(package, catalog.package))
    try:
        _, version, _, _ = parse_wheel_filename(path.name)
    except InvalidWheelFilename:
        msg = f"{path.name} is not a valid file name of a wheel."
        raise UsageError(msg, hint="Wheels are named NAME-VERSION-PYTHON-ABI-PLATFORM.whl.") from None
    backend = "cpu" if (version.local or "").startswith("cpu") else "rocm"
    releases = catalog.releases_of(package)
    for release in releases:
        recipe = recipe_for(catalog, release, backend) if release.version == version.public else None
        if recipe is not None:
            return recipe
    msg = f"The catalog has no recipe for {package} {version.public} on {backend}."
    known = list(dict.fromkeys(release.version for release in releases))
    raise UsageError(msg, hint=did_you_mean(version.public, known))


def _answer(reports: Sequence[Report], console: Console) -> list[str]:
    """Return the number of wheels by verdict; empty for one wheel, whose text begins with its verdict."""
    if len(reports) == 1:
        return []
    counts = Counter(report.verdict for report in reports)
    parts = (f"{counts[verdict]} {verdict}" for verdict in ("defective", "sound") if counts[verdict])
    return [console.out.styled("bold", f"{len(reports)} wheels: {', '.join(parts)}")]


def _text(report: Report, context: Context) -> str:
    console = context.console
    quiet = console.verbosity < 0
    lines = [f"{printable(report.file)}: {report.verdict}"]
    if not quiet:
        for path, names in report.code_objects.items():
            lines.append(f"  GPU code in {printable(path)}: {', '.join(names) or 'none'}")
        if report.needs and not report.code_objects:
            lines.append("  GPU code: none")
    lines.append(findings_text(report.findings, quiet=quiet, indent="  ", screen=console.out))
    return "\n".join(filter(None, lines))
