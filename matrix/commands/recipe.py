"""``matrix recipe draft``: catalog rows for an extension that the catalog does not have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from builders.building.plan import plan
from builders.findings import Finding
from builders.index import Index
from builders.learning.origin import Origin, read_origin
from builders.learning.recipe_draft import MARK, components_of, draft_text, gaps_of, unnamed_requirements
from builders.sources.facts import SourceFacts
from builders.storage.files import write_atomic
from matrix.api import check_build_hosts, package_indexes, resolve_settings
from matrix.command_line.options import (
    add_action,
    add_catalog,
    add_format,
    add_index,
    add_index_access,
    nonempty,
    output_path,
)
from matrix.input.settings import Settings, load_catalog, merge, overlays
from matrix.show.json_document import JsonDocument
from matrix.show.render import findings_text
from matrix.show.resolution_text import conflict_text
from resolver.errors import MatrixError, UsageError
from resolver.facts.catalog import load_uncached, overlay_files, shipped_files
from resolver.facts.schema import Recipe
from resolver.model import Conflict
from resolver.providers.inferred import with_releases_of
from resolver.texts import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from builders.sources.build_script import BuildVariable, Extension
    from matrix.command_line.context import Context
    from resolver.facts.schema import Row

SUMMARY = "draft a recipe for an extension that the catalog does not have"
EXAMPLE = "matrix recipe draft torchsort torch==2.13.0"
_MOST_SHOWN = 12  # variables


class Trial(msgspec.Struct):
    """The build of a draft on this machine, for the CPU backend."""

    state: Literal["built", "failed", "skipped"]
    why: str = ""
    """Why it was not built."""
    wheel: str = ""
    """Path in the index."""
    verdict: str = ""
    """Verdict of the audit."""
    findings: tuple[Finding, ...] = ()
    exit_code: int = 0


class DraftResult(JsonDocument, kw_only=True):
    """The JSON output of ``matrix recipe draft``."""

    status: Literal["ok", "failed"]
    file: str
    origin: str
    note: str
    facts: SourceFacts
    gaps: list[str]
    """The facts that could not be determined."""
    trial: Trial


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    draft = add_action(
        actions, "draft", "write a recipe from a source, and build it for the CPU backend", EXAMPLE
    )
    draft.add_argument(
        "source",
        metavar="NAME|DIR|FILE|GIT-URL",
        type=nonempty,
        help="a project on the package index (NAME==VERSION for one release), a directory, an sdist, or a "
        "git repository (git+https://HOST/PATH@TAG)",
    )
    draft.add_argument(
        "requirements", nargs="*", metavar="REQ", help="additional build requirements, such as torch==2.13.0"
    )
    draft.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=output_path,
        help="the catalog file to write (default: NAME.toml)",
    )
    draft.add_argument("--no-build", action="store_true", help="write the file only")
    draft.add_argument(
        "--release",
        metavar="VERSION",
        type=nonempty,
        help="version of a directory or commit that computes its version",
    )
    draft.add_argument("--python", metavar="SPEC", type=nonempty, help="Python to build for, such as 3.12")
    add_index(draft)
    add_index_access(draft)
    add_catalog(draft)
    add_format(draft)


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
    _write(file, rows, gaps, origin, context)
    console.info(f"Wrote {file}.")
    if args.no_build:
        trial = Trial("skipped", "--no-build is set.")
    elif facts.without_cpu_path:
        trial = Trial("skipped", f"{facts.without_cpu_path}, so it cannot be compiled for the CPU.")
    else:
        trial = _build(file, facts, context)
        if trial.state == "built":
            built = f"Built, imported and audited on {context.today}: {Path(trial.wheel).name}."
            _write(file, [_as_built(row, built) for row in rows], gaps, origin, context)
    result = DraftResult(
        status="failed" if trial.state == "failed" else "ok",
        file=str(file),
        origin=origin.title,
        note=origin.note,
        facts=facts,
        gaps=gaps,
        trial=trial,
    )
    if args.format == "json":
        console.document(result)
    else:
        console.text(_text(result, context))
    return trial.exit_code


def _write(file: Path, rows: list[Row], gaps: list[str], origin: Origin, context: Context) -> None:
    """Write the draft if the catalog stays valid; raise `UsageError` if the file exists and is no draft."""
    if file.exists() and not file.read_text(encoding="utf-8", errors="replace").startswith(MARK):
        msg = f"{file} exists and is not a draft. Nothing was written."
        raise UsageError(msg, hint="Name another file with -o.")
    text = draft_text(rows, gaps, origin.title)
    path = str(file.resolve())
    layers = [shipped_files(), *map(overlay_files, overlays(context.settings)), [path]]
    load_uncached(layers, overrides={path: text})
    write_atomic(file, text)


def _as_built(row: Row, note: str) -> Row:
    """Return a recipe of the CPU backend as observed; any other row unchanged."""
    if isinstance(row, Recipe) and row.backend == "cpu":
        return msgspec.structs.replace(row, status="observed", note=f"{row.note} {note}")
    return row


def _build(file: Path, facts: SourceFacts, context: Context) -> Trial:
    """Resolve, build and audit the draft for the CPU backend; a failure is a result."""
    from builders.audit import Expected, audit_wheel
    from builders.building.inputs import Limits
    from builders.building.plan import find_build_host
    from builders.building.task import build_wheel

    args, console = context.args, context.console
    settings = msgspec.structs.replace(
        merge(Settings(), args),
        requirements=[f"{facts.name}=={facts.version}", *args.requirements],
        backend="cpu",
        mirrors=context.settings.mirrors,
        catalog=[*context.settings.catalog, str(file)],
    )
    index = Index(args.index)
    try:
        catalog = load_catalog(settings)
        resolution = resolve_settings(settings, catalog, context.today, reporter=console)
        if isinstance(resolution, Conflict):
            return Trial("failed", conflict_text(resolution), exit_code=1)
        catalog = with_releases_of(catalog, resolution)
        host = find_build_host(resolution, [facts.name], kind=None)
        (task,) = plan(resolution, catalog, index, host, [facts.name])
        check_build_hosts([task])
        strategy = settings.index_strategy or "first-index"
        limits = Limits(offline=settings.offline, mirrors=settings.mirrors, strategy=strategy)
        wheel = task.wheel or build_wheel(task, index, limits, console)
    except MatrixError as error:
        why = f"{error.message}\n{error.hint}".rstrip()
        return Trial("failed", why, findings=tuple(getattr(error, "findings", ())), exit_code=error.exit_code)
    audit = audit_wheel(wheel, Expected(recipe=task.recipe, python=str(host.python.prefix))).report()
    return Trial("built", wheel=str(wheel), verdict=audit.verdict, findings=audit.findings)


def _text(result: DraftResult, context: Context) -> str:
    facts, console = result.facts, context.console
    rows = [
        ["build backend", facts.backend],
        ["imports torch", ", ".join(facts.torch[:_MOST_SHOWN]) or "no"],
        ["declared", ", ".join(facts.declared) or "nothing"],
        ["not declared", ", ".join(facts.undeclared) or "nothing"],
        *([f"extension {number}", _extension(row)] for number, row in enumerate(facts.extensions, start=1)),
        ["CMake", " ".join(facts.cmake.files[:1] + facts.cmake.languages) or "no"],
        ["source files", ", ".join(f"{count} {suffix}" for suffix, count in facts.files.items()) or "none"],
        ["submodules", ", ".join(facts.submodules) or "none"],
        ["architectures", ", ".join(f"{row.name} ({row.where})" for row in facts.architectures) or "none"],
        ["flags", _names(facts.flags) or "none"],
    ]
    rows = [[label, printable(text)] for label, text in rows]
    lines = [f"{facts.name} {facts.version}, from {result.origin}", console.out.table(rows)]
    if result.gaps:
        lines += ["\nCould not be determined:", *(f"  - {printable(gap)}" for gap in result.gaps)]
    trial = result.trial
    if trial.state == "built":
        lines.append(f"\nBuilt for the CPU: {trial.wheel}\nAudit: {trial.verdict}")
        lines.append(findings_text(trial.findings, quiet=console.verbosity < 1, indent="  "))
    else:
        lines.append(f"\nNot built: {trial.why}")
    if result.note:
        lines.append(f"\n{result.note}")
    use = f"matrix build-wheels {facts.name} --catalog {result.file}"
    return "\n".join([*filter(None, lines), f"\nComplete {result.file}, then run `{use}`."])


def _extension(row: Extension) -> str:
    return f"{row.name or '(computed name)'}, {row.kind} ({row.where})"


def _names(variables: Sequence[BuildVariable]) -> str:
    shown = [f"{row.name}={row.default}" if row.default else row.name for row in variables[:_MOST_SHOWN]]
    more = len(variables) - len(shown)
    return ", ".join([*shown, f"{more} more"] if more else shown)
