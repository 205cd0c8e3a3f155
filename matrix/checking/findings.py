"""What can be wrong with a line, and how it is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


class Rule(NamedTuple):
    """One kind of finding."""

    severity: Severity
    title: str
    """What is seen, without a full stop."""


RULES: dict[str, Rule] = {
    # One line
    "requirement-beside-option": Rule("error", "an option and a requirement on one line"),
    "second-value": Rule("error", "an option with two values"),
    "option-beside-requirement": Rule("error", "a requirement, and behind it an option for the whole file"),
    "refused-option": Rule("error", "an option that pip refuses in a file"),
    "void-setting": Rule("error", "a setting that goes to the build backend and does nothing there"),
    "hash-on-some": Rule("error", "a hash on some lines only"),
    "not-a-requirement": Rule("error", "a line that pip cannot read"),
    "tab": Rule("error", "a tab where pip wants a space"),
    "variable-not-expanded": Rule("warning", "a variable that pip does not expand"),
    "contradicting-requirement": Rule("error", "the same name twice, with versions that exclude each other"),
    "duplicate-requirement": Rule("info", "the same name twice"),
    "flat-listing": Rule("error", "a plain list of wheels that is named as an index"),
    "index-replaced": Rule("warning", "an index instead of PyPI"),
    "pre-releases": Rule("warning", "pre-releases of everything"),
    # torch and what goes with it
    "cuda-torch": Rule("error", "a torch that is built for CUDA"),
    "unpinned-torch": Rule("error", "torch, or its like, without an exact version"),
    "unlabelled-torch": Rule("warning", "torch, or its like, pinned without its local label"),
    "other-rocm": Rule("error", "something for a ROCm that does not fit here"),
    "old-rocm": Rule("warning", "something for a ROCm below what the driver supports"),
    "index-other-rocm": Rule("error", "a torch index for another ROCm than torch's label"),
    "unknown-torch": Rule("warning", "a torch that the catalog does not know"),
    "torch-python": Rule("error", "a torch without a wheel for this Python"),
    "cuda-package": Rule("error", "a package that is for CUDA only"),
    # extensions
    "other-project": Rule("error", "a name that is another project on PyPI"),
    "unpinned-extension": Rule("error", "an extension without an exact version"),
    "unlabelled-extension": Rule("error", "an extension pinned without a label"),
    "other-target": Rule("error", "a label for another torch or another GPU"),
    "not-the-lock": Rule("error", "another version than the lock has"),
    "label-spelling": Rule("warning", "a label with upper case, underscores or hyphens"),
    "label-without-index": Rule("warning", "a labelled version and no index that could have it"),
    "no-only-binary": Rule("warning", "an extension that may be built from source"),
    "built-from-source": Rule("error", "an extension that pip builds itself"),
    # paths
    "hidden-path": Rule("error", "a path that is not visible where pip runs"),
    "relative-path": Rule("error", "a path relative to where pip does not run"),
    "editable": Rule("error", "an editable install"),
    # conda's part
    "yaml-map": Rule("error", "a line that YAML reads as a key and a value"),
    "not-text": Rule("error", "an item that is no text"),
    "pip-not-list": Rule("error", "a pip section that is no list"),
    "several-pip-sections": Rule("error", "more than one pip section"),
    "duplicate-key": Rule("error", "a key twice"),
    "unknown-key": Rule("warning", "a key that conda does not know"),
    "pip-line-outside": Rule("error", "a line for pip among conda's"),
    "conda-torch": Rule("error", "torch or CUDA from conda"),
    "pip-not-listed": Rule("warning", "a pip section without pip among the dependencies"),
    "pip-unpinned": Rule("info", "pip without a version"),
    "python-unpinned": Rule("warning", "Python without a version"),
    "other-python": Rule("error", "another Python than the lock has"),
    "defaults-channel": Rule("warning", "the channel defaults"),
    "variables-too-late": Rule("warning", "variables that are set after pip has run"),
}
"""Every kind of finding; docs/checking.md has the same table."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines of the file, counted from 1, and what comes in their place.

    With `last` before `first` the new lines come before `first` and nothing goes.
    """

    first: int
    last: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong."""

    id: str
    """A key of `RULES`."""
    line: int
    """Where, counted from 1."""
    text: str
    """The line as it stands there, without what is around it."""
    consequence: str
    """What will happen, in one or more sentences."""
    corrected: tuple[str, ...] = ()
    """The line or lines as they should be, as pip or conda is to read them; empty where nobody can know."""
    remedy: str = ""
    """What to do where more than the line must change."""
    edit: Edit | None = None
    """The change to the file, where there is one certain correction."""

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return RULES[self.id].severity


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Sort by line, and by severity within a line; the same thing is said once."""
    rank = {severity: number for number, severity in enumerate(SEVERITIES)}
    return sorted(dict.fromkeys(findings), key=lambda one: (one.line, rank[one.severity], one.id))


def edited(lines: Sequence[str], edits: Sequence[Edit]) -> list[str]:
    """Apply changes that do not touch the same lines; of those that do, only the first.

    What is only put in between is put in once.

    Examples
    --------
    >>> edited(["a", "b", "c"], [Edit(2, 2, ("B", "b")), Edit(1, 0, ("0",))])
    ['0', 'a', 'B', 'b', 'c']
    """
    taken: list[Edit] = []
    for edit in edits:
        span = range(edit.first, max(edit.first, edit.last) + 1)
        again = edit.last < edit.first and any(one.lines == edit.lines for one in taken)
        if not again and not any(
            one.first <= span[-1] and span[0] <= max(one.first, one.last) for one in taken
        ):
            taken.append(edit)
    result = list(lines)
    for edit in sorted(taken, key=lambda one: one.first, reverse=True):
        result[edit.first - 1 : edit.last] = edit.lines
    return result
