"""One build, straight down the page: fetch, prepare, build, prove, label, publish."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Any

from builders import host
from builders.compilation import FRONTEND, BuildError, compile_wheel
from builders.diagnosis import Context, explained
from builders.environments.task import Fetching, make_layers, task_environment
from builders.files import only_one
from builders.index import NameTakenError
from builders.labelling import Labels, label_wheel, runtime_pins
from builders.proof import prove
from builders.recipes import Build, apply_recipe, check_source
from builders.sources import mirrored, obtain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from builders.environments.task import BuildEnvironment, Layers
    from builders.index import Index
    from builders.plan import Task
    from builders.recipes import Application
    from builders.sources import Source

__all__ = ["BuildError", "Limits", "build_wheel", "fetching_of", "requirements_of"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a build may use; None means what the machine allows."""

    jobs: int | None = None
    memory: float | None = None
    """GiB."""
    offline: bool = False
    mirrors: Mapping[str, str] = field(default_factory=dict)
    """URL prefix to what is asked instead."""


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
    BuildError, RecipeError
        The build failed, or could not be begun; the error names the log.
    AuditError
        The wheel does not hold what the recipe promises; it is not published.
    EnvironmentLacksError, HashMismatchError, SourceError
        The source or the build requirements could not be had.
    """
    log = index.state / "logs" / f"{task.pick.name}-{task.build_key[:12]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    started = time.monotonic()
    workshop = task.workshop

    say(f"fetch {task.pick.sdist.file if task.pick.sdist else task.title}")
    source = obtain(task.pick, offline=limits.offline, mirrors=limits.mirrors, patches=task.patches)

    say("prepare the build environment")
    torch, wanted = requirements_of(task)
    how = fetching_of(task, limits, log=log, say=say)
    layers = make_layers(workshop.place, workshop.python, torch=torch, requirements=wanted, how=how)

    with explained(log, _context(task)), _build_directory(index, task) as work:
        environment = task_environment(
            workshop.place, workshop.python, layers.all, root=work / "env", log=log
        )

        say("unpack")
        tree = source.unpack(work / "source", log=log)
        check_source(task.recipe, tree, task.title, task.others)

        jobs = host.compile_jobs(task.recipe.memory_per_job, jobs=limits.jobs, memory=limits.memory)
        application = _application(task, jobs=jobs, work=work)
        for note in application.notes:
            say(note)
        if not workshop.place.isolates_network:
            say("this machine cannot take the network away from a build; it is trusted not to use it")
        say(f"compile with {jobs} job{'s' if jobs > 1 else ''}; log: {log}")
        raw = compile_wheel(
            task.title,
            workshop.place,
            environment,
            application,
            source=tree,
            work=work,
            variables={**workshop.variables, **source.variables(work / "source")},
            log=log,
        )

        say("prove")
        report, findings = prove(task, raw, layers, work=work, log=log)
        record = _provenance(
            task, source, layers, environment, application,
            seconds=time.monotonic() - started, jobs=jobs,
        )  # fmt: skip
        record |= {
            "platform_tag": report.platform_tag,
            "objects": json.loads(json.dumps([asdict(one) for one in report.objects])),
            "findings": [asdict(one) for one in findings],
        }
        return _publish(task, index, raw=raw, platform=report.platform_tag, record=record, work=work)


def requirements_of(task: Task) -> tuple[str | None, list[str]]:
    """Give what must be installed to build: torch pinned to the lock's, and everything else."""
    wanted = dict.fromkeys([*task.recipe.declared, *task.recipe.undeclared, FRONTEND])
    torch = None
    if "torch" in wanted and task.torch is not None:
        del wanted["torch"]
        torch = f"torch=={task.torch.version}"
    return torch, sorted(wanted)


def fetching_of(task: Task, limits: Limits, *, log: Path, say: Callable[[str], None]) -> Fetching:
    """Give where the wheels come from that a build needs."""
    indexes = [task.torch.index] if task.torch is not None and task.torch.index else []

    def instead(url: str) -> str:
        return mirrored(url, limits.mirrors)

    return Fetching(log=log, say=say, indexes=indexes, mirrored=instead, offline=limits.offline)


def _application(task: Task, *, jobs: int, work: Path) -> Application:
    """Apply the recipe to this build."""
    workshop = task.workshop
    build = Build(
        name=task.pick.name,
        version=task.pick.version,
        backend=task.recipe.backend,
        gfx=task.gfx,
        torch=task.torch.version if task.torch else "",
        cxx_standard=task.cxx_standard,
        rocm=workshop.rocm,
        rocm_path=workshop.rocm_path,
        compilers=workshop.compilers,
        preferred=workshop.preferred,
        cpu=workshop.cpu,
        jobs=jobs,
        moved={str(work): "/matrix"},
    )
    return apply_recipe(task.recipe, build)


def _context(task: Task) -> Context:
    """Say what is built, for what is known about failures."""
    workshop = task.workshop
    return Context(
        package=task.pick.name,
        version=task.pick.version,
        torch=task.torch.version if task.torch else "",
        rocm=workshop.rocm,
        backend=task.recipe.backend,
        gfx=task.gfx,
        python=workshop.python.version,
        network=False if workshop.place.isolates_network else None,
    )


@contextmanager
def _build_directory(index: Index, task: Task) -> Iterator[Path]:
    """Give an empty directory; what a failed build leaves there stays until the next try."""
    work = index.state / "builds" / task.build_key[:20]
    with only_one(index.state / "locks" / f"{work.name}.lock"):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True, exist_ok=True)
        yield work
        shutil.rmtree(work, ignore_errors=True)


def _publish(
    task: Task, index: Index, *, raw: Path, platform: str, record: Mapping[str, Any], work: Path
) -> Path:
    """Label and publish; if another build takes the name at that moment, take the next build tag."""
    others = {name: version for name, version in task.runtime.items() if name != "torch"}
    pins = runtime_pins(task.runtime.get("torch", ""), others)
    while True:
        number = index.next_build_number(task.pick.name, task.pick.pinned)
        labels = Labels(version=task.pick.pinned, platform=platform, build_number=number, pins=pins)
        labelled = label_wheel(raw, labels, work / "labelled")
        changes = [asdict(one) for one in labelled.requirements]
        said = {"requirements": changes, "notes": labelled.notes, "dropped_local": labelled.dropped_local}
        try:
            return index.publish(labelled.path, {**record, "labelling": said})
        except NameTakenError:
            if index.next_build_number(task.pick.name, task.pick.pinned) == number:
                raise


def _provenance(
    task: Task,
    source: Source,
    layers: Layers,
    environment: BuildEnvironment,
    application: Application,
    *,
    seconds: float,
    jobs: int,
) -> dict[str, Any]:
    image = task.workshop.place.image
    return {
        "schema": 1,
        "build_key": task.build_key,
        "inputs": task.inputs,
        "source": source.inputs,
        "installed": environment.installed,
        "wheels": environment.wheels,
        "environment": dict(application.environment),
        "base_image": {"name": image.name, "sha256": image.sha256} if image else None,
        "network": "off" if task.workshop.place.isolates_network else "not taken away",
        "torch": [one.file for one in layers.torch.wheels if one.name == "torch"] if layers.torch else [],
        "builder": {"rocm-matrix": installed_version("rocm-matrix")},
        "jobs": jobs,
        "seconds": round(seconds, 1),
    }
