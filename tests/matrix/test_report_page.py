"""The HTML page: hostile texts stay texts, and the policy of the page allows only its own scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import unescape
from pathlib import Path

import pytest

from matrix.report import page
from matrix.report.page import ReportPage, linked, render_page, script_json
from resolver.errors import EnvironmentLacksError

pytestmark = pytest.mark.usefixtures("libraries")

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]>",
    "&lt;/script&gt;",
    "\u2028\u2029\x00\udc80",
    "'\"><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "${alert(1)}`",
]


def report(*texts: str) -> ReportPage:
    return ReportPage(title="Title", table={"columns": [], "rows": [], "texts": texts})


@pytest.mark.parametrize("text", HOSTILE)
def test_data_survives_and_cannot_end_script(text: str) -> None:
    html = render_page(report(text))
    (embedded,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert json.loads(embedded)["table"]["texts"] == [text]
    assert not set("<>&") & set(embedded)
    assert html.count("<script") == render_page(report()).count("<script")


@pytest.mark.parametrize("text", HOSTILE[:-3])
def test_title_is_escaped(text: str) -> None:
    html = render_page(ReportPage(title=text.replace("\udc80", "")))
    assert "<script>alert" not in html
    assert "<img" not in html


def test_policy_allows_own_scripts_alone() -> None:
    html = unescape(render_page(report()))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    assert policy.startswith("default-src 'none';")
    assert re.findall(r"'sha256-([^']*)'", policy) == digests
    assert "unsafe-inline" not in policy.partition("script-src")[2]


def test_missing_libraries_are_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(page, "VENDORED", tmp_path)
    with pytest.raises(EnvironmentLacksError, match="built without them") as raised:
        render_page(report())
    assert "NPM_CONFIG_REGISTRY" in raised.value.hint


def test_library_comes_with_licence_and_without_source_map(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(page, "VENDORED", tmp_path)
    (tmp_path / "tabulator.js").write_text("use();\n//# sourceMappingURL=tabulator.js.map")
    (tmp_path / "tabulator.LICENSE").write_text("MIT */ alert(1)")
    assert page.library("tabulator.js") == "/*\nMIT * / alert(1)*/\nuse();\n"


@pytest.mark.parametrize(
    ("source", "urls"),
    [
        ("https://a.example/x_(y).html ; b", ["https://a.example/x_"]),
        ("See https://a.example/x.", ["https://a.example/x"]),
        ("git:ROCm/apex@f18052b57ca7", ["https://github.com/ROCm/apex/tree/f18052b57ca7"]),
        ("a/b@0123456:c/d.py, e/f@abcdef0:g", ["https://github.com/a/b/blob/0123456/c/d.py", "https://github.com/e/f/blob/abcdef0/g"]),
        ("javascript:alert(1)", []),
        ("file.whl sha256:aa", []),
    ],
)  # fmt: skip
def test_source_links(source: str, urls: list[str]) -> None:
    parts = linked(source)
    assert "".join(text for text, _ in parts) == source
    assert [url for _, url in parts if url] == urls


def test_script_json_is_ascii() -> None:
    assert script_json({"ü": "\U0001f600"}).isascii()
