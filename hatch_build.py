"""Download the JavaScript libraries of the HTML pages when the package is built or installed for development.

Their source is not in the repository. Each archive comes from the npm registry, and its hash is pinned here.
Without access to a registry the package is built without them; `matrix report` then explains how to get them.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packageurl.contrib.purl2url import build_npm_download_url

DIRECTORY = "matrix/report/vendored"
_STAMP = "versions.json"
_TIMEOUT = 30  # seconds
_LARGEST = 64 << 20  # bytes


class Library(NamedTuple):
    """An archive on the npm registry, and the files to extract."""

    name: str
    version: str
    sha512: str
    """In Base64, as in npm's lock files."""
    files: dict[str, str]
    """Maps each path in the archive to a name in `DIRECTORY`."""


LIBRARIES = (
    Library(
        "tabulator-tables",
        "6.5.3",
        "nJ2QaqZzQvd9B4rf4LBnRxfb6sSqA/BX2OsXnSJ2d8k21oXDSTtFtOUrDap04a/6BDGivC/MByCxy43ugadJIg==",
        {
            "package/dist/js/tabulator.min.js": "tabulator.js",
            "package/dist/css/tabulator_simple.min.css": "tabulator.css",
            "package/LICENSE": "tabulator.LICENSE",
        },
    ),
)


class DownloadError(Exception):
    """A library could not be downloaded, or differs from its pin."""


class CustomBuildHook(BuildHookInterface[Any]):
    """The hook that hatchling calls for wheels and editable installations."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  hatchling's signature
        """Download the libraries; hatchling includes them as artifacts."""
        try:
            vendor(Path(self.root) / DIRECTORY)
        except DownloadError as error:
            self.app.display_warning(f"Built without JavaScript libraries, so without HTML pages: {error}")


def vendor(directory: Path, libraries: tuple[Library, ...] = LIBRARIES) -> None:
    """Write the files of libraries to a directory, unless it has them already.

    Raises
    ------
    DownloadError
        A library cannot be downloaded, or has another hash. The directory is not changed.
    """
    stamp = json.dumps({library.name: [library.version, library.sha512] for library in libraries})
    path = directory / _STAMP
    if path.is_file() and path.read_text(encoding="utf-8") == stamp:
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".vendored-") as temporary:
        made = Path(temporary, "files")
        made.mkdir(mode=0o755)
        for library in libraries:
            for name, content in download(library).items():
                (made / name).write_bytes(content)
        (made / _STAMP).write_text(stamp, encoding="utf-8")
        shutil.rmtree(directory, ignore_errors=True)
        try:
            made.rename(directory)
        except OSError:  # another build was faster
            if not path.is_file():
                raise


def download(library: Library) -> dict[str, bytes]:
    """Return the files of a library by name.

    Raises
    ------
    DownloadError
        The registry cannot be reached, or its archive has another hash.
    """
    url = archive_url(library)
    if urlsplit(url).scheme not in {"https", "http"}:
        raise DownloadError(
            f"{url} is not an HTTP URL; set NPM_CONFIG_REGISTRY to the URL of an npm registry"
        )
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as response:  # noqa: S310  the scheme was checked
            archive = response.read(_LARGEST)
    except (OSError, ValueError) as error:
        msg = (
            f"cannot download {url} ({error}); set NPM_CONFIG_REGISTRY to an npm registry that you can reach"
        )
        raise DownloadError(msg) from None
    digest = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if digest != library.sha512:
        raise DownloadError(f"{url} has the SHA-512 {digest}, but must have {library.sha512}")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {name: _member(tar, member) for member, name in library.files.items()}


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    if file is None:
        raise DownloadError(f"{name} is not a file in the archive")
    return file.read()


def archive_url(library: Library) -> str:
    """Return the URL of an archive on the registry that npm's configuration names, else on npm's default."""
    registry = _registry()
    if not registry:
        return str(build_npm_download_url(f"pkg:npm/{quote(library.name, safe='/')}@{library.version}"))
    file = f"{library.name.rpartition('/')[2]}-{library.version}.tgz"
    return f"{registry.rstrip('/')}/{library.name}/-/{file}"


def _registry() -> str:
    """Return the registry that the user configured, or that an installed npm names; may be empty."""
    for name, value in os.environ.items():
        if name.lower() == "npm_config_registry" and value:
            return value
    config = Path(os.environ.get("NPM_CONFIG_USERCONFIG") or Path.home() / ".npmrc")
    if config.is_file():
        text = config.read_text(encoding="utf-8", errors="replace")
        if match := re.search(r"^\s*registry\s*=\s*[\"']?([^\s\"']+)", text, re.MULTILINE):
            return match[1]
    npm = shutil.which("npm")
    if npm is None:
        return ""
    command = [npm, "config", "get", "registry"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = answer.stdout.split()
    return lines[-1] if answer.returncode == 0 and lines and "://" in lines[-1] else ""


if __name__ == "__main__":
    try:
        vendor(Path(__file__).parent / DIRECTORY)
    except DownloadError as failure:
        sys.exit(f"error: {failure}")
