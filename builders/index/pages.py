"""The pages of a simple repository: read from wheels, written as HTML and JSON, read back.

Each project has the same page twice: HTML (PEP 503, with the attributes of PEP 592), which
pip reads over ``file://``, and JSON (PEP 691, with PEP 700). Links are relative. The JSON
page also caches the facts about each wheel, so that only a new wheel is read when it is added. Keys for
this program alone begin with an underscore, which PEP 691 reserves for the index.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.parser import BytesHeaderParser
from functools import lru_cache
from io import FileIO
from pathlib import Path
from urllib.parse import quote

import msgspec
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builders.index.access import NOT_A_FILE
from builders.index_client.pages import Hashes, PageMeta
from builders.storage.files import open_regular
from builders.wheels.wheel import DamagedError, LimitedFile, WheelReader
from resolver.errors import MatrixError

PAGE = "index.html"
JSON_PAGE = "index.json"
API_VERSION = "1.1"
"""Includes sizes and versions (PEP 700)."""

_LONGEST_REQUIRES_PYTHON = 1000
WHEEL_FORM = "NAME-VERSION-PYTHON-ABI-PLATFORM.whl"
_WHEEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl")
"""The characters in file names on a page; `parse_wheel_filename` accepts more, such as any in a tag."""

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<meta name="pypi:repository-version" content="{version}">
<title>{title}</title>
</head>
<body>"""
_FOOT = """</body>
</html>
"""


class WheelEntry(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True, gc=False):
    """One wheel on a page, with the keys of PEP 691."""

    filename: str
    url: str
    hashes: Hashes
    size: int
    upload_time: str = ""
    """When the wheel was published: UTC, in the format of PEP 700."""
    requires_python: str = ""
    yanked: str | bool = False
    """The reason for yanking the wheel (PEP 592), or true without one."""
    version: str = msgspec.field(name="_version")


class ProjectPage(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """The JSON page of a project."""

    meta: PageMeta
    name: str
    versions: list[str]
    files: list[WheelEntry]


_encoder = msgspec.json.Encoder()
_project_decoder = msgspec.json.Decoder(ProjectPage)


def project_json(name: str, entries: Iterable[WheelEntry]) -> bytes:
    """Return a project's JSON page (PEP 691, PEP 700); `name` is normalized."""
    files = list(entries)
    page = ProjectPage(
        meta=PageMeta(API_VERSION),
        name=name,
        versions=list(dict.fromkeys(entry.version for entry in files)),
        files=files,
    )
    return _encoder.encode(page)  # not indented: that is slow with thousands of wheels


def project_html(name: str, entries: Iterable[WheelEntry]) -> bytes:
    """Return a project's HTML page (PEP 503)."""
    return _html(f"Links for {name}", map(_link, entries))


def _html(title: str, links: Iterable[str]) -> bytes:
    head = _HEAD.format(version=API_VERSION, title=title)
    return "\n".join([head, *links, _FOOT]).encode()


def _link(entry: WheelEntry) -> str:
    attributes = ""
    if entry.requires_python:
        attributes += f' data-requires-python="{_escaped(entry.requires_python)}"'
    if entry.yanked is not False:
        attributes += f' data-yanked="{html.escape(entry.yanked if isinstance(entry.yanked, str) else "")}"'
    # A name whose URL has no escape other than "+" needs none in HTML either.
    plain = entry.url.replace("%2B", "+") == entry.filename
    name = entry.filename if plain else html.escape(entry.filename)
    return f'<a href="{entry.url}#sha256={entry.hashes.sha256}"{attributes}>{name}</a><br>'


@lru_cache(maxsize=64)
def _escaped(text: str) -> str:
    return html.escape(text)


def root_json(names: Iterable[str]) -> bytes:
    """Return the JSON page that lists the projects."""
    page = {"meta": PageMeta(API_VERSION), "projects": [{"name": name} for name in names]}
    return msgspec.json.format(_encoder.encode(page), indent=1) + b"\n"


def root_html(names: Iterable[str]) -> bytes:
    """Return the HTML page that lists the projects."""
    links = (f'<a href="{name}/">{name}</a><br>' for name in names)
    return _html("Simple index", links)


LANDING_START = b"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="rocm-matrix">"""
"""matrix does not replace a root page that begins differently."""


def landing_html(names: Iterable[str]) -> bytes:
    """Return the landing page of the index; a script inserts the address of the index into its commands."""
    links = "\n".join(f'<li><a href="simple/{name}/index.html">{name}</a></li>' for name in names)
    digest = base64.b64encode(hashlib.sha256(_LANDING_SCRIPT.encode()).digest()).decode()
    page = _LANDING.format(style=_LANDING_STYLE, script=_LANDING_SCRIPT, digest=digest, links=links)
    return LANDING_START + page.encode()


_LANDING_STYLE = """
:root { color-scheme: light dark; --line: #d0d7de; --head: #f3f5f7; --link: #0550ae; }
@media (prefers-color-scheme: dark) { :root { --line: #3d444d; --head: #20252b; --link: #8cc0ff; } }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 52rem; margin: 1rem auto; padding: 0 1rem; }
a { color: var(--link); }
div { display: flex; gap: 0.5rem; align-items: start; margin: 0.5rem 0; }
pre { flex: 1; margin: 0; padding: 0.5rem; background: var(--head); border: 1px solid var(--line);
  white-space: pre-wrap; overflow-wrap: anywhere; }
button { font: inherit; padding: 0.25rem 0.75rem; }
ul { columns: 12rem; }
"""
_LANDING_SCRIPT = """
const simple = new URL("simple/", location.href).href.replace(/\\/$/, "");
const isFile = location.protocol === "file:";
const directory = isFile ? decodeURIComponent(location.pathname).replace(/\\/[^/]*$/, "") : "";
const quote = (word) => /^[\\w@%+=:,./-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\\\''") + "'";
for (const pre of document.querySelectorAll("pre")) {
  pre.textContent = pre.textContent.replace("URL", () => quote(simple));
  if (isFile) pre.textContent = pre.textContent.replace("DIR", () => quote(directory));
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(pre.textContent);
    } catch {
      getSelection().selectAllChildren(pre);
      document.execCommand("copy");
    }
    document.querySelector("[role=status]").textContent = "Copied.";
  });
  pre.after(button);
}
"""
_LANDING = """
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Package index</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>Package index</h1>
<p>Wheels of PyTorch extensions, built by <code>matrix</code>. Installers read the directory
<a href="simple/index.html">simple/</a>. Pin the whole version with its label, such as
<code>1.9.0+rocm6.4.torch2.9.1.gfx90a</code>: it names the ROCm, torch and GPU architectures of the wheel.</p>
<h2>Install with pip or uv</h2>
<p>torch comes from its own index, whose URL names the ROCm version.</p>
<div><pre>pip install --only-binary :all: --extra-index-url URL \
  --extra-index-url https://download.pytorch.org/whl/rocm6.4 NAME==VERSION</pre></div>
<div><pre>uv pip install --index URL NAME==VERSION</pre></div>
<h2>Use with matrix</h2>
<p>These commands read the directory of the index. <code>matrix env</code> also needs a
<code>matrix.lock</code>.</p>
<div><pre>matrix index list --index DIR</pre></div>
<div><pre>matrix env --for cotainr --index DIR</pre></div>
<div><pre>matrix report --index DIR</pre></div>
<p role="status"></p>
<h2>Packages</h2>
<ul>
{links}
</ul>
</main>
<script>{script}</script>
</body>
</html>
"""


def entries_of_page(text: bytes) -> Mapping[str, WheelEntry]:
    """Return the wheels of a JSON page by file name; empty if the page is not valid."""
    try:
        return {entry.filename: entry for entry in _project_decoder.decode(text).files}
    except msgspec.DecodeError:
        return {}


def entry_of(wheel: Path, filename: str = "") -> WheelEntry:
    """Return the entry of a wheel file, without its upload time; a link is not followed.

    `filename` is the name of the wheel in the index, if the file has another name.
    """
    filename = filename or wheel.name
    with _opened(wheel, filename) as (file, metadata):
        requires = BytesHeaderParser().parsebytes(metadata).get("Requires-Python", "")
        requires_python = " ".join(str(requires).split())
        if len(requires_python) > _LONGEST_REQUIRES_PYTHON:
            size, most = len(requires_python), _LONGEST_REQUIRES_PYTHON
            raise MatrixError(f"The Requires-Python of {filename} has {size} characters, more than {most}.")
        file.seek(0)
        return WheelEntry(
            filename=filename,
            url=quote(filename),
            hashes=Hashes(hashlib.file_digest(file, "sha256").hexdigest()),
            size=os.fstat(file.fileno()).st_size,
            requires_python=requires_python,
            version=str(parse_wheel_filename(filename)[1]),
        )


def is_wheel(name: str) -> bool:
    """Return whether a file name is the name of a finished wheel."""
    if not _WHEEL_NAME.fullmatch(name):
        return False
    try:
        parse_wheel_filename(name)
    except InvalidWheelFilename:
        return False
    return True


def upload_time(path: Path) -> str:
    """Return the modification time of a file in the format of PEP 700."""
    return datetime.fromtimestamp(int(path.stat().st_mtime), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def metadata_of(wheel: Path, filename: str = "") -> bytes:
    """Return the METADATA file inside a wheel; `filename` is as for `entry_of`."""
    with _opened(wheel, filename or wheel.name) as (_, metadata):
        return metadata


@contextmanager
def _opened(wheel: Path, filename: str) -> Iterator[tuple[FileIO, bytes]]:
    """Open a wheel and read its METADATA, within the limits of `builders.wheels.wheel`."""
    if not is_wheel(filename):
        raise MatrixError(f"Invalid wheel filename: {filename!r} is not of the form {WHEEL_FORM}.")
    try:
        file = LimitedFile(open_regular(wheel))
    except NOT_A_FILE:
        raise MatrixError(f"{filename} is not a wheel: it is not a regular file.") from None
    try:
        with WheelReader(Path(filename), file) as reader:
            yield file, reader.text("METADATA")
    except DamagedError as error:
        raise MatrixError(f"{filename} is not a wheel with readable metadata: {error}.") from None
