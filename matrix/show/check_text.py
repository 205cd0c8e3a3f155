"""The text of `matrix check`: the verdict, then the reasons, then what to do."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET

from builders.diagnosis import diagnosis_text
from builders.findings import limited
from matrix.judging.machine import image_text
from matrix.show.render import count_text, counted, findings_text
from resolver.texts import printable
from resolver.versions import join_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matrix.judging.verdict import Judgement
    from matrix.show.console import Console

_MOST_OF_ONE_KIND = 10
"""Maximum number of findings of a kind in the text; a container built from another lock has hundreds."""
_MOST_SHOWN = 20


def show(judged: Judgement, console: Console) -> None:
    """Print a judgement."""
    if judged.kind == "machine":
        _machine(judged, console)
        return
    console.answer(printable(judged.text))
    if judged.ran is not UNSET:
        console.text(f"Started: Python {judged.ran.python}, {judged.ran.executable}")
    if judged.diff:
        console.data(f"\n{judged.diff}")
    if judged.kind.startswith("log"):
        known = [finding for finding in judged.findings if "cause" in finding.evidence]
        others = [str(finding) for finding in judged.findings if "cause" not in finding.evidence]
        console.data("\n" + "\n".join([*others, *([diagnosis_text(known, sources=True)] if known else [])]))
        return
    if console.verbosity >= 0:
        _wheels(judged, console)
    findings = judged.findings if console.verbosity > 0 else limited(judged.findings, _MOST_OF_ONE_KIND)
    text = findings_text(findings, quiet=console.verbosity < 0, indent="  ", screen=console.out)
    if text:
        console.data(f"\n{text}")
    certain = sum(bool(finding.evidence.get("fixable")) for finding in judged.findings)
    if certain:
        console.info(f"\n--fix corrects {counted(certain, 'line')}.")
    _changes(judged, console)
    _rest(judged, console)


def _wheels(judged: Judgement, console: Console) -> None:
    for report in judged.wheels:
        for path, names in report.code_objects.items():
            console.text(f"  GPU code in {printable(path)}: {', '.join(names) or 'none'}")
        if report.needs and not report.code_objects:
            console.text("  GPU code: none")


def _machine(judged: Judgement, console: Console) -> None:
    console.data(f"{count_text(judged.findings)}\n".capitalize())
    text = findings_text(judged.findings, quiet=console.verbosity < 0, screen=console.out)
    if text:
        console.data(text)
    if judged.image is not UNSET:
        console.data("\n" + image_text(judged.image))


def _changes(judged: Judgement, console: Console) -> None:
    groups: dict[tuple[str, str], list[str]] = {}
    for change in judged.changes:
        after = change.after or ("nothing" if change.needed else "left out")
        if after == change.before:  # pip's package takes the place of conda's
            after = f"pip's {after}"
        groups.setdefault((after, change.reason), []).append(change.before)
    shown = list(groups.items()) if console.verbosity > 0 else list(groups.items())[:_MOST_SHOWN]
    lines = [f"  {', '.join(before)} -> {after}\n      {reason}" for (after, reason), before in shown]
    if len(groups) > len(shown):
        lines.append(f"  and {len(groups) - len(shown)} more (-v lists them)")
    if lines:
        console.text("\nThe nearest that is known to work has:\n" + "\n".join(lines))


def _rest(judged: Judgement, console: Console) -> None:
    """Print how it was read, and what was not judged or not read."""
    by_reason: dict[str, list[str]] = {}
    for item in judged.distributions:
        if item.verdict == "not-judged":
            by_reason.setdefault(item.evidence, []).append(item.name)
    for reason, names in by_reason.items():
        console.info(
            f"\nNot judged, because {reason.rstrip('.')}: {join_words(names, most=10, joiner='and')}."
        )
    if judged.platform:
        console.info("\nIt has " + ", ".join(" ".join(item) for item in judged.platform.items()) + ".")
    if judged.how:
        console.info(f"\n{judged.how}.")
    unread = [line for line in judged.unread if line.matters or console.verbosity > 0]
    if unread:
        used = {(item.file, item.line) for item in judged.distributions if item.line}
        lines = used | {(line.file, line.line) for line in judged.unread}
        if used:
            console.info(f"\n{judged.kind}: {len(used)} of {counted(len(lines), 'line')} were used.")
        console.info("\nNot read:\n" + "\n".join(f"  {line}" for line in unread))
    _next(judged, console)


def _next(judged: Judgement, console: Console) -> None:
    """Print what was written, and what to do next."""
    needed = " ".join(f"--drop {change.before.split()[0]}" for change in judged.changes if change.needed)
    if needed:
        console.info(f"\nTo leave out what nothing replaces: {needed}")
    for path in judged.written:
        console.info(f"Wrote {path}")
    if judged.written:
        folder = shlex.quote(str(Path(judged.written[0]).parent))
        console.info(f"Next: `cd {folder}`, then `matrix build-wheels` and what its files say.")
    elif judged.changes:
        console.info("\nTo write the environment that fits: --repair -o DIR")


def answers(judgements: Sequence[Judgement], console: Console) -> None:
    """Print the verdict of each of several things in a line, then all of them in full."""
    if len(judgements) > 1:
        counts: dict[str, int] = {}
        for judged in judgements:
            counts[judged.verdict] = counts.get(judged.verdict, 0) + 1
        parts = ", ".join(f"{count} {verdict.replace('-', ' ')}" for verdict, count in sorted(counts.items()))
        console.answer(f"{len(judgements)} things: {parts}")
    for judged in judgements:
        show(judged, console)
