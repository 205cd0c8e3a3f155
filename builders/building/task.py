"""One build, step by step: fetch, prepare, build, check, label, publish."""

from __future__ import annotations

import shlex
import shutil
import time
import uuid
from datetime import UTC, datetime
from importlib.metadata import version as installed_version
from platform import node
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict, replace
from packaging.utils import parse_wheel_filename

from builders.audit.contents import Expected
from builders.audit.wheel_audit import audit_wheel
from builders.building.apply_recipe import apply_recipe
from builders.building.check import check_build, diagnosed, diagnosis_context, failed, reject, was_interrupted
from builders.building.compilation import (
    NOT_PUBLISHED,
    build_view,
    cache_counts,
    cache_error,
    call_backend,
    check_unchanged,
    copy_out,
    seen_at,
    stated_metadata,
    use_compiler_cache,
)
from builders.building.directory import BuildDirectory, finished_commands, lock_of, path_of
from builders.building.inputs import fetching_of, required_wheels, requirements_of, stated_by
from builders.building.jobserver import join
from builders.building.provenance import SBOM_NAME, RunMetadata, materials_of, sbom, statement
from builders.building.records import forget_attempt, log_path, record_start, record_stop
from builders.building.watch import MemoryMeter, kernel_killed_since, kernel_kills
from builders.constants import NO_COMPILER_CACHE
from builders.containers.runtime import isolation_in, run_in
from builders.environments.layers import make_environment, make_layers
from builders.machine import cluster
from builders.machine.host import find_compiler_cache
from builders.probe.wheel import MODULE_REMOVED
from builders.recipes import check_source
from builders.source_facts.reading import has_extensions
from builders.sources.source import obtain
from builders.storage.files import sha256_of
from builders.storage.io_errors import explain_index_errors
from builders.storage.lease import TemporaryDirectory, digest, exclusive_lock, holder_of
from builders.wheels.labelling import Labels, label_wheel, write_alias
from builders.wheels.wheel import DamagedError
from resolver.errors import BuildError, CommandError, MatrixError, NameTakenError, UsageError
from resolver.versions import join_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from builders.building.apply_recipe import AppliedRecipe
    from builders.building.inputs import Limits
    from builders.building.plan import Task
    from builders.building.provenance import Descriptor
    from builders.containers.runtime import View
    from builders.environments.layers import BuildEnvironment, Layers
    from builders.findings import Finding
    from builders.index import Index
    from builders.sources.source import Source
    from resolver.indexes import Metadata, StatedMetadata
    from resolver.reporter import Reporter


def build_wheel(
    task: Task,
    index: Index,
    limits: Limits,
    reporter: Reporter,
    *,
    on_wait: Callable[[], None] = lambda: None,
    start: Callable[[], None] = lambda: None,
) -> Path:
    """Build one wheel, check it, publish it, and return its path in the index.

    Logs and the build directory are below the index. `on_wait` is called while another process holds the lock
    of this build; other builds can use its cores and memory then. `start` is called with the lock held; it
    waits until the build may start.

    Raise `MatrixError`: `BuildError` if the build or the checks of the wheel failed, `SourceError` or
    `EnvironmentLacksError` if something cannot be fetched.
    """
    log = log_path(index, task.pick.name, task.build_key)
    work = path_of(index, task.build_key)
    lock = lock_of(index, task.build_key)

    def waiting() -> None:
        holder = holder_of(lock)
        who = f" ({holder})" if holder else ""
        reporter.step(f"wait for another process that is building this wheel{who}")
        on_wait()

    with (
        explain_index_errors(index.root, work),
        exclusive_lock(index.state_directory("locks") / lock.name, on_wait=waiting),
    ):
        # Only under the lock is it certain that no other process is building this wheel.
        published = index.find(task.pick.name, task.build_key)
        if published is not None:
            reporter.step("another process has built this wheel")
            return published.path
        start()
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
        forget_attempt(log)
        shutil.rmtree(work, ignore_errors=True)  # a failed build keeps it until the next attempt
        return wheel


def asking_key(task: Task) -> str:
    """Return the key under which the index has the log of `ask_backend`."""
    return digest(task.build_key, "metadata")


def ask_backend(task: Task, index: Index, limits: Limits, reporter: Reporter) -> tuple[StatedMetadata, ...]:
    """Return what the build backend of a source states in the environment of its build, before it compiles.

    Many backends state nothing then. Raise `MatrixError` as `build_wheel` does.
    """
    key = asking_key(task)
    log = log_path(index, task.pick.name, key)
    with (
        explain_index_errors(index.root, log),
        exclusive_lock(index.state_directory("locks") / lock_of(index, key).name),
        TemporaryDirectory() as temporary,
    ):
        index.state_directory(log.parent.name)
        directory = BuildDirectory(temporary.root / "build", log)
        metadata = _Build(task, index, limits, reporter, directory).ask()
        log.unlink(missing_ok=True)
        return (stated_by(task, metadata),) if metadata else ()


def build_again(
    task: Task,
    published: Path,
    index: Index,
    limits: Limits,
    reporter: Reporter,
    *,
    directory: BuildDirectory,
) -> Path:
    """Build the wheel of a task in another directory as `build_wheel` does; return its path there.

    It gets the build number of the published wheel, and is not published.
    """
    build = _Build(task, index, limits, reporter, directory, repeats=published)
    return build.write_alias() if task.pick.alias_of else build.run()


class _Build(msgspec.Struct, frozen=True):
    """One attempt to build a task in its own directory."""

    task: Task
    index: Index
    limits: Limits
    reporter: Reporter
    directory: BuildDirectory
    repeats: Path | None = None
    """The published wheel that is built again."""

    @property
    def work(self) -> Path:
        return self.directory.root

    @property
    def sandbox(self) -> Path:
        return self.directory.sandbox

    @property
    def log(self) -> Path:
        return self.directory.log

    def _warn(self, findings: list[Finding]) -> None:
        for finding in findings:
            if finding.id == MODULE_REMOVED:
                self.reporter.warning(f"{self.task.title}: {finding}")

    def run(self) -> Path:
        started = datetime.now(tz=UTC)
        for warning in self.task.warnings:
            self.reporter.warning(warning)
        task, source, layers, environment, tree, prefix_map = self._set_up()
        build_host = self.task.build_host
        jobs = cluster.compile_jobs(
            self.limits.memory_per_job or task.recipe.memory_per_job,
            jobs=self.limits.jobs,
            memory=self.limits.memory,
        )
        recipe = apply_recipe(task, jobs=jobs, prefix_map=prefix_map)
        shims = join(self.limits.jobserver, self.sandbox) if self.limits.jobserver else {}
        recipe = replace(recipe, shims={**recipe.shims, **shims})
        settings = self._with_compiler_cache(task, recipe) if task.recipe.compiles else recipe
        for note in recipe.notes:
            self.reporter.step(note)
        if isolation_in(build_host.runtime) == "none":
            self.reporter.step(
                "this machine cannot isolate builds: a build can change your files and processes"
            )
        if not build_host.runtime.isolates_network:
            self.reporter.step("this machine cannot disable the network for a build")
        how = "jobs that all builds share" if shims else f"{jobs} job{'s' if jobs > 1 else ''}"
        self.reporter.step(f"compile with {how}\nlog: {self.log}")
        memory = MemoryMeter()
        try:
            with memory:
                wheel, sha256 = self._compile(source, tree, environment, settings)
            self.directory.join_logs()
            self.reporter.step("check")
            _check_stated(task, wheel, self.log)
            audit, findings = check_build(wheel, task, self.index, self.directory, layers, tree=tree)
        except MatrixError as error:
            if not was_interrupted(error):
                self.directory.start_anew_next_time()
            measured = _measured(jobs, memory, self.sandbox)
            raise error.changed(measured=measured) from error.__cause__
        self._warn(findings)
        if reason := cache_error(self.sandbox):
            self.reporter.warning(f"ccache failed, and the compilers were called without it: {reason}")

        run = _run_since(
            started,
            {
                "seconds": round(time.time() - started.timestamp() + self.directory.seconds_before, 1),
                "attempts": self.directory.number,
                **_measured(jobs, memory, self.sandbox),
            },
        )
        results = {
            "findings": msgspec.to_builtins(findings),
            "objects": [
                {"path": item.path, "needed": list(item.needed), "versions": dict(item.versions)}
                for item in audit.objects
            ],
            "isolation": isolation_in(build_host.runtime),
            "network": "off" if build_host.runtime.isolates_network else "not disabled",
        }
        materials = materials_of(task, source, layers)
        return self._publish(
            wheel,
            sha256,
            task,
            platform=audit.platform_tag,
            materials=materials,
            run=run,
            variables=recipe.environment,
            results=results,
        )

    def ask(self) -> Metadata | None:
        """Return what the build backend states before it compiles."""
        task, source, _, environment, tree, prefix_map = self._set_up()
        self.reporter.step("ask the build backend for the metadata")
        with diagnosed(task, self.log):
            recipe = apply_recipe(task, jobs=1, prefix_map=prefix_map)
            view = self._prepare(source, tree, environment, recipe)
            out = call_backend(
                "prepare", task, environment.python, view,
                what=f"Asking the build backend of {task.title} for its metadata",
                source=tree, directory=self.directory,
            )  # fmt: skip
            metadata = stated_metadata(task.title, out, self.log)
        if metadata is not None and metadata.name != task.pick.name:
            msg = f"The build backend of {task.title} states the name {metadata.name}.\n  Log: {self.log}"
            raise BuildError(msg, hint=f"Require {metadata.name} instead, if that is what you want.")
        return metadata

    def _set_up(self) -> tuple[Task, Source, Layers, BuildEnvironment, Path, dict[str, str]]:
        """Fetch and unpack what the build needs; return it with the map of paths in compiled files.

        What the task leaves to the source and to the ROCm of the layers is known in the returned one.
        """
        task, build_host = self.task, self.task.build_host
        required = required_wheels(task, self.index)
        if task.recipe.compiles:
            build_host.require_compilers(task.title, rocm=task.needs_rocm_in_image)

        self.reporter.step(f"fetch {task.pick.sdist.file if task.pick.sdist else task.title}")
        source = obtain(
            task.pick, offline=self.limits.offline, mirrors=self.limits.mirrors, patches=task.patches
        )

        self.reporter.step("prepare the build environment")
        torch, requirements = requirements_of(task, required)
        fetching = fetching_of(task, self.limits, log=self.log, reporter=self.reporter)
        with diagnosed(task, self.log):
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
        task = _with_pip_rocm(self._with_source(tree), layers)
        return task, source, layers, environment, tree, prefix_map

    def _prepare(
        self, source: Source, tree: Path, environment: BuildEnvironment, recipe: AppliedRecipe
    ) -> View:
        """Run the commands of a recipe that come before the build backend; return what the backend may see.

        Commands that have succeeded in the directory are not repeated.
        """
        runtime, directory = self.task.build_host.runtime, self.directory
        seen = seen_at(runtime, self.sandbox, directory.source)
        variables = {**self.task.build_host.variables, **source.variables(seen)}
        view = build_view(runtime, environment, recipe, work=self.sandbox, source=tree, variables=variables)
        for words in recipe.prepare[directory.prepared :]:
            what = f"Preparing {self.task.title} ({shlex.join(words)})"
            run_in(runtime, words, view, what=what, log=self.log)
            directory.command_succeeded()
        return view

    def _publish(
        self,
        wheel: Path,
        sha256: str,
        task: Task,
        *,
        platform: str,
        materials: Sequence[Descriptor],
        run: RunMetadata,
        variables: Mapping[str, str],
        results: Mapping[str, Any],
    ) -> Path:
        """Label and publish a wheel; use the next build tag if another build takes the name first."""
        if self.repeats is None:
            self.reporter.step("publish")
        versions = _versions()
        sboms = {SBOM_NAME: sbom(task, materials, program=versions["rocm-matrix"])}
        while True:
            number = self._build_number()
            labels = Labels(
                version=task.pick.pinned,
                platform=platform,
                build_number=number,
                pins=task.pins,
                sboms=sboms,
            )
            labelled = label_wheel(wheel, labels, self.work / "labelled")
            # After labelling has read the wheel: its content is what was checked before.
            check_unchanged(wheel, sha256)
            if self.repeats is not None:
                return labelled.path
            changes = {
                "requirements": [asdict(change) for change in labelled.requirements],
                "notes": list(labelled.notes),
                "dropped_local": labelled.dropped_local,
            }
            record = statement(
                task,
                materials,
                run,
                wheel=labelled.path.name,
                sha256=sha256_of(labelled.path),
                versions=versions,
                variables=variables,
                log=self.log.name,
                log_sha256=sha256_of(self.log),
                results={**results, "labels": changes},
            )
            try:
                return self.index.publish(labelled.path, record)
            except NameTakenError:
                # Another build took the number in between; if it is still free, the cause is another one.
                if self.index.next_build_number(task.pick.name, task.pick.pinned) == number:
                    raise

    def _build_number(self) -> int | None:
        if self.repeats is None:
            return self.index.next_build_number(self.task.pick.name, self.task.pick.pinned)
        _, _, build, _ = parse_wheel_filename(self.repeats.name)
        return build[0] if build else None

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

    def _with_source(self, tree: Path) -> Task:
        """Return the task; if the recipe does not say whether something is compiled, the source decides."""
        task = self.task
        if task.recipe.compiles is not None:
            return task
        try:
            compiles = has_extensions(tree)
        except UsageError:  # the build backend explains what is wrong with the source
            compiles = True
        task = replace(task, recipe=replace(task.recipe, compiles=compiles))
        if task.recipe.compiles:
            task.build_host.require_compilers(task.title, rocm=task.needs_rocm_in_image)
        return task

    def write_alias(self) -> Path:
        """Write, check and publish the wheel of an alias, without compiling or downloading."""
        started = datetime.now(tz=UTC)
        task = self.task
        self.reporter.step(f"write the alias of {task.pick.alias_of}")
        number = self._build_number()
        wheel = write_alias(task.pick, task.resolution, self.work, build_number=number)
        audit = audit_wheel(wheel, Expected(recipe=task.recipe))
        reject(wheel, task, self.log, audit.errors)
        if self.repeats is not None:
            return wheel
        self.reporter.step("publish")
        record = statement(
            task,
            [],
            _run_since(started, {}),
            wheel=wheel.name,
            sha256=audit.sha256,
            versions=_versions(),
            results={"findings": msgspec.to_builtins(audit.findings)},
        )
        return self.index.publish(wheel, record)

    def _with_compiler_cache(self, task: Task, recipe: AppliedRecipe) -> AppliedRecipe:
        program = find_compiler_cache(self.limits.compiler_cache)
        in_image = task.build_host.runtime.image is not None
        if self.limits.compiler_cache == NO_COMPILER_CACHE:
            return recipe
        if program is None and not in_image:
            return recipe
        try:
            return use_compiler_cache(task, recipe, self.sandbox, program)
        except OSError as error:
            self.reporter.warning(f"The compiler cache is not used: {error.strerror}: {error.filename}")
            return recipe

    def _compile(
        self, source: Source, tree: Path, environment: BuildEnvironment, recipe: AppliedRecipe
    ) -> tuple[Path, str]:
        copies = self.work / "wheel"
        copies.mkdir()
        kills = kernel_kills()
        try:
            view = self._prepare(source, tree, environment, recipe)
            out = call_backend(
                "build", self.task, environment.python, view, options=recipe.options,
                what=f"Building {self.task.title}", source=tree, directory=self.directory,
            )  # fmt: skip
            return copy_out(self.task.title, out, copies, self.log)
        except CommandError as error:
            killed = kernel_killed_since(kills)
            context = replace(diagnosis_context(self.task), exit_code=error.code, kernel_kills=killed)
            raise failed(error.message, NOT_PUBLISHED, self.log, context) from error


def _check_stated(task: Task, wheel: Path, log: Path) -> None:
    """Check that a wheel requires what its build backend has stated before, if that was asked."""
    from builders.index_client.metadata import from_wheel

    asked = (one for one in task.resolution.request.stated if one.source == task.pick.source_digest)
    before = next(asked, None)
    try:
        after = before and stated_by(task, from_wheel(wheel))
    except DamagedError:  # the audit says so
        return
    if before and after and before.requires != after.requires:
        lines = [{*before.requires}, {*after.requires}]
        sides = [join_words(sorted(one - lines[0] & lines[1]), joiner="and") for one in lines]
        msg = (
            f"The metadata of {task.title} changed during its build: before, it required {sides[0]}; "
            f"after, {sides[1]}.\n  Log: {log}"
        )
        raise BuildError(msg, hint="The lock is for the first. Correct the build script of the source.")


def _with_pip_rocm(task: Task, layers: Layers) -> Task:
    """Return the task whose build uses the ROCm of torch's pip packages, if torch has one."""
    root = layers.torch.rocm if layers.torch else None
    return replace(task, build_host=replace(task.build_host, rocm_path=str(root))) if root else task


def _inputs_of_directory(task: Task, prefix_map: Mapping[str, str], required: Sequence[Path]) -> str:
    """Return a digest of what the files in a build directory depend on besides the build key.

    They contain paths of the directory and of the layers, and values that CMake read from variables.
    """
    recipe = apply_recipe(task, prefix_map=prefix_map)
    wheels = [sha256_of(path) for path in required]
    return digest(dict(prefix_map), dict(recipe.environment), recipe.options, recipe.prepare, wheels)


def _run_since(started: datetime, measured: dict[str, float | int]) -> RunMetadata:
    return RunMetadata(
        invocation_id=uuid.uuid4().urn,
        started_on=started,
        finished_on=datetime.now(tz=UTC),
        node=node(),
        measured=measured,
    )


def _versions() -> dict[str, str]:
    return {"rocm-matrix": installed_version("rocm-matrix")}


def _measured(jobs: int, memory: MemoryMeter, work: Path) -> dict[str, float | int]:
    return {
        "jobs": jobs,
        "memory_gib": round(memory.total, 2),
        "process_gib": round(memory.largest, 2),
        **cache_counts(work),
    }
