"""``matrix explain``: why a version was chosen, or why there is no solution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import UNSET

from builders.building.task_state import TaskState
from builders.constants import LOCK_FILE
from matrix.api import package_indexes
from matrix.command_line.conflict import last_conflict
from matrix.command_line.options import add_format, add_index, add_lock
from matrix.input.locking import catalog_of, catalog_with_image_of
from matrix.input.settings import Settings, in_project, load_catalog
from matrix.show.graph_text import print_graph
from matrix.show.json_document import JsonDocument
from matrix.show.meanings import meanings
from matrix.show.render import Screen, counted, shortened
from matrix.show.resolution_text import (
    conflict_text,
    facts_text,
    first_source,
    names_of_others,
    others_text,
    ranked_facts,
    reason_of,
    suggestions_text,
)
from resolver.answers.rejected import (
    RejectedVersion,
    rejected_versions,
    search_naming,
    working_version,
)
from resolver.compiling.known_bad import problems_of
from resolver.errors import MatrixError, UsageError, closest_names, did_you_mean
from resolver.model import Distribution, Notice
from resolver.requirements import parse_requirement
from resolver.texts import html_table, printable
from resolver.versions import grouped, join_words, shorten, sort_key

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from matrix.command_line.context import Context
    from matrix.show.console import Console
    from resolver.model import Requirement

SUMMARY = "show why a version was chosen, with the facts and their sources"
EXAMPLE = "matrix explain torch"


class ExplainDocument(JsonDocument, kw_only=True):
    """Why versions were chosen."""

    status: Literal["ok"] = "ok"
    picks: list[Distribution]
    rejected: list[RejectedVersion]
    rejected_more: int
    problems: list[Notice]
    """Known problems of the chosen version, if one component was named."""
    meaning: str = ""
    """What an id means that was named."""
    failure: TaskState | None = None
    """The last build of the chosen version, if one component was named and that build failed."""

    def _repr_html_(self) -> str:
        rows = [(one.name, one.version, fact.text, fact.source) for one in self.picks for fact in one.facts]
        rows += [("not chosen", one.version, _rejected_text(one), "") for one in self.rejected]
        return html_table(self.meaning or f"{len(self.picks)} components", rows)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME|ID",
        help="a component of the lock, versions of one that were not chosen (torch==2.13.0), or the id of an "
        "error, a warning or a finding (default: all, or the conflict of the last resolve here)",
    )
    parser.add_argument(
        "--graph",
        action="store_true",
        help="what each distribution of the lock, or NAME, requires to run and build",
    )
    add_lock(parser)
    add_index(parser)
    add_format(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    if args.graph:
        print_graph(context, [args.name] if args.name else [])
        return 0
    conflict = None if args.name or args.lock is not in_project(LOCK_FILE) else last_conflict()
    if conflict:
        if args.format == "json":
            console.document(conflict)
        else:
            end = "These constraints conflict. Removing any one of them resolves the conflict."
            text = conflict_text(conflict, every=True)
            console.text(
                f"The last request in this directory:\n{text}\n\n{end}\n{suggestions_text(conflict)}"
            )
            if context.has_lock:
                console.info(f"\n{args.lock} is unchanged: `matrix explain --lock {args.lock}`")
        return 0
    document = explanation(context)
    if args.format == "json":
        console.document(document)
    elif document.meaning:
        console.text(document.meaning)
    elif args.name and console.verbosity <= 0:
        _print_screenful(document, context)
    else:
        console.data(_text(document, context))
    return 0


def explanation(context: Context) -> ExplainDocument:
    """Return why the versions of the lock were chosen, or what the id that is named means."""
    args = context.args
    if meaning := _meaning(context):
        return ExplainDocument(picks=[], rejected=[], rejected_more=0, problems=[], meaning=meaning)
    lock = context.lock
    requirement = parse_requirement(args.name) if args.name else None
    picks = [pick for pick in lock.picks if requirement is None or pick.name == requirement.name]
    if requirement is None:
        return ExplainDocument(picks=picks, rejected=[], rejected_more=0, problems=[])
    if not picks:
        msg = f"{args.lock} does not contain {shorten(args.name)!r}."
        names = [pick.name for pick in lock.picks]
        of_image = [pick.name for pick in lock.picks if pick.version == args.name]
        ids = [notice.id for notice in (*lock.warnings, *lock.notes)]
        of_names, of_ids = (
            [one for one in known if requirement.name in one.split("-")] for known in (names, ids)
        )
        parts = of_image or of_names or of_ids
        meant = parts[0] if len(parts) == 1 else requirement.name
        raise UsageError(msg, hint=did_you_mean(meant, parts or names))
    follows = any(pick.alias_of or pick.comes_with_image for pick in picks)  # from torch, or from the image
    rejected, more = ([], 0) if follows else _rejected(context, requirement, picks[0])
    try:
        problems = problems_of(catalog_of(lock, args.lock, Settings()), lock, requirement.name)
    except MatrixError:  # the facts are not at hand
        problems = []
    return ExplainDocument(
        picks=picks,
        rejected=rejected,
        rejected_more=more,
        problems=problems,
        failure=_failure(picks[0], args.index),
    )


def _text(document: ExplainDocument, context: Context) -> str:
    lock, console, name = context.lock, context.console, context.args.name
    others = names_of_others(lock) if console.verbosity <= 0 else frozenset()
    printed: set[str] = set()
    texts = [
        facts_text(pick, lock, console.out, printed) for pick in document.picks if pick.name not in others
    ]
    texts += [others_text(others)] if others else []
    texts += [_section(_PROBLEMS, _problem_items(document, console), console)]
    texts += [_section(_FAILED, _failure_items(document), console)]
    refused = _refused_items(document, sources=True)
    more = [_more_text(document.picks[0].name, document.rejected_more)] if document.rejected_more else []
    refused_text = _section(_REFUSED, [*(text for text, _ in refused), *more], console)
    texts = [refused_text, *texts] if _asks_why_not(name) else [*texts, refused_text]
    return "\n\n".join(filter(None, texts))


def _print_screenful(document: ExplainDocument, context: Context) -> None:
    """Print the answer for one component on a screen of 80 columns: the gravest and most decisive first."""
    console, (pick,), why_not = context.console, document.picks, _asks_why_not(context.args.name)
    failed = _section(_FAILED, _first(_failure_items(document), 12, console), console)
    most = 1 if why_not or failed else 3
    problems = _section(_PROBLEMS, _first(_problem_items(document, console), most, console), console)
    rows = _refused_items(document, sources=why_not)
    shown = _first([text for text, _ in rows], 10 if why_not else 2 if failed else 5, console)
    more = document.rejected_more + sum(number for _, number in rows[len(shown) :])
    shown += [_more_text(pick.name, more)] if more else []
    refused = _section(_REFUSED, shown, console)
    heading, facts = ranked_facts(pick, context.lock, console.out)
    others = [text for text in (problems, failed, refused) if text]
    reasons = _first(facts, _SCREEN - _height([heading, *others], console) - len(others), console)
    texts = ["\n".join([heading, *map(console.out.wrapped, reasons)]), problems, failed]
    console.data("\n\n".join(filter(None, [refused, *texts] if why_not else [*texts, refused])))
    left = len(facts) - len(reasons)
    start = f"{counted(left, 'more fact')}, notes" if left else "Notes"
    console.info(f"\n{start} and all sources: `matrix explain {pick.name} -v`")


_SCREEN = 20
"""Lines of an answer: those of a screen without the prompts and the last line with the blank one before."""
_PROBLEMS, _FAILED, _REFUSED = "Known problems", "The last build failed", "Not chosen"


def _first(items: Sequence[str], most: int, console: Console) -> list[str]:
    """Return the first items that fit so many lines; the very first is shortened if it does not."""
    shown: list[str] = []
    for item in items:
        if _height([*shown, item], console) > most:
            if not shown and most > 0:
                lines = console.out.wrapped(item).split("\n")
                shown = (
                    ["\n".join([*lines[: most - 1], f"{lines[most - 1][:76]} ..."])]
                    if lines[most:]
                    else [item]
                )
            break
        shown.append(item)
    return shown


def _height(texts: Sequence[str], console: Console) -> int:
    """Return the number of lines on a terminal; output without a width is counted as if it had 80 columns."""
    screen = Screen(console.out.width or 80)
    return sum(screen.wrapped(text).count("\n") + 1 for text in texts)


def _asks_why_not(name: str | None) -> bool:
    return name is not None and parse_requirement(name).specifier is not None


def _section(title: str, items: Sequence[str], console: Console) -> str:
    lines = [*([console.out.styled("bold", title)] if title else []), *items]
    return console.out.wrapped("\n".join(lines)) if items else ""


def _problem_items(document: ExplainDocument, console: Console) -> list[str]:
    return [f"  - {console.line_of(text, '  - ')}" for text in document.problems]


def _meaning(context: Context) -> str:
    """Return what the id that was named means, with the warnings of the lock that have it; else nothing.

    Raise `UsageError` if nothing can explain the name: it is not an id, and there is no lock.
    """
    id_ = context.args.name
    lock = context.lock if id_ and context.has_lock else None
    if id_ is None or (lock and lock.pick(id_)):
        return ""
    texts = [str(notice) for notice in (*lock.warnings, *lock.notes) if notice.id == id_] if lock else []
    for row in load_catalog(context.settings).known_bad.values():
        if id_ == row.id:
            texts += [*([] if texts else [f"{row.title}: {row.problem} ({row.source})."]), row.note]
    texts += [text] if (text := meanings().get(id_, "")) else []
    if not texts and not context.has_lock:
        msg = f"{shorten(id_)!r} is not an id, and there is no lock {context.args.lock} to look it up in."
        is_package = id_ in load_catalog(context.settings).package
        close = "" if is_package else did_you_mean(id_, closest_names(id_, meanings()))
        raise UsageError(msg, hint=close or "Write it with `matrix resolve`.")
    return "\n".join(filter(None, texts))


def _refused_items(document: ExplainDocument, *, sources: bool) -> list[tuple[str, int]]:
    """Return the reasons why versions were not chosen, each once, with its versions and their number."""
    versions = grouped((_rejected_text(each, sources=sources), each.version) for each in document.rejected)
    return [(f"  - {join_words(keys, joiner='and')}{reason}", len(keys)) for reason, keys in versions.items()]


def _more_text(name: str, number: int) -> str:
    text = "1 more version was" if number == 1 else f"{number} more versions were"
    example = f" To explain one of them: `matrix explain '{name}==VERSION'`" if name != "base-image" else ""
    return f"  - {text} not chosen.{example}"


def _failure(pick: Distribution, folder: Path) -> TaskState | None:
    """Return the last build of a distribution if it failed, for the index in a directory."""
    if pick.origin != "build":
        return None
    from builders.building.records import build_records
    from builders.index import Index

    index = Index(folder)
    found = build_records(index, [pick.name]) if index.state.is_dir() else []
    builds = [row for row in found if row.version == pick.pinned]
    return builds[-1] if builds and builds[-1].state == "failed" else None


def _failure_items(document: ExplainDocument) -> list[str]:
    failure = document.failure
    if failure is None:
        return []
    pick = document.picks[0]
    lines = [f"  {printable(failure.error or '')}"]
    lines += [f"  - {printable(str(cause))}" for cause in failure.diagnosis]
    lines += [f"  Log: {failure.log}"] if failure.log else []
    if pick.recipe:
        lines.append(
            f"  Its recipe is a draft: write it with `matrix catalog draft {pick.draft_source}`, edit it, "
            f"and resolve again with `--catalog {pick.name}.toml`."
        )
    return lines


def _rejected(
    context: Context, requirement: Requirement, pick: Distribution
) -> tuple[list[RejectedVersion], int]:
    """Return the reasons why preferred versions were not chosen, and the number of those left out.

    If the user named versions that come after the chosen one and do not work, these are explained. Raise
    `UsageError` if no known version is meant.
    """
    lock, path, console = context.lock, context.args.lock, context.console
    name, specifier, chosen = pick.name, requirement.specifier, pick.version
    try:
        is_open = any(pick.files for pick in lock.picks)
        catalog = catalog_with_image_of(lock, path, Settings(), drafts=not is_open)
        indexes = package_indexes(context.settings, context.inputs, console) if is_open else None
        search = search_naming(catalog, lock.request, indexes, name)
        rejected, more = rejected_versions(search, lock, name, specifier=specifier)
    except MatrixError as error:
        console.warning(f"Cannot explain why other versions were not chosen: {error.message}")
        return [], 0
    if specifier is not None and (rejected or specifier.allows(chosen)):
        return rejected, more
    older, public = requirement, chosen.partition("+")[0]
    if specifier is None:
        if not public[:1].isdecimal():
            return rejected, more
        older = parse_requirement(f"{name}<{public}")
    try:
        version, others = working_version(search, lock, older)
    except MatrixError:
        version, others = "", ()
    if version:
        is_newer = sort_key(chosen) > sort_key(version)
        why = "newer" if is_newer else f"preferred: {reason_of(pick, lock)}"
        found = RejectedVersion(version, (), preferred=f"{chosen} is {why}", others=others or UNSET)
        return [found, *rejected], more
    if specifier is None:
        return rejected, more
    rejected, more = rejected_versions(search, lock, name, specifier=specifier, passed=False)
    if not rejected:
        text = shorten(requirement.text)
        msg = f"No known version matches {text!r}. {name} {chosen} was chosen."
        raise UsageError(msg, hint=f"To see the known versions, run `matrix resolve --no-lock '{text}'`.")
    return rejected, more


def _rejected_text(rejected: RejectedVersion, *, sources: bool = True) -> str:
    if rejected.instead:
        other = rejected.instead
        change = f"{other.component} would be {other.then} instead of {other.now}, and {other.component}"
        change += " is chosen first"
        return f" would also fit, but {change}"
    if rejected.preferred:
        others = f" with {shortened(rejected.others, most=3)}" if rejected.others else ""
        return f" would also fit{others}; {rejected.preferred}"
    if not rejected.core:
        return " would also fit if named in the request"
    if not sources:
        return f": {'; '.join(item.text for item in rejected.core)}"
    return "\n".join(["", *(f"    - {item.text}{first_source(item)}" for item in rejected.core)])
