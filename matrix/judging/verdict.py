"""What the judge says of a thing: a verdict for the whole and for each distribution, with the evidence."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from builders.audit.wheel_audit import Report
from builders.findings import Finding
from matrix.judging.machine import ImageDocument
from matrix.judging.repair import Change
from matrix.judging.target import Verdict
from matrix.reading.items import Item, Unread
from resolver.model import CoreItem, Distribution, Resolution
from resolver.texts import html_table

VERDICTS: tuple[Verdict, ...] = ("does-not-fit", "not-judged", "own-risk", "fits")
"""From the worst; the whole is as the worst of its parts."""
EXIT_CODES: dict[Verdict, int] = {"fits": 0, "own-risk": 0, "does-not-fit": 1, "not-judged": 4}
CANNOT_USE = {"verify-torch-cuda", "verify-torch-cpu", "driver-refuses", "cuda-torch"}
"""Findings because of which the GPUs cannot be used; they come first in a verdict."""
_NOT_JUDGED = {"bundle-not-read", "not-known"}
_OWN_RISK = "driver-risk"


class JudgedItem(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict about one distribution."""

    name: str
    version: str = ""
    verdict: Verdict
    evidence: str = ""
    """The reason, with its source if it has one."""
    line: int = 0
    file: str = ""
    """The file that has the line, if it is one that the thing names."""

    @classmethod
    def of(cls, item: Item, verdict: Verdict, evidence: str) -> JudgedItem:
        """Return the verdict about an item of what was read."""
        version = item.version or item.specifier
        return cls(
            name=item.name or item.url,
            version=version,
            verdict=verdict,
            evidence=evidence,
            line=item.line,
            file=item.file,
        )


def of_pick(pick: Distribution, answer: Resolution) -> tuple[Verdict, str]:
    """Return the verdict of its content, its risk and its facts about a pick, in this order.

    Inferred bounds that it keeps say nothing against it. Beyond them, with the facts of another release, or
    with requirements that only its build knows, it is not judged.
    """
    content, evidence = pick.content, "the lock has it"
    if content and content.state != "fits":
        return content.state, content.evidence
    if pick.facts:
        evidence = f"{pick.weakest.text} ({pick.weakest.source})"
    if pick.verdict == "at-own-risk":
        return "not-judged" if pick.support == "inferred" else "own-risk", f"at your own risk: {evidence}"
    if content:
        return "fits", content.evidence
    is_unasked = pick.source is not None and pick.name in answer.incomplete
    if is_unasked or (pick.facts and pick.facts[0].status == "inferred"):
        return "not-judged", f"it is inferred that {evidence}"
    return "fits", evidence


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What was started, and what it answered."""

    python: str
    executable: str
    distributions: Mapping[str, str]
    libraries: Sequence[str]
    gpus: Sequence[Mapping[str, str]]


class Judgement(msgspec.Struct, kw_only=True):
    """What a thing is, whether it works, why not, and what to do."""

    thing: str
    """The path as given; empty for this machine."""
    kind: str
    """What it is, in words."""
    against: str
    """The site and the day, or the lock."""
    verdict: Verdict = "fits"
    text: str = ""
    """The verdict in a sentence."""
    findings: list[Finding] = []
    distributions: list[JudgedItem] = []
    unread: list[Unread] = []
    how: str = ""
    """How an image was read, or what of a project was not; else empty."""
    platform: dict[str, str] = {}
    """Python, torch and triton of what is installed; ROCm, glibc, libstdc++ (as the GCC that has it) and the
    system of an image."""
    changes: Sequence[Change] = ()
    """What the nearest environment that works has instead."""
    requirements: Sequence[str] = ()
    """The requirements of that environment."""
    core: Sequence[CoreItem] = ()
    """The reasons why there is none."""
    diff: str = ""
    """What ``--fix`` has changed."""
    written: Sequence[str] = ()
    """What ``--repair`` has written."""
    wheels: list[Report] = []
    ran: Ran | UnsetType = UNSET
    image: ImageDocument | UnsetType = UNSET
    """The base image as a place to build wheels."""

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return EXIT_CODES[self.verdict]

    def _repr_html_(self) -> str:
        rows: list[tuple[str, ...]] = [
            (one.name, one.version, one.verdict, one.evidence) for one in self.distributions
        ]
        rows += [(one.severity, one.id, one.message, one.fix) for one in self.findings]
        return html_table(self.text or self.kind, rows)


def is_open(finding: Finding) -> bool:
    """Return whether a finding is about something that could not be judged."""
    is_about = "not-judged" in finding.id or finding.id in _NOT_JUDGED
    return is_about and finding.severity != "info"


def conclude(judged: Judgement, site: str) -> None:
    """Set the verdict and its sentence from the findings, the distributions and what was not read."""
    errors = [finding for finding in judged.findings if finding.severity == "error"]
    errors.sort(key=lambda finding: finding.id not in CANNOT_USE)
    bad = [item for item in judged.distributions if item.verdict == "does-not-fit"]
    open_items = [item for item in judged.distributions if item.verdict == "not-judged"]
    open_findings = [finding for finding in judged.findings if is_open(finding)]
    open_findings.sort(key=lambda finding: "count" not in finding.evidence)
    unread = [line for line in judged.unread if line.matters]
    risks = [finding for finding in judged.findings if finding.id == _OWN_RISK]
    risky = [item for item in judged.distributions if item.verdict == "own-risk"]
    where, what = site, judged.thing or "This machine"
    if errors or bad:
        judged.verdict = "does-not-fit"
        count = len(errors) + len(bad)
        bad.sort(key=lambda item: item.name != "torch")
        cannot = errors[0].id in CANNOT_USE if errors else bad[0].name == "torch"
        title, why = (f"{bad[0].name} {bad[0].version}", bad[0].evidence) if bad else ("", "")
        reason = why if why.startswith(title) else f"{title}: {why}"
        reason = _about(errors[0]) if errors else reason
        start = f"{what} cannot use the GPUs of {where}" if cannot else f"{what} does not work at {where}"
        more = f" {count - 1} more below." if count > 1 else ""
        start = what if judged.kind.startswith("log") else start
        judged.text = f"{start}: {reason.strip().rstrip('.')}.{more}"
    elif open_items or open_findings or unread:
        judged.verdict = "not-judged"
        parts = [_counted(len(unread), "line was not read", "lines were not read")]
        total = len(judged.distributions)
        names = ", ".join(item.name or item.evidence for item in open_items[:3])
        listed = f" ({names}{' ...' if len(open_items) > 3 else ''})"  # noqa: PLR2004
        parts += [f"{len(open_items)} of {total} packages were not judged{listed}" if open_items else ""]
        parts += [finding.message.rstrip(".") for finding in open_findings[:1]]
        judged.text = f"{what} could not be judged for {where}: {'; '.join(filter(None, parts))}."
    elif risks or risky:
        judged.verdict = "own-risk"
        evidence = risks[0].evidence if risks else {}
        since = re.sub(r"-\d\d$", "", evidence.get("since", ""))
        reason = risks[0].message if risks else f"{risky[0].name} {risky[0].version}: {risky[0].evidence}"
        reason, when = evidence.get("reason", reason), f" since {since}" if since else ""
        judged.text = f"{what} works at your own risk{when} at {where}: {reason.rstrip('.')}."
    else:
        judged.verdict = "fits"
        warnings = sum(finding.severity == "warning" for finding in judged.findings)
        more = _counted(warnings, "warning is below", "warnings are below")
        judged.text = f"{'; '.join(filter(None, [f'{what} fits {where}', more]))}."


def _about(finding: Finding) -> str:
    """Return the message of a finding, after the line that it is about."""
    text = finding.evidence.get("text", "")
    return f"{text}: {finding.message}" if isinstance(text, str) and text else finding.message


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}" if number else ""
