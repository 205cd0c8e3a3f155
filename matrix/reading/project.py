"""Read what a project needs: ``pyproject.toml`` (also of uv, Poetry and pixi), ``setup.cfg``, ``pixi.toml``.

A Python script with metadata of its own has the same tables in a comment.

Nothing of the project is executed. Extras, groups and features that nobody has chosen are listed as not read.
"""

from __future__ import annotations

import configparser
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import re2
from msgspec.structs import replace

from builders.findings import Finding
from builders.network.urls import public_index
from builders.pyproject import FILE, PyProject, requirements_of
from matrix.reading.conda_file import conda_item
from matrix.reading.items import Item, Reading, Unread, pip_item
from matrix.reading.pip_line import counts_on_linux, parse_requirement
from matrix.reading.requirements import FIRST_INDEX, from_first_index
from resolver.errors import UsageError
from resolver.requirements import TORCH_FAMILY, normalize_name
from resolver.texts import printable
from resolver.versions import join_words, shorten

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

_TABLE = re2.compile(
    r"(?m)^[ \t]*\[\[?(project|build-system|workspace|dependencies|tool[.]|pypi-dependencies"
    r"|dependency-groups)"
)
_SCRIPT = re2.compile(r"(?m)^# /// script\n((?:#(?: .*)?\n)+?)# ///$")
"""The metadata of a Python script. Source: https://peps.python.org/pep-0723/."""
_QUOTED = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'")
_KEY = re2.compile(r"[ \t]*[\"']?([\w.-]+)[\"']?[ \t]*=")
_POETRY_CLAUSE = re2.compile(r"([~^])\s*(\d+(?:\.\d+)*)(.*)")
_IGNORED_UV = ("override-dependencies", "exclude-dependencies")
NOT_CHOSEN = "nobody chose it"


def recognises(name: str, head: str) -> bool:
    """Return whether a file describes a project."""
    if name.endswith(".py"):
        return _SCRIPT.search(head) is not None
    return name in {FILE, "setup.cfg", "pixi.toml"} or (
        name.endswith(".toml") and _TABLE.search(head) is not None
    )


_Lines = dict[str, int]


def _lines_of(text: str) -> _Lines:
    """Return the first lines on which quoted texts and keys of a file are."""
    texts: dict[str, int] = {}
    keys: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if (key := _KEY.match(line)) is not None:
            keys.setdefault(key[1], number)
        for match in _QUOTED.finditer(line):
            texts.setdefault(match[1] if match[1] is not None else match[2], number)
    return keys | texts


def read(
    text: str, name: str, extras: Sequence[str] = (), groups: Sequence[str] = (), *, strict: bool = False
) -> Reading:
    r"""Read a file of a project, with some extras and dependency groups.

    With `strict`, raise `UsageError` for what else becomes an unread line or a finding.

    Examples
    --------
    >>> found = read('[project]\nname = "x"\ndependencies = ["torch==2.5.1+rocm6.2"]', "pyproject.toml")
    >>> [str(item) for item in found.items]
    ['torch 2.5.1+rocm6.2']
    """
    if name.endswith(".cfg"):
        return _read_setup(text, name, extras)
    script = _SCRIPT.search(text) if name.endswith(".py") else None
    if script:
        before = text[: script.start(1)].count("\n")
        text = "\n" * before + re.sub(r"(?m)^# ?", "", script[1])
    try:
        data = tomllib.loads(text)
        data = {"project": {"name": name, **data}, "tool": data.get("tool", {})} if script else data
        document = msgspec.convert(data, PyProject)
    except (tomllib.TOMLDecodeError, RecursionError, msgspec.ValidationError) as error:
        msg = f"{name} is not a valid {'TOML file' if 'pixi' in name else FILE}: {error}."
        raise UsageError(msg) from None
    reading = Reading(kind=FILE, name=name)
    lines = _lines_of(text)
    tool = document.tool
    has_others = any("dependencies" in table for table in tool.values() if isinstance(table, dict))
    pixi = tool.get(
        "pixi", data if {"workspace", "dependencies", "pypi-dependencies"} & data.keys() else None
    )
    features = _features_of(pixi) if isinstance(pixi, dict) else {}
    named = [name for name in extras if name in features]
    extras = [name for name in extras if name not in features]
    if features and extras and document.project is None:
        msg = f"{name} has no environment or feature {extras[0]}."
        raise UsageError(msg, hint=f"Known: {join_words(list(features), joiner='and')}.")
    if document.project is not None or extras or groups or (strict and not has_others):
        _read_standard(document, reading, lines, (extras, groups), strict=strict)
    if isinstance(poetry := tool.get("poetry"), dict):
        _read_poetry(poetry, reading, lines)
    if isinstance(uv := tool.get("uv"), dict):
        _read_uv(uv, reading, lines, (*extras, *groups))
    if isinstance(pixi, dict):
        reading.kind = reading.kind if "pixi" in tool else "pixi.toml"
        chosen = {name for extra in ("default", *named) for name in features.get(extra, ())}
        _read_pixi(pixi, reading, lines, chosen)
        reading.how = reading.how or _how(
            [name for name in features if name not in {"default", *named, *chosen}]
        )
    return reading


def _read_standard(
    document: PyProject,
    reading: Reading,
    lines: _Lines,
    chosen: tuple[Sequence[str], Sequence[str]],
    *,
    strict: bool,
) -> None:
    """Read the tables ``[project]`` and ``[dependency-groups]``."""
    extras, groups = chosen
    project, path = document.project, Path(reading.name)
    if project is not None and not strict:
        for key in project.dynamic:
            if key in {"dependencies", "optional-dependencies"}:
                reason = "the build backend reads it from elsewhere"
                reading.unread.append(Unread(lines.get(key, 0), f"project.{key}", reason))
        kept = tuple(_valid(project.dependencies, reading, lines))
        project = replace(project, dynamic=(), dependencies=kept)
        document = replace(document, project=project)
    # They come as `packaging` writes them.
    lines = {str(parse_requirement(text) or text): line for text, line in lines.items()} | lines
    for key, text in requirements_of(document, path, extras, groups):
        name = "requires-python" if key == "project.requires-python" else text
        _add(reading, text, lines.get(name, 0), key)
    optional = project.optional_dependencies if project else {}
    for extra in (more := _others(optional, extras)):
        reading.unread += _not_chosen(optional[extra], f"the extra {extra}", lines)
    for group in (others := _others(document.dependency_groups, groups)):
        entries = filter(_is_text, document.dependency_groups[group])
        reading.unread += _not_chosen(entries, f"the group {group}", lines)
    reading.how = _how(more, others)


def _others(names: Iterable[str], chosen: Iterable[str]) -> list[str]:
    known = {normalize_name(name) for name in chosen}
    return [name for name in names if normalize_name(name) not in known]


def _how(extras: Sequence[str], groups: Sequence[str] = ()) -> str:
    named = (("--extra", extras), ("--group", groups))
    parts = [
        f"{join_words(list(map(printable, names)), most=10, joiner='and')} ({option} NAME adds one)"
        for option, names in named
        if names
    ]
    return f"It was read without {'; '.join(parts)}" if parts else ""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _valid(texts: Sequence[str], reading: Reading, lines: _Lines) -> Iterator[str]:
    for text in texts:
        if parse_requirement(text) is not None:
            yield text
            continue
        message = f"{shorten(printable(text))!r} is not a valid requirement."
        evidence = {"line": lines.get(text, 0), "text": printable(text), "key": "project.dependencies"}
        fix = "Write a name, or a name and versions: torch>=2.4"
        evidence |= {"corrected": (), "fixable": False}
        reading.findings.append(Finding("not-a-requirement", "error", message, fix, evidence))


def _not_chosen(texts: Iterator[str] | Sequence[str], where: str, lines: _Lines) -> Iterator[Unread]:
    for text in texts:
        yield Unread(
            lines.get(text, 0), printable(text), f"it is of {printable(where)}; {NOT_CHOSEN}", matters=False
        )


def _add(reading: Reading, text: str, line: int, key: str) -> None:
    """Add a requirement; a bad one is a line that was not read."""
    item = pip_item(text, line=line)
    if item is None:
        reading.unread.append(Unread(line, printable(text), f"{key} is not a valid requirement"))
    else:
        reading.add(item)


def _read_uv(uv: Mapping[str, Any], reading: Reading, lines: _Lines, chosen: Sequence[str]) -> None:
    """Read where uv takes packages from: indexes and sources."""
    tables = uv.get("index", [])
    indexes = [row for row in tables if isinstance(row, dict) and isinstance(row.get("url"), str)]
    urls = {row.get("name"): row["url"] for row in indexes}
    reading.index_urls += [
        row["url"] for row in indexes if not row.get("explicit") and not row.get("default")
    ]
    main = [row["url"] for row in indexes if row.get("default")]
    reading.index_urls[:0] = main
    sources = uv.get("sources")
    for name, stated in (sources if isinstance(sources, dict) else {}).items():
        rows = stated if isinstance(stated, list) else [stated]
        rows = [row for row in rows if isinstance(row, dict) and _counts(row, chosen)]
        known = normalize_name(name)
        for row in rows[:1]:
            reading.items = [
                _from_source(item, row, urls) if item.name == known and not item.url else item
                for item in reading.items
            ]
    if uv.get("index-strategy", FIRST_INDEX) == FIRST_INDEX:
        ordered = [*(url for url in reading.index_urls if url not in main), *main]
        reading.items = [item if item.indexes else from_first_index(item, ordered) for item in reading.items]
    if main:
        _take_torch_from(reading, reading.index_urls)
    for text in filter(_is_text, uv.get("constraint-dependencies", ())):
        item = pip_item(text, line=lines.get(text, 0))
        reading.constraints += [item] if item else []
        reason = "it constrains what others install" if item else "it is not a requirement"
        reading.unread.append(Unread(lines.get(text, 0), printable(text), reason, matters=item is None))
    for key in _IGNORED_UV:
        for text in filter(_is_text, uv.get(key, ())):
            reading.unread.append(Unread(lines.get(text, 0), printable(text), f"uv's {key} are not read"))


def _take_torch_from(reading: Reading, urls: Sequence[str]) -> None:
    """State the indexes of torch and its companions, where they have no source of their own."""
    reading.items = [
        item if item.indexes or item.name not in TORCH_FAMILY else replace(item, indexes=tuple(urls))
        for item in reading.items
    ]


def _counts(source: Mapping[str, Any], chosen: Sequence[str]) -> bool:
    """Return whether one of several sources counts: for a chosen extra or group, and on Linux."""
    named = {value for key in ("extra", "group") if isinstance(value := source.get(key), str)}
    marker = source.get("marker", "")
    return named <= {*chosen} and (not isinstance(marker, str) or counts_on_linux(marker))


def _from_source(item: Item, source: Mapping[str, Any], indexes: Mapping[Any, str]) -> Item:
    """Return an item with the place that uv, Poetry or pixi states for it."""
    url = _url_of(source)
    if url:
        return replace(item, url=url, version="", specifier="")
    index = source.get("index", source.get("source"))
    found = indexes.get(index, index if isinstance(index, str) and "://" in index else "")
    return replace(item, indexes=(found,)) if found else item


def _url_of(source: Mapping[str, Any]) -> str:
    texts = {key: value for key, value in source.items() if isinstance(value, str)}
    if "git" in texts:
        ref = next((texts[key] for key in ("rev", "tag", "branch") if key in texts), "")
        folder = f"#subdirectory={texts['subdirectory']}" if "subdirectory" in texts else ""
        return printable(f"git+{texts['git'].removeprefix('git+')}{f'@{ref}' if ref else ''}{folder}")
    if source.get("workspace") is True:
        return "."
    return printable(texts.get("url") or texts.get("path") or texts.get("file") or "")


def _read_poetry(poetry: Mapping[str, Any], reading: Reading, lines: _Lines) -> None:
    """Read Poetry's own tables; groups that are not optional are installed by default."""
    named = [row for row in poetry.get("source", ()) if isinstance(row, dict)]
    rows = [row for row in named if isinstance(row.get("url"), str)]
    urls = {row.get("name"): row["url"] for row in rows}
    more = [row["url"] for row in rows if row.get("priority") in {None, "primary", "supplemental", "default"}]
    reading.index_urls += more
    tables = {"": poetry}
    groups = poetry.get("group")
    tables |= {f"group {name}": table for name, table in (groups if isinstance(groups, dict) else {}).items()}
    for group, table in tables.items():
        needs = table.get("dependencies") if isinstance(table, dict) else None
        for name, stated in (needs if isinstance(needs, dict) else {}).items():
            for row in stated if isinstance(stated, list) else [stated]:
                optional = group and table.get("optional") is True
                _of_poetry(str(name), row, reading, lines, urls=urls, group=group if optional else "")
    # A primary source replaces PyPI, which needs no URL, since Poetry 1.8; others count for what these lack.
    # Sources: https://github.com/python-poetry/poetry/pull/8771 ; https://python-poetry.org/docs/repositories/
    first = [row for row in named if row.get("priority") in {None, "primary", "default"}]
    with_public = not first or any(str(row.get("name")).lower() == "pypi" for row in first)
    own = [row["url"] for row in first if row in rows]
    _take_torch_from(reading, [public_index(), *own] if with_public else own)


def _of_poetry(
    name: str,
    stated: object,
    reading: Reading,
    lines: _Lines,
    *,
    urls: Mapping[Any, str],
    group: str,
) -> None:
    row: Mapping[str, Any] = stated if isinstance(stated, dict) else {"version": stated}
    version, line = row.get("version", "*"), lines.get(name, 0)
    shown = printable(shorten(f"{name} = {stated!r}" if isinstance(stated, dict) else f'{name} = "{stated}"'))
    specifier = _pep440(version) if isinstance(version, str) else None
    item = (
        None if specifier is None else pip_item(f"{normalize_name(name)}{specifier}", line=line, shown=shown)
    )
    if item is None:
        reading.unread.append(Unread(line, shown, "it is not a dependency of Poetry that is known"))
    elif group or row.get("optional") is True:
        where = group or "an extra"
        reading.unread.append(Unread(line, shown, f"it is of {where}; {NOT_CHOSEN}", matters=False))
    elif item.name == "python":
        _add(reading, f"python{specifier}", line, "python")
    else:
        extras = row.get("extras")
        named = tuple(sorted(filter(_is_text, extras))) if isinstance(extras, list) else ()
        markers = row.get("markers")
        item = replace(item, extras=named, marker=markers if isinstance(markers, str) else "")
        reading.items.append(_from_source(item, row, urls))


def _pep440(text: str) -> str | None:
    """Return a constraint of Poetry as a specifier (PEP 440); None if it is none.

    Source: https://python-poetry.org/docs/dependency-specification/.

    Examples
    --------
    >>> _pep440("^2.1.1"), _pep440("~3.12"), _pep440("1.26"), _pep440("^0.3"), _pep440("*")
    ('>=2.1.1,<3', '>=3.12,<3.13', '==1.26', '>=0.3,<0.4', '')
    """
    clauses = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        match = _POETRY_CLAUSE.fullmatch(part)
        if match:
            numbers = [int(number) for number in match[2].split(".")]
            if match[1] == "~":
                kept = min(len(numbers), 2)
            else:
                kept = next((at + 1 for at, number in enumerate(numbers) if number), len(numbers))
            upper = [*numbers[: kept - 1], numbers[kept - 1] + 1]
            rest = match[3].partition("+")[0]  # PEP 440 allows no label here
            clauses += [f">={match[2]}{rest}", f"<{'.'.join(map(str, upper))}"]
        elif part != "*":
            clauses.append(part if part[0] in "<>=!" else f"=={part}")
    return ",".join(clauses) if "||" not in text and "|" not in text else None


def _features_of(pixi: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Return the features that each name chooses: the name of an environment of pixi, or of a feature."""
    features, environments = pixi.get("feature"), pixi.get("environments")
    found: dict[str, Sequence[str]] = {}
    for name, stated in (environments if isinstance(environments, dict) else {}).items():
        listed = stated.get("features", ()) if isinstance(stated, dict) else stated
        found[name] = [str(one) for one in listed] if isinstance(listed, list) else []
    return {name: [name] for name in (features if isinstance(features, dict) else {})} | found


def _read_pixi(pixi: Mapping[str, Any], reading: Reading, lines: _Lines, chosen: Collection[str]) -> None:
    """Read the default environment of pixi with some features; of others, list what they name."""
    workspace = pixi.get("workspace", pixi.get("project"))
    channels = workspace.get("channels", ()) if isinstance(workspace, dict) else ()
    reading.channels += [
        str(channel.get("channel") if isinstance(channel, dict) else channel) for channel in channels
    ]
    features = pixi.get("feature")
    tables = [("", pixi)]
    tables += [(str(name), table) for name, table in (features if isinstance(features, dict) else {}).items()]
    for feature, table in tables:
        target = Reading(kind="", name="")
        if isinstance(table, dict):
            _of_feature(table, target, lines)
        if feature and feature not in chosen:
            where = f"it is of the feature {printable(feature)}; {NOT_CHOSEN}"
            reading.unread += [Unread(item.line, item.text, where, False) for item in target.items]
            continue
        reading.items += target.items
        reading.unread += target.unread
        reading.index_urls += target.index_urls
        reading.python = target.python or reading.python


def _of_feature(table: Mapping[str, Any], reading: Reading, lines: _Lines) -> None:
    options = table.get("pypi-options")
    ordered: list[str] = []
    if isinstance(options, dict):
        main = options.get("index-url")
        more = [url for url in options.get("extra-index-urls", ()) if isinstance(url, str)]
        main = [main] if isinstance(main, str) else []
        reading.index_urls += [*main, *more]
        ordered = [*more, *main] if options.get("index-strategy", FIRST_INDEX) == FIRST_INDEX else []
    for key in ("dependencies", "host-dependencies", "build-dependencies"):
        needs = table.get(key)
        for name, stated in (needs if isinstance(needs, dict) else {}).items():
            row = stated if isinstance(stated, dict) else {"version": stated}
            version, build = row.get("version", "*"), row.get("build", "")
            spec = f"{name} {version}" if version != "*" else str(name)
            item = conda_item(f"{spec} {build}".strip(), line=lines.get(str(name), 0))
            if item is None:
                text = printable(shorten(f"{name} = {stated!r}"))
                reading.unread.append(Unread(lines.get(str(name), 0), text, "it is not a package of conda"))
                continue
            reading.add(item)
    needs = table.get("pypi-dependencies")
    for name, stated in (needs if isinstance(needs, dict) else {}).items():
        _of_poetry(str(name), stated, reading, lines, urls={}, group="")
    reading.items = [from_first_index(item, ordered) for item in reading.items]


def _read_setup(text: str, name: str, chosen: Sequence[str]) -> Reading:
    """Read ``install_requires`` and what goes with it."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        msg = f"{name} is not a valid setup.cfg: {shorten(' '.join(str(error).split()), 200)}."
        raise UsageError(msg) from None
    reading = Reading(kind="setup.cfg", name=name)
    numbers = {line.strip(): number for number, line in reversed(list(enumerate(text.split("\n"), start=1)))}
    if python := parser.get("options", "python_requires", fallback="").strip():
        line = next((at for line, at in numbers.items() if line.startswith("python_requires")), 0)
        _add(reading, f"python{python}", line, "python_requires")
    for row in _rows(parser.get("options", "install_requires", fallback="")):
        _add(reading, row, numbers.get(row, 0), "install_requires")
    extras = parser["options.extras_require"] if parser.has_section("options.extras_require") else {}
    others = _others(extras, chosen)
    reading.how = _how(others)
    for extra, value in extras.items():
        for row in _rows(value):
            if extra not in others:
                _add(reading, row, numbers.get(row, 0), f"the extra {extra}")
                continue
            reason = f"it is of the extra {printable(extra)}; {NOT_CHOSEN}"
            reading.unread.append(Unread(numbers.get(row, 0), printable(row), reason, matters=False))
    return reading


def _rows(value: str) -> list[str]:
    return [row.strip() for row in value.split("\n") if row.strip() and not row.strip().startswith("#")]
