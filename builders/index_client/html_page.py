"""Links of pages in HTML, as in PEP 503.

They are read in time that grows with the size of the page: `html.parser` takes 17 seconds for 40 kB of
unfinished tags (Python 3.11), and fails for some declarations.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = re.compile(r"[a-zA-Z][^\s/>]*")
_HTML_ATTRIBUTE = re.compile(r"[\s/]*([^\s/>=]+)(?:\s*(=)\s*)?")
_UNQUOTED = re.compile(r"[^\s>]*")
_TEXT_ONLY = {
    name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style", "textarea", "title")
}
"""Elements that contain no tags, and where they end."""
_MOST_DIGITS = re.compile(r"&#\d{8,};?")


def read_html(text: str) -> tuple[str, dict[str, str], list[dict[str, str]]]:
    """Return the URL of the first ``<base>``, the ``<meta>`` elements, and the attributes of each link.

    In a malformed page, what cannot be a tag is text, and an unfinished tag ends the page.
    """
    base = ""
    meta: dict[str, str] = {}
    links = []
    for name, attributes in _tags(text):
        if name == "a" and "href" in attributes:
            links.append(attributes)
        elif name == "base" and not base:
            base = attributes.get("href", "")
        elif name == "meta" and "name" in attributes:
            meta.setdefault(attributes["name"].lower(), attributes.get("content", ""))
    return base, meta, links


def unescape(text: str) -> str:
    """Replace character references; those with too many digits for a character are left as they are."""
    if "&" not in text or _MOST_DIGITS.search(text):
        return text
    return html.unescape(text)


def _tags(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    at = text.find("<")
    while at >= 0:
        if text.startswith("<!--", at):
            end = text.find("-->", at + 4) + 2
        elif text.startswith(("<!", "<?", "</"), at):
            end = text.find(">", at)
        elif name := _NAME.match(text, at + 1):
            end, attributes = _attributes(text, name.end())
            tag = name[0].lower()
            if end > at:
                yield tag, attributes
            if end > at and tag in _TEXT_ONLY:
                closing = _TEXT_ONLY[tag].search(text, end)
                end = closing.start() - 1 if closing else -1
        else:
            end = at
        if end < at:
            return
        at = text.find("<", end + 1)


def _attributes(text: str, at: int) -> tuple[int, dict[str, str]]:
    """Return the position of the end of a tag, or -1 if it has none, and the attributes of the tag."""
    attributes: dict[str, str] = {}
    while match := _HTML_ATTRIBUTE.match(text, at):
        at, value = match.end(), ""
        if match[2] and (quote := text[at : at + 1]) in {'"', "'"}:
            end = text.find(quote, at + 1)
            if end < 0:
                return -1, {}
            value, at = text[at + 1 : end], end + 1
        elif match[2] and (unquoted := _UNQUOTED.match(text, at)):
            value, at = unquoted[0], unquoted.end()
        attributes.setdefault(match[1].lower(), unescape(value))
    return text.find(">", at), attributes
