"""The index in a real headless browser, as `python -m http.server` serves it, and as plain files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from builders.index import Index
from builders.index.maintenance import yank
from tests.support.browser import chromium
from tests.support.tiny import tiny_wheel
from tests.support.web_server import web_server

pytestmark = pytest.mark.integration

LABELLED = "1.3.0+rocm6.0.torch2.3.1.gfx90a"
REASON = 'the "naïve" path & <b>hipcc</b> – gone'
FETCHED = """
const tell = arguments[arguments.length - 1];
(async () => {
  const answer = await fetch(arguments[0]);
  const digest = await crypto.subtle.digest("SHA-256", await answer.arrayBuffer());
  tell(Array.from(new Uint8Array(digest), one => one.toString(16).padStart(2, "0")).join(""));
})();
"""
SHOWN = "return [document.contentType, document.compatMode, document.characterSet];"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    with chromium() as driver:
        yield driver


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """Create an index with names that are difficult in links: a plus sign, a space and a hash sign."""
    index = Index(tmp_path / "an index #1")
    for name, version in (("apex", LABELLED), ("apex", "1.2.0"), ("flash-attn", "2.8.3")):
        index.publish(tiny_wheel(tmp_path / "made", name, version), {"build_key": version})
    (old,) = (index.simple / "apex").glob("apex-1.2.0-*.whl")
    yank(index, [old], REASON)
    return index


@pytest.fixture(params=["served", "files"])
def address(request: pytest.FixtureRequest, index: Index) -> Iterator[str]:
    """Yield the URL of the first page, over HTTP and as a file."""
    with ExitStack() as stack:
        if request.param == "served":
            yield f"{stack.enter_context(web_server(index.root))}/simple/"
        else:
            yield (index.simple / "index.html").as_uri()


def links(browser: Chrome) -> dict[str, str]:
    """Return the text of every link on the page, and the URL that the browser resolves it to."""
    return {
        element.text: str(element.get_attribute("href"))
        for element in browser.find_elements(By.TAG_NAME, "a")
    }


def test_a_browser_finds_every_wheel_and_gets_it_whole(browser: Chrome, index: Index, address: str) -> None:
    browser.get(address)
    assert browser.execute_script(SHOWN) == ["text/html", "CSS1Compat", "UTF-8"]
    assert list(links(browser)) == ["apex", "flash-attn"]
    browser.find_element(By.LINK_TEXT, "apex").click()
    if urlsplit(address).scheme == "file":  # a server returns this page itself
        browser.get_log("browser")  # the browser's own page of the folder causes messages
        browser.get(f"{browser.current_url}index.html")
    assert browser.execute_script(SHOWN) == ["text/html", "CSS1Compat", "UTF-8"]
    assert "apex" in browser.title
    urls = links(browser)
    wheels = {path.name: path for path in (index.simple / "apex").glob("*.whl")}
    assert set(urls) == set(wheels)
    for name, path in wheels.items():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        parts = urlsplit(urls[name])
        assert parts.fragment == f"sha256={digest}"
        if parts.scheme == "file":
            assert Path(url2pathname(parts.path)) == path
        else:
            assert unquote(parts.path) == f"/simple/apex/{name}"
            assert browser.execute_async_script(FETCHED, urls[name]) == digest
    yanked = browser.find_element(By.PARTIAL_LINK_TEXT, "apex-1.2.0-")
    assert yanked.get_attribute("data-yanked") == REASON
    complaints = [one["message"] for one in browser.get_log("browser") if "favicon" not in one["message"]]
    assert complaints == []


def test_landing_page_has_commands_with_its_address(browser: Chrome, index: Index) -> None:
    browser.get((index.root / "index.html").as_uri())
    commands = [element.text for element in browser.find_elements(By.TAG_NAME, "pre")]
    assert any(f"--index {(index.simple).as_uri()} " in command for command in commands)
    assert f"matrix index list --index '{index.root}'" in commands
    browser.find_element(By.TAG_NAME, "button").click()
    WebDriverWait(browser, 5).until(lambda _: browser.find_element(By.CSS_SELECTOR, "[role=status]").text)
    with web_server(index.root) as url:
        browser.get(f"{url}/")
        assert any(
            f"--index {url}/simple " in element.text for element in browser.find_elements(By.TAG_NAME, "pre")
        )
        browser.find_element(By.LINK_TEXT, "apex").click()
        assert browser.current_url == f"{url}/simple/apex/index.html"
    assert [one["message"] for one in browser.get_log("browser") if "favicon" not in one["message"]] == []
