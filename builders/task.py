"""One build, straight down the page: fetch, prepare, build, prove, label, publish."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
import warnings
import zipfile
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from build import BuildBackendException, BuildException, ProjectBuilder

from builders import host
from builders.audit import AuditError, Expected, Finding, audit_wheel, read_torch
from builders.buildenv import build_environment
from builders.diagnosis import Context, explained
from builders.files import only_one
from builders.index import NameTakenError
from builders.relabel import relabel
from builders.run import CommandError, clean_environment, run
from builders.sources import fetch_sdist, unpack_sdist
from resolver.errors import EnvironmentLacksError, MatrixError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from builders.audit import WheelAudit
    from builders.buildenv import BuildEnvironment
    from builders.index import Index
    from builders.plan import Task

_EPOCH = "315532800"  # 1980-01-01: no clock enters what is built

_LOAD = """
import importlib.util, pathlib, sys
try:
    import torch
except ImportError:
    pass
for argument in sys.argv[1:]:
    path = pathlib.Path(argument)
    spec = importlib.util.spec_from_file_location(path.name.split(".")[0], path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
"""


class BuildError(MatrixError):
    """A wheel could not be built; the index is as it was."""

    id: ClassVar[str] = "build-failed"
    code: int | None = None
    """Exit code of the program that built, where one ran; negative for a signal."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a build may use; None means what the machine allows."""

    jobs: int | None = None
    memory: float | None = None
    offline: bool = False


def build_wheel(task: Task, index: Index, limits: Limits, say: Callable[[str], None]) -> Path:
    """Build one wheel, prove it, and publish it.

    Parameters
    ----------
    task
        What to build.
    index
        Where to publish; logs and the build directory are kept under it.
    limits
        Cores, memory and network that may be used.
    say
        Told each step as it begins.

    Returns
    -------
    Path
        The wheel in the index.

    Raises
    ------
    BuildError
        The build failed; the error names the log.
    AuditError
        The wheel does not hold what the recipe promises; it is not published.
    EnvironmentLacksError, HashMismatchError, SourceError
        The source or the build requirements could not be had.
    """
    pick, log = task.pick, index.state / "logs" / f"{task.pick.name}-{task.build_key[:12]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    started = time.monotonic()
    if pick.sdist is None:
        msg = f"{task.title} is built from git, which this version cannot fetch yet."
        raise EnvironmentLacksError(msg, hint="Only sdists from the package index are built so far.")
    say(f"fetch {pick.sdist.file}")
    archive = fetch_sdist(pick.name, pick.sdist, offline=limits.offline)
    say("prepare the build environment")
    environment = _environment(task, log, say, offline=limits.offline)
    with explained(log, _context(task)), _build_directory(index, task) as work:
        say("unpack")
        source = unpack_sdist(archive, work / "source")
        jobs = host.compile_jobs(task.recipe.memory_per_job, jobs=limits.jobs, memory=limits.memory)
        say(f"compile with {jobs} job{'s' if jobs > 1 else ''}; log: {log}")
        raw = _build(task, environment, source, work / "raw", jobs=jobs, log=log)
        say("prove")
        report = _prove(task, raw, environment, work / "probe", log)
        provenance = _provenance(task, environment, report, seconds=time.monotonic() - started, jobs=jobs)
        labelled = work / "labelled"
        return _publish(task, index, raw=raw, report=report, provenance=provenance, directory=labelled)


def _publish(
    task: Task, index: Index, *, raw: Path, report: WheelAudit, provenance: Mapping[str, Any], directory: Path
) -> Path:
    """Label and publish; if another build takes the name at that moment, take the next build tag."""
    while True:
        number = index.next_build_number(task.pick.name, task.pick.pinned)
        wheel = relabel(raw, task.pick.pinned, report.platform_tag, directory, build_number=number)
        try:
            return index.publish(wheel, provenance)
        except NameTakenError:
            if index.next_build_number(task.pick.name, task.pick.pinned) == number:
                raise


def _context(task: Task) -> Context:
    """Say what is built, for what is known about failures."""
    return Context(
        package=task.pick.name,
        version=task.pick.pinned,
        torch=task.torch.version if task.torch is not None else "",
        backend=task.recipe.backend,
        gfx=tuple(task.gfx),
    )


def requirements_of(task: Task) -> list[str]:
    """Give what must be installed to build: all build requirements, torch pinned to the lock's."""
    wanted = []
    for text in (*task.recipe.declared, *task.recipe.undeclared):
        if text == "torch" and task.torch is not None:
            wanted.append(f"torch=={task.torch.version}")
        else:
            wanted.append(text)
    return sorted(dict.fromkeys(wanted))


def _environment(task: Task, log: Path, say: Callable[[str], None], *, offline: bool) -> BuildEnvironment:
    indexes = [task.torch.index] if task.torch is not None and task.torch.index else []
    wanted = requirements_of(task)
    return build_environment(task.python, wanted, indexes=indexes, log=log, say=say, offline=offline)


@contextmanager
def _build_directory(index: Index, task: Task) -> Iterator[Path]:
    """Give an empty directory; what a failed build leaves there stays until the next try."""
    work = index.state / "builds" / task.build_key[:20]
    with only_one(index.state / "locks" / f"{work.name}.lock"):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True, exist_ok=True)
        yield work
        shutil.rmtree(work, ignore_errors=True)


def _build(
    task: Task, environment: BuildEnvironment, source: Path, out: Path, *, jobs: int, log: Path
) -> Path:
    """Call the source's own build backend, without isolation, in the prepared environment."""
    targets = ";".join(task.gfx)
    recipe = {name: value.replace("{gfx}", targets) for name, value in task.recipe.environment.items()}
    path = os.pathsep.join([str(environment.root / "bin"), os.environ.get("PATH", os.defpath)])
    own = {
        "PATH": path,
        "VIRTUAL_ENV": str(environment.root),
        "MAX_JOBS": str(jobs),
        "SOURCE_DATE_EPOCH": _EPOCH,
    }
    if os.environ.get("CXX"):
        own["CXX"] = os.environ["CXX"]
    env = clean_environment(own | recipe)

    def runner(
        cmd: Sequence[str],
        cwd: str | None = None,
        extra_environ: Mapping[str, str] | None = None,
    ) -> None:
        where = Path(cwd) if cwd else None
        run(
            cmd,
            what=f"Building {task.title}",
            log=log,
            cwd=where,
            env=env | dict(extra_environ or {}),
        )

    out.mkdir()
    try:
        builder = ProjectBuilder(source, python_executable=str(environment.python), runner=runner)
    except BuildException as error:
        msg = f"{task.title} cannot be built: {_first_line(error)}"
        raise BuildError(msg, hint="The index is as it was.") from None
    options = list(task.recipe.options)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            return Path(builder.build("wheel", out, {"--build-option": options} if options else None))
    except BuildBackendException as error:
        cause = error.exception
        if isinstance(cause, CommandError):
            failure = BuildError(cause.message, hint="The index is as it was.")
            failure.code = cause.code
            raise failure from None
        msg = f"Building {task.title} failed: {_first_line(error)}\n  Log: {log}"
        raise BuildError(msg, hint="The index is as it was.") from None
    finally:
        _keep_warnings(said, log)


def _keep_warnings(said: Sequence[warnings.WarningMessage], log: Path) -> None:
    """Put a backend's warnings where the rest of its output is: DeepSpeed's fill a thousand lines."""
    with log.open("a", encoding="utf-8") as sink:
        sink.writelines(f"{one.category.__name__}: {one.message}\n" for one in said)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _prove(task: Task, wheel: Path, environment: BuildEnvironment, directory: Path, log: Path) -> WheelAudit:
    """Refuse a wheel that lacks what was promised or whose shared objects do not load."""
    report = audit_wheel(wheel, _expected(task, environment))
    problems = list(report.errors)
    if not problems:
        problems = _load_objects(wheel, report, environment, directory, log)
    if problems:
        listed = "".join(f"\n  - {one.text} {one.cure}".rstrip() for one in problems)
        msg = f"The wheel of {task.title} does not hold what it promises; it is not published.{listed}"
        refusal = AuditError(
            f"{msg}\n  Log: {log}", hint=f"The wheel is kept as {wheel} until the next build."
        )
        refusal.findings = tuple(problems)
        raise refusal
    return report


def _expected(task: Task, environment: BuildEnvironment) -> Expected:
    """Give what the wheel is compared with: what was asked for, and the torch it was built against."""
    libraries = sorted(environment.root.glob("lib/python3*/site-packages/torch/lib"))
    torch = read_torch(libraries[0]) if libraries else None
    return Expected(tuple(task.gfx), task.recipe, torch)


def _load_objects(
    wheel: Path, report: WheelAudit, environment: BuildEnvironment, directory: Path, log: Path
) -> list[Finding]:
    """Load every Python extension of the wheel beside the torch that it was built against."""
    with zipfile.ZipFile(wheel) as archive:
        # All of them, because one may need another beside it.
        extracted = {one: Path(archive.extract(one.path, directory)) for one in report.objects}
    paths = [path for one, path in extracted.items() if one.extension]
    if not paths:
        return []
    command = [str(environment.python), "-c", _LOAD, *map(str, paths)]
    try:
        run(command, what="Loading the shared objects", log=log, env=clean_environment())
    except CommandError as error:
        text = f"its shared objects do not load: {'; '.join(error.lines[-2:])}"
        return [
            Finding(
                "object-does-not-load",
                "error",
                text,
                "A symbol or library of the build is not there.",
            )
        ]
    return []


def _provenance(
    task: Task, environment: BuildEnvironment, report: WheelAudit, *, seconds: float, jobs: int
) -> dict[str, Any]:
    return {
        "schema": 1,
        "build_key": task.build_key,
        "inputs": task.inputs,
        "installed": environment.installed,
        "builder": {"rocm-matrix": installed_version("rocm-matrix"), "machine": platform.machine()},
        "jobs": jobs,
        "seconds": round(seconds, 1),
        "platform_tag": report.platform_tag,
        "objects": json.loads(json.dumps([asdict(one) for one in report.objects])),
        "findings": [asdict(one) for one in report.findings],
    }
