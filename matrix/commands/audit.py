"""``matrix audit``: what is in a wheel, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from builders.audit.contents import Expected
from builders.audit.optable import read_op_table
from builders.audit.surroundings import image_provider, read_conda, read_image_facts, read_torch
from builders.audit.wheels import audit_wheel
from matrix.options import add_format
from resolver.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    import argparse

    from builders.audit.surroundings import Provider
    from builders.audit.wheels import WheelAudit
    from matrix.context import Context
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Recipe

_VERSIONS = {
    "glibc": "the glibc, such as 2.31,",
    "glibcxx": "the newest GLIBCXX_ of the libstdc++, such as 3.4.28,",
    "cxxabi": "the newest CXXABI_ of the libstdc++, such as 1.3.12,",
}
SUMMARY = "check what is inside wheels"
EXAMPLE = "matrix audit --gfx90a index/simple/apex/*.whl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("wheels", nargs="+", metavar="WHEEL", type=Path, help="wheel files, from anywhere")
    parser.add_argument(
        "--gfx",
        metavar="A,B",
        action="append",
        default=[],
        help="the offload targets each wheel must hold code for, and no others; --gfx90a is the same",
    )
    parser.add_argument(
        "--package", metavar="NAME", help="compare with what the catalog's recipe for NAME promises"
    )
    parser.add_argument(
        "--torch-lib", metavar="DIR", type=Path, help="torch/lib of the torch that the wheels will run with"
    )
    parser.add_argument(
        "--base-image-facts",
        metavar="FILE",
        type=Path,
        help="what matrix doctor --base-image IMAGE --format json said of the image they will run in",
    )
    parser.add_argument(
        "--conda", metavar="DIR", type=Path, help="the conda environment that they will run in"
    )
    for name, what in _VERSIONS.items():
        parser.add_argument(f"--{name}", metavar="VERSION", help=f"{what} that the wheels will run on")
    add_format(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    catalog = _catalog() if args.gfx or args.package else None
    targets = tuple(
        dict.fromkeys(part.strip() for text in args.gfx for part in text.split(",") if part.strip())
    )
    for one in targets:
        if catalog is not None and one.partition(":")[0] not in catalog.gfx:
            msg = f"The catalog knows no offload target {one!r}."
            raise UsageError(msg, hint=did_you_mean(one, catalog.gfx))
    torch = read_torch(args.torch_lib) if args.torch_lib else None
    providers = _providers(args)
    audits = []
    for path in args.wheels:
        recipe = _recipe(args.package, path, catalog) if catalog is not None and args.package else None
        audits.append(audit_wheel(path, Expected(targets, recipe, torch, providers)))
    if args.format == "json":
        console.document({"schema": 1, "wheels": [_document(one) for one in audits]})
    else:
        console.data("\n\n".join(_text(one, quiet=console.verbosity < 0) for one in audits))
    return int(any(one.verdict == "defective" for one in audits))


def _catalog() -> Catalog:
    from matrix.settings import load_catalog, read_settings

    return load_catalog(read_settings())


def _providers(args: argparse.Namespace) -> tuple[Provider, ...]:
    """Give what the wheels will run in, as files and options say; an option rules over a file."""
    said = {name: version for name in _VERSIONS if (version := getattr(args, name))}
    found = []
    if args.base_image_facts:
        found.append(read_image_facts(args.base_image_facts, said))
    elif said:
        found.append(image_provider(said))
    if args.conda:
        found.append(read_conda(args.conda))
    return tuple(found)


def _recipe(package: str, path: Path, catalog: Catalog) -> Recipe:
    """Find the recipe of the wheel's release; its label says for which backend."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    from resolver.facts.catalog import recipe_for

    if package not in catalog.package:
        msg = f"The catalog has no package {package!r}."
        raise UsageError(msg, hint=did_you_mean(package, catalog.package))
    try:
        _, version, _, _ = parse_wheel_filename(path.name)
    except InvalidWheelFilename:
        msg = f"{path.name} is not the name of a wheel."
        raise UsageError(msg) from None
    backend = "cpu" if (version.local or "").startswith("cpu") else "rocm"
    releases = [one for one in catalog.releases_of(package) if one.version == version.public]
    for release in releases:
        recipe = recipe_for(catalog, release, backend)
        if recipe is not None:
            return recipe
    msg = f"The catalog has no recipe for {package} {version.public} on {backend}."
    known = list(dict.fromkeys(one.version for one in catalog.releases_of(package)))
    raise UsageError(msg, hint=did_you_mean(version.public, known))


def _document(one: WheelAudit) -> dict[str, Any]:
    held = one.contents
    table = read_op_table(held)
    return {
        "file": held.file,
        "sha256": one.sha256,
        "name": held.name,
        "version": held.version,
        "tags": [str(tag) for tag in held.tags],
        "code_objects": {
            path: sorted({entry.name for entry in code}) for path, code in sorted(held.code.items())
        },
        "needs": {
            item.path: {"libraries": list(item.needed), "versions": dict(item.versions)}
            for item in held.objects
        },
        "ops": dict(sorted(table.ops.items())) if table else None,
        "findings": msgspec.to_builtins(one.findings),
        "verdict": one.verdict,
    }


def _text(one: WheelAudit, *, quiet: bool) -> str:
    held = one.contents
    lines = [f"{held.file}: {one.verdict}"]
    if not quiet:
        lines += [f"  GPU code  {path}: {', '.join(sorted({entry.name for entry in code})) or 'none'}"
                  for path, code in sorted(held.code.items())]  # fmt: skip
        if held.objects and not held.code:
            lines.append("  GPU code  none")
    for finding in one.findings:
        if quiet and finding.severity == "info":
            continue
        lines.append(f"  {finding.severity:<8}  {finding.message} [{finding.id}]")
        if finding.fix:
            lines.append(f"            {finding.fix}")
    return "\n".join(map(_printable, lines))


def _printable(line: str) -> str:
    """Show control characters as escapes: the names in a wheel are anybody's."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in line)
