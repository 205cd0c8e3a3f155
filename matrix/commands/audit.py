"""``matrix audit``: what is in a wheel, and what is wrong with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders.audit.contents import Expected
from builders.audit.wheels import audit_wheel
from resolver.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    import argparse

    from builders.audit.wheels import WheelAudit
    from matrix.console import Console
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Recipe

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
    parser.add_argument("--torch-lib", metavar="DIR", type=Path, help="torch's own library directory")
    parser.add_argument("--glibc", metavar="VERSION", help="the glibc that the wheels will run on")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    catalog = _catalog() if args.gfx or args.package else None
    targets = tuple(
        dict.fromkeys(part.strip() for text in args.gfx for part in text.split(",") if part.strip())
    )
    for one in targets:
        if catalog is not None and one.partition(":")[0] not in catalog.gfx:
            msg = f"The catalog knows no offload target {one!r}."
            raise UsageError(msg, hint=did_you_mean(one, catalog.gfx))
    if args.glibc and not re.fullmatch(r"\d+(\.\d+)+", args.glibc):
        msg = f"{args.glibc!r} is no version of glibc."
        raise UsageError(msg, hint="Write it as 2.31.")
    libraries = _libraries(args.torch_lib) if args.torch_lib else None
    audits = []
    for path in args.wheels:
        recipe = _recipe(args.package, path, catalog) if catalog is not None and args.package else None
        audits.append(audit_wheel(path, Expected(targets, recipe, libraries, args.glibc or "")))
    if args.format == "json":
        console.document({"schema": 1, "wheels": [_document(one) for one in audits]})
    else:
        console.data("\n\n".join(_text(one, quiet=console.verbosity < 0) for one in audits))
    return int(any(one.verdict == "defective" for one in audits))


def _catalog() -> Catalog:
    from matrix.options import load_catalog, read_settings  # noqa: PLC0415  only to compare with facts

    return load_catalog(read_settings())


def _libraries(folder: Path) -> frozenset[str]:
    if not folder.is_dir():
        msg = f"There is no directory {folder}, which --torch-lib names."
        raise UsageError(msg, hint="It is torch/lib in the environment that the wheels are for.")
    return frozenset(path.name for path in folder.iterdir())


def _recipe(package: str, path: Path, catalog: Catalog) -> Recipe:
    """Find the recipe of the wheel's release; its label says for which backend."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename  # noqa: PLC0415

    from resolver.facts.selecting import recipe_for  # noqa: PLC0415

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
        "findings": [
            {
                "id": finding.id,
                "severity": finding.severity,
                "text": finding.text,
                "evidence": dict(finding.evidence),
                "cure": finding.cure,
            }
            for finding in one.findings
        ],
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
        lines.append(f"  {finding.severity:<8}  {finding.text} [{finding.id}]")
        if finding.cure:
            lines.append(f"            {finding.cure}")
    return "\n".join(map(_printable, lines))


def _printable(line: str) -> str:
    """Show control characters as escapes: the names in a wheel are anybody's."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in line)
