"""The text of `matrix check`: the verdict, then the reasons, then what to do."""

from __future__ import annotations

import shlex
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from msgspec import UNSET

from builders.diagnosis import diagnosis_text
from builders.findings import SEVERITIES, limited
from matrix.judging.machine import image_text
from matrix.show.render import STYLES, count_text, counted, findings_text
from resolver.texts import printable
from resolver.versions import grouped, join_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from builders.findings import Finding
    from matrix.judging.verdict import Judgement
    from matrix.show.console import Console
    from matrix.show.render import Screen

    Part = tuple[Callable[[str], None], str]
    """A paragraph, and the method of the console that prints it."""

_MOST_OF_ONE_KIND = 10
"""Maximum number of findings of a kind in the text; a container built from another lock has hundreds."""
_MOST_SHOWN = 20
_SCREEN = 22
"""The most lines of a terminal for a whole answer; a longer one has a line for each kind of finding."""
_MOST_IN_BRIEF = 9


def show(judged: Judgement, console: Console) -> None:
    """Print a judgement; on a terminal, one that does not fit the screen in brief, unless ``-v`` is given."""
    parts = [*_parts(judged, console, brief=False)]
    lines = sum(console.out.wrapped(text).count("\n") + 1 for _, text in parts)
    if lines > _SCREEN and console.out.width is not None and console.verbosity == 0:
        parts = [*_parts(judged, console, brief=True)]
    for print_part, text in parts:
        print_part(text)


def _parts(judged: Judgement, console: Console, *, brief: bool) -> Iterator[Part]:
    if judged.kind == "machine":
        yield console.data, f"{count_text(judged.findings)}\n".capitalize()
        yield from _findings(judged, console, brief=brief, indent="")
        if judged.image is not UNSET:
            yield console.data, "\n" + image_text(judged.image)
        return
    yield console.answer, printable(judged.text)
    if judged.ran is not UNSET:
        yield console.text, f"Started: Python {judged.ran.python}, {judged.ran.executable}"
    if judged.diff:
        yield console.data, f"\n{judged.diff}"
    if judged.kind.startswith("log"):
        known = [finding for finding in judged.findings if "cause" in finding.evidence]
        others = [str(finding) for finding in judged.findings if "cause" not in finding.evidence]
        shown = known[:1] if brief else known
        causes = [diagnosis_text(shown, sources=not brief)] if known else []
        more = [f"Also: {finding.message} [{finding.id}]" for finding in known[1:_MOST_IN_BRIEF]]
        yield console.text, "\n" + "\n".join([*others, *causes, *([*more, "In full: -v"] if brief else [])])
        return
    if console.verbosity >= 0 and not brief:
        yield from ((console.text, line) for line in _wheels(judged))
    yield from ((print_part, f"\n{text}") for print_part, text in _findings(judged, console, brief=brief))
    certain = sum(bool(finding.evidence.get("fixable")) for finding in judged.findings)
    if certain:
        yield console.info, f"\n--fix corrects {counted(certain, 'line')}."
    yield from _changes(judged, console, brief=brief)
    yield from _unjudged(judged, console) if brief else _rest(judged, console)
    yield from _next(judged, console)


def _findings(judged: Judgement, console: Console, *, brief: bool, indent: str = "  ") -> Iterator[Part]:
    screen, findings = console.out, judged.findings
    if brief:
        yield console.data, "\n".join(_brief(findings, screen, indent))
        return
    shown = findings if console.verbosity > 0 else limited(findings, _MOST_OF_ONE_KIND)
    if text := findings_text(shown, quiet=console.verbosity < 0, indent=indent, screen=screen):
        yield console.data, text


def _brief(findings: Sequence[Finding], screen: Screen, indent: str) -> Iterator[str]:
    """Yield a line for each kind of finding, the worst first, and its hint unless the next has the same."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        text, corrected = finding.evidence.get("text"), finding.evidence.get("corrected", ())
        key: tuple[str, ...]
        # A correction that begins like the text replaces it; another one is a line to add.
        if len(corrected) == 1 and isinstance(text, str) and corrected[0].startswith(text.strip()[:3]):
            key = finding.severity, finding.id, "", f"{text.strip()} -> {corrected[0].strip()}"
        else:
            key = finding.severity, finding.id, finding.fix, "" if finding.fix else finding.message
        groups.setdefault(key, []).append(finding)
    ordered = sorted(groups, key=lambda key: SEVERITIES.index(groups[key][0].severity))
    for number, key in enumerate(ordered[:_MOST_IN_BRIEF]):
        severity, id_, fix, text = key
        places = grouped(
            (finding.evidence.get("file", ""), str(finding.evidence.get("line", "")))
            for finding in groups[key]
        )
        file, lines = next(iter(places.items()))
        where = f"{file}:{','.join(lines)}: " if file and len(places) == 1 and all(lines) else ""
        start, end = f"{indent}{where}{severity}: ", f" [{id_}]"
        room = max(20, (screen.width or 0) - len(start + end))
        line = shorten(text or groups[key][0].message, room, placeholder="...")
        style = screen.styled(STYLES[groups[key][0].severity], f"{severity}:")
        yield printable(f"{indent}{where}") + f"{style} {printable(line)}{end}"
        if fix and fix not in {other[2] for other in ordered[number + 1 : number + 2]}:
            yield screen.wrapped(f"{indent}  hint: {printable(fix)}")
    more = f" and {len(ordered) - _MOST_IN_BRIEF} more" if len(ordered) > _MOST_IN_BRIEF else ""
    yield f"{indent}In full{more}: -v"


def _wheels(judged: Judgement) -> Iterator[str]:
    for report in judged.wheels:
        for path, names in report.code_objects.items():
            yield f"  GPU code in {printable(path)}: {', '.join(names) or 'none'}"
        if report.needs and not report.code_objects:
            yield "  GPU code: none"


def _changes(judged: Judgement, console: Console, *, brief: bool) -> Iterator[Part]:
    groups: dict[tuple[str, str], list[str]] = {}
    is_full = console.verbosity > 0
    for change in judged.changes:
        after = change.after or ("nothing" if change.needed else "left out")
        if after == change.before:  # pip's package takes the place of conda's
            after = f"pip's {after}"
        reason = f"{change.reason} [{change.source}]" if change.source and is_full else change.reason
        groups.setdefault((after, reason), []).append(change.before)
    most = len(groups) if is_full else _MOST_IN_BRIEF if brief else _MOST_SHOWN
    lines = [
        f"  {', '.join(before)} -> {after}{'' if brief else f'{chr(10)}      {reason}'}"
        for (after, reason), before in list(groups.items())[:most]
    ]
    if len(groups) > most:
        lines.append(f"  and {len(groups) - most} more (-v lists them)")
    if lines:
        yield console.text, "\nThe nearest that is known to work has:\n" + "\n".join(lines)


def _rest(judged: Judgement, console: Console) -> Iterator[Part]:
    """Yield how it was read, and what was not judged or not read."""
    by_reason = grouped(
        (item.evidence, item.name) for item in judged.distributions if item.verdict == "not-judged"
    )
    for reason, names in by_reason.items():
        listed = join_words(names, most=10, joiner="and")
        yield console.info, f"\nNot judged, because {reason.rstrip('.')}: {listed}."
    if judged.platform:
        yield console.info, "\nIt has " + ", ".join(" ".join(item) for item in judged.platform.items()) + "."
    if judged.how:
        yield console.info, f"\n{judged.how}."
    unread = [line for line in judged.unread if line.matters or console.verbosity > 0]
    if unread:
        used = {(item.file, item.line) for item in judged.distributions if item.line}
        lines = used | {(line.file, line.line) for line in judged.unread}
        if used:
            text = f"\n{judged.kind}: {len(used)} of {counted(len(lines), 'line')} were used."
            yield console.info, text
        yield console.info, "\nNot read:\n" + "\n".join(f"  {line}" for line in unread)


def _unjudged(judged: Judgement, console: Console) -> Iterator[Part]:
    """Yield what was not judged or not read, in two lines."""
    names = [item.name for item in judged.distributions if item.verdict == "not-judged"]
    unread = sum(line.matters for line in judged.unread)
    if names:
        yield console.info, f"Not judged: {join_words(names, most=5, joiner='and')}."
    if unread:
        yield console.info, f"Not read: {counted(unread, 'line')}."


def _next(judged: Judgement, console: Console) -> Iterator[Part]:
    """Yield what was written, and what to do next."""
    needed = " ".join(f"--drop {change.name}" for change in judged.changes if change.needed)
    if needed:
        yield console.info, f"\nTo leave out what nothing replaces: {needed}"
    for path in judged.written:
        yield console.info, f"Wrote {path}"
    if judged.written:
        folder = shlex.quote(str(Path(judged.written[0]).parent))
        yield console.info, f"Next: `cd {folder}`, then `matrix build-wheels` and what its files say."
    elif judged.changes:
        yield console.info, "\nTo write the environment that fits: --repair -o DIR"


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
