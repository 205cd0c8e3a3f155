"""Read EasyConfigs as data: assignments of texts, lists and dictionaries, never executed.

Templates and constants are those of EasyBuild: https://docs.easybuild.io/version-specific/easyconfig-templates/.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

import re2

from builders.findings import Finding
from matrix.reading.items import Item, Reading, Unread
from resolver.requirements import normalize_name
from resolver.texts import printable
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CONTENT = re2.compile(r"(?m)^easyblock *= *['\"]")
_TEMPLATE = re.compile(r"%\((\w+)\)s")
_ENTRIES = {"exts_list", "components", "dependencies"}
_LONGEST = 10_000  # characters of a text, or entries of a list, that is put together


def recognises(name: str, head: str) -> bool:
    """Return whether a file is an EasyConfig."""
    return name.endswith(".eb") or _CONTENT.search(head) is not None


class _Known(ast.NodeTransformer):
    """Put in what earlier assignments, templates and sums state; `ast.literal_eval` reads the rest.

    Of names, only texts and numbers are put in anywhere, lists only in sums: nothing can grow without end.
    """

    def __init__(self) -> None:
        self.values: dict[str, ast.expr] = {}

    def text(self, name: str) -> str:
        """Return the text of a variable; empty if it is not known."""
        node = self.values.get(name)
        return str(node.value) if isinstance(node, ast.Constant) else ""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """Fill in a template."""
        if not isinstance(node.value, str):
            return node
        return ast.copy_location(ast.Constant(self._filled(node.value)), node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Put in a text or number, and the name of a constant of EasyBuild, such as ``SYSTEM``."""
        known = self.values.get(node.id)
        if known is None and node.id.isupper():
            return ast.copy_location(ast.Constant(f"%{node.id}"), node)
        return ast.copy_location(ast.Constant(known.value), node) if isinstance(known, ast.Constant) else node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.expr:
        """Return the value, if it is not formatted."""
        return node if node.format_spec else self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        """Join an f-string."""
        parts = [self.visit(part) for part in node.values]
        if not all(isinstance(part, ast.Constant) for part in parts):
            return node
        texts = [_shown(part) for part in parts]
        return ast.copy_location(ast.Constant("".join(texts)[:_LONGEST]), node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Join two texts or two lists."""
        left, right = self._operand(node.left), self._operand(node.right)
        if (
            isinstance(node.op, ast.Add)
            and isinstance(left, ast.Constant)
            and isinstance(right, ast.Constant)
        ):
            return ast.copy_location(ast.Constant(f"{_shown(left)}{_shown(right)}"[:_LONGEST]), node)
        if isinstance(node.op, ast.Add) and isinstance(left, ast.List) and isinstance(right, ast.List):
            return ast.List([*left.elts, *right.elts][:_LONGEST], ast.Load())
        return node

    def _operand(self, node: ast.expr) -> ast.expr:
        known = self.values.get(node.id) if isinstance(node, ast.Name) else None
        return known if known is not None else self.visit(node)

    def _filled(self, text: str) -> str:
        version = self.text("version")
        values = {
            "name": self.text("name"),
            "namelower": self.text("name").lower(),
            "version": version,
            "versionsuffix": self.text("versionsuffix"),
            "version_major": version.split(".")[0],
            "version_major_minor": ".".join(version.split(".")[:2]),
        }
        new = _TEMPLATE.sub(lambda match: values.get(match[1]) or match[0], text)
        return new if len(new) <= max(_LONGEST, len(text)) else text


def read(text: str, name: str) -> Reading:
    r"""Read an EasyConfig.

    Examples
    --------
    >>> found = read("r = '5.1.1'\nexts_list = [('torch', f'1.12.1%2Brocm{r}')]", "PyTorch.eb")
    >>> [str(item) for item in found.items]
    ['torch 1.12.1+rocm5.1.1']
    """
    reading = Reading(kind="EasyConfig", name=name)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        message = f"EasyBuild cannot read it: {getattr(error, 'msg', error)}."
        evidence = {"line": line, "text": "", "corrected": (), "fixable": False}
        reading.findings.append(Finding("not-python", "error", message, "", evidence))
        return reading
    known = _Known()
    for node in tree.body:
        try:
            _read_statement(node, known, reading)
        except RecursionError:
            reading.unread.append(Unread(node.lineno, "", "it is nested too deeply"))
    if known.text("easyblock") == "PythonPackage" and known.text("name"):
        reading.items.append(_item(known.text("name"), known.text("version"), {}, 0))
    return reading


def _read_statement(node: ast.stmt, known: _Known, reading: Reading) -> None:
    shown = printable(shorten(" ".join(ast.unparse(node).split())))
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    value = getattr(node, "value", None)
    if not isinstance(target, ast.Name) or value is None:
        reading.unread.append(Unread(node.lineno, shown, "it is no assignment", matters=False))
        return
    if isinstance(node, ast.AugAssign):
        value = ast.BinOp(ast.Name(target.id, ast.Load()), node.op, value)
    value = known.values[target.id] = known.visit(value)
    if target.id in _ENTRIES and isinstance(value, ast.List):
        for entry in value.elts:
            _read_entry(target.id, entry, reading)
        return
    images = [text for text in _texts(_value(value)) if text.endswith((".sif", ".sqsh"))]
    images = images if target.id == "sources" else []
    reading.items += [
        Item(name="", url=url, installer="image", line=node.lineno, text=shown) for url in images
    ]
    if not images:
        matters = target.id in {*_ENTRIES, "postinstallcmds"}
        reading.unread.append(Unread(node.lineno, shown, "it names no package that is judged", matters))


def _shown(node: ast.expr) -> str:
    value = _value(node)
    return value if isinstance(value, str) else repr(value)


def _value(node: ast.expr) -> Any:  # noqa: ANN401  any data
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None


def _texts(value: object) -> Iterator[str]:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value


def _read_entry(key: str, entry: ast.expr, reading: Reading) -> None:
    """Read one extension (a name, or name, version and options) or one module."""
    parts = entry.elts if isinstance(entry, ast.Tuple) else [entry]
    values = [*map(_value, parts), "", ""]
    name, version = values[:2]
    line = getattr(entry, "lineno", 0)
    shown = printable(shorten(ast.unparse(entry)))
    if not isinstance(name, str) or not isinstance(version, str) or not name:
        reading.unread.append(Unread(line, shown, "its name or version is not a text"))
    elif key != "dependencies":
        options = next((each for each in values if isinstance(each, dict)), {})
        reading.items.append(_item(name, version, options, line))
    elif name == "Python":
        reading.add(Item(name="python", version=version, installer="unknown", line=line, text=shown))
    else:
        reading.unread.append(Unread(line, shown, "it is a module, which may contain packages"))


def _item(name: str, version: str, options: Mapping[str, Any], line: int) -> Item:
    version = printable(version.replace("%2B", "+").replace("%2b", "+"))
    hashes = [one for one in _texts(options.get("checksums", ())) if re.fullmatch("[0-9a-f]{64}", one)]
    return Item(
        name=normalize_name(printable(name)),
        version=version,
        hashes=tuple(f"sha256:{one}" for one in hashes),
        line=line,
        text=f"{printable(name)} {version}".strip(),
    )
