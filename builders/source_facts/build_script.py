"""Read Python build scripts (setup.py and modules that it imports) as syntax trees; nothing is executed.

A value that is not a literal is followed through names that are assigned once, ``os.path`` functions and
``+``. Everything else is reported as not determined.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import PurePosixPath

import msgspec

from resolver.versions import shorten

_DEEPEST = 20  # names in the longest chain that is followed
_MOST_STEPS = 20_000  # expressions that are followed in one file; names may refer to each other many times
_LONGEST_TEXT = 10_000  # characters
_LONGEST_DEFAULT = 60  # characters
_SAME_PATH = {"abspath", "realpath", "resolve", "absolute", "fspath", "str", "Path", "as_posix"}
"""Functions and methods that do not change a path in the source."""
_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception"}
_CALLS = {"call", "check_call", "check_output", "Popen", "run", "system", "which"}
"""Functions that start a program, or look for one."""
_DOWNLOADS = {"urlopen", "urlretrieve", "requests.get"}
_DOWNLOADERS = re.compile(r"wget |curl |git clone ")
"""Commands that use the network."""
_WITHOUT_CUDA = re.compile(
    r"(?:not )?(?:torch\.version\.cuda|(?:torch\.utils\.)?(?:cpp_extension\.)?CUDA_HOME)(?P<none> is None)?"
)
"""Conditions on torch that are true for ROCm: torch sets CUDA_HOME to None there."""
_FOR_GPU = re.compile(r"(?!not ).*(?:cuda|nvcc|hip|rocm|gpu)(?!.* is None$)", re.IGNORECASE | re.DOTALL)
"""A condition that is false on a machine without a GPU or its toolkit."""
_ENVIRONMENT_METHOD = re.compile(r"(os\.)?environ\.(get|pop|setdefault)")
_SOURCE_FILE = re.compile(r"\.(c|cc|cpp|cxx|cu|hip|pyx)$")


class Extension(msgspec.Struct, frozen=True):
    """An extension module that a build script defines."""

    name: str
    """Dotted name; empty if it is computed."""
    kind: str
    """The class that the script calls, such as ``CUDAExtension``; several if it chooses one when it runs."""
    where: str
    """File and line."""
    sources: tuple[str, ...] = ()
    """The source files that the script names literally."""
    certain: bool = False
    """Whether every build compiles it: no condition, function or other build system decides."""
    condition: str = ""
    """The condition, as in the script, of the innermost `if` around it; empty for an `else`."""

    @property
    def uses_gpu_compiler(self) -> bool:
        """Whether it needs a GPU compiler in every case."""
        return all("CUDA" in kind for kind in self.kind.split(" or "))

    @property
    def is_for_gpu(self) -> bool:
        """Whether it needs a GPU compiler, or a condition leaves it out where there is none."""
        return self.uses_gpu_compiler or _FOR_GPU.match(self.condition) is not None


class BuildVariable(msgspec.Struct, frozen=True):
    """An environment variable that a build reads."""

    name: str
    default: str
    """The default as written in the source; empty if there is none."""
    where: str


class Import(msgspec.Struct, frozen=True):
    """A module that a build script imports."""

    module: str
    where: str
    optional: bool
    """Whether the script continues without the module."""
    conditional: bool
    in_function: bool


class BuildScript(msgspec.Struct):
    """Facts in the syntax tree of a build script."""

    file: str
    imports: list[Import] = []
    extensions: list[Extension] = []
    variables: list[BuildVariable] = []
    sets: list[str] = []
    """Environment variables that the script sets."""
    programs: set[str] = set()
    """Programs that the script starts or looks for."""
    names: set[str] = set()
    """Attributes and names that the script uses, such as ``CUDA_HOME`` and ``cuda.is_available``."""
    search_path: list[str] = []
    """Directories of the source that the script adds to ``sys.path``."""
    setup: dict[str, str | list[str]] = {}
    """The literal arguments of ``setup()``: strings and lists of strings."""
    computed: list[str] = []
    """Arguments of ``setup()`` that are not literal."""
    downloads: list[str] = []
    """Places that use the network in every build, unless they are in a function that is not called."""
    gates: list[str] = []
    """Places that end every build with a torch that is not for CUDA."""
    undetermined: list[str] = []
    unreadable: str = ""
    """Why it could not be read at all."""


def read_script(text: str, file: str) -> BuildScript:
    """Read a build script. `file` is its path in the source, which is the value of ``__file__``."""
    script = BuildScript(file)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        script.unreadable = f"{file} is not valid for Python 3.{sys.version_info.minor}: {reason}"
        script.undetermined.append(script.unreadable)
        return script
    try:
        _Reader(script, tree).visit(tree)
    except RecursionError:
        script.undetermined.append(f"{file} is nested too deeply to be read")
    return script


class _Reader(ast.NodeVisitor):
    def __init__(self, script: BuildScript, tree: ast.Module) -> None:
        self.script = script
        self._values = _assigned_once(tree) | {"__file__": ast.Constant(script.file)}
        self._defined = {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        self._aliases = _extension_aliases(tree)
        self._steps = 0
        self._definitions: list[str] = []
        self._optional = False
        self._conditional = False
        self._condition = ""
        self._caught = False
        self._in_setup = False

    def _where(self, node: ast.expr | ast.stmt) -> str:
        return f"{self.script.file}:{node.lineno}"

    # Imports

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add_import(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        folder = ".".join(PurePosixPath(self.script.file).parent.parts[: 1 - node.level or None])
        base = ".".join(filter(None, (folder, node.module))) if node.level else node.module or ""
        for alias in node.names:
            self._add_import(f"{base}.{alias.name}" if base else alias.name, node)
            self.script.names.add(alias.name)

    def _add_import(self, module: str, node: ast.stmt) -> None:
        self.script.imports.append(
            Import(module, self._where(node), self._optional, self._conditional, bool(self._definitions))
        )

    def visit_Try(self, node: ast.Try) -> None:
        before = self._optional, self._caught
        self._optional |= any(map(_survives_import_error, node.handlers))
        self._caught |= bool(node.handlers)
        self.generic_visit(node)
        self._optional, self._caught = before

    def visit_If(self, node: ast.If) -> None:
        before = self._conditional, self._condition
        test = ast.unparse(node.test)
        self.visit(node.test)
        if any(map(_stops, node.body)):
            self._add_gate(test, node)
        self._conditional = True
        body = [] if test.endswith("TYPE_CHECKING") else node.body
        for self._condition, statements in ((test, body), ("", node.orelse)):
            for statement in statements:
                self.visit(statement)
        self._conditional, self._condition = before

    def visit_Assert(self, node: ast.Assert) -> None:
        test = ast.unparse(node.test)
        if test.endswith(" is not None"):
            self._add_gate(f"{test.removesuffix(' is not None')} is None", node)
        self.generic_visit(node)

    def _add_gate(self, test: str, node: ast.stmt) -> None:
        """Add a place that stops if `test` is true, if it is true for ROCm and always reached."""
        found = _WITHOUT_CUDA.fullmatch(test)
        is_reached = not (self._conditional or self._caught or self._definitions)
        if found and is_reached and test.startswith("not ") != bool(found["none"]):
            self.script.gates.append(self._where(node))

    # Calls

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._definitions.append(node.name)
        self.generic_visit(node)
        self._definitions.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if any("sdist" in _last_name(base) for base in node.bases):
            return  # a command that makes sdists: no build of a wheel executes it
        self._definitions.append(node.name)
        self.generic_visit(node)
        self._definitions.pop()

    def visit_Name(self, node: ast.Name) -> None:
        self.script.names.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.script.names.add(ast.unparse(node))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = _last_name(node.func)
        called = ast.unparse(node.func)
        downloads = {function, called} & _DOWNLOADS or (function in _CALLS and _downloads(node))
        if downloads and not (self._conditional or self._caught):
            self.script.downloads.append(self._where(node))
        before, self._in_setup = self._in_setup, self._in_setup or function == "setup"
        self._add_call(node, function)
        self.generic_visit(node)
        self._in_setup = before

    def _add_call(self, node: ast.Call, function: str) -> None:
        if function == "setup":
            self._add_setup(node)
        elif self._defines(function):
            self._add_extension(node, function)
        elif function == "cythonize":
            self._add_cython(node)
        elif function == "getenv" or _ENVIRONMENT_METHOD.fullmatch(ast.unparse(node.func)):
            self._add_variable(node.args, node)
        elif function in _CALLS:
            texts = (item.value for item in ast.walk(node) if isinstance(item, ast.Constant))
            for text in texts:
                words = text.split() if isinstance(text, str) else []
                self.script.programs |= {PurePosixPath(word).name for word in words[:1]}
        elif function in {"insert", "append"} and ast.unparse(node.func).startswith("sys.path."):
            self.script.search_path += filter(None, [self._text(node.args[-1])] if node.args else [])
        elif function == "exec" and node.args:
            self.script.undetermined.append(f"{self._where(node)} executes a string, which was not read")

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if ast.unparse(node.value) in {"os.environ", "environ"}:
            if isinstance(node.ctx, ast.Load):
                self._add_variable([node.slice], node)
            elif name := self._text(node.slice):
                self.script.sets.append(name)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if ast.unparse(node.comparators[0]) in {"os.environ", "environ"}:
            self._add_variable([node.left], node)
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        if re.search(r"\bcmake [-{.]", ast.unparse(node)):
            self.script.programs.add("cmake")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and re.search(r"\bcmake -", node.value):
            self.script.programs.add("cmake")

    def _defines(self, function: str) -> bool:
        """Return whether calling a name defines an extension module."""
        return function in self._aliases or _is_extension(function)

    def _add_setup(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg is None:
                self.script.computed.append("others")
                continue
            if keyword.arg == "ext_modules" and isinstance(keyword.value, ast.List):
                for item in keyword.value.elts:
                    if isinstance(item, ast.Call) and not self._defines(_last_name(item.func)):
                        self._add_extension(item, _last_name(item.func))
            value = self._text(keyword.value)
            listed = self._texts(keyword.value)
            if value is not None:
                self.script.setup[keyword.arg] = value
            elif listed is not None:
                self.script.setup[keyword.arg] = listed
            else:
                self.script.computed.append(keyword.arg)

    def _add_extension(self, node: ast.Call, function: str) -> None:
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        argument = keywords.get("name") or (node.args[0] if node.args else None)
        if isinstance(argument, ast.Starred) or not (argument or None in keywords):
            return
        # A class gets the name of the module; a function may add the package to it.
        is_class = function in self._aliases or function[:1].isupper()
        name = self._name(argument) if is_class and argument else None
        if name is None and any(map(_is_extension, self._definitions)):
            return  # a function that makes extensions of the names that its callers state
        sources = keywords.get("sources") or (node.args[1] if len(node.args) > 1 else None)
        # CMake, or whatever else compiles an extension without sources, may leave it out (horovod).
        has_sources = sources is not None and not (isinstance(sources, ast.List) and not sources.elts)
        is_reached = has_sources and (self._in_setup or not self._definitions)
        self.script.extensions.append(
            Extension(
                (name or "").replace("/", "."),
                self._kind(function),
                self._where(node),
                tuple(dict.fromkeys(self._files(sources))) if sources else (),
                is_reached and not (self._conditional or self._caught or "optional" in keywords),
                self._condition,
            )
        )

    def _kind(self, function: str) -> str:
        """Return the classes that a name may refer to in a call that defines an extension module."""
        names = self._aliases.get(function, set())
        if not names and (function in self._defined or function[:1].isupper()):
            return function
        names = names or set(filter(_is_class, self.script.names))
        return " or ".join(sorted(names)) or function

    def _add_cython(self, node: ast.Call) -> None:
        for file in self._files(node.args[0]) if node.args else ():
            if file.endswith(".pyx"):
                name = file.removesuffix(".pyx").replace("/", ".")
                self.script.extensions.append(Extension(name, "cythonize", self._where(node), (file,)))

    def _add_variable(self, arguments: list[ast.expr], node: ast.expr) -> None:
        name = self._name(arguments[0]) if arguments else None
        if name is None:
            text = f"{self._where(node)} reads an environment variable whose name it computes"
            self.script.undetermined.append(text)
            return
        default = shorten(ast.unparse(arguments[1]), _LONGEST_DEFAULT) if len(arguments) > 1 else ""
        self.script.variables.append(BuildVariable(name, default, self._where(node)))

    # Values

    def _name(self, node: ast.expr) -> str | None:
        """Return the text of a name; None if it could not be determined, or is not one printable line."""
        text = self._text(node)
        return text if text and text.isprintable() else None

    def _is_over(self) -> bool:
        """Count an expression that is followed; return whether there were too many."""
        self._steps += 1
        if self._steps == _MOST_STEPS:
            self.script.undetermined.append(f"{self.script.file} has too many expressions to follow")
        return self._steps >= _MOST_STEPS

    def _files(self, node: ast.expr, depth: int = 0) -> list[str]:
        """Return the source files, or patterns of source files, that an expression names."""
        if self._is_over():
            return []
        text = self._text(node)
        if text is not None:
            return [text] if _SOURCE_FILE.search(text) else []
        if isinstance(node, ast.Name) and node.id in self._values and depth < _DEEPEST:
            return self._files(self._values[node.id], depth + 1)
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
            return self._comprehended(node, depth + 1)
        if self._is_path(node) or isinstance(node, ast.IfExp):
            return []  # only a part of the path is known, or a condition decides
        children = self._items(node, depth) if isinstance(node, ast.Subscript) else []
        children = children or [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return [file for child in children for file in self._files(child, depth + 1)]

    def _comprehended(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, depth: int) -> list[str]:
        """Return the source files of a comprehension over source files; none if it may leave some out."""
        if depth > _DEEPEST or len(node.generators) > 1:
            return []
        (generator,) = node.generators
        if generator.ifs or not isinstance(generator.target, ast.Name):
            return []
        outside, files = self._values, []
        for item in self._files(generator.iter, depth):
            self._values = {**outside, generator.target.id: ast.Constant(item)}
            files += self._files(node.elt, depth)
        self._values = outside
        return files

    def _is_path(self, node: ast.expr) -> bool:
        """Return whether an expression joins or formats texts, so that its parts are no files."""
        match node:
            case ast.JoinedStr() | ast.BinOp(op=ast.Div() | ast.Mod()):
                return True
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._text(left) is not None or self._text(right) is not None
            case ast.Call(func=function):
                return _last_name(function) in {"format", "join", "replace", "with_suffix"}
        return False

    def _items(self, node: ast.Subscript, depth: int) -> list[ast.expr]:
        """Return the literal items that a subscript may select; several if the key is computed."""
        container: ast.expr | None = node.value
        containers = self._items(container, depth + 1) if isinstance(container, ast.Subscript) else []
        while isinstance(container, ast.Name) and depth < _DEEPEST:
            container, depth = self._values.get(container.id), depth + 1
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        found: list[ast.expr] = []
        for literal in containers or filter(None, [container]):
            if isinstance(literal, ast.Dict):
                keys = [each.value if isinstance(each, ast.Constant) else None for each in literal.keys]
                found += [
                    value for each, value in zip(keys, literal.values, strict=True) if key in {None, each}
                ]
            elif isinstance(literal, ast.List | ast.Tuple):
                are_known = isinstance(key, int) and -len(literal.elts) <= key < len(literal.elts)
                found += [literal.elts[key]] if are_known and isinstance(key, int) else literal.elts
        return found

    def _texts(self, node: ast.expr, depth: int = 0) -> list[str] | None:
        """Return the items of a list of strings; None for anything else."""
        if isinstance(node, ast.Name) and node.id in self._values and depth < _DEEPEST:
            return self._texts(self._values[node.id], depth + 1)
        if not isinstance(node, ast.List | ast.Tuple):
            return None
        items = [self._text(item) for item in node.elts]
        return [item for item in items if item is not None] if None not in items else None

    def _text(self, node: ast.expr, depth: int = 0) -> str | None:
        """Return the string value of an expression; None if it could not be determined."""
        text: str | None = None
        if depth > _DEEPEST or self._is_over():
            return None
        depth += 1
        match node:
            case ast.Constant(value=str(value)):
                text = value
            case ast.Name(id=name) if name in self._values:
                text = self._text(self._values[name], depth)
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                text = self._text(inner, depth)
            case ast.JoinedStr(values=parts):
                text = _joined("", [self._text(part, depth) for part in parts])
            case ast.BinOp(left=left, op=ast.Add() | ast.Div() as operator, right=right):
                separator = "/" if isinstance(operator, ast.Div) else ""
                text = _joined(separator, [self._text(left, depth), self._text(right, depth)])
            case ast.Attribute(value=inner, attr="parent"):
                text = _parent(self._text(inner, depth))
            case ast.Call(func=function, args=arguments):
                text = self._called(function, arguments, depth)
        return text if text is None or len(text) <= _LONGEST_TEXT else None

    def _called(self, function: ast.expr, arguments: list[ast.expr], depth: int) -> str | None:
        """Return the result of a function or method on paths."""
        name = _last_name(function)
        texts = [self._text(argument, depth) for argument in arguments]
        if isinstance(function, ast.Attribute) and (name == "format" or not arguments):
            own = self._text(function.value, depth)
            return _formatted(own, texts) if name == "format" else own if name in _SAME_PATH else None
        if name == "join" and ast.unparse(function).endswith("path.join"):
            return _joined("/", texts)
        if len(texts) == 1 and name in {"dirname", *_SAME_PATH}:
            return _parent(texts[0]) if name == "dirname" else texts[0]
        return None


def _assigned_once(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the values of the names that are assigned exactly once in a file."""
    values: dict[str, ast.expr] = {}
    several: set[str] = set()
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets, value = [node.target], node.value
        for target in targets:
            for item in ast.walk(target):
                if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
                    several |= {item.id} if item.id in values or item is not target else set()
                    values[item.id] = value or item
        if isinstance(node, ast.arg):
            several.add(node.arg)
    return {name: value for name, value in values.items() if name not in several}


def _extension_aliases(tree: ast.Module) -> dict[str, set[str]]:
    """Return the names assigned to classes of extension modules, such as ``kind = CUDAExtension``."""
    aliases: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for name, value in pairs:
                choices = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
                classes = set(filter(_is_class, map(_last_name, choices)))
                if isinstance(name, ast.Name) and classes:
                    aliases.setdefault(name.id, set()).update(classes)
    return aliases


def _is_class(name: str) -> bool:
    return _is_extension(name) and name.isidentifier() and name[:1].isupper()


def _survives_import_error(handler: ast.ExceptHandler) -> bool:
    caught = handler.type
    types = caught.elts if isinstance(caught, ast.Tuple) else [caught] if caught else []
    if types and not any(_last_name(item) in _IMPORT_ERRORS for item in types):
        return False
    return not any(map(_stops, handler.body))


def _stops(statement: ast.stmt) -> bool:
    """Return whether a statement may end the script."""
    return any(
        isinstance(item, ast.Raise) or (isinstance(item, ast.Call) and _last_name(item.func) == "exit")
        for item in ast.walk(statement)
    )


def _downloads(node: ast.Call) -> bool:
    """Return whether a call starts a program that uses the network."""
    words = (item.value for item in ast.walk(node) if isinstance(item, ast.Constant))
    command = " ".join(word for word in words if isinstance(word, str))
    return _DOWNLOADERS.match(f"{command} ") is not None


def _is_extension(name: str) -> bool:
    """Return whether a class or function of this name defines an extension module."""
    lower = name.replace("_", "").lower()
    return lower.endswith("extension") and "build" not in lower


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _joined(separator: str, parts: list[str | None]) -> str | None:
    texts = [part for part in parts if part is not None]
    if len(texts) != len(parts):
        return None
    return str(PurePosixPath(*texts)) if separator else "".join(texts)


def _formatted(pattern: str | None, values: list[str | None]) -> str | None:
    if pattern is None or None in values or not re.fullmatch(r"([^{}]|\{\})*", pattern):
        return None
    return pattern.format(*values) if pattern.count("{}") == len(values) else None


def _parent(path: str | None) -> str | None:
    return None if path is None else str(PurePosixPath(path).parent)
