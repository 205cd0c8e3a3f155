"""Module files for Lmod and for Environment Modules (Tcl) that put a finished environment on PATH.

Both files have the same settings. A variable gets its earlier value back when the module is unloaded.
Variables whose value is different on each node are set by the wrappers, which run there. Sources: Lmod's
docs/source/050_lua_modulefiles.rst; modulefile(4) of Environment Modules 5.2.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from matrix.consumers import Consumer
from matrix.consumers.shared.container_variables import REFERENCE
from matrix.consumers.shared.installation import MARK, WrittenFile, comments, pin
from matrix.consumers.shared.shell import fill, reason_comments, site_binds, site_environment
from resolver.errors import UsageError
from resolver.lock import dumps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from matrix.consumers.shared.installation import Installation, Layout

_LUA = ".lua"
_PROGRAMS = ("python", "python3")
_IN_IMAGE = {".sif", ".sh"}
"""The suffixes of environments whose programs run in the base image."""
_FAMILY = "matrix"
"""Two modules of this family cannot be loaded at once: both have a ``python``."""


def _emit(installation: Installation, layout: Layout) -> list[WrittenFile]:
    name = layout.main.removesuffix(_LUA)
    if not layout.main.endswith(_LUA) or not name:
        msg = f"Lmod reads module files whose names end in {_LUA}, and {layout.main} does not."
        raise UsageError(msg, hint="Name a directory with -o DIR, or a file with -o NAME.lua.")
    environment = layout.environment or Path("container.sif").absolute()
    folder = layout.folder.resolve()
    is_directory = environment.suffix not in _IN_IMAGE
    own = folder / f"{name}.bin"
    programs = environment / "bin" if is_directory else own
    for path in (environment, programs, own):
        if not str(path).isprintable() or ":" in str(path):
            msg = f"The module cannot add {str(path)!r} to PATH, because of its colon or control characters."
            raise UsageError(msg, hint="Move the directory, or name a link to it.")
    about = [f"{installation.heading}; {MARK} --for module`."]
    text = _help(installation, environment, programs, is_directory=is_directory)
    lines = list(_settings(installation, environment, *dict.fromkeys((own, programs))))
    lua = [*_lua_comments(comments(about)), *_lua(name, text, lines), ""]
    tcl = ["#%Module1.0", *comments(about), *_tcl(name, text, lines), ""]
    extend = fill(
        "extend_venv.sh",
        about="\n".join(comments(about)),
        environment=quote(str(environment)),
        python=quote(str(programs / "python")),
        in_container="" if is_directory else "1",
        folder=quote(str(folder)),
        name=quote(name),
    )
    files = [
        WrittenFile(layout.main, "\n".join(lua)),
        WrittenFile(name, "\n".join(tcl)),
        WrittenFile(f"{name}.bin/extend-venv-activate", f"{extend}\n", executable=True),
    ]
    if not is_directory:
        script = _wrapper(installation, environment, about)
        torch = ("torchrun",) if any(pick.name == "torch" for pick in installation.lock.distributions) else ()
        files += [WrittenFile(f"{name}.bin/{each}", script, executable=True) for each in (*_PROGRAMS, *torch)]
    return files


_Setting = tuple[str, str, str | None, list[str]]
"""An operation (``set``, ``path``, ``load``, or ``try`` if it may be missing), its name and value,
and the reason as comments."""


def _settings(installation: Installation, environment: Path, *programs: Path) -> Iterator[_Setting]:
    if environment.suffix in _IN_IMAGE and (module := installation.container_module):
        yield "path", "MODULEPATH", module[0], []
        reason = "It binds file systems into containers. Unload this module to build a container."
        yield "load", module[1], None, comments([reason])
    if environment.suffix in _IN_IMAGE:
        about = "It puts the site's MPI in place of the image's MPICH, which has the same ABI."
        for name, how in installation.mpi_modules.items():
            yield "try", name, None, comments([about, f"To install it: {how}"])
    for row in installation.variables:
        if row.value is None or not REFERENCE.search(row.value):
            yield "set", row.name, row.value, reason_comments(row)
    yield "set", "MATRIX_ENVIRONMENT", str(environment), comments(["For the scripts of --for slurm-job."])
    yield from (("path", "PATH", str(path), []) for path in programs)


def _help(installation: Installation, environment: Path, programs: Path, *, is_directory: bool) -> list[str]:
    lock = installation.lock
    requested = {requirement.name for requirement in lock.request.requirements}
    picks = [pick for pick in lock.distributions if pick.name in requested or pick.name == "torch"]
    digest = hashlib.sha256(dumps(lock).encode()).hexdigest()
    rocm = lock.version_of("rocm")
    versions = [f"Python {installation.python}", *([f"ROCm {rocm}"] if rocm else []), *map(pin, picks)]
    more = f"For another program of it: ln -s python {quote(str(programs / 'PROGRAM'))}"
    return [
        f"{installation.heading}.",
        f"It contains {', '.join(versions)}.",
        f"It is {environment}, from the lock with SHA-256 {digest}.",
        *([] if is_directory else [f"python, python3 and torchrun run in it. {more}"]),
    ]


def _lua(name: str, text: list[str], settings: Iterable[_Setting]) -> Iterator[str]:
    yield f"whatis({_lua_text(f'Name: {name}')})"
    yield from (f"whatis({_lua_text(f'Description: {line}')})" for line in text[:2])
    yield f"help({_lua_text(chr(10).join(text))})"
    yield f"family({_lua_text(_FAMILY)})"
    for operation, key, value, reason in settings:
        yield from _lua_comments(reason)
        if operation == "load":
            yield f"depends_on({_lua_text(key)})"
        elif operation == "try":
            yield f"try_load({_lua_text(key)})"
        elif operation == "path":
            yield f"prepend_path({_lua_text(key)}, {_lua_text(value or '')})"
        else:
            yield f"pushenv({_lua_text(key)}, {'false' if value is None else _lua_text(value)})"


def _lua_comments(lines: Iterable[str]) -> Iterator[str]:
    return (f"--{line[1:]}" for line in lines)


def _lua_text(text: str) -> str:
    # Every escape of JSON for printable texts and line ends is one of Lua.
    return json.dumps(text, ensure_ascii=False)


def _tcl(name: str, text: list[str], settings: Iterable[_Setting]) -> Iterator[str]:
    """Yield the lines for Environment Modules; versions before 5.1 have no pushenv."""
    yield f"proc ModulesHelp {{ }} {{ puts stderr {_tcl_text(chr(10).join(text))} }}"
    yield from (f"module-whatis {_tcl_text(line)}" for line in (name, *text[:2]))
    yield f"if {{[llength [info commands family]]}} {{ family {_FAMILY} }}"
    yield "set set_variable [expr {[llength [info commands pushenv]] ? {pushenv} : {setenv}}]"
    for operation, key, value, reason in settings:
        yield from reason
        if operation == "load":
            yield f"module load {_tcl_text(key)}"
        elif operation == "try":
            yield f"if {{[is-avail {_tcl_text(key)}]}} {{ module load {_tcl_text(key)} }}"
        elif operation == "path":
            yield f"prepend-path {key} {_tcl_text(value or '')}"
        elif value is None:
            yield f"unsetenv {key}"
        else:
            yield f"$set_variable {key} {_tcl_text(value)}"


def _tcl_text(text: str) -> str:
    escaped = re.sub(r'[\\"$\[\]{}]', r"\\\g<0>", text)
    return '"' + escaped.replace("\n", "\\n") + '"'


def _wrapper(installation: Installation, environment: Path, about: list[str]) -> str:
    is_container = environment.suffix == ".sif"
    text = fill(
        "module_program.sh" if is_container else "module_program_of_venv.sh",
        about="\n".join(comments(about)),
        environment=quote(str(environment)),
        site=site_environment(installation),
        binds=site_binds(installation),
        runtime=fill("runtime.sh"),
        isolated=fill("isolated.sh"),
    )
    return f"{text}\n"


CONSUMER = Consumer(file=f"matrix{_LUA}", emit=_emit, uses_environment=True)
