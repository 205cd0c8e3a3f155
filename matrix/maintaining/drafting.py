"""``matrix catalog draft``: catalog rows for an extension that the catalog does not have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builders.learning.origin import read_origin
from builders.source_facts.facts import SourceFacts
from builders.source_facts.recipe_draft import MARK, components_of, draft_text, gaps_of, unnamed_requirements
from builders.storage.files import write_atomic
from matrix.api import package_indexes
from matrix.command_line.options import (
    add_catalog,
    add_format,
    add_index_access,
    add_output,
    nonempty,
)
from matrix.input.settings import overlays
from matrix.show.json_document import JsonDocument
from matrix.show.render import SOURCE_KINDS
from resolver.errors import UsageError
from resolver.facts.catalog import load_uncached, overlay_files, shipped_files
from resolver.texts import printable

if TYPE_CHECKING:
    import argparse

    from matrix.command_line.context import Context

SUMMARY = "draft a recipe for an extension that the catalog does not have"
EXAMPLE = "matrix catalog draft torchsort"


class DraftResult(JsonDocument, kw_only=True):
    """The JSON output of ``matrix catalog draft``."""

    status: Literal["ok"] = "ok"
    file: str
    origin: str
    note: str
    facts: SourceFacts
    gaps: list[str]
    """The facts that could not be determined."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "source",
        metavar="NAME|DIR|FILE|GIT-URL",
        type=nonempty,
        help="a project on the package index (NAME==VERSION for one release), a directory, an sdist, or a "
        "git repository (git+https://HOST/PATH@TAG)",
    )
    add_output(parser, "the catalog file to write (default: NAME.toml)")
    parser.add_argument(
        "--release",
        metavar="VERSION",
        type=nonempty,
        help="version of a directory or commit that computes its version",
    )
    add_index_access(parser)
    add_catalog(parser)
    add_format(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console, settings = context.args, context.console, context.settings
    origin = read_origin(
        args.source,
        version=args.release or "",
        indexes=package_indexes(settings, context.inputs, console),
        mirrors=settings.mirrors,
        offline=settings.offline,
    )
    facts, gaps = origin.facts, gaps_of(origin.facts)
    if facts.name in context.catalog.package:
        console.warning(f"The catalog already has {facts.name}. The rows of the draft overlay its rows.")
    components = components_of(context.catalog)
    unnamed = [] if origin.on_index else unnamed_requirements(facts, components)
    if unnamed:
        gaps.append(f"versions of {', '.join(unnamed)}: the wheel requires them, but the draft does not")
    rows = origin.rows(components, context.today)
    file = args.output or Path(f"{facts.name}.toml")
    _write(file, draft_text(rows, gaps, origin.title), context)
    console.info(f"Wrote {file}.")
    result = DraftResult(
        file=str(file),
        origin=origin.title,
        note=origin.note,
        facts=facts,
        gaps=gaps,
    )
    if args.format == "json":
        console.document(result)
    else:
        console.text(_text(result, context))
    return 0


def _write(file: Path, text: str, context: Context) -> None:
    """Write the draft if the catalog stays valid; raise `UsageError` if the file exists and is no draft."""
    if file.exists() and not file.read_text(encoding="utf-8", errors="replace").startswith(MARK):
        msg = f"{file} exists and is not a draft. Nothing was written."
        raise UsageError(msg, hint="Name another file with -o.")
    path = str(file.resolve())
    layers = [shipped_files(), *map(overlay_files, overlays(context.settings)), [path]]
    load_uncached(layers, overrides={path: text})
    write_atomic(file, text)


def _text(result: DraftResult, context: Context) -> str:
    facts, console = result.facts, context.console
    rows = [
        ["kind", f"{SOURCE_KINDS[facts.source.kind]}: {facts.source.evidence}"],
        ["not declared", ", ".join(facts.undeclared) or "nothing"],
        *(
            [f"extension {number}", f"{row.name or '(computed name)'}, {row.kind} ({row.where})"]
            for number, row in enumerate(facts.extensions, start=1)
        ),
        ["architectures", ", ".join(f"{row.name} ({row.where})" for row in facts.architectures) or "none"],
    ]
    rows = [[label, printable(text)] for label, text in rows]
    lines = [f"{facts.name} {facts.version}, from {result.origin}", console.out.table(rows)]
    if result.gaps:
        lines += ["\nCould not be determined:", *(f"  - {printable(gap)}" for gap in result.gaps)]
    if result.note:
        lines.append(f"\n{result.note}")
    use = f"matrix build-wheels {facts.name} --catalog {result.file}"
    endings = {
        "pure": "Nothing is compiled, so no draft is needed: `matrix resolve` builds its wheel without one.",
        "cuda": "It does not compile for ROCm without changes to its source.",
    }
    ending = endings.get(facts.source.kind, f"Complete {result.file}, then run `{use}`.")
    return "\n".join([*filter(None, lines), f"\n{ending}"])
