"""``matrix resolve``: choose versions that work together, give the reasons, and write the lock."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from builders.constants import INDEX_DIRECTORY, LOCK_FILE
from matrix.api import package_indexes, write_lock
from matrix.command_line.conflict import forget_conflict, show_conflict
from matrix.command_line.options import add_format, add_names, add_output, add_request_options
from matrix.consumers import add_consumer
from matrix.input.locking import changed_facts, changes, check_not_smaller, is_unchanged, read_earlier
from matrix.input.settings import EVERYTHING, REQUEST_FILE, in_project, read_settings
from matrix.show.render import PLAIN
from matrix.show.resolution_text import build_times, conflict_text, in_index, resolution_text
from resolver.model import Conflict

if TYPE_CHECKING:
    import argparse

    from matrix.command_line.context import Context
    from matrix.show.console import Console
    from matrix.show.json_document import LockChange
    from matrix.show.render import Screen
    from resolver.model import Resolution

SUMMARY = "choose versions that work together and write matrix.lock"
_MOST_CHANGES = 6
EXAMPLE = "matrix resolve apex deepspeed --site lumi-g --python 3.12"
MOST_USED = ("--requirement", "--site", "--gfx", "--python", "--output")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(
        parser,
        "requirements",
        metavar="REQ",
        help="requirements such as apex, torch>=2.4 or rocm==6.2.* (default: those in matrix.toml)",
    )
    add_output(parser, "the lock (default: %(default)s)", default=in_project(LOCK_FILE))
    parser.add_argument("--no-lock", action="store_true", help="write no lock")
    add_format(parser, ("text", "json", "brief"))
    add_consumer(
        parser,
        "the tool that will install the wheels, as for matrix env: %(choices)s. For tools that use the "
        "machine's glibc (tykky, pip, uv), the base image may not have a newer one",
    )
    add_request_options(parser)


def execute(context: Context) -> int:
    """Run the command."""
    from builders.containers.image import with_pinned_image

    args, console = context.args, context.console
    upgraded = bool({*context.settings.upgrade} - {EVERYTHING})
    earlier = read_earlier(args.output, required=upgraded) if upgraded or not args.no_lock else None
    console.conflict_text = conflict_text if args.format == "text" else None
    answer = context.resolve(earlier)
    if isinstance(answer, Conflict):
        show_conflict(answer, context, args.output)
        return 1
    forget_conflict()
    if earlier is not None and not args.no_lock:
        check_not_smaller(earlier, answer, args.output)
    if not args.no_lock:
        answer = with_pinned_image(answer, args.output)
    is_valid = earlier is not None and is_unchanged(earlier, answer)
    for change in changed_facts(earlier, answer, args.output) if earlier else ():
        console.info(change)
    is_stored = False
    if not args.no_lock:  # before printing, because a closed pipe ends the program
        if not is_valid:
            write_lock(answer, args.output)
        is_stored = args.output == in_project(LOCK_FILE) and _store(context)
    changed = _changes(earlier, answer, context) if earlier and not is_valid else []
    if args.format != "text":
        from matrix.show.json_document import brief_document, resolution_document

        if args.format == "json":
            _warn(answer, console)
            console.document(resolution_document(answer, changed))
        else:
            console.document(brief_document("resolved", _text(answer, context, PLAIN), answer.warnings))
        return 0
    _print(answer, context)
    if changed:
        shown = changed if console.verbosity > 0 else changed[:_MOST_CHANGES]
        lines = [f"\nChanges to {args.output}:", *(f"  {change}" for change in shown)]
        lines += [f"  and {len(changed) - len(shown)} more (-v lists them)"] if changed[len(shown) :] else []
        console.info("\n".join(lines))
    _print_next(answer, context, is_valid=is_valid, is_stored=is_stored)
    return 0


def _store(context: Context) -> bool:
    """Write the request to ``matrix.toml``, unless it is there; return whether it was written."""
    if context.settings == read_settings():
        return False
    from matrix.input.request_file import store_request

    return store_request(context.settings)


def _print_next(answer: Resolution, context: Context, *, is_valid: bool, is_stored: bool) -> None:
    args, console = context.args, context.console
    if is_valid:
        console.info(
            f"\n{args.output} is still valid and was not changed. --upgrade upgrades everything in it, "
            "--upgrade NAME only NAME."
        )
    elif not args.no_lock:
        written = f"{args.output} and {in_project(REQUEST_FILE)}" if is_stored else args.output
        name = " NAME|ID" if answer.warnings or answer.notes else ""
        console.info(f"\nWrote {written}. Reasons: `matrix explain{name}{_lock_option(context)}`")
    if not args.no_lock:
        env = f"matrix env --for {'cotainr' if answer.image else 'pip'}"
        command = "matrix build-wheels" if answer.built() else env
        if answer.image and not answer.request.preinstalled and args.output == in_project(LOCK_FILE):
            command = "matrix build-container train.sif"
        console.info(f"Next: `{command}{_lock_option(context)}`")


def _changes(earlier: Resolution, answer: Resolution, context: Context) -> list[LockChange]:
    return changes(earlier, answer, package_indexes(context.settings, context.inputs, context.console))


def _print(answer: Resolution, context: Context) -> None:
    console = context.console
    console.data(_text(answer, context, console.out))
    if answer.notes or answer.warnings:
        console.info("")
    for note in answer.notes:
        console.info(f"note: {console.line_of(note, 'note: ')}")
    _warn(answer, console)


def _text(answer: Resolution, context: Context, screen: Screen) -> str:
    times = build_times(answer, context.catalog_with_image, in_project(INDEX_DIRECTORY))
    present = in_index(answer, in_project(INDEX_DIRECTORY))
    is_verbose = context.console.verbosity > 0
    return resolution_text(answer, times, present, screen=screen, every=is_verbose)


def _warn(answer: Resolution, console: Console) -> None:
    for warning in answer.warnings:
        console.warning(warning)


def _lock_option(context: Context) -> str:
    path = context.args.output
    return "" if path == in_project(LOCK_FILE) else f" --lock {shlex.quote(str(path))}"
