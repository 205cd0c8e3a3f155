"""One build, straight down the page: fetch, prepare, build, prove, label, publish."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Any

import msgspec

from builders import host
from builders.cache import cache_root
from builders.compilation import FRONTEND, compile_wheel
from builders.diagnosis import Context, explained
from builders.environments.layers import fetch_build_wheels, make_environment, make_layers
from builders.environments.wheelhouse import FetchOptions
from builders.files import exclusive_lock, sha256_of
from builders.gathering import materials_of
from builders.io_errors import explain_index_errors
from builders.labelling import Labels, label_wheel, runtime_pins
from builders.proof import prove
from builders.provenance import SBOM_NAME, Run, sbom, statement
from builders.recipes import Build, apply_recipe, check_source
from builders.sources import mirrored, obtain
from resolver.errors import BuildError, NameTakenError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builders.environments.layers import Layers
    from builders.environments.wheelhouse import Wheel
    from builders.index import Index
    from builders.labelling import Labelled
    from builders.plan import Task
    from builders.provenance import Materials
    from builders.recipes import Application
    from resolver.reporter import Reporter

__all__ = ["BuildError", "Limits", "build_wheel", "fetching_of", "requirements_of", "wheels_of"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a build may use; None means what the machine allows."""

    jobs: int | None = None
    memory: float | None = None
    """GiB."""
    offline: bool = False
    mirrors: Mapping[str, str] = field(default_factory=dict)
    """URL prefix to what is asked instead."""


def build_wheel(task: Task, index: Index, limits: Limits, reporter: Reporter) -> Path:
    """Build one wheel, prove it, and publish it.

    Parameters
    ----------
    task
        What to build.
    index
        Where to publish; logs and the build directory are kept under it.
    limits
        Cores, memory and network that may be used.
    reporter
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
    work = index.state / "builds" / task.build_key[:20]

    def waiting() -> None:
        reporter.step("another run is building this; waiting for it")

    with (
        explain_index_errors(index.root, work),
        exclusive_lock(index.state / "locks" / f"{work.name}.lock", on_wait=waiting),
    ):
        found = index.find(task.pick.name, task.build_key)
        if found is not None:
            reporter.step("another run has built it meanwhile")
            return found.path
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        wheel = _build(task, index, limits, reporter, work=work, log=log)
        shutil.rmtree(work, ignore_errors=True)  # what a failed build leaves there stays until the next try
        return wheel


def _build(task: Task, index: Index, limits: Limits, reporter: Reporter, *, work: Path, log: Path) -> Path:
    """Build in a directory that nobody else uses."""
    started = datetime.now(tz=UTC)
    build_host = task.build_host
    if task.recipe.must_contain:
        build_host.require_compilers(task.title, task.recipe.backend)

    reporter.step(f"fetch {task.pick.sdist.file if task.pick.sdist else task.title}")
    source = obtain(task.pick, offline=limits.offline, mirrors=limits.mirrors, patches=task.patches)

    reporter.step("prepare the build environment")
    torch, wanted = requirements_of(task)
    how = fetching_of(task, limits, log=log, reporter=reporter)
    layers = make_layers(build_host.runtime, build_host.python, torch=torch, requirements=wanted, options=how)

    context = _context(task)
    with explained(log, context):
        environment = make_environment(
            build_host.runtime, build_host.python, layers.all, root=work / "env", log=log
        )

        reporter.step("unpack")
        tree = source.unpack(work / "source", log=log)
        check_source(task.recipe, tree, task.title, task.others)

        jobs = host.compile_jobs(task.recipe.memory_per_job, jobs=limits.jobs, memory=limits.memory)
        application = _application(task, layers, jobs=jobs, work=work)
        for note in application.notes:
            reporter.step(note)
        if not build_host.runtime.isolates_network:
            reporter.step(
                "this machine cannot take the network away from a build; it is trusted not to use it"
            )
        reporter.step(f"compile with {jobs} job{'s' if jobs > 1 else ''}; log: {log}")
        raw = compile_wheel(
            task.title,
            build_host.runtime,
            environment,
            application,
            source=tree,
            work=work,
            variables={**build_host.variables, **source.variables(work / "source")},
            log=log,
        )

        reporter.step("prove")
        report, findings = prove(task, raw, layers, work=work, log=log, context=context)
        materials = materials_of(task, source, layers)
        publication = _Publication(
            raw=raw,
            platform=report.platform_tag,
            materials=materials,
            started=started,
            log=log,
            environment=dict(application.environment),
            jobs=jobs,
            findings=msgspec.to_builtins(findings),
            objects=[
                {"path": one.path, "needed": list(one.needed), "versions": dict(one.versions)}
                for one in report.objects
            ],
        )
        return _publish(task, index, publication, work / "labelled")


def requirements_of(task: Task) -> tuple[str | None, list[str]]:
    """Give what must be installed to build and to prove: torch pinned to the lock's, and everything else."""
    wanted = dict.fromkeys([*task.recipe.declared, *task.recipe.undeclared, FRONTEND])
    torch = None
    if task.torch is not None and (task.beside_torch or "torch" in wanted):
        wanted.pop("torch", None)
        torch = f"torch=={task.torch.version}"
    return torch, sorted(wanted)


def wheels_of(
    task: Task, limits: Limits, log: Path, reporter: Reporter
) -> tuple[set[str], tuple[Wheel, ...]]:
    """Fetch torch and the build requirements of a task; give the hashes that were there before, and all.

    Raises
    ------
    EnvironmentLacksError
        Something could not be had.
    """
    torch, wanted = requirements_of(task)
    before = {path.name for path in (cache_root() / "wheels").glob("*")}
    how = fetching_of(task, limits, log=log, reporter=reporter)
    build_host = task.build_host
    return before, fetch_build_wheels(
        build_host.runtime, build_host.python, torch=torch, requirements=wanted, options=how
    )


def fetching_of(task: Task, limits: Limits, *, log: Path, reporter: Reporter) -> FetchOptions:
    """Give where the wheels come from that a build needs."""
    indexes = [task.torch.index] if task.torch is not None and task.torch.index else []

    def instead(url: str) -> str:
        return mirrored(url, limits.mirrors)

    return FetchOptions(log=log, reporter=reporter, indexes=indexes, mirrored=instead, offline=limits.offline)


def _application(task: Task, layers: Layers, *, jobs: int, work: Path) -> Application:
    """Apply the recipe to this build."""
    build_host = task.build_host
    # Paths of torch's headers get into what is compiled as well.
    moved = {str(one.root): "/matrix/layer" for one in layers.all}
    build = Build(
        name=task.pick.name,
        version=task.pick.version,
        backend=task.recipe.backend,
        gfx=task.gfx,
        torch=task.torch.version if task.torch else "",
        cxx_standard=task.cxx_standard,
        rocm=build_host.rocm,
        rocm_path=build_host.rocm_path,
        compilers=build_host.compilers,
        preferred=build_host.preferred,
        cpu=build_host.cpu,
        jobs=jobs,
        moved={str(work): "/matrix", **moved},
    )
    return apply_recipe(task.recipe, build)


def _context(task: Task) -> Context:
    """Say what is built, for what is known about failures."""
    build_host = task.build_host
    return Context(
        package=task.pick.name,
        version=task.pick.version,
        torch=task.torch.version if task.torch else "",
        rocm=build_host.rocm,
        backend=task.recipe.backend,
        gfx=task.gfx,
        python=build_host.python.version,
        network=False if build_host.runtime.isolates_network else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Publication:
    """A proven wheel, and what its record says."""

    raw: Path
    platform: str
    """Platform tag that the audit found."""
    materials: Materials
    started: datetime
    log: Path
    environment: dict[str, str]
    jobs: int
    findings: list[dict[str, Any]]
    objects: list[dict[str, Any]]


def _publish(task: Task, index: Index, made: _Publication, directory: Path) -> Path:
    """Label and publish; if another build takes the name at that moment, take the next build tag."""
    others = {name: version for name, version in task.runtime.items() if name != "torch"}
    pins = runtime_pins(task.torch.version if task.torch else "", others, add_torch="torch" in task.runtime)
    program = installed_version("rocm-matrix")
    sboms = {SBOM_NAME: sbom(made.materials, program=program)}
    while True:
        number = index.next_build_number(task.pick.name, task.pick.pinned)
        labels = Labels(
            version=task.pick.pinned,
            platform=made.platform,
            build_number=number,
            pins=pins,
            pin_style=task.pinning,
            sboms=sboms,
        )
        labelled = label_wheel(made.raw, labels, directory)
        try:
            return index.publish(labelled.path, _statement(task, made, labelled, program))
        except NameTakenError:
            if index.next_build_number(task.pick.name, task.pick.pinned) == number:
                raise


def _statement(task: Task, made: _Publication, labelled: Labelled, program: str) -> dict[str, Any]:
    """Write the provenance of a labelled wheel."""
    runtime = task.build_host.runtime
    finished = datetime.now(tz=UTC)
    run = Run(
        runtime=runtime.kind,
        invocation=uuid.uuid4().urn,
        started=made.started,
        finished=finished,
        versions={"rocm-matrix": program},
        measured={"seconds": round((finished - made.started).total_seconds(), 1), "jobs": made.jobs},
        log=made.log.name,
        log_sha256=sha256_of(made.log),
        results={
            "findings": made.findings,
            "objects": made.objects,
            "network": "off" if runtime.isolates_network else "not taken away",
            "labels": {
                "requirements": [asdict(one) for one in labelled.requirements],
                "notes": list(labelled.notes),
                "dropped_local": labelled.dropped_local,
            },
        },
    )
    return statement(
        wheel=labelled.path.name,
        sha256=sha256_of(labelled.path),
        materials=made.materials,
        asked={"name": task.pick.name, "version": task.pick.pinned, "gfx": list(task.gfx)},
        build_key=task.build_key,
        inputs={**task.inputs, "variables": made.environment},
        run=run,
    )
