"""One build, step by step: fetch, prepare, build, check, label, publish."""

from __future__ import annotations

import secrets
import shutil
import signal
import time
import uuid
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version as installed_version
from platform import node
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec.structs import asdict, replace

from builders import host
from builders.alias import write_alias
from builders.audit import Expected, audit_wheel, read_torch
from builders.build_directory import BuildDirectory, finished_commands, lock_of, path_of
from builders.cache import cache_root, cached_file
from builders.compilation import FRONTEND, INDEX_UNCHANGED, compile_wheel, seen_at
from builders.compiler_cache import cache_counts, cache_error, find_compiler_cache, use_compiler_cache
from builders.constants import NO_COMPILER_CACHE
from builders.containers.runtime import Bind
from builders.diagnosis import OUT_OF_MEMORY, Context, diagnose, explain_failure
from builders.environments.cached import digest
from builders.environments.layers import fetch_build_wheels, make_environment, make_layers
from builders.environments.wheelhouse import FetchOptions, Wheel
from builders.files import exclusive_lock, sha256_of
from builders.io_errors import explain_index_errors
from builders.labelling import Labels, label_wheel, runtime_pins
from builders.lease import holder_of
from builders.probe.ask import WheelReply, ask, wheel_question
from builders.probe.wheel import judge_wheel
from builders.provenance import SBOM_NAME, Run, materials_of, statement
from builders.recipes.application import apply_recipe
from builders.recipes.recipe import check_source
from builders.records import log_path, record_start, record_stop, take_start
from builders.scheduling.jobserver import join
from builders.scheduling.memory import MemoryMeter
from builders.sources import Downloads, fetch_file, obtain
from builders.urls import mirrored
from builders.wheel_requirements import environment_of, requirements_in
from resolver.errors import (
    AuditError,
    BuildError,
    CommandError,
    EnvironmentLacksError,
    MatrixError,
    NameTakenError,
)
from resolver.requirements import required_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from builders.audit import WheelAudit
    from builders.compilation import BuiltWheel
    from builders.environments.layers import BuildEnvironment, Layers
    from builders.findings import Finding
    from builders.index import Index
    from builders.plan import Task
    from builders.provenance import Descriptor
    from builders.recipes.application import AppliedRecipe
    from builders.sources import Source
    from resolver.model import Resolution
    from resolver.reporter import Reporter

_BEFORE_LABELLING = {"no-label", "plain-platform-tag", "torch-not-pinned"}
"""Findings in every wheel that a build backend produces. Labelling removes their cause."""


_KILLED = f"signal {int(signal.SIGKILL)}"
"""The error that a probe reports for a process that was killed. The wheel is not the cause."""
_SIGNALLED = range(129, 160)
"""Exit codes that a shell returns for programs that were ended by a signal."""


class Limits(msgspec.Struct, frozen=True):
    """Limits of a build; None means the limits of the machine."""

    jobs: int | None = None
    memory: float | None = None
    """GiB of all processes."""
    memory_per_job: float | None = None
    """GiB of one compile job; None means the value of the recipe."""
    jobserver: Path | None = None
    """The named pipe through which this build shares its compile jobs with others."""
    until: float | None = None
    """When to stop, in seconds since the epoch; None without a time limit."""
    offline: bool = False
    compiler_cache: str | None = None
    """Path of ccache, or ``none``; None searches PATH."""
    mirrors: Mapping[str, str] = {}
    """Maps URL prefixes to their replacement."""


class Turn(Protocol):
    """Callbacks of a build that waits for another process; other builds can use its cores and memory then."""

    def wait(self) -> None:
        """Record that another process holds the lock of this build."""
        ...

    def take(self) -> None:
        """Wait until the build may start; its lock is already held."""
        ...


def build_wheel(
    task: Task,
    index: Index,
    limits: Limits,
    reporter: Reporter,
    *,
    turn: Turn | None = None,
) -> Path:
    """Build one wheel, check it, publish it, and return its path in the index.

    Parameters
    ----------
    task
        What to build.
    index
        Where to publish. Logs and the build directory are below it.
    limits
        Cores, memory and network that may be used.
    reporter
        Receives each step as it starts.
    turn
        Notified when another process builds the same wheel.

    Raises
    ------
    BuildError, RecipeError
        The build failed, or could not start; the error names the log and the causes that it shows.
    AuditError
        The wheel failed its checks, such as for an op that the recipe promises. It is not published.
    EnvironmentLacksError, HashMismatchError, SourceError
        The source or a build requirement cannot be fetched.
    DamagedIndexError
        A link or a file is in place of a directory of the index.
    """
    log = log_path(index, task.pick.name, task.build_key)
    work = path_of(index, task.build_key)
    lock = lock_of(index, task.build_key)

    def waiting() -> None:
        holder = holder_of(lock)
        who = f" ({holder})" if holder else ""
        reporter.step(f"wait for another process that is building this wheel{who}")
        if turn is not None:
            turn.wait()

    with (
        explain_index_errors(index.root, work),
        exclusive_lock(index.state_directory("locks") / lock.name, on_wait=waiting),
    ):
        published = index.find(task.pick.name, task.build_key)
        if published is not None:
            reporter.step("another process has built this wheel")
            return published.path
        if turn is not None:
            turn.take()
        index.state_directory(log.parent.name)
        index.state_directory(work.parent.name)
        directory = BuildDirectory(work, log)
        record_start(task, log)
        build = _Build(task, index, limits, reporter, directory)
        try:
            wheel = build.write_alias() if task.pick.alias_of else build.run()
        except KeyboardInterrupt:
            is_over = limits.until is not None and time.time() >= limits.until
            record_stop(log, "stopped at the time limit" if is_over else "interrupted by a signal")
            raise
        take_start(log)
        shutil.rmtree(work, ignore_errors=True)  # a failed build keeps it until the next attempt
        return wheel


class _Build(msgspec.Struct, frozen=True):
    """One attempt to build a task in its own directory."""

    task: Task
    index: Index
    limits: Limits
    reporter: Reporter
    directory: BuildDirectory

    @property
    def work(self) -> Path:
        return self.directory.root

    @property
    def sandbox(self) -> Path:
        return self.directory.sandbox

    @property
    def log(self) -> Path:
        return self.directory.log

    def run(self) -> Path:
        started = datetime.now(tz=UTC)
        task, build_host = self.task, self.task.build_host
        required = self._required_wheels()
        for warning in task.warnings:
            self.reporter.warning(warning)
        if task.recipe.must_contain:
            build_host.require_compilers(task.title, task.recipe.backend)

        self.reporter.step(f"fetch {task.pick.sdist.file if task.pick.sdist else task.title}")
        source = obtain(
            task.pick, offline=self.limits.offline, mirrors=self.limits.mirrors, patches=task.patches
        )

        self.reporter.step("prepare the build environment")
        torch, requirements = requirements_of(task, required)
        fetching = fetching_of(task, self.limits, log=self.log, reporter=self.reporter)
        with self._diagnosed():
            layers = make_layers(
                build_host.runtime,
                build_host.python,
                torch=torch,
                requirements=requirements,
                options=fetching,
            )
            # The headers of torch are in a layer, and their paths get into the compiled files as well.
            seen = seen_at(build_host.runtime, self.sandbox, self.sandbox)
            prefix_map = {str(seen): "/matrix"} | {str(layer.root): "/matrix/layer" for layer in layers.all}
            environment, tree = self._unpack(source, layers, required, prefix_map)

        jobs = host.compile_jobs(
            self.limits.memory_per_job or task.recipe.memory_per_job,
            jobs=self.limits.jobs,
            memory=self.limits.memory,
        )
        recipe = apply_recipe(task, jobs=jobs, prefix_map=prefix_map)
        shims = join(self.limits.jobserver, self.sandbox) if self.limits.jobserver else {}
        recipe = replace(recipe, shims={**recipe.shims, **shims})
        settings = self._with_compiler_cache(recipe)
        for note in recipe.notes:
            self.reporter.step(note)
        if build_host.runtime.isolation == "none":
            self.reporter.step(
                "this machine cannot isolate builds: a build can change your files and processes"
            )
        if not build_host.runtime.isolates_network:
            self.reporter.step("this machine cannot disable the network for a build")
        how = "jobs that all builds share" if shims else f"{jobs} job{'s' if jobs > 1 else ''}"
        self.reporter.step(f"compile with {how}; log: {self.log}")
        memory = MemoryMeter()
        try:
            with memory:
                wheel = self._compile(source, tree, environment, settings)
            self.directory.join_logs()
            self.reporter.step("check")
            audit, findings = self._check(wheel, layers)
        except MatrixError as error:
            error.details = {**error.details, "measured": _measured(jobs, memory, self.sandbox)}
            if not _was_interrupted(error):
                self.directory.start_anew_next_time()
            raise
        if reason := cache_error(self.sandbox):
            self.reporter.warning(f"ccache failed, and the compilers were called without it: {reason}")

        self.reporter.step("publish")
        materials = materials_of(task, source, layers)
        finished = datetime.now(tz=UTC)
        run = Run(
            started=started,
            finished=finished,
            invocation=uuid.uuid4().urn,
            node=node(),
            versions={"rocm-matrix": installed_version("rocm-matrix")},
            measured={
                "seconds": round((finished - started).total_seconds() + self.directory.seconds_before, 1),
                "attempts": self.directory.number,
                **_measured(jobs, memory, self.sandbox),
            },
            variables=recipe.environment,
            log=self.log.name,
            log_sha256=sha256_of(self.log),
            results={
                "findings": msgspec.to_builtins(findings),
                "objects": [
                    {"path": item.path, "needed": list(item.needed), "versions": dict(item.versions)}
                    for item in audit.objects
                ],
                "isolation": build_host.runtime.isolation,
                "network": "off" if build_host.runtime.isolates_network else "not disabled",
            },
        )
        return self._publish(wheel, audit.platform_tag, materials, run)

    def _unpack(
        self, source: Source, layers: Layers, required: Sequence[Path], prefix_map: Mapping[str, str]
    ) -> tuple[BuildEnvironment, Path]:
        """Return the environment and the source tree: those of an interrupted attempt, or else new ones."""
        task, build_host = self.task, self.task.build_host
        inputs = _inputs_of_directory(task, prefix_map, required)
        tree = self.directory.resume(inputs)
        environment = make_environment(
            build_host.python,
            layers.all,
            required,
            root=self.directory.environment,
            hidden=[self.index.root],
            exists=tree is not None,
        )
        if tree is None:
            self.reporter.step("unpack")
            tree = source.unpack(self.directory.source, log=self.log)
            check_source(task.recipe, tree, task.title, task.other_recipes)
            self.directory.begin(inputs, tree)
        else:
            count = finished_commands(self.work)
            commands = "command" if count == 1 else "commands"
            self.reporter.step(f"continue an interrupted build: {count} {commands} already finished")
        return environment, tree

    def write_alias(self) -> Path:
        """Write, check and publish the wheel of an alias, without compiling or downloading."""
        started = datetime.now(tz=UTC)
        task = self.task
        self.reporter.step(f"write the alias of {task.pick.alias_of}")
        number = self.index.next_build_number(task.pick.name, task.pick.pinned)
        wheel = write_alias(task.pick, task.resolution, self.work, build_number=number)
        audit = audit_wheel(wheel, Expected(recipe=task.recipe))
        self._reject(wheel, audit.errors)
        self.reporter.step("publish")
        run = Run(
            started=started,
            finished=datetime.now(tz=UTC),
            invocation=uuid.uuid4().urn,
            node=node(),
            versions={"rocm-matrix": installed_version("rocm-matrix")},
            results={"findings": msgspec.to_builtins(audit.findings)},
        )
        return self.index.publish(wheel, statement(task, [], run, wheel=wheel.name, sha256=audit.sha256))

    def _with_compiler_cache(self, recipe: AppliedRecipe) -> AppliedRecipe:
        """Add the compiler cache to the settings of the build, if the build can use it."""
        program = find_compiler_cache(self.limits.compiler_cache)
        in_image = self.task.build_host.runtime.image is not None
        if self.limits.compiler_cache == NO_COMPILER_CACHE or not self.task.recipe.must_contain:
            return recipe
        if program is None and not in_image:
            return recipe
        try:
            return use_compiler_cache(self.task, recipe, self.sandbox, program)
        except OSError as error:
            self.reporter.warning(f"The compiler cache is not used: {error.strerror}: {error.filename}")
            return recipe

    def _compile(
        self, source: Source, tree: Path, environment: BuildEnvironment, recipe: AppliedRecipe
    ) -> BuiltWheel:
        build_host = self.task.build_host
        seen = seen_at(build_host.runtime, self.sandbox, self.directory.source)
        copies = self.work / "wheel"
        copies.mkdir()
        try:
            return compile_wheel(
                self.task.title,
                build_host.runtime,
                environment,
                recipe,
                source=tree,
                directory=self.directory,
                wheels=copies,
                variables={**build_host.variables, **source.variables(seen)},
            )
        except CommandError as error:
            context = replace(diagnosis_context(self.task), exit_code=error.code)
            message, diagnosis = explain_failure(error.message, self.log, context)
            failure = BuildError(message, hint=INDEX_UNCHANGED)
            failure.findings = tuple(diagnosis)
            failure.details = _details(diagnosis)
            raise failure from error

    @contextmanager
    def _diagnosed(self) -> Iterator[None]:
        """Add the causes that the log shows to an error before or after the compilation."""
        try:
            yield
        except MatrixError as error:
            code = error.code if isinstance(error, CommandError) else None
            context = replace(diagnosis_context(self.task), exit_code=code)
            error.message, diagnosis = explain_failure(error.message, self.log, context)
            error.details = {**error.details, **_details(diagnosis)}
            raise

    def _required_wheels(self) -> list[Path]:
        """Return the wheels of the index that this build requires.

        Raises
        ------
        BuildError
            A required wheel has not been built.
        """
        wheels = []
        for required in self.task.requires:
            published = self.index.find(required.pick.name, required.build_key)
            if published is None:
                msg = f"Building {self.task.title} requires {required.title}, which is not in the index."
                hint = f"Build it first with `matrix build-one {required.build_key[:12]}`."
                raise BuildError(msg, hint=hint)
            wheels.append(published.path)
        return wheels

    # Check

    def _check(self, built: BuiltWheel, layers: Layers) -> tuple[WheelAudit, list[Finding]]:
        """Audit the wheel, look for silent failures in the log, then import it in a fresh environment."""
        wheel = built.path
        audit = audit_wheel(wheel, _expected(self.task, self._torch_packages(layers)))
        self._reject(wheel, audit.errors)
        self._reject(wheel, silent_failures(self.log, diagnosis_context(self.task)))
        probe = judge_wheel(self._probe(wheel, layers), self.task.recipe)
        self._reject(wheel, [finding for finding in probe if finding.severity == "error"])
        return audit, [
            *(finding for finding in audit.findings if finding.id not in _BEFORE_LABELLING),
            *probe,
        ]

    def _torch_packages(self, layers: Layers) -> Path:
        """Return the site-packages that have torch: those of its layer, or of the build if we built torch."""
        if layers.torch is not None:
            return layers.torch.packages
        return self.directory.environment / self.task.build_host.python.library

    def _probe(self, wheel: Path, layers: Layers) -> WheelReply:
        """Install the wheel next to its torch and run the probe there.

        The environment has the build requirements as well, because no other run requirements of the wheel are
        installed. The probe reports which of them were used.
        """
        task, runtime, python = self.task, self.task.build_host.runtime, self.task.build_host.python
        # The code of the wheel sees these paths. Fixed names would let it recognize the probe.
        root, folder = (self.work / secrets.token_hex(4) for _ in range(2))
        with self._diagnosed():
            wheels = [*self._required_wheels(), wheel]
            environment = make_environment(python, layers.all, wheels, root=root, hidden=[self.index.root])
        borrowed = str(layers.requirements.packages) if layers.requirements else ""
        base = environment.view
        folder.mkdir()  # only now, so that the code of the wheel could not write to it before
        binds = [*base.binds, Bind(folder, writable=True)]
        view = replace(base, env={**base.env, **task.recipe.run_environment}, cwd=root, binds=binds)
        start, question = [str(environment.python)], wheel_question(task.recipe, borrowed)
        what = f"Probing {task.title}"
        try:
            reply = ask(runtime, start, question, WheelReply, view, folder=folder, what=what, log=self.log)
            _check_not_killed(reply, what, self.log)
        except CommandError as error:
            context = replace(diagnosis_context(task), exit_code=error.code)
            raise self._audit_error(error.message, "The wheel is not published.", context, []) from error
        return reply

    def _reject(self, wheel: Path, errors: Sequence[Finding]) -> None:
        if not errors:
            return
        listed = "".join(f"\n  - {error}" for error in errors)
        message = (
            f"The wheel of {self.task.title} failed its checks, so it is not published."
            f"{listed}\n  Log: {self.log}"
        )
        ids = frozenset(error.id for error in errors)
        context = replace(diagnosis_context(self.task), findings=ids)
        raise self._audit_error(
            message, f"The wheel is kept as {wheel} until the next build.", context, errors
        )

    def _audit_error(
        self, message: str, hint: str, context: Context, errors: Sequence[Finding]
    ) -> AuditError:
        text, diagnosis = explain_failure(message, self.log, context)
        failure = AuditError(text, hint=hint)
        failure.findings = (*errors, *diagnosis)
        failure.details = _details(diagnosis)
        return failure

    # Label and publish

    def _publish(self, built: BuiltWheel, platform: str, materials: Sequence[Descriptor], run: Run) -> Path:
        """Label and publish a wheel; use the next build tag if another build takes the name first."""
        from builders.sbom import sbom

        task = self.task
        others = {name: version for name, version in task.runtime_versions.items() if name != "torch"}
        pins = runtime_pins(
            task.torch.pinned if task.torch else "", others, add_torch="torch" in task.runtime_versions
        )
        sboms = {SBOM_NAME: sbom(task, materials, program=run.versions["rocm-matrix"])}
        while True:
            number = self.index.next_build_number(task.pick.name, task.pick.pinned)
            labels = Labels(
                version=task.pick.pinned,
                platform=platform,
                build_number=number,
                pins=pins,
                pin_style=task.pin_style,
                sboms=sboms,
            )
            labelled = label_wheel(built.path, labels, self.work / "labelled")
            built.verify()
            changes = {
                "requirements": [asdict(change) for change in labelled.requirements],
                "notes": list(labelled.notes),
                "dropped_local": labelled.dropped_local,
            }
            record = statement(
                task,
                materials,
                replace(run, results={**run.results, "labels": changes}),
                wheel=labelled.path.name,
                sha256=sha256_of(labelled.path),
            )
            try:
                return self.index.publish(labelled.path, record)
            except NameTakenError:
                if self.index.next_build_number(task.pick.name, task.pick.pinned) == number:
                    raise


def _inputs_of_directory(task: Task, prefix_map: Mapping[str, str], required: Sequence[Path]) -> str:
    """Return a digest of everything besides the build key that the files in a build directory depend on.

    The files contain paths of the directory and of the layers, and values that CMake read from variables.
    """
    recipe = apply_recipe(task, prefix_map=prefix_map)
    wheels = [sha256_of(path) for path in required]
    return digest(dict(prefix_map), dict(recipe.environment), recipe.options, recipe.prepare, wheels)


def _was_interrupted(error: MatrixError) -> bool:
    """Return whether a build failed because a process was killed, or because memory or a tool was missing."""
    if isinstance(error, EnvironmentLacksError):
        return True
    if isinstance(error, BuildError) and any(finding.id == OUT_OF_MEMORY for finding in error.findings):
        return True
    cause = error.__cause__
    return isinstance(cause, CommandError) and (cause.code < 0 or cause.code in _SIGNALLED)


def _check_not_killed(reply: WheelReply, what: str, log: Path) -> None:
    """Raise `CommandError` if a process of the probe was killed, such as for lack of memory."""
    if _KILLED in {outcome.error for outcome in (reply.torch, *reply.imports, *reply.objects)}:
        raise CommandError(what, code=-signal.SIGKILL, log=log, lines=())


def _measured(jobs: int, memory: MemoryMeter, work: Path) -> dict[str, float | int]:
    return {
        "jobs": jobs,
        "memory_gib": round(memory.total, 2),
        "process_gib": round(memory.largest, 2),
        **cache_counts(work),
    }


def _details(diagnosis: Sequence[Finding]) -> dict[str, Any]:
    return {"diagnosis": msgspec.to_builtins(diagnosis)} if diagnosis else {}


def _expected(task: Task, packages: Path) -> Expected:
    """Return the values to compare the wheel with: the request, and the libraries it will run with."""
    directory = packages / "torch" / "lib"
    torch = read_torch(directory) if directory.is_dir() else None
    provider = task.build_host.provider
    return Expected(
        tuple(task.gfx),
        task.recipe,
        torch,
        () if provider is None else (provider,),
        str(task.build_host.python.prefix),
    )


def silent_failures(log: Path, context: Context) -> list[Finding]:
    """Return the known failures that the log of a successful build shows.

    Some failures appear only there: only the options of the compiler show a wrong wavefront size.
    """
    return [
        msgspec.structs.replace(finding, id=f"log-{finding.id}", fix="")
        for finding in diagnose(log, replace(context, exit_code=0))
    ]


def diagnosis_context(task: Task) -> Context:
    """Return the facts about a build that are not in its log."""
    build_host = task.build_host
    return Context(
        package=task.pick.name,
        torch=task.torch.version if task.torch else "",
        rocm=build_host.rocm,
        backend=task.recipe.backend,
        python=build_host.python.version,
        network=False if build_host.runtime.isolates_network else None,
    )


def requirements_of(task: Task, wheels: Sequence[Path] = ()) -> tuple[str | None, list[str]]:
    """Return the requirements to build and check a wheel: torch at the version of the lock, and all others.

    Required wheels that we build ourselves are left out, but their run requirements are included.

    Parameters
    ----------
    wheels
        Those of the required wheels that exist already.
    """
    behind = _behind(task, wheels)
    requirements = dict.fromkeys([*task.recipe.declared, *task.recipe.undeclared, *behind, FRONTEND])
    ours = {required.pick.name for required in task.requires}
    for text in [text for text in requirements if required_name(text) in ours]:
        del requirements[text]
    torch = None
    if task.torch is not None and "torch" not in ours and (task.needs_torch or "torch" in requirements):
        requirements.pop("torch", None)
        torch = f"torch=={task.torch.version}"
    return torch, sorted(requirements)


def _behind(task: Task, wheels: Sequence[Path]) -> list[str]:
    """Return the run requirements of the required wheels that we build, in the versions of the lock.

    Those of a wheel from a git commit are only in the wheel.
    """
    lock = task.resolution
    names = [required.pick.name for required in task.requires]
    ours = set(names)
    environment = environment_of(lock)
    listed = [requirement for path in wheels for requirement in requirements_in(path, environment)]
    names += [requirement.name for requirement in listed]
    unlocked = [requirement.text for requirement in listed if lock.pick(requirement.name) is None]
    for name in names:
        rows = (edge.object for edge in lock.edges if (edge.subject, edge.kind) == (name, "run"))
        names += [other for other in rows if other not in names]
    picks = [pick for name in names if name not in ours and (pick := lock.pick(name))]
    distributions = [pick for pick in picks if pick.kind == "distribution" and pick.origin == "published"]
    locked = ["torch" if pick.name == "torch" else f"{pick.name}=={pick.version}" for pick in distributions]
    return [*locked, *unlocked]


def wheels_of(
    task: Task, limits: Limits, log: Path, reporter: Reporter
) -> tuple[set[str], tuple[Wheel, ...]]:
    """Fetch torch and the build requirements; return the hashes that were cached before, and all wheels.

    Raises
    ------
    EnvironmentLacksError, HashMismatchError, SourceError
        A wheel cannot be fetched.
    """
    built = [required.wheel for required in task.requires if required.wheel]
    torch, requirements = requirements_of(task, built)
    before = {path.name for path in (cache_root() / "wheels").glob("*")}
    fetching = fetching_of(task, limits, log=log, reporter=reporter)
    build_host = task.build_host
    wheels = fetch_build_wheels(
        build_host.runtime, build_host.python, torch=torch, requirements=requirements, options=fetching
    )
    return before, wheels


def fetching_of(task: Task, limits: Limits, *, log: Path, reporter: Reporter) -> FetchOptions:
    """Return the options for fetching the wheels that a build needs; fetch torch if the lock has its files.

    Raises
    ------
    EnvironmentLacksError, HashMismatchError, SourceError
        A file of torch, or of a distribution that it requires, cannot be fetched.
    """
    indexes = [task.torch.index] if task.torch is not None and task.torch.index else []

    def mirror(url: str) -> str:
        return mirrored(url, limits.mirrors)

    torch = _torch_of_lock(task.resolution, limits, reporter) if requirements_of(task)[0] else ()
    return FetchOptions(
        log=log,
        reporter=reporter,
        indexes=indexes,
        mirrored=mirror,
        offline=limits.offline,
        torch=torch,
    )


def _torch_of_lock(resolution: Resolution, limits: Limits, reporter: Reporter) -> tuple[Wheel, ...]:
    """Fetch torch and everything that it requires; return no wheels unless the lock has all of them.

    Requirements are read from the wheels, because a lock leaves out edges that close a cycle.
    """
    if not resolution.is_complete:
        return ()
    downloads = Downloads(limits.mirrors, reporter)
    environment = environment_of(resolution)
    wheels: dict[str, Wheel] = {}
    waiting = ["torch"]
    while waiting:
        name = waiting.pop()
        pick = resolution.pick(name)
        if name in wheels:
            continue
        if pick is None or pick.origin != "published" or pick.is_sdist or not pick.files[0].sha256:
            return ()
        file = pick.files[0]
        if not cached_file(file).exists():
            reporter.step(f"fetch {file.name}")
            downloads.expected += file.size
        fetch_file(file, downloads, offline=limits.offline)
        path = cached_file(file)
        wheels[name] = Wheel(name, pick.version, file.name, file.sha256, path.stat().st_size)
        waiting += [edge.object for edge in resolution.edges if (edge.subject, edge.kind) == (name, "run")]
        waiting += [requirement.name for requirement in requirements_in(path, environment)]
    return tuple(wheels[name] for name in sorted(wheels))
