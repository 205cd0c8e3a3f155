"""Read locks: ``uv.lock``, ``pylock.toml`` (PEP 751), ``poetry.lock``, ``pixi.lock`` and ``matrix.lock``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import re2
from msgspec.structs import replace
from packaging.pylock import Package, Pylock, PylockValidationError

from builders.constants import LOCK_FILE
from builders.network.urls import public_index
from matrix.reading.items import Item, Reading, Unread
from matrix.reading.listed import url_item
from matrix.reading.pip_line import counts_on_linux, file_version
from resolver.errors import UsageError
from resolver.lock import read_lock
from resolver.requirements import normalize_name
from resolver.texts import check_texts, is_url, printable
from resolver.versions import grouped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PYLOCK = re2.compile(r"pylock(\.[^.]+)?\.toml")
_OURS = re2.compile(r'(?m)^\[request\]|^status = "resolved"')
_HEAD = 4096
_PIXI_ENTRY = re2.compile(r"\s*- (conda|pypi): (\S+)\s*")
_PIXI_KEY = re2.compile(r"(\s*)([^\s:#-][^:]*):\s*(.*)")
_PLATFORM = "linux-64"
_CHOICE = re.compile(r"\b(extras|dependency_groups)\b")
_HINT = "Write it again with the program that wrote it."


def is_pylock(name: str) -> bool:
    """Return whether installers accept a file of this name as a lock.

    Examples
    --------
    >>> is_pylock("pylock.toml"), is_pylock("pylock.gpu.toml"), is_pylock("pyproject.toml")
    (True, True, False)
    """
    return _PYLOCK.fullmatch(name) is not None


def is_lock(path: Path) -> bool:
    """Return whether a file is a lock that ``matrix resolve`` has written, by its name and first bytes."""
    if path.suffix != LOCK_FILE.suffix or not path.is_file():
        return False
    with path.open("rb") as source:
        return (
            path.name == LOCK_FILE.name
            or _OURS.search(source.read(_HEAD).decode(errors="replace")) is not None
        )


def recognises(name: str, head: str) -> bool:
    """Return whether a file is a lock, by its name."""
    return (
        is_pylock(name)
        or name in {*_READERS, "pixi.lock"}
        or (name.endswith(".lock") and _OURS.search(head) is not None)
    )


def read(text: str, name: str) -> Reading:
    """Read a lock."""
    file = Path(name).name
    if is_pylock(file):
        return read_pylock(text, name)
    if file == "pixi.lock":
        return _read_pixi(text, name)
    reader = _READERS.get(file, _read_ours)
    reading = Reading(kind=file if file in _READERS else str(LOCK_FILE), name=name)
    try:
        reader(tomllib.loads(text), reading)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        msg = f"{name} is not a valid {reading.kind}: {error}."
        raise UsageError(msg, hint=_HINT) from None
    return reading


def _read_uv(data: Mapping[str, Any], reading: Reading) -> None:
    # Source: https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile.
    packages = data.get("package", [])
    installed = _installed_by_uv(packages)
    for number, package in enumerate(packages):
        name, version, source = normalize_name(package["name"]), package.get("version", ""), package["source"]
        markers = package.get("resolution-markers", [])
        marker = " or ".join(f"({each})" for each in markers) if len(markers) > 1 else "".join(markers)
        files = (
            [package["sdist"], *package.get("wheels", [])]
            if "sdist" in package
            else package.get("wheels", [])
        )
        hashes = tuple(file["hash"] for file in files if "hash" in file)
        text = f"{name}=={version}" if version else name
        registry = source.get("registry", "")
        url = _uv_url(source)
        if {"virtual", "editable"} & source.keys():
            reading.unread.append(Unread(0, text, "it is the project itself, or a part of it", matters=False))
        elif number not in installed:
            reason = "nothing that is installed on Linux without extras requires it"
            reading.unread.append(Unread(0, text, reason, matters=False))
        else:
            reading.items.append(
                Item(
                    name=name,
                    version=version,
                    marker=marker,
                    url=url,
                    hashes=hashes,
                    indexes=_other_index(registry),
                    text=text,
                )
            )


def _installed_by_uv(packages: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the positions of what ``uv sync`` installs on Linux: the group ``dev``, and no extra.

    A lock has several packages of one name (forks). Which one counts is in the markers of what requires it;
    of extras that exclude one another, uv writes ``extra == 'extra-7-project-name'`` into them.
    """
    by_name = grouped((package["name"], number) for number, package in enumerate(packages))
    own = [at for at, package in enumerate(packages) if {"virtual", "editable"} & package["source"].keys()]
    if not any(key.endswith("dependencies") for at in own for key in packages[at]):
        return {*range(len(packages))}
    project = [at for at in own if "." in packages[at]["source"].values()]
    waiting: list[tuple[int, str]] = [(at, "") for at in project or own]
    seen = set(waiting)
    while waiting:
        at, extra = waiting.pop()
        package = packages[at]
        needs = list(package.get("dependencies", []))
        if extra:
            needs = package.get("optional-dependencies", {}).get(extra, [])
        elif at in own:
            needs += package.get("dev-dependencies", {}).get("dev", [])
        for need in needs:
            if not counts_on_linux(need.get("marker", ""), extra=""):
                continue
            for other in by_name.get(need["name"], []):
                if any(packages[other].get(key) != need[key] for key in ("version", "source") if key in need):
                    continue
                found = {(other, more) for more in ("", *need.get("extra", []))} - seen
                seen |= found
                waiting += found
    return {at for at, _ in seen}


def _uv_url(source: Mapping[str, str]) -> str:
    if "git" in source:
        url, _, commit = source["git"].partition("#")
        return f"git+{url.partition('?')[0]}{f'@{commit}' if commit else ''}"
    return source.get("url") or source.get("path") or source.get("directory") or ""


def _other_index(url: str) -> tuple[str, ...]:
    return (url,) if url and url.rstrip("/") != public_index().rstrip("/") else ()


def _read_poetry(data: Mapping[str, Any], reading: Reading) -> None:
    for package in data.get("package", []):
        name, version = normalize_name(package["name"]), package["version"]
        source, markers = package.get("source", {}), package.get("markers", "")
        text = f"{name}=={version}"
        if package.get("optional") is True:
            reading.unread.append(Unread(0, text, "it is of an extra, which nobody chose", matters=False))
            continue
        kind, url = source.get("type", "legacy"), source.get("url", "")
        if kind == "git":
            reference = source.get("resolved_reference", source.get("reference", ""))
            url = f"git+{url}{f'@{reference}' if reference else ''}"
        reading.items.append(
            Item(
                name=name,
                version=version,
                marker=markers if isinstance(markers, str) else markers.get("main", ""),
                url="" if kind == "legacy" else url,
                hashes=tuple(file["hash"] for file in package.get("files", []) if "hash" in file),
                indexes=_other_index(url) if kind == "legacy" else (),
                text=text,
            )
        )


def _read_pixi(text: str, name: str) -> Reading:
    """Read the default environment for Linux.

    pixi always writes these lines in the same form; parsing the YAML of a real lock takes many seconds.
    Sources: https://pixi.sh/latest/workspace/lockfile/ (2026-11), and locks of public repositories.
    """
    reading = Reading(kind="pixi.lock", name=name)
    path: list[tuple[int, str]] = []
    named: dict[str, dict[str, str]] = {}  # name and version of what a URL does not tell
    current: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        entry = _PIXI_ENTRY.fullmatch(line)
        key = None if entry else _PIXI_KEY.fullmatch(line)
        if entry is None and key is None:
            continue
        depth = len(line) - len(line.lstrip())
        if key:
            path = [each for each in path if each[0] < depth]
            path.append((depth, key[2]))
            if path[0][1] == "packages" and key[3]:
                current[key[2]] = key[3].strip("'\"")
            elif path[0][1] == "environments" and key[2] == "url" and key[3]:
                reading.channels.append(key[3])
            continue
        keys = [each for _, each in path]
        if keys[:1] == ["packages"]:
            current = named.setdefault(entry[2], {})
        elif keys[:2] == ["environments", "default"] and keys[-1] == _PLATFORM:
            reading.items.append(_of_pixi(entry[1], entry[2], number))
        else:
            reason = "it is of another environment or platform"
            reading.unread.append(Unread(number, printable(entry[2]), reason, matters=False))
    if not path or path[0][1] not in {"version", "environments", "packages"}:
        msg = f"{name} is not a valid pixi.lock."
        raise UsageError(msg, hint=_HINT)
    items, reading.items = reading.items, []
    for item in items:
        reading.add(_named(item, named.get(item.text, {})))
    return reading


def _of_pixi(kind: str, url: str, line: int) -> Item:
    if kind == "conda":
        return url_item(url, line)
    package, version = file_version(url)
    # A file of an index, which pixi found by name; anything else has its own place.
    place = "" if version and url.startswith("https://") else printable(url)
    return Item(name=package, version=version, url=place, line=line, text=printable(url))


def _named(item: Item, stated: Mapping[str, str]) -> Item:
    """Return an item with what the list of packages states: a file of an index is found by name, too."""
    name = normalize_name(stated.get("name", item.name)) if item.installer == "pip" else item.name
    hashes = (f"sha256:{stated['sha256']}",) if "sha256" in stated else item.hashes
    return replace(item, name=name, version=item.version or stated.get("version", ""), hashes=hashes)


def _read_ours(data: Mapping[str, Any], reading: Reading) -> None:  # noqa: ARG001  `read_lock` checks the file
    lock = read_lock(Path(reading.name))
    reading.python = lock.version_of("python")
    for pick in lock.distributions:
        reading.items.append(
            Item(
                name=pick.name,
                version=pick.pinned,
                url=pick.direct_url,
                hashes=tuple(f"sha256:{file.sha256}" for file in pick.files if file.sha256),
                installer="image" if pick.origin == "preinstalled" else "pip",
                text=f"{pick.name}=={pick.pinned}",
            )
        )


def read_pylock(text: str, name: str) -> Reading:
    """Read the packages that a lock installs by default, without extras, and its specifier of Python.

    A wheel that `matrix` built keeps its label in `Item.version`; no index serves it.
    """
    path = Path(name)
    try:
        data = tomllib.loads(text)
        check_texts(data, path, UsageError, _HINT)
        lock = Pylock.from_dict(data)
    except (ValueError, RecursionError, PylockValidationError) as error:
        msg = f"{name} is not a valid lock (PEP 751): {error}."
        raise UsageError(msg, hint=_HINT) from None
    reading = Reading(kind="pylock.toml", name=name)
    if lock.requires_python:
        text = f"python{lock.requires_python}"
        reading.items.append(
            Item(name="python", specifier=str(lock.requires_python), installer="unknown", text=text)
        )
    for package in lock.packages:
        if _is_default(package, lock):
            reading.items.append(_of_pylock(package, lock, path.parent))
        else:
            reason = "it is of an extra or group that is not installed by default"
            reading.unread.append(Unread(0, str(package.name), reason, matters=False))
    return reading


def _is_default(package: Package, lock: Pylock) -> bool:
    """Return whether a package is installed by default; `packaging` judges other markers for this machine."""
    if package.marker is None or not _CHOICE.search(str(package.marker)):
        return True
    chosen = {"extras": frozenset[str](), "dependency_groups": frozenset(lock.default_groups or ())}
    return package.marker.evaluate(chosen, context="lock_file")


def _of_pylock(package: Package, lock: Pylock, folder: Path) -> Item:
    url = _url(package, folder)
    if not is_url(url):
        msg = f"{package.name} has a URL with characters that a URL must not have: {url!r}."
        raise UsageError(msg, hint=_HINT)
    version = "" if package.version is None else str(package.version)
    # Our own wheels have a label, and no index serves them.
    is_built = lock.created_by == "matrix" and package.index is None and package.version is not None
    stated = package.version.public if is_built and package.version else version
    text = f"{package.name}=={stated}" if stated else str(package.name)
    text = f"{package.name} @ {url}" if url else text
    marker = "" if package.marker is None or _CHOICE.search(str(package.marker)) else str(package.marker)
    wheels = [wheel.hashes for wheel in package.wheels or ()]
    return Item(
        name=str(package.name),
        version=version,
        marker=marker,
        url=url,
        hashes=tuple(f"{kind}:{digest}" for hashes in wheels for kind, digest in hashes.items()),
        indexes=(package.index,) if package.index else (),
        text=f"{text} ; {marker}" if marker else text,
    )


def _url(package: Package, folder: Path) -> str:
    if package.vcs is not None:
        source = package.vcs
        url = f"{source.type}+{source.url or _local(folder, source.path)}@{source.commit_id}"
    elif package.archive is not None:
        url = package.archive.url or _local(folder, package.archive.path)
    elif package.directory is not None:
        url = _local(folder, package.directory.path)
    else:
        return ""
    source_tree = package.vcs or package.archive or package.directory
    subdirectory = source_tree.subdirectory if source_tree else ""
    return f"{url}#subdirectory={subdirectory}" if subdirectory else url


def _local(folder: Path, path: str | None) -> str:
    return (folder / (path or "")).resolve().as_uri()


_READERS = {"uv.lock": _read_uv, "poetry.lock": _read_poetry, str(LOCK_FILE): _read_ours}
