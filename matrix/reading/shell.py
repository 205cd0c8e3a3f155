"""Shell commands of recipes and job scripts: what pip, conda and builds from source would install.

Nothing is executed. Variables are expanded if the script itself sets them to a text. Each command becomes
items, variables, or an unread line that says whether it may install something.
"""

from __future__ import annotations

import os
import posixpath
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from builders.network.urls import public_index
from builders.probe.environment import INSTALLERS
from matrix.reading.conda_file import conda_item
from matrix.reading.items import Item, Unread, pip_item
from matrix.reading.pip_line import file_version, is_location
from matrix.reading.requirements import FIRST_INDEX, ON_TORCH_INDEX, from_first_index
from matrix.reading.requirements import read as read_requirements
from resolver.errors import UsageError
from resolver.texts import printable, read_text
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

# No expression has nested repetition: the texts come from strangers.
_PIECE = re.compile(
    r"(?P<space>(?:[^\S\n]|\\\r?\n)+)|(?P<end>\n|&&|\|\|?&?|;;?|&(?!>)|[()])"
    r"|(?P<redirect>&?\d*(?:<<<|<<-?|>>|>&|<&|&>|[<>]))|(?P<single>'[^']*')"
    r"|(?P<double>\"[^\"\\]*(?:\\.[^\"\\]*)*\")|(?P<escape>\\.)"
    r"|(?P<inner>\$\(\([^()\n]*\)\)|\$\([^()\n]*\)|\$\{[^{}\n]*\}|`[^`\n]*`)"
    r"|(?P<plain>[^\s'\"\\;&|<>()$`0-9]+|[0-9]+|.)",
    re.DOTALL,
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^{}]*))?\}|(\w+))")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_LITERAL = "\0"
"""Stands for a dollar sign that the shell does not expand."""
LONGEST_VALUE = 10_000
"""Longest value that is expanded, in characters: variables that double each other grow without end."""
_LONGEST_SHOWN = 100
_LONGEST_PATH = 4096  # bytes, PATH_MAX of Linux
_MOST_NESTED = 5
_MOST_COMMANDS = 3000
_MOST_WORDS = 1000
_LONGEST_SCRIPT = 200_000  # characters


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BRANCHES = {"case", "else", "elif"}
_OPENING, _CLOSING = {"if", "for", "while", "until", "case", "select"}, {"fi", "done", "esac"}
_KEYWORDS = _words("then else elif do ! { } time exec command nohup builtin eval")
_STARTERS = _words("sudo env nice stdbuf timeout numactl taskset gosu")
_SHELLS = {"sh", "bash", "zsh", "dash"}
_HARMLESS = _words(
    """
    module ml set shopt cd pushd popd echo printf mkdir rmdir rm mv cp ln chmod chown cat true false :
    [ [[ test
    source . ls pwd touch tee sed awk grep egrep find xargs sort head tail wc cut tr date sleep wait
    which type hash trap exit ulimit umask return shift read local unset alias apt apt-get apt-key
    add-apt-repository dpkg dnf yum zypper rpm apk microdnf locale-gen update-alternatives ldconfig
    useradd adduser groupadd addgroup usermod tar unzip gunzip bunzip2 xz zip wget curl git patch gpg file
    du df hostname whoami id uname nproc rocm-smi rocminfo nvidia-smi ccache strip activate deactivate
    scontrol squeue sacct scancel ssh getopts lfs stat basename dirname realpath readlink seq kill ps top free
    """
)
"""Commands that install no package that is judged."""
_ACTIVATION = re.compile(r"\$\{?\w*(WITH_|CONDA|VENV|ACTIVATE)\w*\}?")
_INTERPRETER = re.compile(r"python[\d.]*(\$\w+|\$\{\w+\})?|\$\{?PYTHON\w*\}?")
_PIP_MAIN, _PIP_EXTRA = {"-i", "--index-url", "--default-index"}, {"--extra-index-url", "--index"}
_TORCH_INDEXES = "https://download.pytorch.org/whl/"
"""What uv's backends for torch (``rocm6.4``) are added to. Source: ``uv pip install --help`` (0.13.9)."""
_PIP_LINKS, _EDITABLE = {"-f", "--find-links"}, {"-e", "--editable"}
_PIP_FILES = {"-r", "--requirement", "-c", "--constraint", "--override"}
_PIP_OTHERS = _words(
    """
    -t --target --prefix --root --cache-dir --timeout --retries --trusted-host --python -p
    --global-option -C --config-settings --config-setting --progress-bar --install-option --build-option
    --platform --abi --src --python-version --implementation --log --proxy --cert --upgrade-strategy
    --only-binary --no-binary --use-feature --exists-action --report --torch-backend --index-strategy
    --resolution --prerelease --root-user-action --group --extra --no-build-isolation-package
    """
)
"""Options of pip and uv with a value that names nothing to install."""
_PIP_VALUES = _PIP_MAIN | _PIP_EXTRA | _PIP_LINKS | _EDITABLE | _PIP_FILES | _PIP_OTHERS
_CONDA_VALUES = _words(
    "-n --name -p --prefix --solver --platform --subdir -r --root-prefix -c --channel -f --file"
)
_GIT_VALUES = _words("-b -B --branch --depth -c -j --jobs -o --origin --filter --config")
_LAUNCHER_VALUES = _words(
    "-N -n -c -p -A -t -G -w -J -o -e -D -x -d -m -np -B --bind --env --pwd -H --home --cwd"
)
_CONTAINER_VERBS = {"exec", "run", "shell"}
_BUILDS = {"install", "develop", "bdist_wheel", "build", "build_ext", "editable_wheel"}


class Command(msgspec.Struct):
    """One command of a script."""

    line: int
    """From 0."""
    words: list[str] = []
    redirected: list[str] = []
    """Words that the shell takes apart: of ``torch>=2`` without quotes, the command gets ``torch``."""
    here: str = ""
    """Its input, a here-document."""
    here_line: int = 0
    nested: int = 0
    """How many scripts (``bash -c``) contain it."""

    @property
    def text(self) -> str:
        """The command for a message."""
        return printable(shorten(" ".join(self.words).replace(_LITERAL, "$"), _LONGEST_SHOWN))


def commands(text: str) -> Iterator[Command]:
    r"""Yield the commands of a script, split as a POSIX shell splits them.

    Examples
    --------
    >>> [each.words for each in commands("A=1 pip install 'numpy<2' && make \\\n -j # all")]
    [['A=1', 'pip', 'install', 'numpy<2'], ['make', '-j']]
    """
    current = Command(0)
    for kind, part, line in _tokens(text):
        if kind == "end":
            if current.words or current.here:
                yield current
            current = Command(line)
        elif kind == "word":
            current.line = current.line if current.words else line
            current.words.append(part)
        elif kind == "redirect":
            current.redirected.append(part)
        else:
            current.here, current.here_line = part, line


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:  # noqa: C901, PLR0912  one scan over all kinds of pieces
    position = line = 0
    word: str | None = None
    operator = glued = ""  # of a redirection, whose target is the next word
    waiting: list[str] = []  # the last lines of here-documents that begin on the next line
    while position < len(text):
        piece = _PIECE.match(text, position)
        assert piece is not None  # noqa: S101  any character is a piece
        kind, part = str(piece.lastgroup), piece[0]
        digits = len(part) - len(part.lstrip("0123456789")) if kind == "redirect" and word is not None else 0
        if digits:  # they belong to the word, as in pkg2>log
            kind, part = "plain", part[:digits]
        if kind == "plain" and word is None and part[0] == "#":
            position = text.find("\n", position) % (len(text) + 1)
            continue
        position += len(part)
        if kind not in {"space", "end", "redirect"}:
            word = (word or "") + _unquoted(kind, part)
            line += part.count("\n")
            continue
        if word is not None and operator:
            if operator in {"<<", "<<-"}:
                waiting.append(word)
            elif glued:
                yield "redirect", f"{glued}{operator}{word}", line
            operator = glued = ""
        elif word is not None:
            yield "word", word, line
        if kind == "redirect":
            glued = word if word and part in {"<", ">"} and text[position : position + 1].strip() else ""
            operator = part
        word = None
        line += part.count("\n")
        if part == "\n":
            for last in waiting:
                here, position = _here_document(text, position, last)
                yield "here", here, line
                line += here.count("\n") + 1
            waiting = []
        if kind == "end":
            yield "end", part, line
    if word is not None and not operator:
        yield "word", word, line
    yield "end", "", line


def _here_document(text: str, start: int, last: str) -> tuple[str, int]:
    position = start
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        if text[position:end].strip() == last:
            return text[start:position], end + 1
        position = end + 1
    return text[start:], len(text)


def _unquoted(kind: str, part: str) -> str:
    if kind == "single":
        return part[1:-1].replace("$", _LITERAL)
    if kind == "double":
        return re.sub(r"\\(.)", lambda match: _escaped(match[1]), part[1:-1], flags=re.DOTALL)
    return _escaped(part[1:]) if kind == "escape" else part


def _escaped(char: str) -> str:
    return {"$": _LITERAL, "\n": ""}.get(char, char)


class Shell:
    """The state of a shell, and what its commands install."""

    def __init__(self, *, payload_matters: bool, context: str = ".") -> None:
        self._context = context
        """The directory of a recipe, from which it copies files into the image."""
        self.items: list[Item] = []
        self.unread: list[Unread] = []
        self.exported: dict[str, str] = {}
        self.values: dict[str, str] = {}
        """All variables, exported or not, whose value is a text."""
        self.channels: list[str] = []
        self.find_links: list[str] = []
        self.constraints: list[Item] = []
        self.directory = "/"
        self.launches: list[tuple[int, list[str]]] = []
        """Commands that start tasks or containers, with their lines."""
        self.split_by_shell: list[tuple[int, str]] = []
        """Requirements that the shell takes apart, with their lines."""
        self._copies: list[tuple[str, str]] = []
        """Paths of the image, and what beside the recipe is copied to them."""
        self._clones: dict[str, Item] = {}
        """By directory: what ``git clone`` puts there. Its version is a branch or commit."""
        self._built: set[str] = set()
        """The clones of which something was built."""
        self._payload_matters = payload_matters
        """Whether a command that is not known may install something; a job script starts programs."""
        self._blocks: list[tuple[str, int]] = []
        """The conditions and loops around the next command, from outside to inside: the last keyword of
        each, and how many items were read before it."""

    def inherit(self, other: Shell) -> None:
        """Begin with what another shell has left in its image."""
        self.exported |= other.exported
        self.values |= other.exported
        self._clones |= other._clones
        self._built |= other._built
        self._copies += other._copies
        self.directory = other.directory

    def copy(self, words: Sequence[str]) -> None:
        """Note what is copied into the image from the directory of the recipe."""
        *sources, target = [word.strip("\"'") for word in words] or [""]
        self._copies += [(self._path(target), source) for source in sources]

    def _copied(self, path: str) -> Path | None:
        """Return the file beside the recipe that was copied to a path of the image; links do not leave it."""
        top = os.path.realpath(self._context)
        for target, source in reversed(self._copies):
            inner = posixpath.relpath(path, target)
            folder, _, last = source.rpartition("/")
            names = [source] if inner == "." else [posixpath.join(source, inner)]
            names += [posixpath.join(folder, inner)] if fnmatch(inner, last) else []
            for name in names:
                file = posixpath.join(self._context, name.lstrip("/"))
                is_file = os.path.isfile(file)  # noqa: PTH113  accepts any text
                if is_file and Path(os.path.realpath(file)).is_relative_to(top):
                    return Path(file)
        return None

    def run(self, text: str, line: int, nested: int = 0) -> None:
        """Read commands of which the first is on a line."""
        for number, command in enumerate(commands(text[:_LONGEST_SCRIPT])):
            command.line += line
            if number == _MOST_COMMANDS or len(command.words) > _MOST_WORDS:
                self._note(command, f"only {_MOST_COMMANDS} commands of {_MOST_WORDS} words each are read")
                break
            command.here_line += line
            command.nested = nested
            command.words = [word for each in command.words for word in self._expanded(each)]
            installed = len(self.items)
            self._command(command, command.words)
            if self._blocks and len(self.items) > installed:
                self._note(command, "it depends on a condition, which is not evaluated")
            for keyword, before in self._blocks:
                if keyword in _BRANCHES:  # at most one of them runs
                    del self.items[before:]
        if len(text) > _LONGEST_SCRIPT:
            reason = f"only the first {_LONGEST_SCRIPT} characters of a script are read"
            self.unread.append(Unread(line, "", reason))
        if not nested:
            self._blocks = []

    def finish(self) -> None:
        """Report what was cloned and not installed; call it after the last command."""
        for folder, clone in self._clones.items():
            if folder not in self._built:
                reason = "it is cloned, and no command here installs it"
                self.unread.append(Unread(clone.line, clone.text, reason))

    def set(self, name: str, value: str, *, exported: bool = True) -> None:
        """Set a variable."""
        value = " ".join(self._expanded(value))
        self.values.pop(name, None)
        if "$(" not in value and "`" not in value:  # else only the shell knows it
            self.values[name] = value
        if exported:
            self.exported[name] = value.replace(_LITERAL, "$")

    def expand(self, text: str) -> str:
        """Replace the variables whose values are known."""

        def value(match: re.Match[str]) -> str:
            return self.values.get(match[1] or match[3], match[0] if match[2] is None else match[2])

        new = _VARIABLE.sub(value, text)
        return new if len(new) <= max(LONGEST_VALUE, len(text)) else text

    def _expanded(self, word: str) -> list[str]:
        new = self.expand(word)
        # A variable with several words gives several arguments.
        parts = new.split() if new != word and not re.search(r"\s", word) else [new]
        return [part.replace(_LITERAL, "$") for part in parts]

    def _note(self, command: Command, reason: str, *, matters: bool = True) -> None:
        self.unread.append(Unread(command.line, command.text, reason, matters))

    def _command(self, command: Command, words: Sequence[str]) -> None:
        words = self._without_prefix(command, words)
        if not words:
            if command.here and not command.words:  # RUN <<EOF
                self._script(command, [])
            return
        name, rest = words[0].rpartition("/")[2], words[1:]
        readers = {
            "cd": self._enter,
            "pushd": self._enter,
            "git": self._git,
            "pip": self._pip,
            "uv": self._uv,
            **dict.fromkeys(("conda", "mamba", "micromamba"), self._conda),
            **dict.fromkeys(("srun", "mpirun", "mpiexec", "flux"), self._launch),
            **dict.fromkeys(("singularity", "apptainer"), self._container),
            "cotainr": self._cotainr,
            **dict.fromkeys(_SHELLS, self._script),
        }
        if name in readers or re.fullmatch(r"pip[\d.]+", name):
            readers.get(name, self._pip)(command, rest)
        elif _INTERPRETER.fullmatch(name):
            self._python(command, rest)
        elif name in _HARMLESS or _ACTIVATION.fullmatch(words[0]):
            self._note(command, "it installs no package", matters=False)
            self._text_of_file(command)
        elif self._blocks and self._blocks[-1][0] == "case" and not rest:
            self._note(command, "it is a pattern of case", matters=False)
        else:
            self._note(command, "this command is not known", matters=self._payload_matters)

    def _without_prefix(self, command: Command, words: Sequence[str]) -> list[str]:
        """Handle assignments, keywords and programs that start another program; return what remains."""
        words = list(words)
        while words:
            first = words.pop(0)
            assigned = _ASSIGNMENT.fullmatch(first)
            self._follow_blocks(first)
            if first in {"for", "case", "select"}:
                return []
            if first in {"export", "declare", "typeset", "setenv"}:
                self._export(command, words)
                return []
            if assigned:
                self.set(assigned[1], assigned[2], exported=len(words) > 0 or assigned[1] in self.exported)
                if len(words) == 0:
                    self._note(command, "it sets a variable", matters=False)
            elif first in _STARTERS:
                while len(words) > 0 and re.fullmatch(r"-.*|[\d.]+[smh]?|root", words[0]):
                    words.pop(0)
            elif first not in _KEYWORDS | _OPENING | _CLOSING:
                return [first, *words]
        return []

    def _follow_blocks(self, word: str) -> None:
        if word in _OPENING:
            self._blocks.append((word, len(self.items)))
        elif self._blocks and word in _CLOSING:
            self._blocks.pop()
        elif self._blocks and word in _BRANCHES:
            self._blocks[-1] = (word, self._blocks[-1][1])

    def _export(self, command: Command, words: Sequence[str]) -> None:
        if words and command.words[0] == "setenv":
            words = ["=".join(words)]
        for word in words:
            if match := _ASSIGNMENT.fullmatch(word):
                self.set(match[1], match[2])
            elif word in self.values:
                self.exported[word] = self.values[word]
        self._note(command, "it sets a variable", matters=False)

    def _script(self, command: Command, words: Sequence[str]) -> None:
        """Read ``bash -c SCRIPT``, and a script that is the input of a shell."""
        flags = (at for at, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word))
        script = "".join(words[next(flags, len(words)) + 1 :][:1])
        if (script or command.here) and command.nested < _MOST_NESTED:
            self.run(
                script or command.here, command.line if script else command.here_line, command.nested + 1
            )
        else:
            self._note(command, "its script is not in this file", matters=self._payload_matters)

    def enter(self, folder: str) -> None:
        """Go to a directory."""
        self.directory = self._path(folder)

    def _enter(self, command: Command, rest: Sequence[str]) -> None:
        if rest and not rest[-1].startswith(("-", "~")):
            self.enter(rest[-1])
        self._note(command, "it installs no package", matters=False)

    def _path(self, text: str) -> str:
        # Two slashes at the start stay, because POSIX lets systems give them a meaning; Linux gives none.
        return posixpath.normpath(posixpath.join(self.directory, text)).replace("//", "/", 1)

    def _launch(self, command: Command, words: Sequence[str]) -> None:
        """Read the command that ``srun`` starts."""
        self.launches.append((command.line, list(command.words)))
        self._note(command, "it starts a program", matters=False)
        self._command(command, _after_options(words, _LAUNCHER_VALUES))

    def _container(self, command: Command, words: Sequence[str]) -> None:
        """Read the image of ``singularity exec``, and the command in it."""
        words = _after_options(words, _LAUNCHER_VALUES)
        if words[:1] == ["instance"]:
            words = words[1:]
        image, *inner = _after_options(words[1:], _LAUNCHER_VALUES) or [""]
        if not image or words[0] not in {*_CONTAINER_VERBS, "start"}:
            self._note(command, "it installs no package", matters=False)
        else:
            self._image(command, image)
        self._command(command, inner)

    def _cotainr(self, command: Command, words: Sequence[str]) -> None:
        """Read the base image of ``cotainr build``, and name its environment file."""
        options, _ = _split(words, {"--base-image", "--conda-env", "--system"})
        if words[:1] != ["build"]:
            self._note(command, "it installs no package", matters=False)
        for name, value in options:
            if name == "--base-image":
                self._image(command, value)
            elif name == "--conda-env":
                self._leave_file(command, name, value)

    def _image(self, command: Command, image: str) -> None:
        if "$" in image:
            self._note(command, f"the image is in a variable that is not set here: {printable(image)}")
        else:
            self.items.append(
                Item(name="", url=image, installer="image", line=command.line, text=command.text)
            )

    def _text_of_file(self, command: Command) -> None:
        """Read the variables that a script sets which this one writes with a here-document."""
        for each in commands(command.here):
            name = "".join(each.words[:1])
            line = command.here_line + each.line
            for match in filter(None, map(_ASSIGNMENT.fullmatch, each.words[1:] if name == "export" else [])):
                self.exported.setdefault(match[1], self.expand(match[2]).replace(_LITERAL, "$"))
            if name != "export":
                self.unread.append(
                    Unread(line, each.text, "it is the text of a file that is written here", False)
                )

    def _git(self, command: Command, words: Sequence[str]) -> None:
        options, named = _split(words[1:], _GIT_VALUES)
        at = self._clone_at(self.directory)
        if words[:1] == ["clone"] and named:
            folder = (
                named[1] if len(named) > 1 else named[0].rstrip("/").rpartition("/")[2].removesuffix(".git")
            )
            ref = next((value for name, value in options if name in {"-b", "--branch"}), "")
            self._clones[self._path(folder)] = Item(
                url=named[0], version=ref, line=command.line, text=command.text
            )
        elif words[:1] == ["checkout"] and at and named:
            ref = named[-1].removeprefix("origin/")  # the last names what a new branch begins at
            self._clones[at] = replace(self._clones[at], version=ref)
        self._note(command, "it installs no package", matters=False)

    def _clone_at(self, path: str) -> str:
        """Return the directory of the clone that has a path; empty if none has."""
        if len(path) > _LONGEST_PATH:
            return ""
        while path not in self._clones and path != posixpath.dirname(path):
            path = posixpath.dirname(path)
        return path if path in self._clones else ""

    def _build(
        self, command: Command, path: str, indexes: tuple[str, ...] = (), *, isolated: bool = False
    ) -> None:
        """Add what is built from a directory: the repository that was cloned to it, if one was."""
        at = self._clone_at(self._path(path))
        if not at and path.endswith(".whl") and self._built:
            self._note(command, "it installs wheels, maybe those that were built above", matters=False)
        elif not at:
            self._note(command, f"it installs {printable(path)}, whose content is not in this file")
        elif at not in self._built:
            self._built.add(at)
            clone = self._clones[at]
            url = f"git+{clone.url}{f'@{clone.version}' if clone.version else ''}"
            item = pip_item(url, line=command.line, shown=command.text, indexes=indexes)
            self.items += [replace(item, isolated=isolated)] if item else []

    def _python(self, command: Command, words: Sequence[str]) -> None:
        words = _after_options(words, set()) if words[:1] != ["-m"] else list(words)
        module = "".join(words[1:2]) if words[:1] == ["-m"] else ""
        if module == "pip":
            self._pip(command, words[2:])
        elif module == "uv":
            self._uv(command, words[2:])
        elif module == "build":
            options, named = _split(words[2:], set())
            isolated = not {"-n", "--no-isolation"} & {name for name, _ in options}
            self._build(command, "".join(named[:1]) or ".", isolated=isolated)
        elif words and words[0].rpartition("/")[2] == "setup.py" and set(words) & _BUILDS:
            self._build(command, posixpath.dirname(words[0]) or ".")
        else:
            known = module in {"venv", "virtualenv", "ensurepip", "site"} or not words
            self._note(command, "it runs Python", matters=self._payload_matters and not known)

    def _uv(self, command: Command, words: Sequence[str]) -> None:
        if words[:1] == ["pip"]:
            self._pip(command, words[1:], by_uv=True)
        else:
            matters = words[:1] in (["sync"], ["add"], ["run"])
            self._note(command, "it is not read" if matters else "it installs no package", matters=matters)

    def _pip(self, command: Command, words: Sequence[str], *, by_uv: bool = False) -> None:
        words = _after_options(words, _PIP_VALUES)
        if words[:1] not in (["install"], ["wheel"]):
            changes = words[:1] in (["uninstall"], ["sync"])
            self._note(command, "it is not read" if changes else "it installs no package", matters=changes)
            return
        before = len(self.items)
        self.split_by_shell += [(command.line, text) for text in command.redirected]
        options, named = _split(words[1:], _PIP_VALUES)
        indexes = self._indexes(options)
        self.find_links += [value for name, value in options if name in _PIP_LINKS]
        isolated = self._isolates(options)
        for name, value in options:
            if name in _PIP_FILES and not self._follow(command, name, value, indexes, isolated=isolated):
                self._leave_file(command, name, value)
        for word in [*named, *(value for name, value in options if name in _EDITABLE)]:
            if is_location(word) and "://" not in word and not file_version(word)[0]:
                self._build(command, word.partition("[")[0], indexes, isolated=isolated)
            else:
                item = pip_item(word, line=command.line, indexes=indexes)
                self._add(command, word, item and replace(item, isolated=isolated))
        if not named and not options:
            self._note(command, "it names no package", matters=False)
        if "--no-deps" in dict(options):
            self.items[before:] = [replace(item, alone=True) for item in self.items[before:]]
        if by_uv:
            self.items[before:] = self._indexed_by_uv(command, self.items[before:], dict(options))

    def _indexed_by_uv(
        self, command: Command, items: Sequence[Item], options: Mapping[str, str]
    ) -> Iterator[Item]:
        known = self.values
        backend = options.get("--torch-backend", known.get("UV_TORCH_BACKEND", ""))
        strategy = options.get("--index-strategy", known.get("UV_INDEX_STRATEGY", FIRST_INDEX))
        for item in items:
            if backend == "auto" and item.name in ON_TORCH_INDEX:
                reason = "with --torch-backend auto, uv chooses the build by the machine that it runs on"
                self.unread.append(Unread(command.line, item.text, reason))
            elif backend:
                yield from_first_index(item, [f"{_TORCH_INDEXES}{backend}"])
            else:
                ordered = (*item.indexes[1:], *item.indexes[:1]) if strategy == FIRST_INDEX else ()
                yield from_first_index(item, ordered)

    def _isolates(self, options: Sequence[tuple[str, str]]) -> bool:
        stated = self.values.get("PIP_NO_BUILD_ISOLATION", "").lower()  # inverted: see ISOLATION_VARIABLE
        return "--no-build-isolation" not in dict(options) and stated not in {"0", "false", "no", "off"}

    def _follow(
        self, command: Command, name: str, value: str, indexes: tuple[str, ...], *, isolated: bool
    ) -> bool:
        """Read a file of requirements that was copied into the image; return whether it could be read."""
        file = self._copied(self._path(value))
        if file is None:
            return False
        try:
            reading = read_requirements(read_text(file, pipes=False), str(file))
        except UsageError:
            return False
        if reading.index_urls:
            indexes = (*(indexes or (public_index(),)), *reading.index_urls)
        found = [
            replace(item, file=item.file or str(file), indexes=item.indexes or indexes, isolated=isolated)
            for item in reading.items
        ]
        is_constraint = name in {"-c", "--constraint", "--override"}
        (self.constraints if is_constraint else self.items).extend(found)
        self.constraints += reading.constraints
        self.find_links += reading.find_links
        self.unread += [replace(each, file=each.file or str(file)) for each in reading.unread]
        self._note(command, "the file that it names was read", matters=False)
        return True

    def _leave_file(self, command: Command, name: str, value: str) -> None:
        text = printable(f"{name} {value}")
        self.unread.append(Unread(command.line, text, "name that file to have it judged"))

    def _add(self, command: Command, word: str, item: Item | None) -> None:
        """Add what a word of pip or conda installs."""
        if "$" in word:
            self.unread.append(Unread(command.line, printable(word), "a variable in it is not set here"))
        elif item is None:
            self.unread.append(Unread(command.line, printable(word), "it is not a requirement"))
        elif item.name in INSTALLERS and not item.url:
            self.unread.append(Unread(command.line, item.text, "it is a tool that installs", matters=False))
        else:
            self.items.append(item)

    def _indexes(self, options: Sequence[tuple[str, str]]) -> tuple[str, ...]:
        """Return the indexes of a command of pip; none if it uses the default only."""
        known = self.values
        main = [value for name, value in options if name in _PIP_MAIN] or [
            known.get("PIP_INDEX_URL", known.get("UV_DEFAULT_INDEX", ""))
        ]
        more = [url for name, value in options if name in _PIP_EXTRA for url in value.split()]
        more += known.get("PIP_EXTRA_INDEX_URL", known.get("UV_INDEX", "")).split()
        return (main[-1] or public_index(), *more) if main[-1] or more else ()

    def _conda(self, command: Command, words: Sequence[str]) -> None:
        verb, *rest = _after_options(words, _CONDA_VALUES) or [""]
        if verb == "run":
            self._command(command, _after_options(rest, _CONDA_VALUES))
            return
        options, named = _split(rest, _CONDA_VALUES)
        if verb not in {"install", "create", "update"}:
            changes = verb in {"remove", "uninstall"} or (verb == "env" and "list" not in named)
            self._note(command, "it is not read" if changes else "it installs no package", matters=changes)
            return
        self.channels += [value for name, value in options if name in {"-c", "--channel"}]
        for name, value in options:
            if name in {"-f", "--file"}:
                self._leave_file(command, name, value)
        for word in named:
            item = conda_item(word, line=command.line)
            self._add(command, word, item)
        if not named and not options:
            self._note(command, "it names no package", matters=False)


def _split(words: Sequence[str], valued: Collection[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return options with their values, and the other words."""
    options, others, rest = [], [], iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name in valued:
            options.append((name, value if equals else next(rest, "")))
        elif word.startswith("-"):
            options.append((name, value))
        else:
            others.append(word)
    return options, others


def _after_options(words: Sequence[str], valued: Collection[str]) -> list[str]:
    """Return the words behind the options at the start."""
    position = 0
    while position < len(words) and words[position].startswith("-"):
        position += 2 if words[position] in valued else 1
    return list(words[position:])
