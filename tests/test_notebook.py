"""Results in notebooks and interactive Python: escaped, and short."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from builders.audit import audit_wheel
from resolver.answers.graph import build_graph, with_needs
from resolver.answers.resolve import resolve
from resolver.facts.catalog import load
from resolver.model import Conflict, CoreItem, Resolution, Suggestion
from tests.resolver.solve_helpers import ask
from tests.support.tasks import make_distribution, make_resolution

HOSTILE = "<script>alert(1)</script>"


class Tags(HTMLParser):
    """The tags and the text of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


def read(value: object) -> str:
    """Return the text of a value in a notebook; check that it has only the tags of a table."""
    shown = Tags(value._repr_html_())  # type: ignore[attr-defined]
    assert shown.tags <= {"table", "caption", "tr", "th", "td"}
    return shown.text


@pytest.fixture(scope="module")
def resolution() -> Resolution:
    catalog = load()
    answer = resolve(catalog, ask(catalog, "apex deepspeed", day="2026-06-01"))
    assert isinstance(answer, Resolution)
    return answer


def test_resolution(resolution: Resolution) -> None:
    assert repr(resolution).startswith("<Resolution for lumi-g on 2026-06-01 (rocm, gfx90a): ")
    assert len(repr(resolution)) < 600
    text = read(resolution)
    for pick in resolution.picks:
        assert f"{pick.name}\n{pick.pinned}\n{pick.origin}\n{pick.support}\n" in text


def test_conflict() -> None:
    catalog = load()
    answer = resolve(catalog, ask(catalog, "apex rocm==7.1.*", day="2026-06-01"))
    assert isinstance(answer, Conflict)
    assert "you asked for rocm==7.1.*" in repr(answer)
    text = read(answer)
    assert all(item.text in text and item.source in text for item in answer.core)


def test_build_graph(resolution: Resolution) -> None:
    graph = build_graph(resolution)
    assert repr(graph) == f"<BuildGraph: {len(graph)} distributions in {len(resolution.order)} generations>"
    text = read(graph)
    assert all(name in text for name in graph)
    assert "deepspeed" not in read(with_needs(graph, ["apex"]))


def test_audit(make_wheel: Callable[..., Path]) -> None:
    audit = audit_wheel(make_wheel())
    assert repr(audit).startswith("<WheelAudit of tiny-1.0-py3-none-any.whl: ")
    assert all(finding.message in read(audit) for finding in audit.findings)


def test_texts_are_escaped() -> None:
    hostile = make_resolution(make_distribution(HOSTILE, HOSTILE))
    core = (CoreItem(HOSTILE, "fact", HOSTILE),)
    target = hostile.target
    conflict = Conflict(
        request=hostile.request, target=target, core=core, suggestions=(Suggestion(HOSTILE, (HOSTILE,)),)
    )
    for value in (hostile, conflict, build_graph(hostile)):
        assert HOSTILE in read(value)
