"""What experts pinned for AMD machines, by day, against what is resolved for that day.

Each environment is asked twice: its names without versions, and its pins. docs/explanation/hindcast.md is the
result; ``MATRIX_RECORD=1`` rewrites it. The index is recorded (`record.py`).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from resolver.answers import suggest
from resolver.answers.resolve import resolve
from resolver.errors import InternalError, MatrixError
from resolver.facts.catalog import Catalog
from resolver.model import IMAGE, Conflict, Preinstalled, Resolution
from resolver.versions import join_words, satisfies, sort_key
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/explanation/hindcast.md"
LATER = "equal or newer"
ENVIRONMENTS: list[dict[str, Any]] = tomllib.loads((HERE / "environments.toml").read_text())["environment"]


@pytest.fixture(scope="module")
def indexes() -> FakeIndexes:
    recorded = tomllib.loads((HERE / "index.toml").read_text(encoding="utf-8"))
    projects: dict[str, dict[str, FakeRelease]] = {}
    for name, rows in recorded.items():
        for row in rows:
            projects.setdefault(name, {})[row["version"]] = FakeRelease(
                requires=row["requires"],
                listed=row.get("listed", {}),
                requires_python=row["requires-python"],
                wheels=row["wheels"],
                sdist=row["sdist"],
                uploaded=row["uploaded"],
            )
    return FakeIndexes(projects)


def _split(pin: str) -> tuple[str, str, str]:
    """Return the name, version and commit of a pin."""
    rest, _, commit = pin.partition(" @ ")
    name, _, version = rest.partition("==")
    return name, version, commit


def _is_known(catalog: Catalog, name: str) -> bool:
    return name in catalog.package or name == "torch" or (name, False) in catalog.replaces


def _pinned(catalog: Catalog, row: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the pins as requirements, and those whose commit the catalog does not have."""
    requirements, unknown = [], []
    for name, version, commit in map(_split, row["pins"]):
        if not _is_known(catalog, name):
            continue
        of_commit = [
            release
            for release in catalog.releases_of(name)
            if commit and release.git and (release.git.commit.startswith(commit) or release.variant == commit)
        ]
        if of_commit:
            variant = f"[{of_commit[0].variant}]" if of_commit[0].variant else ""
            requirements.append(f"{name}{variant}=={of_commit[0].version}")
        elif commit and not version:
            unknown.append(f"{name} @ {commit}")
        else:
            requirements.append(f"{name}=={version}" if version else name)
    platform = [f"{name}=={row[name]}" for name in ("rocm",) if name in row]
    return requirements + platform, unknown


def _answer(
    catalog: Catalog,
    indexes: FakeIndexes,
    row: dict[str, Any],
    requirements: list[str],
    *,
    python: str | None = None,
    image: str | None = None,
    day: object = None,
) -> Resolution | Conflict | MatrixError:
    day = str(day or row["day"])
    request = ask(catalog, " ".join(requirements), site=row["site"], day=day, python=python, base_image=image)
    if image:
        request = replace(request, preinstalled=Preinstalled(IMAGE))
    try:
        return resolve(catalog, request, indexes)
    except MatrixError as error:
        return error


def _reason(answer: Conflict | MatrixError) -> str:
    if isinstance(answer, MatrixError):
        return answer.message
    return (
        "; ".join(item.text for item in answer.core if item.kind == "fact")
        or "the pins contradict each other"
    )


def _without_resolution(
    catalog: Catalog, indexes: FakeIndexes, row: dict[str, Any], names: list[str], pins: str
) -> str:
    """Return the outcome if the names have no resolution: another request with an image may have one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suggest, "SECONDS", 60.0)
        answer = _answer(catalog, indexes, row, names)
    if isinstance(answer, InternalError):
        return "internal error"
    suggested = answer.suggestions if isinstance(answer, Conflict) else ()
    if any(one.request.target.base_image and one.request.target.site == row["site"] for one in suggested):
        return "in an image that the answer names"
    return "no resolution, theirs is refused by facts" if pins == "refused by facts" else "no resolution"


def _judge(catalog: Catalog, indexes: FakeIndexes, row: dict[str, Any]) -> tuple[str, str, list[str], bool]:
    """Return the outcome for pins and own choice, the differences, and whether the pins are at risk."""
    requirements, unknown = _pinned(catalog, row)
    theirs = _answer(catalog, indexes, row, requirements, python=row.get("python"), image=row.get("image"))
    differences = [f"not in the catalog: {join_words(unknown, joiner='and')}"] if unknown else []
    if isinstance(theirs, Resolution):
        pins = "unknown commit" if unknown else "resolved"
    else:
        is_fact = isinstance(theirs, Conflict) and "inferred" not in _reason(theirs)
        pins = (
            "internal error"
            if isinstance(theirs, InternalError)
            else "refused by facts"
            if is_fact
            else "refused"
        )
        differences.append(f"pins: {_reason(theirs)}")
    risks = isinstance(theirs, Resolution) and any(
        "own risk" in text or "not support" in text for text in theirs.warnings
    )
    names = dict.fromkeys(name for name, _, _ in map(_split, row["pins"]) if _is_known(catalog, name))
    ours = _answer(catalog, indexes, row, list(names))
    if not isinstance(ours, Resolution):
        differences.append(f"no pins: {_reason(ours)}")
        return pins, _without_resolution(catalog, indexes, row, list(names), pins), differences, risks
    older = _older(catalog, row, ours)
    differences += [f"older: {join_words(older, joiner='and')}"] if older else []
    if not older:
        return pins, LATER, differences, risks
    if "offered" in row:
        later = _answer(catalog, indexes, row, list(names), day=row["offered"])
        assert isinstance(later, Resolution)
        left = _older(catalog, row, later)
        differences.append(f"on {row['offered']}: {join_words(left, joiner='and') if left else LATER}")
    is_explained = risks or pins == "refused by facts"
    return (
        pins,
        "older, theirs is at its own risk or refused by facts" if is_explained else "older",
        differences,
        risks,
    )


def _older(catalog: Catalog, row: dict[str, Any], ours: Resolution) -> list[str]:
    """Return what of an answer is older than the pins."""
    older = []
    for name, version, _ in map(_split, row["pins"]):
        renamed = catalog.replaces.get((name, False))
        pick = next(filter(None, map(ours.pick, (name, *(renamed.by if renamed else ())))), None)
        if (
            pick
            and version
            and sort_key(pick.version.partition("+")[0]) < sort_key(version.partition("+")[0])
        ):
            older.append(f"{pick.name} {pick.version}, theirs {version}")
    return older


def test_the_rows_of_a_commit_allow_what_an_image_holds_beside_it(catalog: Catalog) -> None:
    checked = 0
    for image in catalog.image.values():
        having = {"torch": image.holds.get("torch"), "rocm": image.rocm}
        for name, version in image.holds.items():
            commit = re.search(r"\.([0-9a-f]{7})$", version)
            for release in catalog.releases_of(name) if commit else ():
                if not (commit and release.git and release.git.commit.startswith(commit[1])):
                    continue
                for on, held in having.items():
                    rows = [row for row in catalog.requires if row.package == name and row.on == on]
                    rows = [row for row in rows if row.applies_to(release)]
                    rows = [row for row in rows if row.variant] or rows
                    stated = [text for row in rows for text in row.versions]
                    assert not held or not stated or any(satisfies(held, text) for text in stated), (
                        image.name,
                        name,
                    )
                    checked += 1
    assert checked >= 20


@pytest.mark.slow
def test_what_experts_pinned_is_accepted_and_the_own_choice_is_as_new(
    catalog: Catalog, indexes: FakeIndexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suggest, "SECONDS", 0.0)
    assert len(ENVIRONMENTS) >= 60
    page = (HERE / "page.txt").read_text(encoding="utf-8")
    rows, of_pins, of_choice, safe, later = [], Counter[str](), Counter[str](), Counter[str](), 0
    for row in ENVIRONMENTS:
        pins, choice, differences, risks = _judge(catalog, indexes, row)
        of_pins[pins] += 1
        of_choice[choice] += 1
        safe[choice] += pins in {"resolved", "unknown commit"} and not risks
        later += choice == LATER or differences[-1].endswith(LATER)
        text = "; ".join(differences).replace("|", "\\|") or "-"
        why = row.get("why", "")
        assert (f"\n| {why} | " in page) is bool(differences), row["id"]
        rows.append(f"| {row['id']} | {row['day']} | {pins} | {choice} | {text} | {why} | {row['source']} |")
    counts = {"pins": of_pins, "own choice": of_choice}
    measures = [
        f"| {what} {name} | {count} | {100 * count / len(ENVIRONMENTS):.0f} % |"
        for what, found in counts.items()
        for name, count in found.most_common()
    ]
    named = later + of_choice["in an image that the answer names"]
    for asked, count in {
        "own choice equal or newer, on the first day of an image with their ROCm if that is later": later,
        "the same, or in an image that the answer names": named,
    }.items():
        measures.append(f"| {asked} | {count} | {100 * count / len(ENVIRONMENTS):.0f} % |")
    of_safe = f"of the {safe.total()} whose pins resolve, and not at one's own risk"
    share = f"{100 * safe[LATER] / safe.total():.0f} %"
    measures.append(f"| {of_safe}: own choice equal or newer | {safe[LATER]} | {share} |")
    text = page.format(count=len(ENVIRONMENTS), measures="\n".join(measures), rows="\n".join(rows))
    if os.environ.get("MATRIX_RECORD"):
        PAGE.write_text(text, encoding="utf-8")
    assert of_pins["internal error"] == of_choice["internal error"] == 0
    assert text == PAGE.read_text(encoding="utf-8"), "if this is better, record it: MATRIX_RECORD=1"
