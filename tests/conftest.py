"""Fixtures and settings of all tests."""

from __future__ import annotations

import functools
import gc
import os
import pickle
import re
import signal
import socketserver
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from hypothesis import HealthCheck, settings
from msgspec.structs import replace
from wheel.wheelfile import WheelFile

from builders.building import compilation
from builders.containers import runtime, sandbox
from builders.containers.runtime import HostRuntime, Runtime
from builders.environments import python as python_environments
from builders.installed import reading as installed_reading
from builders.machine import host, process
from builders.machine.limited import limited
from builders.machine.process import output_of
from matrix.__main__ import _GARBAGE_THRESHOLD
from matrix.input import settings as command_settings
from matrix.input.settings import Settings, overlays
from matrix.reading import recognise
from resolver.answers.table import Table, TableRow
from resolver.consequences import questions
from resolver.consequences.questions import DriverState, Side
from resolver.facts import catalog as catalog_module
from resolver.facts import catalog_files, schema
from resolver.facts.catalog import Catalog
from resolver.model import Target
from resolver.versions import minor
from tests.rig.rig import Rig, the_rig

settings.register_profile(
    "any machine", deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")  # a busy machine must not fail tests

_INTEGRATION_TIMEOUT = 1800
"""Seconds; the first test that needs the rig's base image also creates it."""


def pytest_configure() -> None:
    """Handle SIGINT, also in programs that tests start, because a shell's background job ignores it.

    Programs that tests start keep their compiled modules, or each of the many that start ``matrix`` compiles
    all of them again.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep modules and collected tests out of all garbage collections, which take long because of them.

    The rest is collected as seldom as in the program, or after most tests.
    """
    gc.freeze()
    gc.set_threshold(_GARBAGE_THRESHOLD)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Set a longer time limit for each integration test."""
    for item in items:
        if item.get_closest_marker("integration") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_INTEGRATION_TIMEOUT))


_read_file, _shipped = catalog_files.read_file, Path(schema.FOLDER).resolve()
_files: dict[Path, schema.CatalogFile] = {}


def _read_shipped_once(path: Path, text: str | None = None) -> schema.CatalogFile:
    """Read each shipped catalog file once: many tests add a layer, with which all files are read again."""
    if text is not None or _shipped not in path.parents:
        return _read_file(path, text)
    if path not in _files:
        _files[path] = _read_file(path)
    return _files[path]


catalog_files.read_file = _read_shipped_once


def _load_once(overlays: Iterable[Path] = (), *, cache: Path | str | None = None) -> Catalog:
    """Load the shipped catalog without layers once, because no test may change it."""
    layers = [*overlays]
    return _load(layers, cache=cache) if layers or cache else _load_shipped()


def _load_of_commands_once(settings: Settings) -> Catalog:
    """Load the shipped catalog once for all commands that add no layer; a program loads it once, too."""
    return _load_catalog(settings) if overlays(settings) else _load_shipped()


_load, _load_catalog = catalog_module.load, command_settings.load_catalog
_load_shipped = functools.cache(_load)
catalog_module.load, command_settings.load_catalog = _load_once, _load_of_commands_once
catalog_module._MOST_TARGETS = 128  # a command has few targets, the tests have many

_judge_driver = questions._state
_driver_states: dict[tuple[object, ...], DriverState | None] = {}


def _judge_driver_once(
    side: Side, rocm: str, target: Target, driver: str, since: date | None = None
) -> DriverState | None:
    """Judge each driver of a site once for each day and ROCm: that takes most of the time of a check."""
    if side.catalog is not _load_shipped():
        return _judge_driver(side, rocm, target, driver, since)
    key = repr(replace(target, base_image=None)), minor(rocm), driver, since
    if key not in _driver_states:
        _driver_states[key] = _judge_driver(side, rocm, target, driver, since)
    return _driver_states[key]


questions._state = _judge_driver_once


_compute_rows = Table.rows
_rows: dict[tuple[str, str], list[TableRow]] = {}


def _compute_rows_once(table: Table) -> Iterator[TableRow]:
    """Compute the rows of a table once, because tests show the same table in several formats."""
    key = repr(table.request), repr(table.columns)
    if table.catalog is not _load_shipped():
        yield from _compute_rows(table)
    elif key in _rows:
        yield from _rows[key]
    else:
        rows = []
        for row in _compute_rows(table):
            rows.append(row)
            yield row
        _rows[key] = rows


Table.rows = _compute_rows_once  # type: ignore[method-assign,assignment]


def _read_here(read: Callable[[], Any], what: str, seconds: int) -> Any:  # noqa: ARG001  as `limited`
    """Return what `limited` returns, or raise the same error, without a child.

    To fork the process of the tests, which is large, takes longer than most files take to read.
    """
    try:
        result = read()
    except Exception as error:  # noqa: BLE001  as `limited`
        raise pickle.loads(pickle.dumps(error)) from None
    return pickle.loads(pickle.dumps(result))


_try_python = python_environments._try


@functools.cache
def _try_own_python(*arguments: Any) -> Any:
    return _try_python(HostRuntime(), *arguments)


def _try_once(runtime: Runtime, path: Path, *arguments: Any) -> Any:
    """Ask the Python that runs the tests only once what it is."""
    if runtime.image is None and path == Path(sys._base_executable):  # type: ignore[attr-defined]
        return _try_own_python(path, *arguments)
    return _try_python(runtime, path, *arguments)


_ask = output_of
_ask_system = functools.cache(lambda command: _ask([*command]))


def _ask_once(command: list[str]) -> str:
    """Ask each compiler of the system only once what it is; its only Python is that of the tests."""
    program = os.path.realpath(command[0])
    if program.startswith(tempfile.gettempdir()) or command[1:] not in (
        ["--version"], ["-show"], ["-c", "print(1)"],
    ):  # fmt: skip
        return _ask(command)
    is_other = command[1] == "-c" and program != os.path.realpath(sys.executable)
    return "" if is_other else _ask_system((*command,))


_link_tools = compilation._tools
_programs = tempfile.TemporaryDirectory(prefix="matrix-programs-")


@functools.cache
def _tools_on(path: str) -> Path:  # noqa: ARG001  what it depends on
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", _programs.name)
        return _link_tools()


def _link_tools_once() -> Path:
    """Link the programs of the system, of which there are a thousand, only once for each PATH."""
    return _tools_on(os.environ["PATH"])


_run_reaped = process._run_reaped


def _run_alone(
    command: Sequence[str],
    output: IO[bytes],
    errors: IO[bytes] | int,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> int | None:
    """Run a program that leaves no process behind: the reaper takes longer to start than most of them."""
    if timeout is not None:
        return _run_reaped(command, output, errors, cwd=cwd, env=env, timeout=timeout)
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
    ) as started:
        return started.wait()


_SHORTCUTS: list[tuple[Any, str, Any, Any]] = [
    (installed_reading, "limited", limited, _read_here),
    (recognise, "limited", limited, _read_here),
    (python_environments, "_try", _try_python, _try_once),
    (host, "output_of", _ask, _ask_once),
    (compilation, "_tools", _link_tools, _link_tools_once),
    (process, "_run_reaped", _run_reaped, _run_alone),
]
"""Functions that start processes, and those that most tests have in their place."""


@pytest.fixture
def no_shortcuts() -> None:
    """Start processes to read files of strangers, ask about this machine and end what programs leave."""
    assert all(getattr(module, name) is usual for module, name, usual, _ in _SHORTCUTS)


sys.modules["rfc3987_syntax"] = SimpleNamespace(  # type: ignore[assignment]
    is_valid_syntax=lambda _, text: not re.search(r'[\s<>"{}|\\^`]|%(?![0-9A-Fa-f]{2})|#.*#', text)
)
"""Checks IRIs for jsonschema. The real module builds parsers for a second when it is imported."""

_activate = socketserver.TCPServer.server_activate


def _activate_with_timeout(server: socketserver.TCPServer) -> None:
    """Let no server block in accept(2): a connection that select(2) reported may be gone by then."""
    _activate(server)
    server.socket.settimeout(1)


socketserver.TCPServer.server_activate = _activate_with_timeout  # type: ignore[method-assign,assignment]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Collect garbage only between tests.

    If it is collected while a test reads something deeply nested, a finalizer can exceed the recursion limit.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


_cache = tempfile.TemporaryDirectory(prefix="matrix-tests-")
_ALONE = {
    "PIP_NO_INDEX": "1",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_EXTRA_INDEX_URL": None,
    "PIP_FIND_LINKS": None,
    "XDG_CACHE_HOME": _cache.name,
    "XDG_CONFIG_HOME": _cache.name,
    "XDG_CONFIG_DIRS": _cache.name,
    "SLURM_CONF": os.devnull,
    "SLURM_CLUSTER_NAME": None,
    "VIRTUAL_ENV": None,
    "CONDA_PREFIX": None,
}
"""Variables of tests that are not integration tests. These tests use only the shipped catalog, without an
index, and without the cache, settings, cluster and environment of the user."""
_own_environment = {name: os.environ.get(name) for name in _ALONE}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Set the environment of the test before fixtures of any scope are created."""
    before, after = _own_environment, _ALONE
    is_whole = item.get_closest_marker("integration") is not None
    if is_whole:
        before, after = after, before
    is_whole |= "no_shortcuts" in item.fixturenames  # type: ignore[attr-defined]
    for module, function, usual, shortcut in _SHORTCUTS:
        setattr(module, function, usual if is_whole else shortcut)
    for name, value in after.items():
        if os.environ.get(name) != before[name]:
            continue  # a fixture of the module has set it
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture(autouse=True)
def _unlimited_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove COLUMNS, so that only tests that set a width wrap text.

    readline, which pytest imports, sets it for child processes without a trace in `os.environ`.
    """
    monkeypatch.delenv("COLUMNS", raising=False)
    os.unsetenv("COLUMNS")


@pytest.fixture(autouse=True)
def _uncached_namespace_checks() -> None:
    """Clear the cached results of namespace checks, because tests change PATH."""
    runtime.without_network.cache_clear()
    runtime.can_mount.cache_clear()
    sandbox.sandbox.cache_clear()


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    """Return the shipped catalog; no test may change it."""
    return _load_shipped()


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    """Return a base image with a real HIP compiler, a stand-in torch, and an ordinary user; made once."""
    with the_rig() as made:
        yield made


@pytest.fixture
def make_wheel(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a valid wheel from a name, a version and members by path."""

    def make(
        name: str = "tiny",
        version: str = "1.0",
        files: Mapping[str, bytes] | None = None,
        *,
        requires_python: str = "",
        description: str = "",
        metadata: str | None = None,
        tags: str = "py3-none-any",
        executable: tuple[str, ...] = (),
        folder: str = "made",
    ) -> Path:
        wheel = tmp_path / folder / f"{name}-{version}-{tags}.whl"
        wheel.parent.mkdir(exist_ok=True)
        info = f"{name}-{version}.dist-info"
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        if requires_python:
            head += f"Requires-Python: {requires_python}\n"
        python, abi, platform = tags.split("-")
        listed = [
            f"{p}-{a}-{o}" for p in python.split(".") for a in abi.split(".") for o in platform.split(".")
        ]
        lines = [
            "Wheel-Version: 1.0",
            "Generator: tests",
            f"Root-Is-Purelib: {str(platform == 'any').lower()}",
        ]
        members = {
            **(files or {f"{name}.py": b"ANSWER = 42\n"}),
            f"{info}/METADATA": (metadata if metadata is not None else f"{head}\n{description}").encode(),
            f"{info}/WHEEL": "\n".join([*lines, *(f"Tag: {tag}" for tag in listed), ""]).encode(),
        }
        with WheelFile(str(wheel), "w") as sink:
            for path, data in members.items():
                member = zipfile.ZipInfo(path, (2020, 2, 2, 2, 2, 2))
                member.external_attr = (stat.S_IFREG | (0o755 if path in executable else 0o644)) << 16
                sink.writestr(member, data)
        return wheel

    return make


@pytest.fixture
def libraries(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide stand-ins for the JavaScript libraries, which a checkout has only after an installation."""
    folder = tmp_path_factory.mktemp("vendored")
    for name in ("tabulator.js", "tabulator.css"):
        (folder / name).write_text("/* stand-in */\n")
        (folder / name).with_suffix(".LICENSE").write_text("Stand-in licence\n")
    monkeypatch.setattr("matrix.report.page.VENDORED", folder)
